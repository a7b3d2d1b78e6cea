//! Waiting pops are served in order, and a task for a client that has left is delivered to the next one.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use sureq_testkit::client::{RespClient, Value, encode};
use sureq_testkit::load::scale;
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::server_process::Server;

use crate::{await_line, scratch, serve, waiting_now};

/// Starts a waiting pop, and returns when it waits.
fn wait_in_line(server: &Server, command: &str, waiting: i64) -> RespClient {
    let mut client = server.client();
    client.begin(command);
    await_line(&mut server.client(), waiting);
    client
}

#[test]
fn waiting_clients_are_served_in_order_of_arrival_by_pushes_of_either_dialect() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut waiting: Vec<RespClient> = (0..20)
        .map(|n| {
            let queues = if n % 2 == 0 { "default other" } else { "other default" };
            wait_in_line(&server, &format!("RQ.POP BLOCK 0 {queues}"), n + 1)
        })
        .collect();
    let (mut resp, mut text) = (server.client(), server.text_client());
    for (n, client) in waiting.iter_mut().enumerate() {
        match n % 3 {
            0 => drop(resp.push("default", n.to_string())),
            1 => drop(text.add(0, &n.to_string())),
            _ => drop(resp.push("other", n.to_string())),
        }
        assert_eq!(client.reply().tasks()[0].payload, n.to_string().as_bytes());
    }
    assert_eq!(waiting_now(&mut resp), 0);
}

#[test]
fn one_push_of_many_tasks_serves_many_waiting_clients() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut waiting: Vec<RespClient> =
        (0..10).map(|n| wait_in_line(&server, "RQ.POP COUNT 2 BLOCK 0 q", n + 1)).collect();
    let numbers: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let argv: Vec<&str> = ["RQ.PUSH", "q"].into_iter().chain(numbers.iter().map(String::as_str)).collect();
    server.client().command(&argv);
    let got: Vec<Vec<u8>> =
        waiting.iter_mut().flat_map(|client| client.reply().tasks()).map(|task| task.payload).collect();
    assert_eq!(got, numbers.iter().map(|n| n.as_bytes().to_vec()).collect::<Vec<_>>());
}

#[test]
fn a_client_that_left_before_the_push_gets_no_task() {
    let dir = scratch();
    for durability in ["always", "none"] {
        let server =
            serve(&dir.path().join(durability)).args(["--durability", durability, "--threads", "1"]).start();
        let mut pusher = server.client();
        for round in 0..300 * scale() {
            let gone = wait_in_line(&server, "RQ.POP BLOCK 0 q", 1);
            let mut next = wait_in_line(&server, "RQ.POP BLOCK 0 q", 2);
            drop(gone);
            let id = pusher.push("q", round.to_string());
            assert_eq!(next.reply().tasks()[0].id, id, "{durability}, round {round}");
            assert!(pusher.ack("q", &id));
        }
        assert_eq!(pusher.counts("q"), (0, 0));
    }
}

#[test]
fn a_client_that_leaves_at_the_same_time_as_the_push_does_not_get_the_task() {
    let dir = scratch();
    for durability in ["always", "none"] {
        let server =
            serve(&dir.path().join(durability)).args(["--durability", durability, "--threads", "1"]).start();
        let mut pusher = server.client();
        for round in 0..20 {
            let gone = wait_in_line(&server, "RQ.POP BLOCK 0 q", 1);
            let mut next = wait_in_line(&server, "RQ.POP BLOCK 0 q", 2);
            // Both have arrived when the server continues: the push first, then the end of the connection that it
            // would serve.
            server.suspend();
            pusher.begin("RQ.PUSH q x");
            drop(gone);
            server.resume();
            let id = pusher.reply().ids().remove(0);
            assert_eq!(next.reply().tasks()[0].id, id, "{durability}, round {round}");
            assert!(pusher.ack("q", &id));
        }
    }
}

/// More than the server reads ahead behind a waiting pop: it stops after a read that ends beyond 1 MiB, and a read
/// has 64 KiB at most. The rest fits into the receive buffer, so that the end of the connection arrives behind it.
const BEYOND_READ_AHEAD: usize = (1 << 20) + (64 << 10) + 1;

#[test]
fn a_client_that_leaves_with_unread_requests_after_its_pop_gets_no_task() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut other = server.client();
    let behind = encode(&["RQ.PUSH", "behind", &"x".repeat(BEYOND_READ_AHEAD)]);
    // With an unread reply, the client's system resets the connection; otherwise it closes it.
    for (queue, first) in [("ended", ""), ("reset", "PING\r\n")] {
        let mut gone = server.client();
        gone.send_raw(format!("{first}RQ.POP BLOCK 0 {queue}\r\n").as_bytes()).expect("the server reads");
        await_line(&mut other, 1);
        gone.send_raw(&behind).expect("the server reads, and the system keeps the rest");
        drop(gone);
        await_line(&mut other, 0);
        other.push(queue, "x");
        assert_eq!(other.counts(queue), (1, 0));
    }
    assert_eq!(other.counts("behind"), (0, 0));
}

