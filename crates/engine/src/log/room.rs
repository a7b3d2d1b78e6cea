//! The place of the next frame. It is known before the write, because tasks store the places of their payloads.

use super::LogAddress;
use super::frame::{FRAME_HEADER_BYTES, frame_bytes};
use super::segment::{SEAL_BYTES, SEGMENT_HEADER_BYTES, segment_bytes_for};

/// The free space after the last frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    segment: u64,
    /// Where the next frame begins.
    offset: u64,
    /// The length of the segment's file.
    bytes: u64,
    /// The length of new segments.
    segment_bytes: u64,
}

impl Room {
    pub(crate) fn new(segment: u64, offset: u64, bytes: u64, segment_bytes: u64) -> Room {
        Room { segment, offset, bytes, segment_bytes }
    }

    /// The segment's number.
    pub fn segment(&self) -> u64 {
        self.segment
    }

    /// The length of new segments, unless their first frame is larger.
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// The place of the next frame's body.
    pub fn body(&self) -> LogAddress {
        LogAddress { segment: self.segment, offset: self.offset + FRAME_HEADER_BYTES as u64 }
    }

    /// Whether a frame with a body of this size fits, and the seal after it.
    pub fn fits(&self, body_bytes: usize) -> bool {
        self.offset + (frame_bytes(body_bytes) + SEAL_BYTES) as u64 <= self.bytes
    }

    /// Whether the segment has no frame yet. It accepts a first frame of any size.
    pub fn is_fresh(&self) -> bool {
        self.offset == SEGMENT_HEADER_BYTES as u64
    }

    /// Moves behind a frame with a body of this size.
    pub fn advance(&mut self, body_bytes: usize) {
        if self.is_fresh() {
            self.bytes = self.bytes.max(segment_bytes_for(self.segment_bytes, frame_bytes(body_bytes)));
        }
        self.offset += frame_bytes(body_bytes) as u64;
    }

    /// Moves to the next segment.
    pub fn roll(&mut self) {
        self.segment += 1;
        self.offset = SEGMENT_HEADER_BYTES as u64;
        self.bytes = segment_bytes_for(self.segment_bytes, 0);
    }
}
