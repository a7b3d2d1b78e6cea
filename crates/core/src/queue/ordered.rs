//! Entries in the order of their keys, with fast access to the nth of them.
//!
//! The entries are a sorted list, divided into blocks. A binary search finds a block; the position of its first entry
//! is the sum of the lengths of the blocks before it, one number for hundreds of entries. Each block also has the
//! latest expiry of its entries, so that a block of expired entries is skipped in one step.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::id::TaskId;
use crate::meter;
use crate::task::Rank;
use crate::time::{LogTime, WallTime};

/// The length at which a block is split.
const BLOCK_MAX: usize = 256;

/// Neighbouring blocks that together have no more entries than this are joined.
const BLOCK_MIN: usize = BLOCK_MAX / 4;

/// The expiry of an entry that never expires.
const NEVER: LogTime = LogTime(u64::MAX);

/// An entry with a key to sort by.
pub(super) trait Entry: Copy {
    type Key: Ord + Copy;

    fn key(&self) -> Self::Key;

    /// The time from which on it has expired.
    fn expires(&self) -> LogTime {
        NEVER
    }
}

impl Entry for (LogTime, TaskId) {
    type Key = Self;

    fn key(&self) -> Self {
        *self
    }
}

impl Entry for (WallTime, TaskId) {
    type Key = Self;

    fn key(&self) -> Self {
        *self
    }
}

/// A ready task with a record: its rank, its id and its expiry, in 32 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexedTask {
    order: crate::task::OrderKey,
    pub(super) id: TaskId,
    neg_priority: i16,
    /// The low 48 bits of the time, which suffice for another 8,000 years.
    expires: [u16; 3],
}

impl IndexedTask {
    pub(super) fn new(rank: Rank, id: TaskId, expires: Option<LogTime>) -> Self {
        let LogTime(ms) = expires.unwrap_or(NEVER);
        let ms = ms.min((1 << 48) - 1);
        let expires = [ms as u16, (ms >> 16) as u16, (ms >> 32) as u16];
        Self { order: rank.order, id, neg_priority: rank.neg_priority, expires }
    }
}

impl Entry for IndexedTask {
    type Key = Rank;

    fn key(&self) -> Rank {
        Rank { neg_priority: self.neg_priority, order: self.order }
    }

    fn expires(&self) -> LogTime {
        if self.expires == [u16::MAX; 3] {
            return NEVER;
        }
        let [low, middle, high] = self.expires.map(u64::from);
        LogTime(low | middle << 16 | high << 32)
    }
}

#[derive(Clone, Debug)]
struct Block<E> {
    /// Never empty.
    entries: VecDeque<E>,
    /// The latest expiry of the entries.
    last_expires: LogTime,
}

impl<E: Entry> Block<E> {
    fn of(entries: VecDeque<E>) -> Self {
        let mut block = Self { entries, last_expires: LogTime(0) };
        block.find_last_expiry();
        block
    }

    fn find_last_expiry(&mut self) {
        self.last_expires = LogTime(0);
        for entry in &self.entries {
            self.last_expires = self.last_expires.max(entry.expires());
            if self.last_expires == NEVER {
                return;
            }
        }
    }

    fn search(&self, key: E::Key) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&key, E::key)
    }

    fn insert(&mut self, at: usize, entry: E) {
        self.entries.insert(at, entry);
        self.last_expires = self.last_expires.max(entry.expires());
    }

    fn remove(&mut self, at: usize) -> Option<E> {
        let entry = self.entries.remove(at)?;
        if entry.expires() == self.last_expires {
            self.find_last_expiry();
        }
        Some(entry)
    }
}

/// Entries in order of their keys.
#[derive(Clone, Debug)]
pub(super) struct Ordered<E> {
    blocks: VecDeque<Block<E>>,
    len: usize,
}

impl<E> Default for Ordered<E> {
    fn default() -> Self {
        Self { blocks: VecDeque::new(), len: 0 }
    }
}

