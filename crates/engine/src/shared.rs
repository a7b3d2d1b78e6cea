//! The state of an open store, which all its threads share under one lock.
//!
//! Every change follows the same steps: take the lock ([`Shared::lock`]), let the broker decide, end the unit
//! ([`Shared::end_unit`]), deliver tasks to waiting pops ([`Shared::serve`]), wake threads that have work
//! ([`Shared::notify_threads`]), release the lock and wake callers ([`Shared::unlock_and_wake`]). Between two slices of
//! long work, [`Shared::yield_lock`] lets other threads take the lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, TryLockError};
use std::task::Waker;
use std::time::Duration;

use sureq_core::broker::{Dropped, Growth};
use sureq_core::command::Pop;
use sureq_core::event::QueueNo;
use sureq_core::{Broker, Command, LogTime, Now, Receipt, Refusal, Replies, Reply, TaskId, limits, meter};
use sureq_sync::{Condvar, Mutex, MutexGuard, thread};

use crate::clock::LogClock;
use crate::commit::commit_buffer::CommitBuffer;
use crate::commit::durable::Durable;
use crate::commit::log_thread::{LAZY_BYTES, LogThread};
use crate::commit::oversized::OversizedCommands;
use crate::commit::preallocator::Preallocator;
use crate::commit::synced::{Synced, Waited};
use crate::compaction::compactor::Compaction;
use crate::fault::{Fault, Operation};
use crate::log::{Cut, Durability, LogError, Position, SegmentInfo};
use crate::meter::{COUNTS, Held, Meter};
use crate::observer::Observer;
use crate::payload::ahead::ReadAhead;
use crate::payload::body::Body;
use crate::payload::cache::Cache;
use crate::payload::loader::Loader;
use crate::payload::unreadable::ReadFaults;
use crate::waiting::listener::Listeners;
use crate::waiting::sliced::{self, Left, PopRest, Sliced};
use crate::waiting::ticker;
use crate::waiting::ticket::{PendingAnswer, TicketCell, poisoned};
use crate::waiting::waiters::{Waiters, WaitingPop};

/// When the ids are this close to their durable mark, the preallocator raises it at once.
const MARK_NEAR_MS: u64 = 20_000;

/// At levels at which callers wait for durability, this many buffered bytes wake the log thread before any commit.
const WAKE_BYTES: usize = 64 << 10;

/// The message of a panic at a lock that another thread panicked with.
pub(crate) const LOCK: &str =
    "a panic under the lock has left the state in doubt; it must not be used any more";

/// Everything that the threads of an engine share.
pub(crate) struct Shared {
    pub(crate) state: Mutex<EngineState>,
    /// The number of calls that had to wait for the state lock so far, and the number of those that have taken it.
    pub(crate) waited: AtomicU64,
    pub(crate) entered: AtomicU64,
    pub(crate) durable: Durable,
    pub(crate) clock: LogClock,
    pub(crate) durability: Durability,
    /// Commands were executed since the log thread was last woken.
    pub(crate) has_uncommitted: AtomicBool,
    pub(crate) log_wakes: Condvar,
    pub(crate) ticker_wakes: Condvar,
    pub(crate) preallocator: Preallocator,
    /// `None` for a store in memory, which has nothing to read back.
    pub(crate) loader: Option<Loader>,
    pub(crate) compaction: Compaction,
    /// The position up to which the log is synced, at any durability level.
    pub(crate) synced: Synced,
    pub(crate) memory_max: Option<u64>,
    /// Memory that callers hold on behalf of clients.
    pub(crate) charged: AtomicUsize,
    pub(crate) read_faults: ReadFaults,
    /// Commands larger than a segment, which wait for their space to be reserved.
    pub(crate) oversized: OversizedCommands,
    /// The key of the hashes of payloads that serve as names.
    pub(crate) hash_key: [u8; 16],
    pub(crate) notice: Option<fn(&str)>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) threads: Mutex<Vec<thread::JoinHandle>>,
    pub(crate) threads_left: ThreadsLeft,
    pub(crate) cut: Option<Cut>,
    pub(crate) warnings: Vec<String>,
}

/// Counts the running threads of the engine, for a caller that waits for all of them to end.
#[derive(Default)]
pub(crate) struct ThreadsLeft {
    count: Mutex<usize>,
    ended: Condvar,
}

