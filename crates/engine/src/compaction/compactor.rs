//! The thread that keeps the store small: it takes checkpoints, copies old tasks forward out of segments that are
//! mostly dead, and gives up segments that nothing needs any more.
//!
//! A segment goes when no live payload lies in it and the older of the two kept checkpoints does not need its events,
//! and only after all that made it so is on disk: a crash must not bring a task back without its payload.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use sureq_core::broker::Dropped;
use sureq_sync::{Condvar, Mutex, MutexGuard, thread};

use crate::checkpoint::{Checkpoints, Older};
use crate::commit::log_thread::LogThread;
use crate::compaction::forward::{self, Copied};
use crate::compaction::live::{Live, LiveBodies};
use crate::compaction::snapshot::{Sharing, Snapshot, Unwritten};
use crate::disk::Disk;
use crate::failpoint::failpoint;
use crate::fault::{OpenError, Operation};
use crate::log::{LogError, Position, SegmentInfo, Spares};
use crate::payload::body::Body;
use crate::shared::{EngineState, Shared};

/// How often it looks without being asked to.
const LOOK: Duration = Duration::from_secs(1);

/// How often it looks while the disk is full.
const LOOK_FULL: Duration = Duration::from_millis(100);

/// A checkpoint is due after so many times the bytes that the last one took: so that what is written for them is a
/// fifth of what is logged.
const CHECKPOINT_SHARE: u64 = 5;

/// But no sooner than after such a part of a segment: where many wait, one costs more than its bytes.
const CHECKPOINT_SEGMENT_PART: u64 = 2;

/// And no later than after so many segments, since a start reads that much.
const CHECKPOINT_SEGMENTS_MAX: u64 = 4;

/// Segments are copied forward where they take up more than so many times what is live in them, and so many more.
const USED_PER_LIVE: u64 = 2;
const USED_SEGMENTS: u64 = 1;

/// No segment is begun that would be more than so many times what is live, and so many more, while others can go. With
/// those that two checkpoints may need to be taken, and those that are kept ready and in reserve, these make eight.
const BOUND_PER_LIVE: u64 = 3;
const BOUND_SEGMENTS: u64 = 2;

/// Copying a segment forward is worth it if at most so many percent of it are live.
const WORTHWHILE_PERCENT: u64 = 70;

/// How long after a failed read a segment is copied again. After the last of these it is left alone until the next
/// start.
const COPY_AGAIN: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];

/// How many tasks that moved to a dead-letter queue are looked at each time, to see whether they are still there.
const ADOPTED_LOOKED_AT: usize = 1_000;

/// How many slices of what is under way are done at most before others get the lock.
const SLICES_MAX: u32 = 8;

/// How many queues are imaged before others get the lock; each takes a microsecond or two.
const IMAGE_SLICE_QUEUES: usize = 500;

/// After so many bytes of a checkpoint the disk is left to others for a while.
const PACE_BYTES: usize = 1 << 20;
const PACE_PAUSE: Duration = Duration::from_millis(1);

/// What the compactor tells, and how it is called.
#[derive(Default)]
pub(crate) struct Compaction {
    woken: Mutex<bool>,
    wakes: Condvar,
    /// There is no compaction.
    pub(crate) is_off: bool,
    /// Where the newest checkpoint stands.
    pub(crate) checkpoint: AtomicU64,
    /// How many bytes had been logged by then.
    logged: AtomicU64,
    /// After how many more the next is due.
    pub(crate) due: AtomicU64,
    pub(crate) taken: AtomicU64,
    pub(crate) is_checkpointing: AtomicBool,
    pub(crate) is_copying: AtomicBool,
    pub(crate) checkpoint_bytes: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
}

impl Compaction {
    pub(crate) fn new(is_off: bool) -> Self {
        Self { is_off, ..Self::default() }
    }

