//! Explains why a task is not being worked on.

use super::Queue;
use crate::event::Recorder;
use crate::id::TaskId;
use crate::reply::{Explanation, HeldUp, Why};
use crate::task::{Body, Due, Rank, TaskState};
use crate::time::Now;

impl<B: Body> Queue<B> {
    /// The reason why this task is not being worked on, if the task exists. Its worker is given by incarnation; the
    /// broker adds the name.
    pub(crate) fn explain<R: Recorder<Body = B>>(
        &mut self,
        id: TaskId,
        now: Now,
        rec: &mut R,
    ) -> Option<Explanation> {
        self.settle_with(id, now, rec);
        self.explanation(id, now)
    }

    /// The same without a change: a task that is due but not moved yet is explained as it is.
    pub(super) fn explanation(&self, id: TaskId, now: Now) -> Option<Explanation> {
        let task = self.look(id)?;
        let reason = task.extras.as_ref().and_then(|extras| extras.reason.clone());
        let why = match &task.state {
            TaskState::Ready(order) => {
                let rank = Rank::of(task.priority, *order);
                Why::Ready { ahead: self.ready.before(rank) as u64, held_up: self.held_up() }
            }
            TaskState::Delayed(due) => {
                let in_ms = match due {
                    Due::Log(at) => at.since(now.log),
                    Due::Wall(at) => at.0.saturating_sub(now.wall.0),
                };
                Why::Delayed { until: due.raw(), in_ms, held_up: self.held_up() }
            }
            TaskState::Leased(lease) => Why::Leased {
                since: lease.start(),
                until: lease.deadline(),
                holder: lease.holder(),
                cancelled: task.cancelled,
            },
            TaskState::Dead(at) => Why::Dead { at: *at },
        };
        let (tries, tries_max) = (task.tries(), self.tries_max(&task));
        Some(Explanation { id, deliveries: task.deliveries, tries, tries_max, reason, worker: None, why })
    }

    /// The reason why the queue delivers no task at all.
    fn held_up(&self) -> Option<HeldUp> {
        if let Some(since) = self.paused {
            return Some(HeldUp::Paused { since });
        }
        let leased = self.running() as u64;
        let max = self.settings.max_leased.filter(|&max| leased >= max)?;
        Some(HeldUp::AllLeased { leased, max })
    }
}
