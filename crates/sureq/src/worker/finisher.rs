//! Sends the outcomes of tasks to the home: per queue in batches, retried until the home confirms them.
//!
//! A retry is harmless, since a receipt finishes or returns one delivery at most once. Queues do not wait for each
//! other, and new reports do not wait for those that are retried.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use sureq_core::command::{AckScope, Return};
use sureq_core::reply::Why;
use sureq_core::settings::Place;
use sureq_core::{Command, Refusal, Replies, Reply};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep_until;

use super::delivery::Stop;
use super::outcome::{Again, Outcome};
use super::shared::{Backoff, Report, Shared, later};
use super::status::add;
use crate::error::Error;
use crate::id::{Id, Receipt};
use crate::queue::{millis, one, refs};
use sureq_home_api::Payload;

/// The most reports in one request.
const BATCH: usize = 1_024;

pub(super) async fn finish(shared: Arc<Shared>, mut reports: UnboundedReceiver<Report>) {
    let mut queues: Vec<Unconfirmed> = shared.queues.iter().map(|_| Unconfirmed::default()).collect();
    let mut in_flight = FuturesUnordered::new();
    let mut batch = Vec::new();
    loop {
        let now = Instant::now();
        let mut next = None::<Instant>;
        for (queue, unconfirmed) in
            queues.iter_mut().enumerate().filter(|(_, unconfirmed)| !unconfirmed.is_in_flight)
        {
            match unconfirmed.take(now) {
                Ok(pending) if pending.is_empty() => {}
                Ok(pending) => {
                    unconfirmed.is_in_flight = true;
                    in_flight.push(send(&shared, queue, pending));
                }
                Err(due) => next = Some(next.map_or(due, |next| next.min(due))),
            }
        }
        tokio::select! {
            count = reports.recv_many(&mut batch, BATCH) => {
                if count == 0 {
                    return;
                }
                // Let other handlers that are about to end join this batch.
                tokio::task::yield_now().await;
                while batch.len() < BATCH
                    && let Ok(report) = reports.try_recv()
                {
                    batch.push(report);
                }
                for report in batch.drain(..) {
                    queues[report.queue].list.push(Pending::new(report));
                }
            }
            Some((queue, again)) = in_flight.next() => {
                queues[queue].is_in_flight = false;
                queues[queue].list.extend(again);
            }
            () = sleep_until(next.unwrap_or(now).into()), if next.is_some() => {}
        }
    }
}

/// The reports of a queue that are not confirmed yet.
#[derive(Default)]
struct Unconfirmed {
    list: Vec<Pending>,
    /// A request with some of them has no reply yet.
    is_in_flight: bool,
}

impl Unconfirmed {
    /// Takes at most `BATCH` reports that are due, or returns the time when the first will be due.
    fn take(&mut self, now: Instant) -> Result<Vec<Pending>, Instant> {
        let is_due = |pending: &Pending| pending.due.is_none_or(|due| due <= now);
        if self.list.len() <= BATCH && self.list.iter().all(is_due) {
            return Ok(std::mem::take(&mut self.list));
        }
        let mut count = 0;
        let due: Vec<Pending> = self
            .list
            .extract_if(.., |pending| {
                is_due(pending) && {
                    count += 1;
                    count <= BATCH
                }
            })
            .collect();
        match self.list.iter().filter_map(|pending| pending.due).min() {
            Some(first) if due.is_empty() => Err(first),
            _ => Ok(due),
        }
    }
}

/// A report that the home has not confirmed.
struct Pending {
    report: Report,
    receipt: Receipt,
    /// An earlier request was sent, and its reply was lost.
    is_unknown: bool,
    /// The home supports neither failures nor delays: the task can only be requeued.
    is_plain: bool,
    /// When it is retried.
    due: Option<Instant>,
    backoff: Backoff,
}

/// The request for one report.
enum Request<'a> {
    Ack,
    Return { to: Option<Place>, failed: Option<&'a str>, is_last: bool },
}

