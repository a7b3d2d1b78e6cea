//! Very many tasks gone in one step.
//!
//! What goes is set aside as a whole, and its bodies are released slice by slice, as those of a queue that was dropped.
//! Records stand in one table with those that stay: the fewer of the two are taken out one by one.

use alloc::vec::Vec;
use core::mem;

use super::Applied;
use crate::event::{Purge, Recorder};
use crate::id::TaskId;
use crate::queue::deliveries::Deliveries;
use crate::queue::table::List;
use crate::queue::{Queue, Remains};
use crate::task::{Body, State, StateKind};

impl<B: Body> Queue<B> {
    pub(super) fn apply_purged<R: Recorder<Body = B>>(&mut self, what: Purge, rec: &mut R) -> Applied {
        let before = self.len();
        let ready_bytes = self.waiting_bytes.saturating_sub(self.delayed_bytes);
        let stays = |kind, bytes: u64| if what.takes(kind) { 0 } else { bytes };
        let (ready_bytes, delayed_bytes) =
            (stays(StateKind::Ready, ready_bytes), stays(StateKind::Delayed, self.delayed_bytes));
        let mut gone = Self::new(self.no);
        let records = self.records_of(what);
        let mut listed = Vec::new();
        if records > self.table.len() / 2 {
            self.leave_behind(what, &mut gone);
        } else if records > 0 {
            let kinds = [StateKind::Ready, StateKind::Delayed, StateKind::Dead];
            let taken = kinds.into_iter().filter(|&kind| what.takes(kind));
            taken.for_each(|kind| self.list_records(kind, &mut listed));
        }
        if what.takes(StateKind::Ready) {
            gone.ready.plain = mem::take(&mut self.ready.plain);
            gone.plain_owned = mem::take(&mut self.plain_owned);
        }
        if what.takes(StateKind::Delayed) {
            gone.later = mem::take(&mut self.later);
            gone.later_owned = mem::take(&mut self.later_owned);
            gone.delayed = mem::take(&mut self.delayed);
            gone.appointed = mem::take(&mut self.appointed);
        }
        for id in listed {
            rec.release(self.take(id)?.body);
        }
        self.waiting_bytes = ready_bytes + delayed_bytes;
        self.delayed_bytes = delayed_bytes;
        self.totals.removed += before - self.len();
        if what == Purge::All {
            self.ending.values_mut().for_each(|ending| ending.is_purged = true);
        }
        self.purged.push(Remains::of(gone));
        Ok(())
    }

    /// How many records such a purge takes away.
    fn records_of(&self, what: Purge) -> usize {
        let delayed = self.delayed.len() + self.appointed.len();
        let reviving = self.reviving.map_or(0, |reviving| reviving.list.len());
        let of_kinds = [
            (StateKind::Ready, self.ready.len() - self.ready.plain.len() + reviving),
            (StateKind::Delayed, delayed.saturating_sub(self.later.len())),
            (StateKind::Dead, self.dead.len()),
        ];
        of_kinds.iter().filter(|(kind, _)| what.takes(*kind)).map(|(_, records)| records).sum()
    }

    /// Lists the tasks of one state that have records, in the order of their list if there is one.
    fn list_records(&self, kind: StateKind, ids: &mut Vec<TaskId>) {
        match kind {
            StateKind::Ready => {
                ids.extend(self.ready.placed());
                let reviving = self.reviving.iter().flat_map(|reviving| self.table.walk(&reviving.list));
                ids.extend(reviving.map(|task| task.id));
            }
            StateKind::Leased => ids.extend(self.table.walk(&self.leased).map(|task| task.id)),
            StateKind::Dead => ids.extend(self.table.walk(&self.dead).map(|task| task.id)),
            StateKind::Delayed if self.records_of(Purge::Delayed) > 0 => {
                let delayed = self.table.iter().filter(|task| task.state.kind() == kind);
                ids.extend(delayed.map(|task| task.id));
            }
            StateKind::Delayed => {}
        }
    }

    /// Leaves the table, and all that is found by what goes, to `gone`; takes with it what stays.
    fn leave_behind(&mut self, what: Purge, gone: &mut Self) {
        let kinds = [StateKind::Leased, StateKind::Ready, StateKind::Delayed, StateKind::Dead];
        let mut staying = Vec::new();
        kinds
            .into_iter()
            .filter(|&kind| !what.takes(kind))
            .for_each(|kind| self.list_records(kind, &mut staying));
        let mut table = self.table.renew();
        gone.names = mem::take(&mut self.names);
        gone.expiries = mem::take(&mut self.expiries);
        self.leased = List::default();
        self.deliveries = Deliveries::default();
        if what.takes(StateKind::Ready) {
            gone.ready = mem::take(&mut self.ready);
            self.ready.plain = mem::take(&mut gone.ready.plain);
        }
        gone.dead = mem::take(&mut self.dead);
        gone.deaths = mem::take(&mut self.deaths);
        if what.takes(StateKind::Ready) {
            gone.reviving = self.reviving.take();
        } else if let Some(reviving) = &mut self.reviving {
            reviving.list = List::default();
        }
        for task in staying.into_iter().filter_map(|id| table.remove(id)) {
            if let Some(name) = task.name() {
                gone.names.remove(name);
                self.names.insert(name.clone(), task.id);
            }
            if let (State::Ready(_) | State::Delayed(_), Some(expires)) = (&task.state, task.expires()) {
                gone.expiries.remove(&(expires, task.id));
                self.expiries.insert((expires, task.id));
            }
            let (kind, is_reviving) = (task.state.kind(), self.is_reviving(&task));
            let died = if let State::Dead(at) = task.state { Some((at, task.id)) } else { None };
            let at = self.table.insert(task);
            match kind {
                StateKind::Dead if is_reviving => {
                    self.reviving.iter_mut().for_each(|reviving| self.table.append(&mut reviving.list, at));
                }
                StateKind::Leased => {
                    self.table.append(&mut self.leased, at);
                    self.table.at(at).lease().into_iter().for_each(|lease| self.deliveries.add(lease, at));
                }
                StateKind::Dead => {
                    self.table.append(&mut self.dead, at);
                    died.map(|died| self.deaths.insert(died));
                }
                StateKind::Ready | StateKind::Delayed => {}
            }
        }
        if !what.takes(StateKind::Dead) {
            gone.dead = List::default();
        }
        gone.table = table;
        self.renewed = self.renewed.wrapping_add(1);
    }
}
