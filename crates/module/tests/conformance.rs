//! The conformance scenarios, played in the module, in Redis and in Valkey.

use sureq_testkit::conformance::{exercise, exercise_with};
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