impl ThreadsLeft {
    pub(crate) fn begin_one(&self) {
        *self.lock() += 1;
    }

    pub(crate) fn end_one(&self) {
        *self.lock() -= 1;
        self.ended.notify_all();
    }

    /// Waits until none is left. Returns false if that takes longer than `patience`.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let waited = self.ended.wait_timeout_while(self.lock(), patience, |left| *left > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        // A panic elsewhere cannot leave a number half changed.
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of the engine, which the lock guards.
pub(crate) struct EngineState {
    pub(crate) broker: Broker<Body>,
    pub(crate) buffer: CommitBuffer,
    pub(crate) waiters: Waiters,
    /// Queues that have new tasks, and whose waiters have not been served yet.
    pub(crate) unserved: VecDeque<QueueNo>,
    /// Waiters whose pop has moved enough tasks under one lock before it had looked at all its queues: what is left of
    /// it, by number.
    pub(crate) searches: BTreeMap<u64, Left>,
    /// Queues that have got tasks for a waiter that still searches. They are looked at when it is done.
    pub(crate) held_back: BTreeSet<QueueNo>,
    pub(crate) listeners: Listeners,
    pub(crate) cache: Cache,
    pub(crate) ahead: ReadAhead,
    /// A buffer in which the payloads of a reply are assembled.
    pub(crate) payloads: Vec<u8>,
    pub(crate) log_thread: LogThread,
    /// The time at which the ticker will wake by itself, if it sleeps.
    pub(crate) ticker_sleeps: Option<LogTime>,
    /// The disk has no space for another segment.
    pub(crate) no_space: bool,
    /// Commands are refused because the memory limit is reached, and the operator has been informed.
    pub(crate) no_memory: bool,
    /// The contents of dropped queues, while the compactor releases them for a checkpoint.
    pub(crate) releasing: Option<Arc<Dropped<Body>>>,
    /// The segments of the log, in order. The last one is being written.
    pub(crate) segments: Vec<SegmentInfo>,
    /// Segments out of which tasks cannot be copied.
    pub(crate) unreadable: BTreeSet<u64>,
    /// The bytes of all frames written since the store was opened.
    pub(crate) logged_bytes: u64,
    /// A thread needs the log to be synced up to here, at any durability level.
    pub(crate) sync_wanted: Position,
    pub(crate) closing: bool,
    /// Work for waiting pops since the lock was taken: tasks handed to them or moved before, and queues that they name.
    pub(crate) served: usize,
    /// Counts the work under the lock. `held` is the most that was done at once.
    pub(crate) meter: Meter,
    pub(crate) held: Held,
    /// Wakers to be called once their position is durable. They are called without the lock, since a waker may run any
    /// code.
    pub(crate) woken: Vec<(Position, Waker)>,
}

/// How far a slice of a waiting pop came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Search {
    /// It was answered.
    Answered,
    /// None of its queues has a task.
    Empty,
    /// It has found no task yet, and has not looked at all its queues.
    Unfinished,
}

