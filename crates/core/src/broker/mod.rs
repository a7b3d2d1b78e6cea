//! What spans queues: their names, the workers, the id source, and what happens next by itself.
//!
//! [`Broker::execute`] is the one way in for commands, [`Broker::tick`] for the passing of time, and
//! [`Broker::replay`] for the past. All three end in the same `apply`.

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
use crate::id::TaskId;
use crate::index::Dictionary;
use crate::limits;
use crate::meter;
use crate::queue::{Broken, Inconsistent, Queue, Remains};
use crate::task::{Body, Holder};
use crate::time::{LogTime, Now, WallTime};
use image::Imaging;
use workers::Workers;

pub use dropped::Dropped;
pub use glob::{glob_matches, glob_matches_within};
pub use image::{Image, Stored, Unsorted};
pub use tasks::PopSlice;
pub use tick::NextDeadline;

/// The memory of a queue is counted again after so many tasks have come, changed or gone, which is near enough.
const MOTION: u64 = 32;

/// A store's queues and workers.
#[derive(Clone, Debug)]
pub struct Broker<B> {
    names: Dictionary<Box<[u8]>, QueueNo>,
    slots: Vec<Option<Box<Slot<B>>>>,
    /// Numbers that forgotten queues left behind.
    free: BTreeSet<QueueNo>,
    workers: Workers,
    /// How far something outside has been taken in.
    marks: BTreeMap<Box<[u8]>, Box<[u8]>>,
    clock: LogTime,
    last_id: TaskId,
    /// Only ids below this one are given out: those that the driver has made durable ahead. Volatile.
    id_mark: TaskId,
    incarnation: u64,
    /// What happens next in each queue, by either clock. Kept in step with the queues after each command.
    deadlines: BTreeSet<(LogTime, QueueNo)>,
    appointments: BTreeSet<(WallTime, QueueNo)>,
    /// How many queues have tasks.
    with_tasks: usize,
    /// Queues without tasks, by when they became so. Volatile, like all that is only for statistics.
    idle: BTreeSet<(LogTime, QueueNo)>,
    /// Of which queues a worker or a connection holds tasks. Volatile: it follows from the queues.
    holds: BTreeSet<(Holder, QueueNo)>,
    /// In which queues a worker may hold tasks that were cancelled: what its beat has to look at. Volatile.
    cancelled: BTreeSet<(Holder, QueueNo)>,
    /// Queues that a pop could get something from since they were last asked for. Volatile.
    awake: Vec<QueueNo>,
    /// Queues that have ever taken in a task of another one.
    adopters: BTreeSet<QueueNo>,
    /// Where tasks are that left the queue they were pushed to; some may be gone from there. Volatile: it follows from the
    /// queues.
    adopted: BTreeMap<TaskId, QueueNo>,
    /// The last of them that was looked at to see whether it is still there.
    adopted_seen: TaskId,
    /// What was in queues that were dropped, until its bodies are released. Volatile.
    dropped: VecDeque<Remains<B>>,
    /// About how many bytes that takes.
    dropped_memory: usize,
    /// Queues in which something was decided that is still being done. Volatile: it follows from the queues.
    unfinished: BTreeSet<QueueNo>,
    /// About how many bytes all queues take.
    memory: usize,
    /// Queues that have changed, come or gone since the last image was begun; some may be there twice.
    touched: Vec<QueueNo>,
    /// How many images have been begun. Volatile.
    images: u64,
    /// The image that is being taken.
    imaging: Option<Imaging<B>>,
    /// The last stamp given to a part of an image.
    last_stamp: u64,
}

#[derive(Clone, Debug)]
struct Slot<B> {
    name: Box<[u8]>,
    queue: Queue<B>,
    /// How many workers say that they work on it.
    workers: usize,
    /// What stands in the broker's indexes for this queue.
    deadline: Option<LogTime>,
    appointment: Option<WallTime>,
    idle_since: Option<LogTime>,
    /// Whether it stands in `awake`.
    awake: bool,
    /// Whether it counts among the queues that have tasks.
    has_tasks: bool,
    /// How many images had been begun when it was changed first since the last image of it. If another has been begun
    /// since, that one waits for it.
    touched: Option<u64>,
    /// What the broker's account of memory holds for it, and how far the queue had moved then.
    memory: usize,
    motion: u64,
    /// What of it is what tasks have beside their records, which is always in step.
    owned: usize,
}

impl<B: Body> Slot<B> {
    /// Whether something in the queue is to happen by now.
    fn is_due(&self, now: Now) -> bool {
        self.deadline.is_some_and(|at| at <= now.log) || self.appointment.is_some_and(|at| at <= now.wall)
    }

    /// Whether nothing would be missed if the queue were forgotten.
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
            appointments: BTreeSet::new(),
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
        }
    }
}

impl<B: Body> Broker<B> {
    /// Log time as of the last event.
    pub const fn clock(&self) -> LogTime {
        self.clock
    }

    /// The highest id given out.
    pub const fn last_id(&self) -> TaskId {
        self.last_id
    }

