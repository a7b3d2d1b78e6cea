//! The open connections, for CLIENT LIST, INFO and STATS.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sureq_core::command::ConnId;

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
    pub(crate) fn list(&self, wanted: impl Fn(&Client) -> bool) -> Vec<u8> {
        lines(self.lock().iter().filter(|(_, client)| wanted(client)))
    }

    /// The same for those of these connections that exist, each once. Ids that are not written as CLIENT LIST shows
    /// them are unknown.
    pub(crate) fn list_of(&self, ids: &[&[u8]], wanted: impl Fn(&Client) -> bool) -> Vec<u8> {
        let ids = ids.iter().filter_map(|id| connection_id(id)).collect();
        lines(entries_of(&self.lock(), &ids).filter(|(_, client)| wanted(client)))
    }

    pub(crate) fn line_of(&self, conn: ConnId) -> Vec<u8> {
        lines(self.lock().get_key_value(&conn.0).into_iter())
    }
}

/// The entries with these keys, in order. Each key is looked up, so that a request with many of them on a server with
/// many connections costs the sum and not the product.
fn entries_of<'m, K: Ord, V>(
    all: &'m BTreeMap<K, V>,
    keys: &'m BTreeSet<K>,
) -> impl Iterator<Item = (&'m K, &'m V)> {
    keys.iter().filter_map(|key| all.get_key_value(key))
}

fn lines<'m>(clients: impl Iterator<Item = (&'m u64, &'m Client)>) -> Vec<u8> {
    let mut lines = Vec::new();
    for (id, client) in clients {
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

/// Parses a connection id as CLIENT LIST shows it. Returns `None` for any other spelling of a number.
fn connection_id(word: &[u8]) -> Option<u64> {
    let id: u64 = str::from_utf8(word).ok()?.parse().ok()?;
    (id.to_string().as_bytes() == word).then_some(id)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering as Order;

    use super::*;

    std::thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// An id that counts how often it is compared.
    #[derive(Debug, Eq)]
    struct Counted(u64);

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Order {
            COMPARED.set(COMPARED.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Order> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other) == Order::Equal
        }
    }

    #[test]
    fn a_list_of_many_ids_of_many_connections_does_not_compare_each_with_each() {
        const MANY: u64 = 4_000;
        /// A look-up in a tree of 4,000 takes about twelve levels of up to six comparisons.
        const EACH_MAX: usize = 100;
        let all: BTreeMap<Counted, u64> = (0..MANY).map(|n| (Counted(2 * n), n)).collect();
        let wanted: BTreeSet<Counted> = (0..MANY).rev().map(Counted).collect();
        COMPARED.set(0);
        let found: Vec<u64> = entries_of(&all, &wanted).map(|(_, n)| *n).collect();
        assert_eq!(found, (0..MANY / 2).collect::<Vec<_>>());
        let compared = COMPARED.get();
        assert!(compared <= EACH_MAX * 2 * MANY as usize, "{compared} comparisons");
    }

    #[test]
    fn the_named_connections_are_listed_once_and_in_order() {
        let clients = Clients::at_most(9);
        let peer = SocketAddr::from(([127, 0, 0, 1], 7));
        for _ in 0..4 {
            clients.join(Protocol::Resp, peer);
        }
        let ids = |list: Vec<u8>| -> Vec<String> {
            let text = String::from_utf8(list).expect("it is text");
            text.lines().map(|line| line.split(' ').next().expect("a word").to_owned()).collect()
        };
        let asked: [&[u8]; 7] = [b"3", b"1", b"3", b"9", b"+2", b"x", b""];
        assert_eq!(ids(clients.list_of(&asked, |_| true)), ["id=1", "id=3"]);
        assert_eq!(ids(clients.list_of(&asked, |_| false)), [""; 0]);
        assert_eq!(ids(clients.line_of(ConnId(2))), ["id=2"]);
        assert_eq!(ids(clients.list(|_| true)).len(), 4);
    }
}
