//! The rules of the design and its details, one test each.
#![expect(unreachable_pub, reason = "the modules of a test share items")]
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "test helpers may panic")]

mod alone;
mod backlog;
mod bounds;
mod driver;
mod ids;
mod leases;
mod memory;
mod purge;
mod races;
mod settings;
#[path = "../support/mod.rs"]
mod support;
mod tries;
mod words;
mod workers;

use support::{Answer, Home};
use sureq_core::TaskId;
use sureq_core::command::{
    Add, Cancel, Command, IdForm, LeaseAsk, Pop, TaskRef, TaskRefs, View, Worker, WorkerRef,
};
use sureq_core::reply::Outcome;
use sureq_core::task::Tries;

pub(crate) const PLAIN: LeaseAsk<'static> = LeaseAsk::NONE;

pub(crate) fn add(home: &mut Home, add: Add<'_>) -> TaskId {
    match home.run(&Command::Add(add)) {
        Answer::Added(id, true, _) => id,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn x() -> Add<'static> {
    Add::plain(b"q", b"x")
}

pub(crate) fn refs<T>(task: impl ToString, run: impl FnOnce(TaskRefs<'_>) -> T) -> T {
    run(TaskRefs { list: &[task.to_string().as_bytes()], form: IdForm::Long })
}

pub(crate) fn extend(home: &mut Home, task: impl ToString, ms: u64) -> Outcome {
    let task = task.to_string();
    let task = TaskRef { bytes: task.as_bytes(), form: IdForm::Long };
    match home.run(&Command::Extend { queue: b"q", task, ms }) {
        Answer::Outcome(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn cancel(home: &mut Home, id: TaskId) -> Answer {
    refs(id, |tasks| home.run(&Command::Cancel { queue: b"q", which: Cancel::Ids(tasks) }))
}

pub(crate) fn start<'a>(home: &mut Home, name: &'a [u8], ttl_ms: u64) -> WorkerRef<'a> {
    match home.run(&Command::Worker(Worker::Start { name, ttl_ms })) {
        Answer::Started(incarnation) => WorkerRef { name, incarnation },
        other => panic!("{other:?}"),
    }
}

pub(crate) fn beat(home: &mut Home, worker: WorkerRef<'_>) -> Answer {
    home.run(&Command::Worker(Worker::Beat(worker)))
}

pub(crate) const fn by(worker: WorkerRef<'_>) -> LeaseAsk<'_> {
    LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE }
}

/// Pops the task, and returns its tries and reason as META shows them.
pub(crate) fn tries_of(home: &mut Home) -> (Tries, Option<String>) {
    let pop = Pop { meta: true, ..Pop::plain(&[b"q"], 1) };
    let Answer::Tasks(tasks) = home.run(&Command::Pop(pop)) else { panic!("a pop returns tasks") };
    let more = tasks[0].more.as_ref().expect("META was requested");
    (more.tries, more.reason.as_ref().map(|reason| String::from_utf8_lossy(reason).into_owned()))
}

pub(crate) fn dead(home: &mut Home) -> Vec<(String, Tries)> {
    let dead = home.inspect(b"q", View::Dead);
    dead.iter()
        .map(|task| {
            let more = task.more.as_ref().expect("dead tasks have details");
            (String::from_utf8_lossy(more.reason.as_deref().unwrap_or_default()).into_owned(), more.tries)
        })
        .collect()
}
