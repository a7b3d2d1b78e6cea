//! Ids, leases and deliveries survive a restart.

use std::collections::HashSet;
use std::time::Duration;

use sureq_testkit::client::Value;
use sureq_testkit::server_process::{Launch, Server};

use crate::{scratch, serve};

/// Checks with an orderly stop, and then with a crash.
fn restart_both_ways(launch: &Launch, check: impl Fn(&mut dyn FnMut(Server) -> Server)) {
    check(&mut |mut server| {
        server.terminate();
        assert_eq!(server.exit_code(Duration::from_secs(5)), 0);
        launch.start()
    });
    check(&mut |mut server| {
        server.kill9();
        launch.start()
    });
}

#[test]
fn a_task_popped_before_a_restart_can_be_finished_after_it_in_either_dialect() {
    let dir = scratch();
    let launch = serve(dir.path());
    restart_both_ways(&launch, |restart| {
        let server = launch.start();
        let (mut resp, mut text) = (server.client(), server.text_client());
        let by_resp = resp.push("default", "by-resp");
        let by_text = text.add(0, "by-text");
        let first = text.say("RESERVE");
        let second = resp.pop("default", 1).remove(0);
        let text_id = first.split(' ').nth(1).expect("a reservation names its task").to_owned();
        assert_eq!(first, format!("TASK {text_id} BODY by-resp"));
        assert_eq!(second.payload, b"by-text");

        let server = restart(server);
        let (mut resp, mut text) = (server.client(), server.text_client());
        assert_eq!(resp.counts("default"), (0, 2), "leases survive");
        assert_eq!(text.say("RESERVE"), "nil");
        assert!(resp.ack("default", &by_resp), "taken as {text_id}");
        assert_eq!(text.say(&format!("DELETE {by_text}")), "ok", "taken as {}", second.id);
        assert!(!resp.ack("default", &by_resp));
        assert_eq!(text.say(&format!("DELETE {by_text}")), "unknown TASK_ID");
        let server = restart(server);
        assert!(!server.client().ack("default", &by_resp), "a task is finished once, over restarts too");
    });
}

#[test]
fn a_receipt_from_before_a_restart_is_valid_until_the_next_delivery() {
    let dir = scratch();
    let launch = serve(dir.path());
    restart_both_ways(&launch, |restart| {
        let server = launch.start();
        let mut client = server.client();
        client.push("q", "a");
        client.push("q", "b");
        let receipts: Vec<String> = client
            .say("RQ.POP COUNT 2 LEASE 60000 q")
            .list()
            .into_iter()
            .map(|task| task.list().swap_remove(3).text())
            .collect();
        let server = restart(server);
        let mut client = server.client();
        assert!(client.ack("q", &receipts[0]));
        let stale = receipts[1].replace("@1.", "@2.");
        assert!(!client.ack("q", &stale), "{stale} was never a receipt");
        assert!(client.ack("q", &receipts[1]));
    });
}

#[test]
fn a_lease_from_before_a_restart_still_ends() {
    let dir = scratch();
    let launch = serve(dir.path());
    let mut server = launch.start();
    let id = server.client().push("q", "x");
    server.client().say("RQ.POP LEASE 300 q");
    server.kill9();
    let server = launch.start();
    let again = server.client().say("RQ.POP BLOCK 15000 q");
    assert_ne!(again, Value::Null, "the lease ends by itself");
    assert_eq!(again.tasks()[0].id, id);
}

#[test]
fn ids_never_repeat_even_if_a_crash_loses_their_tasks() {
    let dir = scratch();
    let launch = serve(dir.path()).args(["--durability", "none"]);
    let (mut seen, mut given) = (HashSet::new(), 0);
    for round in 0..10 {
        let mut server = launch.start();
        let mut client = server.client();
        for _ in 0..100 {
            let payloads = ["x"; 50];
            let argv: Vec<&str> = ["RQ.PUSH", "q"].into_iter().chain(payloads).collect();
            let ids = client.command(&argv).ids();
            given += ids.len();
            seen.extend(ids);
            seen.insert(server_text_id(&server, &mut given));
        }
        server.kill9();
        assert_eq!(seen.len(), given, "in round {round}");
    }
}

fn server_text_id(server: &Server, given: &mut usize) -> String {
    *given += 1;
    server.text_client().add(0, "x")
}

#[test]
fn delayed_tasks_fall_due_after_a_restart_and_not_before() {
    let dir = scratch();
    let launch = serve(dir.path());
    let mut server = launch.start();
    server.text_client().add(1500, "later");
    let added = std::time::Instant::now();
    server.kill9();
    let server = launch.start();
    let task = server.client().say("RQ.POP BLOCK 10000 default").tasks().remove(0);
    assert_eq!(task.payload, b"later");
    assert!(
        added.elapsed() >= Duration::from_millis(1400),
        "the task was delivered after {:?}",
        added.elapsed()
    );
}
