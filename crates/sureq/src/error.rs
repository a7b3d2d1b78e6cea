//! What can go wrong, and what to do about it.

use std::fmt;

use sureq_core::Refusal;

/// The result of asking a home.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a home did not do what it was asked.
///
/// The kinds differ in what a caller can do: after [`Error::Refused`] nothing was changed, and asking the same again gets the
/// same answer until something else changes; after [`Error::Unavailable`] nothing was changed, and the same may be asked again;
/// after [`Error::Unknown`] it may have been done, and only what may be done twice may be asked again: a push could make a second
/// task, unless it has a name; an ack by receipt harms nothing. After [`Error::Over`] nothing was changed either, and nothing will
/// be until the home is opened again; what was under way when its disk failed is [`Error::Unknown`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The home says no.
    #[error("{0}")]
    Refused(Refusal),
    /// The home cannot be asked now.
    #[error("nothing was done: {why}")]
    Unavailable {
        /// Why not, and what to do.
        why: Box<str>,
    },
    /// The home was asked, and its answer is lost, or its disk failed before the answer was true.
    #[error("it may have been done or not: {why}")]
    Unknown {
        /// What happened.
        why: Box<str>,
    },
    /// The home was closed, or confirms nothing any more, and did nothing. It has to be opened again.
    #[error("{0}")]
    Over(Refusal),
    /// The worker that this was asked for is no longer alive.
    #[error("{}", Refusal::WorkerGone)]
    WorkerGone,
    /// Another worker of the same name was started since.
    #[error("{}", Refusal::WorkerReplaced)]
    WorkerReplaced,
    /// A value could not be made a payload, or a payload a value.
    #[error("{0}")]
    Payload(BadPayload),
}

/// Bytes that are not what they should be, or a value that cannot be made bytes.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the payload is not {what}: {why}")]
pub struct BadPayload {
    what: &'static str,
    why: Box<str>,
}

impl BadPayload {
    /// What it should have been, and why it is not.
    pub fn new(what: &'static str, why: &(impl fmt::Display + ?Sized)) -> Self {
        Self { what, why: why.to_string().into() }
    }
}

impl Error {
    /// Whether asking the same again is safe and may help: nothing was done.
    pub const fn can_be_asked_again(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Whether it may have been done.
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }

    /// Whether the home refused because of who asks: no login, a wrong one, or one without the right.
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Refused(Refusal::Said { words: text }) | Self::Unavailable { why: text } => is_denial(text),
            _ => false,
        }
    }

    /// An answer that does not fit the question.
    pub(crate) fn out_of_turn() -> Self {
        Self::Unknown {
            why: "the home answered something else than was asked: is it of another release?".into(),
        }
    }
}

/// The codes with which servers refuse because of who asks, and what the Redis client makes of some of them.
const DENIALS: [&str; 5] = ["NOAUTH", "NOPERM", "WRONGPASS", "NoPerm", "AuthenticationFailed"];

/// Whether an error text is such a refusal. The code may be in quotes or behind other words.
pub(crate) fn is_denial(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| DENIALS.contains(&word))
}

impl From<Refusal> for Error {
    fn from(no: Refusal) -> Self {
        match no {
            Refusal::Unavailable { why } => Self::Unavailable { why },
            Refusal::Unknown { why } => Self::Unknown { why },
            Refusal::Poisoned | Refusal::Closed => Self::Over(no),
            Refusal::WorkerGone => Self::WorkerGone,
            Refusal::WorkerReplaced => Self::WorkerReplaced,
            no => Self::Refused(no),
        }
    }
}

impl From<BadPayload> for Error {
    fn from(bad: BadPayload) -> Self {
        Self::Payload(bad)
    }
}
