//! Tasks and queues as streams.

use std::pin::pin;

use futures_util::{FutureExt, StreamExt, TryStreamExt};

use crate::support::{counts, queue};

#[tokio::test]
async fn a_stream_takes_one_task_at_a_time_and_waits_for_more() {
    let (_home, queue) = queue();
    queue.push_all(["1", "2"]).await.expect("they are pushed");
    let mut tasks = pin!(queue.tasks());
    for expected in ["1", "2"] {
        let task = tasks.next().await.expect("it has no end").expect("it can be asked");
        assert_eq!(task.decode::<String>(), Ok(expected.to_owned()));
        assert!(task.ack().await.expect("it can be asked"));
    }
    let (next, pushed) = tokio::join!(tasks.next(), queue.push("3"));
    assert_eq!(next.expect("it has no end").expect("it can be asked").id(), pushed.expect("it is pushed"));
}

#[tokio::test]
async fn a_stream_that_is_dropped_while_it_waits_takes_nothing() {
    let (home, queue) = queue();
    {
        let mut tasks = Box::pin(queue.tasks());
        assert!(tasks.next().now_or_never().is_none());
        assert_eq!(home.waiting(), 1);
    }
    assert_eq!(home.waiting(), 0);
    queue.push("x").await.expect("it is pushed");
    assert_eq!(counts(&queue, |info| info.ready == 1).await.leased, 0);
}

#[tokio::test]
async fn queues_come_page_by_page() {
    let (home, _) = queue();
    for n in 0..2_500 {
        home.queue(format!("many:{n}")).push("x").await.expect("it is pushed");
    }
    home.queue("other").push("x").await.expect("it is pushed");
    let rows: Vec<_> = home.queues(Some(b"many:*")).try_collect().await.expect("they are listed");
    assert_eq!(rows.len(), 2_500);
    assert!(rows.iter().all(|row| row.name.starts_with(b"many:")));
}
