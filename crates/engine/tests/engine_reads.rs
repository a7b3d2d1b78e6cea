//! Rule 10, reads: a failed read does not end the store. After a few tries the task of that payload is dead, and this
//! is reported.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use engine_support::{ack, execute, push};
use sureq_core::command::{Cancel, IdForm, Pop, TaskRefs, View};
use sureq_core::{Command, Refusal, Replies, Reply, TaskId};
use sureq_engine::{Engine, Options};
use sureq_home_api::Payload;
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::patience::until;
use sureq_testkit::sim_disk::SimDisk;

const SEGMENT_BYTES: u64 = 16 << 10;

/// The payload of a task. Those of up to 256 tasks differ.
fn payload(n: usize) -> Vec<u8> {
    (0..600).map(|at| (n * 7 + at) as u8).collect()
}

/// A store with no payloads in memory.
struct Cold {
    disk: SimDisk,
    clock: Arc<ManualClock>,
    engine: Engine,
    ids: Vec<TaskId>,
}

static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn open(disk: &SimDisk, clock: &Arc<ManualClock>, keeps_log: bool) -> Engine {
    let options = Options {
        segment_bytes: Some(SEGMENT_BYTES),
        cache_bytes: 0,
        keeps_log,
        notice: Some(|line| NOTICES.lock().unwrap().push(line.to_owned())),
        ..Options::default()
    };
    Engine::open_on(disk.shared(), Arc::clone(clock) as _, &options).unwrap()
}

