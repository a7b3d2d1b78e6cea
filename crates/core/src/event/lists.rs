//! Lists in events, from a decision or encoded in the log.

use core::fmt;

use crate::codec::{EncodedIds, EncodedPayloads};
use crate::id::TaskId;

/// Payloads, from a command or from the log.
#[derive(Clone, Copy, Debug)]
pub enum Payloads<'a> {
    /// The payloads of a command.
    Slices(&'a [&'a [u8]]),
    /// Payloads in the encoding of the log.
    Encoded(EncodedPayloads<'a>),
}

impl<'a> Payloads<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Slices(slices) => slices.len(),
            Self::Encoded(encoded) => encoded.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> {
        let (slices, encoded) = match *self {
            Self::Slices(slices) => (slices, EncodedPayloads::EMPTY),
            Self::Encoded(encoded) => (&[][..], encoded),
        };
        slices.iter().copied().chain(encoded)
    }
}

impl PartialEq for Payloads<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// Ids, from a decision or from the log.
#[derive(Clone, Copy)]
pub enum Ids<'a> {
    /// The ids of a decision.
    Slice(&'a [TaskId]),
    /// Ids in the encoding of the log.
    Encoded(EncodedIds<'a>),
}

impl<'a> Ids<'a> {
    pub fn count(&self) -> usize {
        match self {
            Self::Slice(slice) => slice.len(),
            Self::Encoded(encoded) => (*encoded).count(),
        }
    }

    /// Iterates in order.
    pub fn iter(&self) -> impl Iterator<Item = TaskId> + 'a {
        let (slice, encoded) = match *self {
            Self::Slice(slice) => (slice, EncodedIds::EMPTY),
            Self::Encoded(encoded) => (&[][..], encoded),
        };
        slice.iter().copied().chain(encoded)
    }
}

impl PartialEq for Ids<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Ids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