    /// The incarnation of the store.
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Makes sure that no id up to this one is given out again.
    pub fn raise_last_id(&mut self, id: TaskId) {
        self.last_id = self.last_id.max(id);
    }

    /// Ids below this one are given out, and no others.
    pub const fn id_mark(&self) -> TaskId {
        self.id_mark
    }

    /// Lets ids be given out up to a later mark, which is durable by now. Where there is none, any id may be given out.
    pub fn set_id_mark(&mut self, mark: TaskId) {
        self.id_mark = mark;
    }

    /// Begins a new incarnation: the first thing that happens to an opened store.
    pub fn start<R: Recorder<Body = B>>(&mut self, incarnation: u64, now: Now, rec: &mut R) {
        let time = now.log.max(self.clock);
        let event = Event::Started { incarnation, time };
        rec.record(&event);
        self.apply(&event, rec).expect("a start fits any state");
        self.refresh_all();
    }

    /// A queue by name.
    pub fn queue(&self, name: &[u8]) -> Option<&Queue<B>> {
        self.names.get(name).and_then(|&no| self.slot(no)).map(|slot| &slot.queue)
    }

    /// The number of a queue that has one.
    pub fn number_of(&self, name: &[u8]) -> Option<QueueNo> {
        self.names.get(name).copied()
    }

    /// The name of a queue.
    pub fn name_of(&self, no: QueueNo) -> Option<&[u8]> {
        self.slot(no).map(|slot| &*slot.name)
    }

    /// A queue by number.
    pub fn queue_at(&self, no: QueueNo) -> Option<&Queue<B>> {
        self.slot(no).map(|slot| &slot.queue)
    }

    /// Each queue that has tasks, settings or a pause, or had some lately, with its name.
    pub fn queues(&self) -> impl Iterator<Item = (&[u8], &Queue<B>)> {
        self.slots.iter().flatten().map(|slot| (&*slot.name, &slot.queue))
    }

    /// Queues in which tasks became available to a pop since this was last asked.
    pub fn take_awake(&mut self, into: &mut Vec<QueueNo>) {
        for no in self.awake.drain(..) {
            if let Some(Some(slot)) = self.slots.get_mut(no.0 as usize) {
                slot.awake = false;
                into.push(no);
            }
        }
    }

    /// Forgets which queues have tasks to hand out: nobody waits for any.
    pub fn forget_awake(&mut self) {
        for no in self.awake.drain(..) {
            if let Some(Some(slot)) = self.slots.get_mut(no.0 as usize) {
                slot.awake = false;
            }
        }
    }

    /// Whether [`Self::take_awake`] has anything to tell.
    pub fn has_awake(&self) -> bool {
        !self.awake.is_empty()
    }

    fn slot(&self, no: QueueNo) -> Option<&Slot<B>> {
        meter::step();
        self.slots.get(no.0 as usize)?.as_deref()
    }

    fn slot_mut(&mut self, no: QueueNo) -> Option<&mut Slot<B>> {
        meter::step();
        self.slots.get_mut(no.0 as usize)?.as_deref_mut()
    }

    /// Applies an event of the past.
    pub fn replay<R: Recorder<Body = B>>(
        &mut self,
        event: &Event<'_>,
        rec: &mut R,
    ) -> Result<(), Inconsistent> {
        self.apply(event, rec)?;
        // No tick comes in between: a past full of dropped queues is not to pile up.
        self.release_dropped(rec);
        Ok(())
    }

    /// About how many bytes of memory queues and workers take. Kept as they change.
    pub fn memory(&self) -> u64 {
        // What is kept of each queue and of each holder beside them.
        let times = self.deadlines.len() + self.appointments.len() + self.idle.len();
        let indexes = times * size_of::<(LogTime, QueueNo)>() * 3 / 2
            + (self.holds.len() + self.cancelled.len()) * size_of::<(Holder, QueueNo)>() * 3 / 2
            + self.adopted.len() * size_of::<(TaskId, QueueNo)>() * 3 / 2
            + self.names.capacity() * size_of::<(Box<[u8]>, QueueNo)>()
            + self.slots.capacity() * size_of::<Option<Box<Slot<B>>>>();
        (self.memory + self.dropped_memory + self.workers.memory() + indexes) as u64
    }

    /// Whether something was decided that is still being done slice by slice: bodies of queues that were dropped are
    /// released, tasks are taken back from holders that have come to an end, or are revived. No image is taken meanwhile.
    pub fn is_unfinished(&self) -> bool {
        !self.dropped.is_empty() || !self.unfinished.is_empty()
    }

    /// Hands the body of each task to `visit`.
    pub fn bodies(&self, visit: &mut dyn FnMut(&B)) {
        self.slots.iter().flatten().for_each(|slot| slot.queue.bodies(visit));
    }

    /// Hands each body to `visit` that is of no task any more but not yet released: those of large queues that were
    /// dropped are released slice by slice. They are not part of any image.
    pub fn dropped_bodies(&self, visit: &mut dyn FnMut(&B)) {
        self.dropped.iter().for_each(|remains| remains.queue().bodies(visit));
    }

