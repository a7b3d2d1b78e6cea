//! Random commands get the same replies from the core and from every other home.

use sureq_testkit::differential::Difference::{Connections, Line, Restarts};
use sureq_testkit::differential::exercise;
use sureq_testkit::subject::{
    engine::ENGINE,
    redis::{CLUSTER, REDIS, REDIS_PAIR, SPREAD, VALKEY},
    remote::REMOTE,
    server::SERVER,
};

/// Commands for homes in this process.
const COMMANDS: usize = 100_000;

/// Commands for homes that wait for another process at every step. With `SUREQ_TEST_SCALE=5` they are as many.
const COMMANDS_OUTSIDE: usize = 20_000;

#[test]
fn the_engine_replies_like_the_core() {
    exercise(&ENGINE, &[], COMMANDS);
}

#[test]
fn a_server_replies_like_the_core() {
    exercise(&SERVER, &[], COMMANDS_OUTSIDE);
}

#[test]
fn a_home_behind_a_server_replies_like_the_core() {
    exercise(&REMOTE, &[Connections], COMMANDS);
}

#[test]
fn redis_replies_like_the_core() {
    exercise(&REDIS, &[], COMMANDS_OUTSIDE);
}

#[test]
fn two_processes_on_one_redis_reply_like_the_core() {
    exercise(&REDIS_PAIR, &[Connections, Line], COMMANDS_OUTSIDE);
}

#[test]
fn valkey_replies_like_the_core() {
    exercise(&VALKEY, &[], COMMANDS_OUTSIDE);
}

#[test]
fn a_cluster_replies_like_the_core() {
    exercise(&SPREAD, &[Connections, Restarts], COMMANDS_OUTSIDE);
}

#[test]
fn a_slot_of_a_cluster_replies_like_the_core() {
    exercise(&CLUSTER, &[Restarts], COMMANDS_OUTSIDE);
}
