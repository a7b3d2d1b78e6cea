//! A home: whatever executes commands.
#![cfg_attr(
    not(all(feature = "embedded", feature = "redis", feature = "remote")),
    allow(unused_variables, dead_code, reason = "what a home needs that was left out")
)]

use std::error::Error;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

#[cfg(feature = "redis")]
use sureq_core::Refusal;
use sureq_core::command::ConnId;
use sureq_core::notice::{Kind, Kinds};
use sureq_core::{Command, Now, Receipt, Replies};
#[cfg(feature = "embedded")]
use sureq_engine::Engine;
#[cfg(feature = "redis")]
use sureq_redis::{CleanReport, Cleaning, RedisHome};
use sureq_seam::{Heard, Position};

#[cfg(feature = "remote")]
use crate::remote::RemoteHome;
use crate::seam::Body;
#[cfg(feature = "embedded")]
use crate::{Cut, LogError, Status};

/// Where a queue lives. Dispatch is by variant, so that a command costs no box and no virtual call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Home {
    /// In this process, in a directory or in memory.
    #[cfg(feature = "embedded")]
    Embedded(Engine),
    /// In a Redis.
    #[cfg(feature = "redis")]
    Redis(RedisHome),
    /// On a server.
    #[cfg(feature = "remote")]
    Remote(RemoteHome),
}

/// Why a home confirms nothing any more. It will not until it is opened again.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct Broken(Arc<dyn Error + Send + Sync>);

#[cfg(feature = "embedded")]
impl From<Arc<LogError>> for Broken {
    fn from(failed: Arc<LogError>) -> Self {
        Self(failed)
    }
}

/// What came of a batch of commands.
pub type Executed = sureq_seam::Executed<Ticket>;

/// The right to an answer that is not there yet. Dropped without its answer having been taken, it leaves the line, and what it
/// was given goes back to the front.
#[derive(Debug)]
pub enum Ticket {
    /// For a command that waits in this process.
    #[cfg(feature = "embedded")]
    Embedded(sureq_engine::Ticket),
    /// For commands that a Redis was sent.
    #[cfg(feature = "redis")]
    Redis(sureq_redis::Ticket),
    /// For commands that a server was sent.
    #[cfg(feature = "remote")]
    Remote(crate::remote::Ticket),
}

/// One answer for the home within this process, and one for all that are elsewhere.
macro_rules! by_place {
    ($place:expr, $embedded:pat => $here:expr, $elsewhere:pat => $there:expr) => {
        match $place {
            #[cfg(feature = "embedded")]
            Self::Embedded($embedded) => $here,
            #[cfg(feature = "redis")]
            Self::Redis($elsewhere) => $there,
            #[cfg(feature = "remote")]
            Self::Remote($elsewhere) => $there,
        }
    };
    ($place:expr, $any:pat => $answer:expr) => {
        by_place!($place, $any => $answer, $any => $answer)
    };
}

/// What came of commands that had to wait.
#[derive(Debug)]
pub struct Answer {
    /// One reply for each, and what they point into.
    pub replies: Replies<Body>,
    /// What must be durable before they leave.
    pub position: Position,
    /// When they came, which may be long before they were taken.
    pub at: Instant,
}

impl Ticket {
    /// The answer, once it is there and may leave. After a failure of the log it is that nothing is confirmed any more.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Answer> {
        by_place!(self, ticket => ticket.poll(cx).map(Answer::from))
    }

    /// Waits for the answer on this thread.
    pub fn wait(self) -> Answer {
        by_place!(self, ticket => ticket.wait().into())
    }

    /// Whether it is for tasks alone, which go back if nobody takes them.
    pub fn is_for_tasks(&self) -> bool {
        by_place!(self, ticket => ticket.is_for_tasks())
    }
}

#[cfg(feature = "redis")]
impl From<sureq_redis::Ticket> for Ticket {
    fn from(ticket: sureq_redis::Ticket) -> Self {
        Self::Redis(ticket)
    }
}

#[cfg(feature = "remote")]
impl From<crate::remote::Ticket> for Ticket {
    fn from(ticket: crate::remote::Ticket) -> Self {
        Self::Remote(ticket)
    }
}

#[cfg(feature = "embedded")]
impl From<sureq_engine::Answer> for Answer {
    fn from(answer: sureq_engine::Answer) -> Self {
        Self { replies: answer.replies, position: answer.position, at: answer.at }
    }
}

