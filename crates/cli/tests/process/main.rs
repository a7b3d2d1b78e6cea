//! The real binary as a process: crashed, stopped, without resources, and with hostile clients.

mod clean;
mod clock;
mod cold;
mod commands;
mod disk_failure;
mod dq;
mod every_home;
mod failpoints;
mod flood;
mod full_disk;
mod hostile;
mod kill;
mod life;
mod memory;
mod notify;
mod power;
mod promises;
mod prove;
mod races;
mod redis_home;
mod redis_soak;
mod remote_home;
mod settings;
mod store_files;
mod unauthenticated;
mod unread;
mod users;
mod waiting;
mod whole_life;
mod work;
mod worker_faults;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use sureq_testkit::client::RespClient;
use sureq_testkit::server_process::Launch;

/// The binary under test.
const SUREQ: &str = env!("CARGO_BIN_EXE_sureq");

/// A server with its data in `dir`, on ports that the system chooses.
fn serve(dir: &Path) -> Launch {
    Launch::serve(SUREQ, dir)
}

/// A directory that is removed at the end of the test.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Waits until this many pops wait; polls the server, since nothing signals it.
fn await_line(observer: &mut RespClient, waiting: i64) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while waiting_now(observer) != waiting {
        assert!(Instant::now() < deadline, "{} wait, not {waiting}", waiting_now(observer));
        thread::yield_now();
    }
}

fn waiting_now(observer: &mut RespClient) -> i64 {
    let info = observer.say("INFO clients").text();
    let line = info.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    line.and_then(|count| count.trim().parse().ok()).expect("INFO counts waiting clients")
}
