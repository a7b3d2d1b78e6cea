//! The thread that keeps the store small: it takes checkpoints, copies live tasks out of segments that are mostly dead,
//! and removes segments that are not needed any more.
//!
//! A segment is removed when it has no live payload and the older of the two kept checkpoints does not need its
//! events, and only after the events that made it obsolete are on disk: a crash must not bring a task back without
//! its payload.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use sureq_core::broker::Dropped;
use sureq_sync::{Condvar, Mutex, MutexGuard, thread};

use crate::checkpoint::{Checkpoints, Older};
use crate::commit::batch::WORK_TASKS_MAX;
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

/// The interval at which it checks for work without being woken.
const LOOK: Duration = Duration::from_secs(1);

/// That interval while the disk is full.
const LOOK_FULL: Duration = Duration::from_millis(100);

/// A checkpoint is due after this many times the bytes of the last one have been logged, so that checkpoints write a
/// fifth of what is logged.
const CHECKPOINT_SHARE: u64 = 5;

/// But not before half a segment has been logged: a checkpoint also costs syncs.
const CHECKPOINT_SEGMENT_PART: u64 = 2;

/// And at the latest after this many segments, since a start reads that much.
const CHECKPOINT_SEGMENTS_MAX: u64 = 4;

/// Tasks are copied forward when segments take up more than this many times the live bytes plus this many segments.
const USED_PER_LIVE: u64 = 2;
const USED_SEGMENTS: u64 = 1;

/// No segment is begun beyond this many times the live bytes plus this many segments, while others can be removed. With
/// those that two checkpoints may need, the spares and the reserve, an idle store has at most eight segments.
const BOUND_PER_LIVE: u64 = 3;
const BOUND_SEGMENTS: u64 = 2;

/// A segment is worth copying if at most this percentage of it is live.
const WORTHWHILE_PERCENT: u64 = 70;

/// The pauses before another attempt to copy a segment after failed reads. After the last attempt it is left until the
/// next start.
const COPY_AGAIN: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];

/// How many tasks that moved to a dead-letter queue are checked each time, whether they still exist.
const ADOPTED_LOOKED_AT: usize = 1_000;

/// The most slices of unfinished work that are done under one lock, if they move few tasks.
const SLICES_MAX: u32 = 8;

/// The queues that are imaged under one lock; each takes a microsecond or two.
const IMAGE_SLICE_QUEUES: usize = 500;

/// After this many bytes of a checkpoint, the thread pauses to leave the disk to the log.
const PACE_BYTES: usize = 1 << 20;
const PACE_PAUSE: Duration = Duration::from_millis(1);

/// The shared part of the compactor: its counters, and how it is woken.
#[derive(Default)]
pub(crate) struct Compaction {
    woken: Mutex<bool>,
    wakes: Condvar,
    /// There is no compaction.
    pub(crate) is_off: bool,
    /// The position of the newest checkpoint.
    pub(crate) checkpoint: AtomicU64,
    /// The bytes that had been logged by then.
    logged: AtomicU64,
    /// The bytes after which the next one is due.
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

    /// Wakes the compactor.
    pub(crate) fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wakes.notify_one();
    }

    fn sleep(&self, pause: Duration) {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let slept = self.wakes.wait_timeout_while(woken, pause, |woken| !*woken);
        *slept.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    /// The part of `logged` bytes since the last checkpoint.
    pub(crate) fn since_checkpoint(&self, logged: u64) -> u64 {
        logged.saturating_sub(self.logged.load(Ordering::Relaxed))
    }

    /// Whether a checkpoint is due when this many bytes have been logged.
    pub(crate) fn is_due(&self, logged: u64) -> bool {
        self.since_checkpoint(logged) >= self.due.load(Ordering::Relaxed)
    }
}

/// How an attempt to take a checkpoint ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckpointOutcome {
    Written,
    NoSpace,
    /// The store is closing, and nothing was written.
    Closing,
}

/// The part of the compactor that only its thread uses.
pub(crate) struct Compactor {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) uuid: [u8; 16],
    pub(crate) checkpoints: Checkpoints,
    pub(crate) snapshot: Snapshot,
    /// The position and live payloads of the last image, if its checkpoint was written.
    pub(crate) newest: Option<(Position, LiveBodies)>,
    /// The live payloads at the position of the last checkpoint, up to which the log is on disk.
    pub(crate) confirmed: LiveBodies,
    pub(crate) spares: Arc<Spares>,
    /// The last attempt at a checkpoint failed because no file could be created.
    pub(crate) is_short_of_files: bool,
    /// The bytes of the log that the start has read. They count as logged since the checkpoint.
    pub(crate) replayed_bytes: u64,
    /// Segments out of which tasks could not be copied.
    pub(crate) unread: BTreeMap<u64, Retry>,
    /// The reason that was reported for keeping the older checkpoint on a full disk.
    pub(crate) kept_older: Option<String>,
}

