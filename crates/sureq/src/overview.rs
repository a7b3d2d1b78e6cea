//! Calls that span queues: list queues and workers, drop queues.

use futures_util::Stream;
use futures_util::stream::{iter, unfold};
use futures_util::{StreamExt, TryStreamExt};
use sureq_core::command::Worker;
use sureq_core::reply::{QueueRow, WorkerRow};
use sureq_core::{Command, Reply};

use crate::error::{Error, Result};
use crate::home::Home;

/// Queues per page.
const PAGE: u32 = 1_000;

impl Home {
    /// Lists all queues with tasks and their counts, or only those whose names match a glob.
    pub fn queues(&self, pattern: Option<&[u8]>) -> impl Stream<Item = Result<QueueRow>> + use<> {
        let (home, pattern) = (self.clone(), pattern.map(Box::<[u8]>::from));
        let pages = unfold(Some(0), move |cursor| {
            let (home, pattern) = (home.clone(), pattern.clone());
            async move {
                let page = home.queues_page(pattern.as_deref(), cursor?).await;
                Some(match page {
                    Ok((next, rows)) => (Ok(iter(rows).map(Ok)), (next != 0).then_some(next)),
                    Err(error) => (Err(error), None),
                })
            }
        });
        pages.try_flatten()
    }

    /// A page of that list, and the cursor of the next page; 0 after the last one. Begin with cursor 0.
    pub async fn queues_page(&self, pattern: Option<&[u8]>, cursor: u64) -> Result<(u64, Vec<QueueRow>)> {
        let (reply, replies) = self.ask_one(Command::Queues { pattern, cursor, count: PAGE }).await?;
        let Reply::Queues { cursor, rows } = reply else { return Err(Error::unexpected_reply()) };
        Ok((cursor, replies.queues.into_iter().skip(rows.range().start).take(rows.len()).collect()))
    }

    /// Lists the live workers.
    pub async fn workers(&self) -> Result<Vec<WorkerRow>> {
        let (reply, replies) = self.ask_one(Command::Worker(Worker::List)).await?;
        let Reply::Workers(rows) = reply else { return Err(Error::unexpected_reply()) };
        Ok(replies.workers.into_iter().skip(rows.range().start).take(rows.len()).collect())
    }

    /// Declares a worker lost: its tasks are requeued, even if it is alive. Returns how many.
    pub async fn fail_worker(&self, name: impl AsRef<[u8]>) -> Result<u64> {
        match self.ask_one(Command::Worker(Worker::Fail { name: name.as_ref() })).await?.0 {
            Reply::Count(n) => Ok(n),
            _ => Err(Error::unexpected_reply()),
        }
    }

    /// Deletes queues with all their tasks, including leased ones, their settings and their pause. Returns how many
    /// had tasks.
    pub async fn drop_queues(&self, queues: &[&[u8]]) -> Result<u64> {
        match self.ask_one(Command::Drop { queues }).await?.0 {
            Reply::Count(n) => Ok(n),
            _ => Err(Error::unexpected_reply()),
        }
    }
}
