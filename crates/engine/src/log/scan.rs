//! Reads a whole log, visits its batches in order, and distinguishes a crash from damage. It changes nothing.
//!
//! A bad frame is damage if anything sound in the log shows that it was once durable: the header of the next segment,
//! a synced mark, a later frame's synced mark. Otherwise it is a torn tail and ends the log.

use std::fmt;

use super::segment::{
    SEGMENT_HEADER_BYTES, SegmentHeader, SegmentInfo, parse_segment_name, segment_bytes_for, segment_name,
};
use super::walk::{SegmentEnd, SoundFrame, Step, Walk};
use super::{LogAddress, LogOptions, Position};
use crate::disk::Disk;
use crate::fault::{Damage, Fault, OpenError, ReplayError};

/// A batch as it was read from the log.
#[derive(Clone, Copy, Debug)]
pub struct ReplayFrame<'a> {
    pub first: Position,
    pub events: u32,
    /// The place of the body after the recovery of the log.
    pub place: LogAddress,
    /// The batch as it was appended.
    pub body: &'a [u8],
}

/// Receives the batches.
pub type Replay<'r> = dyn FnMut(ReplayFrame<'_>) -> Result<(), ReplayError> + 'r;

/// The end of the log where a crash interrupted a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub file: String,
    /// The offset of the first frame that was cut off.
    pub offset: u64,
    /// The position of its first event.
    pub position: Position,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, .. } = self;
        write!(f, "a crash interrupted a write to {file} at offset {offset}; it was never confirmed")
    }
}

/// The contents of a log.
#[derive(Debug)]
pub struct Scanned {
    /// The segments, in order. The last is the open one.
    pub segments: Vec<SegmentInfo>,
    /// The position after the last event.
    pub end: Position,
    /// Where the log was cut, if it ended with an incomplete frame.
    pub cut: Option<Cut>,
    pub(crate) tail: OldTail,
    /// The segment before the open one, if it must be sealed: a crash prevented that, or it was the open one and is
    /// kept.
    pub(crate) unsealed: Option<SegmentEnd>,
    /// The content of that segment, up to its end, if it was the open one and is too large to be copied to a spare.
    pub(crate) kept: Option<Vec<u8>>,
    /// The number of the segment that the tail is rewritten to, above every number seen.
    pub(crate) next_number: u64,
    /// Segments that do not belong to the log, or will not when the tail is rewritten.
    pub(crate) leftovers: Vec<u64>,
}

/// The segments that the rewritten tail replaces.
#[derive(Debug)]
pub(crate) struct OldTail {
    /// The lowest number that it replaces.
    pub(crate) first_number: u64,
    pub(crate) first: Position,
    pub(crate) previous_chain: u32,
    pub(crate) salt: u64,
    /// Space for the header, then sound frames.
    pub(crate) content: Vec<u8>,
}

impl OldTail {
    /// A tail without frames.
    fn empty(first_number: u64, first: Position, previous_chain: u32) -> OldTail {
        OldTail { first_number, first, previous_chain, salt: 0, content: vec![0; SEGMENT_HEADER_BYTES] }
    }
}

/// Reads the log in `disk` from `options.from` on, and calls `replay` with each batch, in order.
pub fn scan(disk: &dyn Disk, options: &LogOptions, replay: &mut Replay<'_>) -> Result<Scanned, OpenError> {
    let directory = Directory::read(disk, options)?;
    let begin = directory.begin(options)?;
    let mut scan = Scan {
        disk,
        from: options.from,
        segment_bytes: options.segment_bytes,
        directory: &directory,
        replay,
        bytes: Vec::new(),
        unsealed: None,
    };
    let Some((last, sealed)) = directory.live[begin..].split_last() else {
        return Ok(scan.into_new());
    };
    for (at, segment) in sealed.iter().enumerate() {
        let next = &directory.live[begin + at + 1].header;
        scan.sealed(segment, next)?;
    }
    scan.open(last)
}

