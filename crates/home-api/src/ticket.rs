//! Tickets: the right to replies that have not arrived yet.

use std::fmt;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sureq_core::Replies;
use sureq_sync::thread::Parker;

use crate::payload::Payload;
use crate::position::Position;
use crate::waiting::unparks;

/// How often [`Ticket::wait`] polls without being woken: a panic may have ended the thread that would have woken it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The replies to commands that had to wait.
#[derive(Debug)]
pub struct Answer {
    /// One reply for each command.
    pub replies: Replies<Payload>,
    /// The position at which the replies are durable, unless they are errors.
    pub position: Position,
    /// When they arrived, which may be long before they were taken. Leases in them began no later.
    pub at: Instant,
}

/// A home's side of a [`Ticket`]. Dropping it before the answer was taken returns the tasks of a pop to their queues.
pub trait Pending: Send + Sync {
    /// The answer, once it is there and durable. It is returned once.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Answer>;

    /// Whether it stands for a pop that waits for tasks. Those must not be delivered to a client that has
    /// disconnected.
    fn waits_for_tasks(&self) -> bool;
}

/// The right to the replies of commands that wait: for tasks, for payloads on disk, or for a home elsewhere.
///
/// Dropping it before its answer was taken returns the tasks of a pop to the front of their queues.
pub struct Ticket {
    commands: usize,
    pending: Box<dyn Pending>,
}

impl Ticket {
    /// A ticket for this many commands, which this home will answer.
    pub fn new(commands: usize, pending: impl Pending + 'static) -> Self {
        Self { commands, pending: Box::new(pending) }
    }

    /// The number of commands that it stands for, and of the replies in its answer.
    pub const fn commands(&self) -> usize {
        self.commands
    }

    /// The answer, once it is there and may be sent. It is returned once.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Answer> {
        let answer = self.pending.poll(cx);
        if let Poll::Ready(answer) = &answer {
            debug_assert_eq!(answer.replies.list.len(), self.commands, "a reply for each command");
        }
        answer
    }

    /// Whether it stands for a pop that waits for tasks.
    pub fn waits_for_tasks(&self) -> bool {
        self.pending.waits_for_tasks()
    }

    /// Blocks until the answer is there.
    pub fn wait(self) -> Answer {
        let parker = Parker::new();
        let waker = unparks(&parker);
        loop {
            match self.poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(answer) => return answer,
                Poll::Pending => parker.park_timeout(LOOK_EVERY),
            }
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("waits_for_tasks", &self.waits_for_tasks()).finish_non_exhaustive()
    }
}
