//! One step of the queue of a key with all its consequences: effects, dead letters, wake-ups, scheduling, removal of
//! the key.

use std::ffi::CStr;
use std::mem;

use sureq_core::queue::HolderNews;
use sureq_core::task::{Cause, Holder};
use sureq_core::{Now, Queue, TaskId, limits};
use sureq_slots::slot_of;

use crate::effects::{Effects, Record};
use crate::object::Object;
use crate::payload::Payload;
use crate::process::Process;
use crate::redis::{Ctx, Key, Str, Value};
use crate::workers;

/// The buffer for effects, kept between steps.
const ROOM_KEPT_BYTES: usize = 1 << 20;

/// Whether a missing queue is created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Make {
    Never,
    IfNeeded,
}

/// The reason why a key was not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untouched {
    /// The key holds another type.
    WrongType,
    /// A step in it panicked.
    InDoubt,
}

impl Untouched {
    /// The error for the client.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value",
            Self::InDoubt => {
                "POISONED an internal error has left this queue in doubt: restart the server, or delete the key"
            }
        }
    }
}

/// The steps of one command or timer call.
pub(crate) struct Steps<'c, 'p> {
    pub(crate) ctx: Ctx<'c>,
    pub(crate) process: &'p mut Process,
    pub(crate) now: Now,
    /// Whether effects are recorded; keyspace events are sent in any case.
    pub(crate) is_followed: bool,
    /// The name of the keyspace event.
    pub(crate) event: &'static CStr,
}

/// A queue during a step: the parts of its object that a step needs.
struct Stepped<'o, 'e> {
    queue: &'o mut Queue<Payload>,
    rec: &'e mut Effects<'o>,
    db: i32,
    name: &'e [u8],
}

