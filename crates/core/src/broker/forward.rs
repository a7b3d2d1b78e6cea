//! Copying forward: a task is recorded again, whole, so that the old place of its body is no longer needed.

use super::Broker;
use crate::event::{Event, QueueNo, Recorder};
use crate::id::TaskId;
use crate::queue::full;
use crate::task::Body;

impl<B: Body> Broker<B> {
    /// The body of a task, if it is there. `queue` is where it was pushed to; it is found where it was moved to as well.
    pub fn body_of(&self, queue: QueueNo, id: TaskId) -> Option<B> {
        let body_in = |no: QueueNo| self.slot(no).and_then(|slot| slot.queue.body_of(id));
        body_in(queue).or_else(|| self.adopters.iter().copied().find_map(body_in))
    }

    /// Records a task whole, with its payload, if it is there and `is_meant` says that its body is the one meant:
    /// the task stays as it is and gets a new body, and the old one is released. `queue` is where it was pushed to;
    /// it is found where it was moved to as well. Answers whether it was recorded. Nobody is woken by it, and it
    /// takes no time.
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
        let elsewhere = || self.adopters.iter().copied().find(holds);
        let Some(no) = Some(queue).filter(holds).or_else(elsewhere) else { return false };
        let Some(task) = self.slot(no).and_then(|slot| slot.queue.record(id)) else { return false };
        let full = full(no, &task, payload);
        let event = Event::Task(&full);
        rec.record(&event);
        self.apply(&event, rec).expect("a task fits the state it was read from");
        self.account(no);
        true
    }
}