impl Pending {
    fn new(mut report: Report) -> Self {
        let receipt = report.live.task.receipt();
        let stopped = report.live.fired();
        // A handler that stopped because its token fired may return `Cancelled` for a task that is not cancelled: an
        // ack would lose the task.
        if report.outcome == Outcome::Cancelled && stopped.is_some_and(|why| why != Stop::Cancelled) {
            report.outcome = Outcome::Requeue { after: Duration::ZERO };
        }
        let (due, backoff) = (None, Backoff::default());
        Self { report, receipt, is_unknown: false, is_plain: false, due, backoff }
    }

    fn request(&self) -> Request<'_> {
        let back = |to| Request::Return { to, failed: None, is_last: false };
        let failed = |to, reason| Request::Return { to, failed: Some(reason), is_last: false };
        match &self.report.outcome {
            Outcome::Done => Request::Ack,
            // To the back: at the front it would be redelivered in a tight loop.
            _ if self.is_plain => back(Some(Place::Back)),
            Outcome::Cancelled if self.report.live.fired() == Some(Stop::Cancelled) => back(None),
            Outcome::Cancelled => Request::Ack,
            Outcome::Requeue { after } if after.is_zero() => back(Some(Place::Front)),
            Outcome::Requeue { after } => back(Some(Place::After(millis(*after)))),
            Outcome::Failed { reason, again: Again::Backoff } => failed(None, reason),
            Outcome::Failed { reason, again: Again::Now } => failed(Some(Place::Front), reason),
            Outcome::Failed { reason, again: Again::After(after) } => {
                failed(Some(Place::After(millis(*after))), reason)
            }
            Outcome::Dead { reason } => Request::Return { to: None, failed: Some(reason), is_last: true },
        }
    }

    /// Whether this reports a failed try that may have been the task's last.
    fn may_be_last(&self) -> bool {
        matches!(self.request(), Request::Return { failed: Some(_), is_last: false, .. })
    }

    /// Whether the task died of its failed try, judged by an EXPLAIN right after it.
    fn is_dead(&self, explained: &Reply) -> bool {
        match explained {
            Reply::Explained(Some(explanation)) => matches!(explanation.why, Why::Dead { .. }),
            // It moved to a dead-letter queue. A task that is retried at once may also have been finished by another
            // worker already.
            Reply::Explained(None) => {
                !matches!(self.report.outcome, Outcome::Failed { again: Again::Now, .. })
            }
            _ => false,
        }
    }

    /// Whether the task is returned by its bare id. Such a return would also return a later delivery.
    fn is_bare_return(&self) -> bool {
        self.receipt.fence().is_none() && matches!(self.request(), Request::Return { .. })
    }
}

/// Sends reports of one queue once; returns those to retry.
async fn send(shared: &Shared, queue: usize, pending: Vec<Pending>) -> (usize, Vec<Pending>) {
    let (settled, pending): (Vec<_>, Vec<_>) =
        pending.into_iter().partition(|pending| settle_locally(shared, pending));
    drop(settled);
    let (done, back): (Vec<_>, Vec<_>) =
        pending.into_iter().partition(|pending| matches!(pending.request(), Request::Ack));
    let settlements = ask(shared, &shared.queues[queue].name, &done, &back).await;
    let mut again = Vec::new();
    for (mut pending, settlement) in done.into_iter().chain(back).zip(settlements) {
        match settlement {
            // Not retried: another worker may hold the task by then, and a bare id would return its delivery.
            Settlement::Retry { is_unknown: true, .. } if pending.is_bare_return() => {
                settle(shared, &pending, &settlement);
            }
            Settlement::Retry { error, is_unknown } => {
                shared.unreachable(&error);
                pending.is_unknown |= is_unknown;
                pending.due = Some(later(Instant::now(), pending.backoff.next()));
                again.push(pending);
            }
            Settlement::Unsupported(_) if !pending.is_plain && pending.report.outcome != Outcome::Done => {
                pending.is_plain = true;
                again.push(pending);
            }
            settlement => settle(shared, &pending, &settlement),
        }
    }
    (queue, again)
}

