//! Tries, backoff, and dead-letter queues.

use crate::support::{Answer, Home, leased, words};
use crate::{PLAIN, add, by, dead, start, tries_of, x};
use sureq_core::LogTime;
use sureq_core::command::{Add, Command, LapseEnd, LapsePolicy, LeaseAsk, NameArg, Pop, View, Worker};
use sureq_core::settings::{Change, Changes, Place};
use sureq_core::task::Tries;

#[test]
fn tries_are_counted_by_cause_and_a_return_costs_none() {
    let mut home = Home::default();
    let worker = start(&mut home, b"w", 100_000);
    let id = home.push(&["a"])[0];
    home.take(1, leased(10));
    home.pass(10);
    home.take(1, by(worker));
    home.run(&Command::Worker(Worker::Fail { name: b"w" }));
    home.take(1, PLAIN);
    home.return_task(id, Some(Place::Front), Some("no luck"));
    home.take(1, PLAIN);
    home.return_task(id, None, None);
    let tries = Tries { failed: 1, lapsed: 1, lost: 1 };
    assert_eq!(tries_of(&mut home), (tries, Some("no luck".into())));
}

#[test]
fn a_task_dies_when_its_tries_are_spent_for_any_causes() {
    let mut home = Home::default();
    home.config(&[Change::Tries(3)]);
    let id = home.push(&["a"])[0];
    home.take(1, leased(10));
    home.pass(10);
    home.take(1, PLAIN);
    home.return_task(id, Some(Place::Back), Some("first"));
    home.take(1, PLAIN);
    home.return_task(id, None, Some("second"));
    assert_eq!(dead(&mut home), [("second".into(), Tries { failed: 2, lapsed: 1, lost: 0 })]);
    home.run(&Command::Revive { queue: b"q", tasks: None });
    assert_eq!(tries_of(&mut home).0, Tries::default(), "a revived task starts over");
    home.verify();
}

#[test]
fn the_default_is_twenty_five_tries_and_a_tasks_own_number_precedes_it() {
    for (tries, own) in [(25, None), (2, Some(2)), (1, Some(1))] {
        let mut home = Home::default();
        let id = add(&mut home, Add { tries: own, ..x() });
        for n in 1..=tries {
            assert_eq!(home.see(View::Dead), "", "before failure {n} of {tries}");
            assert_eq!(home.pop(1, PLAIN), "x");
            home.return_task(id, Some(Place::Front), Some("why"));
        }
        assert_eq!(home.see(View::Dead), "x", "after {tries}");
    }
}

#[test]
fn backoff_doubles_within_bounds_and_is_deterministic() {
    let waits = || -> Vec<u64> {
        let mut home = Home::default();
        let id = add(&mut home, Add { backoff_ms: Some(1_000), tries: Some(100), ..x() });
        (0..20)
            .map(|_| {
                home.take(1, PLAIN);
                home.return_task(id, None, Some("why"));
                let wait = home.inspect(b"q", View::Delayed)[0].at.0 - home.now.log.0;
                home.pass(wait);
                wait
            })
            .collect()
    };
    for (n, wait) in waits().into_iter().enumerate() {
        let whole = (1_000u64 << n).min(3_600_000);
        assert!((whole / 2..=whole).contains(&wait), "wait {n} is {wait}, not in [{}, {whole}]", whole / 2);
    }
    assert_eq!(waits(), waits());
}

#[test]
fn the_third_lapse_or_lost_worker_delays_a_task_by_its_backoff() {
    let mut home = Home::default();
    home.push(&["poison"]);
    home.take(1, leased(10));
    home.pass(10);
    let worker = start(&mut home, b"w", 5);
    assert_eq!(home.pop(1, by(worker)), "poison", "after the first, at the front");
    home.pass(5);
    assert_eq!(home.pop(1, leased(10)), "poison", "after the second, too");
    home.pass(10);
    let delayed = home.inspect(b"q", View::Delayed);
    assert!((500..=1_000).contains(&(delayed[0].at.0 - home.now.log.0)), "after the third it waits");
}

