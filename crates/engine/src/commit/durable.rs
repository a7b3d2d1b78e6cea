//! The durable position, and the callers that wait for it.
//!
//! A caller registers a waker under the position that its replies wait for. The log thread publishes each new
//! position once, and wakes all callers that wait for it or an earlier one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::Waker;

use crate::log::{LogError, Position};
use sureq_sync::thread::Parker;
use sureq_sync::{Mutex, MutexGuard};

/// The durable position of a store.
#[derive(Debug, Default)]
pub(crate) struct Durable {
    position: AtomicU64,
    failure: OnceLock<Arc<LogError>>,
    parked: Mutex<Vec<(Position, Waker)>>,
}

impl Durable {
    pub(crate) fn position(&self) -> Position {
        Position(self.position.load(Ordering::Acquire))
    }

    /// Wakes the waker once the position is durable or the store has failed; at once, if that is so already.
    pub(crate) fn wake_at(&self, position: Position, waker: &Waker) {
        let mut parked = self.lock();
        if self.position() >= position || self.failure.get().is_some() {
            drop(parked);
            waker.wake_by_ref();
        } else {
            parked.push((position, waker.clone()));
        }
    }

    /// Blocks until the position is durable. Returns false if the store failed before.
    pub(crate) fn wait_for(&self, position: Position) -> bool {
        let parker = Parker::new();
        let waker = sureq_home_api::unparks(&parker);
        loop {
            if self.position() >= position {
                return true;
            }
            if self.failure().is_some() {
                return false;
            }
            self.wake_at(position, &waker);
            if self.position() < position && self.failure().is_none() {
                parker.park();
            }
        }
    }

    /// Publishes that everything before `position` is durable. Does nothing after a failure.
    pub(crate) fn publish(&self, position: Position) {
        let woken: Vec<Waker> = {
            let mut parked = self.lock();
            if self.failure.get().is_some() {
                return;
            }
            self.position.store(position.0, Ordering::Release);
            parked.extract_if(.., |(at, _)| *at <= position).map(|(_, waker)| waker).collect()
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Marks the store as failed: nothing more becomes durable.
    pub(crate) fn fail(&self, error: LogError) {
        let woken: Vec<_> = {
            let mut parked = self.lock();
            // The first failure is kept: later ones only follow from it.
            let _ = self.failure.set(Arc::new(error));
            parked.drain(..).collect()
        };
        for (_, waker) in woken {
            waker.wake();
        }
    }

    pub(crate) fn failure(&self) -> Option<&Arc<LogError>> {
        self.failure.get()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Position, Waker)>> {
        // A panic elsewhere cannot leave the list half changed.
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
