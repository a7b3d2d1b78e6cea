//! Reads payloads of a store that is not open.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile};
use crate::fault::{Damage, Fault};
use crate::log::segment_name;
use crate::payload::body::Stored;
use crate::payload::cache::is_whole;

/// The number of files that are kept open.
const OPEN_MAX: usize = 64;

/// The length of the checksum before a payload.
const CRC_BYTES: u32 = 4;

/// Reads payloads and compares them with their checksums.
pub(crate) struct Payloads {
    disk: Arc<dyn Disk>,
    /// The segment numbers that each file replaces.
    files: Vec<(RangeInclusive<u64>, u64)>,
    open: BTreeMap<u64, Box<dyn DiskFile>>,
}

impl Payloads {
    /// A reader for these files, each with the numbers that it replaces.
    pub(crate) fn new(disk: Arc<dyn Disk>, files: Vec<(RangeInclusive<u64>, u64)>) -> Payloads {
        Payloads { disk, files, open: BTreeMap::new() }
    }

    /// The number of the file that replaces a segment, or the segment's own.
    pub(crate) fn file_of(&self, segment: u64) -> u64 {
        standing_for(&self.files, segment).unwrap_or(segment)
    }

    pub(crate) fn has_file(&self, place: Stored) -> bool {
        standing_for(&self.files, u64::from(place.segment)).is_some()
    }

    /// The payload at this place, or the damage there.
    pub(crate) fn read(&mut self, place: Stored) -> Result<Box<[u8]>, Damage> {
        let number = self.file_of(u64::from(place.segment));
        let damage = |what: String| Damage {
            file: segment_name(number),
            offset: u64::from(place.offset),
            position: None,
            what,
        };
        if !self.has_file(place) {
            return Err(damage("the file is missing".to_owned()));
        }
        match self.bytes(number, place) {
            Err(fault) => Err(damage(fault.to_string())),
            Ok(bytes) if is_whole(&bytes, CRC_BYTES as usize, place) => {
                Ok(bytes[CRC_BYTES as usize..].into())
            }
            Ok(_) => Err(damage("the checksum of the payload does not match".to_owned())),
        }
    }

    /// The payload with its checksum before it, or less if the file is shorter.
    fn bytes(&mut self, number: u64, place: Stored) -> Result<Vec<u8>, Fault> {
        let file = self.file(number)?;
        let start = u64::from(place.offset.saturating_sub(CRC_BYTES));
        let there = file.len()?.saturating_sub(start);
        let mut bytes = vec![0; there.min(u64::from(place.len) + u64::from(CRC_BYTES)) as usize];
        let read = file.read_at(start, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    fn file(&mut self, number: u64) -> Result<&dyn DiskFile, Fault> {
        if !self.open.contains_key(&number) {
            let file = self.disk.open(&segment_name(number))?;
            if self.open.len() >= OPEN_MAX {
                self.open.pop_first();
            }
            self.open.insert(number, file);
        }
        Ok(&**self.open.get(&number).expect("it is open"))
    }
}

/// The file that replaces a segment, among files sorted by number.
pub(super) fn standing_for(files: &[(RangeInclusive<u64>, u64)], segment: u64) -> Option<u64> {
    let at = files.partition_point(|(numbers, _)| *numbers.end() < segment);
    files.get(at).filter(|(numbers, _)| numbers.contains(&segment)).map(|&(_, file)| file)
}
