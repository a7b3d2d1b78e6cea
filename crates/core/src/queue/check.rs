//! Checks the invariants of a queue by visiting all of it, and computes a digest of its state.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use core::hash::{Hash, Hasher};

use super::Queue;
use super::bulk::Revival;
use super::read::Look;
use super::ready::ReadyTask;
use crate::id::TaskId;
use crate::task::{Body, Due, Extras, Holder, Lease, Rank, StateKind, Task, TaskState};

/// The description of a violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken(what())) }
}

impl<B: Body> Queue<B> {
    /// Checks that every task is in exactly the indexes for its state, and that all counts are right.
    pub fn check(&self) -> Result<(), Broken> {
        let (mut waiting_bytes, mut delayed_bytes) = (0, 0);
        let mut kinds = BTreeMap::<StateKind, usize>::new();
        for task in self.table.iter() {
            let kind = if self.bulk.revives(&task.state) { StateKind::Ready } else { task.state.kind() };
            *kinds.entry(kind).or_default() += 1;
            self.check_task(task)?;
            if task.waits() {
                waiting_bytes += task.body.len() as u64;
            }
            if task.state.kind() == StateKind::Delayed {
                delayed_bytes += task.body.len() as u64;
            }
        }
        let count = |kind| kinds.get(&kind).copied().unwrap_or(0);
        let [ready, delayed, leased, dead] = self.counts().map(|n| n as usize);
        ensure(ready == count(StateKind::Ready) + self.ready.packed.len(), || format!("{ready} ready"))?;
        ensure(delayed == count(StateKind::Delayed) + self.packed_delayed.len(), || {
            format!("{delayed} delayed")
        })?;
        ensure(leased == count(StateKind::Leased), || format!("{leased} leased"))?;
        ensure(dead == count(StateKind::Dead), || format!("{dead} dead"))?;
        ensure(self.totals.left() == Some(self.len()), || {
            format!("{:?} but {} tasks", self.totals, self.len())
        })?;
        let later = self.check_packed_delayed()?;
        waiting_bytes += self.check_line()? + later;
        delayed_bytes += later;
        ensure(delayed_bytes == self.delayed_bytes, || format!("{} delayed bytes", self.delayed_bytes))?;
        ensure(waiting_bytes == self.waiting_bytes, || format!("{} waiting bytes", self.waiting_bytes))?;
        self.check_lists()?;
        self.check_owned()?;
        self.check_sizes()
    }

    /// Checks the count of memory that tasks own beside their records.
    fn check_owned(&self) -> Result<(), Broken> {
        let plain: usize = self.ready.packed.iter().map(|entry| entry.body.owned_bytes()).sum();
        let later: usize = self.packed_delayed.iter().map(|entry| entry.body.owned_bytes()).sum();
        let records: usize = self.table.iter().map(Task::owned_bytes).sum();
        let counted = (self.packed_ready_owned, self.packed_delayed_owned, self.table.owned());
        ensure((plain, later, records) == counted, || {
            format!("{counted:?} bytes owned instead of {:?}", (plain, later, records))
        })
    }

    fn check_task(&self, task: &Task<B>) -> Result<(), Broken> {
        let id = task.id;
        ensure(id <= self.last_id, || format!("{id} is above the last id"))?;
        let twice = self.ready.packed.contains(id) || self.packed_delayed.contains(id);
        ensure(!twice, || format!("{id} has a record and is packed too"))?;
        ensure(task.name().is_none_or(|name| self.names.get(name) == Some(&id)), || format!("{id}'s name"))?;
        let indexed = match &task.state {
            TaskState::Ready(order) => self.ready.is_taken(Rank::of(task.priority, *order)),
            TaskState::Delayed(Due::Log(due)) => self.delayed.contains(&(*due, id)),
            TaskState::Delayed(Due::Wall(due)) => self.delayed_wall.contains(&(*due, id)),
            TaskState::Leased(lease) => {
                let timed = lease.deadline().is_none_or(|at| self.deadlines.contains(&(at, lease.seq(), id)));
                timed && lease.holder().is_none_or(|holder| self.is_held(holder, task, lease))
            }
            TaskState::Dead(at) => self.bulk.revives(&task.state) != self.deaths.contains(&(*at, id)),
        };
        ensure(indexed, || format!("{id} is not indexed as {:?}", task.state))?;
        let empty = task.extras.as_deref().is_some_and(|extras| *extras == Extras::default());
        ensure(!empty, || format!("{id} has an empty box of extras"))?;
        let waits = task.waits();
        let expires = task.expires().filter(|_| waits);
        ensure(expires.is_none_or(|at| self.expiries.contains(&(at, id))), || format!("{id} never expires"))?;
        ensure(waits || !task.late_ack, || format!("{id} is {:?} with a late ack", task.state))?;
        ensure(task.lease().is_some() || !task.cancelled, || {
            format!("{id} is cancelled and {:?}", task.state)
        })?;
        ensure(task.lease().is_none() || task.deliveries > 0, || {
            format!("{id} was leased but never delivered")
        })
    }

