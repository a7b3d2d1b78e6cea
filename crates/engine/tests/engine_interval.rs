//! The level `interval`, when the process is killed: confirmed changes were written to the system, and are found
//! again.

mod engine_support;

use std::sync::Arc;

use engine_support::{ack, ack_of, execute, open, push};
use sureq_core::command::{LeaseAsk, Pop};
use sureq_core::{Command, TaskId};
use sureq_engine::Engine;
use sureq_engine::log::Durability;
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::SimDisk;

const LEASE_MS: u64 = 30_000;

fn counts(engine: &Engine) -> [u64; 4] {
    engine.inspect(|broker| broker.queue(b"q").map_or([0; 4], sureq_core::Queue::counts))
}

/// The store after a kill: all written data survives, synced or not.
fn killed(disk: &SimDisk, clock: &Arc<ManualClock>) -> (SimDisk, Engine) {
    let left = SimDisk::with_files(11, &disk.files());
    let engine = open(&left.shared(), clock, Durability::Interval);
    (left, engine)
}

/// Pops this many tasks with a lease, and returns their receipts.
fn lease(engine: &Engine, count: u32) -> Vec<String> {
    let ask = LeaseAsk { ms: Some(LEASE_MS), worker: None, conn: None, lapse: None };
    let (replies, _) = execute(engine, &[Command::Pop(Pop { lease: ask, ..Pop::plain(&[b"q"], count) })]);
    replies.tasks.iter().map(|task| task.receipt().to_string()).collect()
}

/// The number of these tasks that a call finishes.
fn finish(engine: &Engine, receipts: &[String]) -> usize {
    let list: Vec<&[u8]> = receipts.iter().map(String::as_bytes).collect();
    execute(engine, &[ack_of(&list)]).0.indexes.len()
}

/// Rule 4: an ack succeeds at most once.
#[test]
fn an_ack_that_was_answered_is_true_once_whenever_the_process_is_killed() {
    let (mut disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
    let mut engine = open(&disk.shared(), &clock, Durability::Interval);
    let ids: Vec<TaskId> = (0..20).flat_map(|_| push(&engine, &[&[b'x'; 300]])).collect();
    for (n, id) in ids.iter().enumerate() {
        let receipts = lease(&engine, 1);
        assert_eq!(finish(&engine, &receipts), 1);
        let old = engine;
        (disk, engine) = killed(&disk, &clock);
        assert_eq!(counts(&engine), [19 - n as u64, 0, 0, 0], "after kill {n}");
        assert_eq!((finish(&engine, &receipts), ack(&engine, &[*id])), (0, 0), "task {n} is finished once");
        old.close().unwrap();
    }
    engine.close().unwrap();
}

/// Rule 5: leases survive a restart.
#[test]
fn a_confirmed_lease_survives_a_kill_at_any_time() {
    let (mut disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
    let mut engine = open(&disk.shared(), &clock, Durability::Interval);
    push(&engine, &[b"one", b"two", b"three"]);
    let mut receipts = Vec::new();
    for n in 1..=3 {
        receipts.extend(lease(&engine, 1));
        let old = engine;
        (disk, engine) = killed(&disk, &clock);
        assert_eq!(counts(&engine), [3 - n, 0, n, 0], "after kill {n}");
        old.close().unwrap();
    }
    clock.pass(LEASE_MS - 1);
    engine.tick();
    assert_eq!(counts(&engine), [0, 0, 3, 0], "no lease ends early");
    assert_eq!(finish(&engine, &receipts[..2]), 2, "earlier receipts are valid");
    clock.pass(1);
    engine.tick();
    assert_eq!(counts(&engine), [1, 0, 0, 0], "and the lease of the third ends in its time");
    engine.close().unwrap();
}
