//! Pops on connections of their own: those that wait, and those whose leases end with a connection.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sureq_core::command::Block;
use sureq_core::{Refusal, Replies, Reply};
use sureq_proto::Expected;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::Patience;
use super::conn::{Conn, ConnectError, Lost};
use super::pipe::{Pipe, read_answer};
use super::target::Target;
use super::ticket::Slot;

/// How many connections are kept for the next pop that waits.
const IDLE_MAX: usize = 8;

/// How many pops of one home may be under way on connections of their own.
pub(super) const WAITING_MAX: usize = 512;

/// One pop.
pub(super) struct Waiting {
    pub(super) bytes: Vec<u8>,
    pub(super) expected: Expected,
    pub(super) block: Option<Block>,
    pub(super) slot: Arc<Slot>,
    /// How often all were dismissed before it came.
    pub(super) dismissals: u64,
    /// Counted for as long as this is there.
    pub(super) _place: Place,
}

/// A place in the count of those under way.
pub(super) struct Place(Arc<AtomicUsize>);

impl Place {
    /// One more, unless there are too many.
    pub(super) fn take(count: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |n: usize| (n < WAITING_MAX).then_some(n + 1);
        count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Self(Arc::clone(count)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What all pops of a home have in common.
pub(super) struct Common {
    pub(super) target: Target,
    pub(super) patience: Patience,
    pub(super) pipe: Arc<Pipe>,
    /// How often all were dismissed.
    pub(super) dismissals: watch::Receiver<u64>,
    pub(super) idle: RefCell<Vec<Conn>>,
}

impl Common {
    /// Serves a pop on any connection.
    pub(super) async fn serve(self: Rc<Self>, pop: Waiting) {
        if let Some(conn) = self.pop(None, &pop).await {
            let mut idle = self.idle.borrow_mut();
            if idle.len() < IDLE_MAX {
                idle.push(conn);
            }
        }
    }

    /// Serves pops on one connection, in order, until there will be no more.
    pub(super) async fn serve_lane(self: Rc<Self>, mut pops: mpsc::UnboundedReceiver<Waiting>) {
        let mut conn = None;
        while let Some(pop) = pops.recv().await {
            let kept = conn.take().map(Ok);
            let own = match kept {
                Some(own) => own,
                None => Conn::open(&self.target, self.patience).await,
            };
            conn = self.pop(Some(own), &pop).await;
        }
    }

    /// Answers one pop; gives its connection back if that will do for another.
    async fn pop(&self, own: Option<Result<Conn, ConnectError>>, pop: &Waiting) -> Option<Conn> {
        let opened = match own {
            Some(own) => own,
            None => self.any().await,
        };
        let mut conn = match opened {
            Ok(conn) => conn,
            Err(error) => {
                self.answer(pop, Err(unreachable(&self.target, &error)));
                return None;
            }
        };
        if pop.slot.is_abandoned() {
            return Some(conn);
        }
        let mut dismissals = self.dismissals.clone();
        tokio::select! {
            asked = within(pop.block, self.patience, conn.ask(&pop.bytes)) => {
                let is_good = asked.is_ok();
                self.answer(pop, asked.map(Some).map_err(|lost| lost_one(&self.target, &lost)));
                return is_good.then_some(conn);
            }
            // What does not wait is answered soon. Its connection may hold tasks, and so is not closed for it.
            () = pop.slot.abandoned(), if pop.block.is_some() => {}
            // The sender lives as long as the home.
            _ = dismissals.wait_for(|n| *n > pop.dismissals), if pop.block.is_some() => {}
        }
        let withdrawn = conn.withdraw(self.patience).await;
        self.answer(pop, withdrawn.map_err(|lost| lost_one(&self.target, &lost)));
        None
    }

    /// A connection that nobody uses, or a new one.
    async fn any(&self) -> Result<Conn, ConnectError> {
        loop {
            let kept = self.idle.borrow_mut().pop();
            match kept {
                Some(conn) if conn.is_stale() => {}
                Some(conn) => return Ok(conn),
                None => return Conn::open(&self.target, self.patience).await,
            }
        }
    }

    /// Gives a pop its answer; no frame says that its time is over. If nobody takes it, what it hands out goes back.
    fn answer(&self, pop: &Waiting, frame: Result<Option<&[u8]>, Refusal>) {
        let mut replies = Replies::default();
        match frame {
            Ok(Some(frame)) => read_answer(&pop.expected, frame, &mut replies),
            Ok(None) => replies.list.push(Reply::TimedOut),
            Err(no) => replies.list.push(Reply::Refused(no)),
        }
        self.pipe.give_back(pop.slot.fill(replies));
    }
}

/// Common for an answer as long as the pop itself may, and then as long as for any.
async fn within<'a>(
    block: Option<Block>,
    patience: Patience,
    asked: impl Future<Output = Result<&'a [u8], Lost>>,
) -> Result<&'a [u8], Lost> {
    let wait = match block {
        Some(Block::Forever) => return asked.await,
        Some(Block::Millis(ms)) => Duration::from_millis(ms),
        None => Duration::ZERO,
    };
    let wait = wait.saturating_add(patience.answer);
    let late = |_| Lost { was_sent: true, why: format!("no answer within {wait:?}") };
    timeout(wait, asked).await.map_err(late).flatten()
}

/// There is no connection.
pub(super) fn unreachable(target: &Target, error: &ConnectError) -> Refusal {
    Refusal::Unavailable { why: format!("sureq at {target}: {error}").into() }
}

/// There was one.
fn lost_one(target: &Target, lost: &Lost) -> Refusal {
    let why = format!("sureq at {target}: {}", lost.why).into();
    if lost.was_sent { Refusal::Unknown { why } } else { Refusal::Unavailable { why } }
}
