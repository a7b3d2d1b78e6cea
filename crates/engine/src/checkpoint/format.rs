//! A checkpoint's name and its header.
//!
//! To change the header: raise [`CHECKPOINT_VERSION`], redraw docs/understand/log-format.md, keep decoding the old
//! version. Magic, version and the place of the checksum stay where they are for ever. Reserved bytes are written as
//! zero and ignored when read.

use std::ops::{Range, RangeInclusive};

use crate::fault::{Damage, Fault, OpenError};
use crate::log::Position;
use crate::log::field::{get, get_u32, get_u64, put, put_u32, put_u64};

/// The format of checkpoints that this release writes.
pub const CHECKPOINT_VERSION: u32 = 2;

const MAGIC_VALUE: [u8; 8] = *b"sureqckp";

const MAGIC: usize = 0;
const VERSION: usize = MAGIC + 8;
const FILES: usize = VERSION + 4;
const UUID: usize = FILES + 4;
const NUMBER: usize = UUID + 16;
const POSITION: usize = NUMBER + 8;
const BYTES: usize = POSITION + 8;
const BLOBS_END: usize = BYTES + 8;
const BLOBS_CRC: usize = BLOBS_END + 8;
const TABLE_CRC: usize = BLOBS_CRC + 4;
const MANIFEST_CRC: usize = TABLE_CRC + 4;
const RESERVED: usize = MANIFEST_CRC + 4;
const CRC: usize = RESERVED + 48;

/// The size of a header; the first blob follows it.
pub(super) const HEADER_BYTES: usize = CRC + 4;

const _: () = assert!(HEADER_BYTES == 128);

/// One number of a file in the table.
const TABLE_ENTRY_BYTES: u64 = 8;

/// The name of a checkpoint until it is complete.
pub(super) const DRAFT_NAME: &str = "checkpoint.new";

/// The numbers that checkpoints can have. No store gets near the upper end, so the next number always exists.
const NUMBERS: RangeInclusive<u64> = 1..=u64::MAX / 2;

/// The use of a file, which is part of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A start can use it.
    Checkpoint,
    /// It is kept for blobs that checkpoints refer to. Its own manifest may refer to removed files.
    Blobs,
}

/// The name of a file of checkpoints.
pub(super) fn name_of(number: u64, role: Role) -> String {
    match role {
        Role::Checkpoint => format!("checkpoint-{number:020}"),
        Role::Blobs => format!("checkpoint-{number:020}.blobs"),
    }
}

/// The number and the role in a name; `None` for any other name.
pub(super) fn parse_name(name: &str) -> Option<(u64, Role)> {
    let rest = name.strip_prefix("checkpoint-")?;
    let (digits, role) = match rest.strip_suffix(".blobs") {
        Some(digits) => (digits, Role::Blobs),
        None => (rest, Role::Checkpoint),
    };
    let number = digits.parse().ok()?;
    (NUMBERS.contains(&number) && name_of(number, role) == name).then_some((number, role))
}

/// Whether a file of this name belongs to a checkpoint.
pub(crate) fn is_checkpoint_name(name: &str) -> bool {
    parse_name(name).is_some()
}

