//! A run with compaction: tasks that are never finished among tasks that are, over many small segments, so that
//! checkpoints are taken, old tasks copied forward and segments retired all the time. Confirmed changes are recorded
//! as facts, since old segments of the log are removed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sureq_core::command::{AckScope, Add, IdForm, Pop, Return, TaskRef, TaskRefs, View, When};
use sureq_core::settings::{Change, Changes};
use sureq_core::{Command, Replies, Reply, TaskId};
use sureq_engine::checkpoint::Checkpoints;
use sureq_engine::disk::Disk;
use sureq_engine::log::{Durability, LogOptions, Position, scan};
use sureq_engine::store::Store;
use sureq_engine::{Engine, Options};
use sureq_home_api::{Home as _, Payload};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::{Op, SimDisk};

/// All queues of the run.
pub const QUEUES: [&[u8]; 5] = [b"q", b"kept", b"tried", b"grave", b"dropped"];

const VIEWS: [View; 4] = [View::Ready, View::Leased, View::Delayed, View::Dead];

/// A cache so small that most payloads are read from the disk.
const CACHE_BYTES: usize = 1024;

/// The effect of a command.
#[derive(Clone, Copy, Debug)]
pub struct Fact {
    /// The end of the log before the command.
    begin: Position,
    /// The end of the log after it: the fact is true in a log that reaches this position.
    end: Position,
}

/// Whether a fact is true in a log that ends at some position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    True,
    False,
    Open,
}

impl Fact {
    fn at(self, end: Position) -> Is {
        if self.end <= end {
            Is::True
        } else if end <= self.begin {
            Is::False
        } else {
            Is::Open
        }
    }
}

/// The facts about a task.
#[derive(Clone, Debug)]
pub struct Known {
    pub payload: Vec<u8>,
    pushed: Fact,
    finished: Option<Fact>,
}

/// After this many changes of the disk, the log was confirmed up to this position.
#[derive(Clone, Copy, Debug)]
struct Promise {
    changes: usize,
    upto: Position,
}

/// The facts about a run.
#[derive(Default)]
pub struct Facts {
    pub tasks: BTreeMap<TaskId, Known>,
    /// Confirmed, according to the durability level.
    confirmed: Vec<Promise>,
    /// Confirmed by closing the store.
    closed: Vec<Promise>,
}

impl Facts {
    /// The position that the log must reach after a crash during this change.
    pub fn confirmed(&self, change: usize) -> Position {
        latest(&self.confirmed, change)
    }

    /// The position at which the store had been closed before this change ended.
    pub fn closed(&self, change: usize) -> Position {
        latest(&self.closed, change)
    }

    /// Compares the found tasks with those that must exist if the log ended at `end`.
    pub fn compare(&self, found: &BTreeMap<TaskId, Vec<u8>>, end: Position, context: &str) {
        for (id, task) in &self.tasks {
            let is_finished = task.finished.map_or(Is::False, |finished| finished.at(end));
            if let Some(payload) = found.get(id) {
                assert_ne!(task.pushed.at(end), Is::False, "{id} is too early: {context}");
                assert_ne!(is_finished, Is::True, "{id} was finished and is back: {context}");
                assert!(*payload == task.payload, "{id} has another payload: {context}");
            } else {
                let is_due = task.pushed.at(end) == Is::True && is_finished == Is::False;
                assert!(!is_due, "{id} is lost: {context}");
            }
        }
        let unknown = found.keys().find(|id| !self.tasks.contains_key(id));
        assert_eq!(unknown, None, "it was never pushed: {context}");
    }
}

fn latest(promises: &[Promise], change: usize) -> Position {
    let kept = promises.iter().filter(|promise| promise.changes <= change);
    kept.map(|promise| promise.upto).max().unwrap_or_default()
}

