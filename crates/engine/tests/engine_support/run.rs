//! A recorded run: commands of all kinds, and which of them were confirmed after how many changes of the disk.

use std::collections::BTreeSet;
use std::slice;
use std::sync::Arc;

use sureq_core::command::{
    Add, LapseEnd, LapsePolicy, LeaseAsk, Pop, Return, TaskRef, When, Worker, WorkerRef,
};
use sureq_core::settings::{Change, Changes, Place};
use sureq_core::{Command, Replies, Reply, TaskId};
use sureq_engine::Engine;
use sureq_engine::log::{Durability, Position};
use sureq_home_api::{Home as _, Payload};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::SimDisk;

use super::{ack_of, open};

/// Something that was true after this many changes of the disk.
#[derive(Clone, Copy, Debug)]
pub struct Noted<T> {
    pub changes: usize,
    pub what: T,
}

pub struct Run {
    pub disk: SimDisk,
    pub clock: Arc<ManualClock>,
    pub durability: Durability,
    /// The ends of batches. A recovery must not end at a position in between.
    pub ends: BTreeSet<u64>,
    /// The confirmed positions, according to the durability level.
    pub confirmed: Vec<Noted<Position>>,
    /// The positions at which the store was closed.
    pub closed: Vec<Noted<Position>>,
    /// The ids that were assigned, confirmed or not, before the change ended.
    pub ids: Vec<Noted<TaskId>>,
    /// The tasks that were finished by an ack that ends at this position.
    pub finished: Vec<(Position, TaskId)>,
    held: Vec<TaskId>,
    engine: Engine,
}

