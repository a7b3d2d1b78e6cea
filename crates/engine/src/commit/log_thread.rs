//! The only thread that writes to the log: it takes a frame from the commit buffer, writes it, syncs, and publishes the
//! position.

use std::time::{Duration, Instant};

use crate::commit::commit_buffer::Batch;
use crate::compaction::compactor;
use crate::log::{Durability, FrameBuf, LogAddress, LogError, Writer};
use crate::payload::placement;
use crate::shared::{EngineState, LOCK, Shared};
use sureq_sync::MutexGuard;

/// At the level `interval`, written frames are synced within this time.
const SYNC_INTERVAL: Duration = Duration::from_millis(100);

/// At the level `none` no reply waits for a write, so events are buffered for this long.
const LAZY_INTERVAL: Duration = Duration::from_millis(10);

/// The most bytes that are buffered at the level `none`. Until it is written, a frame is in memory twice.
pub(crate) const LAZY_BYTES: usize = 256 << 10;

/// The pause before another attempt to begin a segment for which the disk had no space.
const NO_SPACE_RETRY: Duration = Duration::from_millis(100);

/// A new segment waits at most this long for compaction to remove old ones.
const COMPACTION_PATIENCE: Duration = Duration::from_secs(1);

/// The interval at which it checks meanwhile, besides being woken.
const COMPACTION_LOOK: Duration = Duration::from_millis(10);

/// At the level `always` frames are synced after at most this many bytes.
const SYNC_BYTES: usize = 2 << 20;

/// A frame buffer that grew beyond this in a burst is not kept.
const KEPT_FRAME_BYTES: usize = 1 << 20;

/// The activity of the log thread, for threads that may have to wake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogThread {
    /// It works, and checks for more work before it sleeps.
    Awake,
    /// It waits for a commit.
    Sleeps,
    /// It waits for more events before it writes, at the level `none`.
    Accumulates,
    /// It waits for compaction or for disk space before it begins a segment.
    Waits,
}

pub(crate) fn run(shared: &Shared, mut writer: Writer) {
    if let Err(error) = write_until_closed(shared, &mut writer) {
        shared.fail(error);
    }
    shared.synced.end();
}

fn write_until_closed(shared: &Shared, writer: &mut Writer) -> Result<(), LogError> {
    let mut spare = FrameBuf::new();
    let (mut synced_at, mut unsynced_bytes) = (sureq_sync::now(), 0);
    loop {
        let mut state = wait_for_work(shared, writer, synced_at);
        if shared.durability == Durability::None {
            state = wait_for_more(shared, writer, state);
        }
        let closing = state.closing;
        if state.buffer.is_empty() {
            drop(state);
            sync(shared, writer)?;
            synced_at = sureq_sync::now();
            if closing {
                return Ok(());
            }
            continue;
        }
        let EngineState { broker, buffer, cache, sync_wanted, .. } = &mut *state;
        let is_wanted = *sync_wanted > writer.synced();
        let Some(batch) = buffer.take(&mut spare) else { continue };
        placement::verify(broker, &batch);
        let Batch { mut frame, events, end, place, has_payloads } = batch;
        if has_payloads {
            cache.keep_frame(place, &frame);
        }
        let has_full = buffer.has_full();
        drop(state);
        let written = append(shared, writer, &mut frame, events)?;
        assert_eq!(written, place, "tasks have the places of their payloads");
        unsynced_bytes += frame.body_len();
        let interval_over =
            shared.durability == Durability::Interval && sureq_sync::elapsed(synced_at) >= SYNC_INTERVAL;
        // Full frames that wait already are synced together.
        let is_last = !has_full || unsynced_bytes >= SYNC_BYTES;
        if shared.durability == Durability::Always && is_last || interval_over || is_wanted {
            sync(shared, writer)?;
            (synced_at, unsynced_bytes) = (sureq_sync::now(), 0);
        }
        if shared.durability != Durability::Always {
            shared.durable.publish(end);
        }
        spare = if frame.body_len() > KEPT_FRAME_BYTES { FrameBuf::new() } else { frame };
        spare.reset();
    }
}

/// Sleeps until there is something to write or to sync, or the store closes.
fn wait_for_work<'s>(shared: &'s Shared, writer: &Writer, synced_at: Instant) -> MutexGuard<'s, EngineState> {
    let mut state = shared.lock();
    while !state.buffer.is_committed() && !state.closing && state.sync_wanted <= writer.synced() {
        let unsynced = shared.durability == Durability::Interval && writer.synced() < writer.end();
        let left = SYNC_INTERVAL.saturating_sub(sureq_sync::elapsed(synced_at));
        if unsynced && left.is_zero() {
            break;
        }
        state.log_thread = LogThread::Sleeps;
        state = if unsynced {
            shared.log_wakes.wait_timeout(state, left).expect(LOCK).0
        } else {
            shared.log_wakes.wait(state).expect(LOCK)
        };
        state.log_thread = LogThread::Awake;
        state.begin_hold();
    }
    state
}

fn sync(shared: &Shared, writer: &mut Writer) -> Result<(), LogError> {
    let synced = writer.sync()?;
    shared.synced.publish(synced);
    if shared.durability == Durability::Always {
        shared.durable.publish(synced);
    }
    Ok(())
}

