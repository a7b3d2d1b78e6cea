//! The end of a worker or a connection takes several scripts. Regardless of other events between them, all its tasks
//! are requeued once and in order, no others are, and each script does a bounded amount of work.

mod support;

use std::path::Path;
use std::sync::Arc;

use redis::{Connection, cmd};
use support::world::{START_US, World};
use support::{by, info, open, pop, run, start};
use sureq_core::Reply;
use sureq_core::command::{AckScope, Command, ConnId, IdForm, LeaseAsk, Pop, TaskRefs, Worker, WorkerRef};
use sureq_home_api::Home as _;
use sureq_redis::RedisHome;
use sureq_testkit::redis_server::RedisServer;

/// How many tasks one script moves.
const SLICE: usize = 200;

const LONG_MS: u64 = 600_000;

/// The time without a heartbeat after which a home counts as silent, and then as lost; each with a margin.
const SILENT_US: u64 = 15_100_000;

/// The time after which an ending is retried that a foreign key prevented.
const AGAIN_US: u64 = 2_100_000;

fn held_by(conn: u64) -> LeaseAsk<'static> {
    LeaseAsk { conn: Some(ConnId(conn)), ..LeaseAsk::NONE }
}

/// Pushes tasks that are numbered from 0 on.
fn fill(home: &RedisHome, queue: &[u8], count: usize) {
    let payloads: Vec<String> = (0..count).map(|n| n.to_string()).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(String::as_bytes).collect();
    let pushed = run(home, &Command::Push { queue, payloads: &payloads });
    assert!(matches!(pushed.list[0], Reply::Pushed(_)), "{:?}", pushed.list);
}

/// Takes tasks; returns their receipts.
fn take(home: &RedisHome, lease: LeaseAsk<'_>, queues: &[&[u8]], count: usize) -> Vec<String> {
    let taken = run(home, &Command::Pop(Pop { lease, ..Pop::plain(queues, count as u32) }));
    assert_eq!(taken.tasks.len(), count, "{:?}", taken.list);
    taken.tasks.iter().map(|task| task.receipt().to_string()).collect()
}

/// Fills a queue with this many tasks and takes all of them.
fn hold(home: &RedisHome, lease: LeaseAsk<'_>, queue: &[u8], count: usize) {
    fill(home, queue, count);
    take(home, lease, &[queue], count);
}

fn numbers(home: &RedisHome, queue: &[u8], count: usize) -> Vec<usize> {
    let taken = pop(home, queue, count as u32).expect("a pop");
    taken.iter().map(|(body, _)| String::from_utf8_lossy(body).parse().expect("a number")).collect()
}

fn counted(home: &RedisHome, command: &Command<'_>) -> usize {
    match &run(home, command).list[..] {
        [Reply::Count(n)] => *n as usize,
        other => panic!("{other:?}"),
    }
}

fn set(raw: &mut Connection, key: &str) {
    cmd("SET").arg(key).arg("odd").exec(raw).expect("it answers");
}

fn del(raw: &mut Connection, key: &str) {
    cmd("DEL").arg(key).exec(raw).expect("it answers");
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("q{n}")).collect()
}

/// The other homes are silent, one is noticed as such, and they stay silent. The next script ends the first of them.
fn lose(world: &World, witness: &RedisHome) {
    world.pass(SILENT_US);
    info(witness, b"other");
    world.pass(SILENT_US);
}

/// How many tasks of these queues are leased according to their keys, without calling a script.
fn leased(raw: &mut Connection, queues: &[String]) -> usize {
    let mut sum = 0;
    for queue in queues {
        sum +=
            cmd("ZCARD").arg(format!("sureq:q:{{{queue}}}:leased")).query::<usize>(raw).expect("it answers");
    }
    sum
}

/// Lets scripts continue what is due, while time stands still; returns how many tasks of these queues are still held.
fn go_on(home: &RedisHome, raw: &mut Connection, queues: &[String]) -> usize {
    let (mut left, mut idle) = (leased(raw, queues), 0);
    while left > 0 && idle < 100 {
        info(home, b"other");
        let busy = queues.iter().find(|queue| leased(raw, std::slice::from_ref(queue)) > 0);
        if let Some(queue) = busy {
            info(home, queue.as_bytes());
        }
        let now = leased(raw, queues);
        idle = if now < left { 0 } else { idle + 1 };
        left = now;
    }
    left
}

