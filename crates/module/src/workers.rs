//! The workers of a database and the queues they announced. They are stored in a key of their own, so that Redis
//! saves, logs and replicates them.
//!
//! Heartbeats are not stored: only the primary knows them, and a new primary restarts all times to live.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem;
use std::ops::Bound;

use sureq_core::command::{Worker, WorkerRef};
use sureq_core::event::QueueNo;
use sureq_core::reply::{Replies, Reply, Span, WorkerRow};
use sureq_core::task::{Cause, Holder};
use sureq_core::{Event, LogTime, Progress, Receipt, Refusal, TaskId, codec, limits};

use crate::effects::encode;
use crate::ends;
use crate::keyed::{Steps, Untouched};
use crate::payload::Payload;
use crate::process::{Marks, TIME_MAX, ids_behind};
use crate::redis::{Ctx, Str, Value};
use crate::saved::Wrong;
use crate::schedule::{Fronts, Place};
use crate::sliced::{self, Slice, Work};
use crate::waiting;

/// The key with the workers of a database.
pub(crate) const KEY: &[u8] = b"sureq:workers";

/// The most keys that a slice opens.
const SLICE_KEYS: usize = limits::SLICE_TASKS;

/// The live workers.
#[derive(Clone, Default)]
pub(crate) struct Table {
    alive: BTreeMap<u64, Alive>,
    names: BTreeMap<Box<[u8]>, u64>,
    /// The announced queues.
    works: BTreeSet<(Box<[u8]>, u64)>,
    /// Expiry times of workers that are not ending.
    expiries: BTreeSet<(LogTime, u64)>,
    /// The time of this table's entry in the schedule; never later than the first of `expiries`. Volatile.
    planned: Option<LogTime>,
    /// The incarnation of the process that started the times to live. Volatile.
    entered: u64,
}

#[derive(Clone)]
struct Alive {
    name: Box<[u8]>,
    ttl_ms: u64,
    /// The queues that it announced.
    works: BTreeSet<Box<[u8]>>,
    /// The time at which it is lost unless a heartbeat arrives.
    expires: LogTime,
    /// It is ending, and is removed when all its tasks are requeued. Volatile, like its expiry.
    is_ending: bool,
    /// Lapsed leases that have not been reported by a heartbeat yet. Volatile.
    untold: VecDeque<Receipt>,
}

impl Alive {
    fn new(name: &[u8], ttl_ms: u64, expires: LogTime) -> Self {
        let (works, untold) = (BTreeSet::new(), VecDeque::new());
        Self { name: name.into(), ttl_ms, works, expires, is_ending: false, untold }
    }
}

impl Table {
    /// The incarnations of all its workers.
    pub(crate) fn incarnations(&self) -> impl Iterator<Item = u64> {
        self.alive.keys().copied()
    }

    /// The time of its entry in the schedule.
    pub(crate) const fn planned(&self) -> Option<LogTime> {
        self.planned
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.alive.is_empty()
    }

    /// The highest incarnation of its workers.
    pub(crate) fn last_id(&self) -> TaskId {
        let last = self.alive.last_key_value().and_then(|(&incarnation, _)| TaskId::from_raw(incarnation));
        last.unwrap_or(TaskId::NONE)
    }

    /// Applies events, which are untrusted. Returns their time.
    pub(crate) fn apply(&mut self, mut events: &[u8]) -> Result<LogTime, Wrong> {
        let (mut at, mut queue) = (LogTime(0), Box::from([]));
        while !events.is_empty() {
            let decoded = codec::decode(events, |event| self.apply_one(event, &mut at, &mut queue));
            let (applied, rest) = decoded.map_err(|malformed| malformed.to_string())?;
            applied?;
            events = rest;
        }
        Ok(at)
    }

