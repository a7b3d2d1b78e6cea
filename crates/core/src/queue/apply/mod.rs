//! The only code that changes a queue. A replay uses the same code.
//!
//! A log may be damaged or hostile, so an event that does not fit is [`Inconsistent`] and never a panic.

pub(super) mod import;
mod index;
mod purge;

use alloc::vec::Vec;
use core::mem;

use super::bulk::{EndedHolder, Revival};
use super::{Inconsistent, Queue};
use crate::event::{Event, Fields, Flood, Landing, LeaseTerms, NameRef, Recorder};
use crate::id::TaskId;
use crate::limits;
use crate::queue::ordered::Ordered;
use crate::queue::packed::Entry;
use crate::task::{
    Body, Cause, Deadline, Due, Extras, Holder, Lease, OrderKey, Past, Rank, StateKind, Task, TaskState,
    Terms,
};
use crate::time::{LogTime, WallTime};

type Applied = Result<(), Inconsistent>;

/// No counter of a queue gets this high. A larger value in a log could make the next increment overflow.
const COUNT_MAX: u64 = 1 << 62;

impl<B: Body> Queue<B> {
    /// Applies an event of this queue that happened at `at`. After an error the queue may be partly changed and must
    /// not be used.
    pub fn apply<R: Recorder<Body = B>>(&mut self, event: &Event<'_>, at: LogTime, rec: &mut R) -> Applied {
        // A start changes the incarnation of every queue, but that needs no new image: the store keeps it too.
        self.changed |= !matches!(event, Event::Started { .. });
        let applied = self.apply_one(event, at, rec);
        self.bulk.forget_complete();
        applied
    }

    fn apply_one<R: Recorder<Body = B>>(&mut self, event: &Event<'_>, at: LogTime, rec: &mut R) -> Applied {
        match *event {
            Event::Pushed { first, payloads, fields, .. } => {
                let mut id = Some(first);
                for (index, payload) in payloads.iter().enumerate() {
                    let next = id.ok_or(Inconsistent::new("an id beyond the last possible one", first))?;
                    self.apply_pushed(next, rec.new_body(index, payload), &fields, at)?;
                    id = next.successor();
                }
                Ok(())
            }
            Event::Popped { ids, terms, .. } => {
                ids.iter().try_for_each(|id| self.apply_popped(id, &terms, at))
            }
            Event::Recovered { ids, .. } => ids.iter().try_for_each(|id| self.apply_recovered(id, at)),
            Event::Finished { ids, .. } => ids.iter().try_for_each(|id| {
                rec.release_body(self.take(id)?.body);
                self.totals.finished += 1;
                Ok(())
            }),
            Event::Extended { id, length_ms, .. } => self.apply_extended(id, length_ms, at),
            Event::Returned { ids, to, cause, reason, .. } => {
                ids.iter().try_for_each(|id| self.apply_returned(id, to, cause, reason, at))
            }
            Event::Died { ids, cause, reason, .. } => {
                ids.iter().try_for_each(|id| self.apply_died(id, cause, reason, at))
            }
            Event::Removed { ids, .. } => ids.iter().try_for_each(|id| self.apply_removed(id, rec)),
            Event::Purged { what, .. } => self.apply_purged(what, rec),
            Event::Marked { ids, .. } => ids.iter().try_for_each(|id| self.apply_marked(id)),
            Event::DueCame { upto, last_due, last_id, .. } => self.apply_due(upto, last_due, last_id),
            Event::HolderEnded { holder, cause, .. } => {
                self.apply_ended(holder, cause, at);
                Ok(())
            }
            Event::Revived { ids, .. } => ids.iter().try_for_each(|id| self.apply_revived(id)),
            Event::AllRevived(_) => self.apply_all_revived(at),
            Event::Paused(_) => {
                self.paused = Some(at);
                Ok(())
            }
            Event::Resumed(_) => {
                self.paused = None;
                Ok(())
            }
            Event::Configured { settings, .. } => {
                self.settings = settings.clone();
                Ok(())
            }
            Event::Task(task) => {
                let body = rec.new_body(0, task.payload);
                self.apply_task(task, body, rec)
            }
            Event::Counted { counters, .. } => self.apply_counted(counters),
            Event::Started { incarnation, time } => self.apply_started(incarnation, time, rec),
            Event::QueueDropped(_) => {
                let mut remains = self.empty_out();
                while remains.release_some(limits::SLICE_TASKS, rec) {}
                Ok(())
            }
            _ => Err(Inconsistent::new("an event that is not about a queue", TaskId::NONE)),
        }
    }

