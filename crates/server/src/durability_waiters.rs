//! The connections of one network thread whose replies wait for the log.
//!
//! The log thread wakes each network thread once per sync, however many connections have parked replies. It wakes one
//! tokio task of the thread, which then wakes the connections of its thread.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use sureq_home_api::{Home, Position};

use crate::group_commit::GroupCommit;

/// Connections and tokio tasks that wait for a position to become durable.
#[derive(Debug, Default)]
pub(crate) struct DurabilityWaiters {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: Vec<DurabilityWaiter>,
    /// The task that runs [`DurabilityWaiters::wake_connections`].
    task: Option<Waker>,
    /// The position at which the home will wake the task.
    armed: Option<Position>,
}

#[derive(Debug)]
struct DurabilityWaiter {
    position: Position,
    waker: Waker,
    /// Whether the waiter is a connection, which will probably send another request.
    is_connection: bool,
}

impl DurabilityWaiters {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a connection once the position is durable or the home has failed.
    pub(crate) fn park(&self, home: &dyn Home, position: Position, waker: &Waker) {
        self.wait(home, DurabilityWaiter { position, waker: waker.clone(), is_connection: true });
    }

    fn wait(&self, home: &dyn Home, waiting: DurabilityWaiter) {
        let position = waiting.position;
        let mut inner = self.lock();
        inner.waiting.push(waiting);
        let sooner = inner.armed.is_none_or(|armed| position < armed);
        if sooner && let Some(task) = inner.task.clone() {
            inner.armed = Some(position);
            drop(inner);
            home.wake_at(position, &task);
        }
    }

    /// Waits until the position is durable or the home has failed.
    pub(crate) async fn durable(&self, home: &dyn Home, position: Position) {
        poll_fn(|cx| {
            if home.durable() >= position || home.failure().is_some() {
                return Poll::Ready(());
            }
            self.wait(home, DurabilityWaiter { position, waker: cx.waker().clone(), is_connection: false });
            Poll::Pending
        })
        .await;
    }

    /// Wakes connections whose position is durable, until the thread ends.
    pub(crate) async fn wake_connections(&self, home: &dyn Home, group_commit: &GroupCommit) {
        poll_fn(|cx| self.poll_waiters(home, group_commit, cx)).await;
    }

    fn poll_waiters(&self, home: &dyn Home, group_commit: &GroupCommit, cx: &Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        inner.task = Some(cx.waker().clone());
        inner.armed = None;
        let (durable, failed) = (home.durable(), home.failure().is_some());
        let may_go = |waiting: &mut DurabilityWaiter| failed || waiting.position <= durable;
        let woken: Vec<DurabilityWaiter> = inner.waiting.extract_if(.., may_go).collect();
        if let Some(next) = inner.waiting.iter().map(|waiting| waiting.position).min() {
            inner.armed = Some(next);
            drop(inner);
            home.wake_at(next, cx.waker());
        } else {
            drop(inner);
        }
        let answered = woken.iter().filter(|waiting| waiting.is_connection).count();
        if answered > 0 {
            group_commit.expect(answered);
        }
        for DurabilityWaiter { waker, .. } in woken {
            waker.wake();
        }
        Poll::Pending
    }
}
