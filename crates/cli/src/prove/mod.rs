//! `sureq prove`: crashes a server and its workers on the user's own disk, under load, and counts lost tasks.
//!
//! * `stage` starts and kills the processes; `worker` is one of them. `producer` pushes.
//! * `sureq-history` checks the requests and replies of producers and workers: the verdict.

mod producer;
mod stage;
mod worker;

use std::error::Error;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use sureq::{Home, Info};
use sureq_history::{Counts, Findings, SharedHistory};

use crate::exit::{self, failed};
use crate::format::{many, number};
use crate::progress::ProgressLine;
use crate::settings::ServeArguments;
use crate::{print, serve, signals};
use producer::{Producers, Sabotage};
use stage::{Server, StoreDir, Worker};

pub(crate) use worker::{WorkerArguments, run as run_worker};

/// The names of the hidden commands.
pub(crate) const WORKER: &str = "prove-worker";
pub(crate) const SERVER: &str = "prove-server";

const EXAMPLES: &str = "\
Starts a server on a new directory, in the current one or in --dir, with four producers and three workers. At random
times it kills the server or a worker with signal 9 while workers hold tasks, and starts it again. In the end the queue is
emptied: every confirmed task must have been finished, and none twice. The directory is removed, unless a promise was
broken.

Ctrl-C ends it early: nothing more is killed, the queue is emptied, and the result is printed. A second Ctrl-C exits at
once with 130, and keeps the directory.

With --home it uses a queue of its own on that home, and kills only workers.

Examples:
  sureq prove
  sureq prove --seconds 300 --dir /var/lib/sureq --seed 7
  sureq prove --home redis://127.0.0.1:6379 --json | jq .lost

Exit codes:
  0  nothing was lost, nothing was finished twice
  1  inconclusive: no server or no home, nothing was killed, no task was held at a kill, or none was finished
  3  a promise was broken";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ProveArguments {
    /// Duration in seconds
    #[arg(long, value_name = "N", default_value_t = 30)]
    seconds: u64,
    /// A home to prove, instead of a server of its own: `sureq://HOST:PORT`, `redis://HOST:PORT`
    #[arg(long, value_name = "URL")]
    home: Option<String>,
    /// Seed of the times of the kills [default: random]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=SEED_MAX))]
    seed: Option<u64>,
    /// Durability of the server. Only a power cut shows a difference between always and interval; at none, a kill loses
    /// confirmations of the last 10 ms, which count as lost
    #[arg(long, value_name = "LEVEL", default_value = "always", value_parser = ["always", "interval", "none"], conflicts_with = "home")]
    durability: String,
    /// Where to make the directory: the disk under test
    #[arg(long, value_name = "DIR", default_value = ".", conflicts_with = "home")]
    dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Break a guarantee, to test that the violation is found.
    #[arg(long, value_enum, hide = true)]
    sabotage: Option<Sabotage>,
}

const PRODUCERS: usize = 4;
const WORKERS: usize = 3;
/// The time limit for emptying the queue after the last kill.
const DRAIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);
/// How long a kill waits for its victim to hold a task: workers have to start and to reconnect.
const HOLD_WAIT: Duration = Duration::from_secs(5);
/// Consecutive checks, a millisecond apart, that must find tasks held.
const HELD_LOOKS: u32 = 10;
/// The largest seed that JSON represents exactly.
const SEED_MAX: u64 = (1 << 53) - 1;

pub(crate) fn run(arguments: &ProveArguments) -> ExitCode {
    match prove(arguments) {
        Ok(verdict) => {
            let code = verdict.show(arguments.json);
            if verdict.is_broken && arguments.durability == "none" {
                print::err(format_args!(
                    "sureq: with --durability none a kill loses the last confirmations: use interval or always"
                ));
            }
            code
        }
        Err(why) => failed(exit::CANNOT_START, why),
    }
}

/// `serve` that ends with the process that started it.
pub(crate) fn run_server(arguments: &ServeArguments) -> ExitCode {
    end_with_parent();
    serve::run(arguments)
}

/// Exits when standard input closes: nothing is ever written to it, and the process that started this one holds its
/// other end.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
}

