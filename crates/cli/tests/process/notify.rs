//! Subscribers: they get every message in order, and none that a crash could undo; and no other client waits for
//! them.

use std::io::Read as _;
use std::thread;
use std::time::{Duration, Instant};

use sureq_testkit::client::{RespClient, Value, encode};
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::process::raise_file_limit;
use sureq_testkit::server_process::Server;

use crate::{scratch, serve};

const MB: u64 = 1 << 20;

/// A client that uses this version of RESP.
fn client(server: &Server, version: u8) -> RespClient {
    let mut client = server.client();
    if version == 3 {
        client.say("HELLO 3").list();
    }
    client
}

/// A message as one text: its words, separated by spaces.
fn text_of(value: Value) -> String {
    let word = |value: Value| match value {
        Value::Int(n) => n.to_string(),
        Value::Null => "-".to_owned(),
        other => other.text(),
    };
    value.list().into_iter().map(word).collect::<Vec<_>>().join(" ")
}

fn next_text(client: &mut RespClient) -> String {
    text_of(client.reply())
}

/// Sends a command; returns the first message or reply after it.
fn reply_to(client: &mut RespClient, line: &str) -> String {
    text_of(client.say(line))
}

/// A field of INFO.
fn info(client: &mut RespClient, field: &str) -> u64 {
    let info = client.say("INFO").text();
    let found = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.and_then(|n| n.trim().parse().ok()).unwrap_or_else(|| panic!("no {field} in {info}"))
}

/// Waits until INFO reports this value; polls the server, since nothing signals it.
fn await_info(client: &mut RespClient, field: &str, value: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while info(client, field) != value {
        assert!(Instant::now() < deadline, "{field} is {}, not {value}", info(client, field));
        thread::yield_now();
    }
}

#[test]
fn a_subscriber_gets_a_message_for_each_step_of_a_task() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    for version in [2, 3] {
        // Several, so that each network thread has some.
        let mut subscribers: Vec<RespClient> = (0..4).map(|_| client(&server, version)).collect();
        for subscriber in &mut subscribers {
            assert_eq!(
                reply_to(subscriber, "SUBSCRIBE sureq:work:q sureq:delete:q"),
                "subscribe sureq:work:q 1"
            );
            assert_eq!(next_text(subscriber), "subscribe sureq:delete:q 2");
            assert_eq!(reply_to(subscriber, "PSUBSCRIBE sureq:done:*"), "psubscribe sureq:done:* 3");
        }
        let mut worker = server.client();
        let ids = worker.say("RQ.PUSH q a b c").ids();
        worker.push("other", "x");
        assert_eq!(worker.pop("q", 2).len(), 2);
        worker.say(&format!("RQ.ACK q {} {}", ids[0], ids[1]));
        worker.say("DEL q other");
        let expect = [
            "message sureq:work:q 3".to_owned(),
            format!("pmessage sureq:done:* sureq:done:q {}", ids[0]),
            format!("pmessage sureq:done:* sureq:done:q {}", ids[1]),
            "message sureq:delete:q 1".to_owned(),
        ];
        for subscriber in &mut subscribers {
            for expect in &expect {
                assert_eq!(next_text(subscriber), *expect);
            }
        }
    }
}

#[test]
fn timed_events_and_the_other_dialect_send_notices_too() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut subscriber = server.client();
    reply_to(&mut subscriber, "PSUBSCRIBE sureq:*:default");
    let mut text = server.text_client();
    let expect_notice = |subscriber: &mut RespClient, expect: &str| {
        assert_eq!(next_text(subscriber), format!("pmessage sureq:*:default sureq:{expect}"));
    };
    text.add(0, "now");
    expect_notice(&mut subscriber, "work:default 1");
    text.add(30, "later");
    expect_notice(&mut subscriber, "work:default 1");
    // The connection of a CONN lease is closed, and another lease ends.
    let mut worker = server.client();
    assert_eq!(worker.say("RQ.POP COUNT 1 CONN default").list().len(), 1);
    drop(worker);
    expect_notice(&mut subscriber, "work:default 1");
    let mut worker = server.client();
    assert_eq!(worker.say("RQ.POP COUNT 2 LEASE 20 default").list().len(), 2);
    expect_notice(&mut subscriber, "work:default 2");
    let id = worker.pop("default", 1)[0].id.clone();
    assert!(worker.ack("default", &id));
    expect_notice(&mut subscriber, &format!("done:default {id}"));
}

