//! The guarantees of the durability levels below `always`, and of a home in memory.

use std::process::Command;

use sureq_testkit::client::{RespClient, encode};
use sureq_testkit::process::{PATIENCE, Process};
use sureq_testkit::server_process::Launch;

const SUREQ: &str = env!("CARGO_BIN_EXE_sureq");

/// Pushes a thousand tasks one after the other, and pops and acks the first one.
fn work(client: &mut RespClient) {
    let push = encode(&["RQ.PUSH", "q", "x"]);
    client.send_raw(&push.repeat(1_000)).expect("the server reads");
    let ids: Vec<String> = (0..1_000).flat_map(|_| client.reply().ids()).collect();
    assert_eq!(client.pop("q", 1)[0].id, ids[0]);
    assert!(client.ack("q", &ids[0]));
    assert_eq!(client.pop("q", 1)[0].id, ids[1]);
}

#[test]
fn at_the_level_interval_a_kill_loses_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let launch = Launch::serve(SUREQ, dir.path()).args(["--durability", "interval"]);
    let mut server = launch.start();
    work(&mut server.client());
    server.kill9();
    assert_eq!(launch.start().client().counts("q"), (998, 1));
}

#[test]
fn at_the_level_none_an_orderly_stop_loses_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let launch = Launch::serve(SUREQ, dir.path()).args(["--durability", "none"]);
    let mut server = launch.start();
    work(&mut server.client());
    server.terminate();
    assert_eq!(server.exit_code(PATIENCE), 0);
    assert_eq!(launch.start().client().counts("q"), (998, 1));
}

#[test]
fn memory_serves_like_a_directory_and_keeps_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for _ in 0..2 {
        let mut command = Command::new(SUREQ);
        let arguments = ["serve", "--home", "mem:", "--resp", "127.0.0.1:0", "--text", "off"];
        let mut server = Process::start(command.args(arguments).current_dir(dir.path()));
        let address = server.find_in_stdout(|line| {
            line.trim_start().strip_prefix("Redis clients")?.split_whitespace().next()?.parse().ok()
        });
        let mut client = RespClient::connect(address);
        assert_eq!(client.counts("q"), (0, 0));
        work(&mut client);
        assert_eq!(client.counts("q"), (998, 1));
        server.kill9();
    }
    let left = std::fs::read_dir(dir.path()).expect("the directory is there").count();
    assert_eq!(left, 0, "nothing is written");
}
