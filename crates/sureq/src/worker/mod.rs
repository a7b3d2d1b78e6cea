//! The worker: takes tasks, runs handlers, keeps leases, and tells the home what came of it.
//!
//! The map, along the way of a task:
//! - `taker` asks for as many tasks as there is room for and starts their handlers (`handler`, with arguments from `delivery`).
//! - `table` has every task from being taken until what came of it is confirmed.
//! - `lease_renewer` is a thread of its own: it beats, extends leases and ends what runs for too long.
//! - `outcome` is what handlers return; `finisher` tells it to the home.
//! - `shared` is what they have in common; `status` is what is told outside.

mod delivery;
mod finisher;
mod handler;
mod lease_renewer;
mod outcome;
mod shared;
mod status;
mod table;
mod taker;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use crate::error::Error;
use crate::home::Home;
use delivery::States;
use shared::{Options, Report, Shared, WorkedQueue, later};
use status::add;

pub use delivery::{Delivery, DeliveryNumber, FromDelivery, Needs, Rejection, State, Stop, Token};
pub use handler::{Handler, HandlerService, IntoRoute, Route, route};
pub use outcome::{Again, Failure, IntoOutcome, Outcome};
pub use status::{Phase, Tally, WorkerHandle, WorkerStatus};

/// How long handlers may go on once they were told to stop, unless the worker says otherwise. With the seven seconds until
/// everything is confirmed and the two for saying that the worker stops, it fits into the 30 seconds that Kubernetes gives a pod.
const GRACE: Duration = Duration::from_secs(20);
/// How long after the grace has ended it may take until what came of the tasks is confirmed; handlers that do not come to an
/// `await` have the first five seconds of it.
const CONFIRM: Duration = Duration::from_secs(7);
/// Leases and registrations last at least so long: less, and they would end between two beats.
const SPAN_MIN: Duration = Duration::from_millis(50);
/// And at most so long: what homes accept.
const SPAN_MAX: Duration = Duration::from_millis(sureq_core::limits::SPAN_MS_MAX);

/// Works on queues: takes their tasks and runs a handler for each.
///
/// ```
/// use sureq::{Json, State, Worker};
///
/// async fn greet(Json(name): Json<String>, greeting: State<String>) {
///     println!("{} {name}", *greeting);
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let home = sureq::open("mem:")?;
/// home.queue("greetings").push(Json("ann")).await?;
/// let worker = Worker::new(&home).state("hello".to_owned()).work("greetings", greet);
/// # let handle = worker.handle();
/// # tokio::spawn(async move { while handle.status().is_none_or(|status| status.tally.done == 0) { tokio::task::yield_now().await } handle.stop() });
/// let tally = worker.run().await?; // until SIGTERM or Ctrl-C
/// assert_eq!(tally.done, 1);
/// # Ok(()) }
/// ```
///
/// The leases of what runs are extended by a thread of its own, so that a handler may block its thread. A handler that panics
/// has failed its try. A home that cannot be reached is tried again and again.
#[derive(Debug)]
pub struct Worker {
    home: Home,
    options: Options,
    queues: Vec<WorkedQueue>,
    states: States,
    is_stopping: watch::Sender<bool>,
    shared: watch::Sender<Option<Arc<Shared>>>,
}

/// Why a worker did not run, or ended before it was told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// It was given no queue.
    #[error("the worker has nothing to do: give it a queue with `work`")]
    NoQueues,
    /// It was given two handlers for one queue.
    #[error("queue {queue:?} was given two handlers")]
    TwoHandlers {
        /// The queue.
        queue: String,
    },
    /// A handler wants what the worker was not given.
    #[error("the handler of queue {queue:?} wants State<{wants}>: give it to the worker with `state`")]
    MissingState {
        /// The queue.
        queue: String,
        /// The type.
        wants: &'static str,
    },
    /// A thread could not be started, or a signal not be listened for.
    #[error("the worker cannot start: {0}")]
    Start(#[from] io::Error),
    /// Another worker of the same name was started: the home gave the tasks of this one back, and counts only the other.
    #[error(
        "the worker ends: another worker was started under its name, {name:?}; give each worker a name of its own"
    )]
    Replaced {
        /// The name.
        name: String,
    },
    /// The home is over, or refuses what the worker needs.
    #[error("the worker cannot go on: {0}")]
    Home(#[from] Error),
}

