//! Which server owns which slots: the only server, the primary that sentinels name, or the servers of a cluster.
//!
//! The map may be out of date. A caller that notices calls [`Topology::invalidate`], and the next one asks the
//! servers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::{ConnectionAddr, ConnectionInfo, RedisError, Value, cmd};
use sureq_slots::SLOTS;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use crate::connection::node::Node;
use crate::connection::target::{Servers, elsewhere};
use crate::script::answer::{UnexpectedAnswer, bytes, list, number};

/// The time limit for one server to report the topology.
const ASKED_FOR: Duration = Duration::from_secs(1);

/// The time without an answer after which the next server is asked as well.
const NEXT_AFTER: Duration = Duration::from_millis(50);

/// The servers, and which of them owns which slots.
pub(crate) struct Topology {
    servers: Servers,
    nodes: RefCell<BTreeMap<Address, Rc<Node>>>,
    /// The owner of each range of slots, by its first slot. Without a cluster one server owns all.
    owners: RefCell<BTreeMap<u16, Address>>,
    is_known: Cell<bool>,
    /// Held while the servers are asked, so that other callers wait for the result.
    asking: Mutex<()>,
    /// Which server is asked first. It changes each time, since one of them may be cut off from the others.
    turn: Cell<usize>,
}

type Address = (String, u16);

impl Topology {
    pub(crate) fn new(servers: Servers) -> Result<Self, RedisError> {
        let topology = Self {
            servers,
            nodes: RefCell::default(),
            owners: RefCell::default(),
            is_known: Cell::new(false),
            asking: Mutex::new(()),
            turn: Cell::new(fastrand::usize(..1_000)),
        };
        if let Servers::One(info) = &topology.servers {
            topology.nodes.borrow_mut().insert(address_of(info), Rc::new(Node::new(info.clone())?));
            topology.owners.borrow_mut().insert(0, address_of(info));
            topology.is_known.set(true);
        }
        Ok(topology)
    }

    /// Whether another server may take over.
    pub(crate) const fn is_many(&self) -> bool {
        !matches!(self.servers, Servers::One(_))
    }

    /// The server that owns a slot, as far as is known.
    pub(crate) async fn node(&self, slot: u16) -> Result<Rc<Node>, RedisError> {
        if !self.is_known.get() {
            self.ask_anew().await?;
        }
        let owner = self.owners.borrow().range(..=slot).next_back().map(|(_, owner)| owner.clone());
        let nobody = || std::io::Error::other(format!("no server has slot {slot} of the cluster"));
        self.node_at(&owner.filter(|(host, _)| !host.is_empty()).ok_or_else(nobody)?)
    }

    /// All servers that own slots.
    pub(crate) async fn owners(&self) -> Result<Vec<Rc<Node>>, RedisError> {
        if !self.is_known.get() {
            self.ask_anew().await?;
        }
        let mut owners: Vec<Address> = self.owners.borrow().values().cloned().collect();
        owners.sort_unstable();
        owners.dedup();
        owners.iter().filter(|(host, _)| !host.is_empty()).map(|owner| self.node_at(owner)).collect()
    }

    /// A server for subscriptions; in a cluster any server will do.
    pub(crate) async fn subscription_node(&self) -> Result<Rc<Node>, RedisError> {
        let mut owners = self.owners().await?;
        let turn = self.next_turn();
        if owners.is_empty() {
            return self.node(0).await;
        }
        let at = turn % owners.len();
        Ok(owners.swap_remove(at))
    }

    /// Marks the map as out of date.
    pub(crate) fn invalidate(&self) {
        self.is_known.set(!self.is_many());
    }

    /// Records a redirection: another server owns a slot.
    pub(crate) fn moved(&self, slot: u16, to: &str) {
        let there = to.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        match there {
            Some((host, port)) if !host.is_empty() => {
                let mut owners = self.owners.borrow_mut();
                let before = owners.range(..=slot).next_back().map(|(_, owner)| owner.clone());
                if slot + 1 < SLOTS {
                    owners.entry(slot + 1).or_insert_with(|| before.unwrap_or_default());
                }
                owners.insert(slot, (host.to_owned(), port));
            }
            _ => self.invalidate(),
        }
    }

    /// Whether another server owns a slot by now, according to the others.
    pub(crate) async fn has_left(&self, node: &Rc<Node>, slot: u16) -> bool {
        self.invalidate();
        self.node(slot).await.is_ok_and(|owner| !Rc::ptr_eq(&owner, node))
    }

    /// Pings all servers, so that lost connections are noticed.
    pub(crate) async fn probe(&self) {
        let nodes: Vec<Rc<Node>> = self.nodes.borrow().values().cloned().collect();
        // A server that does not answer may only be busy.
        let _ = timeout(ASKED_FOR, join_all(nodes.iter().map(|node| node.probe()))).await;
    }

    fn next_turn(&self) -> usize {
        self.turn.set(self.turn.get().wrapping_add(1));
        self.turn.get()
    }

    fn node_at(&self, address: &Address) -> Result<Rc<Node>, RedisError> {
        if let Some(node) = self.nodes.borrow().get(address) {
            return Ok(Rc::clone(node));
        }
        let like = match &self.servers {
            Servers::One(info) | Servers::Sentinel { primary: info, .. } => info,
            Servers::Cluster(some) => &some[0],
        };
        let node = Rc::new(Node::new(elsewhere(like, &address.0, address.1))?);
        self.nodes.borrow_mut().insert(address.clone(), Rc::clone(&node));
        Ok(node)
    }

