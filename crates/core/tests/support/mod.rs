//! A store in memory for tests: a broker, the log of its events, and a second broker that only replays events.
#![allow(dead_code, reason = "each test file uses only a part of this module")]

mod body;
mod store;

use std::collections::BTreeSet;

use sureq_core::codec::decode;
use sureq_core::command::{AckScope, ConnId, IdForm, LeaseAsk, Pop, Return, TaskRef, TaskRefs, View};
use sureq_core::event::QueueNo;
use sureq_core::reply::{Explanation, Info, Outcome, QueueRow, Refusal, TaskView, WorkerRow};
use sureq_core::settings::{Change, Changes, Place, Settings};
use sureq_core::task::StateKind;
use sureq_core::{
    Broker, Command, Event, LogTime, Now, Progress, Receipt, Recorder, Replies, Reply, TaskId, WallTime,
};

pub use body::{Bytes, Kept, Log};
pub use store::Store;

/// Applies encoded events.
pub fn replay(mut bytes: &[u8], broker: &mut Broker<Bytes>, log: &mut Log) {
    while !bytes.is_empty() {
        let apply = |event: &Event<'_>| {
            let applied = broker.replay(event, log);
            applied.unwrap_or_else(|error| panic!("{event:?}: {error}"));
        };
        ((), bytes) = decode(bytes, apply).expect("an encoded event can be decoded");
    }
}

/// The events of a log, one line each.
pub fn listing(mut bytes: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    while !bytes.is_empty() {
        let line;
        (line, bytes) = decode(bytes, |event| format!("{event:?}")).expect("an encoded event can be decoded");
        lines.push(line);
    }
    lines
}

/// A reply that owns its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Ids(Vec<TaskId>),
    Added(TaskId, bool, StateKind),
    Tasks(Vec<TaskView<Bytes>>),
    Acked(Vec<u32>),
    Outcome(Outcome),
    Explained(Option<Box<Explanation>>),
    Info(Box<Info>),
    Count(u64),
    Ok,
    Settings(Box<Settings>),
    Queues(Vec<QueueRow>, u64),
    Started(u64),
    Receipts(Vec<Receipt>),
    Workers(Vec<WorkerRow>),
    Refused(&'static str),
}

impl Answer {
    fn of(reply: &Reply, all: &Replies<Bytes>) -> Self {
        match reply {
            Reply::Pushed(span) => Self::Ids(all.ids[span.range()].to_vec()),
            Reply::Added { id, added, state } => Self::Added(*id, *added, *state),
            Reply::Tasks(span) | Reply::Inspected(span) => Self::Tasks(all.tasks[span.range()].to_vec()),
            Reply::Acked(span) => Self::Acked(all.indexes[span.range()].to_vec()),
            Reply::Outcome(outcome) => Self::Outcome(*outcome),
            Reply::Explained(explained) => Self::Explained(explained.clone()),
            // Recent rates are volatile: not part of the state, and not of any model.
            Reply::Info(info) => {
                Self::Info(Box::new(Info { pushed_of_late: 0, finished_of_late: 0, ..(**info).clone() }))
            }
            Reply::Count(n) => Self::Count(*n),
            Reply::Ok => Self::Ok,
            Reply::Settings(settings) => Self::Settings(settings.clone()),
            Reply::Queues { cursor, rows } => Self::Queues(all.queues[rows.range()].to_vec(), *cursor),
            Reply::Started(incarnation) => Self::Started(*incarnation),
            Reply::Receipts(span) => Self::Receipts(all.receipts[span.range()].to_vec()),
            Reply::Workers(span) => Self::Workers(all.workers[span.range()].to_vec()),
            Reply::Refused(refusal) => Self::Refused(kind_of(refusal)),
            Reply::TimedOut => unreachable!("only a home waits"),
            Reply::PushedForeign(_) | Reply::AddedForeign { .. } | Reply::ReceiptsForeign(_) => {
                unreachable!("the core has no foreign ids")
            }
        }
    }
}

/// A refusal without its details.
fn kind_of(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::MalformedId => "malformed id",
        Refusal::TooLarge { .. } => "too large",
        Refusal::TooMany { .. } => "too many",
        Refusal::OutOfRange { .. } => "out of range",
        Refusal::QueueFull => "queue full",
        Refusal::WorkerGone => "worker gone",
        Refusal::WorkerReplaced => "worker replaced",
        _ => "other",
    }
}

