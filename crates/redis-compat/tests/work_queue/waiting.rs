//! Waiting pops.

use std::time::{Duration, Instant};

use sureq_core::command::Block;
use sureq_home_api::Home as _;

use crate::common::is_short;
use crate::support::{PATIENCE, Published, QUEUE, Shop, answer, item};

fn ids(popped: Vec<(String, String)>) -> Vec<String> {
    popped.into_iter().map(|(id, _)| id).collect()
}

#[test]
fn a_push_wakes_a_waiting_pop_at_once() {
    let mut shop = Shop::open();
    let mut monitor = shop.monitor();
    is_short(|n| {
        let ticket = shop.wait(Block::Forever);
        monitor.wait_for("BLMOVE");
        shop.raw::<()>(&format!("SET jobs:item:{n} x"));
        let pushed = Instant::now();
        shop.raw::<()>(&format!("LPUSH jobs:queue {n}"));
        assert_eq!(ids(answer(ticket).unwrap()), [n.to_string()]);
        let waited = pushed.elapsed();
        assert!(shop.raw::<i64>(&format!("PTTL jobs:lease:{n}")) > 50_000);
        waited
    });
}

/// A waiting worker may clean twice in that time, and does nothing else.
#[test]
fn a_waiting_pop_sends_no_commands() {
    let shop = Shop::open();
    let mut monitor = shop.monitor();
    let ticket = shop.wait(Block::Forever);
    monitor.wait_for("BLMOVE");
    let sent = monitor.sent_within(Duration::from_secs(10));
    assert!(sent.len() <= 2, "{sent:#?}");
    drop(ticket);
}

#[test]
fn a_pop_that_times_out_takes_nothing() {
    let mut shop = Shop::open();
    for ms in [1, 30] {
        let started = Instant::now();
        assert_eq!(answer(shop.wait(Block::Millis(ms))), Ok(vec![]));
        assert!(started.elapsed() >= Duration::from_millis(ms), "{:?}", started.elapsed());
    }
    let mut monitor = shop.monitor();
    let ticket = shop.wait(Block::Forever);
    monitor.wait_for("BLMOVE");
    let blocked = shop.clients("blmove");
    drop(ticket);
    shop.until_nobody_blocks();
    assert_eq!(
        shop.clients("blmove"),
        blocked,
        "the connection is unblocked, not cut: a cut one could lose an id"
    );
    shop.add("a", "x");
    assert_eq!(shop.lists(), (vec!["a".into()], vec![]));
}

#[test]
fn a_pop_that_waits_for_two_queues_gets_one_task() {
    let mut shop = Shop::open();
    let mut monitor = shop.monitor();
    let ticket = shop.wait_for_either(b"more");
    for _ in 0..2 {
        monitor.wait_for("BLMOVE");
    }
    shop.raw::<()>("SET more:item:m x");
    shop.raw::<()>("LPUSH more:queue m");
    let replies = ticket.wait().replies;
    assert_eq!((replies.tasks[0].queue, replies.tasks[0].foreign_id.as_deref()), (1, Some(&b"m"[..])));
    assert_eq!(shop.raw::<i64>("EXISTS more:lease:m"), 1);
    shop.until_nobody_blocks();
    shop.add("a", "x");
    assert_eq!(shop.lists(), (vec!["a".into()], vec![]));
}

/// An id that Redis moves for a waiter that has just left is moved back.
#[test]
fn an_id_that_was_moved_for_a_dropped_waiter_returns_to_the_front() {
    let mut shop = Shop::open();
    let mut monitor = shop.monitor();
    for n in 0..20 {
        let ticket = shop.wait(Block::Forever);
        monitor.wait_for("BLMOVE");
        shop.raw::<()>(&format!("SET jobs:item:{n} x"));
        drop(ticket);
        shop.raw::<()>(&format!("LPUSH jobs:queue {n}"));
        // Whether or not it was moved, it is at its old place again.
        crate::common::until("the id is in the queue again", || {
            shop.lists() == (vec![n.to_string()], vec![])
        });
        assert_eq!(shop.pop_one(), Some(n.to_string()));
        assert!(shop.ack(&n.to_string()));
    }
    assert_eq!(shop.lists(), (vec![], vec![]));
}

#[test]
fn a_closed_home_takes_no_more_tasks() {
    let mut shop = Shop::open();
    let other = shop.another();
    let mut monitor = shop.monitor();
    let ticket = shop.wait(Block::Forever);
    monitor.wait_for("BLMOVE");
    shop.home.close();
    assert_eq!(answer(ticket), Ok(vec![]));
    shop.home = other;
    shop.add("a", "x");
    assert_eq!(shop.lists(), (vec!["a".into()], vec![]));
}

#[test]
fn waiters_of_a_process_share_one_connection_and_are_served_in_order() {
    let mut shop = Shop::open();
    let mut monitor = shop.monitor();
    let first = shop.wait(Block::Forever);
    monitor.wait_for("BLMOVE");
    let second = shop.wait(Block::Forever);
    // The second waiter has joined when this returns.
    shop.home.look();
    assert_eq!(shop.clients("blmove").len(), 1);
    shop.add("a", "x");
    shop.add("b", "y");
    assert_eq!(ids(answer(first).unwrap()), ["a"]);
    assert_eq!(ids(answer(second).unwrap()), ["b"]);
}

