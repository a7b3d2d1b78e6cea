//! The schedule: keys with a deadline, holders that have ended, and the keys with tasks of each holder.
//!
//! Keys are referred to by name. Redis reports each value that leaves its key (`unlink`) or arrives at one. Code that
//! looks up a key by name must still check its value.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::ops::Bound;

use sureq_core::task::{Cause, Holder};
use sureq_core::{LogTime, Now, Queue};

use crate::object::Object;
use crate::payload::Payload;
use crate::waiting;
use crate::workers;

/// The maximum interval between checks for deadlines on the wall clock, which may be adjusted.
const LOOK_MS: u64 = 1_000;

/// A key: its database and name.
pub(crate) type Place = (i32, Box<[u8]>);

/// Deadlines and ended holders.
#[derive(Default)]
pub(crate) struct Schedule {
    due: BTreeSet<(LogTime, Place)>,
    /// The keys in which a worker or a connection holds tasks.
    held: BTreeMap<Holder, BTreeSet<Place>>,
    /// Holders that have ended and may still have tasks.
    endings: BTreeMap<Holder, Ending>,
    /// The same holders in order of their end. Entries that are no longer in `endings` are skipped.
    endings_order: VecDeque<Holder>,
    /// The time of the timer, and its id.
    pub(crate) alarm: Option<(LogTime, u64)>,
}

/// The remaining work for an ended holder.
pub(crate) struct Ending {
    /// The cause, which decides whether its tasks lose a try.
    pub(crate) cause: Cause,
    /// The databases that list it as an ending worker. It is removed from their tables at the end.
    pub(crate) worker_of: Vec<i32>,
    /// Its group at the front of each queue in which it still has tasks.
    pub(crate) fronts: Fronts,
    /// The number of requeued tasks.
    pub(crate) count: u64,
}

/// The group at the front of each queue to which tasks are requeued in slices, so that they stay in order. Keyed by
/// serial number, since names and databases of queues may change in between.
pub(crate) type Fronts = BTreeMap<u64, u64>;

/// A value that left its key.
pub(crate) enum Departed {
    Queue { place: Place, planned: Option<LogTime>, holders: Vec<Holder> },
    Workers { place: Place, planned: Option<LogTime>, ended: Vec<u64> },
}

thread_local! {
    /// Values that left their key during a step, for example an expired key when it is opened.
    static DEPARTED: RefCell<Vec<Departed>> = RefCell::default();
}

/// Records that a value left its key. The schedule processes it before any other change.
pub(crate) fn depart(departed: Departed) {
    DEPARTED.with_borrow_mut(|all| all.push(departed));
}

/// The next deadline of a queue.
pub(crate) fn next_of(queue: &Queue<Payload>, now: Now) -> Option<LogTime> {
    if queue.has_purged() {
        return Some(now.log);
    }
    let appointment = queue.next_wall_deadline().map(|at| {
        let ms = at.0.saturating_sub(now.wall.0);
        now.log.after(ms.min(LOOK_MS))
    });
    queue.next_deadline().into_iter().chain(appointment).min()
}

impl Schedule {
    /// Schedules the next deadline of a queue. Does nothing if it is scheduled already.
    pub(crate) fn plan(&mut self, object: &mut Object, place: impl FnOnce() -> Place, now: Now) {
        if let Some(next) = next_of(&object.queue, now) {
            self.plan_at(&mut object.planned, next, place);
        }
    }

    /// Schedules a key for `next` at the latest. `planned` is its current entry.
    pub(crate) fn plan_at(
        &mut self,
        planned: &mut Option<LogTime>,
        next: LogTime,
        place: impl FnOnce() -> Place,
    ) {
        self.see_departed();
        if planned.is_none_or(|planned| next < planned) {
            let place = place();
            if let Some(planned) = planned.replace(next) {
                self.due.remove(&(planned, place.clone()));
            }
            self.due.insert((next, place));
        }
    }

    /// Removes the entry of a key.
    pub(crate) fn unplan(&mut self, planned: &mut Option<LogTime>, place: impl FnOnce() -> Place) {
        if let Some(planned) = planned.take() {
            self.due.remove(&(planned, place()));
        }
    }

