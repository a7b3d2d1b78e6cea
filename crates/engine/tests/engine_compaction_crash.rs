//! Rules 2, 3 and 4 during compaction: a power cut at any moment of rolling, copying forward, taking checkpoints,
//! retiring segments and restarting leaves a store that opens, with the payloads of all tasks that were confirmed and
//! not finished, and without any finished task.

mod engine_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_support::facts::{FactRun, Facts, open_small, reach, tasks_in};
use engine_support::{ack, execute, push};
use sureq_core::Command;
use sureq_core::command::Pop;
use sureq_engine::log::{Durability, Position};
use sureq_home_api::Home as _;
use sureq_testkit::load::scale;
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::{Crash, Kept, Op, SimDisk};
use sureq_testkit::valve::Valve;

/// A run that has ended.
struct Recorded {
    facts: Facts,
    trace: Vec<Op>,
    durability: Durability,
    segment_bytes: u64,
}

fn record(durability: Durability, segment_bytes: u64) -> Recorded {
    let mut run = FactRun::new(durability, segment_bytes);
    let mut copied = 0;
    for session in 0..3 {
        for n in 0..60 {
            run.turn(session * 60 + n);
            if n % 5 == 4 {
                run.settle();
            }
        }
        if session == 1 {
            run.push(b"dropped", 30);
            run.drop_queue();
        }
        copied += run.engine.status().copied_bytes;
        run.restart();
    }
    for n in 180..200 {
        run.turn(n);
    }
    run.settle();
    let (facts, trace) = run.end();
    let renamed = |from: &str, to: &str| {
        let is_it =
            |op: &&Op| matches!(op, Op::Rename { from: f, to: t } if f.contains(from) && t.contains(to));
        trace.iter().filter(is_it).count()
    };
    let removed =
        trace.iter().filter(|op| matches!(op, Op::Remove { name } if name.starts_with('0'))).count();
    let recycled = renamed(".seg", "spare-");
    let counts = [renamed("spare-", ".seg"), removed + recycled, renamed(".new", "checkpoint-")];
    assert!(counts.iter().all(|&count| count > 3), "rolls, retired segments, checkpoints: {counts:?}");
    assert!(recycled > 0, "nothing was recycled");
    assert!(copied > 0, "nothing was copied forward");
    Recorded { facts, trace, durability, segment_bytes }
}

/// Which syncs are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syncs {
    /// All of them.
    Each,
    /// As many as there are of other changes.
    Some,
}

impl Recorded {
    /// The position that the log must reach after this crash.
    fn promised(&self, change: usize, crash: Crash) -> Position {
        let is_whole = crash.content == Kept::Everything && crash.names == Kept::Everything;
        match self.durability {
            Durability::Always => self.facts.confirmed(change),
            Durability::Interval if is_whole => self.facts.confirmed(change),
            _ => self.facts.closed(change),
        }
    }

    /// Opens the remaining store and compares it with the facts. `end` is the position up to which it has the log of
    /// the run.
    fn check(&self, disk: &SimDisk, end: Position, context: &str) {
        let clock = Arc::new(ManualClock::default());
        let engine = open_small(&disk.shared(), &clock, self.durability, self.segment_bytes);
        engine.check().unwrap_or_else(|broken| panic!("{broken}: {context}"));
        self.facts.compare(&tasks_in(&engine, context), end, context);
        engine.close().unwrap_or_else(|error| panic!("{error}: {context}"));
        engine.check().unwrap_or_else(|broken| panic!("{broken}: {context}"));
    }

    /// Like [`Self::check`], with the newest of two checkpoints damaged. Returns whether there were two.
    fn check_without_newest(&self, left: &SimDisk, context: &str) -> bool {
        let left = SimDisk::with_files(11, &left.files());
        let is_checkpoint = |name: &&String| name.starts_with("checkpoint-") && !name.contains('.');
        let files = left.files();
        let names: Vec<&String> = files.keys().filter(is_checkpoint).collect();
        let Some(newest) = names.last().filter(|_| names.len() > 1) else { return false };
        left.edit(newest, |bytes| bytes[100] ^= 1);
        let context = format!("{context}; {newest} damaged");
        let end = reach(&left, &context);
        self.check(&left, end, &context);
        true
    }