impl Cold {
    /// A store with this many tasks.
    fn new(tasks: usize) -> Self {
        let (disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
        let engine = open(&disk, &clock, true);
        let ids = (0..tasks).flat_map(|n| push(&engine, &[&payload(n)])).collect();
        engine.close().unwrap();
        let engine = open(&disk, &clock, true);
        Self { disk, clock, engine, ids }
    }

    /// The place of a task's payload.
    fn place(&self, n: usize) -> (String, Range<u64>) {
        let payload = payload(n);
        let files = self.disk.files();
        let mut found = files.iter().filter(|(name, _)| name.starts_with('0')).filter_map(|(name, bytes)| {
            let at = bytes.windows(payload.len()).position(|window| window == payload)? as u64;
            Some((name.clone(), at..at + payload.len() as u64))
        });
        found.next().expect("it is in the log")
    }

    /// Pops tasks. An error is the damage because of which there are none.
    fn pop(&self, count: u32) -> Result<Vec<TaskId>, (TaskId, Box<str>)> {
        let (replies, _) = execute(&self.engine, &[Command::Pop(Pop::plain(&[b"q"], count))]);
        match &replies.list[0] {
            Reply::Tasks(_) => Ok(self.sound(&replies)),
            Reply::Refused(Refusal::Damaged { id, why }) => Err((*id, why.clone())),
            other => panic!("{other:?}"),
        }
    }

    /// The tasks of a reply. Checks their payloads.
    fn sound(&self, replies: &Replies<Payload>) -> Vec<TaskId> {
        for task in &replies.tasks {
            let n = self.ids.iter().position(|id| *id == task.id).expect("it was pushed");
            assert_eq!(task.body.as_ref(), payload(n), "task {n}");
        }
        replies.tasks.iter().map(|task| task.id).collect()
    }

    fn dead(&self) -> Replies<Payload> {
        let look = Command::Inspect { queue: b"q", view: View::Dead, start: 0, count: 100 };
        execute(&self.engine, &[look]).0
    }

    fn counts(&self) -> [u64; 4] {
        self.engine.inspect(|broker| broker.queue(b"q").unwrap().counts())
    }

    fn pass(&self, ms: u64) {
        self.clock.pass(ms);
        self.engine.tick();
    }

    fn revive(&self, id: TaskId) {
        let text = id.to_string();
        let tasks = TaskRefs { list: &[text.as_bytes()], form: IdForm::Long };
        let (replies, _) = execute(&self.engine, &[Command::Revive { queue: b"q", tasks: Some(tasks) }]);
        assert_eq!(replies.list, [Reply::Count(1)]);
    }
}

#[test]
fn an_unreadable_payload_affects_only_its_task_and_delays_no_other() {
    let cold = Cold::new(60);
    let (file, place) = cold.place(3);
    cold.disk.break_reads(&file, place.start + 100..place.start + 101);
    let ids = |tasks: &[usize]| tasks.iter().map(|n| cold.ids[*n]).collect::<Vec<_>>();
    assert_eq!(cold.pop(6), Ok(ids(&[0, 1, 2, 4, 5])), "its neighbours are delivered");
    assert_eq!(cold.counts(), [54, 1, 5, 0], "its read will be retried");
    assert_eq!(cold.pop(2), Ok(ids(&[6, 7])), "later tasks do not wait for it");
    cold.pass(1_000);
    let rest: Vec<usize> = (8..60).collect();
    assert_eq!(cold.pop(100), Ok(ids(&rest)), "the read was retried");
    assert_eq!(cold.counts(), [0, 1, 59, 0]);
    cold.pass(10_000);
    let (id, why) = cold.pop(1).expect_err("there is nothing else");
    assert!(id == cold.ids[3] && why.contains(&format!("{file}: ")), "{id}: {why}");
    assert!(why.ends_with(&format!(", at offset {}", place.start)), "{why}");
    assert_eq!(cold.counts(), [0, 0, 59, 1], "that was the last attempt");
    cold.pass(1_000_000);
    assert_eq!(cold.pop(1), Ok(Vec::new()), "it is not retried any more");

    let dead = cold.dead();
    let more = dead.tasks[0].more.as_ref().unwrap();
    let reason = String::from_utf8(more.reason.as_ref().unwrap().to_vec()).unwrap();
    assert_eq!((dead.tasks[0].id, more.tries.failed), (cold.ids[3], 0), "no worker has failed");
    assert!(reason.contains(&file) && reason.contains(&place.start.to_string()), "{reason}");
    let status = cold.engine.status();
    assert!(status.read_errors >= 3 && status.unreadable_tasks == 1, "{status:?}");
    assert!(cold.engine.failure().is_none());
    cold.engine.check().unwrap();
    let notices =
        NOTICES.lock().unwrap().iter().filter(|line| line.contains(&cold.ids[3].to_string())).count();
    assert_eq!(notices, 3, "each attempt is reported to the operator");

    cold.disk.mend_reads();
    cold.revive(cold.ids[3]);
    assert_eq!(cold.pop(1), Ok(ids(&[3])), "the task was kept");
    assert_eq!(ack(&cold.engine, &cold.ids), 60);
    cold.engine.close().unwrap();
}

#[test]
fn a_disk_that_fails_for_a_moment_loses_no_task() {
    let cold = Cold::new(60);
    let (file, _) = cold.place(3);
    cold.disk.break_reads(&file, 0..SEGMENT_BYTES);
    let before = cold.pop(60);
    cold.disk.mend_reads();
    cold.pass(1_000);
    let mut all: BTreeSet<TaskId> = before.into_iter().flatten().collect();
    all.extend(cold.pop(60).unwrap());
    assert_eq!(all, cold.ids.iter().copied().collect(), "all are delivered");
    assert_eq!((cold.counts(), cold.engine.status().unreadable_tasks), ([0, 0, 60, 0], 0));
}

/// If very many reads fail, each answer stops retrying after a while, and finally all tasks of the file are dead.
#[test]
fn an_unreadable_file_affects_only_its_tasks() {
    const TASKS: usize = 250;
    let cold = Cold::new(TASKS);
    let (file, _) = cold.place(3);
    let of_file: BTreeSet<TaskId> =
        (0..TASKS).filter(|n| cold.place(*n).0 == file).map(|n| cold.ids[n]).collect();
    assert!(of_file.len() > 10 && of_file.len() < 100, "{}", of_file.len());
    cold.disk.break_reads(&file, 0..u64::MAX);
    let mut delivered = BTreeSet::new();
    for _ in 0..200 {
        delivered.extend(cold.pop(50).into_iter().flatten());
        cold.pass(11_000);
    }
    assert!(delivered.is_disjoint(&of_file));
    assert_eq!(delivered.len() + of_file.len(), TASKS);
    assert_eq!(cold.counts(), [0, 0, delivered.len() as u64, of_file.len() as u64]);
    assert_eq!(cold.dead().tasks.len(), of_file.len(), "an operator sees all of them");
    assert!(cold.engine.failure().is_none());
    cold.engine.check().unwrap();
}

#[test]
fn a_recovered_task_that_cannot_be_read_is_dead_after_a_few_tries() {
    let cold = Cold::new(20);
    let (file, place) = cold.place(3);
    assert_eq!(cold.pop(20).unwrap().len(), 20);
    cold.disk.break_reads(&file, place);
    let recover = Command::Recover { queue: b"q", count: 100, elapsed_ms: 0 };
    let (replies, _) = execute(&cold.engine, &[recover]);
    assert_eq!(cold.sound(&replies).len(), 19, "{:?}", replies.list);
    assert_eq!(cold.counts(), [0, 1, 19, 0]);
    cold.pass(1_000);
    assert!(cold.pop(1).is_err());
    cold.pass(10_000);
    assert!(cold.pop(1).is_err());
    assert_eq!(cold.counts(), [0, 0, 19, 1]);
}

#[test]
fn inspecting_ready_tasks_reports_unreadable_payloads_and_changes_nothing() {
    let cold = Cold::new(20);
    let (file, place) = cold.place(3);
    cold.disk.break_reads(&file, place);
    for _ in 0..5 {
        let look = Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: 10 };
        let (replies, _) = execute(&cold.engine, &[look]);
        assert!(
            matches!(&replies.list[..], [Reply::Refused(Refusal::Damaged { id, .. })] if *id == cold.ids[3])
        );
    }
    assert_eq!(cold.counts(), [20, 0, 0, 0]);
}