    /// Removes everything about a queue that left its key or is about to.
    pub(crate) fn forget(&mut self, object: &mut Object, place: &Place) {
        let holders = object.queue.holders().collect();
        self.forget_queue(object.planned.take(), holders, place);
    }

    fn forget_queue(&mut self, planned: Option<LogTime>, holders: Vec<Holder>, place: &Place) {
        for at in planned.into_iter().chain([LogTime(0)]) {
            self.due.remove(&(at, place.clone()));
        }
        for holder in holders {
            self.unhold(holder, place);
        }
    }

    /// Processes all values that left their keys.
    pub(crate) fn see_departed(&mut self) {
        for departed in DEPARTED.with_borrow_mut(mem::take) {
            match departed {
                Departed::Queue { place, planned, holders } => self.forget_queue(planned, holders, &place),
                Departed::Workers { place, mut planned, ended } => {
                    self.unplan(&mut planned, || place);
                    self.end_workers(&ended);
                }
            }
        }
    }

    /// A database was flushed, or all of them.
    pub(crate) fn flush(&mut self, db: Option<i32>) {
        let is_kept = |place: &Place| db.is_some_and(|db| db != place.0);
        self.due.retain(|(_, place)| is_kept(place));
        self.held.retain(|_, places| {
            places.retain(is_kept);
            !places.is_empty()
        });
    }

    /// Records a queue that appeared under this key, from a snapshot, another key or another database.
    pub(crate) fn welcome(&mut self, object: &mut Object, db: i32, name: &[u8], now: Now) {
        object.planned = None;
        let mut has_connection = false;
        for holder in object.queue.holders() {
            has_connection |= matches!(holder, Holder::Conn(_));
            self.hold(holder, db, name);
        }
        if has_connection || object.is_foreign && object.queue.holders().next().is_some() {
            // The holders of its tasks belong to another server or have ended.
            self.look_at(LogTime(0), db, name);
        }
        self.plan(object, || (db, name.into()), now);
    }

    /// Schedules a key for a check.
    pub(crate) fn look_at(&mut self, at: LogTime, db: i32, name: &[u8]) {
        self.due.insert((at, (db, name.into())));
    }

    /// Removes and returns a due key.
    pub(crate) fn take_due(&mut self, now: LogTime) -> Option<Place> {
        self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.pop_first().map(|(_, place)| place)
    }

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<LogTime> {
        if !self.endings.is_empty() {
            return Some(LogTime(0));
        }
        self.due.first().map(|&(at, _)| at)
    }

    /// The number of scheduled keys, and how many of them are due.
    pub(crate) fn counts(&self, now: LogTime) -> (usize, usize) {
        let overdue = self.due.iter().take_while(|(at, _)| *at <= now).count();
        (self.due.len(), overdue + self.endings.len())
    }

    /// Schedules a check of every key with held tasks, when this server becomes the primary. Tasks of connections are
    /// requeued, since the connections belonged to another server or to this one before its restart; so are tasks of
    /// unknown workers.
    pub(crate) fn look_at_held(&mut self) {
        self.see_departed();
        let held = self.held.values().flatten().cloned();
        self.due.extend(held.map(|place| (LogTime(0), place)));
    }

    /// Records that a holder has tasks of this key.
    pub(crate) fn hold(&mut self, holder: Holder, db: i32, name: &[u8]) {
        self.see_departed();
        self.held.entry(holder).or_default().insert((db, name.into()));
    }

    /// Records that a holder has no tasks of this key any more.
    pub(crate) fn unhold(&mut self, holder: Holder, place: &Place) {
        let Some(places) = self.held.get_mut(&holder) else { return };
        places.remove(place);
        if places.is_empty() {
            self.held.remove(&holder);
        }
    }

    /// The number of keys with held tasks, counted per holder.
    pub(crate) fn held_count(&self) -> usize {
        self.held.values().map(BTreeSet::len).sum()
    }

    /// The keys with tasks of a holder.
    pub(crate) fn held_by(&self, holder: Holder) -> impl Iterator<Item = &Place> {
        self.held.get(&holder).into_iter().flatten()
    }

