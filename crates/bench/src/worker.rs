//! Measures the worker: empty tasks on the embedded home in one process, and an idle worker.

use std::error::Error;
use std::future::pending;
use std::time::{Duration, Instant};

use sureq::{Durability, Home, Options, Worker};

use crate::procstat::cpu_time;
use crate::tables::{count, median, micros, table};
use crate::{Common, Outcome, machine};

/// Options of `worker`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of repetitions; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 5)]
    reps: usize,
    /// Number of tasks in each run
    #[arg(long, value_name = "N", default_value_t = 300_000)]
    tasks: usize,
    /// Number of concurrent handlers
    #[arg(long, value_name = "N", default_value_t = 64)]
    concurrency: usize,
    /// Seconds for which a worker without tasks is observed
    #[arg(long, value_name = "N", default_value_t = 10)]
    idle: u64,
    #[command(flatten)]
    common: Common,
}

const QUEUE: &str = "bench";
/// The number of tasks that are pushed at once.
const FILL: usize = 1_000;
/// The levels, with their aims in tasks per second.
const LEVELS: [(Durability, &str, f64); 2] =
    [(Durability::None, "none", 150_000.0), (Durability::Always, "always", 60_000.0)];

/// The cost of one run.
struct Run {
    level: &'static str,
    per_second: f64,
    /// CPU of the whole process per task, in microseconds.
    cpu: f64,
}

/// Runs the measurement and prints the table.
pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Box<dyn Error>> {
    let mut journal = arguments.common.journal()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(cores).enable_all().build()?;
    let mut runs = Vec::new();
    for repetition in 1..=arguments.reps.max(1) {
        for (durability, level, _) in LEVELS {
            let run = runtime.block_on(measure(arguments, durability, level))?;
            eprintln!("{repetition}/{} {level:<8} {:>8.0} tasks/s", arguments.reps, run.per_second);
            journal.write(&run.json())?;
            runs.push(run);
        }
    }
    let idle = runtime.block_on(idle(arguments))?;
    println!(
        "{}. {} handlers; medians of {} runs of {} tasks.\n",
        machine(),
        arguments.concurrency,
        arguments.reps,
        arguments.tasks
    );
    print!("{}", render(&runs));
    println!("\nIdle for {} s: {:.1} ms of CPU.", arguments.idle, micros(idle) / 1_000.0);
    Ok(Outcome::Sound)
}

/// A home in a new directory, which is removed when the returned guard is dropped.
fn home(arguments: &Arguments, durability: Durability) -> Result<(tempfile::TempDir, Home), Box<dyn Error>> {
    let dir = match &arguments.common.dir {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let options = Options { durability, ..Options::default() };
    let home = sureq::open_with(&format!("file:{}", dir.path().display()), &options)?;
    Ok((dir, home))
}

async fn measure(
    arguments: &Arguments,
    durability: Durability,
    level: &'static str,
) -> Result<Run, Box<dyn Error>> {
    let (_dir, home) = home(arguments, durability)?;
    let (tasks, queue) = (arguments.tasks.max(1), home.queue(QUEUE));
    for first in (0..tasks).step_by(FILL) {
        queue.push_all(vec![""; FILL.min(tasks - first)]).await?;
    }
    let worker = Worker::new(&home).concurrency(arguments.concurrency).work(QUEUE, async || ());
    let handle = worker.handle();
    let (since, cpu) = (Instant::now(), cpu_time(std::process::id())?);
    let running = tokio::spawn(worker.run_until(pending()));
    let done = || handle.status().map_or(0, |status| status.tally.done);
    while done() < tasks as u64 && !running.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (elapsed, cpu) = (since.elapsed(), cpu_time(std::process::id())?.saturating_sub(cpu));
    handle.stop();
    let tally = running.await??;
    home.close()?;
    if (tally.taken, tally.done) != (tasks as u64, tasks as u64) {
        return Err(crate::Broken(format!("{tasks} tasks were pushed: {tally:?}")).into());
    }
    let tasks = count(tasks as u64);
    Ok(Run { level, per_second: tasks / elapsed.as_secs_f64(), cpu: micros(cpu) / tasks })
}

/// The CPU time of a worker that waits for tasks.
async fn idle(arguments: &Arguments) -> Result<Duration, Box<dyn Error>> {
    let (_dir, home) = home(arguments, Durability::Always)?;
    let worker = Worker::new(&home).concurrency(arguments.concurrency).work(QUEUE, async || ());
    let handle = worker.handle();
    let running = tokio::spawn(worker.run_until(pending()));
    home.queue(QUEUE).push("").await?;
    while handle.status().is_none_or(|status| status.tally.done == 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let cpu = cpu_time(std::process::id())?;
    tokio::time::sleep(Duration::from_secs(arguments.idle)).await;
    let used = cpu_time(std::process::id())?.saturating_sub(cpu);
    handle.stop();
    running.await??;
    home.close()?;
    Ok(used)
}

impl Run {
    fn json(&self) -> String {
        let Run { level, per_second, cpu } = self;
        format!("{{\"durability\":\"{level}\",\"per_second\":{per_second:.1},\"cpu_us\":{cpu:.3}}}")
    }
}

fn render(runs: &[Run]) -> String {
    let rows = LEVELS.map(|(_, level, aim)| {
        let of = |figure: fn(&Run) -> f64| {
            median(runs.iter().filter(|run| run.level == level).map(figure).collect()).unwrap_or(f64::NAN)
        };
        vec![
            format!("`{level}`"),
            format!("{:.0}", of(|run| run.per_second)),
            format!("{aim:.0}"),
            format!("{:.1}", of(|run| run.cpu)),
        ]
    });
    table(&["durability", "tasks/s", "aim", "CPU per task, µs"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_short_run_counts_all_its_tasks() {
        let common = Common { dir: None, sureq: None, json: None };
        let arguments = Arguments { reps: 1, tasks: 500, concurrency: 4, idle: 0, common };
        let run = measure(&arguments, Durability::None, "none").await.unwrap();
        assert!(run.per_second > 0.0 && render(&[run]).contains("150000"));
    }
}
