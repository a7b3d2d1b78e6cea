//! A home: whatever executes commands.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sureq_core::command::ConnId;
use sureq_core::notice::{Kind, Kinds};
use sureq_core::{Command, Now, Receipt, Refusal, Replies};
use sureq_engine::{Body, Engine, Heard, Status};
use sureq_redis::{CleanReport, Cleaning, RedisHome};

use crate::{Cut, LogError, Position};

/// Where a queue lives. Dispatch is by variant, so that a command costs no box and no virtual call.
#[derive(Clone, Debug)]
pub enum Home {
    /// In this process, in a directory or in memory.
    Embedded(Engine),
    /// In a Redis.
    Redis(RedisHome),
}

/// What came of a batch of commands.
pub type Executed = sureq_engine::Executed<Ticket>;

/// The right to an answer that is not there yet. Dropped without its answer having been taken, it leaves the line, and what it
/// was given goes back to the front.
#[derive(Debug)]
pub enum Ticket {
    /// For a command that waits in this process.
    Embedded(sureq_engine::Ticket),
    /// For commands that a Redis was sent.
    Redis(sureq_redis::Ticket),
}

/// What came of commands that had to wait.
#[derive(Debug)]
pub struct Answer {
    /// One reply for each, and what they point into.
    pub replies: Replies<Body>,
    /// What must be durable before they leave.
    pub position: Position,
}

impl Ticket {
    /// The answer, once it is there and may leave. After a failure of the log it is that nothing is confirmed any more.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Answer> {
        match self {
            Self::Embedded(ticket) => ticket.poll(cx).map(Answer::from),
            Self::Redis(ticket) => ticket.poll(cx).map(Answer::from),
        }
    }

    /// Waits for the answer on this thread.
    pub fn wait(self) -> Answer {
        match self {
            Self::Embedded(ticket) => ticket.wait().into(),
            Self::Redis(ticket) => ticket.wait().into(),
        }
    }

    /// Whether it is for tasks alone, which go back if nobody takes them.
    pub fn is_for_tasks(&self) -> bool {
        match self {
            Self::Embedded(ticket) => ticket.is_for_tasks(),
            Self::Redis(ticket) => ticket.is_for_tasks(),
        }
    }
}

impl From<sureq_engine::Answer> for Answer {
    fn from(answer: sureq_engine::Answer) -> Self {
        Self { replies: answer.replies, position: answer.position }
    }
}

impl From<sureq_redis::Answer> for Answer {
    fn from(answer: sureq_redis::Answer) -> Self {
        Self { replies: answer.replies.map_bodies(|body| Body::from(&body[..])), position: Position::START }
    }
}

/// Someone who hears what happens to queues. At first nothing is wanted; each want is taken back by the unwant that says the
/// same.
#[derive(Debug)]
pub enum Listener {
    /// In this process.
    Embedded(sureq_engine::Listener),
    /// In a Redis.
    Redis(sureq_redis::Listener),
}

impl Listener {
    /// Hears this of a queue, which need not be there.
    pub fn want(&self, kind: Kind, queue: &[u8]) {
        match self {
            Self::Embedded(listener) => listener.want(kind, queue),
            Self::Redis(listener) => listener.want(kind, queue),
        }
    }

    /// Takes back what [`Self::want`] said.
    pub fn unwant(&self, kind: Kind, queue: &[u8]) {
        match self {
            Self::Embedded(listener) => listener.unwant(kind, queue),
            Self::Redis(listener) => listener.unwant(kind, queue),
        }
    }

    /// Hears these of all queues.
    pub fn want_everywhere(&self, kinds: Kinds) {
        match self {
            Self::Embedded(listener) => listener.want_everywhere(kinds),
            Self::Redis(listener) => listener.want_everywhere(kinds),
        }
    }

    /// Takes back what [`Self::want_everywhere`] said.
    pub fn unwant_everywhere(&self, kinds: Kinds) {
        match self {
            Self::Embedded(listener) => listener.unwant_everywhere(kinds),
            Self::Redis(listener) => listener.unwant_everywhere(kinds),
        }
    }

    /// What happened next, once it may be told; `None` when nothing more will.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Heard>> {
        match self {
            Self::Embedded(listener) => listener.poll(cx),
            Self::Redis(listener) => listener.poll(cx).map(|heard| heard.map(heard_from)),
        }
    }
}

fn heard_from(heard: sureq_redis::Heard) -> Heard {
    match heard {
        sureq_redis::Heard::Missed => Heard::Missed,
        sureq_redis::Heard::Notice { kind, queue, tasks } => {
            let tasks = match tasks {
                sureq_redis::NoticeTasks::Count(n) => sureq_engine::NoticeTasks::Count(n),
                sureq_redis::NoticeTasks::Ids(ids) => sureq_engine::NoticeTasks::Ids(ids),
                sureq_redis::NoticeTasks::Said(text) => sureq_engine::NoticeTasks::Said(text),
            };
            Heard::Notice(sureq_engine::Notice { kind, queue, tasks })
        }
    }
}

