//! The contract itself: [`Home`], and the outcome of a submitted batch.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker};

use sureq_core::command::ConnId;
use sureq_core::{Command, Now, Receipt, Refusal, Replies};

use crate::cleaning::{CleanReport, Cleaning};
use crate::listener::Listener;
use crate::payload::Payload;
use crate::position::Position;
use crate::status::Status;
use crate::ticket::Ticket;
use crate::waiting::wait;

/// A place where queues live: it executes commands and keeps the waiters.
///
/// The obligations of both sides, in the order in which they matter:
///
/// 1. The caller **submits** a batch. The home executes commands in order and appends one reply for each. It stops
///    where it must ([`Flow`]); the caller submits the rest later.
/// 2. A reply may be **sent** only once its position is [durable](Self::durable), or after [`Self::failure`] as an
///    error. This holds for reads too: no client sees a state that a crash could undo.
/// 3. After one or more batches the caller **commits**. Until then a home may keep what it executed in memory.
/// 4. A [`Ticket`] states for how many commands it stands and **resolves once**. Its answer contains one reply for
///    each of them, and is durable.
/// 5. If the ticket of a pop is **dropped** before its answer was taken, the home requeues the tasks in it, at the
///    front of their queues. The caller requeues the tasks in a reply that could not be sent, by [`Self::requeue`].
///    Recovered tasks are not requeued.
/// 6. A [`Listener`] delivers only what is durable, in order. If it falls behind, it reports that it missed something.
/// 7. [`Self::close`] takes bounded time, even if the disk or the network hangs. Everything after it is refused.
///
/// No method but [`Self::execute`], [`Self::wait`], [`Self::clean`] and [`Self::close`] waits for a disk, a network or
/// a task. Others may wait a moment for the home's own lock.
pub trait Home: fmt::Debug + Send + Sync + 'static {
    /// Executes commands in order and appends their replies.
    fn submit(&self, commands: &[Command<'_>], replies: &mut Replies<Payload>) -> Submitted;

    /// Starts to make everything durable that was submitted. Returns the position that is durable once that is done.
    fn commit(&self) -> Position {
        Position::START
    }

    /// All changes before this position are as durable as the home promises. By default, all replies of a home are
    /// durable.
    fn durable(&self) -> Position {
        Position::START
    }

    /// Wakes the waker once the position is durable, or the home has failed.
    fn wake_at(&self, position: Position, waker: &Waker) {
        let _ = position;
        waker.wake_by_ref();
    }

    /// The reason, if the home has failed. A failed home confirms no more changes.
    fn failure(&self) -> Option<Broken> {
        None
    }

    /// Returns deliveries that never reached a worker to the front of their queue, at no cost.
    fn requeue(&self, queue: &[u8], receipts: &[Receipt]);

    /// Ends the leases that last as long as this connection.
    fn close_conn(&self, conn: ConnId);

    /// Times out all waiting pops.
    fn dismiss_waiters(&self);

    /// The number of waiting pops.
    fn waiters(&self) -> usize;

    /// A new listener, subscribed to nothing.
    fn listen(&self) -> Listener;

    /// The time by the home's clocks.
    fn now(&self) -> Now;

    /// Warnings for operators, such as a Redis that evicts keys.
    fn warnings(&self) -> &[String] {
        &[]
    }

    /// Numbers about the store; `None` from a home on a server that does not report them.
    fn status(&self) -> Option<Status> {
        None
    }

    /// Counts memory that a caller holds on behalf of clients: `bytes` instead of `before`.
    fn charge(&self, bytes: usize, before: usize) {
        let _ = (bytes, before);
    }

    /// Whether a pop can have a lease. Some foreign layouts on Redis have none.
    fn has_leases(&self) -> bool {
        true
    }

    /// Records that the server behind this home has no leases. Returns whether it was believed to have them.
    fn give_up_leases(&self) -> bool {
        false
    }

    /// Whether the home is part of this process, so that it cannot be reopened elsewhere after it is closed.
    fn is_in_process(&self) -> bool {
        false
    }

    /// Requeues tasks that other programs took and will not finish, in layouts where no program does so by itself.
    /// Cleans all queues if `queues` is empty.
    fn clean(&self, queues: &[&[u8]], how: Cleaning) -> Result<CleanReport, Refusal> {
        let _ = (queues, how);
        Err(Refusal::not_there(
            "cleaning: only queues on a Redis that are shared with other programs need it",
            "this home",
        ))
    }

    /// Makes everything durable, dismisses waiters, and releases files, threads and connections.
    fn close(&self) -> Result<(), Broken>;

    /// Blocks until the position is durable; false if it never will be.
    fn wait(&self, position: Position) -> bool {
        let outcome = || {
            if self.durable() >= position { Some(true) } else { self.failure().map(|_| false) }
        };
        wait(|cx| {
            if let Some(outcome) = outcome() {
                return Poll::Ready(outcome);
            }
            self.wake_at(position, cx.waker());
            // The position may have become durable before the waker was registered.
            outcome().map_or(Poll::Pending, Poll::Ready)
        })
    }

    /// Submits and commits commands, and blocks where the home needs time. It stops at a pop that waits for tasks, and
    /// where the replies have grown so large that they should be sent first: compare [`Submitted::executed`] with the
    /// number of commands. The replies may be sent once their position is durable.
    fn execute(&self, commands: &[Command<'_>], replies: &mut Replies<Payload>) -> Submitted {
        let mut all = Submitted::default();
        loop {
            let next = self.submit(&commands[all.executed..], replies);
            self.commit();
            all.executed += next.executed;
            all.position = all.position.max(next.position);
            all.served_waiters |= next.served_waiters;
            match next.flow {
                Flow::Waiting(ticket) if !ticket.waits_for_tasks() => {
                    let answer = ticket.wait();
                    all.executed += answer.replies.list.len();
                    all.position = all.position.max(answer.position);
                    replies.append(answer.replies);
                }
                Flow::Backpressure(Some(until)) if all.executed < commands.len() => {
                    // If the position never becomes durable, the home has failed and refuses the rest.
                    self.wait(until);
                }
                flow => {
                    all.flow = flow;
                    return all;
                }
            }
            if all.executed == commands.len() {
                return all;
            }
        }
    }
}

/// The outcome of a submitted batch.
#[derive(Debug, Default)]
#[must_use = "replies may be sent only once their position is durable"]
pub struct Submitted {
    /// The number of executed commands, and of appended replies.
    pub executed: usize,
    /// The position that must be durable before those replies are sent.
    pub position: Position,
    /// Whether waiting pops received tasks. They waited longer than the caller, so their replies should leave first.
    pub served_waiters: bool,
    /// How to continue with the rest.
    pub flow: Flow,
}

/// How the caller continues after a batch.
#[derive(Debug, Default)]
pub enum Flow {
    /// All commands were executed; submit more at any time.
    #[default]
    Ready,
    /// The next [`Ticket::commands`] commands will be answered by this ticket.
    Waiting(Ticket),
    /// Send the replies so far before submitting more; if there is a position, wait until that is durable, too.
    Backpressure(Option<Position>),
}

impl Submitted {
    /// The outcome of a batch that was sent to a server: the ticket stands for all of it.
    pub fn waiting(ticket: Ticket) -> Self {
        Self { flow: Flow::Waiting(ticket), ..Self::default() }
    }

    /// The ticket for the next command, if it has to be waited for.
    pub fn into_ticket(self) -> Option<Ticket> {
        match self.flow {
            Flow::Waiting(ticket) => Some(ticket),
            Flow::Ready | Flow::Backpressure(_) => None,
        }
    }
}

/// The reason why a home has failed. It confirms no more changes and must be opened again.
#[derive(Clone, Debug)]
pub struct Broken(Arc<dyn Error + Send + Sync>);

impl Broken {
    /// Wraps the reason.
    pub fn new(reason: Arc<dyn Error + Send + Sync>) -> Self {
        Self(reason)
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Broken {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
