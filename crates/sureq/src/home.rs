//! [`Home`], the handle of an open home.

use std::sync::Arc;

use sureq_core::{Now, Refusal};
use sureq_home_api::{self as home_api, Broken, CleanReport, Cleaning, Status};

/// An open home: a set of queues in a directory, in memory, on Redis or on a sureq server.
///
/// A handle is cheap to clone; clones share the home. It stays open until [`Home::close`], or until the last clone is
/// dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let home = sureq::open("mem:")?;
/// home.queue("emails").push("to: ann").await?;
/// let tasks = home.pop_from(["urgent", "emails"], 10).await?;
/// assert_eq!(tasks.len(), 1);
/// home.close_async().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Home(Arc<dyn home_api::Home>);

impl Home {
    /// Makes a handle for any implementation of [`home_api::Home`], for instance your own.
    pub fn from_api(home: impl home_api::Home) -> Self {
        Self(Arc::new(home))
    }

    /// The implementation behind the handle, for programs that execute [`home_api::Command`]s.
    pub fn api(&self) -> &Arc<dyn home_api::Home> {
        &self.0
    }

    /// Why the home failed, if it did. A failed home confirms nothing more and must be opened again.
    pub fn failure(&self) -> Option<Broken> {
        self.0.failure()
    }

    /// Warnings for the operator, for instance about a Redis without persistence.
    pub fn warnings(&self) -> &[String] {
        self.0.warnings()
    }

    /// The number of pops that wait for a task.
    pub fn waiters(&self) -> usize {
        self.0.waiters()
    }

    /// The current time of the home's clocks.
    pub fn now(&self) -> Now {
        self.0.now()
    }

    /// Measurements of an embedded store; `None` for other homes.
    pub fn status(&self) -> Option<Status> {
        self.0.status()
    }

    /// Requeues tasks that dead clients of other programs held, in the key layouts of those programs on Redis. An
    /// empty list means all queues. Blocks the thread.
    pub fn clean(&self, queues: &[&[u8]], how: Cleaning) -> Result<CleanReport, Refusal> {
        self.0.clean(queues, how)
    }

    /// Makes everything durable and releases files, threads and connections.
    ///
    /// This blocks the thread: for a sync of the disk, or until all commands that were sent to Redis or a server are
    /// answered or given up, which takes up to four seconds with a silent Redis and up to half a minute with a silent
    /// server. In async code use [`Self::close_async`], except at the end of the program.
    pub fn close(&self) -> Result<(), Broken> {
        self.0.close()
    }

    /// Closes the home like [`Self::close`], without blocking the runtime.
    pub async fn close_async(&self) -> Result<(), Broken> {
        let home = self.clone();
        let closed = crate::url::on_a_thread("sureq-close", move || home.close()).await;
        closed.unwrap_or_else(|error| Err(Broken::new(Arc::new(error))))
    }
}
