//! Reads a single segment.

use super::LogAddress;
use super::scan::{bad, read_header};
use super::segment::segment_name;
use super::walk::{Step, Walk};
use crate::disk::Disk;
use crate::fault::{OpenError, ReplayError};

/// Receives the place and the body of a frame.
pub type VisitFrame<'v> = dyn FnMut(LogAddress, &[u8]) -> Result<(), ReplayError> + 'v;

/// Visits the body of each frame of a segment that is no longer written to.
pub fn visit_segment(
    disk: &dyn Disk,
    uuid: [u8; 16],
    number: u64,
    visit: &mut VisitFrame<'_>,
) -> Result<(), OpenError> {
    let headed = read_header(disk, number, uuid)?
        .ok_or_else(|| super::scan::damage(number, 0, None, "the file ends within its header"))?;
    let file = disk.open(&segment_name(number))?;
    let mut bytes = vec![0; file.len()?.min(headed.header.bytes) as usize];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    let mut walk = Walk::new(&bytes, &headed.header, headed.crc);
    loop {
        match walk.step() {
            Step::Events(frame) => {
                let place = LogAddress { segment: number, offset: frame.body_offset() };
                visit(place, frame.body).map_err(|source| OpenError::Replay {
                    file: segment_name(number),
                    offset: frame.offset as u64,
                    position: frame.header.first,
                    source,
                })?;
            }
            Step::Seal => return Ok(()),
            Step::Torn(what) | Step::Alien(what) => return Err(bad(number, &walk, what)),
        }
    }
}
