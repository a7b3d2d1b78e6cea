//! The tasks in a worker's hands: from being taken until what came of them is confirmed.
//!
//! Handlers, the finisher and the keeper's thread all look at it, each for a moment.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::delivery::{Live, Stop};

/// Where in the table a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(usize);

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
    /// The incarnation of the worker that took it, if it took it as a worker.
    incarnation: Option<u64>,
    /// When the lease is to be extended again, and when it ends if it is not; none for one that needs no lease any more.
    lease: Option<Lease>,
    /// Whether what its handler makes of it is waited for.
    is_running: bool,
    /// When its handler has run long enough.
    run_until: Option<Instant>,
    abort: Option<AbortHandle>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    extend_at: Instant,
    until: Instant,
}

impl Lease {
    /// A third of it is over when it is extended, so that two attempts may fail.
    fn new(from: Instant, length: Duration) -> Self {
        Self { extend_at: from + length / 3, until: from + length }
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts in a task that was taken at `since`.
    pub(super) fn insert(
        &self,
        live: Arc<Live>,
        incarnation: Option<u64>,
        since: Instant,
        lease: Duration,
        run_max: Duration,
    ) -> Slot {
        let entry = Entry {
            live,
            incarnation,
            lease: Some(Lease::new(since, lease)),
            is_running: true,
            run_until: since.checked_add(run_max),
            abort: None,
        };
        let mut entries = self.lock();
        if let Some(at) = entries.free.pop() {
            entries.list[at] = Some(entry);
            return Slot(at);
        }
        entries.list.push(Some(entry));
        Slot(entries.list.len() - 1)
    }

    /// How to end the handler. If it is not waited for any more, that is now.
    pub(super) fn set_abort(&self, slot: Slot, live: &Arc<Live>, abort: AbortHandle) {
        match self.lock().of(slot, live).filter(|entry| entry.is_running) {
            Some(entry) => entry.abort = Some(abort),
            None => abort.abort(),
        }
    }

    /// Its handler has ended. Answers whether what came of it is still waited for; its lease is kept until that is confirmed.
    pub(super) fn ended(&self, slot: Slot, live: &Arc<Live>) -> bool {
        self.lock().of(slot, live).is_some_and(Entry::end)
    }

    /// What came of it is confirmed, or will never be.
    pub(super) fn remove(&self, slot: Slot, live: &Arc<Live>) {
        let mut entries = self.lock();
        if entries.of(slot, live).is_some() {
            entries.list[slot.0] = None;
            entries.free.push(slot.0);
        }
    }

    /// The tasks whose leases are to be extended now.
    pub(super) fn to_extend(&self, now: Instant) -> Vec<(Slot, Arc<Live>)> {
        self.select(|entry| entry.lease.is_some_and(|lease| lease.extend_at <= now))
    }

    /// Its lease was extended, as asked for at `since`.
    pub(super) fn extended(&self, slot: Slot, live: &Arc<Live>, since: Instant, length: Duration) {
        if let Some(entry) = self.lock().of(slot, live) {
            entry.lease = Some(Lease::new(since, length));
        }
    }

    /// Its lease could not be extended: to be tried again then.
    pub(super) fn extend_at(&self, slot: Slot, live: &Arc<Live>, at: Instant) {
        if let Some(lease) = self.lock().of(slot, live).and_then(|entry| entry.lease.as_mut()) {
            lease.extend_at = at;
        }
    }

    /// Nothing is to be done for its lease any more, since it is lost, or the task is finished already.
    pub(super) fn forget_lease(&self, slot: Slot, live: &Arc<Live>) {
        if let Some(entry) = self.lock().of(slot, live) {
            entry.lease = None;
        }
    }

    /// Tells handlers whose lease could not be extended in time to stop. It may come back, and be extended again.
    pub(super) fn fire_lapsed(&self, now: Instant) {
        for entry in self.lock().list.iter().flatten() {
            if entry.lease.is_some_and(|lease| lease.until <= now) {
                entry.live.fire(Stop::LeaseLost);
            }
        }
    }

    /// Tells all that were taken by an incarnation to stop: it is no more.
    pub(super) fn fire_incarnation(&self, incarnation: u64) {
        for entry in self.lock().list.iter_mut().flatten() {
            if entry.incarnation == Some(incarnation) && !entry.live.is_acked() {
                entry.lease = None;
                entry.live.fire(Stop::WorkerLost);
            }
        }
    }

    /// The tasks whose handlers have run long enough: from now on, what they make of them is not waited for.
    pub(super) fn take_too_long(&self, now: Instant) -> Vec<(Slot, Arc<Live>, Option<AbortHandle>)> {
        self.take_handlers(|entry| entry.run_until.is_some_and(|until| until <= now))
    }

    /// The tasks whose handlers have not ended: from now on, what they make of them is not waited for.
    pub(super) fn take_running(&self) -> Vec<(Slot, Arc<Live>, Option<AbortHandle>)> {
        self.take_handlers(|_| true)
    }

    /// When something is to be looked at again.
    pub(super) fn next(&self) -> Option<Instant> {
        let entries = self.lock();
        let times = entries.list.iter().flatten();
        times.flat_map(|entry| [entry.lease.map(|lease| lease.extend_at), entry.run_until]).flatten().min()
    }

    /// All tasks, to find some of them by what they are called.
    pub(super) fn all(&self) -> Vec<(Slot, Arc<Live>)> {
        self.select(|_| true)
    }

    fn select(&self, is_wanted: impl Fn(&Entry) -> bool) -> Vec<(Slot, Arc<Live>)> {
        let entries = self.lock();
        let list = entries.list.iter().enumerate();
        list.filter_map(|(at, entry)| {
            let entry = entry.as_ref().filter(|entry| is_wanted(entry))?;
            Some((Slot(at), Arc::clone(&entry.live)))
        })
        .collect()
    }

    fn take_handlers(
        &self,
        is_wanted: impl Fn(&Entry) -> bool,
    ) -> Vec<(Slot, Arc<Live>, Option<AbortHandle>)> {
        let mut entries = self.lock();
        let list = entries.list.iter_mut().enumerate();
        list.filter_map(|(at, entry)| {
            let entry = entry.as_mut().filter(|entry| is_wanted(entry))?;
            let abort = entry.abort.take();
            entry.end().then(|| (Slot(at), Arc::clone(&entry.live), abort))
        })
        .collect()
    }
}

impl Entries {
    /// A slot is used again and again: the task that is meant may be gone from it.
    fn of(&mut self, Slot(at): Slot, live: &Arc<Live>) -> Option<&mut Entry> {
        self.list[at].as_mut().filter(|entry| Arc::ptr_eq(&entry.live, live))
    }
}

impl Entry {
    /// Whether its handler was running until now.
    fn end(&mut self) -> bool {
        (self.run_until, self.abort) = (None, None);
        std::mem::take(&mut self.is_running)
    }
}
