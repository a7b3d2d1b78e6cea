//! A queue stays the same in every way of saving, loading and copying it.

use redis::Value;
use sureq_testkit::redis_module::Host;
use sureq_testkit::redis_server::RedisServer;

use crate::support::{Client, fill, list, shown};

const TASKS: i64 = 10_000;

/// Runs commands in a transaction, so that no timer changes anything between them.
fn at_once(client: &mut Client, lines: &[&str]) -> Vec<Value> {
    client.say("MULTI");
    for line in lines {
        client.say(line);
    }
    list(client.say("EXEC"))
}

fn filled(host: Host, tasks: i64) -> (RedisServer, Client, String) {
    let server = host.start(&[], &[]);
    let mut client = Client::of(&server);
    let mut random = fastrand::Rng::with_seed(7);
    fill(&mut client, "q", tasks.unsigned_abs() as usize, &mut random);
    let digest = client.digest("q");
    assert!(client.counts("q").iter().sum::<i64>() > tasks / 2, "{:?}", client.counts("q"));
    (server, client, digest)
}

fn on_every_way(host: Host) {
    let (mut server, mut client, digest) = filled(host, TASKS);
    let workers = client.digest("sureq:workers");

    let words: [&[u8]; 2] = [b"DUMP", b"q"];
    let Value::BulkString(dump) = client.try_words(&words).expect("it is there") else { panic!("no dump") };
    client.say("MULTI");
    client.try_words(&[b"RESTORE", b"restored", b"0", &dump]).expect("it is queued");
    client.say("DEBUG DIGEST-VALUE restored");
    assert_eq!(shown(&list(client.say("EXEC"))[1]), digest, "DUMP and RESTORE");
    assert_eq!(shown(&at_once(&mut client, &["COPY q copy", "DEBUG DIGEST-VALUE copy"])[1]), digest, "COPY");
    assert_eq!(
        shown(&at_once(&mut client, &["COPY q q DB 3", "SELECT 3", "DEBUG DIGEST-VALUE q"])[2]),
        digest
    );
    client.say("SELECT 0");
    client.say("DEL copy restored");
    client.say("RENAME q r");
    assert_eq!(client.digest("r"), digest, "RENAME");
    client.say("RENAME r q");

    client.say("DEBUG RELOAD");
    assert_eq!(client.digest("q"), digest, "a snapshot");
    client.say("DEBUG LOADAOF");
    assert_eq!(client.digest("q"), digest, "the log");
    for preamble in ["yes", "no"] {
        client.say(&format!("CONFIG SET aof-use-rdb-preamble {preamble}"));
        client.say("BGREWRITEAOF");
        client.wait_until("persistence", "aof_rewrite_in_progress", "0");
        assert_eq!(client.told("persistence", "aof_last_bgrewrite_status"), "ok");
        server.crash();
        client = Client::of(&server);
        assert_eq!(client.digest("q"), digest, "a log that was rewritten, with a preamble: {preamble}");
        assert_eq!(client.digest("sureq:workers"), workers, "with a preamble: {preamble}");
    }
    let counts = client.counts("q");
    let popped = list(client.say("RQ.POP COUNT 100000 q")).len();
    assert_eq!(popped as u64, counts[0].unsigned_abs(), "all ready tasks can be popped");
}

#[test]
fn a_queue_is_the_same_after_saving_and_loading_in_redis() {
    on_every_way(Host::Redis);
}

#[test]
fn a_queue_is_the_same_after_saving_and_loading_in_valkey() {
    on_every_way(Host::Valkey);
}

#[test]
fn a_queue_migrates_to_another_server() {
    let (_server, mut client, digest) = filled(Host::Redis, 1_000);
    let port = sureq_testkit::process::free_port();
    let target = Host::Redis.start(&["--port", &port.to_string()], &[]);
    assert_eq!(client.text(&format!("MIGRATE 127.0.0.1 {port} q 0 20000 COPY")), "OK");
    let mut there = Client::of(&target);
    // The workers do not exist there, so their tasks are requeued, except the cancelled ones, which are removed.
    let [here, there_now] = [&mut client, &mut there].map(|client| client.counts("q").iter().sum::<i64>());
    assert!((here * 9 / 10..=here).contains(&there_now), "{there_now} of {here}");
    assert_eq!(client.digest("q"), digest);
    let first = list(there.say("RQ.POP LEASE 1000 q")).swap_remove(0);
    let receipt = shown(&list(first)[3]);
    assert_eq!(shown(&there.say(&format!("RQ.ACK q {receipt}"))), format!("[{receipt}]"));
}

/// A queue that was restored from a snapshot issues receipts that it never issued before.
#[test]
fn queues_restored_from_one_snapshot_never_repeat_a_receipt() {
    let server = Host::Redis.start(&[], &[]);
    let mut client = Client::of(&server);
    client.say("RQ.PUSH q a");
    let Value::BulkString(dump) = client.try_words(&[b"DUMP", b"q"]).expect("it is there") else { panic!() };
    let mut receipts = std::collections::BTreeSet::new();
    for _ in 0..5 {
        client.say("DEL q");
        client.try_words(&[b"RESTORE", b"q", b"0", &dump]).expect("a snapshot of ours");
        let task = list(list(client.say("RQ.POP LEASE 60000 q")).swap_remove(0));
        assert!(receipts.insert(shown(&task[3])), "{task:?} came before");
    }
    let id = shown(&list(client.say("RQ.PUSH other b"))[0]);
    assert!(receipts.iter().all(|receipt| !receipt.starts_with(&id)), "no id is repeated either");
}
