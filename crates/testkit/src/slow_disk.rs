//! A disk with slow syncs, for one running process.

use std::process::Command;
use std::time::Duration;

use crate::process::Process;

/// Delays every sync of a running process, in any thread, until the returned process is dropped. The delay is before
/// the sync: the data is not durable meanwhile.
pub fn slow_syncs(process: &Process, each: Duration) -> Process {
    let inject = format!("inject=fdatasync,fsync:delay_enter={}", each.as_micros());
    let mut strace = Command::new("strace");
    strace.args(["-f", "-e", "trace=fdatasync,fsync", "-e", &inject, "-o", "/dev/null", "-p"]);
    let strace = Process::start(strace.arg(process.id().to_string()));
    strace.find_in_stderr(|line| line.contains("attached").then_some(()));
    strace
}
