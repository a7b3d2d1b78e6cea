//! The conformance scenarios in the home `server`.

use sureq_testkit::conformance::exercise;
use sureq_testkit::subject::server::SERVER;

#[test]
fn every_scenario_holds() {
    exercise(&SERVER);
}
