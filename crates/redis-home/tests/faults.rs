//! Redis loses its scripts, closes connections, dies and restarts: nothing confirmed is lost, and homes recover by
//! themselves.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use redis::{Value, cmd};
use support::monitor::Monitor;
use support::{
    Direction, ack, answer, cutting_proxy, info, open, pop, pop_held_by, push, run, until, wait_for,
};
use sureq_core::command::Pop;
use sureq_core::{Command, Refusal, Reply};
use sureq_home_api::Home as _;
use sureq_testkit::process::free_port;
use sureq_testkit::proxy::FaultyProxy;
use sureq_testkit::redis_server::RedisServer;

#[test]
fn lost_functions_and_scripts_are_loaded_again() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let mut admin = server.connect();
    for round in 0..3 {
        cmd("FUNCTION").arg("FLUSH").exec(&mut admin).unwrap();
        cmd("SCRIPT").arg("FLUSH").exec(&mut admin).unwrap();
        assert!(matches!(push(&home, b"q", b"x"), Reply::Pushed(_)), "round {round}");
    }
    assert_eq!(info(&home, b"q").ready, 3);
    home.close();
}

#[test]
fn a_user_without_the_right_to_load_functions_gets_scripts() {
    let server = RedisServer::start();
    let mut admin = server.connect();
    let rules = ["on", ">secret", "~*", "&*", "+@all", "-function"];
    cmd("ACL").arg("SETUSER").arg("worker").arg(&rules[..]).exec(&mut admin).unwrap();
    let home = open(&format!("{}?user=worker&pass=secret", server.url()));
    assert!(matches!(push(&home, b"q", b"x"), Reply::Pushed(_)));
    cmd("SCRIPT").arg("FLUSH").exec(&mut admin).unwrap();
    assert_eq!(pop(&home, b"q", 1).unwrap()[0].0, b"x");
    let stats: String = cmd("INFO").arg("commandstats").query(&mut admin).unwrap();
    assert!(stats.contains("cmdstat_evalsha") && !stats.contains("cmdstat_fcall:"), "{stats}");
    server.check("sureq:");
    home.close();
}

#[test]
fn an_eviction_policy_that_loses_tasks_is_reported() {
    let lossy = RedisServer::start_with("redis-server".as_ref(), &["--maxmemory-policy", "allkeys-lru"]);
    let home = open(&lossy.url());
    assert!(home.warnings()[0].contains("set it to noeviction"), "{:?}", home.warnings());
    let safe = RedisServer::start();
    let safe_home = open(&safe.url());
    assert!(safe_home.warnings().is_empty());
    home.close();
    safe_home.close();
}

#[test]
fn tasks_held_by_connections_of_a_dead_home_are_requeued() {
    let server = RedisServer::start();
    let dead = open(&server.url());
    push(&dead, b"q", b"x");
    let mut monitor = Monitor::new(&server);
    assert_eq!(pop_held_by(&dead, b"q", 7).unwrap().len(), 1);
    // Its first connection that holds a task makes it send a heartbeat, the next one follows ten seconds later.
    monitor.wait_for("home");
    // The dead home did not close, its last heartbeat is long ago, and so is its last chance to send one: the score
    // ends in a half.
    let mut admin = server.connect();
    let homes: Vec<String> = cmd("ZRANGE").arg("sureq:homes").arg(0).arg(-1).query(&mut admin).unwrap();
    assert_eq!(homes.len(), 1);
    cmd("ZADD").arg("sureq:homes").arg(0.5).arg(&homes[0]).exec(&mut admin).unwrap();
    let home = open(&server.url());
    assert_eq!((info(&home, b"q").ready, info(&home, b"q").leased), (1, 0));
    server.check("sureq:");
    home.close();
    dead.close();
}

#[test]
fn tasks_pushed_after_a_purge_stay_however_many_steps_it_takes() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let payloads = vec![&b"old"[..]; 2500];
    let purge = Command::Purge { queue: b"q", state: None };
    let commands = [
        Command::Push { queue: b"q", payloads: &payloads },
        purge,
        Command::Push { queue: b"q", payloads: &[b"new"] },
    ];
    let (mut done, mut counts) = (0, Vec::new());
    while done < commands.len() {
        let ticket = home.send(&commands[done..]);
        let replies = answer(&ticket);
        done += replies.list.len();
        counts.extend(replies.list.iter().filter_map(|reply| match reply {
            Reply::Count(n) => Some(*n),
            _ => None,
        }));
    }
    assert_eq!(counts, [2500]);
    assert_eq!(pop(&home, b"q", 9).unwrap().iter().map(|task| &task.0[..]).collect::<Vec<_>>(), [b"new"]);
    server.check("sureq:");
    home.close();
}

