//! Points in time, in milliseconds, by the clock they belong to.
//!
//! While a store is open, log time never goes back, stops or jumps. Wall time can be set to any value by the
//! administrator of the machine. The two are different types, so that no deadline is ever compared with the wrong
//! clock.

use core::fmt;

/// Log time: unix milliseconds at the start of the store, monotonic from then on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogTime(pub u64);

/// The wall clock, in unix milliseconds. Only `AT` follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(pub u64);

/// The current time by both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Delays, leases and times to live follow this one.
    pub log: LogTime,
    /// Tasks with `AT` follow this one.
    pub wall: WallTime,
}

impl LogTime {
    /// The time `ms` later; saturates instead of wrapping around.
    #[must_use]
    pub const fn after(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds since `earlier`, or zero if that is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for LogTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
