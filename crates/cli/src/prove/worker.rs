//! A worker of a proof, in a process of its own that may be killed at any time. It prints which tasks it popped, which
//! it is about to finish, and the reply.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use sureq::{Error, Queue, Task};
use sureq_history::{Time, payload};

use crate::exit::{self, failed};

/// Concurrent consumers, and the tasks in a batch.
const TAKERS: usize = 4;
pub(super) const BATCH: u32 = 32;
/// The lease of its tasks, after which tasks of a killed worker are redelivered.
pub(super) const LEASE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
/// One batch in this many is held for a while, like real work, so that a kill finds tasks in progress. Most are not, so
/// that many tasks pass between two kills.
const HELD_ONE_IN: u32 = 8;
const HELD_MS: std::ops::Range<u64> = 50..400;

/// Arguments of the hidden command.
#[derive(Args)]
pub(crate) struct WorkerArguments {
    home: String,
    queue: String,
}

/// Works until it is killed, or its parent exits.
pub(crate) fn run(arguments: &WorkerArguments) -> ExitCode {
    super::end_with_parent();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(exit::CANNOT_START, error),
    };
    runtime.block_on(async {
        let home = loop {
            match sureq::open(&arguments.home) {
                Ok(home) => break home,
                // The server may be dead just now.
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        };
        let queue = home.queue(&arguments.queue);
        futures_util::future::join_all((0..TAKERS).map(|_| work(&queue))).await;
    });
    ExitCode::SUCCESS
}

async fn work(queue: &Queue) {
    loop {
        let sent = Time::now();
        match queue.pop_many(BATCH).wait(LEASE).lease(LEASE).await {
            Ok(tasks) if tasks.is_empty() => {}
            Ok(tasks) => finish(queue, &tasks, sent).await,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn finish(queue: &Queue, tasks: &[Task], sent: Time) {
    let received = Time::now();
    let numbers: Vec<Option<u64>> = tasks.iter().map(|task| payload::decode(task.payload())).collect();
    print(
        format!("take {sent} {received}"),
        tasks.iter().zip(&numbers).map(|(task, number)| taken(task, *number)),
    );
    if fastrand::u32(..HELD_ONE_IN) == 0 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(HELD_MS))).await;
    }
    print("ask".to_owned(), numbers.iter().flatten().map(u64::to_string));
    let receipts: Vec<_> = tasks.iter().map(Task::receipt).collect();
    // After a lost reply, a refusal may mean that the task was already finished.
    let mut is_no_sure = true;
    let acked = loop {
        match queue.ack_all(&receipts).await {
            Ok(acked) => break acked,
            Err(Error::Unknown { .. }) => is_no_sure = false,
            Err(Error::Unavailable { .. } | Error::Closed(_)) => {}
            Err(_) => return,
        }
        tokio::time::sleep(PAUSE).await;
    };
    let of = |wanted: bool| {
        let both = numbers.iter().zip(&acked);
        both.filter(move |(_, acked)| **acked == wanted)
            .filter_map(|(number, _)| Some((*number)?.to_string()))
    };
    let answered = Time::now();
    print(format!("done {answered}"), of(true));
    if is_no_sure {
        print(format!("not {answered}"), of(false));
    }
}

/// The number of a popped task, marked if it was delivered before.
fn taken(task: &Task, number: Option<u64>) -> String {
    let mark = if task.delivery() > 1 { AGAIN } else { "" };
    number.map_or_else(|| "?".to_owned(), |number| format!("{number}{mark}"))
}

/// The mark after the number of a redelivered task.
pub(super) const AGAIN: &str = "+";

/// Prints a line with one write, so that a kill leaves no torn lines.
fn print(words: String, numbers: impl Iterator<Item = String>) {
    let line = numbers.fold(words, |line, number| line + " " + &number) + "\n";
    // The parent has exited, and so will this process.
    let _ = io::stdout().lock().write_all(line.as_bytes());
}
