//! A key of another type among those of a worker or a connection affects no other queue, no other holder, and nothing
//! else that is due.

mod support;

use redis::{Connection, cmd};
use support::monitor::Monitor;
use support::{ack, by, info, open, pop, pop_held_by, push, run, start, until};
use sureq_core::command::{
    AckScope, Cancel, Command, ConnId, IdForm, LeaseAsk, Pop, TaskRefs, Worker, WorkerRef,
};
use sureq_core::{Refusal, Reply};
use sureq_home_api::Home as _;
use sureq_redis::RedisHome;
use sureq_testkit::redis_server::RedisServer;

const LONG_MS: u64 = 600_000;

fn set(raw: &mut Connection, key: &str) {
    cmd("SET").arg(key).arg("odd").exec(raw).expect("it answers");
}

/// Takes tasks for a worker; returns their ids.
fn take(home: &RedisHome, worker: WorkerRef<'_>, queues: &[&[u8]], count: u32) -> Vec<String> {
    let taken = run(home, &Command::Pop(Pop { lease: by(worker), ..Pop::plain(queues, count) }));
    assert!(matches!(taken.list[0], Reply::Tasks(_)), "{:?}", taken.list);
    taken.tasks.iter().map(|task| task.id.to_string()).collect()
}

fn names_key(reply: &Reply, key: &str) -> bool {
    matches!(reply, Reply::Refused(Refusal::WrongType { words }) if words.ends_with(&format!(": {key}")))
}

/// For each key of a worker in turn: its tasks are requeued in all queues when it is lost.
#[test]
fn tasks_of_a_lost_worker_are_requeued_despite_keys_of_other_types() {
    for part in ["held", "off", "queues", "works", "lapsed"] {
        let server = RedisServer::start();
        let home = open(&server.url());
        let worker = start(&home, b"w", 1_000);
        for queue in [b"a", b"b"] {
            push(&home, queue, b"x");
            run(&home, &Command::Worker(Worker::Work(worker, queue)));
            // The lease ends before its worker does, so that a heartbeat reports it.
            let lease = LeaseAsk { ms: Some(500), ..by(worker) };
            let taken = run(&home, &Command::Pop(Pop { lease, ..Pop::plain(&[queue], 1) }));
            assert_eq!(taken.tasks.len(), 1);
            push(&home, queue, b"y");
            let ids = take(&home, worker, &[queue], 1);
            push(&home, queue, b"cancelled");
            let off = take(&home, worker, &[queue], 1);
            let tasks = TaskRefs { list: &[off[0].as_bytes()], form: IdForm::Long };
            run(&home, &Command::Cancel { queue, which: Cancel::Ids(tasks) });
            assert_eq!(ids.len(), 1);
        }
        let own = format!("w#{}", worker.incarnation);
        let key = match part {
            "held" | "off" => format!("sureq:q:{{a}}:{part}:w:{own}"),
            _ => format!("sureq:worker:{own}:{part}"),
        };
        set(&mut server.connect(), &key);
        until(&format!("{key}: both are requeued"), || {
            push(&home, b"other", b"o");
            assert_eq!(pop(&home, b"other", 1).expect("another queue").len(), 1);
            [b"a", b"b"].into_iter().all(|queue| info(&home, queue).ready == 2)
        });
        let listed = run(&home, &Command::Worker(Worker::List));
        assert!(listed.workers.is_empty(), "{key}");
        let value: String = cmd("GET").arg(&key).query(&mut server.connect()).expect("the key is unchanged");
        assert_eq!(value, "odd", "{key}");
        cmd("DEL").arg(&key).exec(&mut server.connect()).expect("it answers");
        server.check("sureq:");
        home.close();
    }
}

/// A heartbeat keeps the worker alive, and reports what can be read.
#[test]
fn heartbeats_work_despite_keys_of_other_types() {
    for part in ["queues", "works", "lapsed"] {
        let server = RedisServer::start();
        let home = open(&server.url());
        let worker = start(&home, b"w", LONG_MS);
        push(&home, b"q", b"x");
        take(&home, worker, &[b"q"], 1);
        set(&mut server.connect(), &format!("sureq:worker:w#{}:{part}", worker.incarnation));
        let beat = run(&home, &Command::Worker(Worker::Beat(worker)));
        assert!(matches!(beat.list[0], Reply::Receipts(_)), "{part}: {:?}", beat.list);
        home.close();
    }
}

/// One of a worker's queues cannot be written to. The worker is gone, and its tasks in other queues are requeued.
#[test]
fn a_lost_worker_is_not_listed_and_its_other_queues_are_requeued() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let worker = start(&home, b"w", 500);
    for queue in [b"odd", b"fit"] {
        push(&home, queue, b"x");
        take(&home, worker, &[queue], 1);
    }
    let mut raw = server.connect();
    set(&mut raw, "sureq:q:{odd}:ready");
    until("its task in the other queue is requeued", || info(&home, b"fit").ready == 1);
    assert!(run(&home, &Command::Worker(Worker::List)).workers.is_empty());
    cmd("DEL").arg("sureq:q:{odd}:ready").exec(&mut raw).expect("it answers");
    until("the rest is requeued", || info(&home, b"odd").ready == 1);
    server.check("sureq:");
    home.close();
}

