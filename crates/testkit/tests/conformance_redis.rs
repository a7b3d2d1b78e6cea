//! The conformance scenarios in the home `redis`.

use sureq_testkit::conformance::exercise;
use sureq_testkit::subject::redis::REDIS;

#[test]
fn every_scenario_holds() {
    exercise(&REDIS);
}
