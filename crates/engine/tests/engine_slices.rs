//! Commands about very many tasks are executed in slices, and other commands run in between. Without other commands
//! their replies are the same as without slices; with others, no task is lost, duplicated or stuck.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use engine_support::facts::open_small;
use engine_support::{ack, ack_of, execute, fresh, push};
use sureq_core::command::{Block, Cancel, IdForm, LeaseAsk, Pop, TaskRefs, View, Worker, WorkerRef};
use sureq_core::reply::TaskView;
use sureq_core::settings::{Change, Changes};
use sureq_core::{Command, Refusal, Replies, Reply, TaskId, limits};
use sureq_engine::log::Durability;
use sureq_engine::{Engine, Options};
use sureq_home_api::{Answer, Home as _, Payload, Ticket};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::patience::until;
use sureq_testkit::sim_disk::SimDisk;
use sureq_testkit::valve::Valve;

const SLICE: usize = limits::SLICE_TASKS;

/// The most tasks under one hold of the lock: a slice, and the work for waiting pops.
const HELD_TASKS_MAX: usize = 3 * SLICE;

fn in_memory() -> Engine {
    Engine::in_memory_by(Arc::new(ManualClock::default()), &Options::default())
}

/// Pushes tasks with numbers as payloads, at most a slice at a time.
fn fill(engine: &Engine, queue: &[u8], from: usize, count: usize) -> Vec<TaskId> {
    let payloads: Vec<String> = (from..from + count).map(|n| n.to_string()).collect();
    let mut ids = Vec::new();
    for some in payloads.chunks(SLICE) {
        let list: Vec<&[u8]> = some.iter().map(String::as_bytes).collect();
        ids.extend(execute(engine, &[Command::Push { queue, payloads: &list }]).0.ids);
    }
    ids
}

fn numbers(replies: &Replies<Payload>) -> Vec<usize> {
    let number = |body: &Payload| std::str::from_utf8(body.as_ref()).unwrap().parse().unwrap();
    replies.tasks.iter().map(|task| number(&task.body)).collect()
}

fn begin(engine: &Engine, command: Command<'_>) -> Ticket {
    let mut replies = Replies::default();
    let executed = engine.submit(&[command], &mut replies);
    engine.commit();
    assert!(replies.list.is_empty(), "{:?}", replies.list);
    executed.into_ticket().unwrap()
}

