//! Copies a store that may be open. It only reads, so a running server is not affected.
//!
//! The copy equals the store that a crash at some moment during the backup would have left, with all changes that
//! were confirmed before the backup began. Files are created, grow and are removed meanwhile. These steps make the
//! copy consistent:
//!
//! 1. Copy the segments that are no longer written to. This is most of the store and takes the longest. The copies
//!    stay valid, since no segment number is used twice.
//! 2. Open the newest checkpoint and the files that it refers to. They never change once they have their names, and
//!    stay readable while they are open.
//! 3. Copy the segments that are new since step 1. If one of them is removed meanwhile, it was no longer needed: all
//!    events that made it obsolete had been written before. It is left out, and the directory is listed again.
//! 4. If no segment of a listing was removed meanwhile, copy its last one, up to the last complete frame. This is
//!    after all events that step 3 relies on. Later frames are left out, so that no synced mark in them refers to
//!    frames that the copy lacks.
//! 5. Copy the checkpoint's files, and the `store` file last: its marks are never below what the log needs, and
//!    without it the copy is not a store.
//!
//! If the log that the checkpoint needs was removed meanwhile, two newer checkpoints have been taken, and the backup
//! restarts with step 2. Files are read and written, never linked, since recycled segments are written to again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::checkpoint::Checkpoints;
use crate::disk::{Disk, DiskFile};
use crate::fault::{Damage, Fault, OpenError};
use crate::log::salvage::{Found, Kind, find_segments};
use crate::log::{Position, segment_name};
use crate::offline::check::{Progress, Report, Steps, check, identify};
use crate::offline::unfinished;
use crate::store::{self, StoreValues};
use sureq_sync::thread;

mod files;

use files::{Copied, Pace, copy_file, copy_sealed, copy_tail};

/// How often a checkpoint is chosen before the backup fails.
const ATTEMPTS: u32 = 1000;

/// How often the directory is listed for one checkpoint.
const ROUNDS: u32 = 20;

/// The number of passes over complete segments: few are added during the first pass.
const BULK_ROUNDS: u32 = 3;

/// How often a `store` file is read that is being written, and the pause before each further read.
const STORE_READS: u32 = 50;
const STORE_PAUSE: Duration = Duration::from_millis(2);

#[derive(Clone, Debug)]
pub struct Backup {
    /// The position after the last event in the copy.
    pub position: Position,
    pub files: u64,
    pub bytes: u64,
    /// The number of restarts because a file was removed meanwhile.
    pub retries: u32,
    /// The result of a check of the copy, if it was checked.
    pub report: Option<Report>,
}

/// Whether the finished copy is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Check it with [`check()`].
    Check,
    /// Skip the check.
    Trust,
}

/// Why a backup failed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The store could not be read, or the copy could not be written.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Checkpoints and segments were removed faster than they could be copied.
    #[error(
        "the store changes faster than it can be copied: its checkpoint was replaced {attempts} times meanwhile; \
         try again when it is less busy, or serve it with larger segments (--segment-bytes)"
    )]
    TooFast { attempts: u32 },
}

impl From<Fault> for BackupError {
    fn from(fault: Fault) -> BackupError {
        BackupError::Store(fault.into())
    }
}

/// Copies the store in `from` to `to`, which must be empty. On an error, removes everything that it wrote.
pub fn backup(
    from: &Arc<dyn Disk>,
    to: &Arc<dyn Disk>,
    verify: Verify,
    progress: &mut Progress<'_>,
) -> Result<Backup, BackupError> {
    let mut copying = Copying::new(from, to, Steps::new(progress));
    let outcome = copying.run_marked();
    let (retries, files, bytes) = (copying.retries, copying.files(), copying.bytes);
    let position = match outcome {
        Ok(Some(position)) => position,
        other => {
            // The first error is the one to report, even if this fails too.
            let _ = clear(&**to);
            other?;
            return Err(BackupError::TooFast { attempts: ATTEMPTS });
        }
    };
    let report = match verify {
        Verify::Check => Some(check(to, progress)?),
        Verify::Trust => None,
    };
    Ok(Backup { position, files, bytes, retries, report })
}

/// Removes all files that can be removed, and the mark of an unfinished copy only after all others.
pub(crate) fn clear(to: &dyn Disk) -> Result<(), Fault> {
    let names = to.list()?;
    let is_kept = |name: &str| name == crate::disk::LOCK_NAME || name == unfinished::NAME;
    let removed: Vec<_> = names.iter().filter(|name| !is_kept(name)).map(|name| to.remove(name)).collect();
    removed.into_iter().collect::<Result<(), Fault>>()?;
    if names.iter().any(|name| name == unfinished::NAME) { to.remove(unfinished::NAME) } else { Ok(()) }
}

