//! Checkpoints: states to start from, so that a start reads only the end of the log. This module does not interpret
//! them: they consist of opaque blobs, which are written once and shared, and an opaque manifest that refers to them.
//!
//! The map:
//! - [`Checkpoints`] (here) finds checkpoints, takes new ones, and knows up to which position the log can be removed.
//! - [`Draft`] (`draft`) is a checkpoint that is being written; [`Loaded`] (`read`) one that is being read.
//! - [`Blob`] (`blob`) is the place of a piece. `format` is a file's name and header.
//! - `checkpoint_set` knows all files of checkpoints and which of them can be removed. `examine` checks each file
//!   separately.
//!
//! Two checkpoints are kept, so that one may be damaged: the log is kept from the position of the older one on.
//! docs/understand/log-format.md draws the bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::disk::Disk;
use crate::failpoint::failpoint;
use crate::fault::{Damage, Fault, OpenError, Operation};
use crate::log::{LogError, Position};

mod blob;
mod checkpoint_set;
mod draft;
mod examine;
mod format;
mod read;

pub use blob::Blob;
use checkpoint_set::CheckpointSet;
pub use draft::Draft;
pub(crate) use examine::is_draft_name;
pub use format::CHECKPOINT_VERSION;
use format::DRAFT_NAME;
pub(crate) use format::is_checkpoint_name;
pub use read::{Loaded, VisitBlob};

const KEPT: usize = 2;

/// The most older files that a checkpoint refers to, since a start opens each of them.
const FILES_MAX: usize = 32;
/// The number of older files after a merge, so that not every checkpoint has to merge.
const FILES_LEFT: usize = FILES_MAX / 2;

/// The checkpoints of a store. One thread owns them.
///
/// After a failure of the disk nothing is written any more: all calls fail with [`LogError::Poisoned`].
pub struct Checkpoints {
    set: CheckpointSet,
    uuid: [u8; 16],
    /// Whether the log before the newest checkpoint can be removed although no other checkpoint is kept.
    relies_on_newest: bool,
    is_poisoned: bool,
}

/// A start from a checkpoint.
#[derive(Debug)]
pub struct Restored<T> {
    /// The value that was built from it.
    pub value: T,
    /// The checkpoint's number.
    pub number: u64,
    /// The checkpoint contains the events before this position.
    pub position: Position,
    /// The damage of the newest checkpoint, if an older one was used.
    pub skipped: Option<Damage>,
}

/// The outcome of [`Checkpoints::drop_older`].
#[derive(Debug)]
pub enum Older {
    /// The newest checkpoint is sound, and the only one.
    Dropped,
    NoCheckpoint,
    /// The newest one cannot be read or is damaged, for this reason. Both stay, and no written data is in doubt.
    Kept(OpenError),
}

impl Older {
    /// Whether the newest checkpoint is the only one now.
    pub const fn is_dropped(&self) -> bool {
        matches!(self, Self::Dropped)
    }
}

impl Checkpoints {
    /// Finds the checkpoints of the store `uuid` and changes nothing. Refuses those of other stores and newer formats.
    pub fn open(disk: Arc<dyn Disk>, uuid: [u8; 16]) -> Result<Checkpoints, OpenError> {
        let set = CheckpointSet::scan(disk, uuid)?;
        Ok(Checkpoints { set, uuid, relies_on_newest: false, is_poisoned: false })
    }

