//! From a submitted command to a durable position.
//!
//! - `submit` executes commands under the state lock: `batch` limits how many at once, `prepared` encodes large
//!   payloads before the lock is taken, `oversized` reserves space for commands larger than a segment.
//! - `commit_buffer` collects the events of commands into frames. `log_thread` writes and syncs them, and
//!   `preallocator` prepares the segments it writes to.
//! - `durable` is the position up to which replies may be sent, and wakes callers that wait for it. `synced` is the
//!   position up to which the log is synced, at any durability level.

pub(crate) mod batch;
pub(crate) mod commit_buffer;
pub(crate) mod durable;
pub(crate) mod log_thread;
pub(crate) mod oversized;
pub(crate) mod preallocator;
pub(crate) mod prepared;
pub(crate) mod submit;
pub(crate) mod synced;
