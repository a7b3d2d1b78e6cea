//! Cleaning: tasks of dead workers are requeued, and no others.

use std::time::{Duration, Instant};

use sureq_core::command::{Add, Block, Command, NameArg};
use sureq_home_api::{CleanReport, Cleaned, CleanedQueue, Cleaning, Home as _};

use crate::common::clean;
use crate::support::{QUEUE, Shop, TTL_MS, answer, pop, pop_one, start, wait};

fn returned(n: u64) -> Cleaned {
    Cleaned { returned: n, removed: 0 }
}

#[test]
fn only_tasks_of_a_dead_worker_of_sureq_are_requeued() {
    let mut shop = Shop::open();
    for payload in ["a", "b", "c", "d"] {
        shop.push(payload);
    }
    start(&shop.home, "dead", TTL_MS);
    start(&shop.home, "alive", TTL_MS);
    pop(&shop.home, "dead", 2);
    let kept = pop_one(&shop.home, "alive");
    assert_eq!(clean(&shop.home, &[QUEUE], Cleaning::Deep), Ok(returned(0)));
    shop.raw::<()>("DEL worqr:workerTimers:dead");
    assert_eq!(clean(&shop.home, &[], Cleaning::Light), Ok(returned(2)));
    assert_eq!(shop.queue(), ["d", "b", "a"]);
    assert_eq!(shop.working(), [kept]);
    assert_eq!(shop.all("SMEMBERS worqr:workers"), ["alive"]);
    assert_eq!(clean(&shop.home, &[], Cleaning::Light), Ok(returned(0)));
}

#[test]
fn tasks_of_foreign_workers_are_requeued_when_none_works_on_the_queue() {
    let mut shop = Shop::open();
    for payload in ["a", "b", "c"] {
        shop.push(payload);
    }
    shop.foreign_start("one");
    shop.foreign_start("two");
    shop.foreign_dequeue("jobs_p1");
    shop.foreign_dequeue("jobs_p2");
    start(&shop.home, "ours", TTL_MS);
    let ours = pop_one(&shop.home, "ours");
    shop.foreign_dies("one");
    assert_eq!(
        clean(&shop.home, &[QUEUE], Cleaning::Light),
        Ok(returned(0)),
        "the task may belong to the other worker"
    );
    assert_eq!(
        shop.all("SMEMBERS worqr:expiringWorkers"),
        ["one", "ours", "two"],
        "Worqr's own cleanup must see it"
    );
    // The other worker rests, but is alive; no foreign worker works on the queue now.
    shop.raw::<()>("SREM worqr:workingQueues:two jobs");
    assert_eq!(clean(&shop.home, &[QUEUE], Cleaning::Light), Ok(returned(2)));
    assert_eq!(shop.all("SMEMBERS worqr:expiringWorkers"), ["ours", "two"]);
    assert_eq!(shop.working(), [ours]);
    let mut queue = shop.queue();
    queue.sort();
    assert_eq!(queue, ["a", "b"]);
}

#[test]
fn a_permanent_foreign_worker_is_never_dead() {
    let mut shop = Shop::open();
    shop.push("a");
    for line in ["SADD worqr:workers p", "SADD worqr:permanentWorkers p", "SADD worqr:workingQueues:p jobs"] {
        shop.raw::<()>(line);
    }
    shop.foreign_dequeue("jobs_p1");
    assert_eq!(clean(&shop.home, &[], Cleaning::Deep), Ok(returned(0)));
    assert_eq!(shop.working(), ["jobs_p1"]);
}