/// Executes one step. Returns the answer if it was the last.
fn step(ticket: &Ticket) -> Option<Answer> {
    match ticket.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

fn refs(ids: &[TaskId]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

fn list(texts: &[String]) -> Vec<&[u8]> {
    texts.iter().map(String::as_bytes).collect()
}

fn config(engine: &Engine, queue: &[u8], change: Change<'_>) {
    let _ = execute(engine, &[Command::Config { queue, changes: Changes::List(&[change]) }]);
}

fn count_of(engine: &Engine, command: Command<'_>) -> u64 {
    match execute(engine, &[command]).0.list[..] {
        [Reply::Count(count)] => count,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_large_pop_has_the_same_reply_as_small_ones() {
    let (durable, disk, _) = fresh();
    for engine in [in_memory(), durable] {
        let ids = fill(&engine, b"p", 0, 1_500);
        fill(&engine, b"q", 1_500, 3_000);
        let queues: &[&[u8]] = &[b"empty", b"p", b"q"];
        let pop = Pop { lease: LeaseAsk { ms: Some(60_000), ..LeaseAsk::NONE }, ..Pop::plain(queues, 3_700) };
        let replies = execute(&engine, &[Command::Pop(pop), Command::Size]).0;
        assert!(matches!(replies.list[..], [Reply::Tasks(_), Reply::Count(2)]), "{:?}", replies.list);
        assert_eq!(numbers(&replies), (0..3_700).collect::<Vec<_>>());
        let from_p: Vec<TaskId> =
            replies.tasks.iter().filter(|task| task.queue == 1).map(|task| task.id).collect();
        assert_eq!(from_p, ids);
        assert!(replies.tasks.iter().all(|task| task.deliveries == 1 && task.queue > 0));
        // All receipts are valid, also those of the first slice.
        let receipts: Vec<String> =
            replies.tasks[1_500..].iter().map(|task| task.receipt().to_string()).collect();
        let acked = execute(&engine, &[ack_of(&list(&receipts))]).0;
        assert_eq!(acked.indexes, (0..2_200).collect::<Vec<u32>>());
        assert_eq!(count_of(&engine, Command::Exists { queues }), 2);
        assert!(engine.held().tasks <= HELD_TASKS_MAX, "{:?}", engine.held());
        engine.close().unwrap();
    }
    drop(disk);
}

/// Another pop between two slices gets the tasks that are at the head then, and the large pop continues after them.
#[test]
fn other_commands_are_executed_between_two_slices() {
    let engine = in_memory();
    fill(&engine, b"p", 0, SLICE + 10);
    fill(&engine, b"q", 5_000, 3 * SLICE);
    let ticket = begin(&engine, Command::Pop(Pop::plain(&[b"p", b"q"], 9_000)));
    let other = execute(&engine, &[Command::Pop(Pop::plain(&[b"p"], 3))]).0;
    assert_eq!(numbers(&other), [SLICE, SLICE + 1, SLICE + 2]);
    assert!(step(&ticket).is_none());
    // The large pop continues with the next queue, and does not return to the first.
    fill(&engine, b"p", 100, 1);
    let answer = ticket.wait();
    let expected: Vec<usize> = (0..SLICE).chain(SLICE + 3..SLICE + 10).chain(5_000..8_000).collect();
    assert_eq!(numbers(&answer.replies), expected);
    engine.close().unwrap();
}

/// If a connection closes between two slices, all tasks are requeued in order, at no cost.
#[test]
fn dropping_a_pop_between_two_slices_requeues_all_its_tasks() {
    let (engine, ..) = fresh();
    let ids = fill(&engine, b"q", 0, 3_500);
    for steps in 0..3 {
        let ticket = begin(&engine, Command::Pop(Pop::plain(&[b"q"], 3_400)));
        assert!(!ticket.waits_for_tasks(), "it has tasks already");
        for _ in 0..steps {
            assert!(step(&ticket).is_none());
        }
        let leased = engine.inspect(|broker| broker.queue(b"q").unwrap().counts()[2]);
        assert_eq!(leased as usize, (steps + 1) * SLICE);
        drop(ticket);
        let shown =
            execute(&engine, &[Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: 5_000 }])
                .0;
        assert_eq!(shown.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), ids, "after {steps} steps");
    }
    let late = refs(&ids);
    assert!(execute(&engine, &[ack_of(&list(&late))]).0.indexes.is_empty(), "no delivery was made");
    engine.close().unwrap();
}

#[test]
fn a_pop_ends_with_its_deliveries_if_the_store_closes_between_two_slices() {
    let (engine, disk, clock) = fresh();
    fill(&engine, b"q", 0, 3_500);
    let ticket = begin(&engine, Command::Pop(Pop::plain(&[b"q"], 3_400)));
    let texts = refs(&fill(&engine, b"other", 0, 2_500));
    let deleting = begin(&engine, delete(b"other", &list(&texts)));
    let looking = begin(&engine, Command::Queues { pattern: None, cursor: 0, count: u32::MAX });
    assert!(step(&ticket).is_none() && step(&deleting).is_none());
    engine.close().unwrap();
    assert_eq!(numbers(&ticket.wait().replies), (0..2 * SLICE).collect::<Vec<_>>());
    assert!(matches!(deleting.wait().replies.list[..], [Reply::Refused(Refusal::Unknown { .. })]));
    assert_eq!(looking.wait().replies.list, [Reply::Refused(Refusal::Closed)]);
    let engine = engine_support::open(&disk.shared(), &clock, Durability::Always);
    assert_eq!(engine.inspect(|broker| broker.queue(b"q").unwrap().counts()), [1_500, 0, 2_000, 0]);
    assert_eq!(engine.inspect(|broker| broker.queue(b"other").unwrap().counts()), [1_500, 0, 0, 0]);
    engine.close().unwrap();
}

#[test]
fn the_outcome_is_unknown_if_the_log_fails_between_two_slices() {
    let valve = Valve::new();
    let clock = Arc::new(ManualClock::default());
    let engine = Engine::open_on(valve.shared(), clock, &Options::default()).unwrap();
    fill(&engine, b"q", 0, 3_500);
    let ticket = begin(&engine, Command::Pop(Pop::plain(&[b"q"], 3_400)));
    let texts = refs(&fill(&engine, b"other", 0, 2_500));
    let deleting = begin(&engine, delete(b"other", &list(&texts)));
    valve.close();
    assert!(step(&ticket).is_none());
    let _ = engine.commit();
    valve.wait_until_held();
    valve.fail_log();
    valve.open();
    let mut replies = Replies::default();
    while engine.failure().is_none() {
        let _ = engine.execute(&[Command::Push { queue: b"q", payloads: &[b"x"] }], &mut replies);
    }
    assert!(matches!(ticket.wait().replies.list[..], [Reply::Refused(Refusal::Unknown { .. })]));
    assert!(matches!(deleting.wait().replies.list[..], [Reply::Refused(_)]));
    engine.close().unwrap_err();
}

fn delete<'a>(queue: &'a [u8], list: &'a [&'a [u8]]) -> Command<'a> {
    Command::Delete { queue, tasks: TaskRefs { list, form: IdForm::Long } }
}

