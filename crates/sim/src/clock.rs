//! The clocks of a machine whose time is simulated.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Instant;

use sureq_engine::clock::Clock;
use sureq_sync::now;
use sureq_testkit::manual_clock::ManualClock;

/// The clocks of one life of a store.
pub(crate) struct SimClock {
    /// When the first life began: its wall clock was right then.
    began: Instant,
    /// When this life began. Its monotonic clock starts here, as after a reboot of the machine.
    switched_on: Instant,
    /// How far the wall clock is ahead of the time that has passed, in milliseconds.
    ahead_ms: AtomicI64,
    is_stepped: AtomicBool,
}

impl SimClock {
    /// The clocks of a machine whose wall clock was right when the first life began.
    pub(crate) fn new(began: Instant, ahead_ms: i64) -> Self {
        let (ahead_ms, is_stepped) = (AtomicI64::new(ahead_ms), AtomicBool::new(false));
        Self { began, switched_on: now(), ahead_ms, is_stepped }
    }

    /// Sets the wall clock forward or back.
    pub(crate) fn step(&self, ms: i64) {
        self.ahead_ms.fetch_add(ms, Ordering::Relaxed);
        self.is_stepped.store(true, Ordering::Relaxed);
    }

    /// How far the wall clock is ahead, in milliseconds.
    pub(crate) fn ahead_ms(&self) -> i64 {
        self.ahead_ms.load(Ordering::Relaxed)
    }

    /// Whether it was set in this life.
    pub(crate) fn is_stepped(&self) -> bool {
        self.is_stepped.load(Ordering::Relaxed)
    }
}

impl Clock for SimClock {
    fn monotonic_us(&self) -> u64 {
        (now() - self.switched_on).as_micros() as u64
    }

    fn wall_us(&self) -> u64 {
        let passed = (now() - self.began).as_micros() as u64;
        (ManualClock::START_MS * 1_000 + passed).saturating_add_signed(self.ahead_ms() * 1_000)
    }
}