#[cfg(test)]
thread_local! {
    /// How many times this thread has taken the lock.
    pub(crate) static LOCKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The most work for waiting pops that is done under one lock before other threads get it.
const SERVED_MAX: usize = 2 * limits::SLICE_TASKS;

impl EngineState {
    /// The state of a store that has just been opened.
    pub(crate) fn new(broker: Broker<Body>, buffer: CommitBuffer) -> Self {
        Self {
            broker,
            buffer,
            waiters: Waiters::default(),
            unserved: VecDeque::new(),
            searches: BTreeMap::new(),
            held_back: BTreeSet::new(),
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
            served: 0,
            meter: Meter::default(),
            held: Held::default(),
            woken: Vec::new(),
        }
    }

    /// Whether waiting pops may be answerable: tasks have become available, or workers have ended.
    pub(crate) fn has_unserved(&self) -> bool {
        let has_work = !self.unserved.is_empty()
            || !self.searches.is_empty()
            || self.broker.has_awake()
            || !self.buffer.ended_workers.is_empty();
        has_work && !self.waiters.is_empty()
    }

    /// Whether more may be done for waiting pops before other threads get the lock.
    pub(crate) const fn may_serve(&self) -> bool {
        self.served < SERVED_MAX
    }

    /// Counts work for waiting pops.
    fn note_served(&mut self, work: usize) {
        self.served += work;
        self.meter.tasks(work);
    }

    /// Ends the wait of a pop. That is as much work as it names queues.
    pub(crate) fn end_wait(&mut self, number: u64) -> Option<WaitingPop> {
        let waiting = self.waiters.remove(number)?;
        self.note_served(waiting.pop.queues().len().max(1));
        Some(waiting)
    }

    /// The next queue that may have tasks for waiting pops.
    fn next_unserved(&mut self) -> Option<QueueNo> {
        if self.unserved.is_empty() && self.broker.has_awake() {
            let mut awake = Vec::new();
            self.broker.take_awake(&mut awake);
            self.unserved.extend(awake);
        }
        self.unserved.pop_front()
    }

    /// Discards the lists of queues and workers to check, if no pop waits.
    pub(crate) fn forget_awake_unless_awaited(&mut self) {
        if self.waiters.is_empty() {
            self.broker.forget_awake();
            self.unserved.clear();
            self.searches.clear();
            self.held_back.clear();
            self.buffer.ended_workers.clear();
        }
    }

    /// Looks again at queues that were held back for a search that is over: those that its pop named, or all if it is
    /// unknown which.
    fn release_held_back(&mut self, queues: Option<&[Box<[u8]>]>) {
        if self.held_back.is_empty() {
            return;
        }
        let Some(queues) = queues else {
            return self.unserved.extend(std::mem::take(&mut self.held_back));
        };
        let named = queues.iter().filter_map(|name| self.broker.number_of(name));
        self.unserved.extend(named.filter(|no| self.held_back.remove(no)));
    }

    /// Begins to count the work under a lock that was just taken. Adds the counts of the previous holder.
    pub(crate) fn begin_hold(&mut self) {
        self.served = 0;
        if !COUNTS {
            return;
        }
        let counted = self.meter.take().plus(self.buffer.meter.take()).plus(self.cache.meter.take());
        self.held = self.held.max(counted.with_surplus());
        // The thread may have taken steps without the lock.
        meter::restart();
    }
}

/// The interval at which [`Shared::yield_lock`] checks whether all waiting threads have had the lock. No thread
/// signals it.
const YIELD_CHECK: Duration = Duration::from_micros(20);

impl Shared {
    /// The refusal of a command that cannot be executed for lack of disk space or memory.
    #[inline]
    pub(crate) fn refusal(&self, state: &EngineState, command: &Command<'_>) -> Option<Refusal> {
        let is_limited = state.no_space || self.memory_max.is_some();
        if is_limited { self.refusal_at_limits(state, command) } else { None }
    }

    fn refusal_at_limits(&self, state: &EngineState, command: &Command<'_>) -> Option<Refusal> {
        if state.no_space && matches!(command, Command::Push { .. } | Command::Add(_)) {
            return Some(Refusal::NoSpace);
        }
        let is_refused = match state.broker.growth(command) {
            Growth::None => false,
            Growth::Record => self.is_out_of_memory(state),
            Growth::Worker => self.is_out_of_memory(state) && !self.has_memory_for_workers(state),
        };
        is_refused.then_some(Refusal::OutOfMemory)
    }

    /// The position that must be durable before more is executed, if too much waits to be written.
    pub(crate) fn hold(&self) -> Option<Position> {
        let state = self.lock();
        let is_held = state.buffer.is_long() && !state.closing && self.durable.failure().is_none();
        is_held.then(|| state.buffer.end())
    }

    /// Sends a line to the operator.
    pub(crate) fn notice(&self, line: &str) {
        self.notice.iter().for_each(|notice| notice(line));
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, EngineState> {
        let mut state = self.lock_unmetered();
        state.begin_hold();
        state
    }

    fn lock_unmetered(&self) -> MutexGuard<'_, EngineState> {
        #[cfg(test)]
        LOCKS.set(LOCKS.get() + 1);
        let locked = match self.state.try_lock() {
            Ok(state) => return state,
            Err(TryLockError::Poisoned(poisoned)) => Err(poisoned),
            Err(TryLockError::WouldBlock) => {
                self.waited.fetch_add(1, Ordering::Relaxed);
                let locked = self.state.lock();
                self.entered.fetch_add(1, Ordering::Relaxed);
                locked
            }
        };
        match locked {
            Ok(state) => state,
            Err(in_doubt) => {
                drop(in_doubt);
                // Callers that wait must get an error.
                self.fail(LogError::Poisoned);
                panic!("{LOCK}");
            }
        }
    }

    /// Takes the lock even if another thread panicked with it: only for reporting the failure and closing.
    pub(crate) fn lock_in_doubt(&self) -> MutexGuard<'_, EngineState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.begin_hold();
        state
    }

    /// Wakes all threads of the engine, so that each checks whether it must end.
    pub(crate) fn wake_threads(&self) {
        self.log_wakes.notify_all();
        self.ticker_wakes.notify_all();
        self.preallocator.wake();
        self.compaction.wake();
        self.oversized.wake();
    }

    /// The lock, if it is free.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, EngineState>> {
        let mut state = self.state.try_lock().ok()?;
        state.begin_hold();
        Some(state)
    }

    /// Waits until all threads that wait for the lock now have had it. Called between two slices of long work: a
    /// thread that releases a lock and takes it again at once would get it before the threads that it woke.
    pub(crate) fn yield_lock(&self) {
        let waiting = self.waited.load(Ordering::Relaxed);
        while self.entered.load(Ordering::Relaxed) < waiting && self.durable.failure().is_none() {
            // A thread that yields in a loop loses its share of the processor, and may then hold the lock while it does
            // not run.
            thread::sleep(YIELD_CHECK);
        }
    }

    /// The position that a reply made now must wait for. The reply may depend on any event before it.
    pub(crate) fn position(&self, state: &EngineState) -> Position {
        // At the level `none` replies wait for nothing.
        if self.durability == Durability::None { Position::START } else { state.buffer.end() }
    }

    /// Marks the store as failed: nothing more is confirmed, and everything that waits gets an error.
    pub(crate) fn fail(&self, error: LogError) {
        self.durable.fail(error);
        self.synced.end();
        // This includes callers that wait for payloads or for a search.
        self.loader.iter().for_each(|loader| loader.fail(&self.durable));
        self.oversized.fail(&self.durable);
        self.dismiss_waiters(poisoned, Position::START);
        let woken = {
            let mut state = self.lock_in_doubt();
            let EngineState { listeners, woken, .. } = &mut *state;
            listeners.end(woken);
            std::mem::take(woken)
        };
        self.wake(woken);
        self.wake_threads();
    }

    /// Answers all pops that wait now, slice by slice.
    pub(crate) fn dismiss_waiters(&self, replies: fn() -> Replies<Body>, position: Position) {
        let mut state = self.lock_in_doubt();
        let last = state.waiters.last();
        while let Some(number) = state.waiters.first().filter(|&number| number <= last) {
            if !state.may_serve() {
                self.unlock_and_wake(state);
                self.yield_lock();
                state = self.lock_in_doubt();
            } else if let Some(waiting) = state.end_wait(number) {
                Self::answer(&mut state, waiting, replies(), position);
            }
        }
        self.unlock_and_wake(state);
    }

    /// Asks the log thread to sync the log up to the position, at any durability level.
    pub(crate) fn want_sync(&self, position: Position) {
        let mut state = self.lock();
        state.sync_wanted = state.sync_wanted.max(position);
        state.buffer.commit();
        self.log_wakes.notify_one();
    }

    /// Waits until the log is synced up to the position. [`LogError::NoSpace`] means that the log itself waits for
    /// space: a thread that can free some must not wait for it.
    pub(crate) fn sync_upto(&self, position: Position) -> Result<(), LogError> {
        self.want_sync(position);
        match self.synced.wait_for(position) {
            Waited::Synced => Ok(()),
            Waited::Never => Err(LogError::Poisoned),
            Waited::Stuck => {
                let full = std::io::ErrorKind::StorageFull.into();
                Err(LogError::NoSpace(Fault::new(Operation::Sync, "the log", full)))
            }
        }
    }

    /// Ends a unit, which is a command or a slice of a tick: its events stay together, and its notices are published.
    #[inline]
    pub(crate) fn end_unit(&self, state: &mut EngineState) {
        let EngineState { broker, buffer, .. } = &mut *state;
        buffer.end_unit(broker);
        if let Some(observer) = &self.observer {
            meter::uncounted(|| observer.changed(buffer.end(), broker));
        }
        state.meter.unit();
        if !state.buffer.notices.is_empty() {
            self.publish(state);
        }
    }

    #[cold]
    fn publish(&self, state: &mut EngineState) {
        let position = self.position(state);
        let EngineState { broker, buffer, listeners, woken, .. } = state;
        buffer.notices.drain(|queue, kind, tasks| {
            // A queue that was forgotten within the same unit had no tasks to publish.
            if let Some(name) = broker.name_of(queue) {
                listeners.publish(name, kind, tasks, position, woken);
            }
        });
    }

    /// Changes the state on behalf of a caller that needs no reply.
    pub(crate) fn change(&self, act: impl FnOnce(&mut Broker<Body>, Now, &mut CommitBuffer)) {
        let mut state = self.lock();
        if state.closing || self.durable.failure().is_some() {
            return;
        }
        let now = self.clock.now();
        let EngineState { broker, buffer, .. } = &mut *state;
        act(broker, now, buffer);
        self.end_unit(&mut state);
        self.serve(&mut state, now);
        state.forget_awake_unless_awaited();
        self.notify_threads(&mut state, now);
        self.unlock_and_wake(state);
    }

    /// Releases the lock and wakes the callers that were answered under it.
    #[inline]
    pub(crate) fn unlock_and_wake(&self, mut state: MutexGuard<'_, EngineState>) {
        state.meter.steps();
        if state.woken.is_empty() {
            return;
        }
        let woken = std::mem::take(&mut state.woken);
        drop(state);
        self.wake(woken);
    }

    /// Lets the ticker wake the waker. In this way a caller that executes slice after slice lets its executor check
    /// for new input; an executor does that only when no task is ready.
    pub(crate) fn wake_later(&self, waker: &Waker) {
        let mut state = self.lock();
        if state.closing {
            drop(state);
            waker.wake_by_ref();
            return;
        }
        state.woken.push((Position::START, waker.clone()));
        state.ticker_sleeps = None;
        self.ticker_wakes.notify_one();
    }

    fn wake(&self, woken: Vec<(Position, Waker)>) {
        for (position, waker) in woken {
            self.durable.wake_at(position, &waker);
        }
    }

    /// Requeues deliveries that never reached a worker at the front of their queue, slice by slice.
    pub(crate) fn requeue(&self, queue: &[u8], receipts: &[Receipt]) {
        // Each slice goes to the front of the queue, so the last one goes first.
        for (n, slice) in receipts.rchunks(limits::SLICE_TASKS).enumerate() {
            if n > 0 {
                self.yield_lock();
            }
            self.change(|broker, now, buffer| {
                buffer.meter.looked(slice.len());
                broker.requeue_undelivered(queue, slice, now, buffer);
            });
        }
    }

    /// Delivers available tasks to waiting pops, first come, first served, up to a limit per lock. Returns whether
    /// any pop was answered.
    pub(crate) fn serve(&self, state: &mut EngineState, now: Now) -> bool {
        let waiting = state.waiters.len();
        self.refuse_ended_workers(state, now);
        self.go_on_searching(state, now);
        while state.may_serve()
            && !state.waiters.is_empty()
            && let Some(no) = state.next_unserved()
        {
            state.note_served(1);
            let Some(name) = state.broker.name_of(no).map(Box::<[u8]>::from) else { continue };
            self.serve_queue(state, no, &name, now);
            if !state.may_serve() {
                // The ticker continues after other threads have had the lock.
                state.unserved.push_front(no);
                break;
            }
        }
        state.waiters.len() < waiting
    }

    /// Refuses pops that wait on behalf of a worker that has ended.
    fn refuse_ended_workers(&self, state: &mut EngineState, now: Now) {
        while state.may_serve()
            && let Some(&incarnation) = state.buffer.ended_workers.last()
        {
            let EngineState { broker, buffer, waiters, .. } = &mut *state;
            let Some((number, waiting)) = waiters.first_of_worker(incarnation) else {
                buffer.ended_workers.pop();
                continue;
            };
            let mut replies = Replies::default();
            let pop = |pop: &Pop<'_>| broker.execute(now, &Command::Pop(*pop), buffer, &mut replies);
            waiting.pop.with(pop);
            self.end_unit(state);
            if let Some(waiting) = state.end_wait(number) {
                let position = self.position(state);
                Self::answer(state, waiting, replies, position);
            }
        }
    }

    /// Continues with pops that have not looked at all their queues yet, in order of arrival.
    fn go_on_searching(&self, state: &mut EngineState, now: Now) {
        while state.may_serve()
            && let Some((number, left)) = state.searches.pop_first()
        {
            if state.waiters.get(number).is_none() {
                state.release_held_back(None);
                continue;
            }
            if self.pop_for(state, number, Some(left), now) == Search::Empty {
                let EngineState { waiters, .. } = &*state;
                let queues = waiters.get(number).map(|waiting| waiting.pop.queues().to_vec());
                state.release_held_back(queues.as_deref());
            }
        }
    }

    fn serve_queue(&self, state: &mut EngineState, no: QueueNo, queue: &[u8], now: Now) {
        while state.may_serve() && state.broker.queue(queue).is_some_and(|queue| queue.can_pop(now.log)) {
            let Some((number, _)) = state.waiters.first_for(queue) else { return };
            let is_searching = state.searches.contains_key(&number);
            if is_searching || self.pop_for(state, number, None, now) == Search::Unfinished {
                state.held_back.insert(no);
                return;
            }
            if state.waiters.get(number).is_some() {
                return;
            }
        }
    }

    /// Executes a slice of a waiting pop that has popped nothing yet, and answers it if there are tasks. `left` is what
    /// an earlier slice has left of it.
    fn pop_for(&self, state: &mut EngineState, number: u64, left: Option<Left>, now: Now) -> Search {
        let EngineState { broker, buffer, waiters, .. } = &mut *state;
        let Some(waiting) = waiters.get(number) else { return Search::Empty };
        let (names, mut replies) = (waiting.pop.queues().len(), Replies::default());
        let before = broker.moved();
        let left = waiting.pop.with(|pop| {
            let left = left.unwrap_or_else(|| Left::all_of(pop));
            sliced::go_on_with_pop(left, broker, pop, now, buffer, &mut replies)
        });
        let moved = (broker.moved() - before) as usize;
        self.end_unit(state);
        // Its own tasks are counted below.
        state.served += moved.saturating_sub(replies.tasks.len());
        if matches!(replies.list.first(), Some(Reply::Tasks(span)) if span.is_empty()) {
            state.note_served(names);
            let Some(left) = left else { return Search::Empty };
            state.searches.insert(number, left);
            return Search::Unfinished;
        }
        state.note_served(replies.tasks.len());
        let waiting = state.end_wait(number).expect("it is among the waiters");
        state.release_held_back(Some(waiting.pop.queues()));
        let position = self.position(state);
        let all = waiting.pop.with(|pop| self.fetch(state, &Command::Pop(*pop), &mut replies.tasks));
        if let Some(left) = left {
            let cell = Self::answer_in_part(state, waiting, left, replies, position);
            if !all {
                self.read_for(&cell);
            }
        } else if all {
            Self::answer(state, waiting, replies, position);
        } else {
            let WaitingPop { pop, cell, .. } = waiting;
            self.load_into(&cell, PendingAnswer::new(pop.into_queues(), replies, position));
        }
        Search::Answered
    }

    /// Answers a waiting pop. [`Self::unlock_and_wake`] wakes its caller once the position is durable.
    pub(crate) fn answer(
        state: &mut EngineState,
        waiting: WaitingPop,
        replies: Replies<Body>,
        position: Position,
    ) {
        let WaitingPop { pop, cell, .. } = waiting;
        let mut cell = cell.lock();
        cell.answer = Some(PendingAnswer::new(pop.into_queues(), replies, position));
        state.woken.extend(cell.waker.take().map(|waker| (position, waker)));
    }

    /// Answers a waiting pop with its first tasks and wakes its caller, which fetches the rest.
    fn answer_in_part(
        state: &mut EngineState,
        waiting: WaitingPop,
        left: Left,
        replies: Replies<Body>,
        position: Position,
    ) -> Arc<TicketCell> {
        let WaitingPop { pop, cell, .. } = waiting;
        let answer = PendingAnswer::new(pop.queues().to_vec(), replies, position);
        cell.begin(answer, Some(Sliced::Pop(PopRest::new(pop, left))));
        let waker = cell.lock().waker.take();
        state.woken.extend(waker.map(|waker| (Position::START, waker)));
        cell
    }

    /// The number of buffered bytes that wake the log thread before any commit.
    pub(crate) const fn wake_bytes(&self) -> usize {
        match self.durability {
            Durability::None => LAZY_BYTES,
            Durability::Always | Durability::Interval => WAKE_BYTES,
        }
    }

    /// Wakes the log thread and the ticker if there is new work for them.
    pub(crate) fn notify_threads(&self, state: &mut EngineState, now: Now) {
        self.notify_log(state);
        self.notify_ticker(state, now);
    }

    /// Wakes the log thread if it waits for what is buffered now.
    pub(crate) fn notify_log(&self, state: &mut EngineState) {
        state.buffer.commit();
        let is_called = match state.log_thread {
            LogThread::Awake | LogThread::Waits => false,
            LogThread::Sleeps => state.buffer.is_committed(),
            LogThread::Accumulates => state.buffer.bytes() >= LAZY_BYTES || state.buffer.is_long(),
        };
        if is_called {
            state.log_thread = LogThread::Awake;
            self.log_wakes.notify_one();
        }
    }

    /// Wakes the ticker if its next deadline is earlier than the one that it waits for, or if that time has passed: the
    /// ticker sleeps by another clock than the log's.
    pub(crate) fn notify_ticker(&self, state: &mut EngineState, now: Now) {
        if let Some(until) = state.ticker_sleeps
            && ticker::next_look(state, now).is_some_and(|at| at < until || until <= now.log)
        {
            state.ticker_sleeps = None;
            self.ticker_wakes.notify_one();
        }
    }

    /// Asks the preallocator to raise the durable id mark at once, if ids come close to it because the clock jumped
    /// or the preallocator was late. This does not wait: until the mark is raised, the broker assigns ids below it.
    pub(crate) fn raise_mark_if_near(&self, state: &EngineState, now: Now) {
        let (last, mark) = (state.broker.last_id(), state.broker.id_mark());
        let is_near = last.ms().max(now.log.0) + MARK_NEAR_MS >= mark.ms() && mark < TaskId::LAST;
        if is_near {
            self.preallocator.call_for_mark();
        }
    }
}

