//! A store with a long history: queues with tasks in all states, checkpoints, tasks that were copied forward, and a
//! record of the expected state of each task.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sureq_core::command::{AckScope, Add, IdForm, LeaseAsk, NameArg, Pop, TaskRefs, When, Worker, WorkerRef};
use sureq_core::event::Event;
use sureq_core::settings::{Change, Changes};
use sureq_core::{Command, Replies, Reply, TaskId, codec};
use sureq_engine::check::{Report, check};
use sureq_engine::log::{Durability, LogOptions, scan};
use sureq_engine::repair::{Gap, Repaired, repair};
use sureq_engine::store::Store;
use sureq_engine::{Engine, Options};
use sureq_home_api::{Home as _, Payload};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::SimDisk;

/// Segments so small that a short life fills many.
pub const SEGMENT_BYTES: u64 = 8192;

pub type Files = BTreeMap<String, Arc<Vec<u8>>>;

pub fn open(disk: &SimDisk, clock: &Arc<ManualClock>) -> Engine {
    let options =
        Options { durability: Durability::Always, segment_bytes: Some(SEGMENT_BYTES), ..Options::default() };
    Engine::open_on(disk.shared(), Arc::clone(clock) as _, &options).expect("a sound store opens")
}

/// The files of a store, and the expected state of its tasks.
pub struct Lived {
    pub files: Files,
    /// The clock, at its last time.
    pub clock: Arc<ManualClock>,
    /// Existing tasks, with queue and payload.
    pub live: BTreeMap<TaskId, (Vec<u8>, Vec<u8>)>,
    /// Tasks that were finished or removed.
    pub finished: BTreeSet<TaskId>,
    pub digest: u64,
    pub incarnation: u64,
    /// The positions of the records of each task.
    pub records: BTreeMap<TaskId, Vec<u64>>,
    /// The position of the last frame, and the tasks that were finished by it.
    pub last: (u64, BTreeSet<TaskId>),
}

/// A store in use, and the expected state of its tasks.
pub struct Life {
    pub disk: SimDisk,
    pub clock: Arc<ManualClock>,
    pub engine: Engine,
    pub live: BTreeMap<TaskId, (Vec<u8>, Vec<u8>)>,
    pub finished: BTreeSet<TaskId>,
    number: u64,
}

impl Life {
    pub fn new() -> Life {
        let (disk, clock) = (SimDisk::new(11), Arc::new(ManualClock::default()));
        let engine = open(&disk, &clock);
        Life { disk, clock, engine, live: BTreeMap::new(), finished: BTreeSet::new(), number: 0 }
    }

    pub fn execute(&self, command: &Command<'_>) -> Replies<Payload> {
        let mut replies = Replies::default();
        let executed = self.engine.execute(std::slice::from_ref(command), &mut replies);
        assert!(self.engine.wait(executed.position), "{:?}", self.engine.failure());
        replies
    }

    /// A payload that no other task has.
    fn payload(&mut self) -> Vec<u8> {
        self.number += 1;
        let filler = (self.number * 31 % 160) as usize;
        format!("payload {} {}", self.number, "x".repeat(filler)).into_bytes()
    }

    pub fn push(&mut self, queue: &[u8], count: usize) -> Vec<TaskId> {
        if count == 0 {
            return Vec::new();
        }
        let payloads: Vec<Vec<u8>> = (0..count).map(|_| self.payload()).collect();
        let slices: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        let ids = self.execute(&Command::Push { queue, payloads: &slices }).ids;
        for (&id, payload) in ids.iter().zip(payloads) {
            self.live.insert(id, (queue.to_vec(), payload));
        }
        ids
    }

    pub fn add(&mut self, add: Add<'_>) -> TaskId {
        let payload = self.payload();
        let replies = self.execute(&Command::Add(Add { payload: &payload, ..add }));
        let Reply::Added { id, added: true, .. } = replies.list[0] else { panic!("{:?}", replies.list) };
        self.live.insert(id, (add.queue.to_vec(), payload));
        id
    }

