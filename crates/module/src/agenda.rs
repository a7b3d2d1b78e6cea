//! What happens by itself, and where: keys in which something is due, holders that have come to an end, and which keys
//! they hold tasks of.
//!
//! All of it is by name, and goes with what it is about: Redis tells of each value that leaves its key (`unlink`) or has
//! come to one. Code that follows a name still checks what it finds there.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

use sureq_core::task::{Cause, Holder};
use sureq_core::{LogTime, Now, Queue};

use crate::object::Object;
use crate::payload::Payload;
use crate::waiting;
use crate::workers;

/// The wall clock may be set: what follows it is looked at this often at least.
const LOOK_MS: u64 = 1_000;

/// A key, by its database and name.
pub(crate) type Place = (i32, Box<[u8]>);

/// What is to happen.
#[derive(Default)]
pub(crate) struct Agenda {
    due: BTreeSet<(LogTime, Place)>,
    /// The keys in which a worker or a connection holds tasks.
    held: BTreeMap<Holder, BTreeSet<Place>>,
    /// Holders that are gone and may still have tasks.
    endings: BTreeMap<Holder, Ending>,
    /// The same in order. Those that are not in `endings` any more are skipped.
    endings_order: VecDeque<Holder>,
    /// For when Redis was told to call, and the number of that call.
    pub(crate) alarm: Option<(LogTime, u64)>,
}

/// What is left to be done about a holder that is gone.
pub(crate) struct Ending {
    /// What that costs its tasks.
    pub(crate) cause: Cause,
    /// The databases in whose tables it is a worker at its end, which are to be told when all is done.
    pub(crate) worker_of: Vec<i32>,
    /// Where its tasks go in queues of which it has more.
    pub(crate) fronts: Fronts,
    /// How many tasks it had.
    pub(crate) count: u64,
}

/// The group at the front of each queue that tasks go back to, slice by slice, so that they stay in order. By the serial
/// numbers of queues, whose names and databases may change in between.
pub(crate) type Fronts = BTreeMap<u64, u64>;

/// A value that has left its key.
pub(crate) enum Departed {
    Queue { place: Place, planned: Option<LogTime>, holders: Vec<Holder> },
    Workers { place: Place, planned: Option<LogTime>, ended: Vec<u64> },
}

thread_local! {
    /// What has left in the middle of a step, as a key does that has expired when it is opened.
    static DEPARTED: RefCell<Vec<Departed>> = RefCell::default();
}

/// A value has left its key. The agenda knows before anything else is noted in it.
pub(crate) fn depart(departed: Departed) {
    DEPARTED.with_borrow_mut(|all| all.push(departed));
}

/// When something happens in a queue by itself.
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

impl Agenda {
    /// Sees to it that a queue is looked at when something happens in it, at the latest. Costs nothing if it is planned.
    pub(crate) fn plan(&mut self, object: &mut Object, place: impl FnOnce() -> Place, now: Now) {
        if let Some(next) = next_of(&object.queue, now) {
            self.plan_at(&mut object.planned, next, place);
        }
    }

    /// Has a place be looked at then, at the latest. `planned` is when it is looked at by now.
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

    /// Nothing is planned for a place any more.
    pub(crate) fn unplan(&mut self, planned: &mut Option<LogTime>, place: impl FnOnce() -> Place) {
        if let Some(planned) = planned.take() {
            self.due.remove(&(planned, place()));
        }
    }

    /// A queue is gone from its place, or about to be, and with it all that was noted.
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

    /// Takes note of all that has left its key.
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

    /// A database is empty, or all of them.
    pub(crate) fn flush(&mut self, db: Option<i32>) {
        let is_kept = |place: &Place| db.is_some_and(|db| db != place.0);
        self.due.retain(|(_, place)| is_kept(place));
        self.held.retain(|_, places| {
            places.retain(is_kept);
            !places.is_empty()
        });
    }

    /// Notes all about a queue that has come to this place, from a snapshot, another key or another database.
    pub(crate) fn welcome(&mut self, object: &mut Object, db: i32, name: &[u8], now: Now) {
        object.planned = None;
        let mut has_connection = false;
        for holder in object.queue.holders() {
            has_connection |= matches!(holder, Holder::Conn(_));
            self.hold(holder, db, name);
        }
        if has_connection || object.is_foreign && object.queue.holders().next().is_some() {
            // Whoever holds those is another server's, or gone.
            self.look_at(LogTime(0), db, name);
        }
        self.plan(object, || (db, name.into()), now);
    }

    /// Has a place be looked at.
    pub(crate) fn look_at(&mut self, at: LogTime, db: i32, name: &[u8]) {
        self.due.insert((at, (db, name.into())));
    }

    /// A place that is due.
    pub(crate) fn take_due(&mut self, now: LogTime) -> Option<Place> {
        self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.pop_first().map(|(_, place)| place)
    }

