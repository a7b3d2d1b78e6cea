//! Calls to the disk that fail while checkpoints are taken: a full disk is temporary and changes nothing, a failed
//! read only prevents the operation that needed it, any other fault ends all writing, and a restart finds the
//! confirmed checkpoints.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checkpoint_support;

use checkpoint_support::{Session, loaded, position_in};
use sureq_engine::log::{LogError, Position};
use sureq_testkit::sim_disk::{FailureKind, Kept, Repeat, SimDisk};

/// Takes and drops checkpoints until a call fails. Returns how often the older one was kept because of a failed read.
fn work(disk: &SimDisk, session: &mut Session) -> Result<u64, LogError> {
    let mut unread = 0;
    for round in 0..9 {
        session.next()?;
        if round % 4 == 2 {
            let (failed, trace, needed) =
                (disk.failed(), disk.trace_len(), session.checkpoints.needed_from());
            if !session.checkpoints.drop_older()?.is_dropped() {
                assert!(disk.failed() > failed, "the newest is sound");
                assert_eq!(disk.trace_len(), trace, "nothing has changed");
                assert_eq!(session.checkpoints.needed_from(), needed);
                unread += 1;
            }
        }
        if round % 4 == 3 {
            session.checkpoints.remove_leftovers()?;
        }
        assert!(!disk.files().contains_key("checkpoint.new"));
    }
    Ok(unread)
}

fn assert_poisoned(session: &mut Session) {
    let mut pace = |_| {};
    assert!(matches!(session.next(), Err(LogError::Poisoned)));
    assert!(matches!(session.checkpoints.begin(Position(99), &mut pace).err(), Some(LogError::Poisoned)));
    assert!(matches!(session.checkpoints.drop_older(), Err(LogError::Poisoned)));
    assert!(matches!(session.checkpoints.remove_leftovers(), Err(LogError::Poisoned)));
}

/// Lets each call of the work fail in turn. Returns the number of calls, and of those reads after which the work
/// continued.
fn break_each_call(repeat: Repeat) -> (u64, u64) {
    let mut forgiven = 0;
    for call in 1.. {
        let disk = SimDisk::new(call);
        let mut session = Session::start(&disk).unwrap();
        disk.fail(disk.calls() + call, FailureKind::Broken, repeat);
        let outcome = work(&disk, &mut session);
        if disk.failed() == 0 {
            return (call - 1, forgiven);
        }
        let context = format!("call {call}: {outcome:?}");
        if let Ok(unread) = outcome {
            assert_eq!((unread, repeat), (1, Repeat::Once), "{context}");
            assert_eq!(session.position, 9, "{context}");
            forgiven += 1;
        } else {
            assert!(matches!(outcome, Err(LogError::Fault(_))), "{context}");
            let before = disk.trace_len();
            assert_poisoned(&mut session);
            assert_eq!((disk.trace_len(), disk.syncs_after_failure()), (before, 0), "{context}");
        }
        disk.heal();
        let cut = disk.crash(Kept::Nothing, Kept::Nothing);
        for disk in [&disk, &cut] {
            assert!(position_in(disk, &context) >= session.position, "{context}");
            let mut again = Session::start(disk).unwrap();
            again.checkpoints.remove_leftovers().unwrap();
            assert_eq!(work(disk, &mut again).unwrap(), 0);
            assert_eq!(position_in(disk, &context), again.position);
        }
    }
    unreachable!("the work makes finitely many calls")
}

#[test]
fn an_io_error_at_any_call_but_a_read_ends_all_writing() {
    let (calls, reads) = break_each_call(Repeat::Once);
    assert!(reads > 20 && calls - reads > 70, "{calls} calls, {reads} reads");
    let (calls, reads) = break_each_call(Repeat::Sticky);
    assert!(reads == 0 && calls > 80, "the next write fails too: {calls} calls, {reads} reads");
}

