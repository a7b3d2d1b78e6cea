//! `sureq bench`: measures a home, alone or beside another one.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use serde_json::json;
use sureq::{Home, Queue, limits};

use super::error::{CommandError, CommandResult};
use super::output::{Column, Output};
use super::{Common, Make};
use crate::format::number;
use crate::progress::Bar;

/// Limits that keep a run finite and a batch within one command.
const TASKS_MAX: u64 = 1_000_000_000_000;
const CLIENTS_MAX: u64 = 10_000;
const BATCH_MAX: i64 = limits::PUSH_TASKS_MAX.cast_signed() as i64;
const ROUNDS_MAX: u64 = 1_000;

#[derive(Args)]
#[command(after_help = "\
Each phase pushes, pops and acks with --clients concurrent clients, in a queue of its own that is removed
afterwards. With --against the same load runs on both homes in turns, and the ratios of the medians are printed.

Examples:
  sureq bench --home file:./bench-data
  sureq bench --against redis://127.0.0.1:6379 --tasks 50000")]
pub(crate) struct BenchArguments {
    /// Compare with this home
    #[arg(long, value_name = "URL")]
    against: Option<String>,
    /// Tasks per phase and round
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = value_parser!(u64).range(1..=TASKS_MAX))]
    tasks: u64,
    /// Number of concurrent clients
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = value_parser!(u64).range(1..=CLIENTS_MAX))]
    clients: u64,
    /// Tasks in a batch
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value_parser!(u32).range(1..=BATCH_MAX))]
    batch: u32,
    /// Size of a payload in bytes
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u64).range(..=limits::PAYLOAD_BYTES_MAX as u64))]
    payload: u64,
    /// Number of rounds; the median is printed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u64).range(1..=ROUNDS_MAX))]
    rounds: u64,
    #[command(flatten)]
    common: Common,
}

/// A measured operation.
#[derive(Clone, Copy)]
struct Phase {
    name: &'static str,
    kind: Kind,
    is_batch: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    Push,
    PopAck,
}

const PHASES: [Phase; 4] = [
    Phase { name: "push, one at a time", kind: Kind::Push, is_batch: false },
    Phase { name: "pop and ack, one at a time", kind: Kind::PopAck, is_batch: false },
    Phase { name: "push, in batches", kind: Kind::Push, is_batch: true },
    Phase { name: "pop and ack, in batches", kind: Kind::PopAck, is_batch: true },
];

pub(crate) fn run(arguments: &BenchArguments) -> ExitCode {
    arguments.common.run(Make::Briefly, |home, output| bench(arguments, home, output))
}

