//! A run with the changes since it was encoded: the entries that were removed, and those that have other bodies.
//!
//! The changes are kept beside the run, so that removing a task from the middle, or moving a body, does not change
//! the run: an image that shares it needs no copy, and its bytes on disk stay valid.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::run::{Coded, Cursor, Entry, GROUP, GROUPS_MAX, Run};
use crate::codec::{Reader, write_number};
use crate::id::TaskId;
use crate::meter;
use crate::queue::packed::ReadAheadSpan;
use crate::queue::shared::Shared;
use crate::task::Body;

/// The number of bodies that may move before the run is encoded again: this many, or this fraction of its entries.
const EDITS_MIN: u16 = 64;
const EDITS_PART: u16 = 8;

/// The maximum number of groups in one span.
const SPAN_GROUPS_MAX: u16 = 8;

/// The changes to the entries of a run since it was encoded.
#[derive(Clone, Debug)]
pub(in crate::queue) struct RunOverlay<B> {
    /// The number of entries removed from the front.
    skipped: u16,
    /// The total number of removed entries.
    gone: u16,
    /// A bit for each removed entry, in one word per group, up to the last group from whose middle an entry was
    /// removed. Bits of skipped entries are meaningless.
    tombstones: Vec<u64>,
    /// New handles of bodies that moved, by index.
    edits: Vec<(u16, B)>,
}

impl<B> Default for RunOverlay<B> {
    fn default() -> Self {
        Self { skipped: 0, gone: 0, tombstones: Vec::new(), edits: Vec::new() }
    }
}

/// A run with its overlay.
#[derive(Clone, Debug)]
pub(super) struct Chunk<B> {
    pub(super) run: Shared<Run<B>>,
    pub(super) overlay: RunOverlay<B>,
    /// Bodies that cannot be packed, by index.
    aside: VecDeque<(u16, B)>,
    /// The last id of the run, stored here so that a search need not follow the pointer.
    pub(super) last: TaskId,
    /// Its share of the memory count.
    pub(super) accounted: usize,
}

impl<B: Body> Chunk<B> {
    pub(super) fn new() -> Self {
        Self::of(Shared::Own(Run::open()), RunOverlay::default())
    }

    pub(super) fn of(run: Shared<Run<B>>, overlay: RunOverlay<B>) -> Self {
        let last = run.get().last();
        Self { run, overlay, aside: VecDeque::new(), last, accounted: 0 }
    }

    pub(super) fn run(&self) -> &Run<B> {
        self.run.get()
    }

    pub(super) fn live(&self) -> usize {
        usize::from(self.run().count() - self.overlay.gone)
    }

    pub(super) const fn skipped(&self) -> u16 {
        self.overlay.skipped
    }

    /// The approximate memory in bytes.
    pub(super) fn memory(&self) -> usize {
        let handle = size_of::<(u16, B)>();
        let beside = self.aside.capacity() * handle + self.overlay.edits.capacity() * handle;
        let tombstones = self.overlay.tombstones.capacity() * size_of::<u64>();
        size_of::<Self>() + self.run().bytes() + beside + tombstones
    }

    pub(super) fn push(&mut self, entry: Entry<B>) {
        let run = self.run.change();
        let index = run.count();
        if !run.push(entry.id, entry.pushed, entry.due, &entry.body) {
            self.aside.push_back((index, entry.body));
        }
        self.last = entry.id;
    }

    pub(super) fn is_live(&self, index: u16) -> bool {
        index >= self.overlay.skipped && !has(&self.overlay.tombstones, index)
    }

    pub(super) fn find(&self, id: TaskId) -> Option<Coded<B>> {
        self.run().find(id).filter(|coded| self.is_live(coded.index) && self.has_body(coded))
    }

    /// Whether the body of an entry exists. It always does, unless the run is damaged.
    fn has_body(&self, coded: &Coded<B>) -> bool {
        coded.body.is_some()
            || position(&self.overlay.edits, coded.index).is_some()
            || self.aside_at(coded.index).is_some()
    }

    /// A live entry with its body.
    pub(super) fn entry(&self, coded: Coded<B>) -> Option<Entry<B>> {
        let Coded { index, id, pushed, due, body } = coded;
        let edited = position(&self.overlay.edits, index).map(|at| self.overlay.edits[at].1.clone());
        let aside = || self.aside_at(index).map(|at| self.aside[at].1.clone());
        let body = edited.or(body).or_else(aside)?;
        Some(Entry { id, pushed, due, body })
    }

    fn aside_at(&self, index: u16) -> Option<usize> {
        // Mostly the list is empty, or the body is the first.
        if self.aside.front()?.0 == index {
            return Some(0);
        }
        self.aside.binary_search_by_key(&index, |&(at, _)| at).ok()
    }

