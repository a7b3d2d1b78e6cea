//! `sureq clean`, used like an operator would.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use sureq_testkit::process::Process;
use sureq_testkit::redis_server::RedisServer;
use sureq_testkit::server_process::Launch;

use crate::{SUREQ, scratch};

const PATIENCE: Duration = Duration::from_secs(60);

fn url(redis: &RedisServer, layout: &str) -> String {
    format!("{}?layout={layout}", redis.url())
}

/// Runs `sureq clean` to its end: the exit code, and its output.
fn clean(args: &[&str]) -> (i32, String, String) {
    let mut process = Launch::new(SUREQ).args(["clean"]).args(args).spawn();
    (process.exit_code(PATIENCE), process.stdout(), process.stderr())
}

/// Sends raw lines to Redis.
fn send(redis: &RedisServer, lines: &[&str]) {
    let mut connection = redis.connect();
    for line in lines {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().expect("a line has words"));
        words.for_each(|word| _ = command.arg(word));
        let _: redis::Value = command.query(&mut connection).expect("Redis answers");
    }
}

fn list(redis: &RedisServer, key: &str) -> Vec<String> {
    redis::cmd("LRANGE").arg(key).arg(0).arg(-1).query(&mut redis.connect()).expect("it is a list")
}

#[test]
fn abandoned_tasks_are_requeued_in_every_layout_and_counted_per_queue() {
    let redis = RedisServer::start();
    let url_of = |layout| url(&redis, layout);
    send(&redis, &["SET a:item:1 x", "LPUSH a:processing 1", "SET b:item:2 y", "LPUSH b:queue 2"]);
    let (code, out, _) = clean(&[&url_of("work-queue")]);
    assert_eq!((code, &out[..]), (0, "a: 1 requeued, 0 removed\nb: nothing to do\n"));
    assert_eq!(list(&redis, "a:queue"), ["1"]);
    send(&redis, &["SET lost:item:3 x", "LPUSH lost:queue ghost"]);
    let (code, out, _) = clean(&[&url_of("work-queue"), "lost", "--deep", "--json"]);
    let expect = json!({
        "queues": [{"name": "lost", "returned": 1, "removed": 1, "error": null}],
        "marks": 0,
    });
    assert_eq!((code, serde_json::from_str::<Value>(&out).unwrap()), (0, expect));
    send(
        &redis,
        &[
            "FLUSHALL",
            "LPUSH worqr:processes:jobs_p t",
            "SADD worqr:workingProcesses:jobs jobs_p",
            "SET worqr:uniqueTasks:36f34fd8319cf30f8e132ef294c616af x",
        ],
    );
    let (code, out, _) = clean(&[&url_of("worqr"), "--deep"]);
    let expected = "jobs: 1 requeued, 0 removed\n1 stale marks of unique tasks removed\n";
    assert_eq!((code, &out[..]), (0, expected));
    assert_eq!(list(&redis, "worqr:queues:jobs"), ["t"]);
    send(&redis, &["FLUSHALL", "SET jobs:data:i x"]);
    let (code, out, _) = clean(&[&url_of("redis-queue"), "--deep"]);
    assert_eq!((code, &out[..]), (0, "jobs: 1 requeued, 0 removed\n"));
    assert_eq!(list(&redis, "jobs"), ["i"]);
    let (code, out, _) = clean(&[&format!("{}&prefix=none", url_of("worqr"))]);
    assert_eq!((code, &out[..]), (0, "no queues\n"));
}

#[test]
fn cleaning_other_homes_is_refused() {
    let redis = RedisServer::start();
    let dir = scratch();
    for home in [redis.url(), format!("file:{}", dir.path().join("data").display()), "mem:".to_owned()] {
        let (code, out, err) = clean(&[&home]);
        assert_eq!((code, &out[..]), (1, ""), "{err}");
        assert!(err.contains("has no cleaning: "), "{err}");
    }
    let (code, _, err) = clean(&["redis://127.0.0.1:1?layout=worqr"]);
    assert_eq!(code, 1);
    assert!(err.starts_with("sureq: cannot open redis://127.0.0.1:1?layout=worqr: "), "{err}");
    let (code, _, err) = clean(&["redis://127.0.0.1:1", "--every", "5"]);
    assert_eq!(code, 2);
    assert!(err.contains("write a number with its unit"), "{err}");
}

#[test]
fn a_queue_that_cannot_be_cleaned_is_reported_and_the_others_are_cleaned() {
    let redis = RedisServer::start();
    send(&redis, &["SET a:item:1 x", "LPUSH a:processing 1", "LPUSH old:queue 2", "LPUSH old:cleaning 3"]);
    let (code, out, _) = clean(&[&url(&redis, "work-queue")]);
    assert_eq!(code, 75, "{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "a: 1 requeued, 0 removed");
    assert!(lines[1].starts_with("old: not cleaned: ") && lines.len() == 2, "{out}");
}

#[test]
fn every_repeats_until_a_signal_and_prints_changes() {
    let redis = RedisServer::start();
    let url = url(&redis, "worqr");
    let mut cleaning: Process = Launch::new(SUREQ).args(["clean", &url, "--every", "20ms"]).spawn();
    for round in 0..2 {
        send(&redis, &["LPUSH worqr:processes:jobs_p t", "SADD worqr:workingProcesses:jobs jobs_p"]);
        let seen = std::cell::Cell::new(0);
        cleaning.find_in_stdout(|line| {
            seen.set(seen.get() + usize::from(line.contains("jobs: 1 requeued, 0 removed")));
            (seen.get() > round).then_some(())
        });
    }
    cleaning.signal(Signal::TERM);
    assert_eq!(cleaning.exit_code(PATIENCE), 0, "{cleaning}");
    assert_eq!(list(&redis, "worqr:queues:jobs"), ["t", "t"]);
}
