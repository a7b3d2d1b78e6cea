//! The segmented log of opaque batches of events. After a crash it returns a prefix of the appended batches that
//! contains all synced ones. It does not interpret the bytes of a batch.
//!
//! The map, along the way of a batch:
//! - [`FrameBuf`] (`frame`) collects the batch and leaves space for its header; one frame is one write.
//! - [`Writer`] (`writer`) appends to the open segment (`tail`), syncs, and rolls to the next.
//! - [`Spares`] (`spares`) are files prepared ahead, so that a roll does not wait for zeros to be written.
//! - `segment` is a segment's header, name and salt; `walk` goes through its frames and validates them.
//! - [`scan`] reads and validates a whole log; [`recover()`] does so and then prepares it for appending.
//! - [`Reader`] (`reader`) reads payloads back. `salvage` reads the intact parts of a damaged log.
//!
//! docs/understand/log-format.md draws the bytes.

use std::time::Duration;

use crate::fault::Fault;

pub(crate) mod field;
mod frame;
mod reader;
mod recover;
mod room;
pub(crate) mod salvage;
mod scan;
mod segment;
mod spares;
mod tail;
mod visit;
mod walk;
mod writer;

pub use sureq_home_api::Position;

pub(crate) use frame::Section;
pub use frame::{FRAME_BODY_BYTES_MAX, FrameBuf};
pub use reader::Reader;
pub use recover::{Recovered, recover};
pub use room::Room;
pub use scan::{Cut, Replay, ReplayFrame, Scanned, scan};
pub use segment::{FORMAT_VERSION, SegmentInfo};
pub(crate) use segment::{is_segment_name, segment_name};
pub use spares::{Reserved, Spares};
pub use visit::{VisitFrame, visit_segment};
pub use writer::Writer;

/// The place of a frame's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogAddress {
    /// The segment's number.
    pub segment: u64,
    /// The offset of the body's first byte in the segment.
    pub offset: u64,
}

/// How durable a batch is before its replies are sent. The caller of [`Writer::sync`] decides; the log itself only
/// guarantees that at every level a segment is synced before the next one begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Synced to disk: one sync per written frame.
    #[default]
    Always,
    /// Written to the operating system, and synced within the interval.
    Interval,
    /// Written to the operating system soon after the reply, and to disk when the operating system decides or a
    /// segment is full.
    None,
}

/// How space for a segment is allocated ahead of its frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filling {
    /// Zeros are written once. Syncs of frames are fastest then, since they do not change the file's extents.
    #[default]
    Zeros,
    /// Space is only allocated. Cheaper if frames are hardly ever synced.
    Reserved,
}

/// The default size of a segment.
pub const SEGMENT_BYTES: u64 = 32 << 20;

/// The default number of files kept prepared: one for the next roll.
pub const SPARE_SEGMENTS: usize = 1;

/// The number of files that are reserved for a full disk: one for events while a segment is being freed, one for
/// tasks that compaction copies forward, and one that can be removed to make space for a checkpoint.
pub const RESERVE_SEGMENTS: usize = 3;

/// How a log is opened.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The store that the log belongs to; another store's segment is refused.
    pub uuid: [u8; 16],
    /// The size of new segments, rounded up to whole pages. A frame that is larger gets a segment of its own size.
    pub segment_bytes: u64,
    /// The number of prepared files that are kept.
    pub spare_segments: usize,
    /// The number of additional files that are reserved for a full disk.
    pub reserve_segments: usize,
    /// How new files are filled.
    pub filling: Filling,
    /// Events before this position are not replayed, and segments without later events may be missing.
    pub from: Position,
    /// Whether a directory without any segment is a new log. A store that has started before always has one.
    pub may_be_new: bool,
}

impl LogOptions {
    /// The defaults for the store `uuid`: all of its log, which must exist.
    pub fn new(uuid: [u8; 16]) -> LogOptions {
        LogOptions {
            uuid,
            segment_bytes: SEGMENT_BYTES,
            spare_segments: SPARE_SEGMENTS,
            reserve_segments: 0,
            filling: Filling::Zeros,
            from: Position::START,
            may_be_new: false,
        }
    }
}

/// Why the log cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The disk has no space for another segment or checkpoint. Nothing has changed; the call may be repeated.
    #[error("no space for another file: {0}")]
    NoSpace(Fault),
    /// The batch is larger than a frame may be. Nothing was written.
    #[error("a batch of {bytes} bytes is larger than a frame may be ({max})", max = FRAME_BODY_BYTES_MAX)]
    TooLarge { bytes: usize },
    /// The disk failed. Frames since the last sync may be on disk or not, so the log is poisoned.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The disk did not answer when the store was closed, so it is unknown what is on disk.
    #[error("the disk did not answer within {} s: the last changes may not be on it", patience.as_secs_f32())]
    Hung { patience: Duration },
    /// The disk failed earlier. A restart finds out what is on disk.
    #[error(
        "the log has ended after an earlier failure of the disk; restart to continue with all confirmed changes"
    )]
    Poisoned,
}
