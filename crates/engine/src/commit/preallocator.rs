//! The thread that prepares: spare segments ahead of need, and the numbers in the `store` file that must stay ahead of
//! what is given out.

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

/// How far ahead of the clock the mark for ids is kept.
const MARK_AHEAD_MS: u64 = 30_000;
/// How often room is asked for that there was none.
const NO_SPACE_RETRY: Duration = Duration::from_millis(500);
/// The disk is almost full when less than this part of it is free, or less than so many segments.
const LITTLE_ROOM_PART: u64 = 20;
const LITTLE_ROOM_SEGMENTS: u64 = 8;
/// And when it has no room for so many more files.
const LITTLE_ROOM_FILES: u64 = 64;
/// How often log time and mark are written down.
const REFRESH: Duration = Duration::from_secs(5);

/// The mark that is good for a while from now on.
pub(crate) fn mark_ahead_of(last: TaskId, now: Now) -> TaskId {
    let ms = last.ms().max(now.log.0).saturating_add(MARK_AHEAD_MS);
    TaskId::new(ms, 1).unwrap_or(TaskId::LAST)
}

/// What the preallocator keeps. Idle where nothing is kept.
pub(crate) struct Preallocator {
    kept: Mutex<Option<Arc<Kept>>>,
    /// How many bytes of the disk were free when the preallocator last looked.
    pub(crate) disk_free_bytes: AtomicU64,
    /// The size of the segments that are being prepared.
    pub(crate) segment_bytes: u64,
    /// The ids have come near to their mark.
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
        // A disk that does not tell is a fault, which the preallocator finds when it looks.
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

    /// The files that segments are made of; none where nothing is kept.
    pub(crate) fn spares(&self) -> Option<Arc<Spares>> {
        self.kept().as_ref().map(|kept| Arc::clone(&kept.spares))
    }

    /// Has the preallocator look at once.
    pub(crate) fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wakes.notify_one();
    }

    /// Has the preallocator raise the mark for ids as soon as it can. Costs nothing while it is on its way.
    pub(crate) fn call_for_mark(&self) {
        if !self.is_mark_near.load(Relaxed) && !self.is_mark_near.swap(true, Relaxed) {
            self.wake();
        }
    }

    /// Lets go of the directory. A store that closes in good order writes down where it left off, so that the next start need
    /// not leap ahead.
    pub(crate) fn leave(&self, shared: &Shared) -> Result<(), LogError> {
        let last = shared.lock_in_doubt().broker.last_id();
        let mark = last.successor().unwrap_or(TaskId::LAST);
        // After a failure nobody knows where it left off.
        let has_failed = shared.durable.failure().is_some();
        let written = if has_failed { Ok(()) } else { self.write_down(shared.clock.now(), |_| mark.raw()) };
        // The last to let go of the directory.
        self.kept().take();
        written
    }

    /// Raises the mark on disk to `mark`, unless someone who looked later has raised it further.
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
        // An update that panicked half-way has left one whole copy on disk, and the next writes both.
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
        // It is woken for each segment, which may be many times a second.
        if sureq_sync::elapsed(refreshed) >= REFRESH || shared.preallocator.is_mark_near.load(Relaxed) {
            refreshed = sureq_sync::now();
            refresh(shared)?;
        }
        let has_room = prepare(shared, kept)?;
        let little = little_room(shared, kept, &mut is_blind);
        // Where there is none at all, that has been said.
        if has_room {
            tell_of_little_room(shared, little, &mut warned);
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

/// Prepares the spares that are wanted. Without room for them pushes are refused, as long as there is still a segment
/// for those who take tasks away; answers whether there is room.
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
    /// There is no room for another segment: no pushes from now on, and what is not needed goes.
    pub(crate) fn note_full(&self) {
        if !std::mem::replace(&mut self.lock().no_space, true) {
            self.notice("the disk of the store is full: pushes are refused until there is room");
            // Only now: it looks by itself while the disk is full, and wakes the log thread, which would come here again.
            self.compaction.wake();
        }
    }
}

/// What there is little of, and how much.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Little {
    Bytes(u64),
    Files(u64),
}

/// Looks how much room the disk has; answers what there is little of. A disk that does not say is no reason to stop; the
/// operator is told once.
fn little_room(shared: &Shared, kept: &Kept, is_blind: &mut bool) -> Option<Little> {
    let looked = kept.spares.room().and_then(|room| Ok((room, kept.spares.free_files()?)));
    let was_blind = std::mem::replace(is_blind, looked.is_err());
    if let Err(fault) = &looked
        && !was_blind
    {
        shared.notice(&format!("{fault}: how much room is left on the disk of the store is not known"));
    }
    let ((free, capacity), files) = looked.ok()?;
    shared.preallocator.disk_free_bytes.store(free, Relaxed);
    let least = (capacity / LITTLE_ROOM_PART).max(LITTLE_ROOM_SEGMENTS * kept.spares.segment_bytes());
    let bytes = (capacity > 0 && free < least).then_some(Little::Bytes(free));
    bytes.or((files < LITTLE_ROOM_FILES).then_some(Little::Files(files)))
}

/// Says once that the disk is about to be full. What little is free may be taken by others too.
fn tell_of_little_room(shared: &Shared, little: Option<Little>, told: &mut Option<Discriminant<Little>>) {
    let kind = little.as_ref().map(discriminant);
    if kind == *told {
        return;
    }
    *told = kind;
    let left = match little {
        None => return,
        Some(Little::Bytes(free)) => format!("{} MB are left", free >> 20),
        Some(Little::Files(files)) => format!("{files} more files can be made (inodes)"),
    };
    shared.notice(&format!("the disk of the store is almost full: {left}; pushes will be refused"));
}

/// Writes log time and a later mark down, without holding anyone up meanwhile.
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