    /// Has the compactor look at once.
    pub(crate) fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wakes.notify_one();
    }

    fn sleep(&self, pause: Duration) {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let slept = self.wakes.wait_timeout_while(woken, pause, |woken| !*woken);
        *slept.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    /// How many of `logged` bytes have been logged since the last checkpoint.
    pub(crate) fn since_checkpoint(&self, logged: u64) -> u64 {
        logged.saturating_sub(self.logged.load(Ordering::Relaxed))
    }

    /// Whether a checkpoint is due now that so many bytes have been logged.
    pub(crate) fn is_due(&self, logged: u64) -> bool {
        self.since_checkpoint(logged) >= self.due.load(Ordering::Relaxed)
    }
}

/// How an attempt to take a checkpoint ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckpointOutcome {
    Written,
    NoSpace,
    /// The store closes, and nothing was written.
    Closing,
}

/// What belongs to the compactor alone.
pub(crate) struct Compactor {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) uuid: [u8; 16],
    pub(crate) checkpoints: Checkpoints,
    pub(crate) snapshot: Snapshot,
    /// Where the checkpoint of the last image stands, and what was live then, if it was written.
    pub(crate) newest: Option<(Position, LiveBodies)>,
    /// What was live at the position of the last checkpoint that was written, up to which the log is on disk.
    pub(crate) confirmed: LiveBodies,
    pub(crate) spares: Arc<Spares>,
    /// There was no room for another file when a checkpoint was last tried.
    pub(crate) is_short_of_files: bool,
    /// How much of the log was read at the start: it counts as logged since the checkpoint.
    pub(crate) replayed_bytes: u64,
    /// Segments that tasks could not be copied out of.
    pub(crate) unread: BTreeMap<u64, Retry>,
    /// Why the older checkpoint was kept on a full disk, as the operator was told.
    pub(crate) kept_older: Option<String>,
}

/// A segment whose read failed so often, and when it is tried again, if ever.
pub(crate) struct Retry {
    failures: usize,
    at: Option<Instant>,
}

pub(crate) fn run(shared: &Shared, mut compactor: Compactor) {
    let ended = compactor.run_until_closed(shared);
    // A store that closes waits for nothing, so that what was under way may not have come to an end.
    if let Err(error) = ended
        && !shared.lock().closing
    {
        shared.fail(error);
    }
}

impl Compactor {
    fn run_until_closed(&mut self, shared: &Shared) -> Result<(), LogError> {
        self.plan_next(shared, 0, 0);
        shared.lock().logged_bytes += self.replayed_bytes;
        loop {
            let (is_over, is_full, logged) = {
                let state = shared.lock();
                (state.closing, state.no_space, state.logged_bytes)
            };
            if is_over || shared.durable.failure().is_some() {
                return Ok(());
            }
            shared.lock().broker.forget_adopted(ADOPTED_LOOKED_AT);
            self.readmit_segments(shared);
            self.copy_forward(shared, is_full);
            let is_wanted = shared.compaction.is_due(logged) || self.is_room_wasted(shared, is_full);
            let was_taken = is_wanted && self.make_room(shared)?;
            if was_taken && self.is_room_wasted(shared, is_full) && !shared.lock().closing {
                self.repeat_checkpoint(shared)?;
            }
            self.snapshot.let_go();
            if !was_taken || !self.is_room_wasted(shared, is_full) {
                shared.compaction.sleep(if is_full { LOOK_FULL } else { LOOK });
            }
        }
    }

    /// Takes a checkpoint and gives up the segments that are not needed from then on. On a full disk the room for it is
    /// made first: by what is held in reserve, and if that is not enough by the older checkpoint. Answers whether one
    /// was taken.
    fn make_room(&mut self, shared: &Shared) -> Result<bool, LogError> {
        if shared.lock().no_space {
            self.retire(shared)?;
        } else {
            self.is_short_of_files = false;
        }
        let mut taken = self.try_checkpoint(shared)?;
        if taken == CheckpointOutcome::NoSpace && self.spares.give_up_one()? {
            taken = self.try_checkpoint(shared)?;
        }
        if taken == CheckpointOutcome::NoSpace {
            self.drop_older(shared)?;
        }
        self.retire(shared)?;
        Ok(taken == CheckpointOutcome::Written)
    }

