//! Adds tasks to the indexes for their states, and removes them.

use alloc::vec::Vec;

use super::Applied;
use crate::id::TaskId;
use crate::queue::packed::Entry;
use crate::queue::table::SlotNo;
use crate::queue::{HolderNews, Inconsistent, Queue};
use crate::task::{Body, Due, Holder, Rank, StateKind, Task, TaskState};
use crate::time::LogTime;

impl<B: Body> Queue<B> {
    pub(in crate::queue) fn admit(&mut self, task: Task<B>) -> Applied {
        let id = task.id;
        if self.state_of(id).is_some() {
            return Err(Inconsistent::new("a task that exists already", id));
        }
        if task.rank().is_some_and(|rank| self.ready.is_taken(rank)) {
            return Err(Inconsistent::new("an order key that another ready task has", id));
        }
        if let Some(name) = task.name() {
            if self.names.contains_key(name) {
                return Err(Inconsistent::new("a name that another task has", id));
            }
            self.names.insert(name.clone(), id);
        }
        let slot = self.table.insert(task);
        self.attach(slot);
        Ok(())
    }

    /// Removes a task in any state.
    pub(super) fn take(&mut self, id: TaskId) -> Result<Task<B>, Inconsistent> {
        if let Some(slot) = self.table.find(id) {
            self.detach(slot);
            let task = self.table.remove(id).expect("found above");
            if let Some(name) = task.name() {
                self.names.remove(name);
            }
            return Ok(task);
        }
        let entry = self.take_packed_ready(id).or_else(|| self.take_packed_delayed(id));
        let entry = entry.ok_or(Inconsistent::new("a task that does not exist", id))?;
        match entry.due {
            Some(Due::Log(due)) => _ = self.delayed.remove(&(due, id)),
            Some(Due::Wall(due)) => _ = self.delayed_wall.remove(&(due, id)),
            None => {}
        }
        if entry.due.is_some() {
            self.delayed_bytes = self.delayed_bytes.saturating_sub(entry.body.len() as u64);
        }
        self.uncount_waiting(&entry.body);
        Ok(entry.into_task())
    }

    /// Removes a packed ready task.
    pub(super) fn take_packed_ready(&mut self, id: TaskId) -> Option<Entry<B>> {
        let entry = self.ready.packed.take(id)?;
        self.packed_ready_owned -= entry.body.owned_bytes();
        Some(entry)
    }

    /// Removes a packed delayed task.
    fn take_packed_delayed(&mut self, id: TaskId) -> Option<Entry<B>> {
        let entry = self.packed_delayed.take(id)?;
        self.packed_delayed_owned -= entry.body.owned_bytes();
        Some(entry)
    }

    /// Whether a task without options, or with only a due time, can be packed: its id must be above those of all
    /// packed tasks.
    pub(in crate::queue) fn can_pack(&self, id: TaskId, due: Option<Due>) -> bool {
        if due.is_some() { self.packed_delayed.takes(id) } else { self.ready.packed.takes(id) }
    }

    /// Adds a packed task.
    pub(in crate::queue) fn pack(&mut self, entry: Entry<B>) {
        self.waiting_bytes += entry.body.len() as u64;
        if entry.due.is_some() {
            self.delayed_bytes += entry.body.len() as u64;
            self.packed_delayed_owned += entry.body.owned_bytes();
        } else {
            self.packed_ready_owned += entry.body.owned_bytes();
        }
        match entry.due {
            None => return self.ready.packed.push(entry),
            Some(Due::Log(due)) => _ = self.delayed.insert((due, entry.id)),
            Some(Due::Wall(due)) => _ = self.delayed_wall.insert((due, entry.id)),
        }
        self.packed_delayed.push(entry);
    }

    /// Subtracts a payload that no longer waits. Saturates, because the count may come from an image and is not
    /// trusted.
    pub(super) fn uncount_waiting(&mut self, body: &B) {
        self.waiting_bytes = self.waiting_bytes.saturating_sub(body.len() as u64);
    }

    pub(super) fn find(
        &self,
        id: TaskId,
        kind: StateKind,
        what: &'static str,
    ) -> Result<SlotNo, Inconsistent> {
        let found = self.table.find(id).filter(|&slot| self.table.at(slot).state.kind() == kind);
        found.ok_or(Inconsistent::new(what, id))
    }

    /// The slot of a task's record. A packed task gets a record.
    pub(super) fn record_of(&mut self, id: TaskId) -> Result<SlotNo, Inconsistent> {
        if let Some(slot) = self.table.find(id) {
            return Ok(slot);
        }
        let task = self.take(id)?;
        let slot = self.table.insert(task);
        self.attach(slot);
        Ok(slot)
    }

    pub(super) fn change(&mut self, slot: SlotNo, change: impl FnOnce(&mut Task<B>)) {
        self.detach(slot);
        self.table.change(slot, change);
        self.attach(slot);
    }

    /// Adds a task to the lists, counts and indexes for its state.
    pub(super) fn attach(&mut self, slot: SlotNo) {
        match self.table.at(slot).state.kind() {
            StateKind::Leased => self.table.append(&mut self.leased, slot),
            StateKind::Dead => {
                self.keep_order_of_deaths(slot);
                self.table.append(&mut self.dead, slot);
            }
            kind => {
                let body = self.table.at(slot).body.len() as u64;
                self.waiting_bytes += body;
                self.delayed_bytes += if kind == StateKind::Delayed { body } else { 0 };
            }
        }
        self.index(slot);
    }

