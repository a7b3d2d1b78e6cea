//! `sureq work`: runs a program for each task, with the payload on its standard input.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::pin::pin;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Args;
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process_group};
use sureq::{Again, Delivery, Home, Outcome, State, Stop, Tally, Task, Worker, route};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use super::error::{CommandError, CommandResult};
use super::output::Output;
use super::until_empty::until_empty;
use super::{Common, Make, Typed, lasting, time};
use crate::format::{many, number};
use crate::{exit, log, print, signals};

/// The exit code of a program that returns its task at no cost of a try.
const REQUEUE: i32 = 75;

/// The delay of a task that its program returned, so that it is not redelivered in a tight loop. A home without delays
/// also waits this long before a failed task is returned.
const REQUEUE_DELAY: Duration = Duration::from_secs(1);

#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct WorkArguments {
    /// The queues
    #[arg(required = true)]
    queues: Vec<Typed>,
    /// Largest number of programs running at once
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    jobs: u32,
    /// Pop from a queue only if those before it are empty
    #[arg(long)]
    strict: bool,
    /// Length of a lease, which is extended while the program runs
    #[arg(long, value_name = "TIME", value_parser = lasting, default_value = "30s")]
    lease: Duration,
    /// Longest run of a program; after that it is stopped and the try fails
    #[arg(long, value_name = "TIME", value_parser = lasting, default_value = "1h")]
    timeout: Duration,
    /// Time for running programs to finish after SIGTERM, and for a stopped program to exit
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    grace: Duration,
    /// Finish each task before its program runs: at-most-once delivery
    #[arg(long)]
    ack_first: bool,
    /// Name of the worker [default: from the program and the process id]
    #[arg(long)]
    name: Option<Typed>,
    /// Stop when the queues are empty; waits also for delayed tasks and for tasks of other workers
    #[arg(long)]
    until_empty: bool,
    #[command(flatten)]
    common: Common,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const HELP: &str = "\
The program gets the payload on its standard input, and in its environment:
  SUREQ_ID, SUREQ_QUEUE, SUREQ_DELIVERY (1, 2, …; 0 where the home does not count them), SUREQ_RECEIPT

Its exit code decides what happens to the task:
  0      finished
  75     returned at no cost of a try; delivered again after a second
  other  the try failed; delivered again after its backoff, or dead if that was its last try

On SIGTERM or Ctrl-C nothing more is popped. Running programs may take --grace longer; then they get SIGTERM, 2 seconds
later SIGKILL, and their tasks are returned at no cost. The program of a cancelled task gets SIGTERM at once, and SIGKILL
after --grace. Child processes of a program get the same signals, and SIGKILL once a stopped program has exited. A second
signal kills all programs and exits with 130; their tasks are requeued when the worker's heartbeat is missed.

Failed tries and connection errors are reported on standard error. If the program does not exist, this exits with 1
before it pops a task. If the home refuses a needed command, it exits with 1, or with 77 if the user lacks the role.

With --until-empty it prints what it waits for when nothing runs: delayed tasks, a paused queue, tasks of other workers.

Examples:
  sureq work emails --jobs 8 -- ./send.sh
  sureq work urgent normal --strict -- sh -c 'echo \"$SUREQ_ID: $(cat)\"'";

/// The time between SIGTERM and SIGKILL of a program when the worker stops.
const LAST_GRACE: Duration = Duration::from_secs(2);

/// The program that runs for each task.
struct Program {
    words: Vec<OsString>,
    timeout: Duration,
    grace: Duration,
    is_stopping: watch::Receiver<bool>,
    groups: Arc<Groups>,
}

impl Program {
    fn name(&self) -> std::path::Display<'_> {
        Path::new(&self.words[0]).display()
    }
}

/// The process groups of the running programs.
#[derive(Default)]
struct Groups(Mutex<HashSet<Pid>>);

impl Groups {
    fn list(&self) -> MutexGuard<'_, HashSet<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills all of them. The lock is never released, so that no further program can start.
    fn kill_for_good(&self) {
        let list = self.list();
        for &group in &*list {
            // It may have ended meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
        }
        std::mem::forget(list);
    }
}

pub(crate) fn run(arguments: &WorkArguments) -> ExitCode {
    if let Some(queue) = named_twice(&arguments.queues) {
        return exit::failed(exit::USAGE, format_args!("queue {queue} is given twice: name each queue once"));
    }
    if let Err(why) = find(&arguments.command[0]) {
        return exit::failed(exit::CANNOT_START, why);
    }
    log::to_stderr();
    arguments.common.run(Make::Yes, |home, output| work(arguments, home, output))
}

