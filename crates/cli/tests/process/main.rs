//! The real binary as a process: crashed, stopped, starved and lied to.

mod kill;
mod power;

use std::path::Path;

use sureq_testkit::server_process::Launch;

/// The binary under test.
const SUREQ: &str = env!("CARGO_BIN_EXE_sureq");

/// A server with its data in `dir`, on ports of the system's choice.
fn serve(dir: &Path) -> Launch {
    Launch::serve(SUREQ, dir)
}

/// A directory that is gone at the end of the test.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("there is room for a directory")
}