#[test]
fn a_search_continues_after_an_unreadable_payload() {
    let cold = Cold::new(60);
    let (file, place) = cold.place(3);
    cold.disk.break_reads(&file, place);
    let last = payload(50);
    let cancel = Command::Cancel { queue: b"q", which: Cancel::Payload(&last) };
    let (replies, _) = execute(&cold.engine, &[cancel]);
    assert!(matches!(&replies.list[..], [Reply::Refused(Refusal::Damaged { id, .. })] if *id == cold.ids[3]));
    assert_eq!(cold.counts(), [59, 0, 0, 0], "the task that it found is cancelled");
}

/// Deletes tasks, a few at a time.
fn delete(engine: &Engine, ids: &[TaskId]) {
    for chunk in ids.chunks(10) {
        let texts: Vec<String> = chunk.iter().map(ToString::to_string).collect();
        let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let tasks = TaskRefs { list: &list, form: IdForm::Long };
        let _ = execute(engine, &[Command::Delete { queue: b"q", tasks }]);
    }
}

/// Fills some segments and leaves a few tasks in each, so that tasks are copied forward. Returns the number of those.
fn waste_room(engine: &Engine) -> u64 {
    let ids: Vec<TaskId> = (0..120).flat_map(|n| push(engine, &[&payload(n)])).collect();
    let (left, others): (Vec<_>, Vec<_>) = ids.iter().enumerate().partition(|(n, _)| n % 8 == 0);
    delete(engine, &others.into_iter().map(|(_, id)| *id).collect::<Vec<_>>());
    left.len() as u64
}

