//! A lock.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};

use crate::sim;

/// [`std::sync::Mutex`].
#[derive(Default)]
pub struct Mutex<T> {
    inner: std::sync::Mutex<T>,
}

/// [`std::sync::MutexGuard`].
pub struct MutexGuard<'a, T> {
    lock: &'a Mutex<T>,
    /// `None` only while a condition variable holds it.
    guard: Option<std::sync::MutexGuard<'a, T>>,
}

const HELD: &str = "a guard holds its lock";

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self { inner: std::sync::Mutex::new(value) }
    }

    /// As [`std::sync::Mutex::lock`].
    #[inline]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        match sim::current() {
            None => self.guarded(self.inner.lock()),
            Some(task) => {
                task.maybe_yield();
                self.lock_as(&task)
            }
        }
    }

    /// As [`std::sync::Mutex::try_lock`].
    #[inline]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        if let Some(task) = sim::current() {
            task.maybe_yield();
        }
        match self.inner.try_lock() {
            Ok(guard) => Ok(self.guard(guard)),
            Err(TryLockError::Poisoned(error)) => {
                Err(TryLockError::Poisoned(PoisonError::new(self.guard(error.into_inner()))))
            }
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
        }
    }

    /// As [`std::sync::Mutex::is_poisoned`].
    pub fn is_poisoned(&self) -> bool {
        self.inner.is_poisoned()
    }

    pub(crate) fn lock_as(&self, task: &sim::Task) -> LockResult<MutexGuard<'_, T>> {
        loop {
            match self.inner.try_lock() {
                Ok(guard) => return Ok(self.guard(guard)),
                Err(TryLockError::Poisoned(error)) => return self.guarded(Err(error)),
                Err(TryLockError::WouldBlock) => {
                    task.block(self.address(), None);
                }
            }
        }
    }

    #[inline]
    fn guarded<'a>(
        &'a self,
        locked: LockResult<std::sync::MutexGuard<'a, T>>,
    ) -> LockResult<MutexGuard<'a, T>> {
        match locked {
            Ok(guard) => Ok(self.guard(guard)),
            Err(error) => Err(PoisonError::new(self.guard(error.into_inner()))),
        }
    }

    #[inline]
    const fn guard<'a>(&'a self, guard: std::sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { lock: self, guard: Some(guard) }
    }

    /// Identifies the lock in a simulation. Only compared, never ordered.
    fn address(&self) -> usize {
        (&raw const self.inner).addr()
    }
}

impl<'a, T> MutexGuard<'a, T> {
    /// Lends the guard of the system to a condition variable.
    pub(crate) fn wait_with(
        mut self,
        wait: impl FnOnce(std::sync::MutexGuard<'a, T>) -> LockResult<std::sync::MutexGuard<'a, T>>,
    ) -> LockResult<Self> {
        let guard = self.guard.take().expect(HELD);
        self.lock.guarded(wait(guard))
    }

    pub(crate) const fn lock(&self) -> &'a Mutex<T> {
        self.lock
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.guard.as_ref().expect(HELD)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect(HELD)
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.guard.take().is_some()
            && let Some(task) = sim::current()
        {
            task.wake_all(self.lock.address());
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}
