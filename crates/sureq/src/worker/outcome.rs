//! What a handler makes of its task.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// What becomes of a task after its handler ran.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is finished.
    Done,
    /// The try failed: it comes again, or is dead if that was its last.
    Failed {
        /// Why.
        reason: Cow<'static, str>,
        /// When it comes again.
        again: Again,
    },
    /// It is dead, whatever tries are left.
    Dead {
        /// Why.
        reason: Cow<'static, str>,
    },
    /// It goes back at no cost of a try, to come again after so long; at once, and before others, if that is none.
    GiveBack {
        /// How long it waits.
        after: Duration,
    },
    /// It was cancelled, and the handler stopped because of it: it is gone.
    Cancelled,
}

/// When a task whose try failed comes again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Again {
    /// After its backoff, which doubles from failure to failure.
    #[default]
    Backoff,
    /// At once.
    Now,
    /// After so long.
    After(Duration),
}

/// A failed try, as an error: what a handler returns with `?`.
///
/// Every error becomes one that is tried again after the backoff. To say more, make one:
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
    /// To be tried again after the backoff.
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self(Outcome::Failed { reason: reason.into(), again: Again::Backoff })
    }

    /// To be tried again at once.
    pub fn again_now(reason: impl Into<Cow<'static, str>>) -> Self {
        Self(Outcome::Failed { reason: reason.into(), again: Again::Now })
    }

    /// To be tried again after so long.
    pub fn again_after(reason: impl Into<Cow<'static, str>>, after: Duration) -> Self {
        Self(Outcome::Failed { reason: reason.into(), again: Again::After(after) })
    }

    /// Not to be tried again.
    pub fn dead(reason: impl Into<Cow<'static, str>>) -> Self {
        Self(Outcome::Dead { reason: reason.into() })
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// This is why a [`Failure`] is not an error itself: it would be one of those it is made of.
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(told(&*error.into()))
    }
}

/// An error with what caused it.
pub(super) fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Many errors say what caused them in their own words already.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// What handlers may return.
pub trait IntoOutcome {
    /// What it means for the task.
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
    fn what_handlers_return_is_an_outcome() {
        assert_eq!(().into_outcome(), Outcome::Done);
        assert_eq!(Ok::<_, Failure>(Outcome::Cancelled).into_outcome(), Outcome::Cancelled);
        assert_eq!(Err::<(), _>("no").into_outcome(), failed("no"));
        let not_a_number = "x".parse::<u8>().map(|_| ());
        assert_eq!(not_a_number.into_outcome(), failed("invalid digit found in string"));
        assert_eq!(Err::<(), _>(Failure::dead("x")).into_outcome(), Outcome::Dead { reason: "x".into() });
    }

    #[test]
    fn a_failure_tells_its_causes_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot send")]
        struct Outer(#[source] std::num::ParseIntError);
        let error = Outer("x".parse::<u8>().unwrap_err());
        assert_eq!(told(&error), "cannot send: invalid digit found in string");
    }
}
