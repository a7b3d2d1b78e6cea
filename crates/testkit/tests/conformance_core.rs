//! The conformance scenarios in the home `core`.

use sureq_testkit::conformance::exercise;
use sureq_testkit::subject::core::CORE;

#[test]
fn every_scenario_holds() {
    exercise(&CORE);
}
