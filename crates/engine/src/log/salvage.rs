//! Reads the intact parts of a damaged log: segment by segment, and all intact frames of each.
//!
//! A recovery stops at damage; this continues after it. Checks, repairs and backups use it.

use super::frame::{FRAME_ALIGN, FRAME_HEADER_BYTES, FrameHeader, Seat};
use super::segment::{
    SEGMENT_HEADER_BYTES, SegmentHeader, parse_segment_name, parse_spare_name, segment_name, uuid_in,
};
use super::walk::{Step, Walk};
use super::{LogAddress, Position};
use crate::disk::Disk;
use crate::fault::{Damage, Fault, OpenError};

/// A file with the name of a segment.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) number: u64,
    /// The lowest number that it replaces; a guess if its header is damaged.
    pub(crate) first_number: u64,
    /// `None` if it is damaged.
    pub(crate) header: Option<SegmentHeader>,
    /// The length of the file.
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    /// The damage of its header or its name.
    pub(crate) fault: Option<OpenError>,
}

/// The size of a segment's header, and that of a frame without a body.
pub(crate) const HEADER_BYTES: usize = SEGMENT_HEADER_BYTES;
pub(crate) const FRAME_BYTES_MIN: usize = FRAME_HEADER_BYTES;

/// The kind of a file that has the name of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Part,
    /// It was replaced by a newer segment.
    Superseded,
    /// The newest file, shorter than its header: its creation was interrupted.
    TornCreation,
    /// It belongs to another store, or to a later release.
    Foreign,
    /// It cannot be read.
    Unreadable,
}

impl Found {
    pub(crate) fn name(&self) -> String {
        segment_name(self.number)
    }

    /// Whether these bytes begin with its header. Always true if the header is damaged.
    pub(crate) fn is_headed_by(&self, bytes: &[u8]) -> bool {
        let Some(header) = self.header else { return true };
        let found =
            bytes.first_chunk().and_then(|head| SegmentHeader::decode(head, self.number, header.uuid).ok());
        found.is_some_and(|(found, _)| found == header)
    }

    pub(crate) fn is_part(&self) -> bool {
        self.kind == Kind::Part
    }
}

/// Whether a file of this name is kept to become a segment.
pub(crate) fn is_spare_name(name: &str) -> bool {
    parse_spare_name(name).is_some()
}

/// The store that most segments belong to, used if the store file is lost.
pub(crate) fn uuid_of_most(disk: &dyn Disk) -> Result<Option<[u8; 16]>, Fault> {
    let mut counts: Vec<([u8; 16], usize)> = Vec::new();
    for name in disk.list()?.iter().filter(|name| parse_segment_name(name).is_some()) {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        let read = disk.open(name).and_then(|file| file.read_at(0, &mut bytes));
        let Some(uuid) = read.ok().and_then(|_| uuid_in(&bytes)) else { continue };
        match counts.iter_mut().find(|(known, _)| *known == uuid) {
            Some((_, count)) => *count += 1,
            None => counts.push((uuid, 1)),
        }
    }
    Ok(counts.into_iter().max_by_key(|&(_, count)| count).map(|(uuid, _)| uuid))
}

/// All files with the names of segments, in the order of their numbers.
pub(crate) fn find_segments(disk: &dyn Disk, uuid: [u8; 16]) -> Result<Vec<Found>, Fault> {
    let mut numbers: Vec<u64> = disk.list()?.iter().filter_map(|name| parse_segment_name(name)).collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    let mut found: Vec<Found> = Vec::new();
    let mut taken_from = u64::MAX;
    for &number in &numbers {
        let mut segment = look_at(disk, number, uuid);
        if number >= taken_from && segment.is_part() {
            segment.kind = Kind::Superseded;
        } else if segment.header.is_some() {
            taken_from = segment.first_number;
        } else if segment.kind == Kind::TornCreation && Some(&number) != numbers.first() {
            segment.kind = Kind::Part;
        }
        found.push(segment);
    }
    found.reverse();
    // A segment without a header may replace all numbers since the segment before it.
    let mut next = 1;
    for segment in &mut found {
        if segment.is_part() {
            if segment.header.is_none() {
                segment.first_number = next.min(segment.number);
            }
            next = segment.number + 1;
        }
    }
    Ok(found)
}

fn look_at(disk: &dyn Disk, number: u64, uuid: [u8; 16]) -> Found {
    let mut found =
        Found { number, first_number: number, header: None, bytes: 0, kind: Kind::Part, fault: None };
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    let read = disk.open(&segment_name(number)).and_then(|file| {
        found.bytes = file.len()?;
        file.read_at(0, &mut bytes)
    });
    match read {
        Err(fault) => {
            (found.kind, found.fault) = (Kind::Unreadable, Some(fault.into()));
        }
        Ok(read) if read < bytes.len() => {
            let what = "the file ends within its header".to_owned();
            let damage = Damage { file: segment_name(number), offset: read as u64, position: None, what };
            (found.kind, found.fault) = (Kind::TornCreation, Some(damage.into()));
        }
        Ok(_) => match SegmentHeader::decode(&bytes, number, uuid) {
            Ok((header, _)) => (found.first_number, found.header) = (header.first_number, Some(header)),
            Err(error) => {
                let is_foreign = uuid_in(&bytes).is_some_and(|found| found != uuid)
                    || matches!(error, OpenError::NewerFormat { .. });
                if is_foreign {
                    found.kind = Kind::Foreign;
                }
                found.fault = Some(error);
            }
        },
    }
    found
}

/// A segment in memory.
pub(crate) struct Content {
    number: u64,
    header: SegmentHeader,
    crc: u32,
    is_headed: bool,
    bytes: Vec<u8>,
}

