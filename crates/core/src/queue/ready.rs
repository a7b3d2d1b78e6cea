//! The line of ready tasks.
//!
//! Almost all of them were plainly pushed and stand in the order of their ids: those are packed into runs and need no
//! record. Whatever came to the line another way (returned, due, revived, with a priority or a name) has a record in
//! the table and a [`Rank`] here. Both parts are sorted by rank; the head is the smaller of the two.

use super::packed::{Entry, Packed, Upcoming};
use super::ranked::Ranked;
use crate::id::TaskId;
use crate::task::{Body, Rank};

/// The line.
#[derive(Clone, Debug)]
pub(super) struct Ready<B> {
    /// Plainly pushed, and untouched since.
    pub(super) plain: Packed<B>,
    placed: Ranked,
}

impl<B> Default for Ready<B> {
    fn default() -> Self {
        Self { plain: Packed::default(), placed: Ranked::default() }
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

    pub(super) fn place(&mut self, rank: Rank, id: TaskId) {
        let is_new = self.placed.insert(rank, id);
        debug_assert!(is_new, "a rank is given once");
    }

    pub(super) fn is_taken(&self, rank: Rank) -> bool {
        self.placed.contains(rank)
    }

    pub(super) fn unplace(&mut self, rank: Rank) {
        let found = self.placed.remove(rank);
        debug_assert!(found.is_some(), "what is taken from the line stands in it");
    }

    /// Those that have records, in order.
    pub(super) fn placed(&self) -> impl Iterator<Item = (Rank, TaskId)> {
        self.placed.iter()
    }

    /// The head of the line.
    pub(super) fn head(&self) -> Option<Standing<B>> {
        let plain = self.plain.first();
        match self.placed.first() {
            Some((rank, id)) if plain.as_ref().is_none_or(|plain| rank < Rank::plain(plain.id)) => {
                Some(Standing::Placed(id))
            }
            _ => plain.map(Standing::Plain),
        }
    }

    /// The first in line, so many at least if there are so many, if they were all plainly pushed and are at hand.
    pub(super) fn at_hand(&self, count: usize) -> Option<impl Iterator<Item = &Entry<B>>> {
        if self.placed.len() == 0 { self.plain.at_hand(count) } else { None }
    }

    /// How many stand before this rank.
    pub(super) fn before(&self, rank: Rank) -> usize {
        let plain = match rank.lane {
            0 => {
                // What went to the back stands behind the id of that moment.
                let upto = u64::try_from(rank.turn.major).unwrap_or(0) + u64::from(rank.turn.minor > 0);
                self.plain.count_below(upto)
            }
            lane => {
                if lane < 0 {
                    0
                } else {
                    self.plain.len()
                }
            }
        };
        plain + self.placed.before(rank)
    }

    /// The line in order, from the one at this place on. Whole runs and blocks before it are passed over.
    pub(super) fn iter_from(&self, start: usize) -> impl Iterator<Item = Standing<B>> {
        let start = start.min(self.len());
        // How many of the placed stand before that place: the most that do not reach it with those plain ones before them.
        let (mut low, mut high) = (0, self.placed.len());
        while low < high {
            let middle = low.midpoint(high);
            let place =
                self.placed.iter_from(middle).next().map_or(usize::MAX, |(rank, _)| self.before(rank));
            if place < start {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        merge(self.plain.iter_from(start - low), self.placed.iter_from(low))
    }

    /// The line in order from the one at this place on, if all who stand in it were plainly pushed: many neighbours by
    /// their ends.
    pub(super) fn upcoming(&self, start: usize) -> Option<impl Iterator<Item = Upcoming<B>>> {
        (self.placed.len() == 0).then(|| self.plain.upcoming(start))
    }

    /// The line in order, from its head.
    pub(super) fn iter(&self) -> impl Iterator<Item = Standing<B>> {
        merge(self.plain.iter(), self.placed.iter())
    }

    /// The one that has waited longest of the least urgent.
    pub(super) fn oldest_of_least_urgent(&self) -> Option<TaskId> {
        let (plain, placed) = (self.plain.first(), self.placed.first_of_last_lane());
        match (plain, placed) {
            (Some(plain), Some((rank, id)))
                if rank.lane > 0 || rank.lane == 0 && rank < Rank::plain(plain.id) =>
            {
                Some(id)
            }
            (Some(plain), _) => Some(plain.id),
            (None, placed) => placed.map(|(_, id)| id),
        }
    }
}

/// Two parts of the line as one.
fn merge<B: Body>(
    plain: impl Iterator<Item = Entry<B>>,
    placed: impl Iterator<Item = (Rank, TaskId)>,
) -> impl Iterator<Item = Standing<B>> {
    let mut plain = plain.peekable();
    let mut placed = placed.peekable();
    core::iter::from_fn(move || match placed.peek() {
        None => plain.next().map(Standing::Plain),
        Some((rank, _)) if plain.peek().is_some_and(|p| Rank::plain(p.id) < *rank) => {
            plain.next().map(Standing::Plain)
        }
        Some(_) => placed.next().map(|(_, id)| Standing::Placed(id)),
    })
}