/// The steps of foreign clients, in their order. A client may die after any of them. The commands of one line are one
/// transaction.
const FOREIGN: [(&str, &[&str]); 7] = [
    ("enqueue", &["LPUSH worqr:queues:jobs t;PUBLISH worqr_jobs_work 1"]),
    (
        "unique enqueue",
        &[
            "SET worqr:uniqueTasks:e358efa489f58062f10dd7316b65649e x;LPUSH worqr:queues:jobs t;PUBLISH worqr_jobs_work 1",
        ],
    ),
    (
        "start, work and take",
        &[
            "SADD worqr:workers f;SADD worqr:expiringWorkers f;SET worqr:workerTimers:f RUN EX 600",
            "SADD worqr:workingQueues:f jobs",
            "LPUSH worqr:queues:jobs t",
            "RPOPLPUSH worqr:queues:jobs worqr:processes:jobs_p;SADD worqr:workingProcesses:jobs jobs_p",
        ],
    ),
    (
        "take from an empty queue",
        &[
            "RPOPLPUSH worqr:queues:jobs worqr:processes:jobs_p;SADD worqr:workingProcesses:jobs jobs_p",
            "RPOPLPUSH worqr:processes:jobs_p worqr:queues:jobs;DEL worqr:processes:jobs_p;SREM worqr:workingProcesses:jobs jobs_p",
        ],
    ),
    (
        "stop a process",
        &[
            "LPUSH worqr:processes:jobs_p t;SADD worqr:workingProcesses:jobs jobs_p",
            "RPOPLPUSH worqr:processes:jobs_p worqr:queues:jobs;SREM worqr:workingProcesses:jobs jobs_p",
        ],
    ),
    // Another worker takes a task between the two steps of a failing worker: that process is then in no set.
    (
        "fail while another takes",
        &[
            "LPUSH worqr:processes:jobs_p t;SADD worqr:workingProcesses:jobs jobs_p",
            "DEL worqr:workingProcesses:jobs",
        ],
    ),
    (
        "fail",
        &[
            "LPUSH worqr:processes:jobs_p t;SADD worqr:workingProcesses:jobs jobs_p",
            "DEL worqr:workingProcesses:jobs;RPOPLPUSH worqr:processes:jobs_p worqr:queues:jobs;DEL worqr:processes:jobs_p",
        ],
    ),
];

#[test]
fn a_foreign_client_may_die_after_any_of_its_steps() {
    let mut shop = Shop::open();
    for (name, steps) in FOREIGN {
        for n in 0..=steps.len() {
            shop.raw::<()>("FLUSHALL");
            for step in &steps[..n] {
                shop.multi(&step.split(';').collect::<Vec<_>>());
            }
            let is_there = steps[..n].iter().any(|step| step.contains(" t"));
            // The heartbeat of the worker has stopped.
            shop.raw::<()>("DEL worqr:workerTimers:f");
            clean(&shop.home, &[], Cleaning::Light).unwrap();
            clean(&shop.home, &[], Cleaning::Deep).unwrap();
            let expected: &[&str] = if is_there { &["t"] } else { &[] };
            assert_eq!(shop.queue(), expected, "{name}, {n} steps");
            assert_eq!(shop.working(), Vec::<String>::new(), "{name}, {n} steps");
            assert_eq!(shop.raw::<i64>("EXISTS worqr:processes:jobs_p"), 0, "{name}, {n} steps");
            assert_eq!(shop.raw::<i64>("SCARD worqr:workers"), 0, "{name}, {n} steps");
        }
    }
}

/// Foreign cancels and deletions leave the mark behind, and without cleaning that payload could never be unique
/// again.
#[test]
fn a_deep_cleaning_removes_marks_without_a_task() {
    let mut shop = Shop::open();
    for payload in [&b"held"[..], b"waiting"] {
        shop.execute(Command::Add(Add { name: Some(NameArg::Payload), ..Add::plain(QUEUE, payload) }));
    }
    start(&shop.home, "w", TTL_MS);
    pop_one(&shop.home, "w");
    // The MD5 of a payload without a task.
    shop.raw::<()>("SET worqr:uniqueTasks:36f34fd8319cf30f8e132ef294c616af x");
    let report = shop.home.clean(&[], Cleaning::Light).unwrap();
    assert_eq!(report.marks, 0);
    let report = shop.home.clean(&[], Cleaning::Deep).unwrap();
    let queue = CleanedQueue { queue: QUEUE.to_vec(), outcome: Ok(returned(0)) };
    assert_eq!(report, CleanReport { queues: vec![queue], marks: 1 });
    assert_eq!(shop.raw::<Vec<String>>("KEYS worqr:uniqueTasks:*").len(), 2);
}

#[test]
fn a_home_that_pops_cleans_by_itself_and_one_home_at_a_time() {
    let mut shop = Shop::open();
    shop.push("a");
    let dead = shop.another();
    start(&dead, "dead", TTL_MS);
    pop_one(&dead, "dead");
    dead.close();
    shop.raw::<()>("DEL worqr:workerTimers:dead");
    // Another home cleans now.
    shop.raw::<()>("SET worqr:sureq:cleaning other");
    start(&shop.home, "w", TTL_MS);
    let mut monitor = shop.monitor();
    let ticket = wait(&shop.home, "w", Block::Forever);
    monitor.wait_for("clean");
    shop.home.look();
    assert_eq!(shop.home.waiters(), 1, "cleaning was left to the other home");
    shop.raw::<()>("DEL worqr:sureq:cleaning");
    let since = Instant::now();
    assert_eq!(answer(ticket).unwrap()[0].1, "a");
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    assert!(shop.raw::<i64>("PTTL worqr:sureq:cleaning") > 0);
}
