//! Untrusted bytes: damaged snapshots, and a primary that sends damaged effects. Each must lead to an error or to a
//! consistent queue.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use redis::Value;
use rustix::process::Signal;
use sureq_testkit::redis_module::Host;
use sureq_testkit::redis_server::RedisServer;

use crate::support::{Client, fill, list};

/// The number of mutated inputs of each kind, per server.
const SNAPSHOTS: usize = 60_000;
const EFFECTS: usize = 40_000;

/// The checksum that Redis puts at the end of a snapshot.
fn crc64(bytes: &[u8]) -> u64 {
    const REFLECTED: u64 = 0x95ac_9329_ac4b_c9b5;
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ u64::from(byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { REFLECTED } else { 0 })
    })
}

/// Flips bits, truncates, repeats, and inserts numbers that may be read as lengths.
fn mutate(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    for _ in 0..random.usize(1..4) {
        let at = random.usize(..bytes.len().max(1));
        match random.u8(..6) {
            0..=2 if !bytes.is_empty() => bytes[at] ^= 1 << random.u8(..8),
            3 => bytes.truncate(at),
            4 => {
                let grown = [0xff, 0xff, 0xff, 0xff, 0x0f];
                bytes.splice(at..at, grown[..random.usize(..grown.len())].iter().copied());
            }
            _ => {
                let piece: Vec<u8> = bytes[at..].iter().take(random.usize(..40)).copied().collect();
                bytes.splice(at..at, piece);
            }
        }
    }
}

/// Checks that the counts of a queue agree with the tasks that it shows.
fn assert_is_queue(client: &mut Client, key: &str) {
    let counts = client.counts(key);
    for (state, count) in ["", "DELAYED ", "PENDING ", "DEAD "].iter().zip(counts) {
        let shown = list(client.say(&format!("RQ.INSPECT {key} {state}0 1000000"))).len() as u64;
        assert_eq!(shown, count.unsigned_abs(), "{state}of {key}");
    }
}

fn a_damaged_snapshot(host: Host) {
    let server = host.start(&["--appendonly", "no"], &[]);
    let mut client = Client::of(&server);
    let mut random = fastrand::Rng::with_seed(1);
    let (mut snapshots, mut taken) = (Vec::new(), 0);
    for tasks in [20, 60] {
        client.say("FLUSHALL");
        fill(&mut client, "q", tasks, &mut random);
        let Value::BulkString(dump) = client.try_words(&[b"DUMP", b"q"]).expect("it is there") else {
            panic!()
        };
        let (body, sum) = dump.split_at(dump.len() - 8);
        assert_eq!(crc64(body).to_le_bytes(), *sum, "the checksum is Redis'");
        // Long payloads are left out, because most of the damage would hit them.
        snapshots.push(body.to_vec());
    }
    for n in 0..SNAPSHOTS {
        let mut bytes = snapshots[n % 2].clone();
        let footer = bytes.split_off(bytes.len() - 2);
        let long = bytes.windows(64).position(|window| window == [b'y'; 64]).unwrap_or(bytes.len());
        let tail = bytes.split_off(long);
        mutate(&mut bytes, &mut random);
        bytes.extend(tail);
        bytes.extend(footer);
        bytes.extend(crc64(&bytes).to_le_bytes());
        if client.try_words(&[b"RESTORE", b"damaged", b"0", &bytes, b"REPLACE"]).is_ok() {
            taken += 1;
            assert_is_queue(&mut client, "damaged");
            client.say("RQ.POP COUNT 9 damaged");
            client.say("RQ.PURGE damaged");
            client.say("DEL damaged");
        }
    }
    assert_eq!(client.text("PING"), "PONG");
    assert!(taken > 0, "some of them are queues");
    assert_sound(&server);
}

#[test]
fn a_damaged_snapshot_is_an_error_or_a_queue_in_redis() {
    a_damaged_snapshot(Host::Redis);
}

#[test]
fn a_damaged_snapshot_is_an_error_or_a_queue_in_valkey() {
    a_damaged_snapshot(Host::Valkey);
}

/// The effects that a server logged: keys and bytes.
fn logged(server: &RedisServer) -> Vec<(Vec<u8>, Vec<u8>)> {
    let dir = server.dir().join("appendonlydir");
    let log = std::fs::read_dir(dir).expect("the log is there").flatten();
    let log = log.map(|file| file.path()).find(|path| path.to_string_lossy().ends_with(".incr.aof"));
    let bytes = std::fs::read(log.expect("the log is there")).expect("it is a file");
    let (mut rest, mut effects) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let mut words = Vec::new();
        for _ in 0..number(&mut rest) {
            let len = number(&mut rest);
            words.push(rest[..len].to_vec());
            rest = &rest[len + 2..];
        }
        if words[0].eq_ignore_ascii_case(b"RQ.APPLY") {
            effects.push((words[1].clone(), words[2].clone()));
        }
    }
    effects
}

