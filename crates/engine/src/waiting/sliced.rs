//! Executes large commands in slices, so that none holds the lock for long. A command that requests or names more
//! than [`SLICE_TASKS`] tasks or queues gets a ticket. Each poll of the ticket executes one slice under the lock.
//! Between two slices the caller serves its other work, and other threads get the lock. Each slice is one unit of the
//! log and atomic; the command as a whole is not, since other commands may be executed in between. A push is never
//! sliced: it is stored completely or not at all.
//!
//! A pop executes its first slice at once, like a small one: most find fewer tasks than they request.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sureq_core::broker::{PopSlice, SlicePopped};
use sureq_core::command::{Pop, View, Worker, WorkerRef};
use sureq_core::owned::{ListAct, ListCommand, OwnedPop, PackedWords};
use sureq_core::queue::{Popped, RecoverAsk};
use sureq_core::reply::{Span, WorkerRow};
use sureq_core::task::Body as _;
use sureq_core::{Broker, Bulk, Command, Now, Progress, Refusal, Replies, Reply, TaskId, limits};

use crate::commit::commit_buffer::CommitBuffer;
use crate::log::Position;
use crate::payload::body::Body;
use crate::shared::{EngineState, Shared};
use crate::waiting::ticker;
use crate::waiting::ticket::{EngineTicket, PendingAnswer, TicketCell, only};

/// The number of tasks, ids or queues of a slice.
pub(crate) const SLICE_TASKS: usize = limits::SLICE_TASKS;

/// The payload bytes that a slice delivers; a single payload may be larger.
pub(crate) const SLICE_BYTES: usize = 2 << 20;

/// The rest of a command that is executed in slices.
pub(crate) enum Sliced {
    Pop(PopRest),
    Recover(RecoverRest),
    Inspect(InspectRest),
    Queues(QueuesRest),
    List(ListRest),
    Bulk(BulkRest),
}

pub(crate) struct PopRest {
    pop: OwnedPop,
    left: Left,
}

/// The tasks and bytes that a pop may still deliver.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    /// The index of the queue to continue with.
    from: usize,
    tasks: u32,
    bytes: usize,
}

impl Left {
    pub(crate) fn all_of(pop: &Pop<'_>) -> Self {
        Self { from: 0, tasks: pop.count.min(limits::REPLY_TASKS_MAX), bytes: limits::REPLY_BYTES_MAX }
    }
}

pub(crate) struct RecoverRest {
    queue: Box<[u8]>,
    elapsed_ms: u64,
    left: u32,
    bytes: usize,
    /// The last delivery when the command began. Later ones are its own, or too recent.
    upto: Option<u64>,
}

pub(crate) struct InspectRest {
    queue: Box<[u8]>,
    view: View,
    start: i64,
    left: u32,
    bytes: usize,
    /// A task that moves meanwhile is shown once at most.
    shown: HashSet<TaskId>,
}

pub(crate) struct QueuesRest {
    pattern: Option<Box<[u8]>>,
    cursor: u64,
    left: u32,
}

pub(crate) struct ListRest {
    act: ListAct,
    queue: Box<[u8]>,
    items: Items,
    done: usize,
    count: u64,
}

/// The rest of a command that the broker executes in slices: see [`Broker::execute_slice`].
pub(crate) struct BulkRest {
    which: BulkCommand,
    /// The queue or the worker that it names.
    name: Box<[u8]>,
    bulk: Bulk,
    /// The replies of the slices so far.
    replies: Replies<Body>,
}

#[derive(Clone, Copy)]
enum BulkCommand {
    Purge(Option<View>),
    ReviveAll,
    Start { ttl_ms: u64 },
    Stop { incarnation: u64 },
    Fail,
    ListWorkers,
}

/// The items of a list, which count toward the memory limit.
struct Items {
    words: PackedWords,
    shared: Arc<Shared>,
}

