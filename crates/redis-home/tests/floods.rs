//! Many tasks or queues at once: each script handles a part, and no task is held or delivered wrongly meanwhile.

mod support;

use redis::cmd;
use support::{ack, answer, info, open, pop, popped, push, run, until, wait_for};
use sureq_core::command::{AckScope, Command, IdForm, LeaseAsk, Pop, TaskRefs, View, Worker, WorkerRef};
use sureq_core::{Refusal, Reply};
use sureq_home_api::Home as _;
use sureq_redis::RedisHome;
use sureq_testkit::redis_server::RedisServer;

fn push_many(home: &RedisHome, count: usize) {
    let payloads: Vec<String> = (0..count).map(|n| n.to_string()).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(String::as_bytes).collect();
    for some in payloads.chunks(2_000) {
        assert!(matches!(
            run(home, &Command::Push { queue: b"q", payloads: some }).list[0],
            Reply::Pushed(_)
        ));
    }
}

#[test]
fn tasks_of_a_lost_worker_are_requeued_in_slices_and_in_order_and_their_leases_end_at_once() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push_many(&home, 3_500);
    let Reply::Started(incarnation) =
        run(&home, &Command::Worker(Worker::Start { name: b"w", ttl_ms: 60_000 })).list[0]
    else {
        panic!("a worker starts");
    };
    let lease = LeaseAsk { worker: Some(WorkerRef { name: b"w", incarnation }), ..LeaseAsk::NONE };
    let taken = run(&home, &Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 3_500) }));
    let last = taken.tasks.last().expect("all of them").receipt().to_string();
    assert_eq!(run(&home, &Command::Worker(Worker::Fail { name: b"w" })).list, [Reply::Count(3_500)]);
    let mut admin = server.connect();
    let ready: u64 = cmd("ZCARD").arg("sureq:q:{q}:ready").query(&mut admin).unwrap();
    assert_eq!(ready, 200, "one script moves a slice");
    let tasks = TaskRefs { list: &[last.as_bytes()], form: IdForm::Long };
    let late = run(&home, &Command::Ack { queue: b"q", tasks, scope: AckScope::Leased });
    assert!(matches!(late.list[0], Reply::Acked(span) if span.is_empty()), "its worker is gone");
    server.check("sureq:");
    until("all are requeued", || info(&home, b"q").leased == 0);
    server.check("sureq:");
    let numbers: Vec<String> = pop(&home, b"q", 3_500)
        .unwrap()
        .into_iter()
        .map(|(body, _)| String::from_utf8_lossy(&body).into())
        .collect();
    // The task that was asked for was requeued before the others that were not moved yet.
    let (mut sorted, moved) = (numbers.clone(), numbers.iter().position(|n| n == "3499"));
    sorted.sort_by_key(|n| n.parse::<u32>().unwrap());
    assert_eq!((sorted.len(), sorted.first().map(String::as_str)), (3_500, Some("0")));
    let rest: Vec<&String> = numbers.iter().filter(|n| *n != "3499").collect();
    assert!(rest.is_sorted_by_key(|n| n.parse::<u32>().unwrap()), "the others keep their order");
    assert!(moved.is_some_and(|at| at >= 200));
    home.close();
}

#[test]
fn a_worker_that_rests_keeps_tasks_that_it_pops_afterwards() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push_many(&home, 2_500);
    let Reply::Started(incarnation) =
        run(&home, &Command::Worker(Worker::Start { name: b"w", ttl_ms: 60_000 })).list[0]
    else {
        panic!("a worker starts");
    };
    let worker = WorkerRef { name: b"w", incarnation };
    let lease = LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE };
    let take = |count| run(&home, &Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], count) })).tasks.len();
    assert_eq!(take(2_500), 2_500);
    assert_eq!(run(&home, &Command::Worker(Worker::Rest(worker, b"q"))).list, [Reply::Count(2_500)]);
    assert_eq!(take(10), 10);
    until("all others are requeued", || info(&home, b"q").ready == 2_490);
    assert_eq!(info(&home, b"q").leased, 10);
    server.check("sureq:");
    home.close();
}

#[test]
fn inspect_and_recover_are_bounded() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push_many(&home, 12_000);
    let inspect = |start| {
        let command = Command::Inspect { queue: b"q", view: View::Ready, start, count: 20_000 };
        run(&home, &command).tasks.len()
    };
    assert_eq!((inspect(0), inspect(10_000), inspect(-5)), (12_000, 2_000, 5));
    let lease = LeaseAsk { ms: Some(3_600_000), ..LeaseAsk::NONE };
    run(&home, &Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 11_999) }));
    let plain = pop(&home, b"q", 1).unwrap();
    let recover = || popped(run(&home, &Command::Recover { queue: b"q", count: 1, elapsed_ms: 0 })).unwrap();
    assert_eq!(recover(), [], "too many leases precede it for one command");
    assert_eq!(recover(), plain);
    server.check("sureq:");
    home.close();
}

#[test]
fn a_message_causes_no_commands_for_waiters_of_other_queues() {
    let server = RedisServer::start();
    let (home, other) = (open(&server.url()), open(&server.url()));
    let tickets: Vec<_> = (0..300).map(|n| wait_for(&home, format!("q{n}").as_bytes())).collect();
    until("all wait", || home.waiters() == 300);
    home.look();
    let mut admin = server.connect();
    let mut calls = || -> u64 {
        let stats: String = cmd("INFO").arg("commandstats").query(&mut admin).unwrap();
        let line =
            stats.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:calls=")).expect("it was called");
        line.split(',').next().and_then(|n| n.parse().ok()).expect("a number")
    };
    let before = calls();
    push(&other, b"q7", b"x");
    assert_eq!(answer(&tickets[7]).tasks[0].body, b"x");
    let after = calls();
    assert!(after - before < 10, "{}", after - before);
    home.close();
    other.close();
}

#[test]
fn queues_without_waiters_are_unsubscribed() {
    let server = RedisServer::start();
    let home = open(&server.url());
    for n in 0..300 {
        let ticket = wait_for(&home, format!("q{n}").as_bytes());
        until("it waits", || home.waiters() == 1);
        home.look();
        drop(ticket);
        until("it left", || home.waiters() == 0);
    }
    let channels: Vec<String> = cmd("PUBSUB").arg("CHANNELS").query(&mut server.connect()).unwrap();
    // Two channels for each queue.
    assert!(channels.len() <= 204, "{}", channels.len());
    home.close();
}

#[test]
fn tasks_of_an_unconfirmed_pop_are_requeued() {
    let server = RedisServer::start();
    let (home, careful) = (open(&server.url()), open(&format!("{}?durability=replicated", server.url())));
    push(&home, b"q", b"x");
    let refused = pop(&careful, b"q", 1).unwrap_err();
    assert!(matches!(refused, Reply::Refused(Refusal::Unknown { .. })), "{refused:?}");
    until("it is ready again", || info(&home, b"q").ready == 1);
    let again = pop(&home, b"q", 1).unwrap();
    assert!(matches!(ack(&home, b"q", &again[0].1), Reply::Acked(span) if span.len() == 1));
    home.close();
    careful.close();
}
