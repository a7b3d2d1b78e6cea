//! A simulation: a seed decides which one of its threads runs, and the clock advances when all of them wait.
//!
//! They are threads of the system, so that their code needs no change and a debugger shows them; but each waits for its
//! turn. A thread passes the turn on when it locks, waits, sleeps or ends.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;

/// The number of simulations in this process. Outside of simulations only this is read.
static SIMULATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CURRENT: RefCell<Option<Task>> = const { RefCell::new(None) };
}

/// The calling thread, if it is part of a simulation.
#[inline]
pub(crate) fn current() -> Option<Task> {
    if SIMULATIONS.load(Ordering::Relaxed) == 0 {
        return None;
    }
    CURRENT.with_borrow(Clone::clone)
}

/// The settings of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Decides everything that is random.
    pub seed: u64,
    /// Identifies the run in the message when it is aborted.
    pub label: u64,
    /// A run with more turns is aborted.
    pub turns_max: u64,
    /// A thread is interrupted at one in this many opportunities, on average.
    pub yield_every: u32,
    /// The most time that passes at each turn.
    pub step_max: Duration,
}

/// A simulation. The thread that began it is one of its threads.
pub struct Simulation {
    task: Task,
}

/// The progress of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// A hash of everything that happened, in order.
    pub hash: u64,
    pub turns: u64,
    /// The simulated time that has passed.
    pub time: Duration,
}

impl Simulation {
    /// Begins a simulation, with the calling thread as its first.
    ///
    /// # Panics
    ///
    /// If the thread is in a simulation already.
    pub fn begin(options: Options) -> Self {
        assert!(current().is_none(), "a simulation within a simulation");
        count_panics();
        let first = Entry::new("main");
        let state = SchedulerState {
            rng: Rng::with_seed(options.seed),
            entries: vec![first],
            live: vec![0],
            running: 0,
            trace: Trace { hash: options.seed, turns: 0, time: Duration::ZERO },
            injected: None,
        };
        let (state, panics, began) = (Mutex::new(state), AtomicU64::new(0), Instant::now());
        let scheduler = Arc::new(Scheduler { state, options, panics, began });
        let task = Task { id: 0, scheduler };
        CURRENT.set(Some(task.clone()));
        SIMULATIONS.fetch_add(1, Ordering::Relaxed);
        Self { task }
    }

    /// The progress so far.
    pub fn trace(&self) -> Trace {
        self.task.lock().trace
    }

    /// The number of panics on its threads, caught or not.
    pub fn panics(&self) -> u64 {
        self.task.scheduler.panics.load(Ordering::Relaxed)
    }

    /// The other threads that have not ended, with their status.
    pub fn threads(&self) -> Vec<String> {
        let state = self.task.lock();
        let left = state.live.iter().filter(|&&id| id != self.task.id).map(|&id| &state.entries[id]);
        left.map(|entry| format!("{}: {:?}", entry.name, entry.status)).collect()
    }
}

/// Installs a panic hook that counts panics on threads of a simulation.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let task = current();
            if task.as_ref().is_some_and(|task| task.is_injected(panic)) {
                return;
            }
            if let Some(task) = task {
                task.scheduler.panics.fetch_add(1, Ordering::Relaxed);
            }
            hook(panic);
        }));
    });
}