    /// Releases a slice of what was in dropped queues.
    fn release_dropped<R: Recorder<Body = B>>(&mut self, rec: &mut R) {
        let Some(remains) = self.dropped.front_mut() else { return };
        self.dropped_memory -= remains.memory();
        if remains.release_some(limits::SLICE_TASKS, rec) {
            self.dropped_memory += remains.memory();
        } else {
            self.dropped.pop_front();
        }
    }

    /// Sets aside what is to be released slice by slice.
    fn set_aside(&mut self, remains: Remains<B>) {
        self.dropped_memory += remains.memory();
        self.dropped.push_back(remains);
    }

    /// Releases all that was in dropped queues: once after a replay, when nobody waits.
    pub fn release_all_dropped<R: Recorder<Body = B>>(&mut self, rec: &mut R) {
        while !self.dropped.is_empty() {
            self.release_dropped(rec);
        }
    }

    /// Brings the broker's indexes in step with all queues: once after a replay, not after each of its events.
    pub fn refresh_all(&mut self) {
        let all: Vec<QueueNo> = self.slots.iter().flatten().map(|slot| slot.queue.no()).collect();
        for no in all {
            self.refresh(no);
        }
    }

    /// Brings the broker's indexes in step with a queue that may have changed.
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
        let appointment = slot.queue.next_appointment();
        if appointment != slot.appointment {
            slot.appointment.map(|at| self.appointments.remove(&(at, no)));
            appointment.map(|at| self.appointments.insert((at, no)));
            slot.appointment = appointment;
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

    /// Brings what the broker counts of a queue in step with it, and nothing that anyone waits for.
    fn account(&mut self, no: QueueNo) {
        let Some(Some(slot)) = self.slots.get_mut(no.0 as usize) else { return };
        let (motion, owned) = (slot.queue.motion(), slot.queue.owned());
        self.memory = self.memory - slot.owned + owned;
        slot.owned = owned;
        if motion.abs_diff(slot.motion) >= MOTION || slot.memory == 0 || !slot.has_tasks {
            let fixed = slot.name.len() * 2 + size_of::<Slot<B>>() - size_of::<Queue<B>>();
            let memory = slot.queue.structure() + fixed;
            self.memory = self.memory - slot.memory + memory;
            (slot.memory, slot.motion) = (memory, motion);
        }
        if slot.touched.is_none() && slot.queue.has_changed() {
            slot.touched = Some(self.images);
            self.touched.push(no);
        }
    }

    /// Checks every queue and what the broker keeps about them.
    pub fn check(&self) -> Result<(), Broken> {
        let indexed =
            |slots: &dyn Fn(&Slot<B>) -> bool| self.slots.iter().flatten().filter(|slot| slots(slot)).count();
        let sizes = [
            ("names", self.names.len(), indexed(&|_| true)),
            ("deadlines", self.deadlines.len(), indexed(&|slot| slot.deadline.is_some())),
            ("appointments", self.appointments.len(), indexed(&|slot| slot.appointment.is_some())),
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

    fn check_slot(&self, slot: &Slot<B>) -> Result<(), Broken> {
        slot.queue.check()?;
        let no = slot.queue.no();
        let deadline = slot.queue.next_deadline();
        let appointment = slot.queue.next_appointment();
        let found = [
            ("the name", self.names.get(&slot.name) == Some(&no)),
            ("the next deadline", slot.deadline == deadline && slot.appointment == appointment),
            ("the indexed deadline", deadline.is_none_or(|at| self.deadlines.contains(&(at, no)))),
            ("the indexed appointment", appointment.is_none_or(|at| self.appointments.contains(&(at, no)))),
            ("idleness", slot.idle_since.is_some() == slot.is_forgettable()),
            ("the last id", slot.queue.last_id() <= self.last_id),
            ("a task from elsewhere", slot.queue.has_adopted() == self.adopters.contains(&no)),
            ("the memory", slot.owned == slot.queue.owned()),
            ("the motion", !slot.has_tasks || slot.queue.motion().abs_diff(slot.motion) < MOTION),
            ("what is being done", slot.queue.is_unfinished() == self.unfinished.contains(&no)),
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

    /// A digest of all that is not volatile: equal states have equal digests, however they came about.
    pub fn digest(&self) -> u64 {
        let mut hasher = Fnv(FNV_START);
        (self.last_id, self.logged_digest()).hash(&mut hasher);
        hasher.finish()
    }

    /// The same without the last id, which a start raises without an event.
    pub fn logged_digest(&self) -> u64 {
        let mut hasher = Fnv(FNV_START);
        (self.clock, self.incarnation, &self.marks).hash(&mut hasher);
        for slot in self.slots.iter().flatten() {
            slot.name.hash(&mut hasher);
            slot.queue.digest(&mut hasher);
        }
        self.workers.digest(&mut hasher);
        hasher.finish()
    }
}

/// FNV-1a: the digest must not depend on a hasher that may change with a dependency.
struct Fnv(u64);

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests;
