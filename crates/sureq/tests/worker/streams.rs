//! Tasks and queues as streams.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt, TryStreamExt};
use sureq::LEASE;

use crate::support::{counts, queue};

#[tokio::test]
async fn a_stream_takes_one_task_at_a_time_and_waits_for_more() {
    let (_home, queue) = queue();
    queue.push_all(["1", "2"]).await.expect("the push succeeds");
    let mut tasks = pin!(queue.tasks());
    for expected in ["1", "2"] {
        let task = tasks.next().await.expect("the stream is endless").expect("the home answers");
        assert_eq!(task.decode::<String>(), Ok(expected.to_owned()));
        assert_eq!(task.ack().await.expect("the home answers"), sureq::Held::Yes);
    }
    let (next, pushed) = tokio::join!(tasks.next(), queue.push("3"));
    assert_eq!(
        next.expect("the stream is endless").expect("the home answers").id(),
        pushed.expect("the push succeeds")
    );
}

#[tokio::test]
async fn a_stream_that_is_dropped_while_it_waits_pops_nothing() {
    let (home, queue) = queue();
    {
        let mut tasks = Box::pin(queue.tasks());
        assert!(tasks.next().now_or_never().is_none());
        assert_eq!(home.waiters(), 1);
    }
    assert_eq!(home.waiters(), 0);
    queue.push("x").await.expect("the push succeeds");
    assert_eq!(counts(&queue, |info| info.ready == 1).await.leased, 0);
}

/// A polled stream has a waiting pop. The lease of its task counts from the arrival of the task, and `lease_end` says
/// so.
#[tokio::test]
async fn a_task_that_arrived_between_polls_has_the_end_of_its_lease() {
    let (_home, queue) = queue();
    let mut tasks = pin!(queue.tasks());
    assert!(tasks.next().now_or_never().is_none());
    let before = Instant::now();
    queue.push("x").await.expect("the push succeeds");
    let after = Instant::now();
    assert_eq!(queue.info().await.expect("the home answers").leased, 1);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let task = tasks.next().await.expect("the stream is endless").expect("the home answers");
    let end = task.lease_end().expect("it has a lease");
    assert!((before + LEASE..=after + LEASE).contains(&end));
    assert_eq!(task.ack().await.expect("the home answers"), sureq::Held::Yes);
    queue.push("y").await.expect("the push succeeds");
    let task = queue.pop().no_lease().await.expect("the home answers").expect("a task is ready");
    assert_eq!(task.lease_end(), None);
}

#[tokio::test]
async fn queues_come_page_by_page() {
    let (home, _) = queue();
    for n in 0..2_500 {
        home.queue(format!("many:{n}")).push("x").await.expect("the push succeeds");
    }
    home.queue("other").push("x").await.expect("the push succeeds");
    let rows: Vec<_> = home.queues(Some(b"many:*")).try_collect().await.expect("the queues can be listed");
    assert_eq!(rows.len(), 2_500);
    assert!(rows.iter().all(|row| row.name.starts_with(b"many:")));
}
