//! Operations on any number of tasks, which a queue carries out in slices.
//!
//! | operation | begins | each task |
//! |---|---|---|
//! | end holders | [`Event::HolderEnded`]: all leases of a holder are over | returns, dies or is removed |
//! | revive all | [`Event::AllRevived`]: all dead tasks are to be ready again | becomes ready |
//! | lapse | the deadline of a lease passes | returns, dies or is removed |
//! | expire | a time to live ends | is removed or dies |
//! | become due | a delay ends, by either clock | becomes ready |
//!
//! The first two are *announced*: one event decides for all their tasks, and tasks that have not been moved yet count
//! and behave as if they had been. Images cannot represent that, so none is taken while an announced operation is
//! under way. The others need no announcement: the time in the index of each task is sufficient.
//!
//! [`Queue::settle`](super::Queue::settle) executes the steps.
//!
//! [`Event::HolderEnded`]: crate::event::Event::HolderEnded
//! [`Event::AllRevived`]: crate::event::Event::AllRevived

use alloc::collections::BTreeMap;

use super::table::List;
use crate::event::Flood;
use crate::task::{Cause, Holder, TaskState};
use crate::time::LogTime;

/// A kind of work on many tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BulkOperation {
    EndHolders,
    ReviveAll,
    Lapse,
    Expire,
    BecomeDue,
}

impl BulkOperation {
    /// The operations in the order of their steps. Leases end before times to live do, so that a task which returns
    /// after its time to live is not delivered again.
    pub(super) const ALL: [Self; 5] =
        [Self::EndHolders, Self::ReviveAll, Self::Lapse, Self::Expire, Self::BecomeDue];

    /// The operations that begin with an event about all their tasks.
    pub(super) const ANNOUNCED: [Self; 2] = [Self::EndHolders, Self::ReviveAll];
}

/// The progress of the operations of a queue.
#[derive(Clone, Debug, Default)]
pub(super) struct BulkOperations {
    /// Holders that ended, with the number of the last delivery that ended with them.
    pub(super) ended: BTreeMap<(Holder, u64), EndedHolder>,
    pub(super) revival: Option<Revival>,
    /// The delayed tasks that are becoming due.
    pub(super) due: Option<Flood>,
    /// The group at the front to which tasks are returned whose leases lapsed by this time. Not part of the state: a
    /// restart ends no lease.
    pub(super) lapse_group: Option<(LogTime, u64)>,
}

/// A worker or connection whose leases are over, though not all of its tasks have been moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EndedHolder {
    pub(super) since: LogTime,
    pub(super) cause: Cause,
    /// The group in which its tasks return to the front.
    pub(super) group: u64,
    /// The number of tasks that are still to be moved.
    pub(super) left: usize,
    /// Whether a purge came after the end, so that the tasks are removed instead.
    pub(super) is_purged: bool,
}

/// Dead tasks that were all revived by one command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Revival {
    /// The tasks that died up to this time are part of the revival.
    pub(super) since: LogTime,
    /// The tasks that are still to be moved.
    pub(super) list: List,
    /// The order keys of the tasks were reserved when the revival began, so that tasks which go to the back in the
    /// meantime are behind them: `minor` is the last that was used.
    pub(super) major: i64,
    pub(super) minor: u64,
}

impl BulkOperations {
    /// Whether an announced operation is not complete.
    pub(super) fn is_under_way(&self) -> bool {
        !self.ended.is_empty() || self.revival.is_some()
    }

    /// Removes announced operations whose last task has been moved, by a step or by a command.
    #[inline]
    pub(super) fn forget_complete(&mut self) {
        while self.ended.first_key_value().is_some_and(|(_, ended)| ended.left == 0) {
            self.ended.pop_first();
        }
        if self.revival.is_some_and(|revival| revival.list.len() == 0) {
            self.revival = None;
        }
    }

    /// The end of a holder that ended this delivery.
    pub(super) fn end_of(&self, holder: Holder, seq: u64) -> Option<&EndedHolder> {
        self.ended.range((holder, seq)..=(holder, u64::MAX)).next().map(|(_, ended)| ended)
    }

    pub(super) fn end_of_mut(&mut self, holder: Holder, seq: u64) -> Option<&mut EndedHolder> {
        self.ended.range_mut((holder, seq)..=(holder, u64::MAX)).next().map(|(_, ended)| ended)
    }

    /// The number of the last delivery to this holder that is over.
    pub(super) fn ended_upto(&self, holder: Holder) -> u64 {
        let last = self.ended.range((holder, 0)..=(holder, u64::MAX)).next_back();
        last.map_or(0, |(&(_, upto), _)| upto)
    }

    /// The number of leases of this holder that are over and whose tasks are still to be moved.
    pub(super) fn ended_leases_of(&self, holder: Holder) -> usize {
        self.ended.range((holder, 0)..=(holder, u64::MAX)).map(|(_, ended)| ended.left).sum()
    }

    /// The number of such leases of all holders.
    pub(super) fn ended_leases(&self) -> usize {
        self.ended.values().map(|ended| ended.left).sum()
    }

    /// Whether a task in this state was revived and is still to be moved.
    pub(super) fn revives(&self, state: &TaskState) -> bool {
        matches!((state, self.revival), (TaskState::Dead(at), Some(revival)) if *at <= revival.since)
    }

    /// The number of revived tasks that are still to be moved.
    pub(super) fn reviving_count(&self) -> usize {
        self.revival.map_or(0, |revival| revival.list.len())
    }
}
