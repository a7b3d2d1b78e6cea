//! A queue as bytes: events that rebuild the same queue, including its digest, in pieces of bounded size.
//!
//! [`Event::Started`], [`Event::Configured`] if it has settings, an [`Event::Task`] for each task in a sequence that
//! preserves all orders, and [`Event::Counted`]. A snapshot contains the pieces as strings followed by an empty one,
//! a rewritten log as one `RQ.APPLY` each. Input bytes are untrusted.

use sureq_core::{Event, LogTime, codec};

use crate::effects::{Silent, encode};
use crate::object::{NUMBER, Object};
use crate::process::INCARNATION_MAX;

/// The size at which a piece is full.
const PIECE_BYTES: usize = 256 << 10;

/// The error for bytes that are not a queue.
pub(crate) type Wrong = String;

/// Passes the pieces of a queue to a function.
pub(crate) fn pieces(object: &Object, mut hand_out: impl FnMut(&[u8])) {
    let (queue, mut piece) = (&object.queue, Vec::new());
    encode(&Event::Started { incarnation: queue.incarnation(), time: LogTime(0) }, &mut piece);
    if !queue.settings().is_default() {
        encode(&Event::Configured { queue: NUMBER, settings: queue.settings() }, &mut piece);
    }
    queue.export(&mut |body| body.as_ref().into(), &mut |task| {
        encode(&Event::Task(task), &mut piece);
        if piece.len() >= PIECE_BYTES {
            hand_out(&piece);
            piece.clear();
        }
    });
    encode(&Event::Counted { queue: NUMBER, counters: &queue.counters() }, &mut piece);
    hand_out(&piece);
}

pub(crate) fn take_in(object: &mut Object, mut piece: &[u8]) -> Result<(), Wrong> {
    while !piece.is_empty() {
        let decoded = codec::decode(piece, |event| take_event(object, event));
        let (taken, rest) = decoded.map_err(|malformed| malformed.to_string())?;
        taken?;
        piece = rest;
    }
    Ok(())
}

fn take_event(object: &mut Object, event: &Event<'_>) -> Result<(), Wrong> {
    let Object { queue, usage, .. } = object;
    match event {
        Event::Started { .. } | Event::Configured { .. } | Event::Task(_) | Event::Counted { .. } => queue
            .apply(event, LogTime(0), &mut Silent(usage))
            .map_err(|inconsistent| inconsistent.to_string()),
        _ => Err("an event that does not belong in a snapshot".to_owned()),
    }
}

/// Whether the applied pieces are a consistent queue.
pub(crate) fn check(object: &Object) -> Result<(), Wrong> {
    if object.queue.is_unfinished() {
        return Err("an operation on many tasks that is not finished".to_owned());
    }
    if object.queue.incarnation() > INCARNATION_MAX {
        return Err("an incarnation that is too large".to_owned());
    }
    object.queue.check().map_err(|broken| broken.0)
}
