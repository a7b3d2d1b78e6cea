//! The simulated twin of the disk: a live image, which the code under test sees, and a durable image, which remains
//! after a power cut.
//!
//! Every change is recorded as an [`Op`]; a run can be replayed op by op on another [`SimDisk`] and crashed during
//! each of them. Calls can be made to fail. Nothing here is random: a seed decides which data a crash keeps, so that
//! a failure can be reproduced.
//!
//! A failed sync behaves as on Linux: the unwritten pages count as clean from then on, so that they stay readable,
//! are not durable, and a second sync reports success without writing them.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sureq_engine::disk::{Disk, DiskFile};
use sureq_engine::fault::{Fault, Operation};

mod crash;

pub use crash::{Crash, Kept, Torn};
use crash::{mix, sectors};

/// The error for an unreadable sector.
const EIO: i32 = 5;

/// A change to the disk. Files are numbered in the order of their creation, since they outlive their names.
#[derive(Clone, Debug)]
pub enum Op {
    Create { name: String },
    Write { file: usize, offset: u64, bytes: Vec<u8> },
    Sync { file: usize },
    Rename { from: String, to: String },
    Remove { name: String },
    SyncDir,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// `EIO`; half of a write has been done.
    Broken,
    /// `ENOSPC`, from calls that need space; half of a write has been done.
    Full,
    /// A read or write processes half of its bytes and reports that.
    Short,
    /// `EINTR`, from a read or write.
    Interrupted,
}

/// Which calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The selected one.
    Once,
    /// The selected one and all after it.
    Sticky,
}

/// A disk in memory. Clones share it.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<DiskState>>,
}

#[derive(Default)]
struct DiskState {
    files: Vec<File>,
    live: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    unsynced_names: Vec<NameChange>,
    trace: Vec<Op>,
    calls: u64,
    failure: Option<(u64, FailureKind, Repeat)>,
    failed: u64,
    entropy: u64,
    /// The size of the disk, if it is limited.
    capacity: Option<u64>,
    /// Unreadable parts of files.
    bad: Vec<(usize, Range<u64>)>,
    bad_reads: u64,
}

#[derive(Default)]
struct File {
    live: Arc<Vec<u8>>,
    durable: Arc<Vec<u8>>,
    unsynced: Vec<(u64, Vec<u8>)>,
    sync_failed: bool,
    syncs: usize,
    syncs_after_failure: usize,
}

struct NameChange {
    removed: Option<String>,
    added: Option<(String, usize)>,
}

impl SimDisk {
    /// An empty disk. The seed decides only its entropy.
    pub fn new(seed: u64) -> SimDisk {
        SimDisk { state: Arc::new(Mutex::new(DiskState { entropy: mix(seed), ..DiskState::default() })) }
    }

    /// A disk with these files, all durable.
    pub fn with_files(seed: u64, files: &BTreeMap<String, Arc<Vec<u8>>>) -> SimDisk {
        let disk = SimDisk::new(seed);
        for (name, bytes) in files {
            disk.put(name, Arc::clone(bytes));
        }
        disk
    }

    /// The same disk, for the engine.
    pub fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Adds a file, durably and unrecorded, as if it had always existed.
    pub fn put(&self, name: &str, bytes: Arc<Vec<u8>>) {
        let mut state = self.state();
        let file = state.files.len();
        state.files.push(File { live: Arc::clone(&bytes), durable: bytes, ..File::default() });
        state.live.insert(name.to_owned(), file);
        state.durable.insert(name.to_owned(), file);
    }

    /// Removes a file, durably and unrecorded, as if it had never existed.
    pub fn take(&self, name: &str) {
        let mut state = self.state();
        state.live.remove(name);
        state.durable.remove(name);
    }

    /// Changes the content of a file, unnoticed by code that has it open.
    pub fn edit(&self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let number = state.live[name];
        let file = &mut state.files[number];
        edit(Arc::make_mut(&mut file.live));
        file.durable = Arc::clone(&file.live);
    }

    /// Limits the space to the current use plus `bytes`; `None` removes the limit.
    pub fn leave_room(&self, bytes: Option<u64>) {
        let mut state = self.state();
        state.capacity = bytes.map(|bytes| state.used() + bytes);
    }

