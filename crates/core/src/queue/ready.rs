//! The line of ready tasks.
//!
//! Almost all of them were plainly pushed and stand in the order of their ids: those are packed into runs and need no
//! record. Whatever came to the line another way (returned, due, revived, with a priority or a name) has a record in
//! the table and a [`Rank`] here. Both parts are sorted by rank; the head is the smaller of the two.

use super::ordered::{Entry as _, Ordered, Placed};
use super::packed::{Entry, Packed, ReadAheadSpan};
use crate::id::TaskId;
use crate::task::{Body, OrderKey, Rank};
use crate::time::LogTime;

/// The line.
#[derive(Clone, Debug)]
pub(super) struct Ready<B> {
    /// Plainly pushed, and untouched since.
    pub(super) plain: Packed<B>,
    placed: Ordered<Placed>,
}

impl<B> Default for Ready<B> {
    fn default() -> Self {
        Self { plain: Packed::default(), placed: Ordered::default() }
    }
}

/// One in the line: a plain entry, or the id of a record.
#[derive(Debug)]
pub(super) enum Standing<B> {
    Plain(Entry<B>),
    Placed(TaskId),
}

impl<B> Standing<B> {
    pub(super) const fn id(&self) -> TaskId {
        match self {
            Self::Plain(plain) => plain.id,
            Self::Placed(id) => *id,
        }
    }
}

impl<B: Body> Ready<B> {
    pub(super) fn len(&self) -> usize {
        self.plain.len() + self.placed.len()
    }

    /// About how many bytes it takes.
    pub(super) fn memory(&self) -> usize {
        self.plain.memory() + self.placed.memory()
    }

    /// Puts a task that has a record into the line; its time to live ends at `expires`.
    pub(super) fn place(&mut self, rank: Rank, id: TaskId, expires: Option<LogTime>) {
        let is_new = self.placed.insert(Placed::new(rank, id, expires));
        debug_assert!(is_new, "a rank is given once");
    }

    pub(super) fn is_taken(&self, rank: Rank) -> bool {
        self.placed.contains(&rank)
    }

    pub(super) fn unplace(&mut self, rank: Rank) {
        let found = self.placed.remove(&rank);
        debug_assert!(found.is_some(), "what is taken from the line stands in it");
    }

    /// Those that have records, in order.
    pub(super) fn placed(&self) -> impl Iterator<Item = TaskId> {
        self.placed.iter().map(|placed| placed.id)
    }

    /// The head of the line.
    pub(super) fn head(&self) -> Option<Standing<B>> {
        let plain = self.plain.first();
        first_of(plain, self.placed.first())
    }

    /// The first in the line whose time to live is not over. Expired ones before it are passed over in large blocks.
    pub(super) fn unexpired_head(&self, now: LogTime) -> Option<Standing<B>> {
        first_of(self.plain.first(), self.placed.unexpired(now).next())
    }

    /// Whether anyone in the line has not expired.
    pub(super) fn has_unexpired(&self, now: LogTime) -> bool {
        self.plain.len() > 0 || self.placed.unexpired(now).next().is_some()
    }

    /// The line in order without those whose time to live is over.
    pub(super) fn unexpired(&self, now: LogTime) -> impl Iterator<Item = Standing<B>> {
        merge(self.plain.iter(), self.placed.unexpired(now))
    }

    /// The first in line, so many at least if there are so many, if they were all plainly pushed and are at hand.
    pub(super) fn at_hand(&self, count: usize) -> Option<impl Iterator<Item = &Entry<B>>> {
        if self.placed.len() == 0 { self.plain.at_hand(count) } else { None }
    }

    /// How many stand before this rank.
    pub(super) fn before(&self, rank: Rank) -> usize {
        self.plain_before(rank) + self.placed.before(rank)
    }

    /// How many plain ones stand before this rank.
    fn plain_before(&self, rank: Rank) -> usize {
        match rank.lane {
            0 => {
                // What went to the back stands behind the id of that moment.
                let upto = u64::try_from(rank.order.major).unwrap_or(0) + u64::from(rank.order.minor > 0);
                self.plain.count_below(upto)
            }
            ..0 => 0,
            1.. => self.plain.len(),
        }
    }

    /// The line in order, from the one at this place on. Whole runs and blocks before it are passed over.
    pub(super) fn iter_from(&self, start: usize) -> impl Iterator<Item = Standing<B>> {
        let start = start.min(self.len());
        // How many of the placed stand before that place: the most that do not reach it with those plain ones before them.
        let is_before = |placed: usize, rank: Rank| placed + self.plain_before(rank) < start;
        let placed = self.placed.counted().partition(is_before);
        merge(self.plain.iter_from(start - placed), self.placed.iter_from(placed))
    }

    /// The line in order from the one at this place on, if all who stand in it were plainly pushed: many neighbours by
    /// their ends.
    pub(super) fn read_ahead_spans(&self, start: usize) -> Option<impl Iterator<Item = ReadAheadSpan<B>>> {
        (self.placed.len() == 0).then(|| self.plain.read_ahead_spans(start))
    }

    /// The line in order, from its head.
    pub(super) fn iter(&self) -> impl Iterator<Item = Standing<B>> {
        merge(self.plain.iter(), self.placed.iter())
    }

    /// The one that has waited longest of the least urgent.
    pub(super) fn oldest_of_least_urgent(&self) -> Option<TaskId> {
        let (plain, placed) = (self.plain.first(), self.first_of_last_lane());
        match (plain, placed) {
            (Some(plain), Some(placed))
                if placed.key().lane > 0
                    || placed.key().lane == 0 && placed.key() < Rank::plain(plain.id) =>
            {
                Some(placed.id)
            }
            (Some(plain), _) => Some(plain.id),
            (None, placed) => placed.map(|placed| placed.id),
        }
    }

    /// Of those that have records, the first of the least urgent.
    fn first_of_last_lane(&self) -> Option<&Placed> {
        let lane = self.placed.last()?.key().lane;
        let first = self.placed.before(Rank { lane, order: OrderKey { major: i64::MIN, minor: 0 } });
        self.placed.iter_from(first).next()
    }
}

/// Which of the two stands first.
fn first_of<B>(plain: Option<Entry<B>>, placed: Option<&Placed>) -> Option<Standing<B>> {
    match placed {
        Some(placed) if plain.as_ref().is_none_or(|plain| placed.key() < Rank::plain(plain.id)) => {
            Some(Standing::Placed(placed.id))
        }
        _ => plain.map(Standing::Plain),
    }
}

/// Two parts of the line as one.
fn merge<'p, B: Body>(
    plain: impl Iterator<Item = Entry<B>>,
    placed: impl Iterator<Item = &'p Placed>,
) -> impl Iterator<Item = Standing<B>> {
    let mut plain = plain.peekable();
    let mut placed = placed.peekable();
    core::iter::from_fn(move || match placed.peek() {
        None => plain.next().map(Standing::Plain),
        Some(placed) if plain.peek().is_some_and(|p| Rank::plain(p.id) < placed.key()) => {
            plain.next().map(Standing::Plain)
        }
        Some(_) => placed.next().map(|placed| Standing::Placed(placed.id)),
    })
}