#[test]
fn with_a_full_memory_only_pushes_are_refused() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push(&home, b"q", b"x");
    let mut admin = server.connect();
    cmd("CONFIG").arg("SET").arg("maxmemory").arg("1").exec(&mut admin).unwrap();
    assert_eq!(push(&home, b"q", b"y"), Reply::Refused(Refusal::OutOfMemory));
    let taken = pop(&home, b"q", 1).unwrap();
    assert!(matches!(ack(&home, b"q", &taken[0].1), Reply::Acked(span) if span.len() == 1));
    server.check("sureq:");
    home.close();
}

#[test]
fn a_user_without_channels_loses_nothing() {
    let server = RedisServer::start();
    let mut admin = server.connect();
    let rules = ["on", ">secret", "~*", "resetchannels", "+@all"];
    cmd("ACL").arg("SETUSER").arg("mute").arg(&rules[..]).exec(&mut admin).unwrap();
    let home = open(&format!("{}?user=mute&pass=secret", server.url()));
    assert!(home.warnings()[0].contains("ACL SETUSER <user> &sureq:*"), "{:?}", home.warnings());
    let pushed: BTreeSet<String> = (0..50)
        .map(|_| run(&home, &Command::Push { queue: b"q", payloads: &[b"x"] }).ids[0].to_string())
        .collect();
    assert_eq!((pushed.len(), info(&home, b"q").ready), (50, 50));
    server.check("sureq:");
    home.close();
}

#[test]
fn a_user_without_channels_can_wait_without_reconnecting() {
    let server = RedisServer::start();
    let mut admin = server.connect();
    // It may receive messages about one queue and not about the other.
    let rules = ["on", ">secret", "~*", "resetchannels", "&sureq:*:open", "+@all"];
    cmd("ACL").arg("SETUSER").arg("mute").arg(&rules[..]).exec(&mut admin).unwrap();
    let (home, other) = (open(&format!("{}?user=mute&pass=secret", server.url())), open(&server.url()));
    let mut connections = || -> u64 {
        let stats: String = cmd("INFO").arg("stats").query(&mut admin).unwrap();
        let lines = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        lines.and_then(|n| n.parse().ok()).expect("a number")
    };
    let before = connections();
    for round in 0..3 {
        let (open_one, closed_one) = (wait_for(&home, b"open"), wait_for(&home, b"closed"));
        until("both wait", || home.waiters() == 2);
        push(&other, b"open", b"x");
        assert_eq!(answer(&open_one).tasks[0].body, b"x", "round {round}");
        push(&other, b"closed", b"y");
        assert_eq!(answer(&closed_one).tasks[0].body, b"y", "round {round}");
    }
    assert!(connections() - before <= 3, "{} new connections", connections() - before);
    home.close();
    other.close();
}

