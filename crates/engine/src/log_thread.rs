//! The one thread that writes: takes what has gathered, writes it as one frame, syncs, publishes.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use crate::engine::{LOCK, Shared, State};
use crate::log::{Durability, FrameBuf, LogError, Writer};

/// At the level `interval`, what is written is synced within this time.
const SYNC_INTERVAL: Duration = Duration::from_millis(100);

/// At the level `none` nobody waits for a write, so that it may gather for this long.
const LAZY_INTERVAL: Duration = Duration::from_millis(10);

/// How long to wait before a segment is asked for again that there was no room for.
const NO_SPACE_RETRY: Duration = Duration::from_millis(100);

/// A frame buffer that grew beyond this in a burst is not kept.
const KEPT_FRAME_BYTES: usize = 4 << 20;

pub(crate) fn run(shared: &Shared, mut writer: Writer) {
    if let Err(error) = write_until_closed(shared, &mut writer) {
        shared.fail(error);
    }
}

fn write_until_closed(shared: &Shared, writer: &mut Writer) -> Result<(), LogError> {
    let mut spare = FrameBuf::new();
    let mut synced_at = Instant::now();
    loop {
        let mut state = wait_for_work(shared, writer, synced_at);
        if shared.durability == Durability::None {
            state = doze(shared, state);
        }
        let closing = state.closing;
        if state.tape.is_empty() {
            drop(state);
            writer.sync()?;
            synced_at = Instant::now();
            if closing {
                return Ok(());
            }
            continue;
        }
        let (mut frame, events, end) = state.tape.take(spare);
        drop(state);
        append(shared, writer, &mut frame, events)?;
        let interval_over = shared.durability == Durability::Interval && synced_at.elapsed() >= SYNC_INTERVAL;
        if shared.durability == Durability::Always || interval_over {
            writer.sync()?;
            synced_at = Instant::now();
        }
        shared.durable.publish(end);
        spare = if frame.body().len() > KEPT_FRAME_BYTES { FrameBuf::new() } else { frame };
        spare.reset();
    }
}

/// Sleeps until something is committed, or something written is to be synced, or the store closes.
fn wait_for_work<'s>(shared: &'s Shared, writer: &Writer, synced_at: Instant) -> MutexGuard<'s, State> {
    let mut state = shared.lock();
    while !state.tape.is_committed() && !state.closing {
        let unsynced = shared.durability == Durability::Interval && writer.synced() < writer.end();
        let left = SYNC_INTERVAL.saturating_sub(synced_at.elapsed());
        if unsynced && left.is_zero() {
            break;
        }
        state.log_sleeps = true;
        state = if unsynced {
            shared.log_wakes.wait_timeout(state, left).expect(LOCK).0
        } else {
            shared.log_wakes.wait(state).expect(LOCK)
        };
        state.log_sleeps = false;
    }
    state
}

/// Lets more gather, unless the store closes.
fn doze<'s>(shared: &'s Shared, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
    let dozed = shared.log_wakes.wait_timeout_while(state, LAZY_INTERVAL, |state| !state.closing);
    dozed.expect(LOCK).0
}

/// Appends a frame. Where there is no room for another segment, pushes are refused until there is.
fn append(shared: &Shared, writer: &mut Writer, frame: &mut FrameBuf, events: u32) -> Result<(), LogError> {
    let segment = writer.segment().number;
    loop {
        match writer.append(frame, events) {
            Ok(place) => {
                if place.segment != segment {
                    shared.keeper.wake();
                }
                return Ok(());
            }
            Err(LogError::NoSpace(fault)) => {
                // What is written already must not wait for room: it has been promised.
                writer.sync()?;
                let mut state = shared.lock();
                state.no_space = true;
                if state.closing {
                    return Err(LogError::NoSpace(fault));
                }
                drop(shared.log_wakes.wait_timeout(state, NO_SPACE_RETRY).expect(LOCK));
            }
            Err(error) => return Err(error),
        }
    }
}
