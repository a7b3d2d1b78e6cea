//! All queues of a store and what spans them: names, workers, ids, deadlines.
//!
//! Commands enter by [`Broker::execute`], the passing of time by [`Broker::tick`], and events of the log by
//! [`Broker::replay`]. All three end in the same `apply`. The parts:
//!
//! | module | purpose |
//! |---|---|
//! | `execute` | decides commands; `on_queue` is the one way to work on a queue |
//! | `tasks`, `queues`, `workers`, `worker_life` | commands about tasks, about queues as a whole, about workers |
//! | `tick` | the passing of time |
//! | `apply` | the only code that changes a broker |
//! | `forward`, `dropped` | compaction support: copying tasks forward, releasing bodies of dropped queues |
//! | `image`, `export`, `salvage` | checkpoints, moves to another home, repair |

mod apply;
mod dropped;
mod execute;
mod export;
mod forward;
mod glob;
mod image;
mod queues;
mod salvage;
mod tasks;
mod tick;
mod worker_life;
mod workers;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use crate::event::{Event, QueueNo, Recorder};
use crate::fnv::Fnv;
use crate::id::TaskId;
use crate::index::Dictionary;
use crate::limits;
use crate::meter;
use crate::queue::{Broken, Inconsistent, Queue, Remains};
use crate::task::{Body, Holder};
use crate::time::{LogTime, Now, WallTime};
use execute::Stamp;
use image::Imaging;
use workers::Workers;

pub use dropped::Dropped;
pub use execute::Growth;
pub use glob::{glob_matches, glob_matches_within};
pub use image::{Image, Stored, Unsorted};
pub use tasks::{PopSlice, SlicePopped};
pub use tick::NextDeadline;

/// The memory of a queue is computed again after this many changes of tasks.
const MOTION: u64 = 32;

/// The queues and workers of a store.
#[derive(Clone, Debug)]
pub struct Broker<B> {
    names: Dictionary<Box<[u8]>, QueueNo>,
    slots: Vec<Option<Box<QueueSlot<B>>>>,
    /// Numbers of forgotten queues, which can be used again.
    free: BTreeSet<QueueNo>,
    workers: Workers,
    /// How far external sources have been imported.
    marks: BTreeMap<Box<[u8]>, Box<[u8]>>,
    clock: LogTime,
    last_id: TaskId,
    /// Ids below this one may be assigned: the driver has made this mark durable ahead of them. Volatile.
    id_mark: TaskId,
    incarnation: u64,
    /// The time of the next event in each queue, by log time and by the wall clock. Updated after each command.
    deadlines: BTreeSet<(LogTime, QueueNo)>,
    wall_deadlines: BTreeSet<(WallTime, QueueNo)>,
    /// The number of queues with tasks.
    with_tasks: usize,
    /// Queues that can be forgotten, by the time since which they can. Volatile, like all data that only serves
    /// statistics.
    idle: BTreeSet<(LogTime, QueueNo)>,
    /// The queues of which a worker or connection holds tasks. Volatile: it follows from the queues.
    holds: BTreeSet<(Holder, QueueNo)>,
    /// The queues in which a worker may hold cancelled tasks, for its heartbeat to report. Volatile.
    cancelled: BTreeSet<(Holder, QueueNo)>,
    /// Queues in which tasks became available since [`Self::take_awake`] was last called. Volatile.
    awake: Vec<QueueNo>,
    /// Queues that ever had a task that was pushed to another queue.
    adopters: BTreeSet<QueueNo>,
    /// The current queues of tasks that left the queue to which they were pushed. Some of these tasks are gone.
    /// Volatile: it follows from the queues.
    adopted: BTreeMap<TaskId, QueueNo>,
    /// The last entry of `adopted` that was checked for whether its task still exists.
    adopted_seen: TaskId,
    /// The contents of dropped and purged queues, until their bodies are released. Volatile.
    dropped: VecDeque<Remains<B>>,
    /// The approximate memory of `dropped` in bytes.
    dropped_memory: usize,
    /// Queues in which an announced operation is under way. Volatile: it follows from the queues.
    unfinished: BTreeSet<QueueNo>,
    /// The approximate memory of all queues in bytes.
    memory: usize,
    /// Queues that changed, or were created or forgotten, since the last image was begun; some may be listed twice.
    touched: Vec<QueueNo>,
    /// The number of images begun. Volatile.
    images: u64,
    /// The image that is under way, if any.
    imaging: Option<Imaging<B>>,
    /// The last stamp that was given to a part of an image.
    last_stamp: u64,
    /// How many tasks were moved so far. Volatile.
    moved: u64,
}

