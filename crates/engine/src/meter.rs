//! Counts what is done while the lock of the state is held, so that tests can bound it without a clock. In release builds it
//! counts nothing.

/// What was done since the lock was taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    bytes: usize,
    tasks: usize,
}

/// The most that was done in one go under the lock of the state, as far as that grows with what commands ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes copied or checksummed.
    pub bytes: usize,
    /// Tasks, ids or queues handled.
    pub tasks: usize,
}

impl Meter {
    /// Counts bytes that are copied or checksummed.
    #[inline]
    pub(crate) const fn bytes(&mut self, bytes: usize) {
        if cfg!(debug_assertions) {
            self.bytes += bytes;
        }
    }

    /// Counts tasks, ids or queues.
    #[inline]
    pub(crate) const fn tasks(&mut self, tasks: usize) {
        if cfg!(debug_assertions) {
            self.tasks += tasks;
        }
    }

    /// Begins anew; answers what was counted.
    pub(crate) fn take(&mut self) -> Held {
        let Self { bytes, tasks } = std::mem::take(self);
        Held { bytes, tasks }
    }
}

impl Held {
    /// What was counted in two places.
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, tasks: self.tasks + other.tasks }
    }

    /// The larger of both.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), tasks: self.tasks.max(other.tasks) }
    }
}