#[cfg(feature = "redis")]
impl From<sureq_redis::Answer> for Answer {
    fn from(answer: sureq_redis::Answer) -> Self {
        let replies = answer.replies.map_bodies(|body| Body::from(&body[..]));
        Self { replies, position: Position::START, at: answer.at }
    }
}

#[cfg(feature = "remote")]
impl From<crate::remote::Answer> for Answer {
    fn from(answer: crate::remote::Answer) -> Self {
        Self { replies: answer.replies, position: Position::START, at: answer.at }
    }
}

/// Someone who hears what happens to queues. At first nothing is wanted; each want is taken back by the unwant that says the
/// same.
#[derive(Debug)]
pub enum Listener {
    /// In this process.
    #[cfg(feature = "embedded")]
    Embedded(sureq_engine::Listener),
    /// In a Redis.
    #[cfg(feature = "redis")]
    Redis(sureq_redis::Listener),
    /// On a server.
    #[cfg(feature = "remote")]
    Remote(crate::remote::Listener),
}

#[cfg(feature = "embedded")]
impl From<sureq_engine::Listener> for Listener {
    fn from(listener: sureq_engine::Listener) -> Self {
        Self::Embedded(listener)
    }
}

#[cfg(feature = "redis")]
impl From<sureq_redis::Listener> for Listener {
    fn from(listener: sureq_redis::Listener) -> Self {
        Self::Redis(listener)
    }
}

#[cfg(feature = "remote")]
impl From<crate::remote::Listener> for Listener {
    fn from(listener: crate::remote::Listener) -> Self {
        Self::Remote(listener)
    }
}

impl Listener {
    /// Hears this of a queue, which need not be there.
    pub fn want(&self, kind: Kind, queue: &[u8]) {
        by_place!(self, listener => listener.want(kind, queue));
    }

    /// Takes back what [`Self::want`] said.
    pub fn unwant(&self, kind: Kind, queue: &[u8]) {
        by_place!(self, listener => listener.unwant(kind, queue));
    }

    /// Hears these of all queues.
    pub fn want_everywhere(&self, kinds: Kinds) {
        by_place!(self, listener => listener.want_everywhere(kinds));
    }

    /// Takes back what [`Self::want_everywhere`] said.
    pub fn unwant_everywhere(&self, kinds: Kinds) {
        by_place!(self, listener => listener.unwant_everywhere(kinds));
    }

    /// What happened next, once it may be told; `None` when nothing more will.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Heard>> {
        by_place!(self, listener => listener.poll(cx))
    }
}

