//! Waiting for what gives no signal of its own.

use std::time::{Duration, Instant};

/// How long anything may take that should take no time. Only a hang gets there.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Returns once it is so. Whoever knows is asked again and again; there is no other signal to wait for.
///
/// # Panics
///
/// If it does not come to that.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "it never came to that: {what}");
        std::thread::yield_now();
    }
}