    fn apply_pushed(&mut self, id: TaskId, body: B, fields: &Fields<'_>, at: LogTime) -> Applied {
        if id <= self.last_id {
            return Err(Inconsistent::new("an id that was assigned before", id));
        }
        self.last_id = id;
        self.totals.pushed += 1;
        if fields.is_plain_but_due() && self.can_pack(id, fields.due) {
            self.pack(Entry { id, pushed: at, due: fields.due, body });
            return Ok(());
        }
        let state = fields.due.map_or(TaskState::Ready(OrderKey::pushed(id)), TaskState::Delayed);
        let mut task = Task::new(id, body, at, state);
        task.priority = fields.priority;
        task.extras = extras_of(fields).boxed();
        self.admit(task)
    }

    fn apply_popped(&mut self, id: TaskId, terms: &LeaseTerms, at: LogTime) -> Applied {
        let lease = Lease::new(at, self.next_seq(), terms_from(terms, at));
        if let Some(Entry { pushed, body, .. }) = self.take_packed_ready(id) {
            self.uncount_waiting(&body);
            let mut task = Task::new(id, body, pushed, TaskState::Leased(lease));
            (task.deliveries, task.incarnation) = (1, self.incarnation);
            let slot = self.table.insert(task);
            self.attach(slot);
            return Ok(());
        }
        let slot = self.find(id, StateKind::Ready, "a pop of a task that is not ready")?;
        let incarnation = self.incarnation;
        self.change(slot, |task| {
            task.state = TaskState::Leased(lease);
            task.deliveries = task.deliveries.saturating_add(1);
            task.incarnation = incarnation;
            task.late_ack = false;
        });
        Ok(())
    }

    fn apply_removed<R: Recorder<Body = B>>(&mut self, id: TaskId, rec: &mut R) -> Applied {
        rec.release_body(self.take(id)?.body);
        self.totals.removed += 1;
        Ok(())
    }

    fn apply_recovered(&mut self, id: TaskId, at: LogTime) -> Applied {
        let slot = self.find(id, StateKind::Leased, "a recovery of a task that is not leased")?;
        let (incarnation, seq) = (self.incarnation, self.next_seq());
        self.change(slot, |task| {
            end_delivery(task, Cause::Free, at);
            if let TaskState::Leased(lease) = &mut task.state {
                lease.begin_again(at, seq);
            }
            task.deliveries = task.deliveries.saturating_add(1);
            task.incarnation = incarnation;
        });
        Ok(())
    }

    fn apply_extended(&mut self, id: TaskId, length_ms: u64, at: LogTime) -> Applied {
        let slot = self.find(id, StateKind::Leased, "an extension of a task that is not leased")?;
        self.unindex(slot);
        self.table.change(slot, |task| {
            if let TaskState::Leased(lease) = &mut task.state {
                lease.extend(Deadline { at: at.after(length_ms), length_ms });
            }
        });
        self.index(slot);
        Ok(())
    }

    fn apply_marked(&mut self, id: TaskId) -> Applied {
        let slot = self.find(id, StateKind::Leased, "a mark on a task that is not leased")?;
        self.unindex(slot);
        self.table.change(slot, |task| task.cancelled = true);
        self.index(slot);
        Ok(())
    }

    fn apply_returned(
        &mut self,
        id: TaskId,
        to: Landing,
        cause: Cause,
        reason: Option<&[u8]>,
        at: LogTime,
    ) -> Applied {
        let slot = self.find(id, StateKind::Leased, "a return of a task that is not leased")?;
        let state = self.land(to)?;
        self.change(slot, |task| {
            task.cancelled = false;
            end_delivery(task, cause, at);
            if let Some(reason) = reason {
                task.extras_mut().reason = Some(reason.into());
            }
            task.late_ack = matches!(cause, Cause::Lapsed | Cause::Lost);
            task.state = state;
        });
        Ok(())
    }

