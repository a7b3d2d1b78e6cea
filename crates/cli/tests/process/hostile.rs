//! Invalid bytes: the server replies with an error or closes the connection, executes nothing, and other clients are
//! not affected.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use sureq_testkit::client::Value;
use sureq_testkit::process::PATIENCE;
use sureq_testkit::server_process::Server;

use crate::{scratch, serve};

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a positive time");
    stream.set_write_timeout(Some(PATIENCE)).expect("a positive time");
    stream
}

/// Sends bytes and reads until the server closes the connection; fails if it does not.
fn answer_until_close(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(address);
    // The server may close before it has read everything.
    let _ = stream.write_all(bytes);
    let (mut answer, mut room) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut room) {
            Ok(0) => break,
            Ok(len) => answer.extend_from_slice(&room[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("not closed after {:?}: {error}", String::from_utf8_lossy(bytes)),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Checks that nothing was executed, and that the server still works.
fn assert_unharmed(server: &Server) {
    let mut client = server.client();
    assert_eq!(client.say("DBSIZE"), Value::Int(0), "something was executed");
    assert_eq!(server.text_client().say("RESERVE"), "nil");
}

#[test]
fn malformed_resp_closes_the_connection_before_the_next_push() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let cases: [(&[u8], &str); 18] = [
        (b"*1\r\n$536870912\r\n", "invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*2147483648\r\n", "invalid multibulk length"),
        (b"*1\r\n$-2\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n$99999999999999999999\r\n", "invalid bulk length"),
        (b"*+1\r\n$4\r\nPING\r\n", "invalid multibulk length"),
        (b"* 1\r\n$4\r\nPING\r\n", "invalid multibulk length"),
        (b"*1\r\n$+4\r\nPING\r\n", "invalid bulk length"),
        (b"*1\r\n$ 4\r\nPING\r\n", "invalid bulk length"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*1\r\n:4\r\n", "expected '$', got ':'"),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", "expected '$', got '*'"),
        (b"*1\r\n$4\r\nPINGPONG\r\n", "expected CRLF"),
        (b"RQ.PUSH \"q x\r\n", "unbalanced quotes"),
        (b"RQ.PUSH 'q' 'x\\'\r\n", "unbalanced quotes"),
    ];
    for (bytes, why) in cases {
        let answer = answer_until_close(server.resp, &[bytes, b"\r\nRQ.PUSH q executed\r\n"].concat());
        let sent = String::from_utf8_lossy(bytes);
        assert!(answer.starts_with("-ERR Protocol error: ") && answer.contains(why), "{sent:?}: {answer:?}");
    }
    let nested = [b"*1\r\n".repeat(10_000), b"$4\r\nPING\r\n".to_vec()].concat();
    assert!(answer_until_close(server.resp, &nested).contains("expected '$', got '*'"));
    assert_unharmed(&server);
}

#[test]
fn empty_and_null_arrays_and_empty_lines_are_ignored() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut client = server.client();
    client.send_raw(b"*0\r\n*-1\r\n\r\n\nECHO 1\n*2\r\n$4\r\nECHO\r\n$1\r\n2\r\n").expect("the server reads");
    assert_eq!((client.reply().text(), client.reply().text()), ("1".to_owned(), "2".to_owned()));
    assert_unharmed(&server);
}

#[test]
fn http_and_tls_on_either_port_are_closed_silently_and_execute_nothing() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let commands = "RQ.PUSH default executed\r\nADD 0 executed\r\n";
    for request in [
        format!("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n{commands}"),
        format!("GET /x HTTP/1.0\r\n\r\n{commands}"),
        format!("host: localhost\r\n{commands}"),
        format!("OPTIONS * HTTP/1.1\r\n{commands}"),
        format!("post / http/1.1\r\n{commands}"),
        format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{commands}"),
    ] {
        assert_eq!(answer_until_close(server.resp, request.as_bytes()), "", "{request:?} on the RESP port");
        assert_eq!(answer_until_close(server.text, request.as_bytes()), "", "{request:?} on the text port");
    }
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n";
    assert_eq!(answer_until_close(server.resp, hello), "");
    assert_unharmed(&server);
}

#[test]
fn a_request_split_at_every_byte_is_still_http() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let request = b"POST / HTTP/1.1\r\nHost: x\r\n\r\nRQ.PUSH q executed\r\nADD 0 executed\r\n";
    for address in [server.resp, server.text] {
        let mut stream = connect(address);
        stream.set_nodelay(true).expect("it is a TCP stream");
        // The connection is closed somewhere in between.
        let _ = request.iter().try_for_each(|byte| stream.write_all(&[*byte]));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
    assert_unharmed(&server);
}

