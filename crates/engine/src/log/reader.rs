//! Reads payloads back from their places. It checks no content: every payload has its own checksum, which the caller
//! verifies.

use std::collections::BTreeMap;
use std::iter;
use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError};

use super::LogAddress;
use super::segment::{SegmentInfo, segment_name};
use crate::disk::{Disk, DiskFile};
use crate::fault::Fault;
use sureq_sync::{Mutex, MutexGuard};

/// The number of segments that are kept open for reading.
const OPEN_MAX: usize = 64;

/// Reads from any segment, on any thread.
pub struct Reader {
    disk: Arc<dyn Disk>,
    /// Segments that replace others.
    rewritten: Vec<RangeInclusive<u64>>,
    open: Mutex<BTreeMap<u64, Arc<dyn DiskFile>>>,
}

impl Reader {
    /// A reader of these segments in `disk`, and of those that come after them.
    pub fn new(disk: Arc<dyn Disk>, segments: &[SegmentInfo]) -> Reader {
        let rewritten = segments.iter().map(SegmentInfo::numbers);
        let rewritten = rewritten.filter(|numbers| numbers.start() < numbers.end()).collect();
        Reader { disk, rewritten, open: Mutex::new(BTreeMap::new()) }
    }

    /// Reads up to `bytes` from `place` on; fewer at the end of the file.
    pub fn read_upto(&self, place: LogAddress, bytes: usize) -> Result<Arc<[u8]>, Fault> {
        let file = self.file(self.standing_for(place.segment))?;
        let mut read: Arc<[u8]> = iter::repeat_n(0, bytes).collect();
        let into = Arc::get_mut(&mut read).expect("it is not shared yet");
        let filled = file.read_at(place.offset, into)?;
        Ok(if filled < bytes { read[..filled].into() } else { read })
    }

    /// The name of the file that has the contents of this segment.
    pub fn file_of(&self, number: u64) -> String {
        segment_name(self.standing_for(number))
    }

    /// The number of the segment that replaces this one: the same, unless a recovery rewrote it.
    fn standing_for(&self, number: u64) -> u64 {
        let rewritten = self.rewritten.iter().find(|numbers| numbers.contains(&number));
        rewritten.map_or(number, |numbers| *numbers.end())
    }

    /// Closes a segment that is about to be retired.
    pub fn forget(&self, segment: u64) {
        self.open_files().remove(&segment);
    }

    fn file(&self, segment: u64) -> Result<Arc<dyn DiskFile>, Fault> {
        if let Some(file) = self.open_files().get(&segment) {
            return Ok(Arc::clone(file));
        }
        let file: Arc<dyn DiskFile> = self.disk.open(&segment_name(segment))?.into();
        let mut open = self.open_files();
        if open.len() >= OPEN_MAX {
            // The oldest segment is the most likely to have been read completely.
            open.pop_first();
        }
        open.insert(segment, Arc::clone(&file));
        Ok(file)
    }

    fn open_files(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<dyn DiskFile>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
