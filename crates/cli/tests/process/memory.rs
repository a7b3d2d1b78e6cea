//! `--memory`: at the limit pushes are refused, everything else continues, and pushes are accepted again when there
//! is memory. Connections count, and so does everything that belongs to a task; the counted memory is close to the
//! used memory.

use std::time::{Duration, Instant};

use sureq_testkit::client::{RespClient, Value, encode};
use sureq_testkit::process::PATIENCE;
use sureq_testkit::server_process::{Launch, Server};

use crate::{SUREQ, scratch, serve};

/// A server with a home in memory.
pub(crate) fn in_memory() -> Launch {
    Launch::new(SUREQ).args(["serve", "--resp", "127.0.0.1:0", "--text", "127.0.0.1:0", "--home", "mem:"])
}

/// Pushes `count` tasks with one command; returns their ids or the refusal.
fn push(client: &mut RespClient, count: usize) -> Result<Vec<String>, String> {
    let argv: Vec<String> =
        ["RQ.PUSH", "q"].into_iter().map(str::to_owned).chain((0..count).map(|n| n.to_string())).collect();
    match client.command(&argv) {
        Value::Error(error) => Err(error),
        reply => Ok(reply.ids()),
    }
}

fn await_push(client: &mut RespClient, is_accepted: bool) {
    let since = Instant::now();
    while push(client, 1).is_ok() != is_accepted {
        assert!(
            since.elapsed() < PATIENCE,
            "a push is not {}",
            if is_accepted { "accepted" } else { "refused" }
        );
    }
}

#[test]
fn at_the_limit_pushes_are_refused_and_tasks_are_finished() {
    let dir = scratch();
    let limits = ["--cache", "1MB", "--memory", "17MB", "--durability", "interval"];
    let server = serve(&dir.path().join("data")).args(limits).start();
    let (mut client, mut held) = (server.client(), Vec::new());
    let refused = loop {
        assert!(held.len() < 1_000_000, "the limit is never reached");
        match push(&mut client, 1000) {
            Err(refused) => break refused,
            // A leased task takes much more memory than a waiting one.
            Ok(_) => held.extend(client.pop("q", 1000).into_iter().map(|task| task.id)),
        }
    };
    assert!(refused.starts_with("OOM "), "{refused}");
    assert_eq!(client.say("PING").text(), "PONG");
    assert!(client.pop("q", 10).len() <= 10);
    for ids in held.chunks(1000) {
        let ack: Vec<&str> = ["RQ.ACK", "q"].into_iter().chain(ids.iter().map(String::as_str)).collect();
        assert_eq!(client.command(&ack).ids().len(), ids.len());
    }
    await_push(&mut client, true);
}

#[test]
fn connections_and_their_unfinished_requests_count() {
    let dir = scratch();
    let limits = ["--cache", "1MB", "--memory", "17MB"];
    let server = serve(&dir.path().join("data")).args(limits).start();
    let mut client = server.client();
    push(&mut client, 1).expect("the limit is not reached");
    let half = [&b"*3\r\n$7\r\nRQ.PUSH\r\n$1\r\nq\r\n$8000000\r\n"[..], &vec![b'x'; 7_000_000]].concat();
    let others: Vec<RespClient> = (0..3)
        .map(|_| {
            let mut other = server.client();
            other.send_raw(&half).expect("the server reads");
            other
        })
        .collect();
    await_push(&mut client, false);
    let task = client.pop("q", 1).pop().expect("a task is ready");
    assert!(client.ack("q", &task.id));
    drop(others);
    await_push(&mut client, true);
    let mut idle: Vec<RespClient> = (0..100).map(|_| server.client()).collect();
    for other in &mut idle {
        other.send_raw(&encode(&["PING"])).expect("the server reads");
        assert_eq!(other.reply().text(), "PONG");
    }
    let info = client.say("INFO").text();
    assert!(info.contains("connected_clients:101"), "{info}");
    push(&mut client, 1).expect("idle connections take up little");
}

/// Sends `count` commands, some at a time, and checks each reply.
fn pipelined(
    client: &mut RespClient,
    count: usize,
    command: impl Fn(usize) -> Vec<u8>,
    look: impl Fn(&Value),
) {
    for first in (0..count).step_by(100) {
        let commands: Vec<u8> = (first..count.min(first + 100)).flat_map(&command).collect();
        client.send_raw(&commands).expect("the server reads");
        for _ in first..count.min(first + 100) {
            look(&client.reply());
        }
    }
}

fn accepted(reply: &Value) {
    assert!(matches!(reply, Value::Array(_)), "{reply:?}");
}

fn add_named(client: &mut RespClient, queue: &str, count: usize) {
    let add = |n| encode(&["RQ.ADD", queue, "x", "NAME", &format!("{n:0200}")]);
    pipelined(client, count, add, accepted);
}

fn push_large(client: &mut RespClient, queue: &str, count: usize) {
    let payload = "x".repeat(1 << 10);
    pipelined(client, count, |_| encode(&["RQ.PUSH", queue, &payload]), accepted);
}

