//! How queues share a worker: limits per queue, weights, strict order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use sureq::{Home, State, Worker, route};

use crate::support::{AtWork, Tell, home, said};

/// The running handlers of two queues, and their maximum so far.
#[derive(Default)]
struct Counts([(AtomicUsize, AtomicUsize); 2]);

impl Counts {
    async fn work(&self, queue: usize) {
        let (now, most) = &self.0[queue];
        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
        tokio::time::sleep(Duration::from_millis(3)).await;
        now.fetch_sub(1, SeqCst);
    }

    fn most(&self) -> [usize; 2] {
        [0, 1].map(|queue| self.0[queue].1.load(SeqCst))
    }
}

async fn fill(home: &Home, queue: &str, count: usize) {
    home.queue(queue).push_all(vec![queue; count]).await.expect("the push succeeds");
}

#[tokio::test]
async fn the_limit_of_a_queue_holds_and_does_not_delay_other_queues() {
    let home = home();
    fill(&home, "a", 30).await;
    fill(&home, "b", 90).await;
    let counts = Arc::<Counts>::default();
    let worker = Worker::new(&home)
        .state(Arc::clone(&counts))
        .concurrency(10)
        .work("a", route(async |counts: State<Arc<Counts>>| counts.work(0).await).concurrency(2))
        .work("b", async |counts: State<Arc<Counts>>| counts.work(1).await);
    let worker = AtWork::start(worker);
    worker.tally(|tally| tally.done == 120).await;
    let [a, b] = counts.most();
    assert!(a == 2 && (8..=10).contains(&b), "{a} and {b} at once");
    worker.stop().await;
}

/// The queues of the first `take` tasks of a worker with a concurrency of 1, in order.
async fn order(worker: Worker, home: &Home, take: usize) -> Vec<String> {
    let (tell, mut said) = said::<String>();
    fill(home, "a", take).await;
    fill(home, "b", take).await;
    let worker = AtWork::start(worker.state(tell).concurrency(1));
    let seen = said.many(take).await;
    worker.stop().await;
    seen
}

async fn tell_queue(queue: String, tell: State<Tell<String>>) {
    let _ = tell.send(queue);
}

#[tokio::test]
async fn in_strict_order_a_queue_waits_until_those_before_it_are_empty() {
    let home = home();
    let worker = Worker::new(&home).strict_order().work("a", tell_queue).work("b", tell_queue);
    assert_eq!(order(worker, &home, 50).await, vec!["a"; 50]);
}

#[tokio::test]
async fn weights_share_the_work() {
    let home = home();
    let worker = Worker::new(&home).work("a", route(tell_queue).weight(3)).work("b", tell_queue);
    let of_a = order(worker, &home, 1_000).await.iter().filter(|queue| *queue == "a").count();
    // 750 are expected, with a standard deviation of 14.
    assert!((650..=850).contains(&of_a), "{of_a} of 1000");
}
