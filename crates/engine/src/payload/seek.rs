//! Cancelling tasks by their payloads.
//!
//! There is no index of payloads. A search looks at all tasks of the queue, step by step. If the length matches, it
//! compares the payload, in memory or read without the lock, and cancels matching tasks by their ids. A step is bounded
//! in tasks and bytes: it is one job of the loader among others, and takes no longer than a large answer.

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

/// The tasks that one step looks at, and the payload bytes that it reads.
const STEP_TASKS: usize = 4096;
const STEP_BYTES: usize = 1 << 20;

/// A search for tasks with a payload.
#[derive(Debug)]
pub(crate) struct Search {
    queue: Box<[u8]>,
    pub(crate) payload: Box<[u8]>,
    seek: Seek,
    cancelled: u64,
    /// The refusal that has ended it early.
    refused: Option<Refusal>,
    /// A task whose payload could not be compared.
    unread: Option<Refusal>,
    /// The ticket that waits for the answer.
    cell: Arc<TicketCell>,
}

/// Tasks that one step of a search has found.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// Their payloads match.
    pub(crate) found: Vec<TaskId>,
    /// Their payloads have the right length and have to be read.
    pub(crate) unread: Vec<(TaskId, Stored)>,
}

impl Search {
    pub(crate) fn new(queue: &[u8], payload: &[u8], cell: Arc<TicketCell>) -> Self {
        let (queue, payload) = (queue.into(), payload.into());
        Self { queue, payload, seek: Seek::default(), cancelled: 0, refused: None, unread: None, cell }
    }

    /// Whether the caller has dropped its ticket. During a step the loader holds a reference as well.
    pub(crate) fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.cell) <= 2
    }

    /// The ticket that waits for the answer.
    pub(crate) fn cell(&self) -> Arc<TicketCell> {
        Arc::clone(&self.cell)
    }

    pub(crate) fn into_cell(self) -> Arc<TicketCell> {
        self.cell
    }

    /// Whether all tasks have been looked at.
    pub(crate) fn is_done(&self) -> bool {
        self.seek.is_done() || self.refused.is_some()
    }

    /// Looks at the next tasks.
    pub(crate) fn look(&mut self, shared: &Shared) -> Candidates {
        let Self { queue, payload, seek, .. } = self;
        let mut candidates = Candidates::default();
        let (mut places, mut bytes) = (Vec::new(), 0);
        // A search takes the lock thousands of times in a row; waiting threads come first.
        shared.yield_lock();
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
            // The queue does not exist any more.
            *seek = Seek::DONE;
        }
        candidates
    }

    /// Cancels the tasks that were found. The final reply reports a failed cancel, and payloads that could not be
    /// read, since those might match.
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
            // The store is closing or has failed.
            _ => self.refused = Some(Refusal::Closed),
        }
    }

    /// Ends the search because the store closes.
    pub(crate) fn dismiss(mut self, shared: &Shared) {
        self.refused = Some(Refusal::Closed);
        self.answer(shared);
    }

    /// Answers the ticket.
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
