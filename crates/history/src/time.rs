//! Times that processes of one machine can compare.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Microseconds of the machine's monotonic clock, which is the same for all its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// Later than any real time.
    pub const NEVER: Self = Self(u64::MAX);

    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        Self(now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000)
    }

    /// A time in microseconds after the clock's start.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The time plus a duration.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }

    /// The time minus a duration.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// The number alone, as [`Time::from_str`] reads it.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Time {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_survives_as_text_and_never_goes_back() {
        let (first, second) = (Time::now(), Time::now());
        assert!(first <= second && Time::default() < first);
        assert_eq!(first.to_string().parse(), Ok(first));
        let millisecond = Duration::from_millis(1);
        assert_eq!(first.after(millisecond).before(millisecond), first);
    }
}