/// Waiting pops get their first slice in order of arrival; none gets all tasks before the next one gets any.
#[test]
fn waiting_pops_share_new_tasks_and_none_is_stuck() {
    let (engine, ..) = fresh();
    let wait = |count| {
        let pop = Pop { block: Some(Block::Forever), ..Pop::plain(&[b"q"], count) };
        begin(&engine, Command::Pop(pop))
    };
    let (first, second, third) = (wait(9_000), wait(9_000), wait(1));
    let payloads: Vec<String> = (0..3_500).map(|n| n.to_string()).collect();
    let all = list(&payloads);
    let _ = execute(&engine, &[Command::Push { queue: b"q", payloads: &all }]);
    assert_eq!(engine.waiters(), 0, "each got some tasks");
    let (first, second, third) = (first.wait(), second.wait(), third.wait());
    let got: Vec<Vec<usize>> = [first, second, third].iter().map(|answer| numbers(&answer.replies)).collect();
    assert_eq!(
        (&got[0][..SLICE], &got[1][..SLICE]),
        (&(0..SLICE).collect::<Vec<_>>()[..], &(SLICE..2 * SLICE).collect::<Vec<_>>()[..])
    );
    assert_eq!(got[2], [2 * SLICE]);
    let together: BTreeSet<usize> = got.iter().flatten().copied().collect();
    assert_eq!(together.len(), 3_500);
    assert_eq!(got.iter().map(Vec::len).sum::<usize>(), 3_500, "each once");
    engine.close().unwrap();
}

/// A pop that waits while a large one is in progress is served by the next push, before the large one.
#[test]
fn a_large_pop_does_not_overtake_waiting_pops() {
    let engine = in_memory();
    fill(&engine, b"q", 0, 2 * SLICE);
    let large = begin(&engine, Command::Pop(Pop::plain(&[b"q"], 9_000)));
    assert!(step(&large).is_none(), "it has all tasks, and checks once more");
    let waiting = begin(&engine, Command::Pop(Pop { block: Some(Block::Forever), ..Pop::plain(&[b"q"], 1) }));
    fill(&engine, b"q", 7_000, 1);
    assert_eq!(numbers(&waiting.wait().replies), [7_000]);
    assert_eq!(large.wait().replies.tasks.len(), 2 * SLICE);
    engine.close().unwrap();
}