impl Run {
    pub fn new(durability: Durability) -> Self {
        let (disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
        let engine = open(&disk.shared(), &clock, durability);
        let mut run = Self {
            disk,
            clock,
            durability,
            ends: BTreeSet::from([0]),
            confirmed: vec![Noted { changes: 0, what: Position::START }],
            closed: vec![Noted { changes: 0, what: Position::START }],
            ids: Vec::new(),
            finished: Vec::new(),
            held: Vec::new(),
            engine,
        };
        run.started();
        run
    }

    /// Executes batches of all kinds.
    pub fn session(&mut self, batches: usize) {
        for n in 0..batches {
            self.batch(n);
        }
    }

    /// Closes and opens again.
    pub fn restart(&mut self) {
        self.engine.close().expect("a sound disk");
        let changes = self.disk.trace_len();
        let end = *self.ends.last().expect("there is an end");
        self.closed.push(Noted { changes, what: Position(end) });
        self.engine = open(&self.disk.shared(), &self.clock, self.durability);
        self.started();
    }

    /// Ends the run. Its trace ends before the store is closed.
    pub fn end(self) -> Recorded {
        let trace_len = self.disk.trace_len();
        self.engine.close().expect("a sound disk");
        let trace = self.disk.trace()[..trace_len].to_vec();
        Recorded { trace, events: super::events_in(&self.disk), run: self }
    }

    fn started(&mut self) {
        // The `Started` event is a separate batch, and durable before the first reply at every level.
        let position = self.engine.durable();
        self.ends.insert(position.0);
        self.note(position);
    }

    fn note(&mut self, position: Position) {
        self.confirmed.push(Noted { changes: self.disk.trace_len(), what: position });
    }

    fn execute(&mut self, commands: &[Command<'_>]) -> Replies<Payload> {
        let mut replies = Replies::default();
        let before = self.disk.trace_len();
        let mut position = Position::START;
        for command in commands {
            // Not committed yet, so that several commands share a frame.
            let executed = self.engine.submit(slice::from_ref(command), &mut replies);
            position = executed.position;
            if let Some(ticket) = executed.into_ticket() {
                assert!(!ticket.waits_for_tasks(), "nothing here waits for a task");
                self.engine.commit();
                replies.tasks.extend(ticket.wait().replies.tasks);
            }
            self.end_batch();
        }
        self.engine.commit();
        self.ids.extend(replies.ids.iter().map(|&id| Noted { changes: before, what: id }));
        for reply in &replies.list {
            if let Reply::Added { id, .. } = reply {
                self.ids.push(Noted { changes: before, what: *id });
            }
        }
        assert!(self.engine.wait(position));
        if self.durability != Durability::None {
            self.note(position);
        }
        replies
    }

    /// Notes the end of the log, durable or not.
    fn end_batch(&mut self) {
        let end = self.engine.end();
        self.ends.insert(end.0);
    }

    fn batch(&mut self, n: usize) {
        let text = format!("payload {n} {}", "x".repeat(n * 53 % 300));
        let payload = text.as_bytes();
        match n % 13 {
            0 | 4 | 9 => {
                self.execute(&[Command::Push { queue: b"q", payloads: &[payload, b"", b"more"] }]);
            }
            1 => {
                let later = Add { when: When::After(400), ..Add::plain(b"q", payload) };
                self.execute(&[Command::Add(later), Command::Push { queue: b"p", payloads: &[payload] }]);
            }
            2 | 7 => {
                let pop = Command::Pop(Pop::plain(&[b"q"], 2));
                let replies = self.execute(&[pop, Command::Push { queue: b"q", payloads: &[b"pair"] }]);
                self.held.extend(replies.tasks.iter().map(|task| task.id));
            }
            3 => {
                let lapse = LapsePolicy { to: Place::Back, limit: Some(1), then: LapseEnd::Dead };
                let lease = LeaseAsk { ms: Some(300), lapse: Some(lapse), ..LeaseAsk::NONE };
                self.execute(&[Command::Pop(Pop { lease, ..Pop::plain(&[b"p", b"q"], 3) })]);
            }
            5 | 10 => self.finish(),
            6 => self.pass(250),
            8 => {
                let Some(id) = self.held.pop() else { return };
                let (text, form) = (id.to_string(), sureq_core::command::IdForm::Long);
                let task = TaskRef { bytes: text.as_bytes(), form };
                self.execute(&[Command::Return(Return {
                    queue: b"q",
                    task,
                    to: None,
                    failed: Some(b"why"),
                    is_last: false,
                })]);
            }
            11 => self.worker(),
            _ => {
                let changes = [Change::Tries(3), Change::DeadLetter(b"grave")];
                self.execute(&[
                    Command::Pause { queue: b"p" },
                    Command::Config { queue: b"p", changes: Changes::List(&changes) },
                    Command::Resume { queue: b"p" },
                    Command::Recover { queue: b"q", count: 1, elapsed_ms: 0 },
                ]);
            }
        }
    }

    /// Acks all held tasks, and the first one twice.
    fn finish(&mut self) {
        let held = std::mem::take(&mut self.held);
        let texts: Vec<String> = held.iter().chain(held.first()).map(ToString::to_string).collect();
        let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        if list.is_empty() {
            return;
        }
        let replies = self.execute(&[ack_of(&list)]);
        assert!(replies.indexes.len() <= held.len(), "an ack answers true at most once");
        let end = self.engine.end();
        let finished = replies.indexes.iter().map(|&at| (end, held[at as usize]));
        self.finished.extend(finished);
    }

    fn worker(&mut self) {
        let replies = self.execute(&[Command::Worker(Worker::Start { name: b"w", ttl_ms: 200 })]);
        let Some(Reply::Started(incarnation)) = replies.list.first().cloned() else { panic!("a start") };
        let worker = WorkerRef { name: b"w", incarnation };
        let lease = LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE };
        self.execute(&[
            Command::Worker(Worker::Work(worker, b"q")),
            Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 2) }),
        ]);
    }

    fn pass(&mut self, ms: u64) {
        self.clock.pass(ms);
        while self.engine.inspect(|broker| broker.next_deadline().is_due(self.engine.now())) {
            self.engine.tick();
            // A tick is a batch, whether the engine's thread or this one executed it.
            self.end_batch();
        }
        self.end_batch();
        self.execute(&[]);
    }
}

/// A run that has ended.
pub struct Recorded {
    pub run: Run,
    pub trace: Vec<sureq_testkit::sim_disk::Op>,
    pub events: Vec<Vec<u8>>,
}

impl Recorded {
    /// The position that was confirmed before this change ended.
    pub fn promised(&self, change: usize) -> Position {
        latest(&self.run.confirmed, change)
    }

    /// The position at which the store had been closed before this change ended.
    pub fn closed(&self, change: usize) -> Position {
        latest(&self.run.closed, change)
    }

    /// The highest id that may have been assigned during this change.
    pub fn last_id(&self, change: usize) -> Option<TaskId> {
        self.run.ids.iter().filter(|id| id.changes <= change).map(|id| id.what).max()
    }

    /// The tasks that were finished before this position.
    pub fn finished(&self, position: Position) -> Vec<TaskId> {
        self.run.finished.iter().filter(|(end, _)| *end <= position).map(|&(_, id)| id).collect()
    }
}

fn latest(noted: &[Noted<Position>], change: usize) -> Position {
    noted.iter().filter(|noted| noted.changes <= change).map(|noted| noted.what).max().unwrap_or_default()
}
