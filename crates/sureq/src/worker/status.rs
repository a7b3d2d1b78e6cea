//! The status of a worker, and the handle that reads it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::watch;

use super::shared::Shared;

/// The phase of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// It is registering with the home.
    Starting,
    /// It pops tasks or waits for some.
    Taking,
    /// The limit of concurrent handlers or of unconfirmed outcomes is reached: it pops again when one ends.
    Full,
    /// The home cannot be reached; the worker retries. Running handlers continue.
    Disconnected {
        /// The last error.
        why: Box<str>,
    },
    /// It pops nothing more and waits for running handlers.
    Stopping,
    /// It has stopped.
    Stopped,
}

/// A snapshot of a running worker, for health checks and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// Whether it works, stops or has stopped.
    pub phase: Phase,
    /// Running handlers.
    pub running: usize,
    /// Handled tasks whose outcome the home has not confirmed.
    pub unconfirmed: usize,
    /// The number of times that the connection to the home was lost.
    pub outages: u64,
    /// The outcomes so far.
    pub tally: Tally,
}

/// The outcomes of the tasks of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Popped tasks.
    pub taken: u64,
    /// Finished tasks, confirmed by the home.
    pub done: u64,
    /// Failed tries, including panics, of tasks that are retried.
    pub failed: u64,
    /// Handlers that panicked.
    pub panicked: u64,
    /// Dead tasks: their last try failed, a handler declared them dead, or their payload could not be decoded.
    pub dead: u64,
    /// Tasks returned at no cost of a try.
    pub requeued: u64,
    /// Tasks that were cancelled while they ran.
    pub cancelled: u64,
    /// Tasks whose lease was lost before their handler ended; its outcome was ignored.
    pub lost: u64,
    /// Tasks whose outcome may or may not have reached the home.
    pub unknown: u64,
}

macro_rules! counts {
    ($($name:ident),+) => {
        /// A tally of atomic counters.
        #[derive(Debug, Default)]
        pub(super) struct Counts { $(pub(super) $name: AtomicU64),+ }

        impl Counts {
            pub(super) fn tally(&self) -> Tally {
                Tally { $($name: self.$name.load(Relaxed)),+ }
            }
        }
    };
}

counts!(taken, done, failed, panicked, dead, requeued, cancelled, lost, unknown);

pub(super) fn add(count: &AtomicU64, n: u64) {
    count.fetch_add(n, Relaxed);
}

/// Observes and stops a running worker.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    pub(super) is_stopping: watch::Sender<bool>,
    pub(super) shared: watch::Receiver<Option<Arc<Shared>>>,
}

impl WorkerHandle {
    /// Stops the worker: it pops nothing more, waits for running handlers up to the [`grace`](crate::Worker::grace)
    /// period and returns the other tasks.
    pub fn stop(&self) {
        self.is_stopping.send_replace(true);
    }

    /// The current status; `None` before the worker runs.
    pub fn status(&self) -> Option<WorkerStatus> {
        self.shared.borrow().as_ref().map(|shared| shared.status())
    }
}