#[test]
fn limits_hold_for_all_slices_together() {
    let engine = in_memory();
    fill(&engine, b"q", 0, 4_000);
    config(&engine, b"q", Change::MaxLeased(1_700));
    let popped = execute(&engine, &[Command::Pop(Pop::plain(&[b"q"], 4_000))]).0;
    assert_eq!(numbers(&popped), (0..1_700).collect::<Vec<_>>());
    let large = vec![7_u8; 3 << 20];
    for _ in 0..25 {
        let _ = execute(&engine, &[Command::Push { queue: b"large", payloads: &[&large] }]);
    }
    let _ = execute(&engine, &[Command::Push { queue: b"later", payloads: &[b"small"] }]);
    let popped = execute(&engine, &[Command::Pop(Pop::plain(&[b"large", b"later"], 100))]).0;
    let bytes: usize = popped.tasks.iter().map(|task| task.body.as_ref().len()).sum();
    assert_eq!(bytes, 63 << 20, "as many as fit, in order");
    let rest = execute(&engine, &[Command::Pop(Pop::plain(&[b"large", b"later"], 100))]).0;
    assert_eq!(rest.tasks.len(), 5);
    engine.close().unwrap();
}

/// If a worker is lost between two slices, the reply has the tasks so far; their leases have ended.
#[test]
fn a_pop_ends_if_its_worker_is_lost_between_two_slices() {
    let engine = in_memory();
    fill(&engine, b"q", 0, 2_500);
    let started = execute(&engine, &[Command::Worker(Worker::Start { name: b"w", ttl_ms: 60_000 })]).0;
    let [Reply::Started(incarnation)] = started.list[..] else { panic!("{:?}", started.list) };
    let worker = Some(WorkerRef { name: b"w", incarnation });
    let lease = LeaseAsk { worker, ..LeaseAsk::NONE };
    let ticket = begin(&engine, Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 2_500) }));
    let _ = execute(&engine, &[Command::Worker(Worker::Fail { name: b"w" })]);
    assert_eq!(numbers(&ticket.wait().replies), (0..SLICE).collect::<Vec<_>>());
    engine.tick();
    assert_eq!(engine.inspect(|broker| broker.queue(b"q").unwrap().counts()), [2_500, 0, 0, 0]);
    engine.close().unwrap();
}

/// Long lists of ids: each task counts once, even if ids are repeated or unknown, and one malformed id refuses the
/// list.
#[test]
fn long_lists_have_the_same_effect_as_short_ones() {
    let (engine, ..) = fresh();
    let ids = fill(&engine, b"q", 0, 4_000);
    let mut texts = refs(&ids[..2_500]);
    texts.extend(refs(&ids[..10]));
    texts.push("7-7".to_owned());
    let tasks = |list| TaskRefs { list, form: IdForm::Long };
    let some = list(&texts);
    let mut broken = some.clone();
    broken.push(b"no id");
    for command in
        [delete(b"q", &broken), ack_of(&broken), Command::Bury { queue: b"q", tasks: tasks(&broken) }]
    {
        assert_eq!(execute(&engine, &[command]).0.list, [Reply::Refused(Refusal::MalformedId)]);
    }
    assert_eq!(engine.inspect(|broker| broker.queue(b"q").unwrap().counts()), [4_000, 0, 0, 0]);
    assert_eq!(count_of(&engine, Command::Bury { queue: b"q", tasks: tasks(&some) }), 2_500);
    assert_eq!(count_of(&engine, Command::Revive { queue: b"q", tasks: Some(tasks(&some)) }), 2_500);
    let popped = execute(&engine, &[Command::Pop(Pop::plain(&[b"q"], 4_000))]).0;
    let order: Vec<usize> = numbers(&popped);
    assert_eq!(
        order,
        (2_500..4_000).chain(0..2_500).collect::<Vec<_>>(),
        "revived tasks are at the back, in order"
    );
    let acked = execute(&engine, &[ack_of(&some)]).0;
    assert_eq!(acked.indexes, (0..2_500).collect::<Vec<u32>>());
    assert!(matches!(acked.list[..], [Reply::Acked(span)] if span.len() == 2_500));
    let rest = refs(&ids[2_500..]);
    let rest = list(&rest);
    assert_eq!(count_of(&engine, Command::Cancel { queue: b"q", which: Cancel::Ids(tasks(&rest)) }), 1_500);
    assert_eq!(count_of(&engine, delete(b"q", &rest)), 1_500);
    assert!(engine.held().tasks <= HELD_TASKS_MAX, "{:?}", engine.held());
    engine.close().unwrap();
}

