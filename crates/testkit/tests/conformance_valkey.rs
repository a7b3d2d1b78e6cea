//! The conformance scenarios, played in the home `redis` on Valkey. What restarts do is the same as on Redis.

use sureq_testkit::conformance::exercise_with;
use sureq_testkit::scenario::Restarts;
use sureq_testkit::subject::redis::VALKEY;

#[test]
fn every_scenario_holds() {
    exercise_with(&VALKEY, &[Restarts::AsWritten]);
}
