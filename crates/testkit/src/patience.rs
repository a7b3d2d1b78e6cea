//! Waiting for what gives no signal of its own.

use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take that should take no time. Only a hang gets there.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What is soon so is seen at once; for the rest, a look now and then leaves the machine to those who are to bring it about.
const LOOKS_AT_ONCE: usize = 1_000;
const NAP: Duration = Duration::from_millis(1);

/// Returns once it is so. Whoever knows is asked again and again; there is no other signal to wait for.
///
/// # Panics
///
/// If it does not come to that.
pub fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_within(what, PATIENCE, is_so);
}

/// The same for what takes longer.
///
/// # Panics
///
/// If it does not come to that.
pub fn until_within(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) {
    let (since, mut looks) = (Instant::now(), 0);
    while !is_so() {
        assert!(since.elapsed() < patience, "it never came to that: {what}");
        looks += 1;
        if looks < LOOKS_AT_ONCE { thread::yield_now() } else { thread::sleep(NAP) }
    }
}
