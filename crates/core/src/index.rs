//! Hash tables that grow a little at a time.
//!
//! A hash table that doubles moves all of its entries at once: with a million entries, all clients wait for a tenth
//! of a second or more. This one consists of many small tables and grows by splitting one of them, in turn, whenever
//! there are too many entries, so that all have about the same size (linear hashing).

use alloc::vec::Vec;
use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use core::mem;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// The average number of entries per table. A table that is about to be split has about twice as many.
const TABLE_LEN: usize = 1664;

/// The maximum number of entries of a table: hashbrown's tables are full at seven eighths of a power of two.
const TABLE_LEN_MAX: usize = 3584;

/// For entries of up to this many bytes, a table has its full size from the start. Growing step by step would leave
/// more memory unused.
const SMALL_BYTES: usize = 8;

/// A set of entries by a hash that the caller computes.
#[derive(Clone, Debug)]
pub(crate) struct Index<T> {
    first: HashTable<T>,
    /// The tables after the first; most queues need none.
    more: Vec<HashTable<T>>,
    len: usize,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self { first: HashTable::new(), more: Vec::new(), len: 0 }
    }
}

impl<T> Index<T> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The approximate number of entries that fit without an allocation.
    pub(crate) fn capacity(&self) -> usize {
        // Estimated without visiting each table, since all have about the same size.
        match self.more.len() {
            0 => self.first.capacity(),
            more if size_of::<T>() <= SMALL_BYTES => (more + 1) * TABLE_LEN_MAX,
            _ => self.len * 3 / 2,
        }
    }

    /// The number of the table for this hash. The tables up to the last power of two are addressed by that many bits
    /// of the hash, and those that have been split since by one more bit.
    fn number(&self, hash: u64) -> usize {
        // hashbrown uses the lowest bits to find an entry and the highest to tell entries apart.
        let (bits, tables) = ((hash >> 24) as usize, self.more.len() + 1);
        let round = tables.next_power_of_two();
        let number = bits & (round - 1);
        if number < tables { number } else { number & (round / 2 - 1) }
    }

    fn table(&self, number: usize) -> &HashTable<T> {
        number.checked_sub(1).map_or(&self.first, |at| &self.more[at])
    }

    fn table_mut(&mut self, number: usize) -> &mut HashTable<T> {
        match number.checked_sub(1) {
            None => &mut self.first,
            Some(at) => &mut self.more[at],
        }
    }

    pub(crate) fn find(&self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<&T> {
        self.table(self.number(hash)).find(hash, is)
    }

    /// Adds an entry that does not exist yet. `rehash` returns the hash of an existing entry.
    pub(crate) fn insert(&mut self, hash: u64, entry: T, rehash: impl Fn(&T) -> u64) {
        if self.len >= (self.more.len() + 1) * TABLE_LEN {
            self.cut_one(&rehash);
        }
        let number = self.number(hash);
        self.table_mut(number).insert_unique(hash, entry, rehash);
        self.len += 1;
    }

    /// Splits the next table in turn.
    fn cut_one(&mut self, rehash: &impl Fn(&T) -> u64) {
        let tables = self.more.len() + 1;
        let cut = tables - tables.next_power_of_two() / if tables.is_power_of_two() { 1 } else { 2 };
        let entries = mem::take(self.table_mut(cut));
        let room = if size_of::<T>() <= SMALL_BYTES { TABLE_LEN_MAX } else { entries.len() / 2 };
        *self.table_mut(cut) = HashTable::with_capacity(room);
        self.more.push(HashTable::with_capacity(room));
        for entry in entries {
            let hash = rehash(&entry);
            let number = self.number(hash);
            self.table_mut(number).insert_unique(hash, entry, rehash);
        }
    }

    pub(crate) fn remove(&mut self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<T> {
        let number = self.number(hash);
        let (entry, _) = self.table_mut(number).find_entry(hash, is).ok()?.remove();
        self.len -= 1;
        Some(entry)
    }
}

/// Values by key.
#[derive(Clone, Debug)]
pub(crate) struct Dictionary<K, V>(Index<(K, V)>);

impl<K, V> Default for Dictionary<K, V> {
    fn default() -> Self {
        Self(Index::default())
    }
}

fn hash<Q: Hash + ?Sized>(key: &Q) -> u64 {
    FixedState::default().hash_one(key)
}

impl<K: Hash + Eq, V> Dictionary<K, V> {
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// The approximate number of entries that fit without an allocation.
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.find(hash(key), |(other, _)| other.borrow() == key).map(|(_, value)| value)
    }

    pub(crate) fn contains_key<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Sets the value of a key. Returns its previous value.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let before = self.remove(&key);
        self.0.insert(hash(&key), (key, value), |(key, _)| hash(key));
        before
    }

    pub(crate) fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.0.remove(hash(key), |(other, _)| other.borrow() == key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    #[test]
    fn entries_are_found_until_they_are_removed() {
        let mut index = Index::default();
        for n in 0..100_000u32 {
            index.insert(hash(&n), n, hash);
        }
        for n in (0..100_000).step_by(3) {
            assert_eq!(index.remove(hash(&n), |&at| at == n), Some(n));
            assert_eq!(index.remove(hash(&n), |&at| at == n), None);
        }
        for n in 0..100_000 {
            let found = index.find(hash(&n), |&at| at == n);
            assert_eq!(found.copied(), Some(n).filter(|n| n % 3 != 0));
        }
        assert_eq!(index.len(), 66_666);
    }

    #[test]
    fn an_insertion_moves_at_most_a_few_thousand_entries() {
        let (mut index, mut most) = (Index::default(), 0);
        for n in 0..300_000u32 {
            let moved = Cell::new(0);
            index.insert(hash(&n), n, |&n| {
                moved.set(moved.get() + 1);
                hash(&n)
            });
            most = most.max(moved.get());
        }
        assert!(most <= 5 * TABLE_LEN, "{most} moved at once");
        let lens = (0..=index.more.len()).map(|at| index.table(at).len());
        assert!(lens.clone().max() < Some(3 * TABLE_LEN), "tables as long as each other: {:?}", lens.max());
        let rooms = (0..=index.more.len()).map(|at| index.table(at).capacity());
        assert!(rooms.clone().skip(1).all(|room| room == TABLE_LEN_MAX), "none of them ever grows");
        let room: usize = rooms.sum();
        assert_eq!(room, index.capacity());
        assert!(room < index.len() * 9 / 4, "room for {room}");
    }
}