fn named_twice(queues: &[Typed]) -> Option<&Typed> {
    let mut seen = HashSet::new();
    queues.iter().find(|queue| !seen.insert(queue.0.as_slice()))
}

async fn work(arguments: &WorkArguments, home: Home, mut output: Output) -> CommandResult {
    let (stop, is_stopping) = watch::channel(false);
    let WorkArguments { grace, timeout, .. } = *arguments;
    let groups = Arc::<Groups>::default();
    let words = arguments.command.clone();
    let program = Program { words, timeout, grace, is_stopping, groups: Arc::clone(&groups) };
    let mut worker = Worker::new(&home)
        .state(program)
        .concurrency(arguments.jobs as usize)
        .lease(arguments.lease)
        // Handlers stop their programs themselves; these limits are for a handler that hangs.
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
    let (request_stop, stop_requested) = oneshot::channel();
    signals::on_both(move || _ = request_stop.send(()), move || groups.kill_for_good());
    let (mut error, handle) = (None, worker.handle());
    let ended = async {
        tokio::select! {
            _ = stop_requested => {}
            looked = until_empty(&arguments.queues, &home, &handle), if arguments.until_empty => {
                error = looked.err();
            }
        }
        stop.send_replace(true);
    };
    let names: Vec<String> = arguments.queues.iter().map(ToString::to_string).collect();
    print::err(format_args!("sureq: working on {}", names.join(", ")));
    let tally = worker.run_until(ended).await.map_err(CommandError::Worker)?;
    if output.is_json() {
        output.object([
            ("done", tally.done.into()),
            ("failed", tally.failed.into()),
            ("dead", tally.dead.into()),
            ("requeued", tally.requeued.into()),
            ("cancelled", tally.cancelled.into()),
            ("lost", tally.lost.into()),
            ("unknown", tally.unknown.into()),
        ])?;
        output.flush()?;
    } else {
        print::err(format_args!("sureq: {}", summary(&tally)));
    }
    error.map_or(Ok(ExitCode::SUCCESS), |error| Err(CommandError::Home(error)))
}

/// The tally as text; rare outcomes only if they occurred.
fn summary(tally: &Tally) -> String {
    let (done, failed) = (many(tally.done, "task"), number(tally.failed + tally.dead));
    let mut text = format!("{done} done, {failed} failed, {} returned", number(tally.requeued));
    let rare = [
        (tally.dead, "of the failed ones dead"),
        (tally.cancelled, "cancelled"),
        (tally.lost, "lost to another worker"),
        (tally.unknown, "with unknown outcome"),
    ];
    for (count, what) in rare.into_iter().filter(|(count, _)| *count > 0) {
        text = format!("{text}, {} {what}", number(count));
    }
    text
}

/// Checks that the program exists, before a task is popped for it.
fn find(program: &OsStr) -> Result<(), String> {
    let is_there = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    let path = Path::new(program);
    let is_named = program.as_encoded_bytes().contains(&b'/');
    let found = match std::env::var_os("PATH") {
        _ if is_named => is_there(path),
        Some(dirs) => std::env::split_paths(&dirs).any(|dir| is_there(&dir.join(path))),
        // Without PATH the system has its own default.
        None => true,
    };
    let why = match found {
        true => return Ok(()),
        false if !is_named => "no such program in PATH",
        false if path.is_file() => "it is not executable",
        false => "no such program",
    };
    Err(format!("cannot run {}: {why}", path.display()))
}

async fn handle(delivery: Delivery, program: State<Program>) -> Outcome {
    let outcome = run_program(&delivery, &program).await;
    let is_retried = match outcome {
        Outcome::Failed { .. } => true,
        Outcome::Requeue { after } => !after.is_zero(),
        _ => false,
    };
    // A home without delivery numbers has no delays either: the task would be redelivered in a tight loop.
    if is_retried && delivery.task().receipt().fence().is_none() {
        let (token, mut is_stopping) = (delivery.token(), program.is_stopping.clone());
        tokio::select! {
            () = sleep(REQUEUE_DELAY) => {}
            _ = is_stopping.wait_for(|&is_stopping| is_stopping) => {}
            _ = token.wait() => {}
        }
    }
    outcome
}

