//! A segment: its name, its header, its salt.
//!
//! To change the header: raise [`FORMAT_VERSION`], redraw docs/understand/log-format.md, keep decoding the old
//! version, and add a golden directory of it. Magic, version and the place of the checksum stay where they are for
//! ever, so that every release can distinguish a newer file from a damaged one. Reserved bytes are written as zero
//! and ignored when read.

use std::hash::{DefaultHasher, Hasher};
use std::ops::RangeInclusive;

use super::Position;
use super::field::{get, get_u32, get_u64, put, put_u32, put_u64};
use super::frame::{FRAME_ALIGN, FRAME_HEADER_BYTES};
use crate::fault::{Damage, OpenError};

/// The format of segments and frames that this release writes.
pub const FORMAT_VERSION: u32 = 1;

const MAGIC_VALUE: [u8; 8] = *b"sureqseg";

const MAGIC: usize = 0;
const VERSION: usize = MAGIC + 8;
const PREVIOUS_CHAIN: usize = VERSION + 4;
const UUID: usize = PREVIOUS_CHAIN + 4;
const NUMBER: usize = UUID + 16;
const FIRST_NUMBER: usize = NUMBER + 8;
const SALT: usize = FIRST_NUMBER + 8;
const FIRST: usize = SALT + 8;
const SYNCED: usize = FIRST + 8;
const BYTES: usize = SYNCED + 8;
const RESERVED: usize = BYTES + 8;
const CRC: usize = RESERVED + 44;

/// The size of a segment's header; the first frame follows it.
pub(crate) const SEGMENT_HEADER_BYTES: usize = CRC + 4;

const _: () = assert!(SEGMENT_HEADER_BYTES.is_multiple_of(FRAME_ALIGN));

/// The end of every segment is kept free for the frame that seals it.
pub(crate) const SEAL_BYTES: usize = FRAME_HEADER_BYTES;

/// The numbers that segments can have. No store gets near the upper end, so the next number always exists. With
/// larger numbers the place of a payload would take four more bytes of memory.
const SEGMENT_NUMBERS: RangeInclusive<u64> = 1..=(u32::MAX / 2) as u64;

/// The size of a segment is a multiple of this.
const PAGE_BYTES: u64 = 4096;

/// The facts about a segment that the rest of the engine uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its number, which determines its name.
    pub number: u64,
    /// The first of the numbers that it replaces.
    pub first_number: u64,
    pub first: Position,
    /// The length of its file.
    pub bytes: u64,
}

impl SegmentInfo {
    /// The numbers that it replaces, its own included.
    pub fn numbers(&self) -> RangeInclusive<u64> {
        self.first_number..=self.number
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) uuid: [u8; 16],
    pub(crate) number: u64,
    /// The lowest number that this segment replaces: it replaces the segments from there up to its own number.
    pub(crate) first_number: u64,
    pub(crate) salt: u64,
    pub(crate) first: Position,
    /// All events before this position were durable when the segment got its name. Beyond `first` only in a segment
    /// that a recovery wrote.
    pub(crate) synced: Position,
    /// The length of the file.
    pub(crate) bytes: u64,
    /// The chain at the end of the segment before this one, zero in the very first.
    pub(crate) previous_chain: u32,
}

impl SegmentHeader {
    /// Writes the header and returns its checksum, the first frame's chain.
    pub(crate) fn encode(&self, into: &mut [u8; SEGMENT_HEADER_BYTES]) -> u32 {
        into.fill(0);
        put(into, MAGIC, MAGIC_VALUE);
        put_u32(into, VERSION, FORMAT_VERSION);
        put_u32(into, PREVIOUS_CHAIN, self.previous_chain);
        put(into, UUID, self.uuid);
        put_u64(into, NUMBER, self.number);
        put_u64(into, FIRST_NUMBER, self.first_number);
        put_u64(into, SALT, self.salt);
        put_u64(into, FIRST, self.first.0);
        put_u64(into, SYNCED, self.synced.0);
        put_u64(into, BYTES, self.bytes);
        let crc = crc32c::crc32c(&into[..CRC]);
        put_u32(into, CRC, crc);
        crc
    }

    /// The header in `bytes` and its checksum, if it is one that was written for segment `number` of the store `uuid`.
    pub(crate) fn decode(
        bytes: &[u8; SEGMENT_HEADER_BYTES],
        number: u64,
        uuid: [u8; 16],
    ) -> Result<(SegmentHeader, u32), OpenError> {
        let file = segment_name(number);
        let header = SegmentHeader {
            uuid: get(bytes, UUID),
            number: get_u64(bytes, NUMBER),
            first_number: get_u64(bytes, FIRST_NUMBER),
            salt: get_u64(bytes, SALT),
            first: Position(get_u64(bytes, FIRST)),
            synced: Position(get_u64(bytes, SYNCED)),
            bytes: get_u64(bytes, BYTES),
            previous_chain: get_u32(bytes, PREVIOUS_CHAIN),
        };
        let crc = get_u32(bytes, CRC);
        let version = get_u32(bytes, VERSION);
        let what = if get::<8>(bytes, MAGIC) != MAGIC_VALUE {
            "it does not begin like a segment".to_owned()
        } else if crc != crc32c::crc32c(&bytes[..CRC]) {
            "the checksum of the segment's header does not match".to_owned()
        } else if version > FORMAT_VERSION {
            return Err(OpenError::NewerFormat { file, found: version, known: FORMAT_VERSION });
        } else if header.uuid != uuid {
            "it belongs to another store".to_owned()
        } else if header.number != number {
            format!("its header says that it is {}", segment_name(header.number))
        } else if version == 0 || !header.is_consistent() {
            "the segment's header contradicts itself".to_owned()
        } else {
            return Ok((header, crc));
        };
        Err(Damage { file, offset: 0, position: None, what }.into())
    }

