//! A frame: one batch of events after a header. The header has a checksum of its own, so that a damaged length is
//! never used.
//!
//! Both checksums are CRC-32C seeded with the segment's salt and the frame's offset. Frames therefore never validate in
//! another segment, in a recycled file, at another offset, or inside a payload.
//!
//! To change this layout: raise `FORMAT_VERSION` in `segment`, redraw docs/understand/log-format.md, keep decoding
//! the old version, and add a golden directory of it. Reserved bytes are written as zero and ignored when read.

use std::borrow::Cow;
use std::sync::Arc;

use super::Position;
use super::field::{get_u32, get_u64, put_u32, put_u64};

const SALT: usize = 0;
const OFFSET: usize = SALT + 8;
const FIRST: usize = OFFSET + 8;
const SYNCED: usize = FIRST + 8;
const EVENTS: usize = SYNCED + 8;
const BODY_BYTES: usize = EVENTS + 4;
const BODY_CRC: usize = BODY_BYTES + 4;
const CHAIN: usize = BODY_CRC + 4;
const KIND: usize = CHAIN + 4;
const RESERVED: usize = KIND + 4;
const CRC: usize = RESERVED + 8;

/// The size of a frame's header.
pub(crate) const FRAME_HEADER_BYTES: usize = CRC + 4;

/// Frames begin at multiples of this, so that a search for headers has few places to check.
pub(crate) const FRAME_ALIGN: usize = 64;

const _: () = assert!(FRAME_HEADER_BYTES == FRAME_ALIGN);

/// The largest body of a frame.
pub const FRAME_BODY_BYTES_MAX: usize = 1 << 30;

/// The bytes that a frame with a body of this size takes up in its segment.
pub(crate) const fn frame_bytes(body_bytes: usize) -> usize {
    FRAME_HEADER_BYTES + body_bytes.next_multiple_of(FRAME_ALIGN)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Events,
    /// A frame without a body, which ends the segment: the next segment exists durably.
    Seal,
}

impl FrameKind {
    const fn code(self) -> u32 {
        match self {
            FrameKind::Events => 1,
            FrameKind::Seal => 2,
        }
    }

    const fn from_code(code: u32) -> Option<FrameKind> {
        match code {
            1 => Some(FrameKind::Events),
            2 => Some(FrameKind::Seal),
            _ => None,
        }
    }
}

/// A frame's header, without salt and offset: these are its [`Seat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// `None` for a kind that this release does not know.
    pub(crate) kind: Option<FrameKind>,
    pub(crate) first: Position,
    /// All events before this position were durable when the frame was written.
    pub(crate) synced: Position,
    pub(crate) events: u32,
    pub(crate) body_bytes: u32,
    pub(crate) body_crc: u32,
    /// The checksum of the header before this one: the previous frame's, or the segment's.
    pub(crate) chain: u32,
}

/// The place of a frame, which its checksums cover.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    pub(crate) salt: u64,
    pub(crate) offset: u64,
}

impl Seat {
    /// Two seats of a segment have different seeds, and equal bytes have different CRCs under different seeds. So a
    /// frame that was moved within its segment is always detected.
    fn seed(self) -> u32 {
        let salt = (self.salt ^ (self.salt >> 32)) as u32;
        salt ^ (self.offset / FRAME_ALIGN as u64) as u32
    }

    /// The checksum of a body in this seat.
    pub(crate) fn crc(self, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(self.seed(), bytes)
    }
}

impl FrameHeader {
    /// Writes the header and returns its checksum, the next frame's chain.
    pub(crate) fn encode(&self, seat: Seat, into: &mut [u8; FRAME_HEADER_BYTES]) -> u32 {
        into.fill(0);
        put_u64(into, SALT, seat.salt);
        put_u64(into, OFFSET, seat.offset);
        put_u64(into, FIRST, self.first.0);
        put_u64(into, SYNCED, self.synced.0);
        put_u32(into, EVENTS, self.events);
        put_u32(into, BODY_BYTES, self.body_bytes);
        put_u32(into, BODY_CRC, self.body_crc);
        put_u32(into, CHAIN, self.chain);
        put_u32(into, KIND, self.kind.map_or(0, FrameKind::code));
        let crc = seat.crc(&into[..CRC]);
        put_u32(into, CRC, crc);
        crc
    }

    /// The header in `bytes` and its checksum, if they are a header written for this seat.
    pub(crate) fn decode(bytes: &[u8; FRAME_HEADER_BYTES], seat: Seat) -> Option<(FrameHeader, u32)> {
        if get_u64(bytes, OFFSET) != seat.offset {
            return None;
        }
        FrameHeader::decode_anywhere(bytes, seat.salt)
    }

    /// Whether these bytes seem to be a damaged header of this seat: they have its salt, or are a valid header except
    /// for the salt. Headers that a recycled file still has from its earlier use are not: their checksums depend on
    /// another salt.
    pub(crate) fn resembles(bytes: &[u8; FRAME_HEADER_BYTES], seat: Seat) -> bool {
        let mut mended = *bytes;
        put_u64(&mut mended, SALT, seat.salt);
        get_u64(bytes, SALT) == seat.salt || FrameHeader::decode(&mended, seat).is_some()
    }

