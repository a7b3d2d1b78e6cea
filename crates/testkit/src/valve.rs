//! A simulated disk whose syncs can be blocked or made to fail, one by one.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use sureq_engine::disk::{Disk, DiskFile};
use sureq_engine::fault::{Fault, Operation};

use crate::patience::PATIENCE;
use crate::sim_disk::{FailureKind, Repeat, SimDisk};

/// A simulated disk with a valve. Clones share the disk.
#[derive(Clone)]
pub struct Valve {
    pub disk: SimDisk,
    control: Arc<Control>,
}

#[derive(Default)]
struct Control {
    state: Mutex<ValveState>,
    moved: Condvar,
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a valve of its own")]
struct ValveState {
    is_closed: bool,
    syncs: usize,
    held: usize,
    fail_at: Option<usize>,
    fails_log: bool,
    failed: Option<String>,
    is_full: bool,
    holds_reads: bool,
    reads_held: usize,
    bytes_loaded: usize,
    holds_compactor: bool,
    compactor_held: bool,
    fails_directory: bool,
    directory_failed: bool,
    directory_syncs_after_failure: usize,
    hangs: bool,
    hangs_creating: bool,
    hung: Vec<String>,
    panics_in: Option<String>,
}

impl Default for Valve {
    fn default() -> Self {
        Self { disk: SimDisk::new(7), control: Arc::default() }
    }
}

impl Valve {
    /// An empty disk with an open valve.
    pub fn new() -> Self {
        Self::default()
    }

    /// The disk, for the engine.
    pub fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Blocks every sync of the log from now on. Syncs of the preallocator are not affected.
    pub fn close(&self) {
        self.control.lock().is_closed = true;
    }

    /// Releases the blocked syncs.
    pub fn open(&self) {
        self.control.lock().is_closed = false;
        self.control.moved.notify_all();
    }

    /// Waits until a sync of the log is blocked.
    pub fn wait_until_held(&self) {
        let state = self.control.lock();
        drop(self.control.moved.wait_while(state, |state| state.held == 0));
    }

    /// Blocks every read of a payload from now on.
    pub fn hold_reads(&self) {
        self.control.lock().holds_reads = true;
    }

    /// Releases the blocked reads.
    pub fn release_reads(&self) {
        self.control.lock().holds_reads = false;
        self.control.moved.notify_all();
    }

    /// Waits until a read of a payload is blocked.
    pub fn wait_until_read_is_held(&self) {
        let state = self.control.lock();
        drop(self.control.moved.wait_while(state, |state| state.reads_held == 0));
    }

    /// The number of bytes read for payloads so far.
    pub fn bytes_loaded(&self) -> usize {
        self.control.lock().bytes_loaded
    }

    /// Makes the next read or sync by a thread of this name panic.
    pub fn panic_in(&self, thread: &str) {
        self.control.lock().panics_in = Some(thread.to_owned());
    }

    /// Makes all syncs hang from now on.
    pub fn hang(&self) {
        self.control.lock().hangs = true;
    }

    /// Makes the creation of files hang from now on.
    pub fn hang_creating(&self) {
        self.control.lock().hangs_creating = true;
    }

    /// Ends the hang.
    pub fn unhang(&self) {
        let mut state = self.control.lock();
        (state.hangs, state.hangs_creating) = (false, false);
        drop(state);
        self.control.moved.notify_all();
    }

    /// Waits until a sync or the creation of a file hangs whose name begins with `name`.
    pub fn wait_until_hung(&self, name: &str) {
        let state = self.control.lock();
        let is_free = |state: &mut ValveState| !state.hung.iter().any(|hung| hung.starts_with(name));
        let (_state, waited) = self
            .control
            .moved
            .wait_timeout_while(state, PATIENCE, is_free)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!waited.timed_out(), "no file that begins with {name:?} hangs");
    }

    /// Blocks the compactor where it syncs the directory.
    pub fn hold_compactor(&self) {
        self.control.lock().holds_compactor = true;
    }

    /// Releases the compactor.
    pub fn release_compactor(&self) {
        self.control.lock().holds_compactor = false;
        self.control.moved.notify_all();
    }

    /// Whether the compactor is blocked.
    pub fn is_compactor_held(&self) -> bool {
        self.control.lock().compactor_held
    }

    /// Makes the blocked sync of the log fail, or else the next one.
    pub fn fail_log(&self) {
        self.control.lock().fails_log = true;
    }

    /// Makes the sync with this number fail, counted from one.
    pub fn fail_at(&self, sync: usize) {
        self.control.lock().fail_at = Some(sync);
    }

    /// Makes the preallocator's sync of the directory fail, as on a full disk.
    pub fn fail_directory(&self) {
        self.control.lock().fails_directory = true;
    }

    /// How often the directory was synced again after that.
    pub fn directory_syncs_after_failure(&self) -> usize {
        self.control.lock().directory_syncs_after_failure
    }

    /// Leaves no space for another file; writes within existing files still have space.
    pub fn fill(&self) {
        self.control.lock().is_full = true;
    }

