//! Log time in random phases: processes start and stop, Redis restarts, and its wall clock is set or stands still.
//! Log time never goes back, except for the part that was not stored; it never gets ahead of real time by more than
//! the documented bounds, and no delay or lease ends early.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use support::run;
use support::world::{START_US, World};
use sureq_core::command::{AckScope, Add, Command, IdForm, LeaseAsk, Pop, TaskRefs, When};
use sureq_core::{Refusal, Replies, Reply};
use sureq_home_api::Payload;
use sureq_redis::RedisHome;
use sureq_testkit::load::{scale, seeded};
use sureq_testkit::redis_server::RedisServer;

/// The duration of a test, and the most time that passes in it: bounds of log time widen by half a millisecond per
/// second.
const REAL: Duration = Duration::from_secs(6);
const PASSED_US_MAX: u64 = 1_500_000_000;

const SECOND_US: u64 = 1_000_000;
const DAY_US: u64 = 86_400_000_000;

/// The queue of delayed tasks; each leased one has a queue of its own.
const DELAYED: &[u8] = b"delayed";

/// The number of processes. The first one is never restarted, and knows log time from the beginning.
const HOMES: usize = 4;

/// A step forward of the wall clock that is smaller than this cannot be distinguished from a call that took long, and
/// may be visible for the length of one call.
const SEEN_US: u64 = SECOND_US;

/// The longest delay of a call.
const LATE_US_MAX: u64 = 6 * SECOND_US;

/// The interval at which log time is stored: when the wall clock is set, the step is known with this precision.
const KEPT_MS: u64 = 50;

/// The steps forward that the wall clock makes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forward {
    /// Steps that every script notices.
    Large,
    /// Steps that scripts do not notice, but callers do.
    Small,
}

struct Phases {
    random: Rng,
    server: RedisServer,
    world: Arc<World>,
    homes: Vec<RedisHome>,
    forward: Forward,
    /// Whether the wall clock stands still.
    stands: bool,
    /// The times and sizes of small steps.
    small_steps: Vec<(u64, u64)>,
    /// How often the wall clock was set.
    steps: u64,
    /// The latest log time that was seen, in milliseconds.
    latest_ms: u64,
    /// When each delayed or leased task is due, in true time.
    due_us: BTreeMap<Vec<u8>, u64>,
    /// How often the reply of Redis left the outcome open.
    asked_again: u64,
    said: Vec<String>,
}

impl Phases {
    fn new(forward: Forward) -> Self {
        let (random, server, world) = (seeded(), RedisServer::start(), Arc::new(World::default()));
        let mut phases = Self {
            random,
            server,
            world,
            homes: Vec::new(),
            forward,
            stands: false,
            small_steps: Vec::new(),
            steps: 0,
            latest_ms: 0,
            due_us: BTreeMap::new(),
            asked_again: 0,
            said: Vec::new(),
        };
        for _ in 0..HOMES {
            let home = phases.open();
            phases.homes.push(home);
        }
        phases
    }

    /// Starts a process, which learns log time from its first call.
    fn open(&mut self) -> RedisHome {
        let (began_us, drift_ppm) = (self.random.u64(1..DAY_US), self.random.i64(-200..=200));
        let home = self.world.drifting_home(&self.server, began_us, drift_ppm);
        self.observe(&home);
        home
    }

    /// How far log time may be ahead of true time: a millisecond, since it is reported in whole ones, another for
    /// each step that is too small to be noticed, and 0.1 % for clocks that drift.
    fn ahead_us_max(&self) -> u64 {
        let seen = if self.forward == Forward::Small { SEEN_US } else { 0 };
        1_000 * (1 + self.steps) + self.world.passed_us() / 1_000 + seen
    }

    fn say(&mut self, what: &str) {
        self.said.push(format!("{:>13} µs: {what}", self.world.passed_us()));
    }

    fn check(&self, is_right: bool, what: &str) {
        let last = &self.said[self.said.len().saturating_sub(30)..];
        assert!(is_right, "{what}\n{}", last.join("\n"));
    }