    pub fn pop(&self, queue: &[u8], count: u32, lease: LeaseAsk<'_>) -> Vec<TaskId> {
        let queues = [queue];
        let replies = self.execute(&Command::Pop(Pop { lease, ..Pop::plain(&queues, count) }));
        for task in &replies.tasks {
            assert_eq!(task.body.as_ref(), self.live[&task.id].1, "a payload is the pushed one");
        }
        replies.tasks.iter().map(|task| task.id).collect()
    }

    pub fn ack(&mut self, queue: &[u8], ids: &[TaskId]) {
        let texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let tasks = TaskRefs { list: &list, form: IdForm::Long };
        let replies = self.execute(&Command::Ack { queue, tasks, scope: AckScope::LeasedOrLapsed });
        for &at in &replies.indexes {
            let id = ids[at as usize];
            self.live.remove(&id);
            self.finished.insert(id);
        }
    }

    pub fn bury(&self, queue: &[u8], ids: &[TaskId]) {
        let texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        self.execute(&Command::Bury { queue, tasks: TaskRefs { list: &list, form: IdForm::Long } });
    }

    /// Pushes and acks tasks until this many checkpoints were taken and this many bytes were copied forward.
    pub fn churn(&mut self, checkpoints: u64, copied: u64) {
        let deadline = Instant::now() + Duration::from_secs(20);
        for rounds in 0u64.. {
            let status = self.engine.status();
            if status.checkpoints >= checkpoints && status.copied_bytes >= copied && !status.is_checkpointing
            {
                return;
            }
            assert!(Instant::now() < deadline, "it did not happen in time: {status:?}");
            // Compaction must keep pace, so that all such stores have about the same size.
            if status.segments > 14 {
                std::thread::yield_now();
                continue;
            }
            // One task stays in each segment, so that the segments are much larger than their live tasks.
            let is_wanted = status.copied_bytes < copied && rounds % 6 == 0;
            self.push(b"kept", usize::from(is_wanted));
            self.push(b"busy", 12);
            let ids = self.pop(b"busy", 12, LeaseAsk::NONE);
            self.ack(b"busy", &ids);
        }
    }

    pub fn restart(&mut self) {
        self.engine.close().expect("a sound disk");
        self.clock.pass(1000);
        self.engine = open(&self.disk, &self.clock);
    }

    /// Ends the life. The files are those before the store was closed, as a killed process leaves them.
    pub fn end(self) -> Lived {
        let (digest, incarnation) = self.engine.inspect(|broker| (broker.digest(), broker.incarnation()));
        let files = self.calm_files();
        self.engine.close().expect("a sound disk");
        let Life { clock, live, finished, .. } = self;
        let records = records_in(&files);
        let last = last_frame_of(&files);
        Lived { files, clock, live, finished, digest, incarnation, records, last }
    }
}

impl Life {
    /// The files at a moment at which no thread is writing one: other tests are about the leftovers of a crash.
    fn calm_files(&self) -> Files {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let files = self.disk.files();
            let report = checked(&disk_of(&files));
            if report.findings.is_empty() {
                return files;
            }
            assert!(Instant::now() < deadline, "there is always a finding: {:#?}", report.findings);
            std::thread::yield_now();
        }
    }
}

/// The positions of the records of each task.
fn records_in(files: &Files) -> BTreeMap<TaskId, Vec<u64>> {
    let mut records: BTreeMap<TaskId, Vec<u64>> = BTreeMap::new();
    for bytes in files.iter().filter(|(name, _)| is_segment(name)).map(|(_, bytes)| bytes) {
        for (first, body) in frames_of(bytes) {
            let (mut rest, mut position) = (body, first);
            while !rest.is_empty() {
                let mut note = |id| records.entry(id).or_default().push(position);
                let ((), behind) = codec::decode(rest, |event| match event {
                    Event::Pushed { first, payloads, .. } => {
                        (0..payloads.len()).filter_map(|n| first.nth(n as u64)).for_each(&mut note);
                    }
                    Event::Task(task) => note(task.id),
                    _ => {}
                })
                .expect("an event");
                (rest, position) = (behind, position + 1);
            }
        }
    }
    records
}

