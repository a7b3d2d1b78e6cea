//! When a primary dies, changes that its replica has not received are lost, unless replies waited for the replica.

mod support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use redis::cmd;
use support::{FOREIGN, answer, info, open, open_in, pop_in, push, run, until, wait_for};
use sureq_core::command::{Command, Pop};
use sureq_core::{Refusal, Reply};
use sureq_home_api::Home as _;
use sureq_redis::RedisHome;
use sureq_testkit::process::free_port;
use sureq_testkit::redis_server::RedisServer;

/// Pushes to a primary whose replica lags behind, kills it, and promotes the replica. Returns the number of pushes
/// that were confirmed meanwhile, of those with an unknown outcome, and of confirmed tasks that still exist.
fn fail_over(options: &str) -> (u64, u64, u64) {
    let (port, own_port) = (free_port(), free_port());
    let mut primary = RedisServer::start_at(port);
    let replica = RedisServer::start_replica_of(port, own_port);
    let mut admin = primary.connect();
    until("the replica follows", || {
        let followers: i64 = cmd("WAIT").arg(1).arg(10).query(&mut admin).expect("it answers");
        let state: String = cmd("INFO").arg("replication").query(&mut admin).expect("it answers");
        followers == 1 && state.contains("state=online")
    });
    let home = open(&format!("{}?{options}", primary.url()));
    assert!(matches!(push(&home, b"q", &[b'x'; 1024]), Reply::Pushed(_)), "the replica is there");
    until("the replica has it", || {
        cmd("WAIT").arg(1).arg(100).query::<i64>(&mut admin).is_ok_and(|n| n == 1)
            && cmd("EXISTS")
                .arg("sureq:q:{q}:body")
                .query::<i64>(&mut replica.connect())
                .is_ok_and(|n| n == 1)
    });
    replica.suspend();
    // Nothing more reaches the replica, not even bytes in a socket buffer.
    let killed: Result<i64, _> = cmd("CLIENT").arg("KILL").arg("TYPE").arg("replica").query(&mut admin);
    assert_eq!(killed.expect("it answers"), 1);
    let (mut confirmed, mut unknown) = (0, 0);
    for _ in 0..3 {
        match push(&home, b"q", &[b'y'; 1024]) {
            Reply::Pushed(_) => confirmed += 1,
            Reply::Refused(Refusal::Unknown { why }) => {
                assert!(why.contains("no replica has confirmed"), "{why}");
                unknown += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    primary.kill();
    home.close();
    replica.resume();
    let mut admin = replica.connect();
    cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut admin).expect("it is a replica");
    let home = open(&replica.url());
    let there = info(&home, b"q").ready;
    replica.check("sureq:");
    home.close();
    (confirmed, unknown, there)
}

#[test]
fn confirmed_tasks_survive_the_primary_with_replication() {
    let (confirmed, unknown, there) = fail_over("durability=replicated");
    assert_eq!((confirmed, unknown), (0, 3), "only pushes that a replica has are confirmed");
    assert!(there >= 1, "the task that was confirmed before exists");
}

/// The control: without waiting for replicas, confirmed tasks are lost.
#[test]
fn confirmed_tasks_are_lost_with_the_primary_without_replication() {
    let (confirmed, unknown, there) = fail_over("");
    assert_eq!((confirmed, unknown, there), (3, 0, 1));
}

/// The tasks were not delivered to a caller that could finish them.
#[test]
fn tasks_of_an_unconfirmed_pop_are_requeued_in_any_layout() {
    let server = RedisServer::start();
    std::thread::scope(|tests| {
        for layout in FOREIGN.into_iter().chain(["sureq"]) {
            let url = format!("{}?layout={layout}&prefix={layout}:", server.url());
            tests.spawn(move || {
                let plain = open_in(layout, &url);
                push(&plain, b"q", b"x");
                let home = open(&format!("{url}&durability=replicated"));
                let reply = run(&home, &Command::Pop(pop_in(layout, &[b"empty", b"q"]))).list.remove(0);
                assert!(matches!(reply, Reply::Refused(Refusal::Unknown { .. })), "{layout}: {reply:?}");
                let info = info(&plain, b"q");
                assert_eq!((info.ready, info.leased), (1, 0), "{layout}");
                plain.close();
                home.close();
            });
        }
    });
}

#[test]
fn tasks_of_several_unconfirmed_pops_keep_their_order() {
    let server = RedisServer::start();
    let (plain, home) = (open(&server.url()), open(&format!("{}?durability=replicated", server.url())));
    for n in b'0'..b'6' {
        push(&plain, b"q", &[n]);
    }
    let pop = Command::Pop(Pop::plain(&[b"q"], 2));
    let replies = home.send(&[pop, pop, pop]).wait().replies.list;
    let is_unknown = |reply: &Reply| matches!(reply, Reply::Refused(Refusal::Unknown { .. }));
    assert!(replies.len() == 3 && replies.iter().all(is_unknown), "{replies:?}");
    let in_order = run(&plain, &Command::Pop(Pop::plain(&[b"q"], 9))).tasks;
    assert_eq!(in_order.iter().map(|task| task.body[0]).collect::<Vec<_>>(), b"012345");
    server.check("sureq:");
    home.close();
    plain.close();
}

/// Pushes three tasks of 3 MiB. Each slice of a pop takes one of them: with the next one it would be too large.
fn push_large(home: &RedisHome) {
    for n in b'0'..b'3' {
        assert!(matches!(push(home, b"q", &vec![n; 3 << 20]), Reply::Pushed(_)));
    }
}

/// A pop that goes in slices.
const SLICED: Command<'static> = Command::Pop(Pop::plain(&[b"q"], 300));

#[test]
fn an_unconfirmed_slice_that_is_full_is_requeued() {
    let server = RedisServer::start();
    let (plain, home) = (open(&server.url()), open(&format!("{}?durability=replicated", server.url())));
    push_large(&plain);
    let reply = run(&home, &SLICED).list.remove(0);
    assert!(matches!(reply, Reply::Refused(Refusal::Unknown { .. })), "{reply:?}");
    let left = info(&plain, b"q");
    assert_eq!((left.ready, left.leased), (3, 0));
    server.check("sureq:");
    home.close();
    plain.close();
}

/// Follows a primary as a replica does that stalls: it confirms what it receives this many times, and then never again.
fn follow_until_stalled(port: u16, confirmations: usize) {
    let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("Redis listens");
    socket.write_all(b"PSYNC ? -1\r\n").expect("it is sent");
    let mut primary = BufReader::new(socket.try_clone().expect("there are descriptors"));
    let mut next_line = || {
        let mut line = String::new();
        // Empty lines keep the connection alive.
        while line.trim().is_empty() {
            line.clear();
            primary.read_line(&mut line).expect("the primary answers");
        }
        line.trim().to_owned()
    };
    let resync = next_line();
    let mut offset: usize = resync.rsplit(' ').next().and_then(|n| n.parse().ok()).expect(&resync);
    let snapshot = next_line();
    let length: usize = snapshot[1..].parse().expect("the length of a snapshot");
    primary.read_exact(&mut vec![0; length]).expect("the snapshot");
    std::thread::spawn(move || {
        let (mut line, mut confirmed) = (Vec::new(), 0);
        while primary.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            offset += line.len();
            let is_asked = line == b"GETACK\r\n";
            line.clear();
            if is_asked && confirmed < confirmations {
                confirmed += 1;
                let offset = offset.to_string();
                let ack = format!("*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n${}\r\n{offset}\r\n", offset.len());
                socket.write_all(ack.as_bytes()).expect("the primary listens");
            }
        }
    });
}

/// The replica confirms the first slice of a pop, and stalls before the second.
#[test]
fn an_unconfirmed_slice_that_is_full_is_requeued_after_others() {
    let port = free_port();
    let server = RedisServer::start_at(port);
    let (plain, home) = (open(&server.url()), open(&format!("{}?durability=replicated", server.url())));
    push_large(&plain);
    follow_until_stalled(port, 1);
    until("the replica follows", || {
        let state: String = cmd("INFO").arg("replication").query(&mut server.connect()).expect("it answers");
        state.contains("state=online")
    });
    let taken = run(&home, &SLICED);
    let left = info(&plain, b"q");
    assert_eq!(left.leased, taken.tasks.len() as u64, "a task is leased that nobody got: {:?}", taken.list);
    assert_eq!(left.ready + left.leased, 3);
    let in_order = run(&plain, &SLICED).tasks;
    assert_eq!(in_order.iter().map(|task| task.body[0]).collect::<Vec<_>>(), b"012");
    server.check("sureq:");
    home.close();
    plain.close();
}

/// A pop that waits in the keys of redis-work-queue takes a task in two steps: a blocking command moves its id, and a
/// script leases it.
#[test]
fn the_task_of_an_unconfirmed_waiting_pop_is_requeued() {
    let port = free_port();
    let server = RedisServer::start_at(port);
    let replica = RedisServer::start_replica_of(port, free_port());
    let url = format!("{}?layout=work-queue&lease=600000", server.url());
    let (plain, home) = (open(&url), open(&format!("{url}&durability=replicated")));
    until("the replica follows", || matches!(push(&home, b"other", b"x"), Reply::PushedForeign(_)));
    let ticket = wait_for(&home, b"q");
    until("it waits", || home.waiters() == 1);
    replica.suspend();
    push(&plain, b"q", b"x");
    let reply = answer(&ticket).list.remove(0);
    assert!(matches!(reply, Reply::Refused(Refusal::Unknown { .. })), "{reply:?}");
    until("it is requeued", || {
        let left = info(&plain, b"q");
        (left.ready, left.leased) == (1, 0)
    });
    replica.resume();
    home.close();
    plain.close();
}
