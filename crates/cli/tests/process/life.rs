//! Start and stop: one server per directory, and an orderly end.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use sureq_testkit::client::{Value, encode};
use sureq_testkit::history::{Findings, SharedHistory};
use sureq_testkit::load::{Load, scale, seeded};
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::process::{PATIENCE, Process};

use crate::{await_line, scratch, serve};

fn is_ready(process: &Process) -> bool {
    process.try_find_in_stdout(|line| line.contains("is ready").then_some(())).is_some()
}

#[test]
fn of_two_servers_on_one_directory_exactly_one_runs() {
    let dir = scratch();
    for _ in 0..20 * scale() {
        let (machine, started) = (MachineWatch::start(), Instant::now());
        let mut pair = [serve(dir.path()).spawn(), serve(dir.path()).spawn()];
        let ready = pair.each_ref().map(is_ready);
        let loser = match ready {
            [true, false] => &mut pair[1],
            [false, true] => &mut pair[0],
            other => panic!("who runs: {other:?}\n{}\n{}", pair[0], pair[1]),
        };
        assert_eq!(loser.exit_code(PATIENCE), 1, "{loser}");
        machine.assert_within(started.elapsed(), Duration::from_secs(3), "the refusal");
        assert!(loser.stderr().contains("is in use by another sureq (pid "), "{loser}");
        for process in &mut pair {
            process.kill9();
        }
    }
    assert_eq!(serve(dir.path()).start().client().say("PING").text(), "PONG");
}

#[test]
fn a_stop_under_load_answers_everything_that_it_executed() {
    let (mut rng, dir, history) = (seeded(), scratch(), SharedHistory::default());
    for _ in 0..5 * scale() {
        let mut server = serve(dir.path()).start();
        let mut blocked = server.client();
        blocked.begin("RQ.POP BLOCK 0 nothing");
        await_line(&mut server.client(), 1);
        let load = Load { pushes: 2_000 + rng.u64(..2_000), ..Load::default() };
        load.run(server.resp, &mut rng, &history, || server.terminate());
        assert_eq!(server.exit_code(Duration::from_secs(5)), 0, "{}", *server);
        assert_eq!(blocked.reply(), Value::Null, "a blocked pop times out");
    }
    let server = serve(dir.path()).start();
    Load::default().drain(server.resp, &history);
    let history = history.into_inner();
    assert_eq!(history.findings(0), Findings::default(), "{history}");
    assert_eq!(history.executed_unconfirmed(), 0, "executed, but not confirmed to its client: {history}");
}

#[test]
fn a_stop_waits_for_a_client_that_reads_slowly() {
    let dir = scratch();
    let mut server = serve(dir.path()).start();
    let (mut client, mut slow, mut blocked) = (server.client(), server.client(), server.client());
    // More than the system buffers for a connection.
    let payload = vec![b'x'; 32 << 20];
    client.push("q", &payload);
    slow.begin("RQ.INSPECT q 0 1");
    assert_eq!(slow.stream().peek(&mut [0]).expect("an answer comes"), 1);
    blocked.begin("RQ.POP BLOCK 0 nothing");
    await_line(&mut client, 1);

    server.terminate();
    assert_eq!(blocked.reply(), Value::Null, "the server is stopping");
    let answered = slow.reply().list().remove(0).list().swap_remove(1);
    assert!(answered.bytes() == payload, "a payload was changed");
    assert_eq!(server.exit_code(Duration::from_secs(5)), 0, "{}", *server);
}

#[test]
fn a_stop_right_after_the_start_is_orderly() {
    let dir = scratch();
    for signal in [Signal::TERM, Signal::INT].repeat(5) {
        let mut server = serve(dir.path()).start();
        server.signal(signal);
        assert_eq!(server.exit_code(Duration::from_secs(5)), 0, "{}", *server);
    }
}

#[test]
fn a_second_signal_ends_at_once_and_loses_nothing() {
    let dir = scratch();
    let mut server = serve(dir.path()).start();
    let mut client = server.client();
    let id = client.push("q", vec![b'x'; 1 << 20]);
    // A client that requests much and reads nothing keeps the server from ending.
    let mut greedy = server.client();
    greedy.send_raw(&encode(&["RQ.INSPECT", "q", "0", "1"]).repeat(64)).expect("the server reads");
    let mut blocked = server.client();
    blocked.begin("RQ.POP BLOCK 0 nothing");
    await_line(&mut client, 1);
    assert_eq!(greedy.stream().peek(&mut [0]).expect("an answer comes"), 1);

    server.terminate();
    assert_eq!(blocked.reply(), Value::Null, "the server is stopping");
    assert!(!server.has_ended(), "{}", *server);
    let (machine, asked) = (MachineWatch::start(), Instant::now());
    server.terminate();
    assert_eq!(server.exit_code(PATIENCE), 130, "{}", *server);
    machine.assert_within(asked.elapsed(), Duration::from_secs(1), "the second stop");
    assert_eq!(serve(dir.path()).start().client().pop("q", 1)[0].id, id);
}

#[test]
fn a_suspended_server_continues_at_the_current_time() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let (mut client, mut text) = (server.client(), server.text_client());
    let leased = client.push("q", "leased");
    client.say("RQ.POP LEASE 1000 q");
    text.add(1000, "delayed");
    server.suspend();
    let mut waiting = server.client();
    waiting.begin("RQ.POP BLOCK 100 empty");
    // The test is about the suspension itself: no signal could shorten it.
    std::thread::sleep(Duration::from_secs(3));
    server.resume();

    assert_eq!(waiting.reply(), Value::Null);
    let again = client.pop("q", 10);
    assert_eq!(
        again.iter().map(|task| &task.id).collect::<Vec<_>>(),
        [&leased],
        "its lease has ended meanwhile"
    );
    assert!(text.say("RESERVE").ends_with("BODY delayed"));
    assert!(client.ack("q", &leased));
    assert!(!client.ack("q", &leased), "a task is finished once");
}
