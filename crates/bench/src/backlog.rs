//! Measures a backlog on every system: memory, disk, CPU per further task, and the time of a restart.
//!
//! A server is filled, and becomes idle. Then tasks pass through it while the backlog keeps its length: each is
//! pushed at the back, and for each the oldest is popped and acked. Then the server is killed and restarted.

use std::error::Error;
use std::time::{Duration, Instant};

use crate::account::Account;
use crate::backlog_report::{self, Row};
use crate::fill::{First, drain, fill, first_pop};
use crate::load::{self, LoadShape, Measured, SHAPES};
use crate::procstat::{self, Memory};
use crate::servers::{Installation, Server};
use crate::tables::{count, parse_count, short};
use crate::targets::{Program, Target};
use crate::{Common, Outcome, footprint, machine, salt};

/// Options of `backlog`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Lengths of the backlog
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values = ["0", "10k", "1M", "10M"], value_parser = parse_count)]
    sizes: Vec<u64>,
    /// Only these systems: sureq-always, sureq-none, redis-lists, redis-streams, beanstalkd, nats; sureq-interval is
    /// measured only when named
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Number of repetitions; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 3)]
    reps: usize,
    /// Approximate duration of each of the two loads
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// Drop the page cache of the kernel before each load (as root)
    #[arg(long)]
    cold: bool,
    /// Pop and compare the whole backlog at the end if it is at most this long; a longer one is only counted
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    drain: u64,
    #[command(flatten)]
    common: Common,
}

/// The loads: one command at a time, and batches.
pub(crate) const LOADS: [LoadShape; 2] = [SHAPES[0], SHAPES[2]];
/// The time limit for a server to become idle after it was filled.
const REST: Duration = Duration::from_secs(60);

/// Runs the measurement and prints the table.
pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Box<dyn Error>> {
    let targets = targets(&arguments.only)?;
    if arguments.reps == 0 || !(0.1..=3600.0).contains(&arguments.seconds) {
        return Err("--reps must be at least 1, --seconds between 0.1 and 3600".into());
    }
    let place = arguments.common.place()?;
    let versions = place.check(&targets)?;
    let mut journal = arguments.common.journal()?;
    let mut rows = Vec::new();
    for repetition in 1..=arguments.reps {
        for &size in &arguments.sizes {
            for &target in &targets {
                eprint!("{repetition}/{} {:<5} {:<14} ", arguments.reps, short(size), target.name());
                let row = measure(arguments, &place, target, size)
                    .map_err(|why| format!("{} with {} waiting: {why}", target.name(), short(size)))?;
                eprintln!("{}", row.progress());
                journal.write(&row.json(repetition))?;
                rows.push(row);
            }
        }
    }
    println!("{}; {}. Medians of {} runs.\n", machine(), versions.join(", "), arguments.reps);
    print!("{}", backlog_report::render(&rows, &targets, &arguments.sizes));
    // Errors of other systems are in the table; only those of sureq fail the run.
    let own = rows.iter().filter(|row| row.target.program() == Program::Sureq);
    Ok(Outcome::of(own.map(|row| row.wrong)))
}

fn targets(only: &[String]) -> Result<Vec<Target>, String> {
    let mut targets = Target::KEEPING.to_vec();
    if let Some(wrong) = only.iter().find(|name| !targets.iter().any(|target| target.name() == **name)) {
        return Err(format!("--only {wrong}: no such system; --help lists them"));
    }
    targets.retain(|target| {
        if only.is_empty() {
            *target != Target::SureqInterval
        } else {
            only.iter().any(|name| target.name() == name)
        }
    });
    Ok(targets)
}

fn measure(
    arguments: &Arguments,
    place: &Installation,
    target: Target,
    size: u64,
) -> Result<Row, Box<dyn Error>> {
    let mut server = place.start(target)?;
    let mut account = Account::new(salt());
    let empty = procstat::memory(server.pid())?;
    let start = Instant::now();
    fill(&server, &mut account, size)?;
    let filled_per_second = count(size) / start.elapsed().as_secs_f64();
    server.rest(REST)?;
    let memory = procstat::memory(server.pid())?;
    let disk = footprint::of_server(server.directory())?;
    eprint!("{:>6.1} MB  ", count(memory.resident) / 1e6);
    let loads = loads(arguments, &server, &mut account)?;
    let restart = restart(&mut server, &mut account)?;
    let drained = if account.backlog <= arguments.drain {
        let left = account.backlog;
        drain(&server, &mut account, left)?
    } else {
        0
    };
    let mut wrong = account.close(server.count()?);
    // Each load closes its own view of the same account, so that only new leftovers count.
    wrong.left += loads.iter().map(|load| load.wrong.left).sum::<u64>();
    Ok(Row { target, size, empty, memory, disk, filled_per_second, loads, restart, drained, wrong })
}

fn loads(
    arguments: &Arguments,
    server: &Server,
    account: &mut Account,
) -> Result<[Measured; 2], Box<dyn Error>> {
    let aim = Duration::from_secs_f64(arguments.seconds);
    let mut one = |shape| {
        if arguments.cold {
            procstat::drop_page_cache()?;
        }
        load::run(server, shape, aim, account)
    };
    Ok([one(LOADS[0])?, one(LOADS[1])?])
}

/// The duration of a restart, and the resident memory after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restart {
    pub(crate) warm: Duration,
    /// `None` if the page cache may not be dropped.
    pub(crate) cold: Option<Duration>,
    pub(crate) memory: Memory,
}

/// Kills the server twice and measures the time from exec to the first task, with a warm and with a cold page cache.
fn restart(server: &mut Server, account: &mut Account) -> Result<Restart, Box<dyn Error>> {
    // A pop needs a task, also in an empty queue, and another one after the second restart.
    let missing = 2_u64.saturating_sub(account.backlog);
    fill(server, account, missing)?;
    server.rest(REST)?;
    server.kill()?;
    let started = server.exec()?;
    let warm = first_pop(server, account, started, First::Finish)?;
    server.rest(REST)?;
    let memory = procstat::memory(server.pid())?;
    server.kill()?;
    let dropped = procstat::drop_page_cache();
    let started = server.exec()?;
    let cold = first_pop(server, account, started, First::Finish)?;
    if let Err(why) = &dropped {
        eprint!("({why}) ");
    }
    Ok(Restart { warm, cold: dropped.is_ok().then_some(cold), memory })
}
