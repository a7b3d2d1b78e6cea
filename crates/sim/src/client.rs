//! One client: it sends random commands, and records the replies in the history.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use std::task::{Context, Waker};

use sureq_core::command::{
    AckScope, Add, Block, Cancel, Command, IdForm, LeaseAsk, NameArg, Pop, Return, TaskRef, TaskRefs, View,
    When,
};
use sureq_core::id::IdText;
use sureq_core::reply::{Outcome, Refusal, Replies, Reply, TaskView};
use sureq_core::settings::{Change, Changes, Expired, Place};
use sureq_core::{WallTime, limits};
use sureq_engine::Engine;
use sureq_engine::clock::Clock as _;
use sureq_engine::log::Position;
use sureq_home_api::{Flow, Home as _, Payload};
use sureq_sync::{now, thread};

use crate::clock::SimClock;
use crate::disk::LifeDisk;
use crate::history::{Delivery, History, payload_of};
use crate::holder::Holder;
use crate::plan::{Config, Kind, MANY_QUEUES, Plan};
use crate::states::States;

/// A client of one life of a store.
pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) plan: Arc<Plan>,
    pub(crate) history: Arc<Mutex<History>>,
    pub(crate) states: States,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) disk: LifeDisk,
    pub(crate) rng: Rng,
    /// The next moment when a delay, a time to live or a lease of its last commands ends, and the queue.
    pub(crate) due: Option<(Instant, usize)>,
    /// Deliveries with a lease of a certain length.
    pub(crate) held: Vec<Delivery>,
    /// Deliveries whose leases end with the client's worker or its connection.
    pub(crate) worker: Option<Holder>,
    pub(crate) conn: Option<Holder>,
    /// Since when the last command certainly waited for its answer, if it did.
    pub(crate) waits_since: Cell<Option<Instant>>,
}

/// The lease that a pop asks for.
#[derive(Clone, Copy)]
pub(crate) struct Lease<'a> {
    pub(crate) ask: LeaseAsk<'a>,
    /// Until when it certainly lasts; if none, for the requested time.
    pub(crate) until: Option<Instant>,
}

impl Lease<'_> {
    /// A lease with a length.
    pub(crate) const fn of_ms(ms: u64) -> Self {
        Self { ask: LeaseAsk { ms: Some(ms), ..LeaseAsk::NONE }, until: None }
    }
}

/// A task that is about to be pushed: its number and its payload.
pub(crate) type Begun = (u64, Vec<u8>);

/// The most commands of short and long pipelines.
const PIPELINE_MAX: [usize; 4] = [4, 4, 4, 32];

/// One command of a pipeline.
enum Part {
    Push(Vec<Begun>),
    Pop(u32),
    Ack(Vec<Delivery>),
    Look,
}

impl Part {
    fn payloads(&self) -> Vec<&[u8]> {
        if let Self::Push(begun) = self { payloads_of(begun) } else { Vec::new() }
    }

    fn receipts(&self) -> Vec<&[u8]> {
        if let Self::Ack(deliveries) = self { receipts_of(deliveries) } else { Vec::new() }
    }

    /// The queue of an ack.
    fn queue(&self) -> Option<usize> {
        if let Self::Ack(deliveries) = self { deliveries.first().map(|first| first.queue) } else { None }
    }
}

fn payloads_of(begun: &[Begun]) -> Vec<&[u8]> {
    begun.iter().map(|(_, payload)| payload.as_slice()).collect()
}

fn receipts_of(deliveries: &[Delivery]) -> Vec<&[u8]> {
    deliveries.iter().map(|delivery| delivery.receipt.as_slice()).collect()
}

const fn pop<'a>(queues: &'a [&'a [u8]], count: u32, lease: Lease<'a>, block: Option<Block>) -> Pop<'a> {
    Pop { queues, count, block, lease: lease.ask, meta: false }
}

const fn ack<'a>(queue: &'a [u8], list: &'a [&'a [u8]]) -> Command<'a> {
    let tasks = TaskRefs { list, form: IdForm::Long };
    Command::Ack { queue, tasks, scope: AckScope::LeasedOrLapsed }
}

/// The name of a queue.
pub(crate) fn queue_name(queue: usize) -> Vec<u8> {
    format!("q{queue}").into_bytes()
}

