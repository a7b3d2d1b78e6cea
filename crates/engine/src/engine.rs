//! The embedded home: commands run on the caller's thread, under the lock of the state; the log thread makes them durable.
//!
//! The way of a command: [`Engine::gather`] lets the broker decide and apply, the [`Tape`] takes the events down, and the
//! caller gets replies with a position to park them under, or a ticket if a task or a payload has to be waited for.
//! [`Engine::commit`] has what was gathered written; [`Engine::execute`] is both. The log thread takes what has gathered, up to
//! the size of a frame, writes it, syncs as the level of durability says, and publishes the position; then the parked replies
//! may be sent. The next frame gathers meanwhile.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use sureq_core::command::{ConnId, Pop};
use sureq_core::limits;
use sureq_core::{Broker, Bulk, Command, LogTime, Now, Progress, Receipt, Refusal, Replies, Reply};
use sureq_sync::{Condvar, Mutex, thread};

use crate::ahead::ReadAhead;
use crate::batch::{Batch, WORK_TASKS_MAX, Weight};
use crate::body::Body;
use crate::cache::Cache;
use crate::clock::{Clock, LogClock, SystemClock};
use crate::disk::{DirDisk, Disk};
use crate::durable::Durable;
use crate::fault::OpenError;
use crate::giant::Giants;
use crate::keeper::Keeper;
use crate::line::{Line, OwnedPop};
use crate::listener::Listeners;
use crate::loader::{self, Loader};
use crate::log::{Cut, Durability, LogError, Position};
use crate::log_thread::LogThread;
use crate::meter::{Held, Meter};
use crate::observer::Observer;
use crate::opening;
use crate::payloads::part_from_large;
use crate::shared::{Shared, State, ThreadsLeft};
use crate::sliced::{self, Left, PopRest, SLICE_BYTES, Sliced};
use crate::synced::Synced;
use crate::tape::Tape;
use crate::ticker;
use crate::ticket::{Answer, Ticket, split_off, timed_out};
use crate::tidier::{self, Tidying};
use crate::unreadable::ReadFaults;

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

/// An open store, shared by whoever holds a clone.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

