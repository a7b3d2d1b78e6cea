//! One step of the queue of a key, and all that follows from it: effects, dead letters, waking, planning, the end of the key.

use std::ffi::CStr;
use std::mem;

use sureq_core::queue::HolderNews;
use sureq_core::task::{Cause, Holder};
use sureq_core::{Now, Queue, TaskId, limits};

use crate::effects::{Effects, Record};
use crate::object::Object;
use crate::payload::Payload;
use crate::process::Process;
use crate::redis::{Ctx, Key, Str, Value};
use crate::slot::slot_of;
use crate::workers;

/// Room for effects that is kept between steps.
const ROOM_KEPT_BYTES: usize = 1 << 20;

/// Whether a queue that is not there is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Make {
    Never,
    IfNeeded,
}

/// Why a key was not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untouched {
    /// It holds something else.
    WrongType,
    /// A step in it never came to its end.
    InDoubt,
}

impl Untouched {
    /// What the client is told.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value",
            Self::InDoubt => {
                "POISONED an internal error has left this queue in doubt: restart the server, or delete the key"
            }
        }
    }
}

/// What one command, or one call of the clock, does to keys.
pub(crate) struct Steps<'c, 'p> {
    pub(crate) ctx: Ctx<'c>,
    pub(crate) process: &'p mut Process,
    pub(crate) now: Now,
    /// Whether anyone is to be told what happens, besides those who listen to keys.
    pub(crate) is_followed: bool,
    /// What those are told who listen to keys.
    pub(crate) event: &'static CStr,
}

/// A queue that is being stepped: the parts of its object that a step needs.
struct Stepped<'o, 'e> {
    queue: &'o mut Queue<Payload>,
    rec: &'e mut Effects<'o>,
    db: i32,
    name: &'e [u8],
}

impl<'c> Steps<'c, '_> {
    /// Has a step happen to the queue of a key, behind all that time has done to it. None if there is no queue.
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
            // The rest is planned, if there is one.
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

    /// A queue that this process has not decided about yet begins a new incarnation: receipts from before stay valid, and
    /// none is ever given out twice.
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
            // Those of a copy are not noted before.
            self.process.agenda.hold(holder, stepped.db, stepped.name);
        }
    }

    /// Takes back what workers hold that are not alive here, of this queue alone and at once: a worker that is not known in
    /// this database may live in another, where it keeps what it has.
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

    /// What a step leaves to be done: all of it is done at once, since a snapshot may be taken at any time.
    fn follow_up(&mut self, stepped: &mut Stepped<'_, '_>) {
        while stepped.queue.is_unfinished() {
            stepped.queue.settle(self.now, stepped.rec);
        }
        workers::note_lapses(self.ctx, stepped.queue.take_lapsed());
        let (agenda, db, name) = (&mut self.process.agenda, stepped.db, stepped.name);
        stepped.queue.drain_holder_news(|holder, news| {
            if news == HolderNews::HoldsNothing {
                agenda.unhold(holder, &(db, name.into()));
            }
        });
        let dying = stepped.queue.take_dying();
        if !dying.is_empty() {
            self.move_dying(stepped, &dying);
        }
    }

    /// Moves tasks that just died to where their queue sends them, if that is a queue, and in a cluster in the same slot.
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

    /// Tells the log, the replicas and those who listen, and plans what comes next.
    fn conclude(&mut self, (db, name): (i32, Str<'_>), object: &mut Object, record: &Record) {
        object.is_busy = false;
        if record.has_events {
            self.ctx.touch(name);
            if self.is_followed {
                self.ctx.replicate(name, &record.bytes);
            } else {
                // Goes nowhere, since nobody follows, and so costs nothing; but it counts as a change.
                self.ctx.replicate_as_is();
            }
            self.ctx.notify(self.event, name);
            self.process.marks.see(&object.queue);
        }
        self.process.agenda.plan(object, || (db, name.bytes().into()), self.now);
    }

    /// Keeps a queue that has come to be, removes one that nobody would miss, and wakes those who wait for it.
    fn keep(&mut self, key: &mut Key<'c>, name: Str<'_>, fresh: Option<Box<Object>>) {
        if let Some(object) = fresh.filter(|object| !object.queue.is_forgettable()) {
            key.set_queue(object);
        }
        let db = self.db_of(key);
        let Value::Queue(object) = key.value() else { return };
        if object.queue.can_pop(self.now.log) {
            self.ctx.signal(name);
        } else if object.queue.is_forgettable() {
            self.process.agenda.forget(object, &(db, name.bytes().into()));
            self.process.garbage.extend(object.queue.take_purged());
            key.delete();
            self.ctx.notify_deleted(name);
        }
    }
}

/// Whether something in the queue is to happen by now.
pub(crate) fn is_due(queue: &Queue<Payload>, now: Now) -> bool {
    queue.next_deadline().is_some_and(|at| at <= now.log)
        || queue.next_wall_deadline().is_some_and(|at| at <= now.wall)
}
