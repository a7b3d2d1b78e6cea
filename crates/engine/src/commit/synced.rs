//! The position up to which the log is synced, for threads that need that at any durability level.

use std::sync::PoisonError;

use crate::log::Position;
use sureq_sync::{Condvar, Mutex, MutexGuard};

#[derive(Default)]
pub(crate) struct Synced {
    upto: Mutex<Upto>,
    moved: Condvar,
}

#[derive(Default)]
struct Upto {
    position: Position,
    /// It will not advance any more.
    is_final: bool,
    /// It does not advance before the disk has space.
    is_stuck: bool,
}

/// The outcome of waiting for the log to be synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    Synced,
    /// The log waits for space for another segment.
    Stuck,
    /// The log has ended before.
    Never,
}

impl Synced {
    pub(crate) fn publish(&self, position: Position) {
        self.lock().position = position;
        self.moved.notify_all();
    }

    /// Ends all waits: the log has ended.
    pub(crate) fn end(&self) {
        self.lock().is_final = true;
        self.moved.notify_all();
    }

    /// Sets whether the log waits for space.
    pub(crate) fn stick(&self, is_stuck: bool) {
        self.lock().is_stuck = is_stuck;
        self.moved.notify_all();
    }

    /// Waits until everything before the position is synced, unless the log waits for space.
    pub(crate) fn wait_for(&self, position: Position) -> Waited {
        let waits = |upto: &mut Upto| upto.position < position && !upto.is_final && !upto.is_stuck;
        let upto = self.moved.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        match *upto {
            Upto { position: synced, .. } if synced >= position => Waited::Synced,
            Upto { is_final: true, .. } => Waited::Never,
            Upto { .. } => Waited::Stuck,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Upto> {
        // A panic elsewhere cannot leave these values half changed.
        self.upto.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