/// The header of a segment and its checksum.
pub(super) struct Headed {
    pub(super) header: SegmentHeader,
    /// The header's checksum, with which the chain of frames begins.
    pub(super) crc: u32,
}

struct Directory {
    /// The segments that make up the log, in order.
    live: Vec<Headed>,
    /// Segments that a newer one replaces.
    superseded: Vec<u64>,
    /// The newest segment, if it ends within its header: its creation was interrupted.
    torn: Option<u64>,
    next_number: u64,
}

impl Directory {
    fn read(disk: &dyn Disk, options: &LogOptions) -> Result<Directory, OpenError> {
        let mut numbers: Vec<u64> = disk.list()?.iter().filter_map(|name| parse_segment_name(name)).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        let newest = numbers.first().copied();
        let next_number = newest.unwrap_or(0).saturating_add(1);
        let mut directory = Directory { live: Vec::new(), superseded: Vec::new(), torn: None, next_number };
        let mut taken_from = u64::MAX;
        for number in numbers {
            if number >= taken_from {
                directory.superseded.push(number);
                continue;
            }
            match read_header(disk, number, options.uuid)? {
                Some(headed) => {
                    taken_from = headed.header.first_number;
                    directory.live.push(headed);
                }
                None if Some(number) == newest => directory.torn = Some(number),
                None => return Err(damage(number, 0, None, "the file ends within its header")),
            }
        }
        directory.live.reverse();
        Ok(directory)
    }

    /// The index of the segment to begin with. From there on no number may be missing.
    fn begin(&self, options: &LogOptions) -> Result<usize, OpenError> {
        let Some(begin) = self.live.iter().rposition(|segment| segment.header.first <= options.from) else {
            return self.begin_without(options);
        };
        for pair in self.live[begin..].windows(2) {
            let (last, next) = (&pair[0].header, &pair[1].header);
            if next.first_number != last.number + 1 {
                let what = format!("{} is expected and missing", segment_name(last.number + 1));
                return Err(damage(next.number, 0, Some(last.first.max(options.from)), &what));
            }
        }
        Ok(begin)
    }

    fn begin_without(&self, options: &LogOptions) -> Result<usize, OpenError> {
        if let Some(first) = self.live.first() {
            let what = format!("the events before position {} are missing", first.header.first);
            return Err(damage(first.header.number, 0, Some(options.from), &what));
        }
        let may_be_new = options.may_be_new || self.torn.is_some();
        if may_be_new && options.from == Position::START {
            return Ok(0);
        }
        Err(damage(1, 0, Some(options.from), "there is no segment, but the store has been in use"))
    }

    fn leftovers(&self) -> Vec<u64> {
        self.superseded.iter().copied().chain(self.torn).collect()
    }

    fn infos(&self) -> Vec<SegmentInfo> {
        self.live.iter().map(|segment| segment.header.info()).collect()
    }
}

/// The decision of a recovery about the last segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its frames are copied to a new segment.
    Copied,
    /// It stays, and is sealed: its frames do not fit into a new segment, because one of them is larger than a
    /// segment, or because segments were larger before. The disk may have no space for a copy.
    Kept,
    /// It is sealed already: it had a successor.
    Sealed,
}

struct Scan<'a, 'r> {
    disk: &'a dyn Disk,
    from: Position,
    /// The size of new segments.
    segment_bytes: u64,
    directory: &'a Directory,
    replay: &'a mut Replay<'r>,
    /// The segment being read. The buffer is reused, since all have about the same size.
    bytes: Vec<u8>,
    unsealed: Option<SegmentEnd>,
}

