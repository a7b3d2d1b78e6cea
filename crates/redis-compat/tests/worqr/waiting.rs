//! Waiting pops.

use std::time::Duration;

use sureq_core::command::Block;

use crate::common::waiting::Ways;
use crate::support::{Shop, TTL_MS, answer, start, wait};

const WAYS: Ways = Ways {
    wait: |shop, block| wait(&shop.home, "w", block),
    foreign_push: Shop::foreign_enqueue,
    cut: |shop| _ = shop.raw::<u64>("CLIENT KILL TYPE pubsub"),
    pushed: |(_, payload)| payload,
};

#[test]
fn a_push_of_either_side_wakes_a_waiting_pop_at_once() {
    let mut shop = Shop::open();
    start(&shop.home, "w", TTL_MS);
    WAYS.a_push_of_either_side_wakes_at_once(&mut shop);
}

/// A waiting worker may clean twice in that time, and does nothing else. Its heartbeats are not counted.
#[test]
fn a_waiting_pop_sends_no_commands() {
    let shop = Shop::open();
    start(&shop.home, "w", TTL_MS);
    let ticket = wait(&shop.home, "w", Block::Forever);
    shop.until_waiting(1);
    let sent = shop.monitor().sent_within(Duration::from_secs(10));
    assert!(sent.len() <= 2, "{sent:#?}");
    drop(ticket);
}

#[test]
fn a_pop_that_times_out_takes_nothing() {
    let mut shop = Shop::open();
    start(&shop.home, "w", TTL_MS);
    WAYS.give_up(&shop);
    shop.push("a");
    assert_eq!((shop.queue(), shop.working()), (vec!["a".into()], vec![]));
}

#[test]
fn tasks_of_a_dropped_ticket_return_to_the_front() {
    let mut shop = Shop::open();
    shop.push("a");
    shop.push("b");
    start(&shop.home, "w", TTL_MS);
    WAYS.requeues_the_task_of_a_dropped_ticket(&shop);
    assert_eq!((shop.queue(), shop.working()), (vec!["b".into(), "a".into()], vec![]));
}

/// Foreign clients publish nothing when they requeue a task: cleaning the queue finds it.
#[test]
fn tasks_that_foreign_clients_requeue_silently_are_noticed() {
    let mut shop = Shop::open();
    shop.push("a");
    shop.foreign_start("theirs");
    shop.foreign_dequeue("jobs_p1");
    start(&shop.home, "w", TTL_MS);
    let ticket = wait(&shop.home, "w", Block::Forever);
    shop.until_waiting(1);
    shop.multi(&[
        "RPOPLPUSH worqr:processes:jobs_p1 worqr:queues:jobs",
        "SREM worqr:workingProcesses:jobs jobs_p1",
    ]);
    assert_eq!(answer(ticket).unwrap().len(), 1);
}

#[test]
fn a_waiting_pop_survives_a_restart_of_redis_and_the_loss_of_scripts_and_connections() {
    let mut shop = Shop::open();
    start(&shop.home, "w", TTL_MS);
    WAYS.a_waiting_pop_survives_a_restart_of_redis_and_the_loss_of_scripts_and_connections(&mut shop);
}