fn prove(arguments: &ProveArguments) -> Result<Verdict, Box<dyn Error>> {
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let mut stage = Stage::set(arguments, seed)?;
    let home = sureq::open(&stage.url)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(check_leases(&home, &stage.queue))?;
    let producers = Arc::new(Producers {
        queue: home.queue(&stage.queue),
        history: Arc::clone(&stage.records.history),
        is_over: AtomicBool::new(false),
    });
    if let Some(how) = arguments.sabotage {
        runtime.block_on(producers.break_it(how))?;
    }
    let pushing: Vec<_> = (0..PRODUCERS)
        .map(|_| {
            let producers = Arc::clone(&producers);
            runtime.spawn(async move { producers.produce().await })
        })
        .collect();
    let is_interrupted = Arc::<AtomicBool>::default();
    signals::on_first({
        let is_interrupted = Arc::clone(&is_interrupted);
        move || is_interrupted.store(true, SeqCst)
    });
    stage.crash_at_random(Duration::from_secs(arguments.seconds), &is_interrupted)?;
    producers.is_over.store(true, SeqCst);
    for push in pushing {
        runtime.block_on(push)?;
    }
    let left = runtime.block_on(stage.drain(&home))?;
    stage.workers.iter_mut().try_for_each(Worker::kill)?;
    if arguments.home.is_some() {
        runtime.block_on(home.drop_queues(&[stage.queue.as_bytes()]))?;
    }
    let _ = home.close();
    Ok(stage.verdict(seed, left))
}

/// Refuses a home without leases, which the workers of a proof need.
async fn check_leases(home: &Home, queue: &str) -> Result<(), String> {
    match home.queue(queue).pop().await {
        Err(no @ sureq::Error::Refused(_)) => Err(format!("cannot prove this home: {no}")),
        // Any other error shows up during the run.
        _ => Ok(()),
    }
}

/// The processes of a proof and its records.
struct Stage {
    url: String,
    queue: String,
    records: Records,
    rng: fastrand::Rng,
    line: ProgressLine,
    crashes: Crashes,
    workers: Vec<Worker>,
    // Dropped after the server.
    server: Option<Server>,
    dir: Option<StoreDir>,
}

/// The records of producers and workers.
#[derive(Clone, Debug, Default)]
struct Records {
    history: Arc<SharedHistory>,
    /// Deliveries of tasks that had been delivered before, as reported by the home or seen by the workers. The home
    /// may count deliveries that never arrived.
    redelivered: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Crashes {
    server: u64,
    workers: u64,
    /// Tasks that workers held when they or the server were killed.
    held: u64,
}

impl Crashes {
    const fn total(self) -> u64 {
        self.server + self.workers
    }
}

impl Stage {
    fn set(arguments: &ProveArguments, seed: u64) -> Result<Self, Box<dyn Error>> {
        let (dir, server, url) = match &arguments.home {
            Some(url) if url.starts_with("file:") || url.starts_with("mem:") => {
                return Err(format!(
                    "cannot prove {url}: only one process can open it; leave out --home, or serve it and give its sureq:// URL"
                )
                .into());
            }
            Some(url) => (None, None, url.clone()),
            None => {
                let dir = StoreDir::make(&arguments.dir).map_err(|error| {
                    format!("cannot make a directory in {}: {error}", arguments.dir.display())
                })?;
                let server = Server::start(dir.path(), &arguments.durability)?;
                let url = server.url();
                (Some(dir), Some(server), url)
            }
        };
        let records = Records::default();
        let queue = format!("sureq-prove-{:016x}", fastrand::u64(..));
        let workers =
            (0..WORKERS).map(|_| Worker::start(&url, &queue, &records)).collect::<Result<_, _>>()?;
        let (rng, line, crashes) = (fastrand::Rng::with_seed(seed), ProgressLine::new(), Crashes::default());
        Ok(Self { url, queue, records, rng, line, crashes, workers, server, dir })
    }

