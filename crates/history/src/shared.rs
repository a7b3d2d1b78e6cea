//! A history that many threads record.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::History;

/// A history that threads record together. Each operation is recorded under the lock, with a time that was taken
/// before [`SharedHistory::lock`].
#[derive(Debug, Default)]
pub struct SharedHistory(Mutex<History>);

impl SharedHistory {
    /// The history, for one thread at a time. Poisoning is ignored: the records of a panicked thread are still true.
    pub fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The history, after recording has ended.
    pub fn into_inner(self) -> History {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