#[derive(Clone, Debug)]
struct QueueSlot<B> {
    name: Box<[u8]>,
    queue: Queue<B>,
    /// The number of workers that work on it.
    workers: usize,
    /// The entries of the queue in the broker's indexes.
    deadline: Option<LogTime>,
    wall_deadline: Option<WallTime>,
    idle_since: Option<LogTime>,
    /// Whether it is listed in `awake`.
    awake: bool,
    /// Whether it counts as a queue with tasks.
    has_tasks: bool,
    /// The number of images that had begun when the queue first changed after its last image; `None` if it has not
    /// changed since. An image that began later must copy the queue before the next change.
    touched: Option<u64>,
    /// Its share of the broker's memory count, and [`Queue::motion`] at that time.
    memory: usize,
    motion: u64,
    /// Its share of the memory that tasks own beside their records, which is always exact.
    owned: usize,
}

impl<B: Body> QueueSlot<B> {
    /// Whether something is due in the queue.
    fn is_due(&self, now: Now) -> bool {
        self.deadline.is_some_and(|at| at <= now.log) || self.wall_deadline.is_some_and(|at| at <= now.wall)
    }

    /// Whether the queue can be forgotten: it is forgettable itself, and no worker works on it.
    fn is_forgettable(&self) -> bool {
        self.workers == 0 && self.queue.is_forgettable()
    }
}

impl<B: Body> Default for Broker<B> {
    fn default() -> Self {
        Self {
            names: Dictionary::default(),
            slots: Vec::new(),
            free: BTreeSet::new(),
            workers: Workers::default(),
            marks: BTreeMap::new(),
            clock: LogTime(0),
            last_id: TaskId::NONE,
            id_mark: TaskId::LAST,
            incarnation: 0,
            deadlines: BTreeSet::new(),
            wall_deadlines: BTreeSet::new(),
            with_tasks: 0,
            idle: BTreeSet::new(),
            holds: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            awake: Vec::new(),
            adopters: BTreeSet::new(),
            adopted: BTreeMap::new(),
            adopted_seen: TaskId::NONE,
            dropped: VecDeque::new(),
            dropped_memory: 0,
            unfinished: BTreeSet::new(),
            memory: 0,
            touched: Vec::new(),
            images: 0,
            imaging: None,
            last_stamp: 0,
            moved: 0,
        }
    }
}

impl<B: Body> Broker<B> {
    /// The log time of the last event.
    pub const fn clock(&self) -> LogTime {
        self.clock
    }

    /// The highest id that was assigned.
    pub const fn last_id(&self) -> TaskId {
        self.last_id
    }

    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Prevents ids up to this one from being assigned again.
    pub fn raise_last_id(&mut self, id: TaskId) {
        self.last_id = self.last_id.max(id);
    }

    /// Only ids below this mark are assigned.
    pub const fn id_mark(&self) -> TaskId {
        self.id_mark
    }

    /// Raises the mark below which ids are assigned. The driver must have made it durable. Without a mark, any id may
    /// be assigned.
    pub fn set_id_mark(&mut self, mark: TaskId) {
        self.id_mark = mark;
    }

    /// Begins a new incarnation. To be called once after the replay, before anything else.
    pub fn start<R: Recorder<Body = B>>(&mut self, incarnation: u64, now: Now, rec: &mut R) {
        let time = now.log.max(self.clock);
        let event = Event::Started { incarnation, time };
        rec.record(&event);
        self.apply(&event, rec).expect("a start fits any state");
        self.refresh_all();
    }

    pub fn queue(&self, name: &[u8]) -> Option<&Queue<B>> {
        self.names.get(name).and_then(|&no| self.slot(no)).map(|slot| &slot.queue)
    }

    pub fn number_of(&self, name: &[u8]) -> Option<QueueNo> {
        self.names.get(name).copied()
    }

