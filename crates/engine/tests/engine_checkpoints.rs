//! No stream of commands prevents checkpoints, even if each command leaves sliced work behind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use engine_support::execute;
use sureq_core::Command;
use sureq_core::command::{ConnId, IdForm, LeaseAsk, Pop, TaskRefs};
use sureq_engine::log::Durability;
use sureq_engine::{Engine, Options};
use sureq_home_api::Home as _;
use sureq_testkit::patience::until;

/// The tasks of several slices.
const TASKS: usize = 5_000;

/// Fills a queue.
fn push(engine: &Engine, queue: &[u8]) {
    let payloads = vec![&b"payload"[..]; TASKS];
    let _ = execute(engine, &[Command::Push { queue, payloads: &payloads }]);
}

fn purge(engine: &Engine, queue: &[u8]) {
    push(engine, queue);
    let _ = execute(engine, &[Command::Purge { queue, state: None }]);
}

fn drop_queue(engine: &Engine, queue: &[u8]) {
    push(engine, queue);
    let _ = execute(engine, &[Command::Drop { queues: &[queue] }]);
}

fn revive(engine: &Engine, queue: &[u8]) {
    let popped = execute(engine, &[Command::Pop(Pop::plain(&[queue], TASKS as u32))]).0.tasks;
    if popped.is_empty() {
        push(engine, queue);
        return;
    }
    let texts: Vec<String> = popped.iter().map(|task| task.id.to_string()).collect();
    let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    let tasks = TaskRefs { list: &list, form: IdForm::Long };
    let _ = execute(engine, &[Command::Bury { queue, tasks }, Command::Revive { queue, tasks: None }]);
}

/// Pops tasks for a connection and closes it, which requeues them.
fn close(engine: &Engine, queue: &[u8]) {
    let conn = ConnId(queue.len() as u64);
    let (lease, queues) = (LeaseAsk { conn: Some(conn), ..LeaseAsk::NONE }, [queue]);
    let pop = Pop { lease, ..Pop::plain(&queues, TASKS as u32) };
    if execute(engine, &[Command::Pop(pop)]).0.tasks.is_empty() {
        push(engine, queue);
    }
    engine.close_conn(conn);
}

/// Two clients call `act` all the time, so that there is always sliced work in progress.
fn checkpoints_are_taken_during(act: fn(&Engine, &[u8])) {
    let dir = tempfile::tempdir().unwrap();
    let options =
        Options { durability: Durability::None, segment_bytes: Some(256 << 10), ..Options::default() };
    let engine = Engine::open(dir.path(), &options).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for queue in [&b"one"[..], b"other"] {
            let (engine, is_over) = (&engine, &is_over);
            scope.spawn(move || {
                let filler = [queue, b" filler"].concat();
                while !is_over.load(Ordering::Relaxed) {
                    act(engine, queue);
                    // Some of the commands log little, and checkpoints become due by logged bytes.
                    purge(engine, &filler);
                }
            });
        }
        // The stream is stopped even if this fails.
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("the stream has begun", || engine.status().checkpoints >= 1);
            let before = engine.status().checkpoints;
            until("further checkpoints are taken", || engine.status().checkpoints >= before + 5);
        }));
        is_over.store(true, Ordering::Relaxed);
        waited.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(engine.failure().is_none());
    engine.check().unwrap();
    engine.close().unwrap();
}

#[test]
fn a_stream_of_purges_does_not_starve_checkpoints() {
    checkpoints_are_taken_during(purge);
}

#[test]
fn a_stream_of_dropped_queues_does_not_starve_checkpoints() {
    checkpoints_are_taken_during(drop_queue);
}

#[test]
fn a_stream_of_revivals_does_not_starve_checkpoints() {
    checkpoints_are_taken_during(revive);
}

#[test]
fn a_stream_of_connections_that_close_does_not_starve_checkpoints() {
    checkpoints_are_taken_during(close);
}
