//! A key of another type among sureq's own: a command that needs it is refused with `WRONGTYPE`, which names the key,
//! and has changed nothing. Other commands and other queues are not affected.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use redis::{Connection, cmd};
use support::{answer, info, open, pop, push, run, until, wait_for};
use sureq_core::command::{
    AckScope, Add, Cancel, Command, ConnId, IdForm, LeaseAsk, NameArg, Pop, Return, TaskRef, TaskRefs, View,
    When, Worker, WorkerRef,
};
use sureq_core::settings::{Change, Changes, Expired};
use sureq_core::{Refusal, Reply, WallTime};
use sureq_home_api::Home as _;
use sureq_redis::RedisHome;
use sureq_testkit::redis_server::RedisServer;

const LONG_MS: u64 = 600_000;
const Q: &[u8] = b"jobs";

/// The ids of tasks in each state.
struct Ids {
    leased: String,
    held: String,
    dead: String,
    ready: String,
    incarnation: u64,
}

/// Creates tasks in all states, so that all keys exist.
fn set_up(home: &RedisHome) -> Ids {
    let start = run(home, &Command::Worker(Worker::Start { name: b"w", ttl_ms: LONG_MS }));
    let Reply::Started(incarnation) = start.list[0] else { panic!("{:?}", start.list) };
    let worker = WorkerRef { name: b"w", incarnation };
    run(home, &Command::Worker(Worker::Work(worker, Q)));
    push(home, Q, b"dead");
    let dead = pop(home, Q, 1).expect("a pop").remove(0).1;
    let task = TaskRef { bytes: dead.as_bytes(), form: IdForm::Long };
    run(home, &Command::Return(Return { queue: Q, task, to: None, failed: Some(b"why"), is_last: true }));
    let take = |lease| run(home, &Command::Pop(Pop { lease, ..Pop::plain(&[Q], 1) })).tasks[0].id.to_string();
    push(home, Q, b"leased");
    let leased = take(LeaseAsk { ms: Some(LONG_MS), ..LeaseAsk::NONE });
    push(home, Q, b"held");
    let held = take(LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE });
    let named = Add { name: Some(NameArg::Bytes(b"n")), ttl_ms: Some(LONG_MS), ..Add::plain(Q, b"named") };
    run(home, &Command::Add(named));
    run(home, &Command::Add(Add { when: When::After(LONG_MS), ..Add::plain(Q, b"delayed") }));
    let at = When::At(WallTime(home.now().wall.0 + LONG_MS));
    run(home, &Command::Add(Add { when: at, ..Add::plain(Q, b"appointed") }));
    // Two reports for the worker: one task was cancelled, and the lease of another has ended.
    push(home, Q, b"cancelled");
    let cancelled = take(LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE });
    let tasks = TaskRefs { list: &[cancelled.as_bytes()], form: IdForm::Long };
    run(home, &Command::Cancel { queue: Q, which: Cancel::Ids(tasks) });
    push(home, b"lapses", b"x");
    let lease = LeaseAsk { worker: Some(worker), ms: Some(1), ..LeaseAsk::NONE };
    run(home, &Command::Pop(Pop { lease, ..Pop::plain(&[b"lapses"], 1) }));
    until("the lease has ended", || info(home, b"lapses").ready == 1);
    push(home, Q, b"conn");
    take(LeaseAsk { conn: Some(ConnId(7)), ..LeaseAsk::NONE });
    push(home, Q, b"ready");
    let shown = run(home, &Command::Inspect { queue: Q, view: View::Ready, start: -1, count: 1 });
    let ready = shown.tasks[0].id.to_string();
    // The dead tasks of this queue move to `q`, which therefore has a set of sources.
    let settings = [Change::TtlMs(LONG_MS), Change::Expired(Expired::Dead), Change::DeadLetter(Q)];
    run(home, &Command::Config { queue: b"source", changes: Changes::List(&settings) });
    push(home, b"source", b"x");
    Ids { leased, held, dead, ready, incarnation }
}

