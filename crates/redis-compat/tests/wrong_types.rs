//! Keys of another type, in the layouts of other programs: each command that needs one is refused with `WRONGTYPE`,
//! which names the key, and writes nothing.

#[path = "support/mod.rs"]
mod common;

use std::collections::BTreeMap;

use redis::Connection;
use sureq_core::command::{
    AckScope, Add, Block, Cancel, Command, IdForm, LeaseAsk, NameArg, Pop, Return, TaskRef, TaskRefs, View,
    Worker, WorkerRef,
};
use sureq_core::{Refusal, Reply};
use sureq_home_api::{Cleaning, Home as _};
use sureq_redis::RedisHome;
use sureq_testkit::redis_server::RedisServer;

use common::shop::{QUEUE, Shop, answer, open_home};
use common::{clean, run};

/// A command with a name for messages.
type Named = (&'static str, Command<'static>);

/// A key, the type that it should have, and the commands that need it.
type Key = (&'static str, Holds, &'static [&'static str]);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Text,
    Other,
}
use Holds::{Other, Text};

struct Case {
    layout: &'static str,
    /// The commands that create the keys.
    setup: &'static [&'static str],
    commands: Vec<Named>,
    keys: &'static [Key],
}

const fn refs(list: &'static [&'static [u8]]) -> TaskRefs<'static> {
    TaskRefs { list, form: IdForm::Long }
}

fn ack(list: &'static [&'static [u8]]) -> Command<'static> {
    Command::Ack { queue: QUEUE, tasks: refs(list), scope: AckScope::LeasedOrLapsed }
}

fn return_task(id: &'static str) -> Command<'static> {
    let task = TaskRef { bytes: id.as_bytes(), form: IdForm::Long };
    Command::Return(Return { queue: QUEUE, task, to: None, failed: None, is_last: false })
}

fn extend(id: &'static str) -> Command<'static> {
    Command::Extend { queue: QUEUE, task: TaskRef { bytes: id.as_bytes(), form: IdForm::Long }, ms: 5_000 }
}

fn named(id: &'static str, payload: &'static str) -> Command<'static> {
    let name = Some(NameArg::Bytes(id.as_bytes()));
    Command::Add(Add { name, ..Add::plain(QUEUE, payload.as_bytes()) })
}

fn inspect(view: View) -> Command<'static> {
    Command::Inspect { queue: QUEUE, view, start: 0, count: 10 }
}

/// The commands that are the same in all layouts.
fn shared_commands() -> Vec<Named> {
    vec![
        ("push", Command::Push { queue: QUEUE, payloads: &[b"one", b"two"] }),
        ("info", Command::Info { queue: QUEUE }),
        ("inspect", inspect(View::Ready)),
        ("pending", inspect(View::Leased)),
        ("exists", Command::Exists { queues: &[QUEUE] }),
        ("drop", Command::Drop { queues: &[QUEUE] }),
    ]
}

fn work_queue() -> Case {
    let mut commands = shared_commands();
    commands.extend([
        ("add a", named("a", "x")),
        ("add c", named("c", "x")),
        ("pop", Command::Pop(Pop::plain(&[QUEUE], 1))),
        ("ack", ack(&[b"other", b"b"])),
        ("extend", extend("b")),
        ("return", return_task("b")),
        ("cancel a", Command::Cancel { queue: QUEUE, which: Cancel::Ids(refs(&[b"other", b"a"])) }),
        ("cancel b", Command::Cancel { queue: QUEUE, which: Cancel::Names(&[b"b"]) }),
    ]);
    Case {
        layout: "work-queue",
        setup: &[
            "SET jobs:item:a x",
            "LPUSH jobs:queue a",
            "SET jobs:item:b y",
            "LPUSH jobs:processing b",
            "SET jobs:lease:b them PX 600000",
        ],
        commands,
        keys: &[
            ("jobs:queue", Other, ALL),
            (
                "jobs:processing",
                Other,
                &[
                    "info", "inspect", "pending", "exists", "drop", "pop", "ack", "extend", "return",
                    "cancel a", "cancel b",
                ],
            ),
            ("jobs:item:a", Text, &["add a", "pop", "cancel a", "info", "inspect", "drop"]),
            ("jobs:lease:a", Text, &["add a", "pop", "cancel a", "info", "drop"]),
            ("jobs:item:b", Text, &["ack", "extend", "return", "cancel b", "pending", "drop"]),
            ("jobs:lease:b", Text, &["ack", "extend", "return", "cancel b", "drop"]),
        ],
    }
}