/// Commands after SUBSCRIBE in the same packet are refused like those in later ones.
#[test]
fn in_resp2_a_subscriber_can_only_manage_subscriptions() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut subscriber = server.client();
    let words: [&[&str]; 6] = [
        &["RQ.PUSH", "q", "before"],
        &["SUBSCRIBE", "c"],
        &["RQ.PUSH", "q", "refused"],
        &["RQ.POP", "q"],
        &["UNSUBSCRIBE"],
        &["RQ.PUSH", "q", "behind"],
    ];
    let bytes: Vec<u8> = words.iter().flat_map(|words| encode(words)).collect();
    subscriber.send_raw(&bytes).expect("the server reads");
    assert_eq!(subscriber.reply().ids().len(), 1);
    assert_eq!(next_text(&mut subscriber), "subscribe c 1");
    for name in ["rq.push", "rq.pop"] {
        let expect = format!(
            "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in \
             this context"
        );
        assert_eq!(subscriber.reply().error(), expect);
    }
    assert_eq!(next_text(&mut subscriber), "unsubscribe c 0");
    assert_eq!(subscriber.reply().ids().len(), 1);
    let payloads = subscriber.pop("q", 9).into_iter().map(|task| task.payload).collect::<Vec<_>>();
    assert_eq!(payloads, [b"before", b"behind"]);
}

#[test]
fn in_resp3_a_subscriber_can_run_commands_and_gets_messages_while_it_waits() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut subscriber = client(&server, 3);
    reply_to(&mut subscriber, "SUBSCRIBE sureq:work:q");
    assert_eq!(subscriber.say("PING").text(), "PONG");
    // The reply to its own push may arrive before or after the message about it.
    subscriber.begin("RQ.PUSH q mine");
    let mut both = [subscriber.reply().list().len(), subscriber.reply().list().len()];
    both.sort_unstable();
    assert_eq!(both, [1, 3]);
    subscriber.begin("RQ.POP BLOCK 0 empty");
    crate::await_line(&mut server.client(), 1);
    server.client().push("q", "x");
    assert_eq!(next_text(&mut subscriber), "message sureq:work:q 1");
    server.client().push("empty", "y");
    assert_eq!(subscriber.reply().tasks()[0].payload, b"y");
}

#[test]
fn other_clients_see_subscriptions() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let (mut a, mut b, mut observer) = (client(&server, 2), client(&server, 3), server.client());
    a.begin("SUBSCRIBE one two");
    a.begin("PSUBSCRIBE p*");
    b.begin("SUBSCRIBE one");
    for _ in 0..3 {
        a.reply();
    }
    b.reply();
    let mut channels = observer.say("PUBSUB CHANNELS").ids();
    channels.sort();
    assert_eq!(channels, ["one", "two"]);
    assert_eq!(observer.say("PUBSUB CHANNELS o*").ids(), ["one"]);
    assert_eq!(reply_to(&mut observer, "PUBSUB NUMSUB one two three"), "one 2 two 1 three 0");
    assert_eq!(observer.say("PUBSUB NUMPAT"), Value::Int(1));
    let listed = |observer: &mut RespClient, kind: &str| {
        let list = observer.say(&format!("CLIENT LIST TYPE {kind}")).text();
        list.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let subscribers = listed(&mut observer, "pubsub");
    assert_eq!(subscribers.len(), 2, "{subscribers:?}");
    assert!(subscribers[0].contains(" sub=2 psub=1 ") && subscribers[1].contains(" sub=1 psub=0 "));
    let normal = listed(&mut observer, "normal");
    assert!(normal.len() == 1 && normal[0].contains(" sub=0 psub=0 "), "{normal:?}");
    let counts = ["pubsub_clients", "pubsub_channels", "pubsub_patterns"].map(|f| info(&mut observer, f));
    assert_eq!(counts, [2, 2, 1]);
    assert_eq!(a.say("RESET").text(), "RESET");
    assert_eq!(a.say("PING").text(), "PONG");
    assert_eq!(listed(&mut observer, "pubsub").len(), 1);
    drop(b);
    await_info(&mut observer, "pubsub_clients", 0);
    assert_eq!(observer.say("PUBSUB CHANNELS").list().len(), 0);
}

