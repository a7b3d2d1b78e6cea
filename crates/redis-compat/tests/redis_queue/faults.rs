//! A connection that is cut at any byte leaves every task in one place.

use sureq_core::command::{Command, Pop};
use sureq_core::{Refusal, Reply};
use sureq_home_api::Home as _;
use sureq_redis::{RedisHome, Target};
use sureq_testkit::process::free_port;
use sureq_testkit::redis_server::RedisServer;

use crate::common::{Direction, ack, cutting_proxy, push, run};
use crate::support::{QUEUE, Shop};

/// The script is sent first, and is most of the traffic; only the bytes after it matter here.
const SCRIPT_BYTES: usize =
    include_str!("../../src/lua/foreign.lua").len() + include_str!("../../src/lua/redis_queue.lua").len();

#[test]
fn a_home_that_is_cut_off_anywhere_loses_nothing() {
    let port = free_port();
    let mut shop = Shop::on(RedisServer::start_at(port), "layout=redis-queue");
    let to = (0..SCRIPT_BYTES).step_by(4_000).chain((SCRIPT_BYTES..SCRIPT_BYTES + 1_600).step_by(40));
    let from = (0..9_000).step_by(150).map(|cut| (Direction::FromServer, cut));
    let (mut sure_acks, mut unsure) = (0, 0);
    for (way, cut) in to.map(|cut| (Direction::ToServer, cut)).chain(from) {
        shop.raw::<()>("FLUSHALL");
        let address = cutting_proxy(port, cut, way);
        let target = Target::parse_with(
            &format!("redis://{address}?layout=redis-queue"),
            &sureq_redis_compat::LAYOUTS,
        )
        .unwrap();
        // If the home cannot be opened, nothing was done.
        let Ok(home) = RedisHome::open(target) else { continue };
        let pushes = [push(&home, QUEUE, b"one"), push(&home, QUEUE, b"two")];
        let popped = run(&home, &Command::Pop(Pop::plain(&[QUEUE], 1)));
        let id = popped.tasks.first().and_then(|task| task.foreign_id.clone());
        let acked = id.map(|id| ack(&home, QUEUE, std::str::from_utf8(&id).unwrap()));
        home.close();
        let is_unknown = |reply: &&Reply| matches!(reply, Reply::Refused(Refusal::Unknown { .. }));
        let sure = pushes.iter().filter(|reply| matches!(reply, Reply::PushedForeign(_))).count();
        let maybe = pushes.iter().filter(is_unknown).count();
        let done = usize::from(matches!(acked, Some(Reply::Acked(span)) if span.len() == 1));
        let maybe_done = acked.iter().filter(is_unknown).count();
        let ids = shop.ids();
        assert!(
            (sure.saturating_sub(done + maybe_done)..=sure + maybe - done).contains(&ids.len()),
            "{way:?} cut at {cut}: {ids:?}, {pushes:?}, {acked:?}"
        );
        assert!(ids.len() < 2 || ids[0] != ids[1], "a task is in two places");
        assert_eq!(shop.raw::<Vec<String>>("KEYS jobs:data:*").len(), ids.len(), "{way:?} cut at {cut}");
        sure_acks += done;
        unsure += maybe + maybe_done;
    }
    assert!(
        sure_acks > 10 && unsure > 10,
        "cuts must come before, between and after the commands: {sure_acks}, {unsure}"
    );
}

#[test]
fn a_user_without_the_right_to_load_functions_gets_scripts() {
    let mut shop = Shop::open();
    shop.raw::<()>("ACL SETUSER worker on >secret ~* &* +@all -function");
    shop.home.close();
    shop.home = crate::common::shop::open_home(&shop.server, "layout=redis-queue&user=worker&pass=secret");
    let id = shop.push("x");
    assert_eq!(shop.pop_one().as_ref(), Some(&id));
    assert!(shop.ack(&id));
    let stats: String = shop.raw("INFO commandstats");
    assert!(stats.contains("cmdstat_evalsha"), "{stats}");
}

#[test]
fn the_same_on_valkey() {
    let mut shop = Shop::on(RedisServer::start_valkey(), "layout=redis-queue");
    shop.push("one");
    let ticket = shop.wait(sureq_core::command::Block::Forever);
    let first = crate::support::answer(ticket).unwrap();
    assert_eq!(first[0].1, "one");
    let ticket = shop.wait(sureq_core::command::Block::Forever);
    crate::common::until("it waits", || shop.home.waiters() == 1);
    shop.raw::<()>("LPUSH jobs bare");
    assert_eq!(crate::support::answer(ticket).unwrap()[0].0, "bare");
    assert!(shop.ack(&first[0].0) && shop.ack("bare"));
    assert_eq!(shop.raw::<Vec<String>>("KEYS *"), Vec::<String>::new());
}
