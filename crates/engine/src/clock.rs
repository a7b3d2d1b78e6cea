//! The only access to the machine's clocks.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use sureq_core::{LogTime, Now, WallTime};

/// A machine's clocks.
pub trait Clock: Send + Sync {
    /// Milliseconds since an arbitrary moment. Never goes back.
    fn monotonic_ms(&self) -> u64;
    /// Unix milliseconds by the wall clock, which may be set.
    fn wall_ms(&self) -> u64;
}

/// This machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { origin: sureq_sync::now() }
    }
}

impl Clock for SystemClock {
    fn monotonic_ms(&self) -> u64 {
        u64::try_from(sureq_sync::elapsed(self.origin).as_millis()).unwrap_or(u64::MAX)
    }

    fn wall_ms(&self) -> u64 {
        // Before 1970 is 1970: no id or deadline is older.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Log time: begins at the last logged time or the wall clock, whichever is later, and is monotonic from there.
#[derive(Clone)]
pub(crate) struct LogClock {
    clock: Arc<dyn Clock>,
    start: LogTime,
    origin_ms: u64,
}

impl LogClock {
    pub(crate) fn starting(clock: Arc<dyn Clock>, last_logged: LogTime) -> Self {
        let start = LogTime(clock.wall_ms().max(last_logged.0));
        let origin_ms = clock.monotonic_ms();
        Self { clock, start, origin_ms }
    }

    pub(crate) fn now(&self) -> Now {
        let passed = self.clock.monotonic_ms().saturating_sub(self.origin_ms);
        Now { log: self.start.after(passed), wall: WallTime(self.clock.wall_ms()) }
    }
}
