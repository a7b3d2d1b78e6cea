//! The conformance scenarios, executed by the module in Redis and in Valkey; and random commands, whose replies are
//! compared with those of the core.

use sureq_testkit::conformance::{exercise, exercise_with};
use sureq_testkit::differential::{Difference, exercise as exercise_random};
use sureq_testkit::scenario::Restarts;
use sureq_testkit::subject::module::{MODULE, MODULE_IN_VALKEY};

#[test]
fn every_scenario_holds_in_redis() {
    exercise(&MODULE);
}

/// Only with the restarts that a scenario contains. Restarts after every step behave as in Redis.
#[test]
fn every_scenario_holds_in_valkey() {
    exercise_with(&MODULE_IN_VALKEY, &[Restarts::AsWritten]);
}

#[test]
fn the_module_replies_like_the_core() {
    exercise_random(&MODULE, &[Difference::Keys], 20_000);
}

#[test]
fn the_module_in_valkey_replies_like_the_core() {
    exercise_random(&MODULE_IN_VALKEY, &[Difference::Keys], 20_000);
}
