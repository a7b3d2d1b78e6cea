//! redis-cli, as Debian ships it.

use std::process::Command;
use std::thread;

use sureq_testkit::client::encode;
use sureq_testkit::process::Process;

use crate::{Fixture, run};

pub(super) fn redis_cli(it: &Fixture, words: &[&str], input: &[u8]) -> String {
    let port = it.resp_port();
    // As at a terminal: redis-cli prints types and numbers there.
    let mut command = Command::new("redis-cli");
    let replies = run(command.env("FAKETTY", "1").args(["-p", port.as_str()]).args(words), input);
    String::from_utf8(replies).expect("redis-cli prints text")
}

fn check(it: &Fixture, line: &str, expect: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(redis_cli(it, &words, b"").trim_end_matches('\n'), expect, "{line}");
}

/// The text between the n-th pair of quotes.
fn quoted(text: &str, n: usize) -> String {
    text.split('"').nth(2 * n + 1).unwrap_or_else(|| panic!("{text:?} has no quotes {n}")).to_owned()
}

#[test]
fn redis_cli_works() {
    let it = Fixture::start();
    check(&it, "PING", "PONG");
    let pushed = redis_cli(&it, &["RQ.PUSH", "emails", "one", "two"], b"");
    let (one, two) = (quoted(&pushed, 0), quoted(&pushed, 1));
    assert_eq!(pushed, format!("1) \"{one}\"\n2) \"{two}\"\n"));
    check(&it, "RQ.INSPECT emails -1 5", &format!("1) 1) \"{two}\"\n   2) \"two\""));
    check(&it, "RQ.POP emails", &format!("1) 1) \"emails\"\n   2) \"{one}\"\n   3) \"one\""));
    check(&it, "rq.pop 10 urgent emails", &format!("1) 1) \"emails\"\n   2) \"{two}\"\n   3) \"two\""));
    check(&it, "RQ.POP emails", "(empty array)");
    check(&it, "RQ.POP BLOCK 20 emails", "(nil)");
    check(&it, "RQ.RECOVER emails 1 0", &format!("1) 1) \"{one}\"\n   2) \"one\""));
    check(&it, &format!("RQ.ACK emails {one} {two}"), &format!("1) \"{one}\"\n2) \"{two}\""));
    check(&it, &format!("RQ.ACK emails {one}"), "(empty array)");
    check(
        &it,
        "RQ.ACK emails nonsense",
        "(error) ERR malformed task id: expected <ms>-<seq> as a push returns it, or a receipt",
    );
}

#[test]
fn redis_cli_speaks_resp3() {
    let it = Fixture::start();
    redis_cli(&it, &["-3", "RQ.PUSH", "emails", "one"], b"");
    let info = redis_cli(&it, &["-3", "RQ.INFO", "emails"], b"");
    assert!(
        info.starts_with(" 1# \"undelivered\" => (integer) 1\n 2# \"delivered\" => (integer) 0\n"),
        "{info}"
    );
}

#[test]
fn redis_cli_sees_queues_as_keys() {
    let it = Fixture::start();
    redis_cli(&it, &[], b"RQ.PUSH a x\nRQ.PUSH b x\n");
    check(&it, "DBSIZE", "(integer) 2");
    check(&it, "EXISTS a b c", "(integer) 2");
    check(&it, "TYPE a", "RELIABLEQ");
    check(&it, "TYPE c", "none");
    check(&it, "--scan --pattern a*", "\"a\"");
    check(&it, "DEL a c", "(integer) 1");
    check(&it, "KEYS *", "1) \"b\"");
    check(&it, "LPUSH b x", "(error) ERR unknown command 'LPUSH', with args beginning with: 'b' 'x' ");
}

#[test]
fn redis_cli_waits_for_another_client() {
    let it = Fixture::start();
    let popped = thread::scope(|scope| {
        let waiting = scope.spawn(|| redis_cli(&it, &["RQ.POP", "BLOCK", "10000", "emails"], b""));
        let mut client = it.server.client();
        while !client.say("INFO clients").text().contains("blocked_clients:1\r\n") {
            thread::yield_now();
        }
        client.push("emails", "late");
        waiting.join().expect("redis-cli ends")
    });
    assert!(popped.ends_with("3) \"late\"\n"), "{popped}");
}

#[test]
fn redis_cli_listens() {
    let it = Fixture::start();
    for version in ["-2", "-3"] {
        let port = it.resp_port();
        let mut command = Command::new("redis-cli");
        command.args(["-p", &port, version, "--csv", "SUBSCRIBE", "sureq:work:emails", "sureq:done:emails"]);
        let listening = Process::start(&mut command);
        listening.find_in_stdout(|line| line.contains("\"sureq:done:emails\",2").then_some(()));
        let mut client = it.server.client();
        let id = client.push("emails", "x");
        assert_eq!(client.pop("emails", 1)[0].id, id);
        assert!(client.ack("emails", &id));
        let done = format!("\"message\",\"sureq:done:emails\",\"{id}\"");
        listening.find_in_stdout(|line| (line.trim_end() == done).then_some(()));
        assert!(listening.stdout_so_far().contains("\"message\",\"sureq:work:emails\",\"1\""), "{listening}");
    }
}

#[test]
fn redis_cli_pipes_many_commands_and_binary_payloads() {
    let it = Fixture::start();
    let mut commands = Vec::new();
    for n in 0..1_000_u32 {
        commands.extend_from_slice(&encode(&[&b"RQ.PUSH"[..], b"mass", &n.to_le_bytes()]));
    }
    let output = redis_cli(&it, &["--pipe"], &commands);
    assert!(output.ends_with("errors: 0, replies: 1000\n"), "{output}");
    redis_cli(&it, &["-x", "RQ.PUSH", "binary"], b"\0\xff\r\n");
    let mut client = it.server.client();
    assert_eq!(client.pop("binary", 1)[0].payload, b"\0\xff\r\n");
    let popped = client.pop("mass", 1_000);
    assert!(
        popped.iter().zip(0_u32..).all(|(task, n)| task.payload == n.to_le_bytes()) && popped.len() == 1_000
    );
}