impl Home {
    /// Executes commands in order; stops at one whose answer has to be waited for, and gives a ticket for it.
    pub fn execute(&self, commands: &[Command<'_>], replies: &mut Replies<Body>) -> Executed {
        by_place!(self, engine => engine.execute(commands, replies).map_ticket(Ticket::Embedded), home => sent(home.execute(commands).into(), commands))
    }

    /// Executes like [`Self::execute`], and leaves it to the caller to [`Self::commit`] soon.
    #[doc(hidden)]
    pub fn gather(&self, commands: &[Command<'_>], replies: &mut Replies<Body>) -> Executed {
        by_place!(self, engine => engine.gather(commands, replies).map_ticket(Ticket::Embedded), home => sent(home.execute(commands).into(), commands))
    }

    /// Has what was gathered made durable; answers the position that is durable once it is.
    #[doc(hidden)]
    pub fn commit(&self) -> Position {
        by_place!(self, engine => engine.commit(), _ => Position::START)
    }

    /// Up to where everything is as durable as promised. A Redis answers only what is.
    pub fn durable(&self) -> Position {
        by_place!(self, engine => engine.durable(), _ => Position::START)
    }

    /// Wakes the waker once the position is durable, or once nothing will be any more.
    #[doc(hidden)]
    pub fn wake_at(&self, position: Position, waker: &Waker) {
        by_place!(self, engine => engine.wake_at(position, waker), _ => {});
    }

    /// Waits on this thread until the position is durable; answers false if it never will be.
    pub fn wait(&self, position: Position) -> bool {
        by_place!(self, engine => engine.wait(position), _ => true)
    }

    /// Why nothing is confirmed any more, if that is so.
    pub fn failure(&self) -> Option<Broken> {
        by_place!(self, engine => engine.failure().map(Broken::from), _ => None)
    }

    /// Gives deliveries that never reached their taker back to the front of their queue, at no cost.
    #[doc(hidden)]
    pub fn undeliver(&self, queue: &[u8], receipts: &[Receipt]) {
        by_place!(self, home => home.undeliver(queue, receipts));
    }

    /// Brings back what somebody took and will not finish, where that does not happen by itself: on a Redis, in the keys of other
    /// programs. Of all queues if none is named.
    #[cfg(feature = "redis")]
    pub fn clean(&self, queues: &[&[u8]], how: Cleaning) -> Result<CleanReport, Refusal> {
        match self {
            Self::Redis(home) => home.clean(queues, how),
            #[cfg(any(feature = "embedded", feature = "remote"))]
            _ => {
                let what = "cleaning: only queues on a Redis that are shared with other programs need it";
                Err(Refusal::not_there(what, "this home"))
            }
        }
    }

    /// Whether a pop can say how long a task is its taker's. In the keys of some programs it cannot.
    pub(crate) fn has_leases(&self) -> bool {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(home) => home.has_leases(),
            #[cfg(feature = "remote")]
            Self::Remote(home) => home.has_leases(),
            #[cfg(feature = "embedded")]
            Self::Embedded(_) => true,
        }
    }

    /// What was asked for with a lease is not there: from now on none is asked for. Answers whether any was before.
    pub(crate) fn give_up_leases(&self) -> bool {
        match self {
            #[cfg(feature = "remote")]
            Self::Remote(home) => home.give_up_leases(),
            #[cfg(any(feature = "embedded", feature = "redis"))]
            _ => false,
        }
    }

    /// Ends the leases that were to end with a connection.
    #[doc(hidden)]
    pub fn close_conn(&self, conn: ConnId) {
        by_place!(self, home => home.close_conn(conn));
    }

    /// Answers all pops that wait as if their time were up.
    #[doc(hidden)]
    pub fn dismiss_waiting(&self) {
        by_place!(self, home => home.dismiss_waiting());
    }

    /// How many pops wait in line.
    pub fn waiting(&self) -> usize {
        by_place!(self, home => home.waiting())
    }

    /// Someone who hears what happens to queues, once it is durable.
    pub fn listen(&self) -> Listener {
        by_place!(self, home => Listener::from(home.listen()))
    }

    /// Where the log was cut when it was opened, if a crash had left it with half a frame.
    #[cfg(feature = "embedded")]
    pub fn cut(&self) -> Option<&Cut> {
        by_place!(self, engine => engine.cut(), _ => None)
    }

    /// What those who use it should know about where it lives.
    pub fn warnings(&self) -> &[String] {
        by_place!(self, _ => &[], home => home.warnings())
    }

    /// What time it is by the home's clocks.
    pub fn now(&self) -> Now {
        by_place!(self, home => home.now())
    }

    /// How the home is doing; nothing is known of how a Redis is.
    #[cfg(feature = "embedded")]
    pub fn status(&self) -> Status {
        by_place!(self, engine => engine.status(), _ => Status::default())
    }

    /// Counts memory that something outside holds on behalf of those who use the home: so much, and not so much as before.
    #[doc(hidden)]
    pub fn charge(&self, bytes: usize, before: usize) {
        by_place!(self, engine => engine.charge(bytes, before), _ => {});
    }

    /// Whether it is part of this process: if it is closed, nobody else will open it again.
    pub(crate) fn is_here(&self) -> bool {
        by_place!(self, _ => true, _ => false)
    }

    /// Makes everything durable and lets go of what is open.
    ///
    /// This blocks its thread: for a sync of the disk, or until what was asked of a Redis or a server is answered or given up, which
    /// takes up to four seconds if a Redis is silent, and up to half a minute if a server is. At the end of a program nothing else
    /// waits for the thread; elsewhere in async code, use [`Self::close_async`].
    pub fn close(&self) -> Result<(), Broken> {
        by_place!(self, engine => engine.close().map_err(Broken::from), home => {
            home.close();
            Ok(())
        })
    }

    /// Closes it as [`Self::close`] does, on a thread of its own: other tasks of the runtime go on meanwhile.
    pub async fn close_async(&self) -> Result<(), Broken> {
        let home = self.clone();
        let closed = crate::url::on_a_thread("sureq-close", move || home.close()).await;
        closed.unwrap_or_else(|error| Err(Broken(Arc::new(error))))
    }
}

/// What came of commands that were sent elsewhere: all of it is to be waited for.
fn sent(ticket: Ticket, commands: &[Command<'_>]) -> Executed {
    let ticket = (!commands.is_empty()).then_some(ticket);
    Executed { done: 0, position: Position::START, ticket, served: false, hold: None }
}
