//! The disk of one life: a [`SimDisk`] whose calls take time and fail, and which ends with a crash.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use sureq_engine::check::check;
use sureq_engine::disk::{Disk, DiskFile};
use sureq_engine::fault::{Fault, Operation};
use sureq_sync::{sim, thread};
use sureq_testkit::sim_disk::{FailureKind, Kept, Repeat, SimDisk};

use crate::plan::{Aim, End, Faults, Plan};

/// The error code of an unreadable sector.
const EIO: i32 = 5;

/// At most one in this many reads fails while a store is opened.
const OPEN_READ_EVERY: u32 = 64;

/// A disk for one life of a store.
#[derive(Clone)]
pub(crate) struct LifeDisk {
    inner: SimDisk,
    life: Arc<Life>,
}

struct Life {
    end: End,
    calls: AtomicU64,
    /// The calls of the kind that the end is aimed at.
    aimed_calls: AtomicU64,
    /// The machine or the process has crashed: threads that still run change nothing any more.
    is_over: AtomicBool,
    /// The disk after a power cut.
    left: Mutex<Option<SimDisk>>,
    rng: Mutex<Rng>,
    sync_max: Duration,
    slow_sync_max: Duration,
    faults: Faults,
    /// The number of failed reads, and whether a write or a sync has failed.
    failed_reads: AtomicU64,
    is_broken: AtomicBool,
    /// Where the last frame of the log that was written ends in its segment.
    log_end: AtomicU64,
    /// From now on no call fails or takes time.
    is_calm: AtomicBool,
    /// The disk has a store that was opened before.
    is_made: AtomicBool,
    /// The store is open.
    is_open: AtomicBool,
    findings: Mutex<Vec<String>>,
}

impl LifeDisk {
    pub(crate) fn new(inner: SimDisk, end: End, plan: &Plan, faults: Faults, rng: Rng) -> Self {
        inner.leave_room((faults.full_ms > 0).then_some(faults.room_bytes));
        let life = Life {
            end,
            calls: AtomicU64::new(0),
            aimed_calls: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            left: Mutex::new(None),
            rng: Mutex::new(rng),
            sync_max: Duration::from_micros(plan.sync_max_us),
            slow_sync_max: Duration::from_millis(plan.slow_sync_max_ms),
            faults,
            failed_reads: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
            log_end: AtomicU64::new(0),
            is_calm: AtomicBool::new(false),
            is_made: AtomicBool::new(false),
            is_open: AtomicBool::new(false),
            findings: Mutex::default(),
        };
        Self { inner, life: Arc::new(life) }
    }

    /// Notes that the disk has a store.
    pub(crate) fn note_made(&self) {
        self.life.is_made.store(true, Ordering::Relaxed);
    }

    /// Notes that the store is open.
    pub(crate) fn note_open(&self) {
        self.note_made();
        self.life.is_open.store(true, Ordering::Relaxed);
    }

    /// The number of failed reads, and whether a write or a sync has failed.
    pub(crate) fn failed(&self) -> (u64, bool) {
        (self.life.failed_reads.load(Ordering::Relaxed), self.life.is_broken.load(Ordering::Relaxed))
    }

    /// Leaves space for this many more bytes; `None` for no limit.
    pub(crate) fn leave_room(&self, bytes: Option<u64>) {
        self.inner.leave_room(bytes);
    }

    /// Removes the limit of space.
    pub(crate) fn relieve(&self) {
        self.leave_room(None);
    }

    /// From now on no call fails or takes time, except for the end of this life.
    pub(crate) fn calm_down(&self) {
        self.relieve();
        self.life.is_calm.store(true, Ordering::Relaxed);
    }

    /// Where the last frame of the log ends in its segment.
    pub(crate) fn log_end(&self) -> u64 {
        self.life.log_end.load(Ordering::Relaxed)
    }

    /// Notes a write to a file of the log, unless it only makes room.
    fn note_write(&self, path: &Path, offset: u64, bytes: &[u8]) {
        let name = path.to_string_lossy();
        let is_log = !name.contains("checkpoint") && !name.contains("store");
        if is_log && bytes.iter().any(|&byte| byte != 0) {
            self.life.log_end.store(offset + bytes.len() as u64, Ordering::Relaxed);
        }
    }

