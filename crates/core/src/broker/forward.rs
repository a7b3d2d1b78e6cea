//! Compaction: records a task again as a whole, so that the previous copy of its body in the log is no longer needed.

use core::ops::Bound;

use super::Broker;
use crate::event::{Event, QueueNo, Recorder};
use crate::id::TaskId;
use crate::queue::full;
use crate::task::Body;

impl<B: Body> Broker<B> {
    /// The body of a task, if it exists. `queue` is the queue to which it was pushed; the task is also found in the
    /// queue to which it moved.
    pub fn body_of(&self, queue: QueueNo, id: TaskId) -> Option<B> {
        let body_in = |no: QueueNo| self.slot(no).and_then(|slot| slot.queue.body_of(id));
        body_in(queue).or_else(|| self.adopters.iter().copied().find_map(body_in))
    }

    /// Records a task as a whole, with its payload, if it exists and `is_meant` accepts its body. The task keeps its
    /// state and gets a new body; the old one is released. `queue` is the queue to which it was pushed; the task is
    /// also found in the queue to which it moved. Returns whether it was recorded. Log time does not advance, and no
    /// waiting pop is woken.
    pub fn copy_forward<R: Recorder<Body = B>>(
        &mut self,
        queue: QueueNo,
        id: TaskId,
        payload: &[u8],
        is_meant: impl Fn(&B) -> bool,
        rec: &mut R,
    ) -> bool {
        let holds = |no: &QueueNo| {
            let body = self.slot(*no).and_then(|slot| slot.queue.body_of(id));
            body.is_some_and(|body| body.len() == payload.len() && is_meant(&body))
        };
        let elsewhere = || self.adopted.get(&id).copied().filter(holds);
        let Some(no) = Some(queue).filter(holds).or_else(elsewhere) else { return false };
        let Some(task) = self.slot(no).and_then(|slot| slot.queue.record(id)) else { return false };
        let full = full(no, &task, payload);
        let event = Event::Task(&full);
        rec.record(&event);
        self.apply(&event, rec).expect("a task fits the state it was read from");
        self.account(no);
        true
    }

    /// Records that a task has moved, and removes a few entries of moved tasks that are gone, so that the list stays
    /// in proportion to the existing tasks.
    pub(super) fn note_adopted(&mut self, id: TaskId, to: QueueNo) {
        self.adopted.insert(id, to);
        self.forget_adopted(2);
    }

    /// Checks `count` entries of tasks that moved to another queue, and removes those of tasks that are gone. The
    /// driver calls this regularly, for the case that tasks end while no others move.
    pub fn forget_adopted(&mut self, count: usize) {
        for _ in 0..count.min(self.adopted.len()) {
            let behind = (Bound::Excluded(self.adopted_seen), Bound::Unbounded);
            let Some((&id, &no)) = self.adopted.range(behind).next() else {
                self.adopted_seen = TaskId::NONE;
                continue;
            };
            self.adopted_seen = id;
            if self.slot(no).is_none_or(|slot| slot.queue.state_of(id).is_none()) {
                self.adopted.remove(&id);
            }
        }
    }

    /// How many tasks are listed as moved to another queue; some of them may be gone.
    pub fn adopted(&self) -> usize {
        self.adopted.len()
    }
}
