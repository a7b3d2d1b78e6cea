//! Commands whose work grows with the number of tasks, queues or workers, executed in slices.
//!
//! A driver that holds a lock calls [`crate::Broker::execute_slice`] repeatedly with the same [`Bulk`] and releases
//! the lock in between. Each slice is a unit of the log by itself: a crash, or another command, between two slices
//! finds part of the work done and the rest unchanged. The queue's own work on many tasks is in `queue/bulk.rs`.

use crate::event::QueueNo;
use crate::limits;

/// Whether a command is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// The command has its reply.
    Done,
    /// The command has no reply yet; execute the next slice.
    More,
}

/// The progress of one command.
#[derive(Clone, Debug, Default)]
pub struct Bulk {
    /// The number of tasks changed so far.
    count: u64,
    /// The number of slices it may still take; `None` before the first.
    slices_left: Option<usize>,
    /// The position at which a command that walks a list continues.
    pub(crate) cursor: u64,
    /// Where a list of workers continues within one of them: the worker, the next of its queues, and how many tasks it
    /// holds in those before.
    pub(crate) listed: Option<(u64, QueueNo, u64)>,
}

impl Bulk {
    /// The number of tasks changed so far.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Whether another slice may follow this one. `total` is the work at the beginning; it bounds the number of
    /// slices, so that tasks added in between cannot keep a command running for ever.
    pub(crate) fn may_continue(&mut self, total: usize) -> bool {
        let left = self.slices_left.get_or_insert(total.div_ceil(limits::SLICE_TASKS) + 1);
        *left = left.saturating_sub(1);
        *left > 0 && total > limits::SLICE_TASKS
    }

    pub(crate) const fn more(&mut self, count: u64) -> Progress {
        self.count += count;
        Progress::More
    }

    pub(crate) const fn end(&mut self, count: u64) -> Progress {
        self.count += count;
        Progress::Done
    }
}
