//! The producers of a proof: they push, and write down what was confirmed. Sabotage is theirs too, so that a verdict can be seen to
//! be bad.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use sureq::{Error, Queue, Result};

use super::ledger::{Ledger, payload};

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
    pub(super) ledger: Arc<Mutex<Ledger>>,
    pub(super) next: AtomicU64,
    pub(super) is_over: AtomicBool,
}

impl Producers {
    /// Pushes until it is over.
    pub(super) async fn produce(&self) {
        while !self.is_over.load(SeqCst) {
            let counts = self.ledger().counts();
            if counts.confirmed.saturating_sub(counts.finished) > AHEAD_MAX {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let numbers = self.numbers(BATCH);
            match self.queue.push_all(numbers.clone().map(payload)).await {
                Ok(_) => numbers.for_each(|number| self.ledger().confirm(number)),
                Err(Error::Unknown { .. } | Error::Over(_)) => self.ledger().unknown(BATCH),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Breaks a promise, so that it must be noticed.
    pub(super) async fn break_it(&self, how: Sabotage) -> Result<()> {
        let number = self.numbers(1).start;
        match how {
            Sabotage::Lose => {
                // Nobody takes it before it is removed.
                let task = self.queue.add(payload(number)).delay(Duration::from_secs(3_600)).await?;
                self.ledger().confirm(number);
                self.queue.delete([task.id]).await?;
            }
            Sabotage::Repeat => {
                self.queue.push_all([payload(number), payload(number)]).await?;
                self.ledger().confirm(number);
            }
        }
        Ok(())
    }

    fn numbers(&self, count: u64) -> std::ops::Range<u64> {
        let first = self.next.fetch_add(count, SeqCst);
        first..first + count
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
