//! `sureq dq`: the command line of DefferedQ, used like its users do.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use sureq_testkit::client::TextClient;
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::process::Process;
use sureq_testkit::server_process::Launch;

use crate::{SUREQ, scratch};

/// The command with its data in `dir`, on a port that the system chooses.
fn dq(dir: &Path) -> Launch {
    Launch::new(SUREQ).args(["dq", "-p", "0", "-home"]).args([format!("file:{}", dir.display())])
}

/// Waits for the line with the address, and connects; returns the line too.
fn connect(process: &Process) -> (TextClient, String) {
    let line =
        process.find_in_stderr(|line| line.starts_with("Listening ").then(|| line.trim_end().to_owned()));
    let address =
        line.split(' ').nth(1).and_then(|address| address.parse().ok()).expect("it names an address");
    (TextClient::connect(address), line)
}

#[test]
fn help_shows_banner_and_flags() {
    let mut process = Launch::new(SUREQ).args(["dq", "--help"]).spawn();
    assert_eq!(process.exit_code(Duration::from_secs(5)), 0);
    assert_eq!(process.stdout(), "DefferedQ is a simple and fast work queue.\n\n");
    let usage = process.stderr();
    assert!(
        usage.starts_with("Usage of ") && usage.lines().next().is_some_and(|line| line.ends_with(':')),
        "{usage}"
    );
    for flag in ["  -debug uint", "  -h string", "  -ict uint", "  -p string", "  -rta uint", "  -rtt uint"] {
        assert!(usage.lines().any(|line| line == flag), "{flag} is missing in:\n{usage}");
    }
}

#[test]
fn a_bad_flag_ends_with_2_and_the_usage() {
    for (args, why) in [
        (&["-x", "1"][..], "flag provided but not defined: -x"),
        (&["-ict"], "flag needs an argument: -ict"),
        (&["-rtt", "-1"], "invalid value \"-1\" for flag -rtt: parse error"),
        (&["-rta=x"], "invalid value \"x\" for flag -rta: parse error"),
        (&["---p", "1"], "bad flag syntax: ---p"),
    ] {
        let mut process = Launch::new(SUREQ).args(["dq"]).args(args).spawn();
        assert_eq!(process.exit_code(Duration::from_secs(5)), 2, "{args:?}");
        let said = process.stderr();
        assert!(said.starts_with(why) && said.contains("\nUsage of "), "{args:?}: {said}");
    }
}

