//! Panics are contained: the server keeps running.

use std::path::PathBuf;

use sureq_testkit::redis_module::Host;

use crate::support::Client;

/// Injects a panic into every callback that a client can reach, one at a time. The server keeps answering and logs
/// the panic.
#[test]
fn no_panic_ends_the_server() {
    let cases: &[(&str, &[&str])] = &[
        ("command", &["RQ.PUSH q a"]),
        ("keys", &["COMMAND GETKEYS RQ.POP q"]),
        ("alarm", &["RQ.ADD q a DELAY 1"]),
        ("woken", &["RQ.PUSH q a"]),
        ("over", &[]),
        ("save", &["RQ.PUSH q a", "DUMP q"]),
        ("load", &["RQ.PUSH q a", "DEBUG RELOAD NOFLUSH MERGE"]),
        ("rewrite", &["CONFIG SET aof-use-rdb-preamble no", "RQ.PUSH q a", "BGREWRITEAOF"]),
        ("free", &["RQ.PUSH q a", "DEL q"]),
        ("memory", &["RQ.PUSH q a", "MEMORY USAGE q"]),
        ("effort", &["RQ.PUSH q a", "UNLINK q"]),
        ("copy", &["RQ.PUSH q a", "COPY q r"]),
        ("digest", &["RQ.PUSH q a", "DEBUG DIGEST-VALUE q"]),
        ("key event", &["RQ.PUSH q a", "RENAME q r"]),
        ("server event", &["SWAPDB 0 1"]),
        ("info", &["INFO sureq"]),
        ("apply", &["RQ.APPLY q x"]),
    ];
    for (callback, lines) in cases {
        let environment = [("SUREQ_MODULE_PANIC", PathBuf::from(callback))];
        let server = Host::Redis.start(&[], &environment);
        let (mut waiting, mut client) = (Client::of(&server), Client::of(&server));
        waiting.ask(if *callback == "over" { "RQ.POP BLOCK 20 q" } else { "RQ.POP BLOCK 0 q" });
        if !matches!(*callback, "command" | "over" | "info") {
            client.wait_until("clients", "blocked_clients", "1");
        }
        for line in *lines {
            // The reply does not matter.
            let _ = client.try_say(line);
        }
        let contained = format!("a panic in {callback} was contained");
        let found = server.process().try_find_in_stdout(|line| line.contains(&contained).then_some(()));
        assert!(found.is_some(), "{callback} was not called:\n{}", server.process());
        assert_eq!(client.text("PING"), "PONG", "{callback}");
        assert!(!server.process().has_ended(), "{callback}");
    }
}