    pub fn name_of(&self, no: QueueNo) -> Option<&[u8]> {
        self.slot(no).map(|slot| &*slot.name)
    }

    pub fn queue_at(&self, no: QueueNo) -> Option<&Queue<B>> {
        self.slot(no).map(|slot| &slot.queue)
    }

    /// All queues that are not forgotten, with their names.
    pub fn queues(&self) -> impl Iterator<Item = (&[u8], &Queue<B>)> {
        self.slots.iter().flatten().map(|slot| (&*slot.name, &slot.queue))
    }

    /// How many tasks commands, ticks and the ends of workers have moved since the broker was made. A worker that ends,
    /// and each queue that it worked on, count as a task. The difference is the work of one call, for a driver that
    /// bounds it.
    pub const fn moved(&self) -> u64 {
        self.moved
    }

    /// Appends the queues in which tasks became available since the last call.
    pub fn take_awake(&mut self, into: &mut Vec<QueueNo>) {
        for no in self.awake.drain(..) {
            if let Some(Some(slot)) = self.slots.get_mut(no.0 as usize) {
                slot.awake = false;
                into.push(no);
            }
        }
    }

    /// Clears the list of queues in which tasks became available. For a driver without waiting pops.
    pub fn forget_awake(&mut self) {
        for no in self.awake.drain(..) {
            if let Some(Some(slot)) = self.slots.get_mut(no.0 as usize) {
                slot.awake = false;
            }
        }
    }

    /// Whether [`Self::take_awake`] would append any queue.
    pub fn has_awake(&self) -> bool {
        !self.awake.is_empty()
    }

    fn slot(&self, no: QueueNo) -> Option<&QueueSlot<B>> {
        meter::step();
        self.slots.get(no.0 as usize)?.as_deref()
    }

    fn slot_mut(&mut self, no: QueueNo) -> Option<&mut QueueSlot<B>> {
        meter::step();
        self.slots.get_mut(no.0 as usize)?.as_deref_mut()
    }

    /// Applies an event of the log.
    pub fn replay<R: Recorder<Body = B>>(
        &mut self,
        event: &Event<'_>,
        rec: &mut R,
    ) -> Result<(), Inconsistent> {
        self.apply(event, rec)?;
        // No tick comes between the events of a replay, so the contents of dropped queues would pile up.
        self.release_dropped(limits::SLICE_TASKS, rec);
        Ok(())
    }

    /// The approximate memory of queues and workers in bytes. Maintained with each change.
    pub fn memory(&self) -> u64 {
        // The indexes of queues and holders.
        let times = self.deadlines.len() + self.wall_deadlines.len() + self.idle.len();
        let indexes = times * size_of::<(LogTime, QueueNo)>() * 3 / 2
            + (self.holds.len() + self.cancelled.len()) * size_of::<(Holder, QueueNo)>() * 3 / 2
            + self.adopted.len() * size_of::<(TaskId, QueueNo)>() * 3 / 2
            + self.names.capacity() * size_of::<(Box<[u8]>, QueueNo)>()
            + self.slots.capacity() * size_of::<Option<Box<QueueSlot<B>>>>();
        (self.memory + self.dropped_memory + self.workers.memory() + indexes) as u64
    }

    /// Whether work on many tasks is under way: an announced operation ([`Self::is_under_way`]), or the release of
    /// bodies of dropped and purged queues.
    pub fn is_unfinished(&self) -> bool {
        !self.dropped.is_empty() || !self.unfinished.is_empty()
    }

    /// Visits the body of each task.
    pub fn bodies(&self, visit: &mut dyn FnMut(&B)) {
        self.slots.iter().flatten().for_each(|slot| slot.queue.bodies(visit));
    }

    /// Visits each body of dropped and purged queues that has not been released yet. Images do not contain them.
    pub fn dropped_bodies(&self, visit: &mut dyn FnMut(&B)) {
        self.dropped.iter().for_each(|remains| remains.queue().bodies(visit));
    }

