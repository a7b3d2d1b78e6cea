//! Cancelling tasks by their payloads.
//!
//! Nothing says which tasks have a payload but the payloads themselves, and those lie on the disk. All tasks of the
//! queue are looked at, step by step. Where the length is right the payload is compared, in memory or read without the
//! lock; and those that have it are cancelled by their ids. A step is bounded in tasks and in bytes: it is one job of
//! the loader among others, and nobody waits for it longer than for a large answer.

use std::ops::ControlFlow;
use std::sync::Arc;

use sureq_core::command::{Cancel, IdForm, TaskRefs};
use sureq_core::queue::Seek;
use sureq_core::task::Body as _;
use sureq_core::{Command, Refusal, Replies, Reply, TaskId};

use crate::log::Position;
use crate::payload::body::Stored;
use crate::payload::cache::Found;
use crate::shared::Shared;
use crate::waiting::ticket::{PendingAnswer, TicketCell, only, poisoned};

/// How many tasks are looked at in one step, and how many bytes of payloads.
const STEP_TASKS: usize = 4096;
const STEP_BYTES: usize = 1 << 20;

/// A search for tasks with a payload.
#[derive(Debug)]
pub(crate) struct Search {
    queue: Box<[u8]>,
    pub(crate) payload: Box<[u8]>,
    seek: Seek,
    cancelled: u64,
    /// Why it came to an end too early.
    refused: Option<Refusal>,
    /// A task whose payload could not be compared.
    unread: Option<Refusal>,
    /// Who asked.
    cell: Arc<TicketCell>,
}

/// Tasks that a step of a search came upon.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// They have the payload.
    pub(crate) found: Vec<TaskId>,
    /// They have one of its length, which has to be read.
    pub(crate) unread: Vec<(TaskId, Stored)>,
}

impl Search {
    pub(crate) fn new(queue: &[u8], payload: &[u8], cell: Arc<TicketCell>) -> Self {
        let (queue, payload) = (queue.into(), payload.into());
        Self { queue, payload, seek: Seek::default(), cancelled: 0, refused: None, unread: None, cell }
    }

    /// Whether nobody waits for the answer any more: the loader holds it as well, while it takes a step.
    pub(crate) fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.cell) <= 2
    }

    /// Who asked.
    pub(crate) fn cell(&self) -> Arc<TicketCell> {
        Arc::clone(&self.cell)
    }

    pub(crate) fn into_cell(self) -> Arc<TicketCell> {
        self.cell
    }

    /// Whether there is nothing more to look at.
    pub(crate) fn is_done(&self) -> bool {
        self.seek.is_done() || self.refused.is_some()
    }

    /// Looks at the next tasks.
    pub(crate) fn look(&mut self, shared: &Shared) -> Candidates {
        let Self { queue, payload, seek, .. } = self;
        let mut candidates = Candidates::default();
        let (mut places, mut bytes) = (Vec::new(), 0);
        // A search takes the lock thousands of times in a row; everyone who waits for it comes first.
        shared.step_aside();
        let mut state = shared.lock();
        let is_there = state.broker.seek(queue, seek, STEP_TASKS, &mut |id, body| {
            match (body.is(payload), body.place()) {
                (Some(true), _) => candidates.found.push(id),
                (None, Some(place)) => {
                    places.push((id, place));
                    bytes += payload.len();
                }
                _ => {}
            }
            if bytes < STEP_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        for (id, place) in places {
            let is_it = state.payload(place).map(|found| match found {
                Found::Written(bytes) => *bytes == **payload,
                Found::Large(found) | Found::Read(found) => *found.as_ref() == **payload,
            });
            match is_it {
                Some(true) => candidates.found.push(id),
                Some(false) => {}
                None => candidates.unread.push((id, place)),
            }
        }
        if !is_there {
            // The queue is gone, and all its tasks.
            *seek = Seek::DONE;
        }
        candidates
    }

    /// Cancels what was found. Says so at the end if it could not be done, or if a payload could not be read: that one
    /// may be one of those that were meant.
    pub(crate) fn conclude(
        &mut self,
        shared: &Shared,
        found: &[TaskId],
        unreadable: Option<(TaskId, String)>,
    ) {
        if !found.is_empty() {
            self.cancel(shared, found);
        }
        if let Some((id, why)) = unreadable {
            self.unread.get_or_insert(Refusal::Damaged { id, why: why.into() });
        }
    }

    fn cancel(&mut self, shared: &Shared, found: &[TaskId]) {
        let ids: Vec<String> = found.iter().map(TaskId::to_string).collect();
        let list: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
        let which = Cancel::Ids(TaskRefs { list: &list, form: IdForm::Long });
        let (queue, mut replies) = (&self.queue, Replies::default());
        shared.change(|broker, now, buffer| {
            broker.execute(now, &Command::Cancel { queue, which }, buffer, &mut replies);
        });
        match replies.list.pop() {
            Some(Reply::Count(count)) => self.cancelled += count,
            // The store closes, or has failed.
            _ => self.refused = Some(Refusal::Closed),
        }
    }

    /// Ends it because the store closes.
    pub(crate) fn dismiss(mut self, shared: &Shared) {
        self.refused = Some(Refusal::Closed);
        self.answer(shared);
    }

    /// Answers whoever asked.
    pub(crate) fn answer(self, shared: &Shared) {
        let position = shared.position(&shared.lock());
        let (replies, position) = if shared.durable.failure().is_some() {
            (poisoned(), Position::START)
        } else {
            let refused = self.refused.or(self.unread);
            (only(refused.map_or(Reply::Count(self.cancelled), Reply::Refused)), position)
        };
        let mut ticket = self.cell.lock();
        ticket.answer = Some(PendingAnswer::new(Vec::new(), replies, position));
        ticket.is_loading = false;
        if let Some(waker) = ticket.waker.take() {
            drop(ticket);
            shared.durable.wake_at(position, &waker);
        }
    }
}