/// Fills the disk at each call in turn, and then frees space.
fn fill_at_each_call(repeat: Repeat) -> u64 {
    let mut refusals = 0;
    for call in 1.. {
        let disk = SimDisk::new(call);
        let mut session = Session::start(&disk).unwrap();
        disk.fail(disk.calls() + call, FailureKind::Full, repeat);
        let mut before = disk.files();
        let outcome = loop {
            let outcome = session.next();
            if outcome.is_err() || session.position == 9 {
                break outcome;
            }
            before = disk.files();
        };
        if disk.calls() < call {
            return refusals;
        }
        let context = format!("call {call}: {outcome:?}");
        if let Err(error) = outcome {
            assert!(matches!(error, LogError::NoSpace(_)), "{context}");
            assert!(disk.files() == before, "nothing has changed, {context}");
            refusals += 1;
        }
        if session.position > 0 {
            assert_eq!(session.checkpoints.needed_from(), Position(session.position - 1), "{context}");
            assert_eq!(position_in(&disk, &context), session.position);
        }
        disk.heal();
        work(&disk, &mut session).unwrap();
        assert_eq!(position_in(&disk, &context), session.position);
        assert_eq!(session.checkpoints.bytes(), loaded(&disk).unwrap().checkpoints.bytes(), "{context}");
    }
    unreachable!("the work makes finitely many calls")
}

#[test]
fn a_full_disk_at_any_call_changes_nothing_and_passes() {
    assert!(fill_at_each_call(Repeat::Once) > 30);
    assert!(fill_at_each_call(Repeat::Sticky) > 30);
}

/// Dropping works on a full disk, too.
#[test]
fn the_older_checkpoint_can_be_dropped_on_a_full_disk() {
    let disk = checkpoint_support::taken(2);
    let mut session = loaded(&disk).unwrap();
    session.take(3, checkpoint_support::parts_at(100)).unwrap();
    disk.fail(disk.calls() + 1, FailureKind::Full, Repeat::Sticky);
    assert!(matches!(session.next(), Err(LogError::NoSpace(_))));
    assert_eq!(session.checkpoints.needed_from(), Position(2));
    assert!(session.checkpoints.drop_older().unwrap().is_dropped());
    assert_eq!(session.checkpoints.needed_from(), Position(3));
}

#[test]
fn a_spent_draft_stays_spent() {
    let disk = checkpoint_support::taken(2);
    let mut session = loaded(&disk).unwrap();
    let mut pace = |_| {};
    let mut draft = session.checkpoints.begin(Position(3), &mut pace).unwrap();
    disk.fail(disk.calls() + 1, FailureKind::Full, Repeat::Once);
    assert!(matches!(draft.write(&vec![7; 300 << 10]), Err(LogError::NoSpace(_))));
    assert!(matches!(draft.write(b"more"), Err(LogError::NoSpace(_))));
    assert!(matches!(draft.finish(b"", &[]), Err(LogError::NoSpace(_))));
    session.next().unwrap();
    assert_eq!(position_in(&disk, "after it"), 3);
}

#[test]
fn short_and_interrupted_calls_are_continued() {
    let untouched = SimDisk::new(0);
    work(&untouched, &mut Session::start(&untouched).unwrap()).unwrap();
    for kind in [FailureKind::Short, FailureKind::Interrupted] {
        for call in 1..=untouched.calls() {
            let disk = SimDisk::new(0);
            disk.fail(call, kind, Repeat::Once);
            work(&disk, &mut Session::start(&disk).unwrap()).unwrap();
            assert!(disk.files() == untouched.files(), "{kind:?} at call {call}");
        }
    }
}

/// A bad sector counts as damage: the older checkpoint is used if it does not need the sector, and otherwise the
/// error names the file.
#[test]
fn a_read_error_falls_back_or_names_the_file_and_changes_nothing() {
    let disk = checkpoint_support::taken(5);
    let calls = {
        let probe = checkpoint_support::copy(&disk);
        loaded(&probe).unwrap();
        probe.calls()
    };
    let (mut fell_back, mut refused) = (0, 0);
    for call in 2..=calls {
        let probe = checkpoint_support::copy(&disk);
        probe.fail(call, FailureKind::Broken, Repeat::Once);
        match loaded(&probe) {
            Ok(session) => {
                let skipped = session.skipped.map(|damage| damage.to_string()).unwrap_or_default();
                let is_named = skipped.contains("checkpoint-") && skipped.contains("it cannot be read: ");
                assert!(session.position == 5 || session.position == 4 && is_named, "call {call}: {skipped}");
                fell_back += u32::from(session.position == 4);
            }
            Err(error) => {
                let error = error.to_string();
                let is_read_error = error.starts_with("cannot ") || error.contains("it cannot be read: ");
                assert!(is_read_error && error.contains("checkpoint-"), "call {call}: {error}");
                refused += 1;
            }
        }
        assert_eq!((probe.failed(), probe.trace_len()), (1, 0), "call {call}");
    }
    assert!(fell_back > 0 && refused > 0, "{fell_back} of {calls} fell back, {refused} were refused");
}