/// The content of each key in a canonical order: the order of a hash table may change when it is only read.
const CONTENTS: &str = "
    local out = {}
    local function sorted(list)
        table.sort(list)
        return list
    end
    for i, key in ipairs(redis.call('KEYS', '*')) do
        local kind, list = redis.call('TYPE', key).ok, nil
        if kind == 'hash' then
            list = {}
            local all = redis.call('HGETALL', key)
            for n = 1, #all, 2 do list[#list + 1] = all[n] .. '=' .. all[n + 1] end
            sorted(list)
        elseif kind == 'set' then
            list = sorted(redis.call('SMEMBERS', key))
        elseif kind == 'zset' then
            list = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
        elseif kind == 'list' then
            list = redis.call('LRANGE', key, 0, -1)
        else
            list = { redis.call('GET', key) }
        end
        out[i] = { key, kind .. ' ' .. table.concat(list, ' ') }
    end
    return out";

fn contents(raw: &mut Connection) -> BTreeMap<String, Vec<u8>> {
    let rows: Vec<(String, Vec<u8>)> = cmd("EVAL").arg(CONTENTS).arg(0).query(raw).expect("Redis answers");
    rows.into_iter().collect()
}

/// All keys, in a form that can be restored.
fn dump(raw: &mut Connection) -> BTreeMap<String, Vec<u8>> {
    let keys: Vec<String> = cmd("KEYS").arg("*").query(raw).expect("Redis answers");
    let value = |key: &String| cmd("DUMP").arg(key).query(&mut *raw).expect("Redis answers");
    keys.iter()
        .map(value)
        .collect::<Vec<Vec<u8>>>()
        .into_iter()
        .zip(&keys)
        .map(|(value, key)| (key.clone(), value))
        .collect()
}

fn restore(raw: &mut Connection, all: &BTreeMap<String, Vec<u8>>, wrong: &str, becomes: &[&str]) {
    let mut commands = redis::pipe();
    commands.atomic().cmd("FLUSHALL");
    for (key, value) in all.iter().filter(|(key, _)| *key != wrong) {
        commands.cmd("RESTORE").arg(key).arg(0).arg(value);
    }
    commands.cmd(becomes[0]).arg(wrong).arg(&becomes[1..]);
    commands.exec(raw).expect("Redis answers");
}