    /// Removes a live entry.
    pub(super) fn take(&mut self, coded: Coded<B>) -> Option<Entry<B>> {
        let Coded { index, id, pushed, due, body } = coded;
        let edited = position(&self.overlay.edits, index).map(|at| self.overlay.edits.remove(at).1);
        let body = match edited.or(body) {
            Some(body) => body,
            None => self.aside.remove(self.aside_at(index)?)?.1,
        };
        self.overlay.mark_gone(index);
        Some(Entry { id, pushed, due, body })
    }

    /// Removes a live entry whose body the caller already has.
    pub(super) fn forget(&mut self, index: u16) {
        if let Some(at) = position(&self.overlay.edits, index) {
            self.overlay.edits.remove(at);
        }
        if let Some(at) = self.aside_at(index) {
            self.aside.remove(at);
        }
        self.overlay.mark_gone(index);
    }

    /// Gives a live entry a new body. Returns the old one.
    pub(super) fn replace(&mut self, coded: Coded<B>, body: B) -> Option<B> {
        let edits = &mut self.overlay.edits;
        match (edits.binary_search_by_key(&coded.index, |&(at, _)| at), coded.body) {
            (Ok(at), _) => Some(core::mem::replace(&mut edits[at].1, body)),
            (Err(at), Some(before)) => {
                edits.insert(at, (coded.index, body));
                Some(before)
            }
            (Err(_), None) => {
                let at = self.aside_at(coded.index)?;
                Some(core::mem::replace(&mut self.aside[at].1, body))
            }
        }
    }

    pub(super) fn is_much_edited(&self) -> bool {
        self.overlay.edits.len() > usize::from((self.run().count() / EDITS_PART).max(EDITS_MIN))
    }

    /// A cursor for an iteration that skips the first `start` live entries, and the number of them that it still has
    /// to skip.
    pub(super) fn seek(&self, mut start: usize) -> (Cursor<B>, usize) {
        let mut group = self.overlay.skipped / GROUP;
        loop {
            let live = self.live_in(group);
            if start < live || (group + 1) * GROUP >= self.run().count() {
                return (Cursor::at_group(group), start);
            }
            start -= live;
            group += 1;
        }
    }

    fn live_in(&self, group: u16) -> usize {
        let RunOverlay { skipped, tombstones, .. } = &self.overlay;
        let (start, upto) = (group * GROUP, ((group + 1) * GROUP).min(self.run().count()));
        let from = start.max(*skipped).min(upto);
        let gone = tombstones.get(usize::from(group)).map_or(0, |word| ones_from(*word, from - start));
        usize::from(upto - from) - gone
    }

    /// The next live entry of an iteration. Groups without one are skipped undecoded. In a damaged run, an entry that
    /// cannot be decoded is skipped with the rest of its group.
    pub(super) fn next(&self, cursor: &mut Cursor<B>) -> Option<Entry<B>> {
        while cursor.index() < self.run().count() {
            meter::step();
            let group = cursor.index() / GROUP;
            if cursor.index().is_multiple_of(GROUP) && self.live_in(group) == 0 {
                cursor.pass_over_group();
                continue;
            }
            match self.run().next(cursor) {
                None => cursor.pass_over_group(),
                Some(coded) if self.is_live(coded.index) => {
                    let entry = self.entry(coded);
                    if entry.is_some() {
                        return entry;
                    }
                }
                Some(_) => {}
            }
        }
        None
    }

    /// The live entries from position `start` on, as spans. A span covers groups in which no body has moved.
    pub(super) fn read_ahead_spans(&self, start: usize) -> impl Iterator<Item = ReadAheadSpan<B>> {
        let (mut cursor, mut left) = self.seek(start);
        core::iter::from_fn(move || {
            loop {
                if left == 0
                    && let Some((span, groups)) = self.span_at(cursor.index())
                {
                    cursor = Cursor::at_group(cursor.index() / GROUP + groups);
                    return Some(span);
                }
                let entry = self.next(&mut cursor)?;
                if left == 0 {
                    return Some(ReadAheadSpan::Task(entry.body));
                }
                left -= 1;
            }
        })
    }

    /// The span of groups that begins with this entry, if there is one, and the number of its groups.
    fn span_at(&self, from: u16) -> Option<(ReadAheadSpan<B>, u16)> {
        let count = self.run().count();
        if !from.is_multiple_of(GROUP) || from < self.overlay.skipped || from >= count {
            return None;
        }
        let edit = self.overlay.edits.partition_point(|&(index, _)| index < from);
        let aside = self.aside.partition_point(|&(index, _)| index < from);
        let edited = self.overlay.edits.get(edit).map_or(count, |&(index, _)| index);
        let elsewhere = self.aside.get(aside).map_or(count, |&(index, _)| index);
        let mut upto = (from + SPAN_GROUPS_MAX * GROUP).min(count);
        if edited.min(elsewhere) < upto {
            upto = edited.min(elsewhere) / GROUP * GROUP;
        }
        if upto <= from {
            return None;
        }
        let (group, groups) = (from / GROUP, (upto - from).div_ceil(GROUP));
        let (first, last) = self.run().ends(group, upto)?;
        let tasks = (group..group + groups).map(|group| self.live_in(group)).sum();
        Some((ReadAheadSpan::Run { first, last, tasks }, groups))
    }

