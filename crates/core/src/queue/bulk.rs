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
//! The first two are *announced*: one event decides for all their tasks, and those that have not been moved yet count
//! and behave as if they had been. Images have no place for that, so none is taken while an announced operation is
//! under way. The others need no announcement: the time in the index of each task says all.
//!
//! [`Queue::settle`](super::Queue::settle) takes the steps.
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
    /// In the order in which they take their steps. Leases end before times to live do, so that a task which returns
    /// after its time to live is not delivered again.
    pub(super) const ALL: [Self; 5] =
        [Self::EndHolders, Self::ReviveAll, Self::Lapse, Self::Expire, Self::BecomeDue];

    /// Those that begin with an event about all their tasks.
    pub(super) const ANNOUNCED: [Self; 2] = [Self::EndHolders, Self::ReviveAll];
}

/// How far the operations of a queue are.
#[derive(Clone, Debug, Default)]
pub(super) struct BulkOperations {
    /// Holders that ended, with the number of the last delivery that ended with them.
    pub(super) ended: BTreeMap<(Holder, u64), EndedHolder>,
    pub(super) revival: Option<Revival>,
    /// The delayed tasks that are becoming due.
    pub(super) due: Option<Flood>,
    /// The group at the front in which leases are returned that lapsed by this time. Not part of the state: a restart
    /// ends no lease.
    pub(super) lapse_group: Option<(LogTime, u64)>,
}

/// A worker or connection whose leases are over, though not all of its tasks have been moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EndedHolder {
    pub(super) since: LogTime,
    pub(super) cause: Cause,
    /// The group in which its tasks return to the front.
    pub(super) group: u64,
    /// How many tasks are still to be moved.
    pub(super) left: usize,
    /// Whether a purge came after the end, so that the tasks are removed instead.
    pub(super) is_purged: bool,
}

/// Dead tasks that were all revived by one command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Revival {
    /// Every task that had died by then is one of them.
    pub(super) since: LogTime,
    /// Those that are still to be moved.
    pub(super) list: List,
    /// Their order keys were reserved when it began, so that tasks which go to the back meanwhile are behind them:
    /// `minor` is the last that was used.
    pub(super) major: i64,
    pub(super) minor: u64,
}

impl BulkOperations {
    /// Whether an announced operation is not complete.
    pub(super) fn is_under_way(&self) -> bool {
        !self.ended.is_empty() || self.revival.is_some()
    }

    /// Forgets announced operations whose last task has been moved, by a step or by a command.
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

    /// How many leases of this holder are over whose tasks are still to be moved.
    pub(super) fn ended_leases_of(&self, holder: Holder) -> usize {
        self.ended.range((holder, 0)..=(holder, u64::MAX)).map(|(_, ended)| ended.left).sum()
    }

    /// The same for all holders.
    pub(super) fn ended_leases(&self) -> usize {
        self.ended.values().map(|ended| ended.left).sum()
    }

    /// Whether a task in this state was revived and is still to be moved.
    pub(super) fn revives(&self, state: &TaskState) -> bool {
        matches!((state, self.revival), (TaskState::Dead(at), Some(revival)) if *at <= revival.since)
    }

    /// How many revived tasks are still to be moved.
    pub(super) fn reviving_count(&self) -> usize {
        self.revival.map_or(0, |revival| revival.list.len())
    }
}