#[test]
fn an_unavailable_address_ends_with_1() {
    let (dir, taken) = (scratch(), std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free"));
    let port = taken.local_addr().expect("it is bound").port().to_string();
    for (host, port) in [("127.0.0.1", &*port), ("127.0.0.1", "70000"), ("no.such.host.invalid", "1")] {
        let home = format!("file:{}", dir.path().display());
        let mut process = Launch::new(SUREQ).args(["dq", "-h", host, "-p", port, "-home", &home]).spawn();
        assert_eq!(process.exit_code(Duration::from_secs(10)), 1, "{host}:{port}");
        assert!(process.stderr().starts_with("Error listening: "), "{process}");
    }
}

#[test]
fn the_start_line_has_the_options_in_every_syntax_of_go() {
    let dir = scratch();
    let expected = "with options -ict=5 -rtt=7 -rta=256 -debug=true";
    for args in [
        &["-ict", "5", "-rtt", "7", "-rta", "256", "-debug", "1"][..],
        &["--ict=5", "-rtt=7", "--rta", "256", "-debug=1", "rest", "-ict", "9"],
    ] {
        let process = dq(dir.path()).args(args).spawn();
        let (mut client, line) = connect(&process);
        assert!(line.starts_with("Listening 127.0.0.1:") && line.ends_with(expected), "{line}");
        assert!(client.say("STATS").starts_with("TASKS 0 RESERVED 0 CONNECTIONS 1 HEAP "));
        assert!(process.stdout_so_far().is_empty(), "{process}");
    }
    let process = dq(dir.path()).spawn();
    assert!(connect(&process).1.ends_with(" with options -ict=0 -rtt=0 -rta=0 -debug=false"));
}

#[test]
fn debug_logs_requests() {
    let dir = scratch();
    let process = dq(dir.path()).args(["-debug", "1"]).spawn();
    let (mut client, _) = connect(&process);
    let expected = format!("New task {}", client.add(0, "body"));
    process.find_in_stderr(|line| line.contains(&expected).then_some(()));
}

#[test]
fn a_link_named_dq_is_the_command_itself() {
    let dir = scratch();
    let link = dir.path().join("dq");
    symlink(SUREQ, &link).expect("the directory is empty");
    let home = format!("file:{}", dir.path().join("data").display());
    let process = Launch::new(&link).args(["-p", "0", "-home", &home]).spawn();
    let (mut client, _) = connect(&process);
    let id = client.add(0, "body");
    assert_eq!(client.say("RESERVE"), format!("TASK {id} BODY body"));
    assert_eq!(client.say(&format!("RETURN {id} 0")), "ok");
    assert_eq!(client.say("RESERVE"), format!("TASK {id} BODY body"));
    assert_eq!(client.say(&format!("DELETE {id}")), "ok");

    let mut help = Launch::new(&link).args(["--help"]).spawn();
    assert_eq!(help.exit_code(Duration::from_secs(5)), 0);
    assert!(help.stderr().starts_with(&format!("Usage of {}:\n", link.display())), "{help}");
}

/// This dialect has no waiting requests: a client has to poll, with a pause that leaves the CPU to others.
const PACE: Duration = Duration::from_millis(10);

#[test]
fn a_quiet_connection_is_closed_and_a_busy_one_is_not() {
    let dir = scratch();
    let process = dq(dir.path()).args(["-ict", "3"]).spawn();
    let (mut busy, line) = connect(&process);
    let address =
        line.split(' ').nth(1).and_then(|address| address.parse().ok()).expect("it names an address");
    let mut quiet = TextClient::connect(address);
    let began = Instant::now();
    // The busy client sends more often than the limit, for longer than the limit.
    while began.elapsed() < Duration::from_millis(4_500) {
        assert_eq!(busy.say("RESERVE"), "nil");
        std::thread::sleep(PACE * 10);
    }
    assert!(quiet.is_closed());
    assert_eq!(busy.say("RESERVE"), "nil");
    let (machine, last) = (MachineWatch::start(), Instant::now());
    assert!(busy.is_closed());
    let took = last.elapsed();
    assert!(took >= Duration::from_millis(2_900), "closed after {took:?}");
    machine.assert_within(took, Duration::from_secs(5), "a limit of three seconds");
}

/// Polls until there is a task. Returns when it was delivered, in seconds since `began`.
fn reserve_at(client: &mut TextClient, began: Instant) -> f64 {
    let deadline = Instant::now() + Duration::from_secs(10);
    while client.say("RESERVE") == "nil" {
        assert!(Instant::now() < deadline, "the task was never requeued");
        std::thread::sleep(PACE);
    }
    began.elapsed().as_secs_f64()
}

#[test]
fn the_watcher_returns_a_stuck_task_twice_and_then_deletes_it() {
    let dir = scratch();
    let process = dq(dir.path()).args(["-rtt", "1", "-rta", "2"]).spawn();
    let (mut client, _) = connect(&process);
    client.add(0, "stuck");
    let (machine, began) = (MachineWatch::start(), Instant::now());
    for due in [0.0, 2.0, 4.0] {
        let taken = reserve_at(&mut client, began);
        assert!(taken > due - 0.01, "taken at {taken}, before {due}");
        machine.assert_within(
            Duration::from_secs_f64(taken),
            Duration::from_secs_f64(due + 0.9),
            "a task that is requeued",
        );
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while !client.say("STATS").starts_with("TASKS 0 RESERVED 0 ") {
        assert!(Instant::now() < deadline, "it was never deleted: {}", client.say("STATS"));
        std::thread::sleep(PACE);
    }
    let deleted = began.elapsed();
    assert!(deleted > Duration::from_millis(4_980), "deleted after {deleted:?}");
    machine.assert_within(deleted, Duration::from_millis(6_500), "a task that is deleted");
}

#[test]
fn the_watcher_of_one_reservation_does_not_affect_the_next() {
    let dir = scratch();
    let process = dq(dir.path()).args(["-rtt", "3", "-rta", "9"]).spawn();
    let (mut client, _) = connect(&process);
    let id = client.add(0, "x");
    client.say("RESERVE");
    // The watcher uses real time; `text-watcher-timer.txt` tests the same with a manual clock.
    std::thread::sleep(Duration::from_millis(1_800));
    assert_eq!(client.say(&format!("RETURN {id} 0")), "ok");
    client.say("RESERVE");
    // The first reservation would have lapsed by now if the task had not been returned.
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(client.say("STATS").starts_with("TASKS 0 RESERVED 1 "));
    assert_eq!(client.say(&format!("DELETE {id}")), "ok");
}

/// Users of the original run several servers on one host, in one directory.
#[test]
fn a_second_server_in_a_directory_is_refused_with_advice() {
    let dir = scratch();
    let first = dq(dir.path()).spawn();
    let (mut client, _) = connect(&first);
    let mut second = dq(dir.path()).spawn();
    assert_eq!(second.exit_code(Duration::from_secs(5)), 1);
    let said = second.stderr();
    for words in ["is in use by another sureq", "-home file:DIR", "-home mem:"] {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(client.say("RESERVE"), "nil", "the first one serves");
    let third = Launch::new(SUREQ).args(["dq", "-p", "0", "-home", "mem:"]).spawn();
    assert_eq!(connect(&third).0.say("RESERVE"), "nil");
}

#[test]
fn numbers_are_read_in_every_base_of_go() {
    let dir = scratch();
    let process = dq(dir.path()).args(["-rtt", "010", "-rta=0x10", "--ict", "1_0", "-debug=0b0"]).spawn();
    assert!(connect(&process).1.ends_with(" with options -ict=10 -rtt=8 -rta=16 -debug=false"));
}

/// The two-dash forms print the banner first; all forms print the usage.
#[test]
fn help_is_printed_for_any_help_flag() {
    for args in [&["dq", "-help"][..], &["dq", "-p", "0", "--help"]] {
        let mut process = Launch::new(SUREQ).args(args.iter().copied()).spawn();
        assert_eq!(process.exit_code(Duration::from_secs(5)), 0, "{args:?}");
        assert_eq!(process.stdout(), "", "{args:?}");
        assert!(process.stderr().starts_with("Usage of "), "{process}");
    }
}
