//! Races over sockets in real time: whatever the order, a task has one outcome, and is finished once.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use sureq_testkit::client::{RespClient, Value};
use sureq_testkit::load::scale;
use sureq_testkit::server_process::Server;

use crate::{scratch, serve};

/// The number of rounds per kind of race, and of races in each round.
const ROUNDS: u64 = 20;
const AT_ONCE: usize = 50;

/// A leased task.
struct Held {
    id: String,
    receipt: String,
}

/// Pushes as many tasks as there are races, and pops them with these options.
fn hold(client: &mut RespClient, terms: &str) -> Vec<Held> {
    let payloads: Vec<String> = (0..AT_ONCE).map(|n| n.to_string()).collect();
    client.say(&format!("RQ.PUSH q {}", payloads.join(" ")));
    let tasks = client.say(&format!("RQ.POP COUNT {AT_ONCE} {terms} q")).list();
    assert_eq!(tasks.len(), AT_ONCE, "all pushed tasks");
    tasks.iter().map(|task| Held { id: task.field(1), receipt: task.field(3) }).collect()
}

/// Pops and finishes `left` requeued tasks; returns their ids.
fn finish(client: &mut RespClient, left: usize) -> HashSet<String> {
    let mut finished = HashSet::new();
    while finished.len() < left {
        for task in client.say(&format!("RQ.POP COUNT {left} BLOCK 5000 LEASE 60000 q")).list() {
            assert_eq!(client.say(&format!("RQ.ACK q {}", task.field(3))).list().len(), 1);
            assert!(finished.insert(task.field(1)), "nothing is finished twice");
        }
    }
    finished
}

/// Checks that each task was finished by its first or its second holder, and that none is left over.
fn check_outcomes(client: &mut RespClient, held: &[Held], in_time: &[bool], others: &HashSet<String>) {
    for (held, in_time) in held.iter().zip(in_time) {
        assert!(others.contains(&held.id) != *in_time, "{} has one outcome", held.id);
    }
    assert_eq!(client.counts("q"), (0, 0), "nothing is left over");
}

/// A race that one side always wins proves nothing.
fn check_both(won: &[bool]) {
    let wins = won.iter().filter(|won| **won).count();
    assert!(wins > 0 && wins < won.len(), "{wins} of {} were in time", won.len());
}