    /// Gives up the older checkpoint. If the newest one cannot be relied on, both stay, and the operator is told once:
    /// a full disk gets no room this way.
    fn drop_older(&mut self, shared: &Shared) -> Result<(), LogError> {
        let why = match self.checkpoints.drop_older()? {
            Older::Kept(why) => Some(why.to_string()),
            Older::Dropped | Older::NoCheckpoint => None,
        };
        if let Some(why) = why.as_ref().filter(|_| self.kept_older != why) {
            shared.read_faults.note_error();
            shared.notice(&format!(
                "{why}; the older checkpoint and the log behind it are kept, although the disk is full"
            ));
        }
        self.kept_older = why;
        Ok(())
    }

    /// Takes a checkpoint if there is room for it.
    fn try_checkpoint(&mut self, shared: &Shared) -> Result<CheckpointOutcome, LogError> {
        let taken = match self.checkpoint(shared) {
            Err(Unwritten::Unreadable(why)) => self.checkpoint_anew(shared, &why),
            taken => taken,
        };
        match taken {
            Ok(taken) => Ok(taken),
            Err(Unwritten::Failed(LogError::NoSpace(fault))) => {
                // Files may be what there are too few of: then the next one shares none, so that the old ones can go.
                self.is_short_of_files |= fault.operation == Operation::Create;
                Ok(CheckpointOutcome::NoSpace)
            }
            Err(Unwritten::Failed(error)) => Err(error),
            Err(Unwritten::Unreadable(_)) => unreachable!("nothing is read where all is in memory"),
        }
    }

    /// Takes a checkpoint that has nothing from those before it, since that cannot be read back: all of it is in memory
    /// still.
    fn checkpoint_anew(&mut self, shared: &Shared, why: &OpenError) -> Result<CheckpointOutcome, Unwritten> {
        shared.notice(&format!("{why}; what is in memory is written to another checkpoint instead"));
        self.snapshot = Snapshot::default();
        shared.lock().broker.touch_all();
        self.checkpoint(shared)
    }

    fn checkpoint(&mut self, shared: &Shared) -> Result<CheckpointOutcome, Unwritten> {
        let mut state = Self::finish_under_way(shared);
        if state.broker.is_under_way() {
            // A store that closes does not wait for it, and has no use for a checkpoint that counts what is not in it:
            // its segments would be kept for good.
            return Ok(CheckpointOutcome::Closing);
        }
        // What was dropped is no part of an image, but its payloads count as live until they are released. There may
        // always be some, so that they are not waited for.
        let dropped = Arc::new(state.broker.take_dropped());
        state.releasing = Some(Arc::clone(&dropped));
        let (mut live, position, logged) =
            (state.buffer.live.clone(), state.buffer.end(), state.logged_bytes);
        // The image is of this moment, whatever happens while its queues are gone through.
        state.broker.begin_image();
        while state.broker.image_some(IMAGE_SLICE_QUEUES) {
            shared.let_go(state);
            shared.step_aside();
            state = shared.lock();
        }
        let image = state.broker.end_image();
        shared.let_go(state);
        let image = image.sorted();
        live.subtract(&release(shared, &dropped));
        // By when all is written, the log is on disk that far, and has not waited for any of it.
        shared.want_sync(position);
        self.newest = None;
        self.snapshot.update(image);
        let sharing = if self.is_short_of_files { Sharing::Nothing } else { Sharing::Unchanged };
        let bytes = self.write(shared, position, &live, sharing)?;
        self.plan_next(shared, logged, bytes);
        self.newest = Some((position, live));
        Ok(CheckpointOutcome::Written)
    }