    /// Moves a time of death forward if necessary: to that of the last dead task, and past an announced revival. So
    /// the time of death alone shows whether a task was part of the revival.
    fn keep_order_of_deaths(&mut self, slot: SlotNo) {
        let revived = self.bulk.revival.map(|revival| revival.since.after(1));
        let earliest = self.last_death().max(revived);
        if let (TaskState::Dead(at), Some(earliest)) = (&self.table.at(slot).state, earliest)
            && *at < earliest
        {
            self.table.change(slot, |task| task.state = TaskState::Dead(earliest));
        }
    }

    /// The time of death of the last dead task.
    pub(super) fn last_death(&self) -> Option<LogTime> {
        match self.table.last(&self.dead)?.state {
            TaskState::Dead(at) => Some(at),
            _ => None,
        }
    }

    /// The opposite of [`Self::attach`].
    fn detach(&mut self, slot: SlotNo) {
        self.unindex(slot);
        match self.table.at(slot).state.kind() {
            StateKind::Leased => self.table.unlink(&mut self.leased, slot),
            StateKind::Dead => {
                let is_reviving = self.bulk.revives(&self.table.at(slot).state);
                let revival = self.bulk.revival.as_mut().filter(|_| is_reviving);
                self.table.unlink(revival.map_or(&mut self.dead, |revival| &mut revival.list), slot);
            }
            kind => {
                let body = self.table.at(slot).body.len() as u64;
                let delayed = if kind == StateKind::Delayed { body } else { 0 };
                self.waiting_bytes = self.waiting_bytes.saturating_sub(body);
                self.delayed_bytes = self.delayed_bytes.saturating_sub(delayed);
            }
        }
    }

    pub(in crate::queue) fn index(&mut self, slot: SlotNo) {
        let task = self.table.at(slot);
        let id = task.id;
        match &task.state {
            TaskState::Ready(order) => {
                self.ready.insert_indexed(Rank::of(task.priority, *order), id, task.expires());
            }
            TaskState::Delayed(Due::Log(due)) => _ = self.delayed.insert((*due, id)),
            TaskState::Delayed(Due::Wall(due)) => _ = self.delayed_wall.insert((*due, id)),
            TaskState::Leased(lease) => {
                self.deliveries.add(lease, slot);
                if let Some(terms) = lease.terms() {
                    let seq = lease.seq();
                    terms.deadline.map(|deadline| self.deadlines.insert((deadline.at, seq, id)));
                    if let Some(holder) = terms.holder {
                        self.held.entry(holder).or_default().insert((seq, id));
                        if task.cancelled {
                            self.cancelled_leases.insert((holder, seq, id));
                            note(&mut self.holder_news, holder, HolderNews::HasCancelled);
                        }
                        if let Some(ended) = self.bulk.end_of_mut(holder, seq) {
                            ended.left += 1;
                        }
                    }
                }
            }
            TaskState::Dead(at) => _ = self.deaths.insert((*at, id)),
        }
        if let (TaskState::Ready(_) | TaskState::Delayed(_), Some(expires)) = (&task.state, task.expires()) {
            self.expiries.insert((expires, id));
        }
    }

    pub(super) fn unindex(&mut self, slot: SlotNo) {
        let task = self.table.at(slot);
        let id = task.id;
        match &task.state {
            TaskState::Ready(order) => self.ready.remove_indexed(Rank::of(task.priority, *order)),
            TaskState::Delayed(Due::Log(due)) => _ = self.delayed.remove(&(*due, id)),
            TaskState::Delayed(Due::Wall(due)) => _ = self.delayed_wall.remove(&(*due, id)),
            TaskState::Leased(lease) => {
                self.deliveries.remove(lease, slot, &self.table);
                if let Some(terms) = lease.terms() {
                    let seq = lease.seq();
                    terms.deadline.map(|deadline| self.deadlines.remove(&(deadline.at, seq, id)));
                    if let Some(holder) = terms.holder {
                        self.cancelled_leases.remove(&(holder, seq, id));
                        let held = self.held.entry(holder).or_default();
                        held.remove(&(seq, id));
                        if held.is_empty() {
                            self.held.remove(&holder);
                            note(&mut self.holder_news, holder, HolderNews::HoldsNothing);
                        }
                        if let Some(ended) = self.bulk.end_of_mut(holder, seq) {
                            ended.left = ended.left.saturating_sub(1);
                        }
                    }
                }
            }
            // A task that is being revived has no entry any more.
            TaskState::Dead(at) => _ = self.deaths.remove(&(*at, id)),
        }
        if let (TaskState::Ready(_) | TaskState::Delayed(_), Some(expires)) = (&task.state, task.expires()) {
            self.expiries.remove(&(expires, id));
        }
    }
}

/// Records news about a holder. An extension removes and adds the lease, so the same news may come many times in a
/// row; the driver needs it once per step.
fn note(all: &mut Vec<(Holder, HolderNews)>, holder: Holder, news: HolderNews) {
    if all.last() != Some(&(holder, news)) {
        all.push((holder, news));
    }
}