/// Waits for more events, unless the store closes.
fn wait_for_more<'s>(
    shared: &'s Shared,
    writer: &Writer,
    mut state: MutexGuard<'s, EngineState>,
) -> MutexGuard<'s, EngineState> {
    state.log_thread = LogThread::Accumulates;
    let may_wait = |state: &mut EngineState| {
        let is_little = state.buffer.bytes() < LAZY_BYTES && !state.buffer.is_long();
        !state.closing && state.sync_wanted <= writer.synced() && is_little
    };
    let waited = shared.log_wakes.wait_timeout_while(state, LAZY_INTERVAL, may_wait);
    let mut state = waited.expect(LOCK).0;
    state.log_thread = LogThread::Awake;
    state.begin_hold();
    state
}

/// Appends a frame. If the disk has no space for another segment, pushes are refused until it has.
fn append(
    shared: &Shared,
    writer: &mut Writer,
    frame: &mut FrameBuf,
    events: u32,
) -> Result<LogAddress, LogError> {
    let (segment, before) = (writer.segment().number, writer.bytes());
    if !writer.room().fits(frame.body_len()) && !shared.compaction.is_off {
        wait_for_compaction(shared, writer)?;
    }
    loop {
        match writer.append(frame, events) {
            Ok(place) => {
                shared.synced.stick(false);
                note(shared, writer, segment, before);
                return Ok(place);
            }
            Err(LogError::NoSpace(fault)) => {
                // Frames that are written already must not wait for space.
                sync(shared, writer)?;
                shared.synced.stick(true);
                shared.note_full();
                let mut state = shared.lock();
                if state.closing {
                    return Err(LogError::NoSpace(fault));
                }
                state.log_thread = LogThread::Waits;
                let mut state = shared.log_wakes.wait_timeout(state, NO_SPACE_RETRY).expect(LOCK).0;
                state.begin_hold();
                state.log_thread = LogThread::Awake;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Delays a new segment while old segments take up too much space, so that compaction keeps pace. Returns early if
/// compaction itself waits for the log, and at the latest after [`COMPACTION_PATIENCE`].
fn wait_for_compaction(shared: &Shared, writer: &mut Writer) -> Result<(), LogError> {
    let since = sureq_sync::now();
    loop {
        let mut state = shared.lock();
        let is_needed = state.closing || state.no_space || state.sync_wanted > writer.end();
        let is_behind = compactor::is_behind(&state, writer.room().segment_bytes());
        if is_needed || !is_behind || sureq_sync::elapsed(since) >= COMPACTION_PATIENCE {
            state.log_thread = LogThread::Awake;
            return Ok(());
        }
        state.log_thread = LogThread::Waits;
        // Frames that are written already must not wait. They are synced before the next segment in any case.
        if writer.synced() < writer.end() {
            drop(state);
            sync(shared, writer)?;
            continue;
        }
        shared.compaction.wake();
        drop(shared.log_wakes.wait_timeout(state, COMPACTION_LOOK).expect(LOCK));
    }
}

/// Accounts for a written frame, and wakes the threads that have work because of it.
fn note(shared: &Shared, writer: &Writer, segment: u64, before: u64) {
    let mut state = shared.lock();
    state.cache.has_written();
    state.logged_bytes += writer.bytes() - before;
    let (logged, has_emptied) = (state.logged_bytes, state.buffer.live.has_emptied());
    let has_rolled = writer.segment().number != segment;
    if has_rolled {
        state.segments.push(writer.segment());
    }
    drop(state);
    if has_rolled {
        // A segment is synced before the next begins, and only this publishes it.
        shared.synced.publish(writer.synced());
        shared.preallocator.wake();
    }
    if has_emptied || has_rolled || shared.compaction.is_due(logged) {
        shared.compaction.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;
    use sureq_home_api::Home as _;

    use sureq_core::{Command, Replies};

    use crate::engine::{Engine, Options};
    use crate::log::{Durability, LogError};

    /// At the level `none` the sync at the end of a segment may be the only one.
    #[test]
    fn the_sync_at_the_end_of_a_segment_is_published() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = Options {
            durability: Durability::None,
            segment_bytes: Some(64 << 10),
            // No checkpoint asks for a sync.
            keeps_log: true,
            ..Options::default()
        };
        let engine = Engine::open(dir.path(), &options).expect("a new store");
        let push = |bytes: usize| {
            let payload = vec![b'x'; bytes];
            let mut replies = Replies::default();
            let push = Command::Push { queue: b"q", payloads: &[&payload] };
            let _ = engine.submit(&[push], &mut replies);
            engine.commit();
            let end = engine.end();
            assert!(engine.wait(end), "it is written");
            end
        };
        let first = push(1 << 10);
        push(63 << 10);
        let (sender, receiver) = mpsc::channel();
        let shared = Arc::clone(&engine.shared);
        thread::spawn(move || sender.send(shared.sync_upto(first).is_ok()));
        assert_eq!(receiver.recv_timeout(Duration::from_secs(30)), Ok(true));
    }

    /// A thread that can free disk space must not wait for a log thread that waits for space.
    #[test]
    fn waiting_for_a_sync_fails_while_the_disk_has_no_space() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = Options { keeps_log: true, ..Options::default() };
        let engine = Engine::open(dir.path(), &options).expect("a new store");
        let unreached = engine.end().after(1).expect("a position");
        let (sender, receiver) = mpsc::channel();
        let shared = Arc::clone(&engine.shared);
        thread::spawn(move || sender.send(shared.sync_upto(unreached)));
        engine.shared.synced.stick(true);
        let synced = receiver.recv_timeout(Duration::from_secs(30)).expect("it does not wait for space");
        assert!(matches!(synced, Err(LogError::NoSpace(_))), "{synced:?}");
        // A position that is synced already needs no space.
        assert!(engine.shared.sync_upto(engine.durable()).is_ok());
        engine.shared.synced.stick(false);
        engine.close().expect("nothing is wrong with it");
    }
}
