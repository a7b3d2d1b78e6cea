//! `sureq pop`: takes tasks, and shows what it takes to finish them.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sureq::{Home, Task};

use super::shown::{Column, Shown, payload_fields, preview};
use super::trouble::Done;
use super::{Common, Make, time};
use crate::exit;
use crate::humane::number;

/// What `pop` can be told.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PopArguments {
    /// The queues: all that is wanted from the first, then the next
    #[arg(required = true)]
    queues: Vec<String>,
    /// How many tasks at most
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1)]
    count: u32,
    /// Wait so long for a task if there is none: 500ms, 30s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait: Option<Duration>,
    /// How long the task is yours; then it goes back unless it was finished
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "60s")]
    lease: Duration,
    /// Without a lease: the task is yours until it is finished or returned, or for as long as the queue's settings or the
    /// layout of its keys say
    #[arg(long, conflicts_with = "lease")]
    no_lease: bool,
    /// Finish the task at once: whatever becomes of it, it does not come again
    #[arg(long)]
    ack: bool,
    /// Print the payload and nothing else, byte for byte
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  sureq pop emails                     shows a receipt and a payload
  sureq ack emails RECEIPT             finishes it
  sureq pop urgent normal --wait 30s   from the first queue that has one, or gets one
  sureq pop emails --ack --raw         takes it for good

Exits with 4 if there was no task.";

pub(crate) fn run(arguments: &PopArguments) -> ExitCode {
    arguments.common.run(Make::No, |home, shown| pop(arguments, home, shown))
}

async fn pop(arguments: &PopArguments, home: Home, mut shown: Shown) -> Done {
    let pop = home.pop_from(&arguments.queues, arguments.count);
    let pop = if arguments.no_lease { pop.no_lease() } else { pop.lease(arguments.lease) };
    let tasks = pop.wait(arguments.wait.unwrap_or_default()).await?;
    if tasks.is_empty() {
        return Ok(exit::NOTHING_THERE.into());
    }
    if arguments.ack {
        for task in &tasks {
            task.ack().await?;
        }
    }
    if arguments.raw {
        for task in &tasks {
            shown.bytes(task.payload())?;
        }
    } else if shown.is_json() {
        for task in &tasks {
            shown.object([
                ("queue", json!(task.queue_name())),
                ("id", json!(task.id().to_string())),
                ("receipt", json!(task.receipt().to_string())),
                ("delivery", json!(task.delivery())),
                payload_fields(task.payload()),
            ])?;
        }
    } else {
        let columns = [
            Column::Text("queue"),
            Column::Text("receipt"),
            Column::Number("delivery"),
            Column::Text("payload"),
        ];
        shown.table(&columns, tasks.iter().map(row).collect())?;
    }
    shown.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn row(task: &Task) -> Vec<String> {
    let queue = super::shown::name(task.queue_bytes());
    vec![queue, task.receipt().to_string(), number(task.delivery().into()), preview(task.payload())]
}
