//! When a primary dies, changes that its replica has not received are lost, unless replies waited for the replica.

mod support;

use redis::cmd;
use support::{FOREIGN, info, open, open_in, pop_in, push, run, until};
use sureq_core::command::Command;
use sureq_core::{Refusal, Reply};
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
