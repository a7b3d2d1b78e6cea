//! The rules of DESIGN and its fine print, one story each.
#![expect(unreachable_pub, reason = "what the modules of a test share is its own")]

mod support;

use support::{Answer, Home, leased, words};
use sureq_core::command::{
    Add, Cancel, Command, ConnId, IdForm, LapseEnd, LapsePolicy, LeaseAsk, NameArg, Pop, TaskRef, TaskRefs,
    View, When, Worker, WorkerRef,
};
use sureq_core::reply::Outcome;
use sureq_core::settings::{Change, Expired, Overflow, Place};
use sureq_core::task::{StateKind, Tries};
use sureq_core::{LogTime, Receipt, TaskId};

const PLAIN: LeaseAsk<'static> = LeaseAsk::NONE;

fn add(home: &mut Home, add: Add<'_>) -> TaskId {
    match home.run(&Command::Add(add)) {
        Answer::Added(id, true, _) => id,
        other => panic!("{other:?}"),
    }
}

fn x() -> Add<'static> {
    Add::plain(b"q", b"x")
}

fn refs<T>(task: impl ToString, run: impl FnOnce(TaskRefs<'_>) -> T) -> T {
    run(TaskRefs { list: &[task.to_string().as_bytes()], form: IdForm::Long })
}

fn extend(home: &mut Home, task: impl ToString, ms: u64) -> Outcome {
    let task = task.to_string();
    let task = TaskRef { bytes: task.as_bytes(), form: IdForm::Long };
    match home.run(&Command::Extend { queue: b"q", task, ms }) {
        Answer::Outcome(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

fn cancel(home: &mut Home, id: TaskId) -> Answer {
    refs(id, |tasks| home.run(&Command::Cancel { queue: b"q", which: Cancel::Ids(tasks) }))
}

fn start<'a>(home: &mut Home, name: &'a [u8], ttl_ms: u64) -> WorkerRef<'a> {
    match home.run(&Command::Worker(Worker::Start { name, ttl_ms })) {
        Answer::Started(incarnation) => WorkerRef { name, incarnation },
        other => panic!("{other:?}"),
    }
}

fn beat(home: &mut Home, worker: WorkerRef<'_>) -> Answer {
    home.run(&Command::Worker(Worker::Beat(worker)))
}

const fn by(worker: WorkerRef<'_>) -> LeaseAsk<'_> {
    LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE }
}

/// The task as META shows it, which is popped for it.
fn tries_of(home: &mut Home) -> (Tries, Option<String>) {
    let pop = Pop { meta: true, ..Pop::plain(&[b"q"], 1) };
    let Answer::Tasks(tasks) = home.run(&Command::Pop(pop)) else { panic!("a pop answers tasks") };
    let more = tasks[0].more.as_ref().expect("META was asked for");
    (more.tries, more.reason.as_ref().map(|reason| String::from_utf8_lossy(reason).into_owned()))
}

fn dead(home: &mut Home) -> Vec<(String, Tries)> {
    let dead = home.inspect(b"q", View::Dead);
    dead.iter()
        .map(|task| {
            let more = task.more.as_ref().expect("the dead tell why");
            (String::from_utf8_lossy(more.reason.as_deref().unwrap_or_default()).into_owned(), more.tries)
        })
        .collect()
}

// ---- Deadlines.

#[test]
fn a_lease_is_good_until_its_deadline_and_not_at_it() {
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
    assert_eq!(extend(&mut home, id, 0_u64.wrapping_add(1)), Outcome::Stale, "it is not leased any more");
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

// ---- Acks.

#[test]
fn a_late_ack_counts_after_a_lapse_or_a_lost_worker_only() {
    type End = fn(&mut Home, TaskId);
    let ends: [(&str, End, bool); 6] = [
        ("lapse", |home, _| home.pass(10), true),
        ("worker lost", |home, _| _ = home.run(&Command::Worker(Worker::Fail { name: b"w" })), true),
        ("return", |home, id| _ = home.give_back(id, None, None), false),
        ("failure", |home, id| _ = home.give_back(id, None, Some("why")), false),
        (
            "undelivered",
            |home, id| home.undeliver(b"q", &[Receipt { id, incarnation: 1, delivery: 1 }]),
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
fn a_late_ack_counts_only_until_the_next_delivery_comes_back_in_good_order() {
    let mut home = Home::default();
    let id = home.push(&["a"])[0];
    home.take(1, leased(10));
    home.pass(10);
    home.take(1, PLAIN);
    home.give_back(id, None, None);
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

// ---- Tries and backoff.

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
    home.give_back(id, Some(Place::Front), Some("no luck"));
    home.take(1, PLAIN);
    home.give_back(id, None, None);
    let tries = Tries { failed: 1, lapsed: 1, lost: 1 };
    assert_eq!(tries_of(&mut home), (tries, Some("no luck".into())));
}

#[test]
fn spent_tries_are_the_end_whatever_they_were_spent_on() {
    let mut home = Home::default();
    home.config(&[Change::Tries(3)]);
    let id = home.push(&["a"])[0];
    home.take(1, leased(10));
    home.pass(10);
    home.take(1, PLAIN);
    home.give_back(id, Some(Place::Back), Some("first"));
    home.take(1, PLAIN);
    home.give_back(id, None, Some("second"));
    assert_eq!(dead(&mut home), [("second".into(), Tries { failed: 2, lapsed: 1, lost: 0 })]);
    home.run(&Command::Revive { queue: b"q", tasks: None });
    assert_eq!(tries_of(&mut home).0, Tries::default(), "a revived task starts over");
    home.verify();
}

#[test]
fn the_default_is_twenty_five_tries_and_a_tasks_own_go_first() {
    for (tries, own) in [(25, None), (2, Some(2)), (1, Some(1))] {
        let mut home = Home::default();
        let id = add(&mut home, Add { tries: own, ..x() });
        for n in 1..=tries {
            assert_eq!(home.see(View::Dead), "", "before failure {n} of {tries}");
            assert_eq!(home.pop(1, PLAIN), "x");
            home.give_back(id, Some(Place::Front), Some("why"));
        }
        assert_eq!(home.see(View::Dead), "x", "after {tries}");
    }
}

#[test]
fn backoff_doubles_within_its_bounds_and_is_the_same_each_time() {
    let waits = || -> Vec<u64> {
        let mut home = Home::default();
        let id = add(&mut home, Add { backoff_ms: Some(1_000), tries: Some(100), ..x() });
        (0..20)
            .map(|_| {
                home.take(1, PLAIN);
                home.give_back(id, None, Some("why"));
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
fn the_third_lapse_or_lost_worker_comes_back_with_backoff() {
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
fn a_delay_that_is_asked_for_goes_before_the_backoff() {
    let mut home = Home::default();
    let id = home.push(&["a"])[0];
    home.take(1, PLAIN);
    home.give_back(id, Some(Place::After(7)), Some("why"));
    assert_eq!(home.inspect(b"q", View::Delayed)[0].at, LogTime(home.now.log.0 + 7));
}

// ---- DefferedQ's watcher.

/// When a task that is taken whenever it can be is taken, and when it is gone, in seconds.
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
fn the_watcher_counts_as_defferedq_does() {
    assert_eq!(watched(1, 2), (vec![0, 2, 4], 5));
    assert_eq!(watched(1, 0), (vec![0], 1));
    assert_eq!(watched(3, 1), (vec![0, 6], 9));
}

// ---- Cancelling.

#[test]
fn a_cancelled_task_is_never_tried_again() {
    type End = fn(&mut Home, TaskId);
    let ends: [(&str, End); 5] = [
        ("lapse", |home, _| home.pass(10)),
        ("return", |home, id| assert_eq!(home.give_back(id, None, None), Outcome::Cancelled)),
        ("failure", |home, id| assert_eq!(home.give_back(id, None, Some("why")), Outcome::Cancelled)),
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
        assert_eq!(extend(&mut home, receipt, 99), Outcome::Cancelled, "its holder is told");
        assert_eq!(beat(&mut home, worker), Answer::Receipts(vec![receipt]));
        assert_eq!(beat(&mut home, worker), Answer::Receipts(vec![receipt]), "until the lease ends");
        how(&mut home, id);
        home.tick();
        assert!(home.broker.queue(b"q").unwrap().is_empty(), "{end}");
        home.verify();
    }
}

#[test]
fn a_name_is_free_again_once_its_task_is_gone_and_not_before() {
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
    assert_eq!(named(&mut home), (id, false, StateKind::Dead), "a dead one still has its name");
    home.run(&Command::Purge { queue: b"q", state: Some(View::Dead) });
    assert!(named(&mut home).1);
    let unique = Add { name: Some(NameArg::Payload), ..Add::plain(b"q", b"n") };
    let id = add(&mut home, unique);
    assert!(matches!(home.run(&Command::Add(unique)), Answer::Added(same, false, _) if same == id));
    let by_name = Command::Cancel { queue: b"q", which: Cancel::Names(&[b"n"]) };
    assert_eq!(home.run(&by_name), Answer::Count(1), "a payload is not a name that can be called");
    home.verify();
}

// ---- Bounds.

#[test]
fn a_batch_beyond_the_maximum_is_refused_whole() {
    let mut home = Home::default();
    home.config(&[Change::MaxLength(3), Change::MaxBytes(10)]);
    home.push(&["aa", "b"]);
    let push = |home: &mut Home, payloads: &[&[u8]]| home.run(&Command::Push { queue: b"q", payloads });
    assert_eq!(push(&mut home, &[b"c", b"d"]), Answer::Refused("queue full"));
    assert_eq!(push(&mut home, &[b"12345678"]), Answer::Refused("queue full"));
    assert!(matches!(push(&mut home, &[b"1234567"]), Answer::Ids(_)));
    home.pop(1, PLAIN);
    home.push(&["y"]);
    assert_eq!(home.see(View::Ready), "b 1234567 y", "what is leased takes no room");
}

#[test]
fn the_oldest_are_dropped_where_that_was_asked_for() {
    let mut home = Home::default();
    home.config(&[Change::MaxLength(3), Change::MaxBytes(6), Change::Overflow(Overflow::DropOldest)]);
    home.push(&["a", "b", "c"]);
    home.push(&["d"]);
    assert_eq!(home.see(View::Ready), "b c d");
    home.push(&["12345"]);
    assert_eq!(home.see(View::Ready), "d 12345");
    let too_large = home.run(&Command::Push { queue: b"q", payloads: &[b"1234567"] });
    assert_eq!(too_large, Answer::Refused("queue full"), "what never fits drops nobody");
    assert_eq!(home.see(View::Ready), "d 12345");
    home.verify();
}

#[test]
fn no_more_are_leased_at_once_than_the_queue_allows() {
    let mut home = Home::default();
    home.config(&[Change::MaxLeased(2)]);
    let ids = home.push(&["a", "b", "c", "d"]);
    assert_eq!(home.pop(9, PLAIN), "a b");
    assert_eq!(home.pop(9, PLAIN), "");
    home.awake();
    home.ack(ids[0]);
    assert_eq!(home.awake().len(), 1, "whoever waits is told that there is room");
    assert_eq!(home.pop(9, PLAIN), "c");
}

#[test]
fn a_paused_queue_takes_tasks_and_hands_out_none() {
    let mut home = Home::default();
    home.run(&Command::Pause { queue: b"q" });
    home.push(&["a"]);
    assert_eq!(home.pop(1, PLAIN), "");
    home.restart(2);
    assert_eq!(home.pop(1, PLAIN), "");
    home.awake();
    home.run(&Command::Resume { queue: b"q" });
    assert_eq!(home.awake().len(), 1);
    assert_eq!(home.pop(1, PLAIN), "a");
}

// ---- Times to live.

#[test]
fn a_time_to_live_ends_waiting_tasks_and_never_leased_ones() {
    let mut home = Home::default();
    let ttl_ms = Some(10);
    add(&mut home, Add { ttl_ms, ..Add::plain(b"q", b"held") });
    add(&mut home, Add { ttl_ms, ..Add::plain(b"q", b"timed") });
    add(&mut home, Add { ttl_ms, ..Add::plain(b"q", b"ready") });
    add(&mut home, Add { ttl_ms, when: When::After(99), ..Add::plain(b"q", b"delayed") });
    let held = home.take(1, PLAIN)[0].id;
    home.pop(1, leased(15));
    home.pass(10);
    assert_eq!((home.info().ready, home.info().delayed, home.info().leased), (0, 0, 2));
    assert_eq!(home.give_back(held, None, None), Outcome::Done);
    assert_eq!(home.pop(1, PLAIN), "", "what comes back after its time is not handed out");
    home.pass(5);
    assert_eq!(home.pop(1, PLAIN), "", "nor what lapses after it");
    assert!(home.broker.queue(b"q").unwrap().is_empty());
    home.verify();
}

#[test]
fn the_expired_are_kept_among_the_dead_where_that_was_asked_for() {
    let mut home = Home::default();
    home.config(&[Change::TtlMs(10), Change::Expired(Expired::Dead)]);
    home.push(&["a"]);
    home.pass(10);
    assert_eq!(dead(&mut home), [("expired".into(), Tries::default())]);
    home.run(&Command::Revive { queue: b"q", tasks: None });
    home.pass(1_000);
    assert_eq!(home.pop(1, PLAIN), "a", "a revived one waits as long as it takes");
}

// ---- Dead-letter queues.

#[test]
fn the_dying_move_with_id_causes_and_name_unless_it_is_taken_there() {
    let mut home = Home::default();
    home.config(&[Change::Tries(1), Change::DeadLetter(b"letters")]);
    // The other queue is full and paused; neither holds up the dying.
    home.run(&Command::Config { queue: b"letters", changes: &[Change::MaxLength(1)] });
    let name = Some(NameArg::Bytes(b"taken"));
    add(&mut home, Add { name, ..Add::plain(b"letters", b"first") });
    home.run(&Command::Pause { queue: b"letters" });
    let taken = add(&mut home, Add { name, ..Add::plain(b"q", b"second") });
    let free = add(&mut home, Add { name: Some(NameArg::Bytes(b"free")), ..Add::plain(b"q", b"third") });
    home.pop(2, PLAIN);
    for id in [taken, free] {
        home.give_back(id, None, Some("why"));
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
    assert_eq!(tasks[1].deliveries, 2, "delivery numbers go on");
}

#[test]
fn a_restart_after_a_move_moves_nothing_twice() {
    let mut home = Home::default();
    home.config(&[Change::Tries(1), Change::DeadLetter(b"letters")]);
    let id = home.push(&["a"])[0];
    home.pop(1, PLAIN);
    home.give_back(id, None, Some("why"));
    home.restart(2);
    home.push(&["b"]);
    home.verify();
    assert_eq!(words(&home.inspect(b"letters", View::Ready)), "a");
}

// ---- Workers.

#[test]
fn a_worker_lives_until_its_time_is_over_and_not_at_it() {
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
fn only_start_and_beat_renew_a_workers_time() {
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
fn a_start_over_a_living_predecessor_loses_it() {
    let mut home = Home::default();
    let old = start(&mut home, b"w", 1_000);
    home.push(&["a"]);
    home.pop(1, by(old));
    let new = start(&mut home, b"w", 1_000);
    assert!(new.incarnation > old.incarnation);
    assert_eq!(
        home.run(&Command::Pop(Pop { lease: by(old), ..Pop::plain(&[b"q"], 1) })),
        Answer::Refused("worker gone")
    );
    assert_eq!(tries_of(&mut home).0, Tries { lost: 1, ..Tries::default() });
    home.verify();
}

#[test]
fn a_worker_is_told_once_of_the_leases_that_lapsed() {
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
fn stop_and_rest_give_back_at_no_cost() {
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

// ---- Restarts.

#[test]
fn a_restart_gives_every_timed_lease_a_while() {
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
fn a_lease_with_more_time_left_keeps_it_across_a_restart() {
    let mut home = Home::default();
    home.push(&["a"]);
    home.pop(1, leased(60_000));
    home.restart(2);
    home.pass(59_999);
    home.tick();
    assert_eq!(home.info().leased, 1);
}

#[test]
fn a_connection_ends_with_the_store_and_gives_back_at_no_cost() {
    let mut home = Home::default();
    home.push(&["a", "b"]);
    let ids: Vec<TaskId> = home
        .take(2, LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE })
        .iter()
        .map(|task| task.id)
        .collect();
    cancel(&mut home, ids[1]);
    home.restart(2);
    assert_eq!(home.info().ready, 1, "a called-off one is gone");
    assert_eq!(tries_of(&mut home).0, Tries::default());
    home.verify();
}

// ---- Queues.

#[test]
fn an_empty_queue_is_forgotten_after_an_hour_unless_something_is_to_be_remembered() {
    let remembered = |prepare: &dyn Fn(&mut Home)| {
        let mut home = Home::default();
        let id = home.push(&["a"])[0];
        prepare(&mut home);
        home.pop(1, PLAIN);
        home.ack(id);
        home.pass(3_600_000);
        home.tick();
        home.verify();
        home.broker.queue(b"q").is_some()
    };
    assert!(!remembered(&|_| ()));
    assert!(remembered(&|home| home.config(&[Change::Tries(3)])));
    assert!(remembered(&|home| _ = home.run(&Command::Pause { queue: b"q" })));
    assert!(remembered(&|home| {
        let worker = start(home, b"w", 9_000_000);
        home.run(&Command::Worker(Worker::Work(worker, b"q")));
    }));
}

#[test]
fn a_dropped_queue_leaves_nothing_behind() {
    let mut home = Home::default();
    home.config(&[Change::MaxLeased(1)]);
    home.push(&["a", "b"]);
    home.pop(1, leased(10));
    assert_eq!(home.run(&Command::Drop { queues: &[b"q", b"q", b"none"] }), Answer::Count(1));
    home.verify();
    assert_eq!(home.run(&Command::Exists { queues: &[b"q"] }), Answer::Count(0));
    home.push(&["c", "d"]);
    assert_eq!(home.pop(2, PLAIN), "c d");
    home.verify();
}

#[test]
fn ids_grow_whatever_the_clock_does() {
    let mut home = Home::default();
    let first = home.push(&["a"])[0];
    home.now.log = LogTime(5);
    let second = home.push(&["b"])[0];
    assert!(second > first);
    home.broker.raise_last_id(TaskId::new(9_000_000_000, 1).unwrap());
    assert!(home.push(&["c"])[0].ms() >= 9_000_000_000);
}

#[test]
fn undelivering_twice_in_one_call_gives_back_once() {
    let mut home = Home::default();
    home.push(&["a", "b"]);
    let receipts: Vec<Receipt> = home.take(2, PLAIN).iter().map(|task| task.receipt()).collect();
    home.undeliver(b"q", &[receipts[0], receipts[1], receipts[0]]);
    assert_eq!(home.see(View::Ready), "a b");
    home.verify();
}
