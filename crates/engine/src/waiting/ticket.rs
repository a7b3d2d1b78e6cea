//! Tickets: the right to an answer that does not exist yet, because a pop waits for tasks, payloads are being read,
//! slices are left to execute, or a search is in progress.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use sureq_core::reply::{Span, TaskView};
use sureq_core::{Receipt, Refusal, Replies, Reply};
use sureq_home_api::{Answer, Pending, by_queue};
use sureq_sync::{Mutex, MutexGuard};

use crate::commit::durable::Durable;
use crate::log::Position;
use crate::payload::body::Body;
use crate::payload::payloads::part_from_large;
use crate::shared::Shared;
use crate::waiting::sliced::{Sliced, Step};

/// The answer to a command that had to wait.
#[derive(Debug)]
pub(crate) struct PendingAnswer {
    /// The queues of a pop, in its order; the queue numbers of tasks are indexes into this list.
    pub(crate) queues: Vec<Box<[u8]>>,
    /// One reply and the lists it refers to.
    pub(crate) replies: Replies<Body>,
    /// The position that must be durable before it is sent.
    pub(crate) position: Position,
    /// When it was executed. The caller may take it much later.
    pub(crate) at: Instant,
    /// The queue of a recover.
    pub(crate) recovered_from: Option<Box<[u8]>>,
}

impl PendingAnswer {
    /// The answer to a command that has just been executed.
    pub(crate) fn new(queues: Vec<Box<[u8]>>, replies: Replies<Body>, position: Position) -> Self {
        Self { queues, replies, position, at: sureq_sync::now(), recovered_from: None }
    }

    /// The deliveries in it, by queue.
    pub(crate) fn receipts(&self) -> Vec<(Box<[u8]>, Vec<Receipt>)> {
        let all = by_queue(&self.queues, &self.replies.tasks, TaskView::receipt);
        all.map(|(queue, receipts)| (queue.clone(), receipts)).collect()
    }
}

impl From<PendingAnswer> for Answer {
    fn from(answer: PendingAnswer) -> Self {
        let PendingAnswer { replies, position, at, .. } = answer;
        Self { replies: replies.map_bodies(Body::into_payload), position, at }
    }
}

/// Moves the last reply and its tasks out of `replies`.
pub(crate) fn split_off(replies: &mut Replies<Body>, first_task: usize) -> Replies<Body> {
    let mut own = Replies { tasks: replies.tasks.split_off(first_task), ..Replies::default() };
    let all = Span::new(0, own.tasks.len());
    own.list.push(match replies.list.pop() {
        Some(Reply::Inspected(_)) => Reply::Inspected(all),
        _ => Reply::Tasks(all),
    });
    own
}

/// A list of one reply.
pub(crate) fn only(reply: Reply) -> Replies<Body> {
    let mut replies = Replies::default();
    replies.list.push(reply);
    replies
}

pub(crate) fn timed_out() -> Replies<Body> {
    only(Reply::TimedOut)
}

pub(crate) fn poisoned() -> Replies<Body> {
    only(Reply::Refused(Refusal::Poisoned))
}

/// The reply to a command that was executed, but may not be on disk.
fn unsure() -> Replies<Body> {
    let why = "the log failed before the command was durable: open the home again and check";
    only(Reply::Refused(Refusal::Unknown { why: why.into() }))
}

/// The part of a ticket that its caller and the engine share.
#[derive(Debug, Default)]
pub(crate) struct TicketCell {
    inner: Mutex<TicketState>,
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "the four are independent")]
pub(crate) struct TicketState {
    pub(crate) answer: Option<PendingAnswer>,
    /// The answer is incomplete: payloads are being read, or slices are left.
    pub(crate) is_loading: bool,
    /// The loader is reading payloads of the answer. No slice is executed meanwhile.
    is_reading: bool,
    /// The rest of its command, and whether nothing of it was executed yet.
    slices: Option<Sliced>,
    is_first: bool,
    /// The command is executed, or about to be, although there is no answer yet.
    pub(crate) is_executed: bool,
    pub(crate) waker: Option<Waker>,
}

impl fmt::Debug for TicketState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answer, is_loading, waker, .. } = self;
        let state = (answer, is_loading, waker);
        f.debug_tuple("TicketState").field(&state).finish()
    }
}

impl TicketState {
    /// Reading the payloads of the answer has ended, successfully or not.
    pub(crate) fn end_reading(&mut self) {
        self.is_reading = false;
        self.is_loading = self.slices.is_some();
    }
}

impl TicketCell {
    /// Begins an answer, to which slices may be added. Whether payloads must be read first is recorded under the same
    /// lock: a poll at this moment must not return the answer without them, nor execute the next slice.
    pub(crate) fn begin(&self, answer: PendingAnswer, slices: Option<Sliced>) {
        let is_cold = is_cold(&answer.replies);
        let mut ticket = self.lock();
        let is_begun = matches!(slices, Some(Sliced::Bulk(_)));
        ticket.is_first = answer.replies.list.is_empty() && !is_begun;
        ticket.is_reading = is_cold;
        ticket.is_loading = is_cold || slices.is_some();
        (ticket.answer, ticket.slices) = (Some(answer), slices);
    }

    /// Takes the rest of the command, and whether nothing of it was executed yet. None while payloads are read.
    pub(crate) fn take_slices(&self) -> Option<(Sliced, bool)> {
        let mut ticket = self.lock();
        if ticket.is_reading {
            return None;
        }
        let is_first = std::mem::take(&mut ticket.is_first);
        ticket.slices.take().map(|slices| (slices, is_first))
    }

