//! Slots: the home's end of a ticket, where an answer is put that was waited for elsewhere.

use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use sureq_core::reply::TaskView;
use sureq_core::{Receipt, Refusal, Replies, Reply};
use sureq_sync::{Mutex, MutexGuard};

use crate::clock;

/// The queues of a pop: which of the commands it is, and what the tasks' queue numbers mean.
#[derive(Debug)]
pub struct PopOf {
    /// Its place among the commands.
    pub command: usize,
    /// The queues it named, in its order.
    pub queues: Arc<[Box<[u8]>]>,
}

/// Deliveries of a queue that nobody took, as the home spells them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untaken {
    /// The queue.
    pub queue: Box<[u8]>,
    /// Its tasks, in the order in which they were handed out.
    pub tasks: Vec<Vec<u8>>,
}

/// The tasks of a pop by its queues, in their order, each as `name` has it. Queues that gave nothing are left out.
pub fn by_queue<'a, Q, B, T>(
    queues: &'a [Q],
    tasks: &'a [TaskView<B>],
    name: impl Fn(&TaskView<B>) -> T,
) -> impl Iterator<Item = (&'a Q, Vec<T>)> {
    queues.iter().enumerate().filter_map(move |(index, queue)| {
        let own = tasks.iter().filter(|task| task.queue as usize == index);
        let own: Vec<T> = own.map(&name).collect();
        (!own.is_empty()).then_some((queue, own))
    })
}

impl PopOf {
    /// What the pop handed out, if these are the replies to its batch. A delivery is called what the answer called it, or
    /// else by its receipt.
    pub fn untaken<B>(&self, replies: &Replies<B>, spell: fn(Receipt) -> Vec<u8>) -> Vec<Untaken> {
        let Some(Reply::Tasks(span)) = replies.list.get(self.command) else { return Vec::new() };
        let name = |task: &TaskView<B>| match &task.spelt {
            Some(own) => own.to_vec(),
            None => spell(task.receipt()),
        };
        let all = by_queue(&self.queues, &replies.tasks[span.range()], name);
        all.map(|(queue, tasks)| Untaken { queue: queue.clone(), tasks }).collect()
    }
}

/// Where the answer to a batch of commands is put.
#[derive(Debug)]
pub struct Slot<B> {
    state: Mutex<State<B>>,
    pops: Vec<PopOf>,
    spell: fn(Receipt) -> Vec<u8>,
}

#[derive(Debug)]
struct State<B> {
    /// The answer, and when it came: whoever waits for it may be late to take it.
    answer: Option<(Replies<B>, Instant)>,
    /// Of whoever waits for the answer.
    taker: Option<Waker>,
    /// Of whoever answers, to be told that nobody waits any more.
    giver: Option<Waker>,
    /// Nobody will take the answer, or somebody has.
    is_abandoned: bool,
}

impl<B> Slot<B> {
    /// For a batch with these pops, in a home that spells receipts so.
    pub fn new(pops: Vec<PopOf>, spell: fn(Receipt) -> Vec<u8>) -> Self {
        let state = State { answer: None, taker: None, giver: None, is_abandoned: false };
        Self { state: Mutex::new(state), pops, spell }
    }

    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pops of the batch.
    pub fn pops(&self) -> &[PopOf] {
        &self.pops
    }

    /// Whether nobody will take the answer.
    pub fn is_abandoned(&self) -> bool {
        self.lock().is_abandoned
    }

    /// Waits until nobody will take the answer.
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

    /// Puts the answer there; if nobody will take it, answers what has to go back.
    pub fn fill(&self, replies: Replies<B>) -> Vec<Untaken> {
        self.fill_at(replies, clock::now())
    }

    /// The same for an answer that began to come then: leases in it count from before that.
    pub fn fill_at(&self, replies: Replies<B>, at: Instant) -> Vec<Untaken> {
        let mut state = self.lock();
        if state.is_abandoned {
            drop(state);
            return self.untaken(&replies);
        }
        state.answer = Some((replies, at));
        let waker = state.taker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Vec::new()
    }

    /// Answers so many commands with the same no.
    pub fn refuse(&self, commands: usize, refusal: &Refusal) {
        let mut replies = Replies::default();
        replies.list.resize_with(commands, || Reply::Refused(refusal.clone()));
        // There is nothing in it that could go back.
        self.fill(replies);
    }

