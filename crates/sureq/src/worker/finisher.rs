//! What came of tasks, told to the home: of each queue all that has gathered at once, and again until it is confirmed. By receipt
//! that harms nothing: what was done already is not done twice. Queues do not wait for each other, nor new reports for those that
//! are to be told again.

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

/// How many reports are told at once at most.
const BATCH: usize = 1_024;

pub(super) async fn finish(shared: Arc<Shared>, mut reports: UnboundedReceiver<Report>) {
    let mut queues: Vec<Untold> = shared.queues.iter().map(|_| Untold::default()).collect();
    let mut under_way = FuturesUnordered::new();
    let mut batch = Vec::new();
    loop {
        let now = Instant::now();
        let mut next = None::<Instant>;
        for (queue, untold) in queues.iter_mut().enumerate().filter(|(_, untold)| !untold.is_asked) {
            match untold.take(now) {
                Ok(told) if told.is_empty() => {}
                Ok(told) => {
                    untold.is_asked = true;
                    under_way.push(tell(&shared, queue, told));
                }
                Err(due) => next = Some(next.map_or(due, |next| next.min(due))),
            }
        }
        tokio::select! {
            count = reports.recv_many(&mut batch, BATCH) => {
                if count == 0 {
                    return;
                }
                // The first of many handlers to end has woken this; the others are about to.
                tokio::task::yield_now().await;
                while batch.len() < BATCH
                    && let Ok(report) = reports.try_recv()
                {
                    batch.push(report);
                }
                for report in batch.drain(..) {
                    queues[report.queue].list.push(Told::new(report));
                }
            }
            Some((queue, again)) = under_way.next() => {
                queues[queue].is_asked = false;
                queues[queue].list.extend(again);
            }
            () = sleep_until(next.unwrap_or(now).into()), if next.is_some() => {}
        }
    }
}

/// The reports of a queue that are not confirmed yet.
#[derive(Default)]
struct Untold {
    list: Vec<Told>,
    /// Some of them are under way.
    is_asked: bool,
}

impl Untold {
    /// Those that are due; if none is, when the first will be.
    fn take(&mut self, now: Instant) -> Result<Vec<Told>, Instant> {
        let is_due = |told: &Told| told.due.is_none_or(|due| due <= now);
        if self.list.len() <= BATCH && self.list.iter().all(is_due) {
            return Ok(std::mem::take(&mut self.list));
        }
        let mut count = 0;
        let due: Vec<Told> = self
            .list
            .extract_if(.., |told| {
                is_due(told) && {
                    count += 1;
                    count <= BATCH
                }
            })
            .collect();
        match self.list.iter().filter_map(|told| told.due).min() {
            Some(first) if due.is_empty() => Err(first),
            _ => Ok(due),
        }
    }
}

/// A report and what is known of its fate.
struct Told {
    report: Report,
    receipt: Receipt,
    /// The home was asked before, and the answer was lost.
    is_unknown: bool,
    /// The home knows no failures and no delays: the task can only go back.
    is_plain: bool,
    /// When it is to be told again.
    due: Option<Instant>,
    backoff: Backoff,
}

/// What one report asks of the home.
enum Ask<'a> {
    Ack,
    Return { to: Option<Place>, failed: Option<&'a str>, is_last: bool },
}

impl Told {
    fn new(mut report: Report) -> Self {
        let receipt = report.live.task.receipt();
        let stopped = report.live.fired();
        // A handler that stopped because its lease seemed lost has not done what nobody cancelled.
        if report.outcome == Outcome::Cancelled && stopped.is_some_and(|why| why != Stop::Cancelled) {
            report.outcome = Outcome::GiveBack { after: Duration::ZERO };
        }
        let (due, backoff) = (None, Backoff::default());
        Self { report, receipt, is_unknown: false, is_plain: false, due, backoff }
    }