impl Drop for Simulation {
    fn drop(&mut self) {
        CURRENT.set(None);
        SIMULATIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Adds an event to the trace. Does nothing outside of a simulation.
pub fn note(what: u64) {
    if let Some(task) = current() {
        task.lock().note(what);
    }
}

/// A number below `bound` that the seed decides; none outside of a simulation.
pub fn random(bound: u64) -> Option<u64> {
    current().map(|task| task.lock().rng.u64(..bound))
}

/// Makes a thread of this name panic when it calls [`may_panic`] for the nth time from now on. Panics whose message
/// contains `follows` count as consequences. Neither counts as a panic of the simulation.
pub fn inject_panic(thread: &str, nth: u64, follows: &'static str) {
    if let Some(task) = current() {
        let injected = Injected { thread: thread.into(), left: nth, follows };
        task.lock().injected = Some(injected);
    }
}

/// Whether the injected panic has happened.
pub fn is_panic_injected() -> bool {
    current().is_some_and(|task| task.lock().injected.as_ref().is_some_and(|injected| injected.left == 0))
}

/// Ends the injection. Returns whether the panic has happened.
pub fn end_injection() -> bool {
    let injected = current().and_then(|task| task.lock().injected.take());
    injected.is_some_and(|injected| injected.left == 0)
}

/// A place at which a panic may be injected.
pub fn may_panic() {
    current().iter().for_each(Task::maybe_panic);
}

/// Lets another thread run here, if the seed decides so. Does nothing outside of a simulation.
pub fn interrupt() {
    current().iter().for_each(Task::maybe_yield);
}

struct Scheduler {
    state: Mutex<SchedulerState>,
    options: Options,
    panics: AtomicU64,
    began: Instant,
}

struct SchedulerState {
    rng: Rng,
    /// All threads, including those that have ended.
    entries: Vec<Entry>,
    /// The threads that have not ended.
    live: Vec<usize>,
    running: usize,
    trace: Trace,
    injected: Option<Injected>,
}

struct Injected {
    thread: Box<str>,
    /// The number of calls of [`may_panic`] until the panic; 0 after it.
    left: u64,
    follows: &'static str,
}

const INJECTED: &str = "a panic that the simulation injects";

struct Entry {
    name: Box<str>,
    status: Status,
    /// Its last wait timed out.
    is_late: bool,
    turn: Arc<Condvar>,
}

#[derive(Clone, Copy, Debug)]
enum Status {
    Ready,
    /// Until this address is woken, or until this time.
    Waits {
        on: usize,
        until: Option<Duration>,
    },
    Ended,
}

impl Entry {
    fn new(name: &str) -> Self {
        Self { name: name.into(), status: Status::Ready, is_late: false, turn: Arc::default() }
    }

    const fn is_ready(&self) -> bool {
        matches!(self.status, Status::Ready)
    }

    const fn waits_for(&self, on: usize) -> bool {
        matches!(self.status, Status::Waits { on: its, .. } if its == on)
    }
}

impl SchedulerState {
    fn note(&mut self, what: u64) {
        self.trace.hash = (self.trace.hash.rotate_left(5) ^ what).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    /// Chooses the thread that runs next, and advances time until one can.
    fn choose(&mut self, options: &Options) -> usize {
        if self.trace.turns >= options.turns_max {
            self.give_up(options.label, "a run that does not end");
        }
        let step = self.rng.u64(..=options.step_max.as_nanos() as u64);
        self.trace.time += Duration::from_nanos(step);
        loop {
            let mut ready = 0;
            for &id in &self.live {
                let entry = &mut self.entries[id];
                if let Status::Waits { until: Some(until), .. } = entry.status
                    && until <= self.trace.time
                {
                    (entry.status, entry.is_late) = (Status::Ready, true);
                }
                ready += usize::from(entry.is_ready());
            }
            if ready > 0 {
                let nth = self.rng.usize(..ready);
                let mut ids = self.live.iter().filter(|&&id| self.entries[id].is_ready());
                let next = *ids.nth(nth).expect("nth is below the number of ready threads");
                self.trace.turns += 1;
                self.note((next as u64) << 48 ^ self.trace.time.as_nanos() as u64);
                return next;
            }
            let next = self.live.iter().filter_map(|&id| match self.entries[id].status {
                Status::Waits { until, .. } => until,
                Status::Ready | Status::Ended => None,
            });
            match next.min() {
                Some(until) => self.trace.time = until,
                None => self.give_up(options.label, "a deadlock"),
            }
        }
    }

    /// The threads that wait for this address, in order.
    fn waiting(&self, on: usize) -> impl Iterator<Item = usize> {
        self.live.iter().copied().filter(move |&id| self.entries[id].waits_for(on))
    }

    /// Aborts the process, after a deadlock or too many turns.
    fn give_up(&self, label: u64, why: &str) -> ! {
        let waits = self.live.iter().map(|&id| &self.entries[id]);
        let waits: Vec<String> = waits.map(|entry| format!("{}: {:?}", entry.name, entry.status)).collect();
        eprintln!("{label}: {why}, after {:?}: {waits:#?}", self.trace);
        // The other threads cannot be woken any more, so a panic would not reach the caller.
        std::process::abort();
    }
}

/// A thread of a simulation.
#[derive(Clone)]
pub(crate) struct Task {
    id: usize,
    scheduler: Arc<Scheduler>,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({})", self.id)
    }
}

impl Task {
    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.scheduler.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Instant {
        self.scheduler.began + self.lock().trace.time
    }

    /// Passes the turn on and waits for the next one.
    fn pass(&self, mut state: MutexGuard<'_, SchedulerState>) {
        let next = state.choose(&self.scheduler.options);
        if next != self.id {
            state.running = next;
            state.entries[next].turn.notify_one();
            self.wait_for_turn(state);
        }
    }

    fn wait_for_turn(&self, mut state: MutexGuard<'_, SchedulerState>) {
        let turn = Arc::clone(&state.entries[self.id].turn);
        while state.running != self.id {
            state = turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether a panic was injected, or is a consequence of one.
    fn is_injected(&self, panic: &std::panic::PanicHookInfo<'_>) -> bool {
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
        let state = self.lock();
        let has_come = state.injected.as_ref().filter(|injected| injected.left == 0);
        has_come.is_some_and(|injected| text == INJECTED || text.contains(injected.follows))
    }

    /// Panics, if a panic is injected here.
    fn maybe_panic(&self) {
        let mut state = self.lock();
        let SchedulerState { injected: Some(injected), entries, .. } = &mut *state else { return };
        let is_meant = entries[self.id].name == injected.thread && !std::thread::panicking();
        if injected.left == 0 || !is_meant {
            return;
        }
        injected.left -= 1;
        if injected.left == 0 {
            drop(state);
            panic!("{INJECTED}");
        }
    }

    /// Lets another thread run, if the seed decides so.
    pub(crate) fn maybe_yield(&self) {
        let mut state = self.lock();
        if state.rng.u32(..self.scheduler.options.yield_every.max(1)) == 0 {
            self.pass(state);
        }
    }

    pub(crate) fn yield_now(&self) {
        self.pass(self.lock());
    }

    /// Waits until the address is woken, or for this time. Returns whether it timed out.
    pub(crate) fn block(&self, on: usize, time: Option<Duration>) -> bool {
        let mut state = self.lock();
        let until = time.map(|time| state.trace.time.saturating_add(time));
        let entry = &mut state.entries[self.id];
        (entry.status, entry.is_late) = (Status::Waits { on, until }, false);
        self.pass(state);
        self.lock().entries[self.id].is_late
    }

    pub(crate) fn wake_all(&self, on: usize) {
        let mut state = self.lock();
        while let Some(id) = { state.waiting(on).next() } {
            state.entries[id].status = Status::Ready;
        }
    }

    /// Wakes one of the threads that wait for the address. The seed decides which.
    pub(crate) fn wake_one(&self, on: usize) {
        let mut state = self.lock();
        let count = state.waiting(on).count();
        if count > 0 {
            let nth = state.rng.usize(..count);
            let chosen = { state.waiting(on).nth(nth) };
            if let Some(id) = chosen {
                state.entries[id].status = Status::Ready;
            }
        }
    }

    /// Adds a thread, which must call [`run`](Self::run).
    pub(crate) fn spawned(&self, name: &str) -> Self {
        let mut state = self.lock();
        let id = state.entries.len();
        state.entries.push(Entry::new(name));
        state.live.push(id);
        Self { id, scheduler: Arc::clone(&self.scheduler) }
    }

    pub(crate) const fn id(&self) -> usize {
        self.id
    }

    /// Whether another thread has ended.
    pub(crate) fn has_ended(&self, other: usize) -> bool {
        matches!(self.lock().entries[other].status, Status::Ended)
    }

    /// Waits until another thread has ended.
    pub(crate) fn wait_for_end(&self, other: usize) {
        while !self.has_ended(other) {
            self.block(Self::end_of(other), None);
        }
    }

    /// The address that stands for the end of a thread. No lock has such an address.
    const fn end_of(other: usize) -> usize {
        usize::MAX - other
    }

    /// Runs the function of a new thread when it is its turn.
    pub(crate) fn run(self, run: impl FnOnce()) {
        CURRENT.set(Some(self.clone()));
        self.wait_for_turn(self.lock());
        let ran = catch_unwind(AssertUnwindSafe(run));
        CURRENT.set(None);
        self.wake_all(Self::end_of(self.id));
        let mut state = self.lock();
        state.entries[self.id].status = Status::Ended;
        state.live.retain(|&id| id != self.id);
        let next = state.choose(&self.scheduler.options);
        state.running = next;
        state.entries[next].turn.notify_one();
        drop(state);
        if let Err(panic) = ran {
            std::panic::resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Condvar, Mutex, thread};

    fn options(seed: u64) -> Options {
        let step_max = Duration::from_micros(10);
        Options { seed, label: seed, turns_max: 1_000_000, yield_every: 2, step_max }
    }

    /// Runs threads that each append their number a few times. Returns the order and the trace.
    fn race(seed: u64) -> (Vec<usize>, Trace) {
        let simulation = Simulation::begin(options(seed));
        let list = Arc::new(Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..3)
            .map(|n| {
                let list = Arc::clone(&list);
                thread::spawn("racer", move || {
                    for _ in 0..5 {
                        list.lock().expect("no thread panics").push(n);
                    }
                })
                .expect("a thread")
            })
            .collect();
        for thread in threads {
            thread.join().expect("it ends");
        }
        assert_eq!(simulation.threads(), Vec::<String>::new());
        let order = list.lock().expect("no thread panics").clone();
        (order, simulation.trace())
    }

    #[test]
    fn the_same_seed_gives_the_same_run_and_another_gives_another() {
        let orders: BTreeSet<_> = (0..50).map(|seed| race(seed).0).collect();
        assert!(orders.len() > 25, "{} orders of 50", orders.len());
        assert!((0..50).all(|seed| race(seed) == race(seed)));
    }

    #[test]
    fn time_passes_when_all_wait_and_only_then() {
        let simulation = Simulation::begin(options(7));
        let (began, real) = (crate::now(), Instant::now());
        thread::sleep(Duration::from_secs(3600));
        let passed = crate::now() - began;
        assert!(passed >= Duration::from_secs(3600) && passed < Duration::from_secs(3601), "{passed:?}");
        assert!(real.elapsed() < Duration::from_secs(60));
        let (flag, changed) = (Mutex::new(false), Condvar::new());
        let guard = flag.lock().expect("no thread panics");
        let (guard, waited) = changed.wait_timeout(guard, Duration::from_secs(60)).expect("no thread panics");
        assert!(waited.timed_out() && !*guard);
        assert!(simulation.trace().time >= Duration::from_secs(3660));
    }

    #[test]
    fn a_notified_thread_continues_before_its_timeout() {
        for seed in 0..50 {
            let _simulation = Simulation::begin(options(seed));
            let shared = Arc::new((Mutex::new(false), Condvar::new()));
            let other = Arc::clone(&shared);
            let thread = thread::spawn("notifier", move || {
                thread::sleep(Duration::from_millis(5));
                *other.0.lock().expect("no thread panics") = true;
                other.1.notify_one();
            });
            let guard = shared.0.lock().expect("no thread panics");
            let hour = Duration::from_secs(3600);
            let (_, waited) =
                shared.1.wait_timeout_while(guard, hour, |is_set| !*is_set).expect("no thread panics");
            assert!(!waited.timed_out());
            thread.expect("a thread").join().expect("it ends");
        }
    }

    #[test]
    fn a_panic_on_a_thread_is_returned_by_join() {
        let simulation = Simulation::begin(options(1));
        let lock = Arc::new(Mutex::new(()));
        let its = Arc::clone(&lock);
        let thread = thread::spawn("panics", move || {
            let _guard = its.lock();
            panic!("on purpose");
        });
        thread.expect("a thread").join().expect_err("it panicked");
        lock.lock().expect_err("its lock is poisoned");
        assert_eq!(simulation.panics(), 1);
    }

    #[test]
    fn a_panic_is_injected_where_it_is_asked_for() {
        let simulation = Simulation::begin(options(1));
        inject_panic("panics", 3, "follows from it");
        let lock = Arc::new(Mutex::new(0));
        let spawn = |name| {
            let its = Arc::clone(&lock);
            thread::spawn(name, move || {
                for _ in 0..4 {
                    *its.lock().expect("no thread panics with it") += 1;
                    may_panic();
                }
            })
            .expect("a thread")
        };
        spawn("another").join().expect("it was not meant");
        spawn("panics").join().expect_err("it was meant");
        assert_eq!(*lock.lock().expect("no thread panics with it"), 7);
        assert!(end_injection());
        assert_eq!(simulation.panics(), 0);
    }

    #[test]
    fn a_thread_that_was_unparked_before_does_not_park() {
        let simulation = Simulation::begin(options(3));
        let parker = thread::Parker::new();
        parker.unpark();
        parker.park();
        parker.park_timeout(Duration::from_secs(9));
        assert!(simulation.trace().time >= Duration::from_secs(9));
        let its = parker.clone();
        let thread = thread::spawn("unparks", move || its.unpark());
        parker.park();
        thread.expect("a thread").join().expect("it ends");
    }
}
