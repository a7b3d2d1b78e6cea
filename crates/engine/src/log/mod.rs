//! The segmented log of opaque batches of events. After a crash it returns a prefix of the appended batches that
//! contains all synced ones. It does not interpret the bytes of a batch.
//!
//! The map, along the way of a batch:
//! - [`FrameBuf`] (`frame`) gathers the batch and leaves room for its header; one frame is one write.
//! - [`Writer`] (`writer`) appends to the open segment (`tail`), syncs, and rolls to the next.
//! - [`Spares`] (`spares`) are files prepared ahead, so that a roll does not wait for zeros to be written.
//! - `segment` is a segment's header, name and salt; `walk` goes through its frames and validates them.
//! - [`scan`] reads a whole log and judges it; [`recover()`] does so and then makes it ready to be appended to.
//! - [`Reader`] (`reader`) reads payloads back. `salvage` reads what there is, past all damage.
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

/// Where the body of a frame lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The segment's number.
    pub segment: u64,
    /// The offset of the body's first byte in it.
    pub offset: u64,
}

/// How durable a batch is before its replies leave. The caller of [`Writer::sync`] decides; the log itself only sees to
/// it that at every level a segment is synced before the next one begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// On disk: one sync per written frame.
    #[default]
    Always,
    /// With the system, and on disk within the interval.
    Interval,
    /// With the system; on disk when it pleases, or when a segment is full.
    None,
}

/// How room is made for a segment ahead of its frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filling {
    /// Zeros are written, once: a sync of a frame then finds its extents as they are, which is the fastest.
    #[default]
    Zeros,
    /// Room is set aside. Cheaper, where frames are hardly ever synced.
    Reserved,
}

/// The default size of a segment.
pub const SEGMENT_BYTES: u64 = 32 << 20;

/// The default number of files kept prepared: one for the next roll.
pub const SPARE_SEGMENTS: usize = 1;

/// How many files are kept for a full disk: one for what happens while the one before it is given up, one for what is
/// copied forward, and one whose room a checkpoint can have.
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
    /// Events before this position are not replayed, and segments that hold no later ones may be missing.
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

/// An error of the log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// There is no room for another segment or checkpoint. Nothing has changed; the call may be tried again.
    #[error("no space for another file: {0}")]
    NoSpace(Fault),
    /// The batch is larger than a frame may be. Nothing was written.
    #[error("a batch of {bytes} bytes is larger than a frame may be ({max})", max = FRAME_BODY_BYTES_MAX)]
    TooLarge {
        /// The batch's size.
        bytes: usize,
    },
    /// The disk failed. Frames since the last sync may be on disk or not, so the log is poisoned.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The disk did not answer when the store was closed, so it is unknown what is on disk.
    #[error("the disk did not answer within {} s: not everything is known to be on it", patience.as_secs_f32())]
    Hung {
        /// How long it was waited for.
        patience: Duration,
    },
    /// The disk failed earlier. A restart finds out what is on disk.
    #[error(
        "the log is poisoned by an earlier failure of the disk; restart to go on from what was confirmed"
    )]
    Poisoned,
}
