//! What one step of one queue decided, encoded for the log and for replicas.
//!
//! The bytes are a [`Event::Clock`] and the events behind it, as [`codec`] writes them; the checksums of payloads are left
//! out (0), since a log and a snapshot of Redis have their own.

use sha2::{Digest as _, Sha256};
use sureq_core::task::Body as _;
use sureq_core::{Event, LogTime, Recorder, codec};

use crate::object::Usage;
use crate::payload::Payload;

/// Writes down what a step does.
pub(crate) struct Effects<'o> {
    record: Record,
    /// Whether it is written down.
    is_wanted: bool,
    now: LogTime,
    usage: &'o mut Usage,
}

impl<'o> Effects<'o> {
    /// An empty record that uses this room, if anyone wants to read it.
    pub(crate) fn new(mut room: Vec<u8>, is_wanted: bool, now: LogTime, usage: &'o mut Usage) -> Self {
        room.clear();
        Self { record: Record { bytes: room, has_events: false }, is_wanted, now, usage }
    }

    /// What was recorded.
    pub(crate) fn into_record(self) -> Record {
        self.record
    }
}

/// What a step did.
pub(crate) struct Record {
    /// The events; none if nobody wants to read them.
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

    /// Without a key, so that every server that ever holds the queue finds the same name; and so strong that nobody can
    /// aim at it.
    fn payload_hash(&self, payload: &[u8]) -> u128 {
        let hash = Sha256::digest(payload);
        let first = hash.first_chunk().expect("a digest has 32 bytes");
        u128::from_le_bytes(*first)
    }

    fn release_body(&mut self, body: Payload) {
        self.usage.uncount(body.len());
    }
}

/// Takes events in that were decided elsewhere: nothing is recorded of them.
pub(crate) struct Silent<'o>(pub(crate) &'o mut Usage);

impl Recorder for Silent<'_> {
    type Body = Payload;

    fn record(&mut self, _: &Event<'_>) {}

    fn new_body(&mut self, _: usize, payload: &[u8]) -> Payload {
        self.0.count(payload.len());
        Payload::from(payload)
    }

    fn payload_hash(&self, _: &[u8]) -> u128 {
        // Only a decision asks for it.
        0
    }

    fn release_body(&mut self, body: Payload) {
        self.0.uncount(body.len());
    }
}
