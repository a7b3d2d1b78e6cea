//! [`Queue`]: push, pop, ack, inspect and manage.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sureq_core::command::{AckScope, Cancel, IdForm, Return, TaskRef, TaskRefs, View};
use sureq_core::reply::{Explanation, Info, Outcome};
use sureq_core::settings::{Changes, Place, Settings};
use sureq_core::{Command, Replies, Reply};
use sureq_home_api::Payload;

use crate::Encode;
use crate::add::Add;
use crate::error::{Error, Result};
use crate::home::Home;
use crate::id::Id;
use crate::pop::{PopMany, PopOne};
use crate::task::Seen;

/// A queue of a home, by name. The first push creates it. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let emails = sureq::open("mem:")?.queue("emails");
/// emails.push("to: ann").await?;
/// let task = emails.pop().await?.expect("a task is ready");
/// assert_eq!(task.payload(), b"to: ann");
/// assert_eq!(task.ack().await?, sureq::Held::Yes, "finished, by this call and no other");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Queue {
    home: Home,
    name: Arc<[u8]>,
}

/// The result of a call that concerns one delivery. It must be used, or ignored explicitly:
///
/// ```no_run
/// #![deny(unused_must_use)]
/// # async fn finish(task: sureq::Task) -> sureq::Result<()> {
/// let _ = task.ack().await?;
/// # Ok(()) }
/// ```
///
/// A program that forgets it does not compile with this lint, and otherwise with a warning:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # async fn finish(task: sureq::Task) -> sureq::Result<()> {
/// task.ack().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the delivery may no longer be the current one, and then nothing was done"]
#[non_exhaustive]
pub enum Held {
    /// The call succeeded: the delivery was the current one.
    Yes,
    /// Nothing was done: the delivery is no longer the current one, or the task is finished. Stop working on it.
    Lost,
    /// The task was cancelled: stop working on it. A returned task is deleted.
    Cancelled,
}

impl Home {
    /// The queue of this name, which may be any bytes. Does not contact the home.
    pub fn queue(&self, name: impl AsRef<[u8]>) -> Queue {
        Queue { home: self.clone(), name: name.as_ref().into() }
    }
}