    fn is_held(&self, holder: Holder, task: &Task<B>, lease: &Lease) -> bool {
        let held = self.held.get(&holder).is_some_and(|held| held.contains(&(lease.seq(), task.id)));
        held && task.cancelled == self.cancelled_leases.contains(&(holder, lease.seq(), task.id))
    }

    /// Checks the order of ready tasks. Returns the payload bytes of the packed ones.
    fn check_line(&self) -> Result<u64, Broken> {
        let (mut bytes, mut last_plain, mut seen) = (0, TaskId::NONE, 0);
        for task in self.ready.iter() {
            seen += 1;
            match task {
                ReadyTask::Packed(plain) => {
                    ensure(plain.id > last_plain, || format!("{} after {last_plain}", plain.id))?;
                    ensure(plain.due.is_none(), || format!("{} is packed as ready but due later", plain.id))?;
                    last_plain = plain.id;
                    bytes += plain.body.len() as u64;
                }
                ReadyTask::Indexed(id) => {
                    let ready = self.table.get(id).is_some_and(|task| task.state.kind() == StateKind::Ready);
                    ensure(ready, || format!("{id} is in the ready list but is not ready"))?;
                }
            }
        }
        ensure(seen == self.ready.len(), || format!("{seen} ready tasks instead of {}", self.ready.len()))?;
        ensure(last_plain <= self.last_id, || format!("{last_plain} is above the last id"))?;
        self.ready
            .packed
            .broken()
            .map_or(Ok(bytes), |what| Err(Broken(format!("packed ready tasks: {what}"))))
    }

    /// Checks that packed delayed tasks are in the index of their clock. Returns their payload bytes.
    fn check_packed_delayed(&self) -> Result<u64, Broken> {
        let mut bytes = 0;
        for entry in self.packed_delayed.iter() {
            let id = entry.id;
            let indexed = match entry.due {
                Some(Due::Log(due)) => self.delayed.contains(&(due, id)),
                Some(Due::Wall(due)) => self.delayed_wall.contains(&(due, id)),
                None => false,
            };
            ensure(indexed && id <= self.last_id, || format!("{id} is not indexed as {:?}", entry.due))?;
            bytes += entry.body.len() as u64;
        }
        self.packed_delayed
            .broken()
            .map_or(Ok(bytes), |what| Err(Broken(format!("packed delayed tasks: {what}"))))
    }

    fn check_lists(&self) -> Result<(), Broken> {
        let mut last = 0;
        for task in self.table.walk(&self.leased) {
            let seq = task.lease().map_or(0, Lease::seq);
            ensure(seq > last, || format!("{} is out of order of delivery", task.id))?;
            last = seq;
        }
        let leased = self.table.walk(&self.leased).count();
        ensure(leased == self.leased.len(), || format!("{leased} tasks in the list of leased ones"))?;
        let dead =
            self.table.walk(&self.dead).filter(|task| matches!(task.state, TaskState::Dead(_))).count();
        ensure(dead == self.dead.len(), || format!("{dead} tasks in the list of dead ones"))?;
        let walked = self.reviving().filter(|task| self.bulk.revives(&task.state)).count();
        ensure(walked == self.bulk.reviving_count(), || format!("{walked} tasks in the list of revived ones"))
    }

