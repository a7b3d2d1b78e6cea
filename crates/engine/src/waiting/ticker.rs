//! The thread that acts on the passing of time: it ends leases, makes delayed tasks ready and times out waiting pops.

use std::time::Duration;

use sureq_core::{LogTime, Now};
use sureq_sync::MutexGuard;

use crate::shared::{EngineState, LOCK, Shared};
use crate::waiting::ticket::timed_out;

/// The wall clock may jump, so tasks with a time of day are checked at this interval before their time.
const WALL_LOOK_MS: u64 = 100;

/// When the ticker must look next, if at all.
pub(crate) fn next_look(state: &EngineState, now: Now) -> Option<LogTime> {
    let next = state.broker.next_deadline();
    let wall = next.wall.map(|at| now.log.after(at.0.saturating_sub(now.wall.0).min(WALL_LOOK_MS)));
    let unserved = state.has_unserved().then_some(now.log);
    [next.log, state.waiters.next_timeout(), wall, unserved].into_iter().flatten().min()
}

pub(crate) fn run(shared: &Shared) {
    let mut state = shared.lock();
    while !state.closing {
        let now = shared.clock.now();
        tick(shared, &mut state, now);
        let is_due = state.broker.next_deadline().is_due(now)
            || state.has_unserved()
            || state.waiters.timed_out(now.log).is_some();
        if is_due || !state.woken.is_empty() {
            // Many due tasks are moved in slices, and other threads get the lock in between.
            shared.unlock_and_wake(state);
            shared.yield_lock();
            state = shared.lock();
        } else {
            state = sleep(shared, state, now);
        }
    }
    shared.unlock_and_wake(state);
}

/// Executes one slice of the due changes. The caller ensures that the ticker continues with the rest.
pub(crate) fn tick(shared: &Shared, state: &mut EngineState, now: Now) {
    if state.broker.next_deadline().is_due(now) {
        let EngineState { broker, buffer, .. } = &mut *state;
        broker.tick(now, buffer);
        shared.end_unit(state);
        shared.notify_log(state);
    }
    if shared.serve(state, now) {
        shared.notify_log(state);
    }
    while state.may_serve()
        && let Some(waiting) = state.waiters.timed_out(now.log).and_then(|number| state.end_wait(number))
    {
        let position = shared.position(state);
        Shared::answer(state, waiting, timed_out(), position);
    }
    state.forget_awake_unless_awaited();
}

/// Sleeps until the next deadline, or until an earlier one is added.
fn sleep<'s>(
    shared: &'s Shared,
    mut state: MutexGuard<'s, EngineState>,
    now: Now,
) -> MutexGuard<'s, EngineState> {
    let until = next_look(&state, now);
    state.ticker_sleeps = Some(until.unwrap_or(LogTime(u64::MAX)));
    let timeout = until.map(|at| Duration::from_millis(at.since(now.log)));
    state = match timeout {
        None => shared.ticker_wakes.wait(state).expect(LOCK),
        Some(timeout) => shared.ticker_wakes.wait_timeout(state, timeout).expect(LOCK).0,
    };
    state.ticker_sleeps = None;
    state.begin_hold();
    state
}
