//! Rule 8 on a real Redis: log time advances at the rate of real time, however many commands there are.

mod support;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::world::World;
use support::{answer, info, open, pop, pop_leased, push, run, wait_for};
use sureq_core::Reply;
use sureq_core::command::{Add, Command, LeaseAsk, Pop, When};
use sureq_redis::{Clock, RedisHome, SystemClock, Target};
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::process::free_port;
use sureq_testkit::proxy::FaultyProxy;
use sureq_testkit::redis_server::RedisServer;

fn add_delayed(home: &RedisHome, queue: &[u8], ms: u64) {
    run(home, &Command::Add(Add { when: When::After(ms), ..Add::plain(queue, b"x") }));
}

/// The number of tasks that a pop of one task returns.
fn popped(home: &RedisHome, queue: &[u8]) -> usize {
    pop(home, queue, 1).expect("Redis answers").len()
}

/// A delay and a lease begin, two processes send a number of commands, and both end on time.
fn ends_on_time(set_wall: impl Fn(&World, usize)) {
    const COMMANDS: usize = 10_000;
    const DELAY_MS: u64 = 5_000;
    let (server, world) = (RedisServer::start(), Arc::new(World::default()));
    let homes = [world.home(&server, 123_456), world.home(&server, 7_890_987)];
    push(&homes[0], b"leased", b"x");
    world.pass(700);
    assert_eq!(pop_leased(&homes[0], b"leased", DELAY_MS).expect("Redis answers").len(), 1);
    add_delayed(&homes[0], b"delayed", DELAY_MS);
    let due_us = world.passed_us() + DELAY_MS * 1_000;
    let mut random = fastrand::Rng::with_seed(7);
    for n in 0..COMMANDS {
        let mean_us = (due_us - 2_000 - world.passed_us()) / (COMMANDS - n) as u64;
        world.pass(random.u64(0..=2 * mean_us).min(due_us - 2_000 - world.passed_us()));
        set_wall(&world, n);
        info(&homes[random.usize(0..2)], b"busy");
    }
    for home in &homes {
        assert_eq!(popped(home, b"delayed"), 0, "a delay ended early");
        assert_eq!(popped(home, b"leased"), 0, "a lease ended early");
    }
    world.pass(due_us + 5_000 - world.passed_us());
    assert_eq!(popped(&homes[1], b"delayed"), 1, "a delay ended late");
    assert_eq!(popped(&homes[1], b"leased"), 1, "a lease ended late");
    homes.iter().for_each(RedisHome::close);
}

/// Version 0.1 carried whole milliseconds, and each command could push log time ahead by a part of one.
#[test]
fn log_time_does_not_creep_with_the_number_of_commands() {
    ends_on_time(|_, _| {});
}

#[test]
fn setting_the_wall_clock_of_redis_does_not_move_log_time() {
    ends_on_time(|world, n| {
        let set_by_us = match n {
            1_000 => 3_600_000_000,
            2_000 => -86_400_000_000,
            3_000 => 1_500_000,
            4_000 => -1_500_000,
            5_000 => 0,
            _ => return,
        };
        world.set_wall_by(set_by_us);
    });
}

/// The clock of this machine with another phase: its milliseconds begin at another moment.
struct Phased(u64);

impl Clock for Phased {
    fn monotonic_ms(&self) -> u64 {
        self.monotonic_us() / 1_000
    }

    fn monotonic_us(&self) -> u64 {
        SystemClock.monotonic_us() + self.0
    }
}