    /// Kills the server or a worker at random times, one after the other.
    fn crash_at_random(&mut self, time: Duration, is_interrupted: &AtomicBool) -> std::io::Result<()> {
        let since = Instant::now();
        while since.elapsed() < time && !is_interrupted.load(SeqCst) {
            let kill_at = since.elapsed() + Duration::from_millis(self.rng.u64(100..1_500));
            while since.elapsed() < kill_at.min(time) && !is_interrupted.load(SeqCst) {
                std::thread::sleep(LOOK);
                self.show_progress(since.elapsed(), time);
            }
            if is_interrupted.load(SeqCst) {
                break;
            }
            // The first victim is a worker, so that even a short run has a redelivery.
            let is_first = self.crashes.total() == 0;
            let victims = WORKERS + usize::from(self.server.is_some() && !is_first);
            let victim = self.rng.usize(..victims);
            self.await_held(victim, is_interrupted);
            if !is_interrupted.load(SeqCst) {
                self.kill(victim)?;
            }
        }
        Ok(())
    }

    /// Waits until the victim (a worker, or any worker if it is the server) holds tasks for several checks in a row.
    /// It holds more than one batch if possible: one may be finished just before the kill.
    fn await_held(&self, victim: usize, is_interrupted: &AtomicBool) {
        let (since, mut looks) = (Instant::now(), 0);
        while looks < HELD_LOOKS && since.elapsed() < HOLD_WAIT && !is_interrupted.load(SeqCst) {
            let enough = if since.elapsed() < HOLD_WAIT / 5 { worker::BATCH.into() } else { 0 };
            looks = if self.held_by(victim) > enough { looks + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn held_by(&self, victim: usize) -> u64 {
        self.workers.get(victim).map_or_else(|| self.workers.iter().map(Worker::held).sum(), Worker::held)
    }

    /// Kills a worker, or the server, and restarts it.
    fn kill(&mut self, victim: usize) -> std::io::Result<()> {
        match (&mut self.server, self.workers.get_mut(victim)) {
            (_, Some(worker)) => {
                worker.kill()?;
                self.crashes.held += worker.held();
                *worker = Worker::start(&self.url, &self.queue, &self.records)?;
                self.crashes.workers += 1;
            }
            (Some(server), None) => {
                self.crashes.held += self.workers.iter().map(Worker::held).sum::<u64>();
                server.crash()?;
                self.crashes.server += 1;
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Waits until the queue is empty; returns the number of tasks that remain after a time limit.
    async fn drain(&mut self, home: &Home) -> Result<u64, Box<dyn Error>> {
        let (since, mut most) = (Instant::now(), 0);
        loop {
            match home.queue(&self.queue).info().await {
                Ok(info) => {
                    let left = info.ready + info.delayed + info.leased + info.dead;
                    if left == 0 || since.elapsed() > DRAIN {
                        return Ok(left);
                    }
                    most = most.max(left);
                    self.line.show(&draining(&info, self.counts().redelivered), most - left, most);
                }
                Err(error) if since.elapsed() > DRAIN => return Err(error.into()),
                Err(_) => {}
            }
            // No signal says that a queue is empty.
            tokio::time::sleep(LOOK).await;
        }
    }

    fn show_progress(&mut self, done: Duration, total: Duration) {
        let text = crashing(&self.counts(), self.crashes);
        self.line.show(&text, done.as_millis() as u64, total.as_millis() as u64);
    }

    fn counts(&self) -> Counts {
        let redelivered = self.records.redelivered.load(SeqCst);
        Counts { redelivered, ..self.records.history.lock().counts() }
    }

    fn verdict(mut self, seed: u64, left: u64) -> Verdict {
        let found = self.records.history.lock().findings(left);
        let counts = self.counts();
        let is_broken = found.total() + left > 0;
        let evidence = self.dir.as_mut().filter(|_| is_broken).map(|dir| {
            dir.is_kept = true;
            dir.path().display().to_string()
        });
        Verdict {
            is_kept: !is_broken && counts.finished > 0 && self.crashes.held > 0,
            is_broken,
            confirmed: counts.confirmed,
            finished: counts.finished,
            unknown: counts.unknown,
            server_crashes: self.crashes.server,
            worker_crashes: self.crashes.workers,
            held: self.crashes.held,
            redelivered: counts.redelivered,
            lost: found.lost,
            left,
            finished_twice: found.finished_twice,
            altered: found.phantom,
            resurrected: found.resurrected,
            double_held: found.double_held,
            denied: found.denied,
            torn: found.torn,
            seed,
            evidence,
        }
    }
}

/// The progress line during the kills, short enough for a terminal.
fn crashing(counts: &Counts, crashes: Crashes) -> String {
    let total = crashes.total();
    format!(
        "{} confirmed · {} · {} held at crashes · {} redelivered",
        number(counts.confirmed),
        if total == 1 { "1 crash".to_owned() } else { format!("{} crashes", number(total)) },
        number(crashes.held),
        number(counts.redelivered),
    )
}

/// The progress line after the last kill.
fn draining(info: &Info, redelivered: u64) -> String {
    let (waiting, leased) = (number(info.ready + info.delayed), number(info.leased));
    format!("emptying the queue: {waiting} waiting · {leased} leased · {} redelivered", number(redelivered))
}

/// The result line.
fn summary(counts: &Counts, crashes: Crashes, found: &Findings) -> String {
    let (lost, twice) = (number(found.lost), number(found.finished_twice));
    format!("{} · {lost} lost · {twice} finished twice", crashing(counts, crashes))
}

/// The result of a proof.
#[derive(Debug, Serialize)]
struct Verdict {
    #[serde(rename = "kept")]
    is_kept: bool,
    /// False together with `is_kept` if the run proved nothing.
    #[serde(skip)]
    is_broken: bool,
    confirmed: u64,
    finished: u64,
    unknown: u64,
    server_crashes: u64,
    worker_crashes: u64,
    held: u64,
    redelivered: u64,
    lost: u64,
    left: u64,
    finished_twice: u64,
    altered: u64,
    resurrected: u64,
    double_held: u64,
    denied: u64,
    torn: u64,
    seed: u64,
    /// The directory of a store that broke a promise.
    evidence: Option<String>,
}

impl Verdict {
    fn show(&self, as_json: bool) -> ExitCode {
        if as_json {
            let text = serde_json::to_string(self).expect("numbers and names are JSON");
            print::out(format_args!("{text}"));
        } else {
            let Self { confirmed, redelivered, lost, finished_twice, .. } = *self;
            let counts = Counts { confirmed, redelivered, ..Counts::default() };
            let found = Findings { lost, finished_twice, ..Findings::default() };
            let Self { server_crashes: server, worker_crashes: workers, held, .. } = *self;
            let crashes = Crashes { server, workers, held };
            print::out(format_args!("{}", summary(&counts, crashes, &found)));
            self.explain();
        }
        ExitCode::from(match (self.is_kept, self.is_broken) {
            (_, true) => exit::BROKEN,
            (false, false) => exit::CANNOT_START,
            (true, false) => 0,
        })
    }

    fn explain(&self) {
        if self.left > 0 {
            print::err(format_args!("sureq: {} could not be finished", many(self.left, "task")));
        }
        if self.altered > 0 {
            print::err(format_args!(
                "sureq: {} was delivered with a wrong payload",
                many(self.altered, "task")
            ));
        }
        if self.resurrected > 0 {
            let tasks = many(self.resurrected, "task");
            print::err(format_args!("sureq: {tasks} was redelivered after its finish was confirmed"));
        }
        if self.double_held > 0 {
            print::err(format_args!(
                "sureq: {} was delivered while another worker held it",
                many(self.double_held, "task")
            ));
        }
        if self.denied > 0 {
            print::err(format_args!(
                "sureq: {} could not be finished by its worker",
                many(self.denied, "task")
            ));
        }
        if self.torn > 0 {
            print::err(format_args!("sureq: {} pushed only in part", many(self.torn, "command")));
        }
        if !self.is_kept && !self.is_broken {
            let what = match self {
                Self { finished: 0, .. } => "no task was finished",
                Self { server_crashes: 0, worker_crashes: 0, .. } => "nothing was killed",
                _ => "no task was held at a kill",
            };
            print::err(format_args!("sureq: inconclusive: {what}; use more --seconds"));
        }
        if let Some(evidence) = &self.evidence {
            print::err(format_args!("sureq: the store is kept in {evidence}; the seed was {}", self.seed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_line_shows_that_the_queue_is_being_emptied() {
        let info = Info { ready: 16_000, delayed: 248, leased: 864, ..Info::default() };
        let line = "emptying the queue: 16,248 waiting · 864 leased · 32 redelivered";
        assert_eq!(draining(&info, 32), line);
    }
}
