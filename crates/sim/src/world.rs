//! One seed, from its first life to its last.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use sureq_core::command::Command;
use sureq_core::reply::Reply;
use sureq_engine::Engine;
use sureq_engine::clock::Clock;
use sureq_sync::sim::{self, Simulation, Trace};
use sureq_sync::{now, thread};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::SimDisk;

use crate::client::{Client, queue_name};
use crate::disk::LifeDisk;
use crate::history::History;
use crate::plan::{End, Plan};

/// What came of a seed.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    pub(crate) findings: Vec<String>,
    pub(crate) trace: Trace,
    pub(crate) recoveries: u64,
    pub(crate) commands: u64,
    plan: Plan,
}

/// The clocks of a machine whose time is simulated.
struct SimClock {
    began: Instant,
    switched_on: Instant,
}

impl Clock for SimClock {
    fn monotonic_ms(&self) -> u64 {
        (now() - self.switched_on).as_millis() as u64
    }

    fn wall_ms(&self) -> u64 {
        ManualClock::START_MS + (now() - self.began).as_millis() as u64
    }
}

/// No seed has so many turns, unless somebody waits for what never comes.
const TURNS_MAX: u64 = 3_000_000;

/// How many lives a seed has at most: one that is killed each time before it gets anywhere is given up.
const LIVES_MAX: usize = 12;

/// How many times the last life waits for delayed tasks before it gives up.
const ROUNDS_MAX: usize = 200;

/// Runs a seed.
pub(crate) fn run(seed: u64) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let plan = Plan::draw(&mut rng);
    let options = sim::Options {
        seed: rng.u64(..),
        label: seed,
        turns_max: TURNS_MAX,
        yield_every: plan.yield_every,
        step_max: plan.step_max,
    };
    let simulation = Simulation::begin(options);
    let mut world = World {
        began: now(),
        plan: Arc::new(plan.clone()),
        history: Arc::default(),
        disk: SimDisk::new(seed),
        rng,
        recoveries: 0,
    };
    let lived = catch_unwind(AssertUnwindSafe(|| world.live()));
    let trace = simulation.trace();
    let (left, panics) = (simulation.threads(), simulation.panics());
    drop(simulation);
    let history = std::mem::take(&mut *world.history.lock().unwrap_or_else(PoisonError::into_inner));
    let mut findings = history.findings;
    if lived.is_err() || panics > 0 {
        findings.push(format!("{panics} panics"));
    }
    if !left.is_empty() {
        findings.push(format!("threads were left: {left:?}"));
    }
    Outcome { seed, findings, trace, recoveries: world.recoveries, commands: history.commands, plan }
}

struct World {
    began: Instant,
    plan: Arc<Plan>,
    history: Arc<Mutex<History>>,
    disk: SimDisk,
    rng: Rng,
    recoveries: u64,
}

impl World {
    fn live(&mut self) {
        let ends = self.plan.lives.clone();
        for end in ends.into_iter().take(LIVES_MAX) {
            self.live_once(end);
        }
        self.last_life();
    }

    /// Opens the store; none if the process is gone before it is open.
    fn open(&mut self, disk: &LifeDisk) -> Option<Engine> {
        self.recoveries += 1;
        let clock = SimClock { began: self.began, switched_on: now() };
        match Engine::open_on(Arc::new(disk.clone()), Arc::new(clock), &self.plan.options) {
            Ok(engine) => Some(engine),
            Err(_) if disk.is_over() => None,
            Err(error) => {
                self.find(format!("the store cannot be opened: {error}"));
                None
            }
        }
    }

    fn find(&self, finding: String) {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).findings.push(finding);
    }

    fn client(&mut self, engine: &Engine) -> Client {
        Client {
            engine: engine.clone(),
            plan: Arc::clone(&self.plan),
            history: Arc::clone(&self.history),
            rng: self.rng.fork(),
            held: Vec::new(),
        }
    }

    fn live_once(&mut self, end: End) {
        let disk = LifeDisk::new(self.disk.clone(), end, &self.plan, self.rng.fork());
        if let Some(engine) = self.open(&disk) {
            let clients: Vec<_> = (0..self.plan.clients)
                .map(|_| {
                    let client = self.client(&engine);
                    thread::spawn("client", move || client.run()).expect("the system has a thread")
                })
                .collect();
            for client in clients {
                if client.join().is_err() {
                    self.find("a client panicked".into());
                }
            }
            self.close(&engine, &disk);
        }
        self.disk = disk.left();
    }

    fn close(&self, engine: &Engine, disk: &LifeDisk) {
        match engine.close() {
            Err(error) if !disk.is_over() => self.find(format!("the store failed: {error}")),
            _ => {}
        }
    }

    /// Without faults: all that is left comes out, and is finished.
    fn last_life(&mut self) {
        let disk = LifeDisk::new(self.disk.clone(), End::Closed, &self.plan, self.rng.fork());
        let Some(engine) = self.open(&disk) else { return };
        let client = self.client(&engine);
        let mut rounds = 0;
        while !self.drain(&client) && engine.failure().is_none() {
            rounds += 1;
            if rounds > ROUNDS_MAX {
                self.find("the queues do not get empty".into());
                break;
            }
            // Longer than any lease or delay, in the end.
            thread::sleep(Duration::from_secs(20));
        }
        self.close(&engine, &disk);
        self.history.lock().unwrap_or_else(PoisonError::into_inner).settle();
    }

    /// Takes and finishes what there is; answers whether nothing is left.
    fn drain(&self, client: &Client) -> bool {
        let mut is_empty = true;
        for queue in 0..self.plan.queues {
            let name = queue_name(queue);
            client.ask(Command::Revive { queue: &name, tasks: None });
            loop {
                let taken = client.take(queue, 1_000, 600_000, None);
                if taken.is_empty() {
                    break;
                }
                client.finish(&taken);
            }
            let info = client.ask(Command::Info { queue: &name });
            is_empty &= info.is_some_and(|replies| match &replies.list[..] {
                [Reply::Info(info)] => info.ready + info.leased + info.delayed + info.dead == 0,
                _ => true,
            });
        }
        is_empty
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, findings, trace, recoveries, commands, plan } = self;
        writeln!(f, "seed {seed}: {commands} commands, {recoveries} starts, {trace:?}")?;
        for finding in findings.iter().take(20) {
            writeln!(f, "  {finding}")?;
        }
        if !findings.is_empty() {
            writeln!(f, "  {} findings; {plan:?}", findings.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds that found something once, each with what it was.
    const FOUND: [(u64, &str); 1] =
        [(7, "a pop that waited could be answered with a payload that was still being read")];

    #[test]
    fn seeds_that_found_something_find_it_no_more() {
        for (seed, what) in FOUND {
            let outcome = run(seed);
            assert!(outcome.findings.is_empty(), "{what}: {outcome}");
        }
    }

    #[test]
    fn the_first_seeds_find_nothing() {
        let outcomes: Vec<Outcome> = (0..60).map(run).collect();
        assert!(outcomes.iter().all(|outcome| outcome.findings.is_empty()), "{outcomes:?}");
        assert!(outcomes.iter().map(|outcome| outcome.recoveries).sum::<u64>() > 100);
    }

    #[test]
    fn a_seed_is_one_run() {
        for seed in 0..20 {
            let (first, second) = (run(seed), run(seed));
            assert_eq!(first.trace, second.trace, "seed {seed}");
        }
    }
}