    /// The header in `bytes` and its checksum, if they are a header written for the segment of this salt, at this or
    /// another offset.
    pub(crate) fn decode_anywhere(bytes: &[u8; FRAME_HEADER_BYTES], salt: u64) -> Option<(FrameHeader, u32)> {
        if get_u64(bytes, SALT) != salt {
            return None;
        }
        let seat = Seat { salt, offset: get_u64(bytes, OFFSET) };
        let crc = get_u32(bytes, CRC);
        if crc != seat.crc(&bytes[..CRC]) {
            return None;
        }
        let header = FrameHeader {
            kind: FrameKind::from_code(get_u32(bytes, KIND)),
            first: Position(get_u64(bytes, FIRST)),
            synced: Position(get_u64(bytes, SYNCED)),
            events: get_u32(bytes, EVENTS),
            body_bytes: get_u32(bytes, BODY_BYTES),
            body_crc: get_u32(bytes, BODY_CRC),
            chain: get_u32(bytes, CHAIN),
        };
        Some((header, crc))
    }
}

/// A batch that is being filled, with space for the frame's header before it, so that it is written without a copy.
///
/// Large payloads are not copied into it. They are in a separate buffer, the section, which belongs between the other
/// bytes of the batch:
///
/// ```text
/// bytes:    header | events .. head of the event | rest of the event .. events
///                                                ^ at
/// section:                                         payloads
/// ```
#[derive(Debug)]
pub struct FrameBuf {
    bytes: Vec<u8>,
    section: Option<Section>,
}

/// Payloads of a batch in a separate buffer.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    /// Its offset in the batch.
    pub(crate) at: usize,
    pub(crate) bytes: Arc<[u8]>,
}

impl Section {
    /// Converts an offset in the batch to an offset in the section, if all of these bytes are in it.
    pub(crate) fn find(&self, at: usize, len: usize) -> Option<usize> {
        let start = at.checked_sub(self.at)?;
        (start + len <= self.bytes.len()).then_some(start)
    }
}

impl Default for FrameBuf {
    fn default() -> FrameBuf {
        FrameBuf::new()
    }
}

impl FrameBuf {
    /// The offset of the batch in [`FrameBuf::body_mut`].
    pub(crate) const BODY_AT: usize = FRAME_HEADER_BYTES;

    /// An empty batch.
    pub fn new() -> FrameBuf {
        FrameBuf { bytes: vec![0; FRAME_HEADER_BYTES], section: None }
    }

    /// Empties the batch and keeps its memory.
    pub fn reset(&mut self) {
        self.bytes.truncate(FRAME_HEADER_BYTES);
        self.section = None;
    }

    /// Moves the batch except for its first `body_bytes` to the end of another one, which has no section.
    pub(crate) fn move_behind(&mut self, body_bytes: usize, to: &mut FrameBuf) {
        let moved = self.section.take_if(|section| section.at >= body_bytes);
        let own = self.section.as_ref().map_or(0, |section| section.bytes.len());
        let start = FRAME_HEADER_BYTES + body_bytes - own;
        let at = to.body_len();
        to.extend(&self.bytes[start..]);
        self.bytes.truncate(start);
        if let Some(Section { at: from, bytes }) = moved {
            to.put_section(Section { at: at + from - body_bytes, bytes });
        }
    }

    /// Adds the section. A batch has at most one.
    pub(crate) fn put_section(&mut self, section: Section) {
        assert!(self.section.is_none(), "a frame has one section");
        assert!(section.at <= self.bytes.len() - FRAME_HEADER_BYTES, "a section lies within the batch");
        self.section = Some(section);
    }

    /// The payloads in a separate buffer, if there are any.
    pub(crate) const fn section(&self) -> Option<&Section> {
        self.section.as_ref()
    }

    /// The bytes of the batch so far, including those of its section.
    pub fn body_len(&self) -> usize {
        let section = self.section.as_ref().map_or(0, |section| section.bytes.len());
        self.bytes.len() - FRAME_HEADER_BYTES + section
    }

    /// The batch so far. It must not have a section.
    pub fn body(&self) -> &[u8] {
        assert!(self.section.is_none(), "a batch with a section is in pieces");
        &self.bytes[FRAME_HEADER_BYTES..]
    }

