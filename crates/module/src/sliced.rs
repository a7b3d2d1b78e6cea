//! Commands whose work grows with the number of tasks, executed in slices, so that no other client waits long.
//!
//! A command executes slices until it is done or its time is over. Then its client is blocked, and the rest is a
//! [`Job`] that a timer continues, some slices at a time. Each slice is a step with its own effects: other commands may
//! run in between, and after a crash in between a part of the work is done. Where a client may not be blocked, in MULTI
//! and in scripts, all slices are executed at once.

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::ffi::CStr;
use std::mem;
use std::ops::{ControlFlow, Range};

use redis_module::raw;
use sureq_core::command::{Cancel, Command, Pop, View};
use sureq_core::id::Claim;
use sureq_core::owned::{ListCommand, OwnedPop};
use sureq_core::queue::Seek;
use sureq_core::reply::{Replies, Reply, Span};
use sureq_core::task::{Body as _, Cause, Holder};
use sureq_core::{Bulk, Now, Progress, Queue, Refusal, TaskId, limits};
use sureq_proto::resp::Pieces;
use sureq_proto::{ReplyForm, ReplyStyle, Words, write_reply};

use crate::callbacks;
use crate::commands::answer;
use crate::effects::Effects;
use crate::ends;
use crate::guard::guarded;
use crate::keyed::{Make, Steps, Untouched};
use crate::lists::{ListRest, RecoverRest};
use crate::payload::Payload;
use crate::pop::{self, Answered, PopRest, PoppedTasks, Popper, requeue};
use crate::redis::{Blocked, Ctx, Owned, Str, Value};
use crate::schedule::{Fronts, Place};
use crate::tick::TimeSlice;
use crate::workers::{self, BeatRest, WorkersRest};

/// The maximum number of tasks that a slice changes.
pub(crate) const SLICE_TASKS: usize = limits::SLICE_TASKS;

/// The maximum number of payload bytes that a slice delivers, unless a single payload is larger.
pub(crate) const SLICE_BYTES: usize = 2 << 20;

/// The maximum number of tasks that a slice of a search by payload reads.
const SEEK_TASKS: usize = 10 * SLICE_TASKS;

/// The rest of a command that is executed in slices.
pub(crate) enum Work {
    Purge {
        of: u64,
        state: Option<View>,
        bulk: Bulk,
    },
    ReviveAll {
        of: u64,
        left: u64,
        count: u64,
    },
    CancelPayload {
        of: u64,
        payload: Box<[u8]>,
        seek: Seek,
        count: u64,
    },
    Inspect(InspectRest),
    List(ListRest),
    Recover(RecoverRest),
    Pop(PopRest),
    Beat(BeatRest),
    ListWorkers(WorkersRest),
    /// RQ.WORKER STOP and FAIL, for an ending worker.
    End {
        incarnation: u64,
        count: u64,
    },
    Start {
        name: Box<[u8]>,
        ttl_ms: u64,
    },
    Rest {
        queue: Box<[u8]>,
        of: Option<u64>,
        incarnation: u64,
        has_said: bool,
        fronts: Fronts,
        count: u64,
    },
    /// Requeues tasks that were popped for a client that disconnected.
    Requeue(PoppedTasks),
}

/// The result of a slice.
pub(crate) enum Slice {
    More,
    Done(Result<Reply, Refusal>),
    Untouched(Untouched),
}

impl Slice {
    pub(crate) const fn count(n: u64) -> Self {
        Self::Done(Ok(Reply::Count(n)))
    }
}

