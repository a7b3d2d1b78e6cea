//! What all threads of an engine share: the state under its one lock, how the lock is taken and stepped aside from, and what
//! follows whenever something has happened under it: whoever waits is served, whoever sleeps is woken.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, TryLockError};
use std::task::Waker;
use std::time::Duration;

use sureq_core::broker::Dropped;
use sureq_core::command::Pop;
use sureq_core::event::QueueNo;
use sureq_core::limits;
use sureq_core::{Broker, Command, LogTime, Now, Receipt, Refusal, Replies, Reply, TaskId};
use sureq_sync::{Condvar, Mutex, MutexGuard, thread};

use crate::clock::LogClock;
use crate::commit::commit_buffer::CommitBuffer;
use crate::commit::durable::Durable;
use crate::commit::giant::Giants;
use crate::commit::log_thread::{LAZY_BYTES, LogThread};
use crate::commit::preallocator::Preallocator;
use crate::commit::synced::{Synced, Waited};
use crate::compaction::compactor::Compaction;
use crate::fault::{Fault, Operation};
use crate::log::{Cut, Durability, LogError, Position, SegmentInfo};
use crate::meter::{Held, Meter};
use crate::observer::Observer;
use crate::payload::ahead::ReadAhead;
use crate::payload::body::Body;
use crate::payload::cache::Cache;
use crate::payload::loader::Loader;
use crate::payload::unreadable::ReadFaults;
use crate::waiting::line::{Line, Waiting};
use crate::waiting::listener::Listeners;
use crate::waiting::sliced::{self, Left, PopRest, Sliced};
use crate::waiting::ticker;
use crate::waiting::ticket::{PendingAnswer, TicketCell, poisoned};

/// How near the ids may come to their durable mark before the preallocator is told to raise it at once.
const MARK_NEAR_MS: u64 = 20_000;

/// How much is gathered where someone waits for it, before the log thread is woken without being asked to.
const GATHER_BYTES_MAX: usize = 64 << 10;

/// Why a lock is not taken over from a thread that panicked with it.
pub(crate) const LOCK: &str = "a panic under the lock has left the state in doubt; no one may go on from it";

/// What all threads of an engine share.
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    /// How many have had to wait for the lock of the state, and how many of them have got it.
    pub(crate) waited: AtomicU64,
    pub(crate) entered: AtomicU64,
    pub(crate) durable: Durable,
    pub(crate) clock: LogClock,
    pub(crate) durability: Durability,
    /// Something was executed that the log thread and the ticker may not have been told of.
    pub(crate) is_gathering: AtomicBool,
    pub(crate) log_wakes: Condvar,
    pub(crate) ticker_wakes: Condvar,
    pub(crate) preallocator: Preallocator,
    /// `None` where nothing is kept, and so nothing can be read back.
    pub(crate) loader: Option<Loader>,
    pub(crate) compaction: Compaction,
    /// Up to where the log is on disk, at whatever level.
    pub(crate) synced: Synced,
    pub(crate) memory_max: Option<u64>,
    /// Memory that others have said they hold.
    pub(crate) charged: AtomicUsize,
    pub(crate) read_faults: ReadFaults,
    /// Commands that wait for room of their own.
    pub(crate) giants: Giants,
    /// What payloads that are names are hashed with.
    pub(crate) hash_key: [u8; 16],
    pub(crate) notice: Option<fn(&str)>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) threads: Mutex<Vec<thread::JoinHandle>>,
    pub(crate) threads_left: ThreadsLeft,
    pub(crate) cut: Option<Cut>,
    pub(crate) warnings: Vec<String>,
}

