//! The open connections, for CLIENT LIST, INFO and STATS.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sureq_core::command::ConnId;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Resp,
    Text,
}

/// All connections of a server.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    max: usize,
    last: AtomicU64,
    text: AtomicUsize,
    total: AtomicU64,
    by_id: Mutex<BTreeMap<u64, Client>>,
}

/// One connection, as CLIENT LIST shows it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    protocol: Protocol,
    peer: SocketAddr,
    since: Instant,
    /// The name of its user; `None` before authentication.
    pub(crate) user: Option<Box<str>>,
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    /// The numbers of channels and of patterns that it has subscribed to.
    pub(crate) subscriptions: (usize, usize),
}

impl Client {
    /// Whether it has any subscription.
    pub(crate) const fn is_subscriber(&self) -> bool {
        self.subscriptions.0 + self.subscriptions.1 > 0
    }
}

impl Clients {
    /// No connections yet, and at most `max` at a time.
    pub(crate) fn at_most(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    /// The largest number of connections.
    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Client>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a new connection.
    pub(crate) fn join(&self, protocol: Protocol, peer: SocketAddr) -> ConnId {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.total.fetch_add(1, Ordering::Relaxed);
        if protocol == Protocol::Text {
            self.text.fetch_add(1, Ordering::Relaxed);
        }
        let since = Instant::now();
        let client = Client {
            protocol,
            peer,
            since,
            user: None,
            name: Vec::new(),
            library: Vec::new(),
            library_version: Vec::new(),
            subscriptions: (0, 0),
        };
        self.lock().insert(id, client);
        ConnId(id)
    }

    /// Removes a connection that has ended.
    pub(crate) fn leave(&self, conn: ConnId) {
        let gone = self.lock().remove(&conn.0);
        if gone.is_some_and(|client| client.protocol == Protocol::Text) {
            self.text.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// The number of text connections.
    pub(crate) fn text_len(&self) -> usize {
        self.text.load(Ordering::Relaxed)
    }

    /// The number of connections since the start.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Updates the entry of a connection with information that its client sent.
    pub(crate) fn note(&self, conn: ConnId, note: impl FnOnce(&mut Client)) {
        if let Some(client) = self.lock().get_mut(&conn.0) {
            note(client);
        }
    }

    pub(crate) fn name(&self, conn: ConnId) -> Vec<u8> {
        self.lock().get(&conn.0).map(|client| client.name.clone()).unwrap_or_default()
    }

    /// One line for each connection that `wanted` accepts, in the format of CLIENT LIST.
    pub(crate) fn list(&self, wanted: impl Fn(u64, &Client) -> bool) -> Vec<u8> {
        let mut lines = Vec::new();
        for (id, client) in self.lock().iter().filter(|(id, client)| wanted(**id, client)) {
            let dialect = if client.protocol == Protocol::Text { "text" } else { "resp" };
            let age = client.since.elapsed().as_secs();
            lines.extend_from_slice(format!("id={id} addr={} name=", client.peer).as_bytes());
            lines.extend_from_slice(&client.name);
            let (sub, psub) = client.subscriptions;
            lines.extend_from_slice(format!(" age={age} db=0 sub={sub} psub={psub} ").as_bytes());
            lines.extend_from_slice(format!("dialect={dialect} lib-name=").as_bytes());
            lines.extend_from_slice(&client.library);
            lines.extend_from_slice(b" lib-ver=");
            lines.extend_from_slice(&client.library_version);
            lines.extend_from_slice(b" user=");
            lines.extend_from_slice(client.user.as_deref().unwrap_or_default().as_bytes());
            lines.push(b'\n');
        }
        lines
    }
}

/// Parses a connection id as CLIENT LIST shows it. Returns `None` for any other spelling of a number.
pub(crate) fn connection_id(word: &[u8]) -> Option<u64> {
    let id: u64 = str::from_utf8(word).ok()?.parse().ok()?;
    (id.to_string().as_bytes() == word).then_some(id)
}
