//! Workers that are started, alive, at rest, stopped and failed, of sureq and of foreign clients.

use sureq_core::command::{Command, Worker};
use sureq_core::{Refusal, Reply};

use crate::common::until;
use crate::support::{QUEUE, Shop, TTL_MS, beat, pop, pop_one, start, worker};

fn list(shop: &Shop) -> Vec<(String, u64)> {
    let replies = shop.execute(Command::Worker(Worker::List));
    let mut rows: Vec<(String, u64)> = replies
        .workers
        .iter()
        .map(|row| (String::from_utf8_lossy(&row.name).into_owned(), row.leased))
        .collect();
    rows.sort();
    rows
}

#[test]
fn workers_of_sureq_and_foreign_ones_are_listed_together() {
    let mut shop = Shop::open();
    start(&shop.home, "ours", 2_500);
    assert_eq!(shop.all("SMEMBERS worqr:workers"), ["ours"]);
    assert_eq!(shop.all("SMEMBERS worqr:expiringWorkers"), ["ours"]);
    assert_eq!(shop.raw::<String>("GET worqr:workerTimers:ours"), "RUN");
    let left: i64 = shop.raw("PTTL worqr:workerTimers:ours");
    assert!((1..=2_500).contains(&left), "{left}");
    shop.foreign_start("theirs");
    shop.raw::<()>("SADD worqr:workers lasting");
    shop.raw::<()>("SADD worqr:permanentWorkers lasting");
    let alive = ["lasting", "ours", "theirs"].map(|name| (name.to_owned(), 0));
    assert_eq!(list(&shop), alive);
    shop.foreign_dies("theirs");
    assert_eq!(list(&shop), alive[..2]);
    assert_eq!(shop.reply(Command::Worker(Worker::Work(worker("ours"), QUEUE))), Reply::Ok);
    assert_eq!(shop.all("SMEMBERS worqr:workingQueues:ours"), ["jobs"]);
}

#[test]
fn heartbeats_keep_a_worker_alive_and_a_late_one_is_refused() {
    let mut shop = Shop::open();
    shop.push("a");
    start(&shop.home, "w", TTL_MS);
    let id = pop_one(&shop.home, "w");
    shop.raw::<()>("PEXPIRE worqr:workerTimers:w 5000");
    assert_eq!(beat(&shop.home, "w"), Ok(vec![]));
    assert!(shop.raw::<i64>("PTTL worqr:workerTimers:w") > 5_000);
    shop.raw::<()>("DEL worqr:workerTimers:w");
    assert_eq!(beat(&shop.home, "w"), Err(Refusal::WorkerGone));
    assert_eq!(shop.queue(), ["a"], "its task was requeued");
    assert!(!shop.ack(&id), "and the worker has lost it");
    let gone = Command::Worker(Worker::Work(worker("w"), QUEUE));
    assert_eq!(shop.reply(gone), Reply::Refused(Refusal::WorkerGone));
    // It starts again under its name.
    start(&shop.home, "w", TTL_MS);
    assert!(shop.ack(&pop_one(&shop.home, "w")));
}

#[test]
fn a_stopped_worker_returns_only_its_own_tasks_and_in_order() {
    let mut shop = Shop::open();
    for payload in ["a", "b", "c", "d", "e"] {
        shop.push(payload);
    }
    start(&shop.home, "first", TTL_MS);
    start(&shop.home, "second", TTL_MS);
    let first = [pop(&shop.home, "first", 1), pop(&shop.home, "second", 1), pop(&shop.home, "first", 2)];
    assert_eq!(list(&shop), [("first".to_owned(), 3), ("second".to_owned(), 1)]);
    assert_eq!(shop.count(Command::Worker(Worker::Stop(worker("first")))), 3);
    assert_eq!(shop.queue(), ["e", "d", "c", "a"], "a, c and d are next, in their old order");
    assert_eq!(shop.working(), [first[1][0].0.clone()], "b belongs to the other worker");
    assert_eq!(shop.all("SMEMBERS worqr:workers"), ["second"]);
    assert_eq!(shop.count(Command::Worker(Worker::Rest(worker("second"), b"other"))), 0);
    assert_eq!(shop.count(Command::Worker(Worker::Rest(worker("second"), QUEUE))), 1);
    assert_eq!(shop.queue(), ["e", "d", "c", "a", "b"]);
    assert_eq!(shop.raw::<i64>("EXISTS worqr:workingQueues:second"), 0);
    pop_one(&shop.home, "second");
    assert_eq!(shop.count(Command::Worker(Worker::Fail { name: b"second" })), 1);
    assert_eq!(shop.count(Command::Worker(Worker::Fail { name: b"second" })), 0);
    assert_eq!(list(&shop), []);
}

