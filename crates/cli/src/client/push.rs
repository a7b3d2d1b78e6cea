//! `sureq push`: pushes tasks from arguments, files, or lines of standard input.

use std::io::{BufRead as _, BufReader, IsTerminal as _, Read as _, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::json;
use sureq::{Added, Home, Id, Queue, limits};

use super::error::{self, CommandError, CommandResult};
use super::output::{Output, field, id_field};
use super::{Common, Make, Typed, lasting, time};
use crate::format::{many, number};
use crate::progress::Bar;

/// A batch of lines is pushed when it reaches one of these.
const BATCH_TASKS: usize = 1_000;
const BATCH_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;
/// The longest line that is read: one byte more than a payload may have, and the line end.
const LINE_BYTES_MAX: u64 = limits::PAYLOAD_BYTES_MAX as u64 + 2;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PushArguments {
    /// The queue; the first push creates it
    queue: Typed,
    /// Payloads, one task each [default, without --file: one task per line of standard input]
    payloads: Vec<Typed>,
    /// Push the contents of this file as one task; - is standard input
    #[arg(long = "file", short, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    options: TaskOptions,
    /// Print the id of each task, also for tasks from standard input
    #[arg(long)]
    ids: bool,
    #[command(flatten)]
    common: Common,
}

/// The options of each task.
#[derive(Args)]
struct TaskOptions {
    /// Do not deliver it before this time has passed: 500ms, 30s, 5m, 1h, 2d
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "at")]
    delay: Option<Duration>,
    /// Do not deliver it before this point in time: 2030-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = at)]
    at: Option<SystemTime>,
    /// Name of the task; nothing is added if the queue has a task of this name. For one task only
    #[arg(long, conflicts_with = "unique")]
    name: Option<Typed>,
    /// Add nothing if the queue has a unique task with this payload
    #[arg(long)]
    unique: bool,
    /// Priority from -128 to 127, larger first [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i8>,
    /// Tries before the task is dead [default: of the queue]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tries: Option<u32>,
    /// Wait after the first failure; it doubles with each further one [default: of the queue]
    #[arg(long, value_name = "TIME", value_parser = lasting)]
    backoff: Option<Duration>,
    /// Longest time that the task may wait before it expires [default: of the queue]
    #[arg(long, value_name = "TIME", value_parser = lasting)]
    ttl: Option<Duration>,
}

impl TaskOptions {
    const fn is_plain(&self) -> bool {
        self.delay.is_none()
            && self.at.is_none()
            && self.name.is_none()
            && !self.unique
            && self.priority.is_none()
            && self.tries.is_none()
            && self.backoff.is_none()
            && self.ttl.is_none()
    }
}

const EXAMPLES: &str = "\
Examples:
  sureq push emails 'to: ann' 'to: bob'       two tasks
  sureq push reports --file january.json      one task from a file
  seq 1000000 | sureq push numbers            one task per line
  sureq push emails 'to: ann' --delay 1h --name ann --tries 3

Up to 10,000 payloads in arguments are one push, which adds all of them or none; more are several pushes. Lines are
pushed in batches of up to a thousand, without waiting for a batch to fill. A closed pipe (`| head`) ends the printing
of ids, not the pushing. After an error the number of confirmed tasks is printed.

A task whose name (--name) or payload (--unique) exists already is not added: each is reported, or counted for lines, and
the exit code is 0.";

fn at(text: &str) -> Result<SystemTime, String> {
    humantime::parse_rfc3339_weak(text).map_err(|_| "write a time like 2030-01-31T12:00:00Z".to_owned())
}

pub(crate) fn run(arguments: &PushArguments) -> ExitCode {
    // Invalid arguments must not create a store.
    match arguments.payloads_to_push() {
        Ok(payloads) => {
            arguments.common.run(Make::Yes, |home, output| push(arguments, payloads, home, output))
        }
        Err(error) => error::code(Err(error)),
    }
}

impl PushArguments {
    /// The payloads of arguments and files; none if the lines of standard input are pushed.
    fn payloads_to_push(&self) -> Result<Option<Vec<Vec<u8>>>, CommandError> {
        let given = self.payloads.len() + self.files.len();
        if self.options.name.is_some() && given > 1 {
            let why = format!("--name is for one task, but {given} are given: push them one by one");
            return Err(CommandError::Usage(why));
        }
        if given == 0 {
            return self.check_standard_input().map(|()| None);
        }
        if self.files.iter().filter(|file| is_stdin(file)).count() > 1 {
            return Err(CommandError::Usage(
                "standard input can be read only once: use `--file -` once".to_owned(),
            ));
        }
        let mut payloads: Vec<Vec<u8>> = self.payloads.iter().map(|payload| payload.0.clone()).collect();
        for file in &self.files {
            payloads.push(read_file(file)?);
        }
        Ok(Some(payloads))
    }

    fn check_standard_input(&self) -> Result<(), CommandError> {
        if stdin().is_terminal() {
            let why = "nothing to push: give payloads, --file FILE, or lines on standard input".to_owned();
            return Err(CommandError::Usage(why));
        }
        if self.options.name.is_some() {
            return Err(CommandError::Usage(
                "--name is for one task, and standard input may have many".to_owned(),
            ));
        }
        Ok(())
    }
}

