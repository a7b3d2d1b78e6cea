//! The open segment: the one file that frames are appended to.

use super::frame::{FRAME_HEADER_BYTES, FrameBuf, FrameHeader, FrameKind, Seat};
use super::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, segment_name};
use super::{LogAddress, Position};
use crate::disk::{Disk, DiskFile};
use crate::failpoint::failpoint;
use crate::fault::Fault;

/// The open segment. The writer decides whether it may be appended to.
pub(crate) struct Tail {
    pub(crate) file: Box<dyn DiskFile>,
    pub(crate) header: SegmentHeader,
    /// The place of the next frame.
    pub(crate) offset: u64,
    /// The checksum of the last header written.
    pub(crate) chain: u32,
}

impl Tail {
    /// Makes the file `spare` the segment of `header`. `content` is that header, followed by complete frames, if any,
    /// of which the last has the checksum `chain`.
    ///
    /// The segment gets its name after all of it is durable, so a segment with a name is complete.
    pub(crate) fn activate(
        disk: &dyn Disk,
        spare: &str,
        header: SegmentHeader,
        content: &[u8],
        chain: u32,
    ) -> Result<Tail, Fault> {
        let file = disk.open(spare)?;
        file.write_at(0, content)?;
        failpoint("segment.before-sync");
        file.sync_data()?;
        drop(file);
        let name = segment_name(header.number);
        failpoint("segment.before-rename");
        disk.rename(spare, &name)?;
        failpoint("segment.after-rename");
        disk.sync_dir()?;
        Ok(Tail { file: disk.open(&name)?, header, offset: content.len() as u64, chain })
    }

    /// Makes `spare` a segment without frames.
    pub(crate) fn activate_empty(disk: &dyn Disk, spare: &str, header: SegmentHeader) -> Result<Tail, Fault> {
        let mut content = [0; SEGMENT_HEADER_BYTES];
        let chain = header.encode(&mut content);
        Tail::activate(disk, spare, header, &content, chain)
    }

    /// Writes one frame, with one write unless it is in pieces.
    pub(crate) fn append(
        &mut self,
        frame: &mut FrameBuf,
        first: Position,
        events: u32,
        synced: Position,
    ) -> Result<LogAddress, Fault> {
        let seat = self.seat();
        let header = self.next_header(FrameKind::Events, first, events, synced);
        let body_bytes = frame.body_len();
        let (chain, pieces) = frame.finish(header, seat);
        let mut outcome = Ok(());
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            outcome = outcome.and_then(|()| self.file.write_at(self.offset, piece));
            self.offset += piece.len() as u64;
        }
        frame.unpad(body_bytes);
        outcome?;
        self.chain = chain;
        Ok(LogAddress { segment: self.header.number, offset: seat.offset + FRAME_HEADER_BYTES as u64 })
    }

    /// Seals the segment, which now has a successor, and syncs the seal. Its events end at `end` and are all durable.
    pub(crate) fn seal(&self, end: Position) -> Result<(), Fault> {
        let seat = self.seat();
        let header = self.next_header(FrameKind::Seal, end, 0, end);
        let mut frame = FrameBuf::new();
        let (_, [bytes, ..]) = frame.finish(header, seat);
        self.file.write_at(seat.offset, bytes)?;
        self.file.sync_data()
    }

    fn seat(&self) -> Seat {
        Seat { salt: self.header.salt, offset: self.offset }
    }

    fn next_header(&self, kind: FrameKind, first: Position, events: u32, synced: Position) -> FrameHeader {
        FrameHeader { kind: Some(kind), first, synced, events, body_bytes: 0, body_crc: 0, chain: self.chain }
    }
}
