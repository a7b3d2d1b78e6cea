//! Opens a store: from a directory to a broker that is ready to serve.
//!
//! The order ensures that a crash at any point leaves a store that opens again: read the store file, load a checkpoint
//! and replay the log, make the new incarnation durable, log the start, and only then serve.

use std::collections::BTreeMap;
use std::sync::Arc;

use sureq_core::{Broker, LogTime, TaskId, codec};

use crate::checkpoint::Checkpoints;
use crate::clock::{Clock, LogClock};
use crate::commit::commit_buffer::{CommitBuffer, ReplayRecorder};
use crate::commit::preallocator::mark_ahead_of;
use crate::compaction::compactor::Compactor;
use crate::compaction::live::LiveBodies;
use crate::compaction::snapshot::{self, Snapshot};
use crate::disk::Disk;
use crate::engine::Options;
use crate::failpoint::failpoint;
use crate::fault::{Damage, Fault, OpenError, ReplayError};
use crate::log::{
    Cut, Durability, Filling, FrameBuf, LogError, LogOptions, Position, RESERVE_SEGMENTS, Reader,
    ReplayFrame, SEGMENT_BYTES, SegmentInfo, Spares, Writer, recover, segment_name,
};
use crate::payload::body::Body;
use crate::store::{Store, StoreValues};

/// The least number of segments that a disk is divided into.
const SEGMENTS_PER_DISK: u64 = 64;

/// The smallest segment that is chosen for a small disk.
const SEGMENT_BYTES_MIN: u64 = 256 << 10;

/// A store that is ready to serve.
pub(crate) struct Opened {
    pub(crate) broker: Broker<Body>,
    pub(crate) clock: LogClock,
    pub(crate) store: Store,
    pub(crate) writer: Writer,
    pub(crate) spares: Arc<Spares>,
    pub(crate) reader: Reader,
    pub(crate) segments: Vec<SegmentInfo>,
    pub(crate) compactor: Compactor,
    pub(crate) buffer: CommitBuffer,
    pub(crate) end: Position,
    pub(crate) cut: Option<Cut>,
    /// The damage of the newest checkpoint, if it could not be used.
    pub(crate) skipped: Option<Damage>,
}

pub(crate) fn open(
    disk: &Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    options: &Options,
) -> Result<Opened, OpenError> {
    let mut store = Store::open(disk)?;
    let values = *store.values();
    let mut checkpoints = Checkpoints::open(Arc::clone(disk), values.uuid)?;
    let restored = checkpoints.load(Snapshot::load)?;
    let (from, skipped) = restored
        .as_ref()
        .map_or((Position::START, None), |restored| (restored.position, restored.skipped.clone()));
    let restored = restored.map(|restored| restored.value);
    let snapshot::Restored { mut broker, mut live, snapshot } = restored.unwrap_or_default();
    let log_options = LogOptions {
        from,
        segment_bytes: options.segment_bytes.map_or_else(|| suitable_segment_bytes(&**disk), Ok)?,
        filling: if options.durability == Durability::None { Filling::Reserved } else { Filling::Zeros },
        may_be_new: values.incarnation == 0,
        reserve_segments: RESERVE_SEGMENTS,
        ..LogOptions::new(values.uuid)
    };
    let mut replayed_bytes = 0;
    let recovered = recover(disk, &log_options, &mut |frame| {
        replayed_bytes += frame.body.len() as u64;
        replay(&mut broker, &mut live, from, &frame)
    })?;
    // The log does not record when dropped queues were released.
    broker.release_all_dropped(&mut ReplayRecorder::after_all(&mut live));
    broker.refresh_all();
    refuse_missing(&live, &recovered.segments)?;
    if let Some(observer) = &options.observer {
        observer.recovered(recovered.end, &broker);
    }
    failpoint("open.after-recovery");
    checkpoints.remove_leftovers().map_err(disk_error)?;
    failpoint("open.after-leftovers");
    if let Some(last) = values.id_mark.checked_sub(1).and_then(TaskId::at_or_below) {
        broker.raise_last_id(last);
    }

    let last_logged = broker.clock().max(LogTime(values.log_time));
    let wall_ms = clock.wall_ms();
    let clock = LogClock::starting(clock, last_logged);
    let now = clock.now();
    let incarnation = values.incarnation.saturating_add(1).max(wall_ms);
    let id_mark = mark_ahead_of(broker.last_id(), now);
    let started = StoreValues { incarnation, log_time: now.log.0, id_mark: id_mark.raw(), ..values };
    store.update(started).map_err(disk_error)?;
    failpoint("open.after-incarnation");
    broker.set_id_mark(id_mark);

    let mut writer = recovered.writer;
    let mut buffer = CommitBuffer::new(recovered.end, writer.room(), values.hash_key, live);
    broker.start(incarnation, now, &mut buffer);
    // No pop waits yet, and all queues with tasks are listed.
    broker.forget_awake();
    buffer.end_unit(&mut broker);
    if let Some(observer) = &options.observer {
        observer.changed(buffer.end(), &broker);
    }
    while let Some(mut batch) = buffer.take(&mut FrameBuf::new()) {
        writer.append(&mut batch.frame, batch.events).map_err(disk_error)?;
    }
    writer.sync().map_err(disk_error)?;
    let mut segments = recovered.segments;
    if segments.last().is_some_and(|last| last.number < writer.segment().number) {
        // The events of the start did not fit the segment before.
        segments.push(writer.segment());
    }
    Ok(Opened {
        broker,
        clock,
        store,
        writer,
        spares: Arc::clone(&recovered.spares),
        reader: Reader::new(Arc::clone(disk), &segments),
        segments,
        compactor: Compactor {
            newest: None,
            // Everything that was replayed is on disk.
            confirmed: buffer.live.clone(),
            disk: Arc::clone(disk),
            uuid: values.uuid,
            checkpoints,
            snapshot,
            spares: recovered.spares,
            is_short_of_files: false,
            replayed_bytes,
            unread: BTreeMap::new(),
            kept_older: None,
        },
        skipped,
        end: buffer.end(),
        buffer,
        cut: recovered.cut,
    })
}

