//! Payloads in replies, in a library without the embedded home.

use sureq_seam::Payload;

/// A payload in a reply. With the feature `embedded` there are more kinds of it, and what is written for this one still compiles.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body {
    /// In memory.
    Loaded(Payload),
}

impl From<&[u8]> for Body {
    fn from(payload: &[u8]) -> Self {
        Self::Loaded(Payload::from(payload))
    }
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Loaded(payload) => payload.as_ref(),
        }
    }
}
