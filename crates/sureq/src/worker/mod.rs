//! The worker: pops tasks, runs handlers, extends leases and reports outcomes to the home.
//!
//! The parts, along the way of a task:
//! - `taker` pops as many tasks as there is room for and starts their handlers (`handler`, with arguments from
//!   `delivery`).
//! - `table` has every task from its pop until its outcome is confirmed.
//! - `lease_renewer` is a thread: it sends heartbeats, extends leases and stops handlers that run too long.
//! - `outcome` has the results of handlers; `finisher` sends them to the home.
//! - `shared` is the state that these parts share; `status` is public.

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

/// The default grace period. With `CONFIRM` (7 s) and the deregistration (2 s) it fits into the 30 s that Kubernetes
/// gives a pod.
const GRACE: Duration = Duration::from_secs(20);
/// The time limit after the grace period for confirming outcomes; handlers that do not reach an `await` have the
/// first five seconds of it.
const CONFIRM: Duration = Duration::from_secs(7);
const _: () = assert!(
    GRACE.as_millis() + CONFIRM.as_millis() + lease_renewer::STOP_PATIENCE.as_millis() < 30_000,
    "a worker with default settings must stop before Kubernetes kills it"
);
/// The shortest lease and ttl: shorter ones would end between two heartbeats.
const SPAN_MIN: Duration = Duration::from_millis(50);
/// The longest lease and ttl that homes accept.
const SPAN_MAX: Duration = Duration::from_millis(sureq_core::limits::SPAN_MS_MAX);

/// Pops tasks from queues and runs a handler for each.
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
/// # tokio::spawn(async move {
/// #     while handle.status().is_none_or(|status| status.tally.done == 0) { tokio::task::yield_now().await }
/// #     handle.stop()
/// # });
/// let tally = worker.run().await?; // until SIGTERM or Ctrl-C
/// assert_eq!(tally.done, 1);
/// # Ok(()) }
/// ```
///
/// The handler's result decides what happens to the task ([`Outcome`]): `Ok` finishes it, an error fails the try, and
/// so does a panic. A thread of the worker extends the leases of running tasks, so that handlers may block. If the
/// home cannot be reached, the worker retries until it can.
///
/// | setting | default | meaning |
/// |---|---:|---|
/// | [`concurrency`](Self::concurrency) | 16 | concurrent handlers |
/// | [`lease`](Self::lease) | 30 s | length of a lease; extended while the handler runs |
/// | [`ttl`](Self::ttl) | 10 s | time without a heartbeat until the home requeues the worker's tasks |
/// | [`run_max`](Self::run_max) | 1 h | longest run of a handler |
/// | [`grace`](Self::grace) | 20 s | time for handlers to end after they should stop |
#[derive(Debug)]
pub struct Worker {
    home: Home,
    options: Options,
    queues: Vec<WorkedQueue>,
    states: States,
    is_stopping: watch::Sender<bool>,
    shared: watch::Sender<Option<Arc<Shared>>>,
}

/// Why a worker could not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The worker has no queue.
    #[error("the worker has no queue: add one with `work`")]
    NoQueues,
    /// A queue has two handlers.
    #[error("queue {queue:?} has two handlers: call `work` once per queue")]
    TwoHandlers {
        /// The queue that was passed to `work` twice.
        queue: String,
    },
    /// A handler needs a state that the worker does not have.
    #[error("the handler of queue {queue:?} needs State<{wants}>: add it to the worker with `state`")]
    MissingState {
        /// The queue whose handler needs it.
        queue: String,
        /// The name of the type of the state.
        wants: &'static str,
    },
    /// A thread cannot be started, or signals cannot be handled.
    #[error("the worker cannot start: {0}")]
    Start(#[from] io::Error),
    /// Another worker of the same name was started: the home requeued the tasks of this one.
    #[error(
        "the worker ends: another worker was started under its name, {name:?}; give each worker a name of its own"
    )]
    Replaced {
        /// The name that both workers have.
        name: String,
    },
    /// The home is closed or has failed, or refuses a command that the worker needs.
    #[error("the worker cannot continue: {0}")]
    Home(#[from] Error),
}

impl Worker {
    /// A worker without queues, with default settings.
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

    /// Adds a queue with its handler: an async function, or a [`route`] with options.
    #[must_use]
    pub fn work<Marker>(mut self, queue: impl AsRef<[u8]>, handler: impl IntoRoute<Marker>) -> Self {
        self.queues.push(WorkedQueue {
            name: queue.as_ref().into(),
            route: handler.into_route(),
            running: AtomicUsize::new(0),
        });
        self
    }

