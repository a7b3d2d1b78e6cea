//! Leasing tasks, and ending leases for their holders.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use super::Distinct;
use crate::event::{Event, Ids, LeaseTerms, Recorder, Removal};
use crate::id::{Claim, Receipt, TaskId};
use crate::limits;
use crate::queue::Queue;
use crate::queue::ready::ReadyTask;
use crate::reply::TaskView;
use crate::task::{Body, Cause, Holder, Task};
use crate::time::{LogTime, Now};

/// A pop of one queue.
#[derive(Clone, Copy, Debug)]
pub struct PopAsk {
    /// The maximum number of tasks to lease.
    pub count: u32,
    /// The maximum number of payload bytes.
    pub bytes: usize,
    /// The maximum number of payload bytes of the first task, if that is larger than `bytes`.
    pub first_bytes: usize,
    pub terms: LeaseTerms,
    /// The value of [`TaskView::queue`].
    pub queue: u32,
    /// Whether to include the details of each task.
    pub meta: bool,
}

/// The result of a pop of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Popped {
    pub tasks: u32,
    /// The bytes of their payloads.
    pub bytes: usize,
    /// Whether it ended because the next payload exceeds the remaining bytes.
    pub is_cut: bool,
}

/// The parameters of a recovery: leasing tasks again that were popped without deadline, worker or connection.
#[derive(Clone, Copy, Debug)]
pub struct RecoverAsk {
    /// The maximum number of tasks to lease.
    pub count: u32,
    /// Only tasks whose last delivery is at least this long ago.
    pub elapsed_ms: u64,
    /// The maximum number of payload bytes.
    pub bytes: usize,
    /// The maximum number of payload bytes of the first task, if that is larger than `bytes`.
    pub first_bytes: usize,
    /// Only deliveries up to this number: see [`Queue::last_delivery`].
    pub upto: u64,
}

impl<B: Body> Queue<B> {
    /// The number of the last delivery. Later ones have larger numbers.
    pub const fn last_delivery(&self) -> u64 {
        self.seq
    }

    /// Leases tasks, in order.
    pub fn pop<R: Recorder<Body = B>>(
        &mut self,
        ask: &PopAsk,
        now: Now,
        rec: &mut R,
        out: &mut Vec<TaskView<B>>,
    ) -> Popped {
        self.settle_for_pop(self.poppable().min(ask.count as usize), ask.bytes, now, rec);
        let count = self.poppable().min(ask.count as usize);
        if count == 0 || self.ready.len() == 0 {
            return Popped::default();
        }
        self.ready.packed.decode_front(count);
        let mut ids = mem::take(&mut self.scratch);
        ids.clear();
        let popped = self.hand_out(count, ask, now, &mut ids, out);
        let mut terms = ask.terms;
        if terms.length_ms.is_none() && terms.holder.is_none() {
            terms.length_ms = self.settings.lease_ms;
        }
        if !ids.is_empty() {
            self.commit(&Event::Popped { queue: self.no, ids: Ids::Slice(&ids), terms }, now.log, rec);
        }
        self.scratch = ids;
        popped
    }

    /// Lists the tasks that a pop gets.
    fn hand_out(
        &self,
        count: usize,
        ask: &PopAsk,
        now: Now,
        ids: &mut Vec<TaskId>,
        out: &mut Vec<TaskView<B>>,
    ) -> Popped {
        // During a flood of expiries, expired tasks may not have been removed yet. They are never delivered.
        if count == 1 {
            let Some(head) = self.ready.unexpired_head(now.log) else { return Popped::default() };
            return collect_within(core::iter::once(self.handed_out(head, ask, now.log)), ask, ids, out);
        }
        if let Some(plain) = self.ready.decoded_front(count) {
            let views = plain.map(|entry| self.view_of(entry.id, entry.body.clone(), 0, ask, now.log));
            return collect_within(views.take(count), ask, ids, out);
        }
        let line = self.ready.unexpired(now.log);
        collect_within(line.take(count).map(|task| self.handed_out(task, ask, now.log)), ask, ids, out)
    }

    /// The view of a task as it will be once it is leased.
    fn handed_out(&self, task: ReadyTask<B>, ask: &PopAsk, at: LogTime) -> TaskView<B> {
        let id = task.id();
        let (body, deliveries) = match task {
            ReadyTask::Packed(plain) => (plain.body, 0),
            ReadyTask::Indexed(id) => {
                let task = self.table.get(id).expect("an indexed task has a record");
                (task.body.clone(), task.deliveries)
            }
        };
        self.view_of(id, body, deliveries, ask, at)
    }

    #[inline]
    fn view_of(&self, id: TaskId, body: B, deliveries: u32, ask: &PopAsk, at: LogTime) -> TaskView<B> {
        TaskView {
            queue: ask.queue,
            id,
            body,
            deliveries: deliveries.saturating_add(1),
            incarnation: self.incarnation,
            at,
            elapsed_ms: 0,
            more: ask.meta.then(|| Box::new(self.more(id))),
            foreign_id: None,
        }
    }

