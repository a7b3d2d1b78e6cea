//! The keeper: a thread of its own that says that the worker lives and extends the leases of what it has, so that handlers which
//! block every thread of the runtime lose nothing. It also ends what has run for too long.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use sureq_core::command::{Worker, WorkerRef};
use sureq_core::reply::Outcome as Answered;
use sureq_core::{Command, Refusal, Replies, Reply};
use tokio::time::{sleep, sleep_until, timeout};

use super::delivery::{Live, Stop};
use super::outcome::{Again, Outcome};
use super::shared::{Backoff, Registration, Report, Shared};
use super::table::Slot;
use crate::error::{Error, Result};
use crate::id::Receipt;
use crate::queue::{millis, one};
use crate::seam::Body;

/// How many leases are extended at once at most.
const BATCH: usize = 256;
/// The keeper looks no oftener than this for handlers that run for too long.
const SHORTEST: Duration = Duration::from_millis(10);

/// Starts the thread. It ends when the worker is over.
pub(super) fn start(shared: Arc<Shared>) -> io::Result<std::thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    std::thread::Builder::new()
        .name("sureq-keeper".to_owned())
        .spawn(move || runtime.block_on(Keeper { shared, beat_at: Instant::now() }.keep()))
}

struct Keeper {
    shared: Arc<Shared>,
    beat_at: Instant,
}

impl Keeper {
    async fn keep(mut self) {
        self.register().await;
        loop {
            let wake = self.wake_at();
            tokio::select! {
                () = sleep_until(wake.into()) => {}
                // Somebody was told that the worker is gone.
                () = self.shared.nudge.notified() => self.beat_at = Instant::now(),
            }
            if self.shared.is_over.load(SeqCst) {
                break;
            }
            self.beat().await;
            self.extend(self.shared.table.to_extend(Instant::now())).await;
            let now = Instant::now();
            self.shared.table.fire_lapsed(now);
            self.end_those_too_long(now);
        }
        self.stop().await;
        self.shared.has_stopped.store(true, SeqCst);
    }

    /// Often enough that no lease is missed that was taken meanwhile, and no handler that runs for too long.
    fn wake_at(&self) -> Instant {
        let options = &self.shared.options;
        let run_max = (options.run_max / 2).max(SHORTEST);
        let latest = Instant::now() + self.beat_every().min(options.lease / 6).min(run_max);
        self.shared.table.next().map_or(latest, |next| next.min(latest))
    }

    fn beat_every(&self) -> Duration {
        self.shared.options.ttl / 3
    }

    fn incarnation(&self) -> Option<u64> {
        match *self.shared.registration.borrow() {
            Registration::As(incarnation) => Some(incarnation),
            Registration::Pending | Registration::Unneeded | Registration::Over(_) => None,
        }
    }