/// The failed attempts to copy a segment, and the time of the next one, if any.
pub(crate) struct Retry {
    failures: usize,
    at: Option<Instant>,
}

pub(crate) fn run(shared: &Shared, mut compactor: Compactor) {
    let ended = compactor.run_until_closed(shared);
    // A store that is closing does not wait, so waits for the log may have ended with an error.
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
            self.snapshot.free_written();
            if !was_taken || !self.is_room_wasted(shared, is_full) {
                shared.compaction.sleep(if is_full { LOOK_FULL } else { LOOK });
            }
        }
    }

    /// Takes a checkpoint and removes the segments that are not needed from then on. On a full disk, space for it is
    /// freed first: from the reserve, and if that is not enough, by removing the older checkpoint. Returns whether a
    /// checkpoint was taken.
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

    /// Removes the older checkpoint. If the newest one is damaged, both stay, which is reported once, since the disk
    /// stays full then.
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

    /// Takes a checkpoint if the disk has space for it.
    fn try_checkpoint(&mut self, shared: &Shared) -> Result<CheckpointOutcome, LogError> {
        let taken = match self.checkpoint(shared) {
            Err(Unwritten::Unreadable(why)) => self.checkpoint_anew(shared, &why),
            taken => taken,
        };
        match taken {
            Ok(taken) => Ok(taken),
            Err(Unwritten::Failed(LogError::NoSpace(fault))) => {
                // If no file can be created, the next checkpoint shares no pieces, so that old files can be removed.
                self.is_short_of_files |= fault.operation == Operation::Create;
                Ok(CheckpointOutcome::NoSpace)
            }
            Err(Unwritten::Failed(error)) => Err(error),
            Err(Unwritten::Unreadable(_)) => unreachable!("nothing is read where all is in memory"),
        }
    }

    /// Takes a checkpoint that shares no pieces, after one could not be read back. The whole state is in memory.
    fn checkpoint_anew(&mut self, shared: &Shared, why: &OpenError) -> Result<CheckpointOutcome, Unwritten> {
        shared.notice(&format!("{why}; a complete checkpoint is written from memory instead"));
        self.snapshot = Snapshot::default();
        shared.lock().broker.touch_all();
        self.checkpoint(shared)
    }

    fn checkpoint(&mut self, shared: &Shared) -> Result<CheckpointOutcome, Unwritten> {
        let mut state = Self::finish_under_way(shared);
        if state.broker.is_under_way() {
            // The store is closing. A checkpoint now would count payloads that are not in it, whose segments would be
            // kept forever.
            return Ok(CheckpointOutcome::Closing);
        }
        // Dropped queues are not part of an image, but their payloads count as live until they are released. There may
        // always be some, so the checkpoint does not wait for that.
        let dropped = Arc::new(state.broker.take_dropped());
        state.releasing = Some(Arc::clone(&dropped));
        let (mut live, position, logged) =
            (state.buffer.live.clone(), state.buffer.end(), state.logged_bytes);
        // The image is the state at this moment, even if it changes while the queues are collected.
        state.broker.begin_image();
        while state.broker.image_some(IMAGE_SLICE_QUEUES) {
            state.meter.looked(IMAGE_SLICE_QUEUES);
            shared.unlock_and_wake(state);
            shared.yield_lock();
            state = shared.lock();
        }
        let image = state.broker.end_image();
        shared.unlock_and_wake(state);
        let image = image.sorted();
        live.subtract(&release(shared, &dropped));
        // The log thread syncs up to there while the checkpoint is being written.
        shared.want_sync(position);
        self.newest = None;
        self.snapshot.update(image);
        let sharing = if self.is_short_of_files { Sharing::Nothing } else { Sharing::Unchanged };
        let bytes = self.write(shared, position, &live, sharing)?;
        self.plan_next(shared, logged, bytes);
        self.newest = Some((position, live));
        Ok(CheckpointOutcome::Written)
    }

    /// Finishes all sliced work in progress, such as the end of a worker, unless the store closes: an image cannot
    /// express it.
    ///
    /// Commands may begin such work again and again. So this executes the slices itself until none is left: more and
    /// more of them under one lock, unless they move many tasks.
    fn finish_under_way(shared: &Shared) -> MutexGuard<'_, EngineState> {
        let mut state = shared.lock();
        let mut slices = 1;
        loop {
            let moved_before = state.broker.moved();
            for _ in 0..slices {
                if !state.broker.is_under_way() || state.closing {
                    return state;
                }
                let now = shared.clock.now();
                let EngineState { broker, buffer, .. } = &mut *state;
                broker.settle_under_way(now, buffer);
                shared.end_unit(&mut state);
                shared.serve(&mut state, now);
                state.forget_awake_unless_awaited();
                shared.notify_threads(&mut state, now);
                if state.broker.moved() - moved_before >= WORK_TASKS_MAX as u64 {
                    break;
                }
            }
            shared.unlock_and_wake(state);
            shared.yield_lock();
            state = shared.lock();
            slices = (slices * 2).min(SLICES_MAX);
        }
    }

    /// Writes the newest checkpoint again. Two are kept, so this replaces the older one, and segments that only that
    /// needs can be removed at once; the log may be waiting for them. The second has its own copy of what the first has
    /// written, so that damage of one file loses nothing.
    fn repeat_checkpoint(&mut self, shared: &Shared) -> Result<(), LogError> {
        let Some((position, live)) = self.newest.take() else { return Ok(()) };
        match self.write(shared, position, &live, Sharing::NotWithNewest) {
            Ok(bytes) => {
                let due = shared.compaction.due.load(Ordering::Relaxed) + bytes * CHECKPOINT_SHARE;
                let due_max = self.spares.segment_bytes() * CHECKPOINT_SEGMENTS_MAX;
                shared.compaction.due.store(due.min(due_max), Ordering::Relaxed);
                self.retire(shared)
            }
            // The next checkpoint replaces the older one.
            Err(Unwritten::Failed(LogError::NoSpace(_)) | Unwritten::Unreadable(_)) => Ok(()),
            Err(Unwritten::Failed(error)) => Err(error),
        }
    }

    /// Writes a checkpoint of the last image. Returns the bytes written.
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

    /// Removes segments that neither live payloads nor checkpoints need. The events that ended their last payloads must
    /// be on disk. For segments that were dead at the last checkpoint they are; the others wait for a sync. If the log
    /// itself waits for segments to be removed, only the former are: a sync might need another segment, and the next
    /// checkpoint follows at once.
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
        // A log thread that waits for space waits for these segments to be removed.
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
        // Reads from these segments were requested before they were dead.
        shared.loader.iter().for_each(crate::payload::loader::Loader::settle);
        let numbers: Vec<u64> = dead.iter().map(|segment| segment.number).collect();
        for &number in &numbers {
            shared.loader.iter().for_each(|loader| loader.forget(number));
        }
        self.spares.retire(&numbers)?;
        {
            let mut state = shared.lock();
            // Both are sorted, and may be long.
            state.segments.retain(|segment| numbers.binary_search(&segment.number).is_err());
            state.unreadable.retain(|number| numbers.binary_search(number).is_err());
        }
        shared.log_wakes.notify_one();
        shared.preallocator.wake();
        Ok(())
    }

    /// Whether segments take up too much, and the next checkpoints would allow to remove some.
    fn is_room_wasted(&self, shared: &Shared, is_full: bool) -> bool {
        let state = shared.lock();
        let used: u64 = state.segments.iter().map(|segment| segment.bytes).sum();
        let has_dead = state.sealed().any(|(segment, _)| state.live_in(&segment).tasks == 0);
        // On a full disk every segment counts.
        has_dead && (is_full || used > allowed(&state, self.spares.segment_bytes(), is_full))
    }

    fn next_victim(&self, shared: &Shared, is_full: bool) -> Option<SegmentInfo> {
        victim(&shared.lock(), self.spares.segment_bytes(), is_full)
    }

    /// Copies live tasks out of mostly dead segments, until the size of all segments is within its bound. If the log
    /// waits for segments to be removed, copies out of one only, since a checkpoint must follow before it can be
    /// removed.
    fn copy_forward(&mut self, shared: &Shared, is_full: bool) {
        while let Some(victim) = self.next_victim(shared, is_full) {
            shared.compaction.is_copying.store(true, Ordering::Relaxed);
            let copied = forward::copy(shared, &*self.disk, self.uuid, &victim);
            shared.compaction.is_copying.store(false, Ordering::Relaxed);
            match copied {
                Copied::All => {}
                Copied::Later => break,
                Copied::NotAll => {
                    // These tasks stay, and other segments can be copied.
                    shared.lock().unreadable.insert(victim.number);
                }
                Copied::Unreadable(error) => self.set_segment_aside(shared, victim.number, &error),
            }
            if shared.lock().log_thread == LogThread::Waits {
                break;
            }
        }
    }

    /// Keeps a segment that cannot be read, with its tasks. A failed read is retried later, a few times; a damaged
    /// segment is not.
    fn set_segment_aside(&mut self, shared: &Shared, number: u64, error: &OpenError) {
        shared.read_faults.note_error();
        let retry = self.unread.entry(number).or_insert(Retry { failures: 0, at: None });
        let pause = COPY_AGAIN.get(retry.failures).filter(|_| matches!(error, OpenError::Disk(_)));
        retry.failures += 1;
        retry.at = pause.map(|&pause| sureq_sync::now() + pause);
        shared.lock().unreadable.insert(number);
        shared.notice(&format!("{error}; the segment is kept, and the tasks in it stay where they are"));
    }

    /// Allows segments to be copied again for which the pause after a failed read is over.
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

