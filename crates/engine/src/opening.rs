//! From a directory to a broker that is ready to serve.
//!
//! In this order, so that a crash at any point leaves a store that opens again: read who the store is, replay its
//! log, make the new incarnation durable, record the start, and only then answer anyone.

use std::sync::Arc;

use sureq_core::{Broker, LogTime, TaskId, codec};

use crate::body::Body;
use crate::clock::{Clock, LogClock};
use crate::disk::Disk;
use crate::engine::Options;
use crate::fault::{Fault, OpenError, ReplayError};
use crate::keeper::mark_ahead_of;
use crate::log::{
    Cut, Durability, Filling, FrameBuf, LogError, LogOptions, Position, ReplayFrame, Spares, Writer, recover,
};
use crate::store::{Store, StoreValues};
use crate::tape::{Playback, Tape};

/// A store that is ready to serve.
pub(crate) struct Opened {
    pub(crate) broker: Broker<Body>,
    pub(crate) clock: LogClock,
    pub(crate) store: Store,
    pub(crate) writer: Writer,
    pub(crate) spares: Arc<Spares>,
    pub(crate) end: Position,
    pub(crate) hash_key: [u8; 16],
    pub(crate) id_mark: TaskId,
    pub(crate) cut: Option<Cut>,
}

pub(crate) fn open(
    disk: &Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    options: &Options,
) -> Result<Opened, OpenError> {
    let mut store = Store::open(disk)?;
    let values = *store.values();
    let mut broker = Broker::default();
    let log_options = LogOptions {
        segment_bytes: options.segment_bytes,
        filling: if options.durability == Durability::None { Filling::Reserved } else { Filling::Zeros },
        may_be_new: values.incarnation == 0,
        ..LogOptions::new(values.uuid)
    };
    let recovered = recover(disk, &log_options, &mut |frame| replay(&mut broker, &frame))?;
    broker.refresh_all();
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

    let mut tape = Tape::new(recovered.end, values.hash_key);
    broker.start(incarnation, now, &mut tape);
    let mut writer = recovered.writer;
    let (mut frame, events, end) = tape.take(FrameBuf::new());
    writer.append(&mut frame, events).map_err(disk_error)?;
    writer.sync().map_err(disk_error)?;
    Ok(Opened {
        broker,
        clock,
        store,
        writer,
        spares: recovered.spares,
        end,
        hash_key: values.hash_key,
        id_mark,
        cut: recovered.cut,
    })
}

fn replay(broker: &mut Broker<Body>, frame: &ReplayFrame<'_>) -> Result<(), ReplayError> {
    let mut rest = frame.body;
    for _ in 0..frame.events {
        let (applied, behind) = codec::decode(rest, |event| broker.replay(event, &mut Playback))?;
        applied?;
        rest = behind;
    }
    if rest.is_empty() { Ok(()) } else { Err("a frame holds more than its events".into()) }
}

/// Before serving, no space and a failing disk are the same: the store cannot be opened.
fn disk_error(error: LogError) -> OpenError {
    match error {
        LogError::NoSpace(fault) | LogError::Fault(fault) => OpenError::Disk(fault),
        other => OpenError::Disk(Fault::new(
            crate::fault::Operation::Write,
            "the log",
            std::io::Error::other(other.to_string()),
        )),
    }
}

/// The key of payload hashes where nothing is kept: good for as long as the process lives.
pub(crate) fn memory_key() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    let words = [RandomState::new().hash_one(0u8), RandomState::new().hash_one(1u8)];
    let mut key = [0; 16];
    key[..8].copy_from_slice(&words[0].to_le_bytes());
    key[8..].copy_from_slice(&words[1].to_le_bytes());
    key
}
