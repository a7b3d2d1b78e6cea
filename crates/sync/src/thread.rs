//! Threads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::sim;

/// [`std::thread::JoinHandle`] of a thread without result.
#[derive(Debug)]
pub struct JoinHandle {
    inner: std::thread::JoinHandle<()>,
    simulated: Option<usize>,
}

impl JoinHandle {
    /// As [`std::thread::JoinHandle::join`].
    pub fn join(self) -> std::thread::Result<()> {
        if let (Some(task), Some(other)) = (sim::current(), self.simulated) {
            task.wait_for_end(other);
        }
        self.inner.join()
    }

    /// As [`std::thread::JoinHandle::is_finished`].
    pub fn is_finished(&self) -> bool {
        match (sim::current(), self.simulated) {
            (Some(task), Some(other)) => task.has_ended(other),
            _ => self.inner.is_finished(),
        }
    }
}

/// Starts a named thread.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    match sim::current() {
        None => Ok(JoinHandle { inner: builder.spawn(run)?, simulated: None }),
        Some(task) => {
            let other = task.spawned(name);
            let id = other.id();
            Ok(JoinHandle { inner: builder.spawn(move || other.run(run))?, simulated: Some(id) })
        }
    }
}

/// As [`std::thread::sleep`].
pub fn sleep(time: Duration) {
    match sim::current() {
        None => std::thread::sleep(time),
        Some(task) => {
            task.block(0, Some(time));
        }
    }
}

/// As [`std::thread::yield_now`].
pub fn yield_now() {
    match sim::current() {
        None => std::thread::yield_now(),
        Some(task) => task.yield_now(),
    }
}

/// The handle by which a thread parks and others unpark it.
#[derive(Clone, Debug)]
pub struct Parker {
    thread: std::thread::Thread,
    task: Option<sim::Task>,
    /// In a simulation: it was unparked and has not parked since.
    is_unparked: Arc<AtomicBool>,
}

impl Parker {
    /// The handle of this thread.
    pub fn new() -> Self {
        Self { thread: std::thread::current(), task: sim::current(), is_unparked: Arc::default() }
    }

    /// As [`std::thread::park`]; must be called on the thread that created it.
    pub fn park(&self) {
        match &self.task {
            None => std::thread::park(),
            Some(task) => self.park_as(task, None),
        }
    }

    /// As [`std::thread::park_timeout`]; must be called on the thread that created it.
    pub fn park_timeout(&self, timeout: Duration) {
        match &self.task {
            None => std::thread::park_timeout(timeout),
            Some(task) => self.park_as(task, Some(timeout)),
        }
    }

    /// As [`std::thread::Thread::unpark`].
    pub fn unpark(&self) {
        match (&self.task, sim::current()) {
            (Some(_), Some(current)) => {
                self.is_unparked.store(true, Ordering::Relaxed);
                current.wake_all(self.address());
            }
            _ => self.thread.unpark(),
        }
    }

    fn park_as(&self, task: &sim::Task, timeout: Option<Duration>) {
        if !self.is_unparked.swap(false, Ordering::Relaxed) {
            task.block(self.address(), timeout);
            self.is_unparked.store(false, Ordering::Relaxed);
        }
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.is_unparked).addr()
    }
}

impl Default for Parker {
    fn default() -> Self {
        Self::new()
    }
}
