//! [`PopOne`] and [`PopMany`]: taking tasks.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use sureq_core::command::{Block, LeaseAsk, Pop, WorkerRef};
use sureq_core::{Command, Reply};

use crate::error::{Error, Result};
use crate::home::Home;
use crate::queue::{Queue, millis};
use crate::task::{Leased, Task};

/// The default lease of a pop.
pub const LEASE: Duration = Duration::from_secs(60);

/// A pop of one task, built with [`Queue::pop`] and executed when awaited.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let emails = sureq::open("mem:")?.queue("emails");
/// # emails.push("to: ann").await?;
/// let pop = emails.pop().wait(Duration::from_secs(20)).lease(Duration::from_secs(300));
/// if let Some(task) = pop.await? {
///     println!("{}", String::from_utf8_lossy(task.payload()));
/// }
/// # Ok(()) }
/// ```
#[must_use = "nothing is popped until it is awaited"]
#[derive(Clone, Debug)]
pub struct PopOne(pub(crate) PopMany);

/// A pop of several tasks, built with [`Queue::pop_many`] or [`Home::pop_from`] and executed when awaited.
#[must_use = "nothing is popped until it is awaited"]
#[derive(Clone, Debug)]
pub struct PopMany {
    home: Home,
    queues: Vec<Arc<[u8]>>,
    count: u32,
    block: Option<Block>,
    lease: Option<Duration>,
    worker: Option<(Arc<[u8]>, u64)>,
    meta: bool,
}

impl Home {
    /// Takes up to `count` tasks from several queues: from a queue only if those before it have no more ready tasks.
    pub fn pop_from(&self, queues: impl IntoIterator<Item: AsRef<[u8]>>, count: u32) -> PopMany {
        let queues = queues.into_iter().map(|queue| queue.as_ref().into()).collect();
        PopMany::new(self.clone(), queues, count)
    }
}

impl Queue {
    /// An endless stream of tasks, each with a lease of [`LEASE`].
    ///
    /// The first poll starts a waiting pop. It stays active until it yields a task, even while the stream is not
    /// polled: by the time you poll again, a part of the lease may be over ([`Task::lease_end`]). Dropping the stream
    /// requeues a task that it has not yielded.
    ///
    /// ```
    /// # use futures_util::StreamExt;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let emails = sureq::open("mem:")?.queue("emails");
    /// # emails.push("to: ann").await?;
    /// let mut tasks = std::pin::pin!(emails.tasks());
    /// while let Some(task) = tasks.next().await {
    ///     if task?.ack().await? == sureq::Held::Lost {
    ///         eprintln!("the lease ended first: the task is delivered again");
    ///     }
    /// #   break;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn tasks(&self) -> impl Stream<Item = Result<Task>> + use<> {
        unfold(self.pop().wait_forever(), |pop| async {
            let task = loop {
                match pop.clone().await {
                    Ok(Some(task)) => break Ok(task),
                    Ok(None) => {}
                    Err(error) => break Err(error),
                }
            };
            Some((task, pop))
        })
    }
}

impl PopMany {
    pub(crate) const fn new(home: Home, queues: Vec<Arc<[u8]>>, count: u32) -> Self {
        Self { home, queues, count, block: None, lease: Some(LEASE), worker: None, meta: false }
    }

    /// Waits up to this time for a task if there is none; zero does not wait.
    ///
    /// On `sureq://…` each waiting pop uses a connection of its own, at most 512 per home: beyond that it fails with
    /// [`Error::Unavailable`].
    pub fn wait(mut self, patience: Duration) -> Self {
        self.block = (!patience.is_zero()).then(|| Block::Millis(millis(patience)));
        self
    }

    /// Waits for a task without a limit.
    pub fn wait_forever(mut self) -> Self {
        self.block = Some(Block::Forever);
        self
    }

    /// Sets the length of the lease. A task that is not finished by its end is requeued, unless the lease is extended.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Pops without a lease: the task is held until it is finished or returned. The default lease of the queue still
    /// applies.
    pub fn no_lease(mut self) -> Self {
        self.lease = None;
        self
    }

    /// Also requests name, tries, time of the push and last failure reason of each task; see [`Task::meta`].
    pub fn meta(mut self) -> Self {
        self.meta = true;
        self
    }

    /// Binds the leases to this worker: they also end when it is lost.
    pub(crate) fn worker(mut self, name: &Arc<[u8]>, incarnation: u64) -> Self {
        self.worker = Some((Arc::clone(name), incarnation));
        self
    }

    pub(crate) async fn run(self) -> Result<Vec<Task>> {
        let queues: Vec<&[u8]> = self.queues.iter().map(|queue| &**queue).collect();
        let worker =
            self.worker.as_ref().map(|(name, incarnation)| WorkerRef { name, incarnation: *incarnation });
        let lease = LeaseAsk { ms: self.lease.map(millis), worker, conn: None, lapse: None };
        let pop = Pop { queues: &queues, count: self.count, block: self.block, lease, meta: self.meta };
        let (reply, replies, since) = self.home.ask_one_when(Command::Pop(pop)).await?;
        match reply {
            Reply::TimedOut => Ok(Vec::new()),
            Reply::Tasks(tasks) => replies
                .tasks
                .into_iter()
                .skip(tasks.range().start)
                .take(tasks.len())
                .map(|task| {
                    let queue = self.queues.get(task.queue as usize).ok_or_else(Error::unexpected_reply)?;
                    Ok(Task::new(&self.home, queue, task, Leased { since, length: self.lease }))
                })
                .collect(),
            _ => Err(Error::unexpected_reply()),
        }
    }
}

impl IntoFuture for PopMany {
    type Output = Result<Vec<Task>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl PopOne {
    /// Waits up to this time for a task if there is none; zero does not wait.
    pub fn wait(self, patience: Duration) -> Self {
        Self(self.0.wait(patience))
    }

    /// Waits for a task without a limit.
    pub fn wait_forever(self) -> Self {
        Self(self.0.wait_forever())
    }

    /// Sets the length of the lease. A task that is not finished by its end is requeued, unless the lease is extended.
    pub fn lease(self, lease: Duration) -> Self {
        Self(self.0.lease(lease))
    }

    /// Pops without a lease: the task is held until it is finished or returned. The default lease of the queue still
    /// applies.
    pub fn no_lease(self) -> Self {
        Self(self.0.no_lease())
    }

    /// Also requests name, tries, time of the push and last failure reason of the task; see [`Task::meta`].
    pub fn meta(self) -> Self {
        Self(self.0.meta())
    }
}

impl IntoFuture for PopOne {
    type Output = Result<Option<Task>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { Ok(self.0.run().await?.pop()) })
    }
}