    fn ask(&self) -> Ask<'_> {
        let back = |to| Ask::Return { to, failed: None, is_last: false };
        let failed = |to, reason| Ask::Return { to, failed: Some(reason), is_last: false };
        match &self.report.outcome {
            Outcome::Done => Ask::Ack,
            // To the back: at the front it would come again at once, and again.
            _ if self.is_plain => back(Some(Place::Back)),
            Outcome::Cancelled if self.report.live.fired() == Some(Stop::Cancelled) => back(None),
            Outcome::Cancelled => Ask::Ack,
            Outcome::GiveBack { after } if after.is_zero() => back(Some(Place::Front)),
            Outcome::GiveBack { after } => back(Some(Place::After(millis(*after)))),
            Outcome::Failed { reason, again: Again::Backoff } => failed(None, reason),
            Outcome::Failed { reason, again: Again::Now } => failed(Some(Place::Front), reason),
            Outcome::Failed { reason, again: Again::After(after) } => {
                failed(Some(Place::After(millis(*after))), reason)
            }
            Outcome::Dead { reason } => Ask::Return { to: None, failed: Some(reason), is_last: true },
        }
    }

    /// Whether a failed try is told that may have been the task's last.
    fn may_be_last(&self) -> bool {
        matches!(self.ask(), Ask::Return { failed: Some(_), is_last: false, .. })
    }

    /// Whether the task is dead after its try failed, by what was found of it right after.
    fn is_dead(&self, looked: &Reply) -> bool {
        match looked {
            Reply::Explained(Some(explanation)) => matches!(explanation.why, Why::Dead { .. }),
            // It went to a dead-letter queue. One that is to come again at once may also be done by somebody else by now.
            Reply::Explained(None) => {
                !matches!(self.report.outcome, Outcome::Failed { again: Again::Now, .. })
            }
            _ => false,
        }
    }

    /// Whether the task goes back by its id alone, whoever has it.
    fn is_bare_return(&self) -> bool {
        self.receipt.fence().is_none() && matches!(self.ask(), Ask::Return { .. })
    }
}

/// Tells the home once what came of tasks of one queue; answers what has to be told again.
async fn tell(shared: &Shared, queue: usize, told: Vec<Told>) -> (usize, Vec<Told>) {
    let (settled, told): (Vec<_>, Vec<_>) = told.into_iter().partition(|told| settle_untold(shared, told));
    drop(settled);
    let (done, back): (Vec<_>, Vec<_>) = told.into_iter().partition(|told| matches!(told.ask(), Ask::Ack));
    let fates = ask(shared, &shared.queues[queue].name, &done, &back).await;
    let mut again = Vec::new();
    for (mut told, fate) in done.into_iter().chain(back).zip(fates) {
        match fate {
            // Somebody else may have it by then, and a bare id does not tell one delivery from the next.
            Fate::Again { is_unknown: true, .. } if told.is_bare_return() => settle(shared, &told, &fate),
            Fate::Again { error, is_unknown } => {
                shared.in_trouble(&error);
                told.is_unknown |= is_unknown;
                told.due = Some(later(Instant::now(), told.backoff.next()));
                again.push(told);
            }
            Fate::NotThere(_) if !told.is_plain && told.report.outcome != Outcome::Done => {
                told.is_plain = true;
                again.push(told);
            }
            fate => settle(shared, &told, &fate),
        }
    }
    (queue, again)
}

