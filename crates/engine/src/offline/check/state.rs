//! Builds the state of a store as a start does, from a checkpoint and the log after it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::ops::RangeInclusive;
use std::sync::Arc;

use sureq_core::event::QueueNo;
use sureq_core::task::{Body as _, TaskState};
use sureq_core::{Broker, Event, TaskId, codec};

use super::payloads::{Payloads, standing_for};
use crate::checkpoint::Checkpoints;
use crate::commit::commit_buffer::ReplayRecorder;
use crate::compaction::live::{Live, LiveBodies};
use crate::compaction::snapshot::{self, Snapshot};
use crate::disk::Disk;
use crate::fault::{Damage, OpenError};
use crate::log::{Cut, LogOptions, Position, scan};
use crate::opening;
use crate::payload::body::{Body, Stored};

/// The state at the end of the log.
pub(crate) struct Built {
    pub(crate) broker: Broker<Body>,
    pub(crate) end: Position,
    pub(crate) cut: Option<Cut>,
    /// Segments of which the checkpoint counts more or fewer live payloads than its tasks have.
    pub(crate) miscounts: Vec<Miscount>,
    pub(crate) live: LiveBodies,
    /// The error that a start would report for a missing file with payloads.
    pub(crate) missing: Option<OpenError>,
    /// The segment numbers that each file replaces.
    pub(crate) files: Vec<(RangeInclusive<u64>, u64)>,
}

/// A segment of which a checkpoint counts more or fewer live payloads than its tasks have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Miscount {
    pub(crate) segment: u64,
    pub(crate) counted: Live,
    pub(crate) found: Live,
}

/// The state of a checkpoint, and its position.
#[derive(Default)]
pub(crate) struct Beginning {
    restored: snapshot::Restored,
    from: Position,
}

impl Beginning {
    /// The state and its position.
    pub(crate) fn into_parts(self) -> (Broker<Body>, Position) {
        (self.restored.broker, self.from)
    }
}

/// Restores the state of this checkpoint.
pub(crate) fn restore(checkpoints: &Checkpoints, number: u64) -> Result<Beginning, OpenError> {
    checkpoints
        .load_one(number, |loaded| Ok(Beginning { restored: Snapshot::load(loaded)?, from: loaded.position }))
}

/// Replays the log from there to its end. Changes nothing on disk.
pub(crate) fn replay(
    disk: &Arc<dyn Disk>,
    uuid: [u8; 16],
    beginning: Beginning,
    may_be_new: bool,
) -> Result<Built, OpenError> {
    let Beginning { restored: snapshot::Restored { mut broker, mut live, .. }, from } = beginning;
    let miscounts = miscounts(&live, &broker);
    let options = LogOptions { from, may_be_new, ..LogOptions::new(uuid) };
    let scanned =
        scan(&**disk, &options, &mut |frame| opening::replay(&mut broker, &mut live, from, &frame))?;
    broker.release_all_dropped(&mut ReplayRecorder::after_all(&mut live));
    broker.refresh_all();
    // The tasks refer to the open segment by the number that a start would give it.
    let mut segments = scanned.segments;
    let mut files: Vec<_> = segments.iter().map(|segment| (segment.numbers(), segment.number)).collect();
    if let (Some(last), Some(file)) = (segments.last_mut(), files.last_mut()) {
        file.0 = last.first_number..=scanned.next_number;
        last.number = scanned.next_number;
    }
    let missing = opening::refuse_missing(&live, &segments).err();
    Ok(Built { broker, end: scanned.end, cut: scanned.cut, miscounts, live, missing, files })
}

