//! Tickets: the right to answers that Redis has not given yet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use sureq_core::reply::TaskView;
use sureq_core::{Replies, Reply};
use tokio::sync::mpsc::UnboundedSender;

use crate::answer::Payload;
use crate::call::spelt_receipt;
use crate::thread::Job;

/// What came of commands.
#[derive(Debug)]
pub struct Answer {
    /// One reply for each.
    pub replies: Replies<Vec<u8>>,
}

/// The queues of a pop: which of the commands it is, and what the tasks' queue numbers mean.
#[derive(Debug)]
pub(crate) struct PopOf {
    pub(crate) command: usize,
    pub(crate) queues: Vec<Vec<u8>>,
}

/// The two ends of a ticket.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    state: Mutex<State>,
    pub(crate) pops: Vec<PopOf>,
}

#[derive(Debug, Default)]
struct State {
    replies: Option<Replies<Payload>>,
    waker: Option<Waker>,
    /// Nobody will take the answer.
    is_abandoned: bool,
}

impl Slot {
    pub(crate) fn new(pops: Vec<PopOf>) -> Self {
        Self { state: Mutex::default(), pops }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.lock().is_abandoned
    }

    /// Puts the answer there; gives it back if nobody will take it.
    pub(crate) fn fill(&self, replies: Replies<Payload>) -> Option<Replies<Payload>> {
        let mut state = self.lock();
        if state.is_abandoned {
            return Some(replies);
        }
        state.replies = Some(replies);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        None
    }

    /// The deliveries of an answer, by queue, as scripts know them.
    pub(crate) fn receipts(&self, replies: &Replies<Payload>) -> Vec<(Vec<u8>, Vec<Vec<u8>>)> {
        let mut all = Vec::new();
        for pop in &self.pops {
            let Some(Reply::Tasks(span)) = replies.list.get(pop.command) else { continue };
            for (index, queue) in pop.queues.iter().enumerate() {
                let tasks = replies.tasks[span.range()].iter().filter(|task| task.queue as usize == index);
                let receipts: Vec<Vec<u8>> = tasks.map(receipt_of).collect();
                if !receipts.is_empty() {
                    all.push((queue.clone(), receipts));
                }
            }
        }
        all
    }
}

fn receipt_of(task: &TaskView<Payload>) -> Vec<u8> {
    match &task.spelt {
        None => spelt_receipt(task.receipt()).into_bytes(),
        Some(spelt) => spelt.to_vec(),
    }
}

/// The right to the answers of commands that were sent. Dropped without having been used, what it was given goes back to the
/// front.
#[derive(Debug)]
pub struct Ticket {
    pub(crate) slot: Arc<Slot>,
    pub(crate) jobs: UnboundedSender<Job>,
    pub(crate) commands: usize,
    /// It is for a pop that may wait.
    pub(crate) is_waiting: bool,
}

impl Ticket {
    /// How many commands it is for.
    pub const fn commands(&self) -> usize {
        self.commands
    }

    /// Whether it waits for tasks, which go back if nobody takes them.
    pub fn is_for_tasks(&self) -> bool {
        self.is_waiting
    }

    /// The answer, once it is there.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.slot.lock();
        if let Some(replies) = state.replies.take() {
            state.is_abandoned = true;
            return Poll::Ready(Answer { replies });
        }
        state.waker = Some(cx.waker().clone());
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

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.slot.lock();
        let untaken = state.replies.take();
        let was_taken = std::mem::replace(&mut state.is_abandoned, true);
        drop(state);
        if !was_taken {
            let untaken = untaken.map(|replies| self.slot.receipts(&replies)).unwrap_or_default();
            // A home that is closed has nothing to take back.
            let _ = self.jobs.send(Job::Abandoned(untaken));
        }
    }
}