impl Items {
    fn new(list: &[&[u8]], shared: &Arc<Shared>) -> Self {
        let items = Self { words: PackedWords::new(list), shared: Arc::clone(shared) };
        shared.charged.fetch_add(items.words.heap_bytes(), Ordering::Relaxed);
        items
    }
}

impl Drop for Items {
    fn drop(&mut self) {
        self.shared.charged.fetch_sub(self.words.heap_bytes(), Ordering::Relaxed);
    }
}

/// Whether a command is executed in slices from its beginning.
pub(crate) fn is_sliced(command: &Command<'_>) -> bool {
    match command {
        Command::Recover { count, .. } | Command::Inspect { count, .. } | Command::Queues { count, .. } => {
            *count as usize > SLICE_TASKS
        }
        _ => ListCommand::of(command).is_some_and(|list| list.items.len() > SLICE_TASKS),
    }
}

/// The number of tasks, ids or queues that a command names.
pub(crate) fn named(command: &Command<'_>) -> usize {
    match command {
        Command::Push { payloads, .. } => payloads.len(),
        Command::Pop(pop) => pop.queues.len(),
        _ => ListCommand::of(command).map_or(1, |list| list.items.len()),
    }
}

/// The work of skipping the tasks before a position in a queue, counted in tasks. It grows slowly with their number.
const SKIPPING_TASKS: usize = 100;

/// About how much a command looks at besides what it names and returns, counted in tasks.
pub(crate) fn looked_at(command: &Command<'_>) -> usize {
    match command {
        // A pattern may take long on a single name, and a worker may hold tasks of very many queues.
        Command::Queues { pattern: Some(_), .. } | Command::Worker(Worker::List) => SLICE_TASKS,
        Command::Queues { count, .. } => (*count as usize).min(SLICE_TASKS),
        Command::Inspect { .. } | Command::Explain { .. } => SKIPPING_TASKS,
        _ => 0,
    }
}

/// How a poll of a ticket continues.
pub(crate) enum Step {
    /// There is no slice to execute.
    None,
    /// There is another slice to execute.
    More,
    /// Another slice is executed once this is durable.
    Hold(Position),
}

/// Executes the first slice of a pop. Returns the rest, if there may be more.
#[inline]
pub(crate) fn begin_pop(
    broker: &mut Broker<Body>,
    pop: &Pop<'_>,
    now: Now,
    buffer: &mut CommitBuffer,
    replies: &mut Replies<Body>,
) -> Option<Left> {
    go_on_with_pop(Left::all_of(pop), broker, pop, now, buffer, replies)
}

/// Executes a slice of a pop that has popped nothing yet. Returns the rest, if there may be more.
#[inline]
pub(crate) fn go_on_with_pop(
    mut left: Left,
    broker: &mut Broker<Body>,
    pop: &Pop<'_>,
    now: Now,
    buffer: &mut CommitBuffer,
    replies: &mut Replies<Body>,
) -> Option<Left> {
    let start = replies.tasks.len();
    let popped = pop_slice(&mut left, usize::MAX, broker, pop, now, buffer, replies);
    replies.list.push(match popped {
        Ok(_) => Reply::Tasks(Span::new(start, replies.tasks.len())),
        Err(ref refusal) => Reply::Refused(refusal.clone()),
    });
    popped.is_ok_and(|progress| progress == Progress::More).then_some(left)
}

