//! A home whose Redis hangs can be closed: that takes a few seconds, and every caller gets a truthful reply.

mod support;

use std::time::{Duration, Instant};

use redis::cmd;
use support::monitor::Monitor;
use support::{answer, open, pop, pop_held_by, pop_in, push, until, wait_for};
use sureq_core::command::{Block, Command, Pop};
use sureq_core::{Refusal, Reply};
use sureq_home_api::{Home as _, Ticket};
use sureq_redis::{RedisHome, Target};
use sureq_testkit::process::free_port;
use sureq_testkit::redis_cluster::RedisCluster;
use sureq_testkit::redis_sentinels::RedisSentinels;
use sureq_testkit::redis_server::RedisServer;

/// Three seconds of timeout, and the delay of a busy machine.
const CLOSES_WITHIN: Duration = Duration::from_secs(15);

/// Closes a home whose Redis hangs, and checks the time.
fn close(home: &RedisHome) {
    let since = Instant::now();
    home.close();
    assert!(since.elapsed() < CLOSES_WITHIN, "closing took {:?}", since.elapsed());
}

fn is_unknown(ticket: &Ticket) -> bool {
    let replies = answer(ticket);
    println!("{:?}", replies.list);
    replies.list.iter().all(|reply| matches!(reply, Reply::Refused(Refusal::Unknown { .. })))
}

fn start_push(home: &RedisHome) -> Ticket {
    home.send(&[Command::Push { queue: b"q", payloads: &[b"x"] }])
}

#[test]
fn commands_that_were_sent_are_unknown_and_a_waiting_pop_got_nothing() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push(&home, b"held", b"x");
    assert_eq!(pop_held_by(&home, b"held", 7).expect("a pop").len(), 1);
    let idle = wait_for(&home, b"idle");
    until("it waits", || home.waiters() == 1);
    home.look();
    server.suspend();
    let (pushed, waiting) = (start_push(&home), wait_for(&home, b"other"));
    let purged = home.send(&[Command::Purge { queue: b"q", state: None }]);
    close(&home);
    assert!(is_unknown(&pushed) && is_unknown(&waiting) && is_unknown(&purged));
    assert_eq!(answer(&idle).list, [Reply::TimedOut]);
    assert_eq!(push(&home, b"q", b"y"), Reply::Refused(Refusal::Closed));
    server.resume();
}

#[test]
fn a_waiting_pop_that_is_being_tried_is_unknown() {
    let server = RedisServer::start();
    let (home, other) = (open(&server.url()), open(&server.url()));
    let ticket = wait_for(&home, b"q");
    until("it waits", || home.waiters() == 1);
    home.look();
    // A script that takes long: commands are sent meanwhile, and not answered.
    let mut monitor = Monitor::new(&server);
    let busy = std::thread::spawn({
        let mut admin = server.connect();
        move || cmd("EVAL").arg("while true do end").arg(0).exec(&mut admin)
    });
    monitor.wait_for("while true do end");
    home.dismiss_waiters();
    let looked = std::thread::spawn({
        let home = home.clone();
        move || home.look()
    });
    let reply = answer(&ticket).list.remove(0);
    // Either the pop times out before it is tried, or it is tried and gets no answer: both replies are truthful.
    assert!(matches!(reply, Reply::TimedOut | Reply::Refused(Refusal::Unknown { .. })), "{reply:?}");
    server.suspend();
    close(&home);
    close(&other);
    server.resume();
    cmd("SCRIPT").arg("KILL").exec(&mut server.connect()).expect("the script has written nothing");
    assert!(busy.join().expect("it only asks").is_err());
    looked.join().expect("it only looks");
}

