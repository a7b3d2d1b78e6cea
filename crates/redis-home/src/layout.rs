//! Layouts: which keys a queue has in Redis, and so which script serves it and what can be asked of it.
//!
//! Whatever differs from one layout to the next begins here: which script there is, how a command becomes a call, how ids look
//! in its answer, and how a pop waits.

use sureq_core::Refusal;
use sureq_core::command::Command;

use crate::answer::Ids;
use crate::call::{Call, Shape, call_of};
use crate::work_queue;

/// Which keys a queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Our own: every command.
    Sureq,
    /// Those of redis-work-queue, shared with its clients.
    WorkQueue {
        /// How long a lease is where a pop does not say.
        lease_ms: u64,
    },
}

impl Layout {
    /// What its operations are.
    pub(crate) const fn script(self) -> &'static str {
        match self {
            Self::Sureq => include_str!("lua/queue.lua"),
            Self::WorkQueue { .. } => include_str!("lua/work_queue.lua"),
        }
    }

    /// What all keys begin with, where the URL does not say.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Sureq => "sureq:",
            Self::WorkQueue { .. } => "",
        }
    }

    /// The call that a command is, and how its answer is read. `home` tells connections of this home from those of others.
    pub(crate) fn call_of(self, command: &Command<'_>, home: &str) -> Result<(Call, Shape), Refusal> {
        command.check()?;
        match self {
            Self::Sureq => call_of(command, home),
            Self::WorkQueue { lease_ms } => work_queue::call_of(command, lease_ms),
        }
    }

    /// How ids look in answers.
    pub(crate) const fn ids(self) -> Ids {
        match self {
            Self::Sureq => Ids::Numbers,
            Self::WorkQueue { .. } => Ids::Spelt,
        }
    }

    /// What is said to a server upon meeting it, where all queues are one store.
    pub(crate) fn greetings(self) -> Vec<Call> {
        match self {
            Self::Sureq => vec![Call::new("epoch", None)],
            Self::WorkQueue { .. } => Vec::new(),
        }
    }

    /// Whether pops wait by moving ids, and what was moved in vain has to be cleaned up.
    pub(crate) const fn moves(self) -> bool {
        matches!(self, Self::WorkQueue { .. })
    }
}
