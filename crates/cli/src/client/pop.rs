//! `sureq pop`: takes tasks and prints their receipts.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, value_parser};
use serde_json::json;
use sureq::{Error, Home, Refusal, Task};

use super::error::{CommandError, CommandResult};
use super::output::{Column, Output, field, id_field, name, preview};
use super::{Common, Make, Typed, lasting, time};
use crate::format::{many, number};
use crate::{exit, print};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PopArguments {
    /// The queues, in order: the next one is used when the one before is empty
    #[arg(required = true)]
    queues: Vec<Typed>,
    /// Largest number of tasks
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    count: u32,
    /// Wait up to this time for a task: 500ms, 30s, 5m, 1h [default: do not wait]
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait: Option<Duration>,
    /// Length of the lease; after that the task is requeued
    #[arg(long, value_name = "TIME", value_parser = lasting, default_value = "60s")]
    lease: Duration,
    /// Pop without a lease: until the task is finished or returned, unless the queue or its layout sets a lease
    #[arg(long, conflicts_with = "lease")]
    no_lease: bool,
    /// Finish the tasks at once: at-most-once delivery
    #[arg(long)]
    ack: bool,
    /// Print only the payload bytes, each followed by a line end
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  sureq pop emails                     print a receipt and a payload
  sureq ack emails RECEIPT             finish the task
  sureq pop urgent normal --wait 30s   from the first queue that has a task
  sureq pop emails --ack --raw         pop and finish

A pop without a lease may have no delivery number (on sureq://, and in the keys of other programs): the id then replaces
the receipt, and means the current delivery.

With --ack only tasks that are certainly finished are printed. Tasks that another client took meanwhile are counted. After
an error the receipts of the other tasks go to standard error. If a reply is lost, its tasks may be finished or may be
delivered again, and the exit code is 70.

Exits with 4 if there was no task.";

pub(crate) fn run(arguments: &PopArguments) -> ExitCode {
    arguments.common.run(Make::No, |home, output| pop(arguments, home, output))
}

async fn pop(arguments: &PopArguments, home: Home, mut output: Output) -> CommandResult {
    let pop = home.pop_from(&arguments.queues, arguments.count);
    let pop = if arguments.no_lease { pop.no_lease() } else { pop.lease(arguments.lease) };
    let tasks = pop.wait(arguments.wait.unwrap_or_default()).await.map_err(advised)?;
    if tasks.is_empty() {
        return Ok(exit::NOTHING_THERE.into());
    }
    // It is an error if the receipts of popped tasks cannot be printed.
    output.must_be_read();
    if !arguments.ack {
        write_tasks(arguments, &tasks.iter().collect::<Vec<_>>(), &mut output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Acked { finished, lost, unknown, unfinished, error } = ack(&home, &tasks).await;
    let whys = [(unknown, "not printed, since it may be delivered again"), (unfinished, "not finished")];
    for (tasks, why) in whys {
        for task in tasks {
            print::err(format_args!(
                "sureq: {why}: {} of {}",
                name(&handle_of(task)),
                name(task.queue_bytes())
            ));
        }
    }
    // After the receipts, which have to be named even if the output cannot be written.
    write_tasks(arguments, &finished, &mut output)?;
    if lost > 0 {
        print::err(format_args!("sureq: {} not finished: another client holds it now", many(lost, "task")));
    }
    match error {
        Some(error) => {
            Err(CommandError::Home(error).after(format!("{} printed", many(finished.len() as u64, "task"))))
        }
        None if finished.is_empty() => Ok(exit::NOTHING_THERE.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Adds advice if the home has no pop of this kind.
fn advised(error: Error) -> CommandError {
    let Error::Refused(Refusal::NotThere { what, place }) = &error else { return error.into() };
    let advice = match &**what {
        what if place.contains("worqr") && what.starts_with("POP") => {
            "tasks of this layout belong to a running worker: use `sureq work`"
        }
        what if what.starts_with("POP LEASE") => "use --no-lease",
        _ => return error.into(),
    };
    CommandError::Advised { error, advice: advice.to_owned() }
}

/// The delivery number, if the home counts deliveries.
fn delivery_of(task: &Task) -> Option<u32> {
    task.receipt().fence().map(|_| task.delivery())
}

/// The receipt, or the id if the home has no receipts.
fn handle_of(task: &Task) -> Vec<u8> {
    task.receipt().as_ref().to_vec()
}

/// The result of acking tasks.
struct Acked<'a> {
    finished: Vec<&'a Task>,
    /// Tasks that may be finished or not: the reply was lost.
    unknown: &'a [Task],
    /// Tasks that are not finished because of the error.
    unfinished: &'a [Task],
    /// Tasks whose delivery is no longer the current one.
    lost: u64,
    /// Why the rest was not finished. It is redelivered when its lease ends, if it has one.
    error: Option<sureq::Error>,
}

async fn ack<'a>(home: &Home, tasks: &'a [Task]) -> Acked<'a> {
    let mut acked = Acked { finished: Vec::new(), lost: 0, unknown: &[], unfinished: &[], error: None };
    let mut answered = 0;
    for of_one in tasks.chunk_by(|a, b| a.queue_bytes() == b.queue_bytes()) {
        let answers = home.queue(of_one[0].queue_bytes()).ack_all(of_one.iter().map(handle_of)).await;
        match answers {
            Ok(answers) => {
                let both = of_one.iter().zip(answers);
                acked.finished.extend(both.filter(|(_, is_finished)| *is_finished).map(|(task, _)| task));
                answered += of_one.len();
            }
            Err(error) => {
                let unknown = if error.is_unknown() { of_one.len() } else { 0 };
                (acked.unknown, acked.unfinished) = tasks[answered..].split_at(unknown);
                acked.error = Some(error);
                break;
            }
        }
    }
    acked.lost = (answered - acked.finished.len()) as u64;
    acked
}

fn write_tasks(arguments: &PopArguments, tasks: &[&Task], output: &mut Output) -> Result<(), CommandError> {
    if arguments.raw {
        for task in tasks {
            output.bytes(task.payload())?;
        }
    } else if output.is_json() {
        for task in tasks {
            output.object([
                field!("queue", task.queue_bytes()),
                id_field(&task.id()),
                field!("receipt", &handle_of(task)),
                ("delivery", json!(delivery_of(task))),
                field!("payload", task.payload()),
            ])?;
        }
    } else {
        let columns = [
            Column::Text("queue"),
            Column::Text("receipt"),
            Column::Number("delivery"),
            Column::Text("payload"),
        ];
        output.table(&columns, tasks.iter().map(|task| row(task)).collect())?;
    }
    output.flush()
}

fn row(task: &Task) -> Vec<String> {
    let delivery = delivery_of(task).map_or_else(|| "-".to_owned(), |delivery| number(delivery.into()));
    vec![name(task.queue_bytes()), name(&handle_of(task)), delivery, preview(task.payload())]
}