    /// Applies one event. An event that names a queue sets `queue`, and the following one refers to it.
    fn apply_one(&mut self, event: &Event<'_>, at: &mut LogTime, queue: &mut Box<[u8]>) -> Result<(), Wrong> {
        match *event {
            Event::Clock(time) if time.0 <= TIME_MAX => *at = time,
            Event::QueueMade { name, .. } => *queue = name.into(),
            Event::WorkerStarted { name, incarnation, ttl_ms } => {
                if self.names.contains_key(name) || self.alive.contains_key(&incarnation) {
                    return Err("a worker that is started twice".to_owned());
                }
                TaskId::from_raw(incarnation).ok_or("an incarnation that is not an id")?;
                self.names.insert(name.into(), incarnation);
                let expires = at.after(ttl_ms);
                self.expiries.insert((expires, incarnation));
                self.alive.insert(incarnation, Alive::new(name, ttl_ms, expires));
            }
            Event::WorkerEnded(incarnation) => {
                let gone = self.alive.remove(&incarnation).ok_or(UNKNOWN)?;
                self.names.remove(&gone.name);
                self.expiries.remove(&(gone.expires, incarnation));
                for queue in gone.works {
                    self.works.remove(&(queue, incarnation));
                }
            }
            Event::Worked { incarnation, .. } => {
                let alive = self.alive.get_mut(&incarnation).ok_or(UNKNOWN)?;
                alive.works.insert(queue.clone());
                self.works.insert((queue.clone(), incarnation));
            }
            Event::Rested { incarnation, .. } => {
                if let Some(alive) = self.alive.get_mut(&incarnation) {
                    alive.works.remove(queue);
                }
                self.works.remove(&(queue.clone(), incarnation));
            }
            _ => return Err("an event that is not about workers".to_owned()),
        }
        Ok(())
    }

    /// Events that rebuild the table.
    pub(crate) fn export(&self) -> Vec<u8> {
        let mut events = Vec::new();
        for (&incarnation, Alive { name, ttl_ms, .. }) in &self.alive {
            encode(&Event::WorkerStarted { name, incarnation, ttl_ms: *ttl_ms }, &mut events);
        }
        for (name, incarnation) in &self.works {
            encode_named(name, &Event::Worked { incarnation: *incarnation, queue: QUEUE }, &mut events);
        }
        events
    }

    /// Its approximate size in bytes.
    pub(crate) fn memory(&self) -> usize {
        let names: usize = self.alive.values().map(|alive| 2 * alive.name.len()).sum();
        let untold: usize = self.alive.values().map(|alive| alive.untold.capacity()).sum();
        let works: usize = self.works.iter().map(|(name, _)| 2 * name.len()).sum();
        let entry = size_of::<(u64, Alive)>() + size_of::<(Box<[u8]>, u64)>() + size_of::<(LogTime, u64)>();
        size_of::<Self>() + names + works + untold * size_of::<Receipt>() + self.alive.len() * entry * 3 / 2
    }

    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.export().hash(&mut hasher);
        hasher.finish()
    }

    /// Gives every worker a full time to live when this process becomes the primary.
    fn enter(&mut self, marks: &Marks) {
        if mem::replace(&mut self.entered, marks.incarnation) != marks.incarnation {
            for alive in self.alive.values_mut() {
                alive.expires = marks.started.after(alive.ttl_ms);
                alive.untold.clear();
            }
            self.settle();
        }
    }

    /// Resets the volatile state after the table was moved or the times to live were restarted.
    pub(crate) fn settle(&mut self) {
        self.planned = None;
        self.expiries.clear();
        for (&incarnation, alive) in &mut self.alive {
            alive.is_ending = false;
            self.expiries.insert((alive.expires, incarnation));
        }
    }

    /// Refuses an incarnation that is not alive: it expired, or a later worker of the same name replaced it.
    fn check(&self, worker: WorkerRef<'_>, now: LogTime) -> Result<(), Refusal> {
        let is_alive = |incarnation: u64| {
            let alive = self.alive.get(&incarnation);
            alive.is_some_and(|alive| *alive.name == *worker.name && alive.expires > now && !alive.is_ending)
        };
        if is_alive(worker.incarnation) {
            return Ok(());
        }
        let current = self.names.get(worker.name).copied().filter(|&current| current > worker.incarnation);
        Err(if current.is_some_and(is_alive) { Refusal::WorkerReplaced } else { Refusal::WorkerGone })
    }

    /// Restarts the time to live of a worker.
    fn beat(&mut self, incarnation: u64, now: LogTime) {
        let Some(alive) = self.alive.get_mut(&incarnation) else { return };
        let before = mem::replace(&mut alive.expires, now.after(alive.ttl_ms));
        if self.expiries.remove(&(before, incarnation)) {
            self.expiries.insert((alive.expires, incarnation));
        }
    }

    /// Up to [`LOST_MAX`] workers that are lost by now, in order of expiry, without those that are ending.
    fn lost(&self, now: LogTime) -> Vec<u64> {
        let lost = self.expiries.range(..=(now, u64::MAX)).take(LOST_MAX);
        lost.map(|&(_, incarnation)| incarnation).collect()
    }

    /// The next expiry of a worker that is not ending.
    fn next_lost(&self) -> Option<LogTime> {
        self.expiries.first().map(|&(expires, _)| expires)
    }

    /// Marks a worker as ending. Returns false if it does not exist or is ending already.
    fn begin_end(&mut self, incarnation: u64) -> bool {
        let Some(alive) = self.alive.get_mut(&incarnation) else { return false };
        alive.is_ending = true;
        self.expiries.remove(&(alive.expires, incarnation));
        true
    }
}