/// The same in real time, while two processes send as many commands as they can.
#[test]
fn a_delay_under_load_is_neither_early_nor_late() {
    const DELAY_MS: u64 = 3_000;
    let server = RedisServer::start_with("redis-server".as_ref(), &["--appendonly", "no"]);
    // One of these two is far from any phase of the wall clock.
    let homes = [250, 750].map(|phase_us| {
        let target = Target::parse(&server.url()).expect("a URL");
        RedisHome::open_by(target, Arc::new(Phased(phase_us))).expect("Redis listens")
    });
    let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for home in &homes {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Acquire) {
                        // It applies what is due in this queue, like every command.
                        info(home, b"q");
                        count.fetch_add(1, Ordering::AcqRel);
                    }
                });
            }
        }
        let (waiter, machine) = (open(&server.url()), MachineWatch::start());
        let since = Instant::now();
        add_delayed(&waiter, b"q", DELAY_MS);
        let added = Instant::now();
        let replies = answer(&wait_for(&waiter, b"q"));
        let (most, least) = (since.elapsed(), added.elapsed());
        is_over.store(true, Ordering::Release);
        println!("after {least:?} and {} commands", count.load(Ordering::Acquire));
        assert_eq!(replies.tasks.len(), 1);
        assert!(most >= Duration::from_millis(DELAY_MS), "delivered early, after {most:?}");
        machine.assert_within(least, Duration::from_millis(DELAY_MS + 1_000), "the delay");
        waiter.close();
    });
    homes.iter().for_each(RedisHome::close);
}

/// The delay of a slow network each way: a script may take it for a step of the clock of Redis.
const SLOW: Duration = Duration::from_millis(1_500);

/// A script rejects a late call, since the clock of Redis may have been set. The repetition is late too, which must
/// not count as a step of the clock either.
#[test]
fn a_call_that_is_late_twice_shortens_neither_a_delay_nor_a_lease() {
    const MS: u64 = 2_500;
    let port = free_port();
    let server = RedisServer::start_at(port);
    let proxy = FaultyProxy::before((Ipv4Addr::LOCALHOST, port).into());
    let (slow, fast) = (open(&format!("redis://{}", proxy.address)), open(&server.url()));
    push(&fast, b"leased", b"x");
    // It learns log time from this answer.
    info(&slow, b"leased");
    proxy.delay(SLOW);
    let (machine, since) = (MachineWatch::start(), Instant::now());
    let lease = LeaseAsk { ms: Some(MS), ..LeaseAsk::NONE };
    let replies = slow.send(&[
        Command::Add(Add { when: When::After(MS), ..Add::plain(b"delayed", b"x") }),
        Command::Pop(Pop { lease, ..Pop::plain(&[b"leased"], 1) }),
    ]);
    assert_eq!(replies.wait().replies.tasks.len(), 1);
    // The first attempt, its answer, and the second attempt took this long.
    let due = 3 * SLOW + Duration::from_millis(MS);
    let waiting = [&b"delayed"[..], b"leased"].map(|queue| wait_for(&fast, queue));
    for ticket in waiting {
        let answer = ticket.wait();
        assert_eq!(answer.replies.tasks.len(), 1, "{:?}", answer.replies.list);
        let after = answer.at - since;
        assert!(after >= due, "ended early, after {after:?} of {due:?}");
        machine.assert_within(after, due + Duration::from_secs(2), "the delay or the lease");
    }
    proxy.delay(Duration::ZERO);
    slow.close();
    fast.close();
}

/// A process that is opened after a step of the clock takes it for time that has passed. Until the others follow it,
/// each of their calls sets the offset of log time, and so do its own.
#[test]
fn concurrent_calls_after_a_step_of_the_wall_clock_are_all_executed() {
    let (server, world) = (RedisServer::start(), Arc::new(World::default()));
    let older = world.home(&server, 123_456);
    info(&older, b"q");
    world.pass(1_000_000);
    world.set_wall_by(1_500_000);
    let newer = world.home(&server, 7_890_987);
    info(&newer, b"q");
    world.set_late(100);
    for _ in 0..50 {
        let homes = [&older, &older, &newer].into_iter().cycle().take(30);
        let tickets: Vec<_> = homes.map(|home| home.send(&[Command::Info { queue: b"q" }])).collect();
        for ticket in tickets {
            let replies = answer(&ticket);
            assert!(matches!(replies.list[..], [Reply::Info(_)]), "{:?}", replies.list);
        }
        world.pass(50_000);
    }
    older.close();
    newer.close();
}