pub(crate) fn replay(
    broker: &mut Broker<Body>,
    live: &mut LiveBodies,
    from: Position,
    frame: &ReplayFrame<'_>,
) -> Result<(), ReplayError> {
    let mut rest = frame.body;
    let mut recorder = ReplayRecorder { frame: frame.body, place: frame.place, live };
    for position in frame.first.0..frame.first.0 + u64::from(frame.events) {
        // The position of a checkpoint may be within a frame.
        let is_past = position < from.0;
        let (applied, behind) =
            codec::decode(rest, |event| if is_past { Ok(()) } else { broker.replay(event, &mut recorder) })?;
        applied?;
        rest = behind;
    }
    if rest.is_empty() { Ok(()) } else { Err("a frame contains more than its events".into()) }
}

/// Refuses a store that lacks a segment with payloads of live tasks.
pub(crate) fn refuse_missing(live: &LiveBodies, segments: &[SegmentInfo]) -> Result<(), OpenError> {
    let is_there = |number: u64| segments.iter().any(|segment| segment.numbers().contains(&number));
    let needed = live.segments().filter(|(_, live)| live.tasks > 0);
    match needed.map(|(number, live)| (number, live.tasks)).find(|(number, _)| !is_there(*number)) {
        None => Ok(()),
        Some((number, tasks)) => {
            let what = format!("the file is missing, and with it the payloads of {tasks} tasks");
            Err(Damage { file: segment_name(number), offset: 0, position: None, what }.into())
        }
    }
}

/// A segment size that is small compared to the disk, since the reserve and the slack of compaction are counted in
/// segments.
pub(crate) fn suitable_segment_bytes(disk: &dyn Disk) -> Result<u64, Fault> {
    Ok(segment_bytes_for(disk.capacity()?))
}

fn segment_bytes_for(capacity: u64) -> u64 {
    // A file system without limits reports 0.
    let capacity = Some(capacity).filter(|&bytes| bytes > 0).unwrap_or(u64::MAX);
    (capacity / SEGMENTS_PER_DISK).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES)
}

/// The error of opening: a full disk and a failing one both prevent it.
pub(crate) fn disk_error(error: LogError) -> OpenError {
    match error {
        LogError::NoSpace(fault) | LogError::Fault(fault) => OpenError::Disk(fault),
        other => OpenError::Disk(Fault::new(
            crate::fault::Operation::Write,
            "the log",
            std::io::Error::other(other.to_string()),
        )),
    }
}

/// A random key of payload hashes for a store in memory.
pub(crate) fn memory_key() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    let words = [RandomState::new().hash_one(0u8), RandomState::new().hash_one(1u8)];
    let mut key = [0; 16];
    key[..8].copy_from_slice(&words[0].to_le_bytes());
    key[8..].copy_from_slice(&words[1].to_le_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::segment_bytes_for;

    /// The values in docs/operate/configuration.md.
    #[test]
    fn a_segment_is_a_64th_of_its_disk_within_bounds() {
        let (kb, mb, gb) = (1 << 10, 1 << 20, 1 << 30);
        let cases = [
            (mb, 256 * kb),
            (16 * mb, 256 * kb),
            (64 * mb, mb),
            (gb, 16 * mb),
            (2 * gb, 32 * mb),
            (1000 * gb, 32 * mb),
            (0, 32 * mb),
        ];
        for (capacity, segment) in cases {
            assert_eq!(segment_bytes_for(capacity), segment, "{capacity}");
        }
    }
}
