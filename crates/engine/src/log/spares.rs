//! Files that are ready to become segments.
//!
//! If frames are synced, a new file is filled with zeros, so that no sync has to change the file's extents. A
//! recycled segment keeps its old bytes, which the new salt makes invalid. Both take time for which the log thread
//! must not wait, so the preallocator prepares files ahead, by [`Spares::prepare`].

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::segment::{parse_spare_name, segment_bytes_for, segment_name, spare_name};
use super::{Filling, LogError, LogOptions, Position};
use crate::disk::Disk;
use crate::failpoint::failpoint;
use crate::fault::{Fault, Operation};
use sureq_sync::{Mutex, MutexGuard, thread};

/// After this many chunks of zeros, filling pauses, unless a thread waits for the file.
const GENTLE_CHUNKS: u32 = 4;
/// The length of the pause. The syncs of the log share the disk's queue with the zeros.
const GENTLE_PAUSE: Duration = Duration::from_millis(4);

/// Whether a thread waits for a file that is being filled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    Hurried,
    Gentle,
}

/// The purpose of a prepared file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Next,
    Reserve,
}

/// The prepared files of a log, shared by its writer and the preallocator.
pub struct Spares {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    target: usize,
    reserve_target: usize,
    filling: Filling,
    pool: Mutex<Pool>,
}

/// A file for a frame that is larger than a segment.
#[derive(Debug)]
pub struct Reserved {
    name: String,
    bytes: u64,
}

#[derive(Default)]
struct Pool {
    ready: Vec<String>,
    /// Used when the disk has no space for new files.
    reserve: Vec<String>,
    /// For frames that are larger than a segment, by the position at which each frame ends.
    oversized: BTreeMap<Position, Reserved>,
    /// The number of files that are being prepared.
    preparing: usize,
    /// Names are not used twice, so that a file in preparation never collides with one in use.
    last_number: u64,
}

impl Pool {
    /// Adds a file, to the reserve first.
    fn put(&mut self, name: String, reserve: usize) {
        if self.reserve.len() < reserve { self.reserve.push(name) } else { self.ready.push(name) }
    }

    fn take(&mut self) -> Option<String> {
        self.ready.pop().or_else(|| self.reserve.pop())
    }
}

impl Spares {
    /// Takes over the files of an earlier run. Those of the right length are used again, up to the wanted number; the
    /// others are removed.
    pub(crate) fn adopt(disk: Arc<dyn Disk>, options: &LogOptions) -> Result<Spares, Fault> {
        let segment_bytes = segment_bytes_for(options.segment_bytes, 0);
        let mut pool = Pool::default();
        for name in disk.list()? {
            let Some(number) = parse_spare_name(&name) else { continue };
            pool.last_number = pool.last_number.max(number);
            let is_usable = disk.open(&name)?.len()? == segment_bytes;
            if is_usable && pool.reserve.len() < options.reserve_segments {
                pool.reserve.push(name);
            } else if is_usable && pool.ready.len() < options.spare_segments {
                pool.ready.push(name);
            } else {
                disk.remove(&name)?;
            }
        }
        disk.sync_dir()?;
        Ok(Spares {
            disk,
            segment_bytes,
            target: options.spare_segments,
            reserve_target: options.reserve_segments,
            filling: options.filling,
            pool: Mutex::new(pool),
        })
    }

    /// The size of new segments.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// The free bytes of the disk, and its size.
    pub(crate) fn room(&self) -> Result<(u64, u64), Fault> {
        Ok((self.disk.free()?, self.disk.capacity()?))
    }

    /// The number of files that can still be created.
    pub(crate) fn free_files(&self) -> Result<u64, Fault> {
        self.disk.free_files()
    }

    /// The number of prepared files, and so of segments that can still be begun on a full disk.
    pub fn ready(&self) -> usize {
        let pool = self.pool();
        pool.ready.len() + pool.reserve.len()
    }

    /// The number of files that should be prepared now.
    pub fn wanted(&self) -> usize {
        self.wanted_in(&self.pool())
    }

    fn wanted_in(&self, pool: &Pool) -> usize {
        let there = pool.ready.len() + pool.reserve.len() + pool.preparing;
        (self.target + self.reserve_target).saturating_sub(there)
    }

    /// Claims the preparation of a file, if one is wanted. Returns its purpose.
    fn promise(&self) -> Option<Use> {
        let mut pool = self.pool();
        if self.wanted_in(&pool) == 0 {
            return None;
        }
        let is_for_reserve = pool.reserve.len() + pool.preparing < self.reserve_target;
        pool.preparing += 1;
        Some(if is_for_reserve { Use::Reserve } else { Use::Next })
    }

    /// Ends a preparation: adds the file, or nothing if it failed.
    fn keep_promise(&self, file: Option<String>) {
        let mut pool = self.pool();
        pool.preparing -= 1;
        if let Some(name) = file {
            pool.put(name, self.reserve_target);
        }
    }