/// Acks the tasks in `done` and returns those in `back`, in one submission.
async fn ask(shared: &Shared, queue: &[u8], done: &[Pending], back: &[Pending]) -> Vec<Settlement> {
    if done.is_empty() && back.is_empty() {
        return Vec::new();
    }
    let list: Vec<&[u8]> = done.iter().map(|pending| pending.receipt.as_ref()).collect();
    let scope = AckScope::LeasedOrLapsed;
    let acks = (!list.is_empty()).then(|| Command::Ack { queue, tasks: refs(&list), scope });
    let returns = back.iter().filter_map(|pending| {
        let Request::Return { to, failed, is_last } = pending.request() else { return None };
        let task = one(pending.receipt.as_ref());
        Some(Command::Return(Return { queue, task, to, failed: failed.map(str::as_bytes), is_last }))
    });
    // The reply to a failed try does not say whether it was the last one.
    let ids: Vec<Id> = back.iter().map(|pending| pending.report.live.task.id()).collect();
    let may_be_dead = back.iter().zip(&ids).filter(|(pending, _)| pending.may_be_last());
    let explains = may_be_dead.map(|(_, id)| Command::Explain { queue, task: one(id.as_ref()) });
    let commands: Vec<Command<'_>> = acks.into_iter().chain(returns).chain(explains).collect();
    let replies = shared.home.ask(&commands).await;
    let mut settlements = settlements(done.len(), back.len(), &replies);
    let explained = replies.list.iter().skip(usize::from(!done.is_empty()) + back.len());
    let failed =
        settlements.iter_mut().skip(done.len()).zip(back).filter(|(_, pending)| pending.may_be_last());
    for ((settlement, pending), explained) in failed.zip(explained) {
        if !matches!(settlement, Settlement::Done) {
            continue;
        }
        match explained {
            Reply::Refused(refusal) => shared.cannot_tell_deaths(refusal),
            explained if pending.is_dead(explained) => *settlement = Settlement::Died,
            _ => {}
        }
    }
    // A server that shut down may be restarted; whether it executed the command is unknown.
    let retry = |settlement| match settlement {
        Settlement::Failed(error) if !shared.is_final(&error) => {
            Settlement::Retry { error, is_unknown: true }
        }
        settlement => settlement,
    };
    settlements.into_iter().map(retry).collect()
}

/// The result of a report.
enum Settlement {
    /// The home executed it.
    Done,
    /// The home executed it, and the failed try was the task's last.
    Died,
    /// The delivery is no longer the current one.
    Lost,
    /// The task was cancelled and is deleted.
    Cancelled,
    /// To be retried.
    Retry { error: Error, is_unknown: bool },
    /// The home does not support the command.
    Unsupported(Error),
    /// The home refused it for good.
    Failed(Error),
}

fn settlements(acks: usize, returns: usize, replies: &Replies<Payload>) -> Vec<Settlement> {
    let mut settlements = Vec::new();
    let mut list = replies.list.iter();
    if acks > 0 {
        match list.next() {
            Some(Reply::Acked(finished)) => {
                settlements.extend((0..acks).map(|_| Settlement::Lost));
                for &at in &replies.indexes[finished.range()] {
                    if let Some(settlement) = settlements.get_mut(at as usize) {
                        *settlement = Settlement::Done;
                    }
                }
            }
            other => settlements.extend((0..acks).map(|_| refused(other))),
        }
    }
    settlements.extend((0..returns).map(|_| {
        use sureq_core::reply::Outcome;
        match list.next() {
            Some(Reply::Outcome(Outcome::Done)) => Settlement::Done,
            Some(Reply::Outcome(Outcome::Stale)) => Settlement::Lost,
            Some(Reply::Outcome(Outcome::Cancelled)) => Settlement::Cancelled,
            other => refused(other),
        }
    }));
    settlements
}

fn refused(reply: Option<&Reply>) -> Settlement {
    let error = match reply {
        Some(Reply::Refused(no @ Refusal::NotThere { .. })) => {
            return Settlement::Unsupported(no.clone().into());
        }
        Some(Reply::Refused(no)) => Error::from(no.clone()),
        _ => Error::unexpected_reply(),
    };
    match error {
        Error::Unavailable { .. } => Settlement::Retry { error, is_unknown: false },
        Error::Unknown { .. } => Settlement::Retry { error, is_unknown: true },
        error => Settlement::Failed(error),
    }
}

