//! Runs one plan: all lives of its store.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use sureq_core::Broker;
use sureq_core::command::Command;
use sureq_core::reply::Reply;
use sureq_engine::fault::OpenError;
use sureq_engine::log::LogError;
use sureq_engine::{Engine, Held, Options};
use sureq_sync::sim::{self, Simulation, Trace};
use sureq_sync::{now, thread};
use sureq_testkit::sim_disk::SimDisk;

use crate::client::{Client, Lease, number_of_queue, queue_name};
use crate::clock::SimClock;
use crate::disk::LifeDisk;
use crate::history::History;
use crate::liveness::CHECKED_QUEUES;
use crate::plan::{End, Faults, Plan};
use crate::states::States;

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) findings: Vec<String>,
    pub(crate) trace: Trace,
    pub(crate) recoveries: u64,
    pub(crate) commands: u64,
    /// The most work under one hold of the state lock.
    pub(crate) held: Held,
    /// The number of recovered states that were compared with the past.
    pub(crate) compared: u64,
    pub(crate) plan: Plan,
}

/// A run with more turns is stuck.
const TURNS_MAX: u64 = 5_000_000;

/// The most lives of a run.
const LIVES_MAX: usize = 12;

/// The most rounds in which the last life waits for delayed tasks.
const ROUNDS_MAX: usize = 200;

/// The bounds of work under one hold of the lock, as debug builds count it: 3,000 tasks that commands name or push,
/// and as many that waiting pops receive.
const HELD_TASKS_MAX: usize = 6_000;
const HELD_BYTES_MAX: usize = 5 << 20;

/// The most tasks that events may move under one lock.
const HELD_MOVED_MAX: usize = 5_000;

/// The most payloads that may be released under one lock.
const HELD_RELEASED_MAX: usize = 5_000;

/// The most steps that may be taken under one lock beyond those for its commands and tasks. Finding a position passes
/// over tasks that are gone, a few times up to a run of 4,096.
const HELD_SURPLUS_MAX: u64 = 10_000;

/// How much the memory of tasks may change during one push.
const MEMORY_CHANGES_MAX: u64 = 64 << 10;

/// A part of the message of a panic that follows from another.
const IN_DOUBT: &str = "has left the state in doubt";

/// How long closing may take while the disk works.
const CLOSE_MAX: Duration = Duration::from_secs(120);

/// The time after its last task in which a store must free the disk, and the segments' worth of files that it may keep.
const COMPACTION_MAX: Duration = Duration::from_secs(600);
const SEGMENTS_KEPT_MAX: usize = 8;
const SEGMENT_SUFFIX: &str = ".seg";
const CHECKPOINTS_KEPT: usize = 2;

/// The most findings that are shown for one run.
const FINDINGS_SHOWN: usize = 20;

/// Runs a plan.
pub(crate) fn run(plan: &Plan) -> Outcome {
    let mut rng = Rng::with_seed(plan.seed);
    let options = sim::Options {
        seed: rng.u64(..),
        label: plan.seed,
        turns_max: TURNS_MAX,
        yield_every: plan.yield_every,
        step_max: plan.step_max(),
    };
    let simulation = Simulation::begin(options);
    let history = History::new(plan);
    let mut world = World {
        began: now(),
        plan: Arc::new(plan.clone()),
        history: Arc::new(Mutex::new(history)),
        states: States::default(),
        disk: SimDisk::new(plan.seed),
        ahead_ms: 0,
        rng,
        is_made: false,
        recoveries: 0,
        held: Held::default(),
    };
    let lived = catch_unwind(AssertUnwindSafe(|| world.live()));
    let trace = simulation.trace();
    let (left, panics) = (simulation.threads(), simulation.panics());
    drop(simulation);
    let history = std::mem::take(&mut *world.history.lock().unwrap_or_else(PoisonError::into_inner));
    let mut findings = history.findings;
    findings.extend(world.states.findings());
    if lived.is_err() || panics > 0 {
        findings.push(format!("{panics} panics"));
    }
    if !left.is_empty() {
        findings.push(format!("threads were left: {left:?}"));
    }
    let World { recoveries, held, .. } = world;
    let (commands, compared) = (history.commands, world.states.compared());
    Outcome { findings, trace, recoveries, commands, held, compared, plan: plan.clone() }
}

struct World {
    began: Instant,
    plan: Arc<Plan>,
    history: Arc<Mutex<History>>,
    states: States,
    disk: SimDisk,
    /// How far the wall clock is ahead of the elapsed time, in milliseconds.
    ahead_ms: i64,
    rng: Rng,
    /// The store has been opened before.
    is_made: bool,
    recoveries: u64,
    held: Held,
}

impl World {
    fn live(&mut self) {
        let ends = self.plan.lives.clone();
        for end in ends.into_iter().take(LIVES_MAX) {
            self.live_once(end);
        }
        self.last_life();
    }

