//! Prepares a log that was read for appending.
//!
//! The open tail is rewritten to a new segment under a new salt before anything is served, so that bytes that a crash
//! left after the last sound frame can never be taken for part of the log later. The new segment gets its name only
//! after all of it is durable, and its header states which numbers it replaces. Until the old segment is removed, two
//! segments contain the same events: a segment with a name is complete, so the newer one counts.
//!
//! A tail that is larger than a segment, because of one large frame, is not copied: the disk may have no space for
//! it. It is overwritten with the same bytes and synced, and sealed after its last sound frame, so that the bytes
//! after that are never read again.

use std::sync::Arc;

use super::frame::{FRAME_HEADER_BYTES, FrameHeader, Seat, frame_bytes};
use super::scan::{Cut, OldTail, Replay, Scanned, scan};
use super::segment::{SEGMENT_HEADER_BYTES, Salts, SegmentHeader, SegmentInfo, segment_name};
use super::spares::Spares;
use super::tail::Tail;
use super::walk::SegmentEnd;
use super::writer::Writer;
use super::{LogError, LogOptions, Position};
use crate::disk::Disk;
use crate::failpoint::failpoint;
use crate::fault::{Fault, OpenError};

/// A log that is ready to be appended to.
pub struct Recovered {
    /// The writer at the end of the log.
    pub writer: Writer,
    /// The files that the writer takes its next segments from.
    pub spares: Arc<Spares>,
    /// The segments, in order. The last is the open one.
    pub segments: Vec<SegmentInfo>,
    /// The position after the last event. All events are durable.
    pub end: Position,
    /// Where the log was cut, if it ended with an incomplete frame.
    pub cut: Option<Cut>,
}

/// Reads the log in `disk` as [`scan`] does, then rewrites its tail, or begins it if it is new.
///
/// If the content is damaged, nothing has been changed. If the disk fails, the directory is as after a crash, and can
/// be recovered again.
pub fn recover(
    disk: &Arc<dyn Disk>,
    options: &LogOptions,
    replay: &mut Replay<'_>,
) -> Result<Recovered, OpenError> {
    let scanned = scan(&**disk, options, replay)?;
    let salts = Salts { uuid: options.uuid, entropy: disk.entropy()? };
    let spares = Arc::new(Spares::adopt(Arc::clone(disk), options)?);
    let Scanned { mut segments, end, cut, tail, unsealed, kept, next_number, leftovers } = scanned;
    if let (Some(content), Some(segment)) = (kept, &unsealed) {
        confirm(&**disk, segment, &content)?;
        failpoint("recover.after-confirm");
    }
    let tail = rewrite(&**disk, &spares, &salts, tail, next_number, end)?;
    failpoint("recover.after-rewrite");
    segments.retain(|segment| segment.number < tail.header.first_number);
    segments.push(tail.header.info());
    spares.retire(&leftovers)?;
    failpoint("recover.after-retire");
    if let Some(end) = unsealed {
        failpoint("recover.before-seal");
        seal(&**disk, &end)?;
        failpoint("recover.after-seal");
    }
    let writer = Writer::new(Arc::clone(disk), Arc::clone(&spares), salts, tail, end);
    Ok(Recovered { writer, spares, segments, end, cut })
}

fn rewrite(
    disk: &dyn Disk,
    spares: &Spares,
    salts: &Salts,
    old: OldTail,
    number: u64,
    end: Position,
) -> Result<Tail, OpenError> {
    let frames_bytes = old.content.len() - SEGMENT_HEADER_BYTES;
    let (spare, bytes) = spares.take(frames_bytes, end).map_err(fault_of)?;
    let header = SegmentHeader {
        uuid: salts.uuid,
        number,
        first_number: old.first_number,
        salt: salts.salt(number),
        first: old.first,
        synced: end,
        bytes,
        previous_chain: old.previous_chain,
    };
    let mut content = old.content;
    let chain = reseat(&mut content, old.salt, &header);
    Ok(Tail::activate(disk, &spare, header, &content, chain)?)
}

/// Turns a segment's content into that of the segment of `header`, and returns the chain at its end. Frames keep
/// their offsets, events and marks; salt, chain and checksums become those of the new segment.
fn reseat(content: &mut [u8], old_salt: u64, header: &SegmentHeader) -> u32 {
    let (head, frames) = content.split_first_chunk_mut().expect("content begins with room for the header");
    let mut chain = header.encode(head);
    let mut rest = frames;
    let mut offset = SEGMENT_HEADER_BYTES as u64;
    while let Some((head, after)) = rest.split_first_chunk_mut::<FRAME_HEADER_BYTES>() {
        let old = Seat { salt: old_salt, offset };
        let seat = Seat { salt: header.salt, offset };
        let (mut frame, _) = FrameHeader::decode(head, old).expect("the scan has found this frame sound");
        let body_bytes = frame.body_bytes as usize;
        frame.body_crc = seat.crc(&after[..body_bytes]);
        frame.chain = chain;
        chain = frame.encode(seat, head);
        offset += frame_bytes(body_bytes) as u64;
        rest = &mut after[body_bytes.next_multiple_of(FRAME_HEADER_BYTES)..];
    }
    chain
}

/// Makes a segment durable that was read. After a failed sync the page cache may have these bytes and count them as
/// written although they are not on disk, so they are written again.
fn confirm(disk: &dyn Disk, end: &SegmentEnd, content: &[u8]) -> Result<(), Fault> {
    let file = disk.open(&segment_name(end.header.number))?;
    file.write_at(0, content)?;
    file.sync_data()
}

/// Seals the segment before the tail: one that is kept, or that a crash during a roll has left unsealed.
fn seal(disk: &dyn Disk, end: &SegmentEnd) -> Result<(), Fault> {
    let file = disk.open(&segment_name(end.header.number))?;
    Tail { file, header: end.header, offset: end.offset, chain: end.chain }.seal(end.position)
}

fn fault_of(error: LogError) -> OpenError {
    match error {
        LogError::NoSpace(fault) | LogError::Fault(fault) => fault.into(),
        LogError::TooLarge { .. } | LogError::Hung { .. } | LogError::Poisoned => {
            unreachable!("taking a spare fails by the disk alone")
        }
    }
}
