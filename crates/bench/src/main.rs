//! `sureq-bench`: sureq and redis-server under the same load, side by side.
//!
//! * `servers` starts and stops what is measured, `procstat` reads what it costs.
//! * `load` drives producers and consumers, `latency` a single pair; both over `connection`, one thread and one epoll.
//! * `dialect` says the same three steps in either server's words, `resp` puts them on the wire.
//! * `payload` and `ledger` hold the server to account, `histogram` counts durations.
//! * `report` and `goals` make the tables. docs/benchmarks.md explains them.

mod connection;
mod dialect;
mod goals;
mod histogram;
mod latency;
mod ledger;
mod load;
mod payload;
mod procstat;
mod report;
mod resp;
mod servers;

use std::error::Error;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use load::{SHAPES, Shape};
use report::{LATENCY, Run};
use servers::{Place, Target};

/// Measure sureq beside redis-server: CPU per task, throughput, latency
#[derive(Parser)]
#[command(version, after_help = HELP)]
struct Arguments {
    /// How often everything is repeated; the tables show medians
    #[arg(long, value_name = "N", default_value_t = 5)]
    reps: usize,
    /// How long one run takes, about
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    /// Tasks per second of the latency measurement
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// One repetition of half a second each, to see that everything works; the figures mean little
    #[arg(long, conflicts_with_all = ["reps", "seconds"])]
    quick: bool,
    /// Only these servers and loads (see below); sureq-interval is measured only when named
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Where the servers keep their data while they run; it must be on a disk, not in memory [default: the system's
    /// directory for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The sureq to measure [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    sureq: Option<PathBuf>,
    /// Keep every run as a line of JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const HELP: &str = "\
Servers: redis, redis-always, sureq-always, sureq-interval, sureq-none
Loads:   single, pipeline, batch, latency

Exit codes:
  0  measured; whether the aims are met is for the tables to say
  1  a task was lost, duplicated, altered, not acked or left over
  2  could not run";

const BROKEN: u8 = 1;
const CANNOT_RUN: u8 = 2;

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(runs) if runs.iter().any(|run| run.measured.wrong.total() > 0) => ExitCode::from(BROKEN),
        Ok(_) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("sureq-bench: {why}");
            ExitCode::from(CANNOT_RUN)
        }
    }
}

fn measure(arguments: &Arguments) -> Result<Vec<Run>, Box<dyn Error>> {
    let plan = Plan::new(arguments)?;
    let versions = plan.place.check(&plan.targets)?;
    let mut json = arguments.json.as_ref().map(File::create).transpose()?;
    let mut runs = Vec::new();
    for repetition in 1..=plan.repetitions {
        for &load in &plan.loads {
            for &target in &plan.targets {
                let run = plan.run(repetition, load, target)?;
                if let Some(file) = &mut json {
                    writeln!(file, "{}", run.json())?;
                }
                runs.push(run);
            }
        }
    }
    let seconds = plan.aim.as_secs_f64();
    println!(
        "{}; {}. Medians of {} runs of {seconds} s each.\n",
        machine(),
        versions.join(", "),
        plan.repetitions
    );
    print!("{}", report::render(&runs, plan.rate));
    Ok(runs)
}

/// A measurement that can be named on the command line.
#[derive(Clone, Copy)]
enum Load {
    Shape(Shape),
    Latency,
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Load::Shape(shape) => shape.name,
            Load::Latency => LATENCY,
        }
    }
}

/// What is meant by what was typed.
struct Plan {
    repetitions: usize,
    aim: Duration,
    rate: u32,
    loads: Vec<Load>,
    targets: Vec<Target>,
    place: Place,
}

impl Plan {
    fn new(arguments: &Arguments) -> Result<Self, Box<dyn Error>> {
        let mut targets = Target::ALL.to_vec();
        let mut loads: Vec<Load> = SHAPES.map(Load::Shape).into_iter().chain([Load::Latency]).collect();
        let named = |name: &str| arguments.only.iter().any(|only| only == name);
        for only in &arguments.only {
            if !targets.iter().any(|target| target.name() == only)
                && !loads.iter().any(|load| load.name() == only)
            {
                return Err(format!("--only {only}: no such server or load; --help lists them").into());
            }
        }
        if targets.iter().any(|target| named(target.name())) {
            targets.retain(|target| named(target.name()));
        } else {
            targets.retain(|target| *target != Target::SureqInterval);
        }
        if loads.iter().any(|load| named(load.name())) {
            loads.retain(|load| named(load.name()));
        }
        let (repetitions, seconds) =
            if arguments.quick { (1, 0.5) } else { (arguments.reps, arguments.seconds) };
        if repetitions == 0 || !(0.1..=3600.0).contains(&seconds) {
            return Err("--reps is at least 1, --seconds between 0.1 and 3600".into());
        }
        let sureq = match &arguments.sureq {
            // The servers run in directories of their own, where a relative path would lead nowhere.
            Some(path) => std::path::absolute(path)?,
            None => std::env::current_exe()?.with_file_name("sureq"),
        };
        let directory = std::path::absolute(arguments.dir.clone().unwrap_or_else(std::env::temp_dir))?;
        let place = Place { sureq, directory };
        let aim = Duration::from_secs_f64(seconds);
        Ok(Plan { repetitions, aim, rate: arguments.rate, loads, targets, place })
    }

    fn run(&self, repetition: usize, load: Load, target: Target) -> Result<Run, Box<dyn Error>> {
        let (total, name) = (self.repetitions, load.name());
        eprint!("{repetition}/{total} {name:<8} {:<14} ", target.name());
        let explain = |why| format!("{} under {name}: {why}", target.name());
        let salt = RandomState::new().hash_one(repetition);
        let server = self.place.start(target)?;
        let measured = match load {
            Load::Shape(shape) => load::run(&server, shape, self.aim, salt),
            Load::Latency => latency::run(&server, self.rate, self.aim, salt),
        };
        let run = Run { repetition, load: name, target, measured: measured.map_err(explain)? };
        let figures = run.figures();
        eprintln!(
            "{:>7.2} µs/task {:>8.0} tasks/s  p50 {:>6.0} µs  p99 {:>6.0} µs",
            figures.server_us_per_task, figures.tasks_per_second, figures.p50_us, figures.p99_us
        );
        Ok(run)
    }
}

/// The machine, in a few words: figures without it are worth nothing.
fn machine() -> String {
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