impl Queue {
    /// The name of the queue; bytes that are not UTF-8 are replaced.
    pub fn name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }

    /// The exact name of the queue.
    pub fn name_bytes(&self) -> &[u8] {
        &self.name
    }

    /// The home that stores the queue.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Adds a task to the back of the queue. Returns its id when it is as durable as the home guarantees.
    pub async fn push(&self, payload: impl Encode) -> Result<Id> {
        let ids = self.push_all([payload]).await?;
        ids.into_iter().next().ok_or_else(Error::unexpected_reply)
    }

    /// Adds tasks in order, atomically: all of them or none. More than
    /// [`PUSH_TASKS_MAX`](crate::limits::PUSH_TASKS_MAX) are refused; push in several calls, each of which is atomic:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let emails = sureq::open("mem:")?.queue("emails");
    /// let addresses: Vec<String> = (0..25_000).map(|n| format!("{n}@example.com")).collect();
    /// assert!(emails.push_all(&addresses).await.is_err(), "too many for one push");
    /// for some in addresses.chunks(sureq::limits::PUSH_TASKS_MAX) {
    ///     emails.push_all(some).await?;
    /// }
    /// # assert_eq!(emails.info().await?.ready, 25_000);
    /// # Ok(()) }
    /// ```
    pub async fn push_all(&self, payloads: impl IntoIterator<Item: Encode>) -> Result<Vec<Id>> {
        let payloads: Vec<_> = payloads.into_iter().collect();
        let encoded: Vec<_> = payloads.iter().map(Encode::encode).collect::<Result<_, _>>()?;
        if encoded.is_empty() {
            return Ok(Vec::new());
        }
        let slices: Vec<&[u8]> = encoded.iter().map(|payload| &payload[..]).collect();
        let (reply, replies) =
            self.home.ask_one(Command::Push { queue: &self.name, payloads: &slices }).await?;
        pushed(&reply, replies)
    }

    /// Adds a task with a delay, a name, a priority and more.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let emails = sureq::open("mem:")?.queue("emails");
    /// let reminder = || emails.add("remind ann").name("ann").delay(Duration::from_secs(3600)).tries(3);
    /// assert!(reminder().await?.added);
    /// assert!(!reminder().await?.added, "the name is taken until that task is gone");
    /// # Ok(()) }
    /// ```
    pub fn add<P: Encode>(&self, payload: P) -> Add<'_, P> {
        Add::new(self, payload)
    }

    /// Takes the first ready task, if there is one, with a lease of [`LEASE`](crate::LEASE). See [`PopOne`] for
    /// options.
    pub fn pop(&self) -> PopOne {
        PopOne(self.pop_many(1))
    }

    /// Takes up to `count` ready tasks. See [`PopMany`] for options.
    pub fn pop_many(&self, count: u32) -> PopMany {
        PopMany::new(self.home.clone(), vec![Arc::clone(&self.name)], count)
    }

    /// Finishes a task by the receipt of its current delivery, or by its id. Only one call ever returns [`Held::Yes`]
    /// for a task. With a receipt, an ack of an earlier delivery is refused; an id acks whichever delivery is
    /// current.
    pub async fn ack(&self, task: impl AsRef<[u8]>) -> Result<Held> {
        Ok(if self.ack_all([task]).await? == [true] { Held::Yes } else { Held::Lost })
    }

    /// Finishes tasks; returns for each whether this call finished it.
    pub async fn ack_all(&self, tasks: impl IntoIterator<Item: AsRef<[u8]>>) -> Result<Vec<bool>> {
        let tasks: Vec<_> = tasks.into_iter().collect();
        let list: Vec<&[u8]> = tasks.iter().map(AsRef::as_ref).collect();
        if list.is_empty() {
            return Ok(Vec::new());
        }
        let scope = AckScope::LeasedOrLapsed;
        let (reply, replies) =
            self.home.ask_one(Command::Ack { queue: &self.name, tasks: refs(&list), scope }).await?;
        let Reply::Acked(finished) = reply else { return Err(Error::unexpected_reply()) };
        let mut acked = vec![false; list.len()];
        for &at in &replies.indexes[finished.range()] {
            *acked.get_mut(at as usize).ok_or_else(Error::unexpected_reply)? = true;
        }
        Ok(acked)
    }

    /// Extends a lease: it then ends `lease` from now.
    pub async fn extend(&self, task: impl AsRef<[u8]>, lease: Duration) -> Result<Held> {
        let command = Command::Extend { queue: &self.name, task: one(task.as_ref()), ms: millis(lease) };
        held(&self.home.ask_one(command).await?.0)
    }

    /// Returns a task to the front of the queue, at no cost of a try.
    pub async fn requeue(&self, task: impl AsRef<[u8]>) -> Result<Held> {
        self.requeue_to(task, Place::Front).await
    }

    /// Returns a task to a place in the queue, at no cost of a try.
    pub async fn requeue_to(&self, task: impl AsRef<[u8]>, to: Place) -> Result<Held> {
        self.return_task(task.as_ref(), Some(to), None).await
    }

    /// Fails the try of a task: it is retried after its backoff, or dead if that was its last try.
    pub async fn fail(&self, task: impl AsRef<[u8]>, reason: impl AsRef<[u8]>) -> Result<Held> {
        self.return_task(task.as_ref(), None, Some(reason.as_ref())).await
    }

    /// Fails the try of a task and requeues it at `to` instead of after its backoff.
    pub async fn fail_to(&self, task: impl AsRef<[u8]>, reason: impl AsRef<[u8]>, to: Place) -> Result<Held> {
        self.return_task(task.as_ref(), Some(to), Some(reason.as_ref())).await
    }

    /// Fails the try of a task for good: the task is dead, even if tries are left.
    pub async fn fail_for_good(&self, task: impl AsRef<[u8]>, reason: impl AsRef<[u8]>) -> Result<Held> {
        let (task, failed) = (one(task.as_ref()), Some(reason.as_ref()));
        let back = Return { queue: &self.name, task, to: None, failed, is_last: true };
        held(&self.home.ask_one(Command::Return(back)).await?.0)
    }

    async fn return_task(&self, task: &[u8], to: Option<Place>, failed: Option<&[u8]>) -> Result<Held> {
        let command =
            Command::Return(Return { queue: &self.name, task: one(task), to, failed, is_last: false });
        held(&self.home.ask_one(command).await?.0)
    }

    /// Cancels a task by its id: a waiting task is deleted, the holder of a leased one is notified. Returns whether it
    /// existed.
    pub async fn cancel(&self, id: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.cancel_all([id]).await? == 1)
    }

    /// Cancels tasks by their ids; returns the number of tasks that existed.
    pub async fn cancel_all(&self, ids: impl IntoIterator<Item: AsRef<[u8]>>) -> Result<u64> {
        self.count_of(ids, |queue, tasks| Command::Cancel { queue, which: Cancel::Ids(tasks) }).await
    }

    /// Cancels the task of this name.
    pub async fn cancel_named(&self, name: impl AsRef<[u8]>) -> Result<bool> {
        let which = Cancel::Names(&[name.as_ref()]);
        Ok(self.count(Command::Cancel { queue: &self.name, which }).await? == 1)
    }

    /// Cancels all tasks with this payload; returns their number.
    pub async fn cancel_payload(&self, payload: impl Encode) -> Result<u64> {
        let payload = payload.encode()?;
        self.count(Command::Cancel { queue: &self.name, which: Cancel::Payload(&payload) }).await
    }

    /// Looks at tasks of one state, from `start` on, without changing them. A negative start counts from the end.
    pub async fn inspect(&self, view: View, start: i64, count: u32) -> Result<Vec<Seen>> {
        let command = Command::Inspect { queue: &self.name, view, start, count };
        let (reply, replies) = self.home.ask_one(command).await?;
        let Reply::Inspected(seen) = reply else { return Err(Error::unexpected_reply()) };
        Ok(replies
            .tasks
            .into_iter()
            .skip(seen.range().start)
            .take(seen.len())
            .map(|task| Seen::new(view, task))
            .collect())
    }

    /// Counts, ages, rates and settings.
    pub async fn info(&self) -> Result<Info> {
        match self.home.ask_one(Command::Info { queue: &self.name }).await?.0 {
            Reply::Info(info) => Ok(*info),
            _ => Err(Error::unexpected_reply()),
        }
    }

    /// Why a task is not running now, if there is such a task.
    pub async fn explain(&self, id: impl AsRef<[u8]>) -> Result<Option<Explanation>> {
        match self.home.ask_one(Command::Explain { queue: &self.name, task: one(id.as_ref()) }).await?.0 {
            Reply::Explained(explanation) => Ok(explanation.map(|explanation| *explanation)),
            _ => Err(Error::unexpected_reply()),
        }
    }

    /// Asks the home for the settings of the queue.
    pub async fn config(&self) -> Result<Settings> {
        self.configure(Changes::List(&[])).await
    }

    /// Changes settings in order; returns all settings.
    ///
    /// ```
    /// # use sureq::{Change, Changes};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let emails = sureq::open("mem:")?.queue("emails");
    /// let settings = emails.configure(Changes::List(&[Change::Tries(5), Change::DeadLetter(b"graves")])).await?;
    /// assert_eq!(settings.tries, Some(5));
    /// # Ok(()) }
    /// ```
    pub async fn configure(&self, changes: Changes<'_>) -> Result<Settings> {
        let command = Command::Config { queue: &self.name, changes };
        match self.home.ask_one(command).await?.0 {
            Reply::Settings(settings) => Ok(*settings),
            _ => Err(Error::unexpected_reply()),
        }
    }

    /// Stops the delivery of tasks until [`Self::resume`]. Leased tasks are not affected.
    pub async fn pause(&self) -> Result<()> {
        self.done(Command::Pause { queue: &self.name }).await
    }

    /// Resumes the delivery of tasks.
    pub async fn resume(&self) -> Result<()> {
        self.done(Command::Resume { queue: &self.name }).await
    }

    /// Makes tasks dead; returns how many.
    pub async fn bury(&self, tasks: impl IntoIterator<Item: AsRef<[u8]>>) -> Result<u64> {
        self.count_of(tasks, |queue, tasks| Command::Bury { queue, tasks }).await
    }

    /// Moves dead tasks to the back of the queue with all their tries; returns how many.
    pub async fn revive(&self, tasks: impl IntoIterator<Item: AsRef<[u8]>>) -> Result<u64> {
        self.count_of(tasks, |queue, tasks| Command::Revive { queue, tasks: Some(tasks) }).await
    }

    /// Revives all dead tasks; returns how many.
    pub async fn revive_all(&self) -> Result<u64> {
        self.count(Command::Revive { queue: &self.name, tasks: None }).await
    }

    /// Deletes tasks in any state; returns how many.
    pub async fn delete(&self, tasks: impl IntoIterator<Item: AsRef<[u8]>>) -> Result<u64> {
        self.count_of(tasks, |queue, tasks| Command::Delete { queue, tasks }).await
    }

    /// Deletes all tasks of a state, or all ready, delayed and dead ones; returns how many. Leased tasks stay.
    /// Asked for leased tasks, it deletes none: a home returns 0 or refuses.
    pub async fn purge(&self, state: Option<View>) -> Result<u64> {
        self.count(Command::Purge { queue: &self.name, state }).await
    }

    async fn count_of(
        &self,
        tasks: impl IntoIterator<Item: AsRef<[u8]>>,
        command: impl for<'t> FnOnce(&'t [u8], TaskRefs<'t>) -> Command<'t>,
    ) -> Result<u64> {
        let tasks: Vec<_> = tasks.into_iter().collect();
        let list: Vec<&[u8]> = tasks.iter().map(AsRef::as_ref).collect();
        if list.is_empty() {
            return Ok(0);
        }
        self.count(command(&self.name, refs(&list))).await
    }

    async fn count(&self, command: Command<'_>) -> Result<u64> {
        match self.home.ask_one(command).await?.0 {
            Reply::Count(n) => Ok(n),
            _ => Err(Error::unexpected_reply()),
        }
    }

    async fn done(&self, command: Command<'_>) -> Result<()> {
        match self.home.ask_one(command).await?.0 {
            Reply::Ok => Ok(()),
            _ => Err(Error::unexpected_reply()),
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.name()).finish()
    }
}

