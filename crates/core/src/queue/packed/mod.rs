//! Unchanged tasks since their push, in order of their ids, in a few bytes each.
//!
//! The newest entries are kept unencoded, and a short queue has no others. When there are many, they are encoded into
//! [`runs`], in which thousands share one allocation that images share too. A queue that is popped as fast as it is
//! pushed keeps more entries unencoded than one that only grows.

mod chunk;
mod run;
mod runs;
#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use super::shared::Shared;
use crate::codec::Reader;
use crate::id::TaskId;
use crate::task::Body;
use chunk::Chunk;
use run::ENTRIES_MAX;
use runs::Runs;

pub(super) use chunk::RunOverlay;
pub(super) use run::{Entry, Run};

/// The number of entries that are kept unencoded in a queue that is not popped.
const FRESH_MIN: usize = 64;

/// The maximum number of entries that are kept unencoded. A busy queue that is never longer needs no encoding.
const FRESH_MAX: usize = 8192;

/// The capacity that an empty queue keeps.
const KEPT_ENTRIES: usize = 16;

/// One or more neighbouring ready tasks, for reading their payloads ahead of pops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadAheadSpan<B> {
    /// One task.
    Task(B),
    /// Many tasks. As a rule, the bodies of all of them were created between `first` and `last`.
    Run {
        /// The body of the task that was pushed first among them.
        first: B,
        /// The body of the task that was pushed last.
        last: B,
        tasks: usize,
    },
}

/// Tasks that have not changed since they were pushed.
#[derive(Clone, Debug)]
pub(super) struct Packed<B> {
    runs: Runs<B>,
    /// The newest entries. Their ids are above those in runs.
    fresh: VecDeque<Entry<B>>,
    /// The maximum number of entries in `fresh`.
    fresh_max: usize,
    /// Recent numbers of added and removed entries, which distinguish a busy queue from one that grows.
    pushed: usize,
    taken: usize,
}

impl<B> Default for Packed<B> {
    fn default() -> Self {
        Self { runs: Runs::default(), fresh: VecDeque::new(), fresh_max: FRESH_MIN, pushed: 0, taken: 0 }
    }
}

impl<B: Body> Packed<B> {
    pub(super) fn len(&self) -> usize {
        self.runs.len() + self.fresh.len()
    }

    /// The number of entries that are coded into runs.
    pub(super) fn coded(&self) -> usize {
        self.runs.len()
    }

