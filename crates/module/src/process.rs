//! What spans keys: time, ids, incarnations, and what is to happen by itself.
//!
//! There is one of it, and only Redis' main thread has it. The value of a key never depends on it: a server that loads the
//! keys alone can go on, and what it gives out from then on is above all that they have seen.

use std::cell::{Cell, RefCell};

use sureq_core::queue::Remains;
use sureq_core::{LogTime, Now, Queue, Refusal, Replies, TaskId, WallTime};

use crate::object::Object;
use crate::payload::Payload;
use crate::redis;
use crate::schedule::{Place, Schedule};
use crate::sliced::Jobs;
use crate::waiting;

thread_local! {
    static PROCESS: RefCell<Process> = RefCell::default();
    static REPLIES: RefCell<Replies<Payload>> = RefCell::default();
}

/// What the process knows.
#[derive(Default)]
pub(crate) struct Process {
    pub(crate) clock: Clock,
    pub(crate) marks: Marks,
    pub(crate) schedule: Schedule,
    /// Where a copy will be that Redis is about to put there.
    pub(crate) arriving: Option<Place>,
    /// Commands of clients that are executed slice by slice.
    pub(crate) jobs: Jobs,
    /// How many slices timers have executed for them.
    pub(crate) slices: u64,
    /// What was purged from queues that are gone, to be released slice by slice.
    pub(crate) garbage: Vec<Remains<Payload>>,
    /// Room for the record of a step, kept between steps.
    pub(crate) room: Vec<u8>,
}

/// Runs something with the process. Nothing that Redis calls back from within may ask for it again.
pub(crate) fn with<T>(act: impl FnOnce(&mut Process) -> T) -> T {
    PROCESS.with_borrow_mut(act)
}

/// Runs something with the process, unless something runs with it already.
pub(crate) fn try_with(act: impl FnOnce(&mut Process)) {
    PROCESS.with(|process| {
        if let Ok(mut process) = process.try_borrow_mut() {
            act(&mut process);
        }
    });
}

/// Runs something with room for answers, which is kept between commands.
pub(crate) fn with_replies<T>(act: impl FnOnce(&mut Replies<Payload>) -> T) -> T {
    REPLIES.with_borrow_mut(|replies| {
        let acted = act(replies);
        replies.clear();
        acted
    })
}

/// Log time: that of the last record, and what has passed since by a clock that nobody sets.
#[derive(Default)]
pub(crate) struct Clock {
    base: u64,
    since_us: u64,
    /// What the wall clock said, and when. It is not asked for each command.
    wall: Cell<(u64, u64)>,
}

/// How long what the wall clock said is good for.
const WALL_US: u64 = 50_000;

impl Clock {
    /// What time it is.
    pub(crate) fn now(&self) -> Now {
        let now_us = redis::monotonic_us();
        let passed = now_us.saturating_sub(self.since_us) / 1_000;
        let (mut wall, mut read_us) = self.wall.get();
        if wall == 0 || now_us.saturating_sub(read_us) >= WALL_US {
            (wall, read_us) = (redis::wall_ms(), now_us);
            self.wall.set((wall, read_us));
        }
        let wall = wall + now_us.saturating_sub(read_us) / 1_000;
        Now { log: LogTime(self.base.saturating_add(passed)), wall: WallTime(wall) }
    }

    /// It is this time now, whatever this machine's clock says: the primary has said so.
    pub(crate) fn follow(&mut self, time: LogTime) {
        (self.base, self.since_us) = (time.0, redis::monotonic_us());
    }
}

/// No clock comes this far, and no count.
pub(crate) const TIME_MAX: u64 = 1 << 52;
pub(crate) const INCARNATION_MAX: u64 = 1 << 62;

/// How far ahead of the clock an id may be.
const AHEAD_MS: u64 = 7 * 86_400_000;

/// The first of `n` ids behind this one. They count as given out once a push is recorded.
pub(crate) fn ids_behind(last: TaskId, n: usize, now: Now) -> Result<TaskId, Refusal> {
    let first = last.next(now.log.0).ok_or(Refusal::NoMoreIds)?;
    first.nth(n.saturating_sub(1) as u64).ok_or(Refusal::NoMoreIds)?;
    Ok(first)
}

/// What was ever given out, as far as this process has seen.
#[derive(Default)]
pub(crate) struct Marks {
    /// No id up to this one is given out again.
    pub(crate) last_id: TaskId,
    /// No incarnation up to this one begins again.
    pub(crate) last_incarnation: u64,
    /// A queue that this process decides about is in this incarnation at least.
    pub(crate) incarnation: u64,
    /// When that began.
    pub(crate) started: LogTime,
}

impl Marks {
    /// Takes note of a queue that was loaded, or changed by another server.
    pub(crate) fn see(&mut self, queue: &Queue<Payload>) {
        self.see_id(queue.last_id());
        self.last_incarnation = self.last_incarnation.max(queue.incarnation().min(INCARNATION_MAX));
    }

    /// Takes note of an id. One that is far ahead of its time keeps to its own queue, and does not use up those of all.
    pub(crate) fn see_id(&mut self, id: TaskId) {
        let is_near = |ms: u64| id.ms() < ms + AHEAD_MS;
        if id > self.last_id && (is_near(self.last_id.ms()) || is_near(redis::wall_ms())) {
            self.last_id = id;
        }
    }

    /// An incarnation that no other queue or start has had.
    pub(crate) const fn next_incarnation(&mut self) -> u64 {
        self.last_incarnation += 1;
        self.last_incarnation
    }
}

/// Why a new incarnation begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// The data were loaded, or there are none. Time has passed meanwhile, as this machine's clock tells.
    Loaded,
    /// A replica is the primary now. Its time is that of the last one.
    Promoted,
}

impl Process {
    /// Takes note of a queue that has come to this key.
    pub(crate) fn welcome(&mut self, object: &mut Object, db: i32, name: &[u8]) {
        self.marks.see(&object.queue);
        self.jobs.follow(object.serial, db, name);
        let now = self.clock.now();
        self.schedule.welcome(object, db, name, now);
    }

    /// When there is something to do next.
    pub(crate) fn next(&self) -> Option<LogTime> {
        let is_busy = !self.jobs.is_empty() || !self.garbage.is_empty() || waiting::suspects() > 0;
        if is_busy { Some(LogTime(0)) } else { self.schedule.next() }
    }

    /// This server follows another from now on, and decides nothing.
    pub(crate) fn step_down(&mut self) {
        self.schedule.abandon_endings();
        self.jobs.abandon();
    }

    /// Begins a new incarnation. Each queue enters it when it is first touched.
    pub(crate) fn start(&mut self, why: Start) {
        let now = self.clock.now();
        if why == Start::Loaded {
            self.clock.follow(LogTime(now.log.0.max(now.wall.0)));
        }
        self.marks.last_incarnation = self.marks.last_incarnation.max(now.wall.0.saturating_sub(1));
        self.marks.incarnation = self.marks.next_incarnation();
        self.marks.started = self.clock.now().log;
        self.schedule.look_at_held();
    }
}
