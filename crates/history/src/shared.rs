//! A history that many threads record.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::History;

/// A history that threads record together. Each operation is recorded under its lock, so that a time taken before
/// [`SharedHistory::lock`] belongs to what is recorded then.
#[derive(Debug, Default)]
pub struct SharedHistory(Mutex<History>);

impl SharedHistory {
    /// The history, for one thread at a time. A thread that panicked has recorded only what was so.
    pub fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The history, after recording has ended.
    pub fn into_inner(self) -> History {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
