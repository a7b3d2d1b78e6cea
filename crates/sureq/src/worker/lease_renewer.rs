//! The renewer: a thread of its own that says that the worker lives and extends the leases of what it has, so that handlers which
//! block every thread of the runtime lose nothing. It also ends what has run for too long.

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
use super::table::Slot;
use crate::error::{Error, Result};
use crate::id::Receipt;
use crate::queue::{millis, one};
use sureq_home_api::Payload;

/// How many leases are extended at once at most.
const BATCH: usize = 256;
/// The renewer looks no oftener than this for handlers that run for too long.
const SHORTEST: Duration = Duration::from_millis(10);

/// How long is waited for the answer when the worker says that it stops: part of what a stop may take beyond its grace.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
const NOT_IN_TIME: &str = "the home does not answer in time";

/// Starts the thread. It ends when the worker is over.
pub(super) fn start(shared: Arc<Shared>) -> io::Result<std::thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    std::thread::Builder::new()
        .name("sureq-renewer".to_owned())
        .spawn(move || runtime.block_on(LeaseRenewer::new(shared).keep()))
}

struct LeaseRenewer {
    shared: Arc<Shared>,
    /// The home named deliveries that it has something to say of.
    named: Notify,
    lost_starts: LostStarts,
}

/// STARTs whose answer was lost. Each may reach the home late, on a connection that was given up, and then replaces the
/// registration that a later START has got.
#[derive(Debug, Default)]
struct LostStarts(Cell<Option<(u32, Instant)>>);

impl LostStarts {
    /// No START arrives later than this after it was sent.
    const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

    fn add_one(&self) {
        let count = self.0.get().map_or(0, |(count, _)| count);
        self.0.set(Some((count.saturating_add(1), Instant::now())));
    }

    /// Whether there was one that may arrive now. It is not counted again.
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

    /// Each goes on beside the others, so that a home or a queue that does not answer holds up only what is asked of it.
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

    /// Waits until the worker is over and its handlers are gone, or will not be waited for any longer.
    async fn over(&self) {
        // The sender is part of `shared`.
        let _ = self.shared.is_over.subscribe().wait_for(|&is_over| is_over).await;
        self.shared.until(self.shared.linger_until(), || self.shared.running() == 0).await;
    }

    /// Tells handlers to stop whose lease has run out or that have run for too long.
    async fn watch(&self) {
        let options = &self.shared.options;
        // Often enough that none is missed that was started meanwhile.
        let every = (options.lease / 6).min((options.run_max / 2).max(SHORTEST));
        loop {
            let now = Instant::now();
            self.shared.table.fire_lapsed(now);
            self.end_those_too_long(now);
            self.shared.table.let_go(now);
            let latest = later(now, every);
            let next = self.shared.table.next_end().map_or(latest, |next| next.min(latest));
            sleep_until(next.max(now + Duration::from_millis(1)).into()).await;
        }
    }