    /// The files as the code under test sees them.
    pub fn files(&self) -> BTreeMap<String, Arc<Vec<u8>>> {
        let state = self.state();
        state.live.iter().map(|(name, &file)| (name.clone(), Arc::clone(&state.files[file].live))).collect()
    }

    /// The changes made so far.
    pub fn trace(&self) -> Vec<Op> {
        self.state().trace.clone()
    }

    /// The number of changes so far.
    pub fn trace_len(&self) -> usize {
        self.state().trace.len()
    }

    /// Applies a recorded change.
    pub fn replay(&self, op: &Op) {
        self.state().apply(op);
    }

    /// The disk after a power cut during `op`.
    #[must_use]
    pub fn crash_during(&self, op: &Op, crash: Crash) -> SimDisk {
        self.state().survivors(Some(op), crash)
    }

    /// The disk after a power cut between two calls.
    #[must_use]
    pub fn crash(&self, content: Kept, names: Kept) -> SimDisk {
        self.state().survivors(None, Crash { torn: Torn::First(0), content, names })
    }

    /// Makes the call with this number fail, counted from the creation of the disk.
    pub fn fail(&self, call: u64, kind: FailureKind, repeat: Repeat) {
        self.state().failure = Some((call, kind, repeat));
    }

    /// Ends all failures. Data that an earlier failed sync dropped stays lost.
    pub fn heal(&self) {
        let mut state = self.state();
        state.failure = None;
        for file in &mut state.files {
            file.sync_failed = false;
        }
    }

    /// Makes every read fail that reaches this part of a file, even if the file is renamed later. The bytes before
    /// the part are read, as on a real disk.
    pub fn break_reads(&self, name: &str, part: Range<u64>) {
        let mut state = self.state();
        let file = state.live[name];
        state.bad.push((file, part));
    }

    /// Ends the effect of [`SimDisk::break_reads`].
    pub fn mend_reads(&self) {
        self.state().bad.clear();
    }

    /// The number of reads that reached an unreadable part.
    pub fn bad_reads(&self) -> u64 {
        self.state().bad_reads
    }

    /// The number of calls so far, including reads.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The number of failed calls so far.
    pub fn failed(&self) -> u64 {
        self.state().failed
    }

    /// The number of removed files whose removal is not durable yet.
    pub fn unsynced_removals(&self) -> usize {
        self.state().unsynced_names.iter().filter(|change| change.added.is_none()).count()
    }

    /// The number of syncs of files.
    pub fn syncs(&self) -> usize {
        self.state().files.iter().map(|file| file.syncs).sum()
    }

    /// How often a file was synced again after its sync had failed.
    pub fn syncs_after_failure(&self) -> usize {
        self.state().files.iter().map(|file| file.syncs_after_failure).sum()
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, name: &str, file: usize) -> Box<dyn DiskFile> {
        Box::new(SimFile { disk: self.clone(), path: PathBuf::from(name), file })
    }
}

