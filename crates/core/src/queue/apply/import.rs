//! Whole tasks and whole queues, from a checkpoint, another home or another queue.

use core::mem;

use super::{Applied, COUNT_MAX, extras_of};
use crate::event::{Counters, FullTask, Landing, Recorder};
use crate::id::TaskId;
use crate::limits;
use crate::queue::packed::Entry;
use crate::queue::{Inconsistent, Queue};
use crate::task::{Body, Due, Extras, OrderKey, StateKind, Task, TaskState};

impl<B: Body> Queue<B> {
    /// Adds a whole task. If the task exists already, it keeps its state and gets the new body; compaction relies on
    /// this.
    pub(super) fn apply_task<R: Recorder<Body = B>>(
        &mut self,
        full: &FullTask<'_>,
        body: B,
        rec: &mut R,
    ) -> Applied {
        let misfit = Inconsistent::new("a task that contradicts itself or its queue", full.id);
        if let Some(before) = self.body_of(full.id) {
            if before.len() != body.len() {
                return Err(misfit);
            }
            rec.release_body(self.replace_body(full.id, body).ok_or(misfit)?);
            return Ok(());
        }
        if !is_sound(full) {
            return Err(misfit);
        }
        match &full.state {
            TaskState::Leased(lease) => {
                // Leased tasks come in order of delivery, which RECOVER relies on.
                if lease.seq() <= self.seq {
                    return Err(misfit);
                }
                self.seq = lease.seq();
            }
            TaskState::Ready(order) => {
                self.minor = self.minor.max(order.minor);
                self.front_group = self.front_group.max(group_of(*order));
            }
            TaskState::Delayed(_) | TaskState::Dead(_) => {}
        }
        self.last_id = self.last_id.max(full.id);
        self.totals.pushed += 1;
        let due = due_of(&full.state);
        if is_untouched(full) && self.can_pack(full.id, due) {
            self.pack(Entry { id: full.id, pushed: full.pushed, due, body });
            return Ok(());
        }
        self.admit(record_of(full, body))
    }

    /// Gives a task another body. Returns the old one.
    fn replace_body(&mut self, id: TaskId, body: B) -> Option<B> {
        if let Some(slot) = self.table.find(id) {
            return Some(self.table.change(slot, |task| mem::replace(&mut task.body, body)));
        }
        let (packed, owned) = if self.ready.packed.contains(id) {
            (&mut self.ready.packed, &mut self.packed_ready_owned)
        } else {
            (&mut self.packed_delayed, &mut self.packed_delayed_owned)
        };
        let new = body.owned_bytes();
        let before = packed.replace(id, body)?;
        *owned = *owned - before.owned_bytes() + new;
        Some(before)
    }

    /// Takes over the counters of a queue, once its tasks have been added.
    pub(in crate::queue) fn apply_counted(&mut self, counters: &Counters) -> Applied {
        let Counters { last_id, totals, seq, front_group, minor, flood, paused } = *counters;
        let counted = [(seq, self.seq), (front_group, self.front_group), (minor, self.minor)];
        let behind = counted.iter().any(|&(claimed, seen)| claimed < seen || claimed > COUNT_MAX);
        let flood_fits = flood.is_none_or(|flood| flood.minor <= flood.end && flood.end <= minor);
        if behind || last_id < self.last_id || !flood_fits || totals.left() != Some(self.len()) {
            return Err(Inconsistent::new("counters that do not fit their queue", last_id));
        }
        (self.last_id, self.totals, self.paused) = (last_id, totals, paused);
        (self.seq, self.front_group, self.minor, self.bulk.due) = (seq, front_group, minor, flood);
        Ok(())
    }

    /// The counters of this queue, for [`Self::apply_counted`] of a copy.
    pub fn counters(&self) -> Counters {
        let mut totals = self.totals;
        // Tasks lost with a damaged run were never counted as removed. Count them here, so that the totals agree with
        // the number of tasks.
        let lost = totals.left().unwrap_or(0).saturating_sub(self.len());
        totals.removed += lost;
        Counters {
            last_id: self.last_id,
            totals,
            seq: self.seq,
            front_group: self.front_group,
            minor: self.minor,
            flood: self.bulk.due,
            paused: self.paused,
        }
    }

    /// Adds a dead task of another queue, at the back and with its tries. It loses its name if another task of this
    /// queue has it.
    pub(crate) fn adopt(&mut self, mut task: Task<B>) -> Applied {
        task.state = self.land(Landing::Back)?;
        if task.name().is_some_and(|name| self.names.contains_key(name)) {
            task.become_nameless();
        }
        task.live_on();
        self.last_id = self.last_id.max(task.id);
        self.totals.pushed += 1;
        (self.adopted, self.changed) = (true, true);
        self.admit(task)
    }

    /// Removes a dead task, so that another queue can adopt it.
    pub(crate) fn release(&mut self, id: TaskId) -> Result<Task<B>, Inconsistent> {
        self.find(id, StateKind::Dead, "a move of a task that is not dead")?;
        self.totals.removed += 1;
        self.changed = true;
        self.take(id)
    }