/// The time at which tests begin.
pub const START_MS: u64 = 1_000_000;

/// A store without a disk.
pub struct Home {
    pub broker: Broker<Bytes>,
    pub log: Log,
    pub now: Now,
    /// Follows the log, event by event.
    shadow: Broker<Bytes>,
    shadow_log: Log,
    replayed: usize,
    /// The last image, and the position of the log when it was taken.
    pub store: Store,
    pub imaged: Log,
    /// The position of the log when the image under way was begun.
    imaging: Option<Log>,
    steps: usize,
}

impl Default for Home {
    fn default() -> Self {
        Self::of(Kept::Packed)
    }
}

impl Home {
    pub fn of(kept: Kept) -> Self {
        let now = Now { log: LogTime(START_MS), wall: WallTime(START_MS) };
        let (broker, shadow) = (Broker::default(), Broker::default());
        let log = || Log::of(kept);
        let (store, imaged) = (Store::default(), log());
        let mut home = Self {
            broker,
            log: log(),
            now,
            shadow,
            shadow_log: log(),
            replayed: 0,
            store,
            imaged,
            imaging: None,
            steps: 0,
        };
        home.store.take(&mut home.broker);
        home.broker.start(1, now, &mut home.log);
        home
    }

    pub fn run(&mut self, command: &Command<'_>) -> Answer {
        let mut out = Replies::default();
        self.broker.execute(self.now, command, &mut self.log, &mut out);
        assert_eq!(out.list.len(), 1, "one command, one reply");
        Answer::of(&out.list[0], &out)
    }

    /// Ticks until nothing is due.
    pub fn tick(&mut self) {
        for _ in 0..10_000 {
            self.broker.tick(self.now, &mut self.log);
            if !self.broker.next_deadline().is_due(self.now) {
                return;
            }
        }
        panic!("a tick that never ends: {:?} at {:?}", self.broker.next_deadline(), self.now);
    }

    /// Advances both clocks.
    pub fn pass(&mut self, ms: u64) {
        (self.now.log.0, self.now.wall.0) = (self.now.log.0 + ms, self.now.wall.0 + ms);
    }

    /// Stops, and starts again from the log alone, or from the last image and the events after it.
    pub fn restart(&mut self, incarnation: u64) {
        let by_image = self.log.kept == Kept::Packed && incarnation.is_multiple_of(2);
        let (mut broker, log) = if by_image { self.restored() } else { self.relived() };
        self.log.live = log.live;
        self.imaging = None;
        broker.start(incarnation, self.now, &mut self.log);
        self.broker = broker;
        if !by_image {
            // The replay took no images in between, unlike the original run.
            self.store = Store::default();
            self.store.take(&mut Broker::default());
            self.imaged = Log::of(self.log.kept);
            self.take_image();
        }
    }

    /// The broker of the whole log, and the handles that are left.
    fn relived(&self) -> (Broker<Bytes>, Log) {
        let (mut broker, mut log) = (Broker::default(), Log::of(self.log.kept));
        replay(&self.log.bytes, &mut broker, &mut log);
        (broker, log)
    }

    /// The broker of the last image and the events after it.
    fn restored(&self) -> (Broker<Bytes>, Log) {
        let mut broker = self.store.restore().unwrap_or_else(|damaged| panic!("{damaged}"));
        let mut log = self.imaged.follower();
        log.live = numbers(&|visit| broker.bodies(visit));
        replay(&self.log.bytes[self.imaged.bytes.len()..], &mut broker, &mut log);
        (broker, log)
    }

    /// Takes an image, as for a checkpoint, unless an announced operation is under way.
    pub fn take_image(&mut self) {
        while self.imaging.is_some() {
            self.image_some();
        }
        if self.broker.is_unfinished() {
            return;
        }
        self.store.take(&mut self.broker);
        self.imaged.clone_from(&self.log);
    }

    /// Begins an image that is taken queue by queue while commands are executed, unless an announced operation is under
    /// way.
    pub fn begin_image(&mut self) {
        if !self.broker.is_unfinished() {
            self.broker.begin_image();
            self.imaging = Some(self.log.clone());
        }
    }