#[inline]
fn pop_slice(
    left: &mut Left,
    first_bytes: usize,
    broker: &mut Broker<Body>,
    pop: &Pop<'_>,
    now: Now,
    buffer: &mut CommitBuffer,
    replies: &mut Replies<Body>,
) -> Result<Progress, Refusal> {
    let count = left.tasks.min(SLICE_TASKS as u32);
    let slice = PopSlice { from: left.from, count, bytes: SLICE_BYTES.min(left.bytes), first_bytes };
    let SlicePopped { popped, next_queue } = broker.pop_slice(pop, &slice, now, buffer, replies)?;
    let Popped { tasks, bytes, is_cut } = popped;
    left.tasks -= tasks;
    left.bytes = left.bytes.saturating_sub(bytes);
    if tasks > 0 {
        left.from = replies.tasks.last().map_or(left.from, |task| task.queue as usize);
    }
    let mut is_over = tasks == 0 || tasks < count && !is_cut;
    if let Some(at) = next_queue {
        // The queues from there on have not been looked at, because this slice has moved enough tasks.
        (left.from, is_over) = (at, false);
    }
    is_over |= left.tasks == 0 || left.bytes == 0;
    Ok(if is_over { Progress::Done } else { Progress::More })
}

impl PopRest {
    pub(crate) const fn new(pop: OwnedPop, left: Left) -> Self {
        Self { pop, left }
    }

    fn step(&mut self, now: Now, state: &mut EngineState, replies: &mut Replies<Body>) -> Progress {
        let EngineState { broker, buffer, .. } = state;
        let first_bytes = self.left.bytes;
        let left = &mut self.left;
        let popped = self.pop.with(|pop| pop_slice(left, first_bytes, broker, pop, now, buffer, replies));
        // If its worker has ended since, the pop ends with the tasks it has.
        popped.unwrap_or(Progress::Done)
    }
}

impl RecoverRest {
    fn step(&mut self, now: Now, state: &mut EngineState, replies: &mut Replies<Body>) -> Progress {
        let EngineState { broker, buffer, .. } = state;
        let is_first = self.upto.is_none();
        let last = || broker.queue(&self.queue).map_or(0, sureq_core::Queue::last_delivery);
        let upto = *self.upto.get_or_insert_with(last);
        let count = self.left.min(SLICE_TASKS as u32);
        let first_bytes = if is_first { usize::MAX } else { self.bytes };
        let bytes = SLICE_BYTES.min(self.bytes);
        let ask = RecoverAsk { count, elapsed_ms: self.elapsed_ms, bytes, first_bytes, upto };
        broker.recover_slice(&self.queue, &ask, now, buffer, replies);
        let recovered = replies.tasks.len() as u32;
        self.left -= recovered;
        self.bytes = self.bytes.saturating_sub(bytes_of(replies));
        if recovered == 0 || self.left == 0 || self.bytes == 0 { Progress::Done } else { Progress::More }
    }
}

impl InspectRest {
    fn step(&mut self, now: Now, state: &mut EngineState, replies: &mut Replies<Body>) -> Progress {
        let EngineState { broker, buffer, .. } = state;
        let count = self.left.min(SLICE_TASKS as u32);
        let (view, start) = (self.view, self.start);
        broker.execute(now, &Command::Inspect { queue: &self.queue, view, start, count }, buffer, replies);
        replies.list.clear();
        let looked_at = replies.tasks.len() as u32;
        replies.tasks.retain(|task| self.shown.insert(task.id));
        let mut is_full = false;
        replies.tasks.retain(|task| {
            let len = task.body.len();
            is_full |= len > self.bytes && self.bytes < limits::REPLY_BYTES_MAX;
            self.bytes = if is_full { 0 } else { self.bytes.saturating_sub(len) };
            !is_full
        });
        self.left -= looked_at;
        self.start += i64::from(looked_at);
        // A negative start counts from the end, so the list ends at position 0.
        let is_at_end = looked_at < count || start < 0 && self.start >= 0;
        if is_at_end || is_full || self.left == 0 || self.bytes == 0 {
            Progress::Done
        } else {
            Progress::More
        }
    }
}

