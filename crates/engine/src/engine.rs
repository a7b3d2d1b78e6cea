//! The embedded home: opening, closing, and looking into it. `submit` executes commands.

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

/// How an engine is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// What a reply promises.
    pub durability: Durability,
    /// The size of a segment of the log; by default as large as suits the disk.
    pub segment_bytes: Option<u64>,
    /// How many bytes of payloads are kept in memory.
    pub cache_bytes: usize,
    /// How much memory may be used before pushes are refused; no limit by default.
    pub memory_bytes_max: Option<u64>,
    /// Keeps all of the log: no checkpoints are taken, and no segment is given up.
    pub keeps_log: bool,
    /// Gets a line when something happens that an operator should know of.
    pub notice: Option<fn(&str)>,
    /// Sees all states of the store; only simulations have one.
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
    /// Opens the store in a directory, which is made if need be.
    pub fn open(dir: impl Into<PathBuf>, options: &Options) -> Result<Self, OpenError> {
        let disk = Arc::new(DirDisk::open(dir)?);
        Self::open_on(disk, Arc::new(SystemClock::default()), options)
    }

    /// Opens a store on any disk, by any clock.
    #[expect(clippy::needless_pass_by_value, reason = "an open store is the owner of its disk")]
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

    /// A store that keeps nothing.
    pub fn in_memory(options: &Options) -> Self {
        Self::in_memory_by(Arc::new(SystemClock::default()), options)
    }

    /// A store that keeps nothing, by any clock.
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
            is_gathering: AtomicBool::new(false),
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
                // Without this thread nothing more would be confirmed, and nobody would know.
                shared.fail(LogError::Poisoned);
            }
            shared.threads_left.end_one();
        });
        let thread = thread.expect("the system gives a process the few threads it starts with");
        self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    /// Lets what is due happen now, without waiting for the ticker: for a clock that is moved by hand.
    pub fn tick(&self) {
        let mut state = self.shared.lock();
        ticker::tick(&self.shared, &mut state, self.shared.clock.now());
        self.shared.let_go(state);
    }

    /// The position behind the last event, durable or not.
    pub fn end(&self) -> Position {
        self.shared.lock().buffer.end()
    }

    /// Why the store confirms nothing any more, if it has failed.
    pub fn failure(&self) -> Option<Arc<LogError>> {
        self.shared.durable.failure().cloned()
    }

    /// The most that was done in one go under the lock of the state; only builds with debug assertions count it.
    pub fn held(&self) -> Held {
        // What was done the last time is counted when the lock is taken again.
        self.shared.lock().held
    }

    /// Looks at the state, for tests and statistics.
    pub fn inspect<T>(&self, look: impl FnOnce(&Broker<Body>) -> T) -> T {
        look(&self.shared.lock().broker)
    }

    /// Where the log was cut when it was opened, if a crash had left it with half a frame.
    pub fn cut(&self) -> Option<&Cut> {
        self.shared.cut.as_ref()
    }

    /// Writes and syncs everything, ends all threads, and gives the directory up. Waiting pops are answered that
    /// their time is up. A disk that hangs is not waited for for ever: after [`CLOSE_PATIENCE`] this answers that not everything
    /// is on disk.
    pub fn close(&self) -> Result<(), Arc<LogError>> {
        self.close_within(CLOSE_PATIENCE)
    }

    /// The same, with another patience.
    pub fn close_within(&self, patience: Duration) -> Result<(), Arc<LogError>> {
        let shared = &self.shared;
        {
            let mut state = shared.lock_in_doubt();
            state.closing = true;
            let position = shared.position(&state);
            Shared::dismiss_waiters(&mut state, timed_out, position);
            shared.let_go(state);
        }
        shared.wake_threads();
        shared.loader.iter().for_each(Loader::close);
        if !shared.threads_left.wait(patience) {
            // They keep the directory, in case that they write to it after all.
            shared.fail(LogError::Hung { patience });
            return Err(self.failure().expect("it has just failed"));
        }
        let threads = std::mem::take(&mut *shared.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A thread that panicked has said so; what it left unwritten is not confirmed.
            let _ = thread.join();
        }
        let mut state = shared.lock_in_doubt();
        let EngineState { listeners, woken, .. } = &mut *state;
        listeners.end(woken);
        shared.let_go(state);
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
