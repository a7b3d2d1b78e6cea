//! A wall clock that jumps: no task is early, none is stuck, and no id is assigned twice.

use std::time::{Duration, Instant};

use sureq_testkit::client::Value;
use sureq_testkit::load::id_number;
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::server_process::{Launch, Server};
use sureq_testkit::shifted_clock::ShiftedClock;
use tempfile::TempDir;

use crate::{scratch, serve};

const DAY: i64 = 86_400;
const YEAR: i64 = 365 * DAY;

/// A machine whose wall clock the test sets.
struct Machine {
    dir: TempDir,
    clock: ShiftedClock,
}

impl Machine {
    fn new() -> Self {
        Self { dir: scratch(), clock: ShiftedClock::default() }
    }

    /// Sets the clock this many seconds ahead of true time.
    fn set_clock(&self, seconds: i64) {
        self.clock.set_wall(seconds * 1_000);
    }

    fn launch(&self) -> Launch {
        let [(preload, shim), (file, shift)] = self.clock.environment();
        serve(&self.dir.path().join("data")).env(preload, shim).env(file, shift)
    }
}

/// The wall clock of the server, in seconds.
fn wall(server: &Server) -> i64 {
    server.client().say("TIME").list().swap_remove(0).text().parse().expect("TIME answers a number")
}

/// Pushes a task; its id must be larger than all earlier ones.
fn push_above(server: &Server, last: &mut u64) {
    let id = id_number(&server.client().push("q", "x"));
    assert!(id > *last, "{id} came after {last}");
    *last = id;
}

/// A task with a delay of half a second is delivered after half a second, and a pop without a task times out on time.
fn assert_time_passes(server: &Server) {
    let (machine, began) = (MachineWatch::start(), Instant::now());
    let mut text = server.text_client();
    // Both are executed together: in two packets, the machine might delay the second one until the task is due.
    text.send_raw(b"ADD 500 delayed\nRESERVE\n").expect("the server reads");
    assert!(text.line().starts_with("TASK "), "the task is added");
    assert_eq!(text.line(), "nil", "the task is not due");
    let task = server.client().say("RQ.POP BLOCK 5000 default");
    let took = began.elapsed();
    assert_eq!(task.tasks()[0].payload, b"delayed");
    assert!(took >= Duration::from_millis(499), "the task was delivered after {took:?}");
    machine.assert_within(took, Duration::from_secs(2), "a delay of 500 ms");
    assert_eq!(server.client().say("RQ.POP BLOCK 50 default"), Value::Null);
    server.client().say("RQ.RECOVER default 1 0");
}

#[test]
fn a_clock_that_jumps_under_a_running_server_changes_nothing() {
    let machine = Machine::new();
    let mut server = machine.launch().start();
    let truth = wall(&server);
    let mut last = 0;
    let mut lease = server.client();
    lease.push("leased", "x");
    let taken = Instant::now();
    lease.say("RQ.POP LEASE 3000 leased");
    for shift in [YEAR, -YEAR, DAY, 0, -truth, 80 * YEAR] {
        machine.set_clock(shift);
        assert!((wall(&server) - truth - shift).abs() < 60, "the shim moves the clock");
        push_above(&server, &mut last);
        assert_time_passes(&server);
        push_above(&server, &mut last);
        // The time is read after the counts: in the other order, the lease might rightly end in between.
        let has_lapsed = lease.counts("leased") != (0, 1);
        assert!(!has_lapsed || taken.elapsed() >= Duration::from_millis(2900), "the lease ended early");
    }
    assert_ne!(lease.say("RQ.POP BLOCK 5000 leased"), Value::Null, "the lease ends");
    server.kill9();
    assert!(!server.stderr().contains("panic"), "{}", *server);
}

#[test]
fn a_clock_set_while_the_server_was_down_neither_hurries_nor_delays_tasks() {
    let machine = Machine::new();
    let mut last = 0;
    for (shift, crash) in [(0, false), (-DAY, true), (-YEAR, false), (YEAR, true), (0, false), (-YEAR, true)]
    {
        machine.set_clock(shift);
        let mut server = machine.launch().start();
        push_above(&server, &mut last);
        assert_time_passes(&server);
        push_above(&server, &mut last);
        if crash {
            server.kill9();
        } else {
            server.terminate();
            assert_eq!(server.exit_code(Duration::from_secs(5)), 0, "{}", *server);
        }
        assert!(!server.stderr().contains("panic"), "{}", server.stderr());
    }
}

#[test]
fn a_delay_is_kept_when_the_clock_is_set_back_while_the_server_is_down() {
    let machine = Machine::new();
    let mut server = machine.launch().start();
    let began = Instant::now();
    server.text_client().add(2000, "delayed");
    server.kill9();
    machine.set_clock(-DAY);
    let server = machine.launch().start();
    let task = server.client().say("RQ.POP BLOCK 12000 default");
    let took = began.elapsed();
    assert_ne!(task, Value::Null, "the delay never ends");
    assert!(took >= Duration::from_millis(1900), "the task was delivered after {took:?}");
}

#[test]
fn a_crash_that_loses_tasks_and_a_clock_set_back_repeat_no_id() {
    let machine = Machine::new();
    let launch = machine.launch().args(["--durability", "none", "--segment-bytes", "1MB"]);
    // From the fortieth write on the log hangs, while pushes are still confirmed, as this level allows.
    let hang = "inject=pwrite64:delay_enter=60000000:when=40+";
    let hanging =
        launch.clone().under(["strace", "-f", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", hang]);
    let mut server = hanging.start();
    let mut client = server.client();
    let (began, mut pushed, mut last) = (Instant::now(), 0, 0);
    while began.elapsed() < Duration::from_secs(2) {
        last = id_number(&client.push("q", "x"));
        pushed += 1;
    }
    server.kill9();

    machine.set_clock(-DAY);
    let server = launch.start();
    assert!(server.client().counts("q").0 < pushed, "the crash must lose pushes, or the test proves nothing");
    push_above(&server, &mut last);
}