/// The memory of a long list is accounted for while the list exists.
#[test]
fn a_long_list_counts_as_memory() {
    let engine = in_memory();
    let before = engine.status().memory_bytes;
    let texts: Vec<String> = (1..=50_000).map(|n| format!("7-{n}")).collect();
    let ticket = begin(&engine, delete(b"q", &list(&texts)));
    assert!(engine.status().memory_bytes > before + 250_000);
    drop(ticket);
    assert_eq!(engine.status().memory_bytes, before);
    engine.close().unwrap();
}

/// A queue that exists all the time is listed exactly once, although other queues are made and dropped meanwhile.
#[test]
fn all_queues_are_listed_once_while_others_come_and_go() {
    let engine = in_memory();
    let name = |n: usize| format!("queue {n}").into_bytes();
    for n in 0..5_000 {
        let _ = execute(&engine, &[Command::Push { queue: &name(n), payloads: &[b"x"] }]);
    }
    for (pattern, count) in [(None, u32::MAX), (Some(&b"queue *"[..]), u32::MAX), (None, 4_200)] {
        let ticket = begin(&engine, Command::Queues { pattern, cursor: 0, count });
        let mut n = 5_000;
        let answer = loop {
            if let Some(answer) = step(&ticket) {
                break answer;
            }
            let (gone, new) = (name(n), name(n + 1));
            let _ = execute(
                &engine,
                &[Command::Push { queue: &new, payloads: &[b"x"] }, Command::Drop { queues: &[&gone] }],
            );
            n += 1;
        };
        let _ = execute(&engine, &[Command::Drop { queues: &[&name(n)] }]);
        let listed: Vec<Vec<u8>> = answer.replies.queues.iter().map(|row| row.name.to_vec()).collect();
        let distinct: BTreeSet<&Vec<u8>> = listed.iter().collect();
        let [Reply::Queues { cursor, rows }] = answer.replies.list[..] else {
            panic!("{:?}", answer.replies.list)
        };
        assert_eq!(rows.len(), listed.len());
        if count == u32::MAX {
            assert_eq!(cursor, 0);
            assert!((0..5_000).all(|n| distinct.contains(&name(n))), "one is missing");
            let stayed =
                listed.iter().filter(|name| !name.starts_with(b"queue 5") || name.len() < 10).count();
            assert_eq!(stayed, 5_000, "each once");
        } else {
            assert!(cursor == 4_200 && listed.len() <= 4_200, "{cursor}, {}", listed.len());
        }
    }
    let names: Vec<Vec<u8>> = (0..6_000).map(name).collect();
    let queues: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    assert_eq!(count_of(&engine, Command::Exists { queues: &queues }), 5_000);
    assert_eq!(count_of(&engine, Command::Drop { queues: &queues }), 5_000);
    assert_eq!(count_of(&engine, Command::Size), 0);
    assert!(engine.held().tasks <= HELD_TASKS_MAX, "{:?}", engine.held());
    engine.close().unwrap();
}

