//! Decides which payloads to read ahead of need: those at the head of a long queue.
//!
//! This is only a hint: if the order of the queue changes meanwhile, some payloads are read too early or too late.

use std::collections::HashMap;

use sureq_core::event::QueueNo;
use sureq_core::queue::ReadAheadSpan;
use sureq_core::{Broker, Queue};

use crate::meter::Meter;
use crate::payload::body::{Body, Stored};
use crate::payload::read_span::ReadSpan;

/// The tasks that are read ahead of a queue at first, and at most. The number doubles while the queue is drained.
const TASKS_MIN: usize = 16;
const TASKS_MAX: usize = 8192;

/// The bytes that are read ahead of one queue at most, and the part of the cache that they may take up.
const BYTES_MAX: usize = 1 << 20;
const CACHE_PART: usize = 8;

/// The number of queues that are tracked. Beyond that all are forgotten, and tracked again when they are popped.
const QUEUES_MAX: usize = 10_000;

/// The bounds of reading ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readable {
    /// Only payloads before this segment and offset: the rest is in memory, and may not be written yet.
    pub(crate) before: (u32, u32),
    /// The bytes that may be read.
    pub(crate) budget: usize,
}

/// The payloads to read.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// Spans, and the number of payloads in each.
    pub(crate) spans: Vec<(ReadSpan, usize)>,
    /// Payloads outside of spans.
    pub(crate) places: Vec<Stored>,
}

impl Reading {
    /// Adds a span with this many payloads.
    fn add(&mut self, span: ReadSpan, payloads: usize) {
        if let Some((last, before)) = self.spans.last_mut()
            && last.join(span)
        {
            *before += payloads;
        } else {
            self.spans.push((span, payloads));
        }
    }

    fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.places.is_empty()
    }
}

/// How far each queue has been read ahead.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    queues: HashMap<QueueNo, Window>,
}

#[derive(Debug, Default)]
struct Window {
    /// The number of tasks at the head of the queue that were requested and not popped yet, and their approximate
    /// bytes.
    tasks: usize,
    bytes: usize,
    /// The value of `tasks` after the last request.
    filled: usize,
    /// The number of tasks to keep read ahead.
    wanted: usize,
}

impl ReadAhead {
    /// The payloads to read after this many tasks of a queue were popped, if it is time.
    pub(crate) fn next(
        &mut self,
        broker: &Broker<Body>,
        queue: &[u8],
        popped: usize,
        readable: Readable,
        meter: &mut Meter,
    ) -> Option<Reading> {
        let bytes = BYTES_MAX.min(readable.budget / CACHE_PART);
        let no = broker.number_of(queue).filter(|_| popped > 0 && bytes > 0)?;
        if self.queues.len() >= QUEUES_MAX && !self.queues.contains_key(&no) {
            self.queues.clear();
        }
        let window = self.queues.entry(no).or_default();
        window.take(popped);
        if window.tasks > window.filled / 2 {
            return None;
        }
        window.wanted = (window.wanted * 2).clamp(TASKS_MIN.max(2 * popped), TASKS_MAX.max(2 * popped));
        let tasks_before = window.tasks;
        let reading = window.extend(broker.queue_at(no)?, readable.before, bytes);
        meter.looked(window.tasks - tasks_before);
        window.filled = window.tasks;
        Some(reading).filter(|reading| !reading.is_empty())
    }
}

impl Window {
    /// Accounts for tasks that were popped.
    fn take(&mut self, popped: usize) {
        let left = self.tasks.saturating_sub(popped);
        self.bytes = if left == 0 { 0 } else { self.bytes / self.tasks * left };
        self.tasks = left;
    }

    /// Requests as many tasks as are wanted, up to a number of bytes: the cache must still have them when they are
    /// needed.
    fn extend(&mut self, queue: &Queue<Body>, before: (u32, u32), bytes_max: usize) -> Reading {
        let mut reading = Reading::default();
        for span in queue.read_ahead_spans(self.tasks) {
            if self.tasks >= self.wanted {
                break;
            }
            let is_all = match span {
                ReadAheadSpan::Task(body) => self.add(&body, before, bytes_max, &mut reading),
                ReadAheadSpan::Run { first, last, tasks } => match between(&first, &last, tasks, before) {
                    Some(span) if self.bytes + span.bytes() <= bytes_max => {
                        self.bytes += span.bytes();
                        self.tasks += tasks;
                        reading.add(span, tasks);
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

    /// Requests one task, unless that exceeds a limit. Returns whether it did.
    fn add(&mut self, body: &Body, before: (u32, u32), bytes_max: usize, reading: &mut Reading) -> bool {
        let place = body.place().filter(|place| (place.segment, place.offset) < before);
        let bytes = place.map_or(0, |place| ReadSpan::bytes_for(place, reading.places.last().copied()));
        if self.bytes + bytes > bytes_max || self.tasks >= self.wanted {
            return false;
        }
        self.bytes += bytes;
        self.tasks += 1;
        reading.places.extend(place);
        true
    }
}

/// The span of all payloads of a run, if it is worth reading as a whole.
fn between(first: &Body, last: &Body, tasks: usize, before: (u32, u32)) -> Option<ReadSpan> {
    let (first, last) = (first.place()?, last.place()?);
    let is_readable = (last.segment, last.offset) < before;
    ReadSpan::between(first, last, tasks).filter(|_| is_readable)
}
