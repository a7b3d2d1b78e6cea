//! Where payloads are, and how they get into replies.
//!
//! - `body` is what a task holds: the place of its payload in the log, or the bytes. `payload_scan` finds the payloads
//!   in a frame; `placement` verifies in debug builds that places agree with the log.
//! - `payloads` finds the payloads of a reply in the `cache`, or has the `loader` read them, if possible `ahead` of
//!   need. `read_span` joins neighbouring payloads into one read.
//! - `seek` searches payloads on disk, for a cancel by payload. `unreadable` handles tasks whose payloads cannot be
//!   read.

pub(crate) mod ahead;
pub(crate) mod body;
pub(crate) mod cache;
pub(crate) mod loader;
pub(crate) mod payload_scan;
pub(crate) mod payloads;
pub(crate) mod placement;
pub(crate) mod read_span;
pub(crate) mod seek;
pub(crate) mod unreadable;