    /// The keys of a database with tasks of a holder, behind the name `last`.
    pub(crate) fn held_behind(
        &self,
        holder: Holder,
        db: i32,
        last: Option<&[u8]>,
    ) -> impl Iterator<Item = &Place> {
        let from = last
            .map_or_else(|| Bound::Included((db, Box::default())), |last| Bound::Excluded((db, last.into())));
        let held = self.held.get(&holder).into_iter();
        held.flat_map(move |held| held.range((from.clone(), Bound::Unbounded)))
            .take_while(move |place| place.0 == db)
    }

    /// Records the end of a connection. Returns whether it has tasks.
    pub(crate) fn end(&mut self, holder: Holder, cause: Cause) -> bool {
        self.see_departed();
        let holds = self.held.contains_key(&holder);
        if holds {
            self.begin_end(holder, cause, None);
        }
        holds
    }

    /// Begins the end of a holder, whose tasks are requeued in slices. `worker_of` is the database of the worker.
    pub(crate) fn begin_end(&mut self, holder: Holder, cause: Cause, worker_of: Option<i32>) {
        let new =
            Ending { cause, worker_of: worker_of.into_iter().collect(), fronts: Fronts::new(), count: 0 };
        if !self.endings.contains_key(&holder) {
            self.endings_order.push_back(holder);
        }
        self.insert_ending(holder, new);
    }

    /// Records workers that left the table of their database: their tasks are requeued unless another database knows
    /// them, and clients that wait in their names are checked.
    pub(crate) fn end_workers(&mut self, gone: &[u64]) {
        for &incarnation in gone {
            waiting::suspect(incarnation);
            let holder = Holder::Worker(incarnation);
            if self.held.contains_key(&holder) {
                self.begin_end(holder, Cause::Lost, None);
            }
        }
    }

    /// The first ended holder that may still have tasks.
    pub(crate) fn first_ending(&mut self) -> Option<Holder> {
        loop {
            let holder = *self.endings_order.front()?;
            if self.endings.contains_key(&holder) {
                return Some(holder);
            }
            self.endings_order.pop_front();
        }
    }

    /// Whether a worker of a database's table is ending. A worker that is ending for another reason, for example
    /// because its table was moved here, must be ended once more.
    pub(crate) fn is_ending(&self, worker: u64, db: i32) -> bool {
        self.endings.get(&Holder::Worker(worker)).is_some_and(|ending| ending.worker_of.contains(&db))
    }

    /// Takes the remaining work of a holder for a slice; the rest must be put back.
    pub(crate) fn take_ending(&mut self, holder: Holder) -> Option<Ending> {
        self.endings.remove(&holder)
    }

    /// Puts back the remaining work of a holder, before that of others.
    pub(crate) fn resume_end(&mut self, holder: Holder, ending: Ending) {
        self.insert_ending(holder, ending);
        if self.endings_order.front() != Some(&holder) {
            self.endings_order.push_front(holder);
        }
    }

    /// Merges an ending with one of the same holder.
    fn insert_ending(&mut self, holder: Holder, mut ending: Ending) {
        if let Some(other) = self.endings.remove(&holder) {
            let others = other.worker_of.into_iter().filter(|db| !ending.worker_of.contains(db));
            ending.worker_of.extend(others.collect::<Vec<_>>());
            ending.fronts.extend(other.fronts);
            ending.count += other.count;
        }
        self.endings.insert(holder, ending);
    }

    /// Abandons all endings, because this server became a replica. If it is promoted again, it must check the tables
    /// of workers, since ends that were in progress are not scheduled.
    pub(crate) fn abandon_endings(&mut self) {
        self.endings_order.clear();
        for db in mem::take(&mut self.endings).into_values().flat_map(|ending| ending.worker_of) {
            self.look_at(LogTime(0), db, workers::KEY);
        }
    }

    /// Exchanges two databases that were swapped.
    pub(crate) fn swap(&mut self, one: i32, other: i32) {
        let moved_db = |db: i32| match db {
            _ if db == one => other,
            _ if db == other => one,
            _ => db,
        };
        let moved = |(db, name): Place| (moved_db(db), name);
        self.due = mem::take(&mut self.due).into_iter().map(|(at, place)| (at, moved(place))).collect();
        for db in self.endings.values_mut().flat_map(|ending| &mut ending.worker_of) {
            *db = moved_db(*db);
        }
        for places in self.held.values_mut() {
            *places = mem::take(places).into_iter().map(moved).collect();
        }
    }
}