/// If nothing lists the queues of a worker, all are searched. A script that ends in the middle of the search is
/// followed by one that continues there.
#[test]
fn a_search_for_tasks_of_a_worker_continues_where_it_stopped() {
    for count in [SLICE - 1, SLICE, SLICE + 1, 500] {
        let server = RedisServer::start();
        let home = open(&server.url());
        let worker = start(&home, b"w", LONG_MS);
        hold(&home, by(worker), b"large", count);
        for n in 0..10 {
            hold(&home, by(worker), format!("small{n}").as_bytes(), 5);
        }
        set(&mut server.connect(), &format!("sureq:worker:w#{}:queues", worker.incarnation));
        assert_eq!(counted(&home, &Command::Worker(Worker::Fail { name: b"w" })), count + 50);
        support::until("all are requeued", || info(&home, b"large").ready == count as u64);
        assert!(numbers(&home, b"large", count).into_iter().eq(0..count), "their order is kept");
        for n in 0..10 {
            assert_eq!(numbers(&home, format!("small{n}").as_bytes(), 5), [0, 1, 2, 3, 4]);
        }
        home.close();
    }
}

/// The same for the connections of a silent home.
#[test]
fn a_search_for_tasks_of_a_home_continues_where_it_stopped() {
    let (server, world) = (RedisServer::start(), Arc::new(World::default()));
    let (home, other) = (world.home(&server, 1_000_000), world.home(&server, 2_000_000));
    let queues = [b"a", b"b", b"c"].map(|name| String::from_utf8_lossy(name).into_owned());
    for queue in &queues {
        hold(&home, held_by(1), queue.as_bytes(), 500);
    }
    let mut raw = server.connect();
    let keys: Vec<String> = cmd("KEYS").arg("sureq:home:*").query(&mut raw).expect("it answers");
    set(&mut raw, &keys[0]);
    lose(&world, &other);
    assert_eq!(go_on(&other, &mut raw, &queues), 0);
    for queue in &queues {
        assert!(
            numbers(&other, queue.as_bytes(), 500).into_iter().eq(0..500),
            "{queue}: their order is kept"
        );
    }
    other.close();
    home.close();
}

/// Lets a holder take a few tasks of each of many queues.
fn hold_of_each(home: &RedisHome, lease: LeaseAsk<'_>, queues: &[String], pushed: usize, taken: usize) {
    for queue in queues {
        fill(home, queue.as_bytes(), pushed);
    }
    for some in queues.chunks(50) {
        for _ in 0..taken {
            for queue in some {
                take(home, lease, &[queue.as_bytes()], 1);
            }
        }
    }
}

/// A cursor in a set of queues is invalid after a restart of Redis, since the order of the set changes.
#[test]
fn a_restart_of_redis_while_a_worker_ends_skips_none_of_its_queues() {
    let (mut server, world) = (RedisServer::start(), Arc::new(World::default()));
    let home = world.home(&server, 1_000_000);
    let queues = names(400);
    hold_of_each(&home, by(start(&home, b"w", 1_000)), &queues, 1, 1);
    world.pass(1_100_000);
    info(&home, b"other");
    let left = leased(&mut server.connect(), &queues);
    assert!((100..400).contains(&left), "{left} are left after the first script");
    server.restart();
    assert_eq!(go_on(&home, &mut server.connect(), &queues), 0);
    server.check("sureq:");
    home.close();
}

/// Workers that cannot be ended, since a foreign key is in the way in the one queue that they hold tasks of.
fn hold_up<'a>(
    world: &World,
    home: &RedisHome,
    raw: &mut Connection,
    workers: &'a [String],
) -> Vec<WorkerRef<'a>> {
    fill(home, b"odd", workers.len());
    let started: Vec<WorkerRef<'_>> =
        workers.iter().map(|name| start(home, name.as_bytes(), 1_000)).collect();
    for worker in &started {
        take(home, by(*worker), &[b"odd"], 1);
    }
    set(raw, "sureq:q:{odd}:dead");
    world.pass(1_100_000);
    let ended = |raw: &mut Connection| cmd("HLEN").arg("sureq:gone").query::<usize>(raw).expect("it answers");
    for _ in 0..workers.len() {
        info(home, b"other");
    }
    assert_eq!(ended(raw), workers.len());
    started
}