    /// Puts back the rest that [`Self::take_slices`] took.
    pub(crate) fn put_slices(&self, slices: Sliced, is_first: bool) {
        let mut ticket = self.lock();
        (ticket.slices, ticket.is_first) = (Some(slices), is_first);
    }

    /// Adds a slice to the answer; `whole` makes one reply of all slices so far. If there are more to come, `rest` is
    /// what is left of the command. If payloads of the slice have to be read, that is next.
    pub(crate) fn add_slice(
        &self,
        mut slice: Replies<Body>,
        position: Position,
        rest: Option<Sliced>,
        whole: impl FnOnce(&Replies<Body>) -> Reply,
    ) {
        let is_cold = is_cold(&slice);
        let mut ticket = self.lock();
        ticket.is_reading = is_cold;
        ticket.is_loading = is_cold || rest.is_some();
        ticket.slices = rest;
        let Some(answer) = &mut ticket.answer else { return };
        let PendingAnswer { replies, .. } = answer;
        replies.tasks.append(&mut slice.tasks);
        replies.indexes.append(&mut slice.indexes);
        replies.queues.append(&mut slice.queues);
        replies.workers.append(&mut slice.workers);
        answer.position = answer.position.max(position);
        let is_refused = matches!(replies.list[..], [Reply::Refused(_)]);
        match slice.list.pop().unwrap_or_else(|| whole(replies)) {
            // One payload that cannot be read refuses all of an inspection.
            Reply::Inspected(_) if is_refused => replies.tasks.clear(),
            reply => replies.list = vec![reply],
        }
    }

    /// Answers with an error after the store has failed, unless the answer is complete.
    pub(crate) fn fail(&self, durable: &Durable) {
        let mut ticket = self.lock();
        if std::mem::take(&mut ticket.is_loading) {
            // Executed parts may be on disk or not.
            let may_be_done = ticket.answer.is_some() || ticket.is_executed;
            let replies = if may_be_done { unsure() } else { poisoned() };
            ticket.answer = Some(PendingAnswer::new(Vec::new(), replies, Position::START));
        }
        let waker = ticket.waker.take();
        drop(ticket);
        if let Some(waker) = waker {
            durable.wake_at(Position::START, &waker);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, TicketState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether payloads have to be read before a reply can be sent.
fn is_cold(replies: &Replies<Body>) -> bool {
    replies.tasks.iter().any(|task| task.body.place().is_some())
}

/// The right to the answer of a command that waits. Dropping it before the answer was taken ends the waiting and
/// requeues the tasks of the answer at the front.
pub(crate) struct EngineTicket {
    /// Its number among the waiters, if it is a waiting pop.
    pub(crate) number: Option<u64>,
    pub(crate) cell: Arc<TicketCell>,
    pub(crate) shared: Arc<Shared>,
}

impl Pending for EngineTicket {
    /// After a failure of the log the answer is an error; if the command was executed, the error says that its outcome
    /// is unknown.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Answer> {
        match self.shared.step(&self.cell) {
            Step::None => {}
            Step::More => {
                self.shared.wake_later(cx.waker());
                return Poll::Pending;
            }
            Step::Hold(position) => {
                self.shared.durable.wake_at(position, cx.waker());
                return Poll::Pending;
            }
        }
        let mut cell = self.cell.lock();
        if cell.slices.is_some() && !cell.is_reading {
            // The loader has finished meanwhile.
            drop(cell);
            self.shared.wake_later(cx.waker());
            return Poll::Pending;
        }
        let answered = cell.answer.as_ref().filter(|_| !cell.is_loading);
        let Some(position) = answered.map(|answer| answer.position) else {
            if self.shared.durable.failure().is_some() || self.shared.state.is_poisoned() {
                // The thread that should have answered may have ended.
                let may_be_done = cell.answer.take().is_some() || cell.is_executed;
                let replies = if may_be_done { unsure() } else { poisoned() };
                return Poll::Ready(PendingAnswer::new(Vec::new(), replies, Position::START).into());
            }
            cell.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let (durable, failed) = (self.shared.durable.position(), self.shared.durable.failure().is_some());
        if (position <= durable || failed)
            && let Some(mut answer) = cell.answer.take()
        {
            if position > durable {
                (answer.replies, answer.position) = (unsure(), Position::START);
            }
            drop(cell);
            part_from_large(&mut answer.replies.tasks);
            return Poll::Ready(answer.into());
        }
        drop(cell);
        self.shared.durable.wake_at(position, cx.waker());
        Poll::Pending
    }

    fn waits_for_tasks(&self) -> bool {
        self.number.is_some()
    }
}

impl Drop for EngineTicket {
    fn drop(&mut self) {
        // The state is left alone if a panic has put it in doubt: nothing of it will be confirmed.
        let Ok(mut state) = self.shared.state.lock() else { return };
        let waiting = self.number.and_then(|number| state.waiters.remove(number));
        if self.cell.lock().slices.take().is_some() {
            // Slices that were executed are written, although no caller waits for them.
            self.shared.notify_log(&mut state);
        }
        drop(state);
        if waiting.is_some() {
            // Very many connections may close in a row.
            self.shared.yield_lock();
        }
        let Some(answer) = self.cell.lock().answer.take() else { return };
        for (queue, receipts) in answer.receipts() {
            self.shared.requeue(&queue, &receipts);
        }
    }
}

impl fmt::Debug for EngineTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EngineTicket").field(&self.number).finish()
    }
}