    fn is_consistent(&self) -> bool {
        let numbers = 1..=self.number;
        let positions = self.first..=Position::MAX;
        numbers.contains(&self.first_number) && positions.contains(&self.synced) && self.salt != 0
    }

    pub(crate) fn info(&self) -> SegmentInfo {
        SegmentInfo {
            number: self.number,
            first_number: self.first_number,
            first: self.first,
            bytes: self.bytes,
        }
    }
}

/// The store that a segment belongs to, if its header is intact.
pub(crate) fn uuid_in(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Option<[u8; 16]> {
    let is_whole =
        get::<8>(bytes, MAGIC) == MAGIC_VALUE && get_u32(bytes, CRC) == crc32c::crc32c(&bytes[..CRC]);
    is_whole.then(|| get(bytes, UUID))
}

/// The length of a segment that has the configured size, or more if its frames are to take `frames_bytes`.
pub(crate) fn segment_bytes_for(configured: u64, frames_bytes: usize) -> u64 {
    let needed = SEGMENT_HEADER_BYTES + frames_bytes + SEAL_BYTES;
    configured.max(needed as u64).next_multiple_of(PAGE_BYTES)
}

/// The name of a segment. Names have twenty digits, so that they sort like numbers.
pub(crate) fn segment_name(number: u64) -> String {
    format!("{number:020}.seg")
}

/// The number in a segment's name; `None` for any other name.
pub(crate) fn parse_segment_name(name: &str) -> Option<u64> {
    let number = name.strip_suffix(".seg")?.parse().ok()?;
    (SEGMENT_NUMBERS.contains(&number) && segment_name(number) == name).then_some(number)
}

pub(crate) fn is_segment_name(name: &str) -> bool {
    parse_segment_name(name).is_some()
}

/// The name of a file that may become a segment.
pub(crate) fn spare_name(number: u64) -> String {
    format!("spare-{number}")
}

/// The number in a spare's name; `None` for any other name.
pub(crate) fn parse_spare_name(name: &str) -> Option<u64> {
    let number = name.strip_prefix("spare-")?.parse().ok()?;
    (spare_name(number) == name).then_some(number)
}

/// Draws salts. A producer of payloads cannot guess one, and no two segments share one, not even two that had the
/// same number before and after a crash.
#[derive(Debug)]
pub(crate) struct Salts {
    pub(crate) uuid: [u8; 16],
    /// Drawn once per start.
    pub(crate) entropy: [u8; 16],
}

impl Salts {
    pub(crate) fn salt(&self, number: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.entropy);
        hasher.write(&self.uuid);
        hasher.write_u64(number);
        // An unwritten file contains zeros.
        hasher.finish().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = [7; 16];

    fn header() -> SegmentHeader {
        SegmentHeader {
            uuid: UUID,
            number: 5,
            first_number: 3,
            salt: 11,
            first: Position(100),
            synced: Position(120),
            bytes: 4096,
            previous_chain: 13,
        }
    }

    fn encoded(header: SegmentHeader) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        header.encode(&mut bytes);
        bytes
    }

    fn refusal(bytes: &[u8; SEGMENT_HEADER_BYTES], number: u64, uuid: [u8; 16]) -> String {
        SegmentHeader::decode(bytes, number, uuid).unwrap_err().to_string()
    }

    #[test]
    fn a_header_reads_back() {
        let (read, crc) = SegmentHeader::decode(&encoded(header()), 5, UUID).unwrap();
        assert_eq!(read, header());
        assert_eq!(crc, get_u32(&encoded(header()), CRC));
    }

    #[test]
    fn a_header_under_another_name_or_store_is_refused() {
        assert!(refusal(&encoded(header()), 6, UUID).contains("says that it is 00000000000000000005.seg"));
        assert!(refusal(&encoded(header()), 5, [8; 16]).contains("another store"));
    }

    #[test]
    fn a_newer_format_is_refused_as_such() {
        let mut bytes = encoded(header());
        put_u32(&mut bytes, VERSION, FORMAT_VERSION + 1);
        let crc = crc32c::crc32c(&bytes[..CRC]);
        put_u32(&mut bytes, CRC, crc);
        assert!(refusal(&bytes, 5, UUID).contains("has format 2, this release knows formats up to 1"));
    }

    #[test]
    fn only_exact_names_are_parsed() {
        assert_eq!(parse_segment_name("00000000000000000042.seg"), Some(42));
        for name in
            ["42.seg", "00000000000000000000.seg", "+0000000000000000042.seg", "00000000000000000042.seg.bak"]
        {
            assert_eq!(parse_segment_name(name), None, "{name}");
        }
        assert_eq!(parse_spare_name("spare-7"), Some(7));
        for name in ["spare-07", "spare-", "spare-x", "spare-7.old"] {
            assert_eq!(parse_spare_name(name), None, "{name}");
        }
    }

    #[test]
    fn salts_differ_by_number_and_by_start() {
        let one = Salts { uuid: UUID, entropy: [1; 16] };
        let two = Salts { uuid: UUID, entropy: [2; 16] };
        assert_ne!(one.salt(1), one.salt(2));
        assert_ne!(one.salt(1), two.salt(1));
    }
}
