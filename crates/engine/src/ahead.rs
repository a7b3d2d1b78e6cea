//! What to read before it is asked for: the payloads at the head of a long queue.
//!
//! A hint and nothing more: a queue whose order changes meanwhile gets some payloads too early and others too late.

use std::collections::HashMap;

use sureq_core::Broker;
use sureq_core::event::QueueNo;
use sureq_core::task::Body as _;

use crate::body::{Body, Stored};

/// How many tasks are read ahead of a queue at first, and at most. It doubles while the queue is being emptied.
const TASKS_MIN: usize = 16;
const TASKS_MAX: usize = 1024;

/// How many bytes are read ahead of one queue at most, and which part of the cache.
const BYTES_MAX: usize = 1 << 20;
const CACHE_PART: usize = 8;

/// So many queues are kept in mind; beyond that all are forgotten, and found again as they are popped.
const QUEUES_MAX: usize = 10_000;

/// What may be read ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readable {
    /// Only what lies before this segment and offset: the rest is in memory, and may not be written yet.
    pub(crate) before: (u32, u32),
    /// How many bytes there is room for.
    pub(crate) budget: usize,
}

/// How far each queue has been read ahead.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    queues: HashMap<QueueNo, Window>,
}

#[derive(Debug, Default)]
struct Window {
    /// How many tasks at the head of the line have been asked for.
    tasks: usize,
    /// How many to ask for.
    wanted: usize,
}

impl ReadAhead {
    /// What to read now that so many tasks of a queue were taken, if it is time.
    pub(crate) fn places(
        &mut self,
        broker: &Broker<Body>,
        queue: &[u8],
        popped: usize,
        readable: Readable,
    ) -> Option<Vec<Stored>> {
        let no = broker.number_of(queue).filter(|_| popped > 0)?;
        if self.queues.len() >= QUEUES_MAX && !self.queues.contains_key(&no) {
            self.queues.clear();
        }
        let window = self.queues.entry(no).or_default();
        window.tasks = window.tasks.saturating_sub(popped);
        if window.tasks > window.wanted / 2 {
            return None;
        }
        window.wanted = (window.wanted * 2).clamp(TASKS_MIN.max(2 * popped), TASKS_MAX.max(2 * popped));
        let bytes_max = BYTES_MAX.min(readable.budget / CACHE_PART);
        let (mut places, mut bytes) = (Vec::new(), 0);
        for body in broker.queue_at(no)?.upcoming(window.tasks).take(window.wanted - window.tasks) {
            bytes += body.len();
            if bytes > bytes_max {
                break;
            }
            window.tasks += 1;
            places.extend(body.place().filter(|place| (place.segment, place.offset) < readable.before));
        }
        Some(places).filter(|places| !places.is_empty())
    }
}
