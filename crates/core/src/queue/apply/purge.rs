//! Removes all tasks of some states in one step.
//!
//! The packed tasks are detached as a whole, and their bodies are released in slices, like those of a dropped queue.
//! Records share a table with tasks that stay and are removed one by one, so [`Queue::purge_slice`] removes all but a
//! few of them before, in slices.

use alloc::vec::Vec;
use core::mem;

use super::Applied;
use crate::event::{Purge, Recorder};
use crate::id::TaskId;
use crate::queue::{Queue, Remains};
use crate::task::{Body, StateKind};

impl<B: Body> Queue<B> {
    pub(super) fn apply_purged<R: Recorder<Body = B>>(&mut self, what: Purge, rec: &mut R) -> Applied {
        let before = self.len();
        let mut records = Vec::new();
        self.list_records(what, usize::MAX, &mut records);
        for id in records {
            rec.release_body(self.take(id)?.body);
        }
        let mut gone = Self::new(self.no);
        let ready_bytes = self.waiting_bytes.saturating_sub(self.delayed_bytes);
        let stays = |kind, bytes: u64| if what.takes(kind) { 0 } else { bytes };
        let delayed_bytes = stays(StateKind::Delayed, self.delayed_bytes);
        self.waiting_bytes = stays(StateKind::Ready, ready_bytes) + delayed_bytes;
        self.delayed_bytes = delayed_bytes;
        if what.takes(StateKind::Ready) {
            gone.ready.packed = mem::take(&mut self.ready.packed);
            gone.packed_ready_owned = mem::take(&mut self.packed_ready_owned);
        }
        if what.takes(StateKind::Delayed) {
            gone.packed_delayed = mem::take(&mut self.packed_delayed);
            gone.packed_delayed_owned = mem::take(&mut self.packed_delayed_owned);
            gone.delayed = mem::take(&mut self.delayed);
            gone.delayed_wall = mem::take(&mut self.delayed_wall);
        }
        self.totals.removed += before - self.len();
        if what == Purge::All {
            self.bulk.ended.values_mut().for_each(|ended| ended.is_purged = true);
        }
        if !gone.is_empty() {
            self.purged.push(Remains::of(gone));
        }
        Ok(())
    }

    /// The number of records that such a purge removes.
    pub(in crate::queue) fn records_of(&self, what: Purge) -> usize {
        let of_kinds = [
            (StateKind::Ready, self.ready.len() - self.ready.packed.len() + self.bulk.reviving_count()),
            (StateKind::Delayed, self.delayed_records()),
            (StateKind::Dead, self.dead.len()),
        ];
        of_kinds.iter().filter(|(kind, _)| what.takes(*kind)).map(|(_, records)| records).sum()
    }

    /// The number of delayed tasks with records.
    pub(in crate::queue) fn delayed_records(&self) -> usize {
        (self.delayed.len() + self.delayed_wall.len()).saturating_sub(self.packed_delayed.len())
    }

    /// Lists the first `count` records that such a purge removes. Delayed records share their indexes with packed
    /// tasks, all of which are skipped.
    pub(in crate::queue) fn list_records(&self, what: Purge, count: usize, ids: &mut Vec<TaskId>) {
        if what.takes(StateKind::Dead) {
            let room = count.saturating_sub(ids.len());
            ids.extend(self.table.walk(&self.dead).take(room).map(|task| task.id));
        }
        if what.takes(StateKind::Ready) {
            let room = count.saturating_sub(ids.len());
            ids.extend(self.ready.indexed().chain(self.reviving().map(|task| task.id)).take(room));
        }
        if what.takes(StateKind::Delayed) && self.delayed_records() > 0 {
            let room = count.saturating_sub(ids.len());
            ids.extend(self.delayed_ids().filter(|&id| self.table.find(id).is_some()).take(room));
        }
    }

    /// All delayed tasks. Those due by log time come first.
    pub(in crate::queue) fn delayed_ids(&self) -> impl Iterator<Item = TaskId> {
        self.delayed.iter().map(|&(_, id)| id).chain(self.delayed_wall.iter().map(|&(_, id)| id))
    }
}
