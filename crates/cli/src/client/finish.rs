//! `sureq ack`, `extend`, `return`, `cancel`, `bury` and `delete`: act on deliveries and tasks by their receipts or
//! ids.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sureq::{Held, Home, Place, Queue};

use super::error::{CommandError, CommandResult};
use super::output::{Output, field};
use super::{Common, Make, Typed, confirm, distinct, lasting, time, write_count};
use crate::exit;
use crate::format::many;

#[derive(Args)]
#[command(after_help = "\
Exits with 4 if a task was not finished, and prints which.

Examples:
  sureq ack emails 1764000000000-1@1.1764000000000
  sureq ack emails $(sureq pop emails --json | jq -r .receipt)")]
pub(crate) struct AckArguments {
    /// The queue
    queue: Typed,
    /// Receipts (one delivery each), or ids (the current delivery)
    #[arg(required = true, value_name = "RECEIPT")]
    tasks: Vec<Typed>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn ack(arguments: &AckArguments) -> ExitCode {
    arguments.common.run(Make::No, async |home: Home, mut output| {
        let acked = home.queue(&arguments.queue).ack_all(&arguments.tasks).await?;
        for (task, is_acked) in arguments.tasks.iter().zip(&acked) {
            if output.is_json() {
                output.object([field!("task", task.as_ref()), ("finished", json!(is_acked))])?;
            } else {
                let text =
                    if *is_acked { "finished" } else { "not finished: this delivery is not the current one" };
                output.line(format_args!("{task} {text}"))?;
            }
        }
        output.flush()?;
        Ok(if acked.contains(&false) { exit::NOTHING_THERE.into() } else { ExitCode::SUCCESS })
    })
}

#[derive(Args)]
#[command(after_help = "\
The lease then ends this long from now. Exits with 4 if the delivery is not the current one, or the task was cancelled.

Example:
  sureq extend emails RECEIPT 5m")]
pub(crate) struct ExtendArguments {
    /// The queue
    queue: Typed,
    /// The receipt, or the id
    #[arg(value_name = "RECEIPT")]
    task: Typed,
    /// The new length of the lease, from now: 30s, 5m, 1h
    #[arg(value_name = "TIME", value_parser = lasting)]
    lease: Duration,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn extend(arguments: &ExtendArguments) -> ExitCode {
    arguments.common.run(Make::No, async |home: Home, mut output| {
        let held = home.queue(&arguments.queue).extend(&arguments.task, arguments.lease).await?;
        let text = match held {
            Held::Yes => "extended",
            Held::Cancelled => "cancelled: stop working on it",
            _ => "not extended: this delivery is not the current one",
        };
        write_outcome(&mut output, &arguments.task, text)?;
        Ok(if held == Held::Yes { ExitCode::SUCCESS } else { exit::NOTHING_THERE.into() })
    })
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  sureq return emails RECEIPT                          to the front, at no cost of a try
  sureq return emails RECEIPT --delay 5m
  sureq return emails RECEIPT --failed 'mailbox full'   fail the try")]
pub(crate) struct ReturnArguments {
    /// The queue
    queue: Typed,
    /// The receipt, or the id
    #[arg(value_name = "RECEIPT")]
    task: Typed,
    /// Redeliver it after this time: 500ms, 30s, 5m, 1h, 2d [default: at once]
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "back")]
    delay: Option<Duration>,
    /// Put it at the back of the queue [default: at the front]
    #[arg(long)]
    back: bool,
    /// Fail the try, with this reason; the task is retried after its backoff
    #[arg(long, value_name = "REASON")]
    failed: Option<Typed>,
    /// Bury the task, even if tries are left
    #[arg(long, requires = "failed", conflicts_with_all = ["delay", "back"])]
    dead: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn return_task(arguments: &ReturnArguments) -> ExitCode {
    arguments.common.run(Make::No, |home, output| return_to(arguments, home, output))
}

async fn return_to(arguments: &ReturnArguments, home: Home, mut output: Output) -> CommandResult {
    let (queue, task) = (home.queue(&arguments.queue), &arguments.task);
    let to = match (arguments.delay, arguments.back) {
        (Some(delay), _) => Some(Place::After(delay.as_millis() as u64)),
        (None, true) => Some(Place::Back),
        (None, false) => None,
    };
    let held = match (&arguments.failed, to) {
        (Some(reason), _) if arguments.dead => queue.fail_for_good(task, reason).await?,
        (Some(reason), Some(to)) => queue.fail_to(task, reason, to).await?,
        (Some(reason), None) => queue.fail(task, reason).await?,
        (None, to) => queue.requeue_to(task, to.unwrap_or(Place::Front)).await?,
    };
    let text = match held {
        Held::Yes => "returned",
        Held::Cancelled => "cancelled: the task is deleted",
        _ => "not returned: this delivery is not the current one",
    };
    write_outcome(&mut output, task, text)?;
    Ok(if held == Held::Lost { exit::NOTHING_THERE.into() } else { ExitCode::SUCCESS })
}

/// Prints what became of a delivery: a word, and behind a colon the reason.
fn write_outcome(output: &mut Output, task: &Typed, text: &str) -> Result<(), CommandError> {
    if output.is_json() {
        let word = text.split(':').next().unwrap_or(text);
        output.object([field!("task", task.as_ref()), ("outcome", json!(word))])?;
    } else {
        output.line(format_args!("{task} {text}"))?;
    }
    output.flush()
}

#[derive(Args)]
#[command(after_help = "\
Waiting tasks are removed. Leased tasks are marked: their holders learn it with the next heartbeat or extension, and may
still finish. Exits with 4 if not all tasks could be cancelled.

Examples:
  sureq cancel emails 1764000000000-1
  sureq cancel emails --name ann
  sureq cancel emails --payload 'to: ann' --yes")]
pub(crate) struct CancelArguments {
    /// The queue
    queue: Typed,
    /// Ids of tasks
    #[arg(value_name = "ID", required_unless_present_any = ["names", "payload"])]
    ids: Vec<Typed>,
    /// Names of tasks
    #[arg(long = "name", value_name = "NAME", conflicts_with_all = ["ids", "payload"])]
    names: Vec<Typed>,
    /// All tasks with this payload
    #[arg(long, conflicts_with = "ids")]
    payload: Option<Typed>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn cancel(arguments: &CancelArguments) -> ExitCode {
    arguments.common.run(Make::No, |home, output| cancel_tasks(arguments, home, output))
}

async fn cancel_tasks(arguments: &CancelArguments, home: Home, mut output: Output) -> CommandResult {
    let queue = home.queue(&arguments.queue);
    let mut count = 0;
    if let Some(payload) = &arguments.payload {
        let info = queue.info().await?;
        let all = many(info.ready + info.delayed + info.leased, "task");
        let what = format!("This scans {all} of {} and cancels those with that payload", arguments.queue);
        if !confirm(&what, arguments.yes)? {
            return Err(CommandError::Usage("cancelled nothing".to_owned()));
        }
        count += queue.cancel_payload(payload.as_ref()).await?;
    }
    let (names, ids) = (distinct(&arguments.names), distinct(&arguments.ids));
    for name in &names {
        let cancelled = queue.cancel_named(name).await;
        count += u64::from(cancelled.map_err(|error| match count {
            0 => CommandError::Home(error),
            count => CommandError::Home(error).after(format!("{} cancelled", many(count, "task"))),
        })?);
    }
    count += queue.cancel_all(&ids).await?;
    // Of a payload, any number is all of them.
    let asked = if arguments.payload.is_some() { count.max(1) } else { (names.len() + ids.len()) as u64 };
    write_count(&mut output, &arguments.queue, ("cancelled", "cancelled"), count, asked)
}

#[derive(Args)]
#[command(after_help = "\
Dead tasks stay until they are revived or deleted. A leased task is buried too: its holder can no longer finish it.
Exits with 4 unless all tasks were buried.

Example:
  sureq bury emails 1764000000000-1")]
pub(crate) struct BuryArguments {
    #[command(flatten)]
    tasks: TaskArguments,
}

pub(crate) fn bury(arguments: &BuryArguments) -> ExitCode {
    arguments.tasks.run("buried", async |queue, ids| queue.bury(ids).await)
}

#[derive(Args)]
#[command(after_help = "\
Deletes tasks in any state; the holder of a leased one can no longer finish it. Exits with 4 unless all tasks were
deleted. `sureq cancel` lets holders finish; `sureq purge` removes all tasks of a queue.

Examples:
  sureq delete emails 1764000000000-1
  sureq delete emails $(sureq inspect emails --state dead --json | jq -r .id)")]
pub(crate) struct DeleteArguments {
    #[command(flatten)]
    tasks: TaskArguments,
}

pub(crate) fn delete(arguments: &DeleteArguments) -> ExitCode {
    arguments.tasks.run("deleted", async |queue, ids| queue.delete(ids).await)
}

#[derive(Args)]
struct TaskArguments {
    /// The queue
    queue: Typed,
    /// Ids of tasks, or receipts
    #[arg(required = true, value_name = "ID")]
    ids: Vec<Typed>,
    #[command(flatten)]
    common: Common,
}

impl TaskArguments {
    /// Acts on the tasks, and prints how many it concerned.
    fn run(&self, done: &str, act: impl AsyncFnOnce(Queue, &[&[u8]]) -> sureq::Result<u64>) -> ExitCode {
        self.common.run(Make::No, async |home: Home, mut output| {
            let ids = distinct(&self.ids);
            let count = act(home.queue(&self.queue), &ids).await?;
            write_count(&mut output, &self.queue, (done, done), count, ids.len() as u64)
        })
    }
}