impl Worker {
    /// A worker with no queues yet.
    pub fn new(home: &Home) -> Self {
        let options = Options {
            name: name().into_bytes().into(),
            concurrency: 16,
            lease: Duration::from_secs(30),
            ttl: Duration::from_secs(10),
            run_max: Duration::from_secs(3600),
            grace: GRACE,
            is_strict: false,
        };
        Self {
            home: home.clone(),
            options,
            queues: Vec::new(),
            states: States::default(),
            is_stopping: watch::Sender::new(false),
            shared: watch::Sender::new(None),
        }
    }

    /// Handles the tasks of a queue with an async function, or with a [`route`] that says more. A queue has one handler.
    #[must_use]
    pub fn work<Marker>(mut self, queue: impl AsRef<[u8]>, handler: impl IntoRoute<Marker>) -> Self {
        self.queues.push(WorkedQueue {
            name: queue.as_ref().into(),
            route: handler.into_route(),
            running: AtomicUsize::new(0),
        });
        self
    }

    /// Something that handlers take as [`State`], by its type.
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.states.add(state);
        self
    }

    /// How many handlers run at once at most; 16 if nothing is said.
    #[must_use]
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.options.concurrency = handlers.max(1);
        self
    }

    /// What it is called where workers are listed. If nothing is said it is called after its program and its process.
    ///
    /// Give each worker a name of its own: a second worker of the same name ends the first. The tasks of the first go back at
    /// once, which costs each a try, its tokens fire with [`Stop::WorkerLost`], and it ends with [`WorkerError::Replaced`]. So a
    /// process that was started again takes over from one that hangs, without waiting for its [`ttl`](Self::ttl).
    #[must_use]
    pub fn name(mut self, name: impl AsRef<[u8]>) -> Self {
        self.options.name = name.as_ref().into();
        self
    }

    /// How long a lease is; it is extended when a third of it is over, for as long as the handler runs. 30 seconds if nothing is
    /// said: so long a task of a worker that vanished waits at most where workers are not registered.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease.clamp(SPAN_MIN, SPAN_MAX);
        self
    }

    /// How long the home waits for a sign of life before it takes the worker for dead; it gives one three times as often. 10
    /// seconds if nothing is said.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl.clamp(SPAN_MIN, SPAN_MAX);
        self
    }

    /// How long a handler may run; then its [`Token`] fires. If it has not returned when the [`grace`](Self::grace) is over, it is
    /// dropped at its next `await`, and its try has failed. An hour if nothing is said.
    ///
    /// A handler that does not come to an `await` keeps its task for another lease, or ten seconds if that is less; then the lease
    /// is let run out, and somebody else may get the task while it still runs.
    #[must_use]
    pub fn run_max(mut self, run_max: Duration) -> Self {
        self.options.run_max = run_max;
        self
    }

    /// How long handlers may go on once their [`Token`] has fired because the worker is to stop, or because they ran for
    /// [`run_max`](Self::run_max). What they return by then counts. Then they are dropped at their next `await`; those that ended
    /// because the worker stops have their tasks given back, at no cost. 20 seconds if nothing is said.
    ///
    /// A stop takes at most nine seconds longer than this, if handlers do not come to an `await` or the home does not answer: with
    /// the default it fits into the 30 seconds that Kubernetes gives a pod. If you set more, set `terminationGracePeriodSeconds` to
    /// ten seconds more than that.
    ///
    /// A handler that does not come to an `await` within another lease, or five seconds if that is less, is left behind: its task
    /// is not given back, and somebody else gets it once its lease, or the worker's [`ttl`](Self::ttl), has run out.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// Takes from a queue only if those given before it have nothing; otherwise each has its share by weight.
    #[must_use]
    pub fn strict_order(mut self) -> Self {
        self.options.is_strict = true;
        self
    }

    /// How to look at it and to stop it while it runs.
    pub fn handle(&self) -> WorkerHandle {
        WorkerHandle { is_stopping: self.is_stopping.clone(), shared: self.shared.subscribe() }
    }

    /// Works until the process is told to end, by SIGTERM or Ctrl-C, or until [`WorkerHandle::stop`].
    pub async fn run(self) -> Result<Tally, WorkerError> {
        let told_to_end = signals()?;
        self.run_until(told_to_end).await
    }

    /// Works until the future is ready, or until [`WorkerHandle::stop`].
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<Tally, WorkerError> {
        self.check()?;
        let mut stopping = self.is_stopping.subscribe();
        let (reports, reported) = mpsc::unbounded_channel::<Report>();
        let shared = Arc::new(Shared::new(
            self.home,
            self.options,
            self.queues,
            self.states,
            reports,
            self.is_stopping,
        ));
        self.shared.send_replace(Some(Arc::clone(&shared)));
        let mut at_work = AtWork::start(&shared, reported)?;
        let ended = tokio::select! {
            // In this order: once it was told to stop, it takes nothing more.
            biased;
            () = stop => Ok(()),
            _ = stopping.wait_for(|&is_stopping| is_stopping) => Ok(()),
            error = taker::take(&shared) => Err(error),
        };
        shared.is_stopping.send_replace(true);
        at_work.stop().await;
        match ended {
            Ok(()) => Ok(shared.counts.tally()),
            Err(Error::WorkerReplaced) => Err(WorkerError::Replaced { name: shared.name() }),
            Err(error) => Err(error.into()),
        }
    }

    fn check(&self) -> Result<(), WorkerError> {
        if self.queues.is_empty() {
            return Err(WorkerError::NoQueues);
        }
        for (at, queue) in self.queues.iter().enumerate() {
            if self.queues[..at].iter().any(|other| other.name == queue.name) {
                return Err(WorkerError::TwoHandlers {
                    queue: String::from_utf8_lossy(&queue.name).into_owned(),
                });
            }
            if let Some(wants) = queue.route.missing(&Needs(&self.states)) {
                let queue = String::from_utf8_lossy(&queue.name).into_owned();
                return Err(WorkerError::MissingState { queue, wants });
            }
        }
        Ok(())
    }
}

