//! How tasks are held while their handlers run, and how that ends.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use sureq::{DeliveryNumber, Home, Queue, State, Stop, Token, View, Worker};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::support::{AtWork, LEASE, Said, Tell, counts, eventually, queue, said};

/// A delivery, and why its handler should stop, if so.
type Observed = (u32, Option<Stop>);

/// A handler that blocks its thread for three leases keeps its task: no other worker gets it, and its outcome counts.
async fn check_blocking() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let (tell, mut said) = said::<Observed>();
    let handler = async |DeliveryNumber(n): DeliveryNumber, token: Token, tell: State<Tell<Observed>>| {
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
async fn a_handler_that_hangs_is_aborted_and_its_try_fails() {
    let (home, queue) = queue();
    queue.add("x").tries(1).await.expect("the push succeeds");
    let (tell, mut said) = said::<()>();
    let handler = async |tell: State<Tell<()>>| {
        /// Reports that the handler is dropped.
        struct Dropped(Tell<()>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let _dropped = Dropped(tell.0.as_ref().clone());
        std::future::pending::<()>().await;
    };
    let worker = Worker::new(&home).state(tell).run_max(Duration::from_millis(100)).grace(Duration::ZERO);
    let worker = worker.work("q", handler);
    let worker = AtWork::start(worker);
    said.next().await;
    counts(&queue, |info| info.dead == 1).await;
    let dead = queue.inspect(View::Dead, 0, 1).await.expect("the queue can be inspected");
    let reason = dead[0].more.as_ref().and_then(|more| more.reason.as_deref());
    assert_eq!(reason.map(String::from_utf8_lossy).as_deref(), Some("the handler ran longer than 100ms"));
    let tally = worker.stop().await;
    assert_eq!((tally.failed, tally.dead), (0, 1), "it was its last try");
}

#[tokio::test]
async fn a_handler_learns_of_its_lost_lease_and_its_outcome_is_ignored() {
    let (home, queue) = queue();
    let id = queue.push("x").await.expect("the push succeeds");
    let (tell, mut said) = said::<Observed>();
    let handler = async |token: Token, DeliveryNumber(n): DeliveryNumber, tell: State<Tell<Observed>>| {
        let _ = tell.send((n, None));
        if n == 1 {
            let _ = tell.send((n, Some(token.wait().await)));
        }
    };
    // With a concurrency of 1, the second delivery starts after the first has ended.
    let worker = Worker::new(&home).state(tell).lease(LEASE).concurrency(1).work("q", handler);
    let worker = AtWork::start(worker);
    assert_eq!(said.next().await, (1, None));
    // A return by the bare id takes the task from its holder.
    assert_eq!(queue.requeue(&id).await.expect("the home answers"), sureq::Held::Yes);
    assert_eq!(said.next().await, (1, Some(Stop::LeaseLost)));
    assert_eq!(said.next().await, (2, None));
    worker.tally(|tally| tally.done == 1 && tally.lost == 1).await;
    assert_eq!(worker.stop().await.taken, 2);
}

#[tokio::test]
async fn a_worker_that_was_declared_lost_notifies_its_handlers_and_registers_again() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let (tell, mut said) = said::<Observed>();
    let handler = async |token: Token, DeliveryNumber(n): DeliveryNumber, tell: State<Tell<Observed>>| {
        let _ = tell.send((n, None));
        if n == 1 {
            let _ = tell.send((n, Some(token.wait().await)));
        }
    };
    let worker = Worker::new(&home).state(tell).name("w").ttl(Duration::from_secs(2)).concurrency(1);
    let worker = AtWork::start(worker.work("q", handler));
    assert_eq!(said.next().await, (1, None));
    let before = home.workers().await.expect("the workers can be listed");
    assert_eq!(home.fail_worker("w").await.expect("the home answers"), 1);
    assert_eq!(said.next().await, (1, Some(Stop::WorkerLost)));
    assert_eq!(said.next().await, (2, None));
    worker.tally(|tally| tally.done == 1).await;
    let after = home.workers().await.expect("the workers can be listed");
    assert_eq!((before.len(), after.len()), (1, 1));
    assert!(after[0].incarnation > before[0].incarnation);
    worker.stop().await;
}

/// A runtime with one thread, separate from that of the test. It is leaked, since dropping it would wait for a
/// blocked handler.
fn one_thread() -> &'static Runtime {
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("there is room for a thread");
    Box::leak(Box::new(runtime))
}

