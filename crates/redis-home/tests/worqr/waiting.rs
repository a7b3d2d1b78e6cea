//! Pops that wait.

use std::time::{Duration, Instant};

use sureq_core::command::Block;

use crate::common::until;
use crate::support::{Shop, TTL_MS, answer, start, wait};

/// Waits until pops wait and all that leads to it has been asked for.
fn until_waiting(shop: &Shop, n: usize) {
    until("it waits", || shop.home.waiting() == n);
    shop.home.look();
}

#[test]
fn a_push_of_either_side_wakes_whoever_waits_at_once() {
    let mut shop = Shop::open();
    start(&shop.home, "w", TTL_MS);
    let other = shop.another();
    let mut times = Vec::new();
    for n in 0..21 {
        let ticket = wait(&shop.home, "w", Block::Forever);
        until_waiting(&shop, 1);
        let pushed = Instant::now();
        if n % 2 == 0 {
            shop.foreign_enqueue("x");
        } else {
            crate::common::push(&other, b"jobs", b"x");
        }
        assert_eq!(answer(ticket).unwrap().len(), 1);
        times.push(pushed.elapsed());
    }
    times.sort();
    println!("median {:?}, worst {:?}", times[10], times[20]);
    assert!(times[10] < Duration::from_millis(50), "{times:?}");
    other.close();
}

/// A worker that waits may clean twice in that time, and nothing else. Its beats are its own business.
#[test]
fn whoever_waits_asks_nothing() {
    let shop = Shop::open();
    start(&shop.home, "w", TTL_MS);
    let ticket = wait(&shop.home, "w", Block::Forever);
    until_waiting(&shop, 1);
    let sent = shop.monitor().sent_within(Duration::from_secs(10));
    assert!(sent.len() <= 2, "{sent:#?}");
    drop(ticket);
}

#[test]
fn whoever_gives_up_takes_nothing() {
    let mut shop = Shop::open();
    start(&shop.home, "w", TTL_MS);
    let started = Instant::now();
    assert_eq!(answer(wait(&shop.home, "w", Block::Millis(30))), Ok(vec![]));
    assert!(started.elapsed() >= Duration::from_millis(30));
    drop(wait(&shop.home, "w", Block::Forever));
    shop.home.look();
    shop.push("a");
    assert_eq!((shop.queue(), shop.working()), (vec!["a".into()], vec![]));
}

#[test]
fn what_a_ticket_was_given_that_nobody_reads_goes_back_to_the_front() {
    let mut shop = Shop::open();
    shop.push("a");
    shop.push("b");
    start(&shop.home, "w", TTL_MS);
    let mut monitor = shop.monitor();
    let ticket = wait(&shop.home, "w", Block::Forever);
    monitor.wait_for("pop");
    drop(ticket);
    monitor.wait_for("undeliver");
    shop.home.look();
    assert_eq!((shop.queue(), shop.working()), (vec!["b".into(), "a".into()], vec![]));
}

/// Their clients tell nobody what they give back: it is found when the queue is cleaned.
#[test]
fn what_foreign_clients_give_back_in_silence_is_noticed() {
    let mut shop = Shop::open();
    shop.push("a");
    shop.foreign_start("theirs");
    shop.foreign_dequeue("jobs_p1");
    start(&shop.home, "w", TTL_MS);
    let ticket = wait(&shop.home, "w", Block::Forever);
    until_waiting(&shop, 1);
    shop.multi(&[
        "RPOPLPUSH worqr:processes:jobs_p1 worqr:queues:jobs",
        "SREM worqr:workingProcesses:jobs jobs_p1",
    ]);
    assert_eq!(answer(ticket).unwrap().len(), 1);
}

#[test]
fn whoever_waits_outlives_redis_its_scripts_and_its_connections() {
    let mut shop = Shop::open();
    start(&shop.home, "w", TTL_MS);
    let ticket = wait(&shop.home, "w", Block::Forever);
    until_waiting(&shop, 1);
    shop.raw::<()>("FUNCTION FLUSH");
    shop.raw::<()>("SCRIPT FLUSH");
    shop.foreign_enqueue("a");
    assert_eq!(answer(ticket).unwrap()[0].1, "a");
    let ticket = wait(&shop.home, "w", Block::Forever);
    until_waiting(&shop, 1);
    shop.raw::<u64>("CLIENT KILL TYPE pubsub");
    shop.foreign_enqueue("b");
    assert_eq!(answer(ticket).unwrap()[0].1, "b");
    let ticket = wait(&shop.home, "w", Block::Forever);
    until_waiting(&shop, 1);
    shop.crash();
    shop.foreign_enqueue("c");
    assert_eq!(answer(ticket).unwrap()[0].1, "c");
}
