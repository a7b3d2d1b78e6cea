//! The order in which tasks are delivered: both ends of a queue, priorities, and floods of due tasks.
#![expect(unreachable_pub, reason = "the modules of a test share items")]
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "test helpers may panic")]

mod support;

use support::{Answer, Home, leased, words};
use sureq_core::command::{Add, Command, ConnId, LeaseAsk, Pop, View, When, Worker, WorkerRef};
use sureq_core::reply::Outcome;
use sureq_core::settings::{Change, Place};
use sureq_core::{LogTime, TaskId, WallTime};

const PLAIN: LeaseAsk<'static> = LeaseAsk::NONE;
const FLOOD: usize = 3_500;

fn add(home: &mut Home, payload: &str, when: When, priority: i8) -> TaskId {
    match home.run(&Command::Add(Add { when, priority, ..Add::plain(b"q", payload.as_bytes()) })) {
        Answer::Added(id, true, _) => id,
        other => panic!("{other:?}"),
    }
}

fn start(home: &mut Home, name: &[u8]) -> u64 {
    match home.run(&Command::Worker(Worker::Start { name, ttl_ms: 500 })) {
        Answer::Started(incarnation) => incarnation,
        other => panic!("{other:?}"),
    }
}

const fn held(name: &[u8], incarnation: u64) -> LeaseAsk<'_> {
    LeaseAsk { worker: Some(WorkerRef { name, incarnation }), ..LeaseAsk::NONE }
}

/// Checks all ready tasks, in order.
fn check(home: &mut Home, expected: &str) {
    same(&home.see(View::Ready), expected, "shown");
    home.verify();
    let mut in_copy = Vec::new();
    let copy = home.copy();
    copy.queue(b"q").unwrap().inspect(View::Ready, 0, u32::MAX, home.now, &mut in_copy);
    same(&words(&in_copy), expected, "shown in a copy");
    same(&home.pop(u32::MAX, PLAIN), expected, "delivered");
}

/// Compares two lists. Lists can be long, so only the first difference is reported.
fn same(found: &str, expected: &str, how: &str) {
    let (found, expected): (Vec<_>, Vec<_>) = (found.split(' ').collect(), expected.split(' ').collect());
    let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(differs.map(|at| (at, found[at], expected[at])), None, "as {how}");
    assert_eq!(found.len(), expected.len(), "as {how}");
}

#[test]
fn plain_pushes_are_first_in_first_out() {
    let mut home = Home::default();
    home.push(&["a", "b"]);
    home.pass(5);
    home.push(&["c"]);
    home.push(&["d", "e"]);
    assert_eq!(home.pop(2, PLAIN), "a b");
    check(&mut home, "c d e");
}

#[test]
fn a_returned_task_goes_to_the_front_and_later_returns_go_before_it() {
    let mut home = Home::default();
    let ids = home.push(&["a", "b", "c", "d"]);
    home.pop(3, PLAIN);
    home.return_task(ids[0], None, None);
    home.return_task(ids[2], Some(Place::Front), None);
    home.return_task(ids[1], Some(Place::Back), None);
    check(&mut home, "c a d b");
}

#[test]
fn tasks_of_a_lost_worker_return_to_the_front_in_order() {
    let mut home = Home::default();
    home.push(&["a", "b", "c", "d", "e", "f"]);
    let (w, v) = (start(&mut home, b"w"), start(&mut home, b"v"));
    assert_eq!(home.pop(1, held(b"w", w)), "a");
    assert_eq!(home.pop(1, held(b"v", v)), "b");
    assert_eq!(home.pop(2, held(b"w", w)), "c d");
    home.run(&Command::Worker(Worker::Fail { name: b"w" }));
    check(&mut home, "a c d e f");
}

