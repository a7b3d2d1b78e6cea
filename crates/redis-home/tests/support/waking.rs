//! Starts a waiting pop, triggers an event, and checks that the pop gets the task.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use sureq_home_api::Home as _;
use sureq_redis::RedisHome;
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::redis_server::RedisServer;

use super::{answer, open, until, wait_for};

/// How late a task may arrive, apart from the delay of the machine.
const LATE: Duration = Duration::from_secs(2);

/// A home with a waiting pop, and a home that makes its task ready; the same, or another process.
pub struct Waking {
    pub waiter: RedisHome,
    pub actor: Option<RedisHome>,
}

impl Waking {
    /// Checks with an event from the waiting process itself, and then from another process.
    pub fn everywhere(prepare: impl Fn(&RedisHome), act: impl Fn(&RedisHome) -> RangeInclusive<u64>) {
        let server = RedisServer::start();
        Self { waiter: open(&server.url()), actor: None }.check(&prepare, &act);
        Self::from_another_process(prepare, act);
    }

    pub fn from_another_process(
        prepare: impl Fn(&RedisHome),
        act: impl Fn(&RedisHome) -> RangeInclusive<u64>,
    ) {
        let server = RedisServer::start();
        Self { waiter: open(&server.url()), actor: Some(open(&server.url())) }.check(prepare, act);
        server.check("sureq:");
    }

    /// `act` returns after how many milliseconds a task is ready, at least and at most.
    pub fn check(self, prepare: impl Fn(&RedisHome), act: impl Fn(&RedisHome) -> RangeInclusive<u64>) {
        let actor = self.actor.as_ref().unwrap_or(&self.waiter);
        prepare(actor);
        let ticket = wait_for(&self.waiter, b"q");
        until("it waits", || self.waiter.waiters() == 1);
        // All commands that lead to waiting have been sent when this returns.
        self.waiter.look();
        let (machine, before) = (MachineWatch::start(), Instant::now());
        let due = act(actor);
        let after = Instant::now();
        let replies = answer(&ticket);
        let (most, least) = (before.elapsed(), after.elapsed());
        assert_eq!(replies.tasks.len(), 1, "{:?}", replies.list);
        assert!(most >= Duration::from_millis(*due.start()), "early, after {most:?}");
        machine.assert_within(least, Duration::from_millis(*due.end()) + LATE, "the wake-up");
        println!("woken after {least:?}");
        self.actor.iter().chain([&self.waiter]).for_each(RedisHome::close);
    }
}