fn redis_queue() -> Case {
    let mut commands = shared_commands();
    commands.extend([
        ("add c", named("c", "")),
        ("pop", Command::Pop(Pop::plain(&[QUEUE], 1))),
        ("ack", ack(&[b"other", b"b"])),
        ("return", return_task("b")),
        ("cancel a", Command::Cancel { queue: QUEUE, which: Cancel::Ids(refs(&[b"other", b"a"])) }),
    ]);
    Case {
        layout: "redis-queue",
        setup: &[
            "LPUSH jobs a",
            // Taken, and late in the year 2286.
            "LPUSH jobs b|9999999999",
            "SET jobs:data:a x",
            "SET jobs:data:b y",
            "SADD jobs:done z",
        ],
        commands,
        keys: &[
            ("jobs", Other, ALL),
            ("jobs:done", Other, ALL),
            ("jobs:data:a", Text, &["pop", "cancel a", "inspect", "drop"]),
            ("jobs:data:b", Text, &["ack", "return", "pending", "drop"]),
            ("jobs:data:c", Text, &["add c"]),
        ],
    }
}

/// Commands in the keys of Worqr that need the keys of a queue, a process, a worker, or all workers.
const OF_QUEUE: &[&str] = &[
    "push", "info", "inspect", "pending", "exists", "drop", "unique", "pop", "return", "cancel", "purge",
    "start", "beat", "work", "rest", "stop", "fail",
];
const OF_WORKED_ON: &[&str] = &[
    "info", "inspect", "pending", "exists", "drop", "pop", "ack", "return", "cancel", "purge", "start",
    "beat", "work", "rest", "stop", "fail",
];
const OF_PROCESS: &[&str] = &[
    "pending", "drop", "ack", "extend", "return", "cancel", "start", "beat", "work", "rest", "stop", "fail",
];
const OF_WORKER: &[&str] = &["start", "beat", "work", "rest", "stop", "fail"];
const OF_WORKERS: &[&str] = &["start", "beat", "work", "rest", "stop", "fail", "list"];

fn worqr() -> Case {
    const W: WorkerRef<'_> = WorkerRef { name: b"w", incarnation: 0 };
    let lease = LeaseAsk { worker: Some(W), ..LeaseAsk::NONE };
    let mut commands = shared_commands();
    commands.extend([
        ("unique", Command::Add(Add { name: Some(NameArg::Payload), ..Add::plain(QUEUE, b"held") })),
        ("pop", Command::Pop(Pop { lease, ..Pop::plain(&[QUEUE], 1) })),
        ("ack", ack(&[b"jobs_0", b"jobs_1"])),
        ("extend", extend("jobs_1")),
        ("return", return_task("jobs_1")),
        ("cancel", Command::Cancel { queue: QUEUE, which: Cancel::Payload(b"held") }),
        ("purge", Command::Purge { queue: QUEUE, state: None }),
        ("start", Command::Worker(Worker::Start { name: b"w", ttl_ms: 1_000 })),
        ("beat", Command::Worker(Worker::Beat(W))),
        ("work", Command::Worker(Worker::Work(W, QUEUE))),
        ("rest", Command::Worker(Worker::Rest(W, QUEUE))),
        ("stop", Command::Worker(Worker::Stop(W))),
        ("fail", Command::Worker(Worker::Fail { name: b"w" })),
        ("list", Command::Worker(Worker::List)),
    ]);
    Case {
        layout: "worqr",
        setup: &[
            "LPUSH worqr:queues:jobs waits",
            "LPUSH worqr:processes:jobs_1 held",
            "SADD worqr:workingProcesses:jobs jobs_1",
            "SADD worqr:workers w p",
            "SADD worqr:expiringWorkers w",
            "SADD worqr:permanentWorkers p",
            "SET worqr:workerTimers:w RUN",
            "SADD worqr:workingQueues:w jobs",
            "SET worqr:uniqueTasks:0eb29f5d6149e84750bcd6f6e741a7a1 x",
            "HSET worqr:sureq:workers w 600000",
            "ZADD worqr:sureq:held:w 1 jobs_1",
            "HSET worqr:sureq:holders jobs_1 w",
            "SADD worqr:sureq:cancelled other_1",
        ],
        commands,
        keys: &[
            ("worqr:queues:jobs", Other, OF_QUEUE),
            ("worqr:workingProcesses:jobs", Other, OF_WORKED_ON),
            ("worqr:processes:jobs_1", Other, OF_PROCESS),
            ("worqr:workers", Other, OF_WORKERS),
            ("worqr:expiringWorkers", Other, OF_WORKERS),
            ("worqr:permanentWorkers", Other, OF_WORKERS),
            ("worqr:workerTimers:w", Text, &["pop", "start", "beat", "work", "rest", "stop", "fail"]),
            ("worqr:workingQueues:w", Other, &["pop", "start", "beat", "work", "rest", "stop", "fail"]),
            (MARK, Text, &["unique", "ack", "cancel"]),
            (TOLD, Text, &["cancel"]),
            ("worqr:sureq:workers", Other, &["pop", "start", "beat", "work", "rest", "stop", "fail", "list"]),
            (
                "worqr:sureq:held:w",
                Other,
                &[
                    "pop", "ack", "return", "cancel", "drop", "start", "beat", "work", "rest", "stop",
                    "fail", "list",
                ],
            ),
            (
                "worqr:sureq:holders",
                Other,
                &["pop", "ack", "return", "cancel", "drop", "start", "beat", "work", "rest", "stop", "fail"],
            ),
            ("worqr:sureq:cancelled", Other, OF_WORKER),
            ("worqr:sureq:cancelled", Other, &["ack", "extend", "return", "cancel", "drop"]),
        ],
    }
}

