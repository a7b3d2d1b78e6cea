//! docs/understand/conformance.md agrees with the scenarios.

use std::path::Path;

use sureq_testkit::conformance::{blesses, table};
use sureq_testkit::subject::{
    core::CORE,
    engine::ENGINE,
    module::MODULE,
    redis::{CLUSTER, REDIS, SPREAD},
    remote::REMOTE,
    server::SERVER,
};

#[test]
fn the_table_in_the_docs_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/understand/conformance.md");
    let table = table(&[CORE, ENGINE, SERVER, REMOTE, REDIS, SPREAD, CLUSTER, MODULE]);
    if blesses() {
        std::fs::write(&path, &table).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == table, "docs/understand/conformance.md is stale: run this test with SUREQ_BLESS=1");
}
