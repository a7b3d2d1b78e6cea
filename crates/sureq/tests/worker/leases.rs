//! What holds a task while its handler runs, and what ends it.

use std::thread;
use std::time::Duration;

use sureq::{DeliveryNumber, State, Stop, Token, View, Worker};

use crate::support::{AtWork, LEASE, Tell, counts, queue, said};

/// A delivery, and why its handler should stop, if so.
type Heard = (u32, Option<Stop>);

/// A handler that blocks its thread for three leases keeps its task: nobody else can take it, and its end counts.
async fn check_blocking() {
    let (home, queue) = queue();
    queue.push("x").await.expect("it is pushed");
    let (tell, mut said) = said::<Heard>();
    let handler = async |DeliveryNumber(n): DeliveryNumber, token: Token, tell: State<Tell<Heard>>| {
        thread::sleep(3 * LEASE);
        let _ = tell.send((n, token.fired()));
    };
    let worker = Worker::new(&home).state(tell).lease(LEASE).ttl(LEASE).concurrency(1);
    let worker = AtWork::start(worker.work("q", handler));
    assert_eq!(said.next().await, (1, None));
    worker.tally(|tally| tally.done == 1).await;
    counts(&queue, |info| info.ready + info.leased == 0).await;
    let tally = worker.stop().await;
    assert_eq!((tally.taken, tally.lost), (1, 0));
}

#[tokio::test(flavor = "current_thread")]
async fn a_handler_that_blocks_the_only_thread_keeps_its_task() {
    check_blocking().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_a_thread_keeps_its_task() {
    check_blocking().await;
}

#[tokio::test]
async fn a_handler_that_hangs_is_ended_and_its_try_has_failed() {
    let (home, queue) = queue();
    queue.add("x").tries(1).await.expect("it is added");
    let (tell, mut said) = said::<()>();
    let handler = async |tell: State<Tell<()>>| {
        /// Tells when the handler is dropped.
        struct Dropped(Tell<()>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let _dropped = Dropped(tell.0.as_ref().clone());
        std::future::pending::<()>().await;
    };
    let worker = Worker::new(&home).state(tell).run_max(Duration::from_millis(100)).work("q", handler);
    let worker = AtWork::start(worker);
    said.next().await;
    counts(&queue, |info| info.dead == 1).await;
    let dead = queue.inspect(View::Dead, 0, 1).await.expect("it can be looked at");
    let reason = dead[0].more.as_ref().and_then(|more| more.reason.as_deref());
    assert_eq!(reason.map(String::from_utf8_lossy).as_deref(), Some("the handler ran longer than 100ms"));
    assert_eq!(worker.stop().await.failed, 1);
}

#[tokio::test]
async fn a_handler_hears_that_its_lease_is_lost_and_what_it_says_then_changes_nothing() {
    let (home, queue) = queue();
    let id = queue.push("x").await.expect("it is pushed");
    let (tell, mut said) = said::<Heard>();
    let handler = async |token: Token, DeliveryNumber(n): DeliveryNumber, tell: State<Tell<Heard>>| {
        let _ = tell.send((n, None));
        if n == 1 {
            let _ = tell.send((n, Some(token.wait().await)));
        }
    };
    // The worker has room for one alone, so that the second delivery comes after the first has ended.
    let worker = Worker::new(&home).state(tell).lease(LEASE).concurrency(1).work("q", handler);
    let worker = AtWork::start(worker);
    assert_eq!(said.next().await, (1, None));
    // Whoever has no receipt takes the task out of the hands that hold it.
    queue.give_back(&id).await.expect("it goes back");
    assert_eq!(said.next().await, (1, Some(Stop::LeaseLost)));
    assert_eq!(said.next().await, (2, None));
    worker.tally(|tally| tally.done == 1 && tally.lost == 1).await;
    assert_eq!(worker.stop().await.taken, 2);
}

#[tokio::test]
async fn a_worker_that_was_taken_for_dead_tells_its_handlers_and_comes_back() {
    let (home, queue) = queue();
    queue.push("x").await.expect("it is pushed");
    let (tell, mut said) = said::<Heard>();
    let handler = async |token: Token, DeliveryNumber(n): DeliveryNumber, tell: State<Tell<Heard>>| {
        let _ = tell.send((n, None));
        if n == 1 {
            let _ = tell.send((n, Some(token.wait().await)));
        }
    };
    let worker = Worker::new(&home).state(tell).name("w").ttl(Duration::from_secs(2)).concurrency(1);
    let worker = AtWork::start(worker.work("q", handler));
    assert_eq!(said.next().await, (1, None));
    let before = home.workers().await.expect("they are listed");
    assert_eq!(home.fail_worker("w").await.expect("it can be declared lost"), 1);
    assert_eq!(said.next().await, (1, Some(Stop::WorkerLost)));
    assert_eq!(said.next().await, (2, None));
    worker.tally(|tally| tally.done == 1).await;
    let after = home.workers().await.expect("they are listed");
    assert_eq!((before.len(), after.len()), (1, 1));
    assert!(after[0].incarnation > before[0].incarnation);
    worker.stop().await;
}
