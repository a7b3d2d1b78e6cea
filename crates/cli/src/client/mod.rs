//! The client commands: each opens a home by its URL, sends its request, prints the answer and closes the home.
//!
//! * `push`, `pop`: tasks in, tasks out. `finish`: ack, extend, return, cancel, bury and delete.
//! * `look`: queues, stats, inspect and workers. `explain`: why a task does not run. `manage`: pause, resume, config,
//!   revive and purge. `work`: a program for each task; `until_empty`: its end when the queues are empty. `bench`.
//! * `output`: tables and JSON. `error`: errors and their exit codes.

pub(crate) mod bench;
pub(crate) mod explain;
pub(crate) mod finish;
pub(crate) mod look;
pub(crate) mod manage;
pub(crate) mod pop;
pub(crate) mod push;
pub(crate) mod work;

mod error;
mod output;
mod until_empty;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use sureq::Home;

use crate::format::{many, number};
use crate::{exit, print};
use error::{CommandError, CommandResult};
use output::{Output, field};

/// The arguments of all client commands.
#[derive(Args)]
pub(crate) struct Common {
    /// Home of the queue: `sureq://HOST:PORT`, `file:DIR`, `redis://HOST:PORT`
    #[arg(
        long,
        value_name = "URL",
        env = "SUREQ_HOME",
        hide_env_values = true,
        default_value = "sureq://127.0.0.1:7379"
    )]
    home: String,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

/// A name or a payload from the command line: any bytes.
#[derive(Clone, Debug)]
struct Typed(Vec<u8>);

impl From<OsString> for Typed {
    fn from(text: OsString) -> Self {
        Self(text.into_encoded_bytes())
    }
}

impl AsRef<[u8]> for Typed {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&output::name(&self.0))
    }
}

/// Whether a command may create the store that its URL names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Make {
    /// The first task creates its queue, and so the store.
    Yes,
    /// A missing store is an error.
    No,
    /// The store is created, and may be `mem:`, which ends with the command.
    Briefly,
}

impl Common {
    /// Opens the home, runs the command in it, and closes it.
    fn run<F: Future<Output = CommandResult>>(
        &self,
        make: Make,
        command: impl FnOnce(Home, Output) -> F,
    ) -> ExitCode {
        error::code(self.try_run(make, command))
    }

    fn try_run<F: Future<Output = CommandResult>>(
        &self,
        make: Make,
        command: impl FnOnce(Home, Output) -> F,
    ) -> Result<ExitCode, CommandError> {
        let home = self.open(make)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(CommandError::System)?;
        let done = runtime.block_on(command(home.clone(), Output::new(self.json)));
        home.close().map_err(CommandError::Broken)?;
        done
    }

    fn open(&self, make: Make) -> Result<Home, CommandError> {
        if self.home.starts_with("mem:") && make != Make::Briefly {
            let why = "cannot open mem: it would end with this command; for a queue in memory, run `sureq serve --home \
                       mem:` and use that server";
            return Err(CommandError::Usage(why.to_owned()));
        }
        if let Some(dir) = sureq::directory_of(&self.home)
            && make == Make::No
            && !dir.join("store").exists()
        {
            return Err(CommandError::NoStore(dir.display().to_string()));
        }
        let home = sureq::open(&self.home).map_err(CommandError::Open)?;
        for warning in home.warnings() {
            print::notice(warning);
        }
        Ok(home)
    }
}

/// The longest time that homes accept.
const TIME_MAX: Duration = Duration::from_millis(sureq::limits::SPAN_MS_MAX);

/// Parses a time with its unit: 500ms, 30s, 5m, 1h, 2d.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|_| "write a number with its unit: 500ms, 30s, 5m, 1h, 2d".to_owned())?;
    if time > TIME_MAX {
        return Err(format!("write at most {}d", TIME_MAX.as_secs() / 86_400));
    }
    Ok(time)
}

/// Parses a time longer than zero.
fn lasting(text: &str) -> Result<Duration, String> {
    let time = time(text)?;
    if time.is_zero() { Err("write a time longer than 0".to_owned()) } else { Ok(time) }
}

/// The list without repetitions, so that counts of changes can be compared with its length.
fn distinct(list: &[Typed]) -> Vec<&[u8]> {
    let mut seen = HashSet::new();
    list.iter().map(AsRef::as_ref).filter(|name| seen.insert(*name)).collect()
}

/// Prints the number of affected tasks, in JSON under `field_name`. Exits with 4 if that is fewer than `asked`.
fn write_count(
    output: &mut Output,
    queue: &Typed,
    (field_name, word): (&str, &str),
    count: u64,
    asked: u64,
) -> CommandResult {
    if output.is_json() {
        output.object([field!("queue", queue.as_ref()), (field_name, count.into())])?;
    } else if count > 0 && count < asked {
        output.line(format_args!("{} of {} {word}", number(count), many(asked, "task")))?;
    } else {
        output.line(format_args!("{} {word}", many(count, "task")))?;
    }
    output.flush()?;
    Ok(if count < asked.max(1) { exit::NOTHING_THERE.into() } else { ExitCode::SUCCESS })
}

/// Asks for a confirmation; an error if standard input is not a terminal.
fn confirm(what: &str, is_yes: bool) -> Result<bool, CommandError> {
    if is_yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(CommandError::Unconfirmed(what.to_owned()));
    }
    eprint!("{what}. Continue? [y/N] ");
    io::stderr().flush().map_err(CommandError::System)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(CommandError::System)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
