//! Counts the steps that a command takes, so that tests can bound its cost without a clock.
//!
//! A step is one access to a record, a block or run of tasks, a queue, or a byte of a pattern. Data structures call
//! [`step`] at each; outside of this crate's unit tests it compiles to nothing.

#[cfg(test)]
std::thread_local! {
    static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// Counts one step.
#[inline]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

/// The number of steps that `act` takes on this thread.
#[cfg(test)]
pub(crate) fn steps_of<T>(act: impl FnOnce() -> T) -> (u64, T) {
    let before = STEPS.get();
    let done = act();
    (STEPS.get() - before, done)
}
