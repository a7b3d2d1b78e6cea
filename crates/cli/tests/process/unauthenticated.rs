//! Connections that have not authenticated cost little memory, whatever they send.

use std::io::{ErrorKind, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size;
use sureq_testkit::client::{RespClient, Value, encode};
use sureq_testkit::server_process::Server;

use crate::scratch;
use crate::users::TestUsers;

const CONNECTIONS: usize = 100;

/// The memory limit for one such connection.
const BYTES_MAX: u64 = 64 << 10;

/// Sends `bytes` repeatedly while the server reads: until it has read nothing more during a hundred replies to
/// another connection of the same network thread.
fn flood(streams: &[TcpStream], bytes: &[u8], observer: &mut RespClient) {
    let mut sent = vec![0; streams.len()];
    let mut idle_rounds = 0;
    while idle_rounds < 100 {
        let mut is_idle = true;
        for (mut stream, sent) in streams.iter().zip(&mut sent) {
            stream.set_nonblocking(true).expect("a socket option");
            match stream.write(&bytes[*sent % bytes.len()..]) {
                Ok(len) => {
                    *sent += len;
                    is_idle = false;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // A closed connection costs nothing.
                Err(_) => {}
            }
        }
        assert_eq!(observer.say("PING").text(), "PONG");
        idle_rounds = if is_idle { idle_rounds + 1 } else { 0 };
        assert!(sent.iter().all(|&sent| sent < 100 << 20), "the server never stops reading");
    }
}

fn check(what: &str, send: impl Fn(&Server, &mut RespClient) -> Vec<TcpStream>) {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let server = users.launch(dir.path(), "worker").args(["--login-time", "0"]).start();
    let mut observer = users.root(&server);
    // The first connections of a server allocate memory that later ones reuse.
    let warm_up: Vec<_> = (0..CONNECTIONS).map(|_| server.client()).collect();
    drop(warm_up);
    await_connections(&mut observer, 1);
    let before = server.resident_bytes();
    let streams = send(&server, &mut observer);
    let each = server.resident_bytes().saturating_sub(before) / CONNECTIONS as u64;
    println!("{what}: {each} bytes each");
    assert!(each <= BYTES_MAX, "{what}: each of {CONNECTIONS} costs {each} bytes");
    drop(streams);
    await_connections(&mut observer, 1);
    assert_eq!(observer.say("DBSIZE"), Value::Int(0));
}

fn await_connections(observer: &mut RespClient, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let line = format!("connected_clients:{count}\r\n");
    while !observer.say("INFO clients").text().contains(&line) {
        assert!(Instant::now() < deadline, "the connections are still open");
    }
}

fn connect(server: &Server) -> Vec<TcpStream> {
    (0..CONNECTIONS).map(|_| TcpStream::connect(server.resp).expect("the server listens")).collect()
}

#[test]
fn half_a_command_costs_little_memory() {
    check("half a command", |server, observer| {
        let streams = connect(server);
        // All but the last bytes of the largest accepted command.
        let word = "x".repeat(15_900);
        let half = format!("*4\r\n$5\r\nHELLO\r\n$15900\r\n{word}\r\n$8000\r\n{}", &word[..7_999]);
        for mut stream in &streams {
            stream.write_all(half.as_bytes()).expect("the server reads");
        }
        await_memory(observer, CONNECTIONS * half.len());
        streams
    });
}

/// Waits until this many bytes are in use: the server has then read everything that was sent.
fn await_memory(observer: &mut RespClient, bytes: usize) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while used_memory(observer) < bytes {
        assert!(Instant::now() < deadline, "{} bytes are in use, not {bytes}", used_memory(observer));
    }
}

fn used_memory(observer: &mut RespClient) -> usize {
    let info = observer.say("INFO memory").text();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|used| used.parse().ok()).expect("INFO reports the used memory")
}

#[test]
fn unread_replies_cost_little_memory() {
    check("unread answers", |server, observer| {
        let streams = connect(server);
        for stream in &streams {
            // The system then buffers little, and the server has to buffer the rest.
            set_socket_recv_buffer_size(stream, 4 << 10).expect("a socket option");
        }
        flood(&streams, &b"HELLO\r\n".repeat(10_000), observer);
        streams
    });
}

/// Commands behind a password wait until it is checked. The memory of a password check does not belong to the
/// connection, and would distort the resident size: this test uses the server's own count.
#[test]
fn pipelined_bytes_before_authentication_cost_little_memory() {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let server = users.launch(dir.path(), "worker").start();
    let mut observer = users.root(&server);
    let streams = connect(&server);
    let before = used_memory(&mut observer);
    let behind = [encode(&["AUTH", "root", "wrong"]), b"PING\r\n".repeat(20_000)].concat();
    for mut stream in &streams {
        stream.set_nonblocking(true).expect("a socket option");
        let sent = stream.write(&behind).expect("the system buffers the beginning");
        assert!(sent > 64 << 10, "only {sent} bytes could be sent");
    }
    // It takes seconds to check all of these passwords.
    await_memory(&mut observer, before + CONNECTIONS * 23_000);
    let each = (used_memory(&mut observer) - before) / CONNECTIONS;
    assert!(each as u64 <= BYTES_MAX, "each of {CONNECTIONS} costs {each} bytes");
}

#[test]
fn huge_commands_are_refused_by_their_headers() {
    let dir = scratch();
    let server = TestUsers::write(dir.path()).launch(dir.path(), "worker").start();
    let large = format!("*3\r\n$5\r\nHELLO\r\n$15900\r\n{}\r\n$8700\r\n", "x".repeat(15_900));
    for (head, why) in [
        (&*large, "too big request"),
        ("*1000000\r\n", "unauthenticated multibulk length"),
        ("*11\r\n", "unauthenticated multibulk length"),
        ("*2\r\n$4\r\nAUTH\r\n$60000000\r\n", "unauthenticated bulk length"),
        ("*3\r\n$7\r\nRQ.PUSH\r\n$6\r\nemails\r\n$60000000\r\n", "unauthenticated bulk length"),
    ] {
        let mut client = server.client();
        client.send_raw(head.as_bytes()).expect("the server reads");
        assert_eq!(client.reply().error(), format!("ERR Protocol error: {why}"), "{head:?}");
        assert!(client.is_closed());
    }
}
