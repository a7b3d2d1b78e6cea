//! Checkpoints of very many queues: their images are taken in slices while commands are executed, and still are
//! consistent. And commands about very many tasks let other commands run between two slices.

mod engine_support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use engine_support::facts::open_small;
use engine_support::{execute, fresh};
use sureq_core::command::{Add, Pop, View, When};
use sureq_core::{Command, Refusal, Replies, Reply, TaskId};
use sureq_engine::log::Durability;
use sureq_engine::{Engine, Options};
use sureq_home_api::Home as _;
use sureq_testkit::load::scale;
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::{Kept, SimDisk};

/// The number of queues, more than a few slices of an image.
const QUEUES: usize = 3_000;

fn name(n: usize) -> String {
    format!("queue-{}", n % QUEUES)
}

/// The queue and the state of each task, as confirmed.
type Tasks = BTreeMap<TaskId, (String, StateOf)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateOf {
    Ready,
    Leased,
}

/// One change of one queue. `n` determines the kind and the queue.
fn change(engine: &Engine, n: usize, tasks: &mut Tasks) {
    let queue = name(n * 7_919);
    let bytes = queue.as_bytes();
    match n % 5 {
        0..=2 => {
            let payload = format!("{queue} {n}");
            let payloads = [payload.as_bytes(), payload.as_bytes()];
            let (replies, _) = execute(engine, &[Command::Push { queue: bytes, payloads: &payloads }]);
            tasks.extend(replies.ids.iter().map(|&id| (id, (queue.clone(), StateOf::Ready))));
        }
        3 => {
            let (replies, _) = execute(engine, &[Command::Pop(Pop::plain(&[bytes], 1))]);
            for task in &replies.tasks {
                tasks.insert(task.id, (queue.clone(), StateOf::Leased));
            }
        }
        _ => {
            let _ = execute(engine, &[Command::Drop { queues: &[bytes] }]);
            tasks.retain(|_, (other, _)| *other != queue);
        }
    }
}

fn tasks_in(engine: &Engine) -> Tasks {
    let mut found = Tasks::new();
    for queue in (0..QUEUES).map(name) {
        for (view, state) in [(View::Ready, StateOf::Ready), (View::Leased, StateOf::Leased)] {
            let inspect = Command::Inspect { queue: queue.as_bytes(), view, start: 0, count: 1_000 };
            let mut replies = Replies::default();
            let _ = engine.execute(&[inspect], &mut replies);
            for task in &replies.tasks {
                let payload = String::from_utf8_lossy(task.body.as_ref()).into_owned();
                assert!(payload.starts_with(&format!("{queue} ")), "{payload:?} in {queue}");
                assert!(
                    found.insert(task.id, (queue.clone(), state)).is_none(),
                    "{} is there twice",
                    task.id
                );
            }
        }
    }
    found
}

#[test]
fn a_checkpoint_of_very_many_queues_is_consistent() {
    let (disk, clock) = (SimDisk::new(3), Arc::new(ManualClock::default()));
    let segment_bytes = 256 << 10;
    let engine = open_small(&disk.shared(), &clock, Durability::Always, segment_bytes);
    let mut tasks = Tasks::new();
    let (mut n, mut reopened) = (0, 0);
    while engine.status().checkpoints < 4 * scale() {
        change(&engine, n, &mut tasks);
        n += 1;
        // Now and then a crash, mostly while a checkpoint is being taken.
        if n.is_multiple_of(4_000) || n.is_multiple_of(300) && engine.status().is_checkpointing {
            let left = disk.crash(Kept::Nothing, Kept::Nothing);
            let other = open_small(
                &left.shared(),
                &Arc::new(ManualClock::default()),
                Durability::Always,
                segment_bytes,
            );
            other.check().unwrap_or_else(|broken| panic!("{broken}"));
            assert_eq!(tasks_in(&other), tasks, "after {n} changes");
            other.close().expect("a sound disk");
            reopened += 1;
        }
    }
    assert!(reopened > 2, "{reopened} crashes in {n} changes");
    engine.close().expect("a sound disk");
    let engine = open_small(&disk.shared(), &clock, Durability::Always, segment_bytes);
    assert_eq!(tasks_in(&engine), tasks);
    engine.close().expect("a sound disk");
}

