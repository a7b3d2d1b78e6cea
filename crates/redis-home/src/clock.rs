//! Log time, carried by those who use it.
//!
//! Redis has no clock but the one on the wall, which may be set. Every script therefore says what log time it was, and whoever
//! heard it counts on from there by a clock that cannot be set, and says so with its next script. Where the two differ by more
//! than a second, the wall clock was set, and log time goes on as if it had not been.

use std::cell::Cell;
use std::time::SystemTime;

use rustix::time::{ClockId, clock_gettime};

/// The clocks that a home goes by.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since any point in time; never goes back and cannot be set.
    fn monotonic_ms(&self) -> u64;

    /// What the wall clock is to say instead of what Redis' own says: tests move time by it.
    fn wall_ms(&self) -> Option<u64> {
        None
    }
}

/// The clock of this machine. It goes on while the machine sleeps.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn monotonic_ms(&self) -> u64 {
        let now = clock_gettime(ClockId::Boottime);
        now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000
    }
}

/// What the wall clock of this machine says.
pub(crate) fn system_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// What a home knows of log time.
#[derive(Debug, Default)]
pub(crate) struct LogClock {
    /// Log time less monotonic time, as far as any answer told.
    ahead: Cell<Option<u64>>,
}

impl LogClock {
    /// Takes in what an answer said. Answers take their time, so that the one that says most is nearest to the truth.
    pub(crate) fn hear(&self, log_ms: u64, monotonic_ms: u64) {
        let ahead = log_ms.saturating_sub(monotonic_ms);
        if self.ahead.get().is_none_or(|known| ahead > known) {
            self.ahead.set(Some(ahead));
        }
    }

    /// What log time it is; zero if nobody has said yet.
    pub(crate) fn now_ms(&self, monotonic_ms: u64) -> u64 {
        self.ahead.get().map_or(0, |ahead| ahead + monotonic_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_that_took_the_shortest_way_is_believed() {
        let clock = LogClock::default();
        assert_eq!(clock.now_ms(5), 0);
        clock.hear(1_000_100, 150);
        assert_eq!(clock.now_ms(150), 1_000_100);
        clock.hear(1_000_200, 210);
        assert_eq!(clock.now_ms(210), 1_000_200);
        clock.hear(1_000_300, 900);
        assert_eq!(clock.now_ms(900), 1_000_890);
    }
}
