//! How far the log is on disk, for those who cannot do with less, whatever the level of durability.

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
    /// It will not get any further.
    is_final: bool,
    /// It gets no further before there is room on the disk.
    is_stuck: bool,
}

/// What came of waiting for the log to be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// It is.
    Synced,
    /// It is not before there is room for another segment.
    Stuck,
    /// It never will be.
    Never,
}

impl Synced {
    pub(crate) fn publish(&self, position: Position) {
        self.lock().position = position;
        self.moved.notify_all();
    }

    /// Says that it will not get any further.
    pub(crate) fn end(&self) {
        self.lock().is_final = true;
        self.moved.notify_all();
    }

    /// Says whether there is no room for what comes next.
    pub(crate) fn stick(&self, is_stuck: bool) {
        self.lock().is_stuck = is_stuck;
        self.moved.notify_all();
    }

    /// Waits until all before the position is on disk, unless there is no room for it.
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
        // Two words that are whole at every instant.
        self.upto.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
