//! The writer, which appends frames to the log.

use std::sync::Arc;

use super::frame::{FRAME_BODY_BYTES_MAX, FrameBuf, frame_bytes};
use super::segment::{Salts, SegmentHeader, SegmentInfo};
use super::spares::Spares;
use super::tail::Tail;
use super::{LogAddress, LogError, Position, Room};
use crate::disk::Disk;
use crate::failpoint::failpoint;
use crate::fault::Fault;

/// Appends to the log. There is one writer, and it belongs to the log thread:
///
/// 1. [`append`](Writer::append) the batch: one frame, one write.
/// 2. [`sync`](Writer::sync) it, as the durability level demands.
/// 3. Publish the position that `sync` returned; only now may replies be sent.
///
/// After a failed write or sync the writer is poisoned: all further calls fail with [`LogError::Poisoned`], and no
/// sync is retried.
pub struct Writer {
    disk: Arc<dyn Disk>,
    spares: Arc<Spares>,
    salts: Salts,
    tail: Tail,
    end: Position,
    synced: Position,
    /// The bytes of all frames written.
    bytes: u64,
    poisoned: bool,
}

impl Writer {
    /// A writer that continues a `tail` whose events end at `end` and are all durable.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        spares: Arc<Spares>,
        salts: Salts,
        tail: Tail,
        end: Position,
    ) -> Writer {
        Writer { disk, spares, salts, tail, end, synced: end, bytes: 0, poisoned: false }
    }

    /// Writes the batch as one frame and returns the place of its body. The frame buffer still has the batch
    /// afterwards.
    ///
    /// Begins a new segment if the frame does not fit the open one. If the disk has no space for that, nothing has
    /// been written, and the same call may be repeated later.
    pub fn append(&mut self, frame: &mut FrameBuf, events: u32) -> Result<LogAddress, LogError> {
        assert!(events > 0, "a frame holds at least one event");
        self.refuse_if_poisoned()?;
        let body_bytes = frame.body_len();
        if body_bytes > FRAME_BODY_BYTES_MAX {
            return Err(LogError::TooLarge { bytes: body_bytes });
        }
        let end = self.end.after(events).expect("no log reaches 2^63 events");
        if !self.room().fits(body_bytes) {
            self.roll(body_bytes, end)?;
        }
        let written = self.tail.append(frame, self.end, events, self.synced);
        let place = self.poison_on_fault(written)?;
        self.end = end;
        self.bytes += frame_bytes(body_bytes) as u64;
        Ok(place)
    }

    /// Makes everything appended durable, and returns the position up to which it is.
    pub fn sync(&mut self) -> Result<Position, LogError> {
        self.refuse_if_poisoned()?;
        if self.synced < self.end {
            let synced = self.tail.file.sync_data();
            self.poison_on_fault(synced)?;
            self.synced = self.end;
        }
        Ok(self.synced)
    }

    /// The position after the last event appended.
    pub fn end(&self) -> Position {
        self.end
    }

    /// The position up to which events are durable.
    pub fn synced(&self) -> Position {
        self.synced
    }

    /// The bytes of all frames written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn segment(&self) -> SegmentInfo {
        self.tail.header.info()
    }

    /// The room for the next frame.
    pub fn room(&self) -> Room {
        let Tail { header, offset, .. } = &self.tail;
        Room::new(header.number, *offset, header.bytes, self.spares.segment_bytes())
    }

    /// Whether an earlier write or sync has failed.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// Begins the next segment, for a frame with a body of `body_bytes` that ends at `frame_end`. The old segment is
    /// durable before the new one has a name, and is sealed only after that name is durable. So if the successor of a
    /// sealed segment is missing, a file was lost; no crash causes that.
    fn roll(&mut self, body_bytes: usize, frame_end: Position) -> Result<(), LogError> {
        let (spare, bytes) = match self.spares.take(frame_bytes(body_bytes), frame_end) {
            Err(LogError::Fault(fault)) => return Err(self.poison(fault)),
            taken => taken?,
        };
        self.sync()?;
        let number = self.tail.header.number + 1;
        let header = SegmentHeader {
            uuid: self.salts.uuid,
            number,
            first_number: number,
            salt: self.salts.salt(number),
            first: self.end,
            synced: self.end,
            bytes,
            previous_chain: self.tail.chain,
        };
        let activated = Tail::activate_empty(&*self.disk, &spare, header);
        let next = self.poison_on_fault(activated)?;
        failpoint("roll.before-seal");
        let sealed = self.tail.seal(self.end);
        failpoint("roll.after-seal");
        self.poison_on_fault(sealed)?;
        self.tail = next;
        Ok(())
    }

    fn refuse_if_poisoned(&self) -> Result<(), LogError> {
        if self.poisoned { Err(LogError::Poisoned) } else { Ok(()) }
    }

    fn poison_on_fault<T>(&mut self, result: Result<T, Fault>) -> Result<T, LogError> {
        result.map_err(|fault| self.poison(fault))
    }

    fn poison(&mut self, fault: Fault) -> LogError {
        self.poisoned = true;
        LogError::Fault(fault)
    }
}
