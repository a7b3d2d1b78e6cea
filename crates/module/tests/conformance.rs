//! The conformance scenarios, played in the module, in Redis and in Valkey; and random commands, compared with the core.

use sureq_testkit::conformance::{exercise, exercise_with};
use sureq_testkit::differential::{Difference, exercise as exercise_random};
use sureq_testkit::scenario::Restarts;
use sureq_testkit::subject::module::{MODULE, MODULE_IN_VALKEY};

#[test]
fn every_scenario_holds_in_redis() {
    exercise(&MODULE);
}

/// What restarts do is the same as in Redis.
#[test]
fn every_scenario_holds_in_valkey() {
    exercise_with(&MODULE_IN_VALKEY, &[Restarts::AsWritten]);
}

#[test]
fn the_module_answers_as_the_core_does() {
    exercise_random(&MODULE, &[Difference::Keys], 20_000);
}

#[test]
fn the_module_in_valkey_answers_as_the_core_does() {
    exercise_random(&MODULE_IN_VALKEY, &[Difference::Keys], 20_000);
}