/// The header of a checkpoint's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) uuid: [u8; 16],
    pub(super) number: u64,
    pub(super) position: Position,
    /// The length of the file.
    pub(super) bytes: u64,
    /// The offset at which the blobs end and the table begins.
    pub(super) blobs_end: u64,
    pub(super) files: u32,
    pub(super) blobs_crc: u32,
    pub(super) table_crc: u32,
    pub(super) manifest_crc: u32,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut into = [0; HEADER_BYTES];
        put(&mut into, MAGIC, MAGIC_VALUE);
        put_u32(&mut into, VERSION, CHECKPOINT_VERSION);
        put_u32(&mut into, FILES, self.files);
        put(&mut into, UUID, self.uuid);
        put_u64(&mut into, NUMBER, self.number);
        put_u64(&mut into, POSITION, self.position.0);
        put_u64(&mut into, BYTES, self.bytes);
        put_u64(&mut into, BLOBS_END, self.blobs_end);
        put_u32(&mut into, BLOBS_CRC, self.blobs_crc);
        put_u32(&mut into, TABLE_CRC, self.table_crc);
        put_u32(&mut into, MANIFEST_CRC, self.manifest_crc);
        let crc = crc32c::crc32c(&into[..CRC]);
        put_u32(&mut into, CRC, crc);
        into
    }

    /// The header in `from`, if it is one that was written for the checkpoint `number` and a file of `bytes`. The
    /// caller verifies that it belongs to this store.
    pub(super) fn decode(
        from: &[u8; HEADER_BYTES],
        file: &str,
        number: u64,
        bytes: u64,
    ) -> Result<Header, OpenError> {
        let header = Header {
            uuid: get(from, UUID),
            number: get_u64(from, NUMBER),
            position: Position(get_u64(from, POSITION)),
            bytes: get_u64(from, BYTES),
            blobs_end: get_u64(from, BLOBS_END),
            files: get_u32(from, FILES),
            blobs_crc: get_u32(from, BLOBS_CRC),
            table_crc: get_u32(from, TABLE_CRC),
            manifest_crc: get_u32(from, MANIFEST_CRC),
        };
        let version = get_u32(from, VERSION);
        let what = if get::<8>(from, MAGIC) != MAGIC_VALUE {
            "it does not begin like a checkpoint".to_owned()
        } else if get_u32(from, CRC) != crc32c::crc32c(&from[..CRC]) {
            "the checksum of the checkpoint's header does not match".to_owned()
        } else if version > CHECKPOINT_VERSION {
            let file = file.to_owned();
            return Err(OpenError::NewerFormat { file, found: version, known: CHECKPOINT_VERSION });
        } else if header.number != number {
            format!("its header says that it is checkpoint {}", header.number)
        } else if header.bytes != bytes {
            format!("it has {bytes} bytes, its header says {}", header.bytes)
        } else if version == 0 || !header.is_consistent() {
            "the checkpoint's header contradicts itself".to_owned()
        } else {
            return Ok(header);
        };
        Err(damage(file, 0, what).into())
    }

    /// Whether the parts of the file follow each other within its length, so that ranges can be taken from it.
    fn is_consistent(&self) -> bool {
        let parts = HEADER_BYTES as u64..=self.bytes;
        let table_bytes = u64::from(self.files) * TABLE_ENTRY_BYTES;
        parts.contains(&self.blobs_end)
            && table_bytes <= self.bytes - self.blobs_end
            && self.position <= Position::MAX
    }

    pub(super) fn blobs(&self) -> Range<u64> {
        HEADER_BYTES as u64..self.blobs_end
    }

    pub(super) fn table(&self) -> Range<u64> {
        self.blobs_end..self.blobs_end + u64::from(self.files) * TABLE_ENTRY_BYTES
    }

    pub(super) fn manifest(&self) -> Range<u64> {
        self.table().end..self.bytes
    }
}

pub(super) fn encode_table(files: impl IntoIterator<Item = u64>) -> Vec<u8> {
    files.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// The files in a table; `None` unless they are numbers in rising order below `number`.
pub(super) fn decode_table(bytes: &[u8], number: u64) -> Option<Vec<u64>> {
    let files: Vec<u64> = bytes.as_chunks().0.iter().map(|entry| u64::from_le_bytes(*entry)).collect();
    let is_rising = files.iter().chain([&number]).is_sorted_by(|a, b| a < b);
    (is_rising && files.first() != Some(&0)).then_some(files)
}

pub(super) fn damage(file: &str, offset: u64, what: impl Into<String>) -> Damage {
    Damage { file: file.to_owned(), offset, position: None, what: what.into() }
}

/// Treats a failed read as damage of the file, unless the process was short of memory or descriptors.
pub(super) fn unreadable(file: &str, offset: u64, fault: Fault) -> OpenError {
    if fault.is_shortage() {
        return fault.into();
    }
    damage(file, offset, format!("it cannot be read: {}", fault.source)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_names_are_parsed() {
        let name = "checkpoint-00000000000000000042";
        assert_eq!(parse_name(name), Some((42, Role::Checkpoint)));
        assert_eq!(parse_name(&format!("{name}.blobs")), Some((42, Role::Blobs)));
        for foreign in [
            DRAFT_NAME,
            "checkpoint-42",
            "checkpoint-00000000000000000000",
            "checkpoint-+0000000000000000042",
            "checkpoint-00000000000000000042.bak",
            "checkpoint-00000000000000000042.blobs.blobs",
        ] {
            assert_eq!(parse_name(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_table_contains_rising_numbers_below_its_own() {
        let decoded = |files: &[u64]| decode_table(&encode_table(files.iter().copied()), 9);
        assert_eq!(decoded(&[]), Some(vec![]));
        assert_eq!(decoded(&[1, 4, 8]), Some(vec![1, 4, 8]));
        for bad in [&[0][..], &[9], &[10], &[4, 4], &[4, 1]] {
            assert_eq!(decoded(bad), None, "{bad:?}");
        }
    }
}
