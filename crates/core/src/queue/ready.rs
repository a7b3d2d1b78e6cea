//! The ready tasks, in the order of delivery.
//!
//! Almost all of them were pushed without options, so their order is that of their ids: they are packed into runs and
//! need no record. All others (returned, due, revived, with a priority or a name) have a record in the table and an
//! entry here, by [`Rank`]. Both parts are sorted by rank, and the head is the smaller of their first entries.

use super::ordered::{Entry as _, IndexedTask, Ordered};
use super::packed::{Entry, Packed, ReadAheadSpan};
use crate::id::TaskId;
use crate::task::{Body, OrderKey, Rank};
use crate::time::LogTime;

/// Ready tasks, in the order of delivery.
#[derive(Clone, Debug)]
pub(super) struct Ready<B> {
    /// Tasks that were pushed without options and have not changed since.
    pub(super) packed: Packed<B>,
    indexed: Ordered<IndexedTask>,
}

impl<B> Default for Ready<B> {
    fn default() -> Self {
        Self { packed: Packed::default(), indexed: Ordered::default() }
    }
}

/// A ready task: a packed entry, or the id of a record.
#[derive(Debug)]
pub(super) enum ReadyTask<B> {
    Packed(Entry<B>),
    Indexed(TaskId),
}

impl<B> ReadyTask<B> {
    pub(super) const fn id(&self) -> TaskId {
        match self {
            Self::Packed(packed) => packed.id,
            Self::Indexed(id) => *id,
        }
    }
}

impl<B: Body> Ready<B> {
    pub(super) fn len(&self) -> usize {
        self.packed.len() + self.indexed.len()
    }

    /// The approximate memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.packed.memory() + self.indexed.memory()
    }

    /// Adds a task that has a record; its time to live ends at `expires`.
    pub(super) fn insert_indexed(&mut self, rank: Rank, id: TaskId, expires: Option<LogTime>) {
        let is_new = self.indexed.insert(IndexedTask::new(rank, id, expires));
        debug_assert!(is_new, "no two tasks have the same rank");
    }

    pub(super) fn is_taken(&self, rank: Rank) -> bool {
        self.indexed.contains(&rank)
    }

    pub(super) fn remove_indexed(&mut self, rank: Rank) {
        let found = self.indexed.remove(&rank);
        debug_assert!(found.is_some(), "a ready task has an entry");
    }

    /// The tasks that have records, in order.
    pub(super) fn indexed(&self) -> impl Iterator<Item = TaskId> {
        self.indexed.iter().map(|indexed| indexed.id)
    }

    /// The task that will be delivered next.
    pub(super) fn head(&self) -> Option<ReadyTask<B>> {
        let packed = self.packed.first();
        first_of(packed, self.indexed.first())
    }

    /// The first task that has not expired. Expired tasks before it are skipped in large blocks.
    pub(super) fn unexpired_head(&self, now: LogTime) -> Option<ReadyTask<B>> {
        first_of(self.packed.first(), self.indexed.unexpired(now).next())
    }

    /// Whether any task has not expired.
    pub(super) fn has_unexpired(&self, now: LogTime) -> bool {
        self.packed.len() > 0 || self.indexed.unexpired(now).next().is_some()
    }

    /// All tasks that have not expired, in order.
    pub(super) fn unexpired(&self, now: LogTime) -> impl Iterator<Item = ReadyTask<B>> {
        merge(self.packed.iter(), self.indexed.unexpired(now))
    }

    /// At least `count` head entries, if that many exist, all tasks are packed, and these are decoded already.
    pub(super) fn decoded_front(&self, count: usize) -> Option<impl Iterator<Item = &Entry<B>>> {
        if self.indexed.len() == 0 { self.packed.decoded_front(count) } else { None }
    }

    /// The number of tasks before this rank.
    pub(super) fn before(&self, rank: Rank) -> usize {
        self.packed_before(rank) + self.indexed.before(rank)
    }

    /// The number of packed tasks before this rank.
    fn packed_before(&self, rank: Rank) -> usize {
        match rank.neg_priority {
            0 => {
                // A task that went to the back comes after the last id at that moment.
                let upto = u64::try_from(rank.order.major).unwrap_or(0) + u64::from(rank.order.minor > 0);
                self.packed.count_below(upto)
            }
            ..0 => 0,
            1.. => self.packed.len(),
        }
    }

    /// All tasks from position `start` on. Runs and blocks before it are skipped as a whole.
    pub(super) fn iter_from(&self, start: usize) -> impl Iterator<Item = ReadyTask<B>> {
        let start = start.min(self.len());
        // The number of indexed tasks before `start` is the largest for which they and the packed tasks before them
        // do not reach `start`.
        let is_before = |indexed: usize, rank: Rank| indexed + self.packed_before(rank) < start;
        let indexed = self.indexed.counted().partition(is_before);
        merge(self.packed.iter_from(start - indexed), self.indexed.iter_from(indexed))
    }

    /// All tasks from position `start` on as spans, if all of them are packed.
    pub(super) fn read_ahead_spans(&self, start: usize) -> Option<impl Iterator<Item = ReadAheadSpan<B>>> {
        (self.indexed.len() == 0).then(|| self.packed.read_ahead_spans(start))
    }

    /// All tasks, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = ReadyTask<B>> {
        merge(self.packed.iter(), self.indexed.iter())
    }

    /// The first task of the lowest priority.
    pub(super) fn oldest_of_least_urgent(&self) -> Option<TaskId> {
        let (packed, indexed) = (self.packed.first(), self.first_of_least_urgent());
        match (packed, indexed) {
            (Some(packed), Some(indexed))
                if indexed.key().neg_priority > 0
                    || indexed.key().neg_priority == 0 && indexed.key() < Rank::pushed(packed.id) =>
            {
                Some(indexed.id)
            }
            (Some(packed), _) => Some(packed.id),
            (None, indexed) => indexed.map(|indexed| indexed.id),
        }
    }

    /// Among tasks with records, the first of the lowest priority.
    fn first_of_least_urgent(&self) -> Option<&IndexedTask> {
        let neg_priority = self.indexed.last()?.key().neg_priority;
        let first = self.indexed.before(Rank { neg_priority, order: OrderKey { major: i64::MIN, minor: 0 } });
        self.indexed.iter_from(first).next()
    }
}

/// The first of the two by rank.
fn first_of<B>(packed: Option<Entry<B>>, indexed: Option<&IndexedTask>) -> Option<ReadyTask<B>> {
    match indexed {
        Some(indexed) if packed.as_ref().is_none_or(|packed| indexed.key() < Rank::pushed(packed.id)) => {
            Some(ReadyTask::Indexed(indexed.id))
        }
        _ => packed.map(ReadyTask::Packed),
    }
}

/// Merges the two parts by rank.
fn merge<'p, B: Body>(
    packed: impl Iterator<Item = Entry<B>>,
    indexed: impl Iterator<Item = &'p IndexedTask>,
) -> impl Iterator<Item = ReadyTask<B>> {
    let mut packed = packed.peekable();
    let mut indexed = indexed.peekable();
    core::iter::from_fn(move || match indexed.peek() {
        None => packed.next().map(ReadyTask::Packed),
        Some(indexed) if packed.peek().is_some_and(|p| Rank::pushed(p.id) < indexed.key()) => {
            packed.next().map(ReadyTask::Packed)
        }
        Some(_) => indexed.next().map(|indexed| ReadyTask::Indexed(indexed.id)),
    })
}