/// What came of a batch of commands.
pub type Executed = sureq_seam::Executed<Ticket>;

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
        let state = State {
            broker: opened.broker,
            tape: opened.tape,
            line: Line::default(),
            unserved: VecDeque::new(),
            listeners: Listeners::default(),
            cache: Cache::new(options.cache_bytes),
            ahead: ReadAhead::default(),
            payloads: Vec::new(),
            log_thread: LogThread::Awake,
            ticker_sleeps: None,
            no_space: false,
            no_memory: false,
            segments: opened.segments,
            unreadable: BTreeSet::new(),
            releasing: None,
            logged_bytes: 0,
            sync_wanted: Position::START,
            closing: false,
            meter: Meter::default(),
            held: Held::default(),
            woken: Vec::new(),
        };
        let keeper = Keeper::new(opened.store, opened.spares);
        let loader = Some(Loader::new(opened.reader));
        let engine = Self::assemble(state, opened.clock, options, keeper, loader, opened.cut);
        if let Some(damage) = opened.skipped {
            engine.shared.notice(&format!("{damage}; the checkpoint before it was used instead"));
        }
        engine.shared.durable.publish(opened.end);
        engine.shared.synced.publish(opened.end);
        let writer = opened.writer;
        engine.spawn("sureq-log", move |shared| crate::log_thread::run(&shared, writer));
        engine.spawn("sureq-keeper", |shared| crate::keeper::run(&shared));
        engine.spawn("sureq-ticker", |shared| ticker::run(&shared));
        engine.spawn("sureq-loader", |shared| loader::run(&shared));
        engine.spawn("sureq-giants", |shared| crate::giant::run(&shared));
        if !options.keeps_log {
            let tidier = opened.tidier;
            engine.spawn("sureq-tidier", move |shared| tidier::run(&shared, tidier));
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
        let (mut broker, mut tape) = (Broker::default(), Tape::forgetful(opening::memory_key()));
        broker.start(now.log.0.max(1), now, &mut tape);
        let state = State {
            broker,
            tape,
            line: Line::default(),
            unserved: VecDeque::new(),
            listeners: Listeners::default(),
            cache: Cache::new(0),
            ahead: ReadAhead::default(),
            payloads: Vec::new(),
            log_thread: LogThread::Awake,
            ticker_sleeps: None,
            no_space: false,
            no_memory: false,
            segments: Vec::new(),
            unreadable: BTreeSet::new(),
            releasing: None,
            logged_bytes: 0,
            sync_wanted: Position::START,
            closing: false,
            meter: Meter::default(),
            held: Held::default(),
            woken: Vec::new(),
        };
        let engine = Self::assemble(state, clock, &options, Keeper::idle(), None, None);
        engine.spawn("sureq-ticker", |shared| ticker::run(&shared));
        engine
    }

    fn assemble(
        state: State,
        clock: LogClock,
        options: &Options,
        keeper: Keeper,
        loader: Option<Loader>,
        cut: Option<Cut>,
    ) -> Self {
        let shared = Shared {
            hash_key: state.tape.hash_key(),
            state: Mutex::new(state),
            waited: AtomicU64::new(0),
            entered: AtomicU64::new(0),
            durable: Durable::default(),
            clock,
            durability: options.durability,
            is_gathering: AtomicBool::new(false),
            log_wakes: Condvar::new(),
            ticker_wakes: Condvar::new(),
            keeper,
            loader,
            tidying: Tidying::new(options.keeps_log),
            synced: Synced::default(),
            memory_max: options.memory_bytes_max,
            charged: AtomicUsize::new(0),
            read_faults: ReadFaults::default(),
            giants: Giants::default(),
            notice: options.notice,
            observer: options.observer.clone(),
            threads: Mutex::default(),
            threads_left: ThreadsLeft::default(),
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

    /// Executes commands in order. Stops at a pop that must wait for a task; waits on this thread where payloads have to
    /// be read from the disk, or where the disk is behind.
    pub fn execute(&self, commands: &[Command<'_>], replies: &mut Replies<Body>) -> Executed {
        let (mut done, mut position) = (0, Position::START);
        loop {
            let mut executed = self.gather(&commands[done..], replies);
            self.commit();
            done += executed.done;
            position = position.max(executed.position);
            (executed.done, executed.position) = (done, position);
            let held = executed.hold.filter(|_| done < commands.len() && executed.ticket.is_none());
            if let Some(ticket) = executed.ticket.take_if(|ticket| ticket.is_loading()) {
                let answer = ticket.wait();
                position = position.max(answer.position);
                replies.append(answer.replies);
                done += 1;
            } else if let Some(hold) = held {
                // If it never comes to that, the rest is refused.
                self.wait(hold);
            } else {
                return executed;
            }
        }
    }

    /// Executes commands in order, and never waits. Stops at one that must: a pop for a task, any for payloads that have to
    /// be read, one that is executed in slices. Leaves it to the caller to [`Self::commit`] soon: a caller that has more to
    /// execute at once has it all written in one go. Without commands it answers the position of all that was executed.
    pub fn gather(&self, commands: &[Command<'_>], replies: &mut Replies<Body>) -> Executed {
        let shared = &self.shared;
        let mut weight = Weight::of(replies);
        let mut all = nothing();
        loop {
            let rest = &commands[all.done..];
            if let Some(first) = rest.first().filter(|first| shared.plain_bytes(first).is_none()) {
                if sliced::is_sliced(first) {
                    all.ticket = Some(shared.slice(first));
                    return all;
                }
                // What is large is prepared when it can be executed, and not anew each time before.
                if shared.is_large(first)
                    && let Some(hold) = shared.hold()
                {
                    all.hold = Some(hold);
                    return all;
                }
            }
            let mut batch = shared.next_batch(rest);
            let first_task = replies.tasks.len();
            let executed = self.gather_some(&rest[..batch.commands], &mut batch, replies, &mut weight);
            part_from_large(&mut replies.tasks[first_task..]);
            all.done += executed.done;
            all.position = all.position.max(executed.position);
            all.served |= executed.served;
            (all.ticket, all.hold) = (executed.ticket, executed.hold);
            let is_over = all.done == commands.len() || weight.bytes > limits::OUTPUT_BYTES_MAX;
            if is_over || executed.done == 0 || all.ticket.is_some() {
                return all;
            }
            shared.step_aside();
        }
    }

    /// Executes commands under one lock, as many of them as do not hold others up for long.
    fn gather_some(
        &self,
        commands: &[Command<'_>],
        batch: &mut Batch,
        replies: &mut Replies<Body>,
        weight: &mut Weight,
    ) -> Executed {
        let shared = &self.shared;
        // What is larger than a segment comes alone, and is executed apart.
        let mut giant = commands.first().filter(|_| batch.is_giant).and_then(|first| shared.giant(first));
        let mut state = shared.lock();
        let now = shared.clock.now();
        shared.mind_the_mark(&state, now);
        // Under the lock: nobody joins a line that a failure has disbanded.
        let failed = shared.durable.failure().map(|_| Refusal::Poisoned);
        if let Some(refusal) = failed.or(state.closing.then_some(Refusal::Closed)) {
            replies.list.extend(commands.iter().map(|_| Reply::Refused(refusal.clone())));
            return Executed { done: commands.len(), ..nothing() };
        }
        if state.tape.is_long() {
            let hold = Some(state.tape.end());
            return Executed { hold, ..nothing() };
        }
        if !state.line.is_empty() {
            // What is due goes to those who have waited for it, not to whoever happens to come now.
            ticker::tick(shared, &mut state, now);
        }
        let (mut ticket, mut served) = (None, false);
        let (mut done, mut work, weight_before) = (0, 0, weight.bytes);
        let mut is_refused = false;
        for (index, command) in commands.iter().enumerate() {
            if let Some(refusal) = shared.refusal(&state, command) {
                is_refused |= refusal == Refusal::OutOfMemory;
                replies.list.push(Reply::Refused(refusal));
            } else {
                if let Some(search) = shared.search(command) {
                    ticket = Some(search);
                    break;
                }
                if let Some(giant) = giant.take() {
                    ticket = Some(shared.set_apart(giant));
                    break;
                }
                let first_task = replies.tasks.len();
                let first_worker = replies.workers.len();
                let State { broker, tape, .. } = &mut *state;
                let (mut left, mut bulk) = (None, Bulk::default());
                let mut progress = Progress::Done;
                if let Command::Pop(pop) = command {
                    left = sliced::begin_pop(broker, pop, now, tape, replies);
                } else {
                    tape.lend(batch.take(index));
                    progress = broker.execute_slice(now, command, &mut bulk, tape, replies);
                    batch.keep(index, tape.take_left());
                }
                shared.end_unit(&mut state);
                let tasks = sliced::named(command) + replies.tasks.len() - first_task;
                state.meter.tasks(tasks);
                work += tasks;
                if progress == Progress::More {
                    let rows = replies.workers.split_off(first_worker);
                    ticket = Some(shared.ticket_for_bulk(command, bulk, rows, shared.position(&state)));
                    served |= shared.serve(&mut state, now);
                    break;
                }
                let waits = must_wait(command, replies);
                ticket = if waits.is_some() && shared.is_out_of_memory(&state) {
                    // A pop that waits takes memory until it is served; one that need not wait is never refused.
                    replies.list.pop();
                    replies.list.push(Reply::Refused(Refusal::OutOfMemory));
                    is_refused = true;
                    None
                } else if let Some(pop) = waits {
                    replies.list.pop();
                    let (number, cell) = state.line.join(pop, now.log);
                    Some(Ticket { number: Some(number), cell, shared: Arc::clone(shared) })
                } else {
                    self.answer_later(&mut state, command, left, first_task, replies)
                };
                if ticket.is_some() {
                    // Even a pop that finds nothing lets time pass, and may have set tasks free elsewhere.
                    served |= shared.serve(&mut state, now);
                    break;
                }
            }
            done += 1;
            if !state.line.is_empty() {
                served |= shared.serve(&mut state, now);
            }
            let is_heavy = weight.add(replies) > limits::OUTPUT_BYTES_MAX;
            if is_heavy || work >= WORK_TASKS_MAX || weight.bytes > weight_before + SLICE_BYTES {
                break;
            }
        }
        state.forget_awake_unless_awaited();
        let position = shared.position(&state);
        let hold = (state.tape.is_long()).then(|| state.tape.end());
        shared.stir_ticker(&mut state, now);
        if state.tape.bytes() >= shared.gather_bytes_max() {
            shared.stir_log(&mut state);
        } else {
            shared.is_gathering.store(true, Ordering::Release);
        }
        let notice = shared.note_memory(&mut state, is_refused);
        shared.let_go(state);
        if let Some(line) = notice {
            shared.notice(&line);
        }
        Executed { done, position, ticket, served, hold }
    }

    /// A ticket for a command whose tasks are not all handed out yet, or whose payloads have to be read.
    fn answer_later(
        &self,
        state: &mut State,
        command: &Command<'_>,
        left: Option<Left>,
        first_task: usize,
        replies: &mut Replies<Body>,
    ) -> Option<Ticket> {
        let shared = &self.shared;
        let tasks = &mut replies.tasks[first_task..];
        if tasks.is_empty() {
            return None;
        }
        let is_warm = shared.fetch(state, command, tasks);
        if is_warm && left.is_none() {
            return None;
        }
        let replies = split_off(replies, first_task);
        let mut answer = Answer::new(queues_of(command), replies, shared.position(state));
        answer.recovered_from = recovered_from(command);
        Some(match (command, left) {
            (Command::Pop(pop), Some(left)) => {
                let rest = PopRest::new(OwnedPop::from(pop), left);
                let ticket = shared.ticket_for(answer, Some(Sliced::Pop(rest)));
                if !is_warm {
                    shared.read_for(&ticket.cell);
                }
                ticket
            }
            _ => shared.load(answer),
        })
    }

    /// Has what was gathered written; answers the position that is durable once it is.
    pub fn commit(&self) -> Position {
        let shared = &self.shared;
        if !shared.is_gathering.swap(false, Ordering::AcqRel) {
            return shared.durable.position();
        }
        let mut state = shared.lock();
        shared.stir_log(&mut state);
        shared.position(&state)
    }

    /// Waits on this thread until the position is durable; answers false if it never will be.
    pub fn wait(&self, position: Position) -> bool {
        self.shared.durable.wait_for(position)
    }

    /// Lets what is due happen now, without waiting for the ticker: for a clock that is moved by hand.
    pub fn tick(&self) {
        let mut state = self.shared.lock();
        ticker::tick(&self.shared, &mut state, self.shared.clock.now());
        self.shared.let_go(state);
    }

    /// Up to where everything is as durable as promised.
    pub fn durable(&self) -> Position {
        self.shared.durable.position()
    }

    /// The position behind the last event, durable or not.
    pub fn end(&self) -> Position {
        self.shared.lock().tape.end()
    }

    /// Wakes the waker once the position is durable, or once the log has failed.
    pub fn wake_at(&self, position: Position, waker: &Waker) {
        self.shared.durable.wake_at(position, waker);
    }

    /// Why nothing is confirmed any more, if that is so.
    pub fn failure(&self) -> Option<Arc<LogError>> {
        self.shared.durable.failure().cloned()
    }

    /// Gives deliveries that never reached their taker back to the front of their queue, at no cost.
    pub fn undeliver(&self, queue: &[u8], receipts: &[Receipt]) {
        self.shared.undeliver(queue, receipts);
    }

    /// Ends the leases that were to end with a connection.
    pub fn close_conn(&self, conn: ConnId) {
        let mut progress = Progress::More;
        while progress == Progress::More {
            progress = Progress::Done;
            self.shared.change(|broker, now, tape| progress = broker.close_conn(conn, now, tape));
            if progress == Progress::More {
                self.shared.step_aside();
            }
        }
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

    /// How many pops wait in line.
    pub fn waiting(&self) -> usize {
        self.shared.lock().line.len()
    }

    /// What time it is by the store's clocks.
    pub fn now(&self) -> Now {
        self.shared.clock.now()
    }

    /// Where the log was cut when it was opened, if a crash had left it with half a frame.
    pub fn cut(&self) -> Option<&Cut> {
        self.shared.cut.as_ref()
    }

    /// Answers all pops that wait as if their time were up.
    pub fn dismiss_waiting(&self) {
        let mut state = self.shared.lock();
        let position = self.shared.position(&state);
        Shared::disband(&mut state, timed_out, position);
        self.shared.let_go(state);
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
            Shared::disband(&mut state, timed_out, position);
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
        let State { listeners, woken, .. } = &mut *state;
        listeners.end(woken);
        shared.let_go(state);
        shared.loader.iter().for_each(Loader::leave);
        let left = shared.keeper.leave(shared).map_err(Arc::new);
        self.failure().map_or(left, Err)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("durable", &self.durable()).finish_non_exhaustive()
    }
}

/// Nothing has been executed yet.
const fn nothing() -> Executed {
    Executed { done: 0, position: Position::START, ticket: None, served: false, hold: None }
}

/// A pop that may wait, if it found nothing.
fn must_wait<'c, 'a>(command: &'c Command<'a>, replies: &Replies<Body>) -> Option<&'c Pop<'a>> {
    let Command::Pop(pop) = command else { return None };
    let empty = matches!(replies.list.last(), Some(Reply::Tasks(span)) if span.is_empty());
    (empty && pop.count > 0 && pop.block.is_some()).then_some(pop)
}

/// The queues that tasks of its reply are taken from, and go back to if nobody gets them.
fn queues_of(command: &Command<'_>) -> Vec<Box<[u8]>> {
    match command {
        Command::Pop(pop) => pop.queues.iter().map(|&name| name.into()).collect(),
        _ => Vec::new(),
    }
}

/// The queue whose tasks its reply hands out again. They do not go back if nobody gets them.
fn recovered_from(command: &Command<'_>) -> Option<Box<[u8]>> {
    match command {
        Command::Recover { queue, .. } => Some((*queue).into()),
        _ => None,
    }
}
