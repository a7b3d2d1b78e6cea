//! Rule 13 on Redis: everything that makes a task available wakes a waiter for it, whichever process does it.

mod support;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use support::waking::Waking;
use support::{answer, info, open, pop, pop_leased, push, run, until, wait_for};
use sureq_core::command::{AckScope, View};
use sureq_core::command::{Add, Block, Command, IdForm, LeaseAsk, Pop, Return, TaskRef, TaskRefs, When};
use sureq_core::settings::{Change, Changes, Expired, Place};
use sureq_home_api::Home as _;
use sureq_redis::{Clock, RedisHome, SystemClock, Target};
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::process::free_port;
use sureq_testkit::proxy::FaultyProxy;
use sureq_testkit::redis_cluster::RedisCluster;
use sureq_testkit::redis_sentinels::RedisSentinels;
use sureq_testkit::redis_server::RedisServer;

/// When the events of the tests are due.
const DUE_MS: u64 = 400;

/// A reference to the leased task of `q`.
fn leased(home: &RedisHome) -> String {
    let pending = Command::Inspect { queue: b"q", view: View::Leased, start: 0, count: 1 };
    run(home, &pending).tasks[0].id.to_string()
}

fn reference(id: &str) -> TaskRef<'_> {
    TaskRef { bytes: id.as_bytes(), form: IdForm::Long }
}

fn return_task<'a>(id: &'a str, to: Option<Place>, failed: Option<&'a [u8]>) -> Command<'a> {
    Command::Return(Return { queue: b"q", task: reference(id), to, failed, is_last: false })
}

/// Pushes a task to `q` and leases it without a deadline.
fn hold_one(home: &RedisHome) {
    push(home, b"q", b"x");
    assert_eq!(pop(home, b"q", 1).expect("Redis answers").len(), 1);
}

/// Pushes two tasks to `q`, which allows one lease, and leases one of them.
fn fill(home: &RedisHome) {
    let settings = [Change::MaxLeased(1)];
    run(home, &Command::Config { queue: b"q", changes: Changes::List(&settings) });
    hold_one(home);
    push(home, b"q", b"y");
}

/// Finishes the leased task of `q`, and takes the other before a waiter can.
fn take_the_other(home: &RedisHome, lease: LeaseAsk<'_>) {
    let id = leased(home);
    let tasks = TaskRefs { list: &[id.as_bytes()], form: IdForm::Long };
    let ack = Command::Ack { queue: b"q", tasks, scope: AckScope::Leased };
    let take = Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 1) });
    let replies = home.send(&[ack, take]).wait().replies;
    assert_eq!(replies.tasks.len(), 1, "{:?}", replies.list);
}

#[test]
fn a_task_that_is_added_with_a_delay() {
    Waking::everywhere(
        |_| {},
        |home| {
            run(home, &Command::Add(Add { when: When::After(DUE_MS), ..Add::plain(b"q", b"x") }));
            DUE_MS..=DUE_MS
        },
    );
}

#[test]
fn a_task_that_is_added_for_a_time_of_the_wall_clock() {
    Waking::everywhere(
        |_| {},
        |home| {
            let at = sureq_core::WallTime(home.now().wall.0 + DUE_MS);
            run(home, &Command::Add(Add { when: When::At(at), ..Add::plain(b"q", b"x") }));
            DUE_MS - 1..=DUE_MS
        },
    );
}

/// Real time, and a wall clock of Redis that is set forward.
#[derive(Default)]
struct SetForward {
    us: AtomicU64,
}

impl Clock for SetForward {
    fn monotonic_ms(&self) -> u64 {
        SystemClock.monotonic_ms()
    }

    fn monotonic_us(&self) -> u64 {
        SystemClock.monotonic_us()
    }

    fn wall_ms(&self) -> Option<u64> {
        self.wall_us().map(|us| us / 1_000)
    }

    fn wall_us(&self) -> Option<u64> {
        let now = SystemTime::UNIX_EPOCH.elapsed().expect("it is later").as_micros();
        Some(now as u64 + self.us.load(Ordering::Acquire))
    }
}