/// The maximum number of lost workers per step.
const LOST_MAX: usize = limits::SLICE_TASKS;

const UNKNOWN: &str = "a worker that is not alive";

/// The number of every queue in the events of a table, which refers to queues by name.
const QUEUE: QueueNo = QueueNo(0);

fn encode_named(queue: &[u8], event: &Event<'_>, out: &mut Vec<u8>) {
    encode(&Event::QueueMade { queue: QUEUE, name: queue }, out);
    encode(event, out);
}

/// Whether these events belong to a table of workers.
pub(crate) fn are_meant_by(events: &[u8]) -> bool {
    let is_workers = |event: &Event<'_>| {
        matches!(event, Event::WorkerStarted { .. } | Event::WorkerEnded(_) | Event::QueueMade { .. })
    };
    let first = |events: &[u8]| codec::decode(events, is_workers).is_ok_and(|(is, _)| is);
    let behind_clock = codec::decode(events, |event| matches!(event, Event::Clock(_)));
    first(events) || behind_clock.is_ok_and(|(is_clock, rest)| is_clock && first(rest))
}

/// Whether the selected database has a worker with this incarnation.
pub(crate) fn is_known(ctx: Ctx<'_>, incarnation: u64) -> bool {
    look(ctx, |table| table.alive.contains_key(&incarnation)).unwrap_or(false)
}

/// The name of a worker.
pub(crate) fn name_of(ctx: Ctx<'_>, incarnation: u64) -> Option<Box<[u8]>> {
    look(ctx, |table| table.alive.get(&incarnation).map(|alive| alive.name.clone())).flatten()
}

/// The number of workers that announced a queue.
pub(crate) fn count_on(ctx: Ctx<'_>, queue: &[u8]) -> u64 {
    let on = |table: &mut Table| {
        let from = (Box::from(queue), 0);
        table.works.range(from..).take_while(|(name, _)| **name == *queue).count() as u64
    };
    look(ctx, on).unwrap_or(0)
}

fn look<T>(ctx: Ctx<'_>, act: impl FnOnce(&mut Table) -> T) -> Option<T> {
    let name = ctx.string(KEY);
    match ctx.open_to_read(name.as_str()).value() {
        Value::Workers(table) => Some(act(table)),
        _ => None,
    }
}

/// All workers of the selected database.
pub(crate) fn all(ctx: Ctx<'_>) -> Vec<u64> {
    look(ctx, |table| table.incarnations().collect()).unwrap_or_default()
}

/// Refuses an incarnation that is not alive, and commands that span keys in a cluster.
pub(crate) fn check(steps: &Steps<'_, '_>, worker: WorkerRef<'_>) -> Result<(), Refusal> {
    refuse_cluster(steps.ctx)?;
    let checked = look(steps.ctx, |table| {
        table.enter(&steps.process.marks);
        table.check(worker, steps.now.log)
    });
    checked.unwrap_or(Err(Refusal::WorkerGone))
}

/// Refuses workers in a cluster, where the key of the table would be on one node only.
fn refuse_cluster(ctx: Ctx<'_>) -> Result<(), Refusal> {
    if ctx.flags().is_cluster() {
        return Err(Refusal::not_there("RQ.WORKER", "a module in a cluster"));
    }
    Ok(())
}