impl Work {
    /// The work of a command that needs slices.
    pub(crate) fn of(
        steps: &mut Steps<'_, '_>,
        command: &Command<'_>,
        key: Option<Str<'_>>,
    ) -> Result<Option<Self>, Refusal> {
        let is_large = |count: u32| count as usize > SLICE_TASKS;
        let is_sliced = match command {
            Command::Purge { .. }
            | Command::Revive { tasks: None, .. }
            | Command::Cancel { which: Cancel::Payload(_), .. }
            | Command::Worker(_) => true,
            Command::Inspect { count, .. } | Command::Recover { count, .. } => is_large(*count),
            _ => ListCommand::of(command).is_some_and(|list| list.items.len() > SLICE_TASKS),
        };
        if !is_sliced || command.check().is_err() {
            return Ok(None);
        }
        if let Command::Worker(worker) = command {
            return workers::begin(steps, worker);
        }
        let Some((of, dead)) = key.and_then(|key| look(steps.ctx, key)) else { return Ok(None) };
        Ok(match *command {
            Command::Purge { state, .. } => Some(Self::Purge { of, state, bulk: Bulk::default() }),
            Command::Revive { tasks: None, .. } => Some(Self::ReviveAll { of, left: dead, count: 0 }),
            Command::Cancel { which: Cancel::Payload(payload), .. } => {
                Some(Self::CancelPayload { of, payload: payload.into(), seek: Seek::default(), count: 0 })
            }
            Command::Inspect { view, start, count, .. } => {
                Some(Self::Inspect(InspectRest::new(of, view, start, count)))
            }
            Command::Recover { count, elapsed_ms, .. } => {
                Some(Self::Recover(RecoverRest::new(of, count, elapsed_ms)))
            }
            _ => match ListCommand::of(command) {
                Some(list) => ListRest::new(of, &list)?.map(Self::List),
                None => None,
            },
        })
    }

