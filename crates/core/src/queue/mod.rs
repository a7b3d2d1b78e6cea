//! One queue as a value: its tasks, their indexes, and the transitions between their states.
//!
//! A queue is independent of other queues, workers and clocks. A [`crate::Broker`] drives many of them; in the Redis
//! module, a key holds one. The parts:
//!
//! | module | purpose |
//! |---|---|
//! | `execute` | commands about one queue |
//! | `decide` | decisions; each is recorded as an event and then applied |
//! | `settle`, `bulk`, `lapse` | events without a command, and work on many tasks, in slices |
//! | `apply` | the only code that changes a queue; a replay is this same code |
//! | `read`, `seek`, `explain` | queries |
//! | `ready`, `packed`, `table`, `ordered`, `deliveries`, `shared` | storage of tasks, and their orders |
//! | `image`, `salvage` | checkpoints: writing a queue, reading it back, saving the rest of a damaged one |
//! | `check` | the invariants, for tests and `sureq check` |

mod apply;
mod bulk;
mod check;
mod dead_letter;
mod decide;
mod deliveries;
mod execute;
mod explain;
mod image;
mod lapse;
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

use crate::event::{QueueNo, Recorder};
use crate::id::{Receipt, TaskId};
use crate::index::Dictionary;
use crate::limits;
use crate::settings::Settings;
use crate::task::{Body, Holder, Name};
use crate::time::{LogTime, WallTime};
use bulk::BulkOperations;
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

/// An event that does not fit the state to which it is applied: the log belongs to another store, is damaged in a way
/// that its checksums do not detect, or was forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inconsistent {
    /// The description of the contradiction.
    pub what: &'static str,
    /// The task that it is about, or [`TaskId::NONE`].
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

/// News about a worker or connection that holds tasks of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderNews {
    /// It holds no task of the queue any more.
    HoldsNothing,
    /// It holds a task that was cancelled.
    HasCancelled,
}

/// One queue as a value: its tasks in all states, its settings, and the indexes that find the next task and deadline.
#[derive(Clone, Debug)]
pub struct Queue<B> {
    /// The number in events.
    no: QueueNo,
    settings: Settings,
    paused: Option<LogTime>,
    /// Records of all tasks but packed ones. The lists below are threaded through it.
    table: Table<B>,
    ready: Ready<B>,
    /// Delayed tasks without options. Like the others, they are also in `delayed` or `delayed_wall`.
    packed_delayed: Packed<B>,
    /// Delayed tasks that are due by log time.
    delayed: Ordered<(LogTime, TaskId)>,
    /// Delayed tasks that are due by the wall clock.
    delayed_wall: Ordered<(WallTime, TaskId)>,
    /// Leased tasks, in order of their last delivery.
    leased: List,
    /// The same tasks, by the number of the delivery.
    deliveries: Deliveries,
    /// Dead tasks, in order of death.
    dead: List,
    /// The same tasks, by the time of death.
    deaths: Ordered<(LogTime, TaskId)>,
    /// Leases with a deadline. Leases with the same deadline are in order of delivery.
    deadlines: BTreeSet<(LogTime, u64, TaskId)>,
    /// Waiting tasks with a time to live.
    expiries: BTreeSet<(LogTime, TaskId)>,
    /// Leases that end with a worker or connection, by holder in order of delivery.
    held: BTreeMap<Holder, BTreeSet<(u64, TaskId)>>,
    /// The leases in `held` of cancelled tasks, for the heartbeats of their workers.
    cancelled_leases: BTreeSet<(Holder, u64, TaskId)>,
    names: Dictionary<Name, TaskId>,
    /// Payload bytes of ready and delayed tasks.
    waiting_bytes: u64,
    /// Payload bytes of delayed tasks.
    delayed_bytes: u64,
    /// The memory that the bodies of packed ready and of packed delayed tasks own, in bytes.
    packed_ready_owned: usize,
    packed_delayed_owned: usize,
    totals: Totals,
    rates: Rates,
    last_id: TaskId,
    incarnation: u64,
    /// The number of the last delivery.
    seq: u64,
    /// The newest group at the front.
    front_group: u64,
    /// The last [`crate::task::OrderKey::minor`] that was used or reserved.
    minor: u64,
    /// The operations on many tasks that are under way.
    bulk: BulkOperations,
    /// Whether it ever had a task that was pushed to another queue.
    adopted: bool,
    /// Whether it has changed since its last image. Volatile.
    changed: bool,
    /// For the driver: tasks that died, if there is a dead-letter queue to move them to. Volatile.
    dying: Vec<TaskId>,
    /// For the driver: leases of workers that lapsed. Volatile.
    lapsed: Vec<(u64, Receipt)>,
    /// For the driver: news about workers and connections. Volatile.
    holder_news: Vec<(Holder, HolderNews)>,
    /// For the driver: purged tasks whose bodies are to be released. Volatile.
    purged: Vec<Remains<B>>,
    /// Whether the driver has settled the slice of the next command. Volatile.
    is_settled: bool,
    /// A buffer for lists of ids, kept to save allocations.
    scratch: Vec<TaskId>,
}