/// Without packing, a page of the list of endings has as many entries as requested.
fn start_without_packing() -> RedisServer {
    RedisServer::start_with(Path::new("redis-server"), &["--hash-max-listpack-entries", "0"])
}

fn odd() -> [String; 1] {
    ["odd".to_owned()]
}

/// The same for the list of holders that are being ended.
#[test]
fn a_restart_of_redis_while_many_workers_end_skips_none_of_them() {
    let (mut server, world) = (start_without_packing(), Arc::new(World::default()));
    let home = world.home(&server, 1_000_000);
    let workers = names(200);
    hold_up(&world, &home, &mut server.connect(), &workers);
    del(&mut server.connect(), "sureq:q:{odd}:dead");
    world.pass(AGAIN_US);
    for _ in 0..6 {
        info(&home, b"other");
    }
    let left = leased(&mut server.connect(), &odd());
    assert!((50..150).contains(&left), "{left} are left");
    server.restart();
    go_on(&home, &mut server.connect(), &odd());
    // A holder that was skipped is tried again two seconds later.
    world.pass(AGAIN_US);
    assert_eq!(go_on(&home, &mut server.connect(), &odd()), 0);
    server.check("sureq:");
    home.close();
}

/// A holder that is added to the list of endings before the current position of the search gets its turn at once.
#[test]
fn an_ending_that_begins_during_others_is_not_forgotten() {
    let (server, world) = (start_without_packing(), Arc::new(World::default()));
    let home = world.home(&server, 1_000_000);
    let (workers, late) = (names(200), (0..20).map(|n| format!("late{n}")).collect::<Vec<_>>());
    let mut raw = server.connect();
    hold_up(&world, &home, &mut raw, &workers);
    // These are lost when the others are tried again, and each of them takes two scripts.
    for name in &late {
        let worker = start(&home, name.as_bytes(), AGAIN_US / 1_000 + 100);
        hold(&home, by(worker), name.as_bytes(), SLICE);
        hold(&home, by(worker), format!("{name} too").as_bytes(), 1);
    }
    del(&mut raw, "sureq:q:{odd}:dead");
    world.pass(AGAIN_US);
    for _ in 0..6 {
        info(&home, b"other");
    }
    let left = leased(&mut raw, &odd());
    assert!((50..150).contains(&left), "{left} are left");
    world.pass(200_000);
    let mut queues: Vec<String> =
        late.iter().flat_map(|name| [name.clone(), format!("{name} too")]).collect();
    queues.push("odd".to_owned());
    assert_eq!(go_on(&home, &mut raw, &queues), 0, "while time stands still");
    server.check("sureq:");
    home.close();
}

fn acked(home: &RedisHome, queue: &[u8], receipt: &str) -> usize {
    let tasks = TaskRefs { list: &[receipt.as_bytes()], form: IdForm::Long };
    run(home, &Command::Ack { queue, tasks, scope: AckScope::Leased }).indexes.len()
}