fn bury_with_reasons(client: &mut RespClient, queue: &str, count: usize) {
    let reason = "r".repeat(500);
    client.say(&format!("RQ.CONFIG {queue} TRIES 1"));
    pipelined(client, count, |_| encode(&["RQ.PUSH", queue, "x"]), accepted);
    let tasks = client.pop(queue, count);
    assert_eq!(tasks.len(), count);
    let give_up = |n: usize| encode(&["RQ.RETURN", queue, &tasks[n].id, "FAILED", &reason]);
    pipelined(client, count, give_up, |reply| assert_eq!(*reply, Value::Int(1)));
}

fn used(client: &mut RespClient) -> u64 {
    let info = client.say("INFO memory").text();
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.and_then(|bytes| bytes.trim().parse().ok()).expect("INFO has the field")
}

#[test]
fn counted_memory_is_close_to_used_memory() {
    type Fill = fn(&mut RespClient, &str, usize);
    let cases: [(&str, Fill, usize); 3] = [
        ("names of 200 bytes", add_named, 40_000),
        ("reasons of 500 bytes", bury_with_reasons, 30_000),
        ("payloads of 1 KB in memory", push_large, 30_000),
    ];
    for (what, fill, count) in cases {
        let server = in_memory().start();
        let mut client = server.client();
        // The basic memory of a process does not count.
        fill(&mut client, "before", 1_000);
        let before = (used(&mut client), server.resident_bytes());
        fill(&mut client, "q", count);
        let (used, resident) = (used(&mut client) - before.0, server.resident_bytes() - before.1);
        let (hundredths, each) = (used * 100 / resident, used / count as u64);
        assert!(
            (60..=140).contains(&hundredths),
            "{what}: {used} bytes are counted, {each} each, and {resident} used"
        );
    }
}

#[test]
fn a_restart_counts_the_same() {
    let dir = scratch();
    let launch = serve(dir.path()).args(["--cache", "1MB", "--durability", "none", "--segment-bytes", "1MB"]);
    let mut server = launch.start();
    let mut client = server.client();
    add_named(&mut client, "named", 10_000);
    bury_with_reasons(&mut client, "dead", 10_000);
    let before = used(&mut client);
    server.terminate();
    assert_eq!(server.exit_code(Duration::from_secs(10)), 0);
    let after = used(&mut launch.start().client());
    assert!((85..=115).contains(&(after * 100 / before)), "{before} bytes are {after} after a restart");
}

/// How often a running server has logged this.
fn said(server: &Server, what: &str) -> usize {
    server.stderr_so_far().matches(what).count()
}

#[test]
fn a_home_in_memory_is_bounded_too() {
    let server = in_memory().args(["--memory", "16MB"]).start();
    let mut client = server.client();
    push(&mut client, 2).expect("the limit is not reached");
    let held = client.say("RQ.POP COUNT 2 LEASE 60000 q").list();
    let mut pushed = 0;
    let payload = "x".repeat(1 << 10);
    let refused = loop {
        assert!(pushed < 100_000, "the limit is never reached");
        match client.command(&["RQ.PUSH", "q", &payload]) {
            Value::Error(error) => break error,
            reply => pushed += reply.ids().len(),
        }
    };
    assert!((8_000..16_000).contains(&pushed), "{pushed} payloads of 1 KB are 16 MB");
    assert!(refused.starts_with("OOM ") && refused.contains("--memory"), "{refused}");
    let refused = server.text_client().say("ADD 0 hello");
    assert!(refused.starts_with("refused OOM: ") && refused.contains("--memory"), "{refused}");
    server.find_in_stderr(|line| line.contains("the 16 MB of --memory are used up").then_some(()));

    let ids: Vec<String> = held.iter().map(|task| task.field(1)).collect();
    assert_eq!(client.say(&format!("RQ.EXTEND q {} 60000", ids[0])), Value::Int(1));
    assert_eq!(client.say(&format!("RQ.RETURN q {}", ids[0])), Value::Int(1));
    assert_eq!(client.say(&format!("RQ.CANCEL q ID {}", ids[1])), Value::Int(1));
    assert_eq!(client.say(&format!("RQ.RETURN q {}", ids[1])).text(), "CANCELLED");
    assert!(client.command(&["RQ.PUSH", "q", &payload]).error().starts_with("OOM "), "still");
    while let tasks @ [_, ..] = &client.pop("q", 1_000)[..] {
        let ids = tasks.iter().map(|task| task.id.as_str());
        let ack: Vec<&str> = ["RQ.ACK", "q"].into_iter().chain(ids).collect();
        assert_eq!(client.command(&ack).ids().len(), tasks.len());
    }
    push(&mut client, 1).expect("there is room again");
    server.find_in_stderr(|line| line.contains("there is memory again").then_some(()));
    assert_eq!((said(&server, "are used up"), said(&server, "memory again")), (1, 1), "each is said once");
}

#[test]
fn a_purge_makes_room() {
    let server = in_memory().args(["--memory", "16MB"]).start();
    let mut client = server.client();
    let payload = "x".repeat(1 << 10);
    while !matches!(client.command(&["RQ.PUSH", "q", &payload]), Value::Error(_)) {}
    client.say("RQ.PURGE q");
    await_push(&mut client, true);
    push_large(&mut client, "q", 5_000);
}