async fn push(
    arguments: &PushArguments,
    payloads: Option<Vec<Vec<u8>>>,
    home: Home,
    mut output: Output,
) -> CommandResult {
    let queue = home.queue(&arguments.queue);
    output.go_on_unread();
    let Some(payloads) = payloads else {
        return push_lines(arguments, &queue, &mut output).await;
    };
    let mut counts = Counts::default();
    for some in payloads.chunks(limits::PUSH_TASKS_MAX) {
        let pushed = push_batch(&arguments.options, &queue, some, &mut counts, Some(&mut output)).await;
        // Without options a push is atomic: if it is the first one, nothing was pushed.
        pushed.map_err(|error| if counts.total() > 0 { error.after(counts.confirmed()) } else { error })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The results so far.
#[derive(Default)]
struct Counts {
    pushed: u64,
    /// Payloads that were not added, since the queue has a task with their name or payload.
    already_there: u64,
}

impl Counts {
    const fn total(&self) -> u64 {
        self.pushed + self.already_there
    }

    fn pushed(&self) -> String {
        format!("{} pushed{}", many(self.pushed, "task"), self.rest())
    }

    /// The text for a push that failed later.
    fn confirmed(&self) -> String {
        format!("{} confirmed{}", many(self.pushed, "task"), self.rest())
    }

    fn rest(&self) -> String {
        match self.already_there {
            0 => String::new(),
            1 => ", 1 already existed".to_owned(),
            n => format!(", {} already existed", number(n)),
        }
    }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn read_file(path: &Path) -> Result<Vec<u8>, CommandError> {
    if is_stdin(path) {
        let mut bytes = Vec::new();
        return match stdin().lock().read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(CommandError::reading("standard input", error)),
        };
    }
    std::fs::read(path).map_err(|error| CommandError::reading(&path.display().to_string(), error))
}

async fn add(options: &TaskOptions, queue: &Queue, payload: &[u8]) -> Result<Added, CommandError> {
    let mut add = queue.add(payload);
    if let Some(delay) = options.delay {
        add = add.delay(delay);
    }
    if let Some(at) = options.at {
        add = add.at(at);
    }
    if let Some(name) = &options.name {
        add = add.name(name);
    }
    if options.unique {
        add = add.unique();
    }
    if let Some(priority) = options.priority {
        add = add.priority(priority);
    }
    if let Some(tries) = options.tries {
        add = add.tries(tries);
    }
    if let Some(backoff) = options.backoff {
        add = add.backoff(backoff);
    }
    if let Some(ttl) = options.ttl {
        add = add.ttl(ttl);
    }
    Ok(add.await?)
}

fn write_task(output: &mut Output, queue: &Queue, id: &Id, is_added: bool) -> Result<(), CommandError> {
    if output.is_json() {
        output.object([field!("queue", queue.name_bytes()), id_field(id), ("added", json!(is_added))])
    } else if id.as_ref().is_empty() {
        // In the keys of other programs, tasks may have no ids.
        output.line(if is_added { "pushed" } else { "already exists" })
    } else if is_added {
        output.line(id)
    } else {
        output.line(format_args!("{id} already exists"))
    }
}

async fn push_lines(arguments: &PushArguments, queue: &Queue, output: &mut Output) -> CommandResult {
    let bar = Bar::counting("pushed");
    // Larger than the buffer of standard input, so that this buffer shows whether another line is available.
    let mut input = BufReader::with_capacity(READ_BYTES, stdin().lock());
    let (mut batch, mut bytes, mut counts) = (Vec::new(), 0, Counts::default());
    loop {
        let mut line = Vec::new();
        // The home refuses a line beyond the limit: no need to read all of it.
        let mut limited = input.by_ref().take(LINE_BYTES_MAX);
        let read = limited
            .read_until(b'\n', &mut line)
            .map_err(|error| CommandError::reading("standard input", error).after(counts.confirmed()))?;
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if read > 0 {
            bytes += line.len();
            batch.push(line);
        }
        // Push now if the next line is not available yet.
        let is_last = read == 0 || !input.buffer().contains(&b'\n');
        let is_full = batch.len() >= BATCH_TASKS || bytes >= BATCH_BYTES;
        if !batch.is_empty() && (is_full || is_last) {
            let ids = arguments.ids.then_some(&mut *output);
            let done = push_batch(&arguments.options, queue, &batch, &mut counts, ids).await;
            // Needed for pushing the rest of the file.
            done.map_err(|error| error.after(counts.confirmed()))?;
            bar.at(counts.total());
            batch.clear();
            bytes = 0;
        }
        if read == 0 {
            break;
        }
    }
    drop(bar);
    if !arguments.ids {
        if output.is_json() {
            output.object([
                field!("queue", queue.name_bytes()),
                ("pushed", json!(counts.pushed)),
                ("already_there", json!(counts.already_there)),
            ])?;
        } else {
            output.line(counts.pushed())?;
        }
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Pushes payloads, counts them, and prints their ids to `output`, if there is one.
async fn push_batch(
    options: &TaskOptions,
    queue: &Queue,
    batch: &[Vec<u8>],
    counts: &mut Counts,
    mut output: Option<&mut Output>,
) -> Result<(), CommandError> {
    if options.is_plain() {
        let ids = queue.push_all(batch).await?;
        counts.pushed += batch.len() as u64;
        if let Some(output) = &mut output {
            ids.iter().try_for_each(|id| write_task(output, queue, id, true))?;
        }
    } else {
        for payload in batch {
            let one = add(options, queue, payload).await?;
            *(if one.added { &mut counts.pushed } else { &mut counts.already_there }) += 1;
            if let Some(output) = &mut output {
                write_task(output, queue, &one.id, one.added)?;
            }
        }
    }
    output.map_or(Ok(()), Output::flush)
}
