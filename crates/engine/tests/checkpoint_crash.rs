//! A power cut at any moment leaves the newest checkpoint or the one before it, complete with all of its blobs, and
//! never one that is older than the position from which the log is kept.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checkpoint_support;

use checkpoint_support::{Session, crash_everywhere, position_in};
use sureq_testkit::sim_disk::{FailureKind, Kept, Repeat, SimDisk};

/// A run, and a record of which checkpoint was durable when.
struct Run {
    session: Session,
    disk: SimDisk,
    /// Changes of the disk before the run.
    begin: usize,
    /// After this many changes, the checkpoint at this position was durable.
    promises: Vec<(usize, u64)>,
}

impl Run {
    fn start(disk: &SimDisk, promised: u64) -> Run {
        let begin = disk.trace_len();
        let session = Session::start(disk).unwrap();
        Run { session, disk: disk.clone(), begin, promises: vec![(0, promised)] }
    }

    fn promise(&mut self) {
        let needed = self.session.checkpoints.needed_from().0;
        assert!(needed <= self.session.position);
        self.promises.push((self.disk.trace_len() - self.begin, self.session.position));
    }

    fn remove_leftovers(&mut self) -> &mut Run {
        self.session.checkpoints.remove_leftovers().unwrap();
        self
    }

    fn next(&mut self) -> &mut Run {
        self.session.next().unwrap();
        self.promise();
        self
    }

    /// The loaded checkpoint may be newer than the last one known to be durable. From here on it is the durable one.
    fn drop_older(&mut self) -> &mut Run {
        assert!(self.session.checkpoints.drop_older().unwrap().is_dropped() || self.session.position == 0);
        self.promise();
        self
    }

    fn promised(&self, change: usize) -> u64 {
        self.promises.iter().rev().find(|(changes, _)| *changes <= change).unwrap().1
    }
}

/// Cuts the run at every moment, and the short runs after it, `depth` deep. Only one in `every` of the deeper runs is
/// tried.
fn crash(base: &SimDisk, run: &Run, depth: usize, every: usize, seen: &mut usize) {
    crash_everywhere(base, &run.disk.trace()[run.begin..], |change, crash, disk| {
        let context = format!("depth {depth}, change {change}, {crash:?}");
        let promised = run.promised(change);
        let position = position_in(&disk, &context);
        assert!((promised..=promised + 1).contains(&position), "{position} for {promised}: {context}");
        *seen += 1;
        if depth > 0 && (*seen).is_multiple_of(every) {
            let before = SimDisk::with_files(3, &disk.files());
            let mut again = Run::start(&disk, position);
            match *seen / every % 3 {
                0 => again.remove_leftovers().next().drop_older(),
                1 => again.drop_older().next(),
                _ => again.next().remove_leftovers(),
            };
            self::crash(&before, &again, depth - 1, every * 13, seen);
        }
    });
}

#[test]
fn a_cut_at_any_moment_leaves_the_newest_or_the_one_before() {
    let disk = SimDisk::new(1);
    let mut run = Run::start(&disk, 0);
    for _ in 0..12 {
        run.next();
    }
    run.drop_older().next().next().next().drop_older().drop_older().remove_leftovers().next();
    let mut seen = 0;
    crash(&SimDisk::new(2), &run, 0, 1, &mut seen);
    assert!(seen > 1000, "{seen} cuts");
}

#[test]
fn three_cuts_in_a_row_leave_the_newest_or_the_one_before() {
    let disk = SimDisk::new(1);
    let mut run = Run::start(&disk, 0);
    run.next().next().next().next().drop_older().next().next().next();
    let mut seen = 0;
    crash(&SimDisk::new(2), &run, 2, 2, &mut seen);
    assert!(seen > 50_000, "{seen} cuts");
}

/// A directory whose sync has failed lists names that are not on disk. A start uses these checkpoints, and must not
/// remove the older one before their names are durable.
#[test]
fn a_name_that_is_not_durable_is_not_relied_on() {
    type Act = fn(&mut Run) -> &mut Run;
    let acts: [Act; 3] = [Run::remove_leftovers, Run::drop_older, Run::next];
    for (index, act) in acts.into_iter().enumerate() {
        let mut hits = 0;
        for call in 1..200 {
            let disk = SimDisk::new(1);
            let mut session = Session::start(&disk).unwrap();
            for _ in 0..4 {
                session.next().unwrap();
            }
            disk.fail(disk.calls() + call, FailureKind::Broken, Repeat::Once);
            let has_failed = session.next().is_err();
            if disk.failed() == 0 {
                break;
            }
            disk.heal();
            hits += usize::from(has_failed);
            let base = SimDisk::new(2);
            disk.trace().iter().for_each(|op| base.replay(op));
            let mut run = Run::start(&disk, if has_failed { 4 } else { 5 });
            act(&mut run);
            crash_everywhere(&base, &run.disk.trace()[run.begin..], |change, crash, disk| {
                let context = format!("act {index}, call {call}, change {change}, {crash:?}");
                assert!(position_in(&disk, &context) >= run.promised(change), "{context}");
            });
            let cut = disk.crash(Kept::Nothing, Kept::Nothing);
            assert!(position_in(&cut, "after all") >= run.promised(usize::MAX));
        }
        assert!(hits > 5, "{hits} failures");
    }
}
