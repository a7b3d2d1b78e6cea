//! Workers stay alive by their heartbeats.

use crate::support::{Answer, Home};
use crate::{beat, by, start, tries_of};
use sureq_core::command::{Command, LeaseAsk, Pop, Worker, WorkerRef};
use sureq_core::task::Tries;

#[test]
fn a_worker_lives_until_its_time_to_live_ends_and_not_at_that_moment() {
    for (ms, alive) in [(9, true), (10, false)] {
        let mut home = Home::default();
        let worker = start(&mut home, b"w", 10);
        home.push(&["a"]);
        home.pop(1, by(worker));
        home.pass(ms);
        assert_eq!(beat(&mut home, worker) == Answer::Receipts(vec![]), alive, "after {ms} ms");
        assert_eq!(home.info().leased == 1, alive);
    }
}

#[test]
fn only_start_and_heartbeat_renew_a_worker() {
    let mut home = Home::default();
    let worker = start(&mut home, b"w", 10);
    home.push(&["a"]);
    home.pass(9);
    home.pop(1, by(worker));
    home.run(&Command::Worker(Worker::Work(worker, b"q")));
    home.pass(1);
    assert_eq!(beat(&mut home, worker), Answer::Refused("worker gone"));
}

#[test]
fn starting_a_worker_ends_a_living_one_of_the_same_name() {
    let mut home = Home::default();
    let old = start(&mut home, b"w", 1_000);
    home.push(&["a"]);
    home.pop(1, by(old));
    let new = start(&mut home, b"w", 1_000);
    assert!(new.incarnation > old.incarnation);
    assert_eq!(
        home.run(&Command::Pop(Pop { lease: by(old), ..Pop::plain(&[b"q"], 1) })),
        Answer::Refused("worker replaced")
    );
    assert_eq!(tries_of(&mut home).0, Tries { lost: 1, ..Tries::default() });
    home.verify();
}

/// A worker that timed out may start again; one whose name is in use must not.
#[test]
fn a_worker_learns_whether_it_was_replaced_or_has_timed_out() {
    let mut home = Home::default();
    let (old, other) = (start(&mut home, b"w", 1_000), start(&mut home, b"v", 9_000));
    assert_eq!(beat(&mut home, old), Answer::Receipts(vec![]));
    let new = start(&mut home, b"w", 1_000);
    assert_eq!(beat(&mut home, old), Answer::Refused("worker replaced"));
    assert_eq!(beat(&mut home, WorkerRef { name: b"v", ..old }), Answer::Refused("worker replaced"));
    let never = WorkerRef { incarnation: new.incarnation + 1, ..new };
    assert_eq!(beat(&mut home, never), Answer::Refused("worker gone"));
    home.pass(1_000);
    for gone in [old, new] {
        assert_eq!(beat(&mut home, gone), Answer::Refused("worker gone"), "no worker has the name");
    }
    assert_eq!(beat(&mut home, other), Answer::Receipts(vec![]));
}

#[test]
fn a_heartbeat_reports_lapsed_leases_once() {
    let mut home = Home::default();
    let worker = start(&mut home, b"w", 1_000);
    home.push(&["a", "b"]);
    let receipt = home.take(1, LeaseAsk { ms: Some(10), ..by(worker) })[0].receipt();
    home.take(1, by(worker));
    assert_eq!(beat(&mut home, worker), Answer::Receipts(vec![]));
    home.pass(10);
    home.tick();
    assert_eq!(beat(&mut home, worker), Answer::Receipts(vec![receipt]));
    assert_eq!(beat(&mut home, worker), Answer::Receipts(vec![]));
}

#[test]
fn stop_and_rest_return_tasks_at_no_cost_of_a_try() {
    let mut home = Home::default();
    let worker = start(&mut home, b"w", 1_000);
    home.push(&["a"]);
    home.pop(1, by(worker));
    assert_eq!(home.run(&Command::Worker(Worker::Rest(worker, b"q"))), Answer::Count(1));
    home.pop(1, by(worker));
    assert_eq!(home.run(&Command::Worker(Worker::Stop(worker))), Answer::Count(1));
    assert_eq!(tries_of(&mut home).0, Tries::default());
}

#[test]
fn a_worker_holds_its_tasks_across_a_restart_and_a_checkpoint() {
    let mut home = Home::default();
    let worker = start(&mut home, b"w", 10);
    home.push(&["a"]);
    home.pop(1, by(worker));
    home.broker = home.copy();
    home.pass(5);
    home.restart(2);
    home.pass(9);
    assert_eq!(beat(&mut home, worker), Answer::Receipts(vec![]), "a full time to live from the start");
    home.broker = home.copy();
    home.pass(10);
    home.tick();
    assert_eq!(home.info().ready, 1, "and it is lost with its tasks when it stops beating");
}
