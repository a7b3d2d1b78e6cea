//! Servers that are no sureq or are malicious: the client returns an error, does not panic, and uses no more memory
//! than it received.
#![cfg(feature = "remote")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use sureq::Refusal;
use sureq::home_api::command::{Block, Pop};
use sureq::home_api::{Command, Reply};
use sureq_remote::{OpenError, Patience, RemoteHome, Target};

/// A reply to HELLO with all that the client checks.
const GREETING: &[u8] = b"%1\r\n$6\r\nserver\r\n$5\r\nsureq\r\n";

/// The timeout of a test.
const DEADLINE: Duration = Duration::from_secs(20);

/// A server that answers the first bytes of each connection with `greeting` and everything after them with `answer`.
fn fake(greeting: &'static [u8], answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            std::thread::spawn(move || speak(client, greeting, answer));
        }
    });
    address
}

fn speak(mut client: TcpStream, greeting: &[u8], answer: &[u8]) {
    let mut room = [0; 4096];
    let mut next = greeting;
    // Ends when the client closes the connection.
    while let Ok(1..) = client.read(&mut room) {
        if client.write_all(next).is_err() {
            return;
        }
        next = answer;
    }
}

/// The timeout of a home for a reply that never comes.
const SHORT: Duration = Duration::from_millis(500);

/// A home whose timeout a busy machine does not exceed.
fn open(address: SocketAddr) -> Result<RemoteHome, OpenError> {
    open_by(address, Patience { load: SHORT, ..Patience::default() })
}

fn open_by(address: SocketAddr, patience: Patience) -> Result<RemoteHome, OpenError> {
    RemoteHome::open_by(Target::parse(&format!("sureq://{address}")).expect("a URL"), patience)
}

#[test]
fn a_server_that_is_not_sureq_is_refused_with_an_explanation() {
    for (greeting, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "no RESP reply begins with 'H'"),
        (b"%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n", "Write redis://"),
        (b"-NOAUTH Authentication required.\r\n", "NOAUTH"),
        (b"-LOADING wait\r\n", "LOADING"),
        (b"$99999999999999999999\r\n", "a number in a reply is malformed"),
        (b"*999999999999\r\n", "exceeds the size limit"),
    ] {
        let since = Instant::now();
        let error = open(fake(greeting, b"")).expect_err("it is no sureq").to_string();
        assert!(error.contains(expected), "{error}");
        assert!(since.elapsed() < DEADLINE, "{expected}: {:?}", since.elapsed());
    }
    let hasty = Patience { connect: SHORT, ..Patience::default() };
    let error = open_by(fake(b"+OK", b""), hasty).expect_err("the greeting is never complete").to_string();
    assert!(error.contains("no answer within"), "{error}");
    let nobody = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let error = open(nobody.expect("loopback has free ports")).expect_err("the port is closed");
    assert!(error.to_string().contains("refused"), "{error}");
}

/// Sends commands with and without a wait, and expects the same error.
fn check(answer: &'static [u8], expected: &str) {
    check_by(answer, expected, Patience::default());
}

fn check_by(answer: &'static [u8], expected: &str, patience: Patience) {
    let home = open_by(fake(GREETING, answer), patience).expect("the greeting is valid");
    let queues: &[&[u8]] = &[b"q"];
    let waits = Command::Pop(Pop { block: Some(Block::Millis(1)), ..Pop::plain(queues, 1) });
    for command in [Command::Pause { queue: b"q" }, waits] {
        let since = Instant::now();
        match home.send(&[command]).wait().replies.list.remove(0) {
            Reply::Refused(Refusal::Unknown { why }) => assert!(why.contains(expected), "{why}"),
            other => panic!("{}: {other:?}", answer.escape_ascii()),
        }
        assert!(since.elapsed() < DEADLINE, "{expected}: {:?}", since.elapsed());
    }
    home.close();
}

#[test]
fn garbage_is_an_unknown_outcome_without_other_effects() {
    check(b"\0\xff\xfe", "no RESP reply begins with");
    check(b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", "nested");
    check(b"$536870913\r\n", "exceeds the size limit");
    check(b"%2\r\n+a\r\n:1\r\n:2\r\n_\r\n", "does not fit its command");
    for unfinished in [&b"$5\r\nabc"[..], b""] {
        check_by(unfinished, "no answer within", Patience { answer: SHORT, ..Patience::default() });
    }
}

#[test]
fn unsolicited_replies_end_the_connection() {
    let home = open(fake(GREETING, b"+OK\r\n+OK\r\n+OK\r\n")).expect("the greeting is valid");
    let done = home.send(&[Command::Pause { queue: b"q" }]).wait().replies.list.remove(0);
    assert_eq!(done, Reply::Ok);
    // The error is detected and a new connection is made, on which it happens again.
    let since = Instant::now();
    let mut refused = 0;
    while refused < 3 {
        assert!(since.elapsed() < DEADLINE, "it was refused {refused} times");
        match home.send(&[Command::Pause { queue: b"q" }]).wait().replies.list.remove(0) {
            Reply::Ok => {}
            Reply::Refused(Refusal::Unknown { .. } | Refusal::Unavailable { .. }) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    home.close();
}

/// A server that announces much data and sends little does not make the client allocate memory.
#[cfg(target_os = "linux")]
#[test]
fn an_announced_length_allocates_no_memory() {
    fn resident_bytes() -> u64 {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
        let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        pages.expect("a number of pages") * 4096
    }
    let hasty = Patience { answer: SHORT, ..Patience::default() };
    let home =
        open_by(fake(GREETING, b"*100000000\r\n$500000000\r\nx"), hasty).expect("the greeting is valid");
    let before = resident_bytes();
    let refused = home.send(&[Command::Pause { queue: b"q" }]).wait().replies.list.remove(0);
    assert!(matches!(refused, Reply::Refused(Refusal::Unknown { .. })), "{refused:?}");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes for a promise");
    home.close();
}
