//! Leases, their ends, and the effects of a restart on them.

use crate::support::{Answer, Home, leased};
use crate::{PLAIN, add, beat, by, cancel, extend, refs, start, tries_of, x};
use sureq_core::command::{
    Add, Cancel, Command, ConnId, LapseEnd, LapsePolicy, LeaseAsk, NameArg, View, Worker, WorkerRef,
};
use sureq_core::reply::Outcome;
use sureq_core::settings::{Change, Place};
use sureq_core::task::{StateKind, Tries};
use sureq_core::{Receipt, TaskId};

#[test]
fn a_lease_is_valid_until_its_deadline_and_not_at_it() {
    for (ms, expected) in [(9, Outcome::Done), (10, Outcome::Stale), (11, Outcome::Stale)] {
        let mut home = Home::default();
        home.push(&["a"]);
        let receipt = home.take(1, leased(10))[0].receipt();
        home.pass(ms);
        assert_eq!(extend(&mut home, receipt, 10), expected, "after {ms} ms");
        home.verify();
    }
}

#[test]
fn an_extension_counts_from_now_and_gives_a_deadline_to_a_lease_without_one() {
    let mut home = Home::default();
    let id = home.push(&["a"])[0];
    home.pop(1, PLAIN);
    assert_eq!(extend(&mut home, id, 20), Outcome::Done);
    home.pass(15);
    assert_eq!(extend(&mut home, id, 20), Outcome::Done);
    home.pass(19);
    home.tick();
    assert_eq!(home.info().leased, 1);
    home.pass(1);
    home.tick();
    assert_eq!(home.info().ready, 1);
    assert_eq!(extend(&mut home, id, 1), Outcome::Stale, "it is not leased any more");
}

#[test]
fn only_a_plain_pop_gets_the_lease_of_the_queue() {
    let mut home = Home::default();
    home.config(&[Change::LeaseMs(10)]);
    home.push(&["plain", "policy", "conn", "worker"]);
    let worker = start(&mut home, b"w", 1_000);
    let policy = LapsePolicy { to: Place::Back, limit: None, then: LapseEnd::Dead };
    home.pop(1, PLAIN);
    home.pop(1, LeaseAsk { lapse: Some(policy), ..LeaseAsk::NONE });
    home.pop(1, LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE });
    home.pop(1, by(worker));
    home.pass(10);
    assert_eq!(home.see(View::Leased), "conn worker");
}

#[test]
fn a_late_ack_counts_after_a_lapse_or_a_lost_worker_only() {
    type End = fn(&mut Home, TaskId);
    let ends: [(&str, End, bool); 6] = [
        ("lapse", |home, _| home.pass(10), true),
        ("worker lost", |home, _| _ = home.run(&Command::Worker(Worker::Fail { name: b"w" })), true),
        ("return", |home, id| _ = home.return_task(id, None, None), false),
        ("failure", |home, id| _ = home.return_task(id, None, Some("why")), false),
        (
            "undelivered",
            |home, id| home.requeue_undelivered(b"q", &[Receipt { id, incarnation: 1, delivery: 1 }]),
            false,
        ),
        (
            "revived",
            |home, id| {
                refs(id, |tasks| home.run(&Command::Bury { queue: b"q", tasks }));
                home.run(&Command::Revive { queue: b"q", tasks: None });
            },
            false,
        ),
    ];
    for (end, how, expected) in ends {
        let mut home = Home::default();
        let worker = start(&mut home, b"w", 1_000);
        let id = home.push(&["a"])[0];
        home.take(1, LeaseAsk { ms: Some(10), ..by(worker) });
        how(&mut home, id);
        home.tick();
        assert!(!home.ack(Receipt { id, incarnation: 1, delivery: 1 }), "{end}: the receipt is stale");
        assert_eq!(home.ack(id), expected, "{end}");
        assert!(!home.ack(id), "{end}: at most once");
        home.verify();
    }
}

#[test]
fn a_late_ack_counts_only_until_the_task_is_returned_after_another_delivery() {
    let mut home = Home::default();
    let id = home.push(&["a"])[0];
    home.take(1, leased(10));
    home.pass(10);
    home.take(1, PLAIN);
    home.return_task(id, None, None);
    assert!(!home.ack(id));
}

#[test]
fn a_stale_receipt_changes_nothing_and_each_incarnation_has_its_own() {
    let mut home = Home::default();
    home.push(&["a"]);
    let first = home.take(1, leased(10))[0].receipt();
    home.pass(10);
    let second = home.take(1, PLAIN)[0].receipt();
    assert!(!home.ack(first));
    home.restart(2);
    assert!(!home.ack(Receipt { incarnation: 2, ..second }));
    assert!(home.ack(second), "a lease survives a restart");
    home.verify();
}

