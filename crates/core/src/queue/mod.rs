//! One queue as a value: its tasks, their indexes, and the transitions between their states.
//!
//! A queue knows no other queue, no worker and no clock. [`decide`] asks what should happen and records it,
//! [`apply`] is the only code that changes anything, and [`check`] holds the two to the invariants. A
//! [`crate::Broker`] drives many of these; a Redis key can hold one.

mod apply;
mod check;
mod dead_letter;
mod decide;
mod deliveries;
mod execute;
mod explain;
mod image;
mod ordered;
mod packed;
mod rate;
mod read;
mod ready;
mod salvage;
mod seek;
mod settle;
mod shared;
mod table;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;

use crate::event::{Flood, QueueNo, Recorder};
use crate::id::{Receipt, TaskId};
use crate::index::Dictionary;
use crate::limits;
use crate::settings::Settings;
use crate::task::{Body, Cause, Holder, Name, Task, TaskState};
use crate::time::{LogTime, WallTime};
use deliveries::Deliveries;
use ordered::Ordered;
use packed::Packed;
use rate::Rates;
use ready::Ready;
use table::{List, Table};

pub use crate::event::Totals;
pub use apply::import::Remains;
pub use check::Broken;
pub(crate) use decide::claims;
pub use decide::{PopAsk, Popped, Pushes, RecoverAsk};
pub(crate) use execute::check_claims;
pub use image::{Damaged, Part, QueueImage};
pub use packed::ReadAheadSpan;
pub(crate) use read::full;
pub use seek::Seek;
pub use settle::Settled;

/// An event that does not fit the state it is applied to: the log is not this store's, or damaged beyond its
/// checksums, or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inconsistent {
    /// What does not fit.
    pub what: &'static str,
    /// The task it is about, if it is about one.
    pub id: TaskId,
}

impl Inconsistent {
    pub(crate) const fn new(what: &'static str, id: TaskId) -> Self {
        Self { what, id }
    }
}

impl fmt::Display for Inconsistent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an event does not fit the state before it: {} (task {})", self.what, self.id)
    }
}

impl core::error::Error for Inconsistent {}

/// Leases of a worker or a connection that are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ending {
    since: LogTime,
    cause: Cause,
    /// The group that its tasks have at the front.
    group: u64,
    /// How many are to be moved yet.
    left: usize,
    /// Whether they were purged since, and go instead of coming back.
    is_purged: bool,
}

/// What has become of a holder of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderNews {
    /// It holds nothing of the queue any more.
    HoldsNothing,
    /// It holds a task that was cancelled.
    HasCancelled,
}

/// Dead tasks that wait again.
#[derive(Clone, Copy, Debug)]
struct Reviving {
    /// Whoever was dead by then is one of them.
    since: LogTime,
    /// Those that are to be moved yet.
    list: List,
    /// Their places in the line, which were set aside: what lands at the back meanwhile is behind.
    major: i64,
    minor: u64,
}

/// One queue.
#[derive(Clone, Debug)]
pub struct Queue<B> {
    /// What events call it.
    no: QueueNo,
    settings: Settings,
    paused: Option<LogTime>,
    /// Records of all tasks but the packed ones in `ready` and in `packed_delayed`.
    table: Table<B>,
    ready: Ready<B>,
    /// Delayed tasks that have nothing but their due time. They are in `delayed` or `delayed_wall` as all others are.
    packed_delayed: Packed<B>,
    delayed: Ordered<(LogTime, TaskId)>,
    /// Delayed by the wall clock.
    delayed_wall: Ordered<(WallTime, TaskId)>,
    /// Leased ones, in the order of their last delivery.
    leased: List,
    /// The same, by the numbers of their deliveries.
    deliveries: Deliveries,
    /// Dead ones, in the order of their deaths.
    dead: List,
    /// The same by the time of their deaths.
    deaths: Ordered<(LogTime, TaskId)>,
    /// Of the dead, those that were all revived together but are not moved yet. The events that it comes from are replayed,
    /// but no image is taken meanwhile.
    reviving: Option<Reviving>,
    /// Leases that run out; those that do so together, in order of delivery.
    deadlines: BTreeSet<(LogTime, u64, TaskId)>,
    /// Waiting tasks whose time to live ends.
    expiries: BTreeSet<(LogTime, TaskId)>,
    /// Leases that end with a worker or a connection, each holder's in order of delivery.
    held: BTreeMap<Holder, BTreeSet<(u64, TaskId)>>,
    /// Of those, the leases that are over but not moved yet: by holder, up to this delivery. The events that it comes from
    /// are replayed, but no image is taken meanwhile.
    ending: BTreeMap<(Holder, u64), Ending>,
    /// Those of them that were cancelled: each beat of a worker asks for its own.
    cancelled_leases: BTreeSet<(Holder, u64, TaskId)>,
    names: Dictionary<Name, TaskId>,
    waiting_bytes: u64,
    /// Those of them that are delayed.
    delayed_bytes: u64,
    /// What the bodies of tasks without records own, of those in `ready` and of those in `packed_delayed`.
    packed_ready_owned: usize,
    packed_delayed_owned: usize,
    totals: Totals,
    rates: Rates,
    last_id: TaskId,
    incarnation: u64,
    /// The number of the last delivery.
    seq: u64,
    /// The newest group at the front of the line.
    front_group: u64,
    /// The last minor rank that was given out or set aside.
    minor: u64,
    flood: Option<Flood>,
    /// Whether it ever took in a task that was pushed to another queue.
    adopted: bool,
    /// Whether it has changed since the last image of it. Volatile.
    changed: bool,
    /// The group that a flood of lapses is being returned in. Not part of the state: a restart ends no lease.
    lapsing: Option<(LogTime, u64)>,
    /// Tasks that died since a broker last looked, where there is a dead-letter queue to move them to.
    dying: Vec<TaskId>,
    /// Deliveries to workers that lapsed since a broker last looked. Volatile.
    lapsed: Vec<(u64, Receipt)>,
    /// What a broker has to know of workers and connections, since it last looked. Volatile.
    holder_news: Vec<(Holder, HolderNews)>,
    /// What was purged since a broker last looked, whose bodies are to be released. Volatile.
    purged: Vec<Remains<B>>,
    /// Whether the next command has been settled ahead. Volatile.
    is_settled: bool,
    /// Room for lists of ids, kept between calls.
    scratch: Vec<TaskId>,
}