/// Every command about the queue or its worker, with a name.
fn commands(ids: &Ids, check: &mut dyn FnMut(&str, Command<'_>)) {
    let worker = WorkerRef { name: b"w", incarnation: ids.incarnation };
    let as_worker = LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE };
    let timed = LeaseAsk { ms: Some(LONG_MS), ..LeaseAsk::NONE };
    let one = |id| TaskRef { bytes: <str>::as_bytes(id), form: IdForm::Long };
    let many = |list| TaskRefs { list, form: IdForm::Long };
    let (leased, held): ([&[u8]; 1], [&[u8]; 1]) = ([ids.leased.as_bytes()], [ids.held.as_bytes()]);
    let (dead, ready): ([&[u8]; 1], [&[u8]; 1]) = ([ids.dead.as_bytes()], [ids.ready.as_bytes()]);
    let ack = |tasks| Command::Ack { queue: Q, tasks, scope: AckScope::LeasedOrLapsed };
    let back = Return { queue: Q, task: one(&ids.leased), to: None, failed: None, is_last: false };
    check("push", Command::Push { queue: Q, payloads: &[b"one", b"two"] });
    check("add", Command::Add(Add::plain(Q, b"x")));
    check("add name", Command::Add(Add { name: Some(NameArg::Bytes(b"m")), ..Add::plain(Q, b"x") }));
    check("add ttl", Command::Add(Add { ttl_ms: Some(LONG_MS), ..Add::plain(Q, b"x") }));
    check("add delay", Command::Add(Add { when: When::After(LONG_MS), ..Add::plain(Q, b"x") }));
    check("pop", Command::Pop(Pop::plain(&[Q], 9)));
    check("pop lease", Command::Pop(Pop { lease: timed, ..Pop::plain(&[Q], 9) }));
    check("pop worker", Command::Pop(Pop { lease: as_worker, ..Pop::plain(&[Q], 9) }));
    check("ack", ack(many(&leased)));
    check("ack held", ack(many(&held)));
    check("extend", Command::Extend { queue: Q, task: one(&ids.leased), ms: LONG_MS });
    check("return", Command::Return(back));
    check("fail", Command::Return(Return { task: one(&ids.held), failed: Some(b"why"), ..back }));
    check("recover", Command::Recover { queue: Q, count: 9, elapsed_ms: 0 });
    for view in [View::Ready, View::Leased, View::Delayed, View::Dead] {
        check("inspect", Command::Inspect { queue: Q, view, start: 0, count: 9 });
    }
    check("info", Command::Info { queue: Q });
    check("cancel", Command::Cancel { queue: Q, which: Cancel::Ids(many(&ready)) });
    check("cancel name", Command::Cancel { queue: Q, which: Cancel::Names(&[b"n"]) });
    check("cancel payload", Command::Cancel { queue: Q, which: Cancel::Payload(b"ready") });
    check("bury", Command::Bury { queue: Q, tasks: many(&ready) });
    check("revive", Command::Revive { queue: Q, tasks: Some(many(&dead)) });
    check("revive all", Command::Revive { queue: Q, tasks: None });
    check("delete", Command::Delete { queue: Q, tasks: many(&ready) });
    check("purge", Command::Purge { queue: Q, state: None });
    check("drop", Command::Drop { queues: &[b"source", Q] });
    check("exists", Command::Exists { queues: &[Q] });
    check("pause", Command::Pause { queue: Q });
    check("resume", Command::Resume { queue: Q });
    check("config", Command::Config { queue: Q, changes: Changes::List(&[Change::Tries(3)]) });
    check("explain", Command::Explain { queue: Q, task: one(&ids.ready) });
    check("size", Command::Size);
    check("queues", Command::Queues { pattern: None, cursor: 0, count: 9 });
    check("start", Command::Worker(Worker::Start { name: b"w", ttl_ms: LONG_MS }));
    check("beat", Command::Worker(Worker::Beat(worker)));
    check("work", Command::Worker(Worker::Work(worker, Q)));
    check("rest", Command::Worker(Worker::Rest(worker, Q)));
    check("stop", Command::Worker(Worker::Stop(worker)));
    check("fail worker", Command::Worker(Worker::Fail { name: b"w" }));
    check("list", Command::Worker(Worker::List));
}

/// The commands that must be refused, since they need the key.
const NEEDED: [(&str, &[&str]); 9] = [
    ("sureq:q:{jobs}:state", &["push", "add", "pop", "ack", "extend", "return", "info", "config"]),
    ("sureq:q:{jobs}:body", &["push", "add", "pop", "ack", "return", "purge", "exists"]),
    ("sureq:q:{jobs}:task", &["add", "pop", "ack", "extend", "return", "bury"]),
    ("sureq:q:{jobs}:ready", &["push", "add", "pop", "pop worker", "return", "info", "purge", "queues"]),
    ("sureq:q:{jobs}:leased", &["pop", "ack", "return", "recover", "info"]),
    ("sureq:q:{jobs}:ends", &["pop lease", "ack", "extend", "return"]),
    ("sureq:q:{jobs}:names", &["add name", "cancel name"]),
    ("sureq:queues", &["size", "queues"]),
    ("sureq:workers", &["pop worker", "start", "beat", "work", "rest", "stop", "fail worker", "list"]),
];

