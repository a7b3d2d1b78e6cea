//! The embedded home: opens and closes a store. `commit::submit` executes commands.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use sureq_core::{Broker, LogTime};
use sureq_home_api::Home as _;
use sureq_sync::{Condvar, Mutex, thread};

use crate::clock::{Clock, LogClock, SystemClock};
use crate::commit::commit_buffer::CommitBuffer;
use crate::commit::durable::Durable;
use crate::commit::oversized::OversizedCommands;
use crate::commit::preallocator::Preallocator;
use crate::commit::synced::Synced;
use crate::compaction::compactor::{self, Compaction};
use crate::disk::{DirDisk, Disk};
use crate::fault::OpenError;
use crate::log::{Cut, Durability, LogError, Position};
use crate::meter::Held;
use crate::observer::Observer;
use crate::opening;
use crate::payload::body::Body;
use crate::payload::cache::Cache;
use crate::payload::loader::{self, Loader};
use crate::payload::unreadable::ReadFaults;
use crate::shared::{EngineState, Shared, ThreadsLeft};
use crate::waiting::ticker;
use crate::waiting::ticket::timed_out;

/// The settings of an open store.
#[derive(Clone, Debug)]
pub struct Options {
    /// How durable a change is before it is confirmed.
    pub durability: Durability,
    /// The size of a segment of the log; by default a share of the disk.
    pub segment_bytes: Option<u64>,
    /// The size of the payload cache.
    pub cache_bytes: usize,
    /// The memory use above which pushes are refused; no limit by default.
    pub memory_bytes_max: Option<u64>,
    /// Keeps the whole log: takes no checkpoints and removes no segments.
    pub keeps_log: bool,
    /// Receives a line for each event that an operator should know about.
    pub notice: Option<fn(&str)>,
    /// Sees all states of the store, in simulations.
    pub observer: Option<Arc<dyn Observer>>,
}

/// How long [`Engine::close`] waits for the disk.
pub const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// The default of [`Options::cache_bytes`].
pub const CACHE_BYTES: usize = 64 << 20;

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Always,
            segment_bytes: None,
            cache_bytes: CACHE_BYTES,
            memory_bytes_max: None,
            keeps_log: false,
            notice: None,
            observer: None,
        }
    }
}

/// An open store. Clones share it.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

impl Engine {
    /// Opens the store in a directory and creates the directory if it is missing.
    pub fn open(dir: impl Into<PathBuf>, options: &Options) -> Result<Self, OpenError> {
        let disk = Arc::new(DirDisk::open(dir)?);
        Self::open_on(disk, Arc::new(SystemClock::default()), options)
    }

    /// Opens a store on the given disk and clock.
    #[expect(clippy::needless_pass_by_value, reason = "an open store owns its disk")]
    pub fn open_on(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, options: &Options) -> Result<Self, OpenError> {
        let opened = opening::open(&disk, clock, options)?;
        let state = EngineState {
            cache: Cache::new(options.cache_bytes),
            segments: opened.segments,
            ..EngineState::new(opened.broker, opened.buffer)
        };
        let preallocator = Preallocator::new(opened.store, opened.spares);
        let loader = Some(Loader::new(opened.reader));
        let engine = Self::assemble(state, opened.clock, options, preallocator, loader, opened.cut);
        if let Some(damage) = opened.skipped {
            engine.shared.notice(&format!("{damage}; the checkpoint before it was used instead"));
        }
        engine.shared.durable.publish(opened.end);
        engine.shared.synced.publish(opened.end);
        let writer = opened.writer;
        engine.spawn("sureq-log", move |shared| crate::commit::log_thread::run(&shared, writer));
        engine.spawn("sureq-prealloc", |shared| crate::commit::preallocator::run(&shared));
        engine.spawn("sureq-ticker", |shared| ticker::run(&shared));
        engine.spawn("sureq-loader", |shared| loader::run(&shared));
        engine.spawn("sureq-oversized", |shared| crate::commit::oversized::run(&shared));
        if !options.keeps_log {
            let compactor = opened.compactor;
            engine.spawn("sureq-compactor", move |shared| compactor::run(&shared, compactor));
        }
        Ok(engine)
    }

    /// A store in memory, which keeps nothing.
    pub fn in_memory(options: &Options) -> Self {
        Self::in_memory_by(Arc::new(SystemClock::default()), options)
    }

    /// A store in memory on the given clock.
    pub fn in_memory_by(clock: Arc<dyn Clock>, options: &Options) -> Self {
        let options = Options { durability: Durability::None, ..options.clone() };
        let clock = LogClock::starting(clock, LogTime(0));
        let now = clock.now();
        let (mut broker, mut buffer) = (Broker::default(), CommitBuffer::forgetful(opening::memory_key()));
        broker.start(now.log.0.max(1), now, &mut buffer);
        let state = EngineState::new(broker, buffer);
        let engine = Self::assemble(state, clock, &options, Preallocator::idle(), None, None);
        engine.spawn("sureq-ticker", |shared| ticker::run(&shared));
        engine
    }

