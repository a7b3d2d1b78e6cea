//! Commands that end tasks or change their state: ack, extend, return, cancel, bury, revive, delete, purge.

use alloc::vec::Vec;
use core::mem;

use super::Distinct;
use crate::bulk::{Bulk, Progress};
use crate::command::{Return, View};
use crate::event::{Event, Ids, Purge, Recorder, Removal};
use crate::id::{Claim, TaskId};
use crate::limits;
use crate::queue::{Queue, Settled};
use crate::reply::Outcome;
use crate::settings::Place;
use crate::task::{Body, Cause, Name, StateKind};
use crate::time::Now;

impl<B: Body> Queue<B> {
    /// Finishes tasks. Appends the index of each claim whose task this call finished.
    pub fn ack<R: Recorder<Body = B>>(
        &mut self,
        claims: impl Iterator<Item = Claim>,
        leased_only: bool,
        now: Now,
        rec: &mut R,
        finished: &mut Vec<u32>,
    ) {
        let flooded = self.settle_once(now, rec) == Settled::Slice;
        let mut done = Distinct::within(mem::take(&mut self.scratch));
        for (index, claim) in claims.enumerate() {
            if flooded {
                self.settle_one(claim.id(), now, rec);
            }
            let late = !leased_only && matches!(claim, Claim::Id(_));
            let lapsed = |queue: &Self| queue.table.get(claim.id()).is_some_and(|task| task.late_ack);
            if (self.is_current(claim) || late && lapsed(self)) && done.add(claim.id()) {
                finished.push(index as u32);
            }
        }
        if !done.ids.is_empty() {
            self.commit(&Event::Finished { queue: self.no, ids: Ids::Slice(&done.ids) }, now.log, rec);
        }
        self.scratch = done.ids;
    }

    /// Whether the claim is current, cancelled or stale.
    fn outcome(&self, claim: Claim) -> Outcome {
        match self.table.get(claim.id()) {
            Some(task) if self.is_current(claim) && task.cancelled => Outcome::Cancelled,
            Some(_) if self.is_current(claim) => Outcome::Done,
            _ => Outcome::Stale,
        }
    }

    /// Sets the deadline of a lease to `ms` from now, even if it had none.
    pub fn extend<R: Recorder<Body = B>>(&mut self, claim: Claim, ms: u64, now: Now, rec: &mut R) -> Outcome {
        self.settle_with(claim.id(), now, rec);
        let outcome = self.outcome(claim);
        if outcome == Outcome::Done {
            self.commit(&Event::Extended { queue: self.no, id: claim.id(), length_ms: ms }, now.log, rec);
        }
        outcome
    }

    /// Returns a task to the queue, for its holder.
    pub fn return_task<R: Recorder<Body = B>>(
        &mut self,
        claim: Claim,
        back: &Return<'_>,
        now: Now,
        rec: &mut R,
    ) -> Outcome {
        self.settle_with(claim.id(), now, rec);
        let outcome = self.outcome(claim);
        let id = claim.id();
        match outcome {
            Outcome::Stale => {}
            Outcome::Cancelled => self.remove_all(&[id], Removal::Cancelled, now, rec),
            Outcome::Done if back.failed.is_some() => self.fail(id, back, now, rec),
            Outcome::Done => {
                let to = self.landing(back.to.unwrap_or(Place::Front), now);
                self.send_back(&[id], to, Cause::Free, None, now, rec);
            }
        }
        outcome
    }

    fn fail<R: Recorder<Body = B>>(&mut self, id: TaskId, back: &Return<'_>, now: Now, rec: &mut R) {
        let reason = back.failed.map(|reason| &reason[..reason.len().min(limits::REASON_BYTES_MAX)]);
        let task = self.table.get(id).expect("its delivery is current");
        if back.is_last || self.is_last_try(task) {
            return self.bury_all(&[id], Cause::Failed, reason, now, rec);
        }
        let wait = self.backoff_ms(task, task.tries().failed.saturating_add(1));
        let to = self.landing(back.to.unwrap_or(Place::After(wait)), now);
        self.send_back(&[id], to, Cause::Failed, reason, now, rec);
    }

