//! Threads, locks and time for the engine: those of the system or, inside a [`sim::Simulation`], simulated ones.
//!
//! Outside of a simulation every call here is the call of the standard library with the same name, plus one test of a
//! flag. Inside a simulation, only one thread runs at a time, a seed decides which, and time advances only when all
//! threads wait. The same seed gives the same run, so that every finding can be reproduced.
//!
//! Code that runs in a simulation must use only these:
//!
//! * [`Mutex`], [`Condvar`];
//! * [`thread`]: starting and joining threads, [`thread::sleep`], [`thread::Parker`];
//! * [`now`] instead of [`Instant::now`].
#![forbid(unsafe_code)]

mod condvar;
mod mutex;
pub mod sim;
pub mod thread;

use std::time::{Duration, Instant};

pub use condvar::{Condvar, WaitTimeoutResult};
pub use mutex::{Mutex, MutexGuard};

/// The monotonic clock.
pub fn now() -> Instant {
    sim::current().map_or_else(Instant::now, |task| task.now())
}

/// The time since then, by the monotonic clock.
pub fn elapsed(since: Instant) -> Duration {
    now().saturating_duration_since(since)
}
