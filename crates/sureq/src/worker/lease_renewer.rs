//! The lease renewer: a thread that sends the heartbeats of the worker and extends the leases of its tasks. A thread
//! of its own does so even if handlers block all threads of the runtime. It also stops handlers that run too long.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use sureq_core::command::{Worker, WorkerRef};
use sureq_core::reply::Outcome as Answered;
use sureq_core::{Command, Refusal, Replies, Reply};
use tokio::sync::Notify;
use tokio::time::{sleep, sleep_until, timeout};

use super::delivery::{Live, Stop};
use super::shared::{Backoff, Registration, Shared, later};
use super::table::TaskSlot;
use crate::error::{Error, Result};
use crate::id::Receipt;
use crate::queue::{millis, one};
use sureq_home_api::Payload;

/// The most leases extended in one request.
const BATCH: usize = 256;
/// The shortest interval between checks for handlers that run too long.
const SHORTEST: Duration = Duration::from_millis(10);

/// The timeout for deregistering the worker; part of the time that a stop may take beyond its grace period.
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(2);
const NOT_IN_TIME: &str = "the home does not answer in time";

/// Starts the thread. It ends after the worker has ended.
pub(super) fn start(shared: Arc<Shared>) -> io::Result<std::thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    std::thread::Builder::new()
        .name("sureq-renewer".to_owned())
        .spawn(move || runtime.block_on(LeaseRenewer::new(shared).keep()))
}

struct LeaseRenewer {
    shared: Arc<Shared>,
    /// A heartbeat named deliveries that were cancelled or lost.
    named: Notify,
    lost_starts: LostStarts,
}

/// STARTs whose reply was lost. Each may reach the home late, on an abandoned connection, and then replaces the
/// registration of a later START.
#[derive(Debug, Default)]
struct LostStarts(Cell<Option<(u32, Instant)>>);

impl LostStarts {
    /// A START that has not arrived by then never will.
    const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

    fn add_one(&self) {
        let count = self.0.get().map_or(0, |(count, _)| count);
        self.0.set(Some((count.saturating_add(1), Instant::now())));
    }

    /// Whether a lost START may still arrive. Each lost START is counted once.
    fn take_one(&self) -> bool {
        let recent = self.0.take().filter(|(_, since)| since.elapsed() < Self::FORGOTTEN_AFTER);
        let Some((count, since)) = recent else { return false };
        self.0.set((count > 1).then(|| (count - 1, since)));
        true
    }
}

