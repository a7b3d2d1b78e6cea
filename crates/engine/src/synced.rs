//! How far the log is on disk, for those who cannot do with less, whatever the level of durability.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::log::Position;

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

    /// Waits until all before the position is on disk; answers false if it never will be.
    pub(crate) fn wait_for(&self, position: Position) -> bool {
        let waits = |upto: &mut Upto| upto.position < position && !upto.is_final;
        let upto = self.moved.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        upto.position >= position
    }

    fn lock(&self) -> MutexGuard<'_, Upto> {
        // Two words that are whole at every instant.
        self.upto.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