/// Reads the number in the first line, after its marker byte.
fn number(rest: &mut &[u8]) -> usize {
    let end = rest.iter().position(|&c| c == b'\r').expect("RESP");
    let text = std::str::from_utf8(&rest[1..end]).expect("a number");
    *rest = &rest[end + 2..];
    text.parse().expect("a number")
}

/// Acts as a primary towards a replica, up to an empty snapshot.
fn pretend(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().expect("the replica comes");
    let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
    loop {
        let mut words = Vec::new();
        let mut line = String::new();
        reader.read_line(&mut line).expect("the replica asks");
        let count: usize = line.trim_start_matches('*').trim_end().parse().expect("RESP");
        for _ in 0..count {
            let mut len = String::new();
            reader.read_line(&mut len).expect("the replica asks");
            let len: usize = len.trim_start_matches('$').trim_end().parse().expect("RESP");
            let mut word = vec![0; len + 2];
            reader.read_exact(&mut word).expect("the replica asks");
            words.push(String::from_utf8_lossy(&word[..len]).to_ascii_uppercase());
        }
        match words[0].as_str() {
            "PING" => stream.write_all(b"+PONG\r\n").expect("it listens"),
            "PSYNC" => break,
            _ => stream.write_all(b"+OK\r\n").expect("it listens"),
        }
    }
    let mut snapshot = b"REDIS0009\xff".to_vec();
    // An all-zero checksum: Redis does not verify it.
    snapshot.extend([0; 8]);
    let head = format!("+FULLRESYNC {} 0\r\n${}\r\n", "a".repeat(40), snapshot.len());
    stream.write_all(&[head.as_bytes(), &snapshot].concat()).expect("it listens");
    stream
}

fn words(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes().chain(word.iter().copied()).chain(*b"\r\n"));
    }
    bytes
}

fn a_primary_that_lies(host: Host) {
    let origin = host.start(&[], &[]);
    fill(&mut Client::of(&origin), "q", 300, &mut fastrand::Rng::with_seed(2));
    let effects = logged(&origin);
    assert!(effects.len() > 100, "{} effects", effects.len());

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
    let port = listener.local_addr().expect("it is bound").port();
    let follow = format!("127.0.0.1 {port}");
    let options = ["--replicaof", &follow, "--appendonly", "no"];
    let replica = host.start(&options, &[]);
    let mut stream = pretend(&listener);
    let mut random = fastrand::Rng::with_seed(4);
    stream.write_all(&words(&[b"SELECT", b"0"])).expect("it listens");
    for n in 0..EFFECTS {
        let (key, events) = &effects[n % effects.len()];
        // Each key gets unchanged effects first, and mutated ones after that.
        let key = [key, &b"-"[..], (n / 2_000).to_string().as_bytes()].concat();
        let mut events = events.clone();
        if random.u8(..3) > 0 {
            mutate(&mut events, &mut random);
        }
        stream.write_all(&words(&[b"RQ.APPLY", &key, &events])).expect("it listens");
    }
    stream.write_all(&words(&[b"SET", b"done", b"1"])).expect("it listens");
    let mut client = Client::of(&replica);
    let since = std::time::Instant::now();
    while client.say("GET done") == Value::Nil {
        assert!(since.elapsed() < crate::support::PATIENCE * 3, "the stream is not read to its end");
    }
    let keys: Vec<String> = list(client.say("KEYS q-*")).iter().map(crate::support::text).collect();
    assert!(!keys.is_empty(), "some effects are applied");
    for key in &keys {
        assert_is_queue(&mut client, key);
    }
    client.say("REPLICAOF NO ONE");
    for key in &keys {
        client.say(&format!("RQ.POP COUNT 100 {key}"));
        client.say(&format!("RQ.RECOVER {key} 100 0"));
        assert_is_queue(&mut client, key);
    }
    assert_sound(&replica);
}

/// Checks that the server runs, and that no panic was caught. Kills it, so that its log is complete.
fn assert_sound(server: &RedisServer) {
    assert!(!server.process().has_ended());
    server.process().signal(Signal::KILL);
    let log = server.process().stdout();
    let panic = log.lines().find(|line| line.contains("a panic in"));
    assert_eq!(panic, None, "all damage is found by checks");
}

#[test]
fn damaged_effects_leave_consistent_queues_in_redis() {
    a_primary_that_lies(Host::Redis);
}

#[test]
fn damaged_effects_leave_consistent_queues_in_valkey() {
    a_primary_that_lies(Host::Valkey);
}
