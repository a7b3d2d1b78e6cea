//! What happens by itself: delayed tasks fall due, leases run out, times to live end.
//!
//! A flood is moved in slices, so that no other command is held up by it. A command that touches one task settles
//! that task whatever the flood; a pop settles as many as it can hand out.

use alloc::vec::Vec;
use core::mem;

use super::{Ending, Queue, Reviving};
use crate::command::{LapseEnd, LapsePolicy};
use crate::event::{Event, Ids, Landing, Recorder, Removal};
use crate::id::TaskId;
use crate::limits;
use crate::settings::{Expired, Place};
use crate::task::{Body, Cause, Due, Holder, Lease, Task};
use crate::time::{LogTime, Now};

/// Whether a slice was all there was to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Nothing is due any more.
    All,
    /// There is more.
    Slice,
}

/// What becomes of a task whose delivery ended without its holder's word.
enum Verdict {
    Front,
    Elsewhere(Landing),
    Dead,
    Gone(Removal),
}

impl<B: Body> Queue<B> {
    /// One slice of what is due by itself, so many tasks of each kind.
    pub fn settle<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut R) -> Settled {
        if !self.is_due(now) {
            return Settled::All;
        }
        let slice = limits::SLICE_TASKS;
        if !self.ending.is_empty() {
            self.settle_endings(now, slice, rec);
        }
        if self.reviving.is_some() {
            self.settle_reviving(now, slice, rec);
        }
        // Leases before times to live: what comes back after its time is over is not handed out again.
        self.settle_leases(now, slice, rec);
        self.settle_expiries(now, slice, rec);
        self.settle_due(now, slice, rec);
        self.settled(now)
    }

    /// One slice of what was decided and is not done yet.
    pub(crate) fn settle_under_way<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut R) {
        self.settle_endings(now, limits::SLICE_TASKS, rec);
        if self.reviving.is_some() {
            self.settle_reviving(now, limits::SLICE_TASKS, rec);
        }
    }

    /// Whether something is to happen by now.
    fn is_due(&self, now: Now) -> bool {
        self.next_deadline().is_some_and(|at| at <= now.log)
            || self.next_wall_deadline().is_some_and(|at| at <= now.wall)
    }

    fn settled(&self, now: Now) -> Settled {
        if self.is_due(now) { Settled::Slice } else { Settled::All }
    }

    /// The slice that belongs to the next command. A driver that takes the tasks elsewhere which die in it calls this
    /// before the command; the command then does not settle a second slice.
    pub fn settle_ahead<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut R) -> Settled {
        self.is_settled = true;
        self.settle(now, rec)
    }

    /// One slice for this command, unless its driver has settled it ahead.
    pub(super) fn settle_once<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut R) -> Settled {
        if mem::take(&mut self.is_settled) { self.settled(now) } else { self.settle(now, rec) }
    }

    /// Slice after slice for a pop that wants more than one brings, as long as they bring tasks to the line and until
    /// these are `count` or have `bytes` of payloads. The rest of what expires or dies instead waits for the next slice.
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

    /// The payload bytes of tasks that are ready.
    const fn ready_bytes(&self) -> u64 {
        self.waiting_bytes.saturating_sub(self.delayed_bytes)
    }

    /// One slice, and the one task that a command is about, wherever in a flood it is.
    pub(super) fn settle_with<R: Recorder<Body = B>>(&mut self, id: TaskId, now: Now, rec: &mut R) {
        if self.settle_once(now, rec) == Settled::Slice {
            self.settle_one(id, now, rec);
        }
    }

    /// Settles one task that a command is about.
    pub(super) fn settle_one<R: Recorder<Body = B>>(&mut self, id: TaskId, now: Now, rec: &mut R) {
        let Some(task) = self.table.get(id) else { return };
        if self.is_reviving(task) {
            self.commit(&Event::Revived { queue: self.no, ids: Ids::Slice(&[id]) }, now.log, rec);
        } else if let Some(ending) = self.ending_of(task) {
            self.end_deliveries(&[id], ending, now, rec);
        } else if task.lease().and_then(Lease::deadline).is_some_and(|at| at <= now.log) {
            let group = self.lapse_group(now);
            self.end_leases(&[id], Cause::Lapsed, group, now, rec);
        }
        let over = |task: &Task<B>| task.waits() && task.expires().is_some_and(|at| at <= now.log);
        if self.table.get(id).is_some_and(over) {
            self.expire(&[id], now, rec);
        }
    }

    fn settle_due<R: Recorder<Body = B>>(&mut self, now: Now, slice: usize, rec: &mut R) {
        // A flood that began goes on up to where it began, before a new one starts behind it.
        let begun = self.flood.map(|flood| flood.upto);
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

    /// The last of as many delayed tasks of that clock as fit a slice and are due by `ms`.
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

    fn settle_leases<R: Recorder<Body = B>>(&mut self, now: Now, slice: usize, rec: &mut R) {
        let lapsed = self.deadlines.iter().take_while(|(at, ..)| *at <= now.log).take(slice);
        let mut ids: Vec<TaskId> = lapsed.map(|&(.., id)| id).collect();
        if !self.ending.is_empty() {
            // What its holder's end takes back is none of its deadline's business.
            ids.retain(|&id| self.table.get(id).is_some_and(|task| self.ending_of(task).is_none()));
        }
        if !ids.is_empty() {
            let group = self.lapse_group(now);
            self.end_leases(&ids, Cause::Lapsed, group, now, rec);
        }
    }

    /// Takes so many tasks back from holders that have come to an end.
    pub(super) fn settle_endings<R: Recorder<Body = B>>(&mut self, now: Now, slice: usize, rec: &mut R) {
        let mut room = slice;
        while let Some((&(holder, upto), &ending)) = self.ending.first_key_value() {
            let held = self.held.get(&holder).into_iter();
            let over = held.flat_map(|held| held.range(..=(upto, TaskId::LAST)));
            let ids: Vec<TaskId> = over.take(room).map(|&(_, id)| id).collect();
            room -= ids.len();
            self.end_deliveries(&ids, ending, now, rec);
            if room == 0 && self.ending.get(&(holder, upto)).is_some_and(|ending| ending.left > 0) {
                return;
            }
            self.ending.remove(&(holder, upto));
        }
    }

    /// Moves so many of those that were all revived together.
    fn settle_reviving<R: Recorder<Body = B>>(&mut self, now: Now, slice: usize, rec: &mut R) {
        let Some(Reviving { list, .. }) = self.reviving else { return };
        let ids: Vec<TaskId> = self.table.walk(&list).take(slice).map(|task| task.id).collect();
        self.commit(&Event::Revived { queue: self.no, ids: Ids::Slice(&ids) }, now.log, rec);
    }

    fn end_deliveries<R: Recorder<Body = B>>(
        &mut self,
        ids: &[TaskId],
        ending: Ending,
        now: Now,
        rec: &mut R,
    ) {
        if ending.is_purged {
            self.remove_all(ids, Removal::Deleted, now, rec);
        } else {
            self.end_leases(ids, ending.cause, ending.group, now, rec);
        }
    }

    /// What ended the delivery of this task, if that is over.
    fn ending_of(&self, task: &Task<B>) -> Option<Ending> {
        let lease = task.lease().filter(|_| !self.ending.is_empty())?;
        let holder = lease.holder()?;
        self.ending.range((holder, lease.seq())..=(holder, u64::MAX)).next().map(|(_, &ending)| ending)
    }

    /// The group at the front that lapsing tasks go to: one for all that a flood returns, slice by slice.
    fn lapse_group(&mut self, now: Now) -> u64 {
        let goes_on = |upto: LogTime| self.deadlines.first().is_some_and(|&(at, ..)| at <= upto);
        if let Some((_, group)) = self.lapsing.filter(|&(upto, _)| goes_on(upto)) {
            return group;
        }
        let group = self.front_group + 1;
        self.lapsing = Some((now.log, group));
        group
    }

    fn settle_expiries<R: Recorder<Body = B>>(&mut self, now: Now, slice: usize, rec: &mut R) {
        let over = self.expiries.iter().take_while(|(at, _)| *at <= now.log).take(slice);
        let ids: Vec<TaskId> = over.map(|&(_, id)| id).collect();
        self.expire(&ids, now, rec);
    }

    fn expire<R: Recorder<Body = B>>(&mut self, ids: &[TaskId], now: Now, rec: &mut R) {
        match self.settings.expired {
            Expired::Delete => self.remove_all(ids, Removal::Expired, now, rec),
            Expired::Dead => self.bury_all(ids, Cause::Free, Some(b"expired"), now, rec),
        }
    }

    /// Ends leases without their holders' word. What goes to the front goes there together, in this order.
    pub(super) fn end_leases<R: Recorder<Body = B>>(
        &mut self,
        ids: &[TaskId],
        cause: Cause,
        group: u64,
        now: Now,
        rec: &mut R,
    ) {
        let mut front = Vec::with_capacity(ids.len());
        for &id in ids {
            let task = self.table.get(id).expect("an index points at records");
            let holder = task.lease().and_then(Lease::holder);
            if let (Cause::Lapsed, Some(Holder::Worker(worker))) = (cause, holder) {
                self.lapsed.push((worker, task.receipt()));
            }
            match self.judge(task, cause, now) {
                Verdict::Front => front.push(id),
                Verdict::Elsewhere(to) => self.send_back(&[id], to, cause, None, now, rec),
                Verdict::Dead => self.bury_all(&[id], cause, Some(reason_of(cause)), now, rec),
                Verdict::Gone(why) => self.remove_all(&[id], why, now, rec),
            }
        }
        if !front.is_empty() {
            self.send_back(&front, Landing::Front { group }, cause, None, now, rec);
        }
    }

    fn judge(&self, task: &Task<B>, cause: Cause, now: Now) -> Verdict {
        if task.cancelled {
            return Verdict::Gone(Removal::Cancelled);
        }
        if cause == Cause::Free {
            return Verdict::Front;
        }
        let policy = task.lease().and_then(|lease| lease.terms()?.lapse);
        if let Some(policy) = policy {
            return self.judge_by(&policy, task, now);
        }
        if self.is_last_try(task) {
            return Verdict::Dead;
        }
        let times = task.tries().unfinished().saturating_add(1);
        if times < limits::LAPSES_BEFORE_BACKOFF {
            return Verdict::Front;
        }
        let wait = self.backoff_ms(task, times + 1 - limits::LAPSES_BEFORE_BACKOFF);
        Verdict::Elsewhere(self.landing(Place::After(wait), now))
    }

    /// A lease that carries its own policy goes before the defaults of the queue.
    fn judge_by(&self, policy: &LapsePolicy, task: &Task<B>, now: Now) -> Verdict {
        let over = match policy.limit {
            Some(limit) => task.tries().unfinished() >= limit,
            None => self.is_last_try(task),
        };
        match (over, policy.then) {
            (true, LapseEnd::Delete) => Verdict::Gone(Removal::Lapsed),
            (true, LapseEnd::Dead) => Verdict::Dead,
            (false, _) if policy.to == Place::Front => Verdict::Front,
            (false, _) => Verdict::Elsewhere(self.landing(policy.to, now)),
        }
    }

    /// Whether a try that is spent now leaves none.
    pub(super) fn is_last_try(&self, task: &Task<B>) -> bool {
        task.tries().total().saturating_add(1) >= self.tries_max(task)
    }

    pub(super) fn tries_max(&self, task: &Task<B>) -> u32 {
        task.extras.as_ref().and_then(|extras| extras.tries_max).unwrap_or_else(|| self.settings.tries())
    }

    /// The wait before try number `times` of its kind: doubling, capped, and between a half and the whole of that,
    /// by a jitter that follows from the task alone.
    pub(super) fn backoff_ms(&self, task: &Task<B>, times: u32) -> u64 {
        let first = task.extras.as_ref().and_then(|extras| extras.backoff_ms);
        let first = first.unwrap_or_else(|| self.settings.backoff_ms());
        let whole = first.saturating_mul(1u64.checked_shl(times.saturating_sub(1)).unwrap_or(u64::MAX));
        let whole = whole.min(limits::BACKOFF_MS_MAX);
        let mixed = (task.id.raw() ^ u64::from(task.deliveries) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let half = whole / 2;
        whole - (mixed >> 32) % (half + 1)
    }
}

const fn reason_of(cause: Cause) -> &'static [u8] {
    match cause {
        Cause::Lapsed => b"lease lapsed",
        Cause::Lost => b"worker lost",
        Cause::Failed | Cause::Free => b"failed",
    }
}