#[test]
fn waiting_workers_of_sureq_and_of_the_published_crate_share_the_tasks() {
    let shop = Shop::open();
    let mut monitor = shop.monitor();
    let mut published = Published::new(&shop.server);
    for round in 0..5 {
        let theirs = std::thread::spawn(move || {
            let leased = published.lease_within(None).unwrap();
            (published, leased.id)
        });
        monitor.wait_for("BRPOPLPUSH");
        let ours = shop.wait(Block::Forever);
        monitor.wait_for("BLMOVE");
        let [first, second] = [format!("{round}a"), format!("{round}b")];
        shop.add(&first, "x");
        shop.add(&second, "y");
        assert_eq!(ids(answer(ours).unwrap()), [second]);
        let (back, id) = theirs.join().unwrap();
        published = back;
        assert_eq!(id, first, "the client that waited longer is served first");
    }
}

#[test]
fn a_waiting_pop_skips_ids_without_an_item() {
    let mut shop = Shop::open();
    let mut monitor = shop.monitor();
    let ticket = shop.wait(Block::Forever);
    monitor.wait_for("BLMOVE");
    shop.raw::<()>("LPUSH jobs:queue ghost");
    monitor.wait_for("BLMOVE");
    assert_eq!(shop.lists(), (vec![], vec![]), "the ghost is gone");
    // A large number of ghosts takes more than one step.
    let ghosts: Vec<String> = (0..2_500).map(|n| n.to_string()).collect();
    shop.raw::<()>(&format!("LPUSH jobs:queue {}", ghosts.join(" ")));
    for _ in 0..3 {
        monitor.wait_for("BLMOVE");
    }
    assert_eq!(shop.lists(), (vec![], vec![]), "all of them are gone");
    let mut published = Published::new(&shop.server);
    published.add_unique(&item("a", "x"));
    assert_eq!(ids(answer(ticket).unwrap()), ["a"]);
}

#[test]
fn a_connection_lost_while_waiting_is_replaced() {
    let mut shop = Shop::open();
    let mut monitor = shop.monitor();
    let ticket = shop.wait(Block::Forever);
    monitor.wait_for("BLMOVE");
    for client in [shop.clients("blmove"), shop.clients("fcall")].concat() {
        assert_eq!(shop.raw::<u64>(&format!("CLIENT KILL ID {client}")), 1);
    }
    monitor.wait_for("BLMOVE");
    shop.raw::<()>("SET jobs:item:a x");
    shop.raw::<()>("LPUSH jobs:queue a");
    assert_eq!(ids(answer(ticket).unwrap()), ["a"]);
}

#[test]
fn a_waiting_pop_survives_a_restart_of_redis_and_the_loss_of_its_scripts() {
    let mut shop = Shop::open();
    let mut monitor = shop.monitor();
    let ticket = shop.wait(Block::Forever);
    monitor.wait_for("BLMOVE");
    shop.raw::<()>("SCRIPT FLUSH");
    shop.raw::<()>("SET jobs:item:a x");
    shop.raw::<()>("LPUSH jobs:queue a");
    assert_eq!(ids(answer(ticket).unwrap()), ["a"]);
    let ticket = shop.wait(Block::Forever);
    monitor.wait_for("BLMOVE");
    shop.crash();
    shop.raw::<()>("SET jobs:item:b x");
    shop.raw::<()>("LPUSH jobs:queue b");
    assert_eq!(ids(answer(ticket).unwrap()), ["b"]);
    assert!(shop.ack("a") && shop.ack("b"));
    assert_eq!(shop.lists(), (vec![], vec![]));
}

#[test]
fn a_task_whose_delivery_fails_returns_to_the_front() {
    let mut shop = Shop::open();
    shop.add("a", "x");
    shop.add("b", "y");
    shop.add("c", "z");
    let replies = shop.wait(Block::Forever).wait().replies;
    assert_eq!(shop.pop_one().as_deref(), Some("b"));
    shop.home.requeue(QUEUE, &[replies.tasks[0].receipt()]);
    shop.home.look();
    assert_eq!(shop.lists(), (vec!["c".into(), "a".into()], vec!["b".into()]));
    // This is another delivery, with another holder.
    shop.raw::<()>("RPOPLPUSH jobs:queue jobs:processing");
    shop.raw::<()>("SETEX jobs:lease:a 60 theirs");
    shop.home.requeue(QUEUE, &[replies.tasks[0].receipt()]);
    shop.home.look();
    assert_eq!(shop.lists(), (vec!["c".into()], vec!["a".into(), "b".into()]));
}

#[test]
fn tasks_of_a_dropped_ticket_return_to_the_front() {
    let mut shop = Shop::open();
    shop.add("a", "x");
    shop.add("b", "y");
    let mut monitor = shop.monitor();
    let ticket = shop.wait(Block::Millis(PATIENCE.as_millis() as u64));
    monitor.wait_for("pop");
    drop(ticket);
    monitor.wait_for("requeue");
    assert_eq!(shop.lists(), (vec!["b".into(), "a".into()], vec![]));
    assert_eq!(shop.raw::<i64>("EXISTS jobs:lease:a"), 0);
}
