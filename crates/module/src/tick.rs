//! Timed work of a primary: deadlines, delayed tasks, and the ends of workers and connections.
//!
//! A single Redis timer is set for the earliest deadline. A replica makes no decisions: it applies effects.

use std::fs;

use sureq_core::reply::Replies;
use sureq_core::task::Holder;
use sureq_core::{Now, limits};

use crate::callbacks;
use crate::effects::Silent;
use crate::ends;
use crate::keyed::{Make, Steps, Untouched, is_due};
use crate::object::{Object, Usage};
use crate::payload::Payload;
use crate::process::{self, Process};
use crate::redis::{self, Ctx, Value};
use crate::schedule::Place;
use crate::sliced;
use crate::waiting;
use crate::workers;

/// The maximum time of one call, in microseconds.
const SLICE_US: u64 = 2_000;

/// The retry interval while writes are paused or a test holds back timed work, in milliseconds.
const PAUSED_MS: u64 = 10;

/// A period in which slices are executed back to back, before clients are served. Redis runs the next timer a
/// millisecond later.
pub(crate) struct TimeSlice {
    until_us: u64,
}

impl TimeSlice {
    pub(crate) fn begin() -> Self {
        let length_us = if pace_ms() == 0 { SLICE_US } else { 0 };
        Self { until_us: redis::monotonic_us() + length_us }
    }

    pub(crate) fn is_over(&self) -> bool {
        redis::monotonic_us() >= self.until_us
    }
}

/// The minimum pause in milliseconds between two time slices, if the environment requests one, so that tests can act
/// in between. Each time slice is then one slice of work. Only in debug builds.
fn pace_ms() -> u64 {
    let asked = || std::env::var("SUREQ_MODULE_PACE").ok()?.parse().ok();
    if cfg!(debug_assertions) { asked().unwrap_or(0) } else { 0 }
}

/// Whether a test holds back all timed work: as long as the file exists that the environment names. Only in debug
/// builds.
fn is_held() -> bool {
    cfg!(debug_assertions)
        && std::env::var_os("SUREQ_MODULE_HOLD").is_some_and(|file| fs::exists(file).is_ok_and(|it| it))
}

/// Sets the timer for the next deadline. Does nothing if it is set already.
pub(crate) fn arm(ctx: Ctx<'_>, process: &mut Process, now: Now) {
    process.schedule.see_departed();
    let Some(next) = process.next() else { return };
    let alarm = process.schedule.alarm;
    let has_own_work = !process.jobs.is_empty() || !process.garbage.is_empty();
    if alarm.is_some_and(|(at, _)| at <= next) || !has_own_work && ctx.flags().is_replica() {
        return;
    }
    if let Some((_, timer)) = alarm {
        ctx.do_not_call(timer);
    }
    let ms = next.since(now.log).max(pace_ms());
    process.schedule.alarm = Some((next, ctx.call_later(ms, Some(callbacks::alarm))));
}

/// Sets the timer anew after a change of time.
pub(crate) fn rearm(ctx: Ctx<'_>, process: &mut Process) {
    if let Some((_, timer)) = process.schedule.alarm.take() {
        ctx.do_not_call(timer);
    }
    let now = process.clock.now();
    arm(ctx, process, now);
}

/// Executes work that is overdue because the timer is late: Redis' timers follow the wall clock, which may be set
/// back.
pub(crate) fn look_at_clock(ctx: Ctx<'_>, process: &mut Process) {
    if process.next().is_some_and(|next| next <= process.clock.now().log) && pace_ms() == 0 {
        rearm(ctx, process);
    }
}

/// The callback of the timer.
pub(crate) fn ring(ctx: Ctx<'_>) {
    process::with(|process| {
        process.schedule.alarm = None;
        let flags = ctx.flags();
        if flags.is_loading() {
            return;
        }
        let now = process.clock.now();
        if is_held() || !flags.is_replica() && redis::is_paused() {
            let timer = ctx.call_later(PAUSED_MS, Some(callbacks::alarm));
            process.schedule.alarm = process.next().map(|next| (next, timer));
            return;
        }
        // Outside of a client command, the step itself must count as a change.
        let mut steps = Steps { ctx, process, now, is_followed: true, event: c"rq.tick" };
        process::with_replies(|out| take_turn(&mut steps, flags.is_replica(), out));
        waiting::refuse_suspects(&steps);
        arm(ctx, steps.process, now);
    });
}

/// Executes slices of all due work in rotation until it is done or the time slice is over.
fn take_turn(steps: &mut Steps<'_, '_>, is_replica: bool, out: &mut Replies<Payload>) {
    let turn = TimeSlice::begin();
    loop {
        // A replica executes read-only commands in slices.
        let mut has_worked = sliced::step(steps, out);
        steps.event = c"rq.tick";
        if !is_replica {
            has_worked |= end_holder(steps);
            has_worked |= look_after_next(steps);
        }
        has_worked |= release(steps);
        if !has_worked || turn.is_over() {
            return;
        }
    }
}

fn end_holder(steps: &mut Steps<'_, '_>) -> bool {
    let holder = steps.process.schedule.first_ending();
    holder.is_some_and(|holder| {
        let _ = ends::step(steps, holder);
        true
    })
}

fn look_after_next(steps: &mut Steps<'_, '_>) -> bool {
    let place = steps.process.schedule.take_due(steps.now.log);
    place.is_some_and(|place| {
        look_after(steps, &place);
        true
    })
}

/// Releases a part of the purged tasks of removed queues.
fn release(steps: &mut Steps<'_, '_>) -> bool {
    let Some(remains) = steps.process.garbage.last_mut() else { return false };
    if !remains.release_some(limits::SLICE_TASKS, &mut Silent(&mut Usage::default())) {
        steps.process.garbage.pop();
    }
    true
}

/// Executes the due work of a key.
fn look_after(steps: &mut Steps<'_, '_>, (db, name): &Place) {
    if !steps.ctx.select(*db) {
        return;
    }
    let name = steps.ctx.string(name);
    if let Value::Queue(object) = steps.ctx.open_to_read(name.as_str()).value() {
        let place = || (*db, name.as_str().bytes().into());
        // The entry has been taken from the schedule.
        steps.process.schedule.unplan(&mut object.planned, place);
        if !is_needed(object, steps) {
            return steps.process.schedule.plan(object, place, steps.now);
        }
    }
    let looked_after = steps.on(name.as_str(), Make::Never, |queue, rec, _| {
        queue.release_some_purged(limits::SLICE_TASKS, rec);
    });
    if looked_after == Err(Untouched::WrongType) {
        workers::end_lost(steps, name.as_str());
    }
}

/// Whether a queue has due work, without changing it.
fn is_needed(object: &Object, steps: &Steps<'_, '_>) -> bool {
    let is_before = object.queue.incarnation() < steps.process.marks.incarnation;
    let mut holders = object.queue.holders();
    is_due(&object.queue, steps.now)
        || object.queue.has_purged()
        || object.is_foreign && holders.next().is_some()
        || is_before && holders.any(|holder| is_gone(steps.ctx, holder))
}

/// Whether a holder has ended. Connections in saved data belonged to another server, or to this one before its
/// restart.
fn is_gone(ctx: Ctx<'_>, holder: Holder) -> bool {
    match holder {
        Holder::Worker(incarnation) => !workers::is_known(ctx, incarnation),
        Holder::Conn(_) => true,
    }
}