    /// Images one more queue.
    pub fn image_some(&mut self) {
        if !self.broker.image_some(1) {
            self.store.keep(self.broker.end_image().sorted());
            self.imaged = self.imaging.take().expect("an image was begun");
        }
    }

    pub fn close_conn(&mut self, conn: ConnId) {
        while self.broker.close_conn(conn, self.now, &mut self.log) == Progress::More {}
    }

    pub fn requeue_undelivered(&mut self, queue: &[u8], receipts: &[Receipt]) {
        self.broker.requeue_undelivered(queue, receipts, self.now, &mut self.log);
    }

    /// Checks the invariants, and that a replay of the log yields the same state, with and without an image.
    pub fn verify(&mut self) {
        self.broker.check().unwrap_or_else(|broken| panic!("{}", broken.0));
        verify_handles(&self.broker, &self.log);
        replay(&self.log.bytes[self.replayed..], &mut self.shadow, &mut self.shadow_log);
        self.replayed = self.log.bytes.len();
        assert_eq!(self.shadow.digest(), self.broker.digest(), "the log replays to the same state");
        verify_handles(&self.shadow, &self.shadow_log);
        match self.log.kept {
            Kept::Packed => self.verify_image(),
            // It cannot be stored, but taking it packs the queues.
            Kept::Mixed if self.broker.is_unfinished() => {}
            Kept::Mixed => drop(self.broker.image()),
        }
    }

    fn verify_image(&mut self) {
        self.steps += 1;
        if self.imaging.is_some() {
            self.image_some();
        } else if self.steps.is_multiple_of(3) {
            self.begin_image();
        } else {
            self.take_image();
        }
        let (mut restored, log) = self.restored();
        restored.refresh_all();
        restored.check().unwrap_or_else(|broken| panic!("restored: {}", broken.0));
        assert_eq!(restored.digest(), self.broker.digest(), "an image restores to the same state");
        verify_handles(&restored, &log);
        self.verify_parts();
    }

    /// Checks that if any parts of an image are lost, the others give a consistent store.
    fn verify_parts(&self) {
        let tasks = |broker: &Broker<Bytes>| broker.queues().map(|(_, queue)| queue.len()).sum::<u64>();
        let all = tasks(&self.store.restore().unwrap_or_else(|damaged| panic!("{damaged}")));
        for modulus in [u64::MAX, 2, 3] {
            let partly = self.store.restore_partly(|stamp| stamp.is_multiple_of(modulus));
            let (partly, lost) = partly.unwrap_or_else(|damaged| panic!("{damaged}"));
            partly.check().unwrap_or_else(|broken| panic!("restored in part: {}", broken.0));
            let left = tasks(&partly);
            assert!(
                if lost == 0 { left == all } else { left <= all },
                "{left} of {all} tasks, {lost} parts lost"
            );
        }
    }

    /// Copies a task forward under every queue by which it can be found. Returns whether it exists.
    pub fn forward(&mut self, id: TaskId) -> bool {
        let mut found = None;
        let look = &mut |event: &Event<'_>| {
            if let Event::Task(task) = event
                && task.id == id
            {
                found = Some((task.queue, task.payload.to_vec()));
            }
        };
        self.broker.export(&mut |body| body.0.as_ref().into(), look);
        let Some((queue, payload)) = found else { return false };
        let (broker, log) = (&mut self.broker, &mut self.log);
        let not_meant = broker.copy_forward(queue, id, &payload, |_| false, log);
        assert!(!not_meant, "only an accepted body is copied");
        broker.copy_forward(queue, id, &payload, |body| *body.0 == *payload, log)
    }

    /// A broker made from an export of this one.
    pub fn copy(&self) -> Broker<Bytes> {
        let mut log = Log::default();
        self.broker.export(&mut |body| body.0.as_ref().into(), &mut |event| log.record(event));
        let mut copy = Broker::default();
        replay(&log.bytes, &mut copy, &mut Log::of(self.log.kept));
        copy.refresh_all();
        copy
    }
}

type Visit<'v> = &'v mut dyn FnMut(&Bytes);

