//! `sureq work`: a program for each task, the payload on its standard input.

use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, Signal, kill_process_group};
use sureq::{Again, Delivery, Home, Outcome, State, Stop, Task, Worker, route};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use super::shown::Shown;
use super::trouble::{Done, Trouble};
use super::{Common, Make, time};
use crate::humane::{many, number};
use crate::{say, signals};

/// The exit code with which a program gives its task back at no cost of a try.
const GIVE_BACK: i32 = 75;

/// How long a task that was given back so waits, so that it does not come again at once and again.
const GIVE_BACK_DELAY: Duration = Duration::from_secs(1);

/// What `work` can be told.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct WorkArguments {
    /// The queues
    #[arg(required = true)]
    queues: Vec<String>,
    /// How many programs run at once at most
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Takes from a queue only if those before it have nothing
    #[arg(long)]
    strict: bool,
    /// How long a lease is; it is extended for as long as the program runs
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s")]
    lease: Duration,
    /// How long a program may run; then it is stopped, and the try has failed
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1h")]
    timeout: Duration,
    /// How long programs may go on once this is told to end, and how long one has to end once it was told to
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    grace: Duration,
    /// Finish each task before its program runs: it runs at most once, ever
    #[arg(long)]
    ack_first: bool,
    /// What the worker is called where workers are listed
    #[arg(long)]
    name: Option<String>,
    /// Stop when there is nothing left to do
    #[arg(long)]
    until_empty: bool,
    #[command(flatten)]
    common: Common,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

const HELP: &str = "\
The program gets the payload on its standard input, and in its environment:
  SUREQ_ID, SUREQ_QUEUE, SUREQ_DELIVERY (1, 2, …), SUREQ_RECEIPT

Its exit code says what becomes of the task:
  0      finished
  75     given back at no cost of a try; it comes again after a second
  other  the try failed; it comes again after its backoff, or is dead if that was its last

On SIGTERM or Ctrl-C nothing more is taken. Programs that run may go on for the grace time; then they get SIGTERM, 2
seconds later SIGKILL, and their tasks go back at no cost. The program of a task that is called off is stopped at once,
with SIGTERM, and after the grace time with SIGKILL. A second signal ends this at once and leaves the programs running.

Examples:
  sureq work emails --jobs 8 -- ./send.sh
  sureq work urgent normal --strict -- sh -c 'echo \"$SUREQ_ID: $(cat)\"'";

/// How often it is looked whether the queues are empty.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a program has that is stopped because this ends.
const LAST_GRACE: Duration = Duration::from_secs(2);

/// What runs for each task.
struct Program {
    words: Vec<String>,
    timeout: Duration,
    grace: Duration,
    is_stopping: watch::Receiver<bool>,
}

pub(crate) fn run(arguments: &WorkArguments) -> ExitCode {
    arguments.common.run(Make::Yes, |home, shown| work(arguments, home, shown))
}