    /// When to look next.
    pub(crate) fn next(&self) -> Option<LogTime> {
        if !self.endings.is_empty() {
            return Some(LogTime(0));
        }
        self.due.first().map(|&(at, _)| at)
    }

    /// How many places are to be looked at, and how many of them by now.
    pub(crate) fn counts(&self, now: LogTime) -> (usize, usize) {
        let overdue = self.due.iter().take_while(|(at, _)| *at <= now).count();
        (self.due.len(), overdue + self.endings.len())
    }

    /// Has every key be looked at in which someone holds tasks: this server begins to decide. What connections hold comes
    /// back, since another server had them, or this one before it was started; so does what unknown workers hold.
    pub(crate) fn look_at_held(&mut self) {
        self.see_departed();
        let held = self.held.values().flatten().cloned();
        self.due.extend(held.map(|place| (LogTime(0), place)));
    }

    /// A holder has tasks of this key.
    pub(crate) fn hold(&mut self, holder: Holder, db: i32, name: &[u8]) {
        self.see_departed();
        self.held.entry(holder).or_default().insert((db, name.into()));
    }

    /// A holder has nothing of this key any more.
    pub(crate) fn unhold(&mut self, holder: Holder, place: &Place) {
        let Some(places) = self.held.get_mut(&holder) else { return };
        places.remove(place);
        if places.is_empty() {
            self.held.remove(&holder);
        }
    }

    /// In how many places holders have tasks.
    pub(crate) fn held_count(&self) -> usize {
        self.held.values().map(BTreeSet::len).sum()
    }

    /// Where a holder has tasks.
    pub(crate) fn held_by(&self, holder: Holder) -> impl Iterator<Item = &Place> {
        self.held.get(&holder).into_iter().flatten()
    }

    /// A connection is gone. Answers whether anything is to be done about it.
    pub(crate) fn end(&mut self, holder: Holder, cause: Cause) -> bool {
        self.see_departed();
        let holds = self.held.contains_key(&holder);
        if holds {
            self.begin_end(holder, cause, None);
        }
        holds
    }

    /// A holder is gone: what it has is taken back slice by slice. `worker_of` is the database whose worker it is.
    pub(crate) fn begin_end(&mut self, holder: Holder, cause: Cause, worker_of: Option<i32>) {
        let new =
            Ending { cause, worker_of: worker_of.into_iter().collect(), fronts: Fronts::new(), count: 0 };
        if !self.endings.contains_key(&holder) {
            self.endings_order.push_back(holder);
        }
        self.insert_ending(holder, new);
    }

    /// Workers are not in the table of their database any more: what they hold comes back, unless they are in another,
    /// and clients that wait in their names are checked.
    pub(crate) fn end_workers(&mut self, gone: &[u64]) {
        for &incarnation in gone {
            waiting::suspect(incarnation);
            let holder = Holder::Worker(incarnation);
            if self.held.contains_key(&holder) {
                self.begin_end(holder, Cause::Lost, None);
            }
        }
    }

    /// The first holder that is gone and may still have tasks.
    pub(crate) fn first_ending(&mut self) -> Option<Holder> {
        loop {
            let holder = *self.endings_order.front()?;
            if self.endings.contains_key(&holder) {
                return Some(holder);
            }
            self.endings_order.pop_front();
        }
    }

    /// Whether a worker of the table of a database is gone and may still have tasks. One that ended for another reason, such as
    /// that its table was moved here, is to be ended once more.
    pub(crate) fn is_ending(&self, worker: u64, db: i32) -> bool {
        self.endings.get(&Holder::Worker(worker)).is_some_and(|ending| ending.worker_of.contains(&db))
    }

    /// What is left to be done about a holder, for a step of it. What remains then is to be given back.
    pub(crate) fn take_ending(&mut self, holder: Holder) -> Option<Ending> {
        self.endings.remove(&holder)
    }

    /// What remains to be done about a holder comes before what is to be done about others.
    pub(crate) fn resume_end(&mut self, holder: Holder, ending: Ending) {
        self.insert_ending(holder, ending);
        if self.endings_order.front() != Some(&holder) {
            self.endings_order.push_front(holder);
        }
    }

    /// Adds an ending to what else there is to be done about the same holder.
    fn insert_ending(&mut self, holder: Holder, mut ending: Ending) {
        if let Some(other) = self.endings.remove(&holder) {
            let others = other.worker_of.into_iter().filter(|db| !ending.worker_of.contains(db));
            ending.worker_of.extend(others.collect::<Vec<_>>());
            ending.fronts.extend(other.fronts);
            ending.count += other.count;
        }
        self.endings.insert(holder, ending);
    }

    /// This server decides no longer. If it comes to decide again, it must look at the tables of workers: nobody has planned
    /// for those whose end was under way.
    pub(crate) fn abandon_endings(&mut self) {
        self.endings_order.clear();
        for db in mem::take(&mut self.endings).into_values().flat_map(|ending| ending.worker_of) {
            self.look_at(LogTime(0), db, workers::KEY);
        }
    }

    /// Two databases have changed places.
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