    fn pass(&mut self, us: u64) {
        if self.stands {
            self.world.set_wall_by(self.world.wall_set_by() - us.cast_signed());
        }
        self.world.pass(us);
    }

    /// Redis may have been restarted: commands without a certain answer are repeated.
    fn ask(&mut self, home: &RedisHome, command: &Command<'_>) -> Replies<Payload> {
        for _ in 0..100 {
            let replies = run(home, command);
            match &replies.list[0] {
                Reply::Refused(Refusal::Unknown { .. } | Refusal::Unavailable { .. }) => {
                    self.asked_again += 1;
                }
                _ => return replies,
            }
        }
        panic!("Redis does not answer");
    }

    /// Reads log time from ids and receipts.
    fn observe(&mut self, home: &RedisHome) {
        let pushed = self.ask(home, &Command::Push { queue: b"clock", payloads: &[b"x"] });
        let taken = self.ask(home, &Command::Pop(Pop::plain(&[b"clock"], 1)));
        let seen = [Some(pushed.ids[0].ms()), taken.tasks.first().map(|task| task.incarnation / 1_024)];
        for ms in seen.into_iter().flatten() {
            let ahead_us = (ms * 1_000).cast_signed() - (START_US + self.world.passed_us()).cast_signed();
            let (latest, most) = (self.latest_ms, self.ahead_us_max());
            self.check(ms + KEPT_MS >= latest, &format!("log time ran back from {latest} to {ms}"));
            let what = format!("log time is {ahead_us} µs ahead, {most} at most");
            self.check(ahead_us <= most.cast_signed(), &what);
            self.latest_ms = latest.max(ms);
        }
    }

    /// Starts a delay or a lease.
    fn begin(&mut self, home: &RedisHome) {
        let (ms, asked_again) = (self.random.u64(1..20_000), self.asked_again);
        let name = format!("{} of {ms} ms", self.said.len()).into_bytes();
        self.say(&format!("task {} begins", String::from_utf8_lossy(&name)));
        if self.random.bool() {
            self.ask(home, &Command::Add(Add { when: When::After(ms), ..Add::plain(DELAYED, &name) }));
        } else {
            let lease = LeaseAsk { ms: Some(ms), ..LeaseAsk::NONE };
            self.ask(home, &Command::Push { queue: &name, payloads: &[&name] });
            let taken = self.ask(home, &Command::Pop(Pop { lease, ..Pop::plain(&[&name], 1) }));
            self.check(taken.tasks.len() == 1 || self.asked_again > asked_again, "nothing was taken");
        }
        // It began when the call reached Redis. A repeated command may have been executed twice.
        if self.asked_again == asked_again {
            self.due_us.insert(name, self.world.passed_us() + ms * 1_000);
        }
    }

    fn ended(&mut self, name: &[u8]) {
        let Some(due_us) = self.due_us.remove(name) else { return };
        let early_us = due_us.saturating_sub(self.world.passed_us());
        let what = format!("task {} ended {early_us} µs early", String::from_utf8_lossy(name));
        self.check(early_us <= self.ahead_us_max(), &what);
    }

    /// Takes a due task, if there is one.
    fn collect(&mut self, home: &RedisHome) -> usize {
        let names: Vec<Vec<u8>> = self.due_us.keys().cloned().collect();
        let queues: Vec<&[u8]> = names.iter().map(|name| &name[..]).chain([DELAYED]).collect();
        // If the answer is lost, the task is requeued soon.
        let lease = LeaseAsk { ms: Some(1_000), ..LeaseAsk::NONE };
        let taken = self.ask(home, &Command::Pop(Pop { lease, ..Pop::plain(&queues, 20) }));
        taken.tasks.iter().for_each(|task| self.ended(&task.body));
        for task in &taken.tasks {
            let id = task.id.to_string();
            let tasks = TaskRefs { list: &[id.as_bytes()], form: IdForm::Long };
            let queue = queues[task.queue as usize];
            self.ask(home, &Command::Ack { queue, tasks, scope: AckScope::Leased });
        }
        taken.tasks.len()
    }