impl<'c> Steps<'c, '_> {
    /// Executes a step on the queue of a key, after all its due deadlines. `None` if there is no queue.
    pub(crate) fn on<T>(
        &mut self,
        name: Str<'_>,
        make: Make,
        act: impl FnOnce(&mut Queue<Payload>, &mut Effects<'_>, Now) -> T,
    ) -> Result<Option<T>, Untouched> {
        if name.bytes() == workers::KEY {
            return Err(Untouched::WrongType);
        }
        let mut key = self.ctx.open(name);
        let db = self.db_of(&key);
        let mut fresh = None;
        let object = match key.value() {
            Value::Queue(object) => object,
            Value::Nothing if make == Make::IfNeeded => &mut **fresh.insert(Box::new(Object::new())),
            Value::Nothing => return Ok(None),
            Value::Workers(_) | Value::Other => return Err(Untouched::WrongType),
        };
        if mem::replace(&mut object.is_busy, true) {
            return Err(Untouched::InDoubt);
        }
        let room = mem::take(&mut self.process.room);
        let Object { queue, usage, is_foreign, .. } = object;
        let mut rec = Effects::new(room, self.is_followed, self.now.log, usage);
        let mut stepped = Stepped { queue, rec: &mut rec, db, name: name.bytes() };
        self.enter(&mut stepped, is_foreign);
        if is_due(stepped.queue, self.now) {
            stepped.queue.settle_ahead(self.now, stepped.rec);
            self.follow_up(&mut stepped);
        }
        let had_purged = stepped.queue.has_purged();
        let done = act(stepped.queue, stepped.rec, self.now);
        self.follow_up(&mut stepped);
        if !had_purged && stepped.queue.has_purged() {
            // The schedule continues with the rest, if any.
            stepped.queue.release_some_purged(limits::SLICE_TASKS, stepped.rec);
        }
        let record = rec.into_record();
        self.conclude((db, name), object, &record);
        self.keep(&mut key, name, fresh);
        if record.bytes.capacity() <= ROOM_KEPT_BYTES {
            self.process.room = record.bytes;
        }
        Ok(Some(done))
    }

    fn db_of(&self, key: &Key<'_>) -> i32 {
        key.db().unwrap_or_else(|| self.ctx.db())
    }

    /// Starts a new incarnation of a queue at the first decision of this process: earlier receipts stay valid, and no
    /// receipt is ever issued twice.
    fn enter(&mut self, stepped: &mut Stepped<'_, '_>, is_foreign: &mut bool) {
        let marks = &mut self.process.marks;
        let (incarnation, time) = if mem::take(is_foreign) {
            marks.see(stepped.queue);
            (marks.next_incarnation(), self.now.log)
        } else if stepped.queue.incarnation() < marks.incarnation {
            (marks.incarnation, marks.started)
        } else {
            return;
        };
        stepped.queue.start(incarnation, time, stepped.rec);
        self.end_orphans(stepped);
        for holder in stepped.queue.holders() {
            // The holders of a copy are not recorded before.
            self.process.schedule.hold(holder, stepped.db, stepped.name);
        }
    }

    /// Requeues tasks of workers that are not alive here, in this queue and at once. A worker that this database does
    /// not know may live in another one, where it keeps its tasks.
    fn end_orphans(&mut self, stepped: &mut Stepped<'_, '_>) {
        let holders: Vec<Holder> = stepped.queue.holders().collect();
        for holder in holders {
            let Holder::Worker(incarnation) = holder else { continue };
            if workers::is_known(self.ctx, incarnation) {
                continue;
            }
            let held = stepped.queue.held_by(holder) as usize;
            stepped.queue.end_some(holder, Cause::Lost, held, &mut None, self.now, stepped.rec);
        }
    }

    /// The consequences of a step. All happen at once, since a snapshot may be taken at any time.
    fn follow_up(&mut self, stepped: &mut Stepped<'_, '_>) {
        while stepped.queue.is_unfinished() {
            stepped.queue.settle(self.now, stepped.rec);
        }
        workers::note_lapses(self.ctx, stepped.queue.take_lapsed());
        let (schedule, db, name) = (&mut self.process.schedule, stepped.db, stepped.name);
        stepped.queue.drain_holder_news(|holder, news| {
            if news == HolderNews::HoldsNothing {
                schedule.unhold(holder, &(db, name.into()));
            }
        });
        let dying = stepped.queue.take_dying();
        if !dying.is_empty() {
            self.move_dying(stepped, &dying);
        }
    }

    /// Moves tasks that just died to the dead-letter queue, if that key holds a queue and, in a cluster, is in the same
    /// slot.
    fn move_dying(&mut self, from: &mut Stepped<'_, '_>, dying: &[TaskId]) {
        let Some(letter) = from.queue.settings().dead_letter.clone() else { return };
        let elsewhere = self.ctx.flags().is_cluster() && slot_of(&letter) != slot_of(from.name);
        if *letter == *from.name || elsewhere {
            return;
        }
        let name = self.ctx.string(&letter);
        let mut key = self.ctx.open(name.as_str());
        let db = self.db_of(&key);
        let mut fresh = None;
        let object = match key.value() {
            Value::Queue(object) if !object.is_busy => object,
            Value::Nothing => &mut **fresh.insert(Box::new(Object::new())),
            _ => return,
        };
        let Object { queue, usage, is_foreign, .. } = object;
        let mut rec = Effects::new(Vec::new(), self.is_followed, self.now.log, usage);
        let mut to = Stepped { queue, rec: &mut rec, db, name: &letter };
        self.enter(&mut to, is_foreign);
        for &id in dying {
            let payload = &mut |body: &Payload| body.as_ref().into();
            from.queue.move_dead_to(id, to.queue, payload, self.now, (&mut *from.rec, &mut *to.rec));
        }
        let record = rec.into_record();
        self.conclude((db, name.as_str()), object, &record);
        self.keep(&mut key, name.as_str(), fresh);
    }

    /// Propagates the effects to the log and replicas, sends keyspace events, and schedules the next deadline.
    fn conclude(&mut self, (db, name): (i32, Str<'_>), object: &mut Object, record: &Record) {
        object.is_busy = false;
        if record.has_events {
            self.ctx.touch(name);
            if self.is_followed {
                self.ctx.replicate(name, &record.bytes);
            } else {
                // Without a follower this is not sent anywhere and costs nothing, but it counts as a change for
                // snapshots.
                self.ctx.replicate_as_is();
            }
            self.ctx.notify(self.event, name);
            self.process.marks.see(&object.queue);
        }
        self.process.schedule.plan(object, || (db, name.bytes().into()), self.now);
    }

    /// Stores a new queue, removes one without content, and wakes clients that wait for it.
    fn keep(&mut self, key: &mut Key<'c>, name: Str<'_>, fresh: Option<Box<Object>>) {
        if let Some(object) = fresh.filter(|object| !object.queue.is_forgettable()) {
            key.set_queue(object);
        }
        let db = self.db_of(key);
        let Value::Queue(object) = key.value() else { return };
        if object.queue.can_pop(self.now.log) {
            self.ctx.signal(name);
        } else if object.queue.is_forgettable() {
            self.process.schedule.forget(object, &(db, name.bytes().into()));
            self.process.garbage.extend(object.queue.take_purged());
            key.delete();
            self.ctx.notify_deleted(name);
        }
    }
}

/// Whether something in the queue is due.
pub(crate) fn is_due(queue: &Queue<Payload>, now: Now) -> bool {
    queue.next_deadline().is_some_and(|at| at <= now.log)
        || queue.next_wall_deadline().is_some_and(|at| at <= now.wall)
}
