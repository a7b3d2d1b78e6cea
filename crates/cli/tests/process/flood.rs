//! Floods of data, commands and connections: memory stays bounded, and other clients are served.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use sureq_testkit::client::{RespClient, Value};
use sureq_testkit::load::scale;
use sureq_testkit::patience::until;
use sureq_testkit::process::{PATIENCE, raise_file_limit, run};

use crate::{await_line, scratch, serve};

const MB: u64 = 1 << 20;

/// Writes until the server closes the connection; fails the test if it accepts `most` bytes.
fn write_until_closed(mut stream: TcpStream, most: u64) {
    let (chunk, mut written) = (vec![b'x'; 64 << 10], 0);
    while written < most {
        match stream.write(&chunk) {
            Ok(len) => written += len as u64,
            Err(_) => return,
        }
    }
    panic!("the server read {most} bytes without a line end");
}

#[test]
fn an_endless_line_is_cut_off_on_either_port() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let before = server.resident_bytes();
    for address in [server.resp, server.text] {
        let streams: Vec<_> =
            (0..10).map(|_| TcpStream::connect(address).expect("the server accepts")).collect();
        for stream in streams {
            write_until_closed(stream, 64 * MB);
        }
    }
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 16 * MB, "grew by {grown} bytes");
    assert_eq!(server.client().say("PING").text(), "PONG");
}

#[test]
fn a_too_long_text_line_is_refused_once_and_the_next_is_executed() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut text = server.text_client();
    text.send_raw(&[b"ADD 0 ", &vec![b'x'; 200 << 10][..], b"\nSTATS\n"].concat()).expect("the server reads");
    assert_eq!(text.line(), "line too long");
    assert!(text.line().starts_with("TASKS 0 RESERVED 0 "));
}

#[test]
fn headers_that_announce_large_commands_allocate_little() {
    raise_file_limit();
    let dir = scratch();
    let server = serve(dir.path()).start();
    let before = server.resident_bytes();
    let headers: [&[u8]; 4] = [
        b"*1048576\r\n",
        b"*1\r\n$67108864\r\n",
        b"*3\r\n$7\r\nRQ.PUSH\r\n$1\r\nq\r\n$67108864\r\nx",
        b"*1048576\r\n$4\r\nPING\r\n",
    ];
    let mut clients: Vec<RespClient> = (0..1000).map(|_| server.client()).collect();
    for (client, header) in clients.iter_mut().zip(headers.iter().cycle()) {
        client.send_raw(header).expect("the server reads");
    }
    assert_eq!(server.client().say("PING").text(), "PONG");
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 1000 * (64 << 10), "grew by {grown} bytes for 1000 connections");
}

/// Writes until the server stops reading; returns the number of bytes that it accepted.
fn write_until_refused(mut stream: &TcpStream, bytes: &[u8]) -> usize {
    stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a positive time");
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(len) => written += len,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => panic!("the server hung up: {error}"),
        }
    }
    written
}

#[test]
fn a_million_commands_sent_without_reading_are_held_back_and_all_answered() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut other = server.client();
    let before = server.resident_bytes();
    let count = 1_000_000 * scale() as usize;
    let payload = "0123456789abcdef0123456789abcdef";
    let commands = format!("ECHO {payload}\r\n").repeat(count);
    let reply = format!("$32\r\n{payload}\r\n");
    let stream = TcpStream::connect(server.resp).expect("the server accepts");
    let written = write_until_refused(&stream, commands.as_bytes());
    assert!(written < commands.len(), "the server read everything, although its replies were not read");
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 48 * MB, "grew by {grown} bytes");
    assert_eq!(other.say("PING").text(), "PONG", "others are served meanwhile");

    thread::scope(|scope| {
        scope.spawn(|| {
            stream.set_write_timeout(None).expect("no time");
            (&stream).write_all(&commands.as_bytes()[written..]).expect("the server reads on");
        });
        let expected = reply.repeat(1000);
        let mut room = vec![0; expected.len()];
        for _ in 0..count / 1000 {
            (&stream).read_exact(&mut room).expect("every command is answered");
            assert!(room == expected.as_bytes(), "a reply does not match its command");
        }
    });
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 48 * MB, "grew by {grown} bytes");
}

