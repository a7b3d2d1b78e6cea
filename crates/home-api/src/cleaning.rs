//! Cleaning queues that are shared with other programs on Redis.

use sureq_core::Refusal;

/// How thoroughly to clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaning {
    /// Requeues tasks that were taken and will not be finished.
    Light,
    /// Also requeues tasks that are in no list, and removes ids without a task. Scans every key of the database.
    Deep,
}

/// The effect of a cleaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Tasks that can be popped again.
    pub returned: u64,
    /// Ids without a task that were removed.
    pub removed: u64,
}

/// The outcome for one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CleanedQueue {
    /// The name of the queue.
    pub queue: Vec<u8>,
    /// The outcome, or the refusal.
    pub outcome: Result<Cleaned, Refusal>,
}

/// The outcome of a cleaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Each queue that was cleaned.
    pub queues: Vec<CleanedQueue>,
    /// Stale marks of unique tasks that were removed; they belong to no queue.
    pub marks: u64,
}
