//! Work that a queue does without a command, in slices: leases end, times to live end, delayed tasks become ready, and
//! announced operations are carried out.
//!
//! [`Queue::settle`] is the one place that drives all of it: it lets each [`BulkOperation`] take one step of at most
//! [`limits::SLICE_TASKS`] tasks, so that a flood never delays other commands for long. A command that concerns one
//! task settles that task at any position in a flood; a pop settles as many tasks as it can lease.

use alloc::vec::Vec;
use core::mem;

use super::Queue;
use super::bulk::{BulkOperation, EndedHolder};
use crate::event::{Event, Recorder, Removal};
use crate::id::TaskId;
use crate::limits;
use crate::settings::Expired;
use crate::task::{Body, Cause, Due, Lease, Task};
use crate::time::{LogTime, Now, WallTime};

/// Whether one slice was enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Nothing more is due.
    All,
    /// More is due.
    Slice,
}

impl<B: Body> Queue<B> {
    /// The next log time at which something happens without a command.
    pub fn next_deadline(&self) -> Option<LogTime> {
        BulkOperation::ALL.into_iter().filter_map(|operation| self.due_at(operation)).min()
    }

    /// The wall time at which the next delayed task is due.
    pub fn next_wall_deadline(&self) -> Option<WallTime> {
        self.delayed_wall.first().map(|&(at, _)| at)
    }

    /// The log time from which on an operation has work to do.
    fn due_at(&self, operation: BulkOperation) -> Option<LogTime> {
        match operation {
            BulkOperation::EndHolders => self.bulk.ended.first_key_value().map(|(_, ended)| ended.since),
            BulkOperation::ReviveAll => self.bulk.revival.map(|revival| revival.since),
            BulkOperation::Lapse => self.deadlines.first().map(|&(at, ..)| at),
            BulkOperation::Expire => self.expiries.first().map(|&(at, _)| at),
            BulkOperation::BecomeDue => self.delayed.first().map(|&(at, _)| at),
        }
    }

    /// Revived tasks that are still to be moved, in the order of their deaths.
    pub(super) fn reviving(&self) -> impl Iterator<Item = &Task<B>> {
        self.bulk.revival.iter().flat_map(|revival| self.table.walk(&revival.list))
    }

    fn is_due(&self, now: Now) -> bool {
        self.next_deadline().is_some_and(|at| at <= now.log)
            || self.next_wall_deadline().is_some_and(|at| at <= now.wall)
    }

