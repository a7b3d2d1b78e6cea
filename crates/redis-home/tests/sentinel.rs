//! Sentinels: when the primary dies or hangs, the one that they name is used instead.

mod support;

use redis::cmd;
use support::load::Load;
use support::until;
use sureq_testkit::redis_sentinels::RedisSentinels;

fn fail_over(stop: impl FnOnce(&mut RedisSentinels, usize)) {
    let mut all = RedisSentinels::start_with(&[]);
    let load = Load::new(&format!("{}?durability=replicated", all.url("")), &[b"q"]);
    load.run(2, || {
        load.until_confirmed(50);
        let before = all.primary();
        stop(&mut all, before);
        until("another one is the primary", || all.primary() != before);
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

#[test]
fn the_user_of_the_url_is_the_one_of_the_servers() {
    let all = RedisSentinels::start_with(&["--user", "worker", "on", ">secret", "~*", "&*", "+@all"]);
    let home = support::open(&all.url("worker:secret@"));
    assert!(matches!(support::push(&home, b"q", b"x"), sureq_core::Reply::Pushed(_)));
    home.close();
    let users: Vec<String> =
        cmd("ACL").arg("USERS").query(&mut all.server(all.primary()).connect()).expect("it answers");
    assert_eq!(users, ["default", "worker"]);
    let wrong = sureq_redis::Target::parse(&all.url("worker:wrong@")).expect("a URL");
    let why = sureq_redis::RedisHome::open(wrong).expect_err("the password is wrong").to_string();
    assert!(why.contains("WRONGPASS") || why.contains("invalid username-password"), "{why}");
}

#[test]
fn a_service_that_sentinels_do_not_know_is_told() {
    let all = RedisSentinels::start_with(&[]);
    let url = all.url("").replace("mymaster", "other");
    let why = sureq_redis::RedisHome::open(sureq_redis::Target::parse(&url).expect("a URL"));
    let why = why.expect_err("there is none").to_string();
    assert!(why.contains("knows no \"other\""), "{why}");
}
