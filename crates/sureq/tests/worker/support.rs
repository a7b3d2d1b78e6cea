//! Shared by these tests: a worker that runs beside them, and ways to wait for its effects.

use std::future::pending;
use std::time::{Duration, Instant};

use sureq::{Home, Info, Phase, Queue, Tally, Worker, WorkerError, WorkerHandle};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A timeout that only a hang reaches.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A lease that does not lapse on a busy machine, and that a test can wait for.
pub(crate) const LEASE: Duration = Duration::from_millis(500);

/// An empty home.
pub(crate) fn home() -> Home {
    sureq::open("mem:").expect("a home in memory opens")
}

/// An empty home and one of its queues.
pub(crate) fn queue() -> (Home, Queue) {
    let home = home();
    let queue = home.queue("q");
    (home, queue)
}

/// A running worker.
pub(crate) struct AtWork {
    pub(crate) handle: WorkerHandle,
    run: JoinHandle<Result<Tally, WorkerError>>,
}

impl AtWork {
    pub(crate) fn start(worker: Worker) -> Self {
        Self { handle: worker.handle(), run: tokio::spawn(worker.run_until(pending())) }
    }

    /// Waits until its tally meets a condition.
    pub(crate) async fn tally(&self, is_so: impl Fn(&Tally) -> bool) -> Tally {
        let tally = || self.handle.status().map(|status| status.tally).unwrap_or_default();
        eventually(async || is_so(&tally()), async || format!("{:?}", tally())).await;
        tally()
    }

    /// Waits until its phase meets a condition.
    pub(crate) async fn phase(&self, is_so: impl Fn(&Phase) -> bool) {
        let phase = || self.handle.status().map_or(Phase::Starting, |status| status.phase);
        eventually(async || is_so(&phase()), async || format!("{:?}", phase())).await;
    }

    /// Stops it and returns its tally.
    pub(crate) async fn stop(self) -> Tally {
        self.handle.stop();
        self.end().await.expect("the worker ends without an error")
    }

    /// Waits until it ends.
    pub(crate) async fn end(self) -> Result<Tally, WorkerError> {
        timeout(PATIENCE, self.run).await.expect("it ends").expect("it does not panic")
    }

    /// Drops the future that runs it.
    pub(crate) async fn abort(self) -> WorkerHandle {
        self.run.abort();
        let ended = self.run.await;
        assert!(ended.is_err_and(|error| error.is_cancelled()), "it was still running");
        self.handle
    }
}

/// Waits until the counts of the queue meet a condition.
pub(crate) async fn counts(queue: &Queue, is_so: impl Fn(&Info) -> bool) -> Info {
    let info = async || queue.info().await.expect("the home answers");
    eventually(async || is_so(&info().await), async || format!("{:?}", info().await)).await;
    info().await
}

/// Polls for a condition that nothing signals.
pub(crate) async fn eventually(is_so: impl AsyncFn() -> bool, what_is: impl AsyncFn() -> String) {
    let since = Instant::now();
    while !is_so().await {
        assert!(since.elapsed() < PATIENCE, "the condition was never met: {}", what_is().await);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The messages of handlers to the test.
pub(crate) struct Said<T>(UnboundedReceiver<T>);

/// Sends these messages; shared among handlers as their state.
pub(crate) type Tell<T> = UnboundedSender<T>;

pub(crate) fn said<T>() -> (Tell<T>, Said<T>) {
    let (sender, receiver) = unbounded_channel();
    (sender, Said(receiver))
}

impl<T> Said<T> {
    pub(crate) async fn next(&mut self) -> T {
        timeout(PATIENCE, self.0.recv())
            .await
            .expect("a handler sends a message")
            .expect("the sender is alive")
    }

    pub(crate) async fn many(&mut self, count: usize) -> Vec<T> {
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(self.next().await);
        }
        list
    }

    /// The messages that were not read yet.
    pub(crate) fn rest(&mut self) -> Vec<T> {
        std::iter::from_fn(|| self.0.try_recv().ok()).collect()
    }
}
