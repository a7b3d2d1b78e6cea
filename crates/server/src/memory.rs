//! The memory use of this process.

use std::fs;

/// Resident bytes, or 0 if the system does not report them.
pub(crate) fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").ok().and_then(|statm| {
        let resident = statm.split_ascii_whitespace().nth(1)?;
        resident.parse::<u64>().ok()
    });
    pages.unwrap_or(0) * 4096
}
