//! Encoded entries: a deque of chunks, each a delta-encoded run of some thousand entries with its overlay.
//!
//! The first entry is found at once, any other by its id: by a search over chunks, then over the groups of a run.
//! Chunks with few remaining entries are encoded again, so that a few old tasks do not keep the memory of many.

use alloc::collections::VecDeque;
use alloc::collections::vec_deque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::chunk::{Chunk, RunOverlay};
use super::run::{Cursor, ENTRIES_MAX, Entry, GROUP, Run};
use crate::codec::Reader;
use crate::id::TaskId;
use crate::meter;
use crate::queue::packed::ReadAheadSpan;
use crate::queue::shared::Shared;
use crate::task::{Body, Due};
use crate::time::LogTime;

/// A chunk with fewer entries is not encoded again, unless they take much memory.
const THIN_MIN: usize = 64;

/// The number of entries at the front that are decoded at a time.
const DECODED: usize = 16;

/// The capacity of the decoded front that is kept from one chunk to the next.
const KEPT_ENTRIES: usize = 128;

/// Entries as runs.
#[derive(Clone, Debug)]
pub(super) struct Runs<B> {
    /// The chunks. Each has live entries.
    chunks: VecDeque<Chunk<B>>,
    /// The first entries, at least one, decoded, with their indexes in the first chunk. So reading and then removing
    /// them decodes them only once.
    front: VecDeque<(u16, Entry<B>)>,
    /// The cursor after the last entry of `front`.
    head: Cursor<B>,
    len: usize,
    /// The memory of all chunks except the last, which changes too often to be counted each time.
    memory: usize,
}

impl<B> Default for Runs<B> {
    fn default() -> Self {
        let (chunks, front) = (VecDeque::new(), VecDeque::new());
        Self { chunks, front, head: Cursor::at_group(0), len: 0, memory: 0 }
    }
}