/// Commands after a pop that takes several slices are executed, even if the peer has closed its half by then.
#[test]
fn a_half_closed_client_gets_replies_beyond_the_read_ahead() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut pusher = server.client();
    pusher.push_many("q", 100_000);
    let mut client = server.client();
    client.begin("RQ.POP COUNT 100000 q");
    client.send_raw(&encode(&["RQ.PUSH", "behind", &"x".repeat(BEYOND_READ_AHEAD)])).expect("it reads");
    client.stream().shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(client.reply().list().len(), 100_000);
    assert_eq!(client.reply().ids().len(), 1);
    assert!(client.is_closed());
    assert_eq!(pusher.counts("behind"), (1, 0));
}

/// A peer that has closed its half gets the reply to a pop that takes several slices.
#[test]
fn a_half_closed_client_gets_the_reply_to_a_large_pop() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut pusher = server.client();
    for n in 0..1_500 {
        pusher.push("q", n.to_string());
    }
    let mut stream = TcpStream::connect(server.resp).expect("it listens");
    stream.write_all(b"RQ.POP COUNT 1500 q\r\n").expect("it reads");
    stream.shutdown(Shutdown::Write).expect("it is open");
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("it answers");
    assert!(reply.starts_with(b"*1500\r\n"), "{:?}", String::from_utf8_lossy(&reply[..reply.len().min(40)]));
    assert_eq!(pusher.counts("q"), (0, 1_500));
}

#[test]
fn a_client_that_leaves_during_a_delivery_loses_no_task() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let (mut pusher, mut observer) = (server.client(), server.client());
    let (mut to_next, mut to_gone) = (0, 0);
    for round in 0..1500 * scale() {
        let leaver = wait_in_line(&server, "RQ.POP BLOCK 0 q", 1);
        let barrier = Barrier::new(2);
        let id = thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                drop(leaver);
            });
            barrier.wait();
            pusher.push("q", round.to_string())
        });
        await_line(&mut observer, 0);
        let mut next = server.client();
        next.begin("RQ.POP BLOCK 1 q");
        match next.reply() {
            // The reply was in flight when the client left: the task is held, and can be recovered.
            Value::Null => {
                let held = observer.say("RQ.RECOVER q 10 0").list();
                assert_eq!(held.len(), 1, "round {round}: neither waiting nor held");
                to_gone += 1;
            }
            tasks => {
                assert_eq!(tasks.tasks()[0].id, id);
                to_next += 1;
            }
        }
        assert!(observer.ack("q", &id), "round {round}");
    }
    println!("{to_next} were delivered to the next client, {to_gone} were in flight to the one that left");
}

#[test]
fn a_waiting_pop_without_a_task_returns_null_in_time() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut client = server.client();
    let (machine, asked) = (MachineWatch::start(), Instant::now());
    assert_eq!(client.say("RQ.POP BLOCK 300 q"), Value::Null);
    let waited = asked.elapsed();
    assert!(waited >= Duration::from_millis(299), "it took {waited:?}");
    machine.assert_within(waited, Duration::from_millis(800), "a pop of 300 ms");
}

#[test]
fn due_tasks_wake_waiting_pops_on_an_idle_server() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut client = server.client();
    for (queue, lease_ms) in [("first", 100), ("second", 200), ("third", 300)] {
        client.push(queue, "x");
        client.say(&format!("RQ.POP LEASE {lease_ms} {queue}"));
    }
    server.text_client().add(400, "x");
    // All three events happen while the server has nothing else to write.
    assert_eq!(client.say("RQ.POP BLOCK 5000 third").tasks().len(), 1);
    assert_eq!(client.say("RQ.POP BLOCK 5000 default").tasks().len(), 1);
}

#[test]
fn commands_behind_a_waiting_pop_run_after_it() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut client = server.client();
    let line = |line: &str| encode(&line.split(' ').collect::<Vec<_>>());
    let lines =
        ["RQ.PUSH p first", "RQ.POP BLOCK 0 q", "RQ.PUSH p second", "RQ.POP COUNT 9 p", "RQ.POP BLOCK 50 q"];
    client.send_raw(&lines.map(line).concat()).expect("the server reads");
    assert_eq!(client.reply().ids().len(), 1);
    let mut other = server.client();
    await_line(&mut other, 1);
    assert_eq!(other.counts("p"), (1, 0), "no command after the pop has run");
    other.push("q", "wake");
    assert_eq!(client.reply().tasks()[0].payload, b"wake");
    assert_eq!(client.reply().ids().len(), 1);
    assert_eq!(client.reply().tasks().len(), 2);
    assert_eq!(client.reply(), Value::Null);
}

#[test]
fn replies_before_a_waiting_pop_do_not_wait_with_it_and_a_close_ends_the_wait() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut client = server.client();
    client.send_raw(b"PING\r\nRQ.POP BLOCK 0 q\r\nRQ.PUSH p behind\r\n").expect("the server reads");
    assert_eq!(client.reply().text(), "PONG");
    let mut other = server.client();
    await_line(&mut other, 1);
    drop(client);
    await_line(&mut other, 0);
    assert_eq!(other.counts("p"), (0, 0), "commands after the pop are dropped with their connection");
}
