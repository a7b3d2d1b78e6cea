//! What to read before it is asked for: the payloads at the head of a long queue.
//!
//! A hint and nothing more: a queue whose order changes meanwhile gets some payloads too early and others too late.

use std::collections::HashMap;

use sureq_core::event::QueueNo;
use sureq_core::queue::ReadAheadSpan;
use sureq_core::{Broker, Queue};

use crate::payload::body::{Body, Stored};
use crate::payload::stretch::Stretch;

/// How many tasks are read ahead of a queue at first, and at most. It doubles while the queue is being emptied.
const TASKS_MIN: usize = 16;
const TASKS_MAX: usize = 8192;

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

/// What to read.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// Stretches that hold so many payloads each.
    pub(crate) stretches: Vec<(Stretch, usize)>,
    /// Payloads that lie by themselves.
    pub(crate) places: Vec<Stored>,
}

impl Reading {
    /// Asks for a stretch that holds so many payloads.
    fn add(&mut self, stretch: Stretch, payloads: usize) {
        if let Some((last, before)) = self.stretches.last_mut()
            && last.join(stretch)
        {
            *before += payloads;
        } else {
            self.stretches.push((stretch, payloads));
        }
    }

    fn is_empty(&self) -> bool {
        self.stretches.is_empty() && self.places.is_empty()
    }
}

/// How far each queue has been read ahead.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    queues: HashMap<QueueNo, Window>,
}

#[derive(Debug, Default)]
struct Window {
    /// How many tasks at the head of the line have been asked for, and about how many bytes.
    tasks: usize,
    bytes: usize,
    /// How many tasks there were when some were last asked for.
    filled: usize,
    /// How many there should be.
    wanted: usize,
}

impl ReadAhead {
    /// What to read now that so many tasks of a queue were taken, if it is time.
    pub(crate) fn next(
        &mut self,
        broker: &Broker<Body>,
        queue: &[u8],
        popped: usize,
        readable: Readable,
    ) -> Option<Reading> {
        let no = broker.number_of(queue).filter(|_| popped > 0)?;
        if self.queues.len() >= QUEUES_MAX && !self.queues.contains_key(&no) {
            self.queues.clear();
        }
        let window = self.queues.entry(no).or_default();
        window.take(popped);
        if window.tasks > window.filled / 2 {
            return None;
        }
        window.wanted = (window.wanted * 2).clamp(TASKS_MIN.max(2 * popped), TASKS_MAX.max(2 * popped));
        let bytes = BYTES_MAX.min(readable.budget / CACHE_PART);
        let reading = window.extend(broker.queue_at(no)?, readable.before, bytes);
        window.filled = window.tasks;
        Some(reading).filter(|reading| !reading.is_empty())
    }
}

impl Window {
    /// So many were taken from the head.
    fn take(&mut self, popped: usize) {
        let left = self.tasks.saturating_sub(popped);
        self.bytes = if left == 0 { 0 } else { self.bytes / self.tasks * left };
        self.tasks = left;
    }

    /// Asks for as many as are wanted, up to so many bytes in all: what is read must still be there when it is asked for.
    fn extend(&mut self, queue: &Queue<Body>, before: (u32, u32), bytes_max: usize) -> Reading {
        let mut reading = Reading::default();
        for span in queue.read_ahead_spans(self.tasks) {
            if self.tasks >= self.wanted {
                break;
            }
            let is_all = match span {
                ReadAheadSpan::Task(body) => self.add(&body, before, bytes_max, &mut reading),
                ReadAheadSpan::Run { first, last, tasks } => match between(&first, &last, tasks, before) {
                    Some(stretch) if self.bytes + stretch.bytes() <= bytes_max => {
                        self.bytes += stretch.bytes();
                        self.tasks += tasks;
                        reading.add(stretch, tasks);
                        true
                    }
                    _ => {
                        let mut bodies = queue.upcoming_bodies(self.tasks).take(tasks);
                        bodies.all(|body| self.add(&body, before, bytes_max, &mut reading))
                    }
                },
            };
            if !is_all {
                break;
            }
        }
        reading
    }

    /// Asks for one, unless there is enough; answers whether it did.
    fn add(&mut self, body: &Body, before: (u32, u32), bytes_max: usize, reading: &mut Reading) -> bool {
        let place = body.place().filter(|place| (place.segment, place.offset) < before);
        let bytes = place.map_or(0, |place| Stretch::bytes_for(place, reading.places.last().copied()));
        if self.bytes + bytes > bytes_max || self.tasks >= self.wanted {
            return false;
        }
        self.bytes += bytes;
        self.tasks += 1;
        reading.places.extend(place);
        true
    }
}

/// What holds all payloads of a run, if that is worth reading as a whole.
fn between(first: &Body, last: &Body, tasks: usize, before: (u32, u32)) -> Option<Stretch> {
    let (first, last) = (first.place()?, last.place()?);
    let is_readable = (last.segment, last.offset) < before;
    Stretch::between(first, last, tasks).filter(|_| is_readable)
}
