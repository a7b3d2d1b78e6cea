//! The comparison under load: sureq and Redis take turns with each load, and the report shows medians.

use std::error::Error;
use std::time::Duration;

use crate::account::Account;
use crate::load::{LoadShape, SHAPES};
use crate::report::{self, LATENCY, Run};
use crate::servers::Installation;
use crate::targets::Target;
use crate::{Common, Outcome, latency, load, machine, salt};

/// The options of the comparison.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of repetitions; the tables show medians
    #[arg(long, value_name = "N", default_value_t = 5)]
    reps: usize,
    /// Approximate duration of one run
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    /// Tasks per second of the latency measurement
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// One repetition of half a second each, to test that everything works; the figures mean little
    #[arg(long, conflicts_with_all = ["reps", "seconds"])]
    quick: bool,
    /// Only these servers and loads (see below); sureq-interval and sureq-module are measured only when named
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Runs the measurement and prints the tables.
pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Box<dyn Error>> {
    let plan = Plan::new(arguments)?;
    let versions = plan.place.check(&plan.targets)?;
    let mut json = arguments.common.journal()?;
    let mut runs = Vec::new();
    for repetition in 1..=plan.repetitions {
        for &load in &plan.loads {
            for &target in &plan.targets {
                let run = plan.run(repetition, load, target)?;
                json.write(&run.json())?;
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
    Ok(Outcome::of(runs.iter().map(|run| run.measured.wrong)))
}

/// A measurement, by its name on the command line.
#[derive(Clone, Copy)]
enum Load {
    Shape(LoadShape),
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

/// The parsed arguments.
struct Plan {
    repetitions: usize,
    aim: Duration,
    rate: u32,
    loads: Vec<Load>,
    targets: Vec<Target>,
    place: Installation,
}

impl Plan {
    fn new(arguments: &Arguments) -> Result<Self, Box<dyn Error>> {
        let mut targets = Target::COMPARED.to_vec();
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
            targets.retain(|target| !Target::ON_DEMAND.contains(target));
        }
        if loads.iter().any(|load| named(load.name())) {
            loads.retain(|load| named(load.name()));
        }
        let (repetitions, seconds) =
            if arguments.quick { (1, 0.5) } else { (arguments.reps, arguments.seconds) };
        if repetitions == 0 || !(0.1..=3600.0).contains(&seconds) {
            return Err("--reps must be at least 1, --seconds between 0.1 and 3600".into());
        }
        let place = arguments.common.place()?;
        let aim = Duration::from_secs_f64(seconds);
        Ok(Plan { repetitions, aim, rate: arguments.rate, loads, targets, place })
    }

    fn run(&self, repetition: usize, load: Load, target: Target) -> Result<Run, Box<dyn Error>> {
        let (total, name) = (self.repetitions, load.name());
        eprint!("{repetition}/{total} {name:<8} {:<14} ", target.name());
        let explain = |why| format!("{} under {name}: {why}", target.name());
        let server = self.place.start(target)?;
        let measured = match load {
            Load::Shape(shape) => load::run(&server, shape, self.aim, &mut Account::new(salt())),
            Load::Latency => latency::run(&server, self.rate, self.aim, salt()),
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