#[test]
fn commands_that_were_not_sent_are_unavailable() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push(&home, b"q", b"x");
    server.suspend();
    // Its connection is lost, and the next one gets no answer.
    let lost = start_push(&home);
    server.resume();
    cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").exec(&mut server.connect()).expect("it kills");
    server.suspend();
    let reply = answer(&lost).list.remove(0);
    assert!(!matches!(reply, Reply::Refused(Refusal::Unavailable { .. })), "{reply:?}");
    // A push that was sent before the loss is noticed may have been executed.
    until("the loss is noticed", || match push(&home, b"q", b"z") {
        Reply::Refused(Refusal::Unavailable { .. }) => true,
        Reply::Refused(Refusal::Unknown { .. }) => false,
        other => panic!("{other:?}"),
    });
    let pushed = start_push(&home);
    close(&home);
    let reply = answer(&pushed).list.remove(0);
    assert!(matches!(reply, Reply::Refused(Refusal::Unavailable { .. })), "{reply:?}");
    server.resume();
}

#[test]
fn homes_in_foreign_layouts_that_hang_can_be_closed() {
    for layout in support::FOREIGN {
        let server = RedisServer::start();
        let home = support::open_in(layout, &format!("{}?layout={layout}", server.url()));
        let queues: [&[u8]; 1] = [b"q"];
        let wait = Pop { block: Some(Block::Forever), ..pop_in(layout, &queues) };
        let idle = home.send(&[Command::Pop(wait)]);
        until("it waits", || home.waiters() == 1);
        home.look();
        server.suspend();
        let pushed = start_push(&home);
        close(&home);
        assert!(is_unknown(&pushed), "{layout}");
        let reply = answer(&idle).list.remove(0);
        assert!(
            matches!(reply, Reply::TimedOut | Reply::Refused(Refusal::Unknown { .. })),
            "{layout}: {reply:?}"
        );
        server.resume();
    }
}

#[test]
fn a_home_whose_cluster_hangs_can_be_closed() {
    let cluster = RedisCluster::start();
    let home = open(&cluster.url());
    push(&home, b"q", b"x");
    let idle = wait_for(&home, b"idle");
    until("it waits", || home.waiters() == 1);
    (0..6).for_each(|at| cluster.server(at).suspend());
    let pushed = start_push(&home);
    close(&home);
    assert!(is_unknown(&pushed));
    let reply = answer(&idle).list.remove(0);
    assert!(matches!(reply, Reply::TimedOut | Reply::Refused(Refusal::Unknown { .. })), "{reply:?}");
    (0..6).for_each(|at| cluster.server(at).resume());
}

#[test]
fn a_home_whose_sentinel_primary_hangs_can_be_closed() {
    let sentinels = RedisSentinels::start_with(&[]);
    let home = open(&sentinels.url(""));
    push(&home, b"q", b"x");
    // All servers, so that none takes over.
    (0..3).for_each(|at| sentinels.server(at).suspend());
    let pushed = start_push(&home);
    close(&home);
    assert!(is_unknown(&pushed));
    (0..3).for_each(|at| sentinels.server(at).resume());
}

#[test]
fn a_redis_that_hangs_is_not_opened() {
    let port = free_port();
    let server = RedisServer::start_at(port);
    server.suspend();
    let since = Instant::now();
    for url in
        [server.url(), format!("redis://127.0.0.1:{port}"), format!("redis-cluster://127.0.0.1:{port}")]
    {
        let opened = RedisHome::open(Target::parse(&url).expect("a URL"));
        assert!(opened.is_err(), "{url}");
    }
    assert!(since.elapsed() < CLOSES_WITHIN * 3, "{:?}", since.elapsed());
    server.resume();
}

#[test]
fn a_redis_that_hangs_for_a_while_only_delays_commands() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push(&home, b"q", b"x");
    server.suspend();
    let pushed = start_push(&home);
    // Longer than closing a home would wait.
    std::thread::sleep(Duration::from_secs(5));
    server.resume();
    assert!(matches!(answer(&pushed).list[0], Reply::Pushed(_)));
    assert_eq!(pop(&home, b"q", 9).expect("a pop").len(), 2);
    home.close();
}
