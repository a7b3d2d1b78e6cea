//! What happens by itself, and where: keys in which something is due, holders that have come to an end, and which keys
//! they hold tasks of.
//!
//! All of it is hints by name: a key may have been renamed, deleted or replaced since. Whoever follows one looks first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sureq_core::task::{Cause, Holder};
use sureq_core::{LogTime, Now, Queue, Receipt, limits};

use crate::object::Object;
use crate::payload::Payload;
use crate::workers;

/// The wall clock may be set: what follows it is looked at this often at least.
const LOOK_MS: u64 = 1_000;

/// A key, by its database and name.
pub(crate) type Place = (i32, Box<[u8]>);

/// What is to happen.
#[derive(Default)]
pub(crate) struct Agenda {
    due: BTreeSet<(LogTime, Place)>,
    /// Keys in which a worker or a connection may hold tasks; never too few, and at most about twice as many.
    held: BTreeMap<Holder, Held>,
    /// Holders that are gone and may still have tasks.
    endings: BTreeMap<Holder, Ending>,
    /// The same in order. Those that are not in `endings` any more are skipped.
    endings_order: VecDeque<Holder>,
    /// For when Redis was told to call, and the number of that call.
    pub(crate) alarm: Option<(LogTime, u64)>,
    /// Leases of workers that ran out, of which those have not been told.
    untold: BTreeMap<u64, VecDeque<Receipt>>,
}

/// Where a holder may have tasks.
#[derive(Default)]
struct Held {
    places: BTreeSet<Place>,
    /// How many places there may be before it is looked in which of them it still has some.
    places_max: usize,
}

/// What is left to be done about a holder that is gone.
pub(crate) struct Ending {
    /// What that costs its tasks.
    pub(crate) cause: Cause,
    /// The database whose worker it is, which is to be told when all is done.
    pub(crate) worker_of: Option<i32>,
    /// Where it may have tasks.
    pub(crate) places: BTreeSet<Place>,
    /// The group at the front of the queue in the first of these places that its tasks go to.
    pub(crate) group: Option<u64>,
    /// How many tasks it had.
    pub(crate) count: u64,
}

/// So few places are not worth a look.
const PLACES_MIN: usize = 16;

impl Held {
    fn insert(&mut self, place: Place) {
        self.places.insert(place);
    }

    fn retain(&mut self, is_held: impl FnMut(&Place) -> bool) {
        self.places.retain(is_held);
        self.places_max = 2 * self.places.len() + PLACES_MIN;
    }
}

/// When something happens in a queue by itself.
pub(crate) fn next_of(queue: &Queue<Payload>, now: Now) -> Option<LogTime> {
    if queue.has_purged() {
        return Some(now.log);
    }
    let appointment = queue.next_appointment().map(|at| {
        let ms = at.0.saturating_sub(now.wall.0);
        now.log.after(ms.min(LOOK_MS))
    });
    queue.next_deadline().into_iter().chain(appointment).min()
}

impl Agenda {
    /// Sees to it that a queue is looked at when something happens in it, at the latest. Costs nothing if it is planned.
    pub(crate) fn plan(&mut self, object: &mut Object, place: impl FnOnce() -> Place, now: Now) {
        let Some(next) = next_of(&object.queue, now) else { return };
        if object.planned.is_none_or(|planned| next < planned) {
            let place = place();
            if let Some(planned) = object.planned.replace(next) {
                self.due.remove(&(planned, place.clone()));
            }
            self.due.insert((next, place));
        }
    }

    /// A queue is about to be gone from its place, and what was planned with it.
    pub(crate) fn forget(&mut self, object: &Object, place: impl FnOnce() -> Place) {
        if let Some(planned) = object.planned {
            self.due.remove(&(planned, place()));
        }
    }

    /// A database is empty, or all of them.
    pub(crate) fn flush(&mut self, db: Option<i32>) {
        let is_kept = |place: &Place| db.is_some_and(|db| db != place.0);
        self.due.retain(|(_, place)| is_kept(place));
        self.held.retain(|_, held| {
            held.retain(is_kept);
            !held.places.is_empty()
        });
    }