    /// Cancels tasks: waiting ones are removed, leased ones are marked. A receipt counts only while it is current.
    /// Returns the number of cancelled tasks.
    pub fn cancel<R: Recorder<Body = B>>(
        &mut self,
        claims: impl Iterator<Item = Claim>,
        now: Now,
        rec: &mut R,
    ) -> u64 {
        let flooded = self.settle_once(now, rec) == Settled::Slice;
        let (mut gone, mut marked) = (Distinct::default(), Distinct::default());
        for claim in claims {
            let id = claim.id();
            if flooded {
                self.settle_one(id, now, rec);
            }
            if !self.is_meant(claim) {
                continue;
            }
            let unmarked = |queue: &Self| queue.table.get(id).is_some_and(|task| !task.cancelled);
            match self.state_of(id) {
                Some(StateKind::Ready | StateKind::Delayed) => _ = gone.add(id),
                Some(StateKind::Leased) if unmarked(self) => _ = marked.add(id),
                _ => {}
            }
        }
        self.remove_all(&gone.ids, Removal::Cancelled, now, rec);
        if !marked.ids.is_empty() {
            self.commit(&Event::Marked { queue: self.no, ids: Ids::Slice(&marked.ids) }, now.log, rec);
        }
        (gone.ids.len() + marked.ids.len()) as u64
    }