#[test]
fn each_task_is_recovered_once_and_inspected_in_order() {
    let (engine, _, clock) = fresh();
    let ids = fill(&engine, b"q", 0, 3_500);
    let shown = |view, start| {
        let replies = execute(&engine, &[Command::Inspect { queue: b"q", view, start, count: 9_000 }]).0;
        assert!(matches!(replies.list[..], [Reply::Inspected(span)] if span.len() == replies.tasks.len()));
        replies.tasks.iter().map(|task| task.id).collect::<Vec<_>>()
    };
    assert_eq!(shown(View::Ready, 0), ids);
    assert_eq!(shown(View::Ready, 100), ids[100..]);
    assert_eq!(shown(View::Ready, -2_200), ids[1_300..]);
    let popped = execute(&engine, &[Command::Pop(Pop::plain(&[b"q"], 3_000))]).0;
    assert_eq!(popped.tasks.len(), 3_000);
    assert_eq!(shown(View::Leased, 0), ids[..3_000]);
    for (elapsed_ms, expected) in [(1, 0), (0, 3_000), (0, 2_500)] {
        let recover = Command::Recover {
            queue: b"q",
            count: if expected == 2_500 { 2_500 } else { 9_000 },
            elapsed_ms,
        };
        let recovered = execute(&engine, &[recover]).0;
        assert_eq!(
            recovered.tasks.iter().map(|task| task.id).collect::<Vec<_>>(),
            ids[..expected],
            "{elapsed_ms}"
        );
        clock.pass(1);
    }
    let receipts: BTreeSet<u32> =
        execute(&engine, &[Command::Recover { queue: b"q", count: 9_000, elapsed_ms: 0 }])
            .0
            .tasks
            .iter()
            .map(|task| task.deliveries)
            .collect();
    assert_eq!(receipts.into_iter().collect::<Vec<_>>(), [3, 4], "each call has delivered each task once");
    assert!(engine.held().tasks <= HELD_TASKS_MAX, "{:?}", engine.held());
    engine.close().unwrap();
}

/// Many small commands sent at once do no more work under one lock than one large command.
#[test]
fn a_long_batch_is_executed_in_parts() {
    let engine = in_memory();
    let push = Command::Push { queue: b"q", payloads: &[b"x"] };
    let mut replies = Replies::default();
    let executed = engine.execute(&vec![push; 10_000], &mut replies);
    assert_eq!((executed.executed, replies.ids.len()), (10_000, 10_000));
    let pops = vec![Command::Pop(Pop::plain(&[b"q"], 100)); 100];
    let executed = engine.execute(&pops, &mut replies);
    assert_eq!((executed.executed, replies.tasks.len()), (100, 10_000));
    assert!(engine.held().tasks <= HELD_TASKS_MAX, "{:?}", engine.held());
    engine.close().unwrap();
}

/// A pop checks each queue that it names, also if none has tasks.
#[test]
fn pops_of_many_queues_are_executed_in_parts() {
    let engine = in_memory();
    let names: Vec<String> = (0..limits::POP_QUEUES_MAX).map(|n| format!("q{n}")).collect();
    let queues = list(&names);
    let mut replies = Replies::default();
    let executed = engine.execute(&[Command::Pop(Pop::plain(&queues, 1)); 10], &mut replies);
    assert_eq!((executed.executed, replies.list.len()), (10, 10));
    let held = engine.held();
    assert!((queues.len()..=HELD_TASKS_MAX).contains(&held.tasks), "{held:?}");
    engine.close().unwrap();
}

/// Very many waiting pops are served in order of arrival, and not all under one lock.
#[test]
fn thousands_of_waiting_pops_are_served_in_slices() {
    let (engine, ..) = fresh();
    fill(&engine, b"q", 0, 10 * SLICE);
    let _ = execute(&engine, &[Command::Pause { queue: b"q" }]);
    let wait = |count| {
        begin(&engine, Command::Pop(Pop { block: Some(Block::Forever), ..Pop::plain(&[b"q"], count) }))
    };
    let tickets: Vec<Ticket> = (0..4 * SLICE).map(|_| wait(1)).collect();
    let large: Vec<Ticket> = (0..5).map(|_| wait(SLICE as u32)).collect();
    let _ = execute(&engine, &[Command::Resume { queue: b"q" }]);
    for (n, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(numbers(&ticket.wait().replies), [n]);
    }
    for (n, ticket) in large.into_iter().enumerate() {
        let first = (4 + n) * SLICE;
        assert_eq!(numbers(&ticket.wait().replies), (first..first + SLICE).collect::<Vec<_>>());
    }
    assert_eq!(engine.waiters(), 0);
    assert!(engine.held().tasks <= HELD_TASKS_MAX, "{:?}", engine.held());
    engine.close().unwrap();
}