impl<B: Body> Queue<B> {
    /// An empty queue that events call `no`.
    pub fn new(no: QueueNo) -> Self {
        Self {
            no,
            settings: Settings::default(),
            paused: None,
            table: Table::default(),
            ready: Ready::default(),
            packed_delayed: Packed::default(),
            delayed: Ordered::default(),
            delayed_wall: Ordered::default(),
            leased: List::default(),
            deliveries: Deliveries::default(),
            dead: List::default(),
            deaths: Ordered::default(),
            reviving: None,
            deadlines: BTreeSet::new(),
            expiries: BTreeSet::new(),
            held: BTreeMap::new(),
            ending: BTreeMap::new(),
            cancelled_leases: BTreeSet::new(),
            names: Dictionary::default(),
            waiting_bytes: 0,
            delayed_bytes: 0,
            packed_ready_owned: 0,
            packed_delayed_owned: 0,
            totals: Totals::default(),
            rates: Rates::default(),
            last_id: TaskId::NONE,
            incarnation: 0,
            seq: 0,
            front_group: 0,
            minor: 0,
            flood: None,
            adopted: false,
            changed: true,
            lapsing: None,
            dying: Vec::new(),
            lapsed: Vec::new(),
            holder_news: Vec::new(),
            purged: Vec::new(),
            is_settled: false,
            scratch: Vec::new(),
        }
    }

    /// What events call it.
    pub const fn no(&self) -> QueueNo {
        self.no
    }

    /// Its settings.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The highest id it has seen.
    pub const fn last_id(&self) -> TaskId {
        self.last_id
    }

    /// The incarnation of the store it delivers in.
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// What has happened to it.
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// How many tasks are ready, delayed, leased and dead.
    pub fn counts(&self) -> [u64; 4] {
        let delayed = self.delayed.len() + self.delayed_wall.len();
        let reviving = self.reviving.map_or(0, |reviving| reviving.list.len());
        [self.ready.len() + reviving, delayed, self.leased.len(), self.dead.len()].map(|n| n as u64)
    }

    /// How many tasks it has.
    pub fn len(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// Whether it has no tasks, and so does not exist for those who ask for keys.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0 && self.ready.len() == 0 && self.packed_delayed.len() == 0
    }

    /// Whether nothing would be missed if it were forgotten.
    pub fn is_forgettable(&self) -> bool {
        self.is_empty() && self.settings.is_default() && self.paused.is_none()
    }

    /// Whether a pop could get something at this time. Tasks whose time to live is over count for nothing, though they
    /// may stand in the line until they are moved.
    pub fn can_pop(&self, at: LogTime) -> bool {
        self.ready.len() > 0 && self.poppable() > 0 && self.has_unexpired(at)
    }

    /// Whether any ready task has not expired.
    fn has_unexpired(&self, at: LogTime) -> bool {
        let is_any_over = self.expiries.first().is_some_and(|&(expires, _)| expires <= at);
        !is_any_over || self.ready.has_unexpired(at)
    }

    /// How many tasks may be handed out, pause and concurrency limit considered.
    fn poppable(&self) -> usize {
        if self.paused.is_some() {
            return 0;
        }
        let max = self.settings.max_leased.map_or(usize::MAX, |max| max.try_into().unwrap_or(usize::MAX));
        max.saturating_sub(self.running())
    }

    /// How many leases are not over.
    fn running(&self) -> usize {
        let over: usize = self.ending.values().map(|ending| ending.left).sum();
        self.leased.len().saturating_sub(over)
    }

    /// The workers and connections that hold tasks of it.
    pub fn holders(&self) -> impl Iterator<Item = Holder> {
        self.held.keys().copied().filter(|&holder| self.held_by(holder) > 0)
    }

