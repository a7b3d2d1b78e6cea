//! The only access of the engine to the machine's clocks.
//!
//! The core counts whole milliseconds, the clocks here microseconds: the fraction is cut off once, when the time is
//! read. Adding up truncated milliseconds would let log time gain on real time at every start, and tasks would become
//! due early.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sureq_core::{LogTime, Now, WallTime};

/// A machine's clocks, in microseconds.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary moment. Never goes back and cannot be set.
    fn monotonic_us(&self) -> u64;
    /// Unix time. The machine's owner may set it, forward and back.
    fn wall_us(&self) -> u64;

    /// Unix time in whole milliseconds.
    fn wall_ms(&self) -> u64 {
        self.wall_us() / 1_000
    }
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
    fn monotonic_us(&self) -> u64 {
        micros(sureq_sync::elapsed(self.origin))
    }

    fn wall_us(&self) -> u64 {
        // A time before 1970 counts as 1970: no id or deadline is older.
        micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Log time: begins at the last logged time or at the wall clock's, whichever is later, and follows the monotonic
/// clock.
#[derive(Clone)]
pub(crate) struct LogClock {
    clock: Arc<dyn Clock>,
    start_us: u64,
    origin_us: u64,
}

impl LogClock {
    pub(crate) fn starting(clock: Arc<dyn Clock>, last_logged: LogTime) -> Self {
        let start_us = clock.wall_us().max(last_logged.0.saturating_mul(1_000));
        let origin_us = clock.monotonic_us();
        Self { clock, start_us, origin_us }
    }

    pub(crate) fn now(&self) -> Now {
        let passed_us = self.clock.monotonic_us().saturating_sub(self.origin_us);
        let log = LogTime(self.start_us.saturating_add(passed_us) / 1_000);
        Now { log, wall: WallTime(self.clock.wall_ms()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Real time, and a monotonic clock that restarts at each boot of the machine.
    struct Real {
        us: AtomicU64,
        booted_us: AtomicU64,
    }

    impl Clock for Real {
        fn monotonic_us(&self) -> u64 {
            self.wall_us() - self.booted_us.load(Ordering::Relaxed)
        }

        fn wall_us(&self) -> u64 {
            self.us.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn log_time_never_gains_on_real_time_over_any_number_of_starts() {
        let mut random = fastrand::Rng::with_seed(7);
        let began_us = 1_794_786_425_000_999;
        let real = Arc::new(Real { us: AtomicU64::new(began_us), booted_us: AtomicU64::new(began_us - 5) });
        let mut clock = LogClock::starting(Arc::clone(&real) as Arc<dyn Clock>, LogTime(0));
        let first = clock.now().log;
        let mut last = first;
        for _ in 0..10_000 {
            real.us.fetch_add(random.u64(..3_000), Ordering::Relaxed);
            if random.u8(..4) == 0 {
                real.booted_us.store(real.wall_us() - random.u64(..5_000), Ordering::Relaxed);
                clock = LogClock::starting(Arc::clone(&real) as Arc<dyn Clock>, last);
            }
            let now = clock.now().log;
            assert!(now >= last, "log time went back from {last} to {now}");
            last = now;
            let (passed_us, counted_us) = (real.wall_us() - began_us, now.since(first) * 1_000);
            assert!(counted_us <= passed_us + 999, "{counted_us} us were counted in {passed_us}");
            assert!(counted_us + 999 >= passed_us, "{counted_us} us were counted in {passed_us}");
        }
    }
}
