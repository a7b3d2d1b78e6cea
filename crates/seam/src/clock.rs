//! The door to the clock: when an answer came, and for how long a size is remembered.

use std::time::Instant;

pub(crate) fn now() -> Instant {
    sureq_sync::now()
}