    /// The size of each file in bytes.
    pub(crate) fn files(&self) -> BTreeMap<String, usize> {
        self.inner.files().into_iter().map(|(name, bytes)| (name, bytes.len())).collect()
    }

    /// Whether the process was killed or the power cut.
    pub(crate) fn is_over(&self) -> bool {
        self.life.is_over.load(Ordering::Relaxed)
    }

    /// The disk of the next life.
    pub(crate) fn left(self) -> SimDisk {
        let left = self.life.left.lock().unwrap_or_else(PoisonError::into_inner).take();
        left.unwrap_or(self.inner)
    }

    /// Counts a call, and fails it if the process has crashed or a fault is due.
    fn call(&self, operation: Operation) -> io::Result<()> {
        sim::interrupt();
        sim::may_panic();
        sim::note(operation as u64);
        if matches!(operation, Operation::Sync | Operation::SyncDirectory) {
            thread::sleep(self.life.sync_time());
        }
        if self.is_over() {
            return Err(gone());
        }
        let calls = self.life.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.life.ends_at(operation, calls) {
            return self.life.fails(operation, calls, &self.inner);
        }
        if self.life.end.is_power_cut() {
            self.cut_power();
        }
        self.life.is_over.store(true, Ordering::Relaxed);
        Err(gone())
    }

    fn cut_power(&self) {
        let kept = || {
            let mut rng = self.life.rng();
            match rng.u32(..5) {
                0 => Kept::Nothing,
                1 => Kept::Everything,
                2 => Kept::Removals,
                _ => Kept::Some { seed: rng.u64(..), sector_bytes: [512, 4096][rng.usize(..2)] },
            }
        };
        let left = self.inner.crash(kept(), kept());
        *self.life.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(left);
    }

    /// Checks the worst that a power cut could leave now: removed files, and no other unsynced change. The replacement
    /// of those files must be durable.
    fn check_removals(&self) {
        let is_made = self.life.is_made.load(Ordering::Relaxed);
        let is_checked = is_made && self.inner.unsynced_removals() > 0 && self.life.rng().bool();
        if !is_checked || self.is_over() || self.failed() != (0, false) {
            return;
        }
        let left = self.inner.crash(Kept::Nothing, Kept::Removals).shared();
        let refusal = match check(&left, &mut |_, _, _| ()) {
            Ok(report) => report.refusal,
            Err(error) => Some(error.to_string()),
        };
        if let Some(refusal) = refusal {
            let finding = format!("files were removed too early; after a power cut, {refusal}");
            self.life.findings.lock().unwrap_or_else(PoisonError::into_inner).push(finding);
        }
    }

