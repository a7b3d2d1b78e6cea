//! A disk with slow syncs or reads, for one running process.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::Process;

/// Delays every sync of a running process, in any thread, until the returned process is dropped. The delay is before
/// the sync: the data is not durable meanwhile.
pub fn slow_syncs(process: &Process, each: Duration) -> Process {
    delay(process, "fdatasync,fsync", each, &[])
}

/// Delays every read of a file by a running process, in any thread, until the returned process is dropped.
pub fn slow_reads(process: &Process, file: &Path, each: Duration) -> Process {
    delay(process, "pread64", each, &["-P".as_ref(), file.as_os_str()])
}

fn delay(process: &Process, calls: &str, each: Duration, only: &[&OsStr]) -> Process {
    let (trace, micros) = (format!("trace={calls}"), each.as_micros());
    let inject = format!("inject={calls}:delay_enter={micros}");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-e", &trace, "-e", &inject, "-o", "/dev/null"]).args(only);
    let strace = Process::start(strace.arg("-p").arg(process.id().to_string()));
    strace.find_in_stderr(|line| line.contains("attached").then_some(()));
    strace
}