impl QueuesRest {
    fn step(&mut self, now: Now, state: &mut EngineState, replies: &mut Replies<Body>) -> Progress {
        let EngineState { broker, buffer, meter, .. } = state;
        let count = self.left.min(SLICE_TASKS as u32);
        let (pattern, cursor) = (self.pattern.as_deref(), self.cursor);
        meter.tasks(count as usize);
        broker.execute(now, &Command::Queues { pattern, cursor, count }, buffer, replies);
        let Some(Reply::Queues { cursor: next, .. }) = replies.list.pop() else { return Progress::Done };
        if self.left < u32::MAX {
            self.left = self.left.saturating_sub(next.saturating_sub(cursor) as u32);
        }
        self.cursor = next;
        if next == 0 || self.left == 0 { Progress::Done } else { Progress::More }
    }
}

impl ListRest {
    fn step(&mut self, now: Now, state: &mut EngineState, replies: &mut Replies<Body>) -> Progress {
        let EngineState { broker, buffer, meter, .. } = state;
        let list = self.items.words.slice(self.done, SLICE_TASKS);
        meter.tasks(list.len());
        broker.execute(now, &self.act.on(&self.queue, &list), buffer, replies);
        match replies.list.pop() {
            Some(Reply::Count(count)) => self.count += count,
            Some(Reply::Acked(_)) => replies.indexes.iter_mut().for_each(|at| *at += self.done as u32),
            other => replies.list.extend(other),
        }
        self.done += list.len();
        let is_over = self.done == self.items.words.len() || !replies.list.is_empty();
        if is_over { Progress::Done } else { Progress::More }
    }
}

impl BulkRest {
    fn new(command: &Command<'_>, bulk: Bulk) -> Self {
        let (which, name): (_, &[u8]) = match *command {
            Command::Purge { queue, state } => (BulkCommand::Purge(state), queue),
            Command::Revive { queue, tasks: None } => (BulkCommand::ReviveAll, queue),
            Command::Worker(Worker::Start { name, ttl_ms }) => (BulkCommand::Start { ttl_ms }, name),
            Command::Worker(Worker::Stop(WorkerRef { name, incarnation })) => {
                (BulkCommand::Stop { incarnation }, name)
            }
            Command::Worker(Worker::Fail { name }) => (BulkCommand::Fail, name),
            Command::Worker(Worker::List) => (BulkCommand::ListWorkers, &[]),
            ref other => unreachable!("the broker executes {other:?} at once"),
        };
        Self { which, name: name.into(), bulk, replies: Replies::default() }
    }

    fn step(&mut self, now: Now, state: &mut EngineState, replies: &mut Replies<Body>) -> Progress {
        let name = &*self.name;
        let command = match self.which {
            BulkCommand::Purge(state) => Command::Purge { queue: name, state },
            BulkCommand::ReviveAll => Command::Revive { queue: name, tasks: None },
            BulkCommand::Start { ttl_ms } => Command::Worker(Worker::Start { name, ttl_ms }),
            BulkCommand::Stop { incarnation } => {
                Command::Worker(Worker::Stop(WorkerRef { name, incarnation }))
            }
            BulkCommand::Fail => Command::Worker(Worker::Fail { name }),
            BulkCommand::ListWorkers => Command::Worker(Worker::List),
        };
        let EngineState { broker, buffer, meter, .. } = state;
        meter.tasks(SLICE_TASKS);
        let progress = broker.execute_slice(now, &command, &mut self.bulk, buffer, &mut self.replies);
        if progress == Progress::Done {
            *replies = std::mem::take(&mut self.replies);
        }
        progress
    }
}

fn bytes_of(replies: &Replies<Body>) -> usize {
    replies.tasks.iter().map(|task| task.body.len()).sum()
}

#[derive(Clone, Copy)]
enum SlicedReply {
    Tasks,
    Inspected,
    Queues,
    Acked,
    Count,
}

impl Sliced {
    /// Executes a slice. A reply that it adds replaces the answer of all slices before.
    fn step(&mut self, now: Now, state: &mut EngineState, replies: &mut Replies<Body>) -> Progress {
        match self {
            Self::Pop(rest) => rest.step(now, state, replies),
            Self::Recover(rest) => rest.step(now, state, replies),
            Self::Inspect(rest) => rest.step(now, state, replies),
            Self::Queues(rest) => rest.step(now, state, replies),
            Self::List(rest) => rest.step(now, state, replies),
            Self::Bulk(rest) => rest.step(now, state, replies),
        }
    }

