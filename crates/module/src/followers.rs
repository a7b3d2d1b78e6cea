//! Whether anyone follows what is decided here: a log, a replica, whoever takes a slot over.
//!
//! A server that is followed by nobody need not tell what it does, which is a good part of what a command costs. Whoever
//! follows begins with a snapshot that a child of the server takes, or was there when the module was loaded. So it is enough to look
//! then. Whoever was seen once is told for good: a replica that comes back goes on where it left off.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::redis::Ctx;

static SEEN: AtomicBool = AtomicBool::new(false);

/// Whether anyone follows, or may have.
pub(crate) fn were_seen() -> bool {
    SEEN.load(Ordering::Relaxed)
}

/// Looks whether anyone follows now.
pub(crate) fn look(ctx: Ctx<'_>) {
    if were_seen() {
        return;
    }
    let flags = ctx.flags();
    // In a cluster slots move, and this server is one that others may follow at any time.
    if flags.is_cluster() || flags.is_replica() || flags.has_log() || ctx.has_replicas() {
        see();
    }
}

/// There may be some.
pub(crate) fn see() {
    SEEN.store(true, Ordering::Relaxed);
}
