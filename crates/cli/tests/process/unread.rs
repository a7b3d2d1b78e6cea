//! Unread replies cost bounded memory, in every home and dialect.

use sureq_testkit::client::encode;
use sureq_testkit::redis_server::RedisServer;
use sureq_testkit::server_process::{Launch, Server};

use crate::{SUREQ, scratch, serve};

/// The most memory that a server may use: its own, a few batches of replies, and free memory of the allocator.
const PEAK_BYTES: u64 = 250 << 20;

fn in_front_of(redis: &RedisServer) -> Launch {
    let words = ["serve", "--resp", "127.0.0.1:0", "--text", "127.0.0.1:0", "--home"];
    Launch::new(SUREQ).args(words).args([redis.url()])
}

fn check_peak(server: &Server) {
    let peak = server.peak_bytes();
    assert!(peak < PEAK_BYTES, "the server used {} MB", peak >> 20);
}

/// Requests many large replies before the first is read; then reads all of them.
fn many_large_replies(server: &Server) {
    const COUNT: usize = 60;
    let payload = vec![b'x'; 8 << 20];
    let mut client = server.client();
    client.push("q", &payload);
    let ask = encode(&["RQ.INSPECT", "q", "0", "1"]);
    client.send_raw(&ask.repeat(COUNT)).expect("it reads");
    for _ in 0..COUNT {
        assert_eq!(client.reply().list().remove(0).list()[1].clone().bytes().len(), payload.len());
    }
    check_peak(server);
}

/// The same in the text dialect, whose lines are short.
fn many_lines(server: &Server) {
    const COUNT: usize = 3_000;
    let body = "x".repeat(60_000);
    let mut client = server.text_client();
    for _ in 0..COUNT {
        client.add(0, &body);
    }
    client.send_raw(&b"RESERVE\n".repeat(COUNT)).expect("it reads");
    for n in 0..COUNT {
        let line = client.line();
        assert!(line.ends_with(&body), "reply {n} is {} bytes", line.len());
    }
    check_peak(server);
}

#[test]
fn large_replies_in_front_of_a_redis() {
    let redis = RedisServer::start();
    many_large_replies(&in_front_of(&redis).start());
}

#[test]
fn large_replies_of_a_directory() {
    let dir = scratch();
    many_large_replies(&serve(&dir.path().join("data")).args(["--durability", "none"]).start());
}

#[test]
fn many_lines_in_front_of_a_redis() {
    let redis = RedisServer::start();
    many_lines(&in_front_of(&redis).start());
}

#[test]
fn many_lines_of_a_directory() {
    let dir = scratch();
    many_lines(&serve(&dir.path().join("data")).args(["--durability", "none"]).start());
}