/// Ten thousand subscriptions of each kind on one connection, and a thousand connections on one channel.
#[test]
fn many_subscriptions_and_many_subscribers() {
    raise_file_limit();
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut one = server.client();
    let names = |head: &str| -> Vec<String> { (0..10_000).map(|n| format!("{head}{n}")).collect() };
    let ask = |one: &mut RespClient, verb: &str, names: &[String], first: usize| {
        let argv: Vec<&str> = [verb].into_iter().chain(names.iter().map(String::as_str)).collect();
        one.send_raw(&encode(&argv)).expect("the server reads");
        for (n, name) in names.iter().enumerate() {
            assert_eq!(next_text(one), format!("{} {name} {}", verb.to_lowercase(), first + n + 1));
        }
    };
    ask(&mut one, "SUBSCRIBE", &names("sureq:work:q"), 0);
    ask(&mut one, "PSUBSCRIBE", &names("sureq:work:*-"), 10_000);
    let mut crowd: Vec<RespClient> = (0..1_000).map(|_| server.client()).collect();
    for client in &mut crowd {
        assert_eq!(reply_to(client, "SUBSCRIBE sureq:work:q77"), "subscribe sureq:work:q77 1");
    }
    let mut worker = server.client();
    assert_eq!(reply_to(&mut worker, "PUBSUB NUMSUB sureq:work:q77"), "sureq:work:q77 1001");
    let (machine, asked) = (MachineWatch::start(), Instant::now());
    worker.push("q77", "x");
    worker.push("q-9999", "x");
    for client in &mut crowd {
        assert_eq!(next_text(client), "message sureq:work:q77 1");
    }
    assert_eq!(next_text(&mut one), "message sureq:work:q77 1");
    assert_eq!(next_text(&mut one), "pmessage sureq:work:*-9999 sureq:work:q-9999 1");
    machine.assert_within(asked.elapsed(), Duration::from_secs(10), "messages to all of them");
    drop(crowd);
    one.begin("UNSUBSCRIBE");
    one.begin("PUNSUBSCRIBE");
    let last = (0..20_000).map(|_| next_text(&mut one)).last().expect("each is confirmed");
    assert!(last.ends_with(" 0"), "{last}");
    assert_eq!(one.say("PING").text(), "PONG");
    await_info(&mut worker, "pubsub_clients", 0);
}

#[test]
fn subscriptions_beyond_the_limits_are_refused_as_a_whole() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut client = server.client();
    let many: Vec<String> = (0..=100_000).map(|n| n.to_string()).collect();
    let argv: Vec<&str> = ["SUBSCRIBE"].into_iter().chain(many.iter().map(String::as_str)).collect();
    let refused = client.command(&argv).error();
    assert_eq!(refused, "ERR a connection can subscribe to 100000 channels and patterns at most");
    let long = "x".repeat((8 << 10) + 1);
    let refused = client.command(&["PSUBSCRIBE", "fine", &long]).error();
    assert_eq!(refused, "ERR a channel or pattern can have 8192 bytes at most");
    assert_eq!(client.say("PUBSUB NUMPAT"), Value::Int(0));
    assert_eq!(client.say("PING").text(), "PONG");
}

/// A subscriber that reads gets all messages, however many there are at once.
#[test]
fn a_hundred_thousand_messages_arrive_in_order() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let (mut subscriber, mut worker) = (server.client(), server.client());
    reply_to(&mut subscriber, "PSUBSCRIBE sureq:done:*");
    let ids = worker.push_many("q", 100_000);
    assert_eq!(worker.pop("q", ids.len()).len(), ids.len());
    let ack: Vec<&str> = ["RQ.ACK", "q"].into_iter().chain(ids.iter().map(String::as_str)).collect();
    assert_eq!(worker.command(&ack).list().len(), ids.len());
    for id in &ids {
        assert_eq!(next_text(&mut subscriber), format!("pmessage sureq:done:* sureq:done:q {id}"));
    }
    assert_eq!(info(&mut worker, "client_output_buffer_limit_disconnections"), 0);
}

/// A subscriber that does not read is disconnected, and affects no other client: no push waits for it, no other
/// subscriber misses messages, and memory stays small.
#[test]
fn a_subscriber_that_does_not_read_is_disconnected() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let (mut slow, mut fast, mut worker) = (server.client(), server.client(), server.client());
    reply_to(&mut slow, "PSUBSCRIBE sureq:*");
    // Messages contain the name of the queue: a long name fills buffers quickly.
    let queue = "q".repeat(4_000);
    reply_to(&mut fast, &format!("SUBSCRIBE sureq:work:{queue}"));
    let before = server.resident_bytes();
    let batch: Vec<u8> = (0..100).flat_map(|_| encode(&["RQ.PUSH", &queue, "x"])).collect();
    let mut pushed = 0;
    while info(&mut worker, "client_output_buffer_limit_disconnections") == 0 {
        assert!(pushed < 100_000, "it was never disconnected");
        worker.send_raw(&batch).expect("the server reads");
        for _ in 0..100 {
            assert_eq!(worker.reply().ids().len(), 1);
            assert!(next_text(&mut fast).ends_with(" 1"));
        }
        pushed += 100;
    }
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 64 * MB, "grew by {grown} bytes over {pushed} messages");
    await_info(&mut worker, "pubsub_clients", 1);
    assert_eq!(worker.say("PUBSUB NUMPAT"), Value::Int(0));
    // Messages that were sent by then can still be read; then the connection ends.
    let mut rest = Vec::new();
    let _ = slow.stream().read_to_end(&mut rest);
    assert!(slow.is_closed());
    worker.push(&queue, "x");
    assert!(next_text(&mut fast).ends_with(" 1"));
}

