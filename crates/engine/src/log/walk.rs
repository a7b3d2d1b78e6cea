//! Walks through the frames of one segment, and distinguishes sound frames from bad ones. A length is never used
//! before its checksum was verified.

use super::Position;
use super::frame::{FRAME_ALIGN, FRAME_HEADER_BYTES, FrameHeader, FrameKind, Seat, frame_bytes};
use super::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// The end of a segment's frames, from which the log continues.
#[derive(Debug)]
pub(crate) struct SegmentEnd {
    pub(crate) header: SegmentHeader,
    pub(crate) offset: u64,
    pub(crate) chain: u32,
    pub(crate) position: Position,
}

/// The state of a walk through a segment.
pub(crate) struct Walk<'a> {
    /// The bytes of the segment's file, which may be shorter than a segment.
    bytes: &'a [u8],
    salt: u64,
    pub(crate) offset: usize,
    /// The position that the next frame must begin at.
    pub(crate) position: Position,
    /// The chain that the next frame must continue.
    pub(crate) chain: u32,
    /// The highest synced mark seen, the segment header's included.
    pub(crate) synced: Position,
}

/// The result of one step of a walk.
pub(crate) enum Step<'a> {
    /// A sound frame with events. The walk has moved behind it.
    Events(SoundFrame<'a>),
    /// The seal that ends the segment.
    Seal,
    /// No frame that was written for this place, or only part of one: the end, a torn write, or damage.
    Torn(&'static str),
    /// An intact header that cannot be at this place: always damage.
    Alien(&'static str),
}

/// A frame whose checksums match and which continues the one before it.
pub(crate) struct SoundFrame<'a> {
    pub(crate) header: FrameHeader,
    /// Where its header begins.
    pub(crate) offset: usize,
    pub(crate) body: &'a [u8],
}

impl SoundFrame<'_> {
    pub(crate) fn body_offset(&self) -> u64 {
        (self.offset + FRAME_HEADER_BYTES) as u64
    }
}

impl<'a> Walk<'a> {
    /// A walk from the first frame of the segment whose header has the checksum `chain`.
    pub(crate) fn new(bytes: &'a [u8], header: &SegmentHeader, chain: u32) -> Walk<'a> {
        Walk {
            bytes,
            salt: header.salt,
            offset: SEGMENT_HEADER_BYTES,
            position: header.first,
            chain,
            synced: header.synced,
        }
    }

    pub(crate) fn step(&mut self) -> Step<'a> {
        let Some((header, crc)) = self.header_at(self.offset) else {
            return Step::Torn("there is no sound frame header");
        };
        if let Some(what) = self.contradiction(&header) {
            return Step::Alien(what);
        }
        if header.kind == Some(FrameKind::Seal) {
            return Step::Seal;
        }
        let begin = self.offset + FRAME_HEADER_BYTES;
        let Some(body) = self.bytes[begin..].get(..header.body_bytes as usize) else {
            return Step::Torn("the frame goes beyond the end of the file");
        };
        if self.seat(self.offset).crc(body) != header.body_crc {
            return Step::Torn("the checksum of the frame's body does not match");
        }
        let frame = SoundFrame { header, offset: self.offset, body };
        self.offset += frame_bytes(body.len());
        self.position = Position(header.first.0 + u64::from(header.events));
        self.chain = crc;
        self.synced = self.synced.max(header.synced);
        Step::Events(frame)
    }

    /// Searches the rest of the segment for intact headers after a bad frame, and returns their number. A header
    /// shows up to which position events were durable before it was written, even if the frames before it are lost,
    /// and even if it was written or copied to the wrong place.
    pub(crate) fn look_on(&mut self) -> usize {
        let mut found = 0;
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        for bytes in rest.chunks_exact(FRAME_ALIGN) {
            let bytes = bytes.first_chunk().expect("a header is no larger than the alignment of frames");
            if let Some((header, _)) = FrameHeader::decode_anywhere(bytes, self.salt) {
                self.synced = self.synced.max(header.synced);
                found += 1;
            }
        }
        found
    }

    /// Moves behind a frame with an intact header and a damaged body, and returns it. The walk continues as if the
    /// frame were sound, since its header states what follows.
    pub(crate) fn pass_over(&mut self) -> Option<SoundFrame<'a>> {
        let (header, crc) = self.header_at(self.offset)?;
        let is_passable = header.kind == Some(FrameKind::Events) && self.contradiction(&header).is_none();
        let begin = self.offset + FRAME_HEADER_BYTES;
        let body = self.bytes[begin..].get(..header.body_bytes as usize).filter(|_| is_passable)?;
        let frame = SoundFrame { header, offset: self.offset, body };
        self.offset += frame_bytes(body.len());
        self.position = Position(header.first.0 + u64::from(header.events));
        self.chain = crc;
        self.synced = self.synced.max(header.synced);
        Some(frame)
    }

    /// Moves to the next intact header at or after the walk's offset, and adopts its position and chain. Returns
    /// false if there is none.
    pub(crate) fn resume(&mut self) -> bool {
        let mut offset = self.offset;
        while offset + FRAME_HEADER_BYTES <= self.bytes.len() {
            if let Some((header, _)) = self.header_at(offset) {
                let before = (self.offset, self.position, self.chain);
                (self.offset, self.position, self.chain) = (offset, header.first, header.chain);
                if self.contradiction(&header).is_none() {
                    return true;
                }
                (self.offset, self.position, self.chain) = before;
            }
            offset += FRAME_ALIGN;
        }
        false
    }

    /// Whether the bytes at the walk's offset seem to be a damaged header of a frame of this segment. On a disk that
    /// does not tear sectors, a crash leaves a header complete or not at all.
    pub(crate) fn is_frayed(&self) -> bool {
        let Some(head) = self.bytes.get(self.offset..).and_then(<[u8]>::first_chunk::<FRAME_HEADER_BYTES>)
        else {
            return false;
        };
        FrameHeader::resembles(head, self.seat(self.offset)) && self.header_at(self.offset).is_none()
    }

    /// The current place, as the end of the segment of `header`.
    pub(crate) fn end(&self, header: SegmentHeader) -> SegmentEnd {
        SegmentEnd { header, offset: self.offset as u64, chain: self.chain, position: self.position }
    }

    fn header_at(&self, offset: usize) -> Option<(FrameHeader, u32)> {
        let bytes = self.bytes.get(offset..)?.first_chunk()?;
        FrameHeader::decode(bytes, self.seat(offset))
    }

    /// Why an intact header cannot be the next one. No crash causes this, at any durability level.
    fn contradiction(&self, header: &FrameHeader) -> Option<&'static str> {
        let counted = match header.kind {
            Some(FrameKind::Events) => header.events > 0 && header.first.after(header.events).is_some(),
            Some(FrameKind::Seal) => header.events == 0 && header.body_bytes == 0,
            None => return Some("the frame is of an unknown kind"),
        };
        if header.first != self.position {
            Some("the frame has the position of another")
        } else if header.chain != self.chain {
            Some("the frame does not continue the one before it")
        } else if !counted || header.synced > header.first {
            Some("the frame contradicts itself")
        } else {
            None
        }
    }

    fn seat(&self, offset: usize) -> Seat {
        Seat { salt: self.salt, offset: offset as u64 }
    }
}