    /// Ends all leases of this holder as of now.
    fn apply_ended(&mut self, holder: Holder, cause: Cause, at: LogTime) {
        let left = self.held_by(holder) as usize;
        if left > 0 {
            // Tasks that return to the front later go before this group.
            self.front_group += 1;
            let ended = EndedHolder { since: at, cause, group: self.front_group, left, is_purged: false };
            self.bulk.ended.insert((holder, self.seq), ended);
        }
    }

    const fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// The state of a task with this destination, with a new order key if it is ready.
    fn land(&mut self, to: Landing) -> Result<TaskState, Inconsistent> {
        let major = match to {
            Landing::Delayed(due) => return Ok(TaskState::Delayed(Due::Log(due))),
            Landing::Front { group } => {
                if group > COUNT_MAX {
                    return Err(Inconsistent::new("a group number that is too large", TaskId::NONE));
                }
                self.front_group = self.front_group.max(group);
                -group.cast_signed()
            }
            Landing::Back => self.last_id.raw().cast_signed(),
        };
        self.minor += 1;
        Ok(TaskState::Ready(OrderKey { major, minor: self.minor }))
    }

    fn apply_died(&mut self, id: TaskId, cause: Cause, reason: Option<&[u8]>, at: LogTime) -> Applied {
        let slot = self.record_of(id)?;
        if self.table.at(slot).state.kind() == StateKind::Dead {
            return Err(Inconsistent::new("a second death", id));
        }
        self.change(slot, |task| {
            if task.lease().is_some() {
                end_delivery(task, cause, at);
            }
            if let Some(reason) = reason {
                task.extras_mut().reason = Some(reason.into());
            }
            task.state = TaskState::Dead(at);
            (task.late_ack, task.cancelled) = (false, false);
        });
        Ok(())
    }

    fn apply_revived(&mut self, id: TaskId) -> Applied {
        let slot = self.find(id, StateKind::Dead, "a revival of a task that is not dead")?;
        let is_reviving = self.bulk.revives(&self.table.at(slot).state);
        let state = match &mut self.bulk.revival {
            Some(revival) if is_reviving => {
                revival.minor += 1;
                let Revival { major, minor, .. } = *revival;
                TaskState::Ready(OrderKey { major, minor })
            }
            _ => self.land(Landing::Back)?,
        };
        self.change(slot, |task| {
            task.state = state;
            task.restore_tries();
            // The time to live counts from the push, which is long ago, so a revived task has none.
            task.live_on();
        });
        Ok(())
    }

    /// Revives all tasks that are dead now, and places them behind all that are ready now.
    fn apply_all_revived(&mut self, at: LogTime) -> Applied {
        if self.bulk.revival.is_some() {
            return Err(Inconsistent::new("a second revival before the first is done", TaskId::NONE));
        }
        let since = self.last_death().map_or(at, |last| last.max(at));
        let list = mem::take(&mut self.dead);
        self.deaths = Ordered::default();
        let (major, minor) = (self.last_id.raw().cast_signed(), self.minor);
        self.minor += list.len() as u64;
        self.bulk.revival = Some(Revival { since, list, major, minor });
        Ok(())
    }

    fn apply_due(&mut self, upto: Due, last_due: u64, last_id: TaskId) -> Applied {
        let mut flood = self.bulk.due.take().filter(|flood| flood.upto == upto).unwrap_or_else(|| {
            // Keys are reserved for every task of the flood, so that tasks which go to the back in the meantime come
            // later.
            let (major, minor) = (self.last_id.raw().cast_signed(), self.minor);
            self.minor += (self.delayed.len() + self.delayed_wall.len()) as u64;
            Flood { upto, major, minor, end: self.minor }
        });
        while let Some((_, id)) = self.first_due(upto, last_due).filter(|&due| due <= (last_due, last_id)) {
            if let Some(slot) = self.table.find(id) {
                let order = self.next_order(&mut flood, self.table.at(slot).priority);
                self.change(slot, |task| task.state = TaskState::Ready(order));
            } else {
                let mut task = self.take(id)?;
                task.state = TaskState::Ready(self.next_order(&mut flood, task.priority));
                let slot = self.table.insert(task);
                self.attach(slot);
            }
        }
        if self.first_due(upto, upto.raw()).is_some() {
            self.bulk.due = Some(flood);
        } else if self.minor == flood.end {
            self.minor = flood.minor;
        }
        Ok(())
    }