#[test]
fn a_connection_that_is_cut_anywhere_leaves_every_task_in_one_place() {
    let port = free_port();
    let server = RedisServer::start_at(port);
    let direct = open(&server.url());
    // First a home sends the library, and Redis describes itself. That is most of the traffic, and rarely cut.
    let described: String = cmd("INFO").query(&mut server.connect()).expect("it answers");
    let ways = [
        (Direction::ToServer, library_bytes(&server), 2_400, 30),
        (Direction::FromServer, described.len() - 100, 1_200, 10),
    ];
    for (way, before, rest, step) in ways {
        let cuts = (0..before).step_by(before / 10).chain((before..before + rest).step_by(step));
        let (mut all_sure, mut all_unsure) = (0, 0);
        for cut in cuts {
            let queue = format!("{way:?} {cut}").into_bytes();
            let address = cutting_proxy(port, cut, way);
            let url = format!("redis://{address}");
            // If the home cannot be opened, nothing was done.
            let Ok(home) = sureq_redis::RedisHome::open(sureq_redis::Target::parse(&url).unwrap()) else {
                continue;
            };
            let first = push(&home, &queue, b"one");
            let second = push(&home, &queue, b"two");
            let taken = pop(&home, &queue, 1);
            let acked = taken.as_ref().ok().and_then(|tasks| Some(ack(&home, &queue, &tasks.first()?.1)));
            home.close();
            server.check("sureq:");
            let there = info(&direct, &queue);
            let is_sure = |reply: &Reply| matches!(reply, Reply::Pushed(_));
            let is_unsure = |reply: &Reply| matches!(reply, Reply::Refused(Refusal::Unknown { .. }));
            let sure = [&first, &second].iter().filter(|reply| is_sure(reply)).count() as u64;
            let unsure = [&first, &second].iter().filter(|reply| is_unsure(reply)).count() as u64;
            let done = u64::from(matches!(acked, Some(Reply::Acked(span)) if span.len() == 1));
            let maybe_done = u64::from(matches!(acked, Some(Reply::Refused(Refusal::Unknown { .. }))));
            let count = there.ready + there.leased;
            let (least, most) = (sure.saturating_sub(done + maybe_done), sure + unsure - done);
            assert!(
                (least..=most).contains(&count),
                "{way:?} cut at {cut}: {count}, {first:?} {second:?} {acked:?}"
            );
            all_sure += done;
            all_unsure += unsure + maybe_done;
        }
        assert!(
            all_sure > 5 && all_unsure > 5,
            "{way:?}: cuts must come before, between and after the commands: {all_sure}, {all_unsure}"
        );
    }
    direct.close();
}

/// The length of the library that the homes of a server have loaded.
fn library_bytes(server: &RedisServer) -> usize {
    let listed = cmd("FUNCTION").arg("LIST").arg("WITHCODE").query(&mut server.connect());
    let libraries: Vec<BTreeMap<String, Value>> = listed.expect("it has functions");
    let codes = libraries.iter().map(|library| match &library["library_code"] {
        Value::BulkString(code) => code.len(),
        other => panic!("{other:?}"),
    });
    codes.sum()
}

#[test]
fn a_pop_keeps_waiting_when_redis_restarts() {
    let mut server = RedisServer::start();
    let (home, other) = (open(&server.url()), open(&server.url()));
    let ticket = wait_for(&home, b"q");
    until("it waits", || home.waiters() == 1);
    // A pop that is being tried when Redis dies has an unknown outcome; this waits until none is.
    home.look();
    server.crash();
    until("pushes succeed again", || matches!(push(&other, b"q", b"x"), Reply::Pushed(_)));
    let replies = answer(&ticket);
    assert!(matches!(replies.list[0], Reply::Tasks(_)), "{:?}", replies.list);
    assert_eq!(replies.tasks[0].body, b"x");
    home.close();
    other.close();
}

/// The connection is lost in the middle of the answer to the second slice: nobody got its tasks, so the pop is unknown,
/// and the tasks of the first slice go back.
#[test]
fn a_pop_with_an_unknown_slice_is_unknown_and_requeues_the_slices_before() {
    let port = free_port();
    let server = RedisServer::start_at(port);
    let proxy = FaultyProxy::before((Ipv4Addr::LOCALHOST, port).into());
    let (home, plain) = (open(&format!("redis://{}", proxy.address)), open(&server.url()));
    let payloads: Vec<String> = (0..1_000).map(|n| format!("{n:01000}")).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(String::as_bytes).collect();
    run(&plain, &Command::Push { queue: b"q", payloads: &payloads });
    assert_eq!(info(&home, b"q").ready, 1_000);
    // An answer with two hundred tasks has more than 200 KB and less than 250 KB.
    proxy.cut_after(300_000);
    let reply = run(&home, &Command::Pop(Pop::plain(&[b"q"], 1_000))).list.remove(0);
    assert!(matches!(reply, Reply::Refused(Refusal::Unknown { .. })), "{reply:?}");
    let left = info(&plain, b"q");
    assert_eq!((left.ready, left.leased), (800, 200));
    assert_eq!(pop(&plain, b"q", 1).expect("a pop")[0].0, payloads[0], "it is at its place");
    // The caller of a pop that is unknown recovers what that took.
    let recovered = run(&plain, &Command::Recover { queue: b"q", count: 1_000, elapsed_ms: 0 });
    assert_eq!(recovered.tasks.len(), 201);
    server.check("sureq:");
    home.close();
    plain.close();
}