/// Executes RQ.WORKER WORK. All else is [work in slices](begin).
pub(crate) fn execute(
    steps: &mut Steps<'_, '_>,
    command: &Worker<'_>,
) -> Result<Result<Reply, Refusal>, Untouched> {
    let reply = match *command {
        Worker::Work(WorkerRef { incarnation, .. }, queue) => {
            change(steps, |table, events| {
                if !table.works.contains(&(queue.into(), incarnation)) {
                    encode_named(queue, &Event::Worked { incarnation, queue: QUEUE }, events);
                }
            })?;
            Reply::Ok
        }
        // There is no such worker.
        _ => Reply::Count(0),
    };
    Ok(Ok(reply))
}

/// The work of a command that needs slices.
pub(crate) fn begin(steps: &mut Steps<'_, '_>, command: &Worker<'_>) -> Result<Option<Work>, Refusal> {
    match *command {
        Worker::Beat(worker) | Worker::Work(worker, _) | Worker::Rest(worker, _) | Worker::Stop(worker) => {
            check(steps, worker)?;
        }
        Worker::Start { .. } | Worker::Fail { .. } | Worker::List => refuse_cluster(steps.ctx)?,
    }
    Ok(match *command {
        Worker::Start { name, ttl_ms } => Some(Work::Start { name: name.into(), ttl_ms }),
        Worker::Stop(WorkerRef { incarnation, .. }) => {
            begin_end(steps, incarnation, Cause::Free);
            Some(Work::End { incarnation, count: 0 })
        }
        Worker::Fail { name } => named(steps.ctx, name).map(|incarnation| {
            begin_end(steps, incarnation, Cause::Lost);
            Work::End { incarnation, count: 0 }
        }),
        Worker::Rest(WorkerRef { incarnation, .. }, queue) => {
            let name = steps.ctx.string(queue);
            let of = sliced::serial_of(steps.ctx, name.as_str());
            let queue = queue.into();
            Some(Work::Rest { queue, of, incarnation, has_said: false, fronts: Fronts::new(), count: 0 })
        }
        Worker::Beat(worker) => Some(Work::Beat(BeatRest::begin(steps, worker.incarnation))),
        Worker::List => Some(Work::ListWorkers(WorkersRest::new())),
        Worker::Work(..) => None,
    })
}

/// Records that a worker no longer works on a queue.
pub(crate) fn rest(steps: &mut Steps<'_, '_>, incarnation: u64, queue: &[u8]) -> Result<(), Untouched> {
    change(steps, |table, events| {
        if table.works.contains(&(queue.into(), incarnation)) {
            encode_named(queue, &Event::Rested { incarnation, queue: QUEUE }, events);
        }
    })
}

/// The worker with this name.
fn named(ctx: Ctx<'_>, name: &[u8]) -> Option<u64> {
    look(ctx, |table| table.names.get(name).copied()).flatten()
}

/// One slice of RQ.WORKER START: the previous worker of this name is ended first.
pub(crate) fn start_slice(steps: &mut Steps<'_, '_>, name: &[u8], ttl_ms: u64) -> Slice {
    let id = match ids_behind(steps.process.marks.last_id, 1, steps.now) {
        Ok(id) => id,
        Err(refusal) => return Slice::Done(Err(refusal)),
    };
    if let Some(before) = named(steps.ctx, name) {
        begin_end(steps, before, Cause::Lost);
        if ends::step(steps, Holder::Worker(before)) == Progress::More || named(steps.ctx, name).is_some() {
            return Slice::More;
        }
    }
    let incarnation = id.raw();
    match change(steps, |_, events| encode(&Event::WorkerStarted { name, incarnation, ttl_ms }, events)) {
        Ok(()) => {
            steps.process.marks.see_id(id);
            Slice::Done(Ok(Reply::Started(incarnation)))
        }
        Err(untouched) => Slice::Untouched(untouched),
    }
}

/// The rest of RQ.WORKER BEAT. Nothing is recorded: only the primary knows heartbeats.
pub(crate) struct BeatRest {
    incarnation: u64,
    /// The name of the last key that was looked at. Its database may be swapped between slices.
    last: Option<Box<[u8]>>,
}

