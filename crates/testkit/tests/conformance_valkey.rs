//! The conformance scenarios in the home `redis` on Valkey, without extra restarts, which behave like those of Redis.

use sureq_testkit::conformance::exercise_with;
use sureq_testkit::scenario::Restarts;
use sureq_testkit::subject::redis::VALKEY;

#[test]
fn every_scenario_holds() {
    exercise_with(&VALKEY, &[Restarts::AsWritten]);
}