    /// The ids of the tasks with these names.
    pub fn ids_of_names<'n>(&self, names: &'n [&'n [u8]]) -> impl Iterator<Item = TaskId> + use<'n, B> {
        let found = names.iter().filter_map(|name| self.names.get(&Name::Bytes((*name).into())).copied());
        found.collect::<Vec<TaskId>>().into_iter()
    }

    /// Makes tasks dead. A receipt counts only while it is current. Returns the number of buried tasks.
    pub fn bury<R: Recorder<Body = B>>(
        &mut self,
        claims: impl Iterator<Item = Claim>,
        now: Now,
        rec: &mut R,
    ) -> u64 {
        let buried = self.claimed(claims, |state| state != StateKind::Dead, now, rec);
        self.bury_all(&buried.ids, Cause::Free, None, now, rec);
        buried.ids.len() as u64
    }

    /// Makes dead tasks ready, at the back. Returns their number.
    pub fn revive<R: Recorder<Body = B>>(
        &mut self,
        ids: &mut dyn Iterator<Item = TaskId>,
        now: Now,
        rec: &mut R,
    ) -> u64 {
        self.settle_once(now, rec);
        let mut revived = Distinct::default();
        ids.filter(|&id| self.state_of(id) == Some(StateKind::Dead)).for_each(|id| _ = revived.add(id));
        self.revive_listed(&revived.ids, now, rec)
    }

    /// One slice of making all dead tasks ready, at the back.
    pub fn revive_slice<R: Recorder<Body = B>>(
        &mut self,
        bulk: &mut Bulk,
        now: Now,
        rec: &mut R,
    ) -> Progress {
        self.settle_once(now, rec);
        let (dead, slice) = (self.dead.len(), limits::SLICE_TASKS);
        if dead > slice && self.bulk.revival.is_none() {
            // All of them count as ready from now on; they are moved later, in slices.
            self.commit(&Event::AllRevived(self.no), now.log, rec);
            self.settle_once(now, rec);
            return bulk.end(dead as u64);
        }
        // A revival is under way: these tasks died after it was announced.
        let is_last = !bulk.may_continue(dead);
        let count = if is_last { dead } else { slice };
        let ids: Vec<TaskId> = self.table.walk(&self.dead).take(count).map(|task| task.id).collect();
        let revived = self.revive_listed(&ids, now, rec);
        if is_last { bulk.end(revived) } else { bulk.more(revived) }
    }

    /// Makes the first `count` dead tasks ready, at the back. Returns their number. For a driver that slices the
    /// command itself: unlike [`Self::revive_slice`] it announces nothing, so an image can be taken after any call.
    pub fn revive_some<R: Recorder<Body = B>>(&mut self, count: usize, now: Now, rec: &mut R) -> u64 {
        self.settle_once(now, rec);
        let ids: Vec<TaskId> = self.table.walk(&self.dead).take(count).map(|task| task.id).collect();
        self.revive_listed(&ids, now, rec)
    }

    pub(in crate::queue) fn revive_listed<R: Recorder<Body = B>>(
        &mut self,
        ids: &[TaskId],
        now: Now,
        rec: &mut R,
    ) -> u64 {
        if !ids.is_empty() {
            self.commit(&Event::Revived { queue: self.no, ids: Ids::Slice(ids) }, now.log, rec);
        }
        ids.len() as u64
    }

    /// Removes tasks in any state. A receipt counts only while it is current. Returns the number of removed tasks.
    pub fn delete<R: Recorder<Body = B>>(
        &mut self,
        claims: impl Iterator<Item = Claim>,
        now: Now,
        rec: &mut R,
    ) -> u64 {
        let deleted = self.claimed(claims, |_| true, now, rec);
        self.remove_all(&deleted.ids, Removal::Deleted, now, rec);
        deleted.ids.len() as u64
    }

    /// The tasks of valid claims, each once, if `will_do` accepts its state.
    fn claimed<R: Recorder<Body = B>>(
        &mut self,
        claims: impl Iterator<Item = Claim>,
        will_do: impl Fn(StateKind) -> bool,
        now: Now,
        rec: &mut R,
    ) -> Distinct {
        let flooded = self.settle_once(now, rec) == Settled::Slice;
        let mut claimed = Distinct::default();
        for claim in claims {
            if flooded {
                self.settle_one(claim.id(), now, rec);
            }
            if self.state_of(claim.id()).is_some_and(&will_do) && self.is_meant(claim) {
                claimed.add(claim.id());
            }
        }
        claimed
    }

    /// One slice of removing all tasks of a state, or all ready, delayed and dead tasks. Leased tasks are never
    /// purged. Records are removed in slices; when few are left, they and all packed tasks are removed at once.
    pub fn purge_slice<R: Recorder<Body = B>>(
        &mut self,
        state: Option<View>,
        bulk: &mut Bulk,
        now: Now,
        rec: &mut R,
    ) -> Progress {
        self.settle_once(now, rec);
        let what = match state {
            None => Purge::All,
            Some(View::Ready) => Purge::Ready,
            Some(View::Delayed) => Purge::Delayed,
            Some(View::Dead) => Purge::Dead,
            Some(View::Leased) => return bulk.end(0),
        };
        let [ready, delayed, _, dead] = self.counts();
        let there = [(StateKind::Ready, ready), (StateKind::Delayed, delayed), (StateKind::Dead, dead)];
        let count: u64 = there.iter().filter(|(kind, _)| what.takes(*kind)).map(|(_, count)| count).sum();
        let returning = self.leased.len() - self.running();
        let slice = limits::SLICE_TASKS;
        if count + returning as u64 <= slice as u64 {
            let ids = self.ids_for(what);
            self.remove_all(&ids, Removal::Deleted, now, rec);
            return bulk.end(count);
        }
        let has_few =
            self.records_of(what) <= slice && !(what.takes(StateKind::Delayed) && self.delayed_records() > 0);
        if !has_few && bulk.may_continue(count as usize) {
            let ids = self.slice_for(what);
            self.remove_all(&ids, Removal::Deleted, now, rec);
            return bulk.more(ids.len() as u64);
        }
        self.commit(&Event::Purged { queue: self.no, what }, now.log, rec);
        rec.note_task_count(count as usize);
        bulk.end(if what == Purge::All { count + returning as u64 } else { count })
    }

    /// The next tasks to be removed one by one: records, and delayed tasks as long as some of them have records.
    fn slice_for(&self, what: Purge) -> Vec<TaskId> {
        let mut ids = Vec::new();
        let undelayed = [(StateKind::Ready, Purge::Ready), (StateKind::Dead, Purge::Dead)];
        for (_, one) in undelayed.into_iter().filter(|(kind, _)| what.takes(*kind)) {
            self.list_records(one, limits::SLICE_TASKS, &mut ids);
        }
        if what.takes(StateKind::Delayed) && self.delayed_records() > 0 {
            ids.extend(self.delayed_ids().take(limits::SLICE_TASKS.saturating_sub(ids.len())));
        }
        ids
    }

    /// The tasks that a purge removes.
    fn ids_for(&self, what: Purge) -> Vec<TaskId> {
        let mut ids = Vec::new();
        if what.takes(StateKind::Ready) {
            ids.extend(self.ready.iter().map(|task| task.id()));
            ids.extend(self.reviving().map(|task| task.id));
        }
        if what.takes(StateKind::Delayed) {
            ids.extend(self.delayed_ids());
        }
        if what.takes(StateKind::Dead) {
            ids.extend(self.table.walk(&self.dead).map(|task| task.id));
        }
        ids
    }
}