    /// Asks the servers until one reports the topology. A silent server delays the next one only briefly, since
    /// callers that do not need it wait here too.
    async fn ask_anew(&self) -> Result<(), RedisError> {
        let _asking = self.asking.lock().await;
        if self.is_known.get() {
            return Ok(());
        }
        let mut whom = match &self.servers {
            Servers::One(_) => return Ok(()),
            Servers::Cluster(some) => some.clone(),
            Servers::Sentinel { sentinels, .. } => sentinels.clone(),
        };
        if let Servers::Cluster(_) = self.servers {
            let known = self.nodes.borrow();
            whom.extend(known.values().map(|node| node.info().clone()));
        }
        let (turn, len) = (self.next_turn(), whom.len());
        whom.rotate_left(turn % len.max(1));
        let mut asked: FuturesUnordered<_> = (0..)
            .zip(&whom)
            .map(async |(n, info)| {
                sleep(NEXT_AFTER * n).await;
                timeout(ASKED_FOR, self.ask(info)).await
            })
            .collect();
        let mut last = None;
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(Ok(owners)) => {
                    self.learn(owners);
                    return Ok(());
                }
                Ok(Err(error)) => last = Some(error),
                Err(_) => last = Some(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
            }
        }
        Err(last.unwrap_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound).into()))
    }

    fn learn(&self, owners: BTreeMap<u16, Address>) {
        // Servers that left the cluster are forgotten.
        self.nodes.borrow_mut().retain(|address, _| owners.values().any(|owner| owner == address));
        self.owners.replace(owners);
        self.is_known.set(true);
    }

    async fn ask(&self, info: &ConnectionInfo) -> Result<BTreeMap<u16, Address>, RedisError> {
        let mut connection = Node::new(info.clone())?.new_connection().await?;
        let Servers::Sentinel { service, .. } = &self.servers else {
            let slots: Value = cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await?;
            let asked = address_of(info);
            return owners_of(slots, &asked.0).map_err(|UnexpectedAnswer| {
                std::io::Error::other(format!("{} is no server of a cluster", info.addr())).into()
            });
        };
        let primary: Option<(String, u16)> =
            cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service).query_async(&mut connection).await?;
        let unknown =
            || std::io::Error::other(format!("the sentinel at {} knows no {service:?}", info.addr()));
        Ok(BTreeMap::from([(0, primary.ok_or_else(unknown)?)]))
    }
}

fn address_of(info: &ConnectionInfo) -> Address {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => (host.clone(), *port),
        other => (other.to_string(), 0),
    }
}

/// Reads the answer of `CLUSTER SLOTS`. Slots without an owner get an address without a host. A server that does not
/// know its own host has the host at which it was `asked`.
fn owners_of(answer: Value, asked: &str) -> Result<BTreeMap<u16, Address>, UnexpectedAnswer> {
    let mut owners = BTreeMap::from([(0, Address::default())]);
    for range in list(answer)? {
        let mut range = list(range)?.into_iter();
        let mut next = || range.next().ok_or(UnexpectedAnswer);
        let (from, to) = (number(next()?)? as u16, number(next()?)? as u16);
        let mut owner = list(next()?)?.into_iter();
        let host = match owner.next().ok_or(UnexpectedAnswer)? {
            Value::Nil => String::new(),
            host => String::from_utf8(bytes(host)?).map_err(|_| UnexpectedAnswer)?,
        };
        let host = if host.is_empty() { asked.to_owned() } else { host };
        let port = number(owner.next().ok_or(UnexpectedAnswer)?)? as u16;
        if to + 1 < SLOTS {
            owners.entry(to + 1).or_default();
        }
        owners.insert(from, (host, port));
    }
    Ok(owners)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: i64, to: i64, host: &str, port: i64) -> Value {
        let host = Value::BulkString(host.as_bytes().to_vec());
        Value::Array(vec![Value::Int(from), Value::Int(to), Value::Array(vec![host, Value::Int(port)])])
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_owner_of_a_slot_is_the_last_one_reported() {
        let target = crate::Target::parse("redis-cluster://h").unwrap();
        let topology = Topology::new(target.servers).unwrap();
        let said = Value::Array(vec![range(0, 99, "a", 1), range(200, 299, "", 2)]);
        topology.learn(owners_of(said, "asked").unwrap());
        let owner = async |slot| topology.node(slot).await.map(|node| address_of(node.info())).ok();
        let at = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!((owner(0).await, owner(99).await), (at("a", 1), at("a", 1)));
        assert_eq!((owner(100).await, owner(200).await, owner(300).await), (None, at("asked", 2), None));
        topology.moved(50, "b:3");
        assert_eq!((owner(49).await, owner(50).await, owner(51).await), (at("a", 1), at("b", 3), at("a", 1)));
        assert_eq!(topology.owners().await.unwrap().len(), 3);
    }

    #[test]
    fn an_answer_that_is_no_slot_map_is_an_error() {
        assert!(owners_of(Value::Int(1), "h").is_err());
        assert!(owners_of(Value::Array(vec![Value::Array(vec![Value::Int(1)])]), "h").is_err());
    }
}
