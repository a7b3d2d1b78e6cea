//! Executing commands: the engine's side of the contract with dialects.
//!
//! Commands run on the caller's thread, under the state lock. The broker decides and applies, and the commit buffer
//! records the events. The caller gets replies with the position that they must wait for, or a ticket if it must wait
//! for a task or a payload. `commit` wakes the log thread, which writes the buffered frame, syncs as the durability
//! level demands, and publishes the position. The next frame fills meanwhile.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use sureq_core::command::{ConnId, Pop};
use sureq_core::limits;
use sureq_core::owned::OwnedPop;
use sureq_core::{Bulk, Command, Now, Progress, Receipt, Refusal, Replies, Reply};
use sureq_home_api::{Broken, Flow, Home, Listener, Payload, Position, Status, Submitted, Ticket};

use crate::commit::batch::{Batch, WORK_TASKS_MAX, Weight};
use crate::commit::oversized::OversizedCommand;
use crate::engine::Engine;
use crate::payload::body::Body;
use crate::payload::payloads::part_from_large;
use crate::shared::EngineState;
use crate::waiting::sliced::{self, Left, PopRest, SLICE_BYTES, Sliced};
use crate::waiting::ticker;
use crate::waiting::ticket::{EngineTicket, PendingAnswer, split_off, timed_out};

thread_local! {
    /// Replies whose payloads may not be in memory yet. Kept for its capacity.
    static SCRATCH: RefCell<Replies<Body>> = RefCell::default();
}

