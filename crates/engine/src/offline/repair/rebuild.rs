//! Writes a state into a new store, event by event. Leaves out events that cannot be applied, so that the new store
//! is sound even if the state is not.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use sureq_core::event::{Counters, Event, Fields, FullTask, QueueNo, Recorder, Totals};
use sureq_core::task::{Holder, OrderKey, TaskState};
use sureq_core::{Broker, LogTime, TaskId, codec};

use super::Lost;
use crate::disk::Disk;
use crate::fault::{Damage, OpenError};
use crate::log::{Filling, FrameBuf, LogOptions, Writer, recover};
use crate::offline::check::Steps;
use crate::offline::check::payloads::Payloads;
use crate::opening;
use crate::payload::body::{Body, Stored};
use crate::store::{self, StoreValues};

/// A frame is written when it has reached this size, or this fraction of a segment.
const FRAME_BYTES: u64 = 256 << 10;
const FRAMES_PER_SEGMENT: u64 = 4;

/// The state to write.
pub(super) struct Source<'s> {
    pub(super) broker: &'s Broker<Body>,
    pub(super) payloads: &'s mut Payloads,
    /// Copies of payloads that cannot be read at their places.
    pub(super) elsewhere: &'s HashMap<Stored, Stored>,
    /// The identity of the new store.
    pub(super) values: StoreValues,
    pub(super) last_id: TaskId,
    /// The size of the new segments; by default it depends on the disk.
    pub(super) segment_bytes: Option<u64>,
}

pub(super) struct Rebuilt {
    /// The tasks that could not be saved.
    pub(super) lost: Vec<Lost>,
}

/// Writes the new store. The `store` file comes last: without it the directory is not a store.
pub(super) fn rebuild(
    source: Source<'_>,
    to: &Arc<dyn Disk>,
    steps: &mut Steps<'_>,
) -> Result<Rebuilt, OpenError> {
    let Source { broker, payloads, elsewhere, values, last_id, segment_bytes } = source;
    let options = LogOptions {
        segment_bytes: segment_bytes.map_or_else(|| opening::suitable_segment_bytes(&**to), Ok)?,
        filling: Filling::Reserved,
        may_be_new: true,
        ..LogOptions::new(values.uuid)
    };
    let writer = recover(to, &options, &mut |_| Ok(()))?.writer;
    let mut copy = Copy {
        frame_bytes: FRAME_BYTES.min(options.segment_bytes / FRAMES_PER_SEGMENT) as usize,
        broker: Broker::default(),
        frame: FrameBuf::new(),
        events: 0,
        writer,
        failure: None,
        lost: Vec::new(),
        workers: BTreeSet::new(),
    };
    let damage: Cell<Option<Damage>> = Cell::new(None);
    let mut load = |body: &Body| -> Box<[u8]> {
        let Some(place) = body.place() else { return Box::default() };
        let place = elsewhere.get(&place).copied().unwrap_or(place);
        payloads.read(place).unwrap_or_else(|found| {
            damage.set(Some(found));
            Box::default()
        })
    };
    broker.export(&mut load, &mut |event| match event {
        Event::Started { time, .. } => {
            let time = LogTime(time.0.max(values.log_time));
            copy.add(&Event::Started { incarnation: values.incarnation, time });
            if last_id != TaskId::NONE {
                copy.add(&Event::IdsUpto(last_id));
            }
        }
        Event::IdsUpto(_) => {}
        Event::WorkerStarted { incarnation, .. } => {
            if copy.add(event) {
                copy.workers.insert(*incarnation);
            }
        }
        Event::Task(task) => {
            steps.step(task.payload.len() as u64);
            let name = broker.name_of(task.queue).unwrap_or_default();
            match damage.take() {
                Some(damage) => copy.lose(name, task.id, &damage),
                None => copy.task(name, task),
            }
        }
        Event::Counted { queue, counters } => copy.counted(*queue, counters),
        _ => _ = copy.add(event),
    });
    copy.flush();
    if let Some(error) = copy.failure {
        return Err(error);
    }
    copy.writer.sync().map_err(opening::disk_error)?;
    store::create_with(&**to, &values)?;
    Ok(Rebuilt { lost: copy.lost })
}