/// The position of the last frame, and the tasks that were finished by it.
fn last_frame_of(files: &Files) -> (u64, BTreeSet<TaskId>) {
    let segments = files.iter().filter(|(name, _)| is_segment(name));
    let (first, body) =
        segments.flat_map(|(_, bytes)| frames_of(bytes)).max_by_key(|frame| frame.0).expect("a frame");
    let (mut rest, mut finished) = (body, BTreeSet::new());
    while !rest.is_empty() {
        let ((), behind) = codec::decode(rest, |event| {
            if let Event::Finished { ids, .. } = event {
                finished.extend(ids.iter());
            }
        })
        .expect("an event");
        rest = behind;
    }
    (first, finished)
}

/// The frames of a sound segment, as docs/understand/log-format.md draws them: position and body.
pub fn frames_of(segment: &[u8]) -> Vec<(u64, &[u8])> {
    let word = |at: usize| u64::from_le_bytes(segment[at..at + 8].try_into().expect("eight bytes"));
    let half = |at: usize| u32::from_le_bytes(segment[at..at + 4].try_into().expect("four bytes"));
    let (salt, mut at, mut frames) = (word(48), 128, Vec::new());
    while at + 64 <= segment.len() && word(at) == salt && half(at + 48) == 1 {
        let bytes = half(at + 36) as usize;
        frames.push((word(at + 16), &segment[at + 64..at + 64 + bytes]));
        at += 64 + bytes.next_multiple_of(64);
    }
    frames
}

/// A store with everything that a store can contain.
pub fn lived() -> Lived {
    let mut life = Life::new();
    let day = 86_400_000;
    life.push(b"mail", 30);
    let urgent = Add { priority: 7, name: Some(NameArg::Bytes(b"boss")), ..Add::plain(b"mail", b"") };
    life.add(urgent);
    for n in 0..5 {
        life.add(Add { when: When::After(day + n), ..Add::plain(b"later", b"") });
    }
    life.add(Add { ttl_ms: Some(day), ..Add::plain(b"later", b"") });
    let settings = [Change::Tries(3), Change::DeadLetter(b"grave")];
    life.execute(&Command::Config { queue: b"settled", changes: Changes::List(&settings) });
    life.push(b"settled", 4);
    life.execute(&Command::Pause { queue: b"paused" });
    life.push(b"paused", 3);
    life.churn(2, 1);
    let done = life.pop(b"mail", 10, LeaseAsk::NONE);
    life.ack(b"mail", &done[..7]);
    life.pop(b"mail", 3, LeaseAsk { ms: Some(day), ..LeaseAsk::NONE });
    let dead = life.pop(b"mail", 3, LeaseAsk::NONE);
    life.bury(b"mail", &dead);
    let started = life.execute(&Command::Worker(Worker::Start { name: b"w", ttl_ms: day }));
    let Some(&Reply::Started(incarnation)) = started.list.first() else { panic!("a start") };
    let worker = Some(WorkerRef { name: b"w", incarnation });
    life.pop(b"mail", 2, LeaseAsk { worker, ..LeaseAsk::NONE });
    life.churn(3, 1);
    life.restart();
    life.push(b"mail", 5);
    life.churn(3, 100);
    life.push(b"late", 6);
    let done = life.pop(b"late", 2, LeaseAsk::NONE);
    life.ack(b"late", &done);
    life.end()
}

pub fn is_segment(name: &str) -> bool {
    Path::new(name).extension() == Some(OsStr::new("seg"))
}

/// The names of the checkpoints that are kept, the newest last.
pub fn checkpoints(files: &Files) -> Vec<String> {
    let is_one = |name: &&String| name.starts_with("checkpoint-") && Path::new(name).extension().is_none();
    files.keys().filter(is_one).cloned().collect()
}

pub fn disk_of(files: &Files) -> SimDisk {
    SimDisk::with_files(3, files)
}

pub fn checked(disk: &SimDisk) -> Report {
    check(&disk.shared(), &mut |_, _, _| ()).expect("a check is possible")
}

