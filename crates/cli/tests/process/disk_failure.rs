//! A disk that fails or hangs: only durable changes are confirmed, and the process reports the failure.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use sureq_testkit::client::{RespClient, encode};
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::process::PATIENCE;
use sureq_testkit::server_process::Launch;
use sureq_testkit::shifted_clock::ShiftedClock;
use sureq_testkit::slow_disk::slow_syncs;

use crate::{scratch, serve};

const DISK_FAILED: i32 = 74;

fn under_strace(launch: Launch, log: &Path, inject: &str) -> Launch {
    let strace = ["strace", "-f", "-e", "trace=fdatasync", "-e", inject, "-o"].map(AsRef::as_ref);
    launch.under(strace.into_iter().chain([log.as_os_str()]))
}

/// The same for syncs of the log only: the preallocator syncs too, an unpredictable number of times.
fn under_strace_of_the_log(launch: Launch, data: &Path, log: &Path, inject: &str) -> Launch {
    let segment = data.join("00000000000000000001.seg");
    let strace = ["strace", "-f", "-e", "trace=fdatasync", "-e", inject, "-P"].map(AsRef::as_ref);
    launch.under(strace.into_iter().chain([segment.as_os_str(), "-o".as_ref(), log.as_os_str()]))
}

/// Pushes one task after another until the server is gone; returns the confirmed ids.
fn push_until_gone(client: &mut RespClient) -> Vec<String> {
    let mut confirmed = Vec::new();
    loop {
        assert!(confirmed.len() < 1000, "the failure was not noticed");
        let command = sureq_testkit::client::encode(&["RQ.PUSH", "q", &confirmed.len().to_string()]);
        if client.send_raw(&command).is_err() {
            return confirmed;
        }
        match client.read() {
            Ok(reply) => confirmed.extend(reply.ids()),
            Err(_) => return confirmed,
        }
    }
}

/// The failed sync, according to `strace`.
struct Failure {
    /// Successful syncs of the same thread before it.
    before: usize,
    /// Syncs of the same file after it, by any thread.
    after: usize,
}

fn read_log(log: &Path) -> Failure {
    let log = std::fs::read_to_string(log).expect("strace wrote its log");
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("fdatasync(")).collect();
    let failed = lines.iter().position(|line| line.contains("INJECTED")).expect("a sync was made to fail");
    let thread = lines[failed].split_whitespace().next().expect("a line begins with a thread");
    let file = descriptor(lines[failed]);
    Failure {
        before: lines[..failed].iter().filter(|line| line.starts_with(thread)).count(),
        after: lines[failed + 1..].iter().filter(|line| descriptor(line) == file).count(),
    }
}

/// The file descriptor in a line of the trace.
fn descriptor(line: &str) -> Option<&str> {
    line.split_once("fdatasync(")?.1.split([')', ' ']).next()
}

#[test]
fn a_failed_sync_is_not_repeated_and_ends_the_process() {
    for sync in [30, 31, 77] {
        let dir = scratch();
        let (data, log) = (dir.path().join("data"), dir.path().join("strace"));
        let inject = format!("inject=fdatasync:error=EIO:when={sync}");
        let mut server = under_strace_of_the_log(serve(&data), &data, &log, &inject).start();
        let confirmed = push_until_gone(&mut server.client());
        let (machine, seen) = (MachineWatch::start(), Instant::now());
        assert_eq!(server.exit_code(PATIENCE), DISK_FAILED, "{}", *server);
        machine.assert_within(seen.elapsed(), Duration::from_secs(1), "the end");
        assert!(server.stderr().contains("nothing was confirmed since"), "{}", *server);

        let failure = read_log(&log);
        assert_eq!(failure.before, sync - 1, "strace counts per thread");
        assert_eq!(failure.after, 0, "a file was synced again after its sync had failed");
        assert!(confirmed.len() < sync, "{} pushes were confirmed by {} syncs", confirmed.len(), sync - 1);

        let server = serve(&data).start();
        let found: BTreeSet<String> =
            server.client().pop("q", 1000).into_iter().map(|task| task.id).collect();
        let lost: Vec<_> = confirmed.iter().filter(|id| !found.contains(*id)).collect();
        assert!(lost.is_empty(), "confirmed before the failure and lost: {lost:?}");
        assert!(found.len() <= confirmed.len() + 1, "only the last push is in doubt");
    }
}

