//! A home: whatever executes commands.

use std::sync::Arc;
use std::task::Waker;

use sureq_core::command::ConnId;
use sureq_core::{Command, Now, Receipt, Replies};
use sureq_engine::{Body, Engine, Executed, Listener, Status};

use crate::{Cut, LogError, Position};

/// Where a queue lives. Dispatch is by variant, so that a command costs no box and no virtual call.
#[derive(Clone, Debug)]
pub enum Home {
    /// In this process, in a directory or in memory.
    Embedded(Engine),
}

impl Home {
    /// Executes commands in order; stops at a pop that must wait, and gives a ticket for it.
    pub fn execute(&self, commands: &[Command<'_>], replies: &mut Replies<Body>) -> Executed {
        match self {
            Self::Embedded(engine) => engine.execute(commands, replies),
        }
    }

    /// Executes like [`Self::execute`], and leaves it to the caller to [`Self::commit`] soon.
    pub fn gather(&self, commands: &[Command<'_>], replies: &mut Replies<Body>) -> Executed {
        match self {
            Self::Embedded(engine) => engine.gather(commands, replies),
        }
    }

    /// Has what was gathered made durable; answers the position that is durable once it is.
    pub fn commit(&self) -> Position {
        match self {
            Self::Embedded(engine) => engine.commit(),
        }
    }

    /// Up to where everything is as durable as promised.
    pub fn durable(&self) -> Position {
        match self {
            Self::Embedded(engine) => engine.durable(),
        }
    }

    /// Wakes the waker once the position is durable, or once nothing will be any more.
    pub fn wake_at(&self, position: Position, waker: &Waker) {
        match self {
            Self::Embedded(engine) => engine.wake_at(position, waker),
        }
    }

    /// Waits on this thread until the position is durable; answers false if it never will be.
    pub fn wait(&self, position: Position) -> bool {
        match self {
            Self::Embedded(engine) => engine.wait(position),
        }
    }

    /// Why nothing is confirmed any more, if that is so.
    pub fn failure(&self) -> Option<Arc<LogError>> {
        match self {
            Self::Embedded(engine) => engine.failure(),
        }
    }

    /// Gives deliveries that never reached their taker back to the front of their queue, at no cost.
    pub fn undeliver(&self, queue: &[u8], receipts: &[Receipt]) {
        match self {
            Self::Embedded(engine) => engine.undeliver(queue, receipts),
        }
    }

    /// Ends the leases that were to end with a connection.
    pub fn close_conn(&self, conn: ConnId) {
        match self {
            Self::Embedded(engine) => engine.close_conn(conn),
        }
    }

    /// Answers all pops that wait as if their time were up.
    pub fn dismiss_waiting(&self) {
        match self {
            Self::Embedded(engine) => engine.dismiss_waiting(),
        }
    }

    /// How many pops wait in line.
    pub fn waiting(&self) -> usize {
        match self {
            Self::Embedded(engine) => engine.waiting(),
        }
    }

    /// Someone who hears what happens to queues, once it is durable.
    pub fn listen(&self) -> Listener {
        match self {
            Self::Embedded(engine) => engine.listen(),
        }
    }

    /// Where the log was cut when it was opened, if a crash had left it with half a frame.
    pub fn cut(&self) -> Option<&Cut> {
        match self {
            Self::Embedded(engine) => engine.cut(),
        }
    }

    /// What time it is by the home's clocks.
    pub fn now(&self) -> Now {
        match self {
            Self::Embedded(engine) => engine.now(),
        }
    }

    /// How the home is doing.
    pub fn status(&self) -> Status {
        match self {
            Self::Embedded(engine) => engine.status(),
        }
    }

    /// Counts memory that something outside holds on behalf of those who use the home: so much, and not so much as before.
    pub fn charge(&self, bytes: usize, before: usize) {
        match self {
            Self::Embedded(engine) => engine.charge(bytes, before),
        }
    }

    /// Makes everything durable and lets go of what is open.
    pub fn close(&self) -> Result<(), Arc<LogError>> {
        match self {
            Self::Embedded(engine) => engine.close(),
        }
    }
}