    /// The function that makes one reply of all slices so far.
    fn reply_so_far(&self) -> impl FnOnce(&Replies<Body>) -> Reply + use<> {
        let (kind, cursor, count) = match self {
            Self::Pop(_) | Self::Recover(_) => (SlicedReply::Tasks, 0, 0),
            Self::Inspect(_) => (SlicedReply::Inspected, 0, 0),
            Self::Queues(rest) => (SlicedReply::Queues, rest.cursor, 0),
            Self::List(ListRest { act: ListAct::Ack(..), .. }) => (SlicedReply::Acked, 0, 0),
            Self::List(rest) => (SlicedReply::Count, 0, rest.count),
            Self::Bulk(rest) => (SlicedReply::Count, 0, rest.bulk.count()),
        };
        move |replies| match kind {
            SlicedReply::Tasks => Reply::Tasks(Span::new(0, replies.tasks.len())),
            SlicedReply::Inspected => Reply::Inspected(Span::new(0, replies.tasks.len())),
            SlicedReply::Queues => Reply::Queues { cursor, rows: Span::new(0, replies.queues.len()) },
            SlicedReply::Acked => Reply::Acked(Span::new(0, replies.indexes.len())),
            SlicedReply::Count => Reply::Count(count),
        }
    }

    /// The reply if the store closes before all slices are executed. Deliveries so far are returned. Other commands are
    /// refused, since a caller would mistake a partial reply for a complete one.
    fn reply_at_close(&self, replies: &Replies<Body>) -> Reply {
        let is_begun = match self {
            Self::Recover(rest) if rest.upto.is_none() => false,
            Self::Pop(_) | Self::Recover(_) => return self.reply_so_far()(replies),
            Self::List(rest) => rest.done > 0 && !matches!(rest.act, ListAct::Exists),
            Self::Bulk(rest) => !matches!(rest.which, BulkCommand::ListWorkers),
            Self::Inspect(_) | Self::Queues(_) => false,
        };
        let why = "the store closed after a part of the command was executed: open it again and check";
        Reply::Refused(if is_begun { Refusal::Unknown { why: why.into() } } else { Refusal::Closed })
    }
}

impl Shared {
    /// A ticket for a command that is executed in slices from its beginning. Must not be called with the lock.
    pub(crate) fn slice(self: &Arc<Self>, command: &Command<'_>) -> EngineTicket {
        let (sliced, replies) = match self.sliced(command) {
            Ok(sliced) => (Some(sliced), Replies::default()),
            Err(refusal) => (None, only(Reply::Refused(refusal))),
        };
        let mut answer = PendingAnswer::new(Vec::new(), replies, Position::START);
        if let Command::Recover { queue, .. } = command {
            answer.recovered_from = Some((*queue).into());
        }
        self.ticket_for(answer, sliced)
    }

    /// A ticket for a command whose first slices are in the answer.
    pub(crate) fn ticket_for(
        self: &Arc<Self>,
        answer: PendingAnswer,
        sliced: Option<Sliced>,
    ) -> EngineTicket {
        let cell = Arc::<TicketCell>::default();
        cell.begin(answer, sliced);
        EngineTicket { number: None, cell, shared: Arc::clone(self) }
    }

    /// A ticket for a command that the broker has begun. `rows` are the workers that it has listed so far.
    pub(crate) fn ticket_for_bulk(
        self: &Arc<Self>,
        command: &Command<'_>,
        bulk: Bulk,
        rows: Vec<WorkerRow>,
        position: Position,
    ) -> EngineTicket {
        let mut rest = BulkRest::new(command, bulk);
        rest.replies.workers = rows;
        let begun = PendingAnswer::new(Vec::new(), Replies::default(), position);
        self.ticket_for(begun, Some(Sliced::Bulk(rest)))
    }

