//! A condition variable.

use std::sync::{LockResult, PoisonError};
use std::time::Duration;

use crate::mutex::MutexGuard;
use crate::sim;

/// [`std::sync::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar {
    inner: std::sync::Condvar,
}

/// Whether a wait ended because its time was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// As [`std::sync::WaitTimeoutResult::timed_out`].
    pub const fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    /// A condition variable without waiting threads.
    pub const fn new() -> Self {
        Self { inner: std::sync::Condvar::new() }
    }

    /// As [`std::sync::Condvar::wait`].
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        match sim::current() {
            None => guard.wait_with(|guard| self.inner.wait(guard)),
            Some(task) => self.wait_as(&task, guard, None).0,
        }
    }

    /// As [`std::sync::Condvar::wait_while`].
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        while condition(&mut guard) {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    /// As [`std::sync::Condvar::wait_timeout`].
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let (waited, is_over) = match sim::current() {
            None => {
                let mut is_over = false;
                let waited = guard.wait_with(|guard| match self.inner.wait_timeout(guard, timeout) {
                    Ok((guard, result)) => {
                        is_over = result.timed_out();
                        Ok(guard)
                    }
                    Err(error) => Err(PoisonError::new(error.into_inner().0)),
                });
                (waited, is_over)
            }
            Some(task) => self.wait_as(&task, guard, Some(timeout)),
        };
        match waited {
            Ok(guard) => Ok((guard, WaitTimeoutResult(is_over))),
            Err(error) => Err(PoisonError::new((error.into_inner(), WaitTimeoutResult(is_over)))),
        }
    }

    /// As [`std::sync::Condvar::wait_timeout_while`].
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let began = crate::now();
        loop {
            if !condition(&mut guard) {
                return Ok((guard, WaitTimeoutResult(false)));
            }
            let Some(left) = timeout.checked_sub(crate::now().saturating_duration_since(began)) else {
                return Ok((guard, WaitTimeoutResult(true)));
            };
            guard = self.wait_timeout(guard, left)?.0;
        }
    }

    /// As [`std::sync::Condvar::notify_one`].
    pub fn notify_one(&self) {
        match sim::current() {
            None => self.inner.notify_one(),
            Some(task) => task.wake_one(self.address()),
        }
    }

    /// As [`std::sync::Condvar::notify_all`].
    pub fn notify_all(&self) {
        match sim::current() {
            None => self.inner.notify_all(),
            Some(task) => task.wake_all(self.address()),
        }
    }

    fn wait_as<'a, T>(
        &self,
        task: &sim::Task,
        guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> (LockResult<MutexGuard<'a, T>>, bool) {
        let lock = guard.lock();
        // In a simulation no other thread runs between these two.
        drop(guard);
        let is_over = task.block(self.address(), timeout);
        (lock.lock_as(task), is_over)
    }

    fn address(&self) -> usize {
        (&raw const self.inner).addr()
    }
}
