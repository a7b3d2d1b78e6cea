//! Copies single files.

use std::sync::Arc;
use std::time::Duration;

use super::is_absent;
use crate::disk::{Disk, DiskFile};
use crate::failpoint::failpoint;
use crate::fault::Fault;
use crate::log::Position;
use crate::log::salvage::{Content, FRAME_BYTES_MIN, Found};
use crate::offline::check::Steps;
use sureq_sync::thread;

/// The size of reads and writes.
const PIECE_BYTES: usize = 1 << 20;

/// After this many bytes the copy pauses, so that the running server can use the disk.
const PACE_BYTES: u64 = 1 << 20;
const PAUSE: Duration = Duration::from_millis(1);

/// How often a segment is read again whose last frames seem to be half written, and the pause before that.
const LOOKS: u32 = 200;
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Reports progress, and pauses so that the running server can use the disk.
pub(super) struct Pace<'p> {
    pub(super) steps: Steps<'p>,
    unpaused: u64,
}

impl<'p> Pace<'p> {
    pub(super) fn new(steps: Steps<'p>) -> Pace<'p> {
        Pace { steps, unpaused: 0 }
    }

    /// Counts bytes that were read or written.
    fn moved(&mut self, bytes: usize) {
        self.unpaused += bytes as u64;
        if self.unpaused >= PACE_BYTES {
            self.unpaused = 0;
            thread::sleep(PAUSE);
        }
    }
}

pub(super) struct Copied {
    pub(super) first_number: u64,
    pub(super) first: Position,
    /// The position after its last event.
    pub(super) end: Position,
    pub(super) bytes: u64,
}

/// Copies a file that does not change. Returns its length.
pub(super) fn copy_file(
    file: &dyn DiskFile,
    to: &dyn Disk,
    name: &str,
    pace: &mut Pace<'_>,
) -> Result<u64, Fault> {
    let copy = to.create(name)?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut offset = 0;
    loop {
        let read = file.read_at(offset, &mut piece)?;
        if read == 0 {
            break;
        }
        copy.write_at(offset, &piece[..read])?;
        offset += read as u64;
        pace.steps.step(read as u64);
        pace.moved(read);
    }
    copy.sync_data()?;
    Ok(offset)
}

/// Copies a segment that is no longer written to, including the seal at its end. `None` if it was removed.
pub(super) fn copy_sealed(
    from: &Arc<dyn Disk>,
    to: &dyn Disk,
    segment: &Found,
    pace: &mut Pace<'_>,
) -> Result<Option<Copied>, Fault> {
    let Some(bytes) = read(from, segment, pace)? else { return Ok(None) };
    if !is_still_there(from, segment, &bytes)? {
        return Ok(None);
    }
    let content = Content::of(segment.number, segment.header, bytes);
    let gone = content.visit(&mut |_| ());
    let seal = if gone.is_sealed { FRAME_BYTES_MIN } else { 0 };
    // Damage is copied as it is, so that a check of the copy finds it.
    let is_damaged = !gone.damages.is_empty() || segment.header.is_none();
    let len = if is_damaged { content.bytes().len() } else { gone.end as usize + seal };
    write(to, segment, content.bytes(), len, pace)?;
    Ok(Some(copied(segment, gone.position, len)))
}

/// Copies the segment that is being written, up to its last complete frame. `None` if it was removed.
pub(super) fn copy_tail(
    from: &Arc<dyn Disk>,
    to: &dyn Disk,
    segment: &Found,
    pace: &mut Pace<'_>,
) -> Result<Option<Copied>, Fault> {
    let mut looks = 0;
    loop {
        let Some(bytes) = read(from, segment, pace)? else { return Ok(None) };
        if !is_still_there(from, segment, &bytes)? {
            return Ok(None);
        }
        let content = Content::of(segment.number, segment.header, bytes);
        let end = End::of(&content);
        // A frame that was written while later ones were being read seems to be missing, and is there when they are
        // read again. If it is still missing then, it is damaged, and copied as it is.
        if end.is_cut_short && looks < LOOKS {
            looks += 1;
            thread::sleep(LOOK_PAUSE);
            continue;
        }
        let is_damaged = end.is_cut_short || segment.header.is_none();
        let len = if is_damaged { content.bytes().len() } else { end.offset.min(content.bytes().len()) };
        write(to, segment, content.bytes(), len, pace)?;
        return Ok(Some(copied(segment, end.position, len)));
    }
}

/// The end of the complete frames of an open segment.
struct End {
    offset: usize,
    position: Position,
    /// Whether later frames exist, or later frames are recorded as synced.
    is_cut_short: bool,
}

impl End {
    fn of(content: &Content) -> End {
        let mut last = 0;
        let gone = content.visit(&mut |piece| last = piece.place.offset);
        let Some(first) = gone.damages.first() else {
            let is_cut_short = gone.position < gone.synced;
            return End { offset: gone.end as usize, position: gone.position, is_cut_short };
        };
        let position = first.position.unwrap_or(gone.position);
        // The damaged frame itself, with a complete header and half a body, is not a later one.
        let is_cut_short = last > first.offset + FRAME_BYTES_MIN as u64 || position < gone.synced;
        End { offset: first.offset as usize, position, is_cut_short }
    }
}

fn copied(segment: &Found, end: Position, len: usize) -> Copied {
    let first = segment.header.map_or(Position::START, |header| header.first);
    Copied { first_number: segment.first_number, first, end, bytes: len as u64 }
}

/// All bytes of a segment, or `None` if it was removed.
fn read(from: &Arc<dyn Disk>, segment: &Found, pace: &mut Pace<'_>) -> Result<Option<Vec<u8>>, Fault> {
    let file = match from.open(&segment.name()) {
        Err(fault) if is_absent(&fault) => return Ok(None),
        opened => opened?,
    };
    let mut bytes = vec![0; file.len()? as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        let upto = bytes.len().min(filled + PIECE_BYTES);
        let read = file.read_at(filled as u64, &mut bytes[filled..upto])?;
        if read == 0 {
            break;
        }
        filled += read;
        pace.moved(read);
    }
    bytes.truncate(filled);
    Ok(Some(bytes))
}

/// Whether the bytes that were read are those of the segment of that name. A file that is recycled is renamed first,
/// and then its header is overwritten before the rest.
fn is_still_there(from: &Arc<dyn Disk>, segment: &Found, bytes: &[u8]) -> Result<bool, Fault> {
    let file = match from.open(&segment.name()) {
        Err(fault) if is_absent(&fault) => return Ok(false),
        opened => opened?,
    };
    let mut head = vec![0; bytes.len().min(crate::log::salvage::HEADER_BYTES)];
    let read = file.read_at(0, &mut head)?;
    Ok(read == head.len() && bytes.starts_with(&head) && segment.is_headed_by(bytes))
}

/// Writes the first `len` bytes of a segment into a file of the segment's length.
fn write(to: &dyn Disk, segment: &Found, bytes: &[u8], len: usize, pace: &mut Pace<'_>) -> Result<(), Fault> {
    let copy = to.create(&segment.name())?;
    copy.reserve(bytes.len() as u64)?;
    for (at, piece) in bytes[..len.min(bytes.len())].chunks(PIECE_BYTES).enumerate() {
        copy.write_at((at * PIECE_BYTES) as u64, piece)?;
        pace.steps.step(piece.len() as u64);
        pace.moved(piece.len());
    }
    copy.sync_data()?;
    failpoint("copy.segment-written");
    Ok(())
}