/// With the MD5 of the held payload.
const MARK: &str = "worqr:uniqueTasks:0eb29f5d6149e84750bcd6f6e741a7a1";
const TOLD: &str = "worqr:sureq:told:0eb29f5d6149e84750bcd6f6e741a7a1:jobs";

/// Every command.
const ALL: &[&str] = &[];

fn concerns(key: &Key, command: &str) -> bool {
    key.2 == ALL || key.2.contains(&command)
}

fn words(line: &str) -> redis::Cmd {
    let mut parts = line.split(' ');
    let mut command = redis::cmd(parts.next().expect("a line has words"));
    parts.for_each(|part| _ = command.arg(part));
    command
}

/// Creates everything again, with one key of another type, in one step: homes clean in the background.
fn make(raw: &mut Connection, setup: &[&str], (key, holds, _): &Key) {
    let mut all = redis::pipe();
    all.atomic().add_command(words("FLUSHALL"));
    for line in setup {
        all.add_command(words(line));
    }
    let wrong = if *holds == Text { format!("RPUSH {key} odd") } else { format!("SET {key} odd") };
    all.add_command(words(&format!("DEL {key}"))).add_command(words(&wrong));
    all.exec(raw).expect("Redis answers");
}

/// All keys, except the record of the home that cleans.
fn dump(raw: &mut Connection) -> BTreeMap<String, Vec<u8>> {
    let keys: Vec<String> = words("KEYS *").query(raw).expect("Redis answers");
    let mut all = BTreeMap::new();
    for key in keys {
        if !key.ends_with("sureq:cleaning") {
            let value = redis::cmd("DUMP").arg(&key).query(raw).expect("Redis answers");
            all.insert(key, value);
        }
    }
    all
}

fn check_refused(no: &Refusal, key: &str, place: &str) {
    match no {
        Refusal::WrongType { words } => assert!(words.ends_with(&format!(": {key}")), "{place}: {words}"),
        other => panic!("{place}: {other:?}"),
    }
    assert_eq!(no.code(), "WRONGTYPE");
}

fn check_case(server: &RedisServer, case: &Case) {
    let home: RedisHome = open_home(server, &format!("layout={}", case.layout));
    let mut raw = server.connect();
    for key in case.keys {
        for (name, command) in &case.commands {
            let place = format!("{} with {} of another type: {name}", case.layout, key.0);
            make(&mut raw, case.setup, key);
            let before = dump(&mut raw);
            let reply = run(&home, command).list.remove(0);
            match reply {
                Reply::Refused(no) => {
                    check_refused(&no, key.0, &place);
                    assert_eq!(dump(&mut raw), before, "{place}");
                }
                other => assert!(!concerns(key, name), "{place}: {other:?}"),
            }
        }
    }
    home.close();
}

#[test]
fn every_command_in_the_keys_of_redis_work_queue() {
    check_case(&RedisServer::start(), &work_queue());
}

#[test]
fn every_command_in_the_keys_of_redis_queue() {
    check_case(&RedisServer::start(), &redis_queue());
}

#[test]
fn every_command_in_the_keys_of_worqr() {
    check_case(&RedisServer::start(), &worqr());
}

#[test]
fn every_command_in_the_keys_of_worqr_on_valkey() {
    check_case(&RedisServer::start_valkey(), &worqr());
}