/// Sends each client its command at the same time, and returns for each whether it succeeded.
fn at_once(clients: &mut [RespClient], commands: &[String]) -> Vec<bool> {
    clients.iter_mut().zip(commands).for_each(|(client, command)| client.begin(command));
    let replies = clients.iter_mut().map(RespClient::reply);
    replies
        .map(|reply| match reply {
            Value::Array(list) => !list.is_empty(),
            Value::Int(n) => n == 1,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn clients(server: &Server) -> Vec<RespClient> {
    (0..AT_ONCE).map(|_| server.client()).collect()
}

/// Leases tasks and waits until about their deadline: from well before it to well after it, a millisecond later in
/// each round, since the duration of requests is unknown. This must use real time.
fn hold_until_about_the_deadline(client: &mut RespClient, round: u64) -> Vec<Held> {
    let since = Instant::now();
    let held = hold(client, "LEASE 20");
    let aim = since + Duration::from_millis(14 + round % 18);
    thread::sleep(aim.saturating_duration_since(Instant::now()));
    held
}

#[test]
fn an_ack_races_with_a_lapse() {
    let dir = scratch();
    let server = serve(dir.path()).args(["--durability", "none"]).start();
    let (mut holders, mut other) = (clients(&server), server.client());
    let mut won = Vec::new();
    for round in 0..ROUNDS * scale() {
        let held = hold_until_about_the_deadline(&mut other, round);
        let commands: Vec<String> = held.iter().map(|held| format!("RQ.ACK q {}", held.receipt)).collect();
        let in_time = at_once(&mut holders, &commands);
        let rest = finish(&mut other, in_time.iter().filter(|done| !**done).count());
        check_outcomes(&mut other, &held, &in_time, &rest);
        won.extend(&in_time);
    }
    check_both(&won);
}

#[test]
fn an_extension_races_with_a_lapse() {
    let dir = scratch();
    let server = serve(dir.path()).args(["--durability", "none"]).start();
    let (mut holders, mut other) = (clients(&server), server.client());
    let mut won = Vec::new();
    for round in 0..ROUNDS * scale() {
        let held = hold_until_about_the_deadline(&mut other, round);
        let extend: Vec<String> =
            held.iter().map(|held| format!("RQ.EXTEND q {} 60000", held.receipt)).collect();
        let extended = at_once(&mut holders, &extend);
        let rest = finish(&mut other, extended.iter().filter(|done| !**done).count());
        let acks: Vec<String> = held.iter().map(|held| format!("RQ.ACK q {}", held.receipt)).collect();
        let finished = at_once(&mut holders, &acks);
        assert_eq!(finished, extended, "only extended leases can be finished");
        check_outcomes(&mut other, &held, &finished, &rest);
        won.extend(&extended);
    }
    check_both(&won);
}

#[test]
fn two_acks_race_with_each_other() {
    let dir = scratch();
    let server = serve(dir.path()).args(["--durability", "none"]).start();
    let (mut ones, mut others, mut client) = (clients(&server), clients(&server), server.client());
    for _ in 0..ROUNDS * scale() {
        let held = hold(&mut client, "LEASE 60000");
        let by_receipt: Vec<String> = held.iter().map(|held| format!("RQ.ACK q {}", held.receipt)).collect();
        let by_id: Vec<String> = held.iter().map(|held| format!("RQ.ACK q {}", held.id)).collect();
        others.iter_mut().zip(&by_id).for_each(|(client, command)| client.begin(command));
        let first = at_once(&mut ones, &by_receipt);
        let second: Vec<bool> = others.iter_mut().map(|client| !client.reply().list().is_empty()).collect();
        assert!(first.iter().zip(second).all(|(first, second)| *first != second), "exactly one of the two");
        assert_eq!(client.counts("q"), (0, 0));
    }
}

#[test]
fn an_ack_races_with_the_loss_of_its_worker() {
    let dir = scratch();
    let server = serve(dir.path()).args(["--durability", "none"]).start();
    let (mut holders, mut client, mut judge) = (clients(&server), server.client(), server.client());
    for _ in 0..ROUNDS * scale() {
        let worker = client.say("RQ.WORKER START w TTL 60000").text();
        let held = hold(&mut client, &format!("WORKER {worker}"));
        judge.begin("RQ.WORKER FAIL w");
        let acks: Vec<String> = held.iter().map(|held| format!("RQ.ACK q {}", held.receipt)).collect();
        let in_time = at_once(&mut holders, &acks);
        let late = in_time.iter().filter(|done| !**done).count();
        assert_eq!(
            judge.reply(),
            Value::Int(i64::try_from(late).expect("a small number")),
            "tasks that the worker had not finished are requeued"
        );
        let rest = finish(&mut client, late);
        check_outcomes(&mut client, &held, &in_time, &rest);
    }
}

#[test]
fn a_disconnect_races_with_a_push() {
    let dir = scratch();
    let server = serve(dir.path()).args(["--durability", "none"]).start();
    let mut client = server.client();
    for round in 0..ROUNDS * AT_ONCE as u64 * scale() {
        let mut leaving = server.client();
        leaving.begin("RQ.POP BLOCK 0 CONN q");
        if round % 2 == 0 {
            crate::await_line(&mut client, 1);
        }
        // The end of one connection and the push of the other are in flight at the same time.
        drop(leaving);
        let id = client.push("q", "x");
        let again = client.say("RQ.POP BLOCK 5000 LEASE 60000 q").list();
        assert_eq!(again[0].field(1), id, "it is requeued as soon as its connection is closed");
        assert!(client.ack("q", &id));
    }
}