    /// Appends live entries with their indexes to a list, until it has `count` or there are no more.
    pub(super) fn append_to(
        &self,
        list: &mut VecDeque<(u16, Entry<B>)>,
        count: usize,
        cursor: &mut Cursor<B>,
    ) {
        // Fast path: mostly entries were removed only from the front, and all bodies are in the run.
        let RunOverlay { skipped, tombstones, edits, .. } = &self.overlay;
        let rest = tombstones.get(usize::from(cursor.index() / GROUP)..).unwrap_or_default();
        let is_plain = rest.iter().all(|&word| word == 0) && edits.is_empty() && self.aside.is_empty();
        if is_plain && cursor.index() >= *skipped {
            self.run().append_to(list, count, cursor);
        }
        while list.len() < count
            && let Some(entry) = self.next(cursor)
        {
            list.push_back((cursor.index() - 1, entry));
        }
    }

    /// Its live entries, to be moved to another chunk.
    pub(super) fn into_entries(self) -> impl Iterator<Item = Entry<B>> {
        let mut cursor = self.seek(0).0;
        core::iter::from_fn(move || self.next(&mut cursor))
    }

    /// The number of live entries with ids below this number.
    pub(super) fn count_below(&self, raw: u64) -> usize {
        let group = self.run().group_of(raw);
        let before: usize = (0..group).map(|group| self.live_in(group)).sum();
        let mut cursor = Cursor::at_group(group);
        let within = core::iter::from_fn(|| self.next(&mut cursor));
        before + within.take_while(|entry| entry.id.raw() < raw).count()
    }
}

impl<B: Body> RunOverlay<B> {
    /// Records that an entry was removed.
    fn mark_gone(&mut self, index: u16) {
        self.gone += 1;
        if index == self.skipped {
            self.skipped += 1;
            while has(&self.tombstones, self.skipped) {
                self.skipped += 1;
            }
        } else {
            let word = usize::from(index / GROUP);
            if self.tombstones.len() <= word {
                self.tombstones.reserve_exact(word + 1 - self.tombstones.len());
                self.tombstones.resize(word + 1, 0);
            }
            self.tombstones[word] |= 1 << (index % GROUP);
        }
    }

    /// Appends the bytes from which [`Self::read`] restores it. If a new handle cannot be packed, neither it nor the
    /// old one is written.
    pub(in crate::queue) fn write(&self, out: &mut Vec<u8>) {
        write_number(u64::from(self.skipped), out);
        out.push(self.tombstones.len() as u8);
        self.tombstones.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        write_number(self.edits.len() as u64, out);
        for (index, body) in &self.edits {
            write_number(u64::from(*index), out);
            let at = out.len();
            out.push(1);
            if !body.pack(None, out) {
                out[at] = 0;
            }
        }
    }

    /// Reads the overlay of a run.
    pub(in crate::queue) fn read(r: &mut Reader<'_>, count: u16) -> Option<Self> {
        let skipped: u16 = r.small().ok()?;
        let words = usize::from(r.byte().ok()?);
        if words > GROUPS_MAX {
            return None;
        }
        let mut tombstones = Vec::with_capacity(words);
        for _ in 0..words {
            tombstones.push(u64::from_le_bytes(r.array().ok()?));
        }
        let is_gone = |index: &u16| has(&tombstones, *index);
        if skipped >= count || is_gone(&skipped) || (count..words as u16 * GROUP).any(|index| is_gone(&index))
        {
            return None;
        }
        let word_at =
            |(group, &word): (usize, &u64)| ones_from(word, skipped.saturating_sub(group as u16 * GROUP));
        let gone = skipped + tombstones.iter().enumerate().map(word_at).sum::<usize>() as u16;
        let mut edits: Vec<(u16, B)> = Vec::new();
        for _ in 0..r.count().ok()? {
            let index: u16 = r.small().ok()?;
            let in_order = edits.last().is_none_or(|&(last, _)| last < index);
            let live = index >= skipped && index < count && !is_gone(&index);
            if !live || !in_order || r.byte().ok()? != 1 {
                return None;
            }
            let (body, rest) = B::unpack(None, r.rest())?;
            *r = Reader::new(rest);
            edits.push((index, body));
        }
        Some(Self { skipped, gone, tombstones, edits })
    }
}

fn position<B>(edits: &[(u16, B)], index: u16) -> Option<usize> {
    // Most runs have no edits.
    if edits.is_empty() { None } else { edits.binary_search_by_key(&index, |&(at, _)| at).ok() }
}

/// Whether the bit of an entry is set. Missing words count as zero.
fn has(bits: &[u64], index: u16) -> bool {
    bits.get(usize::from(index / GROUP)).is_some_and(|word| word >> (index % GROUP) & 1 == 1)
}

/// The number of bits of a group that are set from this one on.
const fn ones_from(word: u64, bit: u16) -> usize {
    if bit >= GROUP { 0 } else { (word >> bit).count_ones() as usize }
}