    fn assemble(
        state: EngineState,
        clock: LogClock,
        options: &Options,
        preallocator: Preallocator,
        loader: Option<Loader>,
        cut: Option<Cut>,
    ) -> Self {
        let shared = Shared {
            hash_key: state.buffer.hash_key(),
            state: Mutex::new(state),
            waited: AtomicU64::new(0),
            entered: AtomicU64::new(0),
            durable: Durable::default(),
            clock,
            durability: options.durability,
            has_uncommitted: AtomicBool::new(false),
            log_wakes: Condvar::new(),
            ticker_wakes: Condvar::new(),
            preallocator,
            loader,
            compaction: Compaction::new(options.keeps_log),
            synced: Synced::default(),
            memory_max: options.memory_bytes_max,
            charged: AtomicUsize::new(0),
            read_faults: ReadFaults::default(),
            oversized: OversizedCommands::default(),
            notice: options.notice,
            observer: options.observer.clone(),
            threads: Mutex::default(),
            threads_left: ThreadsLeft::default(),
            warnings: cut.iter().map(Cut::to_string).collect(),
            cut,
        };
        Self { shared: Arc::new(shared) }
    }

    fn spawn(&self, name: &str, run: impl FnOnce(Arc<Shared>) + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        shared.threads_left.begin_one();
        let thread = thread::spawn(name, move || {
            let ran = catch_unwind(AssertUnwindSafe(|| run(Arc::clone(&shared))));
            if ran.is_err() {
                // Nothing can be confirmed without this thread, so callers must get errors.
                shared.fail(LogError::Poisoned);
            }
            shared.threads_left.end_one();
        });
        let thread = thread.expect("the system gives a process the few threads it starts with");
        self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    /// Executes one slice of the due changes, without waiting for the ticker: for tests that move the clock.
    pub fn tick(&self) {
        let mut state = self.shared.lock();
        let now = self.shared.clock.now();
        ticker::tick(&self.shared, &mut state, now);
        // The ticker continues with the rest.
        self.shared.notify_ticker(&mut state, now);
        self.shared.unlock_and_wake(state);
    }

    /// The position after the last event, durable or not.
    pub fn end(&self) -> Position {
        self.shared.lock().buffer.end()
    }

    /// The error after which the store confirms nothing more, if it has failed.
    pub fn failure(&self) -> Option<Arc<LogError>> {
        self.shared.durable.failure().cloned()
    }

    /// The most work done under the state lock at once. Only builds with debug assertions or the feature `meter` count
    /// it.
    pub fn held(&self) -> Held {
        // The counts are added up when the lock is taken the next time.
        self.shared.lock().held
    }

    /// Reads the state, for tests and statistics.
    pub fn inspect<T>(&self, look: impl FnOnce(&Broker<Body>) -> T) -> T {
        look(&self.shared.lock().broker)
    }

    /// Where the log was cut at opening, if a crash had left an incomplete frame.
    pub fn cut(&self) -> Option<&Cut> {
        self.shared.cut.as_ref()
    }

    /// Writes and syncs everything, ends all threads and releases the directory. Waiting pops time out. Takes no longer
    /// than [`CLOSE_PATIENCE`]: after that it returns an error, since not everything may be on disk.
    pub fn close(&self) -> Result<(), Arc<LogError>> {
        self.close_within(CLOSE_PATIENCE)
    }

    /// [`Self::close`] with another time limit.
    pub fn close_within(&self, patience: Duration) -> Result<(), Arc<LogError>> {
        let shared = &self.shared;
        let mut state = shared.lock_in_doubt();
        state.closing = true;
        let position = shared.position(&state);
        drop(state);
        shared.dismiss_waiters(timed_out, position);
        shared.wake_threads();
        shared.loader.iter().for_each(Loader::close);
        if !shared.threads_left.wait(patience) {
            // The threads keep the directory: they may still write to it.
            shared.fail(LogError::Hung { patience });
            return Err(self.failure().expect("it has just failed"));
        }
        let threads = std::mem::take(&mut *shared.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panic was reported when it happened, and unwritten changes were not confirmed.
            let _ = thread.join();
        }
        let mut state = shared.lock_in_doubt();
        let EngineState { listeners, woken, .. } = &mut *state;
        listeners.end(woken);
        shared.unlock_and_wake(state);
        shared.loader.iter().for_each(Loader::leave);
        let left = shared.preallocator.leave(shared).map_err(Arc::new);
        self.failure().map_or(left, Err)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("durable", &self.durable()).finish_non_exhaustive()
    }
}
