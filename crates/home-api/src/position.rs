//! Positions: points in the sequence of a home's changes.

use std::fmt;

/// A point in the sequence of events: how many events come before it.
///
/// A batch of three events that begins at position 5 ends at position 8; "durable up to 8" means that all three are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// The beginning of a new store. It is always durable, so homes that answer only what is durable use it everywhere.
    pub const START: Position = Position(0);

    /// No log gets near it; a file that contains a larger one is damaged.
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