#[test]
fn tasks_of_connections_return_in_order_of_delivery_at_a_restart() {
    let mut home = Home::default();
    home.push(&["a", "b", "c", "d"]);
    for conn in [2, 1, 2] {
        home.pop(1, LeaseAsk { conn: Some(ConnId(conn)), ..LeaseAsk::NONE });
    }
    home.restart(9);
    check(&mut home, "a b c d");
}

#[test]
fn leases_that_lapse_together_return_in_order_of_delivery() {
    let mut home = Home::default();
    home.push(&["a", "b", "c", "d"]);
    home.pop(1, leased(30));
    home.pop(1, leased(20));
    home.pop(1, leased(30));
    home.pass(30);
    check(&mut home, "b a c d");
}

#[test]
fn higher_priorities_are_delivered_first_and_each_keeps_its_order() {
    let mut home = Home::default();
    for (payload, priority) in [("a", 0), ("low", -128), ("b", 0), ("high", 127), ("five", 5), ("six", 5)] {
        add(&mut home, payload, When::AtOnce, priority);
    }
    let low = home.take(u32::MAX, PLAIN)[5].id;
    home.return_task(low, Some(Place::Front), None);
    home.push(&["late"]);
    check(&mut home, "late low");
    let mut home = Home::default();
    for (payload, priority) in [("a", 0), ("low", -128), ("b", 0), ("high", 127), ("five", 5), ("six", 5)] {
        add(&mut home, payload, When::AtOnce, priority);
    }
    check(&mut home, "high five six a b low");
}

#[test]
fn the_earliest_due_task_is_delivered_first_and_a_return_without_delay_last() {
    let mut home = Home::default();
    add(&mut home, "c", When::After(30), 0);
    add(&mut home, "a", When::After(10), 0);
    add(&mut home, "b", When::After(20), 0);
    home.pass(9);
    check(&mut home, "");
    home.pass(21);
    let a = home.take(1, PLAIN)[0].id;
    assert_eq!(home.return_task(a, Some(Place::After(0)), None), Outcome::Done);
    check(&mut home, "b c a");
}

#[test]
fn tasks_due_at_the_same_time_are_ordered_by_id_within_each_clock() {
    let mut home = Home::default();
    let wall = WallTime(home.now.wall.0 + 10);
    add(&mut home, "w", When::At(wall), 0);
    add(&mut home, "x", When::After(10), 0);
    add(&mut home, "y", When::After(10), 0);
    home.pass(10);
    check(&mut home, "x y w");
}

#[test]
fn a_task_due_at_a_wall_time_follows_that_clock_and_a_delay_does_not() {
    let mut home = Home::default();
    let wall = WallTime(home.now.wall.0 + 1_000);
    add(&mut home, "at", When::At(wall), 0);
    add(&mut home, "after", When::After(1_000), 0);
    home.now.wall = wall;
    assert_eq!(home.see(View::Ready), "at");
    home.now.wall = WallTime(0);
    home.now.log = LogTime(home.now.log.0 + 1_000);
    check(&mut home, "at after");
}

/// Adds `n` tasks that become due one after the other, and advances the time until all of them are due.
fn flood(home: &mut Home, n: usize) -> Vec<String> {
    let names: Vec<String> = (0..n).map(|n| format!("f{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        // Neighbours are due in the opposite order of their ids.
        add(home, name, When::After(10 + (n ^ 1) as u64 / 8), 0);
    }
    home.pass(10_000);
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|n| (n ^ 1) / 8);
    order.into_iter().map(|n| names[n].clone()).collect()
}