/// The ids in the reply to a push.
fn pushed(reply: &Reply, replies: Replies<Payload>) -> Result<Vec<Id>> {
    match reply {
        Reply::Pushed(ids) => Ok(replies.ids[ids.range()].iter().map(|&id| Id::own(id)).collect()),
        Reply::PushedForeign(ids) => Ok(replies
            .foreign_ids
            .into_iter()
            .skip(ids.range().start)
            .take(ids.len())
            .map(Id::foreign_or_empty)
            .collect()),
        _ => Err(Error::unexpected_reply()),
    }
}

fn held(reply: &Reply) -> Result<Held> {
    match reply {
        Reply::Outcome(Outcome::Done) => Ok(Held::Yes),
        Reply::Outcome(Outcome::Stale) => Ok(Held::Lost),
        Reply::Outcome(Outcome::Cancelled) => Ok(Held::Cancelled),
        _ => Err(Error::unexpected_reply()),
    }
}

/// Refers to a task by its full id or receipt.
pub(crate) const fn one(bytes: &[u8]) -> TaskRef<'_> {
    TaskRef { bytes, form: IdForm::Long }
}

pub(crate) const fn refs<'a>(list: &'a [&'a [u8]]) -> TaskRefs<'a> {
    TaskRefs { list, form: IdForm::Long }
}

/// Whole milliseconds; a time between 0 and 1 ms becomes 1, since 0 often means "none".
pub(crate) fn millis(time: Duration) -> u64 {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    ms + u64::from(!time.is_zero() && ms == 0)
}
