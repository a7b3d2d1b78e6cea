//! Cancelled tasks and memory, through the engine: for as long as no command of the server cancels.
//!
//! It runs in a process of its own, so that nothing of the benchmark's memory is counted.

use std::error::Error;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use sureq::command::{Cancel, IdForm, TaskRefs, View};
use sureq::{Command, Durability, Home, Options, Replies, Reply};

use crate::payload::Payloads;
use crate::procstat::{self, Memory};
use crate::queues::{Length, is_cancelled, name, payload};
use crate::salt;
use crate::servers::Place;

/// The subcommand under which it runs.
pub(crate) const COMMAND: &str = "embedded";
/// Commands that are executed together.
const BATCH: usize = 256;
/// Background work of an engine without load has ended by then.
const REST: Duration = Duration::from_secs(2);

/// What the other process is told.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    tasks: u64,
    queues: u64,
    longest: usize,
    cancel: f64,
    home: PathBuf,
}

/// Memory of the other process, and how many tasks it cancelled.
pub(crate) struct Stages {
    pub(crate) empty: Memory,
    pub(crate) filled: Memory,
    pub(crate) cancelled: u64,
    /// After that.
    pub(crate) memory: Memory,
}

/// Has another process push so many tasks, the queues in turn, and cancel a share of them.
pub(crate) fn measure(
    place: &Place,
    tasks: u64,
    queues: u64,
    length: Length,
    cancel: f64,
) -> Result<Stages, Box<dyn Error>> {
    let (Length::Fixed(longest) | Length::UpTo(longest)) = length;
    let words =
        [COMMAND.to_owned(), tasks.to_string(), queues.to_string(), longest.to_string(), cancel.to_string()];
    let said = place.run_self(&words)?;
    let numbers: Vec<u64> = said.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let memory = |pair: &[u64]| Memory { resident: pair[0], anonymous: pair[1] };
    match numbers[..] {
        [ref before @ .., cancelled, _, _] if before.len() == 4 => Ok(Stages {
            empty: memory(&before[..2]),
            filled: memory(&before[2..]),
            cancelled,
            memory: memory(&numbers[5..]),
        }),
        _ => Err(format!("{COMMAND} said {said:?}").into()),
    }
}

/// The other process: seven numbers on its standard output.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let url = format!("file:{}", arguments.home.join("data").display());
    let home = sureq::open_with(&url, &Options { durability: Durability::None, ..Options::default() })?;
    let payloads = Payloads::new(salt());
    say()?;
    for start in (0..arguments.tasks).step_by(BATCH) {
        push(&home, payloads, arguments, start..arguments.tasks.min(start + BATCH as u64))?;
    }
    say()?;
    let mut cancelled = 0;
    for queue in 0..arguments.queues {
        cancelled += cancel(&home, arguments, queue)?;
    }
    println!("{cancelled}");
    say()
}

fn say() -> Result<(), Box<dyn Error>> {
    thread::sleep(REST);
    let Memory { resident, anonymous } = procstat::memory(std::process::id())?;
    println!("{resident} {anonymous}");
    Ok(())
}

fn push(
    home: &Home,
    payloads: Payloads,
    arguments: &Arguments,
    numbers: std::ops::Range<u64>,
) -> Result<(), Box<dyn Error>> {
    let tasks: Vec<(String, Vec<u8>)> = numbers
        .map(|number| {
            (name(number % arguments.queues), payload(payloads, Length::UpTo(arguments.longest), number))
        })
        .collect();
    let bodies: Vec<[&[u8]; 1]> = tasks.iter().map(|(_, body)| [body.as_slice()]).collect();
    let commands: Vec<Command> = tasks
        .iter()
        .zip(&bodies)
        .map(|((queue, _), body)| Command::Push { queue: queue.as_bytes(), payloads: body })
        .collect();
    execute(home, &commands).map(|_| ())
}

/// Cancels its share of one queue. Answers how many tasks that were.
fn cancel(home: &Home, arguments: &Arguments, queue: u64) -> Result<u64, Box<dyn Error>> {
    let name = name(queue);
    let look = Command::Inspect { queue: name.as_bytes(), view: View::Ready, start: 0, count: u32::MAX };
    let replies = execute(home, &[look])?;
    let ids: Vec<String> = (0_u64..)
        .zip(&replies.tasks)
        .filter(|(place, _)| is_cancelled(queue + place * arguments.queues, arguments.cancel))
        .map(|(_, task)| task.id.to_string())
        .collect();
    let list: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
    let which = Cancel::Ids(TaskRefs { list: &list, form: IdForm::Long });
    let replies = execute(home, &[Command::Cancel { queue: name.as_bytes(), which }])?;
    match replies.list[..] {
        [Reply::Count(count)] if count == ids.len() as u64 => Ok(count),
        ref other => Err(format!("{} tasks were to be cancelled: {other:?}", ids.len()).into()),
    }
}

/// Executes commands and waits until they are as durable as was asked for.
fn execute(home: &Home, commands: &[Command]) -> Result<Replies<sureq::Body>, Box<dyn Error>> {
    let mut replies = Replies::default();
    let executed = home.execute(commands, &mut replies);
    if executed.done < commands.len() || replies.list.iter().any(|reply| matches!(reply, Reply::Refused(_))) {
        return Err(format!("the engine did {} of {} commands", executed.done, commands.len()).into());
    }
    if home.wait(executed.position) { Ok(replies) } else { Err("the engine has failed".into()) }
}