/// Releases the payloads of dropped queues, and returns them. Takes the lock only for a moment.
fn release(shared: &Shared, dropped: &Dropped<Body>) -> LiveBodies {
    let mut gone = LiveBodies::default();
    dropped.bodies(&mut |body| body.place().into_iter().for_each(|place| gone.add(place)));
    let mut state = shared.lock();
    state.buffer.live.subtract(&gone);
    state.releasing = None;
    gone
}

/// The bytes that segments may take up before tasks are copied forward.
fn allowed(state: &EngineState, segment_bytes: u64, is_full: bool) -> u64 {
    let spared = if is_full { 0 } else { USED_SEGMENTS * segment_bytes };
    USED_PER_LIVE * state.buffer.live.total().bytes + spared
}

/// The segment that frees most space for the least copying, if segments take up too much.
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
    // On a full disk, copies use up the reserve.
    let fits = !is_full || victim.1.bytes < segment_bytes / 2;
    (is_sparse(&victim.0, victim.1) && fits).then_some(victim.0)
}

/// Whether another segment would exceed the bound of the log while some can be removed.
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
    /// The segments that are complete, each with the position of its end.
    fn sealed(&self) -> impl Iterator<Item = (SegmentInfo, Position)> {
        self.segments.windows(2).map(|pair| (pair[0], pair[1].first))
    }

    fn live_in(&self, segment: &SegmentInfo) -> Live {
        self.buffer.live.within(segment.numbers())
    }
}

