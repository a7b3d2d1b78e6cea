//! The thread that prepares spare segments ahead of need, and keeps the durable id mark and log time in the `store`
//! file ahead of use.

use std::mem::{Discriminant, discriminant};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use sureq_core::{Now, TaskId};
use sureq_sync::{Condvar, Mutex, MutexGuard};

use crate::log::{LogError, Spares};
use crate::shared::Shared;
use crate::store::{Store, StoreValues};

/// The id mark is kept this far ahead of the clock.
const MARK_AHEAD_MS: u64 = 30_000;
/// The interval between attempts to prepare spares on a full disk.
const NO_SPACE_RETRY: Duration = Duration::from_millis(500);
/// The disk counts as almost full when less than a 20th of it is free, or less than this many segments.
const LITTLE_ROOM_PART: u64 = 20;
const LITTLE_ROOM_SEGMENTS: u64 = 8;
/// The disk also counts as almost full when fewer files than this can be created.
const LITTLE_ROOM_FILES: u64 = 64;
/// The interval at which log time and id mark are written.
const REFRESH: Duration = Duration::from_secs(5);

/// An id mark that lasts for a while from now on.
pub(crate) fn mark_ahead_of(last: TaskId, now: Now) -> TaskId {
    let ms = last.ms().max(now.log.0).saturating_add(MARK_AHEAD_MS);
    TaskId::new(ms, 1).unwrap_or(TaskId::LAST)
}

/// The shared part of the preallocator. Idle for a store in memory.
pub(crate) struct Preallocator {
    kept: Mutex<Option<Arc<Kept>>>,
    /// The free bytes of the disk when the preallocator last looked.
    pub(crate) disk_free_bytes: AtomicU64,
    /// The size of the segments that are being prepared.
    pub(crate) segment_bytes: u64,
    /// The ids are close to their mark.
    is_mark_near: AtomicBool,
    woken: Mutex<bool>,
    wakes: Condvar,
}

struct Kept {
    store: Mutex<Store>,
    spares: Arc<Spares>,
}

impl Preallocator {
    pub(crate) fn new(store: Store, spares: Arc<Spares>) -> Self {
        let segment_bytes = spares.segment_bytes();
        // An error here is reported when the preallocator looks again.
        let free = spares.room().map_or(0, |(free, _)| free);
        let kept = Mutex::new(Some(Arc::new(Kept { store: Mutex::new(store), spares })));
        Self { kept, disk_free_bytes: AtomicU64::new(free), segment_bytes, ..Self::idle() }
    }

