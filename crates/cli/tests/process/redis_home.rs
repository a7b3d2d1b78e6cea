//! Servers in front of a Redis: any number of them share its queues, and any of them may fail.

use std::process::Command;
use std::time::{Duration, Instant};

use sureq_testkit::client::Value;
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::process::{PATIENCE, Process};
use sureq_testkit::redis_cluster::RedisCluster;
use sureq_testkit::redis_server::RedisServer;
use sureq_testkit::server_process::{Launch, Server};

use crate::SUREQ;

fn in_front_of(redis: &RedisServer) -> Launch {
    at_home(&redis.url())
}

fn in_front_of_layout(redis: &RedisServer, layout: &str) -> Launch {
    at_home(&format!("{}?layout={layout}", redis.url()))
}

fn at_home(url: &str) -> Launch {
    Launch::new(SUREQ).args(["serve", "--home", url, "--resp", "127.0.0.1:0", "--text", "127.0.0.1:0"])
}

/// Waits until a pop of this server waits; polls the server, since nothing signals it.
fn await_waiting(server: &Server) {
    let (mut client, since) = (server.client(), Instant::now());
    while !client.say("INFO clients").text().contains("blocked_clients:1\r\n") {
        assert!(since.elapsed() < PATIENCE, "no pop waits");
    }
}

#[test]
fn servers_in_front_of_a_cluster_share_its_queues() {
    let cluster = RedisCluster::start();
    let (one, two) = (at_home(&cluster.url()).start(), at_home(&cluster.url()).start());
    let (mut producer, mut worker) = (one.client(), two.client());
    for queue in ["a", "b", "c"] {
        let id = producer.push(queue, "hello");
        assert_eq!(worker.pop(queue, 1)[0].payload, b"hello");
        assert!(producer.ack(queue, &id));
    }
    worker.begin("RQ.POP BLOCK 0 a b c");
    await_waiting(&two);
    producer.push("c", "later");
    assert_eq!(worker.reply().tasks()[0].payload, b"later");
    let refused = producer.say("RQ.WORKER START w").error();
    assert!(refused.contains("prefix={sureq}:"), "{refused}");
    cluster.check("sureq:");
}

#[test]
fn two_servers_and_both_dialects_share_a_queue() {
    let redis = RedisServer::start();
    let (one, two) = (in_front_of(&redis).start(), in_front_of(&redis).start());
    let (mut producer, mut worker) = (one.client(), two.client());
    let id = producer.push("emails", "hello");
    assert_eq!(worker.pop("emails", 1)[0].payload, b"hello");
    assert!(producer.ack("emails", &id));
    assert!(!worker.ack("emails", &id));
    // A pop that waits at one server is woken by a push at the other.
    worker.begin("RQ.POP BLOCK 0 default");
    await_waiting(&two);
    let (machine, since) = (MachineWatch::start(), Instant::now());
    one.text_client().add(0, "invoice");
    assert_eq!(worker.reply().tasks()[0].payload, b"invoice");
    machine.assert_within(since.elapsed(), Duration::from_secs(1), "the wake-up");
    // A pipeline is answered in order, each command as if it had been sent alone.
    let pipeline = b"RQ.PUSH p a\r\nRQ.POP p\r\nPING\r\nRQ.NONE\r\nRQ.PUSH p b c\r\nRQ.POP COUNT 5 p\r\n";
    producer.send_raw(pipeline).expect("it reads");
    assert_eq!(producer.reply().ids().len(), 1);
    assert_eq!(producer.reply().tasks()[0].payload, b"a");
    assert_eq!(producer.reply().text(), "PONG");
    assert!(producer.reply().error().starts_with("ERR unknown command"));
    assert_eq!(producer.reply().ids().len(), 2);
    assert_eq!(producer.reply().tasks().len(), 2);
    redis.check("sureq:");
}

#[test]
fn a_killed_server_loses_no_task() {
    let redis = RedisServer::start();
    let server = in_front_of(&redis).start();
    let mut client = server.client();
    let ids: Vec<String> = (0..5).map(|n| client.push("q", format!("task {n}"))).collect();
    assert_eq!(client.pop("q", 2).len(), 2);
    let leased = client.say("RQ.POP LEASE 60000 q").list().remove(0).list();
    let receipt = leased[3].clone().text();
    server.into_process().kill9();
    let server = in_front_of(&redis).start();
    let mut client = server.client();
    assert_eq!(client.counts("q"), (2, 3));
    assert!(client.ack("q", &ids[0]));
    assert!(client.ack("q", &receipt));
    assert_eq!(client.pop("q", 9).len(), 2);
    redis.check("sureq:");
}

