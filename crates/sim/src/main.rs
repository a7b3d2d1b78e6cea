//! Simulates the embedded system: the real engine on simulated threads, a simulated clock and a simulated disk, with clients,
//! crashes and faults that one seed decides. The same seed gives the same run.
//!
//! * `plan` draws what a seed does: settings, sizes, which commands, which faults.
//! * `disk` is the disk with its delays, faults and the crash.
//! * `client` is one client; `history` is what all of them were promised, and what contradicts it.
//! * `world` runs a seed: lives of the store, one after the other, and a last one without faults.
#![forbid(unsafe_code)]

mod client;
mod disk;
mod history;
mod plan;
mod world;

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;

/// Simulate the embedded system from seeds
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Run this seed, twice, and compare the two runs
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "minutes"])]
    seed: Option<u64>,
    /// Run so many seeds
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    seeds: Option<u64>,
    /// Run seeds for so long
    #[arg(long, value_name = "M", default_value_t = 1)]
    minutes: u64,
    /// The first seed [default: by chance]
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// How many seeds run at the same time, each on a core
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: u64,
}

/// What all seeds did together.
#[derive(Default)]
struct Sums {
    seeds: AtomicU64,
    recoveries: AtomicU64,
    commands: AtomicU64,
    simulated_ms: AtomicU64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.seed {
        Some(seed) => run_twice(seed),
        None => run_many(&arguments),
    }
}

fn run_twice(seed: u64) -> ExitCode {
    let (first, second) = (world::run(seed), world::run(seed));
    println!("{first}");
    if first.trace != second.trace {
        println!("seed {seed} is not deterministic: {:?} and then {:?}", first.trace, second.trace);
        return ExitCode::FAILURE;
    }
    if first.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
                    if n >= count || is_over() {
                        break;
                    }
                    let outcome = world::run(from.wrapping_add(n));
                    sums.add(&outcome);
                    if !outcome.findings.is_empty() {
                        println!("{outcome}");
                        failed.lock().expect("nobody panics with it").push(from.wrapping_add(n));
                    }
                }
            });
        }
    });
    sums.print(began.elapsed());
    let failed = failed.into_inner().expect("nobody panics with it");
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
        self.simulated_ms.fetch_add(outcome.trace.time.as_millis() as u64, Ordering::Relaxed);
    }

    fn print(&self, took: Duration) {
        let [seeds, recoveries, commands, ms] =
            [&self.seeds, &self.recoveries, &self.commands, &self.simulated_ms]
                .map(|sum| sum.load(Ordering::Relaxed));
        let (seconds, hours) = (took.as_secs(), ms / 3_600_000);
        println!(
            "{seeds} seeds in {seconds} s: {hours} simulated hours, {recoveries} recoveries, {commands} commands"
        );
    }
}