/// A home is silent for too long and then continues. Its connections lose the tasks that they held, and keep those
/// that they take afterwards, until they are closed.
#[test]
fn a_connection_that_counted_as_lost_keeps_tasks_that_it_pops_afterwards() {
    let (server, world) = (RedisServer::start(), Arc::new(World::default()));
    let (home, other) = (world.home(&server, 1_000_000), world.home(&server, 2_000_000));
    let queues = names(800);
    hold_of_each(&home, held_by(7), &queues, 2, 1);
    let mut raw = server.connect();
    lose(&world, &other);
    info(&other, b"other");
    world.pass(5_000);
    let some: Vec<&[u8]> = queues[..SLICE].iter().map(String::as_bytes).collect();
    let taken = run(&home, &Command::Pop(Pop { lease: held_by(7), ..Pop::plain(&some, 150) }));
    let mut kept: Vec<(&String, String)> =
        taken.tasks.iter().map(|task| (&queues[task.queue as usize], task.receipt().to_string())).collect();
    assert_eq!(kept.len(), 150);
    // Queues in which two tasks are held, one of them taken afterwards: the end of the connection has not reached
    // those.
    let mut finished = 0;
    while let Some(at) = kept.iter().position(|(queue, _)| is_unreached(&mut raw, queue)) {
        let (queue, receipt) = kept.swap_remove(at);
        assert_eq!(acked(&home, queue.as_bytes(), &receipt), 1, "{queue}");
        finished += 1;
    }
    assert!(finished > 0, "its end was done with the first script");
    for _ in 0..50 {
        info(&other, b"other");
    }
    assert_eq!(leased(&mut raw, &queues), kept.len());
    for (queue, receipt) in kept.drain(..50) {
        assert_eq!(acked(&home, queue.as_bytes(), &receipt), 1, "{queue}");
    }
    home.close_conn(ConnId(7));
    home.look();
    assert_eq!(leased(&mut raw, &queues), 0);
    for (queue, receipt) in kept {
        assert_eq!(acked(&home, queue.as_bytes(), &receipt), 0, "{queue}");
    }
    server.check("sureq:");
    home.close();
    other.close();
}

/// Whether a queue has two leased tasks that were not delivered at the same time.
fn is_unreached(raw: &mut Connection, queue: &str) -> bool {
    let script = "local at = {} for _, id in ipairs(redis.call('ZRANGE', KEYS[1] .. ':leased', 0, -1)) do \
        at[#at + 1] = cmsgpack.unpack(redis.call('HGET', KEYS[1] .. ':task', id)).at end \
        return at[2] and at[1] ~= at[2] and 1 or 0";
    let key = format!("sureq:q:{{{queue}}}");
    cmd("EVAL").arg(script).arg(1).arg(key).query::<u8>(raw).expect("it answers") == 1
}

/// The connection is closed before all the tasks that it lost are requeued.
#[test]
fn a_closed_connection_that_counted_as_lost_leaves_no_leases() {
    let (server, world) = (RedisServer::start(), Arc::new(World::default()));
    let (home, other) = (world.home(&server, 1_000_000), world.home(&server, 2_000_000));
    let queues = names(400);
    hold_of_each(&home, held_by(7), &queues, 2, 1);
    let mut raw = server.connect();
    lose(&world, &other);
    info(&other, b"other");
    world.pass(5_000);
    take(&home, held_by(7), &[queues[399].as_bytes()], 1);
    take(&home, held_by(7), &[queues[398].as_bytes()], 1);
    assert!(leased(&mut raw, &queues) > 100, "its end is not done");
    home.close_conn(ConnId(7));
    home.look();
    assert_eq!(leased(&mut raw, &queues), 0);
    server.check("sureq:");
    home.close();
    other.close();
}

/// How Redis was away for longer than a home may be silent, and which home calls it first afterwards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Away {
    Hung,
    HungAndTheHomeCallsFirst,
    Restarted,
}

/// No home can send a heartbeat while Redis is away. Homes get a while to do so afterwards, whichever calls first.
#[test]
fn a_home_that_could_not_send_heartbeats_while_redis_was_away_keeps_its_tasks() {
    for away in [Away::Hung, Away::HungAndTheHomeCallsFirst, Away::Restarted] {
        let (mut server, world) = (RedisServer::start(), Arc::new(World::default()));
        let (home, other) = (world.home(&server, 1_000_000), world.home(&server, 2_000_000));
        fill(&home, b"q", 1);
        let receipt = take(&home, held_by(7), &[b"q"], 1).remove(0);
        home.look();
        world.pass(36_000_000);
        match away {
            Away::Hung => {}
            // This sends its heartbeat.
            Away::HungAndTheHomeCallsFirst => home.look(),
            Away::Restarted => server.restart(),
        }
        assert!(numbers(&other, b"q", 1).is_empty(), "the task is not held");
        // A heartbeat that failed is repeated by then.
        world.pass(13_000_000);
        assert!(numbers(&other, b"q", 1).is_empty(), "the task is not held");
        home.look();
        world.pass(14_000_000);
        assert!(numbers(&other, b"q", 1).is_empty(), "the task is not held");
        assert_eq!(acked(&home, b"q", &receipt), 1);
        server.check("sureq:");
        other.close();
        home.close();
    }
}