#[test]
fn an_unreachable_redis_is_reported_and_reconnected() {
    let mut redis = RedisServer::start();
    let server = in_front_of(&redis).start();
    let mut client = server.client();
    client.push("q", "before");
    redis.crash();
    // The outcome of a push in flight may be unknown; later ones succeed again.
    let since = Instant::now();
    while !matches!(client.say("RQ.PUSH q after"), Value::Array(_)) {
        assert!(since.elapsed() < PATIENCE, "the connection is not restored");
    }
    assert_eq!(client.pop("q", 1)[0].payload, b"before");
}

#[test]
fn a_subscriber_gets_notices_of_another_server() {
    let redis = RedisServer::start();
    let (one, two) = (in_front_of(&redis).start(), in_front_of(&redis).start());
    let mut ear = one.client();
    ear.say("SUBSCRIBE sureq:done:q");
    let mut worker = two.client();
    // A subscription exists for certain when Redis reports it.
    let (mut admin, since) = (redis.connect(), Instant::now());
    let heard = |admin: &mut redis::Connection| -> Vec<redis::Value> {
        redis::cmd("PUBSUB").arg("NUMSUB").arg("sureq:done:q").query(admin).expect("it answers")
    };
    while heard(&mut admin)[1] != redis::Value::Int(1) {
        assert!(since.elapsed() < PATIENCE, "no client subscribes");
    }
    let id = worker.push("q", "x");
    worker.pop("q", 1);
    worker.ack("q", &id);
    let message = format!("{:?}", ear.reply());
    assert!(message.contains(&format!("{:?}", Value::Bulk(id.into_bytes()))), "{message}");
}

#[test]
fn tasks_of_a_killed_server_go_to_the_worker_of_another() {
    let redis = RedisServer::start();
    let (one, two) =
        (in_front_of_layout(&redis, "worqr").start(), in_front_of_layout(&redis, "worqr").start());
    let (mut first, mut second) = (one.client(), two.client());
    second.say("RQ.WORKER START second TTL 600000");
    first.say("RQ.PUSH emails hello");
    first.say("RQ.WORKER START first TTL 1000");
    assert_eq!(first.say("RQ.POP WORKER first#0 emails").list().len(), 1);
    second.begin("RQ.POP BLOCK 0 WORKER second#0 emails");
    await_waiting(&two);
    let since = Instant::now();
    one.into_process().kill9();
    let popped = second.reply().list().remove(0).list();
    assert_eq!(popped[2].clone().text(), "hello");
    let healed = since.elapsed();
    assert!(healed < Duration::from_secs(15), "{healed:?}");
}

/// The whole life of a task in Worqr's keys, over the protocol of Redis.
#[test]
fn a_server_serves_workers_of_worqr() {
    let redis = RedisServer::start();
    let server = in_front_of_layout(&redis, "worqr").start();
    let mut client = server.client();
    assert_eq!(client.say("RQ.PUSH emails a b"), Value::Array(vec![Value::Null, Value::Null]));
    let unique = client.say("RQ.ADD emails a UNIQUE").list();
    assert_eq!((&unique[0], &unique[1]), (&Value::Null, &Value::Int(1)));
    assert_eq!(client.say("RQ.WORKER START w").text(), "w#0");
    assert_eq!(client.say("RQ.WORKER WORK w#0 emails").text(), "OK");
    let popped = client.say("RQ.POP WORKER w#0 emails").list().remove(0).list();
    let id = popped[1].clone().text();
    assert!(id.starts_with("emails_"), "{id}");
    assert_eq!((popped[2].clone().text(), popped[3].clone().text()), ("a".to_owned(), id.clone()));
    assert_eq!(client.say("RQ.CANCEL emails PAYLOAD a"), Value::Int(2));
    assert_eq!(client.say("RQ.WORKER BEAT w#0").list().remove(0).text(), id);
    assert_eq!(client.say(&format!("RQ.RETURN emails {id}")).text(), "CANCELLED");
    let next = client.say("RQ.INSPECT emails 0 5").list().remove(0).list();
    assert_eq!((&next[0], next[1].clone().text()), (&Value::Null, "b".to_owned()));
    let none = client.say("RQ.POP emails").error();
    assert!(none.starts_with("NOTTHERE layout=worqr has no POP without a WORKER"), "{none}");
    assert_eq!(client.say("RQ.WORKER STOP w#0"), Value::Int(0));
    assert!(client.say("RQ.WORKER BEAT w#0").error().starts_with("GONE "));
}

