//! Waiting for conditions that give no signal.

use std::thread;
use std::time::{Duration, Instant};

/// The limit for anything that should be immediate; only a hang reaches it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Checks without a pause at first; after that with a pause, which leaves the CPU to the awaited work.
const LOOKS_AT_ONCE: usize = 1_000;
const INTERVAL: Duration = Duration::from_millis(1);

/// Polls a condition until it holds, for conditions without a signal.
///
/// # Panics
///
/// If it does not hold within [`PATIENCE`].
pub fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_within(what, PATIENCE, is_so);
}

/// The same with another limit.
///
/// # Panics
///
/// If it does not hold within `patience`.
pub fn until_within(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) {
    let (since, mut looks) = (Instant::now(), 0);
    while !is_so() {
        assert!(since.elapsed() < patience, "the condition was never met: {what}");
        looks += 1;
        if looks < LOOKS_AT_ONCE { thread::yield_now() } else { thread::sleep(INTERVAL) }
    }
}
