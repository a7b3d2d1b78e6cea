//! The encoding of events as bytes. docs/understand/log-format.md draws them.
//!
//! Numbers are LEB128 varints unless they are ids (8 bytes, little-endian: their high bits are always set) or hashes.
//! Byte strings have their length before them. A payload is its length, its [`checksum`] (4 bytes) and its bytes, so
//! that it can be read by itself. [`decode`] trusts nothing: for any bytes it returns events or [`Malformed`], never
//! panics, and allocates by the bytes that exist, not by the lengths that they claim.
//!
//! # To change the format
//!
//! Give a new kind of event a new tag, a new field of a push or a whole task a new field tag, and never give an old tag
//! a new meaning. Whether a version rises depends on an older release that reads the new bytes:
//!
//! * It refuses an event, a field, a flag or a setting that it does not know, and would report it as damage. So raise
//!   the version of everything that contains events: the log's, the checkpoints' and the module's snapshots'. The older
//!   release then refuses the file by its header, as a newer format.
//! * It skips a field whose tag has the bit `MAY_BE_SKIPPED` (0x80), and loses it when it writes the task again. Raise
//!   no version. Only a field on which no transition depends may have this bit, because every release must reach the
//!   same state from the same events.

mod read;
mod runs;
mod write;

pub(crate) use read::Reader;
pub use read::{Malformed, decode, read_number};
pub use runs::{EncodedIds, EncodedPayloads};
pub use write::{
    encode, encode_around_payloads, encode_with, payload_head_len, write_number, write_payload, write_signed,
};

/// The checksum of a payload: CRC-32C. A home that has an instruction for it passes that to [`encode_with`].
pub fn checksum(payload: &[u8]) -> u32 {
    !payload.iter().fold(!0, |crc, &byte| CRC_TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let (mut crc, mut bit) = (n as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
};

/// The first byte of each kind of event.
mod tag {
    pub(super) const STARTED: u8 = 1;
    pub(super) const CLOCK: u8 = 2;
    pub(super) const QUEUE_MADE: u8 = 3;
    pub(super) const QUEUE_GONE: u8 = 4;
    pub(super) const QUEUE_DROPPED: u8 = 5;
    pub(super) const PUSHED: u8 = 6;
    pub(super) const POPPED: u8 = 7;
    pub(super) const RECOVERED: u8 = 8;
    pub(super) const FINISHED: u8 = 9;
    pub(super) const EXTENDED: u8 = 10;
    pub(super) const RETURNED: u8 = 11;
    pub(super) const DIED: u8 = 12;
    pub(super) const REMOVED: u8 = 13;
    pub(super) const MARKED: u8 = 14;
    pub(super) const DUE_CAME: u8 = 15;
    pub(super) const REVIVED: u8 = 16;
    pub(super) const MOVED: u8 = 17;
    pub(super) const PAUSED: u8 = 18;
    pub(super) const RESUMED: u8 = 19;
    pub(super) const CONFIGURED: u8 = 20;
    pub(super) const WORKER_STARTED: u8 = 21;
    pub(super) const WORKER_ENDED: u8 = 22;
    pub(super) const WORKED: u8 = 23;
    pub(super) const RESTED: u8 = 24;
    pub(super) const TASK: u8 = 25;
    pub(super) const MARK: u8 = 26;
    pub(super) const COUNTED: u8 = 27;
    pub(super) const IDS_UPTO: u8 = 28;
    pub(super) const HOLDER_ENDED: u8 = 29;
    pub(super) const PURGED: u8 = 30;
    pub(super) const ALL_REVIVED: u8 = 31;
}

/// Tags of the optional fields that end a push and a whole task: tag, length, value. Zero ends the list.
mod field {
    pub(super) const END: u8 = 0;
    pub(super) const DUE_LOG: u8 = 1;
    pub(super) const DUE_WALL: u8 = 2;
    pub(super) const PRIORITY: u8 = 3;
    pub(super) const NAME: u8 = 4;
    pub(super) const NAME_HASH: u8 = 5;
    pub(super) const TRIES_MAX: u8 = 6;
    pub(super) const BACKOFF_MS: u8 = 7;
    pub(super) const EXPIRES: u8 = 8;
    pub(super) const TRACE: u8 = 9;
    pub(super) const REASON: u8 = 10;
    pub(super) const PAST: u8 = 11;
    /// No transition depends on a field with this bit; a release that does not know the field skips it.
    pub(super) const MAY_BE_SKIPPED: u8 = 0x80;
}

/// Bits that say which parts of lease terms follow.
mod terms {
    pub(super) const LENGTH: u8 = 1;
    pub(super) const WORKER: u8 = 2;
    pub(super) const CONN: u8 = 4;
    pub(super) const LAPSE: u8 = 8;
    pub(super) const LAPSE_LIMIT: u8 = 16;
    pub(super) const LAPSE_DELETE: u8 = 32;
    pub(super) const DEADLINE: u8 = 64;
}

/// Bits that say which settings follow.
mod setting {
    pub(super) const LEASE: u64 = 1;
    pub(super) const TRIES: u64 = 1 << 1;
    pub(super) const BACKOFF: u64 = 1 << 2;
    pub(super) const TTL: u64 = 1 << 3;
    pub(super) const EXPIRED_DEAD: u64 = 1 << 4;
    pub(super) const MAX_LENGTH: u64 = 1 << 5;
    pub(super) const MAX_BYTES: u64 = 1 << 6;
    pub(super) const DROP_OLDEST: u64 = 1 << 7;
    pub(super) const MAX_LEASED: u64 = 1 << 8;
    pub(super) const DEAD_LETTER: u64 = 1 << 9;
    pub(super) const ALL: u64 = (1 << 10) - 1;
}

#[cfg(test)]
mod tests;
