//! `sureq push`: tasks from the command line, from files, or one per line of standard input.

use std::io::{BufRead as _, BufReader, IsTerminal as _, Read as _, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::json;
use sureq::{Added, Home, Id, Queue};

use super::shown::{Shown, field};
use super::trouble::{Done, Trouble};
use super::{Common, Make, Typed, lasting, time};
use crate::humane::many;
use crate::progress::Bar;

/// So many lines, or so many bytes of them, are one push.
const BATCH_TASKS: usize = 1_000;
const BATCH_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;

/// What `push` can be told.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PushArguments {
    /// The queue; its first task makes it
    queue: Typed,
    /// One task each. Without any, and without --file, each line of standard input is a task
    payloads: Vec<Typed>,
    /// The bytes of this file are one task; - is standard input, whole
    #[arg(long = "file", short, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    options: TaskOptions,
    /// Print the id of each task, also when they come from standard input
    #[arg(long)]
    ids: bool,
    #[command(flatten)]
    common: Common,
}

/// What each task is to be like.
#[derive(Args)]
struct TaskOptions {
    /// Not to be handed out before this has passed: 500ms, 30s, 5m, 1h, 2d
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "at")]
    delay: Option<Duration>,
    /// Not to be handed out before this time: 2030-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = at)]
    at: Option<SystemTime>,
    /// At most one task of the queue has this name; a second one is not added
    #[arg(long, conflicts_with = "unique")]
    name: Option<Typed>,
    /// At most one task of the queue has this payload
    #[arg(long)]
    unique: bool,
    /// Larger ones first, from -128 to 127
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i8>,
    /// How often it is tried before it is dead
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tries: Option<u32>,
    /// How long it waits after its first failure; twice as long after each further one
    #[arg(long, value_name = "TIME", value_parser = lasting)]
    backoff: Option<Duration>,
    /// How long it may wait before it is gone
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
  sureq push reports --file january.json      a file is a task
  seq 1000000 | sureq push numbers            a task per line
  sureq push emails 'to: ann' --delay 1h --name ann --tries 3

Lines are pushed when no more of them are there to be read, or a thousand at a time. A reader of the ids who goes away
(`| head`) ends the printing and not the pushing. If it ends before its input does, it says how many were confirmed.";

fn at(text: &str) -> Result<SystemTime, String> {
    humantime::parse_rfc3339_weak(text).map_err(|_| "write it like 2030-01-31T12:00:00Z".to_owned())
}

pub(crate) fn run(arguments: &PushArguments) -> ExitCode {
    arguments.common.run(Make::Yes, |home, shown| push(arguments, home, shown))
}

async fn push(arguments: &PushArguments, home: Home, mut shown: Shown) -> Done {
    let queue = home.queue(&arguments.queue);
    shown.go_on_unread();
    if arguments.payloads.is_empty() && arguments.files.is_empty() {
        return push_lines(arguments, &queue, &mut shown).await;
    }
    let mut payloads: Vec<Vec<u8>> =
        arguments.payloads.iter().map(|payload| payload.as_ref().to_vec()).collect();
    for file in &arguments.files {
        payloads.push(read_file(file)?);
    }
    if arguments.options.is_plain() {
        for id in queue.push_all(&payloads).await? {
            tell(&mut shown, &queue, &id, true)?;
        }
    } else {
        for payload in &payloads {
            let added = add(&arguments.options, &queue, payload).await?;
            tell(&mut shown, &queue, &added.id, added.added)?;
        }
    }
    shown.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn read_file(path: &Path) -> Result<Vec<u8>, Trouble> {
    if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        return match stdin().lock().read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(Trouble::reading("standard input", error)),
        };
    }
    std::fs::read(path).map_err(|error| Trouble::reading(&path.display().to_string(), error))
}

async fn add(options: &TaskOptions, queue: &Queue, payload: &[u8]) -> Result<Added, Trouble> {
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

fn tell(shown: &mut Shown, queue: &Queue, id: &Id, is_added: bool) -> Result<(), Trouble> {
    if shown.is_json() {
        let id = id.to_string();
        shown.object([field!("queue", queue.name_bytes()), ("id", json!(id)), ("added", json!(is_added))])
    } else if is_added && id.as_ref().is_empty() {
        // Where another program's keys are shared, tasks may have no ids.
        shown.line("pushed")
    } else if is_added {
        shown.line(id)
    } else {
        shown.line(format_args!("{id} is there already"))
    }
}

async fn push_lines(arguments: &PushArguments, queue: &Queue, shown: &mut Shown) -> Done {
    if stdin().is_terminal() {
        let why = "nothing to push: give payloads, --file FILE, or lines on standard input".to_owned();
        return Err(Trouble::Usage(why));
    }
    if arguments.options.name.is_some() {
        return Err(Trouble::Usage("--name is for one task, and standard input may have many".to_owned()));
    }
    let bar = Bar::counting("pushed");
    // More than standard input buffers by itself, so that this is all there is to look at.
    let mut input = BufReader::with_capacity(READ_BYTES, stdin().lock());
    let (mut batch, mut bytes, mut pushed) = (Vec::new(), 0, 0u64);
    loop {
        let mut line = Vec::new();
        let read =
            input.read_until(b'\n', &mut line).map_err(|error| Trouble::reading("standard input", error))?;
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if read > 0 {
            bytes += line.len();
            batch.push(line);
        }
        // The next line may be long in coming.
        let is_last = read == 0 || !input.buffer().contains(&b'\n');
        let is_full = batch.len() >= BATCH_TASKS || bytes >= BATCH_BYTES;
        if !batch.is_empty() && (is_full || is_last) {
            let done = push_batch(arguments, queue, &batch, &mut pushed, shown).await;
            // Whoever pushes a file again has to know how far it came.
            done.map_err(|trouble| trouble.after(format!("{} confirmed", many(pushed, "task"))))?;
            bar.at(pushed);
            batch.clear();
            bytes = 0;
        }
        if read == 0 {
            break;
        }
    }
    drop(bar);
    if !arguments.ids {
        if shown.is_json() {
            shown.object([field!("queue", queue.name_bytes()), ("pushed", json!(pushed))])?;
        } else {
            shown.line(format_args!("{} pushed", many(pushed, "task")))?;
        }
    }
    shown.flush()?;
    Ok(ExitCode::SUCCESS)
}

async fn push_batch(
    arguments: &PushArguments,
    queue: &Queue,
    batch: &[Vec<u8>],
    pushed: &mut u64,
    shown: &mut Shown,
) -> Result<(), Trouble> {
    if arguments.options.is_plain() {
        let ids = queue.push_all(batch).await?;
        *pushed += batch.len() as u64;
        for id in ids.iter().filter(|_| arguments.ids) {
            tell(shown, queue, id, true)?;
        }
    } else {
        for payload in batch {
            let one = add(&arguments.options, queue, payload).await?;
            *pushed += 1;
            if arguments.ids {
                tell(shown, queue, &one.id, one.added)?;
            }
        }
    }
    shown.flush()
}
