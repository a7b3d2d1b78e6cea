//! Counts the work under the state lock, so that tests can bound it without a clock. Release builds count nothing.

use sureq_core::Event;

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
}

impl Meter {
    /// Counts bytes that are copied or checksummed.
    #[inline]
    pub(crate) const fn bytes(&mut self, bytes: usize) {
        if cfg!(debug_assertions) {
            self.held.bytes += bytes;
        }
    }

    /// Counts tasks, ids or queues.
    #[inline]
    pub(crate) const fn tasks(&mut self, tasks: usize) {
        if cfg!(debug_assertions) {
            self.held.tasks += tasks;
        }
    }

    /// Counts the tasks that an event moves.
    #[inline]
    pub(crate) fn event(&mut self, event: &Event<'_>) {
        if cfg!(debug_assertions) {
            self.is_uncounted = matches!(event, Event::DueCame { .. });
            self.held.moved += event.moved();
        }
    }

    /// Counts the tasks of the last event, if it moves tasks without listing them.
    #[inline]
    pub(crate) fn counted(&mut self, tasks: usize) {
        if cfg!(debug_assertions) && std::mem::take(&mut self.is_uncounted) {
            self.held.moved += tasks;
        }
    }

    /// Counts a payload that is released.
    #[inline]
    pub(crate) const fn release(&mut self) {
        if cfg!(debug_assertions) {
            self.held.released += 1;
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
        let Self { bytes, tasks, moved, released } = other;
        Self {
            bytes: self.bytes + bytes,
            tasks: self.tasks + tasks,
            moved: self.moved + moved,
            released: self.released + released,
        }
    }

    /// The larger of two counts, each number by itself.
    pub(crate) fn max(self, other: Self) -> Self {
        let Self { bytes, tasks, moved, released } = other;
        Self {
            bytes: self.bytes.max(bytes),
            tasks: self.tasks.max(tasks),
            moved: self.moved.max(moved),
            released: self.released.max(released),
        }
    }
}