#[test]
fn starting_a_worker_again_ends_its_predecessor() {
    let mut shop = Shop::open();
    shop.push("a");
    start(&shop.home, "w", TTL_MS);
    pop_one(&shop.home, "w");
    start(&shop.home, "w", TTL_MS);
    assert_eq!((shop.queue(), shop.working()), (vec!["a".into()], vec![]));
}

/// The `stopWork` and `failWorker` of Worqr requeue the tasks of all workers of the queue, including those of sureq.
#[test]
fn a_task_taken_by_a_foreign_worker_is_reported_once_and_cannot_be_acked() {
    let mut shop = Shop::open();
    shop.push("a");
    shop.push("b");
    start(&shop.home, "w", TTL_MS);
    let [taken, kept] = [pop_one(&shop.home, "w"), pop_one(&shop.home, "w")];
    shop.multi(&[
        "DEL worqr:workingProcesses:jobs",
        &format!("RPOPLPUSH worqr:processes:{taken} worqr:queues:jobs"),
        &format!("DEL worqr:processes:{taken}"),
    ]);
    assert_eq!(beat(&shop.home, "w"), Ok(vec![taken.clone()]));
    assert_eq!(beat(&shop.home, "w"), Ok(vec![]), "once");
    assert!(!shop.ack(&taken));
    assert_eq!(shop.working(), [&kept[..]], "the record of its other task is restored");
    assert!(shop.ack(&kept));
    assert_eq!(shop.queue(), ["a"]);
}

#[test]
fn a_worker_whose_time_to_live_is_over_cannot_pop() {
    let shop = Shop::open();
    shop.push("a");
    start(&shop.home, "w", 1);
    until("its time to live is over", || beat_would_fail(&shop));
    let pop = crate::support::wait(&shop.home, "w", sureq_core::command::Block::Millis(1));
    assert_eq!(crate::support::answer(pop), Err(Refusal::WorkerGone));
}

fn beat_would_fail(shop: &Shop) -> bool {
    let mut raw = shop.server.connect();
    let exists: i64 =
        redis::cmd("EXISTS").arg("worqr:workerTimers:w").query(&mut raw).expect("Redis answers");
    exists == 0
}

/// A foreign `cleanupWorkers` follows the records of the workers of sureq.
#[test]
fn a_foreign_client_can_clean_up_after_a_worker_of_sureq() {
    let mut shop = Shop::open();
    shop.push("a");
    start(&shop.home, "w", TTL_MS);
    let id = pop_one(&shop.home, "w");
    shop.raw::<()>("DEL worqr:workerTimers:w");
    assert_eq!(shop.all("SMEMBERS worqr:workingQueues:w"), ["jobs"]);
    assert_eq!(shop.working(), [&id[..]]);
    shop.multi(&[
        "SREM worqr:workers w",
        "SREM worqr:expiringWorkers w",
        "SREM worqr:permanentWorkers w",
        "DEL worqr:workerTimers:w",
        "DEL worqr:workingQueues:w",
        "DEL worqr:workingProcesses:jobs",
        &format!("RPOPLPUSH worqr:processes:{id} worqr:queues:jobs"),
        &format!("DEL worqr:processes:{id}"),
    ]);
    assert_eq!(beat(&shop.home, "w"), Err(Refusal::WorkerGone));
    assert_eq!((shop.queue(), shop.working()), (vec!["a".into()], vec![]), "the task is there once");
}