async fn work(arguments: &WorkArguments, home: Home, mut shown: Shown) -> Done {
    let (stop, is_stopping) = watch::channel(false);
    let WorkArguments { grace, timeout, .. } = *arguments;
    let program = Program { words: arguments.command.clone(), timeout, grace, is_stopping };
    let mut worker = Worker::new(&home)
        .state(program)
        .concurrency(arguments.jobs)
        .lease(arguments.lease)
        // A handler stops its program by itself: these only catch one that could not.
        .run_max(timeout + grace + 2 * LAST_GRACE)
        .grace(grace + 2 * LAST_GRACE);
    if arguments.strict {
        worker = worker.strict_order();
    }
    if let Some(name) = &arguments.name {
        worker = worker.name(name);
    }
    for queue in &arguments.queues {
        let each = route(handle);
        worker = worker.work(queue, if arguments.ack_first { each.ack_first() } else { each });
    }
    let (tell, told_to_end) = oneshot::channel();
    signals::on_first(move || _ = tell.send(()));
    let ended = async {
        tokio::select! {
            _ = told_to_end => {}
            () = empty(arguments, &home) => {}
        }
        stop.send_replace(true);
    };
    say::err(format_args!("sureq: working on {}", arguments.queues.join(", ")));
    let tally = worker.run_until(ended).await.map_err(Trouble::Worker)?;
    let failed = tally.failed + tally.dead;
    let (done, failed) = (many(tally.done, "task"), number(failed));
    if shown.is_json() {
        shown.object([
            ("done", tally.done.into()),
            ("failed", tally.failed.into()),
            ("dead", tally.dead.into()),
            ("given_back", tally.given_back.into()),
            ("cancelled", tally.cancelled.into()),
            ("lost", tally.lost.into()),
        ])?;
        shown.flush()?;
    } else {
        say::err(format_args!(
            "sureq: {done} done, {failed} failed, {} given back",
            number(tally.given_back)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Ready when the queues have nothing that could still be done, if that is to end it.
async fn empty(arguments: &WorkArguments, home: &Home) {
    loop {
        if arguments.until_empty {
            let mut left = 0;
            for queue in &arguments.queues {
                let info = home.queue(queue).info().await;
                left += info.map_or(1, |info| info.ready + info.delayed + info.leased);
            }
            if left == 0 {
                return;
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

async fn handle(delivery: Delivery, program: State<Program>) -> Outcome {
    let mut running = match Running::start(&program, delivery.task()) {
        Ok(running) => running,
        Err(error) => return failed(format!("cannot run {}: {error}", program.words[0])),
    };
    let token = delivery.token();
    let mut is_stopping = program.is_stopping.clone();
    let told_to_end = async {
        // The sender is there until the worker has ended.
        let _ = is_stopping.wait_for(|&is_stopping| is_stopping).await;
        sleep(program.grace).await;
    };
    let ended = tokio::select! {
        ended = running.run(delivery.task().payload()) => Ok(ended),
        why = token.wait() => Err(Some(why)),
        () = sleep(program.timeout) => Err(Some(Stop::TooLong)),
        () = told_to_end => Err(None),
    };
    match ended {
        Ok(Ok(status)) => outcome_of(status),
        Ok(Err(error)) => failed(format!("cannot wait for {}: {error}", program.words[0])),
        Err(None) => {
            running.stop(LAST_GRACE).await;
            Outcome::GiveBack { after: Duration::ZERO }
        }
        Err(Some(why)) => {
            running.stop(program.grace).await;
            match why {
                Stop::Cancelled => Outcome::Cancelled,
                Stop::TooLong => failed(format!("ran longer than {:?}", program.timeout)),
                // Somebody else has it; what is said of it here is not heard.
                _ => Outcome::GiveBack { after: Duration::ZERO },
            }
        }
    }
}

fn outcome_of(status: ExitStatus) -> Outcome {
    match status.code() {
        Some(0) => Outcome::Done,
        Some(GIVE_BACK) => Outcome::GiveBack { after: GIVE_BACK_DELAY },
        // `exit status: 3`, `signal: 9 (SIGKILL)`
        _ => failed(status.to_string()),
    }
}

fn failed(reason: String) -> Outcome {
    Outcome::Failed { reason: reason.into(), again: Again::Backoff }
}

/// A program that runs, with all that it started. Dropped, it is killed.
struct Running {
    child: Child,
    group: Option<Pid>,
}

impl Running {
    fn start(program: &Program, task: &Task) -> std::io::Result<Self> {
        let child = Command::new(&program.words[0])
            .args(&program.words[1..])
            .env("SUREQ_ID", task.id().to_string())
            .env("SUREQ_RECEIPT", task.receipt().to_string())
            .env("SUREQ_QUEUE", &*task.queue_name())
            .env("SUREQ_DELIVERY", task.delivery().to_string())
            .stdin(Stdio::piped())
            // A Ctrl-C in the terminal is for the worker, which decides what becomes of its programs.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(Self { child, group })
    }

    /// Gives it its payload and waits for its end.
    async fn run(&mut self, payload: &[u8]) -> std::io::Result<ExitStatus> {
        let stdin = self.child.stdin.take();
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A program need not read what it is given.
                let _ = stdin.write_all(payload).await;
            }
        };
        let (status, ()) = tokio::join!(self.child.wait(), feed);
        self.group = None;
        status
    }

    /// Tells it to end, and ends it if it does not.
    async fn stop(&mut self, grace: Duration) {
        self.signal(Signal::TERM);
        if timeout(grace, self.child.wait()).await.is_err() {
            self.signal(Signal::KILL);
            let _ = self.child.wait().await;
        }
        self.group = None;
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // It may have ended meanwhile.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