    /// The batch except for its first `body_bytes`, in one piece: copied if there is a section.
    pub(crate) fn body_behind(&self, body_bytes: usize) -> Cow<'_, [u8]> {
        match &self.section {
            None => Cow::Borrowed(&self.bytes[FRAME_HEADER_BYTES + body_bytes..]),
            Some(_) => Cow::Owned(self.pieces().concat().split_off(FRAME_HEADER_BYTES + body_bytes)),
        }
    }

    /// The header and the batch, in the order in which they are written.
    fn pieces(&self) -> [&[u8]; 3] {
        match &self.section {
            None => [&self.bytes, &[], &[]],
            Some(Section { at, bytes }) => {
                let (before, behind) = self.bytes.split_at(FRAME_HEADER_BYTES + at);
                [before, bytes, behind]
            }
        }
    }

    /// The buffer to which an encoder appends. Its present content is the header and earlier events, and must not
    /// change.
    pub fn body_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends to the batch.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Completes the frame with its header and padding; size and checksum of the body are computed here. Returns the
    /// header's checksum, and the frame in pieces, some of which may be empty.
    pub(crate) fn finish(&mut self, mut header: FrameHeader, seat: Seat) -> (u32, [&[u8]; 3]) {
        let body_bytes = self.body_len();
        header.body_bytes = u32::try_from(body_bytes).expect("a body within FRAME_BODY_BYTES_MAX");
        let [first, section, last] = self.pieces();
        let crc = seat.crc(&first[FRAME_HEADER_BYTES..]);
        header.body_crc = [section, last].into_iter().fold(crc, crc32c::crc32c_append);
        let padding = frame_bytes(body_bytes) - FRAME_HEADER_BYTES - body_bytes;
        let head = self.bytes.first_chunk_mut().expect("a FrameBuf begins with room for its header");
        let crc = header.encode(seat, head);
        self.bytes.resize(self.bytes.len() + padding, 0);
        (crc, self.pieces())
    }

    /// Removes the padding that [`FrameBuf::finish`] added.
    pub(crate) fn unpad(&mut self, body_bytes: usize) {
        self.bytes.truncate(self.bytes.len() - (self.body_len() - body_bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEAT: Seat = Seat { salt: 0x0123_4567_89ab_cdef, offset: 128 };

    fn header() -> FrameHeader {
        FrameHeader {
            kind: Some(FrameKind::Events),
            first: Position(7),
            synced: Position(5),
            events: 2,
            body_bytes: 0,
            body_crc: 0,
            chain: 9,
        }
    }

    fn framed(body: &[u8]) -> Vec<u8> {
        let mut frame = FrameBuf::new();
        frame.extend(body);
        frame.finish(header(), SEAT).1.concat()
    }

    /// With a section anywhere in the batch, the frame has the same bytes as without one.
    #[test]
    fn a_section_makes_no_difference_to_the_frame() {
        let body: Vec<u8> = (0..200).collect();
        for (start, end) in [(0, 0), (0, 200), (1, 199), (64, 128), (200, 200), (7, 7)] {
            let mut frame = FrameBuf::new();
            frame.extend(&body[..start]);
            frame.extend(&body[end..]);
            frame.put_section(Section { at: start, bytes: body[start..end].into() });
            assert_eq!(frame.body_len(), body.len());
            assert_eq!(frame.finish(header(), SEAT).1.concat(), framed(&body), "{start}..{end}");
            frame.unpad(body.len());
            assert_eq!(frame.body_behind(0), body);
            for cut in (0..=start).chain(end..=body.len()) {
                let (mut first, mut second) = (FrameBuf::new(), FrameBuf::new());
                first.extend(&body[..start]);
                first.extend(&body[end..]);
                first.put_section(Section { at: start, bytes: body[start..end].into() });
                second.extend(b"before");
                first.move_behind(cut, &mut second);
                assert_eq!(first.body_behind(0), &body[..cut], "{start}..{end} cut at {cut}");
                assert_eq!(second.body_behind(6), &body[cut..], "{start}..{end} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_header_reads_back_in_its_own_seat_only() {
        let bytes = framed(b"body");
        let head = bytes.first_chunk().unwrap();
        let (read, _) = FrameHeader::decode(head, SEAT).unwrap();
        assert_eq!((read.first, read.synced, read.events, read.body_bytes), (Position(7), Position(5), 2, 4));
        assert_eq!(read.body_crc, SEAT.crc(b"body"));
        assert!(FrameHeader::decode(head, Seat { offset: 192, ..SEAT }).is_none());
        assert!(FrameHeader::decode(head, Seat { salt: 1, ..SEAT }).is_none());
    }

    #[test]
    fn a_flipped_bit_invalidates_a_header() {
        let bytes = framed(b"body");
        for bit in 0..FRAME_HEADER_BYTES * 8 {
            let mut head: [u8; FRAME_HEADER_BYTES] = *bytes.first_chunk().unwrap();
            head[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::decode(&head, SEAT).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn zeros_are_no_header() {
        assert!(FrameHeader::decode(&[0; FRAME_HEADER_BYTES], SEAT).is_none());
    }

    #[test]
    fn frames_are_padded_to_their_alignment() {
        for body in [0, 1, 63, 64, 65] {
            let bytes = framed(&vec![1; body]);
            assert_eq!(bytes.len(), frame_bytes(body));
            assert!(bytes[FRAME_HEADER_BYTES + body..].iter().all(|&byte| byte == 0));
        }
    }
}