/// Workers that have just been lost, more than one call can end, are not listed either.
#[test]
fn workers_whose_time_to_live_is_over_are_not_listed() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let names: Vec<String> = (0..100).map(|n| format!("w{n}")).collect();
    let all: Vec<Command<'_>> = names
        .iter()
        .map(|name| Command::Worker(Worker::Start { name: name.as_bytes(), ttl_ms: 300 }))
        .collect();
    let mut done = 0;
    while done < all.len() {
        done += home.send(&all[done..]).wait().replies.list.len();
    }
    let mut raw = server.connect();
    until("they are lost", || {
        let last: Vec<(String, u64)> = cmd("ZRANGE")
            .arg(&["sureq:workers:ends", "-1", "-1", "WITHSCORES"])
            .query(&mut raw)
            .expect("it answers");
        last.iter().all(|(_, ends)| home.now().log.0 > ends + 50)
    });
    assert_eq!(run(&home, &Command::Worker(Worker::List)).workers.len(), 0);
    home.close();
}

/// A home is lost, and one of its keys has another type: no other command is refused.
#[test]
fn a_lost_home_with_a_bad_key_does_not_disturb_others() {
    for part in ["homes", "home", "conn", "gone", "workers", "workers:ends"] {
        let server = RedisServer::start();
        let (home, other) = (open(&server.url()), open(&server.url()));
        push(&home, b"q", b"x");
        let mut monitor = Monitor::new(&server);
        assert_eq!(pop_held_by(&home, b"q", 7).expect("a pop").len(), 1);
        // The first connection that holds a task makes its home send a heartbeat, the next one follows much later.
        monitor.wait_for("home");
        let mut raw = server.connect();
        let homes: Vec<String> =
            cmd("ZRANGE").arg(&["sureq:homes", "0", "-1"]).query(&mut raw).expect("it answers");
        let key = match part {
            "home" => format!("sureq:home:{}", homes[0]),
            "conn" => format!("sureq:conn:{}:7", homes[0]),
            part => format!("sureq:{part}"),
        };
        // Other homes see this one as lost: it was silent, and its last chance is over.
        cmd("ZADD").arg(&["sureq:homes", "0.5", &homes[0]]).exec(&mut raw).expect("it answers");
        let mut store: Vec<u8> = cmd("GET").arg("sureq:store").query(&mut raw).expect("it answers");
        forget_homes(&mut store);
        cmd("SET").arg("sureq:store").arg(store).exec(&mut raw).expect("it answers");
        set(&mut raw, &key);
        for _ in 0..3 {
            let pushed = push(&other, b"other", b"o");
            assert!(matches!(pushed, Reply::Pushed(_)), "{key}: {pushed:?}");
            assert_eq!(pop(&other, b"other", 1).expect("another queue").len(), 1, "{key}");
        }
        let newcomer = open(&server.url());
        assert_eq!(pop(&newcomer, b"other", 1).expect("a pop of a home that was just opened").len(), 0);
        newcomer.close();
        home.close();
        other.close();
    }
}

/// Sets the time of the next check for lost homes, the number after its name, to long ago.
fn forget_homes(store: &mut [u8]) {
    let at = store.windows(6).position(|part| part == b"\xa5homes").expect("there are some") + 6;
    // An unsigned number of eight bytes.
    assert_eq!(store[at], 0xcf);
    store[at + 1..at + 9].copy_from_slice(&1_u64.to_be_bytes());
}

/// Two tasks of two holders, one of which has a key of another type: both are acked, or neither.
#[test]
fn an_ack_of_tasks_of_several_holders_is_atomic() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let (one, two) = (start(&home, b"one", LONG_MS), start(&home, b"two", LONG_MS));
    push(&home, b"q", b"x");
    push(&home, b"q", b"y");
    let ids = [take(&home, one, &[b"q"], 1).remove(0), take(&home, two, &[b"q"], 1).remove(0)];
    let mut raw = server.connect();
    set(&mut raw, &format!("sureq:q:{{q}}:held:w:two#{}", two.incarnation));
    let list = [ids[0].as_bytes(), ids[1].as_bytes()];
    let tasks = TaskRefs { list: &list, form: IdForm::Long };
    let acked = run(&home, &Command::Ack { queue: b"q", tasks, scope: AckScope::Leased });
    let left = info(&home, b"q").leased;
    match &acked.list[0] {
        Reply::Acked(_) => assert_eq!((acked.indexes.len(), left), (2, 0)),
        other => assert!(left == 2, "{other:?} and {left} are left"),
    }
    home.close();
}

/// A pop that took tasks of the first queue delivers them.
#[test]
fn a_pop_over_queues_delivers_the_tasks_that_it_took() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let worker = start(&home, b"w", LONG_MS);
    push(&home, b"a", b"x");
    push(&home, b"b", b"y");
    let key = format!("sureq:q:{{b}}:held:w:w#{}", worker.incarnation);
    set(&mut server.connect(), &key);
    let both = Command::Pop(Pop { lease: by(worker), ..Pop::plain(&[b"a", b"b"], 2) });
    assert_eq!(run(&home, &both).tasks.len(), 1);
    let refused = run(&home, &both);
    assert!(names_key(&refused.list[0], &key), "{:?}", refused.list);
    assert_eq!((info(&home, b"a").leased, info(&home, b"b").ready), (1, 1));
    home.close();
}

/// Tasks of a closed connection are requeued as soon as the bad key is gone, though its home is alive.
#[test]
fn the_end_of_a_connection_is_retried_until_it_is_done() {
    for odd in ["sureq:q:{q}:ready", "sureq:gone"] {
        let server = RedisServer::start();
        let home = open(&server.url());
        push(&home, b"q", b"x");
        let id = pop_held_by(&home, b"q", 7).expect("a pop").remove(0).1;
        let mut raw = server.connect();
        set(&mut raw, odd);
        home.close_conn(ConnId(7));
        home.look();
        cmd("DEL").arg(odd).exec(&mut raw).expect("it answers");
        until(&format!("{odd}: the task is requeued"), || info(&home, b"q").ready == 1);
        assert!(!matches!(ack(&home, b"q", &id), Reply::Refused(_)));
        server.check("sureq:");
        home.close();
    }
}
