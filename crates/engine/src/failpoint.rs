//! Places at which a test can end the process, as a crash would. Only in debug builds, controlled by the environment.
//!
//! `SUREQ_FAILPOINT=retire.before-unlink:3` ends it when it reaches that step for the third time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The chosen place, and the number of times that it is still to be reached.
struct Armed {
    name: String,
    left: AtomicU32,
}

/// Ends the process if this is the chosen place and time.
pub(crate) fn failpoint(name: &str) {
    static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
    if !cfg!(debug_assertions) {
        return;
    }
    let armed = ARMED.get_or_init(|| {
        let asked = std::env::var("SUREQ_FAILPOINT").ok()?;
        let (name, time) = asked.split_once(':')?;
        Some(Armed { name: name.to_owned(), left: AtomicU32::new(time.parse().ok()?) })
    });
    if let Some(armed) = armed
        && armed.name == name
        && armed.left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        std::process::abort();
    }
}
