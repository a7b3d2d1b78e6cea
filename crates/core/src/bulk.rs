//! Commands whose work grows with the number of tasks, queues or workers, executed in slices.
//!
//! A driver that holds a lock calls [`crate::Broker::execute_slice`] again and again, with the same [`Bulk`], and lets
//! others have the lock in between. Each slice is a change of its own: a crash or another command between two of them
//! finds some of the work done and the rest not begun.

use crate::limits;

/// Whether a command is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// Its reply is there.
    Done,
    /// It has no reply yet: the next slice is due.
    More,
}

/// How far one command has come.
#[derive(Clone, Debug, Default)]
pub struct Bulk {
    /// How many tasks it has changed.
    count: u64,
    /// How many slices it may still take. None before the first.
    slices_left: Option<usize>,
    /// Where a command goes on that passes over a list.
    pub(crate) cursor: u64,
}

impl Bulk {
    /// How many tasks have been changed so far.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Whether there may be another slice after this one. `total` is how much there is to do at the beginning: what others
    /// add meanwhile must not keep a command going for ever.
    pub(crate) fn goes_on(&mut self, total: usize) -> bool {
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
