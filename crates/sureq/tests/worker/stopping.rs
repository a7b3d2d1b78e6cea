//! How a worker stops: it waits for running handlers, and returns the other tasks at no cost.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use sureq::{DeliveryNumber, Outcome, State, Stop, Token, Worker, WorkerError};
use tokio::sync::Notify;

use crate::support::{AtWork, LEASE, PATIENCE, Tell, counts, eventually, queue, said};

/// A handler that reports that it runs, and ends when the gate opens.
async fn wait(tell: State<Tell<()>>, gate: State<Arc<Notify>>) {
    let _ = tell.send(());
    gate.notified().await;
}

#[tokio::test]
async fn a_stop_waits_for_running_handlers() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let ((tell, mut said), gate) = (said::<()>(), Arc::<Notify>::default());
    let worker = Worker::new(&home).state(tell).state(Arc::clone(&gate));
    let worker = AtWork::start(worker.grace(PATIENCE).work("q", wait));
    said.next().await;
    worker.handle.stop();
    queue.push("too late").await.expect("the push succeeds");
    gate.notify_one();
    let tally = worker.end().await.expect("the worker ends without an error");
    assert_eq!((tally.taken, tally.done, tally.requeued), (1, 1, 0));
}

#[tokio::test]
async fn tasks_running_beyond_the_grace_period_are_returned_at_no_cost() {
    let (home, queue) = queue();
    queue.add("x").tries(1).await.expect("the push succeeds");
    let (tell, mut said) = said::<()>();
    let worker = Worker::new(&home).state(tell).state(Arc::<Notify>::default());
    let worker = AtWork::start(worker.grace(Duration::from_millis(50)).work("q", wait));
    said.next().await;
    let since = Instant::now();
    let tally = worker.stop().await;
    assert!(since.elapsed() >= Duration::from_millis(50), "it had its grace");
    assert_eq!((tally.requeued, tally.failed, tally.lost), (1, 0, 0));
    let task = queue.pop().meta().await.expect("the home answers").expect("a task is ready again");
    let tries = task.meta().expect("the pop requested it").tries;
    assert_eq!((task.delivery(), tries.failed + tries.lapsed + tries.lost), (2, 0));
    assert_eq!(home.workers().await.expect("the workers can be listed").len(), 0, "the worker has stopped");
}

#[tokio::test]
async fn a_dropped_worker_returns_all_its_tasks_at_no_cost() {
    let (home, queue) = queue();
    let ids = queue.push_all(["x", "y", "z"]).await.expect("the push succeeds");
    let (tell, mut said) = said::<()>();
    let worker = Worker::new(&home).state(tell).state(Arc::<Notify>::default()).concurrency(2);
    let worker = AtWork::start(worker.work("q", wait));
    said.many(2).await;
    let handle = worker.abort().await;
    counts(&queue, |info| info.ready == 3 && info.leased == 0).await;
    let back = queue.pop_many(3).meta().await.expect("a task is ready again");
    assert_eq!(back.iter().map(sureq::Task::id).collect::<Vec<_>>(), ids, "in their order");
    for task in &back {
        let tries = task.meta().expect("the pop requested it").tries;
        assert_eq!(tries.failed + tries.lapsed + tries.lost, 0);
    }
    let stopped = || handle.status().is_some_and(|status| status.phase == sureq::Phase::Stopped);
    eventually(async || stopped(), async || format!("{:?}", handle.status())).await;
}

#[tokio::test]
async fn a_worker_ends_when_its_stop_future_is_ready() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let (tell, mut said) = said::<()>();
    let handler = async |tell: State<Tell<()>>| _ = tell.send(());
    let worker = Worker::new(&home).state(tell).work("q", handler);
    let tally = worker.run_until(said.next()).await.expect("the worker ends without an error");
    assert_eq!(tally.done, 1);
}

#[tokio::test]
async fn a_worker_whose_home_is_closed_for_good_ends_with_an_error() {
    let (home, _queue) = queue();
    let worker = AtWork::start(Worker::new(&home).work("q", async || ()));
    worker.phase(|phase| *phase == sureq::Phase::Taking).await;
    home.close().expect("the home closes");
    let error = worker.end().await.expect_err("the home is closed");
    assert!(matches!(error, WorkerError::Home(sureq::Error::Closed(_))), "{error}");
}

#[tokio::test]
async fn a_second_worker_finishes_the_tasks_of_a_stopped_one() {
    let (home, queue) = queue();
    queue.push_all(["x"; 100]).await.expect("the push succeeds");
    let (tell, mut said) = said::<u32>();
    let slow = async |tell: State<Tell<u32>>, DeliveryNumber(n): DeliveryNumber| {
        let _ = tell.send(n);
        std::future::pending::<()>().await;
    };
    let first = Worker::new(&home).state(tell).grace(Duration::ZERO).work("q", slow);
    let first = AtWork::start(first);
    said.many(16).await;
    let second = AtWork::start(Worker::new(&home).work("q", async || ()));
    assert_eq!(first.stop().await.requeued, 16);
    second.tally(|tally| tally.done == 100).await;
    second.stop().await;
}

/// Blocks a handler until the test sends to it.
type Blocked = Arc<Mutex<mpsc::Receiver<()>>>;