/// Scripts instead of functions: their errors look different.
#[test]
fn every_command_without_the_right_to_load_functions() {
    let server = RedisServer::start();
    words("ACL SETUSER default -function").exec(&mut server.connect()).expect("Redis answers");
    for case in [work_queue(), redis_queue(), worqr()] {
        check_case(&server, &case);
    }
}

/// The queue with such a key is not cleaned, and all others are.
#[test]
fn cleaning_reports_the_bad_queue_and_continues() {
    let cases: [(&'static str, &[&str], &[&str], &str); 3] = [
        (
            "layout=work-queue",
            &["jobs:queue", "jobs:processing"],
            &["SET other:item:i x", "LPUSH other:processing i"],
            "other:queue",
        ),
        (
            "layout=worqr",
            &["worqr:queues:jobs", "worqr:workingProcesses:jobs"],
            &["LPUSH worqr:processes:other_1 x", "SADD worqr:workingProcesses:other other_1"],
            "worqr:queues:other",
        ),
        ("layout=redis-queue", &["jobs", "jobs:done"], &["SET other:data:i x"], "other"),
    ];
    for (options, keys, others, list) in cases {
        let mut shop = Shop::with(options);
        for key in keys {
            shop.raw::<()>("FLUSHALL");
            shop.raw::<()>(&format!("SET {key} odd"));
            for line in others {
                shop.raw::<redis::Value>(line);
            }
            let before = shop.raw::<Vec<u8>>(&format!("DUMP {key}"));
            let report =
                shop.home.clean(&[QUEUE, b"other"], Cleaning::Deep).expect("each queue has its outcome");
            for cleaned in report.queues {
                match (&cleaned.queue[..], cleaned.outcome) {
                    (QUEUE, Err(no)) => check_refused(&no, key, options),
                    (b"other", Ok(cleaned)) => assert_eq!(cleaned.returned, 1, "{options}: {key}"),
                    other => panic!("{options}: {other:?}"),
                }
            }
            assert_eq!(shop.raw::<Vec<u8>>(&format!("DUMP {key}")), before);
            assert_eq!(shop.raw::<i64>(&format!("LLEN {list}")), 1, "{options}: {key}");
        }
    }
}

/// A waiting pop moves an id before its item is read.
#[test]
fn a_refused_waiting_pop_moves_its_id_back() {
    let mut shop = Shop::with("layout=work-queue");
    let ticket = shop.wait(Block::Forever);
    shop.until_waiting(1);
    shop.raw::<()>("RPUSH jobs:item:a odd");
    shop.raw::<()>("LPUSH jobs:queue a");
    check_refused(&answer(ticket).expect_err("its item is a list"), "jobs:item:a", "a pop that waits");
    assert_eq!(shop.all("LRANGE jobs:queue 0 -1"), ["a"]);
    assert_eq!(shop.all("LRANGE jobs:processing 0 -1"), Vec::<String>::new());
}

/// Tasks that were taken before the pop reaches the bad key are delivered.
#[test]
fn a_pop_of_many_tasks_ends_before_a_key_of_another_type() {
    for (options, lines) in [
        ("layout=work-queue", ["SET jobs:item:a x", "RPUSH jobs:item:b odd", "LPUSH jobs:queue a b"]),
        ("layout=redis-queue", ["SET jobs:data:a x", "RPUSH jobs:data:b odd", "LPUSH jobs a b"]),
    ] {
        let mut shop = Shop::with(options);
        for line in lines {
            shop.raw::<redis::Value>(line);
        }
        let pop = Command::Pop(Pop::plain(&[QUEUE], 5));
        assert_eq!(shop.execute(pop).tasks.len(), 1, "{options}");
        assert!(shop.refusal(pop).starts_with("WRONGTYPE "), "{options}");
    }
}

/// Other keys cannot be recognized, and do not stop cleaning.
#[test]
fn cleaning_all_queues_skips_keys_that_only_look_like_queues() {
    for (options, line) in [
        ("layout=work-queue", "LPUSH jobs:item:a odd"),
        ("layout=redis-queue", "SET jobs:done odd"),
        ("layout=redis-queue", "LPUSH jobs:data:a odd"),
        ("layout=worqr", "SET worqr:processes:jobs_1 odd"),
    ] {
        let mut shop = Shop::with(options);
        shop.raw::<()>(line);
        assert!(clean(&shop.home, &[], Cleaning::Deep).is_ok(), "{options}: {line}");
    }
}
