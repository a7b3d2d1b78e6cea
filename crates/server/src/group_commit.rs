//! Has what the connections of one thread gathered committed, once and not too soon.
//!
//! Connections whose replies are released together come back one after the other within a fraction of a millisecond. If
//! the first of them were committed at once, the rest would have to wait for the sync of that one, and from then on every
//! sync would carry half of the connections. So nothing is committed while a sync is under way, and then the thread looks
//! for more that has arrived until a look finds nothing new.
//!
//! By then those who were answered by that sync are mostly not back yet. If they were not waited for, they and those who
//! arrived meanwhile would take turns for ever, each with a sync of their own, and a sync costs far more than a request.
//! So the thread naps for them: for less time than half a sync takes, only as long as such naps have paid of late, and never
//! for a few connections.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use sureq_home_api::{Home, Position};

use crate::durability_waiters::DurabilityWaiters;

/// Looks after which a batch is committed, even if more keeps arriving.
const LOOKS_MAX: u32 = 32;

/// One nap. A command that arrives during it waits as long.
const NAP: Duration = Duration::from_micros(20);

/// The longest time of all naps before one commit.
const NAPS_MAX: Duration = Duration::from_micros(200);

/// So few are not waited for: a pair of clients that speak now and then gains nothing by it, and would wait.
const FEW: usize = 4;

/// Commits without naps before naps are tried again.
const TRY_AGAIN: u32 = 64;

/// Executed commands that are not committed.
#[derive(Debug, Default)]
pub(crate) struct GroupCommit {
    /// How many batches were executed.
    count: AtomicU64,
    /// What that will be when those who were answered last have asked for something again.
    awaited: AtomicU64,
    committer: Mutex<Option<Waker>>,
}

impl GroupCommit {
    /// A connection has gathered something.
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let waker = self.committer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// So many connections were answered.
    pub(crate) fn expect(&self, answered: usize) {
        let count = self.count.load(Ordering::Relaxed);
        let awaited = if answered < FEW { 0 } else { count + answered as u64 };
        self.awaited.store(awaited, Ordering::Relaxed);
    }

    /// Commits for as long as the thread lives.
    pub(crate) async fn commit_all(&self, home: &dyn Home, waiters: &DurabilityWaiters) {
        let (mut committed, mut under_way) = (0, Position::START);
        let mut naps = BatchDelay::new();
        loop {
            self.more_than(committed).await;
            waiters.durable(home, under_way).await;
            naps.note_sync();
            committed = self.look_for_more().await;
            let mut budget = naps.budget();
            while committed < self.awaited.load(Ordering::Relaxed) && budget >= NAP {
                thread::sleep(NAP);
                budget -= NAP;
                let seen = committed;
                committed = self.look_for_more().await;
                naps.note_nap(committed > seen);
            }
            self.awaited.store(0, Ordering::Relaxed);
            under_way = home.commit();
            naps.note_commit();
        }
    }

    /// Lets others run and the thread look at its sockets, until nothing new comes of it.
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

    /// Waits until more was gathered than is known of.
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

/// Whether it pays to wait for those who were answered last.
#[derive(Debug)]
struct BatchDelay {
    /// About how long a sync takes.
    sync: Duration,
    committed: Option<Instant>,
    /// How much recent naps have gained; without credit none are taken.
    credit: u32,
    /// Commits since then.
    without: u32,
}

/// The most that can be saved for naps that do not pay.
const CREDIT_MAX: u32 = 8;

impl BatchDelay {
    const fn new() -> Self {
        Self { sync: Duration::ZERO, committed: None, credit: CREDIT_MAX, without: 0 }
    }

    /// The last commit is durable.
    fn note_sync(&mut self) {
        if let Some(committed) = self.committed.take() {
            // An eighth of the news, so that one slow sync does not count for much.
            self.sync = (self.sync * 7 + committed.elapsed().min(NAPS_MAX * 8)) / 8;
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

    /// The longest nap that pays.
    fn budget(&self) -> Duration {
        if self.credit == 0 { Duration::ZERO } else { (self.sync / 2).min(NAPS_MAX) }
    }

    fn note_nap(&mut self, has_paid: bool) {
        self.credit =
            if has_paid { (self.credit + 2).min(CREDIT_MAX) } else { self.credit - self.credit.min(1) };
    }
}