/// The segments of which more or fewer live payloads are counted than the tasks of a broker have.
pub(crate) fn miscounts(live: &LiveBodies, broker: &Broker<Body>) -> Vec<Miscount> {
    let mut found = LiveBodies::default();
    broker.bodies(&mut |body| body.place().into_iter().for_each(|place| found.add(place)));
    broker.dropped_bodies(&mut |body| body.place().into_iter().for_each(|place| found.add(place)));
    let by_segment = |live: &LiveBodies| -> BTreeMap<u64, Live> {
        live.segments().filter(|(_, live)| live.tasks > 0).collect()
    };
    let (counted, found) = (by_segment(live), by_segment(&found));
    let segments: BTreeSet<u64> = counted.keys().chain(found.keys()).copied().collect();
    let miscounts = segments.into_iter().map(|segment| Miscount {
        segment,
        counted: counted.get(&segment).copied().unwrap_or_default(),
        found: found.get(&segment).copied().unwrap_or_default(),
    });
    miscounts.filter(|miscount| miscount.counted != miscount.found).collect()
}

impl Built {
    /// The number of the file that replaces a segment, if there is one.
    pub(crate) fn file_of(&self, segment: u64) -> Option<u64> {
        standing_for(&self.files, segment)
    }

    /// The live payloads of each file.
    pub(crate) fn live_by_file(&self) -> BTreeMap<u64, Live> {
        let mut by_file: BTreeMap<u64, Live> = BTreeMap::new();
        for (segment, live) in self.live.segments().filter(|(_, live)| live.tasks > 0) {
            let file = by_file.entry(self.file_of(segment).unwrap_or(segment)).or_default();
            file.tasks += live.tasks;
            file.bytes += live.bytes;
        }
        by_file
    }

    /// A digest that is the same for equal states of one log, from whichever checkpoint they were built. It includes
    /// the length and place of each payload, so that the places in two checkpoints are compared.
    pub(crate) fn digest(&self) -> u64 {
        let mut chained = DefaultHasher::new();
        let mut unordered = 0u64;
        let mut bytes = Vec::new();
        let mut whereabouts = |body: &Body| -> Box<[u8]> {
            let place = body.place().map(|place| {
                // A recovery gives the file a new number, but some places still have the old one.
                let segment = u64::from(place.segment);
                (self.file_of(segment).unwrap_or(segment), u64::from(place.offset))
            });
            let (file, offset) = place.unwrap_or_default();
            Box::from([file, offset, body.len() as u64].map(u64::to_le_bytes).as_flattened())
        };
        self.broker.export(&mut whereabouts, &mut |event| {
            bytes.clear();
            codec::encode(event, &mut bytes);
            match event {
                // A start raises the mark without an event.
                Event::IdsUpto(_) => {}
                // Tasks with and without records are visited in different orders.
                Event::Task(task) if matches!(task.state, TaskState::Delayed(_)) => {
                    let mut one = DefaultHasher::new();
                    one.write(&bytes);
                    unordered = unordered.wrapping_add(one.finish());
                }
                _ => chained.write(&bytes),
            }
        });
        chained.write_u64(unordered);
        chained.finish()
    }
}

/// Reads every payload. Returns the bytes of each queue, and visits unreadable payloads.
pub(crate) fn read_payloads(
    broker: &Broker<Body>,
    payloads: &mut Payloads,
    bad: &mut dyn FnMut(QueueNo, TaskId, Stored, Damage),
    read: &mut dyn FnMut(u64),
) -> BTreeMap<QueueNo, u64> {
    let (failed, len) = (Cell::new(None), Cell::new(0u64));
    let mut by_queue: BTreeMap<QueueNo, u64> = BTreeMap::new();
    let mut load = |body: &Body| {
        len.set(body.len() as u64);
        if let Some(place) = body.place()
            && let Err(damage) = payloads.read(place)
        {
            failed.set(Some((place, damage)));
        }
        Box::default()
    };
    broker.export(&mut load, &mut |event| {
        if let Event::Task(task) = event {
            read(len.get());
            *by_queue.entry(task.queue).or_default() += len.get();
            if let Some((place, damage)) = failed.take() {
                bad(task.queue, task.id, place, damage);
            }
        }
    });
    by_queue
}
