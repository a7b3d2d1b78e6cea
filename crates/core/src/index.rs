//! Tables by hash that grow a little at a time.
//!
//! A hash table that doubles moves all that is in it at once, and a million entries take a tenth of a second or more,
//! for which everyone waits. This one is many small tables, and grows by cutting one of them in two whenever there are
//! more entries than fit the tables there are: which one is next goes round, so that all stay about as long (linear
//! hashing).

use alloc::vec::Vec;
use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use core::mem;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// Entries per table, on average. One that is about to be cut has twice as many, give or take a few.
const TABLE_LEN: usize = 1664;

/// Entries that fit a table, at most: hashbrown's are full at seven eighths of a power of two.
const TABLE_LEN_MAX: usize = 3584;

/// For entries of so few bytes a table has its full size from the start. Growing into it, the tables would leave more
/// memory unused behind them.
const SMALL_BYTES: usize = 8;

/// A set of entries, found by a hash that the caller knows.
#[derive(Clone, Debug)]
pub(crate) struct Index<T> {
    first: HashTable<T>,
    /// All behind the first; most queues need none.
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

    /// About how many entries it has room for.
    pub(crate) fn capacity(&self) -> usize {
        // Without a look at each table: they are about as long as each other.
        match self.more.len() {
            0 => self.first.capacity(),
            more if size_of::<T>() <= SMALL_BYTES => (more + 1) * TABLE_LEN_MAX,
            _ => self.len * 3 / 2,
        }
    }

    /// The number of the table for this hash. Those up to the last power of two are told apart by so many bits, and
    /// those that have been cut since by one more.
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

    /// Adds an entry that is not there yet. `rehash` answers the hash of one that is.
    pub(crate) fn insert(&mut self, hash: u64, entry: T, rehash: impl Fn(&T) -> u64) {
        if self.len >= (self.more.len() + 1) * TABLE_LEN {
            self.cut_one(&rehash);
        }
        let number = self.number(hash);
        self.table_mut(number).insert_unique(hash, entry, rehash);
        self.len += 1;
    }

    /// Cuts the table whose turn it is in two.
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

    /// About how many entries it has room for.
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

    /// Sets the value of a key; answers the one it had.
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
    fn what_was_added_is_found_until_it_is_removed() {
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
    fn no_addition_moves_more_than_a_few_thousand() {
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