/// A purge of 50,000 tasks that have records, while another thread pushes to its own queue.
#[test]
fn others_are_served_between_two_slices_of_a_purge() {
    let engine = Engine::in_memory(&Options::default());
    let mut replies = Replies::default();
    for _ in 0..50_000 {
        replies.clear();
        let _ = engine.execute(&[Command::Add(Add { priority: 1, ..Add::plain(b"q", b"x") })], &mut replies);
    }
    let (is_over, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
    let left_seen = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut seen = Vec::new();
            while !is_over.load(Ordering::Acquire) {
                let mut replies = Replies::default();
                let _ = engine.execute(&[Command::Info { queue: b"q" }], &mut replies);
                if let Some(Reply::Info(info)) = replies.list.first() {
                    seen.push(info.ready);
                    looks.fetch_add(1, Ordering::Release);
                }
            }
            seen
        });
        while looks.load(Ordering::Acquire) == 0 {}
        let (replies, _) = execute(&engine, &[Command::Purge { queue: b"q", state: None }]);
        assert!(matches!(replies.list[..], [Reply::Count(50_000)]), "{:?}", replies.list);
        is_over.store(true, Ordering::Release);
        other.join().expect("it only looks")
    });
    let partly = left_seen.iter().filter(|&&left| left > 0 && left < 50_000).count();
    assert!(partly > 0, "no look of {} saw a partial purge", left_seen.len());
    engine.close().expect("nothing is kept");
}

/// No pop waits, so no queue has to be looked at. A list of those that have become ready would grow with their number,
/// and the next command would go through all of it.
#[test]
fn queues_that_become_ready_are_not_listed_while_no_pop_waits() {
    let (disk, clock) = (SimDisk::new(5), Arc::new(ManualClock::default()));
    let open = || open_small(&disk.shared(), &clock, Durability::None, 1 << 20);
    let engine = open();
    let names: Vec<String> = (0..QUEUES).map(name).collect();
    let later = |name| Command::Add(Add { when: When::After(1_000), ..Add::plain(name, b"later") });
    let adds: Vec<Command<'_>> = names.iter().map(|name| later(name.as_bytes())).collect();
    let _ = execute(&engine, &adds);
    clock.pass(2_000);
    let now = engine.now();
    while engine.inspect(|broker| broker.next_deadline().is_due(now)) {
        engine.tick();
    }
    let queue = engine.inspect(|broker| broker.queue(names[7].as_bytes()).map(sureq_core::Queue::counts));
    assert_eq!(queue, Some([1, 0, 0, 0]));
    assert!(!engine.inspect(sureq_core::Broker::has_awake), "after they became ready");
    engine.close().expect("the disk works");
    let engine = open();
    assert!(!engine.inspect(sureq_core::Broker::has_awake), "after a restart");
    engine.close().expect("the disk works");
}

/// If the store closes between two slices of a command, the reply does not confirm it, unless it was executed
/// completely.
#[test]
fn a_purge_is_not_confirmed_if_the_store_closes_between_two_slices() {
    let (engine, _, _) = fresh();
    let mut replies = Replies::default();
    let add = Command::Add(Add { priority: 1, ..Add::plain(b"q", b"x") });
    for _ in 0..20_000 {
        replies.clear();
        let _ = engine.execute(&[add], &mut replies);
    }
    let other = engine.clone();
    let purging = std::thread::spawn(move || {
        let mut replies = Replies::default();
        let _ = other.execute(&[Command::Purge { queue: b"q", state: None }], &mut replies);
        replies.list
    });
    while engine.inspect(|broker| broker.queue(b"q").is_some_and(|queue| queue.len() == 20_000)) {}
    engine.close().expect("a sound disk");
    let replies = purging.join().expect("a purge does not panic");
    let left = engine.inspect(|broker| broker.queue(b"q").map_or(0, sureq_core::Queue::len));
    match &replies[..] {
        [Reply::Count(20_000)] => assert_eq!(left, 0),
        [Reply::Refused(Refusal::Unknown { .. })] => assert!(left < 20_000, "{left} left"),
        other => panic!("{other:?}, {left} left"),
    }
}
