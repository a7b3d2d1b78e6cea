//! Tasks that are enqueued, taken, finished, returned and cancelled, each by sureq or by a foreign client.

use sureq_core::command::{Add, Command, LeaseAsk, NameArg, Pop, View};
use sureq_core::settings::Place;
use sureq_core::task::StateKind;
use sureq_core::{Reply, command::Return, reply::Outcome};

use crate::common::shop::task_ref;
use crate::common::{push, run};
use crate::support::{QUEUE, Shop, TTL_MS, beat, cancel, pop, pop_one, start, tasks, worker};

#[test]
fn a_foreign_client_takes_and_finishes_a_task_of_sureq() {
    let mut shop = Shop::open();
    shop.push("one");
    shop.push("two");
    assert_eq!(shop.queue(), ["two", "one"]);
    shop.foreign_start("theirs");
    shop.foreign_dequeue("jobs_p1");
    assert_eq!(shop.all("LRANGE worqr:processes:jobs_p1 0 -1"), ["one"]);
    assert_eq!(shop.lengths(), (1, 1));
    shop.multi(&[
        "DEL worqr:uniqueTasks:f97c5d29941bfb1b2fdab0874906ab82",
        "DEL worqr:processes:jobs_p1",
        "SREM worqr:workingProcesses:jobs jobs_p1",
    ]);
    assert_eq!(shop.lengths(), (1, 0));
}

#[test]
fn sureq_takes_and_finishes_a_foreign_task() {
    let mut shop = Shop::open();
    shop.foreign_enqueue("one");
    shop.foreign_enqueue("two");
    start(&shop.home, "w", TTL_MS);
    let popped = pop(&shop.home, "w", 5);
    assert_eq!(popped.iter().map(|(_, payload)| &payload[..]).collect::<Vec<_>>(), ["one", "two"]);
    let ids: Vec<String> = popped.into_iter().map(|(id, _)| id).collect();
    for id in &ids {
        let uuid = id.strip_prefix("jobs_").unwrap();
        assert!(uuid.len() == 36 && uuid.as_bytes()[14] == b'4', "{id} is a process of Worqr");
        assert_eq!(shop.raw::<i64>(&format!("LLEN worqr:processes:{id}")), 1);
    }
    let mut sorted = ids.clone();
    sorted.sort();
    assert_eq!(shop.working(), sorted);
    assert_eq!(shop.all("SMEMBERS worqr:workingQueues:w"), ["jobs"]);
    assert!(shop.ack(&ids[0]) && !shop.ack(&ids[0]), "true at most once");
    assert!(shop.ack(&ids[1]));
    assert!(!shop.ack("jobs_unknown") && !shop.ack("no mark"));
    assert_eq!(shop.lengths(), (0, 0));
    let left = ["worqr:expiringWorkers", "worqr:sureq:workers", "worqr:workerTimers:w", "worqr:workers"];
    let mut keys = shop.keys();
    keys.retain(|key| key != "worqr:workingQueues:w");
    assert_eq!(keys, left, "nothing is left of tasks that are done");
}

#[test]
fn a_unique_task_exists_once_for_both_programs_until_it_is_finished_or_cancelled() {
    let mut shop = Shop::open();
    // The MD5 of hello.
    let mark = "worqr:uniqueTasks:5d41402abc4b2a76b9719d911017c592";
    let add = |shop: &Shop| {
        let unique = Add { name: Some(NameArg::Payload), ..Add::plain(QUEUE, b"hello") };
        let replies = shop.execute(Command::Add(unique));
        let Reply::AddedForeign { at, added, state } = replies.list[0] else { panic!("{:?}", replies.list) };
        assert_eq!(replies.foreign_ids[at as usize], None, "the task has no id yet");
        (added, state)
    };
    assert_eq!(add(&shop), (true, StateKind::Ready));
    assert_eq!(add(&shop), (false, StateKind::Ready));
    assert_eq!(shop.raw::<String>(&format!("GET {mark}")), " ");
    start(&shop.home, "w", TTL_MS);
    let id = pop_one(&shop.home, "w");
    assert_eq!(add(&shop), (false, StateKind::Leased));
    // The home that finishes the task has not delivered it, and must read its payload.
    let other = shop.another();
    assert!(crate::common::shop::ack(&other, &id));
    other.close();
    assert_eq!(shop.raw::<i64>(&format!("EXISTS {mark}")), 0);
    assert_eq!(add(&shop), (true, StateKind::Ready));
    assert_eq!(cancel(&shop.home, "hello"), 1);
    assert_eq!(shop.raw::<i64>(&format!("EXISTS {mark}")), 0);
    assert_eq!(add(&shop), (true, StateKind::Ready));
    // A foreign client sets a mark, and sureq finishes the task.
    assert!(shop.ack(&pop_one(&shop.home, "w")));
    shop.multi(&[&format!("SET {mark} x"), "LPUSH worqr:queues:jobs hello", "PUBLISH worqr_jobs_work 1"]);
    assert_eq!(add(&shop), (false, StateKind::Ready));
    assert!(shop.ack(&pop_one(&shop.home, "w")));
    assert_eq!(shop.raw::<i64>(&format!("EXISTS {mark}")), 0);
}