impl Scan<'_, '_> {
    /// Reads a segment that has a successor: its end is known, and everything before it was durable.
    fn sealed(&mut self, segment: &Headed, next: &SegmentHeader) -> Result<(), OpenError> {
        let number = segment.header.number;
        self.load(&segment.header)?;
        let mut walk = Walk::new(&self.bytes, &segment.header, segment.crc);
        while walk.position < next.first {
            match walk.step() {
                Step::Events(frame) => hand_over(self.replay, self.from, number, number, &frame)?,
                Step::Seal => return Err(bad(number, &walk, "the segment ends too early")),
                Step::Torn(what) | Step::Alien(what) => return Err(bad(number, &walk, what)),
            }
        }
        if walk.position != next.first || walk.chain != next.previous_chain {
            let what = format!("{} does not continue it", segment_name(next.number));
            return Err(bad(number, &walk, &what));
        }
        let end = walk.end(segment.header);
        self.unsealed = match walk.step() {
            Step::Seal => None,
            _ => Some(end),
        };
        Ok(())
    }

    /// Reads the last segment. It ends after its last sound frame, unless that is damage.
    fn open(mut self, segment: &Headed) -> Result<Scanned, OpenError> {
        let number = segment.header.number;
        self.load(&segment.header)?;
        let fate = self.fate_of(segment);
        let number_then = if fate == Fate::Copied { self.directory.next_number } else { number };
        let mut walk = Walk::new(&self.bytes, &segment.header, segment.crc);
        let what = loop {
            match walk.step() {
                Step::Events(frame) => hand_over(self.replay, self.from, number, number_then, &frame)?,
                Step::Seal if self.directory.torn.is_some() => {
                    let end = walk.end(segment.header);
                    return self.into_sealed(&end);
                }
                Step::Seal => {
                    let what = format!("{} is expected and missing", segment_name(number + 1));
                    return Err(bad(number, &walk, &what));
                }
                Step::Alien(what) => return Err(bad(number, &walk, what)),
                Step::Torn(what) => break what,
            }
        };
        let given_up = walk.look_on();
        if walk.position < walk.synced {
            let what = format!("{what}, but all events before position {} were durable", walk.synced);
            return Err(bad(number, &walk, &what));
        }
        let is_cut = given_up > 0 || (self.bytes.len() as u64) < segment.header.bytes;
        let end = walk.end(segment.header);
        match fate {
            Fate::Kept => self.into_kept(end, is_cut),
            Fate::Copied | Fate::Sealed => self.into_open(&end, is_cut),
        }
    }

    /// Decides what the recovery does with the last segment. This must be known before its frames are replayed, since
    /// their places depend on it.
    fn fate_of(&self, segment: &Headed) -> Fate {
        let mut walk = Walk::new(&self.bytes, &segment.header, segment.crc);
        let last = loop {
            match walk.step() {
                Step::Events(_) => {}
                last => break last,
            }
        };
        let frames_bytes = walk.offset - SEGMENT_HEADER_BYTES;
        let is_large =
            segment_bytes_for(self.segment_bytes, frames_bytes) > segment_bytes_for(self.segment_bytes, 0);
        match last {
            Step::Seal => Fate::Sealed,
            _ if is_large => Fate::Kept,
            _ => Fate::Copied,
        }
    }

    /// Keeps the last segment, which will be sealed; the log continues in a new one.
    fn into_kept(mut self, end: SegmentEnd, is_cut: bool) -> Result<Scanned, OpenError> {
        self.bytes.resize(end.offset as usize, 0);
        let kept = std::mem::take(&mut self.bytes);
        let tail = OldTail::empty(end.header.number + 1, end.position, end.chain);
        let cut = cut_at(&end, is_cut);
        let position = end.position;
        self.unsealed = Some(end);
        Ok(Scanned { kept: Some(kept), ..self.into_scanned(tail, position, cut)? })
    }

    fn into_open(mut self, end: &SegmentEnd, is_cut: bool) -> Result<Scanned, OpenError> {
        let header = end.header;
        // Only the padding of the last frame can be beyond the end of the file.
        self.bytes.resize(end.offset as usize, 0);
        let tail = OldTail {
            first_number: header.first_number,
            first: header.first,
            previous_chain: header.previous_chain,
            salt: header.salt,
            content: std::mem::take(&mut self.bytes),
        };
        let cut = cut_at(end, is_cut);
        let mut scanned = self.into_scanned(tail, end.position, cut)?;
        scanned.leftovers.push(header.number);
        Ok(scanned)
    }

