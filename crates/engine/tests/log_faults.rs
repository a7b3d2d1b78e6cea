//! Rule 10: the n-th call to the disk fails, for every n. After that nothing is confirmed, no failed sync of a file
//! is retried, and a restart finds all confirmed batches.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod log_support;

use log_support::{assert_goes_on, batch, batches_in, events, options, recovered};
use sureq_engine::fault::OpenError;
use sureq_engine::log::{FrameBuf, LogError, LogOptions, Writer};
use sureq_testkit::sim_disk::{FailureKind, Kept, Repeat, SimDisk};

const BATCHES: usize = 45;

/// Opens the log twice and appends to it each time, confirming after each sync, until a call fails. Returns the
/// number of appended and of confirmed batches.
fn work(disk: &SimDisk, options: &LogOptions) -> (usize, usize) {
    let mut confirmed = 0;
    for _ in 0..2 {
        let Ok((list, mut log)) = recovered(disk, options) else { break };
        assert_eq!(list.len(), confirmed);
        let _ = log.spares.prepare();
        for index in list.len()..list.len() + BATCHES {
            if let Err(error) = append_and_sync(&mut log.writer, index) {
                assert_ends(&mut log.writer, &error, index);
                return (index + 1, confirmed);
            }
            confirmed = index + 1;
        }
    }
    (confirmed, confirmed)
}

fn append_and_sync(writer: &mut Writer, index: usize) -> Result<(), LogError> {
    writer.append(&mut frame(index), events(index))?;
    writer.sync()?;
    Ok(())
}

fn frame(index: usize) -> FrameBuf {
    let mut frame = FrameBuf::new();
    frame.extend(&batch(index));
    frame
}

/// A fault poisons the log. So does a full disk, unless it prevented only the preparation of a segment.
fn assert_ends(writer: &mut Writer, error: &LogError, index: usize) {
    if matches!(error, LogError::NoSpace(_)) {
        assert!(!writer.is_poisoned());
        return;
    }
    assert!(matches!(error, LogError::Fault(_)) && writer.is_poisoned(), "{error}");
    for _ in 0..3 {
        assert!(matches!(writer.sync(), Err(LogError::Poisoned)));
        assert!(matches!(writer.append(&mut frame(index), events(index)), Err(LogError::Poisoned)));
    }
}

/// Lets each call of the work fail in turn. Returns the number of runs.
fn fail_each_call(kind: FailureKind, repeat: Repeat) -> u64 {
    let options = LogOptions { spare_segments: 2, ..options(4096) };
    for call in 1.. {
        let disk = SimDisk::new(call);
        disk.fail(call, kind, repeat);
        let (appended, confirmed) = work(&disk, &options);
        if disk.failed() == 0 && disk.calls() < call {
            return call - 1;
        }
        assert_eq!(disk.syncs_after_failure(), 0, "call {call}");
        assert_restarts(&disk, &options, appended, confirmed, call);
    }
    unreachable!("the work makes finitely many calls")
}

/// A restart finds all confirmed batches, also if the power is cut before or after it.
fn assert_restarts(disk: &SimDisk, options: &LogOptions, appended: usize, confirmed: usize, call: u64) {
    disk.heal();
    let cut = disk.crash(Kept::Nothing, Kept::Nothing);
    let all: Vec<_> = (0..appended).map(batch).collect();
    for disk in [disk, &cut] {
        let list = batches_in(disk, options).unwrap_or_else(|error| panic!("call {call}: {error}"));
        assert!(
            all.starts_with(&list) && list.len() >= confirmed,
            "call {call}: {} of {confirmed}",
            list.len()
        );
        let cut_later = disk.crash(Kept::Nothing, Kept::Nothing);
        assert_eq!(batches_in(&cut_later, options).unwrap(), list, "call {call}");
        assert_goes_on(disk, options, &list);
    }
}

#[test]
fn an_io_error_at_any_call() {
    assert!(fail_each_call(FailureKind::Broken, Repeat::Once) > 200);
    assert!(fail_each_call(FailureKind::Broken, Repeat::Sticky) > 200);
}

#[test]
fn a_full_disk_at_any_call() {
    assert!(fail_each_call(FailureKind::Full, Repeat::Once) > 200);
    assert!(fail_each_call(FailureKind::Full, Repeat::Sticky) > 200);
}

#[test]
fn short_and_interrupted_calls_are_continued() {
    let untouched = SimDisk::new(0);
    let expected = work(&untouched, &options(4096));
    for (kind, repeat) in [
        (FailureKind::Short, Repeat::Once),
        (FailureKind::Short, Repeat::Sticky),
        (FailureKind::Interrupted, Repeat::Once),
    ] {
        for call in 1..=untouched.calls() {
            let disk = SimDisk::new(0);
            disk.fail(call, kind, repeat);
            assert_eq!(work(&disk, &options(4096)), expected, "{kind:?} at call {call}");
        }
    }
}

/// Rule 10: on a full disk the log continues in prepared files, and without a restart when there is space again.
#[test]
fn a_full_disk_refuses_and_recovers_without_a_restart() {
    let options = options(4096);
    let disk = SimDisk::new(1);
    let (_, mut log) = recovered(&disk, &options).unwrap();
    log.spares.prepare().unwrap();
    disk.fail(u64::MAX, FailureKind::Full, Repeat::Sticky);
    let creates_fail = disk.clone();
    let mut index = 0;
    let refused = loop {
        let needs_segment = !log.writer.room().fits(192) && log.spares.ready() == 0;
        if needs_segment {
            creates_fail.fail(disk.calls() + 1, FailureKind::Full, Repeat::Sticky);
        }
        match append_and_sync(&mut log.writer, index) {
            Ok(()) => index += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, LogError::NoSpace(_)), "{refused}");
    assert!(index > 30, "the prepared segment was used up first");
    assert!(matches!(log.spares.prepare(), Err(LogError::NoSpace(_))));
    assert!(!disk.files().keys().any(|name| name.starts_with("spare")), "no incomplete file takes up space");
    disk.heal();
    append_and_sync(&mut log.writer, index).unwrap();
    let all: Vec<_> = (0..=index).map(batch).collect();
    assert_goes_on(&disk, &options, &all);
}

/// A frame may have been written in part, so the log cannot continue after it.
#[test]
fn a_full_disk_in_the_write_of_a_frame_poisons() {
    let disk = SimDisk::new(1);
    let (_, mut log) = recovered(&disk, &options(4096)).unwrap();
    disk.fail(disk.calls() + 1, FailureKind::Full, Repeat::Once);
    let outcome = log.writer.append(&mut frame(0), events(0));
    assert!(matches!(outcome, Err(LogError::Fault(fault)) if fault.is_no_space()));
    assert!(matches!(log.writer.sync(), Err(LogError::Poisoned)));
}

/// C8: a bad sector met while reading is a fault that names the file, and changes nothing.
#[test]
fn a_read_error_during_recovery_names_the_file() {
    let disk = SimDisk::new(1);
    let options = options(4096);
    work(&disk, &options);
    let probe = SimDisk::with_files(2, &disk.files());
    probe.fail(2, FailureKind::Broken, Repeat::Once);
    match recovered(&probe, &options) {
        Err(OpenError::Disk(fault)) => assert!(fault.to_string().contains(".seg"), "{fault}"),
        _ => panic!("the error was swallowed"),
    }
    assert_eq!(probe.trace_len(), 0);
}
