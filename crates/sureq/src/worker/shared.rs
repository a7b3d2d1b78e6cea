//! The state that the parts of a running worker share.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout_at;

use super::delivery::{Live, States, Stop};
use super::handler::Route;
use super::outcome::{Again, Outcome};
use super::status::{Counts, Phase, WorkerStatus};
use super::table::{Table, TaskSlot, Verdict};
use crate::error::Error;
use crate::home::Home;
use sureq_core::Refusal;

/// The longest time that a lease is extended for an aborted handler that does not reach its next `await`.
const LINGER: Duration = Duration::from_secs(10);
/// The same when the worker stops; part of the time that a stop takes beyond its grace period.
const LAST_LINGER: Duration = Duration::from_secs(5);

/// `from + after`, limited so that it cannot overflow.
pub(super) fn later(from: Instant, after: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
    from + after.min(FAR)
}

/// The settings of a worker.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) name: Arc<[u8]>,
    pub(super) concurrency: usize,
    pub(super) lease: Duration,
    pub(super) ttl: Duration,
    pub(super) run_max: Duration,
    pub(super) grace: Duration,
    pub(super) is_strict: bool,
}

/// A queue of the worker, with its handler and the number of running handlers.
#[derive(Debug)]
pub(super) struct WorkedQueue {
    pub(super) name: Arc<[u8]>,
    pub(super) route: Route,
    pub(super) running: AtomicUsize,
}

/// The outcome of a task, on its way to the home.
#[derive(Debug)]
pub(super) struct Report {
    /// The index of its queue in `Shared::queues`.
    pub(super) queue: usize,
    pub(super) slot: TaskSlot,
    pub(super) live: Arc<Live>,
    pub(super) outcome: Outcome,
}

/// The registration of the worker with the home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Registration {
    /// In progress.
    Pending,
    /// Registered with this incarnation.
    As(u64),
    /// The home does not register workers: leases alone hold tasks.
    Unneeded,
    /// Failed for good.
    Ended(Error),
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) home: Home,
    pub(super) options: Options,
    pub(super) queues: Vec<WorkedQueue>,
    pub(super) states: Arc<States>,
    pub(super) table: Table,
    pub(super) reports: mpsc::UnboundedSender<Report>,
    pub(super) registration: watch::Sender<Registration>,
    pub(super) counts: Counts,
    /// Running handlers.
    running: AtomicUsize,
    /// Reports that the home has not confirmed.
    unconfirmed: AtomicUsize,
    /// The taker waits for a handler to end.
    pub(super) is_full: AtomicBool,
    /// Wakes the taker: there may be room for more tasks.
    pub(super) changed: Notify,
    /// Wakes a stop: a handler ended, or a report was confirmed.
    pub(super) ended: Notify,
    /// Wakes the renewer: the registration was lost.
    pub(super) nudge: Notify,
    /// Signals to the renewer that only aborted handlers are left.
    pub(super) is_over: watch::Sender<bool>,
    /// Until when a stop waits for aborted handlers.
    linger_until: OnceLock<Instant>,
    /// The worker was deregistered, or that failed.
    pub(super) has_stopped: AtomicBool,
    pub(super) is_stopping: watch::Sender<bool>,
    /// A warning was logged that dead tasks cannot be distinguished from failed ones.
    is_death_untold: AtomicBool,
    outage: Mutex<Option<Box<str>>>,
    outages: AtomicU64,
}

impl Shared {
    pub(super) fn new(
        home: Home,
        options: Options,
        queues: Vec<WorkedQueue>,
        states: States,
        reports: mpsc::UnboundedSender<Report>,
        is_stopping: watch::Sender<bool>,
    ) -> Self {
        Self {
            home,
            options,
            queues,
            states: Arc::new(states),
            table: Table::default(),
            reports,
            registration: watch::Sender::new(Registration::Pending),
            counts: Counts::default(),
            running: AtomicUsize::new(0),
            unconfirmed: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
            changed: Notify::new(),
            ended: Notify::new(),
            nudge: Notify::new(),
            is_over: watch::Sender::new(false),
            linger_until: OnceLock::new(),
            has_stopped: AtomicBool::new(false),
            is_stopping,
            is_death_untold: AtomicBool::new(false),
            outage: Mutex::default(),
            outages: AtomicU64::new(0),
        }
    }

    /// An unregistered worker `w` with all times set to a second.
    #[cfg(all(test, feature = "embedded"))]
    pub(super) fn for_tests(home: &Home, routes: Vec<(&str, Route)>) -> Self {
        let second = Duration::from_secs(1);
        let options = Options {
            name: b"w".as_slice().into(),
            concurrency: 16,
            lease: second,
            ttl: second,
            run_max: second,
            grace: second,
            is_strict: true,
        };
        let queue = |(name, route): (&str, Route)| WorkedQueue {
            name: name.as_bytes().into(),
            route,
            running: AtomicUsize::new(0),
        };
        let queues = routes.into_iter().map(queue).collect();
        let (reports, _) = mpsc::unbounded_channel();
        Self::new(home.clone(), options, queues, States::default(), reports, watch::Sender::new(false))
    }

    /// How many handlers may be started by the limits of the worker; those of queues are in the taker.
    pub(super) fn room(&self) -> usize {
        let backlog_max = (4 * self.options.concurrency).max(1_024);
        if self.unconfirmed.load(SeqCst) >= backlog_max {
            return 0;
        }
        self.options.concurrency.saturating_sub(self.running.load(SeqCst))
    }