#[test]
fn a_returned_task_goes_to_the_front_or_to_the_named_place() {
    let mut shop = Shop::open();
    for payload in ["a", "b", "c"] {
        shop.push(payload);
    }
    start(&shop.home, "w", TTL_MS);
    let id = pop_one(&shop.home, "w");
    let return_task = |shop: &Shop, id: &str, to| {
        let back = Return { queue: QUEUE, task: task_ref(id), to, failed: None, is_last: false };
        shop.reply(Command::Return(back))
    };
    assert_eq!(return_task(&shop, &id, None), Reply::Outcome(Outcome::Done));
    assert_eq!(return_task(&shop, &id, None), Reply::Outcome(Outcome::Stale));
    assert_eq!(shop.queue(), ["c", "b", "a"]);
    let id = pop_one(&shop.home, "w");
    assert_eq!(return_task(&shop, &id, Some(Place::Back)), Reply::Outcome(Outcome::Done));
    assert_eq!(shop.queue(), ["a", "c", "b"]);
    assert_eq!(shop.working(), Vec::<String>::new());
}

#[test]
fn a_cancel_removes_waiting_tasks_and_reports_held_ones_to_their_worker() {
    let mut shop = Shop::open();
    for payload in ["a", "b", "a", "a"] {
        shop.push(payload);
    }
    start(&shop.home, "w", TTL_MS);
    let held = pop_one(&shop.home, "w");
    assert_eq!(beat(&shop.home, "w"), Ok(vec![]));
    assert_eq!(cancel(&shop.home, "a"), 3);
    assert_eq!(cancel(&shop.home, "a"), 0, "a second cancel finds no task");
    assert_eq!(shop.queue(), ["b"]);
    assert_eq!(beat(&shop.home, "w"), Ok(vec![held.clone()]));
    assert_eq!(beat(&shop.home, "w"), Ok(vec![held.clone()]), "reported until the task ends");
    let back = Return { queue: QUEUE, task: task_ref(&held), to: None, failed: None, is_last: false };
    assert_eq!(shop.reply(Command::Return(back)), Reply::Outcome(Outcome::Cancelled));
    assert_eq!((shop.queue(), shop.working()), (vec!["b".into()], vec![]), "the task is gone");
    assert_eq!(beat(&shop.home, "w"), Ok(vec![]));
    // A cancelled task can still be finished.
    let held = pop_one(&shop.home, "w");
    assert_eq!(cancel(&shop.home, "b"), 1);
    assert!(shop.ack(&held));
    assert_eq!(shop.raw::<i64>("EXISTS worqr:sureq:cancelled"), 0);
}

#[test]
fn queues_are_counted_inspected_listed_and_deleted() {
    let mut shop = Shop::open();
    for payload in ["a", "b", "c", "d"] {
        shop.push(payload);
    }
    start(&shop.home, "w", TTL_MS);
    let held = pop(&shop.home, "w", 2);
    assert_eq!(shop.lengths(), (2, 2));
    let inspect = |shop: &Shop, view, start, count| {
        tasks(&shop.execute(Command::Inspect { queue: QUEUE, view, start, count }))
    };
    let shown = |payload: &str| (String::new(), payload.to_owned());
    assert_eq!(inspect(&shop, View::Ready, 0, 1), [shown("c")], "the next in turn");
    assert_eq!(inspect(&shop, View::Ready, 0, 9), [shown("c"), shown("d")]);
    assert_eq!(inspect(&shop, View::Ready, -1, 9), [shown("d")]);
    let mut sorted = held.clone();
    sorted.sort();
    assert_eq!(inspect(&shop, View::Leased, 0, 9), sorted);
    assert_eq!(inspect(&shop, View::Leased, -1, 9), sorted[1..]);
    push(&shop.home, b"a_b:c", b"x");
    let replies = shop.execute(Command::Queues { pattern: None, cursor: 0, count: 1000 });
    let mut rows: Vec<_> = replies.queues.iter().map(|row| (row.name.to_vec(), row.counts)).collect();
    rows.sort();
    assert_eq!(rows, [(b"a_b:c".to_vec(), [1, 0, 0, 0]), (b"jobs".to_vec(), [2, 0, 2, 0])]);
    assert_eq!(shop.count(Command::Size), 2);
    assert_eq!(shop.count(Command::Exists { queues: &[QUEUE, b"none"] }), 1);
    // A deletion like that of Worqr: running tasks stay.
    assert_eq!(shop.count(Command::Purge { queue: QUEUE, state: None }), 2);
    assert_eq!(shop.lengths(), (0, 2));
    assert_eq!(shop.count(Command::Drop { queues: &[QUEUE, b"a_b:c"] }), 2);
    assert!(!shop.ack(&held[0].0));
    assert_eq!(shop.count(Command::Size), 0);
    assert_eq!(shop.raw::<i64>("EXISTS worqr:sureq:holders worqr:sureq:held:w"), 0);
}

#[test]
fn several_queues_and_many_tasks_at_once() {
    let shop = Shop::open();
    let payloads: Vec<Vec<u8>> = (0..3000).map(|n: u32| n.to_string().into_bytes()).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    shop.execute(Command::Push { queue: QUEUE, payloads: &payloads });
    push(&shop.home, b"second", b"last");
    start(&shop.home, "w", TTL_MS);
    let lease = LeaseAsk { worker: Some(worker("w")), ..LeaseAsk::NONE };
    let queues: [&[u8]; 2] = [QUEUE, b"second"];
    let all = run(&shop.home, &Command::Pop(Pop { lease, ..Pop::plain(&queues, 5000) }));
    let bodies: Vec<&[u8]> = all.tasks.iter().map(|task| &task.body[..]).collect();
    assert_eq!(bodies[..3000], payloads);
    assert_eq!((bodies[3000], all.tasks[3000].queue), (&b"last"[..], 1));
    assert_eq!(
        shop.refusal(Command::Pop(Pop::plain(&queues, 1))).split(':').next(),
        Some("NOTTHERE layout=worqr has no POP without a WORKER")
    );
}
