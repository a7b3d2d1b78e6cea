//! Results of handlers.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The result of a handler: what happens to its task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The task is finished.
    Done,
    /// The try failed: the task is retried, or dead if that was its last try.
    Failed {
        /// The reason, which is stored with the task.
        reason: Cow<'static, str>,
        /// When it is retried.
        again: Again,
    },
    /// The task is dead, even if tries are left.
    Dead {
        /// The reason, which is stored with the task.
        reason: Cow<'static, str>,
    },
    /// The task is returned at no cost of a try and redelivered after this time; after zero, it goes to the front of
    /// the queue.
    Requeue {
        /// The delay.
        after: Duration,
    },
    /// The handler stopped because the task was cancelled; the task is deleted.
    ///
    /// If the handler's [`Token`](crate::Token) fired for another reason, such as that the worker stops, the task is
    /// not deleted: it is returned to the front at no cost. A handler that stops for any reason may so return
    /// `Cancelled` without losing its task.
    Cancelled,
}

/// When a failed task is retried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Again {
    /// After its backoff, which doubles with each failure.
    #[default]
    Backoff,
    /// At once.
    Now,
    /// After this time.
    After(Duration),
}

/// The error of a handler: a failed try.
///
/// With `?` every error becomes a failure that is retried after the backoff. The constructors choose something else:
///
/// ```
/// use sureq::{Failure, Json};
/// use std::time::Duration;
///
/// async fn send(Json(to): Json<String>) -> Result<(), Failure> {
///     if !to.contains('@') {
///         return Err(Failure::dead("no address"));
///     }
///     let port: u16 = "25".parse()?;
///     if port == 0 {
///         return Err(Failure::again_after("busy", Duration::from_secs(5)));
///     }
///     Ok(())
/// }
/// ```
pub struct Failure(Outcome);

impl Failure {
    /// Retries the task after its backoff.
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self(Outcome::Failed { reason: reason.into(), again: Again::Backoff })
    }

    /// Retries the task at once.
    pub fn again_now(reason: impl Into<Cow<'static, str>>) -> Self {
        Self(Outcome::Failed { reason: reason.into(), again: Again::Now })
    }

    /// Retries the task after this time.
    pub fn again_after(reason: impl Into<Cow<'static, str>>, after: Duration) -> Self {
        Self(Outcome::Failed { reason: reason.into(), again: Again::After(after) })
    }

    /// Makes the task dead, without further tries.
    pub fn dead(reason: impl Into<Cow<'static, str>>) -> Self {
        Self(Outcome::Dead { reason: reason.into() })
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Because of this conversion, [`Failure`] itself cannot implement [`Error`].
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error_text(&*error.into()))
    }
}

/// The text of an error with its causes.
pub(super) fn error_text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Many errors contain the text of their cause already.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// A type that handlers may return.
pub trait IntoOutcome {
    /// Converts the value.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }
}

impl<T: IntoOutcome, E: Into<Failure>> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            Err(error) => error.into().0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(reason: &str) -> Outcome {
        Outcome::Failed { reason: reason.to_owned().into(), again: Again::Backoff }
    }

    #[test]
    fn results_of_handlers_become_outcomes() {
        assert_eq!(().into_outcome(), Outcome::Done);
        assert_eq!(Ok::<_, Failure>(Outcome::Cancelled).into_outcome(), Outcome::Cancelled);
        assert_eq!(Err::<(), _>("no").into_outcome(), failed("no"));
        let not_a_number = "x".parse::<u8>().map(|_| ());
        assert_eq!(not_a_number.into_outcome(), failed("invalid digit found in string"));
        assert_eq!(Err::<(), _>(Failure::dead("x")).into_outcome(), Outcome::Dead { reason: "x".into() });
    }

    #[test]
    fn the_text_of_a_failure_contains_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot send")]
        struct Outer(#[source] std::num::ParseIntError);
        let error = Outer("x".parse::<u8>().unwrap_err());
        assert_eq!(error_text(&error), "cannot send: invalid digit found in string");
    }
}