impl Disk for SimDisk {
    fn list(&self) -> Result<Vec<String>, Fault> {
        let mut state = self.state();
        state.call(Operation::List).map_err(|error| Fault::new(Operation::List, ".", error))?;
        Ok(state.live.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> Result<Box<dyn DiskFile>, Fault> {
        let mut state = self.state();
        let outcome = state.call(Operation::Create).and_then(|_| match state.live.get(name) {
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
            None => Ok(()),
        });
        outcome.map_err(|error| Fault::new(Operation::Create, name, error))?;
        state.record(Op::Create { name: name.to_owned() });
        let file = state.live[name];
        Ok(self.file(name, file))
    }

    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>, Fault> {
        let mut state = self.state();
        let outcome = state.call(Operation::Open).and_then(|_| state.find(name));
        let file = outcome.map_err(|error| Fault::new(Operation::Open, name, error))?;
        Ok(self.file(name, file))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Fault> {
        let mut state = self.state();
        let outcome = state.call(Operation::Rename).and_then(|_| state.find(from));
        outcome.map_err(|error| Fault::new(Operation::Rename, from, error))?;
        assert!(!state.live.contains_key(to), "a rename to {to} would destroy it");
        state.record(Op::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), Fault> {
        let mut state = self.state();
        let outcome = state.call(Operation::Remove).and_then(|_| state.find(name));
        outcome.map_err(|error| Fault::new(Operation::Remove, name, error))?;
        state.record(Op::Remove { name: name.to_owned() });
        Ok(())
    }

    fn sync_dir(&self) -> Result<(), Fault> {
        let mut state = self.state();
        let outcome = state.call(Operation::SyncDirectory);
        outcome.map_err(|error| Fault::new(Operation::SyncDirectory, ".", error))?;
        state.record(Op::SyncDir);
        Ok(())
    }

    fn capacity(&self) -> Result<u64, Fault> {
        Ok(u64::MAX)
    }

    fn free(&self) -> Result<u64, Fault> {
        Ok(self.state().free())
    }

    fn entropy(&self) -> Result<[u8; 16], Fault> {
        let mut state = self.state();
        let outcome = state.call(Operation::DrawEntropy);
        outcome.map_err(|error| Fault::new(Operation::DrawEntropy, ".", error))?;
        state.entropy = mix(state.entropy);
        let half = u128::from(state.entropy);
        Ok(((half << 64) | half).to_le_bytes())
    }
}

struct SimFile {
    disk: SimDisk,
    path: PathBuf,
    file: usize,
}

impl DiskFile for SimFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn write_some_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.disk.state();
        let outcome = state.call(Operation::Write).and_then(|extent| {
            let grows =
                (offset + bytes.len() as u64).saturating_sub(state.files[self.file].live.len() as u64);
            if grows > state.free() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(extent) }
        });
        let done = match outcome {
            Ok(Extent::Whole) => bytes.len(),
            Ok(Extent::Half) => bytes.len().div_ceil(2),
            Err(ref error) if error.kind() == io::ErrorKind::Interrupted || state.capacity.is_some() => 0,
            Err(_) => bytes.len() / 2,
        };
        if done > 0 {
            state.record(Op::Write { file: self.file, offset, bytes: bytes[..done].to_vec() });
        }
        outcome.map(|_| done)
    }

    fn read_some_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.disk.state();
        let extent = state.call(Operation::Read)?;
        let live = &state.files[self.file].live;
        let rest = live.get(offset as usize..).unwrap_or_default();
        let mut bytes = rest.len().min(into.len());
        if extent == Extent::Half {
            bytes = bytes.div_ceil(2);
        }
        into[..bytes].copy_from_slice(&rest[..bytes]);
        state.readable(self.file, offset, bytes)
    }

    fn sync_data(&self) -> Result<(), Fault> {
        let mut state = self.disk.state();
        let outcome = state.call(Operation::Sync);
        let file = &mut state.files[self.file];
        file.syncs += 1;
        file.syncs_after_failure += usize::from(file.sync_failed);
        if let Err(error) = outcome {
            file.sync_failed = true;
            file.unsynced.clear();
            return Err(Fault::new(Operation::Sync, &self.path, error));
        }
        state.record(Op::Sync { file: self.file });
        Ok(())
    }

    fn len(&self) -> Result<u64, Fault> {
        let mut state = self.disk.state();
        let outcome = state.call(Operation::Measure);
        outcome.map_err(|error| Fault::new(Operation::Measure, &self.path, error))?;
        Ok(state.files[self.file].live.len() as u64)
    }
}

/// How much of a read or write is executed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Whole,
    Half,
}

impl DiskState {
    /// The space used by all files that have a name.
    fn used(&self) -> u64 {
        self.live.values().map(|&file| self.files[file].live.len() as u64).sum()
    }

