//! The value of a key of type `RELIABLEQ`: a queue, and volatile data of the process about it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};

use sureq_core::event::QueueNo;
use sureq_core::{LogTime, Queue};

use crate::effects::Silent;
use crate::payload::{HEAP_BYTES, PACKED_BYTES_MAX, Payload};

/// The number of every queue in its own events.
pub(crate) const NUMBER: QueueNo = QueueNo(0);

#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) queue: Queue<Payload>,
    /// Unique among the objects of this process, so that a command in slices notices when its key holds another queue.
    /// Volatile.
    pub(crate) serial: u64,
    /// Set if it was restored from bytes (RESTORE) or copied: its further deliveries must have other receipts than
    /// those of its original.
    pub(crate) is_foreign: bool,
    /// Set during a step. If it is still set afterwards, the step panicked and the queue is in doubt.
    pub(crate) is_busy: bool,
    /// The time of its entry in the schedule; an earlier entry may exist, but never a later one.
    pub(crate) planned: Option<LogTime>,
    pub(crate) usage: Usage,
}

/// The number and bytes of the payloads of all its tasks, by whether they are small enough to be coded into runs.
#[derive(Clone, Copy, Default)]
pub(crate) struct Usage {
    small: u64,
    small_bytes: u64,
    large: u64,
    large_bytes: u64,
}

impl Usage {
    pub(crate) fn count(&mut self, len: usize) {
        if len <= PACKED_BYTES_MAX {
            self.small += 1;
            self.small_bytes += len as u64;
        } else {
            self.large += 1;
            self.large_bytes += len as u64;
        }
    }

    pub(crate) fn uncount(&mut self, len: usize) {
        if len <= PACKED_BYTES_MAX {
            self.small = self.small.saturating_sub(1);
            self.small_bytes = self.small_bytes.saturating_sub(len as u64);
        } else {
            self.large = self.large.saturating_sub(1);
            self.large_bytes = self.large_bytes.saturating_sub(len as u64);
        }
    }

    /// The approximate memory of the payloads outside of runs, if `packed` tasks are coded into runs.
    fn heap(&self, packed: u64) -> u64 {
        // Large payloads are stored outside of the runs.
        let packed_small = packed.saturating_sub(self.large);
        let loose = self.small.saturating_sub(packed_small);
        let average = self.small_bytes.checked_div(self.small).unwrap_or(0);
        let counters = HEAP_BYTES as u64;
        self.large_bytes + self.large * counters + loose * (average + counters)
    }
}

/// A serial number that no other object of this process has.
fn next_serial() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl Object {
    pub(crate) fn new() -> Self {
        Self {
            queue: Queue::new(NUMBER),
            serial: next_serial(),
            is_foreign: false,
            is_busy: false,
            planned: None,
            usage: Usage::default(),
        }
    }

    /// A copy of the queue for another key.
    pub(crate) fn copied(&self) -> Self {
        let mut copy = Self { serial: next_serial(), is_foreign: true, planned: None, ..self.clone() };
        let Self { queue, usage, .. } = &mut copy;
        queue.release_purged(&mut Silent(usage));
        copy
    }

    /// The approximate memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        let beside = size_of::<Self>() - size_of::<Queue<Payload>>();
        self.queue.memory() + beside + self.usage.heap(self.queue.packed() as u64) as usize
    }

    /// A digest of all data that is not volatile, including payloads.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.queue.digest(&mut hasher);
        let mut payloads = 0u64;
        // The order of the export depends on the history of the queue. The sum does not depend on the order.
        self.queue.export(&mut |body| body.as_ref().into(), &mut |task| {
            let mut hasher = DefaultHasher::new();
            (task.id, task.payload).hash(&mut hasher);
            payloads = payloads.wrapping_add(hasher.finish());
        });
        payloads.hash(&mut hasher);
        hasher.finish()
    }
}