#[cfg(test)]
mod tests {
    use sureq_core::command::{ConnId, LeaseAsk, Pop};
    use sureq_core::{Command, Progress, Replies, limits};

    use super::*;
    use crate::meter::Held;
    use crate::{Engine, Options};

    #[test]
    fn work_that_is_under_way_moves_a_bounded_number_of_tasks_under_one_lock() {
        const TASKS: usize = 3 * limits::SLICE_TASKS;
        let engine = Engine::in_memory(&Options::default());
        let shared = &engine.shared;
        let mut state = shared.lock();
        let now = shared.clock.now();
        let EngineState { broker, buffer, .. } = &mut *state;
        let lease = LeaseAsk { conn: Some(ConnId(7)), ..LeaseAsk::NONE };
        for n in 0..40 {
            let (queue, mut replies) = (format!("queue {n}"), Replies::default());
            let (queue, queues) = (queue.as_bytes(), [queue.as_bytes()]);
            broker.execute(
                now,
                &Command::Push { queue, payloads: &vec![&b"x"[..]; TASKS] },
                buffer,
                &mut replies,
            );
            let pop = Pop { lease, ..Pop::plain(&queues, TASKS as u32) };
            broker.execute(now, &Command::Pop(pop), buffer, &mut replies);
            assert_eq!(replies.tasks.len(), TASKS);
        }
        while broker.close_conn(ConnId(7), now, buffer) == Progress::More {}
        assert!(broker.is_under_way(), "most tasks of the connection are to be returned later");
        shared.end_unit(&mut state);
        state.begin_hold();
        state.held = Held::default();
        drop(state);
        let state = Compactor::finish_under_way(shared);
        assert!(!state.broker.is_under_way());
        assert!(!state.broker.has_awake(), "no pop waits, so queues that became ready are not listed");
        drop(state);
        let held = engine.held();
        assert!((limits::SLICE_TASKS..=3 * limits::SLICE_TASKS).contains(&held.moved), "{held:?}");
        engine.close().expect("nothing is kept");
    }
}