    /// Counts a handler that starts.
    pub(super) fn begin(&self, queue: usize) {
        self.running.fetch_add(1, SeqCst);
        self.queues[queue].running.fetch_add(1, SeqCst);
    }

    /// Counts a handler that ended.
    pub(super) fn end(&self, queue: usize) {
        let queue = &self.queues[queue];
        queue.running.fetch_sub(1, SeqCst);
        self.running.fetch_sub(1, SeqCst);
        if queue.route.concurrency.is_some() || self.is_full.load(SeqCst) {
            self.changed.notify_one();
        }
        self.ended.notify_waiters();
    }

    pub(super) fn report(&self, report: Report) {
        self.unconfirmed.fetch_add(1, SeqCst);
        // The finisher lives as long as the worker; without it the worker has ended.
        let _ = self.reports.send(report);
    }

    /// Counts reports that were confirmed, or never will be.
    pub(super) fn confirmed(&self, reports: usize) {
        self.unconfirmed.fetch_sub(reports, SeqCst);
        if self.is_full.load(SeqCst) {
            self.changed.notify_one();
        }
        self.ended.notify_waiters();
    }

    /// Until when the lease of a handler that is aborted now is extended.
    pub(super) fn keep_until(&self) -> Instant {
        later(Instant::now(), self.options.lease.min(LINGER))
    }

    /// The same for all handlers when the worker stops, counted from the first call.
    pub(super) fn linger_until(&self) -> Instant {
        *self.linger_until.get_or_init(|| later(Instant::now(), self.options.lease.min(LAST_LINGER)))
    }

    /// The outcome of a task whose handler is aborted now for this reason.
    pub(super) fn verdict(&self, why: Stop) -> Verdict {
        if why == Stop::TooLong {
            let reason = format!("the handler ran longer than {:?}", self.options.run_max).into();
            let outcome = Outcome::Failed { reason, again: Again::Backoff };
            return Verdict { outcome, keep_until: self.keep_until() };
        }
        let outcome = Outcome::Requeue { after: Duration::ZERO };
        Verdict { outcome, keep_until: self.linger_until() }
    }

    /// Waits for a condition that changes with ended handlers and confirmations, up to a deadline.
    pub(super) async fn until(&self, deadline: Instant, is_so: impl Fn() -> bool) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if is_so() || timeout_at(deadline.into(), ended).await.is_err() {
                return;
            }
        }
    }

    pub(super) fn running(&self) -> usize {
        self.running.load(SeqCst)
    }

    pub(super) fn unconfirmed(&self) -> usize {
        self.unconfirmed.load(SeqCst)
    }

    /// Records that the home could not be reached.
    pub(super) fn unreachable(&self, error: &Error) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        if outage.is_none() {
            tracing::warn!(worker = %self.name(), %error, "cannot reach the home; trying again");
            self.outages.fetch_add(1, Relaxed);
        }
        *outage = Some(error.to_string().into());
    }

    /// Records that the home does not report whether a task died of its last try. Such a task counts as failed.
    pub(super) fn cannot_tell_deaths(&self, refusal: &Refusal) {
        if !self.is_death_untold.swap(true, Relaxed) {
            tracing::warn!(
                worker = %self.name(), %refusal,
                "dead tasks are counted as failed: the worker's user may not explain tasks; give it the role `read`"
            );
        }
    }

    /// Records that the home answered.
    pub(super) fn reachable(&self) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        if outage.take().is_some() {
            tracing::info!(worker = %self.name(), "the home answers again");
        }
    }

    /// Whether a retry is useless. A server that shut down may be restarted.
    pub(super) fn is_final(&self, error: &Error) -> bool {
        match error {
            Error::Closed(_) => self.home.api().is_in_process(),
            Error::Refused(no) => matches!(no.code(), "ERR" | "NOTTHERE"),
            _ => false,
        }
    }

    /// Ends the worker with an error.
    pub(super) fn over(&self, error: Error) {
        self.registration.send_replace(Registration::Ended(error));
        self.changed.notify_one();
    }

    pub(super) fn name(&self) -> String {
        String::from_utf8_lossy(&self.options.name).into_owned()
    }

    pub(super) fn status(&self) -> WorkerStatus {
        let outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let phase = if self.has_stopped.load(SeqCst) {
            Phase::Stopped
        } else if *self.is_stopping.borrow() {
            Phase::Stopping
        } else if let Some(why) = outage {
            Phase::Disconnected { why }
        } else if *self.registration.borrow() == Registration::Pending {
            Phase::Starting
        } else if self.is_full.load(SeqCst) {
            Phase::Full
        } else {
            Phase::Taking
        };
        WorkerStatus {
            phase,
            running: self.running(),
            unconfirmed: self.unconfirmed(),
            outages: self.outages.load(Relaxed),
            tally: self.counts.tally(),
        }
    }
}

/// Exponential backoff with jitter.
#[derive(Debug, Default)]
pub(super) struct Backoff(u32);

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LAST: Duration = Duration::from_secs(5);

    pub(super) fn next(&mut self) -> Duration {
        let whole = (Self::FIRST * (1 << self.0.min(10))).min(Self::LAST);
        self.0 += 1;
        whole.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    pub(super) fn reset(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_up_to_a_limit() {
        let mut backoff = Backoff::default();
        for n in 0..40 {
            let (wait, whole) = (backoff.next(), (Backoff::FIRST * (1 << n.min(10))).min(Backoff::LAST));
            assert!(wait >= whole / 2 && wait <= whole, "{n}: {wait:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= Backoff::FIRST);
    }
}