#[test]
fn a_flood_of_due_tasks_keeps_its_order_with_pushes_and_returns_in_between() {
    let mut home = Home::default();
    let first = home.push(&["first", "second"]);
    home.pop(1, PLAIN);
    let mut expected = flood(&mut home, FLOOD);
    home.broker.tick(home.now, &mut home.log);
    assert_eq!(home.broker.queue(b"q").unwrap().counts(), [1_001, FLOOD as u64 - 1_000, 1, 0], "one slice");
    // The digest and a copy must also agree in the middle of a flood.
    home.verify();
    assert_eq!(home.copy().digest(), home.broker.digest());
    // The rest is settled later, and keeps its position in the order.
    home.push(&["pushed"]);
    assert!(home.broker.queue(b"q").unwrap().counts()[1] > 0, "some are left");
    home.pass(1);
    home.return_task(first[0], Some(Place::Back), None);
    home.tick();
    expected.insert(0, "second".into());
    expected.extend(["pushed".into(), "first".into()]);
    check(&mut home, &expected.join(" "));
}

#[test]
fn a_pop_in_a_flood_gets_the_requested_count() {
    let mut home = Home::default();
    let expected = flood(&mut home, FLOOD);
    assert_eq!(home.pop(2_000, PLAIN), expected[..2_000].join(" "));
    assert_eq!(home.pop(1, PLAIN), expected[2_000]);
    check(&mut home, &expected[2_001..].join(" "));
}

#[test]
fn a_flood_of_lapses_returns_in_order_across_slices() {
    let mut home = Home::default();
    let names: Vec<String> = (0..FLOOD).map(|n| format!("l{n}")).collect();
    let slices: Vec<&str> = names.iter().map(String::as_str).collect();
    let ids = home.push(&slices);
    home.push(&["behind"]);
    home.pop(FLOOD as u32, leased(10));
    home.pass(10);
    home.broker.tick(home.now, &mut home.log);
    assert_eq!(home.broker.queue(b"q").unwrap().counts()[2], FLOOD as u64 - 1_000, "one slice");
    home.verify();
    // A command about a task far back in the flood settles that task first: it has lapsed.
    assert_eq!(home.return_task(ids[3_499], None, None), Outcome::Stale);
    home.tick();
    let mut expected: Vec<&str> = slices.clone();
    let early = expected.remove(3_499);
    expected.insert(2_000, early);
    expected.push("behind");
    check(&mut home, &expected.join(" "));
}

/// Pushes `count` tasks and one more, and lets a worker lease all except the last. Returns names, ids and the worker.
fn much_held(home: &mut Home, timed: Option<u64>) -> (Vec<String>, Vec<TaskId>, u64) {
    let names: Vec<String> = (0..FLOOD).map(|n| format!("h{n}")).collect();
    let slices: Vec<&str> = names.iter().map(String::as_str).collect();
    let ids = home.push(&slices);
    home.push(&["behind"]);
    let w = match home.run(&Command::Worker(Worker::Start { name: b"w", ttl_ms: 500 })) {
        Answer::Started(incarnation) => incarnation,
        other => panic!("{other:?}"),
    };
    home.pop(FLOOD as u32, LeaseAsk { ms: timed, ..held(b"w", w) });
    (names, ids, w)
}

fn leases(home: &Home) -> u64 {
    home.broker.queue(b"q").unwrap().counts()[2]
}

#[test]
fn a_worker_with_very_many_tasks_ends_in_slices() {
    let mut home = Home::default();
    let (mut names, ids, w) = much_held(&mut home, None);
    let receipt = |n: usize| format!("{}@1.1", ids[n]);
    assert_eq!(home.run(&Command::Worker(Worker::Fail { name: b"w" })), Answer::Count(FLOOD as u64));
    assert_eq!(leases(&home), FLOOD as u64 - 1_000, "one slice");
    home.verify();
    // All leases end at once: receipts are stale, and a command about a task sees its new state.
    let beat = Command::Worker(Worker::Beat(WorkerRef { name: b"w", incarnation: w }));
    assert_eq!(home.run(&beat), Answer::Refused("worker gone"));
    assert!(!home.ack(receipt(3_499)));
    home.verify();
    assert!(home.ack(ids[3_499]), "a bare id finishes a task of a lost worker");
    names.pop();
    home.verify();
    let mut out = Vec::new();
    home.broker.queue(b"q").unwrap().inspect(View::Ready, 0, 1, home.now, &mut out);
    assert_eq!(words(&out), "h0");
    home.tick();
    assert_eq!(leases(&home), 0);
    home.verify();
    names.push("behind".to_owned());
    check(&mut home, &names.join(" "));
}