    /// Makes space again.
    pub fn make_room(&self) {
        self.control.lock().is_full = false;
    }

    /// The name of the file whose sync failed.
    pub fn failed(&self) -> Option<String> {
        self.control.lock().failed.clone()
    }

    fn file(&self, name: &str, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(ValveFile { name: name.to_owned(), file, valve: self.clone() })
    }
}

impl Control {
    fn panic_if_asked(&self) {
        let mut state = self.lock();
        if state.panics_in.as_deref() == thread::current().name() && state.panics_in.is_some() {
            let name = state.panics_in.take();
            drop(state);
            panic!("a test made {name:?} panic");
        }
    }

    fn lock(&self) -> MutexGuard<'_, ValveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls are executed one at a time, so that exactly the selected one fails.
impl Disk for Valve {
    fn list(&self) -> Result<Vec<String>, Fault> {
        let _one = self.control.lock();
        self.disk.list()
    }

    fn create(&self, name: &str) -> Result<Box<dyn DiskFile>, Fault> {
        let mut one = self.control.lock();
        if one.hangs_creating {
            one.hung.push(name.to_owned());
            let moved = &self.control.moved;
            moved.notify_all();
            one = moved.wait_while(one, |state| state.hangs_creating).unwrap_or_else(PoisonError::into_inner);
            one.hung.retain(|hung| hung != name);
        }
        if one.is_full {
            return Err(Fault::new(Operation::Create, name, io::ErrorKind::StorageFull.into()));
        }
        Ok(self.file(name, self.disk.create(name)?))
    }

    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>, Fault> {
        let _one = self.control.lock();
        Ok(self.file(name, Disk::open(&self.disk, name)?))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Fault> {
        let _one = self.control.lock();
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), Fault> {
        let _one = self.control.lock();
        self.disk.remove(name)
    }

    fn sync_dir(&self) -> Result<(), Fault> {
        self.control.panic_if_asked();
        let mut one = self.control.lock();
        if std::thread::current().name() == Some("sureq-compactor") {
            one.compactor_held = true;
            let moved = &self.control.moved;
            one =
                moved.wait_while(one, |state| state.holds_compactor).unwrap_or_else(PoisonError::into_inner);
            one.compactor_held = false;
        }
        one.directory_syncs_after_failure += usize::from(one.directory_failed);
        let is_preallocator = std::thread::current().name() == Some("sureq-prealloc");
        if is_preallocator && std::mem::take(&mut one.fails_directory) {
            one.directory_failed = true;
            return Err(Fault::new(Operation::SyncDirectory, ".", io::ErrorKind::StorageFull.into()));
        }
        let synced = self.disk.sync_dir();
        drop(one);
        synced
    }

    fn capacity(&self) -> Result<u64, Fault> {
        self.disk.capacity()
    }

    fn free(&self) -> Result<u64, Fault> {
        self.disk.free()
    }

    fn entropy(&self) -> Result<[u8; 16], Fault> {
        let _one = self.control.lock();
        self.disk.entropy()
    }
}

struct ValveFile {
    name: String,
    file: Box<dyn DiskFile>,
    valve: Valve,
}

impl DiskFile for ValveFile {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn write_some_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let _one = self.valve.control.lock();
        self.file.write_some_at(offset, bytes)
    }

    fn read_some_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let control = &self.valve.control;
        control.panic_if_asked();
        let is_loader = std::thread::current().name() == Some("sureq-loader");
        let mut state = control.lock();
        if state.holds_reads && is_loader {
            state.reads_held += 1;
            control.moved.notify_all();
            state = control
                .moved
                .wait_while(state, |state| state.holds_reads)
                .unwrap_or_else(PoisonError::into_inner);
            state.reads_held -= 1;
        }
        let read = self.file.read_some_at(offset, into);
        if is_loader {
            state.bytes_loaded += *read.as_ref().unwrap_or(&0);
        }
        drop(state);
        read
    }

    fn sync_data(&self) -> Result<(), Fault> {
        let control = &self.valve.control;
        control.panic_if_asked();
        let is_log = std::thread::current().name() == Some("sureq-log");
        let mut state = control.lock();
        if is_log && state.is_closed {
            state.held += 1;
            control.moved.notify_all();
            state = control
                .moved
                .wait_while(state, |state| state.is_closed)
                .unwrap_or_else(PoisonError::into_inner);
            state.held -= 1;
        }
        if state.hangs {
            state.hung.push(self.name.clone());
            control.moved.notify_all();
            state =
                control.moved.wait_while(state, |state| state.hangs).unwrap_or_else(PoisonError::into_inner);
            state.hung.retain(|hung| *hung != self.name);
        }
        state.syncs += 1;
        if state.fail_at == Some(state.syncs) || (is_log && std::mem::take(&mut state.fails_log)) {
            state.failed = Some(self.name.clone());
            self.valve.disk.fail(self.valve.disk.calls() + 1, FailureKind::Broken, Repeat::Once);
        }
        self.file.sync_data()
    }

    fn len(&self) -> Result<u64, Fault> {
        let _one = self.valve.control.lock();
        self.file.len()
    }
}