/// How many threads of the engine run, for whoever waits until none does.
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

    /// Waits until none is left; answers false if that takes too long.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let waited = self.ended.wait_timeout_while(self.lock(), patience, |left| *left > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        // A number is whole at every instant.
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the lock guards.
pub(crate) struct State {
    pub(crate) broker: Broker<Body>,
    pub(crate) buffer: CommitBuffer,
    pub(crate) line: Line,
    /// Queues with tasks for those in line, who have not been looked for yet.
    pub(crate) unserved: VecDeque<QueueNo>,
    pub(crate) listeners: Listeners,
    pub(crate) cache: Cache,
    pub(crate) ahead: ReadAhead,
    /// Room to put the payloads of a reply together in.
    pub(crate) payloads: Vec<u8>,
    pub(crate) log_thread: LogThread,
    /// The ticker sleeps, and looks again by itself then.
    pub(crate) ticker_sleeps: Option<LogTime>,
    /// The disk has no room for another segment.
    pub(crate) no_space: bool,
    /// Pushes were refused for want of memory, and the operator was told.
    pub(crate) no_memory: bool,
    /// What was in dropped queues, while whoever takes a checkpoint releases it.
    pub(crate) releasing: Option<Arc<Dropped<Body>>>,
    /// The segments of the log, in order. The last is written to.
    pub(crate) segments: Vec<SegmentInfo>,
    /// Those of them that tasks cannot be copied out of.
    pub(crate) unreadable: BTreeSet<u64>,
    /// How many bytes of frames have been written.
    pub(crate) logged_bytes: u64,
    /// Someone needs all before this position to be on disk, whatever the level of durability.
    pub(crate) sync_wanted: Position,
    pub(crate) closing: bool,
    /// Counts what is done under the lock, and the most that was done in one go.
    pub(crate) meter: Meter,
    pub(crate) held: Held,
    /// Who is to be woken, each once its position is durable, as soon as nobody has the lock: what a waker does is its own
    /// business.
    pub(crate) woken: Vec<(Position, Waker)>,
}

/// So many tasks are handed to those who wait before others get the lock.
const SERVED_TASKS_MAX: usize = 2 * limits::SLICE_TASKS;

impl State {
    /// Of a store that has just been opened.
    pub(crate) fn new(broker: Broker<Body>, buffer: CommitBuffer) -> Self {
        Self {
            broker,
            buffer,
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
        }
    }

    /// Whether waiting pops are still to be answered: tasks have become available, or their workers have ended.
    pub(crate) fn has_unserved(&self) -> bool {
        let has_work = !self.unserved.is_empty() || !self.buffer.ended_workers.is_empty();
        has_work && !self.line.is_empty()
    }

    /// The next queue that may have something for those who wait.
    fn next_unserved(&mut self) -> Option<QueueNo> {
        if self.unserved.is_empty() && self.broker.has_awake() {
            let mut awake = Vec::new();
            self.broker.take_awake(&mut awake);
            self.unserved.extend(awake);
        }
        self.unserved.pop_front()
    }

    /// Where nobody waits, nobody has to be told which queues have tasks.
    pub(crate) fn forget_awake_unless_awaited(&mut self) {
        if self.line.is_empty() {
            self.broker.forget_awake();
            self.unserved.clear();
            self.buffer.ended_workers.clear();
        }
    }

    /// Notes what was done since the lock was taken before this.
    pub(crate) fn note_held(&mut self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let counted = self.meter.take().plus(self.buffer.meter.take()).plus(self.cache.meter.take());
        self.held = self.held.max(counted);
    }
}

/// How often is looked whether all have had the lock; nobody signals it.
const STEP_ASIDE: Duration = Duration::from_micros(20);

impl Shared {
    /// Why a command is not even tried.
    pub(crate) fn refusal(&self, state: &State, command: &Command<'_>) -> Option<Refusal> {
        match command {
            Command::Push { .. } | Command::Add(_) if state.no_space => Some(Refusal::NoSpace),
            Command::Push { .. } | Command::Add(_) if self.is_out_of_memory(state) => {
                Some(Refusal::OutOfMemory)
            }
            _ => None,
        }
    }

    /// What must be durable before more is executed, if too much waits to be written.
    pub(crate) fn hold(&self) -> Option<Position> {
        let state = self.lock();
        let is_held = state.buffer.is_long() && !state.closing && self.durable.failure().is_none();
        is_held.then(|| state.buffer.end())
    }