#[cfg(test)]
mod tests {
    use sureq_core::command::Block;
    use sureq_home_api::Home as _;

    use super::*;
    use crate::{Engine, Options};

    #[test]
    fn a_thread_that_waits_for_the_lock_gets_it_between_two_slices() {
        let engine = Engine::in_memory(&Options::default());
        for _ in 0..100 {
            let (shared, state) = (Arc::clone(&engine.shared), engine.shared.lock());
            let waited = shared.waited.load(Ordering::Relaxed);
            let other = std::thread::spawn(move || drop(shared.lock()));
            while engine.shared.waited.load(Ordering::Relaxed) == waited {
                std::thread::yield_now();
            }
            drop(state);
            engine.shared.yield_lock();
            assert!(engine.shared.entered.load(Ordering::Relaxed) > waited, "the other thread had the lock");
            other.join().expect("it only takes the lock");
        }
        engine.close().expect("nothing is kept");
    }

    #[test]
    fn the_ticker_serves_a_queue_that_exceeded_the_limit_of_one_lock() {
        let engine = Engine::in_memory(&Options::default());
        let (queues, mut replies): (&[&[u8]], _) = (&[b"q"], Replies::default());
        let pop = Command::Pop(Pop { block: Some(Block::Forever), ..Pop::plain(queues, 1) });
        let waiting = engine.submit(&[pop], &mut replies).into_ticket().expect("there is no task");
        let (shared, now) = (&engine.shared, engine.shared.clock.now());
        let mut state = shared.lock();
        state.served = SERVED_MAX;
        let EngineState { broker, buffer, .. } = &mut *state;
        let push = Command::Push { queue: b"q", payloads: &[b"x"] };
        broker.execute(now, &push, buffer, &mut Replies::default());
        shared.end_unit(&mut state);
        assert!(!shared.serve(&mut state, now) && state.has_unserved());
        shared.notify_threads(&mut state, now);
        shared.unlock_and_wake(state);
        assert_eq!(waiting.wait().replies.tasks.len(), 1);
        engine.close().expect("nothing is kept");
    }
}