/// A frame with an intact header.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) first: Position,
    pub(crate) events: u32,
    pub(crate) place: LogAddress,
    pub(crate) body: &'a [u8],
    /// Whether the body matches its checksum.
    pub(crate) is_sound: bool,
}

impl Piece<'_> {
    /// The position after its last event.
    pub(crate) fn end(&self) -> Position {
        Position(self.first.0 + u64::from(self.events))
    }
}

/// The result of reading a segment.
#[derive(Debug)]
pub(crate) struct Gone {
    /// The damage of its frames.
    pub(crate) damages: Vec<Damage>,
    /// The offset at which its frames end.
    pub(crate) end: u64,
    pub(crate) position: Position,
    pub(crate) chain: u32,
    pub(crate) is_sealed: bool,
    /// Whether the bytes at its end seem to be the damaged header of a frame.
    pub(crate) is_frayed: bool,
    /// The offset from which all bodies of frames are damaged, if no sound frame follows and no mark shows that they
    /// were durable. A crash can leave that at the end of a log, and a start cuts it off.
    pub(crate) torn_from: Option<u64>,
    /// According to its marks, everything before this position was durable.
    pub(crate) synced: Position,
    pub(crate) frames: u64,
}

impl Content {
    /// Reads a segment that is a part of the log.
    pub(crate) fn load(disk: &dyn Disk, found: &Found) -> Result<Content, Fault> {
        let file = disk.open(&found.name())?;
        let most = found.header.map_or(u64::MAX, |header| header.bytes);
        let mut bytes = vec![0; file.len()?.min(most) as usize];
        let read = file.read_at(0, &mut bytes)?;
        bytes.truncate(read);
        Ok(Content::of(found.number, found.header, bytes))
    }

    /// A segment with these bytes.
    pub(crate) fn of(number: u64, header: Option<SegmentHeader>, bytes: Vec<u8>) -> Content {
        let is_headed = header.is_some();
        let header = header.unwrap_or_else(|| guessed_header(number, &bytes));
        let mut head = [0; SEGMENT_HEADER_BYTES];
        let crc = header.encode(&mut head);
        Content { number, header, crc, is_headed, bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Visits each frame with an intact header, in order.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&Piece<'_>)) -> Gone {
        let mut walk = Walk::new(&self.bytes, &self.header, self.crc);
        let (mut damages, mut frames, mut is_sealed) = (Vec::new(), 0, false);
        let mut torn = None;
        if !self.is_headed {
            walk.resume();
        }
        loop {
            let what = match walk.step() {
                Step::Events(frame) => {
                    (frames, torn) = (frames + 1, None);
                    visit(&self.piece(
                        frame.header.first,
                        frame.header.events,
                        frame.offset,
                        frame.body,
                        true,
                    ));
                    continue;
                }
                Step::Seal => {
                    is_sealed = true;
                    break;
                }
                Step::Torn(what) | Step::Alien(what) => what,
            };
            let damage = self.damage(&walk, what);
            let before = (walk.offset as u64, walk.position);
            if let Some(frame) = walk.pass_over() {
                torn = torn.or(Some(before));
                damages.push(damage);
                visit(&self.piece(frame.header.first, frame.header.events, frame.offset, frame.body, false));
            } else if walk.resume() {
                damages.push(damage);
            } else {
                break;
            }
        }
        walk.look_on();
        Gone {
            is_frayed: !is_sealed && walk.is_frayed(),
            torn_from: torn.filter(|&(_, at)| !is_sealed && walk.synced <= at).map(|(offset, _)| offset),
            damages,
            end: walk.offset as u64,
            position: walk.position,
            chain: walk.chain,
            is_sealed,
            synced: walk.synced,
            frames,
        }
    }

    fn piece<'a>(
        &self,
        first: Position,
        events: u32,
        offset: usize,
        body: &'a [u8],
        is_sound: bool,
    ) -> Piece<'a> {
        let place = LogAddress { segment: self.number, offset: (offset + FRAME_HEADER_BYTES) as u64 };
        Piece { first, events, place, body, is_sound }
    }

    fn damage(&self, walk: &Walk<'_>, what: &str) -> Damage {
        Damage {
            file: segment_name(self.number),
            offset: walk.offset as u64,
            position: Some(walk.position),
            what: what.to_owned(),
        }
    }
}

/// A replacement for a lost header. Each frame has the salt. Frames that a recycled file still has from its earlier
/// use are older than all frames written since, so the salt of the newest frame counts.
fn guessed_header(number: u64, bytes: &[u8]) -> SegmentHeader {
    let seated = |offset: usize| {
        let head = bytes.get(offset..)?.first_chunk::<FRAME_HEADER_BYTES>()?;
        let salt = u64::from_le_bytes(*head.first_chunk()?);
        let (header, _) = FrameHeader::decode(head, Seat { salt, offset: offset as u64 })?;
        (salt != 0).then_some((header.first, salt))
    };
    let offsets = (SEGMENT_HEADER_BYTES..bytes.len()).step_by(FRAME_ALIGN);
    let newest = offsets.filter_map(seated).max_by_key(|&(first, _)| first);
    let (_, salt) = newest.unwrap_or((Position::START, 1));
    let first = (SEGMENT_HEADER_BYTES..bytes.len())
        .step_by(FRAME_ALIGN)
        .filter_map(seated)
        .find(|&(_, found)| found == salt)
        .map_or(Position::START, |(first, _)| first);
    SegmentHeader {
        uuid: [0; 16],
        number,
        first_number: number,
        salt,
        first,
        synced: Position::START,
        bytes: bytes.len() as u64,
        previous_chain: 0,
    }
}
