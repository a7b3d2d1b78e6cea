//! Rules 2 and 3: after a power cut at any moment the log has a prefix of the appended batches, with all confirmed
//! ones, at every durability level, and also if recoveries are cut in turn.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod log_support;

use log_support::{Run, assert_goes_on, batches_in, refusal};
use sureq_engine::log::{Durability, LogOptions};
use sureq_testkit::sim_disk::{Crash, Kept, Op, SimDisk};

/// Three sessions over several segments, so that the record contains creations, rolls, recoveries and rewritten
/// tails.
fn recorded(durability: Durability) -> Run {
    let mut run = Run::new(4096, durability);
    run.session(40).session(3).session(40);
    assert!(run.segments().len() >= 3);
    run
}

/// Calls `check` with the disk after each possible power cut during each change of `trace` on `base`.
fn crash_everywhere(base: &SimDisk, trace: &[Op], mut check: impl FnMut(usize, Crash, SimDisk)) {
    for (change, op) in trace.iter().enumerate() {
        for crash in Crash::during(op, change as u64) {
            check(change, crash, base.crash_during(op, crash));
        }
        base.replay(op);
    }
}

fn crash_a_run_everywhere(durability: Durability) {
    let run = recorded(durability);
    let mut crashes = 0;
    crash_everywhere(&SimDisk::new(2), &run.disk.trace(), |change, crash, disk| {
        let context = format!("{durability:?}, change {change}, {crash:?}");
        let list = batches_in(&disk, &run.options).unwrap_or_else(|error| panic!("{context}: {error}"));
        run.assert_legal(&list, run.promised(change), &context);
        assert_goes_on(&disk, &run.options, &list);
        crashes += 1;
    });
    assert!(crashes > 1000, "{crashes} cuts");
}

#[test]
fn a_cut_at_any_moment_keeps_synced_events_always() {
    crash_a_run_everywhere(Durability::Always);
}

#[test]
fn a_cut_at_any_moment_keeps_synced_events_at_intervals() {
    crash_a_run_everywhere(Durability::Interval);
}

#[test]
fn a_cut_at_any_moment_leaves_a_prefix_without_any_sync() {
    crash_a_run_everywhere(Durability::None);
}

/// Cuts a recovery of `disk` at every moment, and the recoveries after it, `depth` deep: all of them give the same
/// batches.
fn crash_recoveries(disk: &SimDisk, options: &LogOptions, expected: &[Vec<u8>], depth: usize) -> usize {
    let before = SimDisk::with_files(3, &disk.files());
    let list = batches_in(disk, options).unwrap();
    assert_eq!(list, expected);
    let mut crashes = 0;
    if depth > 0 {
        crash_everywhere(&before, &disk.trace(), |_, _, again| {
            crashes += 1 + crash_recoveries(&again, options, expected, depth - 1);
        });
    }
    crashes
}

fn crash_recoveries_of(durability: Durability, content: Kept, every: usize, depth: usize) -> usize {
    let run = recorded(durability);
    let replayed = SimDisk::new(2);
    let mut crashes = 0;
    for (change, op) in run.disk.trace().iter().enumerate() {
        replayed.replay(op);
        if change % every == 0 {
            let disk = replayed.crash(content, Kept::Everything);
            let expected = batches_in(&SimDisk::with_files(4, &disk.files()), &run.options).unwrap();
            crashes += crash_recoveries(&disk, &run.options, &expected, depth);
        }
    }
    crashes
}

#[test]
fn a_cut_during_recovery_changes_nothing() {
    for (durability, content) in [
        (Durability::Always, Kept::Everything),
        (Durability::None, Kept::Some { seed: 5, sector_bytes: 512 }),
    ] {
        assert!(crash_recoveries_of(durability, content, 1, 1) > 5000);
    }
}

#[test]
fn cuts_during_recovery_after_recovery_change_nothing() {
    assert!(crash_recoveries_of(Durability::Always, Kept::Everything, 37, 2) > 5000);
}

/// A roll that was cut before the old segment was sealed is completed by the recovery: a lost successor is noticed then
/// too.
#[test]
fn a_recovery_seals_a_segment_that_an_interrupted_roll_left_open() {
    let run = recorded(Durability::Always);
    let replayed = SimDisk::new(2);
    let trace = run.disk.trace();
    let is_roll = |op: &Op| matches!(op, Op::Rename { to, .. } if to.ends_with("2.seg"));
    let roll = trace.iter().position(is_roll).unwrap();
    for op in &trace[..=roll] {
        replayed.replay(op);
    }
    let disk = replayed.crash(Kept::Everything, Kept::Everything);
    batches_in(&disk, &run.options).unwrap();
    disk.take("00000000000000000003.seg");
    assert!(refusal(&disk, &run.options).what.ends_with("00000000000000000002.seg is expected and missing"));
}

/// A failed sync leaves pages that can be read but are not on disk: a start reads them, and a later power cut must
/// not lose events that this start has replayed.
#[test]
fn replayed_events_survive_a_later_power_cut() {
    for durability in [Durability::Always, Durability::Interval, Durability::None] {
        let run = recorded(durability);
        let list = batches_in(&run.disk, &run.options).unwrap();
        assert_eq!(list, run.batches);
        let cut = run.disk.crash(Kept::Nothing, Kept::Nothing);
        assert_eq!(batches_in(&cut, &run.options).unwrap(), list);
    }
}