    /// Adds a value that handlers take as [`State`], by its type.
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.states.add(state);
        self
    }

    /// Sets the largest number of concurrent handlers [default: 16].
    #[must_use]
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.options.concurrency = handlers.max(1);
        self
    }

    /// Sets the name of the worker [default: from the program and the process id].
    ///
    /// Give each worker its own name: a second worker of the same name replaces the first. The tasks of the first are
    /// requeued at once, which costs each a try, its tokens fire with [`Stop::WorkerLost`], and it ends with
    /// [`WorkerError::Replaced`]. With a fixed name, a restarted process therefore takes over from one that hangs
    /// without waiting for its [`ttl`](Self::ttl).
    #[must_use]
    pub fn name(mut self, name: impl AsRef<[u8]>) -> Self {
        self.options.name = name.as_ref().into();
        self
    }

    /// Sets the length of leases [default: 30 s]. A lease is extended when a third of it is over, as long as the
    /// handler runs. In homes that do not register workers, a task of a crashed worker is redelivered after this time
    /// at the latest.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease.clamp(SPAN_MIN, SPAN_MAX);
        self
    }

    /// Sets how long the home waits for a heartbeat before it declares the worker lost [default: 10 s]. The worker
    /// sends three in that time.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl.clamp(SPAN_MIN, SPAN_MAX);
        self
    }

    /// Sets how long a handler may run before its [`Token`] fires [default: 1 h]. If it has not returned at the end
    /// of the [`grace`](Self::grace) period, it is dropped at its next `await` and its try fails.
    ///
    /// The task of a handler that does not reach an `await` is held for another lease, at most ten seconds. After
    /// that the lease ends, and the task may be delivered to another worker while the handler still runs.
    #[must_use]
    pub fn run_max(mut self, run_max: Duration) -> Self {
        self.options.run_max = run_max;
        self
    }

    /// Sets how long handlers may continue after their [`Token`] fired, because the worker stops or they ran for
    /// [`run_max`](Self::run_max) [default: 20 s]. A result within that time counts. After it, handlers are dropped
    /// at their next `await`; if the worker stops, their tasks are returned at no cost of a try.
    ///
    /// A stop takes at most nine seconds longer than this, if handlers do not reach an `await` or the home does not
    /// answer: the default fits into the 30 seconds that Kubernetes gives a pod. With a longer grace period, set
    /// `terminationGracePeriodSeconds` to ten seconds more than that.
    ///
    /// A handler that does not reach an `await` within another lease, at most five seconds, is left behind: its task is
    /// redelivered when its lease or the worker's [`ttl`](Self::ttl) ends.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// Pops from a queue only if those added before it are empty [default: by weight].
    #[must_use]
    pub fn strict_order(mut self) -> Self {
        self.options.is_strict = true;
        self
    }

    /// A handle to observe and stop the worker while it runs.
    pub fn handle(&self) -> WorkerHandle {
        WorkerHandle { is_stopping: self.is_stopping.clone(), shared: self.shared.subscribe() }
    }

    /// Runs until SIGTERM, Ctrl-C or [`WorkerHandle::stop`].
    pub async fn run(self) -> Result<Tally, WorkerError> {
        self.run_until(signals()?).await
    }

    /// Runs until the future is ready or [`WorkerHandle::stop`].
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
            // Biased: after a stop request no further task is popped.
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

/// The finisher and the lease renewer. On drop they end, and tasks of the worker are returned.
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

    /// Waits for running handlers up to the grace period; then drops them and returns their tasks.
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
            // Nothing is counted after it ended.
            let _ = finisher.await;
        }
        let unsettled = shared.unconfirmed() + shared.running();
        add(&shared.counts.unknown, unsettled as u64);
        let renewer = self.dismiss();
        let _ = tokio::task::spawn_blocking(|| renewer.map(std::thread::JoinHandle::join)).await;
    }

    /// Drops the handlers that still run. Each returns its task at no cost of a try when it is dropped.
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
            // The renewer deregisters the worker when they are gone, which requeues all its tasks.
            drop(self.dismiss());
        }
    }
}

/// The program, the process id and a random number.
fn name() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_ref().and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy());
    format!("{}-{}-{:04x}", program.as_deref().unwrap_or("worker"), std::process::id(), fastrand::u16(..))
}

/// Ready on SIGTERM or Ctrl-C.
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
        // Without signal handling the worker runs until it is stopped otherwise.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    })
}
