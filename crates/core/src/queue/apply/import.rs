//! Whole tasks and whole queues, from a checkpoint, another home or another queue.

use super::{Applied, COUNT_MAX, extras_of};
use crate::event::{Counters, FullTask, Landing};
use crate::id::TaskId;
use crate::limits;
use crate::queue::{Inconsistent, Queue};
use crate::task::{Body, Rank, State, StateKind, Task};

impl<B: Body> Queue<B> {
    /// Takes in a whole task. One that is there already keeps its state and gets the new body: this is how a body
    /// is copied forward.
    pub(super) fn apply_task(&mut self, full: &FullTask<'_>, body: B) -> Applied {
        let misfit = Inconsistent::new("a task that contradicts itself or its queue", full.id);
        if let Some(before) = self.body_mut(full.id) {
            if before.len() != body.len() {
                return Err(misfit);
            }
            *before = body;
            return Ok(());
        }
        let waits = matches!(full.state.kind(), StateKind::Ready | StateKind::Delayed);
        if full.late_ack && !waits {
            return Err(misfit);
        }
        match &full.state {
            State::Leased(lease) => {
                // Tasks come in order of delivery, which is the order that RECOVER walks.
                if full.deliveries == 0 || lease.seq <= self.seq || lease.seq > COUNT_MAX {
                    return Err(misfit);
                }
                self.seq = lease.seq;
            }
            _ if full.cancelled => return Err(misfit),
            State::Ready(rank) => {
                let group = rank.major.min(0).unsigned_abs();
                let lane = Rank::lane_of(full.fields.priority);
                if rank.lane != lane || rank.minor > COUNT_MAX || group > COUNT_MAX {
                    return Err(misfit);
                }
                self.minor = self.minor.max(rank.minor);
                self.front_group = self.front_group.max(group);
            }
            State::Delayed(_) | State::Dead(_) => {}
        }
        self.last_id = self.last_id.max(full.id);
        self.totals.pushed += 1;
        if is_untouched(full) && self.ready.takes(full.id) {
            self.waiting_bytes += body.len() as u64;
            self.ready.push(full.id, full.pushed, body);
            return Ok(());
        }
        let past = &full.past[full.past.len().saturating_sub(limits::DELIVERIES_KEPT)..];
        self.admit(Task {
            id: full.id,
            body,
            pushed: full.pushed,
            state: full.state.clone(),
            incarnation: full.incarnation,
            deliveries: full.deliveries,
            tries: full.tries,
            priority: full.fields.priority,
            cancelled: full.cancelled,
            late_ack: full.late_ack,
            extras: extras_of(&full.fields, full.reason, past),
        })
    }

    fn body_mut(&mut self, id: TaskId) -> Option<&mut B> {
        if self.table.find(id).is_some() {
            return self.table.get_mut(id).map(|task| &mut task.body);
        }
        self.ready.plain_body_mut(id)
    }

    /// Takes over what a queue had counted, once its tasks are there.
    pub(super) fn apply_counted(&mut self, counters: &Counters) -> Applied {
        let Counters { last_id, totals, seq, front_group, minor, flood, paused } = *counters;
        let counted = [(seq, self.seq), (front_group, self.front_group), (minor, self.minor)];
        let behind = counted.iter().any(|&(claimed, seen)| claimed < seen || claimed > COUNT_MAX);
        let flood_fits = flood.is_none_or(|flood| flood.minor <= flood.end && flood.end <= minor);
        if behind || last_id < self.last_id || !flood_fits || totals.left() != Some(self.len()) {
            return Err(Inconsistent::new("counters that do not fit their queue", last_id));
        }
        (self.last_id, self.totals, self.paused) = (last_id, totals, paused);
        (self.seq, self.front_group, self.minor, self.flood) = (seq, front_group, minor, flood);
        Ok(())
    }

    /// What this queue has counted, for [`Self::apply_counted`] of its copy.
    pub(crate) const fn counters(&self) -> Counters {
        Counters {
            last_id: self.last_id,
            totals: self.totals,
            seq: self.seq,
            front_group: self.front_group,
            minor: self.minor,
            flood: self.flood,
            paused: self.paused,
        }
    }

    /// Takes in a task that another queue gave up, at the end of the line, with what its tries were spent on. Its
    /// name stays behind if it is taken here.
    pub(crate) fn adopt(&mut self, mut task: Task<B>) -> Applied {
        task.state = self.land(Landing::Back, task.priority)?;
        if task.name().is_some_and(|name| self.names.contains_key(name)) {
            task.extras_mut().name = None;
        }
        task.live_on();
        self.last_id = self.last_id.max(task.id);
        self.totals.pushed += 1;
        self.admit(task)
    }

    /// Takes out a dead task for another queue to adopt.
    pub(crate) fn release(&mut self, id: TaskId) -> Result<Task<B>, Inconsistent> {
        self.find(id, StateKind::Dead, "a move of a task that is not dead")?;
        self.totals.removed += 1;
        self.take(id)
    }

    /// Raises the incarnation that deliveries are counted in.
    pub(crate) fn enter_incarnation(&mut self, incarnation: u64) {
        self.incarnation = self.incarnation.max(incarnation);
    }
}

/// Whether the task is as a plain push left it, and so needs no record.
fn is_untouched(full: &FullTask<'_>) -> bool {
    let delivered = full.deliveries > 0 || full.incarnation > 0 || full.tries.total() > 0 || full.late_ack;
    let plain = full.fields.is_plain() && full.reason.is_none() && full.past.is_empty();
    plain && !delivered && full.state == State::Ready(Rank::plain(full.id))
}
