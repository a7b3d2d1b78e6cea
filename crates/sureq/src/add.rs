//! Adding a task with options.

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

/// A task that is added once this is awaited.
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

/// What came of adding a task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Added {
    /// The task that has the name, or the one that was added.
    pub id: Id,
    /// False if the name was taken; then nothing was added.
    pub added: bool,
    /// The state that the task is in.
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

    /// At most one task of the queue that is not gone has this name. A second one is not added.
    pub fn name(self, name: impl AsRef<[u8]>) -> Self {
        Self { name: Some(Name::Bytes(name.as_ref().to_vec())), ..self }
    }

    /// At most one task of the queue that was added so has this payload.
    pub fn unique(self) -> Self {
        Self { name: Some(Name::Payload), ..self }
    }

    /// Not to be handed out before so long has passed.
    pub fn delay(self, delay: Duration) -> Self {
        Self { when: When::After(millis(delay)), ..self }
    }

    /// Not to be handed out before this time of the wall clock.
    pub fn at(self, time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { when: When::At(WallTime(millis(since))), ..self }
    }

    /// Larger ones first; 0 is what plain tasks have.
    pub fn priority(self, priority: i8) -> Self {
        Self { priority, ..self }
    }

    /// How often it is tried before it is dead.
    pub fn tries(self, tries: u32) -> Self {
        Self { tries: Some(tries), ..self }
    }

    /// How long it waits after its first failure; twice as long after each further one.
    pub fn backoff(self, first: Duration) -> Self {
        Self { backoff: Some(first), ..self }
    }

    /// How long it may wait, from now: then it is gone, or dead if the queue's settings say so.
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
            _ => Err(Error::out_of_turn()),
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
