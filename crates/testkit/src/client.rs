//! Simple blocking clients for both dialects: raw bytes out, replies in.
//!
//! They are made for tests: every failure is a panic, except in methods that return an [`io::Result`] for tests that
//! crash the server on purpose.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use sureq_core::limits;

use crate::process::PATIENCE;

/// A reply in RESP2 or RESP3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `+`
    Simple(String),
    /// `-`
    Error(String),
    /// `:`
    Int(i64),
    /// `$`
    Bulk(Vec<u8>),
    /// `*` and other lists; a map is a list of keys and values in turn.
    Array(Vec<Value>),
    /// Any form of null.
    Null,
}

impl Value {
    /// The elements of a list.
    pub fn list(self) -> Vec<Value> {
        match self {
            Value::Array(list) => list,
            other => panic!("not a list: {other:?}"),
        }
    }

    /// The bytes of a string.
    pub fn bytes(self) -> Vec<u8> {
        match self {
            Value::Bulk(bytes) => bytes,
            other => panic!("not a bulk string: {other:?}"),
        }
    }

    /// A string, or the text of an error or a simple reply.
    pub fn text(self) -> String {
        match self {
            Value::Simple(text) | Value::Error(text) => text,
            other => String::from_utf8(other.bytes()).expect("it is text"),
        }
    }

    /// The text of an error.
    pub fn error(self) -> String {
        match self {
            Value::Error(text) => text,
            other => panic!("not an error: {other:?}"),
        }
    }

    /// A field of a task, as text.
    pub fn field(&self, at: usize) -> String {
        let Self::Array(fields) = self else { panic!("{self:?} is no task") };
        fields[at].clone().text()
    }

    /// A list of ids.
    pub fn ids(self) -> Vec<String> {
        self.list().into_iter().map(Value::text).collect()
    }

    /// The tasks in a reply to RQ.POP.
    pub fn tasks(self) -> Vec<Task> {
        let task = |value: Value| {
            let mut fields = value.list().into_iter();
            let mut next = || fields.next().expect("a task has three fields");
            Task { queue: next().bytes(), id: next().text(), payload: next().bytes() }
        };
        self.list().into_iter().map(task).collect()
    }
}

/// A task in a reply to RQ.POP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub queue: Vec<u8>,
    pub id: String,
    pub payload: Vec<u8>,
}

/// A RESP connection.
#[derive(Debug)]
pub struct RespClient {
    wire: Wire,
}

impl RespClient {
    pub fn connect(address: SocketAddr) -> Self {
        Self {
            wire: Wire::connect(address)
                .unwrap_or_else(|error| panic!("cannot connect to {address}: {error}")),
        }
    }

    /// Connects; an error if no server listens.
    pub fn try_connect(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { wire: Wire::connect(address)? })
    }

    /// Sends raw bytes.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.wire.stream.write_all(bytes)
    }

    /// Reads one reply.
    pub fn read(&mut self) -> io::Result<Value> {
        let line = self.wire.line()?;
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        let text = || String::from_utf8_lossy(&line[1..]).into_owned();
        let number = || text().parse::<i64>().map_err(|_| malformed(line));
        Ok(match line.first() {
            Some(b'+') => Value::Simple(text()),
            Some(b'-') => Value::Error(text()),
            Some(b':') => Value::Int(number()?),
            Some(b'_') => Value::Null,
            Some(b'$' | b'*') if line[1..] == *b"-1" => Value::Null,
            Some(b'$' | b'=') => {
                let mut bytes =
                    self.wire.exactly(usize::try_from(number()?).map_err(|_| malformed(line))? + 2)?;
                if bytes.split_off(bytes.len() - 2) != b"\r\n" {
                    return Err(malformed(line));
                }
                Value::Bulk(bytes)
            }
            Some(kind @ (b'*' | b'%' | b'~' | b'>')) => {
                let pairs = if *kind == b'%' { 2 } else { 1 };
                let count = number()? * pairs;
                Value::Array((0..count).map(|_| self.read()).collect::<io::Result<_>>()?)
            }
            _ => return Err(malformed(line)),
        })
    }

    /// Reads one reply; panics on an error.
    pub fn reply(&mut self) -> Value {
        self.read().expect("a reply comes")
    }

    /// Sends a command and reads its reply.
    pub fn command<A: AsRef<[u8]>>(&mut self, argv: &[A]) -> Value {
        self.send_raw(&encode(argv)).expect("the server reads");
        self.reply()
    }

    /// Sends a command, given as words separated by spaces, and reads its reply.
    pub fn say(&mut self, line: &str) -> Value {
        self.command(&line.split(' ').collect::<Vec<_>>())
    }

    /// Sends a command, given as words separated by spaces, without reading its reply.
    pub fn begin(&mut self, line: &str) {
        self.send_raw(&encode(&line.split(' ').collect::<Vec<_>>())).expect("the server reads");
    }

    /// Pushes one payload; returns its id.
    pub fn push(&mut self, queue: &str, payload: impl AsRef<[u8]>) -> String {
        let reply = self.command(&[b"RQ.PUSH", queue.as_bytes(), payload.as_ref()]);
        reply.ids().pop().expect("one id for one payload")
    }

    /// Pushes `count` tasks with the payload `x`, in as few commands as possible; returns their ids.
    pub fn push_many(&mut self, queue: &str, count: usize) -> Vec<String> {
        let mut ids = Vec::with_capacity(count);
        while ids.len() < count {
            let some = (count - ids.len()).min(limits::PUSH_TASKS_MAX);
            let argv: Vec<&str> = ["RQ.PUSH", queue].into_iter().chain(vec!["x"; some]).collect();
            let new = self.command(&argv).ids();
            assert_eq!(new.len(), some, "an id for each payload");
            ids.extend(new);
        }
        ids
    }

    /// Pops up to `count` tasks.
    pub fn pop(&mut self, queue: &str, count: usize) -> Vec<Task> {
        self.say(&format!("RQ.POP COUNT {count} {queue}")).tasks()
    }

    /// Acks one task; returns whether this call finished it.
    pub fn ack(&mut self, queue: &str, id: &str) -> bool {
        match self.command(&["RQ.ACK", queue, id]).ids().as_slice() {
            [] => false,
            [acked] if acked == id => true,
            other => panic!("the reply to an ack of {id} is {other:?}"),
        }
    }

    /// The numbers of waiting and leased tasks of a queue.
    pub fn counts(&mut self, queue: &str) -> (i64, i64) {
        let fields = self.command(&["RQ.INFO", queue]).list();
        match (&fields[1], &fields[3]) {
            (&Value::Int(waiting), &Value::Int(held)) => (waiting, held),
            other => panic!("the reply to RQ.INFO is {other:?}"),
        }
    }

    /// Whether the server closes the connection without sending another byte.
    pub fn is_closed(&mut self) -> bool {
        self.wire.is_closed()
    }

    pub fn stream(&self) -> &TcpStream {
        &self.wire.stream
    }

    /// Shuts down the sending side.
    pub fn end(&self) {
        self.wire.end();
    }
}