impl Home {
    /// Executes commands in order; stops at one whose answer has to be waited for, and gives a ticket for it.
    pub fn execute(&self, commands: &[Command<'_>], replies: &mut Replies<Body>) -> Executed {
        match self {
            Self::Embedded(engine) => engine.execute(commands, replies).map_ticket(Ticket::Embedded),
            Self::Redis(home) => send(home, commands),
        }
    }

    /// Executes like [`Self::execute`], and leaves it to the caller to [`Self::commit`] soon.
    pub fn gather(&self, commands: &[Command<'_>], replies: &mut Replies<Body>) -> Executed {
        match self {
            Self::Embedded(engine) => engine.gather(commands, replies).map_ticket(Ticket::Embedded),
            Self::Redis(home) => send(home, commands),
        }
    }

    /// Has what was gathered made durable; answers the position that is durable once it is.
    pub fn commit(&self) -> Position {
        match self {
            Self::Embedded(engine) => engine.commit(),
            Self::Redis(_) => Position::START,
        }
    }

    /// Up to where everything is as durable as promised. A Redis answers only what is.
    pub fn durable(&self) -> Position {
        match self {
            Self::Embedded(engine) => engine.durable(),
            Self::Redis(_) => Position::START,
        }
    }

    /// Wakes the waker once the position is durable, or once nothing will be any more.
    pub fn wake_at(&self, position: Position, waker: &Waker) {
        match self {
            Self::Embedded(engine) => engine.wake_at(position, waker),
            // There are no positions to wait for, and a Redis that is gone comes back.
            Self::Redis(_) => {}
        }
    }

    /// Waits on this thread until the position is durable; answers false if it never will be.
    pub fn wait(&self, position: Position) -> bool {
        match self {
            Self::Embedded(engine) => engine.wait(position),
            Self::Redis(_) => true,
        }
    }

    /// Why nothing is confirmed any more, if that is so.
    pub fn failure(&self) -> Option<Arc<LogError>> {
        match self {
            Self::Embedded(engine) => engine.failure(),
            Self::Redis(_) => None,
        }
    }

    /// Gives deliveries that never reached their taker back to the front of their queue, at no cost.
    pub fn undeliver(&self, queue: &[u8], receipts: &[Receipt]) {
        match self {
            Self::Embedded(engine) => engine.undeliver(queue, receipts),
            Self::Redis(home) => home.undeliver(queue, receipts),
        }
    }

    /// Brings back what somebody took and will not finish, where that does not happen by itself: on a Redis, in the keys of other
    /// programs. Of all queues if none is named.
    pub fn clean(&self, queues: &[&[u8]], how: Cleaning) -> Result<CleanReport, Refusal> {
        match self {
            Self::Embedded(_) => {
                let what = "cleaning: what nobody finishes comes back by itself";
                Err(Refusal::NotThere { what, place: "a home of its own" })
            }
            Self::Redis(home) => home.clean(queues, how),
        }
    }

    /// Ends the leases that were to end with a connection.
    pub fn close_conn(&self, conn: ConnId) {
        match self {
            Self::Embedded(engine) => engine.close_conn(conn),
            Self::Redis(home) => home.close_conn(conn),
        }
    }

    /// Answers all pops that wait as if their time were up.
    pub fn dismiss_waiting(&self) {
        match self {
            Self::Embedded(engine) => engine.dismiss_waiting(),
            Self::Redis(home) => home.dismiss_waiting(),
        }
    }

    /// How many pops wait in line.
    pub fn waiting(&self) -> usize {
        match self {
            Self::Embedded(engine) => engine.waiting(),
            Self::Redis(home) => home.waiting(),
        }
    }

    /// Someone who hears what happens to queues, once it is durable.
    pub fn listen(&self) -> Listener {
        match self {
            Self::Embedded(engine) => Listener::Embedded(engine.listen()),
            Self::Redis(home) => Listener::Redis(home.listen()),
        }
    }

    /// Where the log was cut when it was opened, if a crash had left it with half a frame.
    pub fn cut(&self) -> Option<&Cut> {
        match self {
            Self::Embedded(engine) => engine.cut(),
            Self::Redis(_) => None,
        }
    }

    /// What those who use it should know about where it lives.
    pub fn warnings(&self) -> &[String] {
        match self {
            Self::Embedded(_) => &[],
            Self::Redis(home) => home.warnings(),
        }
    }

    /// What time it is by the home's clocks.
    pub fn now(&self) -> Now {
        match self {
            Self::Embedded(engine) => engine.now(),
            Self::Redis(home) => home.now(),
        }
    }

    /// How the home is doing; nothing is known of how a Redis is.
    pub fn status(&self) -> Status {
        match self {
            Self::Embedded(engine) => engine.status(),
            Self::Redis(_) => Status::default(),
        }
    }

    /// Counts memory that something outside holds on behalf of those who use the home: so much, and not so much as before.
    pub fn charge(&self, bytes: usize, before: usize) {
        match self {
            Self::Embedded(engine) => engine.charge(bytes, before),
            Self::Redis(_) => {}
        }
    }

    /// Makes everything durable and lets go of what is open.
    pub fn close(&self) -> Result<(), Arc<LogError>> {
        match self {
            Self::Embedded(engine) => engine.close(),
            Self::Redis(home) => {
                home.close();
                Ok(())
            }
        }
    }
}

fn send(home: &RedisHome, commands: &[Command<'_>]) -> Executed {
    let ticket = (!commands.is_empty()).then(|| Ticket::Redis(home.execute(commands)));
    Executed { done: 0, position: Position::START, ticket, served: false, hold: None }
}
