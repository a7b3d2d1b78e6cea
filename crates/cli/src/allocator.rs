//! The allocator of the process, and the door to how it is set: the only unsafe code of the command.

#![expect(unsafe_code, reason = "the settings of the allocator are C, and nobody has a safe way to them")]

use std::ffi::{c_int, c_long};

// Small payloads and connection buffers come and go at a high rate; the system's allocator costs twice the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of mimalloc's option `purge_delay`, which its bindings do not name.
const PURGE_DELAY: c_int = 15;

/// After how long memory that is free goes back to the system. What is needed again sooner costs no more than before.
const PURGE_DELAY_MS: c_long = 10;

/// Has free memory go back to the system soon. After its usual ten seconds hardly any ever does: it looks for what has waited
/// long enough only when it is called, and a server that has just been filled calls it no more. To be called before anything
/// else, because what is free already waits as long as was said then. Whoever sets `MIMALLOC_PURGE_DELAY` has the last word.
pub(crate) fn return_memory_soon() {
    // SAFETY: it takes two numbers by value, checks the first, and may be called at any time.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) }
}

/// Has all free memory go back now: after a start, which has read more than it keeps.
pub(crate) fn return_memory_now() {
    // SAFETY: it takes a flag, and may be called at any time, by any thread.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number is not part of the bindings; another release may count otherwise.
    #[test]
    fn the_option_is_the_one_that_is_meant() {
        // SAFETY: as above.
        let before = unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(before, 1000, "what a release with another default says, look its number up again");
        return_memory_soon();
        // SAFETY: as above.
        assert_eq!(unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) }, PURGE_DELAY_MS);
    }
}