/// Repairs a store. Returns the result and the new store.
pub fn repaired(disk: &SimDisk) -> (Repaired, SimDisk) {
    let before = disk.files();
    let to = SimDisk::new(5);
    let clock = ManualClock::default();
    let repaired = repair(&disk.shared(), &to.shared(), &clock, &mut |_, _, _| ()).expect("it can be read");
    assert_eq!(disk.files(), before, "the damaged store is not changed");
    (repaired, to)
}

/// All tasks of a store that a repair has written: its log begins with them.
pub fn tasks_in(disk: &SimDisk) -> BTreeMap<TaskId, (Vec<u8>, Vec<u8>)> {
    let disk = disk_of(&disk.files());
    let uuid = Store::open(&disk.shared()).expect("a sound store").values().uuid;
    let (mut names, mut tasks) = (BTreeMap::new(), BTreeMap::new());
    scan(&disk, &LogOptions::new(uuid), &mut |frame| {
        let mut rest = frame.body;
        while !rest.is_empty() {
            let ((), behind) = codec::decode(rest, |event| match event {
                Event::QueueMade { queue, name } => _ = names.insert(*queue, name.to_vec()),
                Event::Task(task) => {
                    tasks.insert(task.id, (names[&task.queue].clone(), task.payload.to_vec()));
                }
                _ => {}
            })
            .expect("an event");
            rest = behind;
        }
        Ok(())
    })
    .expect("a sound log");
    tasks
}

/// Whether a position is in a reported gap.
pub fn is_in_gap(repaired: &Repaired, position: u64) -> bool {
    let holds = |gap: &Gap| gap.from.0 <= position && gap.upto.is_none_or(|upto| position < upto.0);
    repaired.gaps.iter().any(holds)
}

/// Repairs a store, and compares the result with the expected state of its tasks.
pub fn check_repair(lived: &Lived, disk: &SimDisk, context: &str) -> Repaired {
    let (repaired, to) = repaired(disk);
    assert!(repaired.report.is_sound(), "{context}: {:#?}", repaired.report.findings);
    let tasks = tasks_in(&to);
    let doubtful: BTreeSet<TaskId> = repaired.doubtful.iter().map(|doubtful| doubtful.id).collect();
    let lost: BTreeSet<TaskId> = repaired.lost.iter().map(|lost| lost.id).collect();
    // If the header of the very last frame is lost, nothing shows that there was one. If only a part of it is lost,
    // the end of the log is reported as a gap, and tasks that may have been finished there as doubtful.
    let (last_frame, finished_last) = &lived.last;
    let is_last_gone = checked(disk).end.0 <= *last_frame && !is_in_gap(&repaired, *last_frame);
    for (id, (queue, payload)) in &tasks {
        if lived.finished.contains(id) {
            let may_be_unfinished = is_last_gone && finished_last.contains(id);
            assert!(
                may_be_unfinished || doubtful.contains(id),
                "{id} of {} came back: {context}",
                queue.escape_ascii()
            );
            continue;
        }
        let Some((known_queue, known_payload)) = lived.live.get(id) else {
            assert!(doubtful.contains(id), "{id} was never pushed: {context}");
            continue;
        };
        assert_eq!(payload, known_payload, "the payload of {id}: {context}");
        let is_nameless = repaired.nameless.contains(queue);
        assert!(queue == known_queue || is_nameless, "the queue of {id}: {context}");
    }
    // A task is unknown if all its records are in reported gaps.
    let is_lost = |position: &u64| is_in_gap(&repaired, *position);
    let is_unknown = |id: &TaskId| lived.records.get(id).is_some_and(|records| records.iter().all(is_lost));
    let is_missing = |id: &&TaskId| !tasks.contains_key(id) && !lost.contains(id) && !is_unknown(id);
    let missing: Vec<&TaskId> = lived.live.keys().filter(is_missing).collect();
    assert!(
        missing.len() as u64 <= repaired.unnamed,
        "neither saved nor listed: {missing:?}: {context}, {:?}",
        (&repaired.beginning, &repaired.gaps)
    );
    assert!(repaired.report.incarnation > lived.incarnation, "{context}");
    repaired
}