    pub(crate) const fn idle() -> Self {
        Self {
            kept: Mutex::new(None),
            disk_free_bytes: AtomicU64::new(0),
            segment_bytes: 0,
            is_mark_near: AtomicBool::new(false),
            woken: Mutex::new(false),
            wakes: Condvar::new(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Option<Arc<Kept>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The spare files; none for a store in memory.
    pub(crate) fn spares(&self) -> Option<Arc<Spares>> {
        self.kept().as_ref().map(|kept| Arc::clone(&kept.spares))
    }

    pub(crate) fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wakes.notify_one();
    }

    /// Asks for the id mark to be raised as soon as possible. Cheap if that is requested already.
    pub(crate) fn call_for_mark(&self) {
        if !self.is_mark_near.load(Relaxed) && !self.is_mark_near.swap(true, Relaxed) {
            self.wake();
        }
    }

    /// Releases the directory. A store that closes without failure stores its last id, so that the ids of the next
    /// start need not leap ahead.
    pub(crate) fn leave(&self, shared: &Shared) -> Result<(), LogError> {
        let last = shared.lock_in_doubt().broker.last_id();
        let mark = last.successor().unwrap_or(TaskId::LAST);
        // After a failure the last id is uncertain.
        let has_failed = shared.durable.failure().is_some();
        let written = if has_failed { Ok(()) } else { self.write_down(shared.clock.now(), |_| mark.raw()) };
        // This releases the directory.
        self.kept().take();
        written
    }

    /// Raises the mark on disk to `mark`, unless it is higher already.
    fn raise(&self, now: Now, mark: TaskId) -> Result<(), LogError> {
        self.write_down(now, |written| written.max(mark.raw()))
    }

    fn write_down(&self, now: Now, mark: impl FnOnce(u64) -> u64) -> Result<(), LogError> {
        let Some(kept) = self.kept().clone() else { return Ok(()) };
        let mut store = kept.lock();
        let written = *store.values();
        let log_time = written.log_time.max(now.log.0);
        store.update(StoreValues { log_time, id_mark: mark(written.id_mark), ..written })
    }
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Store> {
        // The file has two copies. An update that panicked has left one intact, and the next writes both.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn run(shared: &Shared) {
    let Some(kept) = shared.preallocator.kept().clone() else { return };
    if let Err(error) = keep(shared, &kept) {
        shared.fail(error);
    }
}

fn keep(shared: &Shared, kept: &Kept) -> Result<(), LogError> {
    let (mut warned, mut is_blind) = (None, false);
    let mut refreshed = sureq_sync::now();
    refresh(shared)?;
    while !is_over(shared) {
        // The thread is woken for each segment, perhaps many times a second.
        if sureq_sync::elapsed(refreshed) >= REFRESH || shared.preallocator.is_mark_near.load(Relaxed) {
            refreshed = sureq_sync::now();
            refresh(shared)?;
        }
        let has_room = prepare(shared, kept)?;
        let little = little_room(shared, kept, &mut is_blind);
        // A full disk has been reported already.
        if has_room {
            report_little_room(shared, little, &mut warned);
        }
        let woken = shared.preallocator.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let pause =
            if has_room { REFRESH.saturating_sub(sureq_sync::elapsed(refreshed)) } else { NO_SPACE_RETRY };
        let slept = shared.preallocator.wakes.wait_timeout_while(woken, pause, |woken| !*woken);
        *slept.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
    Ok(())
}

fn is_over(shared: &Shared) -> bool {
    shared.durable.failure().is_some() || shared.lock().closing
}

/// Prepares the spares that are missing. If the disk has no space for them, pushes are refused, so that the segments
/// left serve commands that remove tasks. Returns whether there was space.
fn prepare(shared: &Shared, kept: &Kept) -> Result<bool, LogError> {
    while kept.spares.wanted() > 0 && !is_over(shared) {
        match kept.spares.prepare() {
            Ok(()) => {}
            Err(LogError::NoSpace(_)) => {
                shared.note_full();
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    if std::mem::replace(&mut shared.lock().no_space, false) {
        shared.notice("the disk of the store has room again: pushes are accepted");
    }
    Ok(true)
}

impl Shared {
    /// The disk has no space for another segment: pushes are refused from now on, and compaction frees what it can.
    pub(crate) fn note_full(&self) {
        if !std::mem::replace(&mut self.lock().no_space, true) {
            self.notice("the disk of the store is full: pushes are refused until there is room");
            // Only the first time: while the disk is full, compaction looks by itself and wakes the log thread, which
            // would come here again.
            self.compaction.wake();
        }
    }
}

/// The resource of the disk that runs out, and how much is left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Little {
    Bytes(u64),
    Files(u64),
}

/// Reads the free space and returns what runs out, if anything. An error here is reported to the operator once, and
/// does not stop the store.
fn little_room(shared: &Shared, kept: &Kept, is_blind: &mut bool) -> Option<Little> {
    let looked = kept.spares.room().and_then(|room| Ok((room, kept.spares.free_files()?)));
    let was_blind = std::mem::replace(is_blind, looked.is_err());
    if let Err(fault) = &looked
        && !was_blind
    {
        shared.notice(&format!("{fault}: the free space on the disk of the store is unknown"));
    }
    let ((free, capacity), files) = looked.ok()?;
    shared.preallocator.disk_free_bytes.store(free, Relaxed);
    let least = (capacity / LITTLE_ROOM_PART).max(LITTLE_ROOM_SEGMENTS * kept.spares.segment_bytes());
    let bytes = (capacity > 0 && free < least).then_some(Little::Bytes(free));
    bytes.or((files < LITTLE_ROOM_FILES).then_some(Little::Files(files)))
}

/// Reports once that the disk is almost full. Other programs may use up the rest.
fn report_little_room(shared: &Shared, little: Option<Little>, reported: &mut Option<Discriminant<Little>>) {
    let kind = little.as_ref().map(discriminant);
    if kind == *reported {
        return;
    }
    *reported = kind;
    let left = match little {
        None => return,
        Some(Little::Bytes(free)) => format!("{} MB are left", free >> 20),
        Some(Little::Files(files)) => format!("{files} more files can be made (inodes)"),
    };
    shared.notice(&format!("the disk of the store is almost full: {left}; pushes will be refused"));
}

/// Writes log time and a higher id mark, without the lock during the write.
fn refresh(shared: &Shared) -> Result<(), LogError> {
    let now = shared.clock.now();
    let mark = mark_ahead_of(shared.lock().broker.last_id(), now);
    shared.preallocator.raise(now, mark)?;
    let mut state = shared.lock();
    let mark = state.broker.id_mark().max(mark);
    state.broker.set_id_mark(mark);
    shared.preallocator.is_mark_near.store(false, Relaxed);
    Ok(())
}