    /// Notes all about a queue that has come to this place, from a snapshot, another key or another database.
    pub(crate) fn welcome(&mut self, object: &mut Object, db: i32, name: &[u8], now: Now) {
        object.planned = None;
        let mut has_connection = false;
        for holder in object.queue.holders() {
            has_connection |= matches!(holder, Holder::Conn(_));
            self.held.entry(holder).or_default().insert((db, name.into()));
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

    /// Another server, or this one before it was started, had the connections: whatever they hold comes back.
    pub(crate) fn end_connections(&mut self) {
        let (workers, gone): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|(holder, _)| matches!(holder, Holder::Worker(_)));
        self.held = workers;
        let gone = gone.into_values().flat_map(|held| held.places);
        self.due.extend(gone.map(|place| (LogTime(0), place)));
    }

    /// A holder has tasks of this key.
    pub(crate) fn hold(&mut self, holder: Holder, db: i32, name: &[u8]) {
        self.held.entry(holder).or_default().insert((db, name.into()));
    }

    /// Whether a holder may have tasks in so many places that it is time to look.
    pub(crate) fn is_crowded(&self, holder: Holder) -> bool {
        self.held.get(&holder).is_some_and(|held| held.places.len() > held.places_max.max(PLACES_MIN))
    }

    /// Keeps of the places where a holder may have tasks those where it has.
    pub(crate) fn retain_held(&mut self, holder: Holder, is_held: impl FnMut(&Place) -> bool) {
        let Some(held) = self.held.get_mut(&holder) else { return };
        held.retain(is_held);
        if held.places.is_empty() {
            self.held.remove(&holder);
        }
    }

    /// In how many places holders may have tasks.
    pub(crate) fn held_count(&self) -> usize {
        self.held.values().map(|held| held.places.len()).sum()
    }

    /// Where a holder may have tasks.
    pub(crate) fn held_by(&self, holder: Holder) -> Vec<Place> {
        self.held.get(&holder).into_iter().flat_map(|held| &held.places).cloned().collect()
    }

    /// A connection is gone. Answers whether anything is to be done about it.
    pub(crate) fn end(&mut self, holder: Holder, cause: Cause) -> bool {
        let holds = self.held.contains_key(&holder);
        if holds {
            self.begin_end(holder, cause, None);
        }
        holds
    }

    /// A holder is gone: what it has is taken back slice by slice. `worker_of` is the database whose worker it is.
    pub(crate) fn begin_end(&mut self, holder: Holder, cause: Cause, worker_of: Option<i32>) {
        let places = self.release(holder);
        let new = Ending { cause, worker_of, places, group: None, count: 0 };
        let ending = self.merged(holder, new);
        self.endings.insert(holder, ending);
        self.endings_order.push_back(holder);
    }

    /// The workers of a database are known no more: whatever they hold comes back.
    pub(crate) fn end_workers(&mut self, db: i32) {
        let is_there = |held: &Held| held.places.iter().any(|place| place.0 == db);
        let gone =
            self.held.iter().filter(|(holder, held)| matches!(holder, Holder::Worker(_)) && is_there(held));
        for holder in gone.map(|(&holder, _)| holder).collect::<Vec<_>>() {
            self.begin_end(holder, Cause::Lost, None);
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
        self.endings.get(&Holder::Worker(worker)).is_some_and(|ending| ending.worker_of == Some(db))
    }

    /// What is left to be done about a holder, for a step of it. What remains then is to be given back.
    pub(crate) fn take_ending(&mut self, holder: Holder) -> Option<Ending> {
        self.endings.remove(&holder)
    }

    /// What remains to be done about a holder comes before what is to be done about others.
    pub(crate) fn resume_end(&mut self, holder: Holder, ending: Ending) {
        let ending = self.merged(holder, ending);
        self.endings.insert(holder, ending);
        if self.endings_order.front() != Some(&holder) {
            self.endings_order.push_front(holder);
        }
    }

    /// An ending, and what else there is to be done about the same holder.
    fn merged(&mut self, holder: Holder, mut ending: Ending) -> Ending {
        if let Some(other) = self.take_ending(holder) {
            ending.places.extend(other.places);
            ending.worker_of = ending.worker_of.or(other.worker_of);
            ending.count += other.count;
            // The first place may be another now.
            ending.group = None;
        }
        ending
    }

    /// This server decides no longer. If it comes to decide again, it must know where holders have tasks, and look at the
    /// tables of workers: nobody has planned for those whose end was under way.
    pub(crate) fn abandon_endings(&mut self) {
        self.endings_order.clear();
        for (holder, ending) in std::mem::take(&mut self.endings) {
            self.held.entry(holder).or_default().places.extend(ending.places);
            if let Some(db) = ending.worker_of {
                self.look_at(LogTime(0), db, workers::KEY);
            }
        }
    }

    /// Forgets where a holder may have tasks.
    pub(crate) fn release(&mut self, holder: Holder) -> BTreeSet<Place> {
        self.held.remove(&holder).unwrap_or_default().places
    }

    /// A lease of a worker ran out: it will be told at its next beat.
    pub(crate) fn note_lapse(&mut self, worker: u64, receipt: Receipt) {
        let untold = self.untold.entry(worker).or_default();
        if untold.len() >= limits::LAPSES_TOLD_MAX {
            untold.pop_front();
        }
        untold.push_back(receipt);
    }

    /// What a worker has not been told yet.
    pub(crate) fn take_lapses(&mut self, worker: u64) -> VecDeque<Receipt> {
        self.untold.remove(&worker).unwrap_or_default()
    }

    /// Two databases have changed places.
    pub(crate) fn swap(&mut self, one: i32, other: i32) {
        let moved_db = |db: i32| match db {
            _ if db == one => other,
            _ if db == other => one,
            _ => db,
        };
        let moved = |(db, name): Place| (moved_db(db), name);
        self.due = std::mem::take(&mut self.due).into_iter().map(|(at, place)| (at, moved(place))).collect();
        for ending in self.endings.values_mut() {
            ending.worker_of = ending.worker_of.map(moved_db);
        }
        let ending = self.endings.values_mut().map(|ending| &mut ending.places);
        for places in self.held.values_mut().map(|held| &mut held.places).chain(ending) {
            *places = std::mem::take(places).into_iter().map(moved).collect();
        }
    }
}
