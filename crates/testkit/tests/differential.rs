//! Random commands get equal replies from the core and from every other home.

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

/// Commands for homes that wait for another process at every step. `SUREQ_TEST_SCALE=5` makes them as many.
const COMMANDS_OUTSIDE: usize = 20_000;

#[test]
fn the_engine_answers_as_the_core_does() {
    exercise(&ENGINE, &[], COMMANDS);
}

#[test]
fn a_server_answers_as_the_core_does() {
    exercise(&SERVER, &[], COMMANDS_OUTSIDE);
}

#[test]
fn a_home_behind_a_server_answers_as_the_core_does() {
    exercise(&REMOTE, &[Connections], COMMANDS);
}

#[test]
fn redis_answers_as_the_core_does() {
    exercise(&REDIS, &[], COMMANDS_OUTSIDE);
}

#[test]
fn two_processes_on_one_redis_answer_as_the_core_does() {
    exercise(&REDIS_PAIR, &[Connections, Line], COMMANDS_OUTSIDE);
}

#[test]
fn valkey_answers_as_the_core_does() {
    exercise(&VALKEY, &[], COMMANDS_OUTSIDE);
}

#[test]
fn a_cluster_answers_as_the_core_does() {
    exercise(&SPREAD, &[Connections, Restarts], COMMANDS_OUTSIDE);
}

#[test]
fn a_slot_of_a_cluster_answers_as_the_core_does() {
    exercise(&CLUSTER, &[Restarts], COMMANDS_OUTSIDE);
}