impl Home for Engine {
    fn submit(&self, commands: &[Command<'_>], replies: &mut Replies<Payload>) -> Submitted {
        let mut own = SCRATCH.take();
        let submitted = self.submit_all(commands, &mut own);
        replies.append_mapped(&mut own, Body::into_payload);
        // The capacity that an oversized command needed is not kept.
        own.clear();
        SCRATCH.set(own);
        submitted
    }

    fn commit(&self) -> Position {
        let shared = &self.shared;
        if !shared.has_uncommitted.swap(false, Ordering::AcqRel) {
            return shared.durable.position();
        }
        let mut state = shared.lock();
        shared.notify_log(&mut state);
        shared.position(&state)
    }

    fn durable(&self) -> Position {
        self.shared.durable.position()
    }

    fn wake_at(&self, position: Position, waker: &Waker) {
        self.shared.durable.wake_at(position, waker);
    }

    fn wait(&self, position: Position) -> bool {
        self.shared.durable.wait_for(position)
    }

    fn failure(&self) -> Option<Broken> {
        self.shared.durable.failure().map(|error| Broken::new(Arc::clone(error) as _))
    }

    fn requeue(&self, queue: &[u8], receipts: &[Receipt]) {
        self.shared.requeue(queue, receipts);
    }

    fn close_conn(&self, conn: ConnId) {
        let mut progress = Progress::More;
        while progress == Progress::More {
            progress = Progress::Done;
            self.shared.change(|broker, now, buffer| progress = broker.close_conn(conn, now, buffer));
            if progress == Progress::More {
                self.shared.yield_lock();
            }
        }
    }

    fn dismiss_waiters(&self) {
        let position = self.shared.position(&self.shared.lock());
        self.shared.dismiss_waiters(timed_out, position);
    }

    fn waiters(&self) -> usize {
        self.shared.lock().waiters.len()
    }

    fn listen(&self) -> Listener {
        Listener::new(self.join_listeners())
    }

    fn now(&self) -> Now {
        self.shared.clock.now()
    }

    fn warnings(&self) -> &[String] {
        &self.shared.warnings
    }

    fn status(&self) -> Option<Status> {
        Some(Engine::status(self))
    }

    fn charge(&self, bytes: usize, before: usize) {
        self.shared.charge(bytes, before);
    }

    fn is_in_process(&self) -> bool {
        true
    }

    fn close(&self) -> Result<(), Broken> {
        Engine::close(self).map_err(|error| Broken::new(error as _))
    }
}

impl Engine {
    /// Executes commands in order, and never blocks. Stops at a command that must wait: for a task, for payloads that
    /// have to be read, or because it is executed in slices. Without commands it returns the position of all executed
    /// commands.
    fn submit_all(&self, commands: &[Command<'_>], replies: &mut Replies<Body>) -> Submitted {
        let shared = &self.shared;
        let mut weight = Weight::of(replies);
        let (mut all, mut batch) = (Submitted::default(), Batch::default());
        loop {
            let rest = &commands[all.executed..];
            if let Some(flow) = rest.first().and_then(|first| self.not_yet(first)) {
                all.flow = flow;
                return all;
            }
            shared.next_batch(rest, &mut batch);
            let first_task = replies.tasks.len();
            let some = self.submit_some(&rest[..batch.commands], &mut batch, replies, &mut weight);
            part_from_large(&mut replies.tasks[first_task..]);
            batch.advance(some.executed);
            all.executed += some.executed;
            all.position = all.position.max(some.position);
            all.served_waiters |= some.served_waiters;
            all.flow = some.flow;
            if all.executed == commands.len() || some.executed == 0 || matches!(all.flow, Flow::Waiting(_)) {
                return all;
            }
            if weight.bytes > limits::OUTPUT_BYTES_MAX {
                if matches!(all.flow, Flow::Ready) {
                    all.flow = Flow::Backpressure(None);
                }
                return all;
            }
            shared.yield_lock();
        }
    }

    /// The flow that ends the batch before this command, if it cannot be executed at once.
    fn not_yet(&self, command: &Command<'_>) -> Option<Flow> {
        let shared = &self.shared;
        if shared.plain_bytes(command).is_some() {
            return None;
        }
        if sliced::is_sliced(command) {
            return Some(Flow::Waiting(shared.slice(command).into()));
        }
        // Large payloads are prepared only when the command can be executed, not at each attempt before.
        let hold = if shared.is_large(command) { shared.hold() } else { None };
        hold.map(|until| Flow::Backpressure(Some(until)))
    }

    /// Executes commands under one lock, up to a bounded amount of work.
    fn submit_some(
        &self,
        commands: &[Command<'_>],
        batch: &mut Batch,
        replies: &mut Replies<Body>,
        weight: &mut Weight,
    ) -> Submitted {
        let shared = &self.shared;
        // A command larger than a segment is a batch by itself, and another thread executes it.
        let oversized =
            commands.first().filter(|_| batch.is_oversized).and_then(|first| shared.oversized(first));
        let mut state = shared.lock();
        let now = shared.clock.now();
        shared.raise_mark_if_near(&state, now);
        // Checked under the lock, so that no pop starts to wait after a failure has dismissed all waiters.
        let failed = shared.durable.failure().map(|_| Refusal::Poisoned);
        if let Some(refusal) = failed.or(state.closing.then_some(Refusal::Closed)) {
            replies.list.extend(commands.iter().map(|_| Reply::Refused(refusal.clone())));
            return Submitted { executed: commands.len(), ..Submitted::default() };
        }
        if state.buffer.is_long() {
            let flow = Flow::Backpressure(Some(state.buffer.end()));
            return Submitted { flow, ..Submitted::default() };
        }
        if !state.waiters.is_empty() {
            // Tasks that are due go to pops that have waited for them, not to a new one.
            ticker::tick(shared, &mut state, now);
        }
        let mut run = BatchRun { now, oversized, work: 0, served_waiters: false, is_out_of_memory: false };
        let (mut executed, mut ticket) = (0, None);
        let weight_before = weight.bytes;
        for (index, command) in commands.iter().enumerate() {
            ticket = self.execute_one(&mut state, (index, command), batch, replies, &mut run);
            if ticket.is_some() {
                break;
            }
            executed += 1;
            if !state.waiters.is_empty() {
                run.served_waiters |= shared.serve(&mut state, now);
            }
            let is_heavy = weight.add(replies) > limits::OUTPUT_BYTES_MAX;
            let is_long = run.work + state.served >= WORK_TASKS_MAX;
            if is_heavy || is_long || weight.bytes > weight_before + SLICE_BYTES {
                break;
            }
        }
        state.forget_awake_unless_awaited();
        let position = shared.position(&state);
        let flow = match ticket {
            Some(ticket) => Flow::Waiting(ticket.into()),
            None if state.buffer.is_long() => Flow::Backpressure(Some(state.buffer.end())),
            None => Flow::Ready,
        };
        shared.notify_ticker(&mut state, now);
        if state.buffer.bytes() >= shared.wake_bytes() {
            shared.notify_log(&mut state);
        } else {
            shared.has_uncommitted.store(true, Ordering::Release);
        }
        let notice = shared.note_memory(&mut state, run.is_out_of_memory);
        shared.unlock_and_wake(state);
        if let Some(line) = notice {
            shared.notice(&line);
        }
        Submitted { executed, position, served_waiters: run.served_waiters, flow }
    }

    /// Executes one command. Either appends its reply, or returns a ticket for it.
    fn execute_one(
        &self,
        state: &mut EngineState,
        (index, command): (usize, &Command<'_>),
        batch: &mut Batch,
        replies: &mut Replies<Body>,
        run: &mut BatchRun,
    ) -> Option<EngineTicket> {
        let shared = &self.shared;
        if let Some(refusal) = shared.refusal(state, command) {
            run.is_out_of_memory |= refusal == Refusal::OutOfMemory;
            replies.list.push(Reply::Refused(refusal));
            return None;
        }
        if let Some(search) = shared.search(command) {
            return Some(search);
        }
        if let Some(oversized) = run.oversized.take() {
            return Some(shared.submit_oversized(oversized));
        }
        let (first_task, first_worker) = (replies.tasks.len(), replies.workers.len());
        let EngineState { broker, buffer, .. } = &mut *state;
        let (mut left, mut bulk, mut progress) = (None, Bulk::default(), Progress::Done);
        let moved_before = broker.moved();
        if let Command::Pop(pop) = command {
            left = sliced::begin_pop(broker, pop, run.now, buffer, replies);
        } else {
            buffer.lend(batch.take(index));
            progress = broker.execute_slice(run.now, command, &mut bulk, buffer, replies);
            batch.keep(index, buffer.take_left());
        }
        shared.end_unit(state);
        let tasks = sliced::named(command) + replies.tasks.len() - first_task;
        state.meter.tasks(tasks);
        if let Command::Queues { count, .. } = command {
            state.meter.looked((*count as usize).min(limits::SLICE_QUEUES));
        }
        // A command also settles a slice of what is due in its queue.
        let moved = (state.broker.moved() - moved_before) as usize;
        run.work += tasks.max(moved).max(sliced::looked_at(command));
        let ticket = if progress == Progress::More {
            let rows = replies.workers.split_off(first_worker);
            Some(shared.ticket_for_bulk(command, bulk, rows, shared.position(state)))
        } else if let Some(pop) = must_wait(command, replies) {
            replies.list.pop();
            self.begin_to_wait(state, pop, left, replies, run)
        } else {
            self.answer_later(state, command, left, first_task, replies)
        };
        if ticket.is_some() {
            // Even a pop that finds nothing settles what is due, and may have freed tasks of other queues.
            run.served_waiters |= shared.serve(state, run.now);
        }
        ticket
    }

    /// Adds a pop to the waiters. A waiter takes memory until it is served, so it is refused at the memory limit; a pop
    /// that need not wait never is. If it has not looked at all its queues yet, it does so as a waiter.
    fn begin_to_wait(
        &self,
        state: &mut EngineState,
        pop: &Pop<'_>,
        left: Option<Left>,
        replies: &mut Replies<Body>,
        run: &mut BatchRun,
    ) -> Option<EngineTicket> {
        if self.shared.is_out_of_memory(state) {
            replies.list.push(Reply::Refused(Refusal::OutOfMemory));
            run.is_out_of_memory = true;
            return None;
        }
        let (number, cell) = state.waiters.add(pop, run.now.log);
        left.map(|left| state.searches.insert(number, left));
        Some(EngineTicket { number: Some(number), cell, shared: Arc::clone(&self.shared) })
    }

    /// A ticket, if not all tasks of the command are delivered yet or payloads have to be read.
    fn answer_later(
        &self,
        state: &mut EngineState,
        command: &Command<'_>,
        left: Option<Left>,
        first_task: usize,
        replies: &mut Replies<Body>,
    ) -> Option<EngineTicket> {
        let shared = &self.shared;
        let tasks = &mut replies.tasks[first_task..];
        if tasks.is_empty() && left.is_none() {
            return None;
        }
        let is_warm = shared.fetch(state, command, tasks);
        if is_warm && left.is_none() {
            return None;
        }
        let replies = split_off(replies, first_task);
        let mut answer = PendingAnswer::new(queues_of(command), replies, shared.position(state));
        answer.recovered_from = recovered_from(command);
        Some(match (command, left) {
            (Command::Pop(pop), Some(left)) => {
                let rest = PopRest::new(OwnedPop::from(pop), left);
                let ticket = shared.ticket_for(answer, Some(Sliced::Pop(rest)));
                if !is_warm {
                    shared.read_for(&ticket.cell);
                }
                ticket
            }
            _ => shared.load(answer),
        })
    }
}

/// The part of a batch that is executed under one lock.
struct BatchRun {
    now: Now,
    oversized: Option<OversizedCommand>,
    /// Tasks named, pushed, delivered or settled, and what else was looked at.
    work: usize,
    served_waiters: bool,
    /// A command was refused because of the memory limit.
    is_out_of_memory: bool,
}

impl From<EngineTicket> for Ticket {
    fn from(ticket: EngineTicket) -> Self {
        Self::new(1, ticket)
    }
}

/// The command, if it is a pop that found nothing and may wait.
fn must_wait<'c, 'a>(command: &'c Command<'a>, replies: &Replies<Body>) -> Option<&'c Pop<'a>> {
    let Command::Pop(pop) = command else { return None };
    let empty = matches!(replies.list.last(), Some(Reply::Tasks(span)) if span.is_empty());
    (empty && pop.count > 0 && pop.block.is_some()).then_some(pop)
}

/// The queues of a pop. Its tasks are requeued there if the caller drops its ticket.
fn queues_of(command: &Command<'_>) -> Vec<Box<[u8]>> {
    match command {
        Command::Pop(pop) => pop.queues.iter().map(|&name| name.into()).collect(),
        _ => Vec::new(),
    }
}

/// The queue of a recover. Its tasks are not requeued if the caller drops its ticket.
fn recovered_from(command: &Command<'_>) -> Option<Box<[u8]>> {
    match command {
        Command::Recover { queue, .. } => Some((*queue).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use sureq_core::command::{IdForm, TaskRef, View, Worker, WorkerRef};
    use sureq_core::settings::{Change, Changes};

    use super::*;
    use crate::Options;
    use crate::clock::Clock;
    use crate::commit::prepared::PREPARED_BYTES;
    use crate::shared::LOCKS;

    /// A clock that is moved by hand.
    #[derive(Default)]
    struct Hand {
        ms: AtomicU64,
    }

    impl Clock for Hand {
        fn monotonic_us(&self) -> u64 {
            self.wall_us()
        }

        fn wall_us(&self) -> u64 {
            self.ms.load(Ordering::Relaxed) * 1_000
        }
    }

    fn execute(engine: &Engine, commands: &[Command<'_>]) {
        let mut replies = Replies::default();
        let submitted = engine.submit(commands, &mut replies);
        assert_eq!((submitted.executed, replies.list.len()), (commands.len(), commands.len()));
    }

    /// A store with 100,000 tasks in the queue `flood`, whose time to live ends when the clock has advanced by an hour.
    /// Its ticker sleeps whatever is due.
    fn with_flood() -> (Engine, Arc<Hand>) {
        let clock = Arc::<Hand>::default();
        let engine = Engine::in_memory_by(Arc::clone(&clock) as _, &Options::default());
        let changes = Changes::List(&[Change::TtlMs(3_600_000)]);
        execute(&engine, &[Command::Config { queue: b"flood", changes }]);
        for _ in 0..100 {
            execute(&engine, &[Command::Push { queue: b"flood", payloads: &[&b"x"[..]; 1_000] }]);
        }
        while engine.shared.lock().ticker_sleeps.take().is_none() {
            std::thread::yield_now();
        }
        (engine, clock)
    }

    fn end_the_hour(clock: &Hand) {
        clock.ms.store(3_700_000, Ordering::Relaxed);
    }

    #[test]
    fn a_pipeline_is_not_held_up_by_due_tasks_of_other_queues() {
        type Begin = fn(&Engine, &Hand);
        let begins: [Begin; 2] = [
            |_, clock| end_the_hour(clock),
            |engine, _| execute(engine, &[Command::Drop { queues: &[b"flood"] }]),
        ];
        for begin in begins {
            let (engine, clock) = with_flood();
            begin(&engine, &clock);
            let now = engine.shared.clock.now();
            assert!(engine.shared.lock().broker.next_deadline().is_due(now), "a flood has begun");
            let before = LOCKS.get();
            execute(&engine, &vec![Command::Push { queue: b"q", payloads: &[b"x"] }; 4_000]);
            let locks = LOCKS.get() - before;
            assert!(locks <= 4, "{locks} locks for a pipeline");
            assert!(engine.shared.lock().broker.next_deadline().is_due(now), "the flood is not over");
            engine.close().expect("nothing is kept");
        }
    }

    /// The first may look at a thousand queues, and match a pattern against them, without returning any. The others
    /// may skip very many tasks.
    #[test]
    fn a_pipeline_that_looks_at_much_and_returns_little_lets_other_threads_have_the_lock() {
        const COUNT: usize = 100;
        let engine = Engine::in_memory(&Options::default());
        let pattern: Option<&[u8]> = Some(b"*a*a*a*b");
        let (queue, task) = (&b"q"[..], TaskRef { bytes: b"1-1", form: IdForm::Long });
        let reads = [
            (2, Command::Queues { pattern, cursor: 0, count: 1 }),
            (2, Command::Queues { pattern: None, cursor: 0, count: limits::SLICE_QUEUES as u32 }),
            (2, Command::Worker(Worker::List)),
            (20, Command::Inspect { queue, view: View::Ready, start: 1_000_000, count: 1 }),
            (20, Command::Explain { queue, task }),
        ];
        for (at_once, read) in reads {
            let before = LOCKS.get();
            execute(&engine, &[read; COUNT]);
            let locks = LOCKS.get() - before;
            assert!(locks >= COUNT / at_once, "{locks} locks for {COUNT} of {read:?}");
        }
        engine.close().expect("nothing is kept");
    }

    /// Each command ends some workers whose time to live is over, with the queues that they work on.
    #[test]
    fn a_pipeline_ends_a_bounded_number_of_lost_workers_under_one_lock() {
        const WORKERS: usize = 50;
        const QUEUES: usize = 200;
        let clock = Arc::<Hand>::default();
        let engine = Engine::in_memory_by(Arc::clone(&clock) as _, &Options::default());
        let queues: Vec<String> = (0..QUEUES).map(|n| format!("queue {n}")).collect();
        for n in 0..WORKERS {
            let name = format!("worker {n}");
            let (name, mut replies) = (name.as_bytes(), Replies::default());
            let start = Command::Worker(Worker::Start { name, ttl_ms: 3_600_000 });
            let _ = engine.submit(&[start], &mut replies);
            let Reply::Started(incarnation) = replies.list[0] else { panic!("{:?}", replies.list) };
            let worker = WorkerRef { name, incarnation };
            let works: Vec<Command<'_>> =
                queues.iter().map(|queue| Command::Worker(Worker::Work(worker, queue.as_bytes()))).collect();
            execute(&engine, &works);
        }
        while engine.shared.lock().ticker_sleeps.take().is_none() {
            std::thread::yield_now();
        }
        end_the_hour(&clock);
        let before = LOCKS.get();
        execute(&engine, &vec![Command::Size; 1_000]);
        let locks = LOCKS.get() - before;
        assert!(locks >= WORKERS * QUEUES / 3_000, "{locks} locks");
        engine.close().expect("nothing is kept");
    }

    #[test]
    fn large_payloads_are_prepared_once_however_many_locks_a_pipeline_takes() {
        const LARGE: usize = 300 << 10;
        const COUNT: usize = 40;
        let (engine, clock) = with_flood();
        end_the_hour(&clock);
        let large = vec![b'x'; LARGE];
        let payloads: [&[u8]; 1] = [&large];
        let (locks, prepared) = (LOCKS.get(), PREPARED_BYTES.get());
        execute(&engine, &[Command::Push { queue: b"flood", payloads: &payloads }; COUNT]);
        assert!(
            LOCKS.get() - locks > COUNT,
            "each command settles a slice, and two are executed under one lock"
        );
        assert_eq!(PREPARED_BYTES.get() - prepared, COUNT * LARGE);
        engine.close().expect("nothing is kept");
    }
}
