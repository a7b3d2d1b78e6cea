//! Ends of workers and connections: what they hold goes back to its queues, a slice at a time.
//!
//! A worker is known until all of it is back, so that a server that takes over meanwhile finds it lost in due time; but
//! nothing is done in its name any more.

use sureq_core::task::{Cause, Holder};
use sureq_core::{Progress, limits};

use crate::agenda::{Ending, Place};
use crate::keyed::{Make, Steps};
use crate::workers;

/// How many keys one slice goes through.
const SLICE_PLACES: usize = 64;

/// One slice of taking back what a holder has that is gone. Done as well if there is nothing left to do.
pub(crate) fn step(steps: &mut Steps<'_, '_>, holder: Holder) -> Progress {
    step_counted(steps, holder, &mut 0)
}

/// The same; tells how many tasks were taken back by now, in all slices.
pub(crate) fn step_counted(steps: &mut Steps<'_, '_>, holder: Holder, count: &mut u64) -> Progress {
    let Some(mut ending) = steps.process.agenda.take_ending(holder) else { return Progress::Done };
    let mut room = limits::SLICE_TASKS;
    for _ in 0..SLICE_PLACES {
        if room == 0 {
            break;
        }
        if ending.places.is_empty() {
            // A queue of which it held tasks may have got another name meanwhile.
            ending.places = steps.process.agenda.release(holder);
        }
        if ending.places.is_empty() {
            *count = ending.count;
            finish(steps, holder, &ending);
            return Progress::Done;
        }
        room -= take_back_some(steps, holder, &mut ending, room);
    }
    *count = ending.count;
    steps.process.agenda.resume_end(holder, ending);
    Progress::More
}

/// Takes back up to `room` tasks from the first place of an ending. The place is done when there were fewer.
fn take_back_some(steps: &mut Steps<'_, '_>, holder: Holder, ending: &mut Ending, room: usize) -> usize {
    let Some(place) = ending.places.first().cloned() else { return 0 };
    let back = take_back(steps, &place, holder, ending.cause, room, &mut ending.group);
    ending.count += back;
    if back < room as u64 {
        ending.places.remove(&place);
        ending.group = None;
    }
    back as usize
}

/// Takes back up to `room` tasks that a holder has in a place; answers how many.
pub(crate) fn take_back(
    steps: &mut Steps<'_, '_>,
    (db, name): &Place,
    holder: Holder,
    cause: Cause,
    room: usize,
    group: &mut Option<u64>,
) -> u64 {
    let before = steps.ctx.db();
    if !steps.ctx.select(*db) {
        return 0;
    }
    let name = steps.ctx.string(name);
    let back = steps.on(name.as_str(), Make::Never, |queue, rec, now| {
        queue.end_some(holder, cause, room, group, now, rec)
    });
    steps.ctx.select(before);
    back.ok().flatten().unwrap_or(0)
}

fn finish(steps: &mut Steps<'_, '_>, holder: Holder, ending: &Ending) {
    let (Holder::Worker(incarnation), Some(db)) = (holder, ending.worker_of) else { return };
    steps.process.jobs.tell_ended(incarnation, ending.count);
    let before = steps.ctx.db();
    if steps.ctx.select(db) {
        workers::forget(steps, incarnation);
        steps.ctx.select(before);
    }
}
