//! Counts the steps that a command takes, so that tests and the simulator can bound its cost without a clock.
//!
//! A step is one access to a record, a block or run of tasks, a queue, or a byte of a pattern. Data structures call
//! [`step`] at each. Steps are counted in this crate's unit tests and with the feature `meter`, which only the
//! simulator enables; otherwise all functions here compile to nothing.

/// The steps of this thread.
#[cfg(any(test, feature = "meter"))]
mod counter {
    extern crate std;

    use core::cell::Cell;

    std::thread_local! {
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn get() -> u64 {
        STEPS.get()
    }

    pub(super) fn set(steps: u64) {
        STEPS.set(steps);
    }
}

#[cfg(not(any(test, feature = "meter")))]
mod counter {
    pub(super) const fn get() -> u64 {
        0
    }

    pub(super) const fn set(_: u64) {}
}

/// Counts one step.
#[inline]
pub(crate) fn step() {
    counter::set(counter::get() + 1);
}

/// The number of steps that this thread has taken since [`restart`]; 0 if steps are not counted.
#[inline]
pub fn steps() -> u64 {
    counter::get()
}

/// Begins to count from 0 on this thread.
#[inline]
pub fn restart() {
    counter::set(0);
}

/// Calls `act`, whose steps do not count: for observers of the state.
#[inline]
pub fn uncounted<T>(act: impl FnOnce() -> T) -> T {
    let before = steps();
    let done = act();
    counter::set(before);
    done
}

/// The number of steps that `act` takes on this thread.
#[cfg(test)]
pub(crate) fn steps_of<T>(act: impl FnOnce() -> T) -> (u64, T) {
    let before = steps();
    let done = act();
    (steps() - before, done)
}
