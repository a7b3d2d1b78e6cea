//! A server in this process: both dialects over real sockets, with the same manual clock.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use sureq::Home;
use sureq_home_api::Home as _;
use sureq_server::ReservationPolicy;

use super::engine::SimStore;
use super::wire::{encode_words, take_line, take_resp};
use super::{Candidate, Request, Subject};
use crate::local_server::LocalServer;
use crate::patience::PATIENCE;
use crate::scenario::{Value, Watch};

/// A server on loopback.
pub const SERVER: Candidate = Candidate {
    name: "server",
    open: |watch| Box::new(ServerSubject::new(watch)),
    can: |_| true,
    otherwise: &[],
};

struct ServerSubject {
    watch: Watch,
    store: SimStore,
    running: Option<LocalServer>,
    clients: BTreeMap<String, Client>,
    /// A separate connection, to ask the server about the others.
    control: Client,
}

/// One connection to it.
pub(super) struct Client {
    stream: TcpStream,
    is_text: bool,
    /// Received bytes that were not consumed.
    input: Vec<u8>,
    /// The number of waiting pops before the last request was sent.
    waited_before: usize,
    /// An earlier request waits, and therefore the current one does too.
    waits: bool,
}

impl ServerSubject {
    fn new(watch: Watch) -> Self {
        let store = SimStore::new();
        let running = serve(&store, watch);
        let control = Client::connect(running.resp, false);
        Self { watch, store, running: Some(running), clients: BTreeMap::new(), control }
    }

    fn stop(&mut self) {
        self.clients.clear();
        if let Some(running) = self.running.take() {
            running.stop();
        }
    }

    fn running(&self) -> &LocalServer {
        self.running.as_ref().expect("the server runs")
    }
}

/// Serves a store, with these timeouts for reservations of the text dialect.
pub(super) fn serve(store: &SimStore, watch: Watch) -> LocalServer {
    let reservations = ReservationPolicy { timeout_secs: watch.rtt, attempts: watch.rta };
    LocalServer::start_with(&Home::from_api(store.engine.clone()), reservations)
}

impl Client {
    /// The number of connections of the server.
    pub(super) fn connected(&mut self) -> usize {
        self.send(&encode_words(&[b"INFO".to_vec(), b"clients".to_vec()]));
        let Value::Bulk(info) = self.read() else { panic!("INFO is a text") };
        let info = String::from_utf8(info).expect("INFO is a text");
        let line = info.lines().find_map(|line| line.strip_prefix("connected_clients:"));
        line.and_then(|n| n.parse().ok()).expect("INFO counts connections")
    }

    /// Waits until the server has fewer connections than before.
    pub(super) fn await_fewer(&mut self, before: usize) {
        let since = Instant::now();
        while self.connected() >= before {
            assert!(since.elapsed() < PATIENCE, "the server does not notice that a connection is gone");
        }
    }

    pub(super) fn connect(address: SocketAddr, is_text: bool) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a TCP option");
        Self { stream, is_text, input: Vec::new(), waited_before: 0, waits: false }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    fn take(&mut self) -> Option<Value> {
        if self.is_text { take_line(&mut self.input) } else { take_resp(&mut self.input) }
    }

    /// Reads the available bytes; waits at most this long for some.
    fn fill(&mut self, timeout: Duration) {
        let mut room = [0; 8 << 10];
        self.stream.set_read_timeout(Some(timeout)).expect("a TCP option");
        match self.stream.read(&mut room) {
            Ok(0) => panic!("the server closed a connection"),
            Ok(n) => self.input.extend_from_slice(&room[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => panic!("cannot read from the server: {error}"),
        }
    }

    /// The next reply, unless `is_vain` returns true; polls at this pace, up to a limit.
    fn reply_unless(&mut self, pace: Duration, mut is_vain: impl FnMut(&mut Self) -> bool) -> Option<Value> {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            if let Some(value) = self.take() {
                self.waits = false;
                return Some(value);
            }
            if is_vain(self) {
                return None;
            }
            self.fill(pace);
        }
        None
    }

    fn read(&mut self) -> Value {
        loop {
            if let Some(value) = self.take() {
                return value;
            }
            self.fill(PATIENCE);
        }
    }
}

impl Subject for ServerSubject {
    fn ask(&mut self, conn: &str, requests: &[Request]) {
        let is_text = matches!(requests, [Request::Line(_), ..]);
        if !self.clients.contains_key(conn) {
            let running = self.running();
            let client = Client::connect(if is_text { running.text } else { running.resp }, is_text);
            self.clients.insert(conn.to_owned(), client);
        }
        let waited_before = self.store.engine.waiters();
        let client = self.clients.get_mut(conn).expect("it is connected");
        if !client.waits {
            client.waited_before = waited_before;
        }
        let bytes = requests.iter().map(|request| match request {
            Request::Words(words) => encode_words(words),
            Request::Line(line) => [line, &b"\n"[..]].concat(),
        });
        client.send(&bytes.collect::<Vec<_>>().concat());
    }

    /// A reply, or `None` if the number of waiting pops has grown since the request was sent.
    fn reply(&mut self, conn: &str) -> Option<Value> {
        let (client, engine) = (self.clients.get_mut(conn)?, &self.store.engine);
        client.reply_unless(Duration::from_millis(1), |client| {
            let waits = !client.waits && engine.waiters() > client.waited_before;
            client.waits |= waits;
            waits
        })
    }

    /// A later request may already wait when the reply arrives.
    fn next_reply(&mut self, conn: &str) -> Option<Value> {
        self.clients.get_mut(conn)?.reply_unless(PATIENCE, |_| false)
    }

    fn has_reply(&mut self, conn: &str) -> bool {
        let Some(client) = self.clients.get_mut(conn) else { return false };
        client.fill(Duration::from_micros(100));
        !client.input.is_empty()
    }

    fn pass(&mut self, ms: u64) {
        self.store.pass(ms);
    }

    fn jump(&mut self, ms: i64) {
        self.store.jump(ms);
    }

    fn restart(&mut self) {
        self.stop();
        self.store.reopen();
        self.store.let_it_happen();
        let running = serve(&self.store, self.watch);
        self.control = Client::connect(running.resp, false);
        self.running = Some(running);
    }

    fn close(&mut self, conn: &str) {
        if !self.clients.contains_key(conn) {
            return;
        }
        let before = self.control.connected();
        self.clients.remove(conn);
        self.control.await_fewer(before);
    }
}

impl Drop for ServerSubject {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}