    /// Handles a last segment that is sealed, and whose successor is shorter than a header.
    fn into_sealed(self, end: &SegmentEnd) -> Result<Scanned, OpenError> {
        let tail = OldTail::empty(end.header.number + 1, end.position, end.chain);
        let cut = self.torn_creation(end.position);
        self.into_scanned(tail, end.position, cut)
    }

    fn into_new(self) -> Scanned {
        let cut = self.torn_creation(Position::START);
        self.into_scanned(OldTail::empty(1, Position::START, 0), Position::START, cut)
            .expect("a new log is read from its beginning")
    }

    fn torn_creation(&self, position: Position) -> Option<Cut> {
        self.directory.torn.map(|number| Cut { file: segment_name(number), offset: 0, position })
    }

    fn into_scanned(self, tail: OldTail, end: Position, cut: Option<Cut>) -> Result<Scanned, OpenError> {
        if end < self.from {
            let last = self.directory.next_number - 1;
            let what = format!("the log ends here, but is needed up to position {}", self.from);
            return Err(damage(last, tail.content.len(), Some(end), &what));
        }
        Ok(Scanned {
            segments: self.directory.infos(),
            end,
            cut,
            tail,
            unsealed: self.unsealed,
            kept: None,
            next_number: self.directory.next_number,
            leftovers: self.directory.leftovers(),
        })
    }

    /// Reads the segment up to the end of the file or the length in its header.
    fn load(&mut self, header: &SegmentHeader) -> Result<(), Fault> {
        let file = self.disk.open(&segment_name(header.number))?;
        let bytes = file.len()?.min(header.bytes);
        self.bytes.resize(bytes as usize, 0);
        let read = file.read_at(0, &mut self.bytes)?;
        self.bytes.truncate(read);
        Ok(())
    }
}

/// The cut at this end, if the log is cut there.
fn cut_at(end: &SegmentEnd, is_cut: bool) -> Option<Cut> {
    is_cut.then(|| Cut { file: segment_name(end.header.number), offset: end.offset, position: end.position })
}

/// Reads the header of a segment; `None` if the file is shorter than one.
pub(super) fn read_header(disk: &dyn Disk, number: u64, uuid: [u8; 16]) -> Result<Option<Headed>, OpenError> {
    let file = disk.open(&segment_name(number))?;
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    if file.read_at(0, &mut bytes)? < bytes.len() {
        return Ok(None);
    }
    let (header, crc) = SegmentHeader::decode(&bytes, number, uuid)?;
    Ok(Some(Headed { header, crc }))
}

/// Calls `replay` with a frame, under the number that its segment will have.
fn hand_over(
    replay: &mut Replay<'_>,
    from: Position,
    number: u64,
    number_then: u64,
    frame: &SoundFrame<'_>,
) -> Result<(), OpenError> {
    let SoundFrame { header, offset, body } = frame;
    if header.first.after(header.events).is_some_and(|end| end <= from) {
        return Ok(());
    }
    let place = LogAddress { segment: number_then, offset: frame.body_offset() };
    replay(ReplayFrame { first: header.first, events: header.events, place, body }).map_err(|source| {
        OpenError::Replay {
            file: segment_name(number),
            offset: *offset as u64,
            position: header.first,
            source,
        }
    })
}

pub(super) fn bad(number: u64, walk: &Walk<'_>, what: &str) -> OpenError {
    damage(number, walk.offset, Some(walk.position), what)
}

pub(super) fn damage(number: u64, offset: usize, position: Option<Position>, what: &str) -> OpenError {
    let (file, offset, what) = (segment_name(number), offset as u64, what.to_owned());
    Damage { file, offset, position, what }.into()
}
