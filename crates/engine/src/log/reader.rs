//! Reads bodies back from where they lie. It checks no content: every body carries its own checksum, which whoever reads
//! it verifies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Place;
use super::segment::segment_name;
use crate::disk::{Disk, DiskFile};
use crate::fault::Fault;

/// How many segments are kept open for reading.
const OPEN_MAX: usize = 64;

/// Why bytes could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The disk failed.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The file is shorter than what is said to be in it.
    #[error("{file} ends before the {bytes} bytes at offset {offset}")]
    Short {
        /// The segment's file.
        file: String,
        /// Where the bytes should begin.
        offset: u64,
        /// How many they should be.
        bytes: usize,
    },
}

/// Reads from any segment, on any thread.
pub struct Reader {
    disk: Arc<dyn Disk>,
    open: Mutex<BTreeMap<u64, Arc<dyn DiskFile>>>,
}

impl Reader {
    /// A reader of the segments in `disk`.
    pub fn new(disk: Arc<dyn Disk>) -> Reader {
        Reader { disk, open: Mutex::new(BTreeMap::new()) }
    }

    /// Fills `into` with the bytes at `place`.
    pub fn read(&self, place: Place, into: &mut [u8]) -> Result<(), ReadError> {
        let file = self.file(place.segment)?;
        if file.read_at(place.offset, into)? == into.len() {
            return Ok(());
        }
        Err(ReadError::Short { file: segment_name(place.segment), offset: place.offset, bytes: into.len() })
    }

    /// Lets go of a segment that is about to be retired.
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
            // The oldest segment is the likeliest to be read through.
            open.pop_first();
        }
        open.insert(segment, Arc::clone(&file));
        Ok(file)
    }

    fn open_files(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<dyn DiskFile>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