    /// A small step that differs from those of the last ten seconds: an equal one would look like another process
    /// that insists on the earlier step.
    fn small_step(&mut self) -> i64 {
        let now_us = self.world.passed_us();
        self.small_steps.retain(|(at_us, _)| now_us - at_us < 20 * SECOND_US);
        loop {
            let us = self.random.u64(1..SEEN_US - 100_000);
            if self.small_steps.iter().all(|(_, before)| before.abs_diff(us) > 30_000) {
                self.small_steps.push((now_us, us));
                return us.cast_signed();
            }
        }
    }

    /// Sets the wall clock, or stops or starts it. A process that knows log time sends a command first.
    fn set_wall(&mut self) {
        let by_us = match (self.random.u8(0..5), self.forward) {
            (0, _) => {
                self.stands = !self.stands;
                0
            }
            (1, _) => -self.random.i64(1..SECOND_US.cast_signed()),
            (2, _) => -self.random.i64(1..DAY_US.cast_signed()),
            (_, Forward::Large) => self.random.u64(3 * SECOND_US..DAY_US).cast_signed(),
            (_, Forward::Small) => self.small_step(),
        };
        self.steps += 1;
        self.world.set_wall_by(self.world.wall_set_by() + by_us);
        self.say(&format!("the wall clock is set by {by_us} µs, it stands: {}", self.stands));
    }

    fn step(&mut self) {
        let us = match self.random.u8(0..100) {
            0..70 => self.random.u64(0..5_000),
            70..98 => self.random.u64(0..500_000),
            _ => self.random.u64(0..10 * SECOND_US),
        };
        self.pass(us);
        match self.random.u16(0..1_000) {
            0..30 => {
                self.set_wall();
                // The next call of a process that notices a step corrects it, even if scripts do not notice it.
                let at = self.random.usize(0..HOMES);
                let homes = std::mem::take(&mut self.homes);
                self.observe(&homes[at]);
                self.observe(&homes[at]);
                self.homes = homes;
            }
            // A process that starts while the clock stands still cannot know that time has passed.
            30..45 if !self.stands => {
                let (at, home) = (self.random.usize(1..HOMES), self.open());
                std::mem::replace(&mut self.homes[at], home).close();
                self.say("a process is restarted");
            }
            45..47 => {
                if self.random.bool() {
                    self.server.restart();
                } else {
                    self.server.crash();
                }
                self.say("Redis is restarted");
            }
            _ => {}
        }
        let at = self.random.usize(0..HOMES);
        let homes = std::mem::take(&mut self.homes);
        // The delay of a call cannot be measured with a clock that stands still.
        if !self.stands && self.random.u8(0..50) == 0 {
            let us = self.random.u64(0..LATE_US_MAX);
            self.say(&format!("calls are {us} µs late, however often they are sent"));
            self.world.set_late(us);
        }
        match self.random.u8(0..10) {
            0..2 if self.due_us.len() < 50 => self.begin(&homes[at]),
            2..5 => _ = self.collect(&homes[at]),
            _ => self.observe(&homes[at]),
        }
        self.world.set_late(0);
        self.homes = homes;
    }

    fn run(mut self) {
        let until = Instant::now() + REAL * u32::try_from(scale()).unwrap_or(1);
        let mut count = 0_u64;
        while Instant::now() < until && self.world.passed_us() < PASSED_US_MAX {
            self.step();
            count += 1;
        }
        println!("{count} calls, {} steps, {} s", self.steps, self.world.passed_us() / SECOND_US);
        // All deadlines pass: a restart of Redis prolongs leases by ten seconds at most.
        self.pass(40 * SECOND_US);
        let homes = std::mem::take(&mut self.homes);
        while self.collect(&homes[0]) > 0 {}
        self.check(self.due_us.is_empty(), &format!("{} tasks were not requeued", self.due_us.len()));
        homes.iter().for_each(RedisHome::close);
    }
}

#[test]
fn log_time_continues_whatever_happens_to_the_clock_of_redis() {
    Phases::new(Forward::Large).run();
}

#[test]
fn log_time_is_ahead_by_a_small_step_of_the_clock_of_redis_at_most() {
    Phases::new(Forward::Small).run();
}
