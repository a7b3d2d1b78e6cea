//! `ack_first`: a task is acked before its handler runs, so that it runs at most once.

use std::time::Duration;

use sureq::{Failure, State, Stop, Token, Worker, route};

use crate::support::{AtWork, LEASE, Tell, counts, queue, said};

#[tokio::test]
async fn a_task_acked_first_is_gone_when_its_handler_runs_and_never_runs_again() {
    let (home, queue) = queue();
    queue.push_all(["fail", "panic", "done"]).await.expect("the push succeeds");
    let (tell, mut said) = said::<String>();
    let handler = async |text: String, tell: State<Tell<String>>| {
        let _ = tell.send(text.clone());
        assert_ne!(text, "panic");
        if text == "fail" { Err(Failure::again_now("it would be retried at once")) } else { Ok(()) }
    };
    let worker = Worker::new(&home).state(tell).work("q", route(handler).ack_first());
    let worker = AtWork::start(worker);
    let mut seen = said.many(3).await;
    seen.sort();
    assert_eq!(seen, ["done", "fail", "panic"]);
    counts(&queue, |info| info.ready + info.delayed + info.leased + info.dead == 0).await;
    let tally = worker.stop().await;
    assert_eq!((tally.taken, tally.done, tally.failed, tally.panicked), (3, 1, 2, 1));
    assert_eq!(said.rest(), Vec::<String>::new());
}

#[tokio::test]
async fn a_handler_of_a_finished_task_has_no_lease_to_lose() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let (tell, mut said) = said::<Option<Stop>>();
    let handler = async |token: Token, tell: State<Tell<Option<Stop>>>| {
        let stopped = tokio::time::timeout(3 * LEASE, token.wait()).await;
        let _ = tell.send(stopped.ok());
    };
    let worker = Worker::new(&home).state(tell).lease(LEASE).work("q", route(handler).ack_first());
    let worker = AtWork::start(worker);
    assert_eq!(said.next().await, None, "its token does not fire");
    assert_eq!(worker.stop().await.done, 1);
}

#[tokio::test]
async fn a_handler_of_a_finished_task_that_is_dropped_at_a_stop_has_failed() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let (tell, mut said) = said::<()>();
    let handler = async |tell: State<Tell<()>>| {
        let _ = tell.send(());
        std::future::pending::<()>().await;
    };
    let worker = Worker::new(&home).state(tell).grace(Duration::ZERO);
    let worker = AtWork::start(worker.work("q", route(handler).ack_first()));
    said.next().await;
    let tally = worker.stop().await;
    assert_eq!((tally.failed, tally.requeued, tally.lost), (1, 0, 0));
    assert_eq!(queue.info().await.expect("the home answers").ready, 0, "there is nothing to return");
}