    /// Whether something was decided that is still being done, slice by slice: not the time for an image.
    pub fn is_unfinished(&self) -> bool {
        !self.ending.is_empty() || self.reviving.is_some()
    }

    /// Whether this task is one of those that were all revived together, and has not been moved yet.
    fn is_reviving(&self, task: &Task<B>) -> bool {
        matches!((&task.state, self.reviving), (TaskState::Dead(at), Some(reviving)) if *at <= reviving.since)
    }

    /// When something happens by itself next, by log time.
    pub fn next_deadline(&self) -> Option<LogTime> {
        let due = self.delayed.first().map(|&(at, _)| at);
        let expired = self.expiries.first().map(|&(at, _)| at);
        let lapse = self.deadlines.first().map(|&(at, ..)| at);
        let ended = self.ending.first_key_value().map(|(_, ending)| ending.since);
        let revived = self.reviving.map(|reviving| reviving.since);
        [due, lapse, expired, ended, revived].into_iter().flatten().min()
    }

    /// When the next delayed task is due by the wall clock.
    pub fn next_wall_deadline(&self) -> Option<WallTime> {
        self.delayed_wall.first().map(|&(at, _)| at)
    }

    /// The ids of all tasks that have a record of their own.
    pub(crate) fn recorded_ids(&self) -> impl Iterator<Item = TaskId> {
        self.table.all().map(|at| self.table.at(at).id)
    }

    /// Whether it ever took in a task that was pushed to another queue.
    pub(crate) const fn has_adopted(&self) -> bool {
        self.adopted
    }

    /// Whether it has changed since its last image.
    pub(crate) const fn has_changed(&self) -> bool {
        self.changed
    }

    /// A number that moves with each task that comes, is changed or goes.
    pub(crate) const fn motion(&self) -> u64 {
        let Totals { pushed, removed, .. } = self.totals;
        pushed.wrapping_add(removed).wrapping_add(self.table.moves())
    }

    /// About how many bytes it takes; says so without looking at any task.
    pub fn memory(&self) -> usize {
        self.structure() + self.owned()
    }

    /// The bytes of what its tasks have beside their records: names, reasons, past deliveries, terms of leases, and bodies
    /// that own memory. Kept as they change.
    pub(crate) const fn owned(&self) -> usize {
        self.packed_ready_owned + self.packed_delayed_owned + self.table.owned()
    }

    /// About how many bytes its records and indexes take.
    pub(crate) fn structure(&self) -> usize {
        // What a node of the standard library's trees holds of an entry, half-empty nodes considered.
        const fn indexed<T>(count: usize) -> usize {
            count * size_of::<T>() * 3 / 2
        }
        // Where one delivery has a holder, most do.
        let held = if self.held.is_empty() { 0 } else { self.leased.len() };
        size_of::<Self>()
            + self.table.memory()
            + self.ready.memory()
            + self.packed_delayed.memory()
            + self.delayed.memory()
            + self.delayed_wall.memory()
            + self.deliveries.memory()
            + self.deaths.memory()
            + indexed::<(LogTime, TaskId)>(self.expiries.len())
            + indexed::<(LogTime, u64, TaskId)>(self.deadlines.len())
            + indexed::<(u64, TaskId)>(held)
            + self.names.capacity() * size_of::<(Name, TaskId)>()
    }

    /// Tasks that died since this was last asked, where there is a dead-letter queue to move them to.
    pub fn take_dying(&mut self) -> Vec<TaskId> {
        core::mem::take(&mut self.dying)
    }

    /// Hands each worker and connection to `visit` about which there is news since this was last asked.
    pub fn drain_holder_news(&mut self, mut visit: impl FnMut(Holder, HolderNews)) {
        while let Some((holder, news)) = self.holder_news.pop() {
            if news == HolderNews::HasCancelled || !self.held.contains_key(&holder) {
                visit(holder, news);
            }
        }
    }

    /// What was purged since this was last asked: its bodies are to be released.
    pub fn take_purged(&mut self) -> Vec<Remains<B>> {
        core::mem::take(&mut self.purged)
    }

    /// How many tasks are coded into runs, with their bodies where those can be packed.
    pub fn packed(&self) -> usize {
        self.ready.packed.coded() + self.packed_delayed.coded()
    }

    /// Whether something was purged whose bodies are to be released.
    pub const fn has_purged(&self) -> bool {
        !self.purged.is_empty()
    }

    /// Releases the payloads of about `count` purged tasks.
    pub fn release_some_purged<R: Recorder<Body = B>>(&mut self, count: usize, rec: &mut R) {
        if let Some(remains) = self.purged.last_mut()
            && !remains.release_some(count, rec)
        {
            self.purged.pop();
        }
    }

    /// Releases all that was purged, at once.
    pub fn release_purged<R: Recorder<Body = B>>(&mut self, rec: &mut R) {
        for mut remains in self.take_purged() {
            while remains.release_some(limits::SLICE_TASKS, rec) {}
        }
    }

    /// Deliveries to workers, by incarnation, that lapsed since this was last asked.
    pub fn take_lapsed(&mut self) -> Vec<(u64, Receipt)> {
        core::mem::take(&mut self.lapsed)
    }
}
