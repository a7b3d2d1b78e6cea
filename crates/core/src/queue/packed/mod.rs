//! Tasks as they were pushed, in order of their ids, a few bytes each.
//!
//! The newest few are kept as they are: a short queue is just that. Once they are many they are coded into [`runs`],
//! where thousands cost one allocation, which an image of the queue shares. How many are too many depends on whether
//! they are there to stay.

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

/// How many entries are kept as they are in a queue that is not taken from.
const FRESH_MIN: usize = 64;

/// How many entries are kept as they are at most. A busy queue that is never longer pays for no coding.
const FRESH_MAX: usize = 8192;

/// Room that an empty queue keeps.
const KEPT_ENTRIES: usize = 16;

/// What stands at a place in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadAheadSpan<B> {
    /// One task.
    Task(B),
    /// So many, told by the bodies of the first and the last that were pushed among them: as a rule, those of the
    /// others were made between these two.
    Run {
        /// The first body.
        first: B,
        /// The last one.
        last: B,
        /// How many tasks.
        tasks: usize,
    },
}

/// Tasks that nothing has happened to since they were pushed.
#[derive(Clone, Debug)]
pub(super) struct Packed<B> {
    runs: Runs<B>,
    /// The newest; their ids are above those of all runs.
    fresh: VecDeque<Entry<B>>,
    /// How many of those there may be.
    fresh_max: usize,
    /// How many entries have come and how many have been taken since a while before room was last made.
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

    /// How many are coded into runs.
    pub(super) fn coded(&self) -> usize {
        self.runs.len()
    }

    /// About how many bytes it takes.
    pub(super) fn memory(&self) -> usize {
        self.runs.memory() + self.fresh.capacity() * size_of::<Entry<B>>()
    }

    /// An id that none is above.
    pub(super) fn last_id(&self) -> TaskId {
        self.fresh.back().map_or_else(|| self.runs.last_id(), |last| last.id)
    }

    /// Whether this id would keep the order; what comes out of order has its record elsewhere.
    pub(super) fn takes(&self, id: TaskId) -> bool {
        self.last_id() < id
    }

    /// Adds an entry whose id it takes.
    pub(super) fn push(&mut self, entry: Entry<B>) {
        debug_assert!(self.takes(entry.id), "ids grow");
        self.pushed += 1;
        if self.fresh.len() >= self.fresh_max {
            self.make_room();
        }
        // Behind so many that are coded it would be coded in any case before its turn comes.
        if self.fresh.is_empty() && self.runs.len() >= FRESH_MAX {
            self.runs.push(entry);
        } else {
            self.fresh.push_back(entry);
        }
    }

    /// Codes what is kept as it is, unless it looks as if it were soon taken: then there is room for more.
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

    /// Codes what is kept as it is.
    fn pack(&mut self) {
        self.fresh.drain(..).for_each(|entry| self.runs.push(entry));
    }

    /// Where the entry with this id is among the fresh; `Err` if it can only be in a run.
    fn fresh_at(&self, id: TaskId) -> Result<Option<usize>, ()> {
        match self.fresh.front() {
            Some(first) if first.id == id => Ok(Some(0)),
            Some(first) if first.id < id => Ok(self.fresh.binary_search_by_key(&id, |entry| entry.id).ok()),
            _ => Err(()),
        }
    }

    /// Has the first so many at hand, so that looking at them and then taking them decodes them once.
    pub(super) fn decode_front(&mut self, count: usize) {
        self.runs.decode_front(count);
    }

    /// The first of all.
    pub(super) fn first(&self) -> Option<Entry<B>> {
        self.runs.first().or_else(|| self.fresh.front().cloned())
    }

    /// The first of all, so many at least if there are so many, where they are at hand.
    pub(super) fn decoded_front(&self, count: usize) -> Option<impl Iterator<Item = &Entry<B>>> {
        let front = self.runs.front();
        let is_all = front.len() == self.runs.len();
        (is_all || front.len() >= count)
            .then(|| front.chain(self.fresh.range(..if is_all { self.fresh.len() } else { 0 })))
    }

    /// The entry with this id.
    pub(super) fn find(&self, id: TaskId) -> Option<Entry<B>> {
        self.fresh_at(id).map_or_else(|()| self.runs.find(id), |at| self.fresh.get(at?).cloned())
    }

    pub(super) fn contains(&self, id: TaskId) -> bool {
        self.fresh_at(id).map_or_else(|()| self.runs.contains(id), |at| at.is_some())
    }

    /// Takes an entry out, wherever it stands; the first one at once.
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

    /// Gives an entry a new body; answers the old one.
    pub(super) fn replace(&mut self, id: TaskId, body: B) -> Option<B> {
        match self.fresh_at(id) {
            Err(()) => self.runs.replace(id, body),
            Ok(at) => Some(mem::replace(&mut self.fresh.get_mut(at?)?.body, body)),
        }
    }

    /// How many have ids below this number.
    pub(super) fn count_below(&self, raw: u64) -> usize {
        self.runs.count_below(raw) + self.fresh.partition_point(|entry| entry.id.raw() < raw)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry<B>> {
        self.runs.iter().chain(self.fresh.iter().cloned())
    }

    /// All from the one at this place on. Runs before it are passed over whole.
    pub(super) fn iter_from(&self, start: usize) -> impl Iterator<Item = Entry<B>> {
        let coded = self.runs.len();
        let fresh = self.fresh.range(start.saturating_sub(coded).min(self.fresh.len())..);
        self.runs.iter_from(start.min(coded)).chain(fresh.cloned())
    }

    /// The bodies of all from the one at this place on, of many neighbours by their ends.
    pub(super) fn read_ahead_spans(&self, start: usize) -> impl Iterator<Item = ReadAheadSpan<B>> {
        let coded = self.runs.len();
        let fresh = self.fresh.range(start.saturating_sub(coded).min(self.fresh.len())..);
        self.runs
            .read_ahead_spans(start.min(coded))
            .chain(fresh.map(|entry| ReadAheadSpan::Task(entry.body.clone())))
    }

    /// All as runs, with their overlays, for an image.
    pub(super) fn image(&mut self, last_stamp: &mut u64, add: impl FnMut(&RunOverlay<B>, u64, Arc<Run<B>>)) {
        self.pack();
        self.fresh.shrink_to(FRESH_MIN);
        self.runs.image(last_stamp, add);
    }

    /// Adds a run from an image, behind all others. Its entries are decoded when they are needed.
    pub(super) fn restore(&mut self, run: Run<B>, stamp: u64, overlay: &mut Reader<'_>) -> Option<()> {
        self.runs.restore(run, stamp, overlay)
    }

    /// The live entries of a run by itself; none of one that is lost, whose overlay is skipped.
    pub(super) fn entries_of(run: Option<Run<B>>, overlay: &mut Reader<'_>) -> Option<Vec<Entry<B>>> {
        let overlay = RunOverlay::read(overlay, run.as_ref().map_or(ENTRIES_MAX, Run::count))?;
        Some(run.map_or_else(Vec::new, |run| Chunk::of(Shared::Own(run), overlay).into_entries().collect()))
    }

    /// What does not hold of it, if anything.
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