/// Opens a store with segments of this size.
pub fn open_small(
    disk: &Arc<dyn Disk>,
    clock: &Arc<ManualClock>,
    durability: Durability,
    segment_bytes: u64,
) -> Engine {
    let options = Options {
        durability,
        segment_bytes: Some(segment_bytes),
        cache_bytes: CACHE_BYTES,
        ..Options::default()
    };
    let clock = Arc::clone(clock);
    Engine::open_on(Arc::clone(disk), clock, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// The end of the log in `disk`. Changes nothing.
pub fn reach(disk: &SimDisk, context: &str) -> Position {
    let disk = SimDisk::with_files(5, &disk.files()).shared();
    let values = *Store::open(&disk).unwrap_or_else(|error| panic!("{error}: {context}")).values();
    let mut checkpoints = Checkpoints::open(Arc::clone(&disk), values.uuid).expect("sound checkpoints");
    let restored = checkpoints.load(|_| Ok(())).unwrap_or_else(|error| panic!("{error}: {context}"));
    let from = restored.map_or(Position::START, |restored| restored.position);
    let options = LogOptions { from, may_be_new: values.incarnation == 0, ..LogOptions::new(values.uuid) };
    let scanned = scan(&*disk, &options, &mut |_| Ok(()));
    scanned.unwrap_or_else(|error| panic!("{error}: {context}")).end
}

/// All tasks of a store with their payloads, each of them read.
pub fn tasks_in(engine: &Engine, context: &str) -> BTreeMap<TaskId, Vec<u8>> {
    let mut found = BTreeMap::new();
    for (queue, view) in QUEUES.iter().flat_map(|queue| VIEWS.map(|view| (queue, view))) {
        loop {
            let start = found_in(&found, queue, view);
            let mut replies = Replies::default();
            let inspect = Command::Inspect { queue, view, start, count: 1000 };
            let _ = engine.execute(&[inspect], &mut replies);
            assert!(matches!(replies.list[0], Reply::Inspected(_)), "{:?}: {context}", replies.list);
            if replies.tasks.is_empty() {
                break;
            }
            for task in &replies.tasks {
                let payload = task.body.as_ref().to_vec();
                let before = found.insert(task.id, (queue.to_vec(), view, payload));
                assert!(before.is_none(), "{} is in two places: {context}", task.id);
            }
        }
    }
    found.into_iter().map(|(id, (_, _, payload))| (id, payload)).collect()
}

type Found = BTreeMap<TaskId, (Vec<u8>, View, Vec<u8>)>;

fn found_in(found: &Found, queue: &[u8], view: View) -> i64 {
    let there = found.values().filter(|(other, state, _)| other == queue && *state == view).count();
    i64::try_from(there).expect("they are few")
}

/// A run in progress.
pub struct FactRun {
    pub disk: SimDisk,
    pub facts: Facts,
    pub durability: Durability,
    pub segment_bytes: u64,
    pub engine: Engine,
    clock: Arc<ManualClock>,
    held: Vec<TaskId>,
    to_be_dropped: Vec<TaskId>,
    pushes: usize,
}

impl FactRun {
    pub fn new(durability: Durability, segment_bytes: u64) -> Self {
        let (disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
        let engine = open_small(&disk.shared(), &clock, durability, segment_bytes);
        let mut run = Self {
            disk,
            facts: Facts::default(),
            durability,
            segment_bytes,
            engine,
            clock,
            held: Vec::new(),
            to_be_dropped: Vec::new(),
            pushes: 0,
        };
        let changes = [Change::Tries(1), Change::DeadLetter(b"grave")];
        run.execute(Command::Config { queue: b"tried", changes: Changes::List(&changes) });
        run
    }

    /// Closes and opens again.
    pub fn restart(&mut self) {
        self.engine.close().expect("a sound disk");
        let (changes, upto) = (self.disk.trace_len(), reach(&self.disk, "after a close"));
        self.facts.closed.push(Promise { changes, upto });
        self.engine = open_small(&self.disk.shared(), &self.clock, self.durability, self.segment_bytes);
    }

    /// Ends the run. Returns the facts, and the changes of the disk before the store was closed.
    pub fn end(self) -> (Facts, Vec<Op>) {
        let trace_len = self.disk.trace_len();
        self.engine.check().expect("the store is consistent");
        self.facts.compare(&tasks_in(&self.engine, "at the end"), self.engine.end(), "at the end");
        self.engine.close().expect("a sound disk");
        (self.facts, self.disk.trace()[..trace_len].to_vec())
    }

    fn execute(&mut self, command: Command<'_>) -> (Replies<Payload>, Fact) {
        let mut replies = Replies::default();
        let begin = self.engine.end();
        let executed = self.engine.execute(&[command], &mut replies);
        assert!(self.engine.wait(executed.position), "{:?}", self.engine.failure());
        // At the level `none` replies have no position; other threads may have added to the log since.
        let is_confirmed = self.durability != Durability::None;
        let end = if is_confirmed { executed.position } else { self.engine.end() };
        if is_confirmed {
            self.facts.confirmed.push(Promise { changes: self.disk.trace_len(), upto: end });
        }
        (replies, Fact { begin, end })
    }

    fn payload(&mut self) -> Vec<u8> {
        self.pushes += 1;
        let n = self.pushes;
        // Now and then a payload that is larger than a segment.
        let len = if n % 97 == 96 { self.segment_bytes as usize + 700 } else { n * 53 % 280 };
        (0..len).map(|at| (n * 31 + at * 7) as u8).collect()
    }

    pub fn push(&mut self, queue: &[u8], count: usize) -> Vec<TaskId> {
        let payloads: Vec<Vec<u8>> = (0..count).map(|_| self.payload()).collect();
        self.push_these(queue, payloads)
    }

    /// Pushes many small payloads.
    pub fn push_tiny(&mut self, queue: &[u8], count: usize) -> Vec<TaskId> {
        self.push_these(queue, (0..count).map(|n| vec![n as u8; n % 20]).collect())
    }

    fn push_these(&mut self, queue: &[u8], payloads: Vec<Vec<u8>>) -> Vec<TaskId> {
        let count = payloads.len();
        let list: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        let (replies, pushed) = self.execute(Command::Push { queue, payloads: &list });
        assert_eq!(replies.ids.len(), count, "{:?}", replies.list);
        for (&id, payload) in replies.ids.iter().zip(payloads) {
            self.facts.tasks.insert(id, Known { payload, pushed, finished: None });
        }
        if queue == b"dropped" {
            self.to_be_dropped.extend(&replies.ids);
        }
        replies.ids
    }

    pub fn delay(&mut self, queue: &[u8], ms: u64) {
        let payload = self.payload();
        let add = Add { when: When::After(ms), ..Add::plain(queue, &payload) };
        let (replies, pushed) = self.execute(Command::Add(add));
        let Reply::Added { id, .. } = replies.list[0] else { panic!("{:?}", replies.list) };
        self.facts.tasks.insert(id, Known { payload, pushed, finished: None });
    }

    pub fn pop(&mut self, queue: &[u8], count: u32) -> Vec<TaskId> {
        let (replies, _) = self.execute(Command::Pop(Pop::plain(&[queue], count)));
        assert!(matches!(replies.list[0], Reply::Tasks(_)), "{:?}", replies.list);
        for task in &replies.tasks {
            assert!(task.body.as_ref() == self.facts.tasks[&task.id].payload, "{} was changed", task.id);
        }
        replies.tasks.iter().map(|task| task.id).collect()
    }

    pub fn ack(&mut self, ids: &[TaskId]) {
        let texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let tasks = TaskRefs { list: &list, form: IdForm::Long };
        let (replies, finished) =
            self.execute(Command::Ack { queue: b"q", tasks, scope: AckScope::LeasedOrLapsed });
        assert_eq!(replies.indexes.len(), ids.len());
        self.finished(ids, finished);
    }

    fn finished(&mut self, ids: &[TaskId], fact: Fact) {
        for id in ids {
            self.facts.tasks.get_mut(id).expect("it was pushed").finished = Some(fact);
        }
    }

    /// Makes tasks that exist until the end: leased, delayed, dead, ready, and moved to another queue.
    pub fn lay_down(&mut self) {
        self.push(b"kept", 3);
        let popped = self.pop(b"kept", 2);
        let text = popped[1].to_string();
        let tasks = TaskRefs { list: &[text.as_bytes()], form: IdForm::Long };
        self.execute(Command::Bury { queue: b"kept", tasks });
        self.delay(b"kept", 1 << 40);
        self.push(b"tried", 1);
        let popped = self.pop(b"tried", 1);
        let text = popped[0].to_string();
        let task = TaskRef { bytes: text.as_bytes(), form: IdForm::Long };
        self.execute(Command::Return(Return {
            queue: b"tried",
            task,
            to: None,
            failed: Some(b"why"),
            is_last: false,
        }));
    }

    /// Drops a queue as a whole.
    pub fn drop_queue(&mut self) {
        let ids = std::mem::take(&mut self.to_be_dropped);
        let (_, finished) = self.execute(Command::Drop { queues: &[b"dropped"] });
        self.finished(&ids, finished);
    }

    /// Pushes some tasks, and finishes about as many.
    pub fn turn(&mut self, n: usize) {
        self.clock.pass(1);
        self.push(b"q", 1 + n % 4);
        if n.is_multiple_of(9) {
            self.lay_down();
        }
        let popped = self.pop(b"q", 1 + (n % 5) as u32);
        self.held.extend(popped);
        if !n.is_multiple_of(3) {
            let later = self.held.split_off(self.held.len().min(3));
            let held = std::mem::replace(&mut self.held, later);
            if !held.is_empty() {
                self.ack(&held);
            }
        }
    }

    /// Waits until no checkpoint is due or in progress.
    pub fn settle(&self) {
        let since = Instant::now();
        loop {
            let status = self.engine.status();
            let is_due = status.since_checkpoint_bytes >= status.checkpoint_due_bytes;
            if !is_due && !status.is_checkpointing && !status.is_copying {
                return;
            }
            assert!(since.elapsed() < Duration::from_secs(20), "no compaction: {status:?}");
            std::thread::yield_now();
        }
    }

    /// Waits until there are no more than this many segments.
    pub fn wait_for_segments(&self, count: u64) {
        let since = Instant::now();
        while self.engine.status().segments > count {
            assert!(since.elapsed() < Duration::from_secs(20), "no compaction: {:?}", self.engine.status());
            std::thread::yield_now();
        }
    }
}