/// Without a limit, the server would compare some 2.4 billion characters for one push.
#[test]
fn a_subscriber_with_too_costly_patterns_is_disconnected_without_delaying_others() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let (mut costly, mut cheap, mut worker) = (server.client(), server.client(), server.client());
    let patterns: Vec<String> = (0..300).map(|n| format!("*{}b{n}", "a".repeat(2_000))).collect();
    let argv: Vec<&str> = ["PSUBSCRIBE"].into_iter().chain(patterns.iter().map(String::as_str)).collect();
    costly.send_raw(&encode(&argv)).expect("the server reads");
    for (n, pattern) in patterns.iter().enumerate() {
        assert_eq!(next_text(&mut costly), format!("psubscribe {pattern} {}", n + 1));
    }
    reply_to(&mut cheap, "PSUBSCRIBE sureq:work:*");
    let (machine, asked) = (MachineWatch::start(), Instant::now());
    worker.push(&"a".repeat(4_000), "x");
    let expect = "ERR the patterns of this connection took more than 1048576 steps to match a message";
    assert_eq!(costly.reply().error(), expect);
    assert!(costly.is_closed());
    assert!(next_text(&mut cheap).ends_with(" 1"));
    assert_eq!(server.client().say("PING").text(), "PONG");
    await_info(&mut worker, "pubsub_patterns", 1);
    machine.assert_within(asked.elapsed(), Duration::from_secs(5), "to disconnect it");
    assert_eq!(info(&mut worker, "pubsub_pattern_limit_disconnections"), 1);
}

#[test]
fn a_too_costly_pattern_lists_no_channels() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let (mut subscriber, mut observer) = (server.client(), server.client());
    reply_to(&mut subscriber, &format!("SUBSCRIBE {}", "a".repeat(8_000)));
    let pattern = format!("*{}b", "a".repeat(4_000));
    let refused = observer.say(&format!("PUBSUB CHANNELS {pattern}")).error();
    assert_eq!(refused, "ERR the pattern takes more than 1048576 steps to match all channels");
    assert_eq!(observer.say("PUBSUB CHANNELS a*").list().len(), 1);
}

/// After an unsubscription is confirmed, no more messages of its channel arrive.
#[test]
fn no_message_arrives_after_an_unsubscription() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let (mut subscriber, mut worker) = (server.client(), server.client());
    thread::scope(|scope| {
        let pushing = scope.spawn(move || {
            for _ in 0..1_000 {
                worker.push("q", "x");
            }
        });
        let mut received = 0;
        while !pushing.is_finished() {
            for (verb, name) in [("SUBSCRIBE", "sureq:work:q"), ("PSUBSCRIBE", "sureq:work:*")] {
                assert_eq!(
                    reply_to(&mut subscriber, &format!("{verb} {name}")),
                    format!("{} {name} 1", verb.to_lowercase())
                );
                subscriber.begin(&format!("{}UNSUBSCRIBE {name}", verb.trim_end_matches("SUBSCRIBE")));
                let left =
                    format!("{}unsubscribe {name} 0", verb.to_lowercase().trim_end_matches("subscribe"));
                while next_text(&mut subscriber) != left {
                    received += 1;
                }
            }
        }
        assert!(received > 0, "messages must have arrived before");
    });
}

#[test]
fn disconnected_subscribers_leak_nothing() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let (mut worker, mut observer) = (server.client(), server.client());
    thread::scope(|scope| {
        let pushing = scope.spawn(move || {
            for _ in 0..1_000 {
                worker.push("q", "x");
            }
        });
        for n in (0..).take_while(|_| !pushing.is_finished()) {
            let mut subscriber = client(&server, if n % 2 == 0 { 2 } else { 3 });
            reply_to(&mut subscriber, "SUBSCRIBE sureq:work:q");
            subscriber.say("PING");
            if n % 3 == 0 {
                subscriber.begin("QUIT");
                while subscriber.read().is_ok() {}
            }
        }
    });
    for field in ["pubsub_clients", "pubsub_channels", "pubsub_patterns"] {
        await_info(&mut observer, field, 0);
    }
    await_info(&mut observer, "connected_clients", 1);
}

#[test]
fn a_server_with_subscribers_stops_orderly() {
    let dir = scratch();
    let mut server = serve(dir.path()).start();
    let mut subscriber = server.client();
    reply_to(&mut subscriber, "SUBSCRIBE sureq:work:q");
    server.terminate();
    assert_eq!(server.exit_code(Duration::from_secs(10)), 0, "{}", *server);
    assert!(subscriber.is_closed());
}
