//! The conformance scenarios in a cluster: with all queues in one slot, and with each in its own.

use sureq_testkit::conformance::exercise_with;
use sureq_testkit::scenario::Restarts;
use sureq_testkit::subject::redis::{CLUSTER, SPREAD};

#[test]
fn every_scenario_holds_in_one_slot() {
    exercise_with(&CLUSTER, &[Restarts::AsWritten]);
}

#[test]
fn every_scenario_that_spans_no_slots_holds() {
    exercise_with(&SPREAD, &[Restarts::AsWritten]);
}
