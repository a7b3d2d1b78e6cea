//! The clocks of this machine. Replies do not carry the server's time.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use sureq_core::{LogTime, Now, WallTime};

/// The clocks of this machine, read relative to the opening of a home.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    opened: Instant,
    opened_ms: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { opened: Instant::now(), opened_ms: wall_ms() }
    }

    /// Log time advances with the monotonic clock and never jumps, as on a server. It differs from the server's log
    /// time by as much as the clocks of the two machines differ.
    pub(crate) fn now(&self) -> Now {
        let passed = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { log: LogTime(self.opened_ms).after(passed), wall: WallTime(wall_ms()) }
    }
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