#[test]
fn each_step_moves_one_slice_even_if_several_holders_end_together() {
    let mut home = Home::default();
    let (names, _, _) = much_held(&mut home, None);
    let other: Vec<String> = (0..FLOOD).map(|n| format!("o{n}")).collect();
    home.push(&other.iter().map(String::as_str).collect::<Vec<_>>());
    let v = start(&mut home, b"v");
    home.pop(FLOOD as u32 + 1, held(b"v", v));
    home.pass(500);
    let mut before = leases(&home);
    assert_eq!(before, 2 * FLOOD as u64 + 1);
    while home.broker.next_deadline().is_due(home.now) {
        home.broker.tick(home.now, &mut home.log);
        assert!(before - leases(&home) <= 4_000, "a few slices for each worker");
        before = leases(&home);
        home.verify();
    }
    let expected = [&["behind".to_owned()], &other[..], &names[..]].concat();
    check(&mut home, &expected.join(" "));
}

#[test]
fn a_lease_that_a_holder_got_after_its_end_is_not_ended() {
    let mut home = Home::default();
    let (names, ids, w) = much_held(&mut home, None);
    let worker = WorkerRef { name: b"w", incarnation: w };
    assert_eq!(home.run(&Command::Worker(Worker::Rest(worker, b"q"))), Answer::Count(FLOOD as u64));
    assert_eq!(home.pop(2, held(b"w", w)), "h0 h1");
    home.verify();
    assert_eq!(
        home.run(&Command::Worker(Worker::Stop(worker))),
        Answer::Count(2),
        "the rest ended its other leases"
    );
    home.verify();
    assert!(!home.ack(ids[3_000]), "it was requeued at no cost of a try");
    home.tick();
    home.verify();
    let mut expected = names.clone();
    expected.push("behind".to_owned());
    // A command about this task requeued it before its turn.
    let early = expected.remove(3_000);
    let at = home.see(View::Ready).split(' ').position(|name| name == early).unwrap();
    expected.insert(at, early);
    check(&mut home, &expected.join(" "));
}

#[test]
fn a_deadline_that_passes_while_a_holder_ends_costs_no_further_try() {
    let mut home = Home::default();
    let (names, _, _) = much_held(&mut home, Some(100));
    home.config(&[Change::MaxLeased(FLOOD as u64)]);
    assert_eq!(home.pop(1, PLAIN), "", "the maximum number of tasks is leased");
    let w = WorkerRef { name: b"w", incarnation: home.broker.workers().next().unwrap().1 };
    home.run(&Command::Worker(Worker::Stop(w)));
    home.pass(200);
    assert_eq!(home.pop(1, PLAIN), "h0", "ended leases do not count as leased");
    home.verify();
    home.tick();
    home.verify();
    let tries = home.inspect(b"q", View::Ready).len();
    assert_eq!(tries, FLOOD);
    let meta = Command::Pop(Pop { meta: true, ..Pop::plain(&[b"q"], u32::MAX) });
    home.config(&[Change::MaxLeased(0)]);
    let Answer::Tasks(tasks) = home.run(&meta) else { panic!("a pop returns tasks") };
    assert!(tasks.iter().all(|task| task.more.as_ref().unwrap().tries.total() == 0), "none cost a try");
    assert_eq!(words(&tasks[..2]), names[1..3].join(" "));
}