/// The queue of this name.
pub(crate) fn number_of_queue(name: &[u8]) -> Option<usize> {
    std::str::from_utf8(name).ok()?.strip_prefix('q')?.parse().ok()
}

impl Client {
    /// Sends the planned number of commands, or stops early if the store has failed.
    pub(crate) fn run(mut self) {
        for _ in 0..self.plan.commands {
            if self.engine.failure().is_some() {
                break;
            }
            let kind = self.plan.kinds[self.rng.usize(..self.plan.kinds.len())];
            self.act(kind);
        }
        if self.plan.has(Kind::Fill) {
            self.act(Kind::Fill);
        }
        self.leave();
    }

    /// Another client of the same store.
    pub(crate) fn another(&mut self) -> Self {
        Self {
            engine: self.engine.clone(),
            plan: Arc::clone(&self.plan),
            history: Arc::clone(&self.history),
            states: self.states.clone(),
            clock: Arc::clone(&self.clock),
            disk: self.disk.clone(),
            rng: self.rng.fork(),
            due: None,
            held: Vec::new(),
            worker: None,
            conn: None,
            waits_since: Cell::new(None),
        }
    }

    /// Configures every queue as the plan says.
    pub(crate) fn configure(&self, is_last: bool) {
        let config = if is_last { Config::default() } else { self.plan.config };
        if self.plan.queues > MANY_QUEUES && self.plan.config == Config::default() {
            return;
        }
        for queue in 0..self.plan.queues {
            let next = if config.dead_letter && queue + 1 < self.plan.queues {
                queue_name(queue + 1)
            } else {
                Vec::new()
            };
            let changes = [
                Change::TtlMs(config.ttl_ms),
                Change::Expired(Expired::Dead),
                Change::MaxLeased(config.max_leased),
                Change::MaxLength(config.max_length),
                Change::DeadLetter(&next),
            ];
            self.ask(Command::Config { queue: &queue_name(queue), changes: Changes::List(&changes) });
        }
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a command, and waits until its reply may be sent. None if the outcome is unknown.
    pub(crate) fn ask(&self, command: Command<'_>) -> Option<Replies<Payload>> {
        let replies = self.ask_all(&[command])?;
        let is_known = !matches!(replies.list[..], [Reply::Refused(Refusal::Unknown { .. })]);
        is_known.then_some(replies)
    }

    /// Executes several commands at once, and waits until all replies may be sent. None if the outcome is unknown.
    pub(crate) fn ask_all(&self, commands: &[Command<'_>]) -> Option<Replies<Payload>> {
        self.history().commands += commands.len() as u64;
        self.waits_since.set(None);
        let (mut replies, mut position) = (Replies::default(), Position::START);
        while replies.list.len() < commands.len() {
            let submitted = self.engine.submit(&commands[replies.list.len()..], &mut replies);
            self.engine.commit();
            position = position.max(submitted.position);
            match submitted.flow {
                Flow::Ready | Flow::Backpressure(None) => {}
                Flow::Waiting(ticket) => {
                    self.waits_since.set(Some(now()));
                    // A lost wake-up must show, so this wait has no time limit.
                    let answer = sureq_home_api::wait(|cx| ticket.poll(cx));
                    position = position.max(answer.position);
                    replies.append(answer.replies);
                }
                // If the position never becomes durable, the store has failed and refuses the rest.
                Flow::Backpressure(Some(until)) => _ = self.engine.wait(until),
            }
        }
        let is_durable = self.engine.wait(position);
        if is_durable {
            self.states.confirm(position);
        }
        is_durable.then_some(replies)
    }

    fn act(&mut self, kind: Kind) {
        let queue = self.rng.usize(..self.plan.queues);
        match kind {
            Kind::Push => self.push(queue),
            Kind::Add | Kind::Named | Kind::At => self.add(queue, kind),
            Kind::Pop => self.pop(queue, None),
            Kind::WaitingPop => {
                let block = Block::Millis(self.rng.u64(1..=self.plan.delay_max_ms));
                self.pop(queue, Some(block));
            }
            Kind::Pipeline => self.pipeline(queue, false),
            Kind::Cut => self.pipeline(queue, true),
            Kind::Urgent => self.add_urgent(queue),
            Kind::Wide => self.wide(queue),
            Kind::Crowd => self.crowd(queue),
            Kind::Ack => self.ack(),
            Kind::Extend => self.extend(),
            Kind::Return => self.return_one(None),
            Kind::Fail => self.return_one(Some(b"by chance")),
            Kind::Cancel | Kind::Bury | Kind::Delete => self.end(queue, kind),
            Kind::Revive => {
                self.ask(Command::Revive { queue: &queue_name(queue), tasks: None });
            }
            Kind::Purge | Kind::Drop => self.empty(queue, kind),
            Kind::Pause => {
                let asked = now();
                self.history().begin_pause(queue);
                let paused = self.ask(Command::Pause { queue: &queue_name(queue) });
                if paused.is_some_and(|replies| matches!(replies.list[..], [Reply::Ok])) {
                    self.history().paused(queue, asked, now());
                }
            }
            Kind::Resume => self.resume(queue),
            Kind::Vanish => self.vanish(queue),
            Kind::Flood => self.flood(queue),
            Kind::Churn => self.churn(queue),
            Kind::Fill => self.fill(queue),
            Kind::Work => self.work(queue),
            Kind::WorkerPop => self.worker_pop(queue),
            Kind::Connect => self.connect(queue),
            Kind::StepWall => self.clock.step(self.rng.i64(-100_000..100_000)),
            Kind::Look => self.look(queue),
            Kind::Rest => self.rest(),
        }
    }

    /// Rests for a random time; or until the next deadline, to send a command at that very moment.
    fn rest(&mut self) {
        let is_short = |at: Instant| at - now().min(at) <= Duration::from_millis(self.plan.rest_max_ms);
        match self.due.take().filter(|&(at, _)| is_short(at)) {
            Some((at, queue)) if self.rng.bool() => {
                thread::sleep(at - now().min(at));
                match self.rng.u32(..4) {
                    0 => self.pop(queue, None),
                    1 => self.ack(),
                    _ => self.push(queue),
                }
            }
            _ => thread::sleep(self.time(Duration::from_millis(self.plan.rest_max_ms))),
        }
    }

    /// Notes a deadline after this many milliseconds.
    fn note_due(&mut self, queue: usize, ms: u64) {
        if ms > 0 {
            self.due = Some((now() + Duration::from_millis(ms), queue));
        }
    }

    /// Sends commands that change nothing.
    fn look(&mut self, queue: usize) {
        let name = queue_name(queue);
        let view = [View::Ready, View::Leased, View::Delayed, View::Dead][self.rng.usize(..4)];
        let (start, count) = (self.rng.i64(-5..50), self.rng.u32(..50));
        let queues = [name.as_slice()];
        let command = match self.rng.u32(..3) {
            0 => Command::Size,
            1 => Command::Exists { queues: &queues },
            _ => Command::Inspect { queue: &name, view, start, count },
        };
        self.ask(command);
        let info = self.ask(Command::Info { queue: &name });
        let limit = self.plan.config.max_leased;
        // A queue that is dropped forgets its settings.
        if let Some([Reply::Info(info)]) = info.as_ref().map(|replies| &replies.list[..])
            && limit > 0
            && info.leased > limit
            && !self.plan.has(Kind::Drop)
        {
            self.history().findings.push(format!("{} are leased of at most {limit}", info.leased));
        }
    }

    pub(crate) fn resume(&self, queue: usize) {
        self.history().begin_resume(queue);
        self.ask(Command::Resume { queue: &queue_name(queue) });
        self.history().end_resume(queue, now());
    }

    /// Pops tasks and disconnects before the reply arrives.
    fn vanish(&mut self, queue: usize) {
        let name = queue_name(queue);
        let ms = self.rng.u64(1..=self.plan.delay_max_ms);
        let lease = LeaseAsk { ms: Some(self.rng.u64(1..=self.plan.lease_max_ms)), ..LeaseAsk::NONE };
        let count = self.rng.usize(1..=self.plan.batch_max) as u32;
        let pop = Pop { queues: &[&name], count, block: Some(Block::Millis(ms)), lease, meta: false };
        self.history().commands += 1;
        let mut replies = Replies::default();
        let Some(ticket) = self.engine.submit(&[Command::Pop(pop)], &mut replies).into_ticket() else {
            self.engine.commit();
            let receipts: Vec<_> = replies.tasks.iter().map(TaskView::receipt).collect();
            self.engine.requeue(&name, &receipts);
            return;
        };
        self.engine.commit();
        // The tasks of an answer that arrives meanwhile are requeued too.
        let cx = &mut Context::from_waker(Waker::noop());
        if self.rng.bool() && ticket.poll(cx).is_ready() {
            return;
        }
        let time = self.time(Duration::from_millis(2 * ms));
        thread::sleep(time);
    }

    /// How long a delayed task certainly waits: no time, if it may expire meanwhile and be revived.
    pub(crate) fn waits(&self, delay_ms: u64) -> Duration {
        Duration::from_millis(if self.plan.config.ttl_ms > 0 { 0 } else { delay_ms })
    }

    pub(crate) fn time(&mut self, max: Duration) -> Duration {
        Duration::from_nanos(self.rng.u64(..=max.as_nanos() as u64))
    }

    /// Begins tasks of a queue. Returns their numbers and payloads.
    pub(crate) fn begin(&mut self, queue: usize, count: usize, not_before: Instant) -> Vec<Begun> {
        let mut begun = Vec::new();
        for _ in 0..count {
            let bytes = self.rng.usize(8..=self.plan.payload_max.max(8));
            let number = self.history().begin_push(queue, bytes, not_before);
            begun.push((number, payload_of(number, bytes)));
        }
        begun
    }

    /// Begins tasks of a queue with the smallest payloads.
    pub(crate) fn begin_small(&self, queue: usize, count: usize, not_before: Instant) -> Vec<Begun> {
        let mut history = self.history();
        let begin = |_| {
            let number = history.begin_push(queue, 8, not_before);
            (number, payload_of(number, 8))
        };
        (0..count).map(begin).collect()
    }

    pub(crate) fn push(&mut self, queue: usize) {
        let begun = self.begin_batch(queue);
        self.note_due(queue, self.plan.config.ttl_ms);
        self.push_begun(queue, &begun);
    }

    /// Begins a random number of tasks for one push.
    fn begin_batch(&mut self, queue: usize) -> Vec<Begun> {
        // A push is executed in one step, so that a larger one would exceed the bound on work under the lock.
        let most = self.plan.batch_max.min(limits::SLICE_TASKS).min(1 + (1 << 20) / self.plan.payload_max);
        let count = self.rng.usize(1..=most);
        self.begin(queue, count, now())
    }

    pub(crate) fn push_begun(&self, queue: usize, begun: &[Begun]) {
        let payloads = payloads_of(begun);
        let replies = self.ask(Command::Push { queue: &queue_name(queue), payloads: &payloads });
        if let Some(replies) = replies {
            self.pushed(begun, &replies.list[0], &replies);
        }
    }

    /// Records the reply to a push.
    pub(crate) fn pushed(&self, begun: &[Begun], reply: &Reply, replies: &Replies<Payload>) {
        let mut history = self.history();
        match reply {
            Reply::Pushed(ids) => {
                for ((number, _), id) in begun.iter().zip(&replies.ids[ids.range()]) {
                    history.pushed(*number, id.to_string());
                }
            }
            Reply::Refused(Refusal::Unknown { .. }) => {}
            Reply::Refused(_) => begun.iter().for_each(|(number, _)| history.refused(*number)),
            other => history.findings.push(format!("a push was answered {other:?}")),
        }
    }

    /// Sends several commands at once, as pipelining clients do. If it is cut, the client disconnects before the
    /// replies arrive.
    fn pipeline(&mut self, queue: usize, is_cut: bool) {
        let most = PIPELINE_MAX[self.rng.usize(..PIPELINE_MAX.len())];
        let count = self.rng.usize(2..=most);
        let (name, asked) = (queue_name(queue), now());
        let lease_ms = self.rng.u64(1..=self.plan.lease_max_ms);
        let parts: Vec<Part> = (0..count)
            .map(|_| match self.rng.u32(..4) {
                0 => Part::Pop(self.rng.usize(1..=self.plan.batch_max) as u32),
                1 => self.any_held().map_or(Part::Look, |delivery| Part::Ack(vec![delivery])),
                _ => Part::Push(self.begin_batch(queue)),
            })
            .collect();
        let payloads: Vec<Vec<&[u8]>> = parts.iter().map(Part::payloads).collect();
        let receipts: Vec<Vec<&[u8]>> = parts.iter().map(Part::receipts).collect();
        let queues = [name.as_slice()];
        let names: Vec<Vec<u8>> =
            parts.iter().map(|part| queue_name(part.queue().unwrap_or(queue))).collect();
        let commands: Vec<Command<'_>> = parts
            .iter()
            .enumerate()
            .map(|(at, part)| match part {
                Part::Push(_) => Command::Push { queue: &name, payloads: &payloads[at] },
                Part::Pop(count) => Command::Pop(pop(&queues, *count, Lease::of_ms(lease_ms), None)),
                Part::Ack(_) => ack(&names[at], &receipts[at]),
                Part::Look => Command::Info { queue: &name },
            })
            .collect();
        for part in &parts {
            if let Part::Ack(deliveries) = part {
                self.begin_finishing(deliveries);
            }
        }
        self.note_due(queue, self.plan.config.ttl_ms);
        if is_cut {
            return self.send_and_vanish(&name, &commands);
        }
        let Some(replies) = self.ask_all(&commands) else { return };
        for (part, reply) in parts.iter().zip(&replies.list) {
            match part {
                Part::Push(begun) => self.pushed(begun, reply, &replies),
                Part::Pop(_) => {
                    let taken = self.taken(&[queue], Lease::of_ms(lease_ms), asked, reply, &replies);
                    self.hold(taken);
                }
                Part::Ack(deliveries) => self.finished(deliveries, reply, &replies),
                Part::Look => {}
            }
        }
    }

    /// Sends commands whose pops are all of this queue, and disconnects before the replies arrive. Those that were not
    /// executed yet never are.
    fn send_and_vanish(&self, queue: &[u8], commands: &[Command<'_>]) {
        self.history().commands += commands.len() as u64;
        let mut replies = Replies::default();
        drop(self.engine.submit(commands, &mut replies).into_ticket());
        self.engine.commit();
        let receipts: Vec<_> = replies.tasks.iter().map(TaskView::receipt).collect();
        self.engine.requeue(queue, &receipts);
    }

    /// Adds a task with a priority, which is ready at once.
    fn add_urgent(&mut self, queue: usize) {
        let begun = self.begin(queue, 1, now());
        let priority = self.rng.i8(-1..=1);
        self.add_begun(queue, &begun[0], Add { priority, ..Add::plain(&[], &[]) });
    }

    fn add(&mut self, queue: usize, kind: Kind) {
        let delay_ms = self.rng.u64(..=self.plan.delay_max_ms);
        // If the wall clock is set, the time of the task is uncertain.
        let is_steady = !self.plan.has(Kind::StepWall);
        let delay = if kind != Kind::At || is_steady { self.waits(delay_ms) } else { Duration::ZERO };
        let begun = self.begin(queue, 1, now() + delay);
        let task_name = format!("n{}", self.rng.usize(..self.plan.names));
        let add = Add {
            when: match kind {
                Kind::At => When::At(WallTime(self.clock.wall_ms() + delay_ms)),
                _ => When::After(delay_ms),
            },
            name: (kind == Kind::Named).then_some(NameArg::Bytes(task_name.as_bytes())),
            priority: self.rng.i8(-2..=2),
            tries: self.rng.bool().then_some(self.rng.u32(1..4)),
            ..Add::plain(&[], &[])
        };
        self.note_due(queue, delay_ms);
        self.add_begun(queue, &begun[0], add);
    }

    pub(crate) fn add_begun(&self, queue: usize, begun: &Begun, add: Add<'_>) {
        let (name, payload) = (queue_name(queue), &begun.1);
        let is_plain = matches!(add.when, When::AtOnce | When::After(0));
        self.history().place(begun.0, add.priority, is_plain);
        if let Some(replies) = self.ask(Command::Add(Add { queue: &name, payload, ..add })) {
            self.added(begun, add.name.is_some(), &replies.list[0]);
        }
    }

    /// Records the reply to an add.
    pub(crate) fn added(&self, (number, _): &Begun, has_name: bool, reply: &Reply) {
        let mut history = self.history();
        match reply {
            Reply::Added { id, added: true, .. } => history.pushed(*number, id.to_string()),
            // Another task has the name.
            Reply::Added { added: false, .. } if has_name => history.refused(*number),
            Reply::Refused(Refusal::Unknown { .. }) => {}
            Reply::Refused(_) => history.refused(*number),
            other => history.findings.push(format!("an add was answered {other:?}")),
        }
    }

    fn pop(&mut self, queue: usize, block: Option<Block>) {
        let count = self.rng.usize(1..=self.plan.batch_max) as u32;
        let lease_ms = self.rng.u64(1..=self.plan.lease_max_ms);
        let taken = self.take(queue, count, Lease::of_ms(lease_ms), block);
        self.note_due(queue, lease_ms);
        self.hold(taken);
    }

    pub(crate) fn hold(&mut self, taken: Vec<Delivery>) {
        self.held.extend(taken);
        let surplus = self.held.len().saturating_sub(2_000);
        self.held.drain(..surplus);
    }

    /// Pops from a queue.
    pub(crate) fn take(
        &self,
        queue: usize,
        count: u32,
        lease: Lease<'_>,
        block: Option<Block>,
    ) -> Vec<Delivery> {
        self.take_any(&[queue], count, lease, block)
    }

    /// Pops from several queues.
    pub(crate) fn take_any(
        &self,
        queues: &[usize],
        count: u32,
        lease: Lease<'_>,
        block: Option<Block>,
    ) -> Vec<Delivery> {
        let asked = now();
        let names: Vec<Vec<u8>> = queues.iter().map(|&queue| queue_name(queue)).collect();
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let Some(replies) = self.ask(Command::Pop(pop(&names, count, lease, block))) else {
            return Vec::new();
        };
        let taken = self.taken(queues, lease, asked, &replies.list[0], &replies);
        self.note_wait(queues, asked, block, &taken, &replies.list[0]);
        taken
    }

    /// Records how long a pop has certainly waited: until it timed out, or until the push of its first task was sent.
    fn note_wait(
        &self,
        queues: &[usize],
        asked: Instant,
        block: Option<Block>,
        taken: &[Delivery],
        reply: &Reply,
    ) {
        let (Some(since), Some(Block::Millis(ms))) = (self.waits_since.get(), block) else { return };
        let mut history = self.history();
        let until = match (taken, reply) {
            ([first, ..], _) => history.began(first.number),
            (_, Reply::TimedOut) => asked + Duration::from_millis(ms.saturating_sub(2)),
            _ => return,
        };
        for &queue in queues {
            history.waited(queue, since, until);
        }
    }

    /// Records the reply to a pop. Returns the deliveries.
    pub(crate) fn taken(
        &self,
        queues: &[usize],
        lease: Lease<'_>,
        asked: Instant,
        reply: &Reply,
        replies: &Replies<Payload>,
    ) -> Vec<Delivery> {
        let came = now();
        let until = lease.until.unwrap_or_else(|| asked + Duration::from_millis(lease.ask.ms.unwrap_or(0)));
        let mut history = self.history();
        history.begin_reply();
        match reply {
            Reply::Tasks(tasks) => replies.tasks[tasks.range()]
                .iter()
                .filter_map(|task| {
                    let queue = queues[task.queue as usize];
                    if history.is_paused_since(queue, asked) {
                        let finding = format!("a pop got a task of queue {queue}, which is paused");
                        history.findings.push(finding);
                    }
                    let receipt = IdText::of_receipt(task.receipt()).as_bytes().to_vec();
                    let time = (asked, came, until);
                    history.delivered(task.body.as_ref(), queue, (task.id, receipt), task.deliveries, time)
                })
                .collect(),
            Reply::TimedOut | Reply::Refused(_) => Vec::new(),
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
        self.begin_finishing(deliveries);
        let list = receipts_of(deliveries);
        if let Some(replies) = self.ask(ack(&queue_name(first.queue), &list)) {
            self.finished(deliveries, &replies.list[0], &replies);
        }
    }

    fn begin_finishing(&self, deliveries: &[Delivery]) {
        for delivery in deliveries {
            self.history().begin_removal(delivery.number);
        }
    }

    /// Records the reply to an ack.
    fn finished(&self, deliveries: &[Delivery], reply: &Reply, replies: &Replies<Payload>) {
        let mut history = self.history();
        match reply {
            Reply::Acked(done) => {
                let done = &replies.indexes[done.range()];
                for (index, delivery) in deliveries.iter().enumerate() {
                    if done.contains(&(index as u32)) {
                        history.removed(delivery.number, now());
                    } else {
                        history.not_removed(delivery.number);
                    }
                }
            }
            Reply::Refused(_) => {}
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
        if self.end_taking(&delivery, replies.as_ref(), asked, asked + time) {
            self.held.push(delivery);
        }
    }

    fn return_one(&mut self, failed: Option<&[u8]>) {
        if let Some(delivery) = self.any_held() {
            self.return_delivery(&delivery, failed);
        }
    }

    pub(crate) fn return_delivery(&mut self, delivery: &Delivery, failed: Option<&[u8]>) {
        let (delay_ms, asked) = (self.rng.u64(..=self.plan.delay_max_ms), now());
        let is_delayed = failed.is_none() && self.rng.bool();
        let to = is_delayed.then_some(Place::After(delay_ms));
        let time = if is_delayed { self.waits(delay_ms) } else { Duration::ZERO };
        self.history().begin_taking(delivery.number, asked, time);
        let task = TaskRef { bytes: &delivery.receipt, form: IdForm::Long };
        let name = queue_name(delivery.queue);
        let command = Return { queue: &name, task, to, failed, is_last: false };
        let replies = self.ask(Command::Return(command));
        self.end_taking(delivery, replies.as_ref(), asked, asked + time);
    }

    /// Records the reply to a command that changes a lease. If it was executed, the task is not delivered before
    /// `at`. Returns whether it was.
    fn end_taking(
        &self,
        delivery: &Delivery,
        replies: Option<&Replies<Payload>>,
        asked: Instant,
        at: Instant,
    ) -> bool {
        let Some(replies) = replies else { return false };
        let is_done = matches!(replies.list[..], [Reply::Outcome(Outcome::Done)]);
        if is_done {
            self.history().end_taking_until(delivery, asked, now(), at);
        } else {
            self.history().end_taking(delivery.number, now());
        }
        is_done
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
            // A buried task may be revived, and is then available at once.
            self.history().begin_burial(number, None);
            self.history().begin_taking(number, now(), Duration::ZERO);
        } else {
            self.history().begin_removal(number);
        }
        let replies = self.ask(command);
        if kind == Kind::Bury && replies.is_some() {
            self.history().end_taking(number, now());
        }
        // A leased task that is cancelled is deleted when its lease ends, unless it is buried before.
        let is_final = kind == Kind::Delete || kind == Kind::Cancel && !self.plan.has(Kind::Bury);
        match replies.as_ref().map(|replies| &replies.list[..]) {
            Some([Reply::Count(1)]) if is_final => self.history().removed(number, now()),
            Some([Reply::Count(0)]) if kind != Kind::Bury => self.history().not_removed(number),
            _ => {}
        }
    }

    /// Purges or drops a queue.
    fn empty(&mut self, queue: usize, kind: Kind) {
        self.history().begin_purge(queue);
        let name = queue_name(queue);
        if kind == Kind::Drop {
            // A dropped queue is no longer paused, either.
            self.history().begin_resume(queue);
            let confirmed = self.history().confirmed_of(queue);
            let replies = self.ask(Command::Drop { queues: &[&name] });
            if matches!(replies.as_ref().map(|replies| &replies.list[..]), Some([Reply::Count(_)])) {
                for number in confirmed {
                    self.history().removed(number, now());
                }
            }
            self.history().end_resume(queue, now());
        } else {
            let state = [None, Some(View::Ready), Some(View::Delayed), Some(View::Dead)][self.rng.usize(..4)];
            self.ask(Command::Purge { queue: &name, state });
        }
        self.history().end_purge(queue);
    }
}
