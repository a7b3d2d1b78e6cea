//! Ends of workers and connections: requeues the tasks that they hold, a slice at a time.
//!
//! A worker stays registered until all of them are requeued, so that a server that takes over in between still
//! declares it lost when its time to live is over. Commands in its name are refused.

use sureq_core::task::{Cause, Holder};
use sureq_core::{Progress, limits};

use crate::keyed::{Make, Steps};
use crate::schedule::{Ending, Fronts, Place};
use crate::sliced;
use crate::workers;

/// The maximum number of keys in a slice.
const SLICE_PLACES: usize = 64;

/// One slice of requeueing the tasks of an ended holder. `Done` if nothing is left.
pub(crate) fn step(steps: &mut Steps<'_, '_>, holder: Holder) -> Progress {
    step_counted(steps, holder, &mut 0)
}

/// Like [`step`]; `count` becomes the number of tasks requeued so far, in all slices.
pub(crate) fn step_counted(steps: &mut Steps<'_, '_>, holder: Holder, count: &mut u64) -> Progress {
    let Some(mut ending) = steps.process.schedule.take_ending(holder) else { return Progress::Done };
    let mut room = limits::SLICE_TASKS;
    for _ in 0..SLICE_PLACES {
        if room == 0 {
            break;
        }
        let Some(place) = next_place(steps, holder, &ending) else {
            *count = ending.count;
            finish(steps, holder, &ending);
            return Progress::Done;
        };
        let back = requeue_held(steps, &place, holder, ending.cause, room, &mut ending.fronts);
        ending.count += back;
        if back < room as u64 {
            // The key has no more tasks of this holder, or cannot be accessed.
            steps.process.schedule.unhold(holder, &place);
        }
        room -= back as usize;
    }
    *count = ending.count;
    steps.process.schedule.resume_end(holder, ending);
    Progress::More
}

/// The next key with tasks of an ended holder. A worker may be registered in several databases; it stays alive in the
/// others and keeps its tasks there.
fn next_place(steps: &Steps<'_, '_>, holder: Holder, ending: &Ending) -> Option<Place> {
    let mut known = None;
    let is_meant = |&&(db, _): &&Place| {
        if ending.worker_of.contains(&db) {
            return true;
        }
        if known.is_none_or(|(of, _)| of != db) {
            known = Some((db, is_known_in(steps, holder, db)));
        }
        known.is_some_and(|(_, is_known)| !is_known)
    };
    steps.process.schedule.held_by(holder).find(is_meant).cloned()
}

fn is_known_in(steps: &Steps<'_, '_>, holder: Holder, db: i32) -> bool {
    let (Holder::Worker(incarnation), before) = (holder, steps.ctx.db()) else { return false };
    let is_known = steps.ctx.select(db) && workers::is_known(steps.ctx, incarnation);
    steps.ctx.select(before);
    is_known
}

/// Requeues up to `room` tasks of a holder in a key. Returns their number.
pub(crate) fn requeue_held(
    steps: &mut Steps<'_, '_>,
    (db, name): &Place,
    holder: Holder,
    cause: Cause,
    room: usize,
    fronts: &mut Fronts,
) -> u64 {
    let before = steps.ctx.db();
    if !steps.ctx.select(*db) {
        return 0;
    }
    let name = steps.ctx.string(name);
    let of = sliced::serial_of(steps.ctx, name.as_str());
    let mut group = of.and_then(|of| fronts.remove(&of));
    let back = steps.on(name.as_str(), Make::Never, |queue, rec, now| {
        queue.end_some(holder, cause, room, &mut group, now, rec)
    });
    steps.ctx.select(before);
    let back = back.ok().flatten().unwrap_or(0);
    if back == room as u64 {
        fronts.extend(of.zip(group));
    }
    back
}

fn finish(steps: &mut Steps<'_, '_>, holder: Holder, ending: &Ending) {
    let Holder::Worker(incarnation) = holder else { return };
    if ending.worker_of.is_empty() {
        return;
    }
    steps.process.jobs.tell_ended(incarnation, ending.count);
    let before = steps.ctx.db();
    for &db in &ending.worker_of {
        if steps.ctx.select(db) {
            workers::forget(steps, incarnation);
        }
    }
    steps.ctx.select(before);
}
