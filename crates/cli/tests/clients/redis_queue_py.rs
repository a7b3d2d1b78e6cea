//! The published redis-queue for Python and a sureq server share a queue.

use sureq_testkit::redis_server::RedisServer;
use sureq_testkit::server_process::Launch;

use crate::{SUREQ, scripts};

/// Calls the published client once; returns the words that it printed.
fn redis_queue_py(redis: &RedisServer, call: &[&str]) -> Vec<String> {
    let socket = redis.socket();
    let arguments =
        [&[socket.to_str().expect("a temporary directory has a plain name"), "jobs"], call].concat();
    let output = scripts::python("redis_queue_py.py", &arguments);
    output.split_whitespace().map(str::to_owned).collect()
}

fn list(redis: &RedisServer) -> Vec<String> {
    redis::cmd("LRANGE").arg("jobs").arg(0).arg(-1).query(&mut redis.connect()).expect("it is a list")
}

#[test]
fn the_published_redis_queue_shares_a_queue_in_both_directions() {
    let redis = RedisServer::start();
    let home = format!("{}?layout=redis-queue", redis.url());
    let words = ["serve", "--home", &home, "--resp", "127.0.0.1:0", "--text", "127.0.0.1:0"];
    let server = Launch::new(SUREQ).args(words).start();
    let mut client = server.client();
    let from_them = redis_queue_py(&redis, &["push", "from-python"]).remove(0);
    let from_us = client.push("jobs", "from-sureq");
    assert_eq!(client.counts("jobs"), (2, 0));
    // Each program takes the task that the other pushed.
    let popped = client.pop("jobs", 1);
    assert_eq!((&popped[0].id, &popped[0].payload[..]), (&from_them, &b"from-python"[..]));
    assert_eq!(redis_queue_py(&redis, &["pop"]), [&from_us[..], "from-sureq"]);
    assert_eq!(client.counts("jobs"), (0, 2));
    assert!(client.pop("jobs", 1).is_empty(), "both tasks are taken, and neither is late");
    assert_eq!(redis_queue_py(&redis, &["pop"]), ["None", "None"]);
    // A task that one program marks as done is removed by the next operation of the other that finds its entry.
    redis_queue_py(&redis, &["done", &from_us]);
    assert_eq!(client.counts("jobs"), (0, 1));
    assert!(client.ack("jobs", &from_them));
    assert!(!client.ack("jobs", &from_them));
    assert!(client.pop("jobs", 1).is_empty());
    assert_eq!(list(&redis), Vec::<String>::new());
}
