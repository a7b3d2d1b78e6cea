//! Rule 7 through the engine: one command does a bounded amount of work under the lock, including the work for
//! waiting pops.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_support::{ack_of, execute};
use sureq_core::command::{Block, LeaseAsk, Pop, Worker, WorkerRef};
use sureq_core::settings::{Change, Changes};
use sureq_core::{Command, Refusal, Replies, Reply, limits};
use sureq_engine::{Engine, Options};
use sureq_home_api::{Answer, Home as _, Submitted};
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::SimDisk;

/// Longer than the test takes: the ticker wakes by real time, so it does not wake by itself meanwhile.
const HOUR_MS: u64 = 3_600_000;

fn open(disk: &SimDisk, clock: &Arc<ManualClock>, cache_bytes: usize) -> Engine {
    let options =
        Options { segment_bytes: Some(4 << 20), cache_bytes, keeps_log: true, ..Options::default() };
    Engine::open_on(disk.shared(), Arc::clone(clock) as _, &options).unwrap()
}

fn configure(engine: &Engine, changes: &[Change<'_>]) {
    let _ = execute(engine, &[Command::Config { queue: b"q", changes: Changes::List(changes) }]);
}

/// A million expired tasks are before the only unexpired one. A slot becomes free: the waiting pop gets that task at
/// once, and the command that freed the slot removes no more than a few slices of expired tasks. Each slice is one
/// event.
#[test]
fn an_ack_that_frees_a_slot_does_not_remove_all_expired_tasks_itself() {
    const EXPIRED: usize = 1_000_000;
    let (disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
    let engine = open(&disk, &clock, 1 << 20);
    configure(&engine, &[Change::MaxLeased(1)]);
    let _ = execute(&engine, &[Command::Push { queue: b"q", payloads: &[b"held"] }]);
    let (held, _) = execute(&engine, &[Command::Pop(Pop::plain(&[b"q"], 1))]);
    configure(&engine, &[Change::TtlMs(HOUR_MS)]);
    let batch = vec![&b"x"[..]; 10_000];
    for _ in 0..EXPIRED / batch.len() {
        let _ = execute(&engine, &[Command::Push { queue: b"q", payloads: &batch }]);
    }
    configure(&engine, &[Change::TtlMs(0)]);
    let _ = execute(&engine, &[Command::Push { queue: b"q", payloads: &[b"good"] }]);
    let queues: [&[u8]; 1] = [b"q"];
    let pop = Command::Pop(Pop { block: Some(Block::Forever), ..Pop::plain(&queues, 1) });
    let waiting = engine.submit(&[pop], &mut Replies::default()).into_ticket().expect("there is no slot");
    clock.pass(2 * HOUR_MS);

    let (before, watch) = (engine.end(), MachineWatch::start());
    let text = held.tasks[0].id.to_string();
    let (list, mut replies) = ([text.as_bytes()], Replies::default());
    let since = Instant::now();
    let executed = engine.submit(&[ack_of(&list)], &mut replies);
    let took = since.elapsed();
    assert_eq!(replies.indexes, [0], "{:?}", replies.list);
    let events = executed.position.0 - before.0;
    assert!(events < 32, "{events} events of one command");
    watch.assert_within(took, Duration::from_secs(1), "the ack");
    engine.commit();
    let answer = waiting.wait();
    assert_eq!(answer.replies.tasks.len(), 1, "{:?}", answer.replies.list);
    assert_eq!(answer.replies.tasks[0].body.as_ref(), b"good");
    engine.close().unwrap();
}

/// While many tasks expire, each command on their queue settles a slice of them. A pipeline of such commands lets other
/// threads have the lock after a few of them.
#[test]
fn a_pipeline_settles_a_bounded_number_of_tasks_under_one_lock() {
    const MOVED_MAX: usize = 5 * limits::SLICE_TASKS;
    let (disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
    let engine = open(&disk, &clock, 1 << 20);
    configure(&engine, &[Change::TtlMs(HOUR_MS)]);
    let batch = vec![&b"x"[..]; limits::SLICE_TASKS];
    for _ in 0..20 {
        let _ = execute(&engine, &[Command::Push { queue: b"q", payloads: &batch }]);
    }
    configure(&engine, &[Change::TtlMs(0)]);
    clock.pass(2 * HOUR_MS);
    let pipeline: Vec<Command<'_>> =
        (0..30).map(|_| Command::Push { queue: b"q", payloads: &batch[..1] }).collect();
    let (replies, _) = execute(&engine, &pipeline);
    assert_eq!(replies.list.len(), pipeline.len());
    let held = engine.held();
    assert!(held.moved <= MOVED_MAX, "{held:?}");
    engine.close().unwrap();
}

/// The most tasks that may move under one lock: what waiting pops, a tick and the batch may each move, and the rest of
/// the slice that exceeds the budget.
const FLOOD_MOVED_MAX: usize = 8 * limits::SLICE_TASKS;

/// A store in memory with two slices of expired tasks in each of many queues, and a good task in the last one.
fn with_expired_tasks_in_many_queues(clock: &Arc<ManualClock>, meanwhile: impl FnOnce(&Engine)) -> Engine {
    let engine = Engine::in_memory_by(Arc::clone(clock) as _, &Options::default());
    let batch = vec![&b"x"[..]; 2 * limits::SLICE_TASKS];
    for name in flooded() {
        let config = |ms| Command::Config { queue: name.as_bytes(), changes: Changes::List(ms) };
        let _ = execute(&engine, &[config(&[Change::TtlMs(HOUR_MS)])]);
        let _ = execute(&engine, &[Command::Push { queue: name.as_bytes(), payloads: &batch }]);
        let _ = execute(&engine, &[config(&[Change::TtlMs(0)])]);
    }
    let last = flooded().pop().unwrap();
    let _ = execute(&engine, &[Command::Pause { queue: last.as_bytes() }]);
    let _ = execute(&engine, &[Command::Push { queue: last.as_bytes(), payloads: &[b"good"] }]);
    meanwhile(&engine);
    clock.pass(2 * HOUR_MS);
    engine
}

fn flooded() -> Vec<String> {
    (0..128).map(|n| format!("flooded {n}")).collect()
}

/// Pops one task of the flooded queues.
fn pop_flooded(engine: &Engine, block: Option<Block>) -> Submitted {
    let names = flooded();
    let queues: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let submitted =
        engine.submit(&[Command::Pop(Pop { block, ..Pop::plain(&queues, 9) })], &mut Replies::default());
    engine.commit();
    submitted
}

fn resume_flooded(engine: &Engine) {
    let last = flooded().pop().unwrap();
    let mut replies = Replies::default();
    let _ = engine.submit(&[Command::Resume { queue: last.as_bytes() }], &mut replies);
    engine.commit();
}

fn assert_good(engine: &Engine, answer: &Answer) {
    let found: Vec<&[u8]> = answer.replies.tasks.iter().map(|task| task.body.as_ref()).collect();
    assert_eq!(found, [b"good"], "{:?}", answer.replies.list);
    let held = engine.held();
    assert!(held.moved <= FLOOD_MOVED_MAX, "{held:?}");
    engine.check().unwrap();
    engine.close().unwrap();
}

#[test]
fn a_pop_of_many_flooded_queues_moves_a_bounded_number_of_tasks_under_one_lock() {
    let clock = Arc::new(ManualClock::default());
    let engine = with_expired_tasks_in_many_queues(&clock, resume_flooded);
    let ticket = pop_flooded(&engine, None).into_ticket().expect("it takes many slices");
    assert!(!ticket.waits_for_tasks());
    assert_good(&engine, &ticket.wait());
}

#[test]
fn a_pop_of_many_flooded_queues_finds_nothing_after_many_slices() {
    let clock = Arc::new(ManualClock::default());
    let engine = with_expired_tasks_in_many_queues(&clock, |_| ());
    let answer = pop_flooded(&engine, None).into_ticket().expect("it takes many slices").wait();
    assert!(matches!(answer.replies.list[..], [Reply::Tasks(span)] if span.is_empty()));
    let held = engine.held();
    assert!(held.moved <= FLOOD_MOVED_MAX, "{held:?}");
    engine.close().unwrap();
}

#[test]
fn a_blocking_pop_of_many_flooded_queues_moves_a_bounded_number_of_tasks_under_one_lock() {
    let clock = Arc::new(ManualClock::default());
    let engine = with_expired_tasks_in_many_queues(&clock, resume_flooded);
    let ticket = pop_flooded(&engine, Some(Block::Forever)).into_ticket().expect("it takes many slices");
    assert_good(&engine, &ticket.wait());
}

/// A queue with a task wakes a pop that also waits for many flooded queues before it.
#[test]
fn a_waiting_pop_of_many_flooded_queues_moves_a_bounded_number_of_tasks_under_one_lock() {
    let clock = Arc::new(ManualClock::default());
    let mut tickets = Vec::new();
    let engine = with_expired_tasks_in_many_queues(&clock, |engine| {
        for name in flooded() {
            let _ = execute(engine, &[Command::Pause { queue: name.as_bytes() }]);
        }
        for _ in 0..2 {
            tickets.extend(pop_flooded(engine, Some(Block::Forever)).into_ticket());
        }
    });
    assert_eq!(engine.waiters(), 2);
    resume_flooded(&engine);
    let first = tickets.remove(0).wait();
    // The second has waited for the same queue.
    let last = flooded().pop().unwrap();
    let _ = execute(&engine, &[Command::Push { queue: last.as_bytes(), payloads: &[b"good"] }]);
    let second = tickets.remove(0).wait();
    assert_eq!(second.replies.tasks.len(), 1);
    assert_good(&engine, &first);
}

#[test]
fn the_end_of_a_worker_moves_a_bounded_number_of_tasks_under_one_lock() {
    let clock = Arc::new(ManualClock::default());
    let mut held_by = None;
    let engine = with_expired_tasks_in_many_queues(&clock, |engine| {
        let start = Command::Worker(Worker::Start { name: b"w", ttl_ms: 9 * HOUR_MS });
        let Reply::Started(incarnation) = execute(engine, &[start]).0.list[0] else { panic!("it starts") };
        let worker = WorkerRef { name: b"w", incarnation };
        for name in flooded() {
            let lease = LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE };
            let _ = execute(engine, &[Command::Pop(Pop { lease, ..Pop::plain(&[name.as_bytes()], 1) })]);
        }
        held_by = Some(worker);
    });
    let stop = Command::Worker(Worker::Stop(held_by.unwrap()));
    let submitted = engine.submit(&[stop], &mut Replies::default());
    engine.commit();
    let answer = submitted.into_ticket().expect("it takes many slices").wait();
    assert_eq!(answer.replies.list, [Reply::Count(flooded().len() as u64 - 1)]);
    let held = engine.held();
    assert!(held.moved <= FLOOD_MOVED_MAX, "{held:?}");
    engine.close().unwrap();
}

/// A command that drops many large queues, and a pipeline of commands that drop one each, release a bounded number of
/// payloads under one lock.
#[test]
fn drops_release_a_bounded_number_of_payloads_under_one_lock() {
    const RELEASED_MAX: usize = 4 * limits::SLICE_TASKS;
    let engine = Engine::in_memory(&Options::default());
    let batch = vec![&b"x"[..]; limits::SLICE_TASKS];
    let names: Vec<String> = (0..200).map(|n| format!("queue {n}")).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let (at_once, one_by_one) = names.split_at(100);
    for queue in &names {
        let _ = execute(&engine, &[Command::Push { queue, payloads: &batch }]);
    }
    let dropped = execute(&engine, &[Command::Drop { queues: at_once }]).0;
    assert_eq!(dropped.list, [Reply::Count(100)]);
    let pipeline: Vec<Command<'_>> = one_by_one.chunks(1).map(|queues| Command::Drop { queues }).collect();
    let dropped = execute(&engine, &pipeline).0;
    assert_eq!(dropped.list, [const { Reply::Count(1) }; 100]);
    let held = engine.held();
    assert!((1..=RELEASED_MAX).contains(&held.released), "{held:?}");
    engine.close().unwrap();
}

/// A pop that names the maximum of queues, and whose payloads are all on disk.
#[test]
fn a_cold_pop_over_very_many_queues_goes_through_its_reply_once() {
    const COUNT: usize = 50_000;
    let (disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
    let engine = open(&disk, &clock, 0);
    let names: Vec<String> = (0..limits::POP_QUEUES_MAX).map(|n| format!("queue {n}")).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let batch = vec![&b"a payload"[..]; COUNT.div_ceil(names.len())];
    let pushes: Vec<Command<'_>> =
        names.iter().map(|queue| Command::Push { queue, payloads: &batch }).collect();
    let _ = execute(&engine, &pushes);
    engine.close().unwrap();

    let engine = open(&disk, &clock, 0);
    let pop = Command::Pop(Pop::plain(&names, COUNT as u32));
    let watch = MachineWatch::start();
    let since = Instant::now();
    let mut replies = Replies::default();
    let executed = engine.submit(&[pop], &mut replies);
    let took = since.elapsed();
    engine.commit();
    let answer = executed.into_ticket().expect("no payload is in memory").wait();
    assert_eq!(answer.replies.tasks.len(), COUNT, "{:?}", answer.replies.list);
    // In a debug build too: a second pass over the reply for each queue takes some seconds.
    watch.assert_within(took, Duration::from_secs(1), "the pop, under the lock");

    let more: Vec<&[u8]> = names.iter().copied().chain([&b"one more"[..]]).collect();
    let (replies, _) = execute(&engine, &[Command::Pop(Pop::plain(&more, COUNT as u32))]);
    assert!(matches!(replies.list[..], [Reply::Refused(Refusal::TooMany { .. })]), "{:?}", replies.list);
    engine.close().unwrap();
}
