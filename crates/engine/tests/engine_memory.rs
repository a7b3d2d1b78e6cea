//! The memory limit: above it no command adds a record, and all commands that reduce memory still work.

mod engine_support;

use std::sync::Arc;

use engine_support::execute;
use sureq_core::command::{Pop, Worker, WorkerRef};
use sureq_core::settings::{Change, Changes};
use sureq_core::{Command, Refusal, Replies, Reply};
use sureq_engine::{Engine, Options};
use sureq_home_api::{Home as _, Payload};
use sureq_testkit::manual_clock::ManualClock;

const MAX: u64 = 4 << 20;

/// Workers may take a sixteenth more than the limit, and the last record may go a little beyond.
const BOUND: u64 = MAX + MAX / 8;

const LONG_MS: u64 = 100_000_000;

fn in_memory() -> Engine {
    let options = Options { memory_bytes_max: Some(MAX), ..Options::default() };
    Engine::in_memory_by(Arc::new(ManualClock::default()), &options)
}

fn run(engine: &Engine, command: Command<'_>) -> Reply {
    execute(engine, &[command]).0.list.remove(0)
}

const fn config<'a>(queue: &'a [u8], changes: &'a [Change<'a>]) -> Command<'a> {
    Command::Config { queue, changes: Changes::List(changes) }
}

const fn start(name: &[u8]) -> Command<'_> {
    Command::Worker(Worker::Start { name, ttl_ms: LONG_MS })
}

fn incarnation_of(reply: &Reply) -> u64 {
    match reply {
        Reply::Started(incarnation) => *incarnation,
        other => panic!("{other:?}"),
    }
}

fn is_out_of_memory(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(Refusal::OutOfMemory))
}

/// Pushes until the limit is reached.
fn fill(engine: &Engine) {
    let payload = [b'x'; 1_000];
    while !is_out_of_memory(&run(engine, Command::Push { queue: b"q", payloads: &[&payload] })) {}
}

/// Commands that would add a record are refused, and change nothing.
fn assert_refused(engine: &Engine, command: Command<'_>) {
    let before = engine.inspect(sureq_core::Broker::digest);
    let reply = run(engine, command);
    assert!(is_out_of_memory(&reply), "{command:?}: {reply:?}");
    assert_eq!(engine.inspect(sureq_core::Broker::digest), before, "{command:?}");
}

fn assert_accepted(engine: &Engine, command: Command<'_>) -> Reply {
    let reply = run(engine, command);
    assert!(!matches!(reply, Reply::Refused(_)), "{command:?}: {reply:?}");
    reply
}

#[test]
fn settings_and_pauses_of_new_queues_do_not_exceed_the_memory_limit() {
    let engine = in_memory();
    for n in 0..10_000 {
        let name = format!("queue {n}");
        let lease = [Change::LeaseMs(1_000)];
        let commands = [config(name.as_bytes(), &lease), Command::Pause { queue: name.as_bytes() }];
        let _ = run(&engine, commands[n % 2]);
    }
    assert!(engine.status().memory_bytes <= BOUND, "{}", engine.status().memory_bytes);
    assert_refused(&engine, config(b"one more", &[Change::LeaseMs(1_000)]));
    assert_refused(&engine, Command::Pause { queue: b"one more" });
    engine.close().unwrap();
}

#[test]
fn workers_and_the_queues_they_work_on_do_not_exceed_the_memory_limit() {
    let engine = in_memory();
    let incarnation = incarnation_of(&run(&engine, start(b"w")));
    let worker = WorkerRef { name: b"w", incarnation };
    for n in 0..5_000 {
        let _ = run(&engine, start(format!("{n:0900}").as_bytes()));
        let _ = run(&engine, Command::Worker(Worker::Work(worker, format!("queue {n}").as_bytes())));
    }
    assert!(engine.status().memory_bytes <= BOUND, "{}", engine.status().memory_bytes);
    assert_refused(&engine, start(b"one more"));
    assert_refused(&engine, Command::Worker(Worker::Work(worker, b"one more")));
    engine.close().unwrap();
}

#[test]
fn workers_can_start_and_a_backlog_can_be_worked_off_at_the_memory_limit() {
    let engine = in_memory();
    let incarnation = incarnation_of(&run(&engine, start(b"w")));
    let _ = run(&engine, config(b"known", &[Change::LeaseMs(1_000)]));
    fill(&engine);

    let old = WorkerRef { name: b"w", incarnation };
    assert_accepted(&engine, Command::Worker(Worker::Work(old, b"known")));
    let incarnation = incarnation_of(&assert_accepted(&engine, start(b"w")));
    let again = WorkerRef { name: b"w", incarnation };
    let incarnation = incarnation_of(&assert_accepted(&engine, start(b"another")));
    let another = WorkerRef { name: b"another", incarnation };
    let gone = run(&engine, Command::Worker(Worker::Work(old, b"new queue")));
    assert!(matches!(gone, Reply::Refused(Refusal::WorkerReplaced)), "{gone:?}");
    assert_refused(&engine, Command::Worker(Worker::Work(again, b"new queue")));
    let workers = [
        Worker::Beat(again),
        Worker::Work(again, b"q"),
        Worker::Work(again, b"q"),
        Worker::Rest(again, b"q"),
        Worker::Stop(again),
        Worker::Fail { name: b"another" },
    ];
    for worker in workers {
        assert_accepted(&engine, Command::Worker(worker));
    }
    let gone = run(&engine, Command::Worker(Worker::Beat(another)));
    assert!(matches!(gone, Reply::Refused(Refusal::WorkerGone)), "{gone:?}");

    let (lease, clear) = ([Change::LeaseMs(2_000)], [Change::LeaseMs(0)]);
    let commands = [
        config(b"known", &lease),
        Command::Pause { queue: b"known" },
        Command::Resume { queue: b"known" },
        config(b"known", &clear),
        // Commands without an effect need no memory.
        config(b"new queue", &[]),
        Command::Resume { queue: b"new queue" },
    ];
    for command in commands {
        assert_accepted(&engine, command);
    }

    let tasks = execute(&engine, &[Command::Pop(Pop::plain(&[b"q"], 10))]).0.tasks;
    let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
    assert_eq!(engine_support::ack(&engine, &ids), 10);
    assert_accepted(&engine, Command::Drop { queues: &[b"q"] });
    assert_accepted(&engine, config(b"new queue", &lease));
    engine.close().unwrap();
}

#[test]
fn replies_at_the_memory_limit_keep_the_order_of_their_commands() {
    let engine = in_memory();
    let _ = run(&engine, config(b"known", &[Change::LeaseMs(1_000)]));
    fill(&engine);
    let lease = [Change::LeaseMs(2_000)];
    let mut replies = Replies::<Payload>::default();
    let commands = [
        config(b"new queue", &lease),
        Command::Info { queue: b"q" },
        Command::Pause { queue: b"new queue" },
        config(b"known", &lease),
        Command::Push { queue: b"q", payloads: &[b"x"] },
        Command::Exists { queues: &[b"q", b"new queue"] },
    ];
    let executed = engine.execute(&commands, &mut replies);
    assert_eq!(executed.executed, commands.len());
    let is_expected = matches!(
        &replies.list[..],
        [
            Reply::Refused(Refusal::OutOfMemory),
            Reply::Info(_),
            Reply::Refused(Refusal::OutOfMemory),
            Reply::Settings(_),
            Reply::Refused(Refusal::OutOfMemory),
            Reply::Count(1),
        ]
    );
    assert!(is_expected, "{:?}", replies.list);
    engine.close().unwrap();
}
