//! The passing of time.

use super::Broker;
use crate::event::{Event, Recorder};
use crate::limits;
use crate::queue::Settled;
use crate::task::Body;
use crate::time::{LogTime, Now, WallTime};

/// The number of queues that one tick handles before other commands are served.
const STEPS_PER_TICK: usize = 16;

/// The time at which [`Broker::tick`] must be called again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextDeadline {
    pub log: Option<LogTime>,
    /// By the wall clock. It may jump, so the driver must compare it again regularly.
    pub wall: Option<WallTime>,
}

impl NextDeadline {
    pub fn is_due(&self, now: Now) -> bool {
        self.log.is_some_and(|at| at <= now.log) || self.wall.is_some_and(|at| at <= now.wall)
    }
}

impl<B: Body> Broker<B> {
    /// The next time at which something happens without a command.
    pub fn next_deadline(&self) -> NextDeadline {
        let queue = self.deadlines.first().map(|&(at, _)| at);
        let worker = self.workers.next_lost().map(|(at, _)| at);
        let too_many = self.idle.len() > limits::EMPTY_QUEUES_MAX;
        let remembered_ms = if too_many { 0 } else { limits::EMPTY_QUEUE_MS };
        let idle = self.idle.first().map(|&(since, _)| since.after(remembered_ms));
        // Bodies of dropped queues are released without delay, in slices.
        let dropped = (!self.dropped.is_empty()).then_some(self.clock);
        NextDeadline {
            log: [queue, worker, idle, dropped].into_iter().flatten().min(),
            wall: self.wall_deadlines.first().map(|&(at, _)| at),
        }
    }

    /// Carries out one slice of everything that is due: tasks, leases, workers, queues to forget. Call again while
    /// [`Self::next_deadline`] is due.
    pub fn tick<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut R) {
        self.stamped(now, rec, |broker, now, rec| {
            // This comes on top of the tasks that may be moved, so that neither delays the other.
            broker.release_dropped(limits::SLICE_TASKS, rec);
            for _ in 0..STEPS_PER_TICK {
                if rec.budget() == 0 {
                    return;
                }
                let due = broker.deadlines.first().filter(|&&(at, _)| at <= now.log).map(|&(_, no)| no);
                let met = broker.wall_deadlines.first().filter(|&&(at, _)| at <= now.wall).map(|&(_, no)| no);
                if let Some(no) = due.or(met) {
                    let settled = broker.on_queue(no, now, rec, |queue, rec| queue.settle_once(now, rec));
                    if settled == Settled::Slice {
                        return;
                    }
                } else if !broker.forget_one(now, rec) {
                    return;
                }
            }
        });
    }

    /// Carries out one slice of the announced operations that are under way ([`Self::is_under_way`]), and nothing
    /// else that is due.
    pub fn settle_under_way<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut R) {
        self.stamped(now, rec, |broker, now, rec| {
            if let Some(&no) = broker.unfinished.first() {
                broker.step(no, rec, |queue, rec| queue.settle_announced(now, rec));
                broker.refresh(no);
            }
        });
    }

    /// Forgets the queue that has been empty for the longest time, if it is due. Returns whether it did.
    fn forget_one<R: Recorder<Body = B>>(
        &mut self,
        now: Now,
        rec: &mut super::execute::Stamp<'_, R>,
    ) -> bool {
        let Some(&(since, no)) = self.idle.first() else { return false };
        let old = since.after(limits::EMPTY_QUEUE_MS) <= now.log;
        if old || self.idle.len() > limits::EMPTY_QUEUES_MAX {
            self.commit_stamped(&Event::QueueGone(no), rec);
            return true;
        }
        false
    }
}