#[test]
fn a_cancelled_task_is_not_delivered_again() {
    type End = fn(&mut Home, TaskId);
    let ends: [(&str, End); 5] = [
        ("lapse", |home, _| home.pass(10)),
        ("return", |home, id| assert_eq!(home.return_task(id, None, None), Outcome::Cancelled)),
        ("failure", |home, id| assert_eq!(home.return_task(id, None, Some("why")), Outcome::Cancelled)),
        ("rest", |home, _| {
            let Answer::Workers(workers) = home.run(&Command::Worker(Worker::List)) else { panic!("a list") };
            let worker = WorkerRef { name: b"w", incarnation: workers[0].incarnation };
            home.run(&Command::Worker(Worker::Rest(worker, b"q")));
        }),
        ("worker lost", |home, _| _ = home.run(&Command::Worker(Worker::Fail { name: b"w" }))),
    ];
    for (end, how) in ends {
        let mut home = Home::default();
        let worker = start(&mut home, b"w", 1_000);
        let id = home.push(&["a"])[0];
        let receipt = home.take(1, LeaseAsk { ms: Some(10), ..by(worker) })[0].receipt();
        assert_eq!(cancel(&mut home, id), Answer::Count(1));
        assert_eq!(cancel(&mut home, id), Answer::Count(0), "a second time counts none");
        assert_eq!(extend(&mut home, receipt, 99), Outcome::Cancelled, "its holder learns it");
        assert_eq!(beat(&mut home, worker), Answer::Receipts(vec![receipt]));
        assert_eq!(beat(&mut home, worker), Answer::Receipts(vec![receipt]), "until the lease ends");
        how(&mut home, id);
        home.tick();
        assert!(home.broker.queue(b"q").unwrap().is_empty(), "{end}");
        home.verify();
    }
}

#[test]
fn a_name_is_free_once_its_task_is_gone_and_not_before() {
    let named = |home: &mut Home| {
        let name = Some(NameArg::Bytes(b"n"));
        match home.run(&Command::Add(Add { name, ..x() })) {
            Answer::Added(id, added, state) => (id, added, state),
            other => panic!("{other:?}"),
        }
    };
    let mut home = Home::default();
    let (id, added, _) = named(&mut home);
    assert!(added);
    home.take(1, PLAIN);
    assert_eq!(named(&mut home), (id, false, StateKind::Leased));
    refs(id, |tasks| home.run(&Command::Bury { queue: b"q", tasks }));
    assert_eq!(named(&mut home), (id, false, StateKind::Dead), "a dead task keeps its name");
    home.run(&Command::Purge { queue: b"q", state: Some(View::Dead) });
    assert!(named(&mut home).1);
    let unique = Add { name: Some(NameArg::Payload), ..Add::plain(b"q", b"n") };
    let id = add(&mut home, unique);
    assert!(matches!(home.run(&Command::Add(unique)), Answer::Added(same, false, _) if same == id));
    let by_name = Command::Cancel { queue: b"q", which: Cancel::Names(&[b"n"]) };
    assert_eq!(home.run(&by_name), Answer::Count(1), "a UNIQUE task has no name to cancel it by");
    home.verify();
}

#[test]
fn a_restart_extends_every_timed_lease_to_a_minimum() {
    for (length, left) in [(10, 10), (10_000, 10_000), (60_000, 10_000)] {
        let mut home = Home::default();
        home.push(&["a"]);
        home.pop(1, leased(length));
        home.pass(length - 1);
        home.restart(2);
        home.pass(left - 1);
        home.tick();
        assert_eq!(home.info().leased, 1, "a lease of {length}");
        home.pass(1);
        home.tick();
        assert_eq!(home.info().leased, 0, "a lease of {length}");
        home.verify();
    }
}

#[test]
fn at_a_restart_tasks_of_connections_go_before_earlier_returns() {
    let mut home = Home::default();
    let ids = home.push(&["a", "b", "c", "d"]);
    home.take(1, PLAIN);
    for conn in [1, 2] {
        home.take(1, LeaseAsk { conn: Some(ConnId(conn)), ..LeaseAsk::NONE });
    }
    home.return_task(ids[0], Some(Place::Front), None);
    assert_eq!(home.see(View::Ready), "a d");
    home.restart(2);
    assert_eq!(home.see(View::Ready), "b c a d", "together, in the order of their deliveries");
    home.verify();
}

#[test]
fn a_lease_with_more_time_left_keeps_its_deadline_at_a_restart() {
    let mut home = Home::default();
    home.push(&["a"]);
    home.pop(1, leased(60_000));
    home.restart(2);
    home.pass(59_999);
    home.tick();
    assert_eq!(home.info().leased, 1);
}

#[test]
fn a_restart_ends_connections_at_no_cost_of_a_try() {
    let mut home = Home::default();
    home.push(&["a", "b"]);
    let ids: Vec<TaskId> = home
        .take(2, LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE })
        .iter()
        .map(|task| task.id)
        .collect();
    cancel(&mut home, ids[1]);
    home.restart(2);
    assert_eq!(home.info().ready, 1, "a cancelled task is removed");
    assert_eq!(tries_of(&mut home).0, Tries::default());
    home.verify();
}
