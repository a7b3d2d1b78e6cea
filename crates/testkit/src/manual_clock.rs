//! A manual clock: the simulated twin of the engine's system clock.

use std::sync::atomic::{AtomicU64, Ordering};

use sureq_engine::clock::Clock;

/// Both clocks of a machine, which stand still until they are moved.
#[derive(Debug)]
pub struct ManualClock {
    monotonic_ms: AtomicU64,
    wall_ms: AtomicU64,
}

impl ManualClock {
    /// The first of January 2026, 00:00 UTC: when simulated machines are switched on.
    pub const START_MS: u64 = 1_767_225_600_000;

    /// Clocks of a machine that was switched on at this time.
    pub const fn starting_at(wall_ms: u64) -> Self {
        Self { monotonic_ms: AtomicU64::new(0), wall_ms: AtomicU64::new(wall_ms) }
    }

    /// Lets time pass.
    pub fn pass(&self, ms: u64) {
        self.monotonic_ms.fetch_add(ms, Ordering::SeqCst);
        self.wall_ms.fetch_add(ms, Ordering::SeqCst);
    }

    /// Sets the wall clock forward or back.
    pub fn jump(&self, ms: i64) {
        let moved = |wall: u64| Some(wall.saturating_add_signed(ms));
        // The update never fails.
        let _ = self.wall_ms.fetch_update(Ordering::SeqCst, Ordering::SeqCst, moved);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::starting_at(Self::START_MS)
    }
}

impl Clock for ManualClock {
    fn monotonic_us(&self) -> u64 {
        self.monotonic_ms.load(Ordering::SeqCst) * 1_000
    }

    fn wall_us(&self) -> u64 {
        self.wall_ms.load(Ordering::SeqCst).saturating_mul(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_wall_clock_jumps() {
        let clock = ManualClock::default();
        clock.pass(5);
        clock.jump(-1_000);
        assert_eq!((clock.monotonic_us(), clock.wall_ms()), (5_000, ManualClock::START_MS - 995));
        clock.jump(i64::MIN);
        assert_eq!(clock.wall_ms(), 0);
    }
}