/// Pops that each wait for tasks of very many queues, the last of which is `q`.
fn wait_for_many_queues(engine: &Engine, pops: usize, queues: usize, block: Block) -> Vec<Ticket> {
    let names: Vec<String> = (1..queues).map(|n| format!("queue {n}")).chain(["q".to_owned()]).collect();
    let queues = list(&names);
    let pop = Command::Pop(Pop { block: Some(block), ..Pop::plain(&queues, 1) });
    (0..pops).map(|_| begin(engine, pop)).collect()
}

/// With this many queues each, two pops that end are as much work as is done under one lock.
const MANY_QUEUES: usize = SLICE;

/// Longer than the test takes: the ticker wakes by real time, so it does not wake by itself meanwhile.
const HOUR_MS: u64 = 3_600_000;

#[test]
fn very_many_pops_that_time_out_together_are_answered_in_slices() {
    let clock = Arc::new(ManualClock::default());
    let engine = Engine::in_memory_by(Arc::clone(&clock) as _, &Options::default());
    let tickets = wait_for_many_queues(&engine, 40, MANY_QUEUES, Block::Millis(HOUR_MS));
    clock.pass(HOUR_MS);
    engine.tick();
    // A command about another queue.
    let info = execute(&engine, &[Command::Info { queue: b"other" }]).0;
    assert!(matches!(info.list[..], [Reply::Info(_)]), "{:?}", info.list);
    while engine.waiters() > 0 {
        engine.tick();
    }
    for ticket in tickets {
        assert_eq!(ticket.wait().replies.list, [Reply::TimedOut]);
    }
    assert!(engine.held().tasks <= HELD_TASKS_MAX, "{:?}", engine.held());
    engine.close().unwrap();
}

/// The pops that time out use up the work under the lock, so that no other pop is served under it.
#[test]
fn a_task_that_is_pushed_while_pops_time_out_is_delivered_to_a_waiting_pop() {
    let clock = Arc::new(ManualClock::default());
    let engine = Engine::in_memory_by(Arc::clone(&clock) as _, &Options::default());
    let _timed_out = wait_for_many_queues(&engine, 2, MANY_QUEUES, Block::Millis(HOUR_MS));
    let queues: &[&[u8]] = &[b"other"];
    let waiting = begin(&engine, Command::Pop(Pop { block: Some(Block::Forever), ..Pop::plain(queues, 1) }));
    clock.pass(HOUR_MS);
    let _ = execute(&engine, &[Command::Push { queue: b"other", payloads: &[b"7"] }]);
    engine.tick();
    assert_eq!(numbers(&waiting.wait().replies), [7]);
    engine.close().unwrap();
}

#[test]
fn very_many_waiting_pops_are_dismissed_in_slices() {
    let engine = in_memory();
    let tickets = wait_for_many_queues(&engine, 40, MANY_QUEUES, Block::Forever);
    engine.dismiss_waiters();
    assert_eq!(engine.waiters(), 0);
    let others = wait_for_many_queues(&engine, 40, MANY_QUEUES, Block::Forever);
    engine.close().unwrap();
    for ticket in tickets.into_iter().chain(others) {
        assert_eq!(ticket.wait().replies.list, [Reply::TimedOut]);
    }
    assert!(engine.held().tasks <= HELD_TASKS_MAX, "{:?}", engine.held());
}

/// Each of them is removed from the waiters of all queues that it names.
#[test]
fn pops_that_wait_for_many_queues_are_served_in_slices() {
    let engine = in_memory();
    let tickets = wait_for_many_queues(&engine, 40, MANY_QUEUES, Block::Forever);
    fill(&engine, b"q", 0, 40);
    for (n, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(numbers(&ticket.wait().replies), [n]);
    }
    assert!(engine.held().tasks <= HELD_TASKS_MAX, "{:?}", engine.held());
    engine.close().unwrap();
}