fn check_all(server: &RedisServer) {
    let home = open(&server.url());
    let ids = set_up(&home);
    let mut raw = server.connect();
    // Restored keys must not expire because of their age.
    let homes: Vec<String> =
        cmd("ZRANGE").arg(&["sureq:homes", "0", "-1"]).query(&mut raw).expect("it answers");
    cmd("ZADD").arg(&["sureq:homes", "1e15", &homes[0]]).exec(&mut raw).expect("it answers");
    let all = dump(&mut raw);
    let mut refused = BTreeSet::new();
    for key in all.keys() {
        let kind: String = cmd("TYPE").arg(key).query(&mut raw).expect("Redis answers");
        // A packed value is a string too: any other string is foreign.
        let other: &[&str] = if kind == "set" { &["ZADD", "1", "odd"] } else { &["SADD", "odd"] };
        for becomes in [&["SET", "odd"], other] {
            commands(&ids, &mut |name, command| {
                let place = format!("{key} by {becomes:?}: {name}");
                restore(&mut raw, &all, key, becomes);
                let mut before = contents(&mut raw);
                let reply = run(&home, &command).list.remove(0);
                let Reply::Refused(no) = reply else { return };
                match &no {
                    Refusal::WrongType { words } => {
                        assert!(words.ends_with(&format!(": {key}")), "{place}: {words}");
                    }
                    other => panic!("{place}: {other:?}"),
                }
                let mut after = contents(&mut raw);
                // Every command may update the clock, and the home may send a heartbeat at any time.
                for own in ["sureq:store", "sureq:homes"].into_iter().filter(|own| own != key) {
                    before.remove(own);
                    after.remove(own);
                }
                let all: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
                let changed: Vec<_> =
                    all.into_iter().filter(|own| before.get(*own) != after.get(*own)).collect();
                assert!(changed.is_empty(), "{place}: it changed {changed:?}");
                refused.insert((key.clone(), name.to_owned()));
            });
            restore(&mut raw, &all, key, becomes);
        }
    }
    for (key, names) in NEEDED {
        for name in names {
            assert!(
                refused.contains(&(key.to_owned(), (*name).to_owned())),
                "{name} with {key} of another type was done"
            );
        }
    }
    home.close();
}

#[test]
fn every_command_in_functions() {
    check_all(&RedisServer::start());
}

#[test]
fn every_command_in_scripts() {
    let server = RedisServer::start();
    cmd("ACL").arg(&["SETUSER", "default", "-function"]).exec(&mut server.connect()).expect("it answers");
    check_all(&server);
}

/// One queue has a foreign key. A worker is lost that held tasks in it: its tasks in other queues are requeued, every
/// other command works, and its tasks in this queue are requeued when the key is gone.
#[test]
fn a_lost_worker_with_a_bad_key_does_not_disturb_others() {
    let server = RedisServer::start();
    let (home, other) = (open(&server.url()), open(&server.url()));
    let start = run(&home, &Command::Worker(Worker::Start { name: b"w", ttl_ms: 2_000 }));
    let Reply::Started(incarnation) = start.list[0] else { panic!("{:?}", start.list) };
    let lease = LeaseAsk { worker: Some(WorkerRef { name: b"w", incarnation }), ..LeaseAsk::NONE };
    push(&home, b"odd", b"x");
    assert_eq!(run(&home, &Command::Pop(Pop { lease, ..Pop::plain(&[b"odd"], 1) })).tasks.len(), 1);
    let mut raw = server.connect();
    cmd("SET").arg("sureq:q:{odd}:ready").arg("odd").exec(&mut raw).expect("it answers");
    until("the worker is lost", || {
        let take = Command::Pop(Pop { lease, ..Pop::plain(&[b"none"], 1) });
        matches!(run(&home, &take).list[0], Reply::Refused(Refusal::WorkerGone))
    });
    let waiting = wait_for(&other, b"sound");
    until("it waits", || other.waiters() == 1);
    other.look();
    push(&home, b"sound", b"y");
    assert_eq!(answer(&waiting).tasks.len(), 1);
    assert!(matches!(pop(&home, b"odd", 1), Err(Reply::Refused(Refusal::WrongType { .. }))));
    cmd("DEL").arg("sureq:q:{odd}:ready").exec(&mut raw).expect("it answers");
    until("the task is requeued", || pop(&home, b"odd", 1).expect("a pop").len() == 1);
    server.check("sureq:");
    home.close();
    other.close();
}
