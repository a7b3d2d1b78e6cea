//! A Redis Cluster for one test: three primaries with a replica each, on loopback.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Connection, Value, cmd};

use crate::patience::{PATIENCE, until};
use crate::process::{Process, free_port};
use crate::redis_server::RedisServer;

const SERVERS: usize = 6;

/// The time without an answer after which the other servers consider a server dead.
pub const NODE_TIMEOUT_MS: u64 = 1_000;

/// The time after which the servers do not settle a dispute about the owner of a slot by themselves.
const DISPUTE: Duration = Duration::from_secs(5);

/// The servers of a cluster, which are stopped on drop.
pub struct RedisCluster {
    servers: Vec<(u16, RedisServer)>,
}

impl RedisCluster {
    /// Starts six servers, and waits until all of them know each other.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts them with more options.
    pub fn start_with(options: &[&str]) -> Self {
        let servers: Vec<_> = (0..SERVERS).map(|_| start_one(options)).collect();
        let cluster = Self { servers };
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]);
        create.args(cluster.servers.iter().map(|(port, _)| format!("127.0.0.1:{port}")));
        create.args(["--cluster-replicas", "1", "--cluster-yes"]);
        let mut created = Process::start(&mut create);
        assert_eq!(created.exit_code(PATIENCE), 0, "{created}");
        cluster.settle();
        cluster
    }

    /// The URL of a home in the cluster.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|(port, _)| format!("127.0.0.1:{port}")).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// One of the servers.
    pub fn server(&self, at: usize) -> &RedisServer {
        &self.servers[at].1
    }

    /// One of the servers, for killing and restarting it.
    pub fn server_mut(&mut self, at: usize) -> &mut RedisServer {
        &mut self.servers[at].1
    }

    /// The port of a server.
    pub fn port(&self, at: usize) -> u16 {
        self.servers[at].0
    }

    /// The primary that owns a key, and its replica, if that runs.
    pub fn owners(&self, key: &str) -> (usize, Option<usize>) {
        let first = self.servers.iter().position(|(_, server)| server.is_running()).expect("some run");
        self.owners_as_seen_by(first, key)
    }

    /// The same, according to one of the servers.
    pub fn owners_as_seen_by(&self, at: usize, key: &str) -> (usize, Option<usize>) {
        let mut connection = self.server(at).connect();
        let slot: i64 = cmd("CLUSTER").arg("KEYSLOT").arg(key).query(&mut connection).expect("it answers");
        let ranges: Vec<Vec<Value>> = cmd("CLUSTER").arg("SLOTS").query(&mut connection).expect("it answers");
        let at = |server: &Value| {
            let Value::Array(fields) = server else { panic!("{server:?}") };
            let port = self.servers.iter().position(|(own, _)| fields[1] == Value::Int((*own).into()));
            port.expect("the port belongs to the cluster")
        };
        for range in &ranges {
            if let [Value::Int(from), Value::Int(to), primary, replicas @ ..] = &range[..]
                && (*from..=*to).contains(&slot)
            {
                return (at(primary), replicas.first().map(at));
            }
        }
        panic!("no server has slot {slot}")
    }

    /// Waits until all servers agree, all slots are served, and every primary has a replica that follows it.
    pub fn settle(&self) {
        let mut connections: Vec<_> = self.running().map(RedisServer::connect).collect();
        let is_settled = |connection: &mut Connection| {
            // A server that was just started and loads its data does not answer yet.
            let cluster: String = cmd("CLUSTER").arg("INFO").query(connection).unwrap_or_default();
            let role = replication(connection);
            let follows = role.contains("role:master") || role.contains("master_link_status:up");
            let is_followed = role.contains("role:slave") || role.contains("state=online");
            let knows_all = cluster.contains(&format!("cluster_known_nodes:{SERVERS}"));
            let is_whole = cluster.contains("cluster_slots_ok:16384") && knows_all;
            let slots: Vec<Vec<Value>> = cmd("CLUSTER").arg("SLOTS").query(connection).unwrap_or_default();
            let has_replicas = slots.iter().all(|range| range.len() > 3);
            cluster.contains("cluster_state:ok") && is_whole && has_replicas && follows && is_followed
        };
        let (since, mut disputed_since) = (Instant::now(), Instant::now());
        loop {
            let views: Vec<String> = connections.iter_mut().map(view).collect();
            let is_agreed = views.iter().all(|view| *view == views[0]);
            if is_agreed && connections.iter_mut().all(is_settled) {
                return;
            }
            if is_agreed {
                disputed_since = Instant::now();
            } else if disputed_since.elapsed() > DISPUTE {
                for connection in &mut connections {
                    decide_owners(connection, &views);
                }
                disputed_since = Instant::now();
            }
            if since.elapsed() > PATIENCE {
                let states: Vec<String> = connections.iter_mut().map(state).collect();
                panic!("the cluster does not agree:\n{}", states.join("\n"));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn running(&self) -> impl Iterator<Item = &RedisServer> {
        self.servers.iter().map(|(_, server)| server).filter(|server| server.is_running())
    }

    /// Fails over to every replica, when it has all data of its primary.
    pub fn fail_over(&self) {
        let replicas: Vec<&RedisServer> = self.running().filter(|server| !is_primary(server)).collect();
        for server in replicas {
            let mut replica = server.connect();
            let port = field(&replication(&mut replica), "master_port");
            let (_, primary) = self
                .servers
                .iter()
                .find(|(own, _)| own.to_string() == port)
                .expect("the port belongs to the cluster");
            let mut primary = primary.connect();
            until("the replica has it all", || {
                let all = field(&replication(&mut primary), "master_repl_offset");
                field(&replication(&mut replica), "slave_repl_offset") == all
            });
            cmd("CLUSTER").arg("FAILOVER").arg("TAKEOVER").exec(&mut replica).expect("it is a replica");
        }
        self.settle();
    }

    /// Moves slots from one primary to another with redis-cli, like an operator.
    pub fn reshard(&self, slots: u32, from: usize, to: usize) {
        self.settle();
        let name = |at: usize| -> String {
            cmd("CLUSTER").arg("MYID").query(&mut self.server(at).connect()).expect("it answers")
        };
        let mut reshard = Command::new("redis-cli");
        reshard.args(["--cluster", "reshard", &format!("127.0.0.1:{}", self.port(from))]);
        reshard.args(["--cluster-from", &name(from), "--cluster-to", &name(to)]);
        // One key at a time, so that a slot is in two places for as long as possible.
        reshard.args(["--cluster-slots", &slots.to_string(), "--cluster-pipeline", "1", "--cluster-yes"]);
        let mut moved = Process::start(&mut reshard);
        assert_eq!(moved.exit_code(PATIENCE * 3), 0, "{moved}");
        self.settle();
    }

    /// Checks that each task of each queue under a prefix is in exactly one state, and in its indexes.
    pub fn check(&self, prefix: &str) {
        self.running().filter(|server| is_primary(server)).for_each(|server| server.check(prefix));
    }
}

/// The slots of each server, according to one of them.
fn view(connection: &mut Connection) -> String {
    let nodes: String = cmd("CLUSTER").arg("NODES").query(connection).unwrap_or_default();
    let of_server = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        format!("{} {}", words[0], words.get(8..).unwrap_or_default().join(" "))
    };
    let mut servers: Vec<String> = nodes.lines().map(of_server).collect();
    servers.sort_unstable();
    servers.join("\n")
}

/// Tells a server the owner of each slot that the servers dispute, as an operator would: the one that most views name.
/// After many slots were moved one by one, it happens in Redis 7.0 that a new owner believes for ever that the old one
/// still has a slot, while all others have accepted the move.
fn decide_owners(connection: &mut Connection, views: &[String]) {
    let mut claims: BTreeMap<u16, BTreeMap<&str, usize>> = BTreeMap::new();
    for line in views.iter().flat_map(|view| view.lines()) {
        let mut words = line.split(' ');
        let owner = words.next().expect("an id");
        // Slots that are being moved are in brackets.
        for range in words.filter(|word| word.starts_with(|first: char| first.is_ascii_digit())) {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let (from, to): (u16, u16) = (from.parse().expect("a slot"), to.parse().expect("a slot"));
            (from..=to).for_each(|slot| *claims.entry(slot).or_default().entry(owner).or_default() += 1);
        }
    }
    for (slot, owners) in claims.iter().filter(|(_, owners)| owners.len() > 1) {
        let (owner, _) = owners.iter().max_by_key(|(_, views)| **views).expect("it has some");
        // A replica refuses, and an owner that still has keys of the slot.
        let _ = cmd("CLUSTER").arg("SETSLOT").arg(*slot).arg("NODE").arg(*owner).exec(connection);
    }
}

/// The report of a server about itself and the others, for the message of a test that fails.
fn state(connection: &mut Connection) -> String {
    let ask = |connection: &mut Connection, what: &str| -> String {
        cmd("CLUSTER").arg(what).query(connection).unwrap_or_else(|error| error.to_string())
    };
    format!("{}{}{}", ask(connection, "NODES"), ask(connection, "INFO"), replication(connection))
}

fn is_primary(server: &RedisServer) -> bool {
    replication(&mut server.connect()).contains("role:master")
}

fn replication(connection: &mut Connection) -> String {
    cmd("INFO").arg("replication").query(connection).expect("it answers")
}

fn field(info: &str, name: &str) -> String {
    let mut lines = info.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    lines.next().unwrap_or_default().to_owned()
}

fn start_one(options: &[&str]) -> (u16, RedisServer) {
    let (port, bus) = (free_port(), free_port());
    let (port_text, bus_text, timeout) = (port.to_string(), bus.to_string(), NODE_TIMEOUT_MS.to_string());
    let own = [
        "--port",
        &port_text,
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus_text,
        "--cluster-node-timeout",
        &timeout,
        "--repl-ping-replica-period",
        "1",
        "--appendonly",
        "no",
    ];
    (port, RedisServer::start_with(Path::new("redis-server"), &[&own[..], options].concat()))
}
