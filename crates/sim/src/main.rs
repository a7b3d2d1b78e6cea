//! Simulates the embedded system: the real engine on simulated threads, a simulated clock and a simulated disk, with
//! clients, crashes and faults that one seed decides. The same seed gives the same run.
//!
//! * `plan` draws the plan of a run from a seed: settings, sizes, commands, faults.
//! * `disk` is the disk with its delays, faults and the crash; `clock` has the clocks.
//! * `client` is one client; `pattern` has its sequences of commands, and `holder` its worker and its connection,
//!   with the tasks they hold. `history` records the replies to all clients, and reports contradictions between them.
//! * `states` records the states of the store, for comparison with the recovered ones.
//! * `world` runs a plan: lives of the store, one after the other, and a last one without faults, in which all tasks
//!   are popped and acked, and `liveness` checks that waiting clients are woken.
//! * `shrink` reduces a run with a finding, and `found` stores it.
#![forbid(unsafe_code)]

mod client;
mod clock;
mod disk;
mod found;
mod history;
mod holder;
mod liveness;
mod pattern;
mod plan;
mod shrink;
mod states;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;

use plan::Plan;
use world::Outcome;

/// Simulate the embedded system from seeds
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Run this seed, twice, and compare the two runs
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "minutes", "file"])]
    seed: Option<u64>,
    /// Run the plan in a file, such as those in crates/sim/found, twice, and compare the two runs
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "minutes"])]
    file: Option<PathBuf>,
    /// The number of seeds to run
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    seeds: Option<u64>,
    /// How long to run seeds, in minutes
    #[arg(long, value_name = "M", default_value_t = 1)]
    minutes: u64,
    /// The first seed [default: random]
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Stop at the first seed that finds something, and do not reduce it
    #[arg(long)]
    first: bool,
    /// The number of seeds that run at the same time, each on a core
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: u64,
}

const UNPOISONED: &str = "no thread panics with this lock";

/// Totals of all seeds.
#[derive(Default)]
struct Sums {
    seeds: AtomicU64,
    recoveries: AtomicU64,
    commands: AtomicU64,
    compared: AtomicU64,
    simulated_ms: AtomicU64,
    surplus: AtomicU64,
    released: AtomicU64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        return run_twice(&Plan::draw(seed));
    }
    match arguments.file.as_deref().map(found::read) {
        Some(Ok(plan)) => run_twice(&plan),
        Some(Err(error)) => {
            eprintln!("cannot read the file: {error}");
            ExitCode::from(2)
        }
        None => run_many(&arguments),
    }
}

fn run_twice(plan: &Plan) -> ExitCode {
    let (first, second) = (world::run(plan), world::run(plan));
    println!("{first}");
    if first.trace != second.trace {
        println!("seed {} is not deterministic: {:?} and then {:?}", plan.seed, first.trace, second.trace);
        return ExitCode::FAILURE;
    }
    if first.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Reports a run that found something, reduces it and stores it.
fn report(outcome: Outcome) {
    println!("{outcome}");
    let smallest = shrink::shrink(outcome);
    println!("reduced: {smallest}");
    match found::keep(&smallest) {
        Ok(path) => println!("stored in {}", path.display()),
        Err(error) => println!("cannot store the run: {error}\n{:?}", smallest.plan),
    }
}

fn run_many(arguments: &Arguments) -> ExitCode {
    let from = arguments.from.unwrap_or_else(|| fastrand::u64(..1 << 48));
    let count = arguments.seeds.unwrap_or(u64::MAX);
    let until = Instant::now() + Duration::from_secs(60 * arguments.minutes);
    let is_over = || arguments.seeds.is_none() && Instant::now() >= until;
    println!("seeds from {from}");
    let (next, sums, failed) = (AtomicU64::new(0), Sums::default(), Mutex::new(Vec::new()));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let is_found = || !failed.lock().expect(UNPOISONED).is_empty();
                    if n >= count || is_over() || arguments.first && is_found() {
                        break;
                    }
                    let outcome = world::run(&Plan::draw(from.wrapping_add(n)));
                    sums.add(&outcome);
                    if !outcome.findings.is_empty() {
                        if arguments.first {
                            println!("{outcome}");
                        } else {
                            report(outcome);
                        }
                        failed.lock().expect(UNPOISONED).push(from.wrapping_add(n));
                    }
                }
            });
        }
    });
    sums.print(began.elapsed());
    let failed = failed.into_inner().expect(UNPOISONED);
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("seeds that failed: {failed:?}; run one with --seed N");
    ExitCode::FAILURE
}

impl Sums {
    fn add(&self, outcome: &world::Outcome) {
        self.seeds.fetch_add(1, Ordering::Relaxed);
        self.recoveries.fetch_add(outcome.recoveries, Ordering::Relaxed);
        self.commands.fetch_add(outcome.commands, Ordering::Relaxed);
        self.compared.fetch_add(outcome.compared, Ordering::Relaxed);
        self.simulated_ms.fetch_add(outcome.trace.time.as_millis() as u64, Ordering::Relaxed);
        self.surplus.fetch_max(outcome.held.surplus, Ordering::Relaxed);
        self.released.fetch_max(outcome.held.released as u64, Ordering::Relaxed);
    }

    fn print(&self, took: Duration) {
        let [seeds, recoveries, commands, compared, ms] =
            [&self.seeds, &self.recoveries, &self.commands, &self.compared, &self.simulated_ms]
                .map(|sum| sum.load(Ordering::Relaxed));
        let [surplus, released] = [&self.surplus, &self.released].map(|most| most.load(Ordering::Relaxed));
        let (seconds, hours) = (took.as_secs(), ms / 3_600_000);
        println!(
            "{seeds} seeds in {seconds} s: {hours} simulated hours, {recoveries} recoveries ({compared} compared), {commands} commands"
        );
        println!("at most under one lock: {surplus} surplus steps, {released} payloads released");
    }
}
