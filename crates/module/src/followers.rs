//! Whether this server has a follower: an append-only file, a replica, or a node that takes over a slot.
//!
//! Without a follower no effects need to be recorded, which saves a good part of the cost of a command. A new follower
//! begins with a snapshot that a child process takes. A follower may also have existed before this server was restarted
//! or the module was loaded. Therefore effects are recorded at first; the server checks for followers when its data are
//! loaded, and again whenever a child process starts. Once a follower was seen, effects are recorded for ever: a
//! replica that reconnects continues where it stopped.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::redis::Ctx;

/// Not checked yet.
const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;

static SEEN: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether there is, or may have been, a follower.
pub(crate) fn are_possible() -> bool {
    SEEN.load(Ordering::Relaxed) != NONE
}

/// Checks for the first time after loading. Does nothing from then on.
pub(crate) fn look_once(ctx: Ctx<'_>) {
    if SEEN.load(Ordering::Relaxed) == UNKNOWN && !ctx.flags().is_loading() {
        SEEN.store(if exist(ctx) { SOME } else { NONE }, Ordering::Relaxed);
    }
}

/// Checks for a new follower.
pub(crate) fn look(ctx: Ctx<'_>) {
    if SEEN.load(Ordering::Relaxed) == NONE && exist(ctx) {
        see();
    }
}

/// Records that there may be a follower.
pub(crate) fn see() {
    SEEN.store(SOME, Ordering::Relaxed);
}

fn exist(ctx: Ctx<'_>) -> bool {
    let flags = ctx.flags();
    // In a cluster slots move, so any server may get a follower at any time.
    flags.is_cluster() || flags.is_replica() || flags.has_log() || ctx.has_replicas()
}