    /// One step of each operation that has work to do.
    pub fn settle<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut R) -> Settled {
        if !self.is_due(now) {
            return Settled::All;
        }
        for operation in BulkOperation::ALL {
            self.step(operation, limits::SLICE_TASKS, now, rec);
        }
        self.settled(now)
    }

    fn settled(&self, now: Now) -> Settled {
        if self.is_due(now) { Settled::Slice } else { Settled::All }
    }

    /// One step of each announced operation.
    pub(crate) fn settle_announced<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut R) {
        for operation in BulkOperation::ANNOUNCED {
            self.step(operation, limits::SLICE_TASKS, now, rec);
        }
    }

    /// Executes the slice that belongs to the next command, which then does not settle another one. For a driver that
    /// moves tasks to a dead-letter queue before it executes the command.
    pub fn settle_ahead<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut R) -> Settled {
        self.is_settled = true;
        self.settle(now, rec)
    }

    /// One slice for this command, unless its driver has settled it ahead.
    pub(crate) fn settle_once<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut R) -> Settled {
        if mem::take(&mut self.is_settled) { self.settled(now) } else { self.settle(now, rec) }
    }

    /// Settles for a pop that needs more tasks than one slice makes ready: slice after slice, until these made
    /// `count` tasks or `bytes` of payload ready. If fewer than half of a slice became ready, it is the last, since
    /// the others expired or died.
    pub(super) fn settle_for_pop<R: Recorder<Body = B>>(
        &mut self,
        count: usize,
        bytes: usize,
        now: Now,
        rec: &mut R,
    ) {
        let mut settled = self.settle_once(now, rec);
        let (tasks_before, bytes_before) = (self.ready.len(), self.ready_bytes());
        while settled == Settled::Slice {
            let brought = limits::SLICE_TASKS + self.ready.len().saturating_sub(tasks_before);
            if brought >= count || self.ready_bytes().saturating_sub(bytes_before) >= bytes as u64 {
                return;
            }
            let before = self.ready.len();
            settled = self.settle(now, rec);
            if self.ready.len() < before + limits::SLICE_TASKS / 2 {
                return;
            }
        }
    }

    /// Payload bytes of ready tasks.
    const fn ready_bytes(&self) -> u64 {
        self.waiting_bytes.saturating_sub(self.delayed_bytes)
    }

    /// One slice, and in any case the task that a command is about, at any position in a flood.
    pub(super) fn settle_with<R: Recorder<Body = B>>(&mut self, id: TaskId, now: Now, rec: &mut R) {
        if self.settle_once(now, rec) == Settled::Slice {
            self.settle_one(id, now, rec);
        }
    }

    /// Settles the one task that a command is about.
    pub(super) fn settle_one<R: Recorder<Body = B>>(&mut self, id: TaskId, now: Now, rec: &mut R) {
        let Some(task) = self.table.get(id) else { return };
        if self.bulk.revives(&task.state) {
            self.revive_listed(&[id], now, rec);
        } else if let Some(ended) = self.end_of_holder(task) {
            self.end_leases_of_holder(&[id], ended, now, rec);
        } else if task.lease().and_then(Lease::deadline).is_some_and(|at| at <= now.log) {
            self.lapse(&[id], now, rec);
        }
        let is_over = |task: &Task<B>| task.waits() && task.expires().is_some_and(|at| at <= now.log);
        if self.table.get(id).is_some_and(is_over) {
            self.expire(&[id], now, rec);
        }
    }

    /// One step of an operation, on at most `slice` tasks.
    fn step<R: Recorder<Body = B>>(&mut self, operation: BulkOperation, slice: usize, now: Now, rec: &mut R) {
        match operation {
            BulkOperation::EndHolders => self.step_ended_holders(slice, now, rec),
            BulkOperation::ReviveAll => {
                let ids: Vec<TaskId> = self.reviving().take(slice).map(|task| task.id).collect();
                self.revive_listed(&ids, now, rec);
            }
            BulkOperation::Lapse => {
                let lapsed = self.deadlines.iter().take_while(|(at, ..)| *at <= now.log).take(slice);
                let mut ids: Vec<TaskId> = lapsed.map(|&(.., id)| id).collect();
                if !self.bulk.ended.is_empty() {
                    // The end of the holder came first and decides the destination of the task.
                    ids.retain(|&id| {
                        self.table.get(id).is_some_and(|task| self.end_of_holder(task).is_none())
                    });
                }
                self.lapse(&ids, now, rec);
            }
            BulkOperation::Expire => {
                let over = self.expiries.iter().take_while(|(at, _)| *at <= now.log).take(slice);
                let ids: Vec<TaskId> = over.map(|&(_, id)| id).collect();
                self.expire(&ids, now, rec);
            }
            BulkOperation::BecomeDue => self.step_due(slice, now, rec),
        }
    }

    /// Requeues tasks of holders that have ended, in order of delivery.
    pub(super) fn step_ended_holders<R: Recorder<Body = B>>(&mut self, slice: usize, now: Now, rec: &mut R) {
        let mut room = slice;
        while let Some((&(holder, upto), &ended)) = self.bulk.ended.first_key_value() {
            let held = self.held.get(&holder).into_iter();
            let over = held.flat_map(|held| held.range(..=(upto, TaskId::LAST)));
            let ids: Vec<TaskId> = over.take(room).map(|&(_, id)| id).collect();
            room -= ids.len();
            self.end_leases_of_holder(&ids, ended, now, rec);
            if room == 0 && self.bulk.ended.get(&(holder, upto)).is_some_and(|ended| ended.left > 0) {
                return;
            }
            self.bulk.ended.remove(&(holder, upto));
        }
    }

    /// The end of this task's holder, if its lease ended with the holder and the task has not been requeued yet.
    fn end_of_holder(&self, task: &Task<B>) -> Option<EndedHolder> {
        let lease = task.lease().filter(|_| !self.bulk.ended.is_empty())?;
        self.bulk.end_of(lease.holder()?, lease.seq()).copied()
    }

    fn end_leases_of_holder<R: Recorder<Body = B>>(
        &mut self,
        ids: &[TaskId],
        ended: EndedHolder,
        now: Now,
        rec: &mut R,
    ) {
        if ended.is_purged {
            self.remove_all(ids, Removal::Deleted, now, rec);
        } else {
            self.end_leases(ids, ended.cause, ended.group, now, rec);
        }
    }

    fn lapse<R: Recorder<Body = B>>(&mut self, ids: &[TaskId], now: Now, rec: &mut R) {
        if !ids.is_empty() {
            let group = self.lapse_group(now);
            self.end_leases(ids, Cause::Lapsed, group, now, rec);
        }
    }

    /// The group at the front for tasks that lapse: the same for all slices of a flood, so that they stay in order.
    fn lapse_group(&mut self, now: Now) -> u64 {
        let goes_on = |upto: LogTime| self.deadlines.first().is_some_and(|&(at, ..)| at <= upto);
        if let Some((_, group)) = self.bulk.lapse_group.filter(|&(upto, _)| goes_on(upto)) {
            return group;
        }
        let group = self.front_group + 1;
        self.bulk.lapse_group = Some((now.log, group));
        group
    }

    fn expire<R: Recorder<Body = B>>(&mut self, ids: &[TaskId], now: Now, rec: &mut R) {
        match self.settings.expired {
            Expired::Delete => self.remove_all(ids, Removal::Expired, now, rec),
            Expired::Dead => self.bury_all(ids, Cause::Free, Some(b"expired"), now, rec),
        }
    }

    fn step_due<R: Recorder<Body = B>>(&mut self, slice: usize, now: Now, rec: &mut R) {
        // A flood that has begun continues up to its original time, before a new one starts behind it.
        let begun = self.bulk.due.map(|flood| flood.upto);
        for upto in begun.into_iter().chain([Due::Log(now.log), Due::Wall(now.wall)]) {
            // The wall clock may have gone back since the flood began.
            let ms = match upto {
                Due::Log(at) => at.min(now.log).0,
                Due::Wall(at) => at.min(now.wall).0,
            };
            if let Some((last_due, last_id)) = self.last_due(upto, ms, slice) {
                let before = self.ready.len();
                self.commit(&Event::DueCame { queue: self.no, upto, last_due, last_id }, now.log, rec);
                rec.note_task_count(self.ready.len() - before);
            }
            if self.first_due(upto, ms).is_some() {
                return;
            }
        }
    }

    /// The last of the delayed tasks of that clock that fit a slice and are due by `ms`.
    fn last_due(&self, clock: Due, ms: u64, slice: usize) -> Option<(u64, TaskId)> {
        match clock {
            Due::Log(_) => {
                let due = self.delayed.iter().map(|&(at, id)| (at.0, id));
                due.take_while(|&(at, _)| at <= ms).take(slice).last()
            }
            Due::Wall(_) => {
                let due = self.delayed_wall.iter().map(|&(at, id)| (at.0, id));
                due.take_while(|&(at, _)| at <= ms).take(slice).last()
            }
        }
    }
}