    /// Checks that no index has an entry without a task.
    fn check_sizes(&self) -> Result<(), Broken> {
        let leases = || self.table.iter().filter_map(Task::lease);
        let timed = leases().filter(|lease| lease.deadline().is_some()).count();
        ensure(timed == self.deadlines.len(), || format!("{} deadlines", self.deadlines.len()))?;
        let held = leases().filter(|lease| lease.holder().is_some()).count();
        let indexed: usize = self.held.values().map(BTreeSet::len).sum();
        ensure(held == indexed, || format!("{indexed} held"))?;
        ensure(self.held.values().all(|held| !held.is_empty()), || "a holder without leases".into())?;
        let mut last = None;
        for (&(holder, upto), ended) in &self.bulk.ended {
            let from = last.filter(|&(other, _)| other == holder).map_or(0, |(_, upto)| upto + 1);
            let over = self.held.get(&holder).into_iter();
            let over = over.flat_map(|held| held.range((from, TaskId::NONE)..=(upto, TaskId::LAST))).count();
            ensure(over == ended.left, || format!("{over} deliveries to {holder:?} are over: {ended:?}"))?;
            last = Some((holder, upto));
        }
        ensure(self.deaths.len() == self.dead.len(), || format!("{} deaths", self.deaths.len()))?;
        let open_ended =
            self.table.iter().filter_map(Task::lease).filter(|lease| lease.is_open_ended()).count();
        ensure(self.deliveries.counts() == [self.leased.len(), open_ended], || {
            format!("deliveries: {:?}", self.deliveries.counts())
        })?;
        let by_list = self.table.walk(&self.leased).map(|task| task.id);
        let by_blocks = self.deliveries.walk_from(&self.table, 0).map(|task| task.id);
        ensure(by_list.eq(by_blocks), || "the list of deliveries and its blocks differ".into())?;
        let is_cancelled = |task: &&Task<B>| task.cancelled && task.lease().and_then(Lease::holder).is_some();
        let cancelled = self.table.iter().filter(is_cancelled).count();
        ensure(cancelled == self.cancelled_leases.len(), || {
            format!("{} cancelled", self.cancelled_leases.len())
        })?;
        let named = self.table.iter().filter(|task| task.name().is_some()).count();
        ensure(named == self.names.len(), || format!("{} names", self.names.len()))?;
        let mortal = |task: &&Task<B>| task.waits() && task.expires().is_some();
        let mortals = self.table.iter().filter(mortal).count();
        ensure(mortals == self.expiries.len(), || format!("{} expiries", self.expiries.len()))
    }

    /// Hashes all data that is not volatile, in an order that does not depend on the history of the queue.
    pub fn digest(&self, into: &mut impl Hasher) {
        (self.no, &self.settings, self.paused, self.waiting_bytes, self.totals).hash(into);
        (self.last_id, self.incarnation, self.seq, self.front_group, self.minor, self.bulk.due).hash(into);
        self.bulk.ended.iter().filter(|(_, ended)| ended.left > 0).for_each(|ended| ended.hash(into));
        self.ready.iter().for_each(|task| task.id().hash(into));
        let revival = self.bulk.revival.map(|Revival { since, major, minor, .. }| (since, major, minor));
        revival.hash(into);
        let lists = self.table.walk(&self.leased).chain(self.table.walk(&self.dead)).chain(self.reviving());
        lists.for_each(|task| task.id.hash(into));
        // Whether a task is packed or has a record is not part of the state.
        let packed = self.ready.packed.iter().chain(self.packed_delayed.iter());
        let packed = packed.map(|entry| (entry.id, Look::Packed(entry.into_task())));
        let records = self.table.iter().map(|task| (task.id, Look::Record(task)));
        let tasks: BTreeMap<TaskId, Look<'_, B>> = packed.chain(records).collect();
        for (id, task) in tasks {
            (id, task.body.len(), task.pushed, &task.state, task.incarnation, task.deliveries).hash(into);
            (task.priority, task.cancelled, task.late_ack, &task.extras).hash(into);
        }
    }
}

#[cfg(test)]
mod tests;
