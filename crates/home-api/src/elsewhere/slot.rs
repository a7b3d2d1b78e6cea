//! Reply slots: where the thread of a home puts the replies to a batch, and the ticket that waits for them.

use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use sureq_core::reply::TaskView;
use sureq_core::{Receipt, Refusal, Replies, Reply};
use sureq_sync::{Mutex, MutexGuard};

use crate::payload::{Payload, by_queue};
use crate::position::Position;
use crate::ticket::{Answer, Pending};

/// A pop of a batch: its index among the commands, and the queues that the tasks' queue numbers refer to.
#[derive(Debug)]
pub struct PopOf {
    /// Its index among the commands.
    pub command: usize,
    /// The queues it names, in order.
    pub queues: Arc<[Box<[u8]>]>,
}

/// Deliveries from a queue that no caller took, to be requeued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// The name of the queue.
    pub queue: Box<[u8]>,
    /// The ids or receipts of the deliveries as the home writes them, in order.
    pub tasks: Vec<Vec<u8>>,
}

impl PopOf {
    /// The deliveries of the pop, given the replies to its batch. Each is identified by its foreign id, if it has
    /// one, or else by its receipt.
    pub fn undelivered(
        &self,
        replies: &Replies<Payload>,
        receipt_text: fn(Receipt) -> Vec<u8>,
    ) -> Vec<Undelivered> {
        let Some(Reply::Tasks(span)) = replies.list.get(self.command) else { return Vec::new() };
        let name = |task: &TaskView<Payload>| match &task.foreign_id {
            Some(own) => own.to_vec(),
            None => receipt_text(task.receipt()),
        };
        let all = by_queue(&self.queues, &replies.tasks[span.range()], name);
        all.map(|(queue, tasks)| Undelivered { queue: queue.clone(), tasks }).collect()
    }
}

/// Receives the replies to a batch, and hands them to its caller.
#[derive(Debug)]
pub struct ReplySlot {
    state: Mutex<SlotState>,
    pops: Vec<PopOf>,
    receipt_text: fn(Receipt) -> Vec<u8>,
}

#[derive(Debug)]
struct SlotState {
    /// The replies, and when they arrived.
    answer: Option<(Replies<Payload>, Instant)>,
    /// Wakes the caller.
    taker: Option<Waker>,
    /// Wakes the home's thread when the slot is abandoned.
    giver: Option<Waker>,
    /// The replies were taken, or never will be.
    is_abandoned: bool,
}

impl ReplySlot {
    /// An empty slot for a batch with these pops, in a home that writes receipts with `receipt_text`.
    pub fn new(pops: Vec<PopOf>, receipt_text: fn(Receipt) -> Vec<u8>) -> Self {
        let state = SlotState { answer: None, taker: None, giver: None, is_abandoned: false };
        Self { state: Mutex::new(state), pops, receipt_text }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pops of the batch.
    pub fn pops(&self) -> &[PopOf] {
        &self.pops
    }

    /// Whether the replies were taken, or never will be.
    pub fn is_abandoned(&self) -> bool {
        self.lock().is_abandoned
    }

    /// Waits until the slot is abandoned.
    pub async fn abandoned(&self) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if state.is_abandoned {
                return Poll::Ready(());
            }
            note(&mut state.giver, cx);
            Poll::Pending
        })
        .await;
    }

    /// Stores the replies and wakes the caller. Returns the deliveries to requeue if the slot is abandoned.
    pub fn fill(&self, replies: Replies<Payload>) -> Vec<Undelivered> {
        self.fill_at(replies, sureq_sync::now())
    }

    /// Like [`Self::fill`], for replies that began to arrive at this time: leases in them began no later.
    pub fn fill_at(&self, replies: Replies<Payload>, at: Instant) -> Vec<Undelivered> {
        let mut state = self.lock();
        if state.is_abandoned {
            drop(state);
            return self.undelivered(&replies);
        }
        state.answer = Some((replies, at));
        let waker = state.taker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Vec::new()
    }

    /// Refuses all commands of a batch.
    pub fn refuse(&self, commands: usize, refusal: &Refusal) {
        let mut replies = Replies::default();
        replies.list.resize_with(commands, || Reply::Refused(refusal.clone()));
        // A refusal contains no deliveries.
        self.fill(replies);
    }

    /// Refuses all commands of a batch, unless the replies have arrived or the slot is abandoned.
    pub fn refuse_if_open(&self, commands: usize, refusal: &Refusal) {
        let is_open = {
            let state = self.lock();
            state.answer.is_none() && !state.is_abandoned
        };
        if is_open {
            self.refuse(commands, refusal);
        }
    }

    /// The replies and when they arrived; returned once.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<(Replies<Payload>, Instant)> {
        let mut state = self.lock();
        if let Some(answer) = state.answer.take() {
            state.is_abandoned = true;
            return Poll::Ready(answer);
        }
        note(&mut state.taker, cx);
        Poll::Pending
    }

    /// Abandons the slot. Returns the deliveries in the replies, if they have arrived and were not taken.
    fn abandon(&self) -> Option<Vec<Undelivered>> {
        let mut state = self.lock();
        let undelivered = state.answer.take();
        let was_over = std::mem::replace(&mut state.is_abandoned, true);
        let waker = state.giver.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        (!was_over).then(|| undelivered.map(|(replies, _)| self.undelivered(&replies)).unwrap_or_default())
    }

    /// The deliveries of all pops, those of the last one first: each is requeued at the front, so that all keep their
    /// order.
    fn undelivered(&self, replies: &Replies<Payload>) -> Vec<Undelivered> {
        self.pops.iter().rev().flat_map(|pop| pop.undelivered(replies, self.receipt_text)).collect()
    }
}