/// What runs beside the taker. Dropped, it ends, and what the worker had goes back.
struct AtWork {
    shared: Arc<Shared>,
    finisher: Option<tokio::task::JoinHandle<()>>,
    renewer: Option<std::thread::JoinHandle<()>>,
}

impl AtWork {
    fn start(shared: &Arc<Shared>, reported: mpsc::UnboundedReceiver<Report>) -> io::Result<Self> {
        let renewer = lease_renewer::start(Arc::clone(shared))?;
        let finisher = tokio::spawn(finisher::finish(Arc::clone(shared), reported));
        Ok(Self { shared: Arc::clone(shared), finisher: Some(finisher), renewer: Some(renewer) })
    }

    /// Waits for what runs, as long as may be; then gives the rest back.
    async fn stop(&mut self) {
        let shared = Arc::clone(&self.shared);
        let is_idle = || shared.running() == 0;
        shared.table.tell_stopping();
        shared.until(later(Instant::now(), shared.options.grace), is_idle).await;
        let confirm_until = later(Instant::now(), CONFIRM);
        self.end_handlers();
        shared.until(shared.linger_until(), is_idle).await;
        shared.until(confirm_until, || shared.unconfirmed() == 0).await;
        if let Some(finisher) = self.finisher.take() {
            finisher.abort();
            // Nothing is settled any more once it is gone.
            let _ = finisher.await;
        }
        let unsettled = shared.unconfirmed() + shared.running();
        add(&shared.counts.unknown, unsettled as u64);
        let renewer = self.dismiss();
        let _ = tokio::task::spawn_blocking(|| renewer.map(std::thread::JoinHandle::join)).await;
    }

    /// Has the handlers dropped that still run. Each gives its task back, at no cost, when it is gone.
    fn end_handlers(&self) {
        self.shared.table.end_all(|why| self.shared.verdict(why));
    }

    fn dismiss(&mut self) -> Option<std::thread::JoinHandle<()>> {
        self.finisher.take().inspect(tokio::task::JoinHandle::abort);
        self.shared.is_over.send_replace(true);
        self.renewer.take()
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        if self.renewer.is_some() {
            self.end_handlers();
            // The renewer says that the worker stops once they are gone, and everything it had goes back.
            drop(self.dismiss());
        }
    }
}

/// The program, the process, and something that no other worker of it has.
fn name() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_ref().and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy());
    format!("{}-{}-{:04x}", program.as_deref().unwrap_or("worker"), std::process::id(), fastrand::u16(..))
}

/// Ready when the process is told to end.
fn signals() -> io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
    }
    #[cfg(not(unix))]
    Ok(async {
        // If it cannot be listened for, the worker works on.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    })
}