    /// Cuts the power at some of the changes. Of the many similar writes and syncs one in `every` is cut, or also
    /// each sync, depending on `syncs`, with another possible outcome each time.
    fn cut_at(&self, every: usize, syncs: Syncs, cut: &mut dyn FnMut(&SimDisk, Position, &str)) -> usize {
        let disk = SimDisk::new(2);
        let (mut cuts, mut synced) = (0, 0);
        for (change, op) in self.trace.iter().enumerate() {
            let is_common = matches!(op, Op::Write { .. } | Op::Sync { .. });
            let step = if is_common { every } else { every.div_ceil(4) };
            let crashes = Crash::during(op, change as u64);
            let is_sync = matches!(op, Op::Sync { .. } | Op::SyncDir);
            synced += usize::from(is_sync);
            let turn = (is_sync && syncs == Syncs::Each).then(|| synced % crashes.len());
            for (n, crash) in crashes.into_iter().enumerate() {
                if turn != Some(n) && !(n + change * 7).is_multiple_of(step) {
                    continue;
                }
                let left = disk.crash_during(op, crash);
                let context = format!("{:?}, change {change} ({}), cut {n}", self.durability, text_of(op));
                let (end, promised) = (reach(&left, &context), self.promised(change, crash));
                assert!(end >= promised, "{end} of {promised} are left: {context}");
                cut(&left, end, &context);
                cuts += 1;
            }
            disk.replay(op);
        }
        cuts
    }
}

fn text_of(op: &Op) -> String {
    match op {
        Op::Write { file, offset, bytes } => format!("write of {} at {offset} to {file}", bytes.len()),
        other => format!("{other:?}"),
    }
}

fn every(often: usize) -> usize {
    (often / scale() as usize).max(1)
}

fn cut_a_run(durability: Durability, segment_bytes: u64, often: usize) {
    let recorded = record(durability, segment_bytes);
    let cuts = recorded.cut_at(every(often), Syncs::Each, &mut |left, end, context| {
        recorded.check(left, end, context);
    });
    println!("{cuts} cuts in {} changes", recorded.trace.len());
    assert!(cuts > 500, "{cuts} cuts in {} changes", recorded.trace.len());
}

#[test]
fn a_cut_during_compaction_loses_nothing_and_brings_nothing_back() {
    cut_a_run(Durability::Always, 4096, 16);
}

#[test]
fn a_cut_during_compaction_loses_nothing_and_brings_nothing_back_at_the_level_interval() {
    cut_a_run(Durability::Interval, 4096, 8);
}

#[test]
fn a_cut_during_compaction_loses_nothing_and_brings_nothing_back_at_the_level_none() {
    cut_a_run(Durability::None, 4096, 3);
}

/// The newest checkpoint is damaged as well: the one before it and the log after it are used.
#[test]
fn a_damaged_checkpoint_after_a_cut_is_no_loss() {
    let recorded = record(Durability::Always, 4096);
    let mut damaged = 0;
    recorded.cut_at(every(24), Syncs::Some, &mut |left, _, context| {
        damaged += usize::from(recorded.check_without_newest(left, context));
    });
    assert!(damaged > 300, "{damaged} cuts");
}

/// A large queue is dropped at once. Its payloads are released slice by slice, which is not logged.
#[test]
fn a_damaged_checkpoint_after_a_large_queue_was_dropped_is_no_loss() {
    let mut run = FactRun::new(Durability::Always, 16 << 10);
    run.lay_down();
    for _ in 0..12 {
        run.push_tiny(b"dropped", 1000);
        run.settle();
    }
    run.drop_queue();
    run.wait_for_segments(8);
    run.turn(1);
    let (facts, trace) = run.end();
    let retired =
        trace.iter().filter(|op| matches!(op, Op::Remove { name } if name.starts_with('0'))).count();
    assert!(retired > 5, "{retired} segments were removed");
    let recorded = Recorded { facts, trace, durability: Durability::Always, segment_bytes: 16 << 10 };
    recorded.cut_at(every(16), Syncs::Some, &mut |left, end, context| {
        recorded.check_without_newest(left, context);
        recorded.check(left, end, context);
    });
}