/// A bad sector in a segment before the checkpoints ends neither the running store nor later starts. The log after
/// the checkpoint is needed completely: see [`the_log_that_a_start_needs_is_refused_by_name`].
#[test]
fn a_segment_that_cannot_be_read_is_kept_and_ends_nothing_at_any_start() {
    let (disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
    let engine = open(&disk, &clock, false);
    let ids: Vec<TaskId> = (0..200).flat_map(|n| push(&engine, &[&payload(n)])).collect();
    let cold = Cold { disk, clock, engine, ids };
    let ((file, place), (other, _)) = (cold.place(3), cold.place(120));
    let taken = cold.engine.status().checkpoints;
    until("no start reads the segment any more", || {
        push(&cold.engine, &[b"more"]);
        cold.engine.status().checkpoints >= taken + 2
    });
    let more = cold.counts()[0] - 200;
    cold.disk.break_reads(&file, place);
    // The unreadable segment has the fewest live bytes, so that it is the first to be copied.
    let is_left = |n: usize| n == 0 || n >= 30 && n.is_multiple_of(8);
    let gone: Vec<TaskId> = (0..200).filter(|n| !is_left(*n)).map(|n| cold.ids[n]).collect();
    delete(&cold.engine, &gone);
    let mut left = 200 - gone.len() as u64 + more;
    cold.engine.close().unwrap();
    for life in 1..=3 {
        let engine = open(&cold.disk, &cold.clock, false);
        left += waste_room(&engine);
        until("it is counted", || engine.status().unreadable_segments == 1 || engine.failure().is_some());
        assert!(engine.failure().is_none(), "life {life}: {:?}", engine.failure());
        until("other segments are copied and removed", || !cold.disk.files().contains_key(&other));
        assert!(cold.disk.files().contains_key(&file), "life {life}: it has live tasks");
        engine.check().unwrap();
        engine.close().unwrap();
    }
    cold.disk.mend_reads();
    let engine = open(&cold.disk, &cold.clock, false);
    left += waste_room(&engine);
    until("it is copied and removed", || !cold.disk.files().contains_key(&file));
    assert_eq!(engine.inspect(|broker| broker.queue(b"q").unwrap().counts()), [left, 0, 0, 0]);
    engine.check().unwrap();
    engine.close().unwrap();
}

/// Events after the checkpoint are only in the log: if a part of it is unreadable, the start fails and changes
/// nothing.
#[test]
fn the_log_that_a_start_needs_is_refused_by_name() {
    let cold = Cold::new(60);
    let (file, place) = cold.place(3);
    cold.engine.close().unwrap();
    let before = cold.disk.trace_len();
    cold.disk.break_reads(&file, place);
    let options = Options { segment_bytes: Some(SEGMENT_BYTES), ..Options::default() };
    let start = || Engine::open_on(cold.disk.shared(), Arc::clone(&cold.clock) as _, &options);
    let error = start().expect_err("it cannot be replayed").to_string();
    assert!(error.starts_with("cannot read") && error.contains(&file), "{error}");
    assert_eq!(cold.disk.trace_len(), before, "nothing has changed");
    cold.disk.mend_reads();
    let engine = start().unwrap();
    assert_eq!(engine.inspect(|broker| broker.queue(b"q").unwrap().counts()), [60, 0, 0, 0]);
    engine.close().unwrap();
}

/// FAULTS H6: a bad sector anywhere in the files of a running store affects only the tasks whose payloads are there.
#[test]
fn no_bad_sector_of_any_file_costs_more_than_the_payloads_in_it() {
    const SECTOR: u64 = 512;
    let cold = Cold::new(60);
    let places: Vec<(String, Range<u64>)> = (0..60).map(|n| cold.place(n)).collect();
    cold.engine.close().unwrap();
    let files = cold.disk.files();
    let (mut hits, mut tried) = (0, 0);
    for (name, bytes) in files.iter().filter(|(name, _)| !name.starts_with("spare")) {
        for start in (0..bytes.len() as u64).step_by(SECTOR as usize) {
            let disk = SimDisk::with_files(5, &files);
            let engine = open(&disk, &cold.clock, true);
            // The last segment was rewritten under another name, with payloads at the same offsets.
            let there = disk.files();
            let now = if there.contains_key(name) {
                name
            } else {
                there.keys().rfind(|name| name.starts_with('0')).unwrap()
            };
            disk.break_reads(now, start..start + SECTOR);
            let this = Cold { disk, clock: Arc::clone(&cold.clock), engine, ids: cold.ids.clone() };
            let hit = |(file, place): &(String, Range<u64>)| {
                // The checksum is before the payload.
                file == name && place.start - 4 < start + SECTOR && start < place.end
            };
            let lost: BTreeSet<TaskId> = (0..60).filter(|n| hit(&places[*n])).map(|n| this.ids[n]).collect();
            let mut delivered: BTreeSet<TaskId> = this.pop(60).unwrap().into_iter().collect();
            for _ in 0..2 {
                this.pass(11_000);
                delivered.extend(this.pop(60).into_iter().flatten());
            }
            let expected: BTreeSet<TaskId> =
                this.ids.iter().copied().filter(|id| !lost.contains(id)).collect();
            assert_eq!(delivered, expected, "{name} at {start}");
            assert_eq!(this.counts(), [0, 0, expected.len() as u64, lost.len() as u64], "{name} at {start}");
            assert_eq!(ack(&this.engine, &this.ids), expected.len());
            assert!(this.engine.failure().is_none(), "{name} at {start}: {:?}", this.engine.failure());
            this.engine.check().unwrap();
            this.engine.close().unwrap();
            (hits, tried) = (hits + lost.len(), tried + 1);
        }
    }
    assert!(hits >= 60 && tried > 100, "{hits} payloads of {tried} sectors");
}