/// Rule 2, for subscribers: every task in their messages exists after the failure.
#[test]
fn a_subscriber_gets_no_message_that_a_failed_sync_undoes() {
    let dir = scratch();
    let (data, log) = (dir.path().join("data"), dir.path().join("strace"));
    let inject = "inject=fdatasync:error=EIO:when=40";
    let mut server = under_strace_of_the_log(serve(&data), &data, &log, inject).start();
    let mut subscriber = server.client();
    subscriber.say("SUBSCRIBE sureq:work:q");
    let confirmed = push_until_gone(&mut server.client());
    assert_eq!(server.exit_code(Duration::from_secs(5)), DISK_FAILED, "{}", *server);
    let heard = std::iter::from_fn(|| subscriber.read().ok()).count();
    assert!(
        heard > 0 && heard <= confirmed.len(),
        "{heard} messages for {} confirmed pushes",
        confirmed.len()
    );
    let found = serve(&data).start().client().pop("q", 1000).len();
    assert!(heard <= found, "{heard} messages, but only {found} tasks");
}

#[test]
fn a_sync_that_fails_at_the_start_refuses_to_start_and_harms_nothing() {
    let dir = scratch();
    let (data, log) = (dir.path().join("data"), dir.path().join("strace"));
    let id = {
        let mut server = serve(&data).start();
        let id = server.client().push("q", "kept");
        server.kill9();
        id
    };
    for sync in 1..=3 {
        let inject = format!("inject=fdatasync:error=EIO:when={sync}");
        let mut process = under_strace(serve(&data), &log, &inject).spawn();
        assert_ne!(process.exit_code(Duration::from_secs(10)), 0, "{process}");
        assert!(process.stdout().is_empty(), "it never reported that it was ready:\n{process}");
    }
    let server = serve(&data).start();
    assert_eq!(server.client().pop("q", 10)[0].id, id);
}

/// The duration of each sync while the disk hangs: longer than all requests meanwhile.
const HANG: Duration = Duration::from_secs(5);

/// Every sync hangs, that of the log and that of the file with the upper bound for ids, until the bound is used up.
#[test]
fn a_disk_that_hangs_delays_confirmations_and_nothing_else() {
    let (dir, clock) = (scratch(), ShiftedClock::default());
    let [(preload, shim), (file, shift)] = clock.environment();
    let server = serve(dir.path()).env(preload, shim).env(file, shift).start();
    let (mut pusher, mut other, mut queued) = (server.client(), server.client(), server.client());
    pusher.push("q", "before");
    let hanging = slow_syncs(&server, HANG);
    clock.pass(60_000);
    // One push is being synced now; it must neither be confirmed early nor delay others.
    let asked = Instant::now();
    pusher.begin("RQ.PUSH q x");
    queued.send_raw(&encode(&["RQ.POP", "q"])).expect("the server reads");
    queued.send_raw(&encode(&["RQ.INFO", "q"])).expect("the server reads");
    let (machine, soon) = (MachineWatch::start(), Duration::from_millis(200));
    while asked.elapsed() < HANG / 10 {
        let each = Instant::now();
        assert_eq!(other.say("PING").text(), "PONG");
        machine.assert_within(each.elapsed(), soon, "PING");
        let each = Instant::now();
        let info = other.say("INFO").text();
        machine.assert_within(each.elapsed(), soon, "INFO");
        assert!(info.contains("disk_free_bytes:") && info.contains("blocked_clients:0\r\n"), "{info}");
        assert_eq!(server.client().say("PING").text(), "PONG", "a new connection is served");
    }
    machine.assert_within(asked.elapsed(), HANG / 2, "PING and INFO");
    for waiting in [&pusher, &queued] {
        assert!(is_unanswered(waiting), "nothing is confirmed before it is on disk");
    }
    drop(hanging);
    assert_eq!(pusher.reply().ids().len(), 1, "it is confirmed when it is on disk");
    assert_eq!(queued.reply().tasks().len(), 1);
    assert!(!queued.reply().list().is_empty());
}

/// Whether no byte of a reply has arrived.
pub(crate) fn is_unanswered(client: &RespClient) -> bool {
    client.stream().set_nonblocking(true).expect("it is open");
    let peeked = client.stream().peek(&mut [0]);
    client.stream().set_nonblocking(false).expect("it is open");
    peeked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// A stop does not wait indefinitely for a disk that hangs.
#[test]
fn a_stop_on_a_disk_that_hangs_ends_with_a_report() {
    let dir = scratch();
    let mut server = serve(dir.path()).start();
    let mut pusher = server.client();
    pusher.push("q", "before");
    let hanging = slow_syncs(&server, Duration::from_secs(300));
    pusher.begin("RQ.PUSH q x");
    assert_eq!(server.client().say("PING").text(), "PONG");
    server.terminate();
    server.find_in_stderr(|line| line.contains("did not answer").then_some(()));
    // The process only ends when the hanging calls have returned, as on a real disk.
    drop(hanging);
    assert_eq!(server.exit_code(PATIENCE), DISK_FAILED, "{}", *server);
    assert!(!serve(dir.path()).start().client().pop("q", 100).is_empty(), "confirmed tasks are kept");
}
