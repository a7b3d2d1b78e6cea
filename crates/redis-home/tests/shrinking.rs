//! The data in Redis shrinks with the live tasks: after many queues, holders and stores, nothing of them is left.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::cmd;
use support::{ack, open, pop, pop_held_by, push, run, until};
use sureq_core::Reply;
use sureq_core::command::{Add, Command, LeaseAsk, Pop, When, Worker, WorkerRef};
use sureq_core::settings::{Change, Changes};
use sureq_redis::{Clock, RedisHome, Target};
use sureq_testkit::redis_cluster::RedisCluster;
use sureq_testkit::redis_server::RedisServer;

fn keys(server: &RedisServer, pattern: &str) -> Vec<String> {
    let mut keys: Vec<String> = cmd("KEYS").arg(pattern).query(&mut server.connect()).expect("it answers");
    keys.sort();
    keys
}

fn queue(n: usize) -> Vec<u8> {
    format!("q{n}").into_bytes()
}

fn start_worker(home: &RedisHome) -> u64 {
    let start = Command::Worker(Worker::Start { name: b"w", ttl_ms: 600_000 });
    match run(home, &start).list.remove(0) {
        Reply::Started(incarnation) => incarnation,
        other => panic!("{other:?}"),
    }
}

#[test]
fn queues_without_tasks_of_a_worker_are_forgotten() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let worker = WorkerRef { name: b"w", incarnation: start_worker(&home) };
    let take = |queue: &[u8]| {
        push(&home, queue, b"x");
        let lease = LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE };
        let popped = run(&home, &Command::Pop(Pop { lease, ..Pop::plain(&[queue], 1) }));
        popped.tasks[0].id.to_string()
    };
    for n in 0..200 {
        let id = take(&queue(n));
        if n % 2 == 0 {
            ack(&home, &queue(n), &id);
        } else {
            run(&home, &Command::Drop { queues: &[&queue(n)] });
        }
    }
    assert_eq!(keys(&server, "sureq:worker:*"), [""; 0], "of a worker that holds nothing");
    assert_eq!(keys(&server, "sureq:q:*:hol*"), [""; 0]);
    let id = take(b"live");
    assert_eq!(keys(&server, "sureq:q:*:hol*").len(), 1);
    let of_worker = keys(&server, "sureq:worker:*");
    let names: Vec<String> = cmd("SMEMBERS").arg(&of_worker).query(&mut server.connect()).expect("a set");
    assert_eq!(names, ["live"]);
    ack(&home, b"live", &id);
    server.check("sureq:");
    home.close();
}

/// A heartbeat removes leftovers of version 0.1.
#[test]
fn a_heartbeat_forgets_queues_without_tasks_of_the_worker() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let worker = WorkerRef { name: b"w", incarnation: start_worker(&home) };
    let (key, mut admin) = (format!("sureq:worker:w#{}:queues", worker.incarnation), server.connect());
    for n in 0..200 {
        cmd("SADD").arg(&key).arg(queue(n)).exec(&mut admin).expect("it answers");
    }
    assert!(matches!(run(&home, &Command::Worker(Worker::Beat(worker))).list[..], [Reply::Receipts(_)]));
    assert_eq!(keys(&server, "sureq:worker:*"), [""; 0]);
    home.close();
}

#[test]
fn queues_without_tasks_of_a_connection_are_forgotten() {
    let server = RedisServer::start();
    let home = open(&server.url());
    for n in 0..200 {
        push(&home, &queue(n), b"x");
        let popped = pop_held_by(&home, &queue(n), 7).expect("Redis answers");
        ack(&home, &queue(n), &popped[0].1);
    }
    assert_eq!(keys(&server, "sureq:conn:*"), [""; 0]);
    assert_eq!(keys(&server, "sureq:q:*:hol*"), [""; 0]);
    home.close();
}

fn set_dead_letter(home: &RedisHome, queue: &[u8], grave: &[u8]) {
    let changes = [Change::DeadLetter(grave)];
    run(home, &Command::Config { queue, changes: Changes::List(&changes) });
}

#[test]
fn a_dead_letter_queue_forgets_sources_that_are_deleted_or_go_elsewhere() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let sources = || -> Vec<String> {
        let key = "sureq:q:{grave}:sources";
        cmd("ZRANGE").arg(key).arg(0).arg(-1).query(&mut server.connect()).expect("a sorted set")
    };
    let delay = |queue: &[u8]| {
        let when = When::After(600_000);
        run(&home, &Command::Add(Add { when, ..Add::plain(queue, b"x") }));
    };
    for n in 0..90 {
        set_dead_letter(&home, &queue(n), b"grave");
        delay(&queue(n));
        assert_eq!(sources().len(), 1, "something may die in it");
        match n % 3 {
            0 => _ = run(&home, &Command::Drop { queues: &[&queue(n)] }),
            1 => set_dead_letter(&home, &queue(n), b""),
            _ => set_dead_letter(&home, &queue(n), b"other"),
        }
        assert_eq!(sources(), [""; 0], "after step {}", n % 3);
    }
    // One that has it as its dead-letter queue stays: its waiters are woken when something dies.
    set_dead_letter(&home, b"live", b"grave");
    delay(b"live");
    set_dead_letter(&home, b"live", b"grave");
    push(&home, b"grave", b"x");
    run(&home, &Command::Drop { queues: &[b"grave"] });
    assert_eq!(sources(), ["live"]);
    run(&home, &Command::Drop { queues: &[b"live"] });
    assert_eq!(keys(&server, "sureq:q:{grave}*:sources"), [""; 0]);
    server.check("sureq:");
    home.close();
}

/// Real time, plus the time that a test adds to it.
#[derive(Default)]
struct Hurried(AtomicU64);

const START_MS: u64 = 1_600_000_000_000;

impl Clock for Hurried {
    fn monotonic_ms(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn wall_ms(&self) -> Option<u64> {
        Some(START_MS + self.monotonic_ms())
    }
}

#[test]
fn empty_stores_leave_the_list() {
    let cluster = RedisCluster::start();
    let clock = Arc::new(Hurried::default());
    let target = Target::parse(&cluster.url()).expect("a URL");
    let home = RedisHome::open_by(target, Arc::clone(&clock) as _).expect("the cluster listens");
    for n in 0..100 {
        push(&home, &queue(n), b"x");
        if n % 10 > 0 {
            let popped = pop(&home, &queue(n), 1).expect("it answers");
            ack(&home, &queue(n), &popped[0].1);
        }
    }
    let (owner, _) = cluster.owners("sureq:{stores}:list");
    let mut admin = cluster.server(owner).connect();
    let mut listed = |key: &str| -> u64 { cmd("ZCARD").arg(key).query(&mut admin).expect("it answers") };
    assert_eq!(listed("sureq:{stores}:list"), 100);
    // Longer than a store stays listed without a push.
    clock.0.fetch_add(2 * 3_600_000, Ordering::AcqRel);
    push(&home, b"new", b"x");
    until("empty stores have left the list", || listed("sureq:{stores}:list") == 11);
    assert_eq!(listed("sureq:{stores}:seen"), 11);
    home.close();
}