    /// Prepares one file if one is wanted, for the reserve first. On a full disk it removes the incomplete file, and
    /// the log stays usable.
    pub fn prepare(&self) -> Result<(), LogError> {
        let Some(wanted_for) = self.promise() else { return Ok(()) };
        // Files of the reserve must be available; they need not be fast.
        let filling = if wanted_for == Use::Reserve { Filling::Reserved } else { self.filling };
        let (file, created) = match self.create(self.segment_bytes, filling, Pace::Gentle) {
            Ok(name) => (Some(name), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.keep_promise(file);
        created
    }

    /// Removes one of the prepared files to free its space, if there are at least as many as the reserve should have.
    /// Returns whether it did.
    pub(crate) fn give_up_one(&self) -> Result<bool, Fault> {
        let name = {
            let mut pool = self.pool();
            let is_spare = pool.ready.len() + pool.reserve.len() >= self.reserve_target;
            is_spare.then(|| pool.take()).flatten()
        };
        let Some(name) = name else { return Ok(false) };
        self.disk.remove(&name)?;
        failpoint("spare.given-up");
        self.disk.sync_dir()?;
        Ok(true)
    }

    /// Retires segments that nothing refers to any more: as many as are wanted become spares, the others are removed.
    /// A thread that still reads from one may see foreign bytes afterwards.
    pub fn retire(&self, segments: &[u64]) -> Result<(), Fault> {
        let mut spares = Vec::new();
        let retired = segments.iter().try_for_each(|&number| self.retire_one(number, &mut spares));
        // A crash may undo a rename that is not durable, so the file must not be written to before this sync.
        let synced = if segments.is_empty() { Ok(()) } else { retired.and_then(|()| self.disk.sync_dir()) };
        for spare in spares {
            self.keep_promise(synced.is_ok().then_some(spare));
        }
        synced
    }

    fn retire_one(&self, segment: u64, spares: &mut Vec<String>) -> Result<(), Fault> {
        let name = segment_name(segment);
        if self.disk.open(&name)?.len()? == self.segment_bytes && self.promise().is_some() {
            let spare = self.next_name();
            failpoint("retire.before-rename");
            spares.push(spare.clone());
            self.disk.rename(&name, &spare)?;
            failpoint("retire.after-rename");
        } else {
            failpoint("retire.before-unlink");
            self.disk.remove(&name)?;
            failpoint("retire.after-unlink");
        }
        Ok(())
    }

    /// Creates a file with space for `frames_bytes`. It becomes durable only when it becomes a segment.
    pub fn reserve(&self, frames_bytes: usize) -> Result<Reserved, LogError> {
        let bytes = segment_bytes_for(self.segment_bytes, frames_bytes);
        let name = self.next_name();
        let made = self.disk.create(&name).and_then(|file| file.reserve(bytes));
        match made {
            Ok(()) => Ok(Reserved { name, bytes }),
            Err(fault) => Err(self.fail(&name, fault)),
        }
    }

    /// Keeps a reserved file for the frame that ends at this position.
    pub fn entrust(&self, end: Position, reserved: Reserved) {
        self.pool().oversized.insert(end, reserved);
    }

    /// Removes a reserved file that was not needed. If that fails, the next start removes it.
    pub fn discard(&self, reserved: &Reserved) {
        let _ = self.disk.remove(&reserved.name);
    }

    /// Takes a file for a segment with space for `frames_bytes` whose first frame ends at `end`. Prepares it now if
    /// there is none. Returns its name and the length of the segment.
    pub(crate) fn take(&self, frames_bytes: usize, end: Position) -> Result<(String, u64), LogError> {
        let bytes = segment_bytes_for(self.segment_bytes, frames_bytes);
        let reserved = self.pool().oversized.remove(&end);
        match reserved {
            // The file may be longer than the segment: reads stop at the length in the segment's header.
            Some(reserved) if reserved.bytes >= bytes => return Ok((reserved.name, bytes)),
            Some(too_small) => self.discard(&too_small),
            None => {}
        }
        if bytes == self.segment_bytes
            && let Some(name) = self.pool().take()
        {
            return Ok((name, bytes));
        }
        Ok((self.create(bytes, self.filling, Pace::Hurried)?, bytes))
    }

    fn create(&self, bytes: u64, filling: Filling, pace: Pace) -> Result<String, LogError> {
        let name = self.next_name();
        match self.fill(&name, bytes, filling, pace) {
            Ok(()) => Ok(name),
            Err(fault) => Err(self.fail(&name, fault)),
        }
    }

    /// The error for a file that could not be created.
    fn fail(&self, name: &str, fault: Fault) -> LogError {
        // Other threads may wait for the space of the incomplete file. If it cannot be removed now, the next start
        // removes it.
        let _ = self.disk.remove(name);
        // A failed sync of the directory is never retried. Other failures for lack of space are, with a new file.
        let may_be_tried_again = fault.is_no_space() && fault.operation != Operation::SyncDirectory;
        if may_be_tried_again { LogError::NoSpace(fault) } else { LogError::Fault(fault) }
    }

    fn fill(&self, name: &str, bytes: u64, filling: Filling, pace: Pace) -> Result<(), Fault> {
        let file = self.disk.create(name)?;
        failpoint("spare.created");
        // Fail early on a full disk, and leave the last bytes of the disk free.
        file.secure_room(bytes)?;
        let mut chunks = 0;
        match filling {
            Filling::Zeros if pace == Pace::Gentle => file.fill_with_zeros(bytes, &mut || {
                chunks += 1;
                if chunks % GENTLE_CHUNKS == 0 {
                    file.sync_data()?;
                    thread::sleep(GENTLE_PAUSE);
                }
                Ok(())
            })?,
            Filling::Zeros => file.fill_with_zeros(bytes, &mut || Ok(()))?,
            Filling::Reserved => file.reserve(bytes)?,
        }
        failpoint("spare.filled");
        file.sync_data()?;
        self.disk.sync_dir()
    }

    fn next_name(&self) -> String {
        let mut pool = self.pool();
        pool.last_number += 1;
        spare_name(pool.last_number)
    }

    /// A panic elsewhere cannot leave the pool half changed.
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
