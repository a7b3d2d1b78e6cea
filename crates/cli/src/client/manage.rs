//! `sureq pause`, `resume`, `config`, `revive` and `purge`: queues as a whole.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use sureq::{Changes, Home, Info, SettingWords, Settings};

use super::look::State;
use super::shown::{Shown, name};
use super::trouble::{Done, Trouble};
use super::{Common, Make, is_sure};
use crate::exit;
use crate::humane::many;
use crate::progress::Bar;

/// What `pause` and `resume` can be told.
#[derive(Args)]
pub(crate) struct PauseArguments {
    /// The queues
    #[arg(required = true)]
    queues: Vec<String>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn pause(arguments: &PauseArguments) -> ExitCode {
    arguments.common.run(Make::No, async |home: Home, mut shown| {
        for queue in &arguments.queues {
            home.queue(queue).pause().await?;
            tell(&mut shown, queue, "paused")?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

pub(crate) fn resume(arguments: &PauseArguments) -> ExitCode {
    arguments.common.run(Make::No, async |home: Home, mut shown| {
        for queue in &arguments.queues {
            home.queue(queue).resume().await?;
            tell(&mut shown, queue, "resumed")?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn tell(shown: &mut Shown, queue: &str, what: &str) -> Result<(), Trouble> {
    if shown.is_json() {
        shown.object([("queue", json!(queue)), (what, json!(true))])?;
    } else {
        shown.line(format_args!("{queue} is {what}"))?;
    }
    shown.flush()
}

/// What `config` can be told.
#[derive(Args)]
#[command(after_help = "\
Settings, with 0 or nothing for the default:
  lease, backoff, ttl          times: 500ms, 30s, 5m, 1h, 2d
  tries                        how often a task is tried before it is dead
  max-length, max-bytes        of what waits; a push beyond is refused, or the oldest dropped:
  overflow                     refuse or drop-oldest
  max-leased                   how many tasks may be with workers at once
  expired                      what becomes of a task past its ttl: delete or dead
  dead-letter                  the queue that dying tasks move to

Example:
  sureq config emails tries=5 backoff=10s dead-letter=emails-dead")]
pub(crate) struct ConfigArguments {
    /// The queue
    queue: String,
    /// What to change; without any, the settings are shown
    #[arg(value_name = "NAME=VALUE")]
    changes: Vec<String>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn config(arguments: &ConfigArguments) -> ExitCode {
    arguments.common.run(Make::Yes, |home, shown| configure(arguments, home, shown))
}

async fn configure(arguments: &ConfigArguments, home: Home, mut shown: Shown) -> Done {
    let words = arguments.changes.iter().map(|change| words_of(change)).collect::<Result<Vec<_>, _>>()?;
    let words: Vec<&[u8]> =
        words.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]).collect();
    let changes = SettingWords::read(&words).map_err(|bad| Trouble::Usage(bad.to_string()))?;
    let settings = home.queue(&arguments.queue).configure(Changes::Words(changes)).await?;
    let words = settings_words(&settings);
    if shown.is_json() {
        let fields = words.into_iter().map(|(name, value)| (name, Value::from(value)));
        shown.line(Value::Object(fields.collect()))?;
    } else {
        for (name, value) in words {
            let value = if value.is_empty() { "none".to_owned() } else { value };
            shown.line(format_args!("{name:<12} {value}"))?;
        }
    }
    shown.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// `tries=5` as a name and a value; a time may have its unit.
fn words_of(change: &str) -> Result<(String, String), Trouble> {
    let Some((name, value)) = change.split_once('=') else {
        return Err(Trouble::Usage(format!("{change:?}: write NAME=VALUE, like tries=5")));
    };
    let is_time = ["lease", "backoff", "ttl"].iter().any(|time| name.eq_ignore_ascii_case(time));
    let value = match humantime::parse_duration(value) {
        Ok(time) if is_time => time.as_millis().to_string(),
        _ => value.to_owned(),
    };
    Ok((name.to_owned(), value))
}

/// The settings as names and values, times in milliseconds.
pub(super) fn settings_words(settings: &Settings) -> Vec<(String, String)> {
    let value = |shown| match shown {
        sureq::Shown::Number(n) => n.to_string(),
        sureq::Shown::Word(word) => name(word),
    };
    let names = SettingWords::NAMES.iter().map(|name| name.to_ascii_lowercase());
    names.zip(settings.shown()).map(|(name, shown)| (name, value(shown))).collect()
}

/// What `revive` can be told.
#[derive(Args)]
pub(crate) struct ReviveArguments {
    /// The queue
    queue: String,
    /// The ids of dead tasks
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<String>,
    /// All dead tasks
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn revive(arguments: &ReviveArguments) -> ExitCode {
    arguments.common.run(Make::No, |home, shown| bring_back(arguments, home, shown))
}

async fn bring_back(arguments: &ReviveArguments, home: Home, mut shown: Shown) -> Done {
    let queue = home.queue(&arguments.queue);
    let revived = if arguments.all {
        let dead = many(queue.info().await?.dead, "dead task");
        let what = format!("This brings {dead} of {} back to the end of the line", arguments.queue);
        if !is_sure(&what, arguments.yes)? {
            return Err(Trouble::Usage("nothing was done".to_owned()));
        }
        queue.revive_all().await?
    } else {
        queue.revive(&arguments.ids).await?
    };
    tell_count(&mut shown, &arguments.queue, "revived", revived)
}

/// What `purge` can be told.
#[derive(Args)]
pub(crate) struct PurgeArguments {
    /// The queue
    queue: String,
    /// Only tasks of this state; without it, ready, delayed and dead ones
    #[arg(long, short, value_enum)]
    state: Option<State>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn purge(arguments: &PurgeArguments) -> ExitCode {
    arguments.common.run(Make::No, |home, shown| remove(arguments, home, shown))
}

async fn remove(arguments: &PurgeArguments, home: Home, mut shown: Shown) -> Done {
    if arguments.state == Some(State::Leased) {
        let why = "leased tasks are with their workers: cancel them, or wait for them".to_owned();
        return Err(Trouble::Usage(why));
    }
    let queue = home.queue(&arguments.queue);
    let doomed = doomed(&queue.info().await?, arguments.state);
    let what = format!("This removes {} of {} for good", many(doomed, "task"), arguments.queue);
    if !is_sure(&what, arguments.yes)? {
        return Err(Trouble::Usage("nothing was done".to_owned()));
    }
    let bar = Bar::waiting(&format!("removing {}", many(doomed, "task")));
    let removed = queue.purge(arguments.state.map(State::view)).await?;
    drop(bar);
    tell_count(&mut shown, &arguments.queue, "removed", removed)
}

const fn doomed(info: &Info, state: Option<State>) -> u64 {
    match state {
        None => info.ready + info.delayed + info.dead,
        Some(State::Ready) => info.ready,
        Some(State::Delayed) => info.delayed,
        Some(State::Dead) => info.dead,
        Some(State::Leased) => 0,
    }
}

fn tell_count(shown: &mut Shown, queue: &str, what: &str, count: u64) -> Done {
    if shown.is_json() {
        shown.object([("queue", json!(queue)), (what, json!(count))])?;
    } else {
        shown.line(format_args!("{} {what}", many(count, "task")))?;
    }
    shown.flush()?;
    Ok(if count == 0 { exit::NOTHING_THERE.into() } else { ExitCode::SUCCESS })
}
