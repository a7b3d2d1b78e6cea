//! What happens by itself, on a primary: deadlines, appointments, and the ends of those who held tasks.
//!
//! One timer of Redis stands for all of it, set for what comes first. A replica decides nothing: it is told.

use sureq_core::Now;
use sureq_core::task::{Cause, Holder};

use crate::agenda::Place;
use crate::callbacks;
use crate::keyed::{Make, Steps, Untouched, is_due};
use crate::object::Object;
use crate::process::{self, Process};
use crate::redis::{self, Ctx, Value};
use crate::workers;

/// How many keys one call looks after before clients get their turn.
const STEPS: usize = 64;

/// How soon to look again while nothing may be written.
const PAUSED_MS: u64 = 10;

/// Sees to it that Redis calls when something is due. Costs nothing if it does already.
pub(crate) fn arm(ctx: Ctx<'_>, process: &mut Process, now: Now) {
    let Some(next) = process.agenda.next() else { return };
    let alarm = process.agenda.alarm;
    if alarm.is_some_and(|(at, _)| at <= next) || ctx.flags().is_replica() {
        return;
    }
    if let Some((_, timer)) = alarm {
        ctx.do_not_call(timer);
    }
    process.agenda.alarm = Some((next, ctx.call_later(next.since(now.log), Some(callbacks::alarm))));
}

/// Sees to it anew, because it is another time than was thought.
pub(crate) fn rearm(ctx: Ctx<'_>, process: &mut Process) {
    if let Some((_, timer)) = process.agenda.alarm.take() {
        ctx.do_not_call(timer);
    }
    let now = process.clock.now();
    arm(ctx, process, now);
}

/// Redis' timers follow the wall clock, which may be set back: whatever is due by now is not left to one that was set before.
pub(crate) fn look_at_clock(ctx: Ctx<'_>, process: &mut Process) {
    if process.agenda.next().is_some_and(|next| next <= process.clock.now().log) {
        rearm(ctx, process);
    }
}

/// Redis calls.
pub(crate) fn ring(ctx: Ctx<'_>) {
    process::with(|process| {
        process.agenda.alarm = None;
        let flags = ctx.flags();
        if flags.is_replica() || flags.is_loading() {
            return;
        }
        let now = process.clock.now();
        if redis::is_paused() {
            let timer = ctx.call_later(PAUSED_MS, Some(callbacks::alarm));
            process.agenda.alarm = process.agenda.next().map(|next| (next, timer));
            return;
        }
        // Nothing here is the command of a client that would count as a change by itself.
        let mut steps = Steps { ctx, process, now, is_followed: true, event: c"rq.tick" };
        end_holders(&mut steps);
        for _ in 0..STEPS {
            let Some(place) = steps.process.agenda.take_due(now.log) else { break };
            look_after(&mut steps, &place);
        }
        arm(ctx, steps.process, now);
    });
}

fn end_holders(steps: &mut Steps<'_, '_>) {
    while let Some((holder, cause, places)) = steps.process.agenda.take_ended() {
        for place in places {
            take_back(steps, &place, holder, cause);
        }
    }
}

/// Takes back what a holder has in a place; answers how many.
pub(crate) fn take_back(steps: &mut Steps<'_, '_>, place: &Place, holder: Holder, cause: Cause) -> u64 {
    let (db, name) = place;
    let before = steps.ctx.db();
    if !steps.ctx.select(*db) {
        return 0;
    }
    let name = steps.ctx.string(name);
    let back = steps.on(name.as_str(), Make::Never, |queue, rec, now| {
        queue.end_holder(holder, cause, usize::MAX, now, rec)
    });
    steps.ctx.select(before);
    back.ok().flatten().unwrap_or(0)
}

/// Has what is due in a place happen.
fn look_after(steps: &mut Steps<'_, '_>, (db, name): &Place) {
    if !steps.ctx.select(*db) {
        return;
    }
    let name = steps.ctx.string(name);
    if let Value::Queue(object) = steps.ctx.open_to_read(name.as_str()).value() {
        // What was planned is what happens now.
        object.planned = None;
        if !is_needed(object, steps.process, steps.now) {
            let (db, name) = (*db, name.as_str().bytes());
            return steps.process.agenda.plan(object, || (db, name.into()), steps.now);
        }
    }
    if steps.on(name.as_str(), Make::Never, |_, _, _| ()) == Err(Untouched::WrongType) {
        workers::end_lost(steps, name.as_str());
    }
}

/// Whether anything is to happen in a queue. One that is only looked at stays as it is.
fn is_needed(object: &Object, process: &Process, now: Now) -> bool {
    let is_before = object.queue.incarnation() < process.marks.incarnation;
    let mut holders = object.queue.holders();
    is_due(&object.queue, now)
        || object.is_foreign && holders.next().is_some()
        || is_before && holders.any(|holder| matches!(holder, Holder::Conn(_)))
}