/// Even a batch of many commands does not serve waiting pops again and again under one lock.
#[test]
fn tasks_that_waiting_pops_get_count_as_work_of_a_batch() {
    const POPS: usize = 20;
    let engine = in_memory();
    fill(&engine, b"q", 0, POPS * SLICE);
    let _ = execute(&engine, &[Command::Pause { queue: b"q" }]);
    let pop = Pop { block: Some(Block::Forever), ..Pop::plain(&[b"q"], SLICE as u32) };
    let tickets: Vec<Ticket> = (0..POPS).map(|_| begin(&engine, Command::Pop(pop))).collect();
    let mut commands = vec![Command::Info { queue: b"other" }; 1_000];
    commands.insert(0, Command::Resume { queue: b"q" });
    let mut replies = Replies::default();
    let executed = engine.execute(&commands, &mut replies);
    assert_eq!((executed.executed, replies.list.len()), (1_001, 1_001));
    for (n, ticket) in tickets.into_iter().enumerate() {
        let expected: Vec<usize> = (n * SLICE..(n + 1) * SLICE).collect();
        assert_eq!(numbers(&ticket.wait().replies), expected);
    }
    assert!(engine.held().tasks <= HELD_TASKS_MAX, "{:?}", engine.held());
    engine.close().unwrap();
}

/// A store with this many tasks, whose payloads are on disk and not in memory.
fn cold(tasks: usize) -> (Engine, SimDisk, Arc<ManualClock>) {
    let (disk, clock) = (SimDisk::new(9), Arc::new(ManualClock::default()));
    let engine = open_small(&disk.shared(), &clock, Durability::Always, 64 << 10);
    let payloads: Vec<String> = (0..tasks).map(|n| format!("{n:>100}")).collect();
    for some in payloads.chunks(400) {
        let some: Vec<&[u8]> = some.iter().map(String::as_bytes).collect();
        let _ = execute(&engine, &[Command::Push { queue: b"q", payloads: &some }]);
    }
    engine.close().expect("a sound disk");
    (open_small(&disk.shared(), &clock, Durability::Always, 64 << 10), disk, clock)
}

fn is_cold_payload(task: &TaskView<Payload>, n: usize) -> bool {
    *task.body.as_ref() == *format!("{n:>100}").as_bytes()
}

#[test]
fn a_cold_pop_is_answered_although_the_store_closes_between_its_slices() {
    let (engine, ..) = cold(3_400);
    let mut replies = Replies::default();
    let executed = engine.submit(&[Command::Pop(Pop::plain(&[b"q"], 3_400))], &mut replies);
    engine.commit();
    let ticket = executed.into_ticket().expect("it takes several slices");
    engine.close().expect("a sound disk");
    let answer = ticket.wait();
    assert!(matches!(answer.replies.list[..], [Reply::Tasks(_)]), "{:?}", answer.replies.list);
    let tasks = &answer.replies.tasks;
    assert!(tasks.len() >= 1_000, "{} tasks", tasks.len());
    assert!(tasks.iter().enumerate().all(|(n, task)| is_cold_payload(task, n)));
}

/// The payloads of a slice are read before their segment is removed.
#[test]
fn segments_removed_between_two_slices_lose_no_payload() {
    let (engine, ..) = cold(3_400);
    let mut replies = Replies::default();
    let inspect = Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: 3_400 };
    let executed = engine.submit(&[inspect], &mut replies);
    let ticket = executed.into_ticket().expect("it takes several slices");
    assert!(ticket.poll(&mut Context::from_waker(Waker::noop())).is_pending(), "one slice");
    let segments = engine.status().segments;
    for _ in 0..4 {
        let (popped, _) = execute(&engine, &[Command::Pop(Pop::plain(&[b"q"], 900))]);
        let ids: Vec<TaskId> = popped.tasks.iter().map(|task| task.id).collect();
        assert_eq!(ack(&engine, &ids), ids.len());
    }
    until("old segments are removed", || {
        let _ = push(&engine, &[&[b'x'; 1_000]]);
        engine.status().segments < segments
    });
    let answer = ticket.wait();
    assert!(matches!(answer.replies.list[..], [Reply::Inspected(_)]), "{:?}", answer.replies.list);
    let tasks = &answer.replies.tasks[..1_000];
    assert!(tasks.iter().enumerate().all(|(n, task)| is_cold_payload(task, n)));
    assert_eq!(engine.status().read_errors, 0);
    engine.close().expect("a sound disk");
}