impl<E: Entry> Ordered<E> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The approximate memory in bytes.
    pub(super) const fn memory(&self) -> usize {
        // Split blocks are half empty, blocks that were filled in order are full, and a deque has room for a power of
        // two of entries.
        self.len * size_of::<E>() * 3 / 2
    }

    /// The block that contains this key or would contain it.
    fn block_of(&self, key: E::Key) -> usize {
        let is_before = |block: &Block<E>| block.entries.back().is_some_and(|last| last.key() < key);
        let at = self.blocks.partition_point(is_before);
        at.min(self.blocks.len().saturating_sub(1))
    }

    fn find(&self, key: E::Key) -> Option<(usize, usize)> {
        meter::step();
        let at = self.block_of(key);
        Some((at, self.blocks.get(at)?.search(key).ok()?))
    }

    pub(super) fn contains(&self, key: &E::Key) -> bool {
        self.find(*key).is_some()
    }

    /// Adds an entry. Returns false, and changes nothing, if another entry has its key.
    pub(super) fn insert(&mut self, entry: E) -> bool {
        meter::step();
        let at = self.block_of(entry.key());
        let is_last = at + 1 == self.blocks.len();
        let Some(block) = self.blocks.get_mut(at) else {
            self.blocks.push_back(Block::of(VecDeque::from([entry])));
            self.len = 1;
            return true;
        };
        let Err(within) = block.search(entry.key()) else { return false };
        self.len += 1;
        if block.entries.len() < BLOCK_MAX {
            block.insert(within, entry);
        } else if within == BLOCK_MAX && is_last {
            // Entries that are added in order fill their blocks completely.
            self.blocks.push_back(Block::of(VecDeque::from([entry])));
        } else {
            let mut behind = Block::of(block.entries.split_off(BLOCK_MAX / 2));
            block.find_last_expiry();
            match within.checked_sub(BLOCK_MAX / 2) {
                Some(within) => behind.insert(within, entry),
                None => block.insert(within, entry),
            }
            self.blocks.insert(at + 1, behind);
        }
        true
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, key: &E::Key) -> Option<E> {
        let (at, within) = self.find(*key)?;
        let entry = self.blocks[at].remove(within)?;
        self.len -= 1;
        let len = |at: usize| self.blocks.get(at).map_or(BLOCK_MAX, |block| block.entries.len());
        if len(at) == 0 {
            self.blocks.remove(at);
        } else if let Some(first) = [at, at.wrapping_sub(1)]
            .into_iter()
            .find(|&at| len(at).saturating_add(len(at.wrapping_add(1))) <= BLOCK_MIN)
        {
            let behind = self.blocks.remove(first + 1)?;
            let block = &mut self.blocks[first];
            block.entries.extend(behind.entries);
            block.entries.shrink_to(BLOCK_MIN);
            block.last_expires = block.last_expires.max(behind.last_expires);
        }
        Some(entry)
    }

    /// All entries from position `start` on. Blocks before it are skipped as a whole.
    pub(super) fn iter_from(&self, mut start: usize) -> impl Iterator<Item = &E> {
        let mut at = 0;
        while let Some(block) = self.blocks.get(at).filter(|block| block.entries.len() <= start) {
            meter::step();
            start -= block.entries.len();
            at += 1;
        }
        let first = self.blocks.get(at).map(|block| block.entries.range(start..));
        let rest = self.blocks.range((at + 1).min(self.blocks.len())..).flat_map(|block| &block.entries);
        first.into_iter().flatten().chain(rest).inspect(|_| meter::step())
    }

    pub(super) fn first(&self) -> Option<&E> {
        self.blocks.front()?.entries.front()
    }

    pub(super) fn last(&self) -> Option<&E> {
        self.blocks.back()?.entries.back()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &E> {
        self.iter_from(0)
    }

    /// All entries that have not expired by then. Blocks of expired entries are skipped as a whole.
    pub(super) fn unexpired(&self, by: LogTime) -> impl Iterator<Item = &E> {
        let is_good = move |expires: LogTime| {
            meter::step();
            expires > by
        };
        let blocks = self.blocks.iter().filter(move |block| is_good(block.last_expires));
        blocks.flat_map(|block| &block.entries).filter(move |entry| is_good(entry.expires()))
    }

    /// The number of entries with smaller keys.
    pub(super) fn before(&self, key: E::Key) -> usize {
        let at = self.block_of(key);
        let Some(block) = self.blocks.get(at) else { return 0 };
        let whole: usize = self.blocks.range(..at).inspect(|_| meter::step()).map(|b| b.entries.len()).sum();
        whole + block.entries.partition_point(|entry| entry.key() < key)
    }
}

/// The entries with the position of each block: after one pass over the blocks, it answers several questions about
/// positions.
pub(super) struct Counted<'o, E> {
    ordered: &'o Ordered<E>,
    before: Vec<usize>,
}

impl<E: Entry> Ordered<E> {
    pub(super) fn counted(&self) -> Counted<'_, E> {
        let mut sum = 0;
        let count = |block: &Block<E>| {
            meter::step();
            let before = sum;
            sum += block.entries.len();
            before
        };
        Counted { ordered: self, before: self.blocks.iter().map(count).collect() }
    }
}

impl<E: Entry> Counted<'_, E> {
    /// The number of entries with smaller keys.
    pub(super) fn before(&self, key: E::Key) -> usize {
        meter::step();
        let at = self.ordered.block_of(key);
        let Some(block) = self.ordered.blocks.get(at) else { return 0 };
        self.before[at] + block.entries.partition_point(|entry| entry.key() < key)
    }

    /// The number of entries at the front that satisfy `is_before`, which gets the position and the key of an entry.
    /// Once it fails for an entry, it must fail for all later ones.
    pub(super) fn partition(&self, is_before: impl Fn(usize, E::Key) -> bool) -> usize {
        let blocks = &self.ordered.blocks;
        let begins_before = |at: usize| is_before(self.before[at], blocks[at].entries[0].key());
        let Some(at) = first_not(blocks.len(), begins_before).checked_sub(1) else { return 0 };
        let (start, entries) = (self.before[at], &blocks[at].entries);
        start + first_not(entries.len(), |n| is_before(start + n, entries[n].key()))
    }
}

