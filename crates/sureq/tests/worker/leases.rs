//! What holds a task while its handler runs, and what ends it.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use sureq::{DeliveryNumber, Home, Queue, State, Stop, Token, View, Worker};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::support::{AtWork, LEASE, Said, Tell, counts, eventually, queue, said};

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
    let worker = Worker::new(&home).state(tell).run_max(Duration::from_millis(100)).grace(Duration::ZERO);
    let worker = worker.work("q", handler);
    let worker = AtWork::start(worker);
    said.next().await;
    counts(&queue, |info| info.dead == 1).await;
    let dead = queue.inspect(View::Dead, 0, 1).await.expect("it can be looked at");
    let reason = dead[0].more.as_ref().and_then(|more| more.reason.as_deref());
    assert_eq!(reason.map(String::from_utf8_lossy).as_deref(), Some("the handler ran longer than 100ms"));
    let tally = worker.stop().await;
    assert_eq!((tally.failed, tally.dead), (0, 1), "it was its last try");
}

#[tokio::test]
async fn a_handler_learns_of_its_lost_lease_and_its_outcome_is_ignored() {
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
    assert_eq!(queue.give_back(&id).await.expect("it can be asked"), sureq::Held::Yes);
    assert_eq!(said.next().await, (1, Some(Stop::LeaseLost)));
    assert_eq!(said.next().await, (2, None));
    worker.tally(|tally| tally.done == 1 && tally.lost == 1).await;
    assert_eq!(worker.stop().await.taken, 2);
}

#[tokio::test]
async fn a_worker_that_was_declared_lost_notifies_its_handlers_and_registers_again() {
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

/// A runtime of one thread, which is not the test's. It is left behind: its end would wait for a handler that blocks.
fn one_thread() -> &'static Runtime {
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("there is room for a thread");
    Box::leak(Box::new(runtime))
}

/// Two workers of one queue. The first one's only thread is blocked by the task "block" until the test lets go of it; meanwhile
/// the second one runs the task that the first one's waiting pop was given, and does so until the gate is open.
struct Blocked {
    home: Home,
    queue: Queue,
    first: AtWork,
    second: AtWork,
    /// Who began what.
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
                        let _ = blocked.lock().expect("nobody panics with it").recv();
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
        queue.push("block").await.expect("it is pushed");
        assert_eq!(begun.next().await, ("first", "block".to_owned()));
        eventually(async || home.waiters() == 1, async || "it asks for more".to_owned()).await;
        queue.push("x").await.expect("it is pushed");
        counts(&queue, |info| info.leased == 2).await;
        lose(&home).await;
        let second = worker("second");
        assert_eq!(begun.next().await, ("second", "x".to_owned()));
        Self { home, queue, first, second, begun, unblock, gate, overlapped }
    }

    /// Lets go of the first worker, which lost so many tasks, and looks whether it begins what is not its own any more.
    async fn check(mut self, lost: u64) {
        self.unblock.send(()).expect("it is waited for");
        self.first.tally(|tally| tally.taken == 2 && tally.lost == lost).await;
        assert_eq!(self.begun.rest(), []);
        self.gate.notify_waiters();
        self.second.tally(|tally| tally.done == lost).await;
        assert!(!self.overlapped.load(SeqCst), "two workers ran one task at once");
        self.first.stop().await;
        self.second.stop().await;
        assert!(self.home.waiters() == 0);
        let info = self.queue.info().await.expect("it can be asked");
        assert_eq!(info.ready + info.leased, 0);
    }
}

/// The answer to a waiting pop lies there while handlers block all threads. By the time it is looked at the task is another's.
#[tokio::test]
async fn a_task_whose_lease_lapsed_before_it_was_looked_at_is_not_begun() {
    Blocked::start(LEASE, async |_: &Home| ()).await.check(1).await;
}

/// The same, if it was the worker that was lost, and the lease is long.
#[tokio::test]
async fn a_task_of_a_worker_that_was_lost_before_it_was_looked_at_is_not_begun() {
    let lose = async |home: &Home| {
        // It comes back as another one, and all its tokens fire; the task "block" among them.
        let before = home.workers().await.expect("they are listed")[0].incarnation;
        assert_eq!(home.fail_worker("first").await.expect("it can be declared lost"), 2);
        let again = async || {
            let workers = home.workers().await.expect("they are listed");
            workers.iter().any(|worker| worker.incarnation > before)
        };
        eventually(again, async || "it never registered anew".to_owned()).await;
    };
    let blocked = Blocked::start(Duration::from_secs(30), lose).await;
    blocked.check(2).await;
}

/// A handler that was ended at `run_max` and does not await keeps its task while it runs; then its try has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_task_is_not_given_away_while_its_handler_that_ran_too_long_still_runs() {
    let (home, queue) = queue();
    queue.add("x").tries(1).await.expect("it is added");
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
            let _ = blocked.lock().expect("nobody panics with it").recv();
            std::future::pending::<()>().await;
        }
    };
    let worker = Worker::new(&home).state(tell).run_max(Duration::from_millis(50)).grace(Duration::ZERO);
    let worker = AtWork::start(worker.work("q", handler));
    assert_eq!(said.many(2).await, [None, Some(Stop::TooLong)]);
    // Its end is decided, and still it is held.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let info = queue.info().await.expect("it can be asked");
    assert_eq!((info.leased, info.dead, info.delayed), (1, 0, 0));
    unblock.send(()).expect("it is waited for");
    counts(&queue, |info| info.dead == 1).await;
    assert_eq!(worker.stop().await.dead, 1, "it was its last try");
}
