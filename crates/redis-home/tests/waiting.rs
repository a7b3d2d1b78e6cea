//! Waiting pops send no commands, and are woken at once.

mod support;

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use support::monitor::Monitor;
use support::{ack, answer, is_short, open, pop, push, run, until, wait_for};
use sureq_core::command::{Add, Block, Pop, When};
use sureq_core::settings::{Change, Changes};
use sureq_core::{Command, Refusal, Reply};
use sureq_home_api::Home as _;
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::redis_server::RedisServer;

#[test]
fn a_waiting_pop_sends_no_commands_for_any_kind_of_wait() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let settings = [Change::MaxLeased(1)];
    run(&home, &Command::Config { queue: b"full", changes: Changes::List(&settings) });
    push(&home, b"full", b"a");
    push(&home, b"full", b"b");
    assert_eq!(pop(&home, b"full", 1).unwrap().len(), 1);
    run(&home, &Command::Pause { queue: b"paused" });
    push(&home, b"paused", b"c");
    run(&home, &Command::Add(Add { when: When::After(3_600_000), ..Add::plain(b"later", b"d") }));
    let tickets: Vec<_> = [&b"empty"[..], b"full", b"paused", b"later"].map(|q| wait_for(&home, q)).into();
    until("all wait", || home.waiters() == 4);
    // All commands that lead to waiting have been sent when this returns.
    home.look();
    let said = Monitor::new(&server).sent_within(Duration::from_secs(4));
    assert!(said.is_empty(), "a waiting pop sent commands: {said:?}");
    // Each pop is woken by its own event, and not earlier.
    let [empty, full, paused, later] = <[_; 4]>::try_from(tickets).unwrap();
    ack_the_one_of(&home, b"full");
    assert_eq!(answer(&full).tasks[0].body, b"b");
    run(&home, &Command::Resume { queue: b"paused" });
    assert_eq!(answer(&paused).tasks[0].body, b"c");
    push(&home, b"empty", b"e");
    assert_eq!(answer(&empty).tasks[0].body, b"e");
    drop(later);
    server.check("sureq:");
    home.close();
}

fn ack_the_one_of(home: &sureq_redis::RedisHome, queue: &[u8]) {
    let pending = Command::Inspect { queue, view: sureq_core::command::View::Leased, start: 0, count: 1 };
    let id = run(home, &pending).tasks[0].id.to_string();
    ack(home, queue, &id);
}

#[test]
fn a_push_wakes_a_waiting_pop_within_a_few_milliseconds() {
    let server = RedisServer::start();
    let (worker, producer) = (open(&server.url()), open(&server.url()));
    is_short(|_| {
        let ticket = wait_for(&worker, b"q");
        until("it waits", || worker.waiters() == 1);
        let since = Instant::now();
        push(&producer, b"q", b"x");
        let replies = answer(&ticket);
        let waited = since.elapsed();
        assert_eq!(replies.tasks.len(), 1);
        waited
    });
    worker.close();
    producer.close();
}

#[test]
fn delayed_and_lapsed_tasks_wake_a_waiting_pop_on_time() {
    let server = RedisServer::start();
    let (home, machine) = (open(&server.url()), MachineWatch::start());
    let since = Instant::now();
    run(&home, &Command::Add(Add { when: When::After(300), ..Add::plain(b"q", b"late") }));
    let replies = answer(&wait_for(&home, b"q"));
    let waited = since.elapsed();
    assert_eq!(replies.tasks[0].body, b"late");
    assert!(waited.as_millis() >= 300, "{waited:?}");
    machine.assert_within(waited, Duration::from_millis(500), "a delay of 300 ms");
    push(&home, b"l", b"again");
    let since = Instant::now();
    assert_eq!(support::pop_leased(&home, b"l", 300).unwrap().len(), 1);
    let replies = answer(&wait_for(&home, b"l"));
    let waited = since.elapsed();
    assert_eq!((&replies.tasks[0].body[..], replies.tasks[0].deliveries), (&b"again"[..], 2));
    assert!(waited.as_millis() >= 300, "{waited:?}");
    machine.assert_within(waited, Duration::from_millis(500), "a lease of 300 ms");
    home.close();
}

#[test]
fn tasks_in_an_unread_reply_return_to_the_front() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push(&home, b"q", b"a");
    push(&home, b"q", b"b");
    let take = Command::Pop(sureq_core::command::Pop::plain(&[b"q"], 1));
    // The ticket is dropped before the reply arrives, and then after it.
    drop(home.send(&[take]));
    home.look();
    until("the task is requeued", || support::info(&home, b"q").ready == 2);
    let ticket = home.send(&[take]);
    home.look();
    assert_eq!(support::info(&home, b"q").leased, 1);
    drop(ticket);
    until("the task is requeued", || support::info(&home, b"q").ready == 2);
    let popped = run(&home, &Command::Pop(sureq_core::command::Pop::plain(&[b"q"], 2)));
    assert_eq!((&popped.tasks[0].body[..], popped.tasks[0].deliveries), (&b"a"[..], 3));
    server.check("sureq:");
    home.close();
}

#[test]
fn tasks_in_unread_replies_to_several_pops_keep_their_order() {
    let server = RedisServer::start();
    let home = open(&server.url());
    for n in b'0'..b'4' {
        push(&home, b"q", &[n]);
    }
    let take = Command::Pop(Pop::plain(&[b"q"], 2));
    drop(home.send(&[take, take]));
    home.look();
    until("the tasks are requeued", || support::info(&home, b"q").ready == 4);
    let popped: Vec<Vec<u8>> = pop(&home, b"q", 9).unwrap().into_iter().map(|(body, _)| body).collect();
    assert_eq!(popped.concat(), b"0123");
    server.check("sureq:");
    home.close();
}

#[test]
fn waiting_pops_count_as_memory_and_are_refused_at_the_limit() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let names: Vec<String> = (0..1_000).map(|n| format!("{n:04000}")).collect();
    let queues: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let wait = || home.send(&[Command::Pop(Pop { block: Some(Block::Forever), ..Pop::plain(&queues, 1) })]);
    let mut tickets = Vec::new();
    let refused = loop {
        // Each has a copy of twelve megabytes of names in all.
        assert!(tickets.len() < 30, "all of them wait");
        let (ticket, mut refused) = (wait(), None);
        until("it waits or is refused", || {
            if let Poll::Ready(answer) = ticket.poll(&mut Context::from_waker(Waker::noop())) {
                refused = Some(answer.replies);
            }
            refused.is_some() || home.waiters() > tickets.len()
        });
        match refused {
            Some(refused) => break refused,
            None => tickets.push(ticket),
        }
    };
    assert_eq!(refused.list, [Reply::Refused(Refusal::OutOfMemory)]);
    assert!(tickets.len() > 10, "{} wait", tickets.len());
    // There is room for small ones, and for as many large ones as leave.
    let small = wait_for(&home, b"q");
    until("it waits", || home.waiters() > tickets.len());
    let count = tickets.len();
    tickets.truncate(count / 2);
    until("they have left", || home.waiters() == count / 2 + 1);
    while tickets.len() < count - 1 {
        tickets.push(wait());
        until("it waits", || home.waiters() == tickets.len() + 1);
    }
    push(&home, b"q", b"x");
    assert_eq!(answer(&small).tasks[0].body, b"x");
    drop(tickets);
    until("all have left", || home.waiters() == 0);
    home.close();
}