    /// Releases up to `count` bodies of a dropped or purged queue. Answers how many.
    fn release_dropped<R: Recorder<Body = B>>(&mut self, count: usize, rec: &mut R) -> usize {
        let Some(remains) = self.dropped.front_mut() else { return 0 };
        let before = remains.left();
        self.dropped_memory -= remains.memory();
        let is_more = remains.release_some(count, rec);
        let released = before.saturating_sub(remains.left()).min(count);
        if is_more {
            self.dropped_memory += remains.memory();
        } else {
            self.dropped.pop_front();
        }
        released
    }

    /// Releases bodies of dropped and purged queues within the call's remaining budget of tasks. The next tick
    /// continues.
    fn release_within_budget<R: Recorder<Body = B>>(&mut self, rec: &mut Stamp<'_, R>) {
        while rec.budget() > 0 && !self.dropped.is_empty() {
            let released = self.release_dropped(rec.budget(), rec);
            // A queue without bodies is work too.
            rec.moved += released.max(1);
        }
    }

    /// Keeps the contents of a dropped or purged queue, to be released in slices.
    fn set_aside(&mut self, remains: Remains<B>) {
        self.dropped_memory += remains.memory();
        self.dropped.push_back(remains);
    }

    /// Releases all bodies of dropped and purged queues at once. For the end of a replay, when no client waits.
    pub fn release_all_dropped<R: Recorder<Body = B>>(&mut self, rec: &mut R) {
        while !self.dropped.is_empty() {
            self.release_dropped(limits::SLICE_TASKS, rec);
        }
    }

    /// Updates the broker's indexes for all queues. To be called once after a replay, instead of after each of its
    /// events.
    pub fn refresh_all(&mut self) {
        let all: Vec<QueueNo> = self.slots.iter().flatten().map(|slot| slot.queue.no()).collect();
        for no in all {
            self.refresh(no);
        }
    }

    /// Updates the broker's indexes for a queue that may have changed.
    fn refresh(&mut self, no: QueueNo) {
        meter::step();
        let clock = self.clock;
        let Some(Some(slot)) = self.slots.get_mut(no.0 as usize) else { return };
        let deadline = slot.queue.next_deadline();
        if deadline != slot.deadline {
            slot.deadline.map(|at| self.deadlines.remove(&(at, no)));
            deadline.map(|at| self.deadlines.insert((at, no)));
            slot.deadline = deadline;
        }
        let wall_deadline = slot.queue.next_wall_deadline();
        if wall_deadline != slot.wall_deadline {
            slot.wall_deadline.map(|at| self.wall_deadlines.remove(&(at, no)));
            wall_deadline.map(|at| self.wall_deadlines.insert((at, no)));
            slot.wall_deadline = wall_deadline;
        }
        if slot.queue.is_unfinished() {
            self.unfinished.insert(no);
        } else if !self.unfinished.is_empty() {
            self.unfinished.remove(&no);
        }
        match (slot.is_forgettable(), slot.idle_since) {
            (true, None) => {
                slot.idle_since = Some(clock);
                self.idle.insert((clock, no));
            }
            (false, Some(since)) => {
                slot.idle_since = None;
                self.idle.remove(&(since, no));
            }
            _ => {}
        }
        let has_tasks = !slot.queue.is_empty();
        if has_tasks != slot.has_tasks {
            slot.has_tasks = has_tasks;
            self.with_tasks = if has_tasks { self.with_tasks + 1 } else { self.with_tasks - 1 };
        }
        if !slot.awake && slot.queue.can_pop(clock) {
            slot.awake = true;
            self.awake.push(no);
        }
        self.account(no);
    }

    /// Updates the broker's counts for a queue. Unlike [`Self::refresh`], this wakes no pop and schedules no
    /// deadline.
    fn account(&mut self, no: QueueNo) {
        let Some(Some(slot)) = self.slots.get_mut(no.0 as usize) else { return };
        let (motion, owned) = (slot.queue.motion(), slot.queue.owned());
        self.memory = self.memory - slot.owned + owned;
        slot.owned = owned;
        if motion.abs_diff(slot.motion) >= MOTION || slot.memory == 0 || !slot.has_tasks {
            let fixed = slot.name.len() * 2 + size_of::<QueueSlot<B>>() - size_of::<Queue<B>>();
            let memory = slot.queue.structure() + fixed;
            self.memory = self.memory - slot.memory + memory;
            (slot.memory, slot.motion) = (memory, motion);
        }
        if slot.touched.is_none() && slot.queue.has_changed() {
            slot.touched = Some(self.images);
            self.touched.push(no);
        }
    }

