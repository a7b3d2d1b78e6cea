//! The producers of a proof: they push, and write down what was confirmed. Sabotage is theirs too, so that a verdict can be seen to
//! be bad.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use clap::ValueEnum;
use sureq::{Error, Queue, Result};
use sureq_history::{Outcome, SharedHistory, payload};

const BATCH: u64 = 50;
/// So many tasks may be confirmed and not finished; then producers wait for the workers.
const AHEAD_MAX: u64 = 20_000;
const PAUSE: Duration = Duration::from_millis(10);

/// What breaks a promise behind the home's back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sabotage {
    /// A confirmed task is removed.
    Lose,
    /// A task is pushed a second time.
    Repeat,
}

/// What all producers share.
pub(super) struct Producers {
    pub(super) queue: Queue,
    pub(super) history: Arc<SharedHistory>,
    pub(super) is_over: AtomicBool,
}

impl Producers {
    /// Pushes until it is over.
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
                Err(Error::Unknown { .. } | Error::Over(_)) => Outcome::Unknown,
                Err(_) => Outcome::Failed,
            };
            self.history.lock().complete_push(push, outcome);
            if outcome == Outcome::Failed {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Breaks a promise, so that it must be noticed.
    pub(super) async fn break_it(&self, how: Sabotage) -> Result<()> {
        let push = self.history.lock().invoke_push(1);
        let payload = payload::encode(push.first);
        match how {
            Sabotage::Lose => {
                // Nobody takes it before it is removed.
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