    /// Removes the whole content of the queue and returns it as one value.
    pub(crate) fn empty_out(&mut self) -> Remains<B> {
        let fresh = Self { last_id: self.last_id, incarnation: self.incarnation, ..Self::new(self.no) };
        Remains::of(mem::replace(self, fresh))
    }

    /// Raises the incarnation of the store that deliveries are counted in.
    pub(crate) fn enter_incarnation(&mut self, incarnation: u64) {
        self.incarnation = self.incarnation.max(incarnation);
    }
}

/// Passing over this many free slots counts as much as releasing a task.
const SLOTS_PER_TASK: usize = 4;

/// Tasks that were dropped with their queue or purged, and whose bodies are not released yet.
#[derive(Clone, Debug)]
pub struct Remains<B> {
    queue: Queue<B>,
    /// The first slot that may still have a record.
    slot: u32,
}

impl<B: Body> Remains<B> {
    pub(super) const fn of(queue: Queue<B>) -> Self {
        Self { queue, slot: 0 }
    }

    pub(crate) const fn queue(&self) -> &Queue<B> {
        &self.queue
    }

    /// The approximate memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.queue.memory()
    }

    /// Releases the bodies of `count` tasks, or fewer if their records lie among very many free slots. Returns whether
    /// there are more.
    pub fn release_some<R: Recorder<Body = B>>(&mut self, count: usize, rec: &mut R) -> bool {
        let upto = self.slot.saturating_add(u32::try_from(count * SLOTS_PER_TASK).unwrap_or(u32::MAX));
        for _ in 0..count {
            let queue = &self.queue;
            if queue.is_empty() {
                return false;
            }
            let first = queue.ready.packed.first().or_else(|| queue.packed_delayed.first());
            let id = first.map(|entry| entry.id).or_else(|| queue.table.next_id(&mut self.slot, upto));
            match id.map(|id| self.queue.take(id)) {
                Some(Ok(task)) => rec.release_body(task.body),
                Some(Err(_)) => return false,
                None => return self.slot < self.queue.table.slots(),
            }
        }
        !self.queue.is_empty()
    }

    /// How much is left to do, counted in tasks.
    pub(crate) fn left(&self) -> usize {
        let slots = self.queue.table.slots().saturating_sub(self.slot);
        self.queue.len() as usize + slots as usize / SLOTS_PER_TASK
    }
}

/// Whether the fields of a task are consistent.
pub(in crate::queue) fn is_sound(full: &FullTask<'_>) -> bool {
    let waits = matches!(full.state.kind(), StateKind::Ready | StateKind::Delayed);
    let fits = match &full.state {
        TaskState::Leased(lease) => full.deliveries > 0 && lease.seq() > 0 && lease.seq() <= COUNT_MAX,
        TaskState::Ready(order) => {
            full.stray_neg_priority.is_none() && order.minor <= COUNT_MAX && group_of(*order) <= COUNT_MAX
        }
        TaskState::Delayed(_) | TaskState::Dead(_) => true,
    };
    let leased = full.state.kind() == StateKind::Leased;
    fits && (waits || !full.late_ack) && (leased || !full.cancelled)
}

/// The group at the front of an order key; 0 if it is not at the front.
pub(in crate::queue) fn group_of(order: OrderKey) -> u64 {
    order.major.min(0).unsigned_abs()
}

/// The record of a whole task.
pub(in crate::queue) fn record_of<B>(full: &FullTask<'_>, body: B) -> Task<B> {
    let past = &full.past[full.past.len().saturating_sub(limits::DELIVERIES_KEPT)..];
    let extras = Extras {
        tries: full.tries,
        reason: full.reason.map(Into::into),
        past: past.into(),
        ..extras_of(&full.fields)
    };
    Task {
        id: full.id,
        body,
        pushed: full.pushed,
        state: full.state.clone(),
        incarnation: full.incarnation,
        deliveries: full.deliveries,
        priority: full.fields.priority,
        cancelled: full.cancelled,
        late_ack: full.late_ack,
        extras: extras.boxed(),
    }
}

const fn due_of(state: &TaskState) -> Option<Due> {
    match state {
        TaskState::Delayed(due) => Some(*due),
        _ => None,
    }
}

/// Whether the task has not changed since its push, so that it can be packed.
fn is_untouched(full: &FullTask<'_>) -> bool {
    let delivered = full.deliveries > 0 || full.incarnation > 0 || full.tries.total() > 0 || full.late_ack;
    let plain = full.fields.is_plain() && full.reason.is_none() && full.past.is_empty();
    let placed = match full.state {
        TaskState::Ready(order) => order == OrderKey::pushed(full.id),
        TaskState::Delayed(_) => true,
        TaskState::Leased(_) | TaskState::Dead(_) => false,
    };
    plain && !delivered && placed
}