    /// Opens the store. None if the process crashes before it is open, or the disk fails.
    fn open(&mut self, disk: &LifeDisk, is_last: bool) -> Option<(Engine, Arc<SimClock>)> {
        self.recoveries += 1;
        if self.is_made {
            disk.note_made();
        }
        let clock = Arc::new(SimClock::new(self.began, self.ahead_ms));
        let observer = Some(Arc::new(self.states.clone()) as _);
        let options = Options { observer, ..self.plan.options(is_last) };
        match Engine::open_on(Arc::new(disk.clone()), Arc::clone(&clock) as _, &options) {
            Ok(engine) => {
                self.is_made = true;
                disk.note_open();
                Some((engine, clock))
            }
            // An existing store must open on a full disk, too.
            Err(OpenError::Disk(fault)) if !self.is_made && fault.is_no_space() => None,
            Err(_) if disk.is_over() || disk.failed() != (0, false) => None,
            Err(error) => {
                self.find(format!("the store cannot be opened: {error}"));
                None
            }
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, finding: String) {
        self.history().findings.push(finding);
    }

    fn client(&mut self, engine: &Engine, clock: &Arc<SimClock>, disk: &LifeDisk) -> Client {
        Client {
            engine: engine.clone(),
            plan: Arc::clone(&self.plan),
            history: Arc::clone(&self.history),
            states: self.states.clone(),
            clock: Arc::clone(clock),
            disk: disk.clone(),
            rng: self.rng.fork(),
            due: None,
            held: Vec::new(),
            worker: None,
            conn: None,
            waits_since: Cell::new(None),
        }
    }

    fn live_once(&mut self, end: End) {
        let disk = LifeDisk::new(self.disk.clone(), end, &self.plan, self.plan.faults, self.rng.fork());
        let mut is_over = false;
        if let Some((engine, clock)) = self.open(&disk, false) {
            let relief = self.relief(&disk);
            self.client(&engine, &clock, &disk).configure(false);
            if let End::Panicked(thread, nth) = end {
                sim::inject_panic(thread.name(), nth, IN_DOUBT);
            }
            let clients: Vec<_> = (0..self.plan.clients)
                .map(|_| {
                    let client = self.client(&engine, &clock, &disk);
                    thread::spawn("client", move || client.run()).expect("the system has a thread")
                })
                .collect();
            let panicked = clients.into_iter().chain(relief).map(thread::JoinHandle::join);
            let panicked = panicked.filter(Result::is_err).count();
            if panicked == 0 && self.plan.memory_bytes > 0 && !matches!(end, End::Panicked(..)) {
                self.check_memory_limit(&engine, &clock, &disk);
            }
            self.close(&engine, &disk);
            drop(engine);
            is_over |= sim::end_injection();
            // A client that panicked has not closed its connection.
            self.history().end_connections(now());
            if panicked > 0 && !is_over {
                self.find(format!("{panicked} clients panicked"));
            }
            self.ahead_ms = clock.ahead_ms();
            if clock.is_stepped() {
                // The log time of the next life begins at the wall clock.
                self.history().forget_times(now());
            }
        }
        self.history().findings.extend(disk.findings());
        is_over |= disk.is_over();
        if is_over && !self.plan.durability.survives(end) {
            self.history().doubt_all(now());
            self.states.doubt();
        }
        self.disk = disk.left();
    }

    /// A thread that frees space on a full disk after a while.
    fn relief(&self, disk: &LifeDisk) -> Option<thread::JoinHandle> {
        let (disk, full_ms) = (disk.clone(), self.plan.faults.full_ms);
        let relieve = move || {
            thread::sleep(Duration::from_millis(full_ms));
            disk.relieve();
        };
        (full_ms > 0).then(|| thread::spawn("relief", relieve).expect("the system has a thread"))
    }

    /// Reports a push that is accepted although the store uses more memory than it may. All clients have left.
    fn check_memory_limit(&mut self, engine: &Engine, clock: &Arc<SimClock>, disk: &LifeDisk) {
        let client = self.client(engine, clock, disk);
        let memory = || engine.inspect(Broker::memory);
        let used_before = memory();
        let begun = client.begin_small(0, 1, now());
        client.push_begun(0, &begun);
        // The memory of tasks changes little meanwhile.
        let used = used_before.min(memory());
        if used > self.plan.memory_bytes + MEMORY_CHANGES_MAX && self.history().is_confirmed(begun[0].0) {
            self.find(format!("a push was accepted with {used} bytes in use of {}", self.plan.memory_bytes));
        }
    }

    fn close(&mut self, engine: &Engine, disk: &LifeDisk) {
        disk.calm_down();
        let is_sound = engine.failure().is_none() && !sim::is_panic_injected();
        let held = if is_sound { engine.held() } else { Held::default() };
        self.held = self.held.max(held);
        if held.tasks > HELD_TASKS_MAX
            || held.bytes > HELD_BYTES_MAX
            || held.moved > HELD_MOVED_MAX
            || held.released > HELD_RELEASED_MAX
            || held.surplus > HELD_SURPLUS_MAX
        {
            self.find(format!("too much under one lock: {held:?}"));
        }
        match engine.close_within(CLOSE_MAX) {
            Err(error) if matches!(*error, LogError::Hung { .. }) => {
                self.find(format!("closing hangs: {error}"));
            }
            Err(error) if matches!(*error, LogError::Poisoned) && sim::is_panic_injected() => {}
            Err(error) if !disk.is_over() && !disk.failed().1 => {
                self.find(format!("the store failed: {error}"));
            }
            _ => {}
        }
    }

    /// The last life, without faults: all tasks are popped and acked, and waiting clients must be woken in time.
    fn last_life(&mut self) {
        let (end, faults) = (End::Closed, Faults::default());
        let disk = LifeDisk::new(self.disk.clone(), end, &self.plan, faults, self.rng.fork());
        disk.calm_down();
        let Some((engine, clock)) = self.open(&disk, true) else { return };
        let mut client = self.client(&engine, &clock, &disk);
        client.configure(true);
        (0..CHECKED_QUEUES).for_each(|queue| client.resume(queue));
        let mut rounds = 0;
        while !Self::drain(&client) && engine.failure().is_none() {
            rounds += 1;
            if rounds > ROUNDS_MAX {
                self.find("the queues do not get empty".into());
                break;
            }
            // All rounds together take longer than any lease or delay.
            thread::sleep(Duration::from_secs(20));
        }
        self.history().settle_waits();
        client.check_liveness();
        thread::sleep(COMPACTION_MAX);
        let files = disk.files();
        let is_checkpoint = |name: &str| name.starts_with("checkpoint");
        // A blob file with payloads may be shared by several checkpoints.
        let checkpoints = files.keys().filter(|name| is_checkpoint(name) && !name.contains(".blobs")).count();
        let others: Vec<usize> =
            files.iter().filter(|(name, _)| !is_checkpoint(name)).map(|(_, bytes)| *bytes).collect();
        // The current segment may have been made for one large push.
        let bytes = others.iter().sum::<usize>() - others.iter().max().unwrap_or(&0);
        let segments = files.keys().filter(|name| name.ends_with(SEGMENT_SUFFIX)).count();
        if segments > 1
            || checkpoints > CHECKPOINTS_KEPT
            || bytes > SEGMENTS_KEPT_MAX * self.plan.segment_bytes as usize
        {
            self.find(format!("an empty store keeps too much: {files:?}"));
        }
        self.close(&engine, &disk);
        self.history().findings.extend(disk.findings());
        self.history().settle();
    }

    /// The queues that have tasks, or none if the outcome is unknown.
    fn filled(client: &Client) -> Option<Vec<usize>> {
        let (mut filled, mut cursor) = (Vec::new(), 0);
        loop {
            let replies = client.ask(Command::Queues { pattern: None, cursor, count: 1_000 })?;
            let [Reply::Queues { cursor: next, .. }] = replies.list[..] else { return None };
            filled.extend(replies.queues.iter().filter_map(|row| number_of_queue(&row.name)));
            cursor = next;
            if cursor == 0 {
                return Some(filled);
            }
        }
    }

    /// Pops and acks all available tasks. Returns whether all queues were empty.
    fn drain(client: &Client) -> bool {
        let filled = Self::filled(client).unwrap_or_default();
        for &queue in &filled {
            let name = queue_name(queue);
            client.resume(queue);
            client.ask(Command::Revive { queue: &name, tasks: None });
            loop {
                let taken = client.take(queue, 1_000, Lease::of_ms(600_000), None);
                if taken.is_empty() {
                    break;
                }
                client.finish(&taken);
            }
        }
        filled.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { findings, trace, recoveries, commands, compared, plan, .. } = self;
        write!(
            f,
            "seed {}: {commands} commands, {recoveries} starts ({compared} compared), {trace:?}",
            plan.seed
        )?;
        for finding in findings.iter().take(FINDINGS_SHOWN) {
            write!(f, "\n  {finding}")?;
        }
        if findings.len() > FINDINGS_SHOWN {
            write!(f, "\n  and {} more", findings.len() - FINDINGS_SHOWN)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found;

    #[test]
    fn stored_runs_find_nothing_any_more() {
        let runs = found::all().expect("the files can be read");
        assert!(!runs.is_empty());
        for (path, plan) in runs {
            let outcome = run(&plan);
            assert!(outcome.findings.is_empty(), "{}: {outcome}", path.display());
        }
    }

    #[test]
    fn the_first_seeds_find_nothing() {
        let outcomes: Vec<Outcome> = (0..60).map(|seed| run(&Plan::draw(seed))).collect();
        for outcome in &outcomes {
            assert!(outcome.findings.is_empty(), "{outcome}");
        }
        assert!(outcomes.iter().map(|outcome| outcome.recoveries).sum::<u64>() > 100);
    }

    #[test]
    fn a_seed_is_one_run() {
        for plan in (0..20).map(Plan::draw) {
            let (first, second) = (run(&plan), run(&plan));
            assert_eq!(first.trace, second.trace, "seed {}", plan.seed);
        }
    }
}