    /// Executes a slice. `keys` are the keys that the command names; `pop` is the command if it is one.
    fn step(
        &mut self,
        steps: &mut Steps<'_, '_>,
        pop: Option<&Pop<'_>>,
        keys: &[Str<'_>],
        out: &mut Replies<Payload>,
    ) -> Slice {
        match (self, keys) {
            (Self::Purge { of, state, bulk }, &[key]) => {
                let slice = on(steps, key, *of, |queue, rec, now| queue.purge_slice(*state, bulk, now, rec));
                match slice {
                    Ok(Some(Progress::More)) => Slice::More,
                    Ok(_) => Slice::count(bulk.count()),
                    Err(untouched) => Slice::Untouched(untouched),
                }
            }
            (Self::ReviveAll { of, left, count }, &[key]) => {
                let room = (*left).min(SLICE_TASKS as u64);
                let revived =
                    on(steps, key, *of, |queue, rec, now| queue.revive_some(room as usize, now, rec));
                let revived = match revived {
                    Ok(revived) => revived.unwrap_or(0),
                    Err(untouched) => return Slice::Untouched(untouched),
                };
                *count += revived;
                *left -= revived;
                if revived < room || *left == 0 { Slice::count(*count) } else { Slice::More }
            }
            (Self::CancelPayload { of, payload, seek, count }, &[key]) => {
                let cancelled = on(steps, key, *of, |queue, rec, now| {
                    let ids = sought(queue, seek, payload);
                    if ids.is_empty() { 0 } else { queue.cancel(ids.into_iter().map(Claim::Id), now, rec) }
                });
                match cancelled {
                    Ok(Some(cancelled)) => *count += cancelled,
                    Ok(None) => *seek = Seek::DONE,
                    Err(untouched) => return Slice::Untouched(untouched),
                }
                if seek.is_done() { Slice::count(*count) } else { Slice::More }
            }
            (Self::Inspect(rest), &[key]) => rest.step(steps, key, out),
            (Self::List(rest), &[key]) => rest.step(steps, key, out),
            (Self::Recover(rest), &[key]) => rest.step(steps, key, out),
            (Self::Pop(rest), keys) => {
                rest.step(steps, pop.expect("the command of a pop is kept"), keys, out)
            }
            (Self::Beat(rest), _) => rest.step(steps, out),
            (Self::ListWorkers(rest), _) => rest.step(steps, out),
            (Self::End { incarnation, count }, _) => {
                match ends::step_counted(steps, Holder::Worker(*incarnation), count) {
                    Progress::More => Slice::More,
                    Progress::Done => Slice::count(*count),
                }
            }
            (Self::Start { name, ttl_ms }, _) => workers::start_slice(steps, name, *ttl_ms),
            (Self::Rest { queue, of, incarnation, has_said, fronts, count }, _) => {
                if !mem::replace(has_said, true)
                    && let Err(untouched) = workers::rest(steps, *incarnation, queue)
                {
                    return Slice::Untouched(untouched);
                }
                let name = steps.ctx.string(queue);
                if serial_of(steps.ctx, name.as_str()) != *of {
                    // The key holds another queue now, which the command must not touch.
                    return Slice::count(*count);
                }
                let place: Place = (steps.ctx.db(), queue.clone());
                let (holder, cause) = (Holder::Worker(*incarnation), Cause::Free);
                let back = ends::requeue_held(steps, &place, holder, cause, SLICE_TASKS, fronts);
                *count += back;
                if back < SLICE_TASKS as u64 { Slice::count(*count) } else { Slice::More }
            }
            (Self::Requeue(popped_tasks), _) => requeue(steps, popped_tasks),
            _ => Slice::Done(Err(Refusal::OutOfRange {
                what: "a command about one queue with another number of keys",
            })),
        }
    }

    /// The tasks that it has popped.
    const fn popped_tasks_mut(&mut self) -> Option<&mut PoppedTasks> {
        match self {
            Self::Pop(rest) => Some(rest.popped_tasks_mut()),
            Self::Requeue(popped_tasks) => Some(popped_tasks),
            _ => None,
        }
    }

    /// Whether its reply is a list that grows with each slice.
    const fn is_list(&self) -> bool {
        match self {
            Self::Pop(_) | Self::Recover(_) | Self::Inspect(_) | Self::Beat(_) | Self::ListWorkers(_) => true,
            Self::List(rest) => rest.lists(),
            _ => false,
        }
    }

    /// The part of its list that the last slice made.
    fn part(&self, out: &Replies<Payload>) -> (Reply, usize) {
        let all = |len| Span::new(0, len);
        match self {
            Self::Inspect(_) => (Reply::Inspected(all(out.tasks.len())), out.tasks.len()),
            Self::List(_) => (Reply::Acked(all(out.indexes.len())), out.indexes.len()),
            Self::Beat(_) => (Reply::Receipts(all(out.receipts.len())), out.receipts.len()),
            Self::ListWorkers(_) => (Reply::Workers(all(out.workers.len())), out.workers.len()),
            _ => (Reply::Tasks(all(out.tasks.len())), out.tasks.len()),
        }
    }
}

/// The serial number of the queue of a key.
pub(crate) fn serial_of(ctx: Ctx<'_>, key: Str<'_>) -> Option<u64> {
    look(ctx, key).map(|(serial, _)| serial)
}

/// The serial number of the queue of a key, and its number of dead tasks.
fn look(ctx: Ctx<'_>, key: Str<'_>) -> Option<(u64, u64)> {
    match ctx.open_to_read(key).value() {
        Value::Queue(object) => Some((object.serial, object.queue.counts()[3])),
        _ => None,
    }
}

/// Executes a step on the queue that the key held when the command began. `None` if that queue has left the key;
/// another queue under the key is not touched.
pub(crate) fn on<T>(
    steps: &mut Steps<'_, '_>,
    key: Str<'_>,
    of: u64,
    act: impl FnOnce(&mut Queue<Payload>, &mut Effects<'_>, Now) -> T,
) -> Result<Option<T>, Untouched> {
    if look(steps.ctx, key).is_none_or(|(serial, _)| serial != of) {
        return Ok(None);
    }
    steps.on(key, Make::Never, act)
}

/// The next tasks with this payload.
fn sought(queue: &Queue<Payload>, seek: &mut Seek, payload: &[u8]) -> Vec<TaskId> {
    let mut ids = Vec::new();
    queue.seek(seek, SEEK_TASKS, &mut |id, body| {
        if body.is(payload) == Some(true) {
            ids.push(id);
        }
        if ids.len() < SLICE_TASKS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    ids
}

/// The rest of RQ.INSPECT.
pub(crate) struct InspectRest {
    of: u64,
    view: View,
    start: i64,
    left: u32,
    bytes: usize,
    /// The ids shown so far, so that a task that moves between slices is shown at most once.
    shown: HashSet<TaskId>,
}

impl InspectRest {
    fn new(of: u64, view: View, start: i64, count: u32) -> Self {
        let left = count.min(limits::REPLY_TASKS_MAX);
        Self { of, view, start, left, bytes: limits::REPLY_BYTES_MAX, shown: HashSet::new() }
    }

    fn step(&mut self, steps: &mut Steps<'_, '_>, key: Str<'_>, out: &mut Replies<Payload>) -> Slice {
        let (start, count) = (self.start, self.left.min(SLICE_TASKS as u32));
        let from = out.tasks.len();
        if let Value::Queue(object) = steps.ctx.open_to_read(key).value()
            && object.serial == self.of
        {
            let slice = Command::Inspect { queue: key.bytes(), view: self.view, start, count };
            if let Err(refusal) = object.queue.execute_read(&slice, steps.now, out) {
                return Slice::Done(Err(refusal));
            }
        }
        let looked_at = (out.tasks.len() - from) as u32;
        let (mut is_full, mut at) = (false, 0);
        out.tasks.retain(|task| {
            at += 1;
            if at <= from {
                return true;
            }
            let len = task.body.len();
            is_full |= len > self.bytes && self.bytes < limits::REPLY_BYTES_MAX;
            let is_shown = !is_full && self.shown.insert(task.id);
            if is_shown {
                self.bytes = self.bytes.saturating_sub(len);
            }
            is_shown
        });
        self.left -= looked_at;
        self.start += i64::from(looked_at);
        // A negative start shows tasks up to the end, from which it counts.
        let is_at_end = looked_at < count || start < 0 && self.start >= 0;
        if is_at_end || is_full || self.left == 0 || self.bytes == 0 {
            Slice::Done(Ok(Reply::Inspected(Span::new(0, out.tasks.len()))))
        } else {
            Slice::More
        }
    }
}

/// Executes slices of a command until it is done, or blocks its client because there are too many.
pub(crate) fn drive(
    steps: &mut Steps<'_, '_>,
    command: &Command<'_>,
    words: &[Str<'_>],
    popper: Popper,
    mut work: Work,
    out: &mut Replies<Payload>,
) -> Answered {
    let mut ctx = steps.ctx;
    let mut turn = None;
    let keys = &words[keys_of(command, words.len())];
    let pop = if let Command::Pop(pop) = command { Some(pop) } else { None };
    loop {
        match work.step(steps, pop, keys, out) {
            Slice::More
                if turn.get_or_insert_with(TimeSlice::begin).is_over()
                    && popper == Popper::Asking
                    && !ctx.flags().may_not_wait() =>
            {
                block(steps, command, keys, work, out);
                return Answered::NotYet;
            }
            Slice::More => {}
            Slice::Done(Ok(Reply::Tasks(tasks))) if tasks.is_empty() && pop::may_wait(command) => {
                return pop::wait(ctx, command, keys, popper);
            }
            Slice::Done(reply) => {
                answer(ctx, command, &reply.unwrap_or_else(Reply::Refused), out);
                return Answered::Yes;
            }
            Slice::Untouched(untouched) => {
                ctx.error(untouched.text());
                return Answered::Yes;
            }
        }
    }
}

/// The positions of keys among the arguments of a command in slices.
fn keys_of(command: &Command<'_>, words: usize) -> Range<usize> {
    match command {
        Command::Pop(pop) => words - pop.queues.len()..words,
        Command::Worker(_) => 0..0,
        _ => 1..2,
    }
}

fn block(
    steps: &mut Steps<'_, '_>,
    command: &Command<'_>,
    keys: &[Str<'_>],
    work: Work,
    out: &Replies<Payload>,
) {
    let ctx = steps.ctx;
    let keys = keys.iter().map(|key| key.bytes().into()).collect();
    let pop = if let Command::Pop(pop) = command { Some(OwnedPop::from(pop)) } else { None };
    // The work has the items of a list, and needs no second copy.
    let form = match work {
        Work::List(_) => ReplyForm::Done,
        _ => ReplyForm::of(command, ReplyStyle::Native).into_owned(),
    };
    let client = ctx.block(Some(callbacks::gone));
    if work.is_list() {
        client.reply().begin_array();
    }
    let (db, client) = (ctx.db(), Some(client));
    let mut job = Job { client, is_gone: false, event: steps.event, db, keys, pop, form, work, written: 0 };
    if job.work.is_list() {
        job.write(out);
    }
    steps.process.jobs.0.push_back(job);
}

/// Commands in progress.
#[derive(Default)]
pub(crate) struct Jobs(VecDeque<Job>);

/// A command of a client that is blocked until it is done.
struct Job {
    /// `None` after the client disconnected.
    client: Option<Blocked>,
    /// Redis reported that the client disconnected.
    is_gone: bool,
    /// The keyspace event of its command.
    event: &'static CStr,
    db: i32,
    keys: Vec<Box<[u8]>>,
    /// The command, if it is a pop. Other work keeps what it needs by itself.
    pop: Option<OwnedPop>,
    form: ReplyForm<'static>,
    work: Work,
    /// The number of elements written to its reply, if that is a list.
    written: usize,
}

impl Jobs {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Notes that a client disconnected.
    pub(crate) fn lose(&mut self, client: *mut raw::RedisModuleBlockedClient) {
        if let Some(job) = self.0.iter_mut().find(|job| job.client.as_ref().is_some_and(|own| own.is(client)))
        {
            job.is_gone = true;
        }
    }

    /// Notes that all tasks of a worker, `count` of them, were requeued.
    pub(crate) fn tell_ended(&mut self, worker: u64, tasks: u64) {
        for job in &mut self.0 {
            if let Work::End { incarnation, count } = &mut job.work
                && *incarnation == worker
            {
                *count = tasks;
            }
        }
    }

    /// Drops all commands, because this server became a replica. Redis has unblocked their clients with an error.
    pub(crate) fn abandon(&mut self) {
        for job in self.0.drain(..) {
            job.refuse(
                "UNKNOWN this server became a replica and the command was executed in part: look at the result on the primary",
            );
        }
    }

    /// Notes that a queue was moved to this key.
    pub(crate) fn follow(&mut self, of: u64, db: i32, name: &[u8]) {
        for popped_tasks in self.0.iter_mut().filter_map(|job| job.work.popped_tasks_mut()) {
            popped_tasks.follow(of, db, name);
        }
    }

    /// Exchanges two databases that were swapped.
    pub(crate) fn swap(&mut self, one: i32, other: i32) {
        for job in &mut self.0 {
            let popped_tasks = job.work.popped_tasks_mut().into_iter().flat_map(PoppedTasks::dbs_mut);
            for db in popped_tasks.chain([&mut job.db]) {
                if *db == one {
                    *db = other;
                } else if *db == other {
                    *db = one;
                }
            }
        }
    }
}

/// Executes a slice of the next command in progress, in rotation.
pub(crate) fn step(steps: &mut Steps<'_, '_>, out: &mut Replies<Payload>) -> bool {
    let Some(job) = steps.process.jobs.0.pop_front() else { return false };
    steps.process.slices += 1;
    if let Some(job) = job.go_on(steps, out) {
        steps.process.jobs.0.push_back(job);
    }
    out.clear();
    true
}

impl Job {
    /// Executes a slice and returns the rest.
    fn go_on(mut self, steps: &mut Steps<'_, '_>, out: &mut Replies<Payload>) -> Option<Self> {
        if mem::take(&mut self.is_gone) {
            return self.without_client();
        }
        if !steps.ctx.select(self.db) {
            return self.refuse("ERR the database of this command does not exist any more");
        }
        steps.event = self.event;
        // A panic ends only this command, with an error for its client.
        let slice = guarded("slice", None, || {
            let ctx = steps.ctx;
            let keys: Vec<Owned<'_>> = self.keys.iter().map(|key| ctx.string(key)).collect();
            let keys: Vec<Str<'_>> = keys.iter().map(Owned::as_str).collect();
            let Self { pop, work, .. } = &mut self;
            Some(match pop {
                Some(pop) => pop.with(|pop| work.step(steps, Some(pop), &keys, out)),
                None => work.step(steps, None, &keys, out),
            })
        });
        if self.work.is_list() {
            self.write(out);
        }
        match slice {
            None => self.refuse("ERR an internal error: see the log of the server"),
            Some(Slice::Untouched(untouched)) => self.refuse(untouched.text()),
            Some(Slice::Done(reply)) => {
                let form = mem::replace(&mut self.form, ReplyForm::Done);
                self.end(|mut ctx| write_reply(&mut ctx, &form, &reply.unwrap_or_else(Reply::Refused), out))
            }
            Some(Slice::More) => Some(self),
        }
    }

    /// Writes the elements that a slice added to a list.
    fn write(&mut self, out: &Replies<Payload>) {
        let Some(client) = &self.client else { return };
        let (part, len) = self.work.part(out);
        let mut elements = Elements { ctx: client.reply(), is_begun: false };
        match &self.work {
            Work::List(rest) => {
                let form = ReplyForm::Acked(Words::Packed(Cow::Borrowed(rest.items())));
                write_reply(&mut elements, &form, &part, out);
            }
            _ => write_reply(&mut elements, &self.form, &part, out),
        }
        self.written += len;
    }

    /// Ends the command early.
    fn refuse(self, why: &str) -> Option<Self> {
        self.end(|mut ctx| ctx.error(why))
    }

    /// Sends the reply: either written by `answer`, or the list written so far.
    fn end(self, answer: impl FnOnce(Ctx<'_>)) -> Option<Self> {
        let client = self.client?;
        if self.work.is_list() {
            client.reply().end_array(self.written);
        } else {
            answer(client.reply());
        }
        client.end();
        None
    }

    /// Handles that the client disconnected: the rest is dropped, and popped tasks are requeued.
    fn without_client(mut self) -> Option<Self> {
        let client = self.client.take()?;
        if self.work.is_list() {
            client.reply().end_array(self.written);
        }
        client.end();
        let Work::Pop(rest) = self.work else { return None };
        Some(Self { client: None, work: Work::Requeue(rest.into_popped_tasks()), ..self })
    }
}

/// The elements of a list, without its length.
struct Elements<'c> {
    ctx: Ctx<'c>,
    is_begun: bool,
}

impl Pieces for Elements<'_> {
    fn simple(&mut self, text: &str) {
        self.ctx.simple(text);
    }

    fn error(&mut self, text: impl std::fmt::Display) {
        self.ctx.error(text);
    }

    fn integer(&mut self, n: i64) {
        self.ctx.integer(n);
    }

    fn bulk(&mut self, bytes: &[u8]) {
        self.ctx.bulk(bytes);
    }

    fn null(&mut self) {
        self.ctx.null();
    }

    fn array(&mut self, len: usize) {
        if mem::replace(&mut self.is_begun, true) {
            self.ctx.array(len);
        }
    }

    fn map(&mut self, len: usize) {
        self.ctx.map(len);
    }
}