/// Asks the home for the ends of tasks that are done, and of those that go back.
async fn ask(shared: &Shared, queue: &[u8], done: &[Told], back: &[Told]) -> Vec<Fate> {
    if done.is_empty() && back.is_empty() {
        return Vec::new();
    }
    let list: Vec<&[u8]> = done.iter().map(|told| told.receipt.as_ref()).collect();
    let scope = AckScope::LeasedOrLapsed;
    let acks = (!list.is_empty()).then(|| Command::Ack { queue, tasks: refs(&list), scope });
    let returns = back.iter().filter_map(|told| {
        let Ask::Return { to, failed, is_last } = told.ask() else { return None };
        let task = one(told.receipt.as_ref());
        Some(Command::Return(Return { queue, task, to, failed: failed.map(str::as_bytes), is_last }))
    });
    // A home answers that it took note of a failed try, and not whether that was the last one.
    let ids: Vec<Id> = back.iter().map(|told| told.report.live.task.id()).collect();
    let may_be_dead = back.iter().zip(&ids).filter(|(told, _)| told.may_be_last());
    let looks = may_be_dead.map(|(_, id)| Command::Explain { queue, task: one(id.as_ref()) });
    let commands: Vec<Command<'_>> = acks.into_iter().chain(returns).chain(looks).collect();
    let replies = shared.home.ask(&commands).await;
    let mut fates = fates(done.len(), back.len(), &replies);
    let looked = replies.list.iter().skip(usize::from(!done.is_empty()) + back.len());
    let failed = fates.iter_mut().skip(done.len()).zip(back).filter(|(_, told)| told.may_be_last());
    for ((fate, told), looked) in failed.zip(looked) {
        if matches!(fate, Fate::Held) && told.is_dead(looked) {
            *fate = Fate::Died;
        }
    }
    // A server that is over may be started again; then it is not known what it did at its end.
    let again = |fate| match fate {
        Fate::Never(error) if !shared.is_final(&error) => Fate::Again { error, is_unknown: true },
        fate => fate,
    };
    fates.into_iter().map(again).collect()
}

/// What the home made of a report.
enum Fate {
    /// It took note of it.
    Held,
    /// It took note of the failed try, which was the task's last.
    Died,
    /// The delivery is not the current one any more.
    Lost,
    /// The task was cancelled, and is gone.
    Cancelled,
    /// It is to be told again.
    Again { error: Error, is_unknown: bool },
    /// It knows nothing like that.
    NotThere(Error),
    /// It never will take note of it.
    Never(Error),
}

fn fates(acks: usize, returns: usize, replies: &Replies<Payload>) -> Vec<Fate> {
    let mut fates = Vec::new();
    let mut list = replies.list.iter();
    if acks > 0 {
        match list.next() {
            Some(Reply::Acked(finished)) => {
                fates.extend((0..acks).map(|_| Fate::Lost));
                for &at in &replies.indexes[finished.range()] {
                    if let Some(fate) = fates.get_mut(at as usize) {
                        *fate = Fate::Held;
                    }
                }
            }
            other => fates.extend((0..acks).map(|_| refused(other))),
        }
    }
    fates.extend((0..returns).map(|_| {
        use sureq_core::reply::Outcome;
        match list.next() {
            Some(Reply::Outcome(Outcome::Done)) => Fate::Held,
            Some(Reply::Outcome(Outcome::Stale)) => Fate::Lost,
            Some(Reply::Outcome(Outcome::Cancelled)) => Fate::Cancelled,
            other => refused(other),
        }
    }));
    fates
}

fn refused(reply: Option<&Reply>) -> Fate {
    let error = match reply {
        Some(Reply::Refused(no @ Refusal::NotThere { .. })) => return Fate::NotThere(no.clone().into()),
        Some(Reply::Refused(no)) => Error::from(no.clone()),
        _ => Error::out_of_turn(),
    };
    match error {
        Error::Unavailable { .. } => Fate::Again { error, is_unknown: false },
        Error::Unknown { .. } => Fate::Again { error, is_unknown: true },
        error => Fate::Never(error),
    }
}