/// A copy that is being made.
struct Copying<'a, 'p> {
    from: &'a Arc<dyn Disk>,
    to: &'a Arc<dyn Disk>,
    pace: Pace<'p>,
    /// The segments that have been copied, by number.
    segments: BTreeMap<u64, Copied>,
    /// The number of other files that have been copied.
    others: u64,
    bytes: u64,
    retries: u32,
}

/// A checkpoint to copy, and its open files.
struct Chosen {
    /// The number and position; `None` if the store has no checkpoint.
    checkpoint: Option<(u64, Position)>,
    files: Vec<(String, Box<dyn DiskFile>)>,
}

impl<'a, 'p> Copying<'a, 'p> {
    fn new(from: &'a Arc<dyn Disk>, to: &'a Arc<dyn Disk>, steps: Steps<'p>) -> Self {
        let (pace, segments) = (Pace::new(steps), BTreeMap::new());
        Copying { from, to, pace, segments, others: 0, bytes: 0, retries: 0 }
    }

    fn files(&self) -> u64 {
        self.segments.len() as u64 + self.others
    }

    /// Copies everything, under a mark that remains if the process is killed.
    fn run_marked(&mut self) -> Result<Option<Position>, OpenError> {
        unfinished::begin(&**self.to)?;
        let position = self.run()?;
        if position.is_some() {
            unfinished::end(&**self.to)?;
        }
        Ok(position)
    }

    /// Copies everything. Returns the position after the last event, or none if the store changed too fast.
    fn run(&mut self) -> Result<Option<Position>, OpenError> {
        let uuid = self.store_values()?.uuid;
        for _ in 0..BULK_ROUNDS {
            if !self.copy_bulk(uuid)? {
                break;
            }
        }
        let mut damaged = BTreeSet::new();
        for attempt in 0..ATTEMPTS {
            self.retries = attempt;
            let Some(chosen) = self.choose(uuid, &damaged)? else { continue };
            let Some((end, listed)) = self.copy_log(uuid)? else { continue };
            if !self.suffices(&chosen, uuid)? || !self.copy_checkpoint(&chosen, uuid, &mut damaged)? {
                self.drop_tail()?;
                continue;
            }
            self.keep_only(&listed)?;
            let values = self.store_values()?;
            if values.uuid != uuid {
                return Ok(None);
            }
            store::create_with(&**self.to, &values)?;
            self.others += 1;
            return Ok(Some(end));
        }
        Ok(None)
    }

    /// The values of the `store` file. While it is being written, one of its two copies is incomplete, and a read may
    /// find both incomplete.
    fn store_values(&self) -> Result<StoreValues, OpenError> {
        for _ in 0..STORE_READS {
            let (identity, _) = identify(&**self.from, &self.from.list()?)?;
            if let Some(values) = identity.values {
                return Ok(values);
            }
            thread::sleep(STORE_PAUSE);
        }
        let what = "the file is missing, or both of its copies are damaged".to_owned();
        Err(Damage { file: store::NAME.to_owned(), offset: 0, position: None, what }.into())
    }

    /// Copies complete segments. Returns whether there were any.
    fn copy_bulk(&mut self, uuid: [u8; 16]) -> Result<bool, OpenError> {
        let found = find_segments(&**self.from, uuid)?;
        let parts: Vec<&Found> = found.iter().filter(|segment| segment.is_part()).collect();
        let Some((_, sealed)) = parts.split_last() else { return Ok(false) };
        let before = self.segments.len();
        self.copy_new(sealed)?;
        Ok(self.segments.len() > before)
    }

    /// Copies those of these segments that are missing in the copy. Returns whether all still existed.
    fn copy_new(&mut self, sealed: &[&Found]) -> Result<bool, OpenError> {
        let is_new = |segment: &&&Found| !self.segments.contains_key(&segment.number);
        let new: Vec<&Found> = sealed.iter().filter(is_new).copied().collect();
        self.pace.steps.begin("copying segments", new.iter().map(|segment| segment.bytes).sum());
        let mut all_there = true;
        for segment in new {
            match copy_sealed(self.from, &**self.to, segment, &mut self.pace)? {
                Some(copied) => self.add(segment.number, copied),
                None => all_there = false,
            }
        }
        Ok(all_there)
    }

    fn add(&mut self, number: u64, copied: Copied) {
        self.bytes += copied.bytes;
        self.segments.insert(number, copied);
    }

    /// Opens the newest checkpoint, and older ones down to the first that is not known to be damaged. `None` if a
    /// file was removed meanwhile.
    fn choose(&self, uuid: [u8; 16], damaged: &BTreeSet<u64>) -> Result<Option<Chosen>, OpenError> {
        let (checkpoints, _) = Checkpoints::look(Arc::clone(self.from), uuid)?;
        let mut chosen = Chosen { checkpoint: None, files: Vec::new() };
        for number in checkpoints.numbers() {
            let names = checkpoints.files_of(number).unwrap_or_else(|_| vec![checkpoints.name_of(number)]);
            for name in names {
                if chosen.files.iter().any(|(known, _)| *known == name) {
                    continue;
                }
                match self.from.open(&name) {
                    Ok(file) => chosen.files.push((name, file)),
                    Err(fault) if is_absent(&fault) => return Ok(None),
                    Err(fault) => return Err(fault.into()),
                }
            }
            chosen.checkpoint = checkpoints.position_of(number).map(|at| (number, at)).or(chosen.checkpoint);
            if chosen.checkpoint.is_some_and(|(number, _)| !damaged.contains(&number)) {
                break;
            }
        }
        Ok(Some(chosen))
    }

