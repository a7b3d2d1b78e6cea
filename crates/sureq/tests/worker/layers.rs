//! Tower layers around handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use sureq::{DeliveryNumber, State, View, Worker, route};
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::timeout::TimeoutLayer;

use crate::support::{AtWork, counts, queue};

#[tokio::test]
async fn a_timeout_of_tower_is_a_failed_try_that_says_why() {
    let (home, queue) = queue();
    queue.add("x").tries(1).await.expect("the push succeeds");
    let handler = route(async || std::future::pending::<()>().await);
    let handler = handler.layer(TimeoutLayer::new(Duration::from_millis(20)));
    let worker = AtWork::start(Worker::new(&home).work("q", handler));
    counts(&queue, |info| info.dead == 1).await;
    let dead = queue.inspect(View::Dead, 0, 1).await.expect("the queue can be inspected");
    let reason = dead[0].more.as_ref().and_then(|more| more.reason.as_deref());
    assert_eq!(reason.map(String::from_utf8_lossy).as_deref(), Some("request timed out"));
    assert_eq!(worker.stop().await.dead, 1);
}

#[derive(Default)]
struct AtOnce {
    now: AtomicUsize,
    most: AtomicUsize,
}

#[tokio::test]
async fn a_concurrency_limit_of_tower_holds_over_queues() {
    let (home, _) = queue();
    for queue in ["a", "b"] {
        home.queue(queue).push_all(vec!["x"; 20]).await.expect("the push succeeds");
    }
    let handler = async |at_once: State<Arc<AtOnce>>, _: DeliveryNumber| {
        at_once.most.fetch_max(at_once.now.fetch_add(1, SeqCst) + 1, SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
        at_once.now.fetch_sub(1, SeqCst);
    };
    let (at_once, limit) = (Arc::<AtOnce>::default(), GlobalConcurrencyLimitLayer::new(3));
    let limited = route(handler).layer(limit);
    let worker = Worker::new(&home).state(Arc::clone(&at_once)).work("a", limited.clone()).work("b", limited);
    let worker = AtWork::start(worker);
    worker.tally(|tally| tally.done == 40).await;
    assert_eq!(at_once.most.load(SeqCst), 3, "exactly the limit");
    worker.stop().await;
}