/// A home that requeues deliveries that were not taken.
pub trait Requeue {
    /// A ticket was dropped before its answer was taken. If the replies had arrived, these were in them; otherwise the
    /// list is empty, and the home's thread finds the slot abandoned.
    fn requeue(&self, undelivered: Vec<Undelivered>);
}

/// The caller's end of a [`ReplySlot`].
pub struct SlotTicket<H: Requeue> {
    slot: Arc<ReplySlot>,
    home: Arc<H>,
    waits_for_tasks: bool,
}

impl<H: Requeue> SlotTicket<H> {
    /// For commands whose replies will be put into this slot.
    pub const fn new(slot: Arc<ReplySlot>, home: Arc<H>) -> Self {
        Self { slot, home, waits_for_tasks: false }
    }

    /// For a pop that may wait for tasks.
    pub const fn for_tasks(slot: Arc<ReplySlot>, home: Arc<H>) -> Self {
        Self { slot, home, waits_for_tasks: true }
    }
}

impl<H: Requeue + Send + Sync> Pending for SlotTicket<H> {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Answer> {
        self.slot.poll(cx).map(|(replies, at)| Answer { replies, position: Position::START, at })
    }

    fn waits_for_tasks(&self) -> bool {
        self.waits_for_tasks
    }
}

impl<H: Requeue> Drop for SlotTicket<H> {
    fn drop(&mut self) {
        if let Some(undelivered) = self.slot.abandon() {
            self.home.requeue(undelivered);
        }
    }
}

fn note(waker: &mut Option<Waker>, cx: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waker = Some(cx.waker().clone()),
    }
}

#[cfg(test)]
mod tests {
    use sureq_core::id::IdText;
    use sureq_core::reply::Span;
    use sureq_core::{LogTime, TaskId};

    use super::*;

    fn slot(queues: &[&str]) -> ReplySlot {
        let queues = queues.iter().map(|queue| queue.as_bytes().into()).collect();
        let receipt_text = |receipt: Receipt| IdText::of_id(receipt.id).as_bytes().to_vec();
        ReplySlot::new(vec![PopOf { command: 0, queues }], receipt_text)
    }

    /// Tasks 1-1, 1-2, … of these queues; the last one has a foreign id.
    fn popped(queues: &[u32]) -> Replies<Payload> {
        let mut replies = Replies::default();
        for (n, &queue) in (1..).zip(queues) {
            let id = TaskId::new(1, n).unwrap();
            let (at, more, foreign_id) = (LogTime(0), None, None);
            let (deliveries, incarnation, elapsed_ms) = (1, 1, 0);
            replies.tasks.push(TaskView {
                queue,
                id,
                body: Payload::from(&b"x"[..]),
                deliveries,
                incarnation,
                at,
                elapsed_ms,
                more,
                foreign_id,
            });
        }
        replies.tasks.last_mut().unwrap().foreign_id = Some(b"own".as_slice().into());
        replies.list.push(Reply::Tasks(Span::new(0, queues.len())));
        replies
    }

    fn undelivered(queue: &str, tasks: &[&str]) -> Undelivered {
        let tasks = tasks.iter().map(|task| task.as_bytes().to_vec()).collect();
        Undelivered { queue: queue.as_bytes().into(), tasks }
    }

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[test]
    fn a_taken_answer_is_neither_returned_again_nor_requeued() {
        let slot = slot(&["a"]);
        assert!(slot.poll(&mut cx()).is_pending() && !slot.is_abandoned());
        assert_eq!(slot.fill(popped(&[0])), []);
        assert!(slot.poll(&mut cx()).is_ready());
        assert!(slot.is_abandoned() && slot.abandon().is_none());
    }

    #[test]
    fn an_answer_that_is_taken_late_has_the_time_of_its_arrival() {
        let slot = slot(&["a"]);
        slot.fill(popped(&[0]));
        let filled = sureq_sync::now();
        while sureq_sync::now() == filled {}
        let Poll::Ready((_, at)) = slot.poll(&mut cx()) else { panic!("it is there") };
        assert!(at <= filled);
    }

    #[test]
    fn an_abandoned_slot_requeues_its_deliveries_by_queue_whenever_they_arrive() {
        let back = [undelivered("a", &["1-2"]), undelivered("c", &["1-1", "own"])];
        let early = slot(&["a", "b", "c"]);
        assert_eq!(early.fill(popped(&[2, 0, 2])), []);
        assert_eq!(early.abandon().unwrap(), back);
        let late = slot(&["a", "b", "c"]);
        assert_eq!(late.abandon().unwrap(), []);
        assert_eq!(late.fill(popped(&[2, 0, 2])), back);
        late.refuse(1, &Refusal::Closed);
    }

    #[test]
    fn an_abandoned_slot_of_several_pops_requeues_the_last_of_them_first() {
        let several = |command| PopOf { command, queues: [b"a".as_slice().into()].into() };
        let slot = ReplySlot::new(vec![several(0), several(1)], slot(&[]).receipt_text);
        let mut replies = popped(&[0, 0]);
        replies.list = vec![Reply::Tasks(Span::new(0, 1)), Reply::Tasks(Span::new(1, 2))];
        slot.abandon();
        assert_eq!(slot.fill(replies), [undelivered("a", &["own"]), undelivered("a", &["1-1"])]);
    }

    #[test]
    fn the_thread_learns_that_its_slot_is_abandoned() {
        let slot = slot(&["a"]);
        let mut abandoned = std::pin::pin!(slot.abandoned());
        assert!(abandoned.as_mut().poll(&mut cx()).is_pending());
        slot.abandon();
        assert!(abandoned.as_mut().poll(&mut cx()).is_ready());
    }
}