    /// Answers so many commands with the same no, if they have no answer yet.
    pub fn refuse_if_open(&self, commands: usize, refusal: &Refusal) {
        let is_open = {
            let state = self.lock();
            state.answer.is_none() && !state.is_abandoned
        };
        if is_open {
            self.refuse(commands, refusal);
        }
    }

    /// The answer and when it was put there, once it is. It is given once.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<(Replies<B>, Instant)> {
        let mut state = self.lock();
        if let Some(answer) = state.answer.take() {
            state.is_abandoned = true;
            return Poll::Ready(answer);
        }
        note(&mut state.taker, cx);
        Poll::Pending
    }

    /// From now on nobody will take the answer. If nobody has, answers what has to go back of one that is there already.
    pub(crate) fn abandon(&self) -> Option<Vec<Untaken>> {
        let mut state = self.lock();
        let untaken = state.answer.take();
        let was_over = std::mem::replace(&mut state.is_abandoned, true);
        let waker = state.giver.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        (!was_over).then(|| untaken.map(|(replies, _)| self.untaken(&replies)).unwrap_or_default())
    }

    fn untaken(&self, replies: &Replies<B>) -> Vec<Untaken> {
        self.pops.iter().flat_map(|pop| pop.untaken(replies, self.spell)).collect()
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
    use sureq_core::id::Spelling;
    use sureq_core::reply::Span;
    use sureq_core::{LogTime, TaskId};

    use super::*;

    fn slot(queues: &[&str]) -> Slot<()> {
        let queues = queues.iter().map(|queue| queue.as_bytes().into()).collect();
        let spell = |receipt: Receipt| Spelling::of_id(receipt.id).as_bytes().to_vec();
        Slot::new(vec![PopOf { command: 0, queues }], spell)
    }

    /// Tasks 1-1, 1-2, … of these queues; the last one has a name of its own.
    fn popped(queues: &[u32]) -> Replies<()> {
        let mut replies = Replies::default();
        for (n, &queue) in (1..).zip(queues) {
            let id = TaskId::new(1, n).unwrap();
            let (at, more, spelt) = (LogTime(0), None, None);
            let (deliveries, incarnation, elapsed_ms) = (1, 1, 0);
            replies.tasks.push(TaskView {
                queue,
                id,
                body: (),
                deliveries,
                incarnation,
                at,
                elapsed_ms,
                more,
                spelt,
            });
        }
        replies.tasks.last_mut().unwrap().spelt = Some(b"own".as_slice().into());
        replies.list.push(Reply::Tasks(Span::new(0, queues.len())));
        replies
    }

    fn untaken(queue: &str, tasks: &[&str]) -> Untaken {
        let tasks = tasks.iter().map(|task| task.as_bytes().to_vec()).collect();
        Untaken { queue: queue.as_bytes().into(), tasks }
    }

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[test]
    fn an_answer_is_given_once_and_then_nothing_goes_back() {
        let slot = slot(&["a"]);
        assert!(slot.poll(&mut cx()).is_pending() && !slot.is_abandoned());
        assert_eq!(slot.fill(popped(&[0])), []);
        assert!(slot.poll(&mut cx()).is_ready());
        assert!(slot.is_abandoned() && slot.abandon().is_none());
    }

    #[test]
    fn an_answer_that_is_taken_late_tells_when_it_came() {
        let slot = slot(&["a"]);
        slot.fill(popped(&[0]));
        let filled = clock::now();
        while clock::now() == filled {}
        let Poll::Ready((_, at)) = slot.poll(&mut cx()) else { panic!("it is there") };
        assert!(at <= filled);
    }

    #[test]
    fn what_nobody_took_goes_back_by_queue_whichever_came_first() {
        let back = [untaken("a", &["1-2"]), untaken("c", &["1-1", "own"])];
        let early = slot(&["a", "b", "c"]);
        assert_eq!(early.fill(popped(&[2, 0, 2])), []);
        assert_eq!(early.abandon().unwrap(), back);
        let late = slot(&["a", "b", "c"]);
        assert_eq!(late.abandon().unwrap(), []);
        assert_eq!(late.fill(popped(&[2, 0, 2])), back);
        late.refuse(1, &Refusal::Closed);
    }

    #[test]
    fn whoever_answers_learns_that_nobody_waits() {
        let slot = slot(&["a"]);
        let mut abandoned = std::pin::pin!(slot.abandoned());
        assert!(abandoned.as_mut().poll(&mut cx()).is_pending());
        slot.abandon();
        assert!(abandoned.as_mut().poll(&mut cx()).is_ready());
    }
}
