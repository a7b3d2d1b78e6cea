//! `sureq-bench`: compares sureq with other queues and with its own goals.
//!
//! * `compare` runs without a subcommand; `report` and `goals` make its tables. docs/understand/benchmarks.md
//!   explains them.
//! * `targets` defines the systems under test, `servers` starts and stops them, `procstat` reads their cost, and
//!   `janitor` cleans up after an interrupted benchmark.
//! * `load` drives producers and consumers, `latency` a single pair, over `connection` with one thread and one epoll;
//!   `client` is one blocking connection.
//! * `dialect` has the same steps in the commands of each system, `resp` encodes and decodes them.
//! * `payload` and `account` check every task, `histogram` counts durations, `tables` formats figures.

mod account;
mod backlog;
mod backlog_report;
mod client;
mod compare;
mod connection;
mod crowd;
mod dialect;
mod disk;
mod fill;
mod flood;
mod footprint;
mod goals;
mod histogram;
mod info;
mod janitor;
mod latency;
mod leased;
mod load;
mod memory;
mod memory_cases;
mod on_redis;
mod payload;
mod procstat;
mod queues;
mod report;
mod resp;
mod restart;
mod servers;
mod stall;
mod stall_report;
mod tables;
mod targets;
mod text;
mod worker;

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use account::Wrong;
use clap::{Parser, Subcommand};
use servers::Installation;

/// Measure sureq: beside redis-server under load, or with a subcommand
#[derive(Parser)]
#[command(version, after_help = HELP, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Measurement>,
    #[command(flatten)]
    compare: compare::Arguments,
}

#[derive(Subcommand)]
enum Measurement {
    /// Measure a backlog: memory, disk, CPU per task, restart; sureq beside Redis, beanstalkd and NATS
    Backlog(backlog::Arguments),
    /// Measure the resident memory per task, against the goals
    Memory(memory::Arguments),
    /// Measure a restart of sureq after kill -9 under load, just before a checkpoint
    Restart(restart::Arguments),
    /// Measure the disk use of sureq beside live data
    Disk(disk::Arguments),
    /// Measure pushes of sureq while it takes checkpoints and compacts, and how much it writes
    Stall(stall::Arguments),
    /// Measure leases: pops with a deadline and a worker, acked by receipt, beside plain ones
    Leased(leased::Arguments),
    /// Measure how long others wait while many tasks are due, or many workers are lost, in the same instant
    Flood(flood::Arguments),
    /// Measure how long another client waits while each command runs, with a million tasks in each state
    Crowd(crowd::Arguments),
    /// Measure a worker on Redis, beside the published crate `redis-work-queue`
    Redis(on_redis::Arguments),
    /// Measure the worker of the library on the embedded home, busy and idle
    Worker(worker::Arguments),
    #[command(name = janitor::COMMAND, hide = true)]
    Janitor,
}

/// Options of every measurement.
#[derive(clap::Args)]
pub(crate) struct Common {
    /// Directory for the data of the servers; it must be on a disk, not in memory [default: the system's directory
    /// for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Path of the sureq to measure [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    sureq: Option<PathBuf>,
    /// Write every run to this file, as a line of JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Common {
    pub(crate) fn place(&self) -> io::Result<Installation> {
        Installation::new(self.sureq.as_deref(), self.dir.as_deref())
    }

    pub(crate) fn journal(&self) -> io::Result<Journal> {
        Ok(Journal(self.json.as_ref().map(File::create).transpose()?))
    }
}

/// The file of `--json`, if there is one.
pub(crate) struct Journal(Option<File>);

impl Journal {
    /// A journal without a file.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Journal(None)
    }

    /// Writes one run as one line.
    pub(crate) fn write(&mut self, line: &str) -> io::Result<()> {
        self.0.as_mut().map_or(Ok(()), |file| writeln!(file, "{line}"))
    }
}

const HELP: &str = "\
Servers: redis, redis-always, sureq-always, sureq-interval, sureq-none, sureq-module
Loads:   single, pipeline, batch, latency

Exit codes:
  0  measured; whether the aims are met is for the tables to say
  1  a task was lost, duplicated, altered, not acked or left over
  2  could not run";

const BROKEN: u8 = 1;
const CANNOT_RUN: u8 = 2;

/// Whether the servers lost, duplicated or altered no task, regardless of their speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Sound,
    Broken,
}

impl Outcome {
    pub(crate) fn of(accounts: impl IntoIterator<Item = Wrong>) -> Self {
        let sound = accounts.into_iter().all(|wrong| wrong.total() == 0);
        if sound { Outcome::Sound } else { Outcome::Broken }
    }
}

/// A task was lost, duplicated or altered, and the measurement cannot continue.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) String);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broken {}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.command {
        None => compare::run(&arguments.compare),
        Some(Measurement::Backlog(arguments)) => backlog::run(arguments),
        Some(Measurement::Memory(arguments)) => memory::run(arguments),
        Some(Measurement::Restart(arguments)) => restart::run(arguments),
        Some(Measurement::Disk(arguments)) => disk::run(arguments),
        Some(Measurement::Stall(arguments)) => stall::run(arguments),
        Some(Measurement::Leased(arguments)) => leased::run(arguments),
        Some(Measurement::Flood(arguments)) => flood::run(arguments),
        Some(Measurement::Crowd(arguments)) => crowd::run(arguments),
        Some(Measurement::Redis(arguments)) => on_redis::run(arguments),
        Some(Measurement::Worker(arguments)) => worker::run(arguments),
        Some(Measurement::Janitor) => janitor::run().map(|()| Outcome::Sound),
    };
    match outcome {
        Ok(Outcome::Sound) => ExitCode::SUCCESS,
        Ok(Outcome::Broken) => ExitCode::from(BROKEN),
        Err(why) if why.is::<Broken>() => {
            eprintln!("sureq-bench: BROKEN: {why}");
            ExitCode::from(BROKEN)
        }
        Err(why) => {
            eprintln!("sureq-bench: {why}");
            ExitCode::from(CANNOT_RUN)
        }
    }
}

/// A number that distinguishes the payloads of this run from those of any other.
pub(crate) fn salt() -> u64 {
    RandomState::new().hash_one(())
}

/// A description of the machine, without which the figures mean nothing.
pub(crate) fn machine() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "Linux {}, {cores} cores of {}",
        kernel.trim(),
        model.map_or("an unknown kind", |(_, name)| name.trim())
    )
}