/// No message reports that the wall clock was set.
#[test]
fn a_task_for_a_time_that_comes_early_since_the_wall_clock_is_set() {
    for is_added_first in [true, false] {
        let (server, clock) = (RedisServer::start(), Arc::new(SetForward::default()));
        let open = || {
            let target = Target::parse(&server.url()).expect("a URL");
            RedisHome::open_by(target, Arc::clone(&clock) as _).expect("Redis listens")
        };
        let (waiter, actor) = (open(), open());
        let when = When::At(sureq_core::WallTime(actor.now().wall.0 + 25_000));
        let add = || run(&actor, &Command::Add(Add { when, ..Add::plain(b"q", b"x") }));
        if is_added_first {
            add();
        }
        let ticket = wait_for(&waiter, b"q");
        until("it waits", || waiter.waiters() == 1);
        waiter.look();
        if !is_added_first {
            add();
        }
        clock.us.store(60_000_000, Ordering::Release);
        let (machine, since) = (MachineWatch::start(), Instant::now());
        assert_eq!(answer(&ticket).tasks.len(), 1);
        machine.assert_within(since.elapsed(), Duration::from_secs(5), "the wake-up");
        waiter.close();
        actor.close();
    }
}

#[test]
fn a_task_that_is_returned_with_a_delay() {
    Waking::everywhere(hold_one, |home| {
        let id = leased(home);
        assert_eq!(run(home, &return_task(&id, Some(Place::After(DUE_MS)), None)).list.len(), 1);
        DUE_MS..=DUE_MS
    });
}

#[test]
fn a_task_that_failed_and_is_tried_again() {
    let prepare = |home: &RedisHome| {
        let settings = [Change::BackoffMs(DUE_MS)];
        run(home, &Command::Config { queue: b"q", changes: Changes::List(&settings) });
        hold_one(home);
    };
    Waking::everywhere(prepare, |home| {
        let id = leased(home);
        assert_eq!(run(home, &return_task(&id, None, Some(b"why"))).list.len(), 1);
        // The jitter of the backoff is between a half and one.
        DUE_MS / 2..=DUE_MS
    });
}

#[test]
fn a_lease_that_is_cut_short() {
    let prepare = |home: &RedisHome| {
        push(home, b"q", b"x");
        assert_eq!(pop_leased(home, b"q", 600_000).expect("Redis answers").len(), 1);
    };
    Waking::everywhere(prepare, |home| {
        let id = leased(home);
        run(home, &Command::Extend { queue: b"q", task: reference(&id), ms: DUE_MS });
        DUE_MS..=DUE_MS
    });
}

/// The freed slot wakes the waiters, and the lease that took it returns when to look again. A message about a lease
/// alone matters if its end moves a task to another queue: see `wake_latency.rs`.
#[test]
fn a_lease_that_began_while_others_waited() {
    Waking::from_another_process(fill, |home| {
        take_the_other(home, LeaseAsk { ms: Some(DUE_MS), ..LeaseAsk::NONE });
        DUE_MS..=DUE_MS
    });
}

#[test]
fn a_slot_that_is_freed_and_a_queue_that_is_resumed() {
    Waking::everywhere(fill, |home| {
        let id = leased(home);
        run(home, &Command::Extend { queue: b"q", task: reference(&id), ms: DUE_MS });
        DUE_MS..=DUE_MS
    });
    let prepare = |home: &RedisHome| {
        run(home, &Command::Pause { queue: b"q" });
    };
    Waking::everywhere(prepare, |home| {
        run(home, &Command::Add(Add { when: When::After(DUE_MS), ..Add::plain(b"q", b"x") }));
        run(home, &Command::Resume { queue: b"q" });
        DUE_MS - 200..=DUE_MS
    });
}

/// The soonest deadline counts, also if it is announced later.
#[test]
fn the_soonest_of_several_delays() {
    Waking::everywhere(
        |_| {},
        |home| {
            for ms in [600_000, DUE_MS, 1_200_000] {
                run(home, &Command::Add(Add { when: When::After(ms), ..Add::plain(b"q", b"x") }));
            }
            DUE_MS - 100..=DUE_MS
        },
    );
}

#[test]
fn a_task_that_expires_into_the_queue_that_is_waited_for() {
    Waking::everywhere(
        |_| {},
        |home| {
            let settings = [Change::TtlMs(DUE_MS), Change::Expired(Expired::Dead), Change::DeadLetter(b"q")];
            run(home, &Command::Config { queue: b"d", changes: Changes::List(&settings) });
            push(home, b"d", b"x");
            DUE_MS..=DUE_MS
        },
    );
}

#[test]
fn a_task_whose_last_lease_lapses_into_the_queue_that_is_waited_for() {
    let prepare = |home: &RedisHome| {
        push(home, b"d", b"x");
        assert_eq!(pop_leased(home, b"d", DUE_MS).expect("Redis answers").len(), 1);
    };
    Waking::everywhere(prepare, |home| {
        let settings = [Change::Tries(1), Change::DeadLetter(b"q")];
        run(home, &Command::Config { queue: b"d", changes: Changes::List(&settings) });
        0..=DUE_MS
    });
}