    /// Tells the operator.
    pub(crate) fn notice(&self, line: &str) {
        self.notice.iter().for_each(|notice| notice(line));
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock_unmetered();
        state.note_held();
        state
    }

    fn lock_unmetered(&self) -> MutexGuard<'_, State> {
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
                // All who wait learn that nothing more will come of it.
                self.fail(LogError::Poisoned);
                panic!("{LOCK}");
            }
        }
    }

    /// The lock, even if a panic has put the state in doubt: for those who tell others that it is over.
    pub(crate) fn lock_in_doubt(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has all threads of the engine look whether they are still needed.
    pub(crate) fn wake_threads(&self) {
        self.log_wakes.notify_all();
        self.ticker_wakes.notify_all();
        self.preallocator.wake();
        self.compaction.wake();
        self.giants.wake();
    }

    /// The lock, if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock().ok()
    }

    /// Lets all have the lock who wait for it now, between two slices of much work: whoever takes a lock again at once that
    /// he just let go gets it before those whom he woke.
    pub(crate) fn step_aside(&self) {
        let waiting = self.waited.load(Ordering::Relaxed);
        while self.entered.load(Ordering::Relaxed) < waiting && self.durable.failure().is_none() {
            // Who yields again and again is put behind all others by the system, and then has the lock while it does not run.
            thread::sleep(STEP_ASIDE);
        }
    }

    /// The position that a reply made now must wait for: what it tells may rest on anything before it.
    pub(crate) fn position(&self, state: &State) -> Position {
        // Nothing is promised at these levels that a reply would have to wait for.
        if self.durability == Durability::None { Position::START } else { state.buffer.end() }
    }

    /// Confirms nothing more, and tells everyone who waits.
    pub(crate) fn fail(&self, error: LogError) {
        self.durable.fail(error);
        self.synced.end();
        // Those whose payloads were being read are told too, and so is whoever waits for the one who reads.
        self.loader.iter().for_each(|loader| loader.fail(&self.durable));
        self.giants.fail(&self.durable);
        let woken = {
            let mut state = self.lock_in_doubt();
            Self::disband(&mut state, poisoned, Position::START);
            let State { listeners, woken, .. } = &mut *state;
            listeners.end(woken);
            std::mem::take(woken)
        };
        self.wake(woken);
        self.wake_threads();
    }

    /// Answers all pops that wait.
    pub(crate) fn disband(state: &mut State, replies: fn() -> Replies<Body>, position: Position) {
        for waiting in state.line.disband() {
            Self::answer(state, waiting, replies(), position);
        }
    }

    /// Has all before the position put on disk, at whatever level of durability.
    pub(crate) fn want_sync(&self, position: Position) {
        let mut state = self.lock();
        state.sync_wanted = state.sync_wanted.max(position);
        state.buffer.commit();
        self.log_wakes.notify_one();
    }

    /// Waits until it is. [`LogError::NoSpace`] says that it waits for room in its turn: whoever can make some should not
    /// wait for it.
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

    /// A command or a slice of a tick is whole: what it recorded stays together, and those who listen will hear of it.
    #[inline]
    pub(crate) fn end_unit(&self, state: &mut State) {
        let State { broker, buffer, .. } = &mut *state;
        buffer.end_unit(broker);
        if let Some(observer) = &self.observer {
            observer.changed(buffer.end(), broker);
        }
        if !state.buffer.notes.is_empty() {
            self.tell(state);
        }
    }

    #[cold]
    fn tell(&self, state: &mut State) {
        let position = self.position(state);
        let State { broker, buffer, listeners, woken, .. } = state;
        buffer.notes.tell(|queue, kind, tasks| {
            // A queue that was forgotten within the same step had nothing in it that anyone would ask for now.
            if let Some(name) = broker.name_of(queue) {
                listeners.tell(name, kind, tasks, position, woken);
            }
        });
    }

    /// Something that changes state but has no reply.
    pub(crate) fn change(&self, act: impl FnOnce(&mut Broker<Body>, Now, &mut CommitBuffer)) {
        let mut state = self.lock();
        if state.closing || self.durable.failure().is_some() {
            return;
        }
        let now = self.clock.now();
        let State { broker, buffer, .. } = &mut *state;
        act(broker, now, buffer);
        self.end_unit(&mut state);
        self.serve(&mut state, now);
        self.stir(&mut state, now);
        self.let_go(state);
    }

    /// Lets go of the lock, and wakes those whom what happened under it concerns.
    #[inline]
    pub(crate) fn let_go(&self, mut state: MutexGuard<'_, State>) {
        if state.woken.is_empty() {
            return;
        }
        let woken = std::mem::take(&mut state.woken);
        drop(state);
        self.wake(woken);
    }

    /// Wakes the waker from another thread. A caller that executes slice after slice gives its own thread time for what has
    /// come meanwhile, which an executor looks at only when nothing else is to be done.
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

    /// Gives deliveries that never reached their taker back to the front of their queue, slice by slice.
    pub(crate) fn undeliver(&self, queue: &[u8], receipts: &[Receipt]) {
        // The last ones first: what goes to the front later stands before them.
        for (n, slice) in receipts.rchunks(limits::SLICE_TASKS).enumerate() {
            if n > 0 {
                self.step_aside();
            }
            self.change(|broker, now, buffer| broker.requeue_undelivered(queue, slice, now, buffer));
        }
    }

    /// Hands tasks that became available to those who wait for them, first come, first served, as many as do not hold others
    /// up for long. Answers whether anyone got any.
    pub(crate) fn serve(&self, state: &mut State, now: Now) -> bool {
        let waiting = state.line.len();
        let mut budget = SERVED_TASKS_MAX;
        self.refuse_ended_workers(state, now, &mut budget);
        while budget > 0
            && !state.line.is_empty()
            && let Some(no) = state.next_unserved()
        {
            let Some(name) = state.broker.name_of(no).map(Box::<[u8]>::from) else { continue };
            self.serve_queue(state, &name, now, &mut budget);
            if budget == 0 {
                // The ticker goes on with it, once others have had the lock.
                state.unserved.push_front(no);
                break;
            }
        }
        state.line.len() < waiting
    }

    /// Tells those who wait for tasks in the name of a worker that has ended.
    fn refuse_ended_workers(&self, state: &mut State, now: Now, budget: &mut usize) {
        while *budget > 0
            && let Some(&incarnation) = state.buffer.ended_workers.last()
        {
            let State { broker, buffer, line, .. } = &mut *state;
            let Some((number, waiting)) = line.first_of_worker(incarnation) else {
                buffer.ended_workers.pop();
                continue;
            };
            let mut replies = Replies::default();
            let pop = |pop: &Pop<'_>| broker.execute(now, &Command::Pop(*pop), buffer, &mut replies);
            waiting.pop.with(pop);
            self.end_unit(state);
            *budget -= 1;
            if let Some(waiting) = state.line.leave(number) {
                let position = self.position(state);
                Self::answer(state, waiting, replies, position);
            }
        }
    }

    fn serve_queue(&self, state: &mut State, queue: &[u8], now: Now, budget: &mut usize) {
        while *budget > 0 && state.broker.queue(queue).is_some_and(|queue| queue.can_pop(now.log)) {
            let State { broker, buffer, line, .. } = &mut *state;
            let Some((number, waiting)) = line.first_for(queue) else { return };
            let mut replies = Replies::default();
            let left = waiting.pop.with(|pop| sliced::begin_pop(broker, pop, now, buffer, &mut replies));
            self.end_unit(state);
            state.meter.tasks(replies.tasks.len());
            *budget = budget.saturating_sub(replies.tasks.len().max(1));
            if matches!(replies.list.first(), Some(Reply::Tasks(span)) if span.is_empty()) {
                return;
            }
            let waiting = state.line.leave(number).expect("it was first in line");
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
                let Waiting { pop, cell, .. } = waiting;
                self.load_into(&cell, PendingAnswer::new(pop.into_queues(), replies, position));
            }
        }
    }

    /// Answers a waiting pop. Its taker is woken once the answer may leave, by whoever lets go of the lock.
    pub(crate) fn answer(state: &mut State, waiting: Waiting, replies: Replies<Body>, position: Position) {
        let Waiting { pop, cell, .. } = waiting;
        let mut cell = cell.lock();
        cell.answer = Some(PendingAnswer::new(pop.into_queues(), replies, position));
        state.woken.extend(cell.waker.take().map(|waker| (position, waker)));
    }

    /// Gives a waiting pop its first tasks. Its taker is woken, and gets the rest.
    fn answer_in_part(
        state: &mut State,
        waiting: Waiting,
        left: Left,
        replies: Replies<Body>,
        position: Position,
    ) -> Arc<TicketCell> {
        let Waiting { pop, cell, .. } = waiting;
        let answer = PendingAnswer::new(pop.queues().to_vec(), replies, position);
        cell.begin(answer, Some(Sliced::Pop(PopRest::new(pop, left))));
        let waker = cell.lock().waker.take();
        state.woken.extend(waker.map(|waker| (Position::START, waker)));
        cell
    }

    /// How much is gathered before the log thread is woken without being asked to.
    pub(crate) const fn gather_bytes_max(&self) -> usize {
        match self.durability {
            Durability::None => LAZY_BYTES,
            Durability::Always | Durability::Interval => GATHER_BYTES_MAX,
        }
    }

    /// Wakes the log thread and the ticker if they have something to do that they do not know of.
    pub(crate) fn stir(&self, state: &mut State, now: Now) {
        self.stir_log(state);
        self.stir_ticker(state, now);
    }

    pub(crate) fn stir_log(&self, state: &mut State) {
        state.buffer.commit();
        let is_called = match state.log_thread {
            LogThread::Awake | LogThread::Waits => false,
            LogThread::Sleeps => state.buffer.is_committed(),
            LogThread::Dozes => state.buffer.bytes() >= LAZY_BYTES || state.buffer.is_long(),
        };
        if is_called {
            state.log_thread = LogThread::Awake;
            self.log_wakes.notify_one();
        }
    }

    pub(crate) fn stir_ticker(&self, state: &mut State, now: Now) {
        if let Some(until) = state.ticker_sleeps
            && ticker::next_look(state, now).is_some_and(|at| at < until)
        {
            state.ticker_sleeps = None;
            self.ticker_wakes.notify_one();
        }
    }

    /// Has the preallocator raise the durable mark of the ids if they have come near to it: the clock has leapt, or the preallocator was
    /// held up. Nobody waits for that under the lock: until the mark is raised, the broker gives out ids below it.
    pub(crate) fn mind_the_mark(&self, state: &State, now: Now) {
        let (last, mark) = (state.broker.last_id(), state.broker.id_mark());
        let is_near = last.ms().max(now.log.0) + MARK_NEAR_MS >= mark.ms() && mark < TaskId::LAST;
        if is_near {
            self.preallocator.call_for_mark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Options};

    #[test]
    fn whoever_waits_for_the_lock_gets_it_between_two_slices() {
        let engine = Engine::in_memory(&Options::default());
        for _ in 0..100 {
            let (shared, state) = (Arc::clone(&engine.shared), engine.shared.lock());
            let waited = shared.waited.load(Ordering::Relaxed);
            let other = std::thread::spawn(move || drop(shared.lock()));
            while engine.shared.waited.load(Ordering::Relaxed) == waited {
                std::thread::yield_now();
            }
            drop(state);
            engine.shared.step_aside();
            assert!(engine.shared.entered.load(Ordering::Relaxed) > waited, "the other had its turn");
            other.join().expect("it only takes the lock");
        }
        engine.close().expect("nothing is kept");
    }
}
