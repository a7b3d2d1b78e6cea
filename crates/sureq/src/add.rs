//! [`Add`]: pushing a task with options.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sureq_core::command::{self, NameArg, When};
use sureq_core::task::StateKind;
use sureq_core::{Command, Reply, WallTime};

use crate::Encode;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::queue::{Queue, millis};

/// A push with options, built with [`Queue::add`] and executed when awaited.
#[must_use = "nothing is added until it is awaited"]
#[derive(Debug)]
pub struct Add<'q, P> {
    queue: &'q Queue,
    payload: P,
    name: Option<Name>,
    when: When,
    priority: i8,
    tries: Option<u32>,
    backoff: Option<Duration>,
    ttl: Option<Duration>,
}

#[derive(Debug)]
enum Name {
    Bytes(Vec<u8>),
    Payload,
}

/// The result of [`Queue::add`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Added {
    /// The id of the added task, or of the task that has the name already.
    pub id: Id,
    /// Whether a task was added: false if the name is in use.
    pub added: bool,
    /// The state of the task.
    pub state: StateKind,
}

impl<'q, P: Encode> Add<'q, P> {
    pub(crate) const fn new(queue: &'q Queue, payload: P) -> Self {
        Self {
            queue,
            payload,
            name: None,
            when: When::AtOnce,
            priority: 0,
            tries: None,
            backoff: None,
            ttl: None,
        }
    }

    /// Names the task. If a task of the queue has this name, nothing is added; so a retry of the push is idempotent
    /// until the task is finished.
    pub fn name(self, name: impl AsRef<[u8]>) -> Self {
        Self { name: Some(Name::Bytes(name.as_ref().to_vec())), ..self }
    }

    /// Uses the payload as the name: nothing is added if a unique task of the queue has this payload.
    pub fn unique(self) -> Self {
        Self { name: Some(Name::Payload), ..self }
    }

    /// Delays the delivery by this time.
    pub fn delay(self, delay: Duration) -> Self {
        Self { when: When::After(millis(delay)), ..self }
    }

    /// Delays the delivery until this time of the wall clock.
    pub fn at(self, time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { when: When::At(WallTime(millis(since))), ..self }
    }

    /// Sets the priority: larger first. Plain tasks have 0.
    pub fn priority(self, priority: i8) -> Self {
        Self { priority, ..self }
    }

    /// Sets the number of tries before the task is dead. The queue has a default.
    pub fn tries(self, tries: u32) -> Self {
        Self { tries: Some(tries), ..self }
    }

    /// Sets the delay after the first failure; it doubles with each further one. The queue has a default.
    pub fn backoff(self, first: Duration) -> Self {
        Self { backoff: Some(first), ..self }
    }

    /// Sets how long the task may wait. After that it is deleted, or dead if the queue is configured so.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self }
    }

    async fn run(self) -> Result<Added> {
        let payload = self.payload.encode()?;
        let name = self.name.as_ref().map(|name| match name {
            Name::Bytes(name) => NameArg::Bytes(name),
            Name::Payload => NameArg::Payload,
        });
        let command = Command::Add(command::Add {
            queue: self.queue.name_bytes(),
            payload: &payload,
            name,
            when: self.when,
            priority: self.priority,
            tries: self.tries,
            backoff_ms: self.backoff.map(millis),
            ttl_ms: self.ttl.map(millis),
        });
        let (reply, mut replies) = self.queue.home().ask_one(command).await?;
        match reply {
            Reply::Added { id, added, state } => Ok(Added { id: Id::own(id), added, state }),
            Reply::AddedForeign { at, added, state } if (at as usize) < replies.foreign_ids.len() => {
                Ok(Added {
                    id: Id::foreign_or_empty(replies.foreign_ids.swap_remove(at as usize)),
                    added,
                    state,
                })
            }
            _ => Err(Error::unexpected_reply()),
        }
    }
}

impl<'q, P: Encode + Send + Sync + 'q> IntoFuture for Add<'q, P> {
    type Output = Result<Added>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'q>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
