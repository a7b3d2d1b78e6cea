//! A backlog larger than the cache, which real clients read back from the disk: in order, in both dialects, with
//! other commands in between, and with damage that is reported.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sureq_testkit::client::{Value, encode};
use sureq_testkit::patience::until;
use sureq_testkit::server_process::{Launch, Server};
use sureq_testkit::slow_disk::slow_reads;

use crate::disk_failure::is_unanswered;
use crate::{scratch, serve};

const TASKS: usize = 1500;

fn payload(n: usize) -> String {
    format!("{n:06}-{}", "abcdefgh".repeat(500))
}

fn launch(data: &Path) -> Launch {
    serve(data).args(["--cache", "1MB", "--segment-bytes", "1MB", "--text-line-max", "64KB"])
}

/// A server with a backlog, none of which is in memory.
fn cold(data: &Path) -> Server {
    let mut server = launch(data).start();
    let mut client = server.client();
    for n in (0..TASKS).step_by(10) {
        let argv: Vec<String> =
            ["RQ.PUSH", "q"].into_iter().map(str::to_owned).chain((n..n + 10).map(payload)).collect();
        assert_eq!(client.command(&argv).ids().len(), 10);
    }
    server.kill9();
    launch(data).start()
}

fn numbers(tasks: &[sureq_testkit::client::Task]) -> Vec<usize> {
    let number = |payload: &[u8]| {
        let text = std::str::from_utf8(payload).expect("it is text");
        let number: usize = text[..6].parse().expect("it begins with a number");
        assert_eq!(text, self::payload(number), "it is as it was pushed");
        number
    };
    tasks.iter().map(|task| number(&task.payload)).collect()
}

#[test]
fn a_backlog_is_delivered_in_order_by_all_kinds_of_pops() {
    let dir = scratch();
    let server = cold(&dir.path().join("data"));
    let mut client = server.client();
    let mut next = 0;
    let mut expect = |seen: Vec<usize>| {
        assert_eq!(seen, (next..next + seen.len()).collect::<Vec<_>>());
        next += seen.len();
    };
    for _ in 0..50 {
        expect(numbers(&client.pop("q", 1)));
    }
    for _ in 0..5 {
        expect(numbers(&client.pop("q", 100)));
    }
    // A pop that reads from the disk, with many other commands after it.
    let pop = encode(&["RQ.POP", "COUNT", "20", "q"]);
    let turn = [&pop[..], &encode(&["PING"]), &encode(&["RQ.PUSH", "other", "x"]), &pop].concat();
    client.send_raw(&turn.repeat(10)).expect("the server reads");
    for _ in 0..10 {
        expect(numbers(&client.reply().tasks()));
        assert_eq!(client.reply().text(), "PONG");
        assert_eq!(client.reply().ids().len(), 1);
        expect(numbers(&client.reply().tasks()));
    }
    let shown = client.say("RQ.INSPECT q 0 100");
    assert!(matches!(shown, Value::Array(ref tasks) if tasks.len() == 100), "{shown:?}");
    // A client that disconnects before it has the reply returns the tasks.
    let mut gone = server.client();
    gone.begin("RQ.POP CONN COUNT 50 q");
    drop(gone);
    let mut left = Vec::new();
    while left.len() < TASKS - 950 {
        left.extend(numbers(&client.pop("q", 100)));
    }
    left.sort_unstable();
    assert_eq!(left, (950..TASKS).collect::<Vec<_>>());
}

/// A slow read of one client's payload does not delay others, even if one thread serves all of them.
#[test]
fn a_slow_read_delays_only_its_own_client() {
    const HANG: Duration = Duration::from_secs(300);
    let dir = scratch();
    let data = dir.path().join("data");
    cold(&data).kill9();
    let (first, _) = find(&data, payload(0).as_bytes());
    let server = launch(&data).args(["--threads", "1"]).start();
    let (mut taker, mut other) = (server.client(), server.client());
    let hanging = slow_reads(&server, &first, HANG);
    taker.begin("RQ.POP COUNT 5 q");
    until("the tasks are popped", || other.counts("q").1 == 5);
    for _ in 0..3 {
        assert_eq!(other.say("PING").text(), "PONG");
        other.push("other", "x");
    }
    assert!(is_unanswered(&taker), "the payloads were not read from the disk");
    drop(hanging);
    assert_eq!(numbers(&taker.reply().tasks()), [0, 1, 2, 3, 4]);
}

/// The file of the log and the offset that contain these bytes.
fn find(data: &Path, bytes: &[u8]) -> (PathBuf, u64) {
    let files = std::fs::read_dir(data).expect("it exists").map(|entry| entry.expect("it exists").path());
    let segments = files.filter(|path| path.extension().is_some_and(|extension| extension == "seg"));
    let found = segments.filter_map(|path| {
        let content = std::fs::read(&path).expect("it exists");
        let at = content.windows(bytes.len()).position(|window| window == bytes)?;
        Some((path, at as u64))
    });
    found.last().expect("it is in the log")
}

#[test]
fn a_payload_damaged_under_a_running_server_is_reported_and_set_aside() {
    let dir = scratch();
    let data = dir.path().join("data");
    let server = cold(&data);
    let (file, at) = find(&data, payload(700).as_bytes());
    let open = std::fs::File::options().write(true).open(&file).expect("it exists");
    open.write_all_at(b"?", at + 1000).expect("it can be damaged");
    let (mut client, mut other) = (server.client(), server.client());
    let mut seen = Vec::new();
    while seen.len() < TASKS - 1 {
        assert_eq!(other.say("PING").text(), "PONG");
        let popped = numbers(&client.say("RQ.POP COUNT 50 q").tasks());
        assert!(!popped.is_empty(), "{} of {TASKS}", seen.len());
        seen.extend(popped);
    }
    assert_eq!(seen, (0..TASKS).filter(|n| *n != 700).collect::<Vec<_>>());
    let name = file.file_name().and_then(|name| name.to_str()).expect("it is text");
    let place = format!("{name} is damaged at offset {at}");
    let dead = client.say("RQ.INSPECT q DEAD 0 10").list();
    let reason = dead[0].clone().list().swap_remove(3).text();
    assert!(dead.len() == 1 && reason.contains(&place), "{reason}");
    let info = client.say("INFO persistence").text();
    assert!(info.contains("unreadable_tasks:1\r\n"), "{info}");
    server.find_in_stderr(|line| line.contains(&place).then_some(()));
}
