//! The conformance scenarios in the home `engine`.

use sureq_testkit::conformance::exercise;
use sureq_testkit::subject::engine::ENGINE;

#[test]
fn every_scenario_holds() {
    exercise(&ENGINE);
}