#[test]
fn the_end_of_a_holder_continues_after_a_restart() {
    for (incarnation, of_conn) in [(8, false), (9, false), (8, true), (9, true)] {
        let mut home = Home::default();
        let names: Vec<String> = (0..FLOOD).map(|n| format!("h{n}")).collect();
        home.push(&names.iter().map(String::as_str).collect::<Vec<_>>());
        if of_conn {
            home.pop(FLOOD as u32, LeaseAsk { conn: Some(ConnId(7)), ..LeaseAsk::NONE });
            home.close_conn(ConnId(7));
        } else {
            let w = start(&mut home, b"w");
            home.pop(FLOOD as u32, held(b"w", w));
            home.run(&Command::Worker(Worker::Fail { name: b"w" }));
        }
        assert_eq!(leases(&home), FLOOD as u64 - 1_000, "one slice");
        home.restart(incarnation);
        home.verify();
        home.tick();
        home.verify();
        assert_eq!(leases(&home), 0);
        check(&mut home, &names.join(" "));
    }
}

#[test]
fn a_queue_can_be_dropped_while_a_holder_ends() {
    let mut home = Home::default();
    much_held(&mut home, None);
    home.run(&Command::Worker(Worker::Fail { name: b"w" }));
    home.run(&Command::Drop { queues: &[b"q"] });
    home.verify();
    home.tick();
    assert!(home.log.live.is_empty() && !home.broker.is_unfinished());
    home.push(&["new"]);
    check(&mut home, "new");
}

#[test]
fn no_expired_task_is_delivered_in_a_flood_of_expiries() {
    let mut home = Home::default();
    for n in 0..FLOOD {
        let name = format!("e{n}");
        let add = Add { ttl_ms: Some(10), ..Add::plain(b"q", name.as_bytes()) };
        home.run(&Command::Add(add));
    }
    home.push(&["alive"]);
    home.pass(10);
    assert_eq!(home.pop(5, PLAIN), "alive");
    home.tick();
    assert_eq!(home.info().ready, 0);
    home.verify();
}

#[test]
fn no_task_is_early_if_the_wall_clock_goes_back_in_a_flood() {
    let mut home = Home::default();
    let wall = home.now.wall.0;
    for n in 0..FLOOD {
        add(&mut home, &format!("f{n}"), When::At(WallTime(wall + 100)), 0);
    }
    home.now.wall = WallTime(wall + 200);
    home.broker.tick(home.now, &mut home.log);
    home.now.wall = WallTime(wall);
    let early = add(&mut home, "early", When::At(WallTime(wall + 50)), 0);
    add(&mut home, "delayed", When::After(1), 0);
    home.pass(1);
    home.tick();
    home.verify();
    assert_eq!(home.broker.queue(b"q").unwrap().counts(), [1_001, FLOOD as u64 - 999, 0, 0]);
    home.now.wall = WallTime(wall + 60);
    home.tick();
    let queue = home.broker.queue(b"q").unwrap();
    assert_eq!(queue.state_of(early), Some(sureq_core::task::StateKind::Ready));
    home.now.wall = WallTime(wall + 300);
    home.tick();
    home.verify();
    assert_eq!(home.broker.queue(b"q").unwrap().counts(), [FLOOD as u64 + 2, 0, 0, 0]);
}

#[test]
fn recover_leases_the_oldest_deliveries_first_and_each_once() {
    let mut home = Home::default();
    home.push(&["a", "b", "c", "timed"]);
    home.pop(2, PLAIN);
    home.pass(10);
    home.pop(1, PLAIN);
    home.pop(1, leased(1_000));
    home.pass(10);
    let mut recover = |count, elapsed_ms| match home.run(&Command::Recover { queue: b"q", count, elapsed_ms })
    {
        Answer::Tasks(tasks) => words(&tasks),
        other => panic!("{other:?}"),
    };
    assert_eq!(recover(9, 20), "a b");
    assert_eq!(recover(9, 10), "c");
    assert_eq!(recover(2, 0), "a b");
    assert_eq!(recover(9, 0), "c a b");
    assert_eq!(home.see(View::Leased), "timed c a b");
    home.verify();
}