    fn sliced(self: &Arc<Self>, command: &Command<'_>) -> Result<Sliced, Refusal> {
        command.check()?;
        let bytes = limits::REPLY_BYTES_MAX;
        Ok(match *command {
            Command::Recover { queue, count, elapsed_ms } => {
                let left = count.min(limits::REPLY_TASKS_MAX);
                Sliced::Recover(RecoverRest { queue: queue.into(), elapsed_ms, left, bytes, upto: None })
            }
            Command::Inspect { queue, view, start, count } => {
                let (left, shown) = (count.min(limits::REPLY_TASKS_MAX), HashSet::new());
                Sliced::Inspect(InspectRest { queue: queue.into(), view, start, left, bytes, shown })
            }
            Command::Queues { pattern, cursor, count } => {
                Sliced::Queues(QueuesRest { pattern: pattern.map(Into::into), cursor, left: count })
            }
            _ => {
                let list = ListCommand::of(command).expect("all other sliced commands have a list");
                list.check()?;
                let items = Items::new(list.items, self);
                Sliced::List(ListRest { act: list.act, queue: list.queue.into(), items, done: 0, count: 0 })
            }
        })
    }

    /// Executes the next slice of a command, if there is one.
    pub(crate) fn step(&self, cell: &Arc<TicketCell>) -> Step {
        let Some((mut sliced, is_first)) = cell.take_slices() else { return Step::None };
        if !is_first {
            self.yield_lock();
        }
        if self.durable.failure().is_some() || self.state.is_poisoned() {
            // The poll returns an error. Without an answer, nothing was executed.
            cell.lock().answer.take_if(|_| is_first);
            return Step::None;
        }
        let mut state = self.lock();
        if state.buffer.is_long() && !state.closing {
            let hold = state.buffer.end();
            drop(state);
            cell.put_slices(sliced, is_first);
            return Step::Hold(hold);
        }
        let mut slice = Replies::default();
        if state.closing {
            let position = self.position(&state);
            drop(state);
            cell.add_slice(slice, position, None, |replies| sliced.reply_at_close(replies));
            return Step::None;
        }
        let now = self.clock.now();
        self.raise_mark_if_near(&state, now);
        if !state.waiters.is_empty() {
            ticker::tick(self, &mut state, now);
        }
        let is_over = sliced.step(now, &mut state, &mut slice) == Progress::Done;
        state.meter.tasks(slice.tasks.len());
        self.end_unit(&mut state);
        if let Sliced::Pop(rest) = &sliced {
            rest.pop.with(|pop| self.fetch(&mut state, &Command::Pop(*pop), &mut slice.tasks));
        } else if !slice.tasks.is_empty() {
            self.fetch_all(&mut state, &mut slice.tasks);
        }
        self.serve(&mut state, now);
        state.forget_awake_unless_awaited();
        self.notify_ticker(&mut state, now);
        if is_over || state.buffer.bytes() >= self.wake_bytes() {
            self.notify_log(&mut state);
        } else {
            self.has_uncommitted.store(true, Ordering::Release);
        }
        let position = self.position(&state);
        let is_cold = slice.tasks.iter().any(|task| task.body.place().is_some());
        let reply = sliced.reply_so_far();
        cell.add_slice(slice, position, (!is_over).then_some(sliced), reply);
        if is_cold {
            self.read_for(cell);
        }
        self.unlock_and_wake(state);
        if is_over || is_cold { Step::None } else { Step::More }
    }

    /// Asks the loader for the payloads that the answer lacks. Must be called under the same hold of the lock that
    /// put their places into the answer: from then on, no segment is retired before they are read.
    pub(crate) fn read_for(&self, cell: &Arc<TicketCell>) {
        self.loader.iter().for_each(|loader| loader.load(Arc::clone(cell)));
    }
}