    /// Calls `build` to restore a state from the newest sound checkpoint; `None` if there is no checkpoint at all.
    /// Changes nothing on disk.
    ///
    /// If a checkpoint is damaged or cannot be read, or `build` returns [`OpenError::Damaged`] because a blob is
    /// damaged, the older one is used. It is as good, since the log is kept from its position on. If none is sound,
    /// the damage of the newest is returned. Any other error ends the search.
    pub fn load<T>(
        &mut self,
        mut build: impl FnMut(&Loaded<'_>) -> Result<T, OpenError>,
    ) -> Result<Option<Restored<T>>, OpenError> {
        while let Some(sound) = self.set.newest() {
            let (number, position) = (sound.header.number, sound.header.position);
            match Loaded::read(&self.set, sound).and_then(|loaded| build(&loaded)) {
                Ok(value) => {
                    let mut newer = self.set.damages().take_while(|(damaged, _)| *damaged > number);
                    let skipped = newer.next().map(|(_, damage)| damage.clone());
                    return Ok(Some(Restored { value, number, position, skipped }));
                }
                Err(OpenError::Damaged(damage)) => self.set.condemn(number, damage),
                Err(error) => return Err(error),
            }
        }
        if let Some((_, damage)) = self.set.damages().next() {
            return Err(damage.clone().into());
        }
        match self.set.any() {
            Some(blobs) => {
                let what = "the checkpoint that refers to it is missing";
                Err(format::damage(&self.set.name(blobs), 0, what).into())
            }
            None => Ok(None),
        }
    }

    /// Removes leftovers of an earlier run: a draft, checkpoints beyond the two newest, unreferenced files. A damaged
    /// checkpoint is kept for examination until the next one is taken. Call it after [`load`](Self::load), when the
    /// rest of the store was found sound too.
    pub fn remove_leftovers(&mut self) -> Result<(), LogError> {
        self.refuse_if_poisoned()?;
        let mut kept = self.newest(KEPT);
        kept.extend(self.set.damages().map(|(number, _)| number));
        let removed = self.set.remove_draft().and_then(|()| self.keep_durably(&kept));
        removed.map_err(|fault| self.fail(fault))
    }

    /// The log before this position can be removed. It is the position of the older of the two kept checkpoints, or
    /// of the only one after [`drop_older`](Self::drop_older), or else the beginning.
    pub fn needed_from(&self) -> Position {
        let mut kept = self.set.kept().map(|sound| sound.header.position);
        match (kept.next(), kept.next()) {
            (Some(newest), _) if self.relies_on_newest => newest,
            (Some(_), Some(older)) => older,
            _ => Position::START,
        }
    }

    /// Of the files with these shared blobs, those that the next checkpoint should no longer refer to: files of which
    /// less than half would be used, and the smallest ones if there are too many. Their blobs must be written again.
    pub fn sparse(&self, shared: &[Blob]) -> BTreeSet<u64> {
        let mut used: BTreeMap<u64, u64> = BTreeMap::new();
        for blob in shared.iter().copied().collect::<BTreeSet<_>>() {
            *used.entry(blob.file).or_default() += u64::from(blob.bytes);
        }
        // Tables and old manifests take up space too, so they count as unused.
        let is_sparse =
            |file: u64, used: u64| self.set.header(file).is_none_or(|header| used < header.bytes.div_ceil(2));
        let (sparse, dense): (Vec<_>, Vec<_>) =
            used.into_iter().partition(|&(file, used)| is_sparse(file, used));
        let mut files: BTreeSet<u64> = sparse.into_iter().map(|(file, _)| file).collect();
        if dense.len() > FILES_MAX {
            let mut by_size: Vec<(u64, u64)> = dense.into_iter().map(|(file, used)| (used, file)).collect();
            by_size.sort_unstable();
            files.extend(by_size[..by_size.len() - FILES_LEFT].iter().map(|&(_, file)| file));
        }
        files
    }

    /// Reads blobs that the newest checkpoint refers to, as [`Loaded::read_blobs`] does.
    pub fn read_blobs(&self, blobs: &[Blob], visit: &mut VisitBlob<'_>) -> Result<(), OpenError> {
        match self.set.newest() {
            Some(newest) if !blobs.is_empty() => Loaded::read(&self.set, newest)?.read_blobs(blobs, visit),
            _ => Ok(()),
        }
    }

    /// Begins a checkpoint of the state at `position`, up to which the log must be durable. `pace` is called after
    /// each written piece with its size, and may sleep.
    pub fn begin<'a>(
        &'a mut self,
        position: Position,
        pace: &'a mut dyn FnMut(usize),
    ) -> Result<Draft<'a>, LogError> {
        self.refuse_if_poisoned()?;
        let newest = self.set.newest().map_or(Position::START, |sound| sound.header.position);
        assert!((newest..=Position::MAX).contains(&position), "checkpoints go forward");
        Draft::begin(self, position, pace)
    }

    /// For a full disk: removes the older checkpoint, so that the log that was kept for it can be removed. Does so
    /// only if every byte of the newest matches its checksum.
    pub fn drop_older(&mut self) -> Result<Older, LogError> {
        self.refuse_if_poisoned()?;
        let Some(newest) = self.set.newest() else { return Ok(Older::NoCheckpoint) };
        match read::verify(&self.set, newest) {
            Ok(()) => {}
            Err(OpenError::Disk(fault)) if !fault.is_of_reading() => return Err(self.fail(fault)),
            Err(why) => return Ok(Older::Kept(why)),
        }
        self.keep_durably(&self.newest(1)).map_err(|fault| self.fail(fault))?;
        failpoint("checkpoint.older-dropped");
        self.relies_on_newest = true;
        Ok(Older::Dropped)
    }

    /// The bytes of all files of checkpoints.
    pub fn bytes(&self) -> u64 {
        self.set.bytes()
    }

    /// The numbers of the newest usable checkpoints.
    pub(crate) fn newest(&self, count: usize) -> BTreeSet<u64> {
        self.set.kept().take(count).map(|sound| sound.header.number).collect()
    }

    /// Removes all checkpoints but these. After a failed sync their names may be only in the page cache, so they are
    /// made durable before others are removed. Removes nothing if no checkpoint is sound.
    fn keep_durably(&mut self, kept: &BTreeSet<u64>) -> Result<(), Fault> {
        if self.set.newest().is_none() {
            return Ok(());
        }
        self.set.disk.sync_dir()?;
        self.set.keep_only(kept)
    }

    /// Makes the name of a new checkpoint durable, and only then removes the oldest.
    fn confirm_placed(&mut self) -> Result<(), LogError> {
        self.relies_on_newest = false;
        match self.keep_durably(&self.newest(KEPT)).map_err(|fault| self.fail(fault)) {
            // The new checkpoint is durable. The next attempt removes the rest.
            Err(LogError::NoSpace(_)) => Ok(()),
            other => other,
        }
    }

    fn refuse_if_poisoned(&self) -> Result<(), LogError> {
        if self.is_poisoned { Err(LogError::Poisoned) } else { Ok(()) }
    }

    /// Notes a fault. A full disk is temporary. But a failed sync of the directory must not be retried, not even if
    /// the disk was full.
    fn fail(&mut self, fault: Fault) -> LogError {
        if fault.is_no_space() && fault.operation != Operation::SyncDirectory {
            return LogError::NoSpace(fault);
        }
        self.is_poisoned = true;
        LogError::Fault(fault)
    }
}