async fn bench(arguments: &BenchArguments, home: Home, mut output: Output) -> CommandResult {
    let mut homes = vec![(&arguments.common.home, home)];
    if let Some(url) = &arguments.against {
        homes.push((url, sureq::open(url).map_err(CommandError::Open)?));
    }
    let total = arguments.rounds * (homes.len() * PHASES.len()) as u64 * arguments.tasks;
    let bar = Bar::of(total, "tasks");
    let mut rates = vec![vec![Vec::new(); PHASES.len()]; homes.len()];
    let mut done = 0;
    for _ in 0..arguments.rounds {
        for (at, (_, home)) in homes.iter().enumerate() {
            let queue = home.queue(format!("sureq-bench-{}", std::process::id()));
            for (phase, rates) in PHASES.iter().zip(&mut rates[at]) {
                let time = measure(arguments, *phase, &queue).await;
                if time.is_err() {
                    // The first error is the one to report.
                    let _ = home.drop_queues(&[queue.name_bytes()]).await;
                }
                rates.push(per_second(arguments.tasks, time?));
                done += arguments.tasks;
                bar.at(done);
            }
            home.drop_queues(&[queue.name_bytes()]).await?;
        }
    }
    drop(bar);
    let medians: Vec<Vec<u64>> =
        rates.into_iter().map(|phases| phases.into_iter().map(median).collect()).collect();
    let urls: Vec<String> = homes.iter().map(|(url, _)| sureq::without_passwords(url)).collect();
    write_rates(&urls, &medians, &mut output)?;
    for (_, other) in homes.drain(1..) {
        other.close().map_err(CommandError::Broken)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a phase with all clients and returns its duration.
async fn measure(arguments: &BenchArguments, phase: Phase, queue: &Queue) -> Result<Duration, CommandError> {
    let batch = if phase.is_batch { arguments.batch } else { 1 };
    let clients = arguments.clients;
    let began = Instant::now();
    let mut asking = tokio::task::JoinSet::new();
    for client in 0..clients {
        // The first clients take the remainder.
        let share = arguments.tasks / clients + u64::from(client < arguments.tasks % clients);
        let (queue, payload) = (queue.clone(), vec![b'x'; arguments.payload as usize]);
        asking.spawn(async move {
            match phase.kind {
                Kind::Push => push(&queue, &payload, share, batch).await,
                Kind::PopAck => pop_and_ack(&queue, share, batch).await,
            }
        });
    }
    while let Some(ended) = asking.join_next().await {
        ended.map_err(|error| CommandError::System(error.into()))??;
    }
    Ok(began.elapsed())
}

async fn push(queue: &Queue, payload: &[u8], mut left: u64, batch: u32) -> Result<(), sureq::Error> {
    while left > 0 {
        let n = left.min(batch.into());
        queue.push_all((0..n).map(|_| payload)).await?;
        left -= n;
    }
    Ok(())
}

async fn pop_and_ack(queue: &Queue, mut left: u64, batch: u32) -> Result<(), sureq::Error> {
    while left > 0 {
        let n = u32::try_from(left).unwrap_or(u32::MAX).min(batch);
        let tasks = queue.pop_many(n).await?;
        if tasks.is_empty() {
            // The other clients took the rest.
            return Ok(());
        }
        queue.ack_all(tasks.iter().map(sureq::Task::receipt)).await?;
        left -= tasks.len() as u64;
    }
    Ok(())
}

fn per_second(tasks: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(tasks) * 1_000_000_000 / time.as_nanos().max(1)).unwrap_or(u64::MAX)
}

fn median(mut rates: Vec<u64>) -> u64 {
    rates.sort_unstable();
    rates[rates.len() / 2]
}

fn write_rates(urls: &[String], medians: &[Vec<u64>], output: &mut Output) -> Result<(), CommandError> {
    let fastest = medians.iter().flatten().copied().max().unwrap_or(1);
    for (at, phase) in PHASES.iter().enumerate() {
        let rates: Vec<u64> = medians.iter().map(|phases| phases[at]).collect();
        let ratio = rates.get(1).map(|&other| ratio(rates[0], other));
        if output.is_json() {
            output.object([
                ("phase", json!(phase.name)),
                ("per_second", json!(rates[0])),
                ("against_per_second", json!(rates.get(1))),
                ("ratio", json!(ratio)),
            ])?;
            continue;
        }
        output.line(phase.name)?;
        let rows = urls.iter().zip(&rates).enumerate().map(|(home, (url, &rate))| {
            let ratio = ratio.filter(|_| home == 0).map(|ratio| format!("{ratio:.2} ×"));
            vec![format!("  {url}"), number(rate), bar_of(rate, fastest), ratio.unwrap_or_default()]
        });
        let ratio_head = if urls.len() > 1 { "ratio" } else { "" };
        let columns =
            [Column::Text("  home"), Column::Number("tasks/s"), Column::Text(""), Column::Text(ratio_head)];
        output.table(&columns, rows.collect())?;
    }
    output.flush()
}

/// Rounded down to thousandths.
fn ratio(a: u64, b: u64) -> f64 {
    let thousandths = u32::try_from(a.saturating_mul(1_000) / b.max(1)).unwrap_or(u32::MAX);
    f64::from(thousandths) / 1_000.0
}

/// A bar of up to thirty blocks.
fn bar_of(rate: u64, fastest: u64) -> String {
    "█".repeat((rate * 30 / fastest.max(1)).clamp(1, 30) as usize)
}
