//! Payloads keep their places through floods: thousands of tasks become due, expire, lapse, die, move to other queues
//! or are requeued at once, in several slices, while other tasks are pushed in between. In a debug build the engine
//! itself compares the place of every payload with each frame that it writes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sureq_core::command::{Add, LeaseAsk, NameArg, Pop, View, When, Worker, WorkerRef};
use sureq_core::limits::PUSH_TASKS_MAX;
use sureq_core::settings::{Change, Changes, Expired};
use sureq_core::{Command, Replies, Reply, TaskId};
use sureq_engine::check::check;
use sureq_engine::log::Durability;
use sureq_engine::{Engine, Options};
use sureq_home_api::{Home as _, Payload};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::SimDisk;

/// The number of tasks of a flood. Pushes settle two or three slices each, so some of them are executed in the middle
/// of it.
const FLOOD: usize = 16_500;

/// The number of tasks that are pushed twice in one call during a flood.
const BESIDE: usize = 8;

/// The time to live, the lease and the delay of tasks.
const SPAN_MS: u64 = 1_000;

/// A unit is larger than the first of these sizes, and a few units fit into the others.
const SEGMENTS: [u64; 4] = [16 << 10, 40 << 10, 64 << 10, 100 << 10];

const QUEUES: [&[u8]; 4] = [b"q", b"grave", b"crypt", b"beside"];

struct Store {
    disk: SimDisk,
    clock: Arc<ManualClock>,
    options: Options,
    engine: Engine,
    /// All existing tasks, in any queue and state.
    tasks: BTreeMap<TaskId, Vec<u8>>,
    pushes: usize,
}

impl Store {
    fn new(segment_bytes: u64) -> Self {
        let (disk, clock) = (SimDisk::new(3), Arc::new(ManualClock::default()));
        let options = Options {
            durability: Durability::Always,
            segment_bytes: Some(segment_bytes),
            // The cache is so small that nearly all payloads are read from disk.
            cache_bytes: 1024,
            ..Options::default()
        };
        let engine = Engine::open_on(disk.shared(), Arc::clone(&clock) as _, &options).unwrap();
        Self { disk, clock, options, engine, tasks: BTreeMap::new(), pushes: 0 }
    }