    /// Leases tasks again that have been leased without deadline, worker or connection for `elapsed_ms`. Cancelled
    /// tasks among them are removed instead, as after a lapse.
    pub fn recover<R: Recorder<Body = B>>(
        &mut self,
        ask: &RecoverAsk,
        now: Now,
        rec: &mut R,
        out: &mut Vec<TaskView<B>>,
    ) {
        self.settle_once(now, rec);
        let mut ids = mem::take(&mut self.scratch);
        ids.clear();
        let (mut bytes, mut cancelled) = (0, Vec::new());
        for task in self.deliveries.open_ended(&self.table) {
            let lease = task.lease().expect("the delivered list holds leased tasks");
            // The list is in order of delivery, so all tasks after one that is too young are too young as well.
            let is_enough = ids.len() >= ask.count as usize || cancelled.len() >= limits::SLICE_TASKS;
            let is_later = lease.seq() > ask.upto;
            if is_enough || is_later || now.log.since(lease.start()) < ask.elapsed_ms {
                break;
            }
            if task.cancelled {
                cancelled.push(task.id);
                continue;
            }
            bytes += task.body.len();
            if bytes > if ids.is_empty() { ask.bytes.max(ask.first_bytes) } else { ask.bytes } {
                break;
            }
            ids.push(task.id);
            out.push(TaskView {
                queue: 0,
                id: task.id,
                body: task.body.clone(),
                deliveries: task.deliveries.saturating_add(1),
                incarnation: self.incarnation,
                at: now.log,
                elapsed_ms: 0,
                more: None,
                foreign_id: None,
            });
        }
        self.remove_all(&cancelled, Removal::Cancelled, now, rec);
        if !ids.is_empty() {
            self.commit(&Event::Recovered { queue: self.no, ids: Ids::Slice(&ids) }, now.log, rec);
        }
        self.scratch = ids;
    }

    /// Ends all leases of a worker or connection, in order of delivery. Returns their number. If there are more than
    /// `slice`, one event ends all of them now, and their tasks are moved later, in slices.
    pub fn end_holder<R: Recorder<Body = B>>(
        &mut self,
        holder: Holder,
        cause: Cause,
        slice: usize,
        now: Now,
        rec: &mut R,
    ) -> u64 {
        self.settle_once(now, rec);
        let count = self.held_by(holder);
        if count > slice as u64 {
            self.commit(&Event::HolderEnded { queue: self.no, holder, cause }, now.log, rec);
            self.step_ended_holders(slice, now, rec);
        } else {
            let held = self.held.get(&holder).into_iter();
            let running =
                held.flat_map(|held| held.range((self.bulk.ended_upto(holder) + 1, TaskId::NONE)..));
            let ids: Vec<TaskId> = running.map(|&(_, id)| id).collect();
            self.end_leases(&ids, cause, self.front_group + 1, now, rec);
        }
        count
    }

    /// Ends the first `count` leases of a worker or connection, in order of delivery. Returns their number. For a
    /// driver that ends a holder in slices itself: unlike [`Self::end_holder`] it announces nothing, so an image can
    /// be taken after any call. The first slice chooses the group at the front for all of them, so that they stay in
    /// order.
    pub fn end_some<R: Recorder<Body = B>>(
        &mut self,
        holder: Holder,
        cause: Cause,
        count: usize,
        group: &mut Option<u64>,
        now: Now,
        rec: &mut R,
    ) -> u64 {
        self.settle_once(now, rec);
        let held = self.held.get(&holder).into_iter();
        let running = held.flat_map(|held| held.range((self.bulk.ended_upto(holder) + 1, TaskId::NONE)..));
        let ids: Vec<TaskId> = running.take(count).map(|&(_, id)| id).collect();
        let group = *group.get_or_insert(self.front_group + 1);
        self.end_leases(&ids, cause, group, now, rec);
        ids.len() as u64
    }

    /// Requeues deliveries that never reached their client, at the front and at no cost of a try. Deliveries that are
    /// no longer current are left alone.
    pub fn requeue_undelivered<R: Recorder<Body = B>>(
        &mut self,
        receipts: &[Receipt],
        now: Now,
        rec: &mut R,
    ) {
        self.settle_once(now, rec);
        let mut back = Distinct::default();
        for receipt in receipts {
            if self.is_current(Claim::Receipt(*receipt)) {
                back.add(receipt.id);
            }
        }
        self.end_leases(&back.ids, Cause::Free, self.front_group + 1, now, rec);
    }

    /// The number of current leases that end with this worker or connection.
    pub fn held_by(&self, holder: Holder) -> u64 {
        let ended = self.bulk.ended_leases_of(holder);
        self.held.get(&holder).map_or(0, |held| held.len().saturating_sub(ended) as u64)
    }

    /// Appends the receipts of this worker's cancelled tasks, in order of delivery.
    pub fn cancelled_of(&self, holder: Holder, out: &mut Vec<Receipt>) {
        let cancelled = self.cancelled_leases.range((holder, 0, TaskId::NONE)..);
        let of_holder = cancelled.take_while(|lease| lease.0 == holder);
        out.extend(of_holder.filter_map(|&(.., id)| self.table.get(id)).map(Task::receipt));
    }
}

/// Collects tasks as long as their payloads fit the maximum number of bytes of the pop.
fn collect_within<B: Body>(
    views: impl Iterator<Item = TaskView<B>>,
    ask: &PopAsk,
    ids: &mut Vec<TaskId>,
    out: &mut Vec<TaskView<B>>,
) -> Popped {
    let mut popped = Popped::default();
    for view in views {
        let bytes_max = if popped.tasks == 0 { ask.bytes.max(ask.first_bytes) } else { ask.bytes };
        if popped.bytes + view.body.len() > bytes_max {
            popped.is_cut = true;
            break;
        }
        popped.bytes += view.body.len();
        popped.tasks += 1;
        ids.push(view.id);
        out.push(view);
    }
    popped
}
