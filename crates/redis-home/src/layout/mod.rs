//! Layouts: which keys a queue has in Redis, and so which script serves it and what can be asked of it.
//!
//! Here is what can be asked of any layout: which script it has, how a command becomes a call, how ids look in its answer, how a
//! pop waits. Elsewhere `keys` spells its keys, `channels` its channels, `link` says what each call is told besides, `cleaning`
//! how it is cleaned, and `thread` what its keys need before a call is sent.

pub(crate) mod channels;
pub(crate) mod keys;

use sureq_core::Refusal;
use sureq_core::command::Command;

use crate::foreign::redis_queue::{self, Times};
use crate::foreign::work_queue;
use crate::foreign::worqr;
use crate::script::answer::Ids;
use crate::script::call::{Call, POP_QUEUES, ReplyForm, call_of};

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
    /// Those of Worqr, shared with its clients.
    Worqr,
    /// Those of redis-queue, shared with its clients.
    RedisQueue(Times),
}

/// How those who find nothing wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// They are told by a message.
    Told,
    /// They take something by a command that blocks.
    Blocked,
    /// They are told that a key has changed.
    Tracked,
}

/// What a URL requests of a layout. Each takes what is its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) lease_ms: Option<u64>,
    pub(crate) pop_s: Option<u64>,
    pub(crate) task_s: Option<u64>,
    pub(crate) expire_s: Option<u64>,
}

impl Wishes {
    /// The name of one that nobody took.
    pub(crate) fn left(&self) -> Option<&'static str> {
        let all = [
            (self.lease_ms, "lease"),
            (self.pop_s, "poptimeout"),
            (self.task_s, "tasktimeout"),
            (self.expire_s, "exptime"),
        ];
        all.into_iter().find_map(|(wish, name)| wish.map(|_| name))
    }
}

impl Layout {
    /// The layout that a URL calls so.
    pub(crate) fn named(name: &str, wishes: &mut Wishes) -> Option<Self> {
        Some(match name {
            "sureq" => Self::Sureq,
            "work-queue" => {
                Self::WorkQueue { lease_ms: wishes.lease_ms.take().unwrap_or(work_queue::LEASE_MS) }
            }
            "worqr" => Self::Worqr,
            "redis-queue" => Self::RedisQueue(Times {
                pop_s: wishes.pop_s.take().unwrap_or(redis_queue::POP_S),
                task_s: wishes.task_s.take().unwrap_or(redis_queue::TASK_S),
                expire_s: wishes.expire_s.take(),
            }),
            _ => return None,
        })
    }

    /// What its operations are.
    pub(crate) const fn script(self) -> &'static str {
        match self {
            Self::Sureq => include_str!("../script/lua/queue.lua"),
            Self::WorkQueue { .. } => {
                concat!(
                    include_str!("../foreign/lua/foreign.lua"),
                    include_str!("../foreign/lua/work_queue.lua")
                )
            }
            Self::Worqr => {
                concat!(include_str!("../foreign/lua/foreign.lua"), include_str!("../foreign/lua/worqr.lua"))
            }
            Self::RedisQueue(_) => {
                concat!(
                    include_str!("../foreign/lua/foreign.lua"),
                    include_str!("../foreign/lua/redis_queue.lua")
                )
            }
        }
    }

    /// What all keys begin with, where the URL does not say.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Sureq => "sureq:",
            Self::Worqr => "worqr",
            Self::WorkQueue { .. } | Self::RedisQueue(_) => "",
        }
    }

    /// The call that a command is, and how its answer is read. `home` tells connections of this home from those of others.
    pub(crate) fn call_of(self, command: &Command<'_>, home: &str) -> Result<(Call, ReplyForm), Refusal> {
        command.check()?;
        match self {
            Self::Sureq => call_of(command, home),
            Self::WorkQueue { lease_ms } => work_queue::call_of(command, lease_ms),
            Self::Worqr => worqr::call_of(command),
            Self::RedisQueue(times) => redis_queue::call_of(command, times),
        }
    }

    /// Where in a pop's arguments its queues begin.
    pub(crate) const fn pop_queues(self) -> usize {
        match self {
            Self::Sureq => POP_QUEUES,
            Self::WorkQueue { .. } => work_queue::POP_QUEUES,
            Self::Worqr => worqr::POP_QUEUES,
            Self::RedisQueue(_) => redis_queue::POP_QUEUES,
        }
    }

    /// How ids look in answers.
    pub(crate) const fn ids(self) -> Ids {
        match self {
            Self::Sureq => Ids::Numbers,
            Self::WorkQueue { .. } | Self::Worqr | Self::RedisQueue(_) => Ids::Foreign,
        }
    }

    /// What is said to a server upon meeting it, where all queues are one store.
    pub(crate) fn greetings(self) -> Vec<Call> {
        match self {
            Self::Sureq => vec![Call::new("epoch", None)],
            Self::WorkQueue { .. } | Self::Worqr | Self::RedisQueue(_) => Vec::new(),
        }
    }

    /// How those who find nothing wait.
    pub(crate) const fn waiting(self) -> Waiting {
        match self {
            Self::Sureq | Self::Worqr => Waiting::Told,
            Self::WorkQueue { .. } => Waiting::Blocked,
            Self::RedisQueue(_) => Waiting::Tracked,
        }
    }

    /// Whether time alone can bring something that nobody tells of.
    pub(crate) const fn ticks(self) -> bool {
        matches!(self, Self::Sureq | Self::RedisQueue(_))
    }

    /// Whether there are messages about what happens to queues.
    pub(crate) const fn tells(self) -> bool {
        matches!(self, Self::Sureq | Self::Worqr)
    }

    /// Whether what somebody took and will not finish has to be brought back by somebody. In redis-queue it stays where it is,
    /// and is handed out again when it is late.
    pub(crate) const fn needs_cleaning(self) -> bool {
        matches!(self, Self::WorkQueue { .. } | Self::Worqr)
    }
}
