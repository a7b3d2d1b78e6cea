//! Tickets: the right to answers that the server has not given yet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use sureq_core::id::Spelling;
use sureq_core::reply::TaskView;
use sureq_core::{Refusal, Replies, Reply};
use tokio::sync::Notify;

use super::pipe::Pipe;
use crate::seam::Body;

/// What came of commands.
#[derive(Debug)]
pub struct Answer {
    /// One reply for each.
    pub replies: Replies<Body>,
}

/// The queues of a pop: which of the commands it is, and what the tasks' queue numbers mean.
pub(super) struct PopOf {
    pub(super) command: usize,
    pub(super) queues: Arc<[Box<[u8]>]>,
}

/// Deliveries of a queue that nobody took, as the server knows them.
pub(super) struct Untaken {
    pub(super) queue: Box<[u8]>,
    pub(super) tasks: Vec<Vec<u8>>,
}

/// The two ends of a ticket.
#[derive(Default)]
pub(super) struct Slot {
    state: Mutex<State>,
    left: Notify,
    pops: Vec<PopOf>,
}

#[derive(Default)]
struct State {
    replies: Option<Replies<Body>>,
    waker: Option<Waker>,
    /// Nobody will take the answer.
    is_abandoned: bool,
}

impl Slot {
    pub(super) fn new(pops: Vec<PopOf>) -> Self {
        Self { state: Mutex::default(), left: Notify::new(), pops }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody will take the answer.
    pub(super) async fn left(&self) {
        self.left.notified().await;
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.lock().is_abandoned
    }

    /// Puts the answer there; if nobody will take it, answers what has to go back.
    pub(super) fn fill(&self, replies: Replies<Body>) -> Vec<Untaken> {
        let mut state = self.lock();
        if state.is_abandoned {
            return self.untaken(&replies);
        }
        state.replies = Some(replies);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Vec::new()
    }

    /// Answers so many commands with the same no.
    pub(super) fn refuse(&self, commands: usize, refusal: &Refusal) {
        let mut replies = Replies::default();
        replies.list.resize_with(commands, || Reply::Refused(refusal.clone()));
        // There is nothing in it that could go back.
        self.fill(replies);
    }

    /// The deliveries of an answer, by queue.
    fn untaken(&self, replies: &Replies<Body>) -> Vec<Untaken> {
        let mut all = Vec::new();
        for pop in &self.pops {
            let Some(Reply::Tasks(span)) = replies.list.get(pop.command) else { continue };
            for (index, queue) in pop.queues.iter().enumerate() {
                let tasks = replies.tasks[span.range()].iter().filter(|task| task.queue as usize == index);
                let tasks: Vec<Vec<u8>> = tasks.map(reference).collect();
                if !tasks.is_empty() {
                    all.push(Untaken { queue: queue.clone(), tasks });
                }
            }
        }
        all
    }
}

/// How a delivery is named: by its receipt, or by the id alone where the pop asked for none.
fn reference(task: &TaskView<Body>) -> Vec<u8> {
    match &task.spelt {
        Some(spelt) => spelt.to_vec(),
        None => spelt(task.receipt()),
    }
}

/// A receipt as the server knows it. No incarnation is zero: such a delivery is known by its id alone.
pub(super) fn spelt(receipt: sureq_core::Receipt) -> Vec<u8> {
    match receipt.incarnation {
        0 => Spelling::of_id(receipt.id).as_bytes().to_vec(),
        _ => Spelling::of_receipt(receipt).as_bytes().to_vec(),
    }
}

/// The right to the answers of commands that were sent. Dropped without having been used, what it was given goes back to the
/// front.
pub struct Ticket {
    pub(super) slot: Arc<Slot>,
    pub(super) pipe: Arc<Pipe>,
    pub(super) commands: usize,
    pub(super) is_waiting: bool,
}

impl Ticket {
    /// How many commands it is for.
    pub const fn commands(&self) -> usize {
        self.commands
    }

    /// Whether it waits for tasks, which go back if nobody takes them.
    pub const fn is_for_tasks(&self) -> bool {
        self.is_waiting
    }

    /// The answer, once it is there.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.slot.lock();
        if let Some(replies) = state.replies.take() {
            state.is_abandoned = true;
            return Poll::Ready(Answer { replies });
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits for the answer on this thread.
    pub fn wait(self) -> Answer {
        let waker = Waker::from(Arc::new(Parker(std::thread::current())));
        loop {
            match self.poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(answer) => return answer,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

struct Parker(std::thread::Thread);

impl std::task::Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("commands", &self.commands).finish_non_exhaustive()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.slot.lock();
        let untaken = state.replies.take();
        let was_taken = std::mem::replace(&mut state.is_abandoned, true);
        drop(state);
        if !was_taken {
            self.slot.left.notify_one();
            let untaken = untaken.map(|replies| self.slot.untaken(&replies));
            self.pipe.give_back(untaken.unwrap_or_default());
        }
    }
}
