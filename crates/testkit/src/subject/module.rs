//! A Redis with the module loaded, over its socket, with manual clocks.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::wire::{encode_words, take_resp};
use super::{Candidate, Request, Subject};
use crate::manual_clock::ManualClock;
use crate::patience::PATIENCE;
use crate::redis_module::Host;
use crate::redis_server::RedisServer;
use crate::scenario::{Need, Value};
use crate::shifted_clock::ShiftedClock;

/// The module in Redis.
pub const MODULE: Candidate = Candidate {
    name: "module",
    open: |_| Box::new(ModuleSubject::new(Host::Redis)),
    can: |need| need != Need::Text,
    otherwise: REDIS_ANSWERS,
};

/// Scenarios that Redis answers by itself or in its own order.
const REDIS_ANSWERS: &[(&str, &str)] = &[
    ("keys", "Redis lists its keys in its own order, and a key with settings is one"),
    ("other-commands", "those are Redis' own"),
    ("queues", "Redis lists its keys in its own order"),
    ("resp3", "HELLO is Redis' own"),
    ("scan", "Redis lists its keys in its own order"),
];

const TIME_PASSES: &str = "its clock cannot be stopped";

/// The module in Valkey.
pub const MODULE_IN_VALKEY: Candidate = Candidate {
    name: "module in Valkey",
    open: |_| Box::new(ModuleSubject::new(Host::Valkey)),
    // It reads the clock of the processor directly, which cannot be shifted.
    can: |need| !matches!(need, Need::Text | Need::Time),
    otherwise: &[
        REDIS_ANSWERS[0],
        REDIS_ANSWERS[1],
        REDIS_ANSWERS[2],
        REDIS_ANSWERS[3],
        REDIS_ANSWERS[4],
        ("inspect-pending", TIME_PASSES),
        ("names-in-any-case", TIME_PASSES),
        ("recover", TIME_PASSES),
        ("recover-errors", TIME_PASSES),
    ],
};

struct ModuleSubject {
    server: RedisServer,
    clock: ShiftedClock,
    clients: BTreeMap<String, Client>,
    /// A separate connection, to ask the server about the others.
    control: Client,
}

struct Client {
    stream: UnixStream,
    /// Received bytes that were not consumed.
    input: Vec<u8>,
    /// The number of waiting clients before the last request was sent.
    waited_before: u64,
    /// An earlier request waits, and therefore the current one does too.
    waits: bool,
}

impl ModuleSubject {
    fn new(host: Host) -> Self {
        let clock = ShiftedClock::default();
        clock.freeze(ManualClock::START_MS);
        let server = host.start(&[], &clock.environment());
        let control = Client::connect(&server);
        Self { server, clock, clients: BTreeMap::new(), control }
    }

    /// A number in the server's INFO.
    fn info_field(&mut self, section: &str, field: &str) -> u64 {
        let info = self.control.ask(&["INFO", section]);
        let Value::Bulk(info) = info else { panic!("INFO is a text") };
        let info = String::from_utf8(info).expect("INFO is a text");
        let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("INFO {section} has no {field}"))
    }

    /// Waits until the server has noticed the time, and executed everything that is due.
    fn let_it_happen(&mut self) {
        self.control.ask(&["PING"]);
        self.control.ask(&["PING"]);
        let since = Instant::now();
        while self.info_field("sureq", "sureq_overdue") > 0 {
            assert!(since.elapsed() < PATIENCE, "a due task is not moved");
        }
    }
}

impl Client {
    fn connect(server: &RedisServer) -> Self {
        let stream = UnixStream::connect(server.socket()).expect("the server listens");
        Self { stream, input: Vec::new(), waited_before: 0, waits: false }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    fn ask(&mut self, words: &[&str]) -> Value {
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.send(&encode_words(&words));
        loop {
            if let Some(value) = take_resp(&mut self.input) {
                return value;
            }
            self.fill(PATIENCE);
        }
    }

    /// Reads the available bytes; waits at most this long for some.
    fn fill(&mut self, timeout: Duration) {
        let mut room = [0; 8 << 10];
        self.stream.set_read_timeout(Some(timeout)).expect("an option of sockets");
        match self.stream.read(&mut room) {
            Ok(0) => panic!("the server closed a connection"),
            Ok(n) => self.input.extend_from_slice(&room[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => panic!("cannot read from the server: {error}"),
        }
    }
}

impl Subject for ModuleSubject {
    fn ask(&mut self, conn: &str, requests: &[Request]) {
        let waited_before = self.info_field("clients", "blocked_clients");
        let server = &self.server;
        let client = self.clients.entry(conn.to_owned()).or_insert_with(|| Client::connect(server));
        if !client.waits {
            client.waited_before = waited_before;
        }
        let bytes = requests.iter().map(|request| match request {
            Request::Words(words) => encode_words(words),
            Request::Line(_) => panic!("a Redis has no text dialect"),
        });
        client.send(&bytes.collect::<Vec<_>>().concat());
    }

    /// A reply, or `None` if one more client waits since the request was sent.
    fn reply(&mut self, conn: &str) -> Option<Value> {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            let waiting = self.info_field("clients", "blocked_clients");
            let client = self.clients.get_mut(conn)?;
            client.fill(Duration::from_millis(1));
            if let Some(value) = take_resp(&mut client.input) {
                client.waits = false;
                return Some(value);
            }
            if !client.waits && waiting > client.waited_before {
                client.waits = true;
                return None;
            }
        }
        None
    }

    /// A later request may already wait when the reply arrives.
    fn next_reply(&mut self, conn: &str) -> Option<Value> {
        let (client, since) = (self.clients.get_mut(conn)?, Instant::now());
        while since.elapsed() < PATIENCE {
            if let Some(value) = take_resp(&mut client.input) {
                client.waits = false;
                return Some(value);
            }
            client.fill(PATIENCE);
        }
        None
    }

    fn has_reply(&mut self, conn: &str) -> bool {
        let Some(client) = self.clients.get_mut(conn) else { return false };
        client.fill(Duration::from_micros(100));
        !client.input.is_empty()
    }

    fn pass(&mut self, ms: u64) {
        self.clock.pass(ms);
        self.let_it_happen();
    }

    fn jump(&mut self, ms: i64) {
        self.clock.jump(ms);
        // Redis notices that time has passed with the next event.
        self.control.ask(&["PING"]);
    }

    fn restart(&mut self) {
        self.clients.clear();
        // A signal would only be noticed after time has passed.
        self.control.send(&encode_words(&[b"SHUTDOWN".to_vec()]));
        self.server.restart();
        self.control = Client::connect(&self.server);
        self.let_it_happen();
    }

    fn close(&mut self, conn: &str) {
        if self.clients.contains_key(conn) {
            let before = self.info_field("clients", "connected_clients");
            self.clients.remove(conn);
            let since = Instant::now();
            while self.info_field("clients", "connected_clients") >= before {
                assert!(since.elapsed() < PATIENCE, "the server does not notice that {conn} is gone");
            }
            self.let_it_happen();
        }
    }
}