/// Two workers of one queue. The only thread of the first one is blocked by the task "block" until the test unblocks
/// it. Meanwhile the second one runs the task that was delivered to the waiting pop of the first, until the gate
/// opens.
struct Blocked {
    home: Home,
    queue: Queue,
    first: AtWork,
    second: AtWork,
    /// Each started handler: the worker and the payload.
    begun: Said<(&'static str, String)>,
    unblock: mpsc::Sender<()>,
    gate: Arc<Notify>,
    overlapped: Arc<AtomicBool>,
}

impl Blocked {
    async fn start(lease: Duration, lose: impl AsyncFnOnce(&Home)) -> Self {
        let (home, queue) = queue();
        let ((tell, mut begun), runtime) = (said(), one_thread());
        let (unblock, blocked) = mpsc::channel::<()>();
        let (blocked, gate) = (Arc::new(Mutex::new(blocked)), Arc::<Notify>::default());
        let (runs, overlapped) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let worker = |who: &'static str| {
            let (tell, blocked, gate) = (tell.clone(), Arc::clone(&blocked), Arc::clone(&gate));
            let (runs, overlapped) = (Arc::clone(&runs), Arc::clone(&overlapped));
            let handler = move |payload: String| {
                let (tell, blocked, gate) = (tell.clone(), Arc::clone(&blocked), Arc::clone(&gate));
                let (runs, overlapped) = (Arc::clone(&runs), Arc::clone(&overlapped));
                async move {
                    if payload == "block" && who == "second" {
                        return;
                    }
                    let _ = tell.send((who, payload.clone()));
                    if payload == "block" {
                        let _ = blocked.lock().expect("no thread panics with the lock").recv();
                        return;
                    }
                    overlapped.fetch_or(runs.swap(true, SeqCst), SeqCst);
                    gate.notified().await;
                    runs.store(false, SeqCst);
                }
            };
            let worker = Worker::new(&home).name(who).lease(lease).ttl(LEASE).concurrency(4);
            AtWork::start(worker.work("q", handler))
        };
        let first = {
            let _entered = runtime.enter();
            worker("first")
        };
        first.phase(|phase| *phase == sureq::Phase::Taking).await;
        queue.push("block").await.expect("the push succeeds");
        assert_eq!(begun.next().await, ("first", "block".to_owned()));
        eventually(
            async || home.waiters() == 1,
            async || "the first worker does not wait for a task".to_owned(),
        )
        .await;
        queue.push("x").await.expect("the push succeeds");
        counts(&queue, |info| info.leased == 2).await;
        lose(&home).await;
        let second = worker("second");
        assert_eq!(begun.next().await, ("second", "x".to_owned()));
        Self { home, queue, first, second, begun, unblock, gate, overlapped }
    }

    /// Unblocks the first worker, which lost `lost` tasks, and checks that it runs none of them.
    async fn check(mut self, lost: u64) {
        self.unblock.send(()).expect("the handler waits for it");
        self.first.tally(|tally| tally.taken == 2 && tally.lost == lost).await;
        assert_eq!(self.begun.rest(), []);
        self.gate.notify_waiters();
        self.second.tally(|tally| tally.done == lost).await;
        assert!(!self.overlapped.load(SeqCst), "two workers ran one task at once");
        self.first.stop().await;
        self.second.stop().await;
        assert!(self.home.waiters() == 0);
        let info = self.queue.info().await.expect("the home answers");
        assert_eq!(info.ready + info.leased, 0);
    }
}

/// The reply to a waiting pop is not read while handlers block all threads. When it is read, its task belongs to
/// another worker.
#[tokio::test]
async fn a_task_whose_lease_lapsed_before_its_reply_was_read_is_not_run() {
    Blocked::start(LEASE, async |_: &Home| ()).await.check(1).await;
}

/// The same with a long lease, if the worker was declared lost.
#[tokio::test]
async fn a_task_of_a_worker_lost_before_the_reply_was_read_is_not_run() {
    let lose = async |home: &Home| {
        // It registers under a new incarnation, and all its tokens fire, including that of the task "block".
        let before = home.workers().await.expect("the workers can be listed")[0].incarnation;
        assert_eq!(home.fail_worker("first").await.expect("the home answers"), 2);
        let again = async || {
            let workers = home.workers().await.expect("the workers can be listed");
            workers.iter().any(|worker| worker.incarnation > before)
        };
        eventually(again, async || "it never registered anew".to_owned()).await;
    };
    let blocked = Blocked::start(Duration::from_secs(30), lose).await;
    blocked.check(2).await;
}

/// A handler that was aborted at `run_max` and does not await keeps its task while it runs. Then its try has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_task_stays_leased_while_its_handler_runs_on_after_run_max() {
    let (home, queue) = queue();
    queue.add("x").tries(1).await.expect("the push succeeds");
    let ((tell, mut said), (unblock, blocked)) = (said::<Option<Stop>>(), mpsc::channel::<()>());
    let blocked = Arc::new(Mutex::new(blocked));
    let handler = move |token: Token, tell: State<Tell<Option<Stop>>>| {
        let blocked = Arc::clone(&blocked);
        async move {
            let stop = token.fired();
            let _ = tell.send(stop);
            while token.fired().is_none() {
                thread::sleep(Duration::from_millis(1));
            }
            let _ = tell.send(token.fired());
            let _ = blocked.lock().expect("no thread panics with the lock").recv();
            std::future::pending::<()>().await;
        }
    };
    let worker = Worker::new(&home).state(tell).run_max(Duration::from_millis(50)).grace(Duration::ZERO);
    let worker = AtWork::start(worker.work("q", handler));
    assert_eq!(said.many(2).await, [None, Some(Stop::TooLong)]);
    // The handler is aborted, and its task is still leased.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let info = queue.info().await.expect("the home answers");
    assert_eq!((info.leased, info.dead, info.delayed), (1, 0, 0));
    unblock.send(()).expect("the handler waits for it");
    counts(&queue, |info| info.dead == 1).await;
    assert_eq!(worker.stop().await.dead, 1, "it was its last try");
}
