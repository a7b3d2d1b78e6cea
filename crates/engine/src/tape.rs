//! Takes down what the broker decides, for the log thread to write.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};
use sureq_core::{Event, Recorder, codec};

use crate::body::Body;
use crate::log::{FrameBuf, Position};

/// Events that have happened but are not written yet.
pub(crate) struct Tape {
    /// `None` where nothing is kept.
    frame: Option<FrameBuf>,
    events: u32,
    is_committed: bool,
    end: Position,
    hash_key: [u8; 16],
}

impl Tape {
    pub(crate) fn new(end: Position, hash_key: [u8; 16]) -> Self {
        Self { frame: Some(FrameBuf::new()), events: 0, is_committed: false, end, hash_key }
    }

    /// A tape that forgets.
    pub(crate) fn forgetful(hash_key: [u8; 16]) -> Self {
        Self { frame: None, events: 0, is_committed: false, end: Position::START, hash_key }
    }

    /// The position after the last event taken down.
    pub(crate) const fn end(&self) -> Position {
        self.end
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// Says that nobody is about to add to it: it is to be written.
    pub(crate) const fn commit(&mut self) {
        self.is_committed = true;
    }

    /// Whether there is something that is to be written.
    pub(crate) const fn is_committed(&self) -> bool {
        self.is_committed && !self.is_empty()
    }

    /// How many bytes wait to be written.
    pub(crate) fn bytes(&self) -> usize {
        self.frame.as_ref().map_or(0, |frame| frame.body().len())
    }

    /// Hands over what was taken down and goes on with an empty frame.
    pub(crate) fn take(&mut self, empty: FrameBuf) -> (FrameBuf, u32, Position) {
        let full = self.frame.replace(empty).unwrap_or_default();
        self.is_committed = false;
        (full, std::mem::take(&mut self.events), self.end)
    }
}

impl Recorder for Tape {
    type Body = Body;

    fn record(&mut self, event: &Event<'_>) {
        if let Some(frame) = &mut self.frame {
            codec::encode_with(event, frame.body_mut(), crc32c::crc32c);
            self.events += 1;
            self.end.0 += 1;
        }
    }

    fn body(&mut self, _index: usize, payload: &[u8]) -> Body {
        Body::from(payload)
    }

    fn payload_hash(&self, payload: &[u8]) -> u128 {
        let mut hasher = SipHasher13::new_with_key(&self.hash_key);
        hasher.write(payload);
        hasher.finish128().as_u128()
    }
}

/// Gives replayed payloads their handles; records nothing, since it is the past that is being read.
pub(crate) struct Playback;

impl Recorder for Playback {
    type Body = Body;

    fn record(&mut self, _event: &Event<'_>) {}

    fn body(&mut self, _index: usize, payload: &[u8]) -> Body {
        Body::from(payload)
    }

    fn payload_hash(&self, _payload: &[u8]) -> u128 {
        // Hashes are recorded with the events that need them; replay never computes one.
        0
    }
}

#[cfg(test)]
mod tests {
    use sureq_core::codec;

    #[test]
    fn the_fast_checksum_is_the_one_that_events_have() {
        for payload in [&b""[..], b"123456789", &[0; 100], &[255; 4099]] {
            assert_eq!(crc32c::crc32c(payload), codec::checksum(payload));
        }
        assert_eq!(codec::checksum(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
    }
}