impl<B: Body> Runs<B> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The approximate memory in bytes.
    pub(super) fn memory(&self) -> usize {
        let last = self.chunks.back().map_or(0, |last| last.memory() - last.accounted.min(last.memory()));
        self.memory + last + self.front.capacity() * size_of::<(u16, Entry<B>)>()
    }

    /// The highest id of any run.
    pub(super) fn last_id(&self) -> TaskId {
        self.chunks.back().map_or(TaskId::NONE, |chunk| chunk.last)
    }

    /// Adds an entry with an id above all others.
    pub(super) fn push(&mut self, entry: Entry<B>) {
        debug_assert!(self.last_id() < entry.id, "ids grow");
        let first = (self.len == 0).then(|| entry.clone());
        self.len += 1;
        match self.chunks.back_mut() {
            Some(last) if last.run().has_room() => last.push(entry),
            _ => self.push_behind(entry),
        }
        if let Some(first) = first {
            self.head = self.chunks[0].run().end();
            self.front.push_back((self.head.index() - 1, first));
        }
    }

    /// Seals the last chunk and begins another.
    fn push_behind(&mut self, entry: Entry<B>) {
        if let Some(at) = self.chunks.len().checked_sub(1) {
            self.seal(at);
        }
        let mut chunk = Chunk::new();
        chunk.push(entry);
        self.chunks.push_back(chunk);
    }

    fn seal(&mut self, at: usize) {
        let chunk = &mut self.chunks[at];
        // A run that was read from disk is sealed already and keeps its stamp.
        if chunk.run().is_open() {
            chunk.run.change().seal();
        }
        self.account(at);
    }

    fn account(&mut self, at: usize) {
        let chunk = &mut self.chunks[at];
        let memory = chunk.memory();
        self.memory = self.memory - chunk.accounted + memory;
        chunk.accounted = memory;
    }

    /// The chunk that would contain this id.
    fn chunk_of(&self, id: TaskId) -> Option<usize> {
        let at = match self.chunks.front() {
            Some(first) if id <= first.last => 0,
            _ => self.chunks.partition_point(|chunk| chunk.last < id),
        };
        (at < self.chunks.len()).then_some(at)
    }

    pub(super) fn first(&self) -> Option<Entry<B>> {
        match self.front.front() {
            Some((_, first)) => Some(first.clone()),
            None => self.iter().next(),
        }
    }

    /// The first entries that are decoded already.
    pub(super) fn front(&self) -> impl ExactSizeIterator<Item = &Entry<B>> {
        self.front.iter().map(|(_, entry)| entry)
    }

    pub(super) fn find(&self, id: TaskId) -> Option<Entry<B>> {
        if self.has_passed(id) {
            return None;
        }
        let chunk = &self.chunks[self.chunk_of(id)?];
        chunk.entry(chunk.find(id)?)
    }

    /// Whether an id is below those of all entries. Most ids that are looked up have been removed already.
    fn has_passed(&self, id: TaskId) -> bool {
        self.front.front().is_some_and(|(_, first)| id < first.id)
    }

    pub(super) fn contains(&self, id: TaskId) -> bool {
        !self.has_passed(id) && self.chunk_of(id).is_some_and(|at| self.chunks[at].find(id).is_some())
    }

    /// Removes an entry. The first one is found at once.
    pub(super) fn take(&mut self, id: TaskId) -> Option<Entry<B>> {
        if let Some(at) = self.front_at(id) {
            let (index, entry) = if at == 0 { self.front.pop_front()? } else { self.front.remove(at)? };
            self.chunks[0].forget(index);
            self.len -= 1;
            if !self.thin(0) && self.front.is_empty() {
                self.decode_front(DECODED);
            }
            return Some(entry);
        }
        if self.has_passed(id) {
            return None;
        }
        let at = self.chunk_of(id)?;
        let coded = self.chunks[at].find(id)?;
        let index = coded.index;
        let entry = self.chunks[at].take(coded)?;
        self.len -= 1;
        if self.thin(at) {
            return Some(entry);
        }
        if at + 1 < self.chunks.len() {
            self.account(at);
        }
        if at == 0 && index < self.head.index() {
            // Only in a damaged run, whose ids are out of order, can it be at the front without being found there.
            self.front.retain(|(other, _)| *other != index);
            self.decode_front(1);
        }
        Some(entry)
    }

    /// The index in the decoded front of the entry with this id.
    fn front_at(&self, id: TaskId) -> Option<usize> {
        let (first, last) = (&self.front.front()?.1, &self.front.back()?.1);
        if first.id == id {
            return Some(0);
        }
        let is_within = first.id < id && id <= last.id;
        is_within.then(|| self.front.binary_search_by_key(&id, |(_, entry)| entry.id).ok()).flatten()
    }

    /// Decodes entries at the front until there are `count`, or none is left in the first chunk. If no more of a
    /// damaged chunk can be decoded, it is dropped, since its live entries could never be delivered.
    pub(super) fn decode_front(&mut self, count: usize) {
        let Some(chunk) = self.chunks.front() else { return };
        chunk.append_to(&mut self.front, count, &mut self.head);
        if self.front.is_empty() && count > 0 {
            self.rewrite(0);
        }
    }

    /// Gives an entry a new body. Returns the old one.
    pub(super) fn replace(&mut self, id: TaskId, body: B) -> Option<B> {
        if let Some(at) = self.front_at(id) {
            self.front[at].1.body = body.clone();
        }
        let at = self.chunk_of(id)?;
        let chunk = &mut self.chunks[at];
        let before = chunk.replace(chunk.find(id)?, body)?;
        if chunk.is_much_edited() {
            self.rewrite(at);
        } else if at + 1 < self.chunks.len() {
            self.account(at);
        }
        Some(before)
    }

    /// Drops or encodes again a chunk from which an entry was removed, if few are left. Returns whether it did.
    fn thin(&mut self, at: usize) -> bool {
        let chunk = &self.chunks[at];
        let live = chunk.live();
        // Entries removed from the front are normal for a queue, and their memory is freed with the chunk.
        let skipped = if at == 0 { chunk.skipped() } else { 0 };
        let span = usize::from(chunk.run().count() - skipped);
        if live == 0 {
            self.drop_chunk(at);
        } else if (span >= THIN_MIN || chunk.run().is_large()) && live * 4 < span {
            self.rewrite(at);
        } else {
            return false;
        }
        true
    }

    fn drop_chunk(&mut self, at: usize) {
        if let Some(chunk) = self.chunks.remove(at) {
            self.memory -= chunk.accounted;
        }
        if self.chunks.is_empty() && self.chunks.capacity() > THIN_MIN {
            self.chunks = VecDeque::new();
        }
        if at == 0 {
            self.rewind();
        }
    }

    /// Encodes the live entries of a chunk again, together with those of a neighbour if both have few.
    fn rewrite(&mut self, at: usize) {
        let live = |at: usize| self.chunks.get(at).map_or(usize::MAX / 2, Chunk::live);
        let few = usize::from(ENTRIES_MAX) / 2;
        let mate = [at + 1, at.wrapping_sub(1)].into_iter().find(|&mate| live(at) + live(mate) <= few);
        let (from, upto) = mate.map_or((at, at), |mate| (at.min(mate), at.max(mate)));
        let mut fresh = Vec::from([Chunk::new()]);
        for _ in from..=upto {
            let chunk = self.chunks.remove(from).expect("both chunks are there");
            self.memory -= chunk.accounted;
            // Damaged entries are lost with the old chunk.
            self.len -= chunk.live();
            for entry in chunk.into_entries() {
                match fresh.last_mut() {
                    // Ids are out of order only in a damaged run.
                    Some(last) if entry.id <= last.last => {}
                    Some(last) if last.run().has_room() => last.push(entry),
                    _ => {
                        let mut chunk = Chunk::new();
                        chunk.push(entry);
                        fresh.push(chunk);
                    }
                }
            }
        }
        let mut at = from;
        for chunk in fresh.into_iter().filter(|chunk| chunk.live() > 0) {
            self.len += chunk.live();
            self.chunks.insert(at, chunk);
            at += 1;
        }
        for sealed in from..at.min(self.chunks.len().saturating_sub(1)) {
            self.seal(sealed);
        }
        if from == 0 {
            self.rewind();
        }
    }

    /// Decodes the front again, after another chunk became the first.
    fn rewind(&mut self) {
        self.front.clear();
        self.front.shrink_to(if self.len == 0 { 0 } else { KEPT_ENTRIES });
        let group = self.chunks.front().map_or(0, |first| first.skipped() / GROUP);
        self.head = Cursor::at_group(group);
        self.decode_front(1);
    }

    /// The number of entries with ids below this number: the sum of whole chunks, and one group that is decoded.
    pub(super) fn count_below(&self, raw: u64) -> usize {
        let at = self.chunks.partition_point(|chunk| chunk.last.raw() < raw);
        let whole: usize = self.chunks.range(..at).inspect(|_| meter::step()).map(Chunk::live).sum();
        whole + self.chunks.get(at).map_or(0, |chunk| chunk.count_below(raw))
    }

    pub(super) fn iter(&self) -> Iter<'_, B> {
        let (rest, cursor) = (self.chunks.range(..), Cursor::at_group(0));
        Iter { front: self.front.iter(), rest, chunk: None, cursor, head: Some(&self.head) }
    }

    /// All entries from position `start` on. Chunks before it are skipped as a whole.
    pub(super) fn iter_from(&self, start: usize) -> impl Iterator<Item = Entry<B>> {
        let (at, start) = self.locate(start);
        let chunk = self.chunks.get(at);
        let (cursor, left) = chunk.map_or((Cursor::at_group(0), 0), |chunk| chunk.seek(start));
        let rest = self.chunks.range((at + 1).min(self.chunks.len())..);
        Iter { front: vec_deque::Iter::default(), rest, chunk, cursor, head: None }.skip(left)
    }

    /// All entries from position `start` on, as spans.
    pub(super) fn read_ahead_spans(&self, start: usize) -> impl Iterator<Item = ReadAheadSpan<B>> {
        let (at, start) = self.locate(start);
        let chunks = self.chunks.range(at..).enumerate();
        chunks.flat_map(move |(n, chunk)| chunk.read_ahead_spans(if n == 0 { start } else { 0 }))
    }

    /// The chunk of the entry at this position, and the position within that chunk.
    fn locate(&self, mut start: usize) -> (usize, usize) {
        let mut at = 0;
        while at < self.chunks.len() && self.chunks[at].live() <= start {
            meter::step();
            start -= self.chunks[at].live();
            at += 1;
        }
        (at, start)
    }

    /// The live runs and their overlays, for an image.
    pub(super) fn image(
        &mut self,
        last_stamp: &mut u64,
        mut add: impl FnMut(&RunOverlay<B>, u64, Arc<Run<B>>),
    ) {
        for chunk in &mut self.chunks {
            let (stamp, run) = chunk.run.stamped(last_stamp);
            add(&chunk.overlay, stamp, run);
        }
    }

    /// Adds a run from an image, after all others. Its entries are decoded when they are needed.
    pub(super) fn restore(&mut self, run: Run<B>, stamp: u64, overlay: &mut Reader<'_>) -> Option<()> {
        if run.first() <= self.last_id() {
            return None;
        }
        let overlay = RunOverlay::read(overlay, run.count())?;
        self.chunks.push_back(Chunk::of(Shared::Imaged(Arc::new(run), stamp), overlay));
        let at = self.chunks.len() - 1;
        self.len += self.chunks[at].live();
        self.account(at);
        if at == 0 {
            self.rewind();
        }
        Some(())
    }

    /// The description of a violated invariant, if there is one.
    pub(super) fn broken(&self) -> Option<&'static str> {
        let (mut last, mut seen) = (TaskId::NONE, 0);
        for entry in self.iter() {
            if entry.id <= last {
                return Some("entries out of order");
            }
            (last, seen) = (entry.id, seen + 1);
        }
        let live = self.chunks.iter().map(Chunk::live).sum();
        let accounted = self.chunks.iter().map(|chunk| chunk.accounted).sum();
        let first = self.chunks.front().map(Chunk::skipped);
        let holds = [
            (seen == self.len, "an entry that cannot be read"),
            (self.len == live, "the number of entries"),
            (self.memory == accounted, "the account of memory"),
            (self.front.front().map(|(index, _)| *index) == first, "the first entry"),
            (self.front.back().is_none_or(|(last, _)| self.head.index() > *last), "the head"),
            (
                self.iter_from(0).map(|entry| facts(&entry)).eq(self.iter().map(|entry| facts(&entry))),
                "the front",
            ),
            (self.chunks.iter().all(|chunk| chunk.live() > 0), "an empty chunk"),
        ];
        holds.into_iter().find(|(holds, _)| !holds).map(|(_, what)| what)
    }
}

/// The fields of an entry, for comparison.
fn facts<B: Body>(entry: &Entry<B>) -> (TaskId, LogTime, Option<Due>, usize) {
    (entry.id, entry.pushed, entry.due, entry.body.len())
}

/// An iteration over live entries.
pub(super) struct Iter<'p, B> {
    front: vec_deque::Iter<'p, (u16, Entry<B>)>,
    rest: vec_deque::Iter<'p, Chunk<B>>,
    chunk: Option<&'p Chunk<B>>,
    cursor: Cursor<B>,
    /// The position at which the first chunk continues after the decoded front.
    head: Option<&'p Cursor<B>>,
}

impl<B: Body> Iterator for Iter<'_, B> {
    type Item = Entry<B>;

    fn next(&mut self) -> Option<Entry<B>> {
        if let Some((_, entry)) = self.front.next() {
            return Some(entry.clone());
        }
        loop {
            if let Some(entry) = self.chunk.and_then(|chunk| chunk.next(&mut self.cursor)) {
                return Some(entry);
            }
            let chunk = self.rest.next()?;
            self.chunk = Some(chunk);
            self.cursor = self.head.take().map_or_else(|| chunk.seek(0).0, Clone::clone);
        }
    }
}
