//! The producers of a proof: they push tasks and record the confirmed ones. Sabotage is here too, to test that a
//! broken guarantee is found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use clap::ValueEnum;
use sureq::{Error, Queue, Result};
use sureq_history::{Outcome, SharedHistory, payload};

const BATCH: u64 = 50;
/// The most unfinished tasks; beyond it producers wait for the workers.
const AHEAD_MAX: u64 = 20_000;
const PAUSE: Duration = Duration::from_millis(10);

/// Ways to break a guarantee through a second client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sabotage {
    /// A confirmed task is removed.
    Lose,
    /// A task is pushed a second time.
    Repeat,
}

/// The state that all producers share.
pub(super) struct Producers {
    pub(super) queue: Queue,
    pub(super) history: Arc<SharedHistory>,
    pub(super) is_over: AtomicBool,
}

impl Producers {
    /// Pushes until the run is over.
    pub(super) async fn produce(&self) {
        while !self.is_over.load(SeqCst) {
            let counts = self.history.lock().counts();
            if counts.confirmed.saturating_sub(counts.finished) > AHEAD_MAX {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let push = self.history.lock().invoke_push(BATCH);
            let outcome = match self.queue.push_all(push.numbers().map(payload::encode)).await {
                Ok(_) => Outcome::Ok,
                Err(Error::Unknown { .. } | Error::Closed(_)) => Outcome::Unknown,
                Err(_) => Outcome::Failed,
            };
            self.history.lock().complete_push(push, outcome);
            if outcome == Outcome::Failed {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Breaks a guarantee, to test that the violation is found.
    pub(super) async fn break_it(&self, how: Sabotage) -> Result<()> {
        let push = self.history.lock().invoke_push(1);
        let payload = payload::encode(push.first);
        match how {
            Sabotage::Lose => {
                // Delayed, so that no worker pops it before it is deleted.
                let task = self.queue.add(payload).delay(Duration::from_secs(3_600)).await?;
                self.queue.delete([task.id]).await?;
            }
            Sabotage::Repeat => {
                self.queue.push_all([payload.clone(), payload]).await?;
            }
        }
        self.history.lock().complete_push(push, Outcome::Ok);
        Ok(())
    }
}
