//! Waiting pops.

use std::time::{Duration, Instant};

use sureq_core::command::Block;

use crate::common::waiting::Ways;
use crate::support::{Shop, answer};

const WAYS: Ways = Ways {
    wait: Shop::wait,
    foreign_push: |shop, id| shop.raw(&format!("LPUSH jobs {id}")),
    cut: |shop| {
        for client in shop.clients("client|tracking") {
            assert_eq!(shop.raw::<u64>(&format!("CLIENT KILL ID {client}")), 1);
        }
    },
    pushed: |(id, _)| id,
};

#[test]
fn a_push_of_either_program_wakes_a_waiting_pop_at_once_also_if_tasks_are_taken() {
    let mut shop = Shop::open();
    shop.push_id("taken");
    shop.pop(1);
    WAYS.a_push_of_either_side_wakes_at_once(&mut shop);
}

#[test]
fn a_waiting_pop_sends_no_commands() {
    let mut shop = Shop::open();
    shop.push_id("taken");
    shop.pop(1);
    let ticket = shop.wait(Block::Forever);
    shop.until_waiting(1);
    let monitor = shop.monitor();
    // Another queue whose name has the same beginning does not matter.
    shop.raw::<()>("LPUSH jobs2 x");
    let sent = monitor.sent_within(Duration::from_secs(10));
    assert!(sent.len() <= 2, "{sent:#?}");
    drop(ticket);
}

#[test]
fn a_late_task_wakes_a_waiting_pop() {
    let shop = Shop::with("layout=redis-queue&tasktimeout=1");
    shop.push_id("a");
    assert_eq!(shop.pop_one().as_deref(), Some("a"));
    let since = Instant::now();
    assert_eq!(answer(shop.wait(Block::Forever)).unwrap()[0].0, "a");
    // redis-queue counts whole seconds: later than after one second means after two.
    assert!((1.0..5.0).contains(&since.elapsed().as_secs_f64()), "{:?}", since.elapsed());
}

#[test]
fn a_pop_that_times_out_takes_nothing() {
    let mut shop = Shop::open();
    WAYS.give_up(&shop);
    shop.push_id("a");
    assert_eq!(shop.list(), ["a"]);
}

#[test]
fn tasks_of_a_dropped_ticket_return_to_the_front() {
    let mut shop = Shop::open();
    shop.push_id("a");
    shop.push_id("b");
    WAYS.requeues_the_task_of_a_dropped_ticket(&shop);
    assert_eq!(shop.list(), ["b", "a"]);
}

#[test]
fn pops_can_wait_for_two_queues_whose_names_begin_alike() {
    let mut shop = Shop::open();
    let queues: [&[u8]; 2] = [b"jobs", b"jobs2"];
    let pop = sureq_core::command::Pop {
        block: Some(Block::Forever),
        ..sureq_core::command::Pop::plain(&queues, 1)
    };
    for queue in ["jobs", "jobs2"] {
        let ticket = shop.home.send(&[sureq_core::Command::Pop(pop)]);
        shop.until_waiting(1);
        shop.raw::<()>(&format!("LPUSH {queue} x"));
        assert_eq!(answer(ticket).unwrap()[0].0, "x");
    }
}

#[test]
fn a_waiting_pop_survives_a_restart_of_redis_and_the_loss_of_scripts_and_connections() {
    WAYS.a_waiting_pop_survives_a_restart_of_redis_and_the_loss_of_scripts_and_connections(&mut Shop::open());
}