    fn execute(&self, commands: &[Command<'_>]) -> Replies<Payload> {
        let mut replies = Replies::default();
        let executed = self.engine.execute(commands, &mut replies);
        assert!(self.engine.wait(executed.position), "{:?}", self.engine.failure());
        replies
    }

    fn config(&self, queue: &[u8], changes: &[Change<'_>]) {
        self.execute(&[Command::Config { queue, changes: Changes::List(changes) }]);
    }

    /// A payload that no other task has.
    fn payload(&mut self) -> Vec<u8> {
        self.pushes += 1;
        let n = self.pushes;
        format!("payload {n} {}", "x".repeat(n * 37 % 90)).into_bytes()
    }

    /// Pushes many tasks, as many at once as a push may have.
    fn fill(&mut self, queue: &[u8], count: usize) {
        let payloads: Vec<Vec<u8>> = (0..count).map(|_| self.payload()).collect();
        let list: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        let pushes: Vec<_> =
            list.chunks(PUSH_TASKS_MAX).map(|payloads| Command::Push { queue, payloads }).collect();
        let ids = self.execute(&pushes).ids;
        assert_eq!(ids.len(), count);
        self.tasks.extend(ids.into_iter().zip(payloads));
    }

    /// Begins a flood, and pushes tasks in the middle of it, with and without options, to its queue and to another.
    fn flood(&mut self, queue: &[u8]) {
        self.clock.pass(SPAN_MS + 1);
        for _ in 0..2 {
            let payloads: Vec<Vec<u8>> = (0..2 * BESIDE).map(|_| self.payload()).collect();
            let names: Vec<String> = (0..BESIDE).map(|n| format!("{} {n}", self.pushes)).collect();
            let plain: Vec<[&[u8]; 1]> = payloads[..BESIDE].iter().map(|payload| [&payload[..]]).collect();
            let mut commands = Vec::new();
            for (n, name) in names.iter().enumerate() {
                let to = if n % 3 == 2 { b"beside" } else { queue };
                commands.push(Command::Push { queue: to, payloads: &plain[n] });
                let name = Some(NameArg::Bytes(name.as_bytes()));
                commands.push(Command::Add(Add { name, ..Add::plain(queue, &payloads[BESIDE + n]) }));
            }
            let replies = self.execute(&commands);
            let mut pushed = replies.ids.iter().copied();
            for (n, reply) in replies.list.iter().enumerate() {
                let (id, payload) = match reply {
                    Reply::Pushed(_) => (pushed.next().unwrap(), &payloads[n / 2]),
                    Reply::Added { id, added: true, .. } => (*id, &payloads[BESIDE + n / 2]),
                    other => panic!("{other:?}"),
                };
                self.tasks.insert(id, payload.clone());
            }
        }
    }

    /// Executes everything that is due.
    fn settle(&self) {
        let now = || self.engine.now();
        while self.engine.inspect(|broker| broker.next_deadline().is_due(now())) {
            self.engine.tick();
        }
        let since = Instant::now();
        while self.engine.status().is_checkpointing {
            assert!(since.elapsed() < Duration::from_secs(60), "{:?}", self.engine.status());
            std::thread::yield_now();
        }
    }

    /// Reads all tasks of the store, in all states, and compares their payloads with the pushed ones.
    fn compare(&self, context: &str) {
        let mut found = BTreeMap::new();
        for (queue, view) in QUEUES.iter().flat_map(|&queue| VIEWS.map(|view| (queue, view))) {
            let mut start = 0;
            loop {
                let replies = self.execute(&[Command::Inspect { queue, view, start, count: 20_000 }]);
                assert!(matches!(replies.list[0], Reply::Inspected(_)), "{:?}: {context}", replies.list);
                for task in &replies.tasks {
                    found.insert(task.id, task.body.as_ref().to_vec());
                }
                if replies.tasks.is_empty() {
                    break;
                }
                start += i64::try_from(replies.tasks.len()).unwrap();
            }
        }
        for (id, payload) in &self.tasks {
            assert_eq!(found.get(id), Some(payload), "task {id}: {context}");
        }
        assert_eq!(found.len(), self.tasks.len(), "{context}");
        self.engine.check().unwrap();
    }

    /// Compares all tasks, checks a copy of the files, and compares all tasks again after a restart.
    fn verify(&mut self, context: &str) {
        self.settle();
        self.compare(context);
        self.engine.close().unwrap();
        let files = SimDisk::with_files(9, &self.disk.files());
        let report = check(&files.shared(), &mut |_, _, _| ()).unwrap();
        assert!(report.is_sound(), "{context}: {:?}", report.findings);
        let clock = Arc::clone(&self.clock);
        self.engine = Engine::open_on(self.disk.shared(), clock as _, &self.options).unwrap();
        self.compare(&format!("{context}, after a restart"));
    }
}

const VIEWS: [View; 4] = [View::Ready, View::Leased, View::Delayed, View::Dead];

#[test]
fn a_push_in_a_flood_of_deaths_keeps_its_payload() {
    for segment_bytes in SEGMENTS {
        let mut store = Store::new(segment_bytes);
        let expire = [Change::TtlMs(SPAN_MS), Change::Expired(Expired::Dead)];
        // Tasks that die in one queue move to the next, and expire there too.
        for (queue, letter) in [(&b"q"[..], &b"grave"[..]), (b"grave", b"crypt")] {
            store.config(queue, &[expire[0], expire[1], Change::DeadLetter(letter)]);
        }
        store.fill(b"q", FLOOD);
        store.flood(b"q");
        store.verify("they have expired");
        store.fill(b"grave", FLOOD);
        store.flood(b"grave");
        store.flood(b"q");
        store.verify("they have expired in the queue of the dead");
    }
}

#[test]
fn a_push_in_a_flood_of_lapses_keeps_its_payload() {
    for segment_bytes in SEGMENTS {
        let mut store = Store::new(segment_bytes);
        store.config(b"q", &[Change::Tries(2), Change::DeadLetter(b"grave")]);
        store.fill(b"q", FLOOD);
        for times in 1..=2 {
            let lease = LeaseAsk { ms: Some(SPAN_MS), ..LeaseAsk::NONE };
            let pop = Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 2 * FLOOD as u32) });
            assert!(store.execute(&[pop]).tasks.len() >= FLOOD);
            store.flood(b"q");
            store.verify(&format!("they have lapsed {times} times"));
        }
    }
}

#[test]
fn a_push_in_a_flood_of_a_lost_worker_keeps_its_payload() {
    for segment_bytes in SEGMENTS {
        let mut store = Store::new(segment_bytes);
        store.config(b"q", &[Change::Tries(1), Change::DeadLetter(b"grave")]);
        store.fill(b"q", FLOOD);
        let start = Command::Worker(Worker::Start { name: b"w", ttl_ms: SPAN_MS });
        let Reply::Started(incarnation) = store.execute(&[start]).list[0] else { panic!("a worker") };
        let worker = Some(WorkerRef { name: b"w", incarnation });
        let lease = LeaseAsk { worker, ..LeaseAsk::NONE };
        let pop = Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 2 * FLOOD as u32) });
        assert_eq!(store.execute(&[pop]).tasks.len(), FLOOD);
        store.flood(b"q");
        store.verify("their worker is lost");
    }
}

#[test]
fn a_push_in_a_flood_of_due_and_revived_tasks_keeps_its_payload() {
    for segment_bytes in SEGMENTS {
        let mut store = Store::new(segment_bytes);
        let expire = [Change::TtlMs(SPAN_MS), Change::Expired(Expired::Dead)];
        store.config(b"q", &expire);
        store.fill(b"q", FLOOD);
        let payloads: Vec<Vec<u8>> = (0..FLOOD).map(|_| store.payload()).collect();
        for payload in &payloads {
            let add = Add { when: When::After(SPAN_MS), ..Add::plain(b"grave", payload) };
            let replies = store.execute(&[Command::Add(add)]);
            let Reply::Added { id, .. } = replies.list[0] else { panic!("{:?}", replies.list) };
            store.tasks.insert(id, payload.clone());
        }
        store.flood(b"grave");
        store.flood(b"q");
        store.verify("they are due");
        store.config(b"q", &[Change::TtlMs(0), Change::DeadLetter(b"grave")]);
        store.execute(&[Command::Revive { queue: b"q", tasks: None }]);
        store.flood(b"q");
        store.verify("they are revived");
    }
}
