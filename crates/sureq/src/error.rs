//! [`Error`]: why a home did not execute a command, and whether to retry.

use std::fmt;

use sureq_core::Refusal;

/// The result of a command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a home did not execute a command, or cannot confirm it.
///
/// | error | was it executed? | what to do |
/// |---|---|---|
/// | [`Refused`](Error::Refused) | no | change the command, or what the reason names |
/// | [`Unavailable`](Error::Unavailable) | no | retry with backoff |
/// | [`Unknown`](Error::Unknown) | perhaps | retry only what is idempotent: an ack by receipt, a push with a name |
/// | [`Closed`](Error::Closed) | no | open the home again |
/// | [`WorkerGone`](Error::WorkerGone), [`WorkerReplaced`](Error::WorkerReplaced) | no | start the worker again |
/// | [`Payload`](Error::Payload) | no | change the value |
///
/// ```
/// # use sureq::{Error, Id, Queue};
/// /// Retries a push. The name makes it idempotent.
/// async fn push_once(queue: &Queue, name: &str) -> Result<Id, Error> {
///     loop {
///         match queue.add("payload").name(name).await {
///             Err(error) if error.can_be_asked_again() || error.is_unknown() => {}
///             added => return Ok(added?.id),
///         }
///         tokio::time::sleep(std::time::Duration::from_secs(1)).await;
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # push_once(&sureq::open("mem:")?.queue("emails"), "ann").await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The home refused the command; nothing was changed.
    #[error("{0}")]
    Refused(Refusal),
    /// The home cannot be reached now; nothing was changed.
    #[error("nothing was done: {why}")]
    Unavailable {
        /// The reason.
        why: Box<str>,
    },
    /// The reply was lost, or the disk failed before the change was durable: the command may have been executed or not.
    #[error("outcome unknown: {why}")]
    Unknown {
        /// The reason.
        why: Box<str>,
    },
    /// The home is closed or has failed; nothing was changed. Open it again.
    #[error("{0}")]
    Closed(Refusal),
    /// The worker is no longer registered: its heartbeat was missed, or it was declared lost.
    #[error("{}", Refusal::WorkerGone)]
    WorkerGone,
    /// Another worker of the same name was started.
    #[error("{}", Refusal::WorkerReplaced)]
    WorkerReplaced,
    /// A value cannot be encoded, or a payload cannot be decoded.
    #[error("{0}")]
    Payload(BadPayload),
}

/// A payload that cannot be decoded, or a value that cannot be encoded.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the payload is not {what}: {why}")]
pub struct BadPayload {
    what: &'static str,
    why: Box<str>,
}

impl BadPayload {
    /// `what` names the expected content, as in "the payload is not JSON"; `why` says what is wrong.
    pub fn new(what: &'static str, why: &(impl fmt::Display + ?Sized)) -> Self {
        Self { what, why: why.to_string().into() }
    }
}

impl Error {
    /// Whether a retry is always safe: the command was not executed.
    pub const fn can_be_asked_again(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Whether the command may have been executed.
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }

    /// Whether the credentials were missing or wrong, or the user lacks the role.
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Refused(Refusal::Foreign { message: text }) | Self::Unavailable { why: text } => {
                is_denial(text)
            }
            _ => false,
        }
    }

    /// A reply that does not match the command.
    pub(crate) fn unexpected_reply() -> Self {
        Self::Unknown { why: "unexpected reply: the home may run an incompatible release".into() }
    }
}

/// The error codes for missing permissions, and their names in the Redis client.
const DENIALS: [&str; 5] = ["NOAUTH", "NOPERM", "WRONGPASS", "NoPerm", "AuthenticationFailed"];

/// Whether an error text contains such a code, possibly in quotes or after other words.
pub(crate) fn is_denial(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| DENIALS.contains(&word))
}

impl From<Refusal> for Error {
    fn from(no: Refusal) -> Self {
        match no {
            Refusal::Unavailable { why } => Self::Unavailable { why },
            Refusal::Unknown { why } => Self::Unknown { why },
            Refusal::Poisoned | Refusal::QueuePoisoned { .. } | Refusal::Closed => Self::Closed(no),
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
