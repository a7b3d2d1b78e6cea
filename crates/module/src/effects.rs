//! The decisions of one step of one queue, encoded for the log and replicas.
//!
//! The bytes are an [`Event::Clock`] and the events of the step, in the format of [`codec`]. The checksums of payloads
//! are 0, since logs and snapshots of Redis have their own.

use sha2::{Digest as _, Sha256};
use sureq_core::task::Body as _;
use sureq_core::{Event, LogTime, Recorder, codec};

use crate::object::Usage;
use crate::payload::Payload;

/// Records the events of a step.
pub(crate) struct Effects<'o> {
    record: Record,
    /// Whether events are recorded.
    is_wanted: bool,
    now: LogTime,
    usage: &'o mut Usage,
}

impl<'o> Effects<'o> {
    /// An empty record that uses the given buffer, or none if there is no follower.
    pub(crate) fn new(mut room: Vec<u8>, is_wanted: bool, now: LogTime, usage: &'o mut Usage) -> Self {
        room.clear();
        Self { record: Record { bytes: room, has_events: false }, is_wanted, now, usage }
    }

    /// The record of the step.
    pub(crate) fn into_record(self) -> Record {
        self.record
    }
}

/// The result of a step.
pub(crate) struct Record {
    /// The encoded events; `None` if there is no follower.
    pub(crate) bytes: Vec<u8>,
    /// Whether anything happened.
    pub(crate) has_events: bool,
}

/// Appends an event.
pub(crate) fn encode(event: &Event<'_>, out: &mut Vec<u8>) {
    codec::encode_with(event, out, |_| 0);
}

impl Recorder for Effects<'_> {
    type Body = Payload;

    fn record(&mut self, event: &Event<'_>) {
        let Record { bytes, has_events } = &mut self.record;
        *has_events = true;
        if !self.is_wanted {
            return;
        }
        if bytes.is_empty() {
            encode(&Event::Clock(self.now), bytes);
        }
        encode(event, bytes);
    }

    fn new_body(&mut self, _: usize, payload: &[u8]) -> Payload {
        self.usage.count(payload.len());
        Payload::from(payload)
    }

    /// Unkeyed, so that every server that ever holds the queue computes the same name, and cryptographic, so that
    /// names cannot be forged.
    fn payload_hash(&self, payload: &[u8]) -> u128 {
        let hash = Sha256::digest(payload);
        let first = hash.first_chunk().expect("a digest has 32 bytes");
        u128::from_le_bytes(*first)
    }

    fn release_body(&mut self, body: Payload) {
        self.usage.uncount(body.len());
    }
}

/// Applies events that were decided elsewhere; records nothing.
pub(crate) struct Silent<'o>(pub(crate) &'o mut Usage);

impl Recorder for Silent<'_> {
    type Body = Payload;

    fn record(&mut self, _: &Event<'_>) {}

    fn new_body(&mut self, _: usize, payload: &[u8]) -> Payload {
        self.0.count(payload.len());
        Payload::from(payload)
    }

    fn payload_hash(&self, _: &[u8]) -> u128 {
        // Only a decision needs the hash.
        0
    }

    fn release_body(&mut self, body: Payload) {
        self.0.uncount(body.len());
    }
}
