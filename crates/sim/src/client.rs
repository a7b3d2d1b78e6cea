//! One client: it asks at random, and tells the history what it was told.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use sureq_core::command::{
    AckScope, Add, Block, Cancel, Command, IdForm, LeaseAsk, Pop, Return, TaskRef, TaskRefs, View, When,
};
use sureq_core::id::Spelling;
use sureq_core::reply::{Outcome, Refusal, Replies, Reply};
use sureq_core::settings::Place;
use sureq_engine::{Body, Engine};
use sureq_sync::{now, thread};

use crate::history::{Delivery, History, payload_of};
use crate::plan::{Kind, Plan};

/// A client of one life of a store.
pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) plan: Arc<Plan>,
    pub(crate) history: Arc<Mutex<History>>,
    pub(crate) rng: Rng,
    pub(crate) held: Vec<Delivery>,
}

/// The name of a queue.
pub(crate) fn queue_name(queue: usize) -> Vec<u8> {
    format!("q{queue}").into_bytes()
}

impl Client {
    /// Asks until it has asked enough, or the store is gone.
    pub(crate) fn run(mut self) {
        for _ in 0..self.plan.commands {
            if self.engine.failure().is_some() {
                return;
            }
            let kind = self.plan.kinds[self.rng.usize(..self.plan.kinds.len())];
            self.act(kind);
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, and waits until the reply may leave. None if nobody knows what came of it.
    pub(crate) fn ask(&self, command: Command<'_>) -> Option<Replies<Body>> {
        self.history().commands += 1;
        let mut replies = Replies::default();
        let executed = self.engine.execute(&[command], &mut replies);
        let mut position = executed.position;
        if let Some(ticket) = executed.ticket {
            // Whoever is not woken waits for ever.
            let answer = sureq_seam::wait(|cx| ticket.poll(cx));
            position = position.max(answer.position);
            replies.append(answer.replies);
        }
        let is_known = !matches!(replies.list[..], [Reply::Refused(Refusal::Unknown { .. })]);
        (self.engine.wait(position) && is_known).then_some(replies)
    }

    fn act(&mut self, kind: Kind) {
        let queue = self.rng.usize(..self.plan.queues);
        match kind {
            Kind::Push => self.push(queue),
            Kind::Add => self.add(queue),
            Kind::Pop => self.pop(queue, None),
            Kind::WaitingPop => {
                let block = Block::Millis(self.rng.u64(1..=self.plan.delay_max_ms));
                self.pop(queue, Some(block));
            }
            Kind::Ack => self.ack(),
            Kind::Extend => self.extend(),
            Kind::Return => self.give_back(None),
            Kind::Fail => self.give_back(Some(b"by chance")),
            Kind::Cancel | Kind::Bury | Kind::Delete => self.end(queue, kind),
            Kind::Revive => {
                self.ask(Command::Revive { queue: &queue_name(queue), tasks: None });
            }
            Kind::Purge => self.purge(queue),
            Kind::Look => {
                let view = [View::Ready, View::Leased, View::Delayed, View::Dead][self.rng.usize(..4)];
                let (start, count) = (self.rng.i64(-5..50), self.rng.u32(..50));
                self.ask(Command::Inspect { queue: &queue_name(queue), view, start, count });
            }
            Kind::Rest => thread::sleep(self.time(self.plan.rest_max)),
        }
    }

    fn time(&mut self, max: Duration) -> Duration {
        Duration::from_nanos(self.rng.u64(..=max.as_nanos() as u64))
    }

    /// Begins so many tasks of a queue; answers their numbers and payloads.
    fn begin(&mut self, queue: usize, count: usize, not_before: Instant) -> Vec<(u64, Vec<u8>)> {
        let mut begun = Vec::new();
        for _ in 0..count {
            let bytes = self.rng.usize(8..=self.plan.payload_max.max(8));
            let number = self.history().begin_push(queue, bytes, not_before);
            begun.push((number, payload_of(number, bytes)));
        }
        begun
    }

    fn push(&mut self, queue: usize) {
        let most = self.plan.batch_max.min(1 + (1 << 20) / self.plan.payload_max);
        let count = self.rng.usize(1..=most);
        let begun = self.begin(queue, count, now());
        let payloads: Vec<&[u8]> = begun.iter().map(|(_, payload)| payload.as_slice()).collect();
        let replies = self.ask(Command::Push { queue: &queue_name(queue), payloads: &payloads });
        let Some(replies) = replies else { return };
        let mut history = self.history();
        match &replies.list[..] {
            [Reply::Pushed(ids)] => {
                for ((number, _), id) in begun.iter().zip(&replies.ids[ids.range()]) {
                    history.pushed(*number, id.to_string());
                }
            }
            [Reply::Refused(_)] => begun.iter().for_each(|(number, _)| history.refused(*number)),
            other => history.findings.push(format!("a push was answered {other:?}")),
        }
    }

    fn add(&mut self, queue: usize) {
        let delay_ms = self.rng.u64(..=self.plan.delay_max_ms);
        let begun = self.begin(queue, 1, now() + Duration::from_millis(delay_ms));
        let (number, payload) = &begun[0];
        let add = Add {
            when: When::After(delay_ms),
            priority: self.rng.i8(-2..=2),
            tries: self.rng.bool().then_some(self.rng.u32(1..4)),
            ..Add::plain(&[], payload)
        };
        let name = queue_name(queue);
        let Some(replies) = self.ask(Command::Add(Add { queue: &name, ..add })) else { return };
        let mut history = self.history();
        match &replies.list[..] {
            [Reply::Added { id, .. }] => history.pushed(*number, id.to_string()),
            [Reply::Refused(_)] => history.refused(*number),
            other => history.findings.push(format!("an add was answered {other:?}")),
        }
    }

    fn pop(&mut self, queue: usize, block: Option<Block>) {
        let count = self.rng.usize(1..=self.plan.batch_max) as u32;
        let lease_ms = self.rng.u64(1..=self.plan.lease_max_ms);
        let taken = self.take(queue, count, lease_ms, block);
        self.held.extend(taken);
        let surplus = self.held.len().saturating_sub(2_000);
        self.held.drain(..surplus);
    }

    /// Pops from a queue.
    pub(crate) fn take(
        &self,
        queue: usize,
        count: u32,
        lease_ms: u64,
        block: Option<Block>,
    ) -> Vec<Delivery> {
        let (name, asked) = (queue_name(queue), now());
        let lease = LeaseAsk { ms: Some(lease_ms), ..LeaseAsk::NONE };
        let pop = Pop { queues: &[&name], count, block, lease, meta: false };
        let Some(replies) = self.ask(Command::Pop(pop)) else { return Vec::new() };
        let (came, lease) = (now(), Duration::from_millis(lease_ms));
        let mut history = self.history();
        match &replies.list[..] {
            [Reply::Tasks(tasks)] => replies.tasks[tasks.range()]
                .iter()
                .filter_map(|task| {
                    let receipt = Spelling::of_receipt(task.receipt()).as_bytes().to_vec();
                    let time = (asked, came, lease);
                    history.delivered(task.body.as_ref(), queue, receipt, task.deliveries, time)
                })
                .collect(),
            [Reply::TimedOut | Reply::Refused(_)] => Vec::new(),
            other => {
                history.findings.push(format!("a pop was answered {other:?}"));
                Vec::new()
            }
        }
    }

    fn any_held(&mut self) -> Option<Delivery> {
        if self.held.is_empty() {
            return None;
        }
        let at = self.rng.usize(..self.held.len());
        Some(self.held.swap_remove(at))
    }

    fn ack(&mut self) {
        if let Some(delivery) = self.any_held() {
            self.finish(&[delivery]);
        }
    }

    /// Acks deliveries of one queue.
    pub(crate) fn finish(&self, deliveries: &[Delivery]) {
        let Some(first) = deliveries.first() else { return };
        for delivery in deliveries {
            self.history().begin_removal(delivery.number);
        }
        let list: Vec<&[u8]> = deliveries.iter().map(|delivery| delivery.receipt.as_slice()).collect();
        let (name, tasks) = (queue_name(first.queue), TaskRefs { list: &list, form: IdForm::Long });
        let ack = Command::Ack { queue: &name, tasks, scope: AckScope::LeasedOrLapsed };
        let Some(replies) = self.ask(ack) else { return };
        let mut history = self.history();
        match &replies.list[..] {
            [Reply::Acked(done)] => {
                for &index in &replies.indexes[done.range()] {
                    history.removed(deliveries[index as usize].number, now());
                }
            }
            [Reply::Refused(_)] => {}
            other => history.findings.push(format!("an ack was answered {other:?}")),
        }
    }

    fn extend(&mut self) {
        let Some(delivery) = self.any_held() else { return };
        let (ms, asked) = (self.rng.u64(1..=self.plan.lease_max_ms), now());
        let time = Duration::from_millis(ms);
        self.history().begin_taking(delivery.number, asked, time);
        let task = TaskRef { bytes: &delivery.receipt, form: IdForm::Long };
        let replies = self.ask(Command::Extend { queue: &queue_name(delivery.queue), task, ms });
        if replies.is_some() {
            self.history().end_taking(delivery.number, now());
        }
        if replies.is_some_and(|replies| matches!(replies.list[..], [Reply::Outcome(Outcome::Done)])) {
            self.history().comes_not_before(&delivery, asked + time);
            self.held.push(delivery);
        }
    }

    fn give_back(&mut self, failed: Option<&[u8]>) {
        let Some(delivery) = self.any_held() else { return };
        let (delay_ms, asked) = (self.rng.u64(..=self.plan.delay_max_ms), now());
        let is_delayed = failed.is_none() && self.rng.bool();
        let to = is_delayed.then_some(Place::After(delay_ms));
        let time = if is_delayed { Duration::from_millis(delay_ms) } else { Duration::ZERO };
        self.history().begin_taking(delivery.number, asked, time);
        let task = TaskRef { bytes: &delivery.receipt, form: IdForm::Long };
        let name = queue_name(delivery.queue);
        let give_back = Return { queue: &name, task, to, failed, is_last: false };
        let replies = self.ask(Command::Return(give_back));
        if replies.is_some() {
            self.history().end_taking(delivery.number, now());
        }
        if replies.is_some_and(|replies| matches!(replies.list[..], [Reply::Outcome(Outcome::Done)])) {
            self.history().comes_not_before(&delivery, asked + time);
        }
    }

    /// Cancels, buries or deletes a task by its id.
    fn end(&mut self, queue: usize, kind: Kind) {
        let nth = self.rng.usize(..1 << 20);
        let Some((number, id)) = self.history().any_of(queue, nth) else { return };
        let (name, list) = (queue_name(queue), [id.as_bytes()]);
        let tasks = TaskRefs { list: &list, form: IdForm::Long };
        let queue = &name[..];
        let command = match kind {
            Kind::Bury => Command::Bury { queue, tasks },
            Kind::Cancel => Command::Cancel { queue, which: Cancel::Ids(tasks) },
            _ => Command::Delete { queue, tasks },
        };
        if kind == Kind::Bury {
            // Whoever revives it has it come at once.
            self.history().begin_taking(number, now(), Duration::ZERO);
        } else {
            self.history().begin_removal(number);
        }
        let replies = self.ask(command);
        if kind == Kind::Bury && replies.is_some() {
            self.history().end_taking(number, now());
        }
        let is_one = |replies: Replies<Body>| matches!(replies.list[..], [Reply::Count(1)]);
        if kind == Kind::Delete && replies.is_some_and(is_one) {
            self.history().removed(number, now());
        }
    }

    fn purge(&mut self, queue: usize) {
        self.history().begin_purge(queue);
        let state = [None, Some(View::Ready), Some(View::Delayed), Some(View::Dead)][self.rng.usize(..4)];
        self.ask(Command::Purge { queue: &queue_name(queue), state });
        self.history().end_purge(queue);
    }
}