/// The last live task of a segment is acked while a checkpoint is being taken: the segment is removed only when the
/// ack is on disk, at every level.
#[test]
fn a_segment_is_not_removed_before_the_ack_of_its_last_task_is_on_disk() {
    for durability in [Durability::Interval, Durability::None] {
        let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
        let engine = open_small(&valve.shared(), &clock, durability, 4096);
        let last = push(&engine, &[b"last"]);
        let patience = Instant::now() + Duration::from_secs(20);
        let pass = || {
            assert!(Instant::now() < patience, "no compaction: {:?}", engine.status());
            let _ = execute(&engine, &[Command::Push { queue: b"other", payloads: &[&[b'x'; 500]] }]);
            let _ = execute(&engine, &[Command::Drop { queues: &[b"other"] }]);
            // No space is freed while the compactor is held, so only little must be unwritten.
            assert!(engine.wait(engine.end()));
        };
        while engine.status().checkpoints < 4 {
            pass();
        }
        let first = "00000000000000000001.seg";
        assert!(valve.disk.files().contains_key(first), "one task is left in it");
        valve.hold_compactor();
        while !valve.is_compactor_held() {
            pass();
        }
        let (popped, _) = execute(&engine, &[Command::Pop(Pop::plain(&[b"q"], 1))]);
        assert_eq!(popped.tasks.len(), 1, "{popped:?}");
        assert_eq!(ack(&engine, &last), 1);
        valve.release_compactor();
        while valve.disk.files().contains_key(first) {
            assert!(Instant::now() < patience, "no compaction: {:?}", engine.status());
            std::thread::yield_now();
        }
        let left = valve.disk.crash(Kept::Nothing, Kept::Nothing);
        drop(engine.close());
        let engine = open_small(&left.shared(), &clock, durability, 4096);
        assert_eq!(ack(&engine, &last), 0, "it was finished");
        engine.check().expect("the store is consistent");
        drop(engine.close());
    }
}

/// The start after a power cut is cut in turn, and the start after that.
#[test]
fn three_cuts_in_a_row_lose_nothing_and_bring_nothing_back() {
    let recorded = record(Durability::Always, 4096);
    let mut seen = 0;
    let again = every(64);
    recorded.cut_at(every(800), Syncs::Some, &mut |left, end, context| {
        cut_the_start(&recorded, left, end, context, again, 2, &mut seen);
    });
    assert!(seen > 300, "{seen} cuts");
}

/// Starts the store, cuts that start at some of its changes, and repeats this `depth` deep.
fn cut_the_start(
    recorded: &Recorded,
    left: &SimDisk,
    end: Position,
    context: &str,
    every: usize,
    depth: usize,
    seen: &mut usize,
) {
    let before = SimDisk::with_files(3, &left.files());
    recorded.check(left, end, context);
    for (step, op) in left.trace().iter().enumerate() {
        for (n, crash) in Crash::during(op, step as u64).into_iter().enumerate() {
            *seen += 1;
            if !(*seen).is_multiple_of(every) {
                continue;
            }
            let context = format!("{context}; then change {step} of the start ({}), cut {n}", text_of(op));
            let again = before.crash_during(op, crash);
            let reached = reach(&again, &context);
            assert!(reached >= end, "{reached} of {end} are left: {context}");
            if depth > 1 {
                cut_the_start(recorded, &again, end, &context, every * 4, depth - 1, seen);
            } else {
                recorded.check(&again, end, &context);
            }
        }
        before.replay(op);
    }
}