    /// Extends leases, those of each queue by themselves.
    async fn extend_on(&self) {
        let mut under_way = FuturesUnordered::new();
        loop {
            let now = Instant::now();
            // Whatever is under way is answered or given up by then.
            let mut due = self.shared.table.take_to_extend(now, later(now, 2 * self.patience()));
            due.sort_by(|(_, a), (_, b)| a.task.queue_bytes().cmp(b.task.queue_bytes()));
            for of_one in due.chunk_by(|(_, a), (_, b)| a.task.queue_bytes() == b.task.queue_bytes()) {
                under_way.extend(of_one.chunks(BATCH).map(|tasks| self.extend(tasks.to_vec())));
            }
            // Often enough that no lease is missed that was taken meanwhile.
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

    /// How long an answer is waited for: leases run out meanwhile.
    fn patience(&self) -> Duration {
        self.shared.options.lease.min(self.shared.options.ttl) / 2
    }

    fn incarnation(&self) -> Option<u64> {
        match *self.shared.registration.borrow() {
            Registration::As(incarnation) => Some(incarnation),
            Registration::Pending | Registration::Unneeded | Registration::Over(_) => None,
        }
    }

    /// Asks the home, and does not wait for ever.
    async fn ask(&self, commands: &[Command<'_>]) -> Result<Replies<Payload>> {
        let replies = timeout(self.patience(), self.shared.home.ask(commands)).await;
        replies.map_err(|_| Error::Unknown { why: NOT_IN_TIME.into() })
    }

    /// Asks for one thing.
    async fn ask_one(&self, command: Command<'_>) -> Result<(Reply, Replies<Payload>)> {
        let mut replies = self.ask(&[command]).await?;
        match replies.list.pop() {
            Some(Reply::Refused(no @ (Refusal::Unavailable { .. } | Refusal::Unknown { .. }))) => {
                Err(no.into())
            }
            Some(reply) => Ok((reply, replies)),
            None => Err(Error::out_of_turn()),
        }
    }

    /// Says that the worker is there, and then that it still is.
    async fn beat_on(&self) {
        let mut beat_at = self.register().await;
        loop {
            tokio::select! {
                () = sleep_until(beat_at.into()) => {}
                // Somebody was told that the worker is gone.
                () = self.shared.nudge.notified() => {}
            }
            beat_at = self.beat().await;
        }
    }

    /// Says that the worker is there; tries until it was heard, or until it never will be. Answers when to beat.
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
            _ => Err(Error::out_of_turn()),
        }
    }

    /// Says which queues are worked on; that is for those who look, and nothing depends on it.
    async fn announce(&self, incarnation: u64) {
        let shared = &self.shared;
        let worker = WorkerRef { name: &shared.options.name, incarnation };
        let works = shared.queues.iter().map(|queue| Command::Worker(Worker::Work(worker, &queue.name)));
        let _ = self.ask(&works.collect::<Vec<_>>()).await;
    }

    /// Says that the worker lives; answers when to say so again.
    async fn beat(&self) -> Instant {
        let shared = &self.shared;
        let next = |after| later(Instant::now(), after);
        let Some(incarnation) = self.incarnation() else { return next(self.beat_every()) };
        let worker = WorkerRef { name: &shared.options.name, incarnation };
        let error = match self.ask_one(Command::Worker(Worker::Beat(worker))).await {
            Ok((reply @ (Reply::Receipts(_) | Reply::ReceiptsForeign(_)), replies)) => {
                shared.reachable();
                // They are cancelled or lost: an extension tells which.
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
            Ok(_) => Error::out_of_turn(),
            Err(error) => error,
        };
        if shared.is_final(&error) {
            shared.over(error);
        } else {
            shared.unreachable(&error);
        }
        next(self.beat_every() / 4)
    }

    /// The worker was taken for dead: what it had is somebody else's.
    async fn register_anew(&self, incarnation: u64) -> Instant {
        tracing::warn!(worker = %self.shared.name(), incarnation, "the worker was taken for dead; its tasks went back");
        // In this order: whoever starts a handler after the table was walked finds that the worker is not what it was.
        self.shared.registration.send_replace(Registration::Pending);
        self.shared.table.fire_incarnation(incarnation);
        self.register().await
    }

    /// Another worker has the name. Starting anew would end that one, and it would do the same: this one ends.
    async fn replaced(&self, incarnation: u64) -> Instant {
        if self.lost_starts.take_one() {
            // It may have been this worker's own START, which arrived late.
            return self.register_anew(incarnation).await;
        }
        // Handlers are told why before they are told that the worker stops.
        self.shared.registration.send_replace(Registration::Pending);
        self.shared.table.fire_incarnation(incarnation);
        self.shared.over(Error::WorkerReplaced);
        later(Instant::now(), self.beat_every())
    }

    /// Extends leases of one queue.
    async fn extend(&self, tasks: Vec<(Slot, Arc<Live>)>) {
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

    fn extended(&self, slot: Slot, live: &Arc<Live>, reply: Option<&Reply>, since: Instant) {
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
            // A home that knows no extensions lets the lease run out.
            Some(Reply::Refused(Refusal::NotThere { .. })) => table.forget_lease(slot, live),
            Some(Reply::Refused(no)) => {
                self.shared.unreachable(&no.clone().into());
                return self.extend_later(slot, live);
            }
            _ => return self.extend_later(slot, live),
        }
        self.shared.reachable();
    }

    /// A home that cannot be asked is asked again, but not at once.
    fn extend_later(&self, slot: Slot, live: &Arc<Live>) {
        self.shared.table.extend_at(slot, live, later(Instant::now(), self.shared.options.lease / 12));
    }

    /// Tells handlers that they have run long enough, and ends those that were told so a grace ago.
    fn end_those_too_long(&self, now: Instant) {
        let (shared, table) = (&self.shared, &self.shared.table);
        for live in table.tell_too_long(now, later(now, shared.options.grace)) {
            let (queue, id, run_max) = (live.task.queue_name(), live.task.id(), shared.options.run_max);
            tracing::error!(%queue, %id, ?run_max, "the handler runs too long, and was told to stop");
        }
        table.end_too_long(now, |why| shared.verdict(why));
    }

    /// Ends in good order: whatever the worker still has goes back at no cost. What a handler still runs does not, since it would
    /// be run by two.
    async fn stop(&self) {
        let Some(incarnation) = self.incarnation() else { return };
        let running = self.shared.running();
        if running > 0 {
            tracing::warn!(worker = %self.shared.name(), running, "the worker leaves handlers behind that do not end");
            return;
        }
        let worker = WorkerRef { name: &self.shared.options.name, incarnation };
        let stopping = timeout(STOP_PATIENCE, self.ask_one(Command::Worker(Worker::Stop(worker))));
        let stopped = stopping.await.unwrap_or_else(|_| Err(Error::Unknown { why: NOT_IN_TIME.into() }));
        if let Err(error) = stopped {
            tracing::warn!(worker = %self.shared.name(), %error, "the worker could not say that it stops");
        }
    }
}

/// The receipts that a beat answered.
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

    /// Another START under the worker's name, as a second worker sends it, or as one of its own that arrives late.
    async fn start_another(home: &crate::Home) {
        let start = Command::Worker(Worker::Start { name: b"w", ttl_ms: 60_000 });
        assert!(matches!(home.ask(&[start]).await.list[..], [Reply::Started(_)]));
    }

    /// Nobody can tell its own late START from one of another worker, so that each lost one is forgiven once.
    #[tokio::test]
    async fn a_start_whose_answer_was_lost_does_not_end_the_worker_when_it_arrives_late() {
        let home = crate::open("mem:").expect("memory is there");
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
        assert_eq!(*shared.registration.borrow(), Registration::Over(Error::WorkerReplaced));
    }
}
