//! The line of ready tasks.
//!
//! Almost all of them were plainly pushed and stand in the order of their ids: those are a deque of small entries
//! and need no record. Whatever came to the line another way (returned, due, revived, with a priority or a name)
//! has a record in the table and a [`Rank`] here. Both parts are sorted by rank; the head is the smaller of the two.

use alloc::collections::{BTreeMap, VecDeque};

use crate::id::TaskId;
use crate::task::{Body, Rank};
use crate::time::LogTime;

/// Tombstones tolerated before the deque is packed.
const TOMBS_MIN: usize = 64;

/// A plainly pushed task that nobody has touched yet.
#[derive(Clone, Debug)]
pub(super) struct Plain<B> {
    pub(super) id: TaskId,
    pub(super) pushed: LogTime,
    /// `None` once it was taken from the middle.
    body: Option<B>,
}

impl<B> Plain<B> {
    pub(super) fn body(&self) -> Option<&B> {
        self.body.as_ref()
    }
}

/// The line.
#[derive(Clone, Debug)]
pub(super) struct Ready<B> {
    /// Sorted by id. Neither end is a tombstone.
    plain: VecDeque<Plain<B>>,
    tombs: usize,
    placed: BTreeMap<Rank, TaskId>,
}

impl<B> Default for Ready<B> {
    fn default() -> Self {
        Self { plain: VecDeque::new(), tombs: 0, placed: BTreeMap::new() }
    }
}

/// One in the line: a plain entry, or the id of a record.
#[derive(Debug)]
pub(super) enum Standing<'r, B> {
    Plain(&'r Plain<B>),
    Placed(TaskId),
}

impl<B> Standing<'_, B> {
    pub(super) fn id(&self) -> TaskId {
        match self {
            Self::Plain(plain) => plain.id,
            Self::Placed(id) => *id,
        }
    }
}

impl<B: Body> Ready<B> {
    pub(super) fn len(&self) -> usize {
        self.plain.len() - self.tombs + self.placed.len()
    }

    pub(super) fn plain_len(&self) -> usize {
        self.plain.len() - self.tombs
    }

    /// Adds a plain task. Ids only grow, which keeps the deque sorted.
    pub(super) fn push(&mut self, id: TaskId, pushed: LogTime, body: B) {
        debug_assert!(self.plain.back().is_none_or(|last| last.id < id), "ids grow");
        self.plain.push_back(Plain { id, pushed, body: Some(body) });
    }

    /// Whether this plain push would keep the deque sorted; what is imported out of order gets a record instead.
    pub(super) fn takes(&self, id: TaskId) -> bool {
        self.plain.back().is_none_or(|last| last.id < id)
    }

    pub(super) fn place(&mut self, rank: Rank, id: TaskId) {
        let before = self.placed.insert(rank, id);
        debug_assert!(before.is_none(), "a rank is given once");
    }

    pub(super) fn is_taken(&self, rank: Rank) -> bool {
        self.placed.contains_key(&rank)
    }

    pub(super) fn unplace(&mut self, rank: Rank) {
        let found = self.placed.remove(&rank);
        debug_assert!(found.is_some(), "what is taken from the line stands in it");
    }

    /// Takes a plain task out, wherever it stands: its push time and its body.
    pub(super) fn take_plain(&mut self, id: TaskId) -> Option<(LogTime, B)> {
        if self.plain.front()?.id == id {
            let head = self.plain.pop_front()?;
            self.trim();
            return Some((head.pushed, head.body?));
        }
        let at = self.plain.binary_search_by_key(&id, |plain| plain.id).ok()?;
        let plain = &mut self.plain[at];
        let taken = (plain.pushed, plain.body.take()?);
        self.tombs += 1;
        self.trim();
        if self.tombs > TOMBS_MIN && self.tombs > self.plain.len() / 2 {
            self.plain.retain(|plain| plain.body.is_some());
            self.tombs = 0;
        }
        Some(taken)
    }

    fn trim(&mut self) {
        while self.plain.front().is_some_and(|plain| plain.body.is_none()) {
            self.plain.pop_front();
            self.tombs -= 1;
        }
        while self.plain.back().is_some_and(|plain| plain.body.is_none()) {
            self.plain.pop_back();
            self.tombs -= 1;
        }
        if self.plain.is_empty() && self.plain.capacity() > 4096 {
            self.plain = VecDeque::new();
        }
    }

    pub(super) fn find_plain(&self, id: TaskId) -> Option<&Plain<B>> {
        let at = self.plain.binary_search_by_key(&id, |plain| plain.id).ok()?;
        self.plain.get(at).filter(|plain| plain.body.is_some())
    }

    pub(super) fn plain_body_mut(&mut self, id: TaskId) -> Option<&mut B> {
        let at = self.plain.binary_search_by_key(&id, |plain| plain.id).ok()?;
        self.plain[at].body.as_mut()
    }

    /// The line in order. Skipping to a place within a line of untouched plain tasks is immediate.
    pub(super) fn iter_from(&self, start: usize) -> impl Iterator<Item = Standing<'_, B>> {
        let at_once = self.placed.is_empty() && self.tombs == 0;
        let (jump, walk) = if at_once { (start.min(self.plain.len()), 0) } else { (0, start) };
        let mut plain = self.plain.range(jump..).filter(|plain| plain.body.is_some()).peekable();
        let mut placed = self.placed.iter().peekable();
        core::iter::from_fn(move || match (plain.peek(), placed.peek()) {
            (Some(p), Some((rank, _))) if Rank::plain(p.id) < **rank => plain.next().map(Standing::Plain),
            (_, Some(_)) => placed.next().map(|(_, &id)| Standing::Placed(id)),
            (_, None) => plain.next().map(Standing::Plain),
        })
        .skip(walk)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Standing<'_, B>> {
        self.iter_from(0)
    }
}
