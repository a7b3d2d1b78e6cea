//! Counts the work under the state lock, so that tests and the simulator can bound it without a clock. Release builds
//! without the feature `meter` count nothing.

use sureq_core::{Event, meter};

/// Whether the work is counted.
pub(crate) const COUNTS: bool = cfg!(any(debug_assertions, feature = "meter"));

/// The steps that may be taken for each unit, task or payload without counting as surplus.
const STEPS_PER_UNIT: u64 = 30;

/// The work done since the lock was taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    held: Held,
    /// The last event moves tasks that it does not list.
    is_uncounted: bool,
}

/// The most work that was done under the state lock at once, as far as it grows with commands and tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes copied or checksummed.
    pub bytes: usize,
    /// Tasks, ids or queues that commands name, push or get, and queues that answered waiting pops named.
    pub tasks: usize,
    /// Tasks that events move, whether because of a command, because time passed or because a worker ended.
    pub moved: usize,
    /// Payloads released: of tasks that are finished or removed, and of dropped and purged queues.
    pub released: usize,
    /// Tasks, queues and receipts that are looked at and neither moved nor part of a reply: those of a slice of a list
    /// of queues or of an image, those whose payloads are read ahead, and receipts of tasks that are requeued.
    pub looked: usize,
    /// Units: commands, slices of them and of work that is due.
    pub units: usize,
    /// Steps of the core: accesses to records, blocks of tasks and queues. Only counted with the feature `meter`.
    pub steps: u64,
    /// Steps that the other counts do not explain. It grows with the number of tasks in the store if something is
    /// searched that should be found by an index.
    pub surplus: u64,
}

impl Meter {
    /// Counts bytes that are copied or checksummed.
    #[inline]
    pub(crate) const fn bytes(&mut self, bytes: usize) {
        if COUNTS {
            self.held.bytes += bytes;
        }
    }

    /// Counts tasks, ids or queues.
    #[inline]
    pub(crate) const fn tasks(&mut self, tasks: usize) {
        if COUNTS {
            self.held.tasks += tasks;
        }
    }

    /// Counts the tasks that an event moves.
    #[inline]
    pub(crate) fn event(&mut self, event: &Event<'_>) {
        if COUNTS {
            self.is_uncounted = matches!(event, Event::DueCame { .. });
            self.held.moved += event.moved();
        }
    }

    /// Counts the tasks of the last event, if it moves tasks without listing them.
    #[inline]
    pub(crate) fn counted(&mut self, tasks: usize) {
        if COUNTS && std::mem::take(&mut self.is_uncounted) {
            self.held.moved += tasks;
        }
    }

    /// Counts a payload that is released.
    #[inline]
    pub(crate) const fn release(&mut self) {
        if COUNTS {
            self.held.released += 1;
        }
    }

    /// Counts tasks, queues or receipts that are looked at.
    #[inline]
    pub(crate) const fn looked(&mut self, count: usize) {
        if COUNTS {
            self.held.looked += count;
        }
    }

    /// Counts a unit, and the steps so far.
    #[inline]
    pub(crate) fn unit(&mut self) {
        if COUNTS {
            self.held.units += 1;
            self.steps();
        }
    }

    /// Counts the steps so far.
    #[inline]
    pub(crate) fn steps(&mut self) {
        if COUNTS {
            self.held.steps = meter::steps();
        }
    }

    /// Returns the counts and resets them.
    pub(crate) fn take(&mut self) -> Held {
        std::mem::take(self).held
    }
}

impl Held {
    /// The sum of two counts.
    pub(crate) const fn plus(self, other: Self) -> Self {
        let Self { bytes, tasks, moved, released, looked, units, steps, surplus } = other;
        Self {
            bytes: self.bytes + bytes,
            tasks: self.tasks + tasks,
            moved: self.moved + moved,
            released: self.released + released,
            looked: self.looked + looked,
            units: self.units + units,
            steps: self.steps + steps,
            surplus: self.surplus + surplus,
        }
    }

    /// The larger of two counts, each number by itself.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        let Self { bytes, tasks, moved, released, looked, units, steps, surplus } = other;
        Self {
            bytes: self.bytes.max(bytes),
            tasks: self.tasks.max(tasks),
            moved: self.moved.max(moved),
            released: self.released.max(released),
            looked: self.looked.max(looked),
            units: self.units.max(units),
            steps: self.steps.max(steps),
            surplus: self.surplus.max(surplus),
        }
    }

    /// Adds the steps that the other counts do not explain.
    pub(crate) const fn with_surplus(mut self) -> Self {
        let work = self.tasks + self.moved + self.released + self.looked + self.units;
        self.surplus = self.steps.saturating_sub(work as u64 * STEPS_PER_UNIT);
        self
    }
}