impl BeatRest {
    /// Renews the time to live, and begins to look for leases that were cancelled.
    fn begin(steps: &Steps<'_, '_>, incarnation: u64) -> Self {
        look(steps.ctx, |table| table.beat(incarnation, steps.now.log));
        Self { incarnation, last: None }
    }

    pub(crate) fn step(&mut self, steps: &mut Steps<'_, '_>, out: &mut Replies<Payload>) -> Slice {
        let holder = Holder::Worker(self.incarnation);
        let places = held_behind(steps, holder, self.last.as_deref());
        for place in &places {
            let name = steps.ctx.string(&place.1);
            match steps.ctx.open_to_read(name.as_str()).value() {
                Value::Queue(object) if object.queue.held_by(holder) > 0 => {
                    object.queue.cancelled_of(holder, &mut out.receipts);
                }
                // A key that had expired when it was loaded never existed.
                _ => steps.process.schedule.unhold(holder, place),
            }
        }
        if places.len() == SLICE_KEYS {
            self.last = last_name(places);
            return Slice::More;
        }
        let untold = look(steps.ctx, |table| {
            table.alive.get_mut(&self.incarnation).map(|alive| mem::take(&mut alive.untold))
        });
        out.receipts.extend(untold.flatten().into_iter().flatten());
        Slice::Done(Ok(Reply::Receipts(Span::new(0, out.receipts.len()))))
    }
}

/// Records lapsed leases of workers of the selected database, for their next heartbeats.
pub(crate) fn note_lapses(ctx: Ctx<'_>, lapsed: Vec<(u64, Receipt)>) {
    if lapsed.is_empty() {
        return;
    }
    look(ctx, |table| {
        for (incarnation, receipt) in lapsed {
            let Some(alive) = table.alive.get_mut(&incarnation) else { continue };
            if alive.untold.len() >= limits::LAPSES_REPORTED_MAX {
                alive.untold.pop_front();
            }
            alive.untold.push_back(receipt);
        }
    });
}

/// The next keys of this database with tasks of a holder, at most a slice, behind the name `last`.
fn held_behind(steps: &Steps<'_, '_>, holder: Holder, last: Option<&[u8]>) -> Vec<Place> {
    let held = steps.process.schedule.held_behind(holder, steps.ctx.db(), last);
    held.take(SLICE_KEYS).cloned().collect()
}

fn last_name(places: Vec<Place>) -> Option<Box<[u8]>> {
    places.into_iter().next_back().map(|(_, name)| name)
}

/// The rest of RQ.WORKER LIST.
pub(crate) struct WorkersRest {
    /// The worker whose tasks are being counted.
    worker: Option<WorkerRow>,
    /// The name of its last key that was looked at. Its database may be swapped between slices.
    last: Option<Box<[u8]>>,
    /// The incarnation of the last worker.
    upto: u64,
}

impl WorkersRest {
    pub(crate) const fn new() -> Self {
        Self { worker: None, last: None, upto: 0 }
    }

    pub(crate) fn step(&mut self, steps: &mut Steps<'_, '_>, out: &mut Replies<Payload>) -> Slice {
        let mut left = SLICE_KEYS;
        while let Some(mut worker) = self.worker.take().or_else(|| self.next(steps, &mut left)) {
            if left == 0 {
                self.worker = Some(worker);
                return Slice::More;
            }
            let holder = Holder::Worker(worker.incarnation);
            let places = held_behind(steps, holder, self.last.as_deref());
            for place in &places {
                let name = steps.ctx.string(&place.1);
                if let Value::Queue(object) = steps.ctx.open_to_read(name.as_str()).value() {
                    worker.leased += object.queue.held_by(holder);
                }
            }
            // A worker counts like a key, and one with many keys takes slices of its own.
            left = left.saturating_sub(places.len() + 1);
            self.last = if places.len() == SLICE_KEYS { last_name(places) } else { None };
            if self.last.is_some() {
                self.worker = Some(worker);
            } else {
                out.workers.push(worker);
            }
        }
        if left == 0 {
            return Slice::More;
        }
        Slice::Done(Ok(Reply::Workers(Span::new(0, out.workers.len()))))
    }

