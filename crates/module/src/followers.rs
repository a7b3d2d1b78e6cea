//! Whether anyone follows what is decided here: a log, a replica, whoever takes a slot over.
//!
//! A server that is followed by nobody need not tell what it does, which is a good part of what a command costs. Whoever
//! begins to follow begins with a snapshot that a child of the server takes; or the server was theirs before it was
//! started again, or they were there when the module was loaded. So all is told at first; once the data are loaded it is looked whether
//! there is anyone, and again whenever a child is born. Whoever was seen is told for good: a replica that comes back goes on
//! where it left off.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::redis::Ctx;

/// Nobody has looked yet.
const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;

static SEEN: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether anyone follows, or may have.
pub(crate) fn are_possible() -> bool {
    SEEN.load(Ordering::Relaxed) != NONE
}

/// Looks for the first time, when the server has come up; costs nothing from then on.
pub(crate) fn look_once(ctx: Ctx<'_>) {
    if SEEN.load(Ordering::Relaxed) == UNKNOWN && !ctx.flags().is_loading() {
        SEEN.store(if exist(ctx) { SOME } else { NONE }, Ordering::Relaxed);
    }
}

/// Looks whether anyone has begun to follow.
pub(crate) fn look(ctx: Ctx<'_>) {
    if SEEN.load(Ordering::Relaxed) == NONE && exist(ctx) {
        see();
    }
}

/// There may be some.
pub(crate) fn see() {
    SEEN.store(SOME, Ordering::Relaxed);
}

fn exist(ctx: Ctx<'_>) -> bool {
    let flags = ctx.flags();
    // In a cluster slots move, and this server is one that others may follow at any time.
    flags.is_cluster() || flags.is_replica() || flags.has_log() || ctx.has_replicas()
}
