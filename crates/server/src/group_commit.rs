//! Group commit: commits the commands of all connections of one thread together, with one sync for as many of them as
//! possible.
//!
//! When a sync completes, the replies of many connections are released together, and their clients send the next
//! commands within a fraction of a millisecond. If the first of these commands were committed at once, the others
//! would have to wait for that sync, and from then on every sync would serve half of the connections. So nothing is
//! committed while a sync is under way. After it, the thread polls its sockets for more commands until a poll finds
//! nothing new.
//!
//! Most clients that were answered by that sync have not sent their next command by then. If the thread did not wait
//! for them, they and the clients that arrived during the sync would form two groups that alternate for ever, each
//! with a sync of its own, and a sync costs far more than a request. So the thread sleeps briefly to let them join
//! (a delay): in total for at most half the time of a sync, only while such delays have brought in commands lately,
//! and never for fewer than four connections.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use sureq_home_api::{Home, Position};

use crate::durability_waiters::DurabilityWaiters;

/// The number of polls after which a batch is committed, even if more commands keep arriving.
const LOOKS_MAX: u32 = 32;

/// The duration of one delay. A command that arrives during it is delayed by the rest of it.
const DELAY: Duration = Duration::from_micros(20);

/// The maximum total duration of the delays before one commit.
const DELAYS_MAX: Duration = Duration::from_micros(200);

/// The thread delays a commit only if at least this many connections were answered: two or three clients that send a
/// command now and then would gain nothing from a delay.
const FEW: usize = 4;

/// The number of commits without delays after which delays are tried again.
const TRY_AGAIN: u32 = 64;

/// Counts the executed batches, and wakes the committer when there is something to commit.
#[derive(Debug, Default)]
pub(crate) struct GroupCommit {
    /// The number of batches executed since the start.
    count: AtomicU64,
    /// The value of `count` once every connection that the last sync answered has sent another command; 0 to not wait
    /// for them.
    awaited: AtomicU64,
    committer: Mutex<Option<Waker>>,
}

impl GroupCommit {
    /// Notes that a connection has executed a batch.
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let waker = self.committer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Notes that `answered` connections were answered by a sync and will probably send their next command soon.
    pub(crate) fn expect(&self, answered: usize) {
        let count = self.count.load(Ordering::Relaxed);
        let awaited = if answered < FEW { 0 } else { count + answered as u64 };
        self.awaited.store(awaited, Ordering::Relaxed);
    }

    /// Commits until the thread ends.
    pub(crate) async fn commit_all(&self, home: &dyn Home, waiters: &DurabilityWaiters) {
        let (mut committed, mut under_way) = (0, Position::START);
        let mut delay = BatchDelay::new();
        loop {
            self.more_than(committed).await;
            waiters.durable(home, under_way).await;
            delay.note_sync();
            committed = self.look_for_more().await;
            let mut budget = delay.budget();
            while committed < self.awaited.load(Ordering::Relaxed) && budget >= DELAY {
                thread::sleep(DELAY);
                budget -= DELAY;
                let seen = committed;
                committed = self.look_for_more().await;
                delay.note_delay(committed > seen);
            }
            self.awaited.store(0, Ordering::Relaxed);
            under_way = home.commit();
            delay.note_commit();
        }
    }

    /// Lets other tokio tasks run and the thread poll its sockets until that brings no new commands. Returns the
    /// batch count.
    async fn look_for_more(&self) -> u64 {
        let mut seen = self.count.load(Ordering::Relaxed);
        for _ in 0..LOOKS_MAX {
            tokio::task::yield_now().await;
            let now = self.count.load(Ordering::Relaxed);
            if now == seen {
                break;
            }
            seen = now;
        }
        seen
    }

    /// Waits until more than `known` batches were executed.
    async fn more_than(&self, known: u64) {
        poll_fn(|cx| {
            let mut waker = self.committer.lock().unwrap_or_else(PoisonError::into_inner);
            match self.count.load(Ordering::Relaxed) {
                count if count > known => Poll::Ready(()),
                _ => {
                    *waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
    }
}

/// Decides whether waiting for the connections that were just answered pays off.
#[derive(Debug)]
struct BatchDelay {
    /// The moving average of the duration of a sync.
    sync: Duration,
    committed: Option<Instant>,
    /// Grows with each delay that brought in commands and shrinks with each that did not. At 0 nothing is delayed.
    credit: u32,
    /// The number of commits since the credit ran out.
    without: u32,
}

/// The maximum credit: the number of consecutive useless delays before delaying stops.
const CREDIT_MAX: u32 = 8;

impl BatchDelay {
    const fn new() -> Self {
        Self { sync: Duration::ZERO, committed: None, credit: CREDIT_MAX, without: 0 }
    }

    /// Notes that the last commit is durable.
    fn note_sync(&mut self) {
        if let Some(committed) = self.committed.take() {
            // The new duration counts an eighth, so that one slow sync has little influence.
            self.sync = (self.sync * 7 + committed.elapsed().min(DELAYS_MAX * 8)) / 8;
        }
    }

    fn note_commit(&mut self) {
        self.committed = Some(Instant::now());
        if self.credit == 0 {
            self.without += 1;
            if self.without >= TRY_AGAIN {
                (self.credit, self.without) = (1, 0);
            }
        }
    }

    /// The maximum total duration of the delays before the next commit.
    fn budget(&self) -> Duration {
        if self.credit == 0 { Duration::ZERO } else { (self.sync / 2).min(DELAYS_MAX) }
    }

    fn note_delay(&mut self, has_paid: bool) {
        self.credit =
            if has_paid { (self.credit + 2).min(CREDIT_MAX) } else { self.credit - self.credit.min(1) };
    }
}
