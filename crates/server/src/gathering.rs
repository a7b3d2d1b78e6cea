//! Has what the connections of one thread gathered committed, once and not too soon.
//!
//! Connections whose replies are released together come back one after the other within a fraction of a millisecond. If
//! the first of them were committed at once, the rest would have to wait for the sync of that one, and from then on every
//! sync would carry half of the connections. So nothing is committed while a sync is under way, and then the thread looks
//! for more that has arrived until a look finds nothing new: no timer, no sleep, and a lone connection waits for one look.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

use sureq::{Home, Position};

use crate::parked::Parked;

/// However much keeps arriving, it is committed after so many looks.
const LOOKS_MAX: u32 = 32;

/// What was gathered and is not committed.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// How often something was.
    count: AtomicU64,
    committer: Mutex<Option<Waker>>,
}

impl Gathering {
    /// A connection has gathered something.
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let waker = self.committer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Commits for as long as the thread lives.
    pub(crate) async fn commit_all(&self, home: &Home, parked: &Parked) {
        let (mut committed, mut under_way) = (0, Position::START);
        loop {
            self.more_than(committed).await;
            parked.durable(home, under_way).await;
            committed = self.look_for_more().await;
            under_way = home.commit();
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
