//! The conformance scenarios in the home `remote`.

use sureq_testkit::conformance::exercise;
use sureq_testkit::subject::remote::REMOTE;

#[test]
fn every_scenario_holds() {
    exercise(&REMOTE);
}
