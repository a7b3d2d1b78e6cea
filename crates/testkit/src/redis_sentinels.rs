//! A primary, two replicas, and three sentinels that monitor them, on loopback.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use redis::cmd;
use tempfile::TempDir;

use crate::patience::{PATIENCE, until};
use crate::process::{Process, free_port};
use crate::redis_server::RedisServer;

/// The name of the monitored service.
const SERVICE: &str = "mymaster";

/// How long a sentinel is inactive after a busy machine has delayed it by two seconds.
const TILTED: Duration = Duration::from_secs(30);

/// The servers and the sentinels, which are stopped on drop.
pub struct RedisSentinels {
    servers: Vec<(u16, RedisServer)>,
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    port: u16,
    _process: Process,
    _dir: TempDir,
}

impl RedisSentinels {
    /// Starts them with these options, and waits until all sentinels know each other.
    pub fn start_with(options: &[&str]) -> Self {
        let ports = [free_port(), free_port(), free_port()];
        let servers: Vec<_> =
            ports.into_iter().map(|port| (port, start_server(port, ports[0], options))).collect();
        let sentinels: Vec<_> = (0..3).map(|_| start_sentinel(ports[0])).collect();
        let all = Self { servers, sentinels };
        until("the sentinels know each other", || all.sentinels.iter().all(Sentinel::knows_all));
        all
    }

    /// The URL of a home on the monitored service; `who` is a user and a password followed by @.
    pub fn url(&self, who: &str) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis-sentinel://{who}{}/{SERVICE}", hosts.join(","))
    }

    /// The primary, according to the first sentinel.
    pub fn primary(&self) -> usize {
        let (_, port): (String, u16) = self.sentinels[0]
            .ask(&["GET-MASTER-ADDR-BY-NAME", SERVICE])
            .expect("the sentinel knows the service");
        self.servers.iter().position(|(own, _)| *own == port).expect("the port belongs to the cluster")
    }

    /// Waits until another server is the primary.
    ///
    /// # Panics
    ///
    /// If that does not happen.
    pub fn until_replaced(&self, before: usize) {
        let since = Instant::now();
        while self.primary() == before {
            assert!(since.elapsed() < TILTED + PATIENCE, "the sentinels name no other server");
            std::thread::yield_now();
        }
    }

    /// One of the servers.
    pub fn server(&self, at: usize) -> &RedisServer {
        &self.servers[at].1
    }

    /// One of the servers, for killing it.
    pub fn server_mut(&mut self, at: usize) -> &mut RedisServer {
        &mut self.servers[at].1
    }
}

impl Sentinel {
    fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let client = redis::Client::open(("127.0.0.1", self.port))?;
        cmd("SENTINEL").arg(words).query(&mut client.get_connection()?)
    }

    fn knows_all(&self) -> bool {
        let known = |what: &str| self.ask::<Vec<redis::Value>>(&[what, SERVICE]).map_or(0, |all| all.len());
        known("REPLICAS") == 2 && known("SENTINELS") == 2
    }
}

fn start_server(port: u16, primary: u16, options: &[&str]) -> RedisServer {
    let (own, of) = (port.to_string(), format!("127.0.0.1 {primary}"));
    let mut all = vec!["--port", &own, "--appendonly", "no", "--repl-ping-replica-period", "1"];
    if port != primary {
        all.extend(["--replicaof", &of]);
    }
    RedisServer::start_with(Path::new("redis-server"), &[&all[..], options].concat())
}

/// A sentinel rewrites its configuration all the time, and therefore has a file of its own.
fn start_sentinel(primary: u16) -> Sentinel {
    let (port, dir) = (free_port(), tempfile::tempdir().expect("a temporary directory"));
    let file = dir.path().join("sentinel.conf");
    let text = format!(
        "port {port}\ndir {}\nsentinel monitor {SERVICE} 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds {SERVICE} 1000\nsentinel failover-timeout {SERVICE} 5000\n",
        dir.path().display()
    );
    std::fs::write(&file, text).expect("the file can be written");
    let process = Process::start(Command::new("redis-server").arg(&file).arg("--sentinel"));
    process.find_in_stdout(|line| line.contains("Sentinel ID is").then_some(()));
    Sentinel { port, _process: process, _dir: dir }
}