    /// The violations by the store so far.
    pub(crate) fn findings(&self) -> Vec<String> {
        std::mem::take(&mut *self.life.findings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn faulty<T>(operation: Operation, path: impl AsRef<Path>, called: io::Result<T>) -> Result<T, Fault> {
        called.map_err(|error| Fault::new(operation, path.as_ref(), error))
    }

    fn file(&self, inner: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(LifeFile { inner, disk: self.clone() })
    }
}

impl Life {
    fn rng(&self) -> std::sync::MutexGuard<'_, Rng> {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the process is killed or the power cut at this call, which is the nth of all.
    fn ends_at(&self, operation: Operation, calls: u64) -> bool {
        match self.end {
            End::Closed | End::Panicked(..) => false,
            End::Killed(at) | End::PowerCut(at) => calls == at,
            End::KilledAt(aim, at) | End::PowerCutAt(aim, at) => {
                aim.is_of(operation) && self.aimed_calls.fetch_add(1, Ordering::Relaxed) + 1 == at
            }
        }
    }

    fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }

    /// Fails a read, or makes the next write or sync fail, as the plan has it.
    fn fails(&self, operation: Operation, calls: u64, inner: &SimDisk) -> io::Result<()> {
        let Faults { read_every, broken_at, .. } = self.faults;
        if self.is_calm() {
            return Ok(());
        }
        // Opening reads much, and would never succeed otherwise.
        let is_open = self.is_open.load(Ordering::Relaxed);
        let read_every =
            if is_open || read_every == 0 { read_every } else { read_every.max(OPEN_READ_EVERY) };
        if operation == Operation::Read && read_every > 0 && self.rng().u32(..read_every) == 0 {
            self.failed_reads.fetch_add(1, Ordering::Relaxed);
            return Err(io::Error::from_raw_os_error(EIO));
        }
        // After a failed sync the data can still be read, which is worse than a failed write.
        let changes =
            operation == Operation::Sync || operation == Operation::Write && broken_at.is_multiple_of(4);
        if changes && broken_at > 0 && calls >= broken_at && !self.is_broken.swap(true, Ordering::Relaxed) {
            inner.fail(inner.calls() + 1, FailureKind::Broken, Repeat::Once);
        }
        Ok(())
    }

    fn sync_time(&self) -> Duration {
        let mut rng = self.rng();
        let max = match rng.u32(..1_000) {
            _ if self.is_calm() => Duration::ZERO,
            0 => Duration::from_millis(self.faults.hang_max_ms).max(self.slow_sync_max),
            1..10 => self.slow_sync_max,
            _ => self.sync_max,
        };
        Duration::from_nanos(rng.u64(..=max.as_nanos() as u64))
    }
}

impl Aim {
    fn is_of(self, operation: Operation) -> bool {
        operation
            == match self {
                Self::Write => Operation::Write,
                Self::Sync => Operation::Sync,
                Self::Rename => Operation::Rename,
                Self::Remove => Operation::Remove,
                Self::SyncDirectory => Operation::SyncDirectory,
            }
    }
}

fn gone() -> io::Error {
    io::Error::other("the simulated process is gone")
}

impl Disk for LifeDisk {
    fn list(&self) -> Result<Vec<String>, Fault> {
        Self::faulty(Operation::List, ".", self.call(Operation::List))?;
        self.inner.list()
    }

    fn create(&self, name: &str) -> Result<Box<dyn DiskFile>, Fault> {
        Self::faulty(Operation::Create, name, self.call(Operation::Create))?;
        Ok(self.file(self.inner.create(name)?))
    }

    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>, Fault> {
        Self::faulty(Operation::Open, name, self.call(Operation::Open))?;
        Ok(self.file(self.inner.open(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Fault> {
        Self::faulty(Operation::Rename, from, self.call(Operation::Rename))?;
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), Fault> {
        Self::faulty(Operation::Remove, name, self.call(Operation::Remove))?;
        self.inner.remove(name)
    }

    fn sync_dir(&self) -> Result<(), Fault> {
        self.check_removals();
        Self::faulty(Operation::SyncDirectory, ".", self.call(Operation::SyncDirectory))?;
        self.inner.sync_dir()
    }

    fn capacity(&self) -> Result<u64, Fault> {
        self.inner.capacity()
    }

    fn free(&self) -> Result<u64, Fault> {
        self.inner.free()
    }

    fn entropy(&self) -> Result<[u8; 16], Fault> {
        self.inner.entropy()
    }
}

struct LifeFile {
    inner: Box<dyn DiskFile>,
    disk: LifeDisk,
}

impl DiskFile for LifeFile {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn write_some_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let was_over = self.disk.is_over();
        if let Err(error) = self.disk.call(Operation::Write) {
            // A part of the write that the kill has interrupted may be on disk.
            if !was_over && self.disk.life.end.is_kill() {
                let part = self.disk.life.rng().usize(..=bytes.len());
                self.inner.write_some_at(offset, &bytes[..part])?;
            }
            return Err(error);
        }
        self.disk.note_write(self.path(), offset, bytes);
        self.inner.write_some_at(offset, bytes)
    }

    fn read_some_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.disk.call(Operation::Read)?;
        self.inner.read_some_at(offset, into)
    }

    fn sync_data(&self) -> Result<(), Fault> {
        LifeDisk::faulty(Operation::Sync, self.path(), self.disk.call(Operation::Sync))?;
        self.inner.sync_data()
    }

    fn len(&self) -> Result<u64, Fault> {
        LifeDisk::faulty(Operation::Measure, self.path(), self.disk.call(Operation::Measure))?;
        self.inner.len()
    }
}
