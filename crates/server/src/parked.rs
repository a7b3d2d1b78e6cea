//! Connections of one network thread that wait for the log.
//!
//! The log thread wakes each network thread once per sync, whatever the number of connections with parked replies: one
//! task of the thread, the pump, is woken from outside, and wakes the connections from within.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use sureq::{Home, Position};

/// Who waits for which position.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: Vec<(Position, Waker)>,
    pump: Option<Waker>,
    /// The home will wake the pump at this position.
    armed: Option<Position>,
}

impl Parked {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the waker once the position is durable or the home has failed.
    pub(crate) fn park(&self, home: &Home, position: Position, waker: &Waker) {
        let mut inner = self.lock();
        inner.waiting.push((position, waker.clone()));
        let sooner = inner.armed.is_none_or(|armed| position < armed);
        if sooner && let Some(pump) = inner.pump.clone() {
            inner.armed = Some(position);
            drop(inner);
            home.wake_at(position, &pump);
        }
    }

    /// Waits until the position is durable or the home has failed.
    pub(crate) async fn durable(&self, home: &Home, position: Position) {
        poll_fn(|cx| {
            if home.durable() >= position || home.failure().is_some() {
                return Poll::Ready(());
            }
            self.park(home, position, cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Runs the pump for as long as the thread lives.
    pub(crate) async fn pump(&self, home: &Home) {
        poll_fn(|cx| self.poll_pump(home, cx)).await;
    }

    fn poll_pump(&self, home: &Home, cx: &Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        inner.pump = Some(cx.waker().clone());
        inner.armed = None;
        let (durable, failed) = (home.durable(), home.failure().is_some());
        let woken: Vec<_> = inner.waiting.extract_if(.., |(at, _)| failed || *at <= durable).collect();
        if let Some(next) = inner.waiting.iter().map(|&(at, _)| at).min() {
            inner.armed = Some(next);
            drop(inner);
            home.wake_at(next, cx.waker());
        } else {
            drop(inner);
        }
        for (_, waker) in woken {
            waker.wake();
        }
        Poll::Pending
    }
}