    /// The next order key of a flood. Once all reserved keys are used, a key behind the flood: more tasks may have
    /// joined it if the wall clock went back.
    fn next_order(&mut self, flood: &mut Flood, priority: i8) -> OrderKey {
        while flood.minor < flood.end {
            flood.minor += 1;
            let order = OrderKey { major: flood.major, minor: flood.minor };
            if !self.ready.is_taken(Rank::of(priority, order)) {
                return order;
            }
        }
        self.minor += 1;
        OrderKey { major: self.last_id.raw().cast_signed(), minor: self.minor }
    }

    /// The first delayed task of this clock, if it is due by `ms`.
    pub(super) fn first_due(&self, clock: Due, ms: u64) -> Option<(u64, TaskId)> {
        let first = match clock {
            Due::Log(_) => self.delayed.first().map(|&(LogTime(due), id)| (due, id)),
            Due::Wall(_) => self.delayed_wall.first().map(|&(WallTime(due), id)| (due, id)),
        };
        first.filter(|&(due, _)| due <= ms)
    }

    /// Applies a start: timed leases are extended to a minimum, and the leases of connections end.
    fn apply_started<R: Recorder<Body = B>>(
        &mut self,
        incarnation: u64,
        time: LogTime,
        rec: &mut R,
    ) -> Applied {
        self.enter_incarnation(incarnation);
        self.bulk.lapse_group = None;
        let short: Vec<TaskId> = self.deadlines.iter().map(|&(.., id)| id).collect();
        for id in short {
            let slot = self.find(id, StateKind::Leased, "a deadline without a lease")?;
            self.unindex(slot);
            self.table.change(slot, |task| {
                if let TaskState::Leased(lease) = &mut task.state
                    && let Some(deadline) = lease.deadline_mut()
                {
                    let least = time.after(deadline.length_ms.min(limits::LEASE_AFTER_START_MS));
                    deadline.at = deadline.at.max(least);
                }
            });
            self.index(slot);
        }
        let conns = self.held.iter().filter(|(holder, _)| matches!(holder, Holder::Conn(_)));
        let conns =
            conns.flat_map(|(&holder, held)| held.range((self.bulk.ended_upto(holder) + 1, TaskId::NONE)..));
        let mut ended: Vec<(u64, TaskId)> = conns.copied().collect();
        ended.sort_unstable();
        let group = self.front_group + 1;
        self.changed |= !ended.is_empty() || !self.deadlines.is_empty();
        for (_, id) in ended {
            if self.table.get(id).is_some_and(|task| task.cancelled) {
                self.apply_removed(id, rec)?;
            } else {
                self.apply_returned(id, Landing::Front { group }, Cause::Free, None, time)?;
            }
        }
        Ok(())
    }
}

/// Counts the try of a delivery that ends, and records the delivery in the history of the task.
fn end_delivery<B>(task: &mut Task<B>, cause: Cause, end: LogTime) {
    let Some(start) = task.lease().map(Lease::start) else { return };
    task.count_try(cause);
    task.remember(Past { delivery: task.deliveries, incarnation: task.incarnation, start, end, cause });
}

fn terms_from(terms: &LeaseTerms, at: LogTime) -> Terms {
    let deadline = terms.length_ms.map(|length_ms| Deadline { at: at.after(length_ms), length_ms });
    Terms { deadline, holder: terms.holder, lapse: terms.lapse }
}

fn extras_of(fields: &Fields<'_>) -> Extras {
    Extras {
        name: fields.name.map(NameRef::to_owned),
        tries_max: fields.tries_max,
        backoff_ms: fields.backoff_ms,
        expires: fields.expires,
        trace: fields.trace.map(Into::into),
        ..Extras::default()
    }
}