    /// Waits until nothing is under way, or the store closes: an image has no place for what was decided and is not
    /// done yet.
    ///
    /// A stream of commands that begin such work could go on for ever. So the slices are done here, more and more of
    /// them before others get the lock, until nothing is left when the image is begun.
    fn finish_under_way(shared: &Shared) -> MutexGuard<'_, EngineState> {
        let mut state = shared.lock();
        let mut slices = 1;
        loop {
            for _ in 0..slices {
                if !state.broker.is_under_way() || state.closing {
                    return state;
                }
                let now = shared.clock.now();
                let EngineState { broker, buffer, .. } = &mut *state;
                broker.settle_under_way(now, buffer);
                shared.end_unit(&mut state);
                shared.serve(&mut state, now);
                shared.stir(&mut state, now);
            }
            shared.let_go(state);
            shared.step_aside();
            state = shared.lock();
            slices = (slices * 2).min(SLICES_MAX);
        }
    }

    /// Writes the newest checkpoint once more. Two are kept, and what only the older one needs goes with it: without
    /// waiting for more of the log, which may wait for that. What the first has written the second writes too, so that
    /// the damage of one is no loss.
    fn repeat_checkpoint(&mut self, shared: &Shared) -> Result<(), LogError> {
        let Some((position, live)) = self.newest.take() else { return Ok(()) };
        match self.write(shared, position, &live, Sharing::NotWithNewest) {
            Ok(bytes) => {
                let due = shared.compaction.due.load(Ordering::Relaxed) + bytes * CHECKPOINT_SHARE;
                let due_max = self.spares.segment_bytes() * CHECKPOINT_SEGMENTS_MAX;
                shared.compaction.due.store(due.min(due_max), Ordering::Relaxed);
                self.retire(shared)
            }
            // The next one will do it.
            Err(Unwritten::Failed(LogError::NoSpace(_)) | Unwritten::Unreadable(_)) => Ok(()),
            Err(Unwritten::Failed(error)) => Err(error),
        }
    }

    /// Writes a checkpoint of the state of the last image, and answers how many bytes that took.
    fn write(
        &mut self,
        shared: &Shared,
        position: Position,
        live: &LiveBodies,
        sharing: Sharing,
    ) -> Result<u64, Unwritten> {
        let mut unpaused = 0;
        let mut pace = |bytes: usize| {
            unpaused += bytes;
            if unpaused >= PACE_BYTES {
                unpaused = 0;
                thread::sleep(PACE_PAUSE);
            }
        };
        // A checkpoint that the log does not reach would be refused.
        let confirm = || shared.sync_upto(position);
        let compaction = &shared.compaction;
        compaction.is_checkpointing.store(true, Ordering::Relaxed);
        let written = self.snapshot.write(&mut self.checkpoints, position, live, sharing, &mut pace, confirm);
        compaction.is_checkpointing.store(false, Ordering::Relaxed);
        let bytes = written?;
        self.confirmed = live.clone();
        compaction.checkpoint.store(position.0, Ordering::Relaxed);
        compaction.taken.fetch_add(1, Ordering::Relaxed);
        compaction.checkpoint_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    fn plan_next(&self, shared: &Shared, logged: u64, bytes: u64) {
        let segment = self.spares.segment_bytes();
        let least = segment / CHECKPOINT_SEGMENT_PART;
        let due = (bytes * CHECKPOINT_SHARE).clamp(least, segment * CHECKPOINT_SEGMENTS_MAX);
        shared.compaction.due.store(due, Ordering::Relaxed);
        shared.compaction.logged.store(logged, Ordering::Relaxed);
    }

    /// Gives up segments that neither live payloads nor checkpoints need. What made the last payloads of one die must
    /// be on disk: of those that were dead in the last checkpoint it is, the others wait for a sync. But a log that
    /// waits for segments to go would have to begin another for that, and the next checkpoint follows at once.
    fn retire(&self, shared: &Shared) -> Result<(), LogError> {
        let needed_from = self.checkpoints.needed_from();
        let (mut dead, position, log_waits) = {
            let state = shared.lock();
            let dead: Vec<SegmentInfo> = state
                .sealed()
                .filter(|(segment, end)| *end <= needed_from && state.live_in(segment).tasks == 0)
                .map(|(segment, _)| segment)
                .collect();
            (dead, state.buffer.end(), state.log_thread == LogThread::Waits && !state.no_space)
        };
        if dead.is_empty() {
            return Ok(());
        }
        // A log that waits for room waits for these.
        let is_synced = !log_waits
            && match shared.sync_upto(position) {
                Err(LogError::NoSpace(_)) => false,
                synced => synced.map(|()| true)?,
            };
        if !is_synced {
            let was_dead = |segment: &SegmentInfo| self.confirmed.within(segment.numbers()).tasks == 0;
            dead.retain(was_dead);
        }
        if dead.is_empty() {
            return Ok(());
        }
        failpoint("retire.after-sync");
        // Whoever is about to read from them has been told before they were dead.
        shared.loader.iter().for_each(crate::payload::loader::Loader::settle);
        let numbers: Vec<u64> = dead.iter().map(|segment| segment.number).collect();
        for &number in &numbers {
            shared.loader.iter().for_each(|loader| loader.forget(number));
        }
        self.spares.retire(&numbers)?;
        {
            let mut state = shared.lock();
            // Both are in order, and may be long.
            state.segments.retain(|segment| numbers.binary_search(&segment.number).is_err());
            state.unreadable.retain(|number| numbers.binary_search(number).is_err());
        }
        shared.log_wakes.notify_one();
        shared.preallocator.wake();
        Ok(())
    }

    /// Whether segments take up too much, and some of them would go with the next checkpoints.
    fn is_room_wasted(&self, shared: &Shared, is_full: bool) -> bool {
        let state = shared.lock();
        let used: u64 = state.segments.iter().map(|segment| segment.bytes).sum();
        let has_dead = state.sealed().any(|(segment, _)| state.live_in(&segment).tasks == 0);
        // On a full disk each of them is missed.
        has_dead && (is_full || used > allowed(&state, self.spares.segment_bytes(), is_full))
    }

    fn next_victim(&self, shared: &Shared, is_full: bool) -> Option<SegmentInfo> {
        victim(&shared.lock(), self.spares.segment_bytes(), is_full)
    }

    /// Copies live tasks out of mostly dead segments, as many as take up too much room. Where a new segment waits for
    /// old ones to go, no more than one at a time: only a checkpoint lets that go.
    fn copy_forward(&mut self, shared: &Shared, is_full: bool) {
        while let Some(victim) = self.next_victim(shared, is_full) {
            shared.compaction.is_copying.store(true, Ordering::Relaxed);
            let copied = forward::copy(shared, &*self.disk, self.uuid, &victim);
            shared.compaction.is_copying.store(false, Ordering::Relaxed);
            match copied {
                Copied::All => {}
                Copied::NotAll => {
                    let mut state = shared.lock();
                    if state.closing || state.broker.is_unfinished() {
                        break;
                    }
                    // What cannot be copied stays where it is, and does not keep others from being copied.
                    state.unreadable.insert(victim.number);
                }
                Copied::Unreadable(error) => self.set_segment_aside(shared, victim.number, &error),
            }
            if shared.lock().log_thread == LogThread::Waits {
                break;
            }
        }
    }

    /// Keeps a segment that cannot be read: its tasks stay where they are. A read that failed is tried again later, a
    /// few times; what is damaged stays so.
    fn set_segment_aside(&mut self, shared: &Shared, number: u64, error: &OpenError) {
        shared.read_faults.note_error();
        let retry = self.unread.entry(number).or_insert(Retry { failures: 0, at: None });
        let pause = COPY_AGAIN.get(retry.failures).filter(|_| matches!(error, OpenError::Disk(_)));
        retry.failures += 1;
        retry.at = pause.map(|&pause| sureq_sync::now() + pause);
        shared.lock().unreadable.insert(number);
        shared.notice(&format!("{error}; the segment is kept, and the tasks in it stay where they are"));
    }

    /// Lets segments be copied again whose reads failed a while ago.
    fn readmit_segments(&mut self, shared: &Shared) {
        if self.unread.is_empty() {
            return;
        }
        let now = sureq_sync::now();
        let mut state = shared.lock();
        let EngineState { segments, unreadable, .. } = &mut *state;
        self.unread.retain(|number, _| segments.iter().any(|segment| segment.number == *number));
        for (number, retry) in &mut self.unread {
            if retry.at.take_if(|at| *at <= now).is_some() {
                unreadable.remove(number);
            }
        }
    }
}