    /// Copies the files of the checkpoint. If it is found to be damaged, notes that, removes the copies and returns
    /// false; the next choice then includes the checkpoint before it.
    fn copy_checkpoint(
        &mut self,
        chosen: &Chosen,
        uuid: [u8; 16],
        damaged: &mut BTreeSet<u64>,
    ) -> Result<bool, OpenError> {
        self.pace.steps.begin("copying checkpoints", 0);
        let mut bytes = 0;
        for (name, file) in &chosen.files {
            bytes += copy_file(&**file, &**self.to, name, &mut self.pace)?;
        }
        let (copies, _) = Checkpoints::look(Arc::clone(self.to), uuid)?;
        if let Some((number, _)) = chosen.checkpoint
            && !copies.is_whole(number)?
            && damaged.insert(number)
        {
            for (name, _) in &chosen.files {
                self.to.remove(name)?;
            }
            return Ok(false);
        }
        self.bytes += bytes;
        self.others += chosen.files.len() as u64;
        Ok(true)
    }

    /// Copies the segments up to the end of the log. Returns the position after its last event, and the numbers of
    /// the listed segments; `None` if they were removed too fast.
    fn copy_log(&mut self, uuid: [u8; 16]) -> Result<Option<(Position, BTreeSet<u64>)>, OpenError> {
        for _ in 0..ROUNDS {
            let found = find_segments(&**self.from, uuid)?;
            if found.iter().any(has_gone) {
                continue;
            }
            let parts: Vec<&Found> = found.iter().filter(|segment| segment.is_part()).collect();
            let listed = parts.iter().map(|segment| segment.number).collect();
            let Some((last, sealed)) = parts.split_last() else {
                return Ok(Some((Position::START, listed)));
            };
            if !self.copy_new(sealed)? {
                continue;
            }
            if let Some(copied) = copy_tail(self.from, &**self.to, last, &mut self.pace)? {
                let end = copied.end;
                self.add(last.number, copied);
                return Ok(Some((end, listed)));
            }
        }
        Ok(None)
    }

    /// Whether the copied log contains everything that the checkpoint needs. Also returns true if it does not
    /// although the checkpoint still exists: then the store itself lacks that part of the log, and a retry would not
    /// help.
    fn suffices(&self, chosen: &Chosen, uuid: [u8; 16]) -> Result<bool, Fault> {
        let needed = chosen.checkpoint.map_or(Position::START, |(_, position)| position);
        if reaches(&self.segments, needed) {
            return Ok(true);
        }
        let (checkpoints, _) = Checkpoints::look(Arc::clone(self.from), uuid)?;
        let numbers = checkpoints.numbers();
        Ok(chosen.checkpoint.map_or(numbers.is_empty(), |(number, _)| numbers.contains(&number)))
    }

    /// Removes the copy of the last segment, which has grown since.
    fn drop_tail(&mut self) -> Result<(), Fault> {
        if let Some((number, _)) = self.segments.pop_last() {
            self.to.remove(&segment_name(number))?;
        }
        Ok(())
    }

    /// Removes the copies of segments that were not in the last listing: they are obsolete.
    fn keep_only(&mut self, listed: &BTreeSet<u64>) -> Result<(), Fault> {
        let gone: Vec<u64> =
            self.segments.keys().copied().filter(|number| !listed.contains(number)).collect();
        for number in gone {
            self.segments.remove(&number);
            self.to.remove(&segment_name(number))?;
        }
        Ok(())
    }
}

/// Whether these segments contain all events from this position on.
fn reaches(segments: &BTreeMap<u64, Copied>, needed: Position) -> bool {
    let all: Vec<(&u64, &Copied)> = segments.iter().collect();
    let Some(begin) = all.iter().rposition(|(_, segment)| segment.first <= needed) else { return false };
    let follows = |pair: &[(&u64, &Copied)]| pair[1].1.first_number == pair[0].0 + 1;
    all[begin..].windows(2).all(follows) && all.last().is_some_and(|(_, last)| last.end >= needed)
}

/// Whether a segment was removed between the listing and the reading of its header.
fn has_gone(segment: &Found) -> bool {
    matches!(&segment.fault, Some(OpenError::Disk(fault)) if segment.kind == Kind::Unreadable && is_absent(fault))
}

pub(crate) fn is_absent(fault: &Fault) -> bool {
    fault.source.kind() == std::io::ErrorKind::NotFound
}