/// A home without connections that hold tasks sends no heartbeats, and counts as silent in time. If it takes a task in
/// its last chance, before the next heartbeat, it is alive all the same.
#[test]
fn a_home_that_was_about_to_be_lost_keeps_what_it_takes() {
    let (server, world) = (RedisServer::start(), Arc::new(World::default()));
    let (home, other) = (world.home(&server, 1_000_000), world.home(&server, 2_000_000));
    hold(&home, held_by(1), b"first", 1);
    home.close_conn(ConnId(1));
    home.look();
    world.pass(SILENT_US);
    // This notices that it is silent.
    assert_eq!(info(&other, b"first").leased, 0);
    world.pass(14_900_000);
    fill(&home, b"q", 1);
    let receipt = take(&home, held_by(2), &[b"q"], 1).remove(0);
    world.pass(200_000);
    assert!(numbers(&other, b"q", 1).is_empty(), "the task is not held");
    // By then it has sent a heartbeat.
    world.pass(9_800_000);
    home.look();
    world.pass(14_900_000);
    assert!(numbers(&other, b"q", 1).is_empty(), "the task is not held");
    assert_eq!(acked(&home, b"q", &receipt), 1);
    server.check("sureq:");
    home.close();
    other.close();
}

/// How long a home lives without a heartbeat in release 3b1bd39, which is also what it writes.
const LIFE_BEFORE_MS: u64 = 30_000;

/// While a deployment is rolled out, that release and this one share the heartbeats. It ends a home at once whose score
/// is reached.
#[test]
fn homes_of_the_release_before_and_of_this_one_let_each_other_live() {
    let (server, world) = (RedisServer::start(), Arc::new(World::default()));
    let (home, other) = (world.home(&server, 1_000_000), world.home(&server, 2_000_000));
    fill(&home, b"q", 1);
    let receipt = take(&home, held_by(7), &[b"q"], 1).remove(0);
    let mut raw = server.connect();
    let log_ms = || i64::try_from((START_US + world.passed_us()) / 1_000).expect("it is short");
    let mut beat_of = || {
        let homes: Vec<(String, String)> =
            cmd("ZRANGE").arg("sureq:homes").arg(&["0", "-1", "WITHSCORES"]).query(&mut raw).expect("a set");
        let (home, score) = homes.into_iter().next().expect("the home is there");
        let whole_ms = score.split('.').next().expect("the score is not empty");
        (home, whole_ms.parse::<i64>().expect("the score is a number"))
    };
    let mut assert_lives = |when: &str| {
        let ends_in_ms = beat_of().1 - log_ms();
        assert!(ends_in_ms > 0, "{when}: the release before has ended it {} ms ago", -ends_in_ms);
    };
    for is_first in [true, false] {
        if !is_first {
            home.look();
        }
        world.pass((LIFE_BEFORE_MS - 100) * 1_000);
        assert_lives("it may be silent as long as then");
    }
    // This release notices that it is silent, and gives it a last chance.
    info(&other, b"other");
    world.pass(14_900_000);
    assert_lives("it has a last chance");
    home.look();
    assert_eq!(acked(&home, b"q", &receipt), 1);
    // A home of the release before is silent as soon as one of this release, and lost as soon.
    hold(&home, held_by(7), b"q", 1);
    let name = beat_of().0;
    let beaten = log_ms() + i64::try_from(LIFE_BEFORE_MS).expect("it is short");
    cmd("ZADD").arg("sureq:homes").arg(beaten).arg(&name).exec(&mut server.connect()).expect("it answers");
    info(&other, b"other");
    world.pass(14_900_000);
    info(&other, b"other");
    assert_eq!(beat_of().1, beaten, "it is not silent yet");
    world.pass(200_000);
    info(&other, b"other");
    world.pass(14_900_000);
    assert!(numbers(&other, b"q", 1).is_empty(), "it is not lost yet");
    world.pass(200_000);
    assert_eq!(numbers(&other, b"q", 1), [0]);
    server.check("sureq:");
    home.close();
    other.close();
}
