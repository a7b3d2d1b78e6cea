//! Taking tasks.

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

/// How long a popped task is its taker's, unless the pop says otherwise.
pub const LEASE: Duration = Duration::from_secs(60);

/// Takes one task once this is awaited.
#[must_use = "nothing is taken until it is awaited"]
#[derive(Clone, Debug)]
pub struct PopOne(pub(crate) PopMany);

/// Takes several tasks once this is awaited.
#[must_use = "nothing is taken until it is awaited"]
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
    /// Takes up to `count` tasks: all that is wanted from the first queue that has some, then the next.
    pub fn pop_from(&self, queues: impl IntoIterator<Item: AsRef<[u8]>>, count: u32) -> PopMany {
        let queues = queues.into_iter().map(|queue| queue.as_ref().into()).collect();
        PopMany::new(self.clone(), queues, count)
    }
}

impl Queue {
    /// Tasks as they come, without end, each with a lease of [`LEASE`].
    ///
    /// Nothing is taken before the stream is polled. From then on until it gives a task it stands in line, also while nobody
    /// polls it, and so may have been given one whose lease runs: [`Task::lease_end`] tells how much is left. A stream that is
    /// dropped gives back what nobody has seen.
    ///
    /// ```
    /// # use futures_util::StreamExt;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let emails = sureq::open("mem:")?.queue("emails");
    /// # emails.push("to: ann").await?;
    /// let mut tasks = std::pin::pin!(emails.tasks());
    /// while let Some(task) = tasks.next().await {
    ///     if task?.ack().await? == sureq::Held::Lost {
    ///         eprintln!("it took longer than its lease: somebody else does it again");
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

    /// Waits so long for a task if there is none. No time at all is no waiting.
    ///
    /// On `sureq://…` a pop that waits has a connection of its own, and one home has at most 512 of them: the next is
    /// [`Error::Unavailable`] at once.
    pub fn wait(mut self, patience: Duration) -> Self {
        self.block = (!patience.is_zero()).then(|| Block::Millis(millis(patience)));
        self
    }

    /// Waits for a task as long as it takes.
    pub fn wait_forever(mut self) -> Self {
        self.block = Some(Block::Forever);
        self
    }

    /// How long a task is the taker's: then it goes back, unless it was finished or the lease extended.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// A task is the taker's until it is finished or given back, or the queue's own default lease runs out.
    pub fn no_lease(mut self) -> Self {
        self.lease = None;
        self
    }

    /// Tells more of each task: its name, its tries, when it was pushed, why it failed last.
    pub fn meta(mut self) -> Self {
        self.meta = true;
        self
    }

    /// The leases end when this worker is gone.
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
                    let queue = self.queues.get(task.queue as usize).ok_or_else(Error::out_of_turn)?;
                    Ok(Task::new(&self.home, queue, task, Leased { since, length: self.lease }))
                })
                .collect(),
            _ => Err(Error::out_of_turn()),
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
    /// Waits so long for a task if there is none. No time at all is no waiting.
    pub fn wait(self, patience: Duration) -> Self {
        Self(self.0.wait(patience))
    }

    /// Waits for a task as long as it takes.
    pub fn wait_forever(self) -> Self {
        Self(self.0.wait_forever())
    }

    /// How long the task is the taker's: then it goes back, unless it was finished or the lease extended.
    pub fn lease(self, lease: Duration) -> Self {
        Self(self.0.lease(lease))
    }

    /// The task is the taker's until it is finished or given back, or the queue's own default lease runs out.
    pub fn no_lease(self) -> Self {
        Self(self.0.no_lease())
    }

    /// Tells more of the task: its name, its tries, when it was pushed, why it failed last.
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
