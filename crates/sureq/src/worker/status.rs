//! What a worker tells of itself while it runs and when it has stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::watch;

use super::shared::Shared;

/// What a worker is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// It has not said yet that it is there.
    Starting,
    /// It takes tasks, or waits for some.
    Taking,
    /// As many handlers run as may, or what came of the last ones is yet to be confirmed: it takes nothing until one ends.
    Full,
    /// The home cannot be asked; it is tried again and again. What runs goes on.
    Disconnected {
        /// Why not.
        why: Box<str>,
    },
    /// It takes nothing any more, and waits for what runs.
    Stopping,
    /// It has stopped.
    Stopped,
}

/// How a worker is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// What it is doing.
    pub phase: Phase,
    /// How many handlers run.
    pub running: usize,
    /// How many tasks were handled, and what came of them is not confirmed yet.
    pub unconfirmed: usize,
    /// How often the home could not be reached any more.
    pub outages: u64,
    /// What came of the tasks so far.
    pub tally: Tally,
}

/// What came of the tasks of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Tasks that were taken.
    pub taken: u64,
    /// Tasks that were finished, confirmed by the home.
    pub done: u64,
    /// Tries that failed, panics among them, after which the task comes again.
    pub failed: u64,
    /// Handlers that panicked.
    pub panicked: u64,
    /// Tasks that died: their last try failed, a handler declared them dead, or their payload was not what it wants.
    pub dead: u64,
    /// Tasks that went back at no cost.
    pub given_back: u64,
    /// Tasks that were cancelled while they ran.
    pub cancelled: u64,
    /// Tasks that were no longer this worker's when their handler ended: nothing was done with them.
    pub lost: u64,
    /// Tasks of which it is not known whether what came of them was taken note of.
    pub unknown: u64,
}

macro_rules! counts {
    ($($name:ident),+) => {
        /// A tally that is counted from all sides.
        #[derive(Debug, Default)]
        pub(super) struct Counts { $(pub(super) $name: AtomicU64),+ }

        impl Counts {
            pub(super) fn tally(&self) -> Tally {
                Tally { $($name: self.$name.load(Relaxed)),+ }
            }
        }
    };
}

counts!(taken, done, failed, panicked, dead, given_back, cancelled, lost, unknown);

pub(super) fn add(count: &AtomicU64, n: u64) {
    count.fetch_add(n, Relaxed);
}

/// A worker from outside: how it is doing, and to stop it.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    pub(super) is_stopping: watch::Sender<bool>,
    pub(super) shared: watch::Receiver<Option<Arc<Shared>>>,
}

impl WorkerHandle {
    /// Has it stop: it takes nothing more, waits for what runs, and gives the rest back.
    pub fn stop(&self) {
        self.is_stopping.send_replace(true);
    }

    /// How it is doing; none before it was started.
    pub fn status(&self) -> Option<WorkerStatus> {
        self.shared.borrow().as_ref().map(|shared| shared.status())
    }
}