/// A connection in the text dialect.
#[derive(Debug)]
pub struct TextClient {
    wire: Wire,
}

impl TextClient {
    pub fn connect(address: SocketAddr) -> Self {
        Self {
            wire: Wire::connect(address)
                .unwrap_or_else(|error| panic!("cannot connect to {address}: {error}")),
        }
    }

    /// Sends raw bytes.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.wire.stream.write_all(bytes)
    }

    /// Reads one line, without its end.
    pub fn line(&mut self) -> String {
        String::from_utf8_lossy(&self.wire.line().expect("a line comes")).into_owned()
    }

    /// Sends a line and reads one.
    pub fn say(&mut self, line: &str) -> String {
        self.send_raw(format!("{line}\n").as_bytes()).expect("the server reads");
        self.line()
    }

    /// Adds a task; returns its id.
    pub fn add(&mut self, delay_ms: u32, body: &str) -> String {
        let reply = self.say(&format!("ADD {delay_ms} {body}"));
        reply.split(' ').nth(1).unwrap_or_else(|| panic!("ADD was answered {reply:?}")).to_owned()
    }

    /// Whether the server closes the connection without sending another byte.
    pub fn is_closed(&mut self) -> bool {
        self.wire.is_closed()
    }

    pub fn stream(&self) -> &TcpStream {
        &self.wire.stream
    }

    /// Shuts down the sending side.
    pub fn end(&self) {
        self.wire.end();
    }
}

/// A command as an array of bulk strings.
pub fn encode<A: AsRef<[u8]>>(argv: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", argv.len()).into_bytes();
    for arg in argv.iter().map(AsRef::as_ref) {
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn malformed(line: &[u8]) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {:?}", String::from_utf8_lossy(line)))
}

/// A stream with a buffer for what has arrived.
#[derive(Debug)]
struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    start: usize,
}

impl Wire {
    fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, buffer: Vec::new(), start: 0 })
    }

    fn more(&mut self) -> io::Result<()> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let len = self.buffer.len();
        self.buffer.resize(len + (64 << 10), 0);
        let read = self.stream.read(&mut self.buffer[len..]);
        self.buffer.truncate(len + *read.as_ref().unwrap_or(&0));
        if read? == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// The next line, without its LF.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut looked = 0;
        loop {
            let fresh = &self.buffer[self.start..];
            if let Some(at) = fresh[looked..].iter().position(|&byte| byte == b'\n') {
                let line = fresh[..looked + at].to_vec();
                self.start += looked + at + 1;
                return Ok(line);
            }
            looked = fresh.len();
            self.more()?;
        }
    }

    fn exactly(&mut self, len: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() - self.start < len {
            self.more()?;
        }
        self.start += len;
        Ok(self.buffer[self.start - len..self.start].to_vec())
    }

    fn is_closed(&mut self) -> bool {
        if self.start < self.buffer.len() {
            return false;
        }
        match self.more() {
            Ok(()) => false,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                false
            }
            Err(_) => true,
        }
    }

    fn end(&self) {
        // A connection that is already closed cannot be shut down.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// Sets a short read timeout, for tests that expect silence.
pub fn set_patience(stream: &TcpStream, patience: Duration) {
    stream.set_read_timeout(Some(patience)).expect("a positive time");
}
