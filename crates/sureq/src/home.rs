//! The handle of an open home.

use std::sync::Arc;

use sureq_core::{Now, Refusal};
use sureq_home_api::{self as home_api, Broken, CleanReport, Cleaning, Status};

/// Where queues live. Clones share it.
#[derive(Clone, Debug)]
pub struct Home(Arc<dyn home_api::Home>);

impl Home {
    /// A handle for any home, for instance one of your own.
    pub fn from_api(home: impl home_api::Home) -> Self {
        Self(Arc::new(home))
    }

    /// The home itself, for programs that serve others.
    pub fn api(&self) -> &Arc<dyn home_api::Home> {
        &self.0
    }

    /// Why nothing is confirmed any more, if the home has failed. It has to be opened again.
    pub fn failure(&self) -> Option<Broken> {
        self.0.failure()
    }

    /// What operators should know about where the queues live.
    pub fn warnings(&self) -> &[String] {
        self.0.warnings()
    }

    /// The number of pops that wait for tasks.
    pub fn waiters(&self) -> usize {
        self.0.waiters()
    }

    /// The time by the home's clocks.
    pub fn now(&self) -> Now {
        self.0.now()
    }

    /// Numbers about an embedded store; none from a Redis or a server.
    pub fn status(&self) -> Option<Status> {
        self.0.status()
    }

    /// Returns tasks that other programs took and will not finish, in layouts on Redis where nothing does so by itself. Cleans
    /// all queues if none is named. This blocks its thread.
    pub fn clean(&self, queues: &[&[u8]], how: Cleaning) -> Result<CleanReport, Refusal> {
        self.0.clean(queues, how)
    }

    /// Makes everything durable and releases files, threads and connections.
    ///
    /// This blocks its thread: for a sync of the disk, or until commands that were sent to a Redis or a server are answered or
    /// given up, which takes up to four seconds if a Redis is silent, and up to half a minute if a server is. At the end of a
    /// program nothing else waits for the thread; elsewhere in async code, use [`Self::close_async`].
    pub fn close(&self) -> Result<(), Broken> {
        self.0.close()
    }

    /// Closes it as [`Self::close`] does, on a thread of its own: other tasks of the runtime go on meanwhile.
    pub async fn close_async(&self) -> Result<(), Broken> {
        let home = self.clone();
        let closed = crate::url::on_a_thread("sureq-close", move || home.close()).await;
        closed.unwrap_or_else(|error| Err(Broken::new(Arc::new(error))))
    }
}
