//! Pops on dedicated connections: pops that wait, and pops whose leases end with a connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sureq_core::command::Block;
use sureq_core::{Refusal, Replies, Reply};
use sureq_home_api::Payload;
use sureq_home_api::elsewhere::{ReplySlot, Undelivered};
use sureq_proto::ReplyForm;
use tokio::sync::{mpsc, watch};

use crate::Patience;
use crate::conn::{AnswerBy, Conn, ConnectError, Frame, Lost};
use crate::pipe::{Pipe, read_answer};
use crate::target::Target;

/// The most idle connections that are kept for later waiting pops.
const IDLE_MAX: usize = 8;

/// The most pops of one home on dedicated connections at a time.
pub(crate) const WAITING_MAX: usize = 512;

/// A pop on a dedicated connection.
pub(crate) struct WaitingPop {
    pub(crate) bytes: Vec<u8>,
    pub(crate) form: ReplyForm<'static>,
    pub(crate) block: Option<Block>,
    pub(crate) slot: Arc<ReplySlot>,
    /// The value of [`Common::dismissals`] when the pop was submitted: a larger one dismisses it.
    pub(crate) dismissals: u64,
    /// Counts the pop against [`WAITING_MAX`] until it is dropped.
    pub(crate) _permit: PopPermit,
    pub(crate) is_answered: Cell<bool>,
}

impl WaitingPop {
    /// Resolves its ticket. Returns the deliveries to requeue if the ticket was dropped.
    fn fill(&self, replies: Replies<Payload>, began: Instant) -> Vec<Undelivered> {
        self.is_answered.set(true);
        self.slot.fill_at(replies, began)
    }

    pub(crate) fn refuse(&self, no: &Refusal) {
        self.is_answered.set(true);
        self.slot.refuse(1, no);
    }
}

impl Drop for WaitingPop {
    /// Closing a home drops pops that the server has not answered in time; their tickets must still resolve.
    fn drop(&mut self) {
        if !self.is_answered.get() {
            let why = "the home was closed before the server answered".into();
            self.slot.refuse(1, &Refusal::Unknown { why });
        }
    }
}

/// One pop in the count of pops in progress. Dropping it decrements the count.
pub(crate) struct PopPermit(Arc<AtomicUsize>);

impl PopPermit {
    /// Increments the count; `None` if it is [`WAITING_MAX`] already.
    pub(crate) fn take(count: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |n: usize| (n < WAITING_MAX).then_some(n + 1);
        count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Self(Arc::clone(count)))
    }
}

impl Drop for PopPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// State that all pops of a home share.
pub(crate) struct Common {
    pub(crate) target: Target,
    pub(crate) patience: Patience,
    pub(crate) pipe: Arc<Pipe>,
    /// The connection for commands that must not wait behind large payloads, once one was submitted.
    pub(crate) control: Arc<Pipe>,
    /// How often all waiting pops were dismissed.
    pub(crate) dismissals: watch::Receiver<u64>,
    pub(crate) idle: RefCell<Vec<Conn>>,
}

impl Common {
    /// Serves a pop on any connection.
    pub(crate) async fn serve(self: Rc<Self>, pop: WaitingPop) {
        if let Some(conn) = self.pop(None, &pop).await {
            let mut idle = self.idle.borrow_mut();
            if idle.len() < IDLE_MAX {
                idle.push(conn);
            }
        }
    }

    /// Serves pops on one connection, in order, until the sender is dropped.
    pub(crate) async fn serve_lane(self: Rc<Self>, mut pops: mpsc::UnboundedReceiver<WaitingPop>) {
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

    /// Answers one pop. Returns its connection if that can serve another one.
    async fn pop(&self, own: Option<Result<Conn, ConnectError>>, pop: &WaitingPop) -> Option<Conn> {
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
            asked = conn.ask(&pop.bytes, answer_by(pop.block, self.patience)) => {
                let is_good = asked.is_ok();
                self.answer(pop, asked.map(Some).map_err(|lost| lost_one(&self.target, &lost)));
                return is_good.then_some(conn);
            }
            // A pop that does not wait is answered soon. Its connection may hold leases, so it is not closed.
            () = pop.slot.abandoned(), if pop.block.is_some() => {}
            // The sender lives as long as the home.
            _ = dismissals.wait_for(|n| *n > pop.dismissals), if pop.block.is_some() => {}
        }
        let withdrawn = conn.withdraw(self.patience).await;
        self.answer(pop, withdrawn.map_err(|lost| lost_one(&self.target, &lost)));
        None
    }

    /// An idle connection, or a new one.
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

    /// Resolves the ticket of a pop; no frame means that the pop timed out. If the ticket was dropped, the tasks in
    /// the reply are requeued.
    fn answer(&self, pop: &WaitingPop, frame: Result<Option<Frame<'_>>, Refusal>) {
        let mut replies = Replies::default();
        let began = frame.as_ref().ok().and_then(|frame| Some(frame.as_ref()?.began));
        match frame {
            Ok(Some(frame)) => read_answer(&pop.form, frame.bytes, &mut replies),
            Ok(None) => replies.list.push(Reply::TimedOut),
            Err(no) => replies.list.push(Reply::Refused(no)),
        }
        self.pipe.requeue_all(pop.fill(replies, began.unwrap_or_else(Instant::now)));
    }
}

/// The reply to a pop may take as long as the pop may wait, plus the time for any reply.
fn answer_by(block: Option<Block>, patience: Patience) -> AnswerBy {
    match block {
        Some(Block::Forever) => AnswerBy::once_begun(patience.answer),
        Some(Block::Millis(ms)) => AnswerBy::within(Duration::from_millis(ms), patience.answer),
        None => AnswerBy::within(Duration::ZERO, patience.answer),
    }
}

/// The refusal of a command when no connection could be opened.
pub(crate) fn unreachable(target: &Target, error: &ConnectError) -> Refusal {
    Refusal::Unavailable { why: format!("sureq at {target}: {error}").into() }
}

/// The refusal of a command when its connection was lost.
fn lost_one(target: &Target, lost: &Lost) -> Refusal {
    let why = format!("sureq at {target}: {}", lost.why).into();
    if lost.was_sent { Refusal::Unknown { why } } else { Refusal::Unavailable { why } }
}
