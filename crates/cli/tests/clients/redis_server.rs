//! The replies to subscriptions are byte for byte those of a real Redis, on which clients rely.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;

use sureq_testkit::client::encode;
use sureq_testkit::process::{PATIENCE, Process};
use tempfile::TempDir;

use crate::Fixture;

/// A Redis that can only be reached through its directory.
struct Redis {
    dir: TempDir,
    _process: Process,
}

impl Redis {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket", "socket"]).current_dir(dir.path());
        let process = Process::start(&mut command);
        process.find_in_stdout(|line| line.contains("ready to accept connections").then_some(()));
        Self { dir, _process: process }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.dir.path().join("socket")).expect("redis listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a positive time");
        stream
    }
}

/// All bytes that answer these lines, until the connection is closed.
fn talk(mut stream: impl Read + Write, lines: &[&str]) -> String {
    for line in lines {
        stream.write_all(&encode(&line.split(' ').collect::<Vec<_>>())).expect("the server reads");
    }
    let mut replies = Vec::new();
    stream.read_to_end(&mut replies).expect("the server closes after QUIT");
    String::from_utf8(replies).expect("replies are text")
}

/// The bytes after the reply to HELLO, which contains the name of the server.
fn behind_hello(replies: &str) -> &str {
    replies.rsplit_once("$7\r\nmodules\r\n*0\r\n").map_or(replies, |(_, behind)| behind)
}

#[test]
fn subscriptions_are_answered_like_redis() {
    let (it, redis) = (Fixture::start(), Redis::start());
    let check = |lines: &[&str]| {
        let ours = TcpStream::connect(it.server.resp).expect("the server accepts");
        ours.set_read_timeout(Some(PATIENCE)).expect("a positive time");
        let (ours, theirs) = (talk(ours, lines), talk(redis.connect(), lines));
        assert_eq!(behind_hello(&ours), behind_hello(&theirs), "{lines:#?}");
    };
    let stories: [&[&str]; 5] = [
        &["SUBSCRIBE a b a", "PSUBSCRIBE x* a", "PING", "PING hi", "UNSUBSCRIBE a nope", "PUNSUBSCRIBE a"],
        &["SUBSCRIBE a", "PSUBSCRIBE b", "UNSUBSCRIBE", "ECHO no", "PUNSUBSCRIBE", "ECHO yes", "PING"],
        &["UNSUBSCRIBE", "PUNSUBSCRIBE", "UNSUBSCRIBE a b", "PUNSUBSCRIBE a", "PING"],
        &[
            "SUBSCRIBE a",
            "PSUBSCRIBE b",
            "RESET",
            "ECHO yes",
            "PUBSUB CHANNELS",
            "PUBSUB NUMPAT",
            "UNSUBSCRIBE a",
        ],
        &[
            "SUBSCRIBE",
            "PSUBSCRIBE",
            "PUBSUB",
            "PUBSUB CHANNELS a b",
            "PUBSUB NUMPAT x",
            "PUBSUB NUMSUB",
            "PUBSUB NUMSUB a b",
            "PUBSUB NOPE",
            "SUBSCRIBE a",
            "SUBSCRIBE",
            "NOPE a",
        ],
    ];
    // In RESP2 all of these are refused; in RESP3 their replies differ between the two servers.
    check(&["SUBSCRIBE a", "ECHO x", "CLIENT GETNAME", "HELLO 3", "TIME", "PUBSUB NUMPAT", "INFO", "QUIT"]);
    for story in stories {
        check(&[story, &["QUIT"]].concat());
        check(&[&["HELLO 3"], story, &["QUIT"]].concat());
    }
    check(&["HELLO 3", "SUBSCRIBE a", "PUBSUB CHANNELS", "PUBSUB CHANNELS b*", "PUBSUB NUMSUB a", "QUIT"]);
    check(&["HELLO 3", "SUBSCRIBE a", "HELLO 2", "ECHO no", "PING", "QUIT"]);
}
