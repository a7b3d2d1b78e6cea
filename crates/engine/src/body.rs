//! The handle of a payload.

use std::sync::Arc;

/// A payload that is in memory, shared by reference count. Replies, the line of waiting pops and the queue hold it
/// together without copying it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body(Arc<[u8]>);

impl From<&[u8]> for Body {
    fn from(payload: &[u8]) -> Self {
        Self(payload.into())
    }
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl sureq_core::task::Body for Body {
    fn len(&self) -> usize {
        self.0.len()
    }
}