impl LeaseRenewer {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared, named: Notify::new(), lost_starts: LostStarts::default() }
    }

    /// The loops are independent, so that a home or queue that does not answer delays only its own requests.
    async fn keep(self) {
        tokio::select! {
            () = self.over() => {}
            () = self.watch() => {}
            () = self.beat_on() => {}
            () = self.extend_on() => {}
        }
        self.stop().await;
        self.shared.has_stopped.store(true, SeqCst);
    }

    /// Waits until the worker has ended and its handlers are gone, up to the limit.
    async fn over(&self) {
        // The sender is part of `shared`.
        let _ = self.shared.is_over.subscribe().wait_for(|&is_over| is_over).await;
        self.shared.until(self.shared.linger_until(), || self.shared.running() == 0).await;
    }

    /// Fires tokens of handlers whose lease ended or that run too long.
    async fn watch(&self) {
        let options = &self.shared.options;
        // Often enough for handlers that start meanwhile.
        let every = (options.lease / 6).min((options.run_max / 2).max(SHORTEST));
        loop {
            let now = Instant::now();
            self.shared.table.fire_lapsed(now);
            self.end_those_too_long(now);
            self.shared.table.release_aborted(now);
            let latest = later(now, every);
            let next = self.shared.table.next_end().map_or(latest, |next| next.min(latest));
            sleep_until(next.max(now + Duration::from_millis(1)).into()).await;
        }
    }

    /// Extends leases, each queue in requests of its own.
    async fn extend_on(&self) {
        let mut under_way = FuturesUnordered::new();
        loop {
            let now = Instant::now();
            // Requests in flight are answered or given up by then.
            let mut due = self.shared.table.take_to_extend(now, later(now, 2 * self.patience()));
            due.sort_by(|(_, a), (_, b)| a.task.queue_bytes().cmp(b.task.queue_bytes()));
            for of_one in due.chunk_by(|(_, a), (_, b)| a.task.queue_bytes() == b.task.queue_bytes()) {
                under_way.extend(of_one.chunks(BATCH).map(|tasks| self.extend(tasks.to_vec())));
            }
            // Often enough for leases that begin meanwhile.
            let latest = later(now, self.shared.options.lease / 6);
            let next = self.shared.table.next_extension().map_or(latest, |next| next.min(latest));
            tokio::select! {
                () = sleep_until(next.into()) => {}
                () = self.named.notified() => {}
                Some(()) = under_way.next() => {}
            }
        }
    }

    fn beat_every(&self) -> Duration {
        self.shared.options.ttl / 3
    }

    /// The timeout of a request: half of the shorter of lease and ttl, since both run meanwhile.
    fn patience(&self) -> Duration {
        self.shared.options.lease.min(self.shared.options.ttl) / 2
    }

    fn incarnation(&self) -> Option<u64> {
        match *self.shared.registration.borrow() {
            Registration::As(incarnation) => Some(incarnation),
            Registration::Pending | Registration::Unneeded | Registration::Ended(_) => None,
        }
    }

    /// Executes commands with a timeout.
    async fn ask(&self, commands: &[Command<'_>]) -> Result<Replies<Payload>> {
        let replies = timeout(self.patience(), self.shared.home.ask(commands)).await;
        replies.map_err(|_| Error::Unknown { why: NOT_IN_TIME.into() })
    }

    /// Executes one command.
    async fn ask_one(&self, command: Command<'_>) -> Result<(Reply, Replies<Payload>)> {
        let mut replies = self.ask(&[command]).await?;
        match replies.list.pop() {
            Some(Reply::Refused(no @ (Refusal::Unavailable { .. } | Refusal::Unknown { .. }))) => {
                Err(no.into())
            }
            Some(reply) => Ok((reply, replies)),
            None => Err(Error::unexpected_reply()),
        }
    }

    /// Registers the worker, then sends heartbeats.
    async fn beat_on(&self) {
        let mut beat_at = self.register().await;
        loop {
            tokio::select! {
                () = sleep_until(beat_at.into()) => {}
                // A command was refused because the worker is not registered.
                () = self.shared.nudge.notified() => {}
            }
            beat_at = self.beat().await;
        }
    }

    /// Registers the worker; retries until that succeeds or fails for good. Returns when to send a heartbeat.
    async fn register(&self) -> Instant {
        let mut backoff = Backoff::default();
        loop {
            let tried = self.try_to_register().await;
            if tried.as_ref().is_err_and(Error::is_unknown) {
                self.lost_starts.add_one();
            }
            match tried {
                Ok(registration) => {
                    self.shared.reachable();
                    self.shared.registration.send_replace(registration);
                    break;
                }
                Err(error) if self.shared.is_final(&error) => {
                    self.shared.over(error);
                    break;
                }
                Err(error) => self.shared.unreachable(&error),
            }
            tokio::select! {
                () = sleep(backoff.next()) => {}
                () = self.shared.nudge.notified() => {}
            }
        }
        later(Instant::now(), self.beat_every())
    }

    async fn try_to_register(&self) -> Result<Registration> {
        let (name, ttl_ms) = (&self.shared.options.name, millis(self.shared.options.ttl));
        match self.ask_one(Command::Worker(Worker::Start { name, ttl_ms })).await?.0 {
            Reply::Started(incarnation) => {
                tracing::info!(worker = %self.shared.name(), incarnation, "the worker is registered");
                self.announce(incarnation).await;
                Ok(Registration::As(incarnation))
            }
            Reply::Refused(Refusal::NotThere { .. }) => Ok(Registration::Unneeded),
            Reply::Refused(no) => Err(no.into()),
            _ => Err(Error::unexpected_reply()),
        }
    }

    /// Announces the queues of the worker, which is only informative.
    async fn announce(&self, incarnation: u64) {
        let shared = &self.shared;
        let worker = WorkerRef { name: &shared.options.name, incarnation };
        let works = shared.queues.iter().map(|queue| Command::Worker(Worker::Work(worker, &queue.name)));
        let _ = self.ask(&works.collect::<Vec<_>>()).await;
    }

    /// Sends a heartbeat; returns when to send the next one.
    async fn beat(&self) -> Instant {
        let shared = &self.shared;
        let next = |after| later(Instant::now(), after);
        let Some(incarnation) = self.incarnation() else { return next(self.beat_every()) };
        let worker = WorkerRef { name: &shared.options.name, incarnation };
        let error = match self.ask_one(Command::Worker(Worker::Beat(worker))).await {
            Ok((reply @ (Reply::Receipts(_) | Reply::ReceiptsForeign(_)), replies)) => {
                shared.reachable();
                // The named deliveries are cancelled or lost: the replies to their extensions say which.
                let named = named(&reply, &replies);
                if !named.is_empty() {
                    shared.table.name(&named);
                    self.named.notify_one();
                }
                return next(self.beat_every());
            }
            Ok((Reply::Refused(Refusal::WorkerGone), _)) => return self.register_anew(incarnation).await,
            Ok((Reply::Refused(Refusal::WorkerReplaced), _)) => return self.replaced(incarnation).await,
            Ok((Reply::Refused(no), _)) => no.into(),
            Ok(_) => Error::unexpected_reply(),
            Err(error) => error,
        };
        if shared.is_final(&error) {
            shared.over(error);
        } else {
            shared.unreachable(&error);
        }
        next(self.beat_every() / 4)
    }

    /// Registers again after the worker was declared lost and its tasks were requeued.
    async fn register_anew(&self, incarnation: u64) -> Instant {
        tracing::warn!(worker = %self.shared.name(), incarnation, "the worker was declared lost; its tasks were requeued");
        // In this order: a handler that starts after the table was walked sees that the worker is not registered.
        self.shared.registration.send_replace(Registration::Pending);
        self.shared.table.fire_incarnation(incarnation);
        self.register().await
    }

    /// Another worker has registered this name. If this one registered again, the two would replace each other
    /// endlessly, so this one ends.
    async fn replaced(&self, incarnation: u64) -> Instant {
        if self.lost_starts.take_one() {
            // It may have been this worker's own START, which arrived late.
            return self.register_anew(incarnation).await;
        }
        // The tokens fire with this reason first, then because the worker stops.
        self.shared.registration.send_replace(Registration::Pending);
        self.shared.table.fire_incarnation(incarnation);
        self.shared.over(Error::WorkerReplaced);
        later(Instant::now(), self.beat_every())
    }

    /// Extends leases of one queue.
    async fn extend(&self, tasks: Vec<(TaskSlot, Arc<Live>)>) {
        let since = Instant::now();
        let receipts: Vec<Receipt> = tasks.iter().map(|(_, live)| live.task.receipt()).collect();
        let commands = tasks.iter().zip(&receipts).map(|((_, live), receipt)| Command::Extend {
            queue: live.task.queue_bytes(),
            task: one(receipt.as_ref()),
            ms: millis(self.shared.options.lease),
        });
        match self.ask(&commands.collect::<Vec<_>>()).await {
            Ok(replies) => {
                for (at, (slot, live)) in tasks.iter().enumerate() {
                    self.extended(*slot, live, replies.list.get(at), since);
                }
            }
            Err(error) => {
                self.shared.unreachable(&error);
                for (slot, live) in &tasks {
                    self.extend_later(*slot, live);
                }
            }
        }
    }

    fn extended(&self, slot: TaskSlot, live: &Arc<Live>, reply: Option<&Reply>, since: Instant) {
        let (table, lease) = (&self.shared.table, self.shared.options.lease);
        match reply {
            Some(Reply::Outcome(Answered::Done)) => table.extended(slot, live, since, lease),
            Some(Reply::Outcome(Answered::Cancelled)) => {
                table.extended(slot, live, since, lease);
                live.fire(Stop::Cancelled);
            }
            Some(Reply::Outcome(Answered::Stale)) => {
                table.forget_lease(slot, live);
                live.fire(Stop::LeaseLost);
            }
            // A home without extensions lets the lease end.
            Some(Reply::Refused(Refusal::NotThere { .. })) => table.forget_lease(slot, live),
            Some(Reply::Refused(no)) => {
                self.shared.unreachable(&no.clone().into());
                return self.extend_later(slot, live);
            }
            _ => return self.extend_later(slot, live),
        }
        self.shared.reachable();
    }

    /// Retries after a pause if the home cannot be reached.
    fn extend_later(&self, slot: TaskSlot, live: &Arc<Live>) {
        self.shared.table.extend_at(slot, live, later(Instant::now(), self.shared.options.lease / 12));
    }

    /// Fires the tokens of handlers that reached `run_max`, and aborts those whose grace period is over.
    fn end_those_too_long(&self, now: Instant) {
        let (shared, table) = (&self.shared, &self.shared.table);
        for live in table.tell_too_long(now, later(now, shared.options.grace)) {
            let (queue, id, run_max) = (live.task.queue_name(), live.task.id(), shared.options.run_max);
            tracing::error!(%queue, %id, ?run_max, "the handler runs longer than run_max: its token fired");
        }
        table.end_too_long(now, |why| shared.verdict(why));
    }

    /// Deregisters the worker, which returns its tasks at no cost of a try; not if a handler still runs, since its task
    /// would run twice.
    async fn stop(&self) {
        let Some(incarnation) = self.incarnation() else { return };
        let running = self.shared.running();
        if running > 0 {
            tracing::warn!(worker = %self.shared.name(), running, "the worker stops although handlers still run");
            return;
        }
        let worker = WorkerRef { name: &self.shared.options.name, incarnation };
        let stopping = timeout(STOP_PATIENCE, self.ask_one(Command::Worker(Worker::Stop(worker))));
        let stopped = stopping.await.unwrap_or_else(|_| Err(Error::Unknown { why: NOT_IN_TIME.into() }));
        if let Err(error) = stopped {
            tracing::warn!(worker = %self.shared.name(), %error, "cannot deregister the worker; its tasks are requeued when its ttl ends");
        }
    }
}

