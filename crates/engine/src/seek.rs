//! Calling tasks off by their payloads.
//!
//! Nothing says which tasks have a payload but the payloads themselves, and those lie on the disk. All tasks of the queue
//! are looked at, some thousands at a time; where the length is right the payload is read, without the lock; and those that
//! have it are called off by their ids.

use std::sync::Arc;

use sureq_core::command::{Cancel, IdForm, TaskRefs};
use sureq_core::queue::Seek;
use sureq_core::task::Body as _;
use sureq_core::{Command, Refusal, Replies, Reply, TaskId};

use crate::body::{Body, Stored};
use crate::engine::Shared;
use crate::log::Position;
use crate::ticket::{Answer, TicketCell, only};

/// How many tasks are looked at under one lock.
const STEP_TASKS: usize = 4096;

/// A search for tasks with a payload.
#[derive(Debug)]
pub(crate) struct Search {
    queue: Box<[u8]>,
    payload: Box<[u8]>,
    seek: Seek,
    cancelled: u64,
    /// Who asked.
    cell: Arc<TicketCell>,
}

/// Tasks that a step of a search came upon.
pub(crate) struct Candidates {
    /// They have it.
    found: Vec<TaskId>,
    /// They have one of that length.
    unread: Vec<(TaskId, Stored)>,
}

impl Search {
    pub(crate) fn new(queue: &[u8], payload: &[u8], cell: Arc<TicketCell>) -> Self {
        Self { queue: queue.into(), payload: payload.into(), seek: Seek::default(), cancelled: 0, cell }
    }

    /// Whether nobody waits for the answer any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.cell) == 1
    }

    /// Looks at the next tasks.
    pub(crate) fn look(&mut self, shared: &Shared) -> Candidates {
        let mut candidates = Candidates { found: Vec::new(), unread: Vec::new() };
        let Self { queue, payload, seek, .. } = self;
        let state = shared.lock();
        let is_there = state.broker.seek(queue, seek, STEP_TASKS, &mut |id, body| match body.is(payload) {
            Some(true) => candidates.found.push(id),
            None if body.len() == payload.len() => {
                candidates.unread.extend(body.place().map(|place| (id, place)));
            }
            _ => {}
        });
        if !is_there {
            *seek = Seek::Done;
        }
        candidates
    }

    /// Calls off what was found; answers whether that was all.
    pub(crate) fn step(
        &mut self,
        shared: &Shared,
        mut candidates: Candidates,
        mut read: impl FnMut(&[Stored]) -> Vec<Option<Body>>,
    ) -> bool {
        let places: Vec<Stored> = candidates.unread.iter().map(|(_, place)| *place).collect();
        let bodies = read(&places);
        let has = |body: &Option<Body>| body.as_ref().and_then(|body| body.is(&self.payload)) == Some(true);
        let read = candidates.unread.iter().zip(&bodies).filter(|(_, body)| has(body));
        candidates.found.extend(read.map(|((id, _), _)| *id));
        if !candidates.found.is_empty() {
            self.cancel(shared, &candidates.found);
        }
        matches!(self.seek, Seek::Done)
    }

    fn cancel(&mut self, shared: &Shared, found: &[TaskId]) {
        let ids: Vec<String> = found.iter().map(TaskId::to_string).collect();
        let list: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
        let which = Cancel::Ids(TaskRefs { list: &list, form: IdForm::Long });
        let (queue, mut replies) = (&self.queue, Replies::default());
        shared.change(|broker, now, tape| {
            broker.execute(now, &Command::Cancel { queue, which }, tape, &mut replies);
        });
        if let Some(Reply::Count(count)) = replies.list.pop() {
            self.cancelled += count;
        }
    }

    /// Answers whoever asked: how many were called off, or that the store closes.
    pub(crate) fn answer(self, shared: &Shared, is_closing: bool) {
        let position = shared.position(&shared.lock());
        let (reply, position) = if is_closing {
            (Reply::Refused(Refusal::Closed), Position::START)
        } else {
            (Reply::Count(self.cancelled), position)
        };
        let mut ticket = self.cell.lock();
        ticket.answer = Some(Answer { queues: Vec::new(), replies: only(reply), position });
        ticket.is_loading = false;
        if let Some(waker) = ticket.waker.take() {
            drop(ticket);
            shared.durable.wake_at(position, &waker);
        }
    }
}