    /// Asks the home, and does not wait for ever: leases run out meanwhile.
    async fn ask(&self, commands: &[Command<'_>]) -> Result<Replies<Body>> {
        let patience = self.shared.options.lease.min(self.shared.options.ttl) / 2;
        let replies = timeout(patience, self.shared.home.ask(commands)).await;
        let replies =
            replies.map_err(|_| Error::Unknown { why: "the home does not answer in time".into() })?;
        match replies.list.iter().find_map(|reply| match reply {
            Reply::Refused(no) => Some(no),
            _ => None,
        }) {
            Some(no @ (Refusal::Unavailable { .. } | Refusal::Unknown { .. })) => Err(no.clone().into()),
            _ => Ok(replies),
        }
    }

    /// Says that the worker is there; tries until it was heard, or until it never will be.
    async fn register(&mut self) {
        let mut backoff = Backoff::default();
        while !self.shared.is_over.load(SeqCst) {
            match self.try_to_register().await {
                Ok(registration) => {
                    self.shared.in_touch();
                    self.beat_at = Instant::now() + self.beat_every();
                    self.shared.registration.send_replace(registration);
                    return;
                }
                Err(error) if self.shared.is_final(&error) => return self.shared.over(error),
                Err(error) => self.shared.in_trouble(&error),
            }
            tokio::select! {
                () = sleep(backoff.next()) => {}
                () = self.shared.nudge.notified() => {}
            }
        }
    }

    async fn try_to_register(&self) -> Result<Registration> {
        let (name, ttl_ms) = (&self.shared.options.name, millis(self.shared.options.ttl));
        let mut replies = self.ask(&[Command::Worker(Worker::Start { name, ttl_ms })]).await?;
        match replies.list.pop() {
            Some(Reply::Started(incarnation)) => {
                tracing::info!(worker = %self.shared.name(), incarnation, "the worker is registered");
                self.announce(incarnation).await;
                Ok(Registration::As(incarnation))
            }
            Some(Reply::Refused(Refusal::NotThere { .. })) => Ok(Registration::Unneeded),
            Some(Reply::Refused(no)) => Err(no.into()),
            _ => Err(Error::out_of_turn()),
        }
    }

    /// Says which queues are worked on; that is for those who look, and nothing depends on it.
    async fn announce(&self, incarnation: u64) {
        let shared = &self.shared;
        let worker = WorkerRef { name: &shared.options.name, incarnation };
        let works = shared.benches.iter().map(|bench| Command::Worker(Worker::Work(worker, &bench.queue)));
        let _ = self.ask(&works.collect::<Vec<_>>()).await;
    }

    /// Says that the worker lives, if it is time to.
    async fn beat(&mut self) {
        let Some(incarnation) = self.incarnation() else { return };
        if Instant::now() < self.beat_at {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let worker = WorkerRef { name: &shared.options.name, incarnation };
        match self.ask(&[Command::Worker(Worker::Beat(worker))]).await {
            Ok(replies) => match replies.list.first() {
                Some(reply @ (Reply::Receipts(_) | Reply::ReceiptsSpelt(_))) => {
                    self.beat_at = Instant::now() + self.beat_every();
                    shared.in_touch();
                    self.look_after(&told(reply, &replies)).await;
                }
                Some(Reply::Refused(Refusal::WorkerGone)) => self.register_anew(incarnation).await,
                Some(Reply::Refused(no)) => self.not_heard(no.clone().into()),
                _ => self.not_heard(Error::out_of_turn()),
            },
            Err(error) => self.not_heard(error),
        }
    }

    fn not_heard(&mut self, error: Error) {
        self.beat_at = Instant::now() + self.beat_every() / 4;
        if self.shared.is_final(&error) {
            self.shared.over(error);
        } else {
            self.shared.in_trouble(&error);
        }
    }

    /// The worker was taken for dead: what it had is somebody else's.
    async fn register_anew(&mut self, incarnation: u64) {
        tracing::warn!(worker = %self.shared.name(), incarnation, "the worker was taken for dead; its tasks went back");
        self.shared.registration.send_replace(Registration::Pending);
        self.shared.table.fire_incarnation(incarnation);
        self.register().await;
    }

    /// The home named deliveries that are called off or lost: an extension tells which.
    async fn look_after(&self, told: &[Receipt]) {
        if told.is_empty() {
            return;
        }
        let mut mine = self.shared.table.all();
        mine.retain(|(_, live)| told.contains(&live.task.receipt()));
        self.extend(mine).await;
    }

    async fn extend(&self, tasks: Vec<(Slot, Arc<Live>)>) {
        let lease = self.shared.options.lease;
        for tasks in tasks.chunks(BATCH) {
            let since = Instant::now();
            let receipts: Vec<Receipt> = tasks.iter().map(|(_, live)| live.task.receipt()).collect();
            let commands = tasks.iter().zip(&receipts).map(|((_, live), receipt)| Command::Extend {
                queue: live.task.queue_bytes(),
                task: one(receipt.as_ref()),
                ms: millis(lease),
            });
            match self.ask(&commands.collect::<Vec<_>>()).await {
                Ok(replies) => {
                    self.shared.in_touch();
                    for ((slot, live), reply) in tasks.iter().zip(&replies.list) {
                        self.extended(*slot, live, reply, since);
                    }
                }
                Err(error) => {
                    self.shared.in_trouble(&error);
                    for (slot, live) in tasks {
                        self.extend_later(*slot, live);
                    }
                }
            }
        }
    }

    fn extended(&self, slot: Slot, live: &Arc<Live>, reply: &Reply, since: Instant) {
        let table = &self.shared.table;
        match reply {
            Reply::Outcome(Answered::Done) => table.extended(slot, live, since, self.shared.options.lease),
            Reply::Outcome(Answered::Cancelled) => {
                table.extended(slot, live, since, self.shared.options.lease);
                live.fire(Stop::Cancelled);
            }
            Reply::Outcome(Answered::Stale) => {
                table.forget_lease(slot, live);
                live.fire(Stop::LeaseLost);
            }
            // A home that knows no extensions lets the lease run out.
            Reply::Refused(Refusal::NotThere { .. }) => table.forget_lease(slot, live),
            _ => self.extend_later(slot, live),
        }
    }

    /// A home that cannot be asked is asked again, but not at once.
    fn extend_later(&self, slot: Slot, live: &Arc<Live>) {
        self.shared.table.extend_at(slot, live, Instant::now() + self.shared.options.lease / 12);
    }

    fn end_those_too_long(&self, now: Instant) {
        for (slot, live, abort) in self.shared.table.take_too_long(now) {
            live.fire(Stop::TooLong);
            let reason = format!("the handler ran longer than {:?}", self.shared.options.run_max);
            tracing::error!(queue = %live.task.queue_name(), id = %live.task.id(), %reason);
            self.shared.report(Report {
                slot,
                live,
                outcome: Outcome::Failed { reason: reason.into(), again: Again::Backoff },
            });
            if let Some(abort) = abort {
                abort.abort();
            }
        }
    }

    /// Ends in good order: whatever the worker still has goes back at no cost.
    async fn stop(&self) {
        if let Some(incarnation) = self.incarnation() {
            let worker = WorkerRef { name: &self.shared.options.name, incarnation };
            if let Err(error) = self.ask(&[Command::Worker(Worker::Stop(worker))]).await {
                tracing::warn!(worker = %self.shared.name(), %error, "the worker could not say that it stops");
            }
        }
    }
}

/// The receipts that a beat answered.
fn told(reply: &Reply, replies: &Replies<Body>) -> Vec<Receipt> {
    match reply {
        Reply::Receipts(told) => {
            replies.receipts[told.range()].iter().map(|&receipt| Receipt::ours(receipt)).collect()
        }
        Reply::ReceiptsSpelt(told) => {
            replies.spelt[told.range()].iter().flatten().map(|id| Receipt::theirs(id.clone())).collect()
        }
        _ => Vec::new(),
    }
}