/// Counts what came of a task and lets go of it.
fn settle(shared: &Shared, told: &Told, fate: &Fate) {
    let counts = &shared.counts;
    let (id, queue) = (told.report.live.task.id(), told.report.live.task.queue_name());
    let count = match (fate, &told.report.outcome) {
        (Fate::Cancelled, _) | (Fate::Held, Outcome::Cancelled) => &counts.cancelled,
        (Fate::Held, Outcome::Done) => {
            tracing::debug!(%queue, %id, "a task is done");
            &counts.done
        }
        (Fate::Held, Outcome::Failed { reason, .. }) => {
            tracing::info!(%queue, %id, %reason, "a try failed");
            &counts.failed
        }
        (Fate::Held, Outcome::Dead { reason }) | (Fate::Died, Outcome::Failed { reason, .. }) => {
            tracing::warn!(%queue, %id, %reason, "a task is dead");
            &counts.dead
        }
        // Only a failed try is told so.
        (Fate::Died, _) => &counts.dead,
        (Fate::Held, Outcome::GiveBack { .. }) => &counts.given_back,
        // It was asked before, and that may have been what took it.
        (Fate::Lost, _) if told.is_unknown => &counts.unknown,
        (Fate::Again { error, is_unknown: true }, _) => {
            tracing::warn!(%queue, %id, %error, "it is not known whether a task went back");
            &counts.unknown
        }
        (Fate::Never(error) | Fate::NotThere(error), _) => {
            tracing::error!(%queue, %id, %error, "the home takes no note of what came of a task");
            &counts.unknown
        }
        (Fate::Lost | Fate::Again { .. }, _) => {
            tracing::warn!(%queue, %id, "the lease was lost before the handler ended: somebody else may run the task");
            &counts.lost
        }
    };
    let_go(shared, told, count);
}

/// Settles what the home need not be told, or must not be.
fn settle_untold(shared: &Shared, told: &Told) -> bool {
    let live = &told.report.live;
    if live.is_acked() {
        settle_acked(shared, told);
        return true;
    }
    if told.is_bare_return() && live.may_be_anothers() {
        settle(shared, told, &Fate::Lost);
        return true;
    }
    false
}

/// Counts what came of a task that was finished before its handler ran: whatever that was, it is not run again.
fn settle_acked(shared: &Shared, told: &Told) {
    let counts = &shared.counts;
    let count = match &told.report.outcome {
        Outcome::Done => &counts.done,
        Outcome::Cancelled => &counts.cancelled,
        outcome => {
            let (id, queue) = (told.report.live.task.id(), told.report.live.task.queue_name());
            tracing::warn!(%queue, %id, ?outcome, "its only try failed");
            &counts.failed
        }
    };
    let_go(shared, told, count);
}

fn let_go(shared: &Shared, told: &Told, count: &AtomicU64) {
    add(count, 1);
    shared.table.remove(told.report.slot, &told.report.live);
    shared.confirmed(1);
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use super::*;
    use crate::worker::delivery::{Delivery, States};
    use crate::worker::table::Table;

    /// What is told of a handler that answers that its task was cancelled, after it was told to stop for this reason.
    async fn told_after(stop: Option<Stop>) -> Outcome {
        let queue = crate::open("mem:").expect("memory is there").queue("q");
        queue.push("x").await.expect("it is pushed");
        let task = queue.pop().await.expect("it is asked").expect("it is there");
        let live = Delivery::new(task, Arc::<States>::default()).0;
        if let Some(stop) = stop {
            live.fire(stop);
        }
        let lease = Duration::from_secs(1);
        let slot = Table::default().insert(Arc::clone(&live), None, Some((Instant::now(), lease)));
        Told::new(Report { queue: 0, slot, live, outcome: Outcome::Cancelled }).report.outcome
    }

    #[tokio::test]
    async fn only_what_was_called_off_is_gone() {
        let back = Outcome::GiveBack { after: Duration::ZERO };
        assert_eq!(told_after(Some(Stop::Cancelled)).await, Outcome::Cancelled);
        assert_eq!(told_after(None).await, Outcome::Cancelled);
        // The lease may be extended again once the home can be asked: an ack would lose the task.
        assert_eq!(told_after(Some(Stop::LeaseLost)).await, back);
        assert_eq!(told_after(Some(Stop::WorkerLost)).await, back);
    }
}
