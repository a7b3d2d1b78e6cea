//! The clocks of this machine, since replies carry nothing of the server's.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use sureq_core::{LogTime, Now, WallTime};

/// The clocks of this machine, since a home was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    opened: Instant,
    opened_ms: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { opened: Instant::now(), opened_ms: wall_ms() }
    }

    /// Log time never leaps, as on a server; it is near the server's as far as the two machines agree.
    pub(crate) fn now(&self) -> Now {
        let passed = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { log: LogTime(self.opened_ms).after(passed), wall: WallTime(wall_ms()) }
    }
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
