//! The move of a dead task between queues that have logs of their own, as in the Redis module.
//!
//! In a broker such a move is one event of both queues. Here it is two: one queue removes the task, and the other
//! imports it as a whole. The resulting queues are the same either way.

use alloc::boxed::Box;

use super::Queue;
use super::read::full;
use crate::event::{Event, Recorder, Removal};
use crate::id::TaskId;
use crate::task::{Body, OrderKey, StateKind, TaskState};
use crate::time::Now;

impl<B: Body> Queue<B> {
    /// Moves a dead task to the back of another queue, with its tries, unless that queue has a task with its id. The
    /// task loses its name if another task of that queue has it. `payload` reads the bytes of a body. Returns whether
    /// the task moved.
    pub fn move_dead_to<F: Recorder<Body = B>, T: Recorder<Body = B>>(
        &mut self,
        id: TaskId,
        to: &mut Self,
        payload: &mut dyn FnMut(&B) -> Box<[u8]>,
        now: Now,
        recs: (&mut F, &mut T),
    ) -> bool {
        if self.state_of(id) != Some(StateKind::Dead) || to.state_of(id).is_some() {
            return false;
        }
        let Some(mut task) = self.record(id) else { return false };
        let bytes = payload(&task.body);
        let (from_rec, to_rec) = recs;
        self.remove_all(&[id], Removal::Deleted, now, from_rec);
        let major = to.last_id.max(id).raw().cast_signed();
        task.state = TaskState::Ready(OrderKey { major, minor: to.minor + 1 });
        task.live_on();
        if task.name().is_some_and(|name| to.names.contains_key(name)) {
            task.become_nameless();
        }
        let full = full(to.no, &task, &bytes);
        to.commit(&Event::Task(&full), now.log, to_rec);
        true
    }
}