/// Releases the payloads of what was dropped, without the lock but for a moment; answers what they were.
fn release(shared: &Shared, dropped: &Dropped<Body>) -> LiveBodies {
    let mut gone = LiveBodies::default();
    dropped.bodies(&mut |body| body.place().into_iter().for_each(|place| gone.add(place)));
    let mut state = shared.lock();
    state.buffer.live.subtract(&gone);
    state.releasing = None;
    gone
}

/// How much segments may take up before something is done about it.
fn allowed(state: &EngineState, segment_bytes: u64, is_full: bool) -> u64 {
    let spared = if is_full { 0 } else { USED_SEGMENTS * segment_bytes };
    USED_PER_LIVE * state.buffer.live.total().bytes + spared
}

/// The segment that gives most room for the least copying, if segments take up too much.
fn victim(state: &EngineState, segment_bytes: u64, is_full: bool) -> Option<SegmentInfo> {
    let needed: Vec<(SegmentInfo, Live)> = state
        .sealed()
        .map(|(segment, _)| (segment, state.live_in(&segment)))
        .filter(|(segment, live)| live.tasks > 0 && !state.unreadable.contains(&segment.number))
        .collect();
    let used: u64 = needed.iter().map(|(segment, _)| segment.bytes).sum();
    if used <= allowed(state, segment_bytes, is_full) {
        return None;
    }
    let share = |(segment, live): &(SegmentInfo, Live)| live.bytes * 100 / segment.bytes;
    let victim = needed.iter().min_by_key(|candidate| share(candidate))?;
    // On a full disk copies go where events go: into what is left of the reserve.
    let fits = !is_full || victim.1.bytes < segment_bytes / 2;
    (is_sparse(&victim.0, victim.1) && fits).then_some(victim.0)
}

/// Whether another segment would be more than the log may take up, and some of them are about to go.
pub(crate) fn is_behind(state: &EngineState, segment_bytes: u64) -> bool {
    let used: u64 = state.segments.iter().map(|segment| segment.bytes).sum();
    let bound = BOUND_PER_LIVE * state.buffer.live.total().bytes + BOUND_SEGMENTS * segment_bytes;
    let mut dead = state.sealed().filter(|(segment, _)| state.live_in(segment).tasks == 0);
    used + segment_bytes > bound && (dead.next().is_some() || victim(state, segment_bytes, false).is_some())
}

/// Whether a segment is worth copying forward.
const fn is_sparse(segment: &SegmentInfo, live: Live) -> bool {
    live.bytes * 100 <= segment.bytes * WORTHWHILE_PERCENT
}

impl EngineState {
    /// The segments that are not written to any more, each with the position that it ends at.
    fn sealed(&self) -> impl Iterator<Item = (SegmentInfo, Position)> {
        self.segments.windows(2).map(|pair| (pair[0], pair[1].first))
    }

    fn live_in(&self, segment: &SegmentInfo) -> Live {
        self.buffer.live.within(segment.numbers())
    }
}
