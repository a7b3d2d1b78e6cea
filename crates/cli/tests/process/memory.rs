//! `--memory`: at the limit pushes are refused, everything else goes on, and it passes when there is room again. Connections
//! count.

use std::time::{Duration, Instant};

use sureq_testkit::client::{RespClient, Value, encode};

use crate::{scratch, serve};

/// Pushes so many tasks with one command; answers what was said if that was refused.
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
            since.elapsed() < Duration::from_secs(10),
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
            // A task that is held takes up much more than one that waits.
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
fn connections_and_what_they_have_sent_count() {
    let dir = scratch();
    let limits = ["--cache", "1MB", "--memory", "17MB"];
    let server = serve(&dir.path().join("data")).args(limits).start();
    let mut client = server.client();
    push(&mut client, 1).expect("there is room");
    let half = [&b"*3\r\n$7\r\nRQ.PUSH\r\n$1\r\nq\r\n$8000000\r\n"[..], &vec![b'x'; 7_000_000]].concat();
    let others: Vec<RespClient> = (0..3)
        .map(|_| {
            let mut other = server.client();
            other.send_raw(&half).expect("the server reads");
            other
        })
        .collect();
    await_push(&mut client, false);
    let task = client.pop("q", 1).pop().expect("there is one");
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
