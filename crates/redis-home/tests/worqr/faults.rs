//! A connection that is cut anywhere leaves every task in one place, and cleaning heals the rest.

use sureq_core::command::{AckScope, Command, IdForm, TaskRefs, Worker};
use sureq_core::{Refusal, Reply};
use sureq_redis::{Cleaning, RedisHome, Target};
use sureq_testkit::redis_server::RedisServer;

use crate::common::proxy::{Proxy, Way};
use crate::common::{clean, free_port, push, run};
use crate::support::{QUEUE, Shop, TTL_MS, pop_call};

/// The script is sent at the beginning, and is most of what is sent; what is behind it matters.
const SCRIPT_BYTES: usize =
    include_str!("../../src/lua/foreign.lua").len() + include_str!("../../src/lua/worqr.lua").len();

/// What a home did before its connection was cut, as far as it knows.
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
            Reply::PushedSpelt(_) => known.pushed += 1,
            Reply::Refused(Refusal::Unknown { .. }) => known.maybe_pushed += 1,
            Reply::Refused(Refusal::Unavailable { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    run(home, &Command::Worker(Worker::Start { name: b"w", ttl_ms: TTL_MS }));
    let popped = run(home, &pop_call("w", 1));
    let Some(id) = popped.tasks.first().and_then(|task| task.spelt.clone()) else { return known };
    let tasks = TaskRefs { list: &[&id], form: IdForm::Long };
    match run(home, &Command::Ack { queue: QUEUE, tasks, scope: AckScope::LeasedOrLapsed }).list.remove(0) {
        Reply::Acked(span) if span.len() == 1 => known.finished = 1,
        Reply::Refused(Refusal::Unknown { .. }) => known.maybe_finished = 1,
        Reply::Acked(_) | Reply::Refused(Refusal::Unavailable { .. }) => {}
        other => panic!("{other:?}"),
    }
    known
}

/// How many tasks there are, each of them in one place, and those that are worked on noted for their worker.
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
fn a_home_that_is_cut_off_anywhere_loses_nothing_and_cleaning_heals_the_rest() {
    let port = free_port();
    let mut shop = Shop::open_on(RedisServer::start_at(port));
    let to = (0..SCRIPT_BYTES).step_by(4_000).chain((SCRIPT_BYTES..SCRIPT_BYTES + 2_400).step_by(40));
    let cuts =
        to.map(|cut| (Way::ToRedis, cut)).chain((0..9_000).step_by(150).map(|cut| (Way::FromRedis, cut)));
    let (mut finished, mut unknown) = (0, 0);
    for (way, cut) in cuts {
        shop.raw::<()>("FLUSHALL");
        let proxy = Proxy::new(port, cut, way);
        let target = Target::parse(&format!("redis://{}?layout=worqr", proxy.address)).unwrap();
        // A home that cannot be opened has done nothing.
        let Ok(home) = RedisHome::open(target) else { continue };
        let known = work(&home);
        home.close();
        let least = known.pushed.saturating_sub(known.finished + known.maybe_finished);
        let most = known.pushed + known.maybe_pushed - known.finished;
        let before = count(&mut shop);
        assert!((least..=most).contains(&before), "{way:?} cut at {cut}: {before}, {known:?}");
        // Its worker is dead.
        shop.raw::<()>("DEL worqr:workerTimers:w");
        clean(&shop.home, &[QUEUE], Cleaning::Light).unwrap();
        assert_eq!((count(&mut shop), shop.queue().len() as u64), (before, before), "{way:?} cut at {cut}");
        finished += known.finished;
        unknown += known.maybe_pushed + known.maybe_finished;
    }
    assert!(finished > 10 && unknown > 10, "cuts come before, between and after: {finished}, {unknown}");
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
