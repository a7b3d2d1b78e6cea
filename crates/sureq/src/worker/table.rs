//! The tasks of a worker, from their pop until their outcome is confirmed.
//!
//! Handlers, the finisher and the renewer's thread access it, each for a moment.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::delivery::{Live, Stop};
use super::outcome::Outcome;
use super::shared::later;
use crate::id::Receipt;

/// The index of a task in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskSlot(usize);

#[derive(Debug, Default)]
pub(super) struct Table(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    list: Vec<Option<Entry>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Entry {
    live: Arc<Live>,
    /// The incarnation of the worker that popped it, if it is registered.
    incarnation: Option<u64>,
    /// Its lease; `None` if it needs none any more.
    lease: Option<Lease>,
    /// A heartbeat named it as cancelled or lost: the reply to an extension says which.
    is_named: bool,
    /// Whether its handler still exists.
    is_running: bool,
    /// When its handler reaches `run_max`, and its token fires.
    run_until: Option<Instant>,
    /// When its handler is aborted, after its token fired for `run_max`.
    end_at: Option<Instant>,
    /// The outcome of an aborted handler, unless it returns one itself.
    verdict: Option<Verdict>,
    abort: Option<AbortHandle>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    extend_at: Instant,
    until: Instant,
}

/// The decision about a task whose handler is aborted.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) outcome: Outcome,
    /// Until when its lease is extended for a handler that does not reach its next `await`.
    pub(super) keep_until: Instant,
}