    fn free(&self) -> u64 {
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.used()))
    }

    /// Counts a call and decides its result.
    fn call(&mut self, operation: Operation) -> io::Result<Extent> {
        self.calls += 1;
        let Some((call, kind, repeat)) = self.failure else { return Ok(Extent::Whole) };
        let is_hit = self.calls == call || (repeat == Repeat::Sticky && self.calls > call);
        let transfers = matches!(operation, Operation::Read | Operation::Write);
        let takes_space = matches!(operation, Operation::Create | Operation::Write | Operation::Rename);
        let outcome = match kind {
            _ if !is_hit => return Ok(Extent::Whole),
            FailureKind::Broken => Err(io::Error::other("simulated I/O error")),
            FailureKind::Full if takes_space => Err(io::ErrorKind::StorageFull.into()),
            FailureKind::Short if transfers => Ok(Extent::Half),
            FailureKind::Interrupted if transfers => Err(io::ErrorKind::Interrupted.into()),
            FailureKind::Full | FailureKind::Short | FailureKind::Interrupted => return Ok(Extent::Whole),
        };
        self.failed += 1;
        outcome
    }

    /// The number of bytes that can be read before an unreadable part.
    fn readable(&mut self, file: usize, offset: u64, bytes: usize) -> io::Result<usize> {
        let read = offset..offset + bytes as u64;
        let hit = self.bad.iter().filter(|(bad, part)| {
            *bad == file && part.start < read.end && read.start < part.end && !read.is_empty()
        });
        match hit.map(|(_, part)| part.start.saturating_sub(offset)).min() {
            None => Ok(bytes),
            Some(0) => {
                self.bad_reads += 1;
                Err(io::Error::from_raw_os_error(EIO))
            }
            Some(before) => Ok(before as usize),
        }
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.live.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn record(&mut self, op: Op) {
        self.apply(&op);
        self.trace.push(op);
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Create { name } => {
                self.files.push(File::default());
                self.change_names(None, Some((name.clone(), self.files.len() - 1)));
            }
            Op::Write { file, offset, bytes } => {
                let file = &mut self.files[*file];
                overwrite(Arc::make_mut(&mut file.live), *offset, bytes);
                file.unsynced.push((*offset, bytes.clone()));
            }
            Op::Sync { file } => {
                let file = &mut self.files[*file];
                for (offset, bytes) in file.unsynced.drain(..) {
                    overwrite(Arc::make_mut(&mut file.durable), offset, &bytes);
                }
            }
            Op::Rename { from, to } => {
                self.change_names(Some(from.clone()), Some((to.clone(), self.live[from])));
            }
            Op::Remove { name } => self.change_names(Some(name.clone()), None),
            Op::SyncDir => {
                for change in self.unsynced_names.drain(..) {
                    change.apply(&mut self.durable);
                }
            }
        }
    }

    fn change_names(&mut self, removed: Option<String>, added: Option<(String, usize)>) {
        let change = NameChange { removed, added };
        change.apply(&mut self.live);
        self.unsynced_names.push(change);
    }

    /// The disk after a power cut: the synced data, and the part of the rest that the crash keeps.
    fn survivors(&self, in_flight: Option<&Op>, crash: Crash) -> SimDisk {
        let mut names = self.durable.clone();
        for (number, change) in self.unsynced_names.iter().enumerate() {
            let is_kept = match crash.names {
                Kept::Removals => change.added.is_none(),
                names => names.keeps(number as u64, 1, 0),
            };
            if is_kept {
                change.apply(&mut names);
            }
        }
        let survivor = SimDisk::new(mix(self.entropy));
        for (name, &number) in &names {
            let torn = match in_flight {
                Some(Op::Write { file, offset, bytes }) if *file == number => {
                    Some((*offset, &bytes[..crash.torn.bytes_of(bytes.len())]))
                }
                _ => None,
            };
            survivor.put(name, self.files[number].survivor(number as u64, torn, crash.content));
        }
        survivor
    }
}

impl File {
    fn survivor(&self, number: u64, torn: Option<(u64, &[u8])>, kept: Kept) -> Arc<Vec<u8>> {
        let mut image = Arc::clone(&self.durable);
        let sector_bytes = kept.sector_bytes();
        let unsynced = self.unsynced.iter().map(|(offset, bytes)| (*offset, bytes.as_slice())).chain(torn);
        let writes = self.unsynced.len() as u64 + 1;
        for (index, (offset, bytes)) in unsynced.enumerate() {
            for (at, piece) in sectors(offset, bytes, sector_bytes) {
                let sector = (number << 32) | (at / sector_bytes);
                if kept.keeps(sector, writes, index as u64) {
                    overwrite(Arc::make_mut(&mut image), at, piece);
                }
            }
        }
        image
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        if let Some(name) = &self.removed {
            names.remove(name);
        }
        if let Some((name, file)) = &self.added {
            names.insert(name.clone(), *file);
        }
    }
}

fn overwrite(image: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let begin = offset as usize;
    let end = begin + bytes.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[begin..end].copy_from_slice(bytes);
}