#[test]
fn binary_on_the_text_port_is_answered_line_by_line() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut text = server.text_client();
    for bytes in [&b"\0\0\0"[..], b"\xff\xfe ADD 0 x", b"*1\r", b"add 0 x", b" ADD 0 x", b"\tADD 0 x", b""] {
        text.send_raw(&[bytes, b"\n"].concat()).expect("the server reads");
        assert_eq!(text.line(), "unknown command", "{bytes:?}");
    }
    for (line, answer) in [
        ("ADD", "invalid DELAY_MS attr"),
        ("ADD -1 x", "invalid DELAY_MS attr"),
        ("ADD 2147483648 x", "invalid DELAY_MS attr"),
        ("ADD 99999999999999999999999 x", "invalid DELAY_MS attr"),
        ("ADD 0", "invalid TASK_BODY attr"),
        ("ADD 0 a b", "invalid TASK_BODY attr"),
        ("DELETE", "invalid TASK_ID attr"),
        ("DELETE \0", "unknown TASK_ID"),
        ("DELETE zzzzzzzzzz", "unknown TASK_ID"),
        ("RETURN zzzzzzzzzz x", "invalid DELAY_MS attr"),
        ("RETURN zzzzzzzzzz 0", "unknown TASK_ID"),
    ] {
        assert_eq!(text.say(line), answer, "{line:?}");
    }
    assert_unharmed(&server);
}

#[test]
fn half_a_command_and_a_close_executes_nothing() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let command = b"*3\r\n$7\r\nRQ.PUSH\r\n$1\r\nq\r\n$1\r\nx\r\n";
    for cut in 1..command.len() {
        let mut client = server.client();
        client.send_raw(&command[..cut]).expect("the server reads");
        client.end();
        assert!(client.is_closed(), "cut at {cut}");
    }
    for half in ["RQ.PUSH q x", "RQ.PUSH q x\r"] {
        let mut client = server.client();
        client.send_raw(half.as_bytes()).expect("the server reads");
        client.end();
        assert!(client.is_closed(), "{half:?}");
    }
    for half in ["ADD 0 x", "ADD 0 x\r", "AD"] {
        let mut text = server.text_client();
        text.send_raw(half.as_bytes()).expect("the server reads");
        text.end();
        assert!(text.is_closed(), "{half:?}");
    }
    assert_unharmed(&server);
}

#[test]
fn slow_writers_are_served_and_do_not_delay_others() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let command = b"*3\r\n$7\r\nRQ.PUSH\r\n$1\r\nq\r\n$4\r\nslow\r\n";
    let mut slow: Vec<_> = (0..50).map(|_| server.client()).collect();
    let mut quick = server.client();
    for byte in command {
        for client in &mut slow {
            client.send_raw(&[*byte]).expect("the server reads");
        }
        quick.push("other", "quick");
    }
    for client in &mut slow {
        assert_eq!(client.reply().ids().len(), 1);
    }
    assert_eq!(quick.counts("q"), (50, 0));
    let mut text = server.text_client();
    for byte in b"ADD 0 slow\r\n" {
        text.send_raw(&[*byte]).expect("the server reads");
    }
    assert!(text.line().starts_with("TASK "));
}

#[test]
fn names_and_payloads_are_returned_unchanged_or_refused() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut client = server.client();
    let all: Vec<u8> = (0..=255).collect();
    let names: [&[u8]; 7] = [b"", b"\0", &all, b"../../etc", b"{}", b"\r\n", &[b'n'; 4 << 10]];
    let payloads: [&[u8]; 6] = [b"", b"\0", &all, b"*1\r\n", &vec![7; (1 << 16) + 1], &vec![8; 1 << 20]];
    for name in names {
        for payload in payloads {
            let id = client.command(&[b"RQ.PUSH", name, payload]).ids().remove(0);
            let task = client.command(&[b"RQ.POP", name]).tasks().remove(0);
            assert_eq!((&*task.queue, &task.id, &*task.payload), (name, &id, payload));
            assert_eq!(client.command(&[b"RQ.ACK", name, id.as_bytes()]).ids(), [id]);
        }
    }
    let long = [b'n'; (4 << 10) + 1];
    assert!(client.command(&[b"RQ.PUSH", &long[..], b"x"]).error().contains("name"));
    assert!(client.command(&[b"RQ.POP", &long[..]]).error().contains("name"), "it cannot exist");
    assert_unharmed(&server);
}

#[test]
fn the_largest_payload_is_kept_over_a_restart_and_a_larger_one_is_refused() {
    let dir = scratch();
    let mut server = serve(dir.path()).start();
    let mut payload = vec![0; 64 << 20];
    payload.iter_mut().zip(0u32..).for_each(|(byte, n)| *byte = (n % 251) as u8);
    server.client().push("q", &payload);
    server.kill9();
    let server = serve(dir.path()).start();
    let mut client = server.client();
    let task = client.pop("q", 1).remove(0);
    assert!(task.payload == payload, "a payload was changed");
    payload.push(0);
    let refused = answer_or_close(&server, &payload);
    assert!(refused.starts_with("ERR "), "{refused}");
    assert!(client.ack("q", &task.id));
    assert_unharmed(&server);
}

/// The reply to a push that is too large, which may arrive before all of it is sent.
fn answer_or_close(server: &Server, payload: &[u8]) -> String {
    let mut client = server.client();
    let _ = client.send_raw(&sureq_testkit::client::encode(&[b"RQ.PUSH", &b"q"[..], payload]));
    client.reply().error()
}
