//! Restores the rest of a queue when parts of its image are lost.
//!
//! Runs and pages are independent of each other, so each remaining one yields its tasks unchanged. The totals are
//! computed anew: the queue is consistent, and smaller.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Queue;
use super::apply::import::group_of;
use super::image::{Damaged, Head, read_page};
use super::packed::{Entry, Packed, Run};
use crate::codec::Reader;
use crate::event::{Counters, QueueNo, Totals};
use crate::id::TaskId;
use crate::task::{Body, Name, Task, TaskState};

/// A queue that was restored from the remaining parts.
pub(crate) struct Salvaged<B> {
    pub(crate) name: Box<[u8]>,
    pub(crate) queue: Queue<B>,
    /// The number of its parts that were lost.
    pub(crate) lost: usize,
}

impl<B: Body> Queue<B> {
    /// The task that has this unique name, in any state.
    pub fn bearer_of(&self, name: &Name) -> Option<TaskId> {
        self.names.get(name).copied()
    }

    /// Restores a queue from an image of which some parts are `None`.
    pub(crate) fn restore_partly<P: AsRef<[u8]>>(
        no: QueueNo,
        head: &[u8],
        parts: impl Iterator<Item = Option<P>>,
    ) -> Result<Salvaged<B>, Damaged> {
        let (Head { name, settings, counters }, rest) =
            Head::read(head).ok_or(Damaged("the head of a queue"))?;
        let mut queue = Self { settings, ..Self::new(no) };
        let mut r = Reader::new(rest);
        let (.., counts) = queue.read_numbers(&mut r).ok_or(Damaged("the numbers of a queue"))?;
        let (mut parts, mut lost) = (parts, 0);
        let mut next = || parts.next().ok_or(Damaged("a missing part"));
        for _ in (0..counts[0]).chain(0..counts[1]) {
            let run = next()?.and_then(|bytes| Run::read(bytes.as_ref()));
            lost += usize::from(run.is_none());
            for entry in Packed::entries_of(run, &mut r).ok_or(Damaged("the overlay of a run"))? {
                queue.restore_entry(entry);
            }
        }
        let mut records = Vec::new();
        for _ in 0..counts[2] {
            match next()?.and_then(|bytes| read_page(bytes.as_ref())) {
                Some(page) => records.extend(page.into_iter().filter_map(|slot| slot.task)),
                None => lost += 1,
            }
        }
        queue.restore_records(records);
        queue.count_again(&counters)?;
        queue.changed = false;
        Ok(Salvaged { name, queue, lost })
    }

    fn restore_entry(&mut self, entry: Entry<B>) {
        if self.state_of(entry.id).is_some() {
            return;
        }
        self.last_id = self.last_id.max(entry.id);
        if self.can_pack(entry.id, entry.due) {
            self.pack(entry);
        } else {
            // This cannot fail: the queue has no task with its id, and the task has neither a name nor a rank of its
            // own.
            let _ = self.admit(entry.into_task());
        }
    }

    /// Adds records in the orders of their lists: leased tasks by delivery, dead tasks by death.
    fn restore_records(&mut self, mut records: Vec<Task<B>>) {
        records.sort_by_key(|task| match &task.state {
            TaskState::Leased(lease) => (1, lease.seq(), task.id),
            TaskState::Dead(at) => (2, at.0, task.id),
            TaskState::Ready(_) | TaskState::Delayed(_) => (0, 0, task.id),
        });
        for task in records {
            let is_again = match &task.state {
                TaskState::Leased(lease) => lease.seq() <= core::mem::replace(&mut self.seq, lease.seq()),
                _ => false,
            };
            if let TaskState::Ready(order) = task.state {
                self.minor = self.minor.max(order.minor);
                self.front_group = self.front_group.max(group_of(order));
            }
            self.last_id = self.last_id.max(task.id);
            if !is_again {
                // A record that contradicts the others was never in this queue together with them, so it is dropped.
                let _ = self.admit(task);
            }
        }
    }

    /// Takes over the counters of the queue, reduced by the lost tasks.
    fn count_again(&mut self, counters: &Counters) -> Result<(), Damaged> {
        let Totals { finished, removed, .. } = counters.totals;
        let pushed = finished.saturating_add(removed).saturating_add(self.len());
        let counters = Counters {
            last_id: counters.last_id.max(self.last_id),
            totals: Totals { pushed, finished, removed },
            seq: counters.seq.max(self.seq),
            front_group: counters.front_group.max(self.front_group),
            minor: counters.minor.max(self.minor),
            ..*counters
        };
        self.apply_counted(&counters).map_err(|inconsistent| Damaged(inconsistent.what))
    }
}