#[test]
fn a_requested_delay_takes_precedence_over_the_backoff() {
    let mut home = Home::default();
    let id = home.push(&["a"])[0];
    home.take(1, PLAIN);
    home.return_task(id, Some(Place::After(7)), Some("why"));
    assert_eq!(home.inspect(b"q", View::Delayed)[0].at, LogTime(home.now.log.0 + 7));
}

/// Simulates a worker that never answers and pops the task whenever it is ready. Returns the times of the deliveries
/// in seconds, and the time at which the task is removed.
fn watched(rtt: u64, rta: u32) -> (Vec<u64>, u64) {
    let mut home = Home::default();
    home.push(&["a"]);
    let policy = LapsePolicy { to: Place::After(rtt * 1_000), limit: Some(rta), then: LapseEnd::Delete };
    let lease = LeaseAsk { lapse: Some(policy), ..leased(rtt * 1_000) };
    let mut taken = Vec::new();
    for second in 0..100 {
        home.tick();
        if home.info().pushed > 0 && home.broker.queue(b"q").unwrap().is_empty() {
            return (taken, second);
        }
        if !home.take(1, lease).is_empty() {
            taken.push(second);
        }
        home.pass(1_000);
    }
    panic!("never gone: taken at {taken:?}");
}

#[test]
fn lapse_policies_count_as_defferedq_does() {
    assert_eq!(watched(1, 2), (vec![0, 2, 4], 5));
    assert_eq!(watched(1, 0), (vec![0], 1));
    assert_eq!(watched(3, 1), (vec![0, 6], 9));
}

#[test]
fn dead_tasks_move_with_id_tries_and_name_unless_the_name_is_taken() {
    let mut home = Home::default();
    home.config(&[Change::Tries(1), Change::DeadLetter(b"letters")]);
    // The other queue is full and paused, which must not prevent the move.
    home.run(&Command::Config { queue: b"letters", changes: Changes::List(&[Change::MaxLength(1)]) });
    let name = Some(NameArg::Bytes(b"taken"));
    add(&mut home, Add { name, ..Add::plain(b"letters", b"first") });
    home.run(&Command::Pause { queue: b"letters" });
    let taken = add(&mut home, Add { name, ..Add::plain(b"q", b"second") });
    let free = add(&mut home, Add { name: Some(NameArg::Bytes(b"free")), ..Add::plain(b"q", b"third") });
    home.pop(2, PLAIN);
    for id in [taken, free] {
        home.return_task(id, None, Some("why"));
    }
    home.verify();
    assert!(home.broker.queue(b"q").unwrap().is_empty());
    assert_eq!(words(&home.inspect(b"letters", View::Ready)), "first second third");
    home.run(&Command::Resume { queue: b"letters" });
    let pop = Pop { meta: true, ..Pop::plain(&[b"letters"], 9) };
    let Answer::Tasks(tasks) = home.run(&Command::Pop(pop)) else { panic!("a pop answers tasks") };
    let names: Vec<_> = tasks.iter().map(|task| task.more.as_ref().unwrap().name.as_deref()).collect();
    assert_eq!(names, [Some(&b"taken"[..]), None, Some(b"free")]);
    assert_eq!(tasks.iter().map(|task| task.id).collect::<Vec<_>>()[1..], [taken, free]);
    let more = tasks[1].more.as_ref().unwrap();
    assert_eq!((more.tries.failed, more.reason.as_deref()), (1, Some(&b"why"[..])));
    assert_eq!(tasks[1].deliveries, 2, "delivery numbers continue");
}

#[test]
fn a_restart_after_a_move_moves_nothing_twice() {
    let mut home = Home::default();
    home.config(&[Change::Tries(1), Change::DeadLetter(b"letters")]);
    let id = home.push(&["a"])[0];
    home.pop(1, PLAIN);
    home.return_task(id, None, Some("why"));
    home.restart(2);
    home.push(&["b"]);
    home.verify();
    assert_eq!(words(&home.inspect(b"letters", View::Ready)), "a");
}
