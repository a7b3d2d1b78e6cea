//! The allocator of the process and its settings: the only unsafe code of the command.

#![expect(unsafe_code, reason = "the settings of the allocator are C functions without a safe wrapper")]

use std::ffi::{c_int, c_long};

// Small payloads and connection buffers are allocated at a high rate; the system's allocator costs twice the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of mimalloc's option `purge_delay`, which the bindings do not name.
const PURGE_DELAY: c_int = 15;

/// The delay until free memory is returned to the system. Memory that is reused sooner costs nothing extra.
const PURGE_DELAY_MS: c_long = 10;

/// Makes the allocator return free memory soon. With its default delay it returns hardly any: it checks delays only
/// when it is called, and an idle server does not call it. Call this first, since memory that is free already keeps
/// its earlier delay. `MIMALLOC_PURGE_DELAY` takes precedence.
pub(crate) fn return_memory_soon() {
    // SAFETY: it takes two numbers by value, checks the first, and may be called at any time.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) }
}

/// Returns all free memory now: a start reads more than it keeps in memory.
pub(crate) fn return_memory_now() {
    // SAFETY: it takes a flag, and may be called at any time, by any thread.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number is not part of the bindings and may change with a release.
    #[test]
    fn the_number_of_the_option_is_right() {
        // SAFETY: as above.
        let before = unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(
            before, 1000,
            "this release has another default: look up the number of the option in its source"
        );
        return_memory_soon();
        // SAFETY: as above.
        assert_eq!(unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) }, PURGE_DELAY_MS);
    }
}