/// The receipts in the reply to a heartbeat.
fn named(reply: &Reply, replies: &Replies<Payload>) -> Vec<Receipt> {
    match reply {
        Reply::Receipts(span) => {
            replies.receipts[span.range()].iter().map(|&receipt| Receipt::own(receipt)).collect()
        }
        Reply::ReceiptsForeign(span) => replies.foreign_ids[span.range()]
            .iter()
            .flatten()
            .map(|id| Receipt::foreign(id.clone()))
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use super::*;

    /// Sends another START under the worker's name, like a second worker or a late START of the worker itself.
    async fn start_another(home: &crate::Home) {
        let start = Command::Worker(Worker::Start { name: b"w", ttl_ms: 60_000 });
        assert!(matches!(home.ask(&[start]).await.list[..], [Reply::Started(_)]));
    }

    /// A worker cannot distinguish its own late START from a START of another worker. It tolerates one replacement
    /// for each START of its own that was lost.
    #[tokio::test]
    async fn a_start_whose_answer_was_lost_does_not_end_the_worker_when_it_arrives_late() {
        let home = crate::open("mem:").expect("a home in memory opens");
        let shared = Arc::new(Shared::for_tests(&home, Vec::new()));
        let renewer = LeaseRenewer::new(Arc::clone(&shared));
        renewer.register().await;
        renewer.lost_starts.add_one();
        let first = renewer.incarnation().expect("it is registered");
        start_another(&home).await;
        renewer.beat().await;
        assert!(renewer.incarnation().is_some_and(|second| second > first), "it has registered anew");
        start_another(&home).await;
        renewer.beat().await;
        assert_eq!(*shared.registration.borrow(), Registration::Ended(Error::WorkerReplaced));
    }
}
