//! `sureq pause`, `resume`, `config`, `revive` and `purge`: change whole queues.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use sureq::{Changes, Error, Home, Info, Refusal, SettingWords, Settings};

use super::error::{CommandError, CommandResult};
use super::look::TaskState;
use super::output::{Output, field, on_one_line, text_or_base64};
use super::{Common, Make, Typed, confirm, distinct, time, write_count};
use crate::exit;
use crate::format::many;
use crate::progress::Bar;

#[derive(Args)]
#[command(after_help = "\
Leased tasks are not affected by a pause.

Examples:
  sureq pause emails invoices
  sureq resume emails invoices")]
pub(crate) struct PauseArguments {
    /// The queues
    #[arg(required = true)]
    queues: Vec<Typed>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn pause(arguments: &PauseArguments) -> ExitCode {
    arguments.common.run(Make::No, async |home: Home, mut output| {
        for queue in &arguments.queues {
            home.queue(queue).pause().await?;
            write_state(&mut output, queue, "paused")?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

pub(crate) fn resume(arguments: &PauseArguments) -> ExitCode {
    arguments.common.run(Make::No, async |home: Home, mut output| {
        for queue in &arguments.queues {
            home.queue(queue).resume().await?;
            write_state(&mut output, queue, "resumed")?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn write_state(output: &mut Output, queue: &Typed, what: &str) -> Result<(), CommandError> {
    if output.is_json() {
        output.object([field!("queue", queue.as_ref()), (what, json!(true))])?;
    } else {
        output.line(format_args!("{queue} is {what}"))?;
    }
    output.flush()
}

#[derive(Args)]
#[command(after_help = "\
Settings; 0 restores the default of a time or a number, and dead-letter= removes that queue:
  lease, backoff, ttl          times with their unit: 500ms, 30s, 5m, 1h, 2d
  tries                        tries before a task is dead
  max-length, max-bytes        limits of waiting tasks; a push beyond is refused, or the oldest dropped:
  overflow                     refuse (default) or drop-oldest
  max-leased                   tasks that may be leased at once
  expired                      after its ttl a task is deleted or dead: delete (default) or dead
  dead-letter                  the queue that dying tasks move to

Example:
  sureq config emails tries=5 backoff=10s dead-letter=emails-dead")]
pub(crate) struct ConfigArguments {
    /// The queue
    queue: Typed,
    /// Settings to change [default: show all settings]
    #[arg(value_name = "NAME=VALUE")]
    changes: Vec<Typed>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn config(arguments: &ConfigArguments) -> ExitCode {
    // Showing settings must not create a store.
    let make = if arguments.changes.is_empty() { Make::No } else { Make::Yes };
    arguments.common.run(make, |home, output| configure(arguments, home, output))
}

async fn configure(arguments: &ConfigArguments, home: Home, mut output: Output) -> CommandResult {
    let words = arguments.changes.iter().map(name_and_value).collect::<Result<Vec<_>, _>>()?;
    let words: Vec<&[u8]> =
        words.iter().flat_map(|(name, value)| [name.as_slice(), value.as_slice()]).collect();
    let changes = SettingWords::read(&words).map_err(|bad| CommandError::Usage(bad.to_string()))?;
    let settings = home.queue(&arguments.queue).configure(Changes::Words(changes)).await?;
    let words = settings_text(&settings);
    if output.is_json() {
        output.line(Value::Object(words.iter().map(SettingText::field).collect()))?;
    } else {
        for word in words {
            output.line(format_args!("{:<12} {}", word.name, word.value()))?;
        }
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The settings that are times; homes store milliseconds.
const TIMES: [&str; 3] = ["lease", "backoff", "ttl"];

/// Splits `tries=5` into name and value, and converts times to milliseconds.
fn name_and_value(change: &Typed) -> Result<(Vec<u8>, Vec<u8>), CommandError> {
    let mut parts = change.as_ref().splitn(2, |&byte| byte == b'=');
    let (Some(name), Some(value)) = (parts.next(), parts.next()) else {
        return Err(CommandError::Usage(format!("{:?}: write NAME=VALUE, like tries=5", change.to_string())));
    };
    if !TIMES.iter().any(|time| name.eq_ignore_ascii_case(time.as_bytes())) {
        return Ok((name.to_vec(), value.to_vec()));
    }
    let text = if value.is_empty() { "0" } else { str::from_utf8(value).unwrap_or_default() };
    let span = time(text).map_err(|why| CommandError::Usage(format!("{change}: {why}")))?;
    // A time below a millisecond becomes one, since 0 means the default.
    let ms = span.as_millis().max(u128::from(!span.is_zero()));
    Ok((name.to_vec(), ms.to_string().into_bytes()))
}

#[derive(PartialEq, Eq)]
pub(super) struct SettingText {
    pub(super) name: String,
    value: Vec<u8>,
}

impl SettingText {
    /// The value in the form in which it can be set.
    pub(super) fn value(&self) -> String {
        match on_one_line(&self.value) {
            value if value.is_empty() => "none".to_owned(),
            value if value != "0" && TIMES.contains(&&*self.name) => format!("{value}ms"),
            value => value,
        }
    }

    /// The JSON field; times are milliseconds.
    pub(super) fn field(&self) -> (String, Value) {
        let base64_name = format!("{}_base64", self.name);
        let (name, value) = text_or_base64(&self.name, &base64_name, &self.value);
        (name.to_owned(), value)
    }
}

pub(super) fn settings_text(settings: &Settings) -> Vec<SettingText> {
    let text = |value| match value {
        sureq::SettingValue::Number(n) => n.to_string().into_bytes(),
        sureq::SettingValue::Word(word) => word.to_vec(),
    };
    let names = SettingWords::NAMES.iter().map(|name| name.to_ascii_lowercase());
    names.zip(settings.values()).map(|(name, value)| SettingText { name, value: text(value) }).collect()
}

#[derive(Args)]
#[command(after_help = "\
Revived tasks go to the back of the queue, with all their tries.

Examples:
  sureq revive emails 1764000000000-1
  sureq revive emails --all --yes")]
pub(crate) struct ReviveArguments {
    /// The queue
    queue: Typed,
    /// The ids of dead tasks
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<Typed>,
    /// All dead tasks
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn revive(arguments: &ReviveArguments) -> ExitCode {
    arguments.common.run(Make::No, |home, output| revive_tasks(arguments, home, output))
}

async fn revive_tasks(arguments: &ReviveArguments, home: Home, mut output: Output) -> CommandResult {
    let (queue, ids) = (home.queue(&arguments.queue), distinct(&arguments.ids));
    let revived = if arguments.all {
        let dead = many(queue.info().await?.dead, "dead task");
        let what = format!("This revives {dead} of {}", arguments.queue);
        if !confirm(&what, arguments.yes)? {
            return Err(CommandError::Usage("revived nothing".to_owned()));
        }
        queue.revive_all().await?
    } else {
        queue.revive(&ids).await?
    };
    let asked = if arguments.all { revived } else { ids.len() as u64 };
    write_count(&mut output, &arguments.queue, ("revived", "revived"), revived, asked)
}

/// The states whose tasks can be purged. Leased tasks belong to their workers.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Purged {
    Ready,
    Delayed,
    Dead,
}

impl Purged {
    const fn state(self) -> TaskState {
        match self {
            Self::Ready => TaskState::Ready,
            Self::Delayed => TaskState::Delayed,
            Self::Dead => TaskState::Dead,
        }
    }
}

#[derive(Args)]
#[command(after_help = "\
Leased tasks stay with their workers: cancel them, wait for them, or remove the queue with --drop.

Examples:
  sureq purge emails                 ready, delayed and dead tasks
  sureq purge emails --state dead
  sureq purge emails --drop          the whole queue")]
pub(crate) struct PurgeArguments {
    /// The queue
    queue: Typed,
    /// Only tasks in this state [default: ready, delayed and dead]
    #[arg(long, short, value_enum)]
    state: Option<Purged>,
    /// Remove the whole queue: leased tasks, settings and pause too
    #[arg(long, conflicts_with = "state")]
    drop: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn purge(arguments: &PurgeArguments) -> ExitCode {
    arguments.common.run(Make::No, |home, output| remove(arguments, home, output))
}

async fn remove(arguments: &PurgeArguments, home: Home, mut output: Output) -> CommandResult {
    let (queue, state) = (home.queue(&arguments.queue), arguments.state.map(Purged::state));
    let info = queue.info().await?;
    let affected = affected(&info, state) + if arguments.drop { info.leased } else { 0 };
    let whole = if arguments.drop { "the queue with " } else { "" };
    let what = format!("This permanently removes {whole}{} of {}", many(affected, "task"), arguments.queue);
    if !confirm(&what, arguments.yes)? {
        return Err(CommandError::Usage("removed nothing".to_owned()));
    }
    let bar = Bar::waiting(&format!("removing {}", many(affected, "task")));
    if arguments.drop {
        let dropped = home.drop_queues(&[arguments.queue.as_ref()]).await?;
        drop(bar);
        return write_dropped(&mut output, &arguments.queue, dropped > 0);
    }
    let removed = queue.purge(state.map(TaskState::view)).await.map_err(advised)?;
    drop(bar);
    write_count(&mut output, &arguments.queue, ("removed", "removed"), removed, removed)
}

/// Adds advice if the home cannot remove tasks by state.
fn advised(error: Error) -> CommandError {
    match &error {
        Error::Refused(Refusal::NotThere { what, .. }) if what.starts_with("PURGE") => {
            let advice = "use `sureq purge --drop`, which removes leased tasks too".to_owned();
            CommandError::Advised { error, advice }
        }
        _ => error.into(),
    }
}

/// Prints the result of a drop. A queue without tasks counts as missing, but its settings and its pause are removed.
fn write_dropped(output: &mut Output, queue: &Typed, had_tasks: bool) -> CommandResult {
    if output.is_json() {
        output.object([field!("queue", queue.as_ref()), ("dropped", json!(had_tasks))])?;
    } else if had_tasks {
        output.line(format_args!("{queue} is removed"))?;
    } else {
        output.line(format_args!("{queue} had no tasks; its settings are removed"))?;
    }
    output.flush()?;
    Ok(if had_tasks { ExitCode::SUCCESS } else { exit::NOTHING_THERE.into() })
}

const fn affected(info: &Info, state: Option<TaskState>) -> u64 {
    match state {
        None => info.ready + info.delayed + info.dead,
        Some(state) => state.count(info),
    }
}