fn add_later(home: &RedisHome) -> std::ops::RangeInclusive<u64> {
    run(home, &Command::Add(Add { when: When::After(DUE_MS), ..Add::plain(b"q", b"x") }));
    DUE_MS..=DUE_MS
}

#[test]
fn waiters_in_a_cluster() {
    let cluster = RedisCluster::start();
    for prefix in ["sureq:", "{one}:"] {
        let url = format!("{}?prefix={prefix}", cluster.url());
        Waking { waiter: open(&url), actor: Some(open(&url)) }.check(|_| {}, add_later);
    }
}

#[test]
fn waiters_behind_sentinels() {
    let all = RedisSentinels::start_with(&[]);
    Waking { waiter: open(&all.url("")), actor: Some(open(&all.url(""))) }.check(|_| {}, add_later);
}

#[test]
fn waiters_whose_subscription_died_silently() {
    let port = free_port();
    let server = RedisServer::start_at(port);
    let proxy = support::swallowing_proxy(port);
    let waiter = open(&format!("redis://{}", proxy.address));
    let other = open(&server.url());
    let ticket = wait_for(&waiter, b"q");
    until("it waits", || waiter.waiters() == 1);
    waiter.look();
    // Existing subscriptions are dead from now on, and receive nothing.
    proxy.swallow();
    push(&other, b"q", b"x");
    let since = Instant::now();
    assert_eq!(answer(&ticket).tasks.len(), 1);
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    waiter.close();
    other.close();
}

/// A paused queue delivers nothing: a push there wakes no waiter until it is resumed.
#[test]
fn a_push_to_a_paused_queue_wakes_no_waiter() {
    let server = RedisServer::start();
    let (waiter, other) = (open(&server.url()), open(&server.url()));
    run(&other, &Command::Pause { queue: b"q" });
    let ticket = wait_for(&waiter, b"q");
    until("it waits", || waiter.waiters() == 1);
    waiter.look();
    let mut pubsub = server.connect();
    let mut pubsub = pubsub.as_pubsub();
    pubsub.psubscribe("sureq:*").expect("it answers");
    for _ in 0..10 {
        push(&other, b"q", b"x");
    }
    run(&other, &Command::Add(Add { when: When::After(5), ..Add::plain(b"q", b"y") }));
    // The last one may have become ready meanwhile.
    let all = info(&other, b"q");
    assert_eq!(all.ready + all.delayed, 11);
    run(&other, &Command::Resume { queue: b"q" });
    let message = pubsub.get_message().expect("resuming publishes a message");
    assert_eq!(message.get_channel_name(), "sureq:work:q");
    let count: u64 = message.get_payload().expect("a count");
    assert!(count >= 10, "{count}");
    assert_eq!(answer(&ticket).tasks.len(), 1);
    waiter.close();
    other.close();
}

/// The number of channels with subscribers.
fn channels(server: &RedisServer) -> usize {
    let all: Vec<String> =
        redis::cmd("PUBSUB").arg("CHANNELS").query(&mut server.connect()).expect("it answers");
    all.len()
}

/// Unused subscriptions are dropped in a few round trips, and messages are received in between.
#[test]
fn a_pop_is_served_right_after_very_many_others_stopped_waiting() {
    const QUEUES: usize = 2_000;
    let port = free_port();
    let server = RedisServer::start_at(port);
    let proxy = FaultyProxy::before((Ipv4Addr::LOCALHOST, port).into());
    let (waiter, other) = (open(&format!("redis://{}", proxy.address)), open(&server.url()));
    let names: Vec<String> = (0..QUEUES).map(|n| format!("q{n}")).collect();
    let queues: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let many: Vec<_> = queues
        .chunks(100)
        .map(|some| waiter.send(&[Command::Pop(Pop { block: Some(Block::Forever), ..Pop::plain(some, 1) })]))
        .collect();
    until("they are subscribed to", || channels(&server) == 2 * QUEUES);
    waiter.dismiss_waiters();
    assert!(many.iter().all(|ticket| answer(ticket).tasks.is_empty()));
    // This makes each round trip take a while.
    proxy.delay(Duration::from_millis(5));
    let ticket = wait_for(&waiter, b"last");
    until("it waits", || waiter.waiters() == 1);
    waiter.look();
    push(&other, b"last", b"x");
    let (machine, since) = (MachineWatch::start(), Instant::now());
    assert_eq!(answer(&ticket).tasks.len(), 1);
    machine.assert_within(since.elapsed(), Duration::from_secs(2), "the wake-up");
    proxy.delay(Duration::ZERO);
    until("only what is needed is left", || channels(&server) <= 2);
    waiter.close();
    other.close();
}
