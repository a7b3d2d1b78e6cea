//! A connection that is cut at any byte leaves every task in one place, and cleaning repairs the rest.

use sureq_core::command::{AckScope, Command, IdForm, TaskRefs, Worker};
use sureq_core::{Refusal, Reply};
use sureq_home_api::Cleaning;
use sureq_redis::{RedisHome, Target};
use sureq_testkit::process::free_port;
use sureq_testkit::redis_server::RedisServer;

use crate::common::{Direction, clean, cutting_proxy, push, run};
use crate::support::{QUEUE, Shop, TTL_MS, pop, pop_call, start};

/// The script is sent first, and is most of the traffic; only the bytes after it matter here.
const SCRIPT_BYTES: usize =
    include_str!("../../src/lua/foreign.lua").len() + include_str!("../../src/lua/worqr.lua").len();

/// The commands that a home executed before its connection was cut, according to its replies.
#[derive(Debug, Default)]
struct Known {
    pushed: u64,
    maybe_pushed: u64,
    finished: u64,
    maybe_finished: u64,
}

fn work(home: &RedisHome) -> Known {
    let mut known = Known::default();
    for payload in [&b"one"[..], b"two"] {
        match push(home, QUEUE, payload) {
            Reply::PushedForeign(_) => known.pushed += 1,
            Reply::Refused(Refusal::Unknown { .. }) => known.maybe_pushed += 1,
            Reply::Refused(Refusal::Unavailable { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    run(home, &Command::Worker(Worker::Start { name: b"w", ttl_ms: TTL_MS }));
    let popped = run(home, &pop_call("w", 1));
    let Some(id) = popped.tasks.first().and_then(|task| task.foreign_id.clone()) else { return known };
    let tasks = TaskRefs { list: &[&id], form: IdForm::Long };
    match run(home, &Command::Ack { queue: QUEUE, tasks, scope: AckScope::LeasedOrLapsed }).list.remove(0) {
        Reply::Acked(span) if span.len() == 1 => known.finished = 1,
        Reply::Refused(Refusal::Unknown { .. }) => known.maybe_finished = 1,
        Reply::Acked(_) | Reply::Refused(Refusal::Unavailable { .. }) => {}
        other => panic!("{other:?}"),
    }
    known
}

/// Counts the tasks, and checks that each is in one place and that each running one is recorded for its worker.
fn count(shop: &mut Shop) -> u64 {
    let (waiting, working) = (shop.queue(), shop.working());
    let mut all = waiting.clone();
    for id in &working {
        all.extend(shop.all(&format!("LRANGE worqr:processes:{id} 0 -1")));
    }
    all.sort();
    let mut once = all.clone();
    once.dedup();
    assert_eq!(all, once, "a task is in two places");
    let processes: Vec<String> = shop.raw("KEYS worqr:processes:*");
    assert_eq!(processes.len(), working.len(), "{processes:?} {working:?}");
    assert_eq!(shop.raw::<usize>("HLEN worqr:sureq:holders"), working.len());
    all.len() as u64
}

#[test]
fn a_home_that_is_cut_off_anywhere_loses_nothing_and_cleaning_repairs_the_rest() {
    let port = free_port();
    let mut shop = Shop::open_on(RedisServer::start_at(port));
    let to = (0..SCRIPT_BYTES).step_by(4_000).chain((SCRIPT_BYTES..SCRIPT_BYTES + 2_400).step_by(40));
    let cuts = to
        .map(|cut| (Direction::ToServer, cut))
        .chain((0..9_000).step_by(150).map(|cut| (Direction::FromServer, cut)));
    let (mut finished, mut unknown) = (0, 0);
    for (way, cut) in cuts {
        shop.raw::<()>("FLUSHALL");
        let address = cutting_proxy(port, cut, way);
        let target =
            Target::parse_with(&format!("redis://{address}?layout=worqr"), &sureq_redis_compat::LAYOUTS)
                .unwrap();
        // If the home cannot be opened, nothing was done.
        let Ok(home) = RedisHome::open(target) else { continue };
        let known = work(&home);
        home.close();
        let least = known.pushed.saturating_sub(known.finished + known.maybe_finished);
        let most = known.pushed + known.maybe_pushed - known.finished;
        let before = count(&mut shop);
        assert!((least..=most).contains(&before), "{way:?} cut at {cut}: {before}, {known:?}");
        // The worker of the home is dead.
        shop.raw::<()>("DEL worqr:workerTimers:w");
        clean(&shop.home, &[QUEUE], Cleaning::Light).unwrap();
        assert_eq!((count(&mut shop), shop.queue().len() as u64), (before, before), "{way:?} cut at {cut}");
        finished += known.finished;
        unknown += known.maybe_pushed + known.maybe_finished;
    }
    assert!(
        finished > 10 && unknown > 10,
        "cuts must come before, between and after the commands: {finished}, {unknown}"
    );
}

#[test]
fn a_user_without_the_right_to_load_functions_gets_scripts() {
    let mut shop = Shop::open();
    shop.raw::<()>("ACL SETUSER worker on >secret ~* &* +@all -function");
    let home = crate::common::shop::open_home(&shop.server, "layout=worqr&user=worker&pass=secret");
    let known = work(&home);
    assert_eq!((known.pushed, known.finished), (2, 1));
    let stats: String = shop.raw("INFO commandstats");
    assert!(stats.contains("cmdstat_evalsha"), "{stats}");
    home.close();
}

/// Runs a foreign worker until no task is left; returns the tasks that it finished.
fn foreign_work(server: &RedisServer, name: &str) -> Vec<String> {
    let (mut raw, mut finished) = (server.connect(), Vec::new());
    for n in 0.. {
        let id = format!("jobs_{name}-{n}");
        let process = format!("worqr:processes:{id}");
        let (taken, _): (Option<String>, i64) = redis::pipe()
            .atomic()
            .cmd("RPOPLPUSH")
            .arg("worqr:queues:jobs")
            .arg(&process)
            .sadd("worqr:workingProcesses:jobs", &id)
            .query(&mut raw)
            .expect("Redis answers");
        let Some(payload) = taken else {
            let _: i64 = redis::cmd("SREM")
                .arg("worqr:workingProcesses:jobs")
                .arg(&id)
                .query(&mut raw)
                .expect("Redis answers");
            break;
        };
        let (done, _): (i64, i64) = redis::pipe()
            .atomic()
            .del(&process)
            .srem("worqr:workingProcesses:jobs", &id)
            .query(&mut raw)
            .expect("Redis answers");
        assert_eq!(done, 1, "no other worker took it");
        finished.push(payload);
    }
    finished
}

fn our_work(home: &RedisHome, name: &str) -> Vec<String> {
    start(home, name, TTL_MS);
    let mut finished = Vec::new();
    loop {
        let popped = pop(home, name, 3);
        if popped.is_empty() {
            return finished;
        }
        for (id, payload) in popped {
            assert!(crate::common::shop::ack(home, &id));
            finished.push(payload);
        }
    }
}

#[test]
fn workers_of_both_kinds_and_cleaning_finish_each_task_once() {
    let mut shop = Shop::open();
    shop.foreign_start("x");
    shop.foreign_start("y");
    let payloads: Vec<String> = (0..2_000).map(|n| n.to_string()).collect();
    let pushed: Vec<&[u8]> = payloads.iter().map(String::as_bytes).collect();
    run(&shop.home, &Command::Push { queue: QUEUE, payloads: &pushed });
    let (one, two) = (shop.another(), shop.another());
    let (home, server) = (&shop.home, &shop.server);
    let mut finished: Vec<String> = std::thread::scope(|scope| {
        let workers = [
            scope.spawn(|| foreign_work(server, "x")),
            scope.spawn(|| foreign_work(server, "y")),
            scope.spawn(|| our_work(&one, "one")),
            scope.spawn(|| our_work(&two, "two")),
        ];
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            assert_eq!(clean(home, &[], Cleaning::Deep).map(|cleaned| cleaned.returned), Ok(0));
        }
        workers.into_iter().flat_map(|worker| worker.join().expect("it worked")).collect()
    });
    finished.sort_by_key(|payload| payload.parse::<u32>().expect("a number"));
    assert_eq!(finished, payloads);
    assert_eq!(count(&mut shop), 0);
    one.close();
    two.close();
}

#[test]
fn the_same_on_valkey() {
    let mut shop = Shop::open_on(RedisServer::start_valkey());
    let known = work(&shop.home);
    assert_eq!((known.pushed, known.finished), (2, 1));
    assert_eq!(count(&mut shop), 1);
    shop.foreign_enqueue("x");
    assert_eq!(shop.queue(), ["x", "two"]);
    shop.raw::<()>("DEL worqr:workerTimers:w");
    clean(&shop.home, &[], Cleaning::Deep).unwrap();
    assert_eq!(shop.raw::<i64>("SCARD worqr:workers"), 0);
}
