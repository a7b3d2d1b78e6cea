//! The disk space of a store without its checkpoints: never more than three times the live bytes plus eight segments,
//! for any load.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use sureq_core::command::{AckScope, Add, IdForm, Pop, Return, TaskRef, TaskRefs, When};
use sureq_core::settings::Place;
use sureq_core::task::Body as _;
use sureq_core::{Command, Replies, Reply, TaskId};
use sureq_engine::log::Durability;
use sureq_engine::{Engine, Options};
use sureq_home_api::{Flow, Home as _, Payload};
use sureq_testkit::load::{scale, seeded};
use sureq_testkit::patience::until;

const SEGMENT_BYTES: u64 = 256 << 10;

/// The bytes that a task takes up in the log besides its payload.
const RECORD_BYTES: u64 = 48;

const LEVELS: [Durability; 3] = [Durability::Always, Durability::Interval, Durability::None];

/// The time in which space must be freed.
const SOON: Duration = Duration::from_secs(5);

/// The time for which the bound may be exceeded while tasks are finished one by one. If replies do not wait for the
/// disk, a segment or two may be begun before old ones are removed.
fn patience(level: Durability) -> Duration {
    if level == Durability::Always { Duration::ZERO } else { SOON }
}

/// A store in a directory that is measured after every command.
struct Measured {
    engine: Engine,
    dir: tempfile::TempDir,
    /// The most space beyond three times the live bytes, in segments.
    worst: f64,
    /// The time for which the bound may be exceeded. Many tasks can be removed at once, and freeing their space takes
    /// time.
    patience: Duration,
    longest: Duration,
    rng: Rng,
}

impl Measured {
    fn new(durability: Durability, patience: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { durability, segment_bytes: Some(SEGMENT_BYTES), ..Options::default() };
        let engine = Engine::open(dir.path(), &options).unwrap();
        Self { engine, dir, worst: 0.0, patience, longest: Duration::ZERO, rng: seeded() }
    }

    fn execute(&mut self, command: Command<'_>) -> Replies<Payload> {
        let mut replies = Replies::default();
        loop {
            let executed = self.engine.execute(&[command], &mut replies);
            let upto = match executed.flow {
                Flow::Backpressure(Some(until)) => until.max(executed.position),
                _ => executed.position,
            };
            assert!(self.engine.wait(upto), "{:?}", self.engine.failure());
            self.measure();
            if executed.executed > 0 {
                return replies;
            }
        }
    }

    fn measure(&mut self) {
        let since = Instant::now();
        let mut beyond = self.beyond();
        while beyond > 8.0 {
            let status = self.engine.status();
            let files = files_in(self.dir.path());
            assert!(
                since.elapsed() < self.patience,
                "{beyond:.1} segments beyond the live bytes: {files:?}, {status:?}"
            );
            std::thread::yield_now();
            beyond = self.beyond();
        }
        (self.worst, self.longest) = (self.worst.max(beyond), self.longest.max(since.elapsed()));
    }

    /// The space beyond three times the live bytes, in segments.
    #[expect(clippy::cast_precision_loss, reason = "a part of a segment is near enough")]
    fn beyond(&self) -> f64 {
        let used = segment_bytes(self.dir.path());
        (used as f64 - 3.0 * self.live_bytes() as f64) / SEGMENT_BYTES as f64
    }

    fn live_bytes(&self) -> u64 {
        self.engine.status().live_bytes
    }

    fn push(&mut self, queue: &[u8], count: usize, bytes: usize) -> Vec<TaskId> {
        let payloads: Vec<Vec<u8>> = (0..count).map(|_| vec![self.rng.u8(..); bytes]).collect();
        let list: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        let replies = self.execute(Command::Push { queue, payloads: &list });
        assert_eq!(replies.ids.len(), count, "{:?}", replies.list);
        replies.ids
    }

    fn pop(&mut self, queue: &[u8], count: u32) -> Vec<TaskId> {
        let replies = self.execute(Command::Pop(Pop::plain(&[queue], count)));
        replies.tasks.iter().map(|task| task.id).collect()
    }

