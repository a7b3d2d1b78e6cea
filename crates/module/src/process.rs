//! State that spans keys: time, ids, incarnations, and the schedule.
//!
//! It exists once, and only Redis' main thread uses it. Values of keys never depend on it: a server that only loads
//! the keys can continue, and issues only ids and incarnations above all that they contain.

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

/// The state of the process.
#[derive(Default)]
pub(crate) struct Process {
    pub(crate) clock: Clock,
    pub(crate) marks: Marks,
    pub(crate) schedule: Schedule,
    /// The key of a copy that Redis is about to store.
    pub(crate) arriving: Option<Place>,
    /// Commands that are executed in slices.
    pub(crate) jobs: Jobs,
    /// The number of slices that timers executed.
    pub(crate) slices: u64,
    /// Purged tasks of removed queues, to be released in slices.
    pub(crate) garbage: Vec<Remains<Payload>>,
    /// The buffer for the record of a step, kept between steps.
    pub(crate) room: Vec<u8>,
}

/// Runs a function with the process. Redis callbacks that are triggered inside must not borrow it again.
pub(crate) fn with<T>(act: impl FnOnce(&mut Process) -> T) -> T {
    PROCESS.with_borrow_mut(act)
}

/// Runs a function with the process, unless it is borrowed already.
pub(crate) fn try_with(act: impl FnOnce(&mut Process)) {
    PROCESS.with(|process| {
        if let Ok(mut process) = process.try_borrow_mut() {
            act(&mut process);
        }
    });
}

/// Runs a function with a buffer for replies, kept between commands.
pub(crate) fn with_replies<T>(act: impl FnOnce(&mut Replies<Payload>) -> T) -> T {
    REPLIES.with_borrow_mut(|replies| {
        let acted = act(replies);
        replies.clear();
        acted
    })
}

/// Log time: the time of the last record, plus the time since then by the monotonic clock.
#[derive(Default)]
pub(crate) struct Clock {
    base: u64,
    since_us: u64,
    /// A reading of the wall clock, and the time at which it was taken. The clock is not read for each command.
    wall: Cell<(u64, u64)>,
}

/// How long a reading of the wall clock is used.
const WALL_US: u64 = 50_000;

impl Clock {
    /// The current time.
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

    /// Sets the log time to that of the primary.
    pub(crate) fn follow(&mut self, time: LogTime) {
        (self.base, self.since_us) = (time.0, redis::monotonic_us());
    }
}

/// No clock or counter reaches this value.
pub(crate) const TIME_MAX: u64 = 1 << 52;
pub(crate) const INCARNATION_MAX: u64 = 1 << 62;

/// How far ahead of the clock an id may be, in milliseconds.
const AHEAD_MS: u64 = 7 * 86_400_000;

/// The first of `n` ids after `last`. They count as issued once a push is recorded.
pub(crate) fn ids_behind(last: TaskId, n: usize, now: Now) -> Result<TaskId, Refusal> {
    let first = last.next(now.log.0).ok_or(Refusal::NoMoreIds)?;
    first.nth(n.saturating_sub(1) as u64).ok_or(Refusal::NoMoreIds)?;
    Ok(first)
}

/// The highest ids and incarnations that this process has seen.
#[derive(Default)]
pub(crate) struct Marks {
    /// No id up to this one is issued again.
    pub(crate) last_id: TaskId,
    /// No incarnation up to this one is used again.
    pub(crate) last_incarnation: u64,
    /// The smallest incarnation of queues that this process decides about.
    pub(crate) incarnation: u64,
    /// When that incarnation began.
    pub(crate) started: LogTime,
}

impl Marks {
    /// Records the marks of a queue that was loaded or changed by another server.
    pub(crate) fn see(&mut self, queue: &Queue<Payload>) {
        self.see_id(queue.last_id());
        self.last_incarnation = self.last_incarnation.max(queue.incarnation().min(INCARNATION_MAX));
    }

    /// Records an id. An id far ahead of its time affects only its own queue, so that it cannot use up the ids of all
    /// queues.
    pub(crate) fn see_id(&mut self, id: TaskId) {
        let is_near = |ms: u64| id.ms() < ms + AHEAD_MS;
        if id > self.last_id && (is_near(self.last_id.ms()) || is_near(redis::wall_ms())) {
            self.last_id = id;
        }
    }

    /// A new incarnation.
    pub(crate) const fn next_incarnation(&mut self) -> u64 {
        self.last_incarnation += 1;
        self.last_incarnation
    }
}

/// The reason why a new incarnation begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// The data was loaded, or there is none. Time has passed since it was saved, by this machine's clock.
    Loaded,
    /// A replica was promoted. Its log time continues that of the last primary.
    Promoted,
}

impl Process {
    /// Records a queue that appeared under this key.
    pub(crate) fn welcome(&mut self, object: &mut Object, db: i32, name: &[u8]) {
        self.marks.see(&object.queue);
        self.jobs.follow(object.serial, db, name);
        let now = self.clock.now();
        self.schedule.welcome(object, db, name, now);
    }

    /// The next time at which something is due.
    pub(crate) fn next(&self) -> Option<LogTime> {
        let is_busy = !self.jobs.is_empty() || !self.garbage.is_empty() || waiting::suspects() > 0;
        if is_busy { Some(LogTime(0)) } else { self.schedule.next() }
    }

    /// Stops all decisions, because this server became a replica.
    pub(crate) fn step_down(&mut self) {
        self.schedule.abandon_endings();
        self.jobs.abandon();
    }

    /// Begins a new incarnation. Each queue enters it at its first decision.
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