impl<B: Body> Queue<B> {
    /// An empty queue with this number.
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
            deadlines: BTreeSet::new(),
            expiries: BTreeSet::new(),
            held: BTreeMap::new(),
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
            bulk: BulkOperations::default(),
            adopted: false,
            changed: true,
            dying: Vec::new(),
            lapsed: Vec::new(),
            holder_news: Vec::new(),
            purged: Vec::new(),
            is_settled: false,
            scratch: Vec::new(),
        }
    }

    /// The number in events.
    pub const fn no(&self) -> QueueNo {
        self.no
    }

    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The highest id so far.
    pub const fn last_id(&self) -> TaskId {
        self.last_id
    }

    /// The incarnation of the store in which it delivers.
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The totals since its creation.
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// The numbers of ready, delayed, leased and dead tasks.
    pub fn counts(&self) -> [u64; 4] {
        let delayed = self.delayed.len() + self.delayed_wall.len();
        [self.ready.len() + self.bulk.reviving_count(), delayed, self.leased.len(), self.dead.len()]
            .map(|n| n as u64)
    }

    pub fn len(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// Whether it has no tasks. EXISTS and KEYS do not show such a queue.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0 && self.ready.len() == 0 && self.packed_delayed.len() == 0
    }

    /// Whether it can be forgotten: it has no tasks, no settings and no pause.
    pub fn is_forgettable(&self) -> bool {
        self.is_empty() && self.settings.is_default() && self.paused.is_none()
    }

    /// Whether a pop at this time would return a task. Expired tasks do not count, even if they have not been removed
    /// yet.
    pub fn can_pop(&self, at: LogTime) -> bool {
        self.ready.len() > 0 && self.poppable() > 0 && self.has_unexpired(at)
    }

    /// Whether any ready task has not expired.
    fn has_unexpired(&self, at: LogTime) -> bool {
        let is_any_over = self.expiries.first().is_some_and(|&(expires, _)| expires <= at);
        !is_any_over || self.ready.has_unexpired(at)
    }

    /// The number of tasks that may be delivered, given the pause and the limit of leased tasks.
    fn poppable(&self) -> usize {
        if self.paused.is_some() {
            return 0;
        }
        let max = self.settings.max_leased.map_or(usize::MAX, |max| max.try_into().unwrap_or(usize::MAX));
        max.saturating_sub(self.running())
    }

    /// The number of leased tasks whose holder has not ended.
    fn running(&self) -> usize {
        self.leased.len().saturating_sub(self.bulk.ended_leases())
    }

    /// The workers and connections that hold tasks of this queue.
    pub fn holders(&self) -> impl Iterator<Item = Holder> {
        self.held.keys().copied().filter(|&holder| self.held_by(holder) > 0)
    }

    /// Whether an announced operation on many tasks is under way, so that no image can be taken.
    pub fn is_unfinished(&self) -> bool {
        self.bulk.is_under_way()
    }

    /// The ids of all tasks that have a record.
    pub(crate) fn recorded_ids(&self) -> impl Iterator<Item = TaskId> {
        self.table.all().map(|at| self.table.at(at).id)
    }

    /// Whether it ever had a task that was pushed to another queue.
    pub(crate) const fn has_adopted(&self) -> bool {
        self.adopted
    }

    /// Whether it has changed since its last image.
    pub(crate) const fn has_changed(&self) -> bool {
        self.changed
    }

    /// A number that changes with each task that is added, changed or removed.
    pub(crate) const fn motion(&self) -> u64 {
        let Totals { pushed, removed, .. } = self.totals;
        pushed.wrapping_add(removed).wrapping_add(self.table.moves())
    }

    /// The approximate memory in bytes, computed without visiting any task.
    pub fn memory(&self) -> usize {
        self.structure() + self.owned()
    }

    /// The memory in bytes that its tasks own beside their records: names, reasons, past deliveries, terms of leases,
    /// and bodies that own memory. Maintained with each change.
    pub(crate) const fn owned(&self) -> usize {
        self.packed_ready_owned + self.packed_delayed_owned + self.table.owned()
    }

    /// The approximate memory of its records and indexes in bytes.
    pub(crate) fn structure(&self) -> usize {
        // Nodes of the standard library's trees are about two thirds full.
        const fn indexed<T>(count: usize) -> usize {
            count * size_of::<T>() * 3 / 2
        }
        // Assumes that if one lease has a holder, most do.
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

    /// Removes and returns the tasks that died since the last call, if there is a dead-letter queue to move them to.
    pub fn take_dying(&mut self) -> Vec<TaskId> {
        core::mem::take(&mut self.dying)
    }

    /// Removes the news about workers and connections since the last call, and passes them to `visit`.
    pub fn drain_holder_news(&mut self, mut visit: impl FnMut(Holder, HolderNews)) {
        while let Some((holder, news)) = self.holder_news.pop() {
            if news == HolderNews::HasCancelled || !self.held.contains_key(&holder) {
                visit(holder, news);
            }
        }
    }

    /// Removes and returns the tasks that were purged since the last call. The caller must release the bodies.
    pub fn take_purged(&mut self) -> Vec<Remains<B>> {
        core::mem::take(&mut self.purged)
    }

    /// The number of tasks that are coded into runs.
    pub fn packed(&self) -> usize {
        self.ready.packed.coded() + self.packed_delayed.coded()
    }

    /// Whether there are purged tasks whose bodies are to be released.
    pub const fn has_purged(&self) -> bool {
        !self.purged.is_empty()
    }

    /// Releases the bodies of about `count` purged tasks.
    pub fn release_some_purged<R: Recorder<Body = B>>(&mut self, count: usize, rec: &mut R) {
        if let Some(remains) = self.purged.last_mut()
            && !remains.release_some(count, rec)
        {
            self.purged.pop();
        }
    }

    /// Releases the bodies of all purged tasks at once.
    pub fn release_purged<R: Recorder<Body = B>>(&mut self, rec: &mut R) {
        for mut remains in self.take_purged() {
            while remains.release_some(limits::SLICE_TASKS, rec) {}
        }
    }

    /// Removes and returns the leases of workers that lapsed since the last call, each with the incarnation of its
    /// worker.
    pub fn take_lapsed(&mut self) -> Vec<(u64, Receipt)> {
        core::mem::take(&mut self.lapsed)
    }
}
