//! The status of a worker, also while its home goes away and comes back.

use sureq::{Phase, State, Worker};
use sureq_testkit::redis_server::RedisServer;

use crate::support::{AtWork, Tell, queue, said};

#[tokio::test]
async fn a_worker_goes_through_its_phases() {
    let (home, queue) = queue();
    let (go_on, gate) = tokio::sync::watch::channel(false);
    let handler = async |gate: State<tokio::sync::watch::Receiver<bool>>| {
        let _ = gate.0.as_ref().clone().wait_for(|&is_open| is_open).await;
    };
    let worker = Worker::new(&home).state(gate).concurrency(2).work("q", handler);
    let handle = worker.handle();
    assert_eq!(handle.status(), None, "it was not started");
    let worker = AtWork::start(worker);
    worker.phase(|phase| *phase == Phase::Taking).await;
    queue.push_all(["x", "y", "z"]).await.expect("the push succeeds");
    worker.phase(|phase| *phase == Phase::Full).await;
    assert_eq!(handle.status().map(|status| status.running), Some(2));
    handle.stop();
    worker.phase(|phase| *phase == Phase::Stopping).await;
    go_on.send_replace(true);
    let tally = worker.end().await.expect("the worker ends without an error");
    assert_eq!((tally.taken, tally.done), (2, 2), "a task pushed while it stopped was not popped");
    assert_eq!(handle.status().map(|status| status.phase), Some(Phase::Stopped));
    assert_eq!(queue.info().await.expect("the home answers").ready, 1);
    assert_eq!(home.workers().await.expect("the workers can be listed").len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_reports_an_outage_of_its_home_and_continues_after_it() {
    let mut redis = RedisServer::start();
    let home = sureq::open(&redis.url()).expect("it listens");
    let (tell, mut said) = said::<String>();
    let handler = async |text: String, tell: State<Tell<String>>| _ = tell.send(text);
    let ttl = std::time::Duration::from_secs(1);
    let worker = AtWork::start(Worker::new(&home).state(tell).ttl(ttl).work("q", handler));
    home.queue("q").push("before").await.expect("the push succeeds");
    assert_eq!(said.next().await, "before");
    worker.phase(|phase| *phase == Phase::Taking).await;
    redis.kill();
    worker.phase(|phase| matches!(phase, Phase::Disconnected { .. })).await;
    redis.restart();
    worker.phase(|phase| *phase == Phase::Taking).await;
    home.queue("q").push("after").await.expect("the push succeeds");
    assert_eq!(said.next().await, "after");
    assert!(worker.handle.status().is_some_and(|status| status.outages >= 1));
    let tally = worker.stop().await;
    assert_eq!((tally.taken, tally.done + tally.unknown), (2, 2));
}