/// The numbers of the visited handles, each of which must occur once.
fn numbers(walk: &dyn Fn(Visit<'_>)) -> BTreeSet<u64> {
    let mut numbers = BTreeSet::new();
    walk(&mut |body| assert!(numbers.insert(body.1), "each handle belongs to one task"));
    numbers
}

/// Checks that the live handles are those that were created and not released.
fn verify_handles(broker: &Broker<Bytes>, log: &Log) {
    let there = numbers(&|visit| {
        broker.bodies(visit);
        broker.dropped_bodies(visit);
    });
    assert_eq!(there, log.live, "bodies are released when their tasks are removed, and not before");
    assert_eq!(log.unknown_bodies, 0, "a body is released once");
}

/// Shorthands that keep tests short. The queue is `q` unless one is named.
impl Home {
    pub fn push(&mut self, payloads: &[&str]) -> Vec<TaskId> {
        let payloads: Vec<&[u8]> = payloads.iter().map(|payload| payload.as_bytes()).collect();
        match self.run(&Command::Push { queue: b"q", payloads: &payloads }) {
            Answer::Ids(ids) => ids,
            other => panic!("{other:?}"),
        }
    }

    /// The tasks of a pop.
    pub fn take(&mut self, count: u32, lease: LeaseAsk<'_>) -> Vec<TaskView<Bytes>> {
        self.take_from(b"q", count, lease)
    }

    pub fn take_from(&mut self, queue: &[u8], count: u32, lease: LeaseAsk<'_>) -> Vec<TaskView<Bytes>> {
        match self.run(&Command::Pop(Pop { lease, ..Pop::plain(&[queue], count) })) {
            Answer::Tasks(tasks) => tasks,
            other => panic!("{other:?}"),
        }
    }

    /// The payloads of a pop.
    pub fn pop(&mut self, count: u32, lease: LeaseAsk<'_>) -> String {
        words(&self.take(count, lease))
    }

    pub fn ack(&mut self, task: impl ToString) -> bool {
        let task = task.to_string();
        let tasks = TaskRefs { list: &[task.as_bytes()], form: IdForm::Long };
        match self.run(&Command::Ack { queue: b"q", tasks, scope: AckScope::LeasedOrLapsed }) {
            Answer::Acked(acked) => !acked.is_empty(),
            other => panic!("{other:?}"),
        }
    }

    pub fn return_task(&mut self, task: impl ToString, to: Option<Place>, failed: Option<&str>) -> Outcome {
        let task = task.to_string();
        let task = TaskRef { bytes: task.as_bytes(), form: IdForm::Long };
        let failed = failed.map(str::as_bytes);
        match self.run(&Command::Return(Return { queue: b"q", task, to, failed, is_last: false })) {
            Answer::Outcome(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    }

    pub fn config(&mut self, changes: &[Change<'_>]) {
        let answer = self.run(&Command::Config { queue: b"q", changes: Changes::List(changes) });
        assert!(matches!(answer, Answer::Settings(_)), "{answer:?}");
    }

    /// The payloads of a view, in order.
    pub fn see(&mut self, view: View) -> String {
        words(&self.inspect(b"q", view))
    }

    pub fn inspect(&mut self, queue: &[u8], view: View) -> Vec<TaskView<Bytes>> {
        match self.run(&Command::Inspect { queue, view, start: 0, count: u32::MAX }) {
            Answer::Tasks(tasks) => tasks,
            other => panic!("{other:?}"),
        }
    }

    pub fn info(&mut self) -> Box<Info> {
        match self.run(&Command::Info { queue: b"q" }) {
            Answer::Info(info) => info,
            other => panic!("{other:?}"),
        }
    }

    pub fn awake(&mut self) -> Vec<QueueNo> {
        let mut awake = Vec::new();
        self.broker.take_awake(&mut awake);
        awake
    }
}

/// The payloads of tasks, separated by blanks.
pub fn words(tasks: &[TaskView<Bytes>]) -> String {
    let word = |task: &TaskView<Bytes>| String::from_utf8_lossy(&task.body.0).into_owned();
    tasks.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// A lease of this many milliseconds.
pub const fn leased(ms: u64) -> LeaseAsk<'static> {
    LeaseAsk { ms: Some(ms), ..LeaseAsk::NONE }
}