impl Lease {
    /// Extended after a third of its length, so that two attempts may fail.
    fn new(from: Instant, length: Duration) -> Self {
        Self { extend_at: later(from, length / 3), until: later(from, length) }
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task whose handler is about to start. `lease` is the start and the length of its lease.
    pub(super) fn insert(
        &self,
        live: Arc<Live>,
        incarnation: Option<u64>,
        lease: Option<(Instant, Duration)>,
    ) -> TaskSlot {
        let entry = Entry {
            live,
            incarnation,
            lease: lease.map(|(since, length)| Lease::new(since, length)),
            is_named: false,
            is_running: true,
            run_until: None,
            end_at: None,
            verdict: None,
            abort: None,
        };
        let mut entries = self.lock();
        if let Some(at) = entries.free.pop() {
            entries.list[at] = Some(entry);
            return TaskSlot(at);
        }
        entries.list.push(Some(entry));
        TaskSlot(entries.list.len() - 1)
    }

    /// Starts the clock of its handler.
    pub(super) fn begin(&self, slot: TaskSlot, live: &Arc<Live>, run_max: Duration) {
        if let Some(entry) = self.lock().of(slot, live) {
            entry.run_until = Instant::now().checked_add(run_max);
        }
    }

    /// Stores how to abort the handler. If that was decided already, aborts it now.
    pub(super) fn set_abort(&self, slot: TaskSlot, live: &Arc<Live>, abort: AbortHandle) {
        match self.lock().of(slot, live).filter(|entry| entry.is_running && entry.verdict.is_none()) {
            Some(entry) => entry.abort = Some(abort),
            None => abort.abort(),
        }
    }

    /// Records the end of its handler; returns the outcome if it was aborted. Its lease is kept until its outcome is
    /// confirmed.
    pub(super) fn ended(&self, slot: TaskSlot, live: &Arc<Live>) -> Option<Outcome> {
        let mut entries = self.lock();
        let entry = entries.of(slot, live)?;
        (entry.run_until, entry.end_at, entry.abort, entry.is_running) = (None, None, None, false);
        entry.verdict.take().map(|verdict| verdict.outcome)
    }

    /// Removes a task whose outcome is confirmed, or never will be.
    pub(super) fn remove(&self, slot: TaskSlot, live: &Arc<Live>) {
        let mut entries = self.lock();
        if entries.of(slot, live).is_some() {
            entries.list[slot.0] = None;
            entries.free.push(slot.0);
        }
    }

    /// The tasks whose leases must be extended now. They are returned again at `again` unless they are updated by then.
    pub(super) fn take_to_extend(&self, now: Instant, again: Instant) -> Vec<(TaskSlot, Arc<Live>)> {
        let mut entries = self.lock();
        let list = entries.list.iter_mut().enumerate();
        list.filter_map(|(at, entry)| {
            let entry = entry.as_mut()?;
            let due = entry.lease.as_mut().filter(|lease| lease.extend_at <= now || entry.is_named);
            let is_due = due.map(|lease| lease.extend_at = again).is_some();
            (std::mem::take(&mut entry.is_named) || is_due).then(|| (TaskSlot(at), Arc::clone(&entry.live)))
        })
        .collect()
    }

    /// Marks deliveries that a heartbeat named as cancelled or lost.
    pub(super) fn name(&self, named: &[Receipt]) {
        for entry in self.lock().list.iter_mut().flatten() {
            entry.is_named |= !entry.live.is_released() && named.contains(&entry.live.task.receipt());
        }
    }

    /// Records that its lease was extended by a request sent at `since`.
    pub(super) fn extended(&self, slot: TaskSlot, live: &Arc<Live>, since: Instant, length: Duration) {
        if let Some(entry) = self.lock().of(slot, live).filter(|entry| !entry.live.is_released()) {
            entry.lease = Some(Lease::new(since, length));
        }
    }

    /// Schedules another attempt to extend its lease.
    pub(super) fn extend_at(&self, slot: TaskSlot, live: &Arc<Live>, at: Instant) {
        if let Some(lease) = self.lock().of(slot, live).and_then(|entry| entry.lease.as_mut()) {
            lease.extend_at = at;
        }
    }

    /// Stops extending its lease: it is lost, or the task is finished.
    pub(super) fn forget_lease(&self, slot: TaskSlot, live: &Arc<Live>) {
        if let Some(entry) = self.lock().of(slot, live) {
            entry.lease = None;
        }
    }

    /// Fires the tokens of handlers whose lease could not be extended in time. It may still be extended later.
    pub(super) fn fire_lapsed(&self, now: Instant) {
        for entry in self.lock().list.iter().flatten() {
            if entry.lease.is_some_and(|lease| lease.until <= now) {
                entry.live.fire(Stop::LeaseLost);
            }
        }
    }

    /// Fires the tokens of all tasks of an incarnation that is no longer registered.
    pub(super) fn fire_incarnation(&self, incarnation: u64) {
        for entry in self.lock().list.iter_mut().flatten() {
            if entry.incarnation == Some(incarnation) && !entry.live.is_acked() {
                entry.lease = None;
                entry.live.fire(Stop::WorkerLost);
            }
        }
    }

    /// Fires the tokens of handlers that reached `run_max`, and lets each continue until `end_at`. Returns them.
    pub(super) fn tell_too_long(&self, now: Instant, end_at: Instant) -> Vec<Arc<Live>> {
        let mut entries = self.lock();
        let list = entries.list.iter_mut().flatten();
        let long = list.filter(|entry| entry.run_until.is_some_and(|until| until <= now));
        long.map(|entry| {
            (entry.run_until, entry.end_at) = (None, Some(end_at));
            entry.live.fire(Stop::TooLong);
            Arc::clone(&entry.live)
        })
        .collect()
    }

    /// Fires all tokens: the worker stops.
    pub(super) fn tell_stopping(&self) {
        for entry in self.lock().list.iter().flatten() {
            entry.live.fire(Stop::Stopping);
        }
    }

    /// Aborts the handlers that reached `run_max` and used up their grace period.
    pub(super) fn end_too_long(&self, now: Instant, decide: impl Fn(Stop) -> Verdict) {
        self.end_handlers(|entry| entry.end_at.is_some_and(|at| at <= now), decide);
    }

    /// Aborts all handlers.
    pub(super) fn end_all(&self, decide: impl Fn(Stop) -> Verdict) {
        self.end_handlers(|_| true, decide);
    }

    /// Aborts handlers: they are dropped at their next `await`. Their tasks are kept until then.
    fn end_handlers(&self, is_meant: impl Fn(&Entry) -> bool, decide: impl Fn(Stop) -> Verdict) {
        let mut entries = self.lock();
        let list = entries.list.iter_mut().flatten();
        let meant = list.filter(|entry| entry.is_running && entry.verdict.is_none() && is_meant(entry));
        let ended: Vec<Option<AbortHandle>> = meant
            .map(|entry| {
                let why = if entry.end_at.is_some() { Stop::TooLong } else { Stop::Stopping };
                entry.live.fire(why);
                (entry.run_until, entry.end_at, entry.verdict) = (None, None, Some(decide(why)));
                entry.abort.take()
            })
            .collect();
        drop(entries);
        ended.into_iter().flatten().for_each(|abort| abort.abort());
    }

    /// Stops extending the leases of aborted handlers that did not reach an `await` in time.
    pub(super) fn release_aborted(&self, now: Instant) {
        for entry in self.lock().list.iter_mut().flatten() {
            if entry.verdict.as_ref().is_some_and(|verdict| verdict.keep_until <= now)
                && !entry.live.is_released()
            {
                entry.live.release();
                entry.lease = None;
                tracing::error!(
                    queue = %entry.live.task.queue_name(), id = %entry.live.task.id(),
                    "the handler still runs after its end was requested: its lease is not extended, and another worker may get the task"
                );
            }
        }
    }

    /// The time of the next extension.
    pub(super) fn next_extension(&self) -> Option<Instant> {
        let entries = self.lock();
        entries.list.iter().flatten().filter_map(|entry| Some(entry.lease?.extend_at)).min()
    }

    /// The next time at which a token fires or a handler is aborted or given up.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let entries = self.lock();
        let times = entries.list.iter().flatten().flat_map(|entry| {
            let is_notified = entry.live.fired() >= Some(Stop::LeaseLost);
            let lapse = entry.lease.filter(|_| !is_notified).map(|lease| lease.until);
            let verdict = entry.verdict.as_ref().filter(|_| !entry.live.is_released());
            [lapse, entry.run_until, entry.end_at, verdict.map(|verdict| verdict.keep_until)]
        });
        times.flatten().min()
    }
}

impl Entries {
    /// Slots are reused: this returns the entry only if it still is that of the task.
    fn of(&mut self, TaskSlot(at): TaskSlot, live: &Arc<Live>) -> Option<&mut Entry> {
        self.list[at].as_mut().filter(|entry| Arc::ptr_eq(&entry.live, live))
    }
}
