//! Where in a log something stands, payloads in memory, and what came of a batch of commands.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A point in the sequence of events: how many events come before it.
///
/// A batch of three events that begins at position 5 ends at position 8; "durable up to 8" means that all three are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// Where the log of a new store begins.
    pub const START: Position = Position(0);

    /// No log gets near it; a file that says so is damaged.
    pub const MAX: Position = Position(u64::MAX / 2);

    /// The position after `events` more, or none beyond the largest.
    pub fn after(self, events: u32) -> Option<Position> {
        let after = self.0.checked_add(u64::from(events)).map(Position)?;
        (after <= Position::MAX).then_some(after)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Bytes in memory, a stretch of a shared buffer. Replies and caches hold them together without copying them.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    buffer: Arc<[u8]>,
    start: u32,
    len: u32,
}

impl Payload {
    /// A stretch of a buffer.
    pub fn within(buffer: &Arc<[u8]>, range: Range<usize>) -> Self {
        Self::new(Arc::clone(buffer), range)
    }

    /// A stretch of a buffer that the caller holds for it.
    pub fn new(buffer: Arc<[u8]>, range: Range<usize>) -> Self {
        debug_assert!(range.end <= buffer.len(), "a payload lies within its buffer");
        Self { buffer, start: range.start as u32, len: range.len() as u32 }
    }

    /// The bytes of the buffer that it is a stretch of, with the two counters that stand before it.
    pub fn owned_bytes(&self) -> usize {
        2 * size_of::<usize>() + self.buffer.len()
    }
}

impl From<&[u8]> for Payload {
    fn from(payload: &[u8]) -> Self {
        Self { buffer: payload.into(), start: 0, len: payload.len() as u32 }
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[self.start as usize..][..self.len as usize]
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_ref(), f)
    }
}

/// What came of a batch of commands, with whatever a home gives for an answer that is not there yet.
#[derive(Debug)]
#[must_use = "replies may leave only when what they tell is durable"]
pub struct Executed<T> {
    /// How many were executed. The next one waits if there is a ticket. Otherwise there is a reason to hold back: the
    /// replies have grown large, and the rest is to be executed once they have left; or `hold` says what to wait for.
    pub done: usize,
    /// What must be durable before the replies leave.
    pub position: Position,
    /// Where the answer to the next command, and maybe to some behind it, will come from.
    pub ticket: Option<T>,
    /// Pops that waited got something out of it. They have waited longer than whoever executed this.
    pub served: bool,
    /// So much waits to be written that the caller should not send more before this is durable.
    pub hold: Option<Position>,
}

impl<T> Executed<T> {
    /// The same with another kind of ticket.
    pub fn map_ticket<U>(self, map: impl FnOnce(T) -> U) -> Executed<U> {
        let Self { done, position, ticket, served, hold } = self;
        Executed { done, position, ticket: ticket.map(map), served, hold }
    }
}