/// The new store, and the state that a replay of its log gives.
struct Copy {
    broker: Broker<Body>,
    frame: FrameBuf,
    events: u32,
    frame_bytes: usize,
    writer: Writer,
    failure: Option<OpenError>,
    lost: Vec<Lost>,
    workers: BTreeSet<u64>,
}

impl Copy {
    /// Writes an event, if it can be applied to the state so far.
    fn add(&mut self, event: &Event<'_>) -> bool {
        if self.broker.replay(event, &mut Blank).is_err() {
            return false;
        }
        codec::encode_with(event, self.frame.body_mut(), crc32c::crc32c);
        self.events += 1;
        if self.frame.body().len() >= self.frame_bytes {
            self.flush();
        }
        true
    }

    fn flush(&mut self) {
        if self.events > 0 && self.failure.is_none() {
            let written = self.writer.append(&mut self.frame, self.events);
            self.failure = written.err().map(opening::disk_error);
        }
        self.frame.reset();
        self.events = 0;
    }

    /// Writes a task unchanged, or as much of it as possible.
    fn task(&mut self, queue: &[u8], task: &FullTask<'_>) {
        let holder = match &task.state {
            TaskState::Leased(lease) => lease.holder(),
            _ => None,
        };
        let is_held = match holder {
            Some(Holder::Worker(worker)) => self.workers.contains(&worker),
            _ => true,
        };
        if !is_held && task.cancelled {
            let why = "it was cancelled, and its worker is unknown".to_owned();
            return self.lost.push(Lost { queue: queue.to_vec(), id: task.id, why });
        }
        if is_held && self.add(&Event::Task(task)) {
            return;
        }
        // Save the task without its order, without a missing worker, or without a name that another task has.
        let state = TaskState::Ready(OrderKey::pushed(task.id));
        let waiting = FullTask { state, stray_neg_priority: None, cancelled: false, ..task.clone() };
        let nameless = Fields { name: None, ..task.fields };
        if self.add(&Event::Task(&waiting))
            || self.add(&Event::Task(&FullTask { fields: nameless, ..waiting.clone() }))
        {
            return;
        }
        let why = "it contradicts the rest of the state".to_owned();
        self.lost.push(Lost { queue: queue.to_vec(), id: task.id, why });
    }

    fn lose(&mut self, queue: &[u8], id: TaskId, damage: &Damage) {
        let Damage { file, offset, what, .. } = damage;
        let why = format!("{file} at offset {offset}: {what}");
        self.lost.push(Lost { queue: queue.to_vec(), id, why });
    }

    /// Writes the counters of a queue, without lost tasks.
    fn counted(&mut self, queue: QueueNo, counters: &Counters) {
        let Totals { finished, removed, .. } = counters.totals;
        let left = self.broker.queue_at(queue).map_or(0, sureq_core::Queue::len);
        let pushed = finished.saturating_add(removed).saturating_add(left);
        let counters = Counters { totals: Totals { pushed, finished, removed }, ..*counters };
        let is_written = self.add(&Event::Counted { queue, counters: &counters });
        if !is_written && counters.paused.is_some() {
            self.add(&Event::Paused(queue));
        }
    }
}

/// Makes bodies that have a length and no real place.
struct Blank;

impl Recorder for Blank {
    type Body = Body;

    fn record(&mut self, _event: &Event<'_>) {}

    fn new_body(&mut self, _index: usize, payload: &[u8]) -> Body {
        Body::Stored(Stored { segment: 1, offset: 0, len: payload.len() as u32 })
    }

    fn payload_hash(&self, _payload: &[u8]) -> u128 {
        // Hashes are recorded with the events that need them.
        0
    }

    fn release_body(&mut self, _body: Body) {}
}
