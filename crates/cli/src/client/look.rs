//! `sureq queues`, `stats`, `inspect` and `workers`: show queues, tasks and workers without changing them.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use sureq::{Error, Home, Info, QueueRow, Refusal, Seen, Settings, View};

use super::error::{CommandError, CommandResult};
use super::manage::{SettingText, settings_text};
use super::output::{Column, Output, field, id_field, name, or_null, preview};
use super::{Common, Make, Typed, confirm};
use crate::exit;
use crate::format::{duration, many, number, relative, size};

/// The states of a task, as values of `--state`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TaskState {
    Ready,
    Delayed,
    Leased,
    Dead,
}

impl TaskState {
    pub(super) const fn view(self) -> View {
        match self {
            Self::Ready => View::Ready,
            Self::Delayed => View::Delayed,
            Self::Leased => View::Leased,
            Self::Dead => View::Dead,
        }
    }

    /// The number of tasks of a queue in this state.
    pub(super) const fn count(self, info: &Info) -> u64 {
        match self {
            Self::Ready => info.ready,
            Self::Delayed => info.delayed,
            Self::Leased => info.leased,
            Self::Dead => info.dead,
        }
    }
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  sureq queues
  sureq queues 'emails*' --json")]
pub(crate) struct QueuesArguments {
    /// Only queues that match this pattern: emails*, h?llo, [ab]* [default: all]
    pattern: Option<Typed>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn queues(arguments: &QueuesArguments) -> ExitCode {
    arguments.common.run(Make::No, |home, output| list_queues(arguments, home, output))
}

async fn list_queues(arguments: &QueuesArguments, home: Home, mut output: Output) -> CommandResult {
    let pattern = arguments.pattern.as_ref().map(AsRef::as_ref);
    let mut rows: Vec<QueueRow> = home.queues(pattern).try_collect().await?;
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    let paused = paused_since(&home, &rows).await?;
    if output.is_json() {
        for (row, paused) in rows.iter().zip(paused) {
            let [ready, delayed, leased, dead] = row.counts;
            output.object([
                field!("name", &row.name),
                ("ready", json!(ready)),
                ("delayed", json!(delayed)),
                ("leased", json!(leased)),
                ("dead", json!(dead)),
                ("paused_at", json!(paused)),
            ])?;
        }
    } else if rows.is_empty() {
        output.line("no queue has tasks")?;
    } else {
        write_queues(&rows, &paused, &mut output)?;
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn write_queues(rows: &[QueueRow], paused: &[Option<u64>], output: &mut Output) -> Result<(), CommandError> {
    let mut columns = vec![
        Column::Text("queue"),
        Column::Number("ready"),
        Column::Number("delayed"),
        Column::Number("leased"),
        Column::Number("dead"),
    ];
    if paused.iter().any(Option::is_some) {
        columns.push(Column::Text("paused"));
    }
    let cells = rows.iter().zip(paused).map(|(row, since)| {
        let counts = row.counts.map(number);
        let paused = since.map(relative).unwrap_or_default();
        [name(&row.name)].into_iter().chain(counts).chain([paused]).take(columns.len()).collect()
    });
    output.table(&columns, cells.collect())
}

/// Concurrent requests for the pause of a queue.
const ASKED_AT_ONCE: usize = 64;

/// Since when each queue is paused, in unix milliseconds, which the list of queues does not contain.
async fn paused_since(home: &Home, rows: &[QueueRow]) -> Result<Vec<Option<u64>>, Error> {
    let queues: Vec<_> = rows.iter().map(|row| home.queue(&row.name)).collect();
    let asking = queues.into_iter().map(async |queue| Ok(queue.info().await?.paused.map(|since| since.0)));
    stream::iter(asking).buffered(ASKED_AT_ONCE).try_collect().await
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  sureq stats
  sureq stats emails --json | jq .oldest_ms")]
pub(crate) struct StatsArguments {
    /// The queues [default: a summary of all queues]
    queues: Vec<Typed>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn stats(arguments: &StatsArguments) -> ExitCode {
    arguments.common.run(Make::No, |home, output| write_stats(arguments, home, output))
}

async fn write_stats(arguments: &StatsArguments, home: Home, mut output: Output) -> CommandResult {
    if arguments.queues.is_empty() {
        write_totals(&home, &mut output).await?;
    }
    for (at, queue) in arguments.queues.iter().enumerate() {
        let info = home.queue(queue).info().await?;
        if output.is_json() {
            write_info_json(queue, &info, &mut output)?;
        } else {
            if at > 0 {
                output.line("")?;
            }
            write_info(queue, &info, &mut output)?;
        }
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

async fn write_totals(home: &Home, output: &mut Output) -> Result<(), CommandError> {
    let (mut queues, mut totals) = (0u64, [0u64; 4]);
    let mut rows = std::pin::pin!(home.queues(None));
    while let Some(row) = rows.try_next().await? {
        queues += 1;
        totals.iter_mut().zip(row.counts).for_each(|(total, n)| *total += n);
    }
    let workers = match home.workers().await {
        Ok(workers) => Some(workers.len() as u64),
        // Some homes have no workers.
        Err(Error::Refused(Refusal::NotThere { .. })) => None,
        Err(error) => return Err(error.into()),
    };
    let [ready, delayed, leased, dead] = totals;
    if output.is_json() {
        return output.object([
            ("queues", json!(queues)),
            ("ready", json!(ready)),
            ("delayed", json!(delayed)),
            ("leased", json!(leased)),
            ("dead", json!(dead)),
            ("workers", json!(workers)),
        ]);
    }
    output.line(format_args!(
        "{} with {}: {} ready, {} delayed, {} leased, {} dead{}",
        many(queues, "queue"),
        many(totals.iter().sum(), "task"),
        number(ready),
        number(delayed),
        number(leased),
        number(dead),
        workers.map_or(String::new(), |workers| format!("; {}", many(workers, "worker"))),
    ))
}

fn write_info(queue: &Typed, info: &Info, output: &mut Output) -> Result<(), CommandError> {
    output.line(format_args!("{:<14} {queue}", "queue"))?;
    let per_second = |tenths: u64| format!("{}.{} per second recently", number(tenths / 10), tenths % 10);
    if info.lengths_only {
        // The keys of other programs have only these two counts.
        for (name, count) in [("ready", info.ready), ("leased", info.leased)] {
            output.line(format_args!("{name:<14} {}", number(count)))?;
        }
        return Ok(());
    }
    let mut rows = vec![
        ("ready", number(info.ready)),
        ("delayed", number(info.delayed)),
        ("leased", number(info.leased)),
        ("dead", number(info.dead)),
        ("waiting bytes", size(info.waiting_bytes)),
        ("oldest waits", duration(Duration::from_millis(info.oldest_ms))),
        ("pushed", format!("{}, {}", number(info.pushed), per_second(info.pushed_of_late))),
        ("finished", format!("{}, {}", number(info.finished), per_second(info.finished_of_late))),
        ("workers", number(info.workers)),
    ];
    if let Some(since) = info.paused {
        rows.push(("paused", relative(since.0)));
    }
    let defaults = settings_text(&Settings::default());
    for (set, default) in settings_text(&info.settings).iter().zip(&defaults) {
        if set != default {
            rows.push(("setting", format!("{} {}", set.name, set.value())));
        }
    }
    for (name, value) in rows {
        output.line(format_args!("{name:<14} {value}"))?;
    }
    Ok(())
}

fn write_info_json(queue: &Typed, info: &Info, output: &mut Output) -> Result<(), CommandError> {
    // The keys of other programs have only lengths: the rest is null.
    let counted = |value: Value| if info.lengths_only { Value::Null } else { value };
    let settings: serde_json::Map<String, Value> =
        settings_text(&info.settings).iter().map(SettingText::field).collect();
    output.object([
        field!("queue", queue.as_ref()),
        ("ready", json!(info.ready)),
        ("delayed", counted(json!(info.delayed))),
        ("leased", json!(info.leased)),
        ("dead", counted(json!(info.dead))),
        ("waiting_bytes", counted(json!(info.waiting_bytes))),
        ("oldest_ms", counted(json!(info.oldest_ms))),
        ("paused_at", json!(info.paused.map(|since| since.0))),
        ("pushed", counted(json!(info.pushed))),
        ("finished", counted(json!(info.finished))),
        ("pushed_per_second", counted(json!(tenths(info.pushed_of_late)))),
        ("finished_per_second", counted(json!(tenths(info.finished_of_late)))),
        ("workers", counted(json!(info.workers))),
        ("settings", counted(Value::Object(settings))),
    ])
}

fn tenths(n: u64) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX)) / 10.0
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  sureq inspect emails
  sureq inspect emails --state dead -n 100
  sureq inspect emails --start -5       the last five")]
pub(crate) struct InspectArguments {
    /// The queue
    queue: Typed,
    /// State of the tasks
    #[arg(long, short, value_enum, default_value = "ready")]
    state: TaskState,
    /// Index of the first task; a negative one counts from the end
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    start: i64,
    /// Largest number of tasks
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20, value_parser = value_parser!(u32).range(1..))]
    count: u32,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn inspect(arguments: &InspectArguments) -> ExitCode {
    arguments.common.run(Make::No, |home, output| write_tasks(arguments, home, output))
}

async fn write_tasks(arguments: &InspectArguments, home: Home, mut output: Output) -> CommandResult {
    let queue = home.queue(&arguments.queue);
    let mut start = if arguments.start < 0 {
        // Counted from the end; all tasks if there are fewer.
        let tasks = arguments.state.count(&queue.info().await?);
        tasks.saturating_sub(arguments.start.unsigned_abs()).cast_signed()
    } else {
        arguments.start
    };
    let (columns, row) = columns_of(arguments.state);
    let (mut rows, mut wanted) = (Vec::new(), arguments.count);
    // A reply has a limited size: the rest comes with the next page.
    while wanted > 0 {
        let page = queue.inspect(arguments.state.view(), start, wanted).await?;
        if page.is_empty() {
            break;
        }
        start = start.saturating_add_unsigned(page.len() as u64);
        wanted = wanted.saturating_sub(page.len() as u32);
        if output.is_json() {
            page.iter().try_for_each(|task| write_task_json(arguments.state, task, &mut output))?;
        } else {
            rows.extend(page.iter().map(row));
        }
    }
    output.table(&columns, rows)?;
    output.flush()?;
    Ok(if wanted == arguments.count { exit::NOTHING_THERE.into() } else { ExitCode::SUCCESS })
}

type Row = fn(&Seen) -> Vec<String>;

fn columns_of(state: TaskState) -> (Vec<Column>, Row) {
    let (mut columns, row): (Vec<Column>, Row) = match state {
        TaskState::Ready => (vec![], |task| vec![task.id.to_string(), preview(task.payload.as_ref())]),
        TaskState::Delayed => (vec![Column::Text("due")], |task| {
            vec![task.id.to_string(), relative(task.at.0), preview(task.payload.as_ref())]
        }),
        TaskState::Leased => (vec![Column::Text("taken"), Column::Number("deliveries")], |task| {
            let taken = format!("{} ago", duration(task.elapsed.unwrap_or_default()));
            let deliveries = number(task.deliveries.unwrap_or_default().into());
            vec![task.id.to_string(), taken, deliveries, preview(task.payload.as_ref())]
        }),
        TaskState::Dead => {
            (vec![Column::Text("died"), Column::Number("tries"), Column::Text("reason")], |task| {
                let tries = task.more.as_ref().map(|more| more.tries).unwrap_or_default();
                let tries = u64::from(tries.failed) + u64::from(tries.lapsed) + u64::from(tries.lost);
                let reason = task.more.as_ref().and_then(|more| more.reason.as_deref()).map(preview);
                let (died, reason) = (relative(task.at.0), reason.unwrap_or_default());
                vec![task.id.to_string(), died, number(tries), reason, preview(task.payload.as_ref())]
            })
        }
    };
    columns.insert(0, Column::Text("id"));
    columns.push(Column::Text("payload"));
    (columns, row)
}

fn write_task_json(state: TaskState, task: &Seen, output: &mut Output) -> Result<(), CommandError> {
    let (id, payload) = (id_field(&task.id), field!("payload", task.payload.as_ref()));
    match state {
        TaskState::Ready => output.object([id, payload]),
        TaskState::Delayed => output.object([id, ("due", json!(task.at.0)), payload]),
        TaskState::Leased => output.object([
            id,
            ("taken_at", json!(task.at.0)),
            ("elapsed_ms", json!(task.elapsed.unwrap_or_default().as_millis() as u64)),
            ("deliveries", json!(task.deliveries)),
            payload,
        ]),
        TaskState::Dead => {
            let more = task.more.clone().unwrap_or_default();
            output.object([
                id,
                ("died_at", json!(task.at.0)),
                or_null!("reason", more.reason.as_deref()),
                ("failed", json!(more.tries.failed)),
                ("lapsed", json!(more.tries.lapsed)),
                ("lost", json!(more.tries.lost)),
                payload,
            ])
        }
    }
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  sureq workers
  sureq workers --fail mailer-1 --yes")]
pub(crate) struct WorkersArguments {
    /// Declare this worker lost and requeue its tasks
    #[arg(long, value_name = "NAME")]
    fail: Option<Typed>,
    /// Do not ask for confirmation
    #[arg(long, short, requires = "fail")]
    yes: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn workers(arguments: &WorkersArguments) -> ExitCode {
    arguments.common.run(Make::No, |home, output| list_workers(arguments, home, output))
}

async fn list_workers(arguments: &WorkersArguments, home: Home, mut output: Output) -> CommandResult {
    let workers = home.workers().await?;
    if let Some(lost) = &arguments.fail {
        let mut held =
            workers.iter().filter(|worker| *worker.name == *lost.as_ref()).map(|worker| worker.leased);
        let Some(held) = held.next() else {
            return Ok(exit::failed(exit::NOTHING_THERE, format_args!("no worker {lost}")));
        };
        let what = format!("This declares {lost} lost and requeues {}", many(held, "task"));
        if !confirm(&what, arguments.yes)? {
            return Err(CommandError::Usage("failed no worker".to_owned()));
        }
        let back = home.fail_worker(lost).await?;
        if output.is_json() {
            output.object([field!("worker", lost.as_ref()), ("requeued", json!(back))])?;
        } else {
            output.line(format_args!("{} requeued", many(back, "task")))?;
        }
    } else if output.is_json() {
        for worker in &workers {
            output.object([
                field!("name", &worker.name),
                ("incarnation", json!(worker.incarnation.to_string())),
                ("ttl_ms", json!(worker.ttl_ms)),
                ("leased", json!(worker.leased)),
            ])?;
        }
    } else if workers.is_empty() {
        output.line("no live workers")?;
    } else {
        let columns = [
            Column::Text("worker"),
            Column::Number("incarnation"),
            Column::Text("time to live"),
            Column::Number("tasks"),
        ];
        let rows = workers.iter().map(|worker| {
            let ttl = duration(Duration::from_millis(worker.ttl_ms));
            vec![name(&worker.name), worker.incarnation.to_string(), ttl, number(worker.leased)]
        });
        output.table(&columns, rows.collect())?;
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}