    /// Checks the invariants of all queues and of the broker's indexes.
    pub fn check(&self) -> Result<(), Broken> {
        let indexed = |slots: &dyn Fn(&QueueSlot<B>) -> bool| {
            self.slots.iter().flatten().filter(|slot| slots(slot)).count()
        };
        let sizes = [
            ("names", self.names.len(), indexed(&|_| true)),
            ("deadlines", self.deadlines.len(), indexed(&|slot| slot.deadline.is_some())),
            ("wall deadlines", self.wall_deadlines.len(), indexed(&|slot| slot.wall_deadline.is_some())),
            ("idle queues", self.idle.len(), indexed(&|slot| slot.idle_since.is_some())),
            ("queues with tasks", self.with_tasks, indexed(&|slot| !slot.queue.is_empty())),
            ("free numbers", self.free.len(), self.slots.iter().filter(|slot| slot.is_none()).count()),
        ];
        let memory = self.slots.iter().flatten().map(|slot| slot.memory + slot.owned).sum();
        let dropped_memory = self.dropped.iter().map(Remains::memory).sum();
        let memory = [
            ("bytes of queues", self.memory, memory),
            ("bytes dropped", self.dropped_memory, dropped_memory),
        ];
        let workers = self.workers.sizes();
        for (what, have, want) in sizes.into_iter().chain(memory).chain(workers) {
            if have != want {
                return Err(Broken(alloc::format!("{have} {what} instead of {want}")));
            }
        }
        self.slots.iter().flatten().try_for_each(|slot| self.check_slot(slot))
    }

    fn check_slot(&self, slot: &QueueSlot<B>) -> Result<(), Broken> {
        slot.queue.check()?;
        let no = slot.queue.no();
        let deadline = slot.queue.next_deadline();
        let wall_deadline = slot.queue.next_wall_deadline();
        let found = [
            ("the name", self.names.get(&slot.name) == Some(&no)),
            ("the next deadline", slot.deadline == deadline && slot.wall_deadline == wall_deadline),
            ("the indexed deadline", deadline.is_none_or(|at| self.deadlines.contains(&(at, no)))),
            (
                "the indexed wall deadline",
                wall_deadline.is_none_or(|at| self.wall_deadlines.contains(&(at, no))),
            ),
            ("idleness", slot.idle_since.is_some() == slot.is_forgettable()),
            ("the last id", slot.queue.last_id() <= self.last_id),
            ("a task from another queue", slot.queue.has_adopted() == self.adopters.contains(&no)),
            ("the memory", slot.owned == slot.queue.owned()),
            ("the motion", !slot.has_tasks || slot.queue.motion().abs_diff(slot.motion) < MOTION),
            ("the unfinished operation", slot.queue.is_unfinished() == self.unfinished.contains(&no)),
            ("a change", slot.touched.is_some() || !slot.queue.has_changed()),
            ("a holder", slot.queue.holders().all(|holder| self.holds.contains(&(holder, no)))),
            ("a worker that is gone", slot.queue.holders().all(|holder| self.workers.may_hold(holder))),
            (
                "the workers",
                slot.workers == self.workers.all().filter(|(_, w)| w.works.contains(&no)).count(),
            ),
        ];
        match found.iter().find(|(_, holds)| !holds) {
            Some((what, _)) => Err(Broken(alloc::format!("{what} of queue {no:?}"))),
            None => Ok(()),
        }
    }

    /// A digest of all data that is not volatile. Equal states have equal digests, whatever their history.
    pub fn digest(&self) -> u64 {
        let mut hasher = Fnv::default();
        (self.last_id, self.logged_digest()).hash(&mut hasher);
        hasher.finish()
    }

    /// The same without the last id, which a start may raise without an event.
    pub fn logged_digest(&self) -> u64 {
        let mut hasher = Fnv::default();
        (self.clock, self.incarnation, &self.marks).hash(&mut hasher);
        for slot in self.slots.iter().flatten() {
            slot.name.hash(&mut hasher);
            slot.queue.digest(&mut hasher);
        }
        self.workers.digest(&mut hasher);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests;