#[test]
fn two_thousand_connections_are_served() {
    raise_file_limit();
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut observer = server.client();
    assert_eq!(observer.say("PING").text(), "PONG");
    let before = server.resident_bytes();
    let mut clients: Vec<RespClient> = (0..2000).map(|_| server.client()).collect();
    for client in &mut clients {
        client.begin("RQ.PUSH q x");
    }
    for client in &mut clients {
        assert_eq!(client.reply().ids().len(), 1);
    }
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 2000 * (64 << 10), "grew by {grown} bytes");
    drop(clients);
    await_clients(&mut observer, 1);
}

#[test]
fn many_short_connections_leak_nothing() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let mut observer = server.client();
    assert_eq!(observer.say("PING").text(), "PONG");
    let files = server.open_files();
    thread::scope(|scope| {
        for n in 0..4 {
            let server = &server;
            scope.spawn(move || {
                for round in 0..500 * scale() {
                    let address = if round % 2 == 0 { server.resp } else { server.text };
                    let mut stream = TcpStream::connect(address).expect("the server accepts");
                    match (round + n) % 3 {
                        0 => {}
                        1 => drop(stream.write_all(b"*3\r\n$7\r\nRQ.")),
                        _ => drop(stream.write_all(b"RQ.POP BLOCK 0 q\r\n")),
                    }
                }
            });
        }
    });
    await_clients(&mut observer, 1);
    await_line(&mut observer, 0);
    // An accepted connection counts as a client only when its thread has it.
    until("nothing is left open", || server.open_files() <= files + 2);
}

#[test]
fn connections_beyond_the_limit_are_refused_and_the_log_keeps_its_descriptors() {
    let dir = scratch();
    let launch = serve(dir.path())
        .args(["--segment-bytes", "1MB", "--threads", "1"])
        .under(["prlimit", "--nofile=64"]);
    let server = launch.start();
    let mut first = server.client();
    assert_eq!(first.say("PING").text(), "PONG");
    let mut crowd: Vec<RespClient> = (0..100).map(|_| server.client()).collect();
    crowd.retain_mut(|client| {
        // A refused connection may be closed before it has sent anything.
        let _ = client.send_raw(b"PING\r\n");
        match client.read() {
            Ok(Value::Error(why)) => assert_eq!(why, "ERR max number of clients reached"),
            Ok(pong) => return pong.text() == "PONG",
            Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "neither served nor refused"),
        }
        false
    });
    assert!((10..64).contains(&crowd.len()), "{} were served", crowd.len());
    // Enough for several segments: the log needs descriptors too.
    for _ in 0..80 {
        first.push("q", vec![b'x'; 100 << 10]);
    }
    drop(crowd);
    await_clients(&mut first, 1);
    assert_eq!(server.client().counts("q"), (80, 0));
}

/// Waits until this many clients are connected; polls, since nothing signals it.
fn await_clients(observer: &mut RespClient, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !observer.say("INFO clients").text().contains(&format!("connected_clients:{count}\r\n")) {
        assert!(Instant::now() < deadline, "{count} clients never connected");
        thread::yield_now();
    }
}

/// Waits for the files that a store prepares in advance, each of which takes a descriptor while it is written.
fn await_reserve(dir: &Path) {
    let is_prepared = |entry: &fs::DirEntry| {
        let is_spare = entry.file_name().to_string_lossy().starts_with("spare-");
        is_spare && entry.metadata().is_ok_and(|file| file.len() == MB)
    };
    let since = Instant::now();
    while fs::read_dir(dir).expect("the store is there").flatten().filter(is_prepared).count() < 4 {
        assert!(since.elapsed() < PATIENCE, "the store prepares four files");
        thread::yield_now();
    }
}

#[test]
fn without_descriptors_connections_continue_and_no_thread_spins() {
    let dir = scratch();
    // Small segments: preparing large ones in advance would count as work.
    let server = serve(dir.path()).args(["--segment-bytes", "1MB"]).start();
    let mut first = server.client();
    assert_eq!(first.say("PING").text(), "PONG");
    await_reserve(dir.path());
    let (pid, files) = (server.id().to_string(), server.open_files());
    run("prlimit", &["--pid", &pid, &format!("--nofile={files}:")]);
    let mut late = server.client();
    late.begin("PING");
    // The test measures how little CPU the server uses in this time.
    let ticks = server.cpu_ticks();
    thread::sleep(Duration::from_secs(1));
    let spent = server.cpu_ticks() - ticks;
    assert!(spent < 10, "{spent} % of a core were spent on waiting for a descriptor");
    assert_eq!(first.push("q", "x").split('-').count(), 2, "existing connections are served");
    run("prlimit", &["--pid", &pid, "--nofile=1024:"]);
    assert_eq!(late.reply().text(), "PONG");
}