    /// The approximate memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.runs.memory() + self.fresh.capacity() * size_of::<Entry<B>>()
    }

    /// A lower bound of the ids that may still be added: no entry has a higher id.
    pub(super) fn last_id(&self) -> TaskId {
        self.fresh.back().map_or_else(|| self.runs.last_id(), |last| last.id)
    }

    /// Whether an entry with this id keeps the order. Tasks with other ids need a record.
    pub(super) fn takes(&self, id: TaskId) -> bool {
        self.last_id() < id
    }

    /// Adds an entry, whose id must keep the order.
    pub(super) fn push(&mut self, entry: Entry<B>) {
        debug_assert!(self.takes(entry.id), "ids grow");
        self.pushed += 1;
        if self.fresh.len() >= self.fresh_max {
            self.make_room();
        }
        // With this many encoded entries before it, the entry would be encoded before it is popped in any case.
        if self.fresh.is_empty() && self.runs.len() >= FRESH_MAX {
            self.runs.push(entry);
        } else {
            self.fresh.push_back(entry);
        }
    }

    /// Encodes the fresh entries, or allows for more of them if the queue is busy.
    fn make_room(&mut self) {
        let is_busy = self.taken * 2 >= self.pushed;
        while self.pushed >= FRESH_MAX {
            (self.pushed, self.taken) = (self.pushed / 2, self.taken / 2);
        }
        if is_busy && self.len() < FRESH_MAX {
            self.fresh_max = (2 * self.fresh_max).min(FRESH_MAX);
        } else {
            self.fresh_max = FRESH_MIN;
            self.pack();
            self.fresh.shrink_to(FRESH_MIN);
        }
    }

    /// Encodes the fresh entries.
    fn pack(&mut self) {
        self.fresh.drain(..).for_each(|entry| self.runs.push(entry));
    }

    /// The index in `fresh` of the entry with this id; `Err` if it can only be in a run.
    fn fresh_at(&self, id: TaskId) -> Result<Option<usize>, ()> {
        match self.fresh.front() {
            Some(first) if first.id == id => Ok(Some(0)),
            Some(first) if first.id < id => Ok(self.fresh.binary_search_by_key(&id, |entry| entry.id).ok()),
            _ => Err(()),
        }
    }

    /// Decodes the first `count` entries, so that reading and then removing them decodes them once.
    pub(super) fn decode_front(&mut self, count: usize) {
        self.runs.decode_front(count);
    }

    pub(super) fn first(&self) -> Option<Entry<B>> {
        self.runs.first().or_else(|| self.fresh.front().cloned())
    }

    /// At least `count` head entries, if that many exist and they are decoded already.
    pub(super) fn decoded_front(&self, count: usize) -> Option<impl Iterator<Item = &Entry<B>>> {
        let front = self.runs.front();
        let is_all = front.len() == self.runs.len();
        (is_all || front.len() >= count)
            .then(|| front.chain(self.fresh.range(..if is_all { self.fresh.len() } else { 0 })))
    }

    pub(super) fn find(&self, id: TaskId) -> Option<Entry<B>> {
        self.fresh_at(id).map_or_else(|()| self.runs.find(id), |at| self.fresh.get(at?).cloned())
    }

    pub(super) fn contains(&self, id: TaskId) -> bool {
        self.fresh_at(id).map_or_else(|()| self.runs.contains(id), |at| at.is_some())
    }

    /// Removes an entry. The first one is found at once.
    pub(super) fn take(&mut self, id: TaskId) -> Option<Entry<B>> {
        let entry = match self.fresh_at(id) {
            Ok(at) => self.fresh.remove(at?)?,
            Err(()) => self.runs.take(id)?,
        };
        self.taken += 1;
        if self.fresh.is_empty() && self.fresh.capacity() > KEPT_ENTRIES && self.runs.len() == 0 {
            self.fresh = VecDeque::new();
        }
        Some(entry)
    }

    /// Gives an entry a new body. Returns the old one.
    pub(super) fn replace(&mut self, id: TaskId, body: B) -> Option<B> {
        match self.fresh_at(id) {
            Err(()) => self.runs.replace(id, body),
            Ok(at) => Some(mem::replace(&mut self.fresh.get_mut(at?)?.body, body)),
        }
    }

    /// The number of entries with ids below this number.
    pub(super) fn count_below(&self, raw: u64) -> usize {
        self.runs.count_below(raw) + self.fresh.partition_point(|entry| entry.id.raw() < raw)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry<B>> {
        self.runs.iter().chain(self.fresh.iter().cloned())
    }

    /// All entries from position `start` on. Runs before it are skipped as a whole.
    pub(super) fn iter_from(&self, start: usize) -> impl Iterator<Item = Entry<B>> {
        let coded = self.runs.len();
        let fresh = self.fresh.range(start.saturating_sub(coded).min(self.fresh.len())..);
        self.runs.iter_from(start.min(coded)).chain(fresh.cloned())
    }

    /// All entries from position `start` on, as spans.
    pub(super) fn read_ahead_spans(&self, start: usize) -> impl Iterator<Item = ReadAheadSpan<B>> {
        let coded = self.runs.len();
        let fresh = self.fresh.range(start.saturating_sub(coded).min(self.fresh.len())..);
        self.runs
            .read_ahead_spans(start.min(coded))
            .chain(fresh.map(|entry| ReadAheadSpan::Task(entry.body.clone())))
    }

    /// All entries as runs with their overlays, for an image.
    pub(super) fn image(&mut self, last_stamp: &mut u64, add: impl FnMut(&RunOverlay<B>, u64, Arc<Run<B>>)) {
        self.pack();
        self.fresh.shrink_to(FRESH_MIN);
        self.runs.image(last_stamp, add);
    }

    /// Adds a run from an image, after all others. Its entries are decoded when they are needed.
    pub(super) fn restore(&mut self, run: Run<B>, stamp: u64, overlay: &mut Reader<'_>) -> Option<()> {
        self.runs.restore(run, stamp, overlay)
    }

    /// The live entries of a single run. If the run is lost, its overlay is skipped.
    pub(super) fn entries_of(run: Option<Run<B>>, overlay: &mut Reader<'_>) -> Option<Vec<Entry<B>>> {
        let overlay = RunOverlay::read(overlay, run.as_ref().map_or(ENTRIES_MAX, Run::count))?;
        Some(run.map_or_else(Vec::new, |run| Chunk::of(Shared::Own(run), overlay).into_entries().collect()))
    }

    /// The description of a violated invariant, if there is one.
    pub(super) fn broken(&self) -> Option<&'static str> {
        let fresh = self.fresh.iter().map(|entry| entry.id);
        if !fresh.clone().is_sorted()
            || fresh.clone().next().is_some_and(|first| first <= self.runs.last_id())
        {
            return Some("entries out of order");
        }
        self.runs.broken()
    }
}