/// `sureq work` uses optional features of a layout, and continues without those that it lacks.
#[test]
fn a_program_per_task_runs_through_a_server_in_front_of_any_layout() {
    let redis = RedisServer::start();
    for layout in ["work-queue", "worqr", "redis-queue"] {
        let server = in_front_of_layout(&redis, layout).start();
        let home = format!("sureq://{}", server.resp);
        let queue = format!("of-{layout}");
        let sureq = |words: &[&str]| {
            let mut command = Command::new(SUREQ);
            Process::start(command.args(words).args(["--home", &home]))
        };
        let mut push = sureq(&["push", &queue, "one", "two"]);
        assert_eq!(push.exit_code(PATIENCE), 0, "{layout}: {push}");
        let mut command = Command::new(SUREQ);
        let words = ["work", &queue, "--until-empty", "--home", &home, "--", "sh", "-c", "echo did $(cat)"];
        let mut work = Process::start(command.args(words));
        assert_eq!(work.exit_code(PATIENCE), 0, "{layout}: {work}");
        assert!(work.stderr().contains("2 tasks done, 0 failed"), "{layout}: {work}");
        assert!(["did one", "did two"].iter().all(|did| work.stdout().contains(did)), "{layout}: {work}");
    }
}

#[test]
fn invalid_urls_are_refused_with_advice() {
    for (url, expected) in [
        ("redis://127.0.0.1:1", "cannot open redis://127.0.0.1:1: Redis at 127.0.0.1:1"),
        (
            "redis://h?layout=odd",
            "there is no layout \"odd\": known are sureq, work-queue, worqr and redis-queue",
        ),
        ("redis://h?colour=red", "there is no option \"colour\": known are layout, prefix, durability"),
        (
            "radis://h",
            "write file:DIR for a directory, or mem: for memory only, or redis://HOST:PORT for a Redis",
        ),
    ] {
        let mut process = Launch::new(SUREQ).args(["serve", "--home", url]).spawn();
        assert_eq!(process.exit_code(PATIENCE), 1, "{url}");
        assert!(process.stderr().contains(expected), "{url}: {}", process.stderr());
    }
    let words = ["serve", "--home", "redis://h", "--durability", "none"];
    let mut process = Launch::new(SUREQ).args(words).spawn();
    assert_eq!(process.exit_code(PATIENCE), 1);
    assert!(process.stderr().contains("--durability does not apply to"), "{}", process.stderr());
}

#[test]
fn an_eviction_policy_is_reported() {
    let redis = RedisServer::start_with("redis-server".as_ref(), &["--maxmemory-policy", "allkeys-lru"]);
    let server = in_front_of(&redis).start();
    server.into_process().find_in_stderr(|text| text.contains("set it to noeviction").then_some(()));
}

#[test]
fn a_redis_that_hangs_does_not_keep_a_server_from_stopping() {
    let redis = RedisServer::start();
    let mut server = in_front_of(&redis).start();
    let (mut producer, mut worker) = (server.client(), server.client());
    producer.push("q", "before");
    worker.begin("RQ.POP BLOCK 0 idle");
    await_waiting(&server);
    redis.suspend();
    producer.begin("RQ.PUSH q during");
    // The server has read the push when it has answered a later command on another connection.
    assert_eq!(server.client().say("PING").text(), "PONG");
    server.terminate();
    assert_eq!(server.exit_code(Duration::from_secs(20)), 0, "{}", *server);
    let reply = producer.reply().error();
    assert!(reply.starts_with("UNKNOWN "), "{reply}");
    // Either the server was trying the pop just then, or no call was in flight.
    let reply = worker.reply();
    assert!(reply == Value::Null || reply.clone().error().starts_with("UNKNOWN "), "{reply:?}");
    redis.resume();
}

/// The reply to a pipeline of pops is written in parts, as its client reads it.
#[test]
fn popped_tasks_are_requeued_if_the_client_disconnects_before_the_reply() {
    const POPS: usize = 32;
    const EACH: usize = 25;
    let redis = RedisServer::start();
    let server = in_front_of(&redis).args(["--output-max", "64KB"]).start();
    let (mut client, mut popper) = (server.client(), server.client());
    let payload = "x".repeat(10_000);
    for _ in 0..POPS * EACH {
        client.push("q", &payload);
    }
    let mut counts = |is_enough: &dyn Fn((i64, i64)) -> bool| {
        let since = Instant::now();
        loop {
            let counts = client.counts("q");
            if is_enough(counts) {
                break;
            }
            assert!(since.elapsed() < PATIENCE, "{counts:?}");
        }
    };
    // The system buffers some of the replies for a client that does not read: of 8 MB, at most half.
    popper.send_raw(format!("RQ.POP COUNT {EACH} q\r\n").repeat(POPS).as_bytes()).expect("the server reads");
    counts(&|(ready, _)| ready == 0);
    drop(popper);
    let all = i64::try_from(POPS * EACH).expect("a few");
    counts(&|(ready, leased)| ready >= all / 2 - 50 && ready + leased == all);
    redis.check("sureq:");
}
