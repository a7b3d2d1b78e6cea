//! Sentinels: when the primary dies or hangs, the home uses the server that they name instead.

mod support;

use redis::cmd;
use support::{FOREIGN, answer, open, open_in, pop_in, push, until};
use sureq_core::Reply;
use sureq_core::command::{Block, Command, Pop};
use sureq_home_api::Home as _;
use sureq_testkit::redis_sentinels::RedisSentinels;

fn fail_over(stop: impl FnOnce(&mut RedisSentinels, usize)) {
    let mut all = RedisSentinels::start_with(&[]);
    let load = support::load(&format!("{}?durability=replicated", all.url("")), &[b"q"]);
    load.run(2, || {
        load.until_confirmed(50);
        let before = all.primary();
        stop(&mut all, before);
        all.until_replaced(before);
        load.until_confirmed(50);
    });
    load.finish();
    all.server(all.primary()).check("sureq:");
}

#[test]
fn a_primary_that_dies_is_replaced_and_nothing_is_lost() {
    fail_over(|all, primary| all.server_mut(primary).kill());
}

#[test]
fn a_primary_that_hangs_is_replaced_and_nothing_is_lost() {
    fail_over(|all, primary| all.server(primary).suspend());
}

/// Waits until a replica has all writes so far: replicas apply them in the same order.
fn until_replicated(primary: &mut redis::Connection) {
    cmd("SET").arg("mark").arg(1).exec(primary).expect("it answers");
    until("a replica has it", || cmd("WAIT").arg(1).arg(100).query::<i64>(primary).is_ok_and(|n| n > 0));
}

/// Waiters in foreign layouts get tasks that are pushed to the new primary.
#[test]
fn waiters_in_foreign_layouts_follow_the_primary() {
    let mut all = RedisSentinels::start_with(&[]);
    let url = |layout: &str| format!("{}?layout={layout}&prefix={layout}:", all.url(""));
    let homes = FOREIGN.map(|layout| open_in(layout, &url(layout)));
    let pushers = FOREIGN.map(|layout| open(&url(layout)));
    let wait = |at: usize| {
        let pop = Pop { block: Some(Block::Forever), ..pop_in(FOREIGN[at], &[b"q"]) };
        homes[at].send(&[Command::Pop(pop)])
    };
    let tickets = [wait(0), wait(1), wait(2)];
    until("all wait", || homes.iter().all(|home| home.waiters() == 1));
    // Waits until no pop is being tried; the outcome of such a pop would be unknown.
    homes.iter().for_each(sureq_redis::RedisHome::look);
    let before = all.primary();
    until_replicated(&mut all.server(before).connect());
    all.server_mut(before).kill();
    all.until_replaced(before);
    for (pusher, ticket) in pushers.iter().zip(&tickets) {
        until("the push succeeds", || {
            matches!(push(pusher, b"q", b"x"), Reply::Pushed(_) | Reply::PushedForeign(_))
        });
        let replies = answer(ticket);
        assert!(replies.tasks.first().is_some_and(|task| task.body == b"x"), "{replies:?}");
    }
    homes.iter().chain(&pushers).for_each(sureq_redis::RedisHome::close);
}

#[test]
fn the_user_of_the_url_is_the_one_of_the_servers() {
    let all = RedisSentinels::start_with(&["--user", "worker", "on", ">secret", "~*", "&*", "+@all"]);
    let home = open(&all.url("worker:secret@"));
    assert!(matches!(push(&home, b"q", b"x"), Reply::Pushed(_)));
    home.close();
    let users: Vec<String> =
        cmd("ACL").arg("USERS").query(&mut all.server(all.primary()).connect()).expect("it answers");
    assert_eq!(users, ["default", "worker"]);
    let wrong = sureq_redis::Target::parse(&all.url("worker:wrong@")).expect("a URL");
    let why = sureq_redis::RedisHome::open(wrong).expect_err("the password is wrong").to_string();
    assert!(why.contains("WRONGPASS") || why.contains("invalid username-password"), "{why}");
}

#[test]
fn a_service_that_sentinels_do_not_know_is_reported() {
    let all = RedisSentinels::start_with(&[]);
    let url = all.url("").replace("mymaster", "other");
    let why = sureq_redis::RedisHome::open(sureq_redis::Target::parse(&url).expect("a URL"));
    let why = why.expect_err("the service does not exist").to_string();
    assert!(why.contains("knows no \"other\""), "{why}");
}