/// A handler that reports that it runs, and then blocks its thread until the test unblocks it.
async fn block(tell: State<Tell<()>>, blocked: State<Blocked>) {
    let _ = tell.send(());
    let _ = blocked.lock().expect("no thread panics with the lock").recv();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_task_stays_leased_while_its_handler_does_not_await() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let ((tell, mut said), (unblock, blocked)) = (said::<()>(), mpsc::channel());
    let worker = Worker::new(&home).state(tell).state(Blocked::new(Mutex::new(blocked)));
    let worker = AtWork::start(worker.grace(Duration::ZERO).work("q", block));
    said.next().await;
    worker.handle.stop();
    worker.phase(|phase| *phase == sureq::Phase::Stopping).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let info = queue.info().await.expect("the home answers");
    assert_eq!((info.ready, info.leased), (0, 1), "it still runs");
    unblock.send(()).expect("the handler waits for it");
    let tally = worker.end().await.expect("the worker ends without an error");
    assert_eq!((tally.requeued, tally.unknown), (1, 0));
    assert_eq!(queue.info().await.expect("the home answers").ready, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_never_ends_is_left_behind_and_its_lease_runs_out() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let ((tell, mut said), (unblock, blocked)) = (said::<()>(), mpsc::channel());
    let worker = Worker::new(&home).state(tell).state(Blocked::new(Mutex::new(blocked)));
    let worker = worker.lease(LEASE).ttl(PATIENCE).grace(Duration::ZERO).work("q", block);
    let worker = AtWork::start(worker);
    said.next().await;
    let tally = worker.stop().await;
    assert_eq!((tally.taken, tally.requeued, tally.unknown), (1, 0, 1));
    let task =
        queue.pop().meta().wait(PATIENCE).await.expect("the home answers").expect("the task is ready again");
    let tries = task.meta().expect("the pop requested it").tries;
    assert_eq!((task.delivery(), tries.lapsed), (2, 1));
    drop(unblock);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_dropped_worker_keeps_the_tasks_of_running_handlers() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let ((tell, mut said), (unblock, blocked)) = (said::<()>(), mpsc::channel());
    let worker = Worker::new(&home).state(tell).state(Blocked::new(Mutex::new(blocked)));
    let worker = AtWork::start(worker.work("q", block));
    said.next().await;
    worker.abort().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(queue.info().await.expect("the home answers").leased, 1, "it still runs");
    unblock.send(()).expect("the handler waits for it");
    counts(&queue, |info| info.ready == 1).await;
}

#[tokio::test]
async fn the_times_of_a_worker_may_be_unlimited() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let ((tell, mut said), gate) = (said::<()>(), Arc::<Notify>::default());
    let worker = Worker::new(&home).state(tell).state(Arc::clone(&gate));
    let worker = worker.lease(Duration::MAX).ttl(Duration::MAX).run_max(Duration::MAX).grace(Duration::MAX);
    let worker = AtWork::start(worker.work("q", wait));
    said.next().await;
    worker.handle.stop();
    gate.notify_one();
    assert_eq!(worker.end().await.expect("the worker ends without an error").done, 1);
}

/// A handler that cleans up when its token fires, and then reports why it fired.
async fn clean_up(tell: State<Tell<Option<Stop>>>, token: Token) -> Outcome {
    let _ = tell.send(None);
    let why = token.wait().await;
    // Cleaning up takes more than a poll.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let _ = tell.send(Some(why));
    Outcome::Requeue { after: Duration::ZERO }
}

#[tokio::test]
async fn a_handler_has_the_whole_grace_to_clean_up_when_the_worker_stops() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let (tell, mut said) = said::<Option<Stop>>();
    let worker = AtWork::start(Worker::new(&home).state(tell).grace(PATIENCE).work("q", clean_up));
    assert_eq!(said.next().await, None);
    let since = Instant::now();
    let tally = worker.stop().await;
    assert!(since.elapsed() < PATIENCE, "its token fires at the start of the grace period, not at its end");
    assert_eq!(said.next().await, Some(Stop::Stopping));
    assert_eq!((tally.requeued, tally.unknown), (1, 0));
}

#[tokio::test]
async fn a_handler_has_the_whole_grace_to_clean_up_when_it_ran_too_long() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let (tell, mut said) = said::<Option<Stop>>();
    let worker = Worker::new(&home).state(tell).run_max(Duration::from_millis(50)).grace(PATIENCE);
    let worker = AtWork::start(worker.concurrency(1).work("q", clean_up));
    assert_eq!(said.many(2).await, [None, Some(Stop::TooLong)]);
    worker.tally(|tally| tally.requeued >= 1).await;
    assert_eq!(worker.stop().await.failed, 0, "its own outcome counts");
}

/// A handler that continues while the worker stops learns of graver reasons to stop.
#[tokio::test]
async fn a_handler_in_the_grace_period_learns_that_its_task_is_cancelled() {
    let (home, queue) = queue();
    let id = queue.push("x").await.expect("the push succeeds");
    let (tell, mut said) = said::<Option<Stop>>();
    let handler = async |tell: State<Tell<Option<Stop>>>, token: Token| {
        let _ = tell.send(None);
        let _ = tell.send(Some(token.wait().await));
        let _ = tell.send(Some(token.wait_beyond(Stop::Stopping).await));
        Outcome::Cancelled
    };
    let worker = Worker::new(&home).state(tell).ttl(Duration::from_secs(1)).grace(PATIENCE);
    let worker = AtWork::start(worker.work("q", handler));
    assert_eq!(said.next().await, None);
    worker.handle.stop();
    assert_eq!(said.next().await, Some(Stop::Stopping));
    assert!(queue.cancel(&id).await.expect("the home answers"));
    assert_eq!(said.next().await, Some(Stop::Cancelled));
    assert_eq!(worker.end().await.expect("the worker ends without an error").cancelled, 1);
}