    /// The next worker that is alive. Those whose time to live is over count, too: very many may be lost at once.
    fn next(&mut self, steps: &Steps<'_, '_>, left: &mut usize) -> Option<WorkerRow> {
        let (marks, now) = (&steps.process.marks, steps.now.log);
        let upto = &mut self.upto;
        let row = look(steps.ctx, |table| {
            table.enter(marks);
            for (&incarnation, alive) in table.alive.range((Bound::Excluded(*upto), Bound::Unbounded)) {
                if alive.expires > now {
                    *upto = incarnation;
                    let (name, ttl_ms) = (alive.name.clone(), alive.ttl_ms);
                    return Some(WorkerRow { name, incarnation, ttl_ms, leased: 0 });
                }
                if *left == 0 {
                    return None;
                }
                (*upto, *left) = (incarnation, *left - 1);
            }
            None
        });
        row.flatten()
    }
}

/// Ends a worker of the selected database: its tasks are requeued at the front of their queues, in order, and then it
/// is removed. No effect if that is in progress.
fn begin_end(steps: &mut Steps<'_, '_>, incarnation: u64, cause: Cause) {
    let (marks, holder) = (&steps.process.marks, Holder::Worker(incarnation));
    let is_there = look(steps.ctx, |table| {
        table.enter(marks);
        table.begin_end(incarnation)
    });
    if is_there == Some(true) {
        waiting::suspect(incarnation);
    }
    let db = steps.ctx.db();
    if is_there == Some(true) && !steps.process.schedule.is_ending(incarnation, db) {
        steps.process.schedule.begin_end(holder, cause, Some(db));
    }
}

/// Removes a worker of the selected database that has no tasks any more.
pub(crate) fn forget(steps: &mut Steps<'_, '_>, incarnation: u64) {
    if is_known(steps.ctx, incarnation) {
        let _ = change(steps, |_, events| encode(&Event::WorkerEnded(incarnation), events));
    }
}

/// Ends expired workers, and schedules the next expiry.
pub(crate) fn end_lost(steps: &mut Steps<'_, '_>, name: Str<'_>) {
    if name.bytes() != KEY {
        return;
    }
    let (process, now) = (&mut *steps.process, steps.now.log);
    let db = steps.ctx.db();
    let lost = look(steps.ctx, |table| {
        table.enter(&process.marks);
        // The entry has been taken from the schedule.
        process.schedule.unplan(&mut table.planned, || (db, KEY.into()));
        table.lost(now)
    });
    for incarnation in lost.unwrap_or_default() {
        begin_end(steps, incarnation, Cause::Lost);
    }
    plan(steps);
}

/// Schedules the next expiry of a worker.
fn plan(steps: &mut Steps<'_, '_>) {
    let (schedule, db) = (&mut steps.process.schedule, steps.ctx.db());
    look(steps.ctx, |table| {
        if let Some(next) = table.next_lost() {
            schedule.plan_at(&mut table.planned, next, || (db, KEY.into()));
        }
    });
}

/// Decides on a change of the table, records and applies it.
fn change(steps: &mut Steps<'_, '_>, decide: impl FnOnce(&Table, &mut Vec<u8>)) -> Result<(), Untouched> {
    let name = steps.ctx.string(KEY);
    let mut key = steps.ctx.open(name.as_str());
    let mut fresh = None;
    let table = match key.value() {
        Value::Workers(table) => table,
        Value::Nothing => &mut **fresh.insert(Box::new(Table::default())),
        Value::Queue(_) | Value::Other => return Err(Untouched::WrongType),
    };
    table.enter(&steps.process.marks);
    let mut events = Vec::new();
    encode(&Event::Clock(steps.now.log), &mut events);
    let before = events.len();
    decide(table, &mut events);
    if events.len() > before {
        table.apply(&events).expect("a decision fits the table it was made on");
        steps.ctx.touch(name.as_str());
        steps.ctx.replicate(name.as_str(), &events);
        steps.ctx.notify(steps.event, name.as_str());
    }
    let is_empty = table.is_empty();
    if is_empty {
        let db = steps.ctx.db();
        steps.process.schedule.unplan(&mut table.planned, || (db, KEY.into()));
    }
    match fresh {
        Some(table) if !is_empty => key.set_workers(table),
        None if is_empty => key.delete(),
        _ => {}
    }
    drop(key);
    plan(steps);
    Ok(())
}