/// Counts the result of a task and removes it from the table.
fn settle(shared: &Shared, pending: &Pending, settlement: &Settlement) {
    let counts = &shared.counts;
    let (id, queue) = (pending.report.live.task.id(), pending.report.live.task.queue_name());
    let count = match (settlement, &pending.report.outcome) {
        (Settlement::Cancelled, _) | (Settlement::Done, Outcome::Cancelled) => &counts.cancelled,
        (Settlement::Done, Outcome::Done) => {
            tracing::debug!(%queue, %id, "a task is done");
            &counts.done
        }
        (Settlement::Done, Outcome::Failed { reason, .. }) => {
            tracing::info!(%queue, %id, %reason, "a try failed");
            &counts.failed
        }
        (Settlement::Done, Outcome::Dead { reason }) | (Settlement::Died, Outcome::Failed { reason, .. }) => {
            tracing::warn!(%queue, %id, %reason, "a task is dead");
            &counts.dead
        }
        // Only failed tries are checked for death.
        (Settlement::Died, _) => &counts.dead,
        (Settlement::Done, Outcome::Requeue { .. }) => &counts.requeued,
        // An earlier request, whose reply was lost, may have succeeded.
        (Settlement::Lost, _) if pending.is_unknown => &counts.unknown,
        (Settlement::Retry { error, is_unknown: true }, _) => {
            tracing::warn!(%queue, %id, %error, "it is unknown whether the task was returned");
            &counts.unknown
        }
        (Settlement::Failed(error) | Settlement::Unsupported(error), _) => {
            tracing::error!(%queue, %id, %error, "the home refuses the outcome of a task");
            &counts.unknown
        }
        (Settlement::Lost | Settlement::Retry { .. }, _) => {
            tracing::warn!(%queue, %id, "the lease was lost before the handler ended: another worker may run the task");
            &counts.lost
        }
    };
    release(shared, pending, count);
}

/// Settles reports that the home does not need, or must not get. Returns whether it did.
fn settle_locally(shared: &Shared, pending: &Pending) -> bool {
    let live = &pending.report.live;
    if live.is_acked() {
        settle_acked(shared, pending);
        return true;
    }
    if pending.is_bare_return() && live.may_be_anothers() {
        settle(shared, pending, &Settlement::Lost);
        return true;
    }
    false
}

/// Counts the outcome of a task that was finished before its handler ran. It is never retried.
fn settle_acked(shared: &Shared, pending: &Pending) {
    let counts = &shared.counts;
    let count = match &pending.report.outcome {
        Outcome::Done => &counts.done,
        Outcome::Cancelled => &counts.cancelled,
        outcome => {
            let (id, queue) = (pending.report.live.task.id(), pending.report.live.task.queue_name());
            tracing::warn!(%queue, %id, ?outcome, "its only try failed");
            &counts.failed
        }
    };
    release(shared, pending, count);
}

fn release(shared: &Shared, pending: &Pending, count: &AtomicU64) {
    add(count, 1);
    shared.table.remove(pending.report.slot, &pending.report.live);
    shared.confirmed(1);
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use super::*;
    use crate::worker::delivery::{Delivery, States};
    use crate::worker::table::Table;

    /// The reported outcome of a handler that returns `Cancelled` after its token fired for this reason.
    async fn reported_after(stop: Option<Stop>) -> Outcome {
        let queue = crate::open("mem:").expect("a home in memory opens").queue("q");
        queue.push("x").await.expect("the push succeeds");
        let task = queue.pop().await.expect("the home answers").expect("a task is ready");
        let live = Delivery::new(task, Arc::<States>::default()).0;
        if let Some(stop) = stop {
            live.fire(stop);
        }
        let lease = Duration::from_secs(1);
        let slot = Table::default().insert(Arc::clone(&live), None, Some((Instant::now(), lease)));
        Pending::new(Report { queue: 0, slot, live, outcome: Outcome::Cancelled }).report.outcome
    }

    #[tokio::test]
    async fn only_a_cancelled_task_is_reported_cancelled() {
        let back = Outcome::Requeue { after: Duration::ZERO };
        assert_eq!(reported_after(Some(Stop::Cancelled)).await, Outcome::Cancelled);
        assert_eq!(reported_after(None).await, Outcome::Cancelled);
        for other in [Stop::Stopping, Stop::TooLong, Stop::LeaseLost, Stop::WorkerLost] {
            assert_eq!(reported_after(Some(other)).await, back, "{other:?}");
        }
    }
}
