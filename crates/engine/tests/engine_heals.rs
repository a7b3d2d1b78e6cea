//! A checkpoint that is damaged while its store is open: the next one is written completely from memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine_support::{execute, push};
use sureq_core::Command;
use sureq_core::command::Pop;
use sureq_engine::{Engine, Options};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::SimDisk;

const SEGMENT_BYTES: u64 = 64 << 10;
const QUEUES: usize = 40;
const TASKS: usize = 100;
/// The header of a checkpoint; the blobs follow.
const HEADER_BYTES: usize = 128;

static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn open(disk: &SimDisk) -> Engine {
    let notice = |line: &str| NOTICES.lock().unwrap().push(line.to_owned());
    let options = Options { segment_bytes: Some(SEGMENT_BYTES), notice: Some(notice), ..Options::default() };
    Engine::open_on(disk.shared(), Arc::new(ManualClock::default()), &options).unwrap()
}

fn payload(queue: usize, task: usize) -> Vec<u8> {
    format!("task {task} of {queue}").into_bytes()
}

/// Pushes and drops tasks until something has happened.
fn pass_until(engine: &Engine, what: &str, mut has_happened: impl FnMut() -> bool) {
    let since = Instant::now();
    while !has_happened() {
        assert!(since.elapsed() < Duration::from_secs(20), "{what}: {:?}", engine.status());
        push(engine, &[&[b'x'; 900][..]; 8]);
        let _ = execute(engine, &[Command::Drop { queues: &[b"q"] }]);
    }
}

#[test]
fn unreadable_pieces_of_a_checkpoint_are_written_again_from_memory() {
    let disk = SimDisk::new(7);
    let engine = open(&disk);
    let names: Vec<String> = (0..QUEUES).map(|queue| format!("queue-{queue}")).collect();
    for (queue, name) in names.iter().enumerate() {
        let payloads: Vec<Vec<u8>> = (0..TASKS).map(|task| payload(queue, task)).collect();
        let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        let _ = execute(&engine, &[Command::Push { queue: name.as_bytes(), payloads: &payloads }]);
    }
    pass_until(&engine, "they are in a checkpoint", || engine.status().checkpoints > 1);
    let old: Vec<String> = disk.files().into_keys().filter(|name| name.starts_with("checkpoint-")).collect();
    for name in &old {
        // Damages most blobs, but not the manifest.
        disk.edit(name, |bytes| {
            let half = bytes.len() / 2;
            bytes[HEADER_BYTES..half].iter_mut().for_each(|byte| *byte ^= 1);
        });
    }
    // Most of the tasks are dropped, so that the remaining blobs are to be written again.
    let (gone, left) = names.split_at(QUEUES * 3 / 4);
    let gone: Vec<&[u8]> = gone.iter().map(String::as_bytes).collect();
    let _ = execute(&engine, &[Command::Drop { queues: &gone }]);
    let is_reported =
        || NOTICES.lock().unwrap().iter().any(|line| line.contains("is written from memory instead"));
    pass_until(&engine, "it is reported", is_reported);
    let taken = engine.status().checkpoints;
    pass_until(&engine, "two more are taken", || engine.status().checkpoints > taken + 2);
    assert!(engine.failure().is_none(), "{:?}", engine.failure());
    engine.close().unwrap();

    let now: Vec<String> = disk.files().into_keys().collect();
    assert!(old.iter().all(|name| !now.iter().any(|other| other.starts_with(name))), "{old:?} of {now:?}");
    let report = sureq_engine::check::check(&disk.shared(), &mut |_, _, _| ()).unwrap();
    assert!(report.is_sound(), "{:#?}", report.findings);
    let engine = open(&disk);
    for (at, name) in left.iter().enumerate() {
        let (replies, _) =
            execute(&engine, &[Command::Pop(Pop::plain(&[name.as_bytes()], TASKS as u32 + 1))]);
        let popped: Vec<&[u8]> = replies.tasks.iter().map(|task| task.body.as_ref()).collect();
        let queue = QUEUES - left.len() + at;
        assert_eq!(popped, (0..TASKS).map(|task| payload(queue, task)).collect::<Vec<_>>());
    }
    engine.close().unwrap();
}