    fn ack(&mut self, queue: &[u8], ids: &[TaskId]) {
        let texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let tasks = TaskRefs { list: &list, form: IdForm::Long };
        let replies = self.execute(Command::Ack { queue, tasks, scope: AckScope::LeasedOrLapsed });
        assert_eq!(replies.indexes.len(), ids.len());
    }

    /// Compares the counted live bytes with the existing tasks, and closes the store.
    fn end(self) {
        let mut live = 0;
        self.engine.inspect(|broker| broker.bodies(&mut |body| live += body.len() as u64 + RECORD_BYTES));
        // A checkpoint may still be releasing the tasks of dropped queues.
        until("the counted live bytes are those of the tasks", || self.live_bytes() == live);
        self.engine.check().unwrap();
        println!(
            "at most {:.1} segments beyond, for {:?}; {:?}",
            self.worst,
            self.longest,
            self.engine.status()
        );
        self.engine.close().unwrap();
    }
}

/// The bytes of all segments and spares.
fn segment_bytes(dir: &Path) -> u64 {
    files_in(dir).values().sum()
}

fn files_in(dir: &Path) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let files = entries.map(|entry| {
        // A file that was removed meanwhile takes up nothing.
        (entry.file_name().into_string().unwrap(), entry.metadata().map_or(0, |metadata| metadata.len()))
    });
    files.filter(|(name, _)| name.starts_with('0') || name.starts_with("spare-")).collect()
}

#[test]
fn one_task_that_is_held_does_not_pin_the_log() {
    for level in LEVELS {
        let mut store = Measured::new(level, patience(level));
        store.push(b"held", 1, 100);
        store.pop(b"held", 1);
        for _ in 0..350 * scale() {
            store.push(b"q", 20, 500);
            let ids = store.pop(b"q", 20);
            store.ack(b"q", &ids);
        }
        store.end();
    }
}

#[test]
fn tasks_that_are_popped_and_returned_do_not_pin_the_log() {
    for level in LEVELS {
        let mut store = Measured::new(level, patience(level));
        let tasks = 700 * scale() as usize;
        for n in 0..tasks {
            let payload = vec![n as u8; 30];
            let add = Add { when: When::After(1), ..Add::plain(b"q", &payload) };
            assert!(matches!(store.execute(Command::Add(add)).list[0], Reply::Added { .. }));
        }
        for _ in 0..3 * tasks {
            for id in store.pop(b"q", 1) {
                let text = id.to_string();
                let task = TaskRef { bytes: text.as_bytes(), form: IdForm::Long };
                let to = Some(Place::After(1));
                store.execute(Command::Return(Return {
                    queue: b"q",
                    task,
                    to,
                    failed: None,
                    is_last: false,
                }));
            }
        }
        store.end();
    }
}

#[test]
fn tasks_that_are_finished_at_random_do_not_pin_the_log() {
    for level in LEVELS {
        let mut store = Measured::new(level, SOON);
        let mut held = Vec::new();
        for _ in 0..20 * scale() {
            for _ in 0..20 {
                let bytes = store.rng.usize(..2000);
                store.push(b"q", 20, bytes);
                held.extend(store.pop(b"q", 20));
            }
            store.rng.shuffle(&mut held);
            let kept = held.split_off(held.len() * 9 / 10);
            for ids in std::mem::replace(&mut held, kept).chunks(20) {
                store.ack(b"q", ids);
            }
        }
        store.end();
    }
}

/// The drop itself frees no space, but compaction does so soon.
#[test]
fn dropping_a_queue_frees_its_space() {
    for level in LEVELS {
        let mut store = Measured::new(level, SOON);
        for _ in 0..3 * scale() {
            for _ in 0..100 {
                store.push(b"q", 50, 500);
            }
            store.execute(Command::Drop { queues: &[b"q"] });
            while store.engine.inspect(sureq_core::Broker::is_unfinished) {
                std::thread::yield_now();
            }
            store.measure();
        }
        store.end();
    }
}
