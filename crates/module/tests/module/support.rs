//! Servers and connections, commands as lines, and queues in every state.

use std::time::{Duration, Instant};

use redis::{Connection, ConnectionLike as _, RedisError, Value, cmd};
use sureq_testkit::redis_server::RedisServer;

/// The timeout of operations that should be immediate. It is reached only if something hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A client that sends commands as lines of words separated by blanks.
pub(crate) struct Client {
    conn: Connection,
}

impl Client {
    pub(crate) fn of(server: &RedisServer) -> Self {
        let conn = server.connect();
        conn.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
        Self { conn }
    }

    pub(crate) fn try_say(&mut self, line: &str) -> Result<Value, RedisError> {
        self.try_words(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    /// Sends a command and returns its reply, which must not be an error.
    pub(crate) fn say(&mut self, line: &str) -> Value {
        self.try_say(line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    pub(crate) fn try_words(&mut self, words: &[&[u8]]) -> Result<Value, RedisError> {
        command(words).query(&mut self.conn)
    }

    /// Sends a command and returns its error.
    pub(crate) fn error(&mut self, line: &str) -> String {
        match self.try_say(line) {
            Ok(value) => panic!("{line}: no error, but {value:?}"),
            Err(error) => format!("{} {error}", error.code().unwrap_or_default()),
        }
    }

    /// Sends a command without waiting for the reply.
    pub(crate) fn ask(&mut self, line: &str) {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.conn.send_packed_command(&command(&words).get_packed_command()).expect("the server reads");
    }

    /// The reply to the command that [`Self::ask`] sent.
    pub(crate) fn answer(&mut self) -> Result<Value, RedisError> {
        self.conn.recv_response().and_then(Value::extract_error)
    }

    pub(crate) fn text(&mut self, line: &str) -> String {
        text(&self.say(line))
    }

    pub(crate) fn number(&mut self, line: &str) -> i64 {
        match self.say(line) {
            Value::Int(n) => n,
            other => panic!("{line}: no number, but {other:?}"),
        }
    }

    /// A field of INFO.
    pub(crate) fn told(&mut self, section: &str, field: &str) -> String {
        let info = self.text(&format!("INFO {section}"));
        let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("INFO {section} has no field {field}")).to_owned()
    }

    /// Waits until a field of INFO has this value.
    pub(crate) fn wait_until(&mut self, section: &str, field: &str, value: &str) {
        let since = Instant::now();
        while self.told(section, field) != value {
            assert!(since.elapsed() < PATIENCE, "{field} does not become {value}");
        }
    }

    pub(crate) fn is_open(&mut self) -> bool {
        self.conn.check_connection()
    }

    pub(crate) fn digest(&mut self, key: &str) -> String {
        shown(&self.say(&format!("DEBUG DIGEST-VALUE {key}")))
    }

    /// The numbers of ready, delayed, leased and dead tasks.
    pub(crate) fn counts(&mut self, queue: &str) -> [i64; 4] {
        let Value::Array(info) = self.say(&format!("RQ.INFO {queue}")) else { panic!("INFO is a list") };
        [5, 7, 9, 11].map(|at| match info[at] {
            Value::Int(n) => n,
            ref other => panic!("no count: {other:?}"),
        })
    }
}

/// The CPU time that the server has used by its own account, in seconds.
pub(crate) fn cpu(client: &mut Client) -> f64 {
    let part = |client: &mut Client, field| client.told("cpu", field).parse::<f64>().expect("a number");
    part(client, "used_cpu_sys") + part(client, "used_cpu_user")
}

fn command(words: &[&[u8]]) -> redis::Cmd {
    let mut command = cmd(std::str::from_utf8(words[0]).expect("a name"));
    words[1..].iter().for_each(|word| _ = command.arg(*word));
    command
}

/// A value as text, with lists in brackets.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("[{}]", list.iter().map(shown).collect::<Vec<_>>().join(" ")),
        Value::Nil => "null".to_owned(),
        Value::Int(n) => n.to_string(),
        other => text(other),
    }
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        Value::Okay => "OK".to_owned(),
        other => panic!("no text: {other:?}"),
    }
}

pub(crate) fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(list) => list,
        other => panic!("no list: {other:?}"),
    }
}

/// Fills a queue with about `tasks` tasks, in every state and with every attribute that a task can have. No deadline
/// is within the next hour.
pub(crate) fn fill(client: &mut Client, queue: &str, tasks: usize, random: &mut fastrand::Rng) {
    client.say(&format!("RQ.CONFIG {queue} TRIES 3 BACKOFF 7200000 MAX-LENGTH 1000000"));
    let worker = client.text("RQ.WORKER START filler TTL 86400000");
    client.say(&format!("RQ.WORKER WORK {worker} {queue}"));
    for n in 0..tasks / 10 {
        let payload = "x".repeat(random.usize(..200));
        client.say(&format!("RQ.PUSH {queue} plain-{n}-{payload} plain-{n} third {n}"));
        let option =
            ["DELAY 7200000", "PRIORITY 5", "PRIORITY -3", "TTL 7200000", "AT 4000000000000", "TRIES 1"]
                [random.usize(..6)];
        client.say(&format!("RQ.ADD {queue} {payload} NAME name-{n} {option}"));
        client.say(&format!("RQ.ADD {queue} unique-{n} UNIQUE DELAY 7200000"));
        client.say(&format!("RQ.ADD {queue} later-{n} DELAY {}", 7_200_000 + random.u64(..1_000_000)));
        let lease = ["LEASE 7200000", "COUNT 1", &format!("WORKER {worker}")][random.usize(..3)].to_owned();
        let popped = list(
            client.say(&format!("RQ.POP {lease} COUNT 3 {queue}").replace("COUNT 1 COUNT 3", "COUNT 3")),
        );
        for task in popped {
            let id = text(&list(task)[1]);
            match random.u8(..8) {
                0 => _ = client.say(&format!("RQ.ACK {queue} {id}")),
                1 => _ = client.say(&format!("RQ.RETURN {queue} {id} FAILED because")),
                2 => _ = client.say(&format!("RQ.RETURN {queue} {id} BACK")),
                3 => _ = client.say(&format!("RQ.BURY {queue} {id}")),
                4 => _ = client.say(&format!("RQ.CANCEL {queue} ID {id}")),
                5 => _ = client.say(&format!("RQ.EXTEND {queue} {id} 7200000")),
                _ => {}
            }
        }
    }
    let long = vec![b'y'; 70_000];
    let words: [&[u8]; 3] = [b"RQ.PUSH", queue.as_bytes(), &long];
    client.try_words(&words).expect("a long payload is a payload");
    assert!(client.counts(queue).iter().all(|&count| count > 0), "a task in every state");
}