async fn run_program(delivery: &Delivery, program: &Program) -> Outcome {
    let mut running = match Running::start(program, delivery.task()) {
        Ok(running) => running,
        Err(error) => return failed(format!("cannot run {}: {error}", program.name())),
    };
    let token = delivery.token();
    let mut is_stopping = program.is_stopping.clone();
    let stop_requested = async {
        // The sender lives until the worker has ended.
        let _ = is_stopping.wait_for(|&is_stopping| is_stopping).await;
        sleep(program.grace).await;
    };
    let ended = tokio::select! {
        ended = running.run(delivery.task().payload()) => Ok(ended),
        // When the worker stops, `stop_requested` decides.
        why = token.wait_beyond(Stop::Stopping) => Err(Some(why)),
        () = sleep(program.timeout) => Err(Some(Stop::TooLong)),
        () = stop_requested => Err(None),
    };
    match ended {
        Ok(Ok(status)) => outcome_of(status),
        Ok(Err(error)) => failed(format!("cannot wait for {}: {error}", program.name())),
        Err(None) => {
            running.stop(LAST_GRACE).await;
            Outcome::Requeue { after: Duration::ZERO }
        }
        Err(Some(why)) => {
            running.stop(program.grace).await;
            match why {
                Stop::Cancelled => Outcome::Cancelled,
                Stop::TooLong => failed(format!("ran longer than {:?}", program.timeout)),
                // Another worker has the task; this outcome is ignored.
                _ => Outcome::Requeue { after: Duration::ZERO },
            }
        }
    }
}

fn outcome_of(status: ExitStatus) -> Outcome {
    match status.code() {
        Some(0) => Outcome::Done,
        Some(REQUEUE) => Outcome::Requeue { after: REQUEUE_DELAY },
        // `exit status: 3`, `signal: 9 (SIGKILL)`
        _ => failed(status.to_string()),
    }
}

fn failed(reason: String) -> Outcome {
    Outcome::Failed { reason: reason.into(), again: Again::Backoff }
}

/// A running program and its process group; killed on drop.
struct Running {
    child: Child,
    group: Option<Pid>,
    groups: Arc<Groups>,
}

impl Running {
    fn start(program: &Program, task: &Task) -> std::io::Result<Self> {
        // Held across the start, so that `kill_for_good` cannot miss this program.
        let mut list = program.groups.list();
        let child = Command::new(&program.words[0])
            .args(&program.words[1..])
            .env("SUREQ_ID", task.id().to_string())
            .env("SUREQ_RECEIPT", task.receipt().to_string())
            .env("SUREQ_QUEUE", OsStr::from_bytes(task.queue_bytes()))
            .env("SUREQ_DELIVERY", task.delivery().to_string())
            .stdin(Stdio::piped())
            // A Ctrl-C in the terminal is for the worker, which stops its programs itself.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        list.extend(group);
        Ok(Self { child, group, groups: Arc::clone(&program.groups) })
    }

    /// Feeds the payload to the program and waits for its exit.
    async fn run(&mut self, payload: &[u8]) -> std::io::Result<ExitStatus> {
        let stdin = self.child.stdin.take();
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A program may exit without reading its input.
                let _ = stdin.write_all(payload).await;
            }
        };
        let status = {
            let mut ended = pin!(self.child.wait());
            tokio::select! {
                // A child of the program may hold its input open without reading it.
                status = &mut ended => status,
                () = feed => ended.await,
            }
        };
        self.forget();
        status
    }

    /// Sends SIGTERM, and SIGKILL after `grace`. The children of the program are killed too, since the task is
    /// delivered to another worker next.
    async fn stop(&mut self, grace: Duration) {
        self.signal(Signal::TERM);
        let _ = timeout(grace, self.child.wait()).await;
        self.signal(Signal::KILL);
        let _ = self.child.wait().await;
        self.forget();
    }

    fn forget(&mut self) {
        if let Some(group) = self.group.take() {
            self.groups.list().remove(&group);
        }
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
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_outcomes_are_printed_only_if_they_occurred() {
        let mut tally = Tally::default();
        (tally.done, tally.failed, tally.dead) = (1, 2, 3);
        assert_eq!(summary(&tally), "1 task done, 5 failed, 0 returned, 3 of the failed ones dead");
        (tally.lost, tally.unknown) = (4, 5);
        let rare = ", 4 lost to another worker, 5 with unknown outcome";
        assert!(summary(&tally).ends_with(rare), "{}", summary(&tally));
    }

    #[test]
    fn a_program_is_found_where_the_system_finds_it() {
        let check = |program: &str, why: &str| {
            let found = find(program.as_ref());
            assert_eq!(found.err().unwrap_or_default(), why);
        };
        check("sh", "");
        check("/bin/sh", "");
        check("/nonexistent", "cannot run /nonexistent: no such program");
        check("no-such-program", "cannot run no-such-program: no such program in PATH");
        check("./Cargo.toml", "cannot run ./Cargo.toml: it is not executable");
        check("/", "cannot run /: no such program");
    }
}