/// The first number below `count` for which `holds` is false, or `count`. It must be false for all later ones.
fn first_not(count: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        if holds(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

impl<E: Entry> FromIterator<E> for Ordered<E> {
    fn from_iter<I: IntoIterator<Item = E>>(entries: I) -> Self {
        let mut ordered = Self::default();
        entries.into_iter().for_each(|entry| _ = ordered.insert(entry));
        ordered
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::task::OrderKey;

    fn rank(n: u64) -> Rank {
        Rank { neg_priority: (n % 3) as i16, order: OrderKey { major: (n / 7).cast_signed(), minor: n % 7 } }
    }

    /// Every third entry never expires.
    fn expires(n: u64) -> Option<LogTime> {
        (!n.is_multiple_of(3)).then(|| LogTime(n.wrapping_mul(31) % 1000))
    }

    type Facts = (Rank, TaskId, LogTime);

    fn facts(placed: &IndexedTask) -> Facts {
        (placed.key(), placed.id, placed.expires())
    }

    proptest! {
        /// Compares with a tree: insertions in order and out of order, removals from the front and anywhere.
        #[test]
        fn entries_behave_like_a_sorted_map(
            steps in prop::collection::vec((0..4u8, 0..3000u64, 1..600u64), 1..30),
            by in 0..1100u64,
        ) {
            let (mut ordered, mut model) = (Ordered::default(), BTreeMap::<Rank, Facts>::new());
            for (kind, n, count) in steps {
                for n in n..n + count {
                    let id = TaskId::from_raw(n + 1).unwrap();
                    match kind {
                        0 | 1 => {
                            let rank = rank(if kind == 0 { n } else { n.wrapping_mul(7919) % 3000 });
                            let is_new = !model.contains_key(&rank);
                            prop_assert_eq!(ordered.insert(IndexedTask::new(rank, id, expires(n))), is_new);
                            model.entry(rank).or_insert((rank, id, expires(n).unwrap_or(NEVER)));
                        }
                        2 => {
                            let first = model.pop_first();
                            prop_assert_eq!(ordered.first().map(facts), first.map(|(_, facts)| facts));
                            first.map(|(rank, _)| ordered.remove(&rank));
                        }
                        _ => prop_assert_eq!(ordered.remove(&rank(n)).as_ref().map(facts), model.remove(&rank(n))),
                    }
                }
                prop_assert!(ordered.iter().map(facts).eq(model.values().copied()));
                prop_assert_eq!(ordered.len(), model.len());
                prop_assert_eq!(ordered.last().map(facts), model.values().next_back().copied());
                let asked = rank(n + count / 2);
                prop_assert_eq!(ordered.before(asked), model.range(..asked).count());
                prop_assert_eq!(ordered.contains(&asked), model.contains_key(&asked));
                let counted = ordered.counted();
                prop_assert_eq!(counted.before(asked), ordered.before(asked));
                prop_assert_eq!(counted.partition(|_, key| key < asked), ordered.before(asked));
                let half = model.len() / 2;
                prop_assert_eq!(counted.partition(|place, _| place < half), half);
                let from = (n as usize + count as usize) % (model.len() + 1);
                prop_assert!(ordered.iter_from(from).map(facts).eq(model.values().copied().skip(from)));
                let by = LogTime(by);
                let good = model.values().copied().filter(|&(.., expires)| expires > by);
                prop_assert!(ordered.unexpired(by).map(facts).eq(good));
                prop_assert!(ordered.blocks.len() <= 2 + 2 * model.len() / (BLOCK_MIN / 2), "few in many blocks");
                for block in &ordered.blocks {
                    prop_assert!(!block.entries.is_empty() && block.entries.len() <= BLOCK_MAX);
                    prop_assert_eq!(Some(block.last_expires), block.entries.iter().map(Entry::expires).max());
                }
            }
        }
    }

    #[test]
    fn entries_added_in_order_fill_their_blocks() {
        let entry = |n: u64| IndexedTask::new(rank(n * 21), TaskId::from_raw(n).unwrap(), None);
        let ordered: Ordered<IndexedTask> = (1..=10_000u64).map(entry).collect();
        assert_eq!((ordered.len(), size_of::<IndexedTask>()), (10_000, 32));
        assert!(ordered.blocks.len() <= 10_000 / BLOCK_MAX + 1, "{} blocks", ordered.blocks.len());
        let room: usize = ordered.blocks.iter().map(|block| block.entries.capacity()).sum();
        assert!(room * size_of::<IndexedTask>() <= ordered.memory(), "room for {room}");
    }

    #[test]
    fn a_time_to_live_beyond_the_range_never_ends() {
        let late = IndexedTask::new(rank(1), TaskId::from_raw(1).unwrap(), Some(LogTime(u64::MAX - 1)));
        assert_eq!(late.expires(), NEVER);
    }
}
