//! Replicas and logs apply effects: whatever their clocks show, they have the same queues as the primary.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::Value;
use sureq_testkit::patience::until;
use sureq_testkit::process::free_port;
use sureq_testkit::redis_module::Host;
use sureq_testkit::redis_server::RedisServer;
use sureq_testkit::shifted_clock::ShiftedClock;

use crate::support::{Client, list, shown, text};

const HOUR_MS: i64 = 3_600_000;

/// Two servers, the second a replica of the first.
struct Pair {
    ports: [u16; 2],
    servers: [RedisServer; 2],
    clients: [Client; 2],
    /// The index of the primary.
    primary: usize,
}

impl Pair {
    fn start(host: Host, clock: &ShiftedClock) -> Self {
        let ports = [free_port(), free_port()];
        let port = |n: usize| ports[n].to_string();
        let first = host.start(&["--port", &port(0)], &[]);
        let follow = format!("127.0.0.1 {}", ports[0]);
        let second = host.start(&["--port", &port(1), "--replicaof", &follow], &clock.environment());
        Self::of(ports, [first, second])
    }

    /// A pair of servers, of which the second follows the first, or is about to.
    fn of(ports: [u16; 2], servers: [RedisServer; 2]) -> Self {
        let clients = [Client::of(&servers[0]), Client::of(&servers[1])];
        let mut pair = Self { ports, servers, clients, primary: 0 };
        pair.wait_until_linked();
        pair
    }

    fn primary(&mut self) -> &mut Client {
        &mut self.clients[self.primary]
    }

    fn replica(&mut self) -> &mut Client {
        &mut self.clients[1 - self.primary]
    }

    fn wait_until_linked(&mut self) {
        self.replica().wait_until("replication", "master_link_status", "up");
        self.primary().wait_until("replication", "connected_slaves", "1");
        // A replica counts as connected before it takes part; wait until it is online.
        let primary = self.primary();
        until("the replica takes part", || primary.told("replication", "slave0").contains("state=online"));
    }

    /// Checks that primary and replica have the same data while writes are paused, and that the primary's log has it
    /// too.
    fn assert_same(&mut self, when: &str) {
        self.primary().say("CLIENT PAUSE 60000 WRITE");
        let offset = self.primary().told("replication", "master_repl_offset");
        self.replica().wait_until("replication", "slave_repl_offset", &offset);
        let digests =
            [shown(&self.primary().say("DEBUG DIGEST")), shown(&self.replica().say("DEBUG DIGEST"))];
        assert_eq!(digests[0], digests[1], "{when}");
        self.primary().say("CLIENT UNPAUSE");
    }

    fn fail_over(&mut self) {
        let to = self.ports[1 - self.primary];
        self.primary().say(&format!("FAILOVER TO 127.0.0.1 {to}"));
        self.replica().wait_until("replication", "role", "master");
        self.primary = 1 - self.primary;
        self.replica().wait_until("replication", "role", "slave");
        self.wait_until_linked();
    }
}

/// All ids and receipts that were issued.
#[derive(Default)]
struct Given {
    ids: BTreeSet<String>,
    receipts: BTreeSet<String>,
}

/// Executes random commands of every kind that changes a queue, with delays and leases that end during the run.
fn run(client: &mut Client, random: &mut fastrand::Rng, steps: usize, given: &mut Given) {
    for step in 0..steps {
        let queue = ["a", "b"][random.usize(..2)];
        match random.u8(..12) {
            0..=3 => {
                for id in list(client.say(&format!("RQ.PUSH {queue} one-{step} two-{step}"))) {
                    assert!(given.ids.insert(text(&id)), "{id:?} was issued twice");
                }
            }
            4 => {
                let delay = random.u64(1..30);
                let added =
                    list(client.say(&format!("RQ.ADD {queue} later DELAY {delay} TRIES 3 BACKOFF 5")));
                assert!(given.ids.insert(text(&added[0])), "{added:?} was issued twice");
            }
            5 => _ = client.say(&format!("RQ.ADD {queue} named NAME n{} TTL 40", random.u8(..20))),
            6..=8 => {
                let popped = client.say(&format!("RQ.POP COUNT 3 LEASE {} a b", random.u64(5..40)));
                for task in list(popped).into_iter().map(list) {
                    let receipt = text(&task[3]);
                    assert!(given.receipts.insert(receipt.clone()), "{receipt} was issued twice");
                    let queue = text(&task[0]);
                    match random.u8(..4) {
                        0 => _ = client.say(&format!("RQ.ACK {queue} {receipt}")),
                        1 => _ = client.say(&format!("RQ.RETURN {queue} {receipt} FAILED oh")),
                        _ => {}
                    }
                }
            }
            9 => _ = client.say(&format!("RQ.REVIVE {queue} ALL")),
            10 => {
                let letter = ["graves", "0"][random.usize(..2)];
                client.say(&format!("RQ.CONFIG {queue} DEAD-LETTER {letter}"));
            }
            _ => _ = client.say("RQ.PURGE graves"),
        }
    }
}

fn a_replica_follows(host: Host, shift_ms: i64) {
    let clock = ShiftedClock::default();
    clock.set_wall(shift_ms);
    let mut pair = Pair::start(host, &clock);
    let (mut random, mut given) = (fastrand::Rng::with_seed(3), Given::default());
    for round in 0..4 {
        run(pair.primary(), &mut random, 400, &mut given);
        pair.assert_same(&format!("round {round}"));
        pair.fail_over();
        pair.assert_same(&format!("after failover {round}"));
    }
    // The log must contain the same as the server that wrote it.
    pair.primary().say("CLIENT PAUSE 60000 WRITE");
    let before = shown(&pair.primary().say("DEBUG DIGEST"));
    pair.primary().say("DEBUG LOADAOF");
    assert_eq!(shown(&pair.primary().say("DEBUG DIGEST")), before, "the log");
    assert_ne!(before, "0".repeat(40), "there is something to compare");
    assert!(pair.servers.iter().all(|server| !server.process().has_ended()), "both still run");
}

#[test]
fn a_replica_an_hour_ahead_equals_its_primary() {
    a_replica_follows(Host::Redis, HOUR_MS);
}

#[test]
fn a_replica_an_hour_behind_equals_its_primary() {
    a_replica_follows(Host::Redis, -HOUR_MS);
}

#[test]
fn a_replica_in_valkey_equals_its_primary() {
    a_replica_follows(Host::Valkey, HOUR_MS);
}

/// A promoted replica continues with the primary's time, so no deadline is reached early.
#[test]
fn a_failover_to_a_clock_that_is_ahead_makes_nothing_due_early() {
    let clock = ShiftedClock::default();
    clock.set_wall(HOUR_MS);
    let mut pair = Pair::start(Host::Redis, &clock);
    pair.primary().say("RQ.PUSH q leased");
    pair.primary().say("RQ.ADD q delayed DELAY 60000");
    let task = list(list(pair.primary().say("RQ.POP LEASE 60000 q")).swap_remove(0));
    let receipt = text(&task[3]);
    pair.fail_over();
    assert_eq!(pair.primary().say("RQ.POP BLOCK 100 q"), Value::Nil, "neither is due");
    assert_eq!(pair.primary().counts("q"), [0, 1, 1, 0]);
    assert_eq!(shown(&pair.primary().say(&format!("RQ.ACK q {receipt}"))), format!("[{receipt}]"));
}

#[test]
fn a_replica_that_was_away_for_a_while_catches_up() {
    let mut pair = Pair::start(Host::Redis, &ShiftedClock::default());
    let (mut random, mut given) = (fastrand::Rng::with_seed(5), Given::default());
    run(pair.primary(), &mut random, 200, &mut given);
    let full = pair.primary().told("stats", "sync_full");
    pair.replica().say("CLIENT KILL TYPE master");
    run(pair.primary(), &mut random, 200, &mut given);
    pair.wait_until_linked();
    pair.assert_same("after a partial resync");
    assert_eq!(pair.primary().told("stats", "sync_full"), full, "it was a partial one");
    let port = pair.ports[0];
    pair.replica().say("REPLICAOF NO ONE");
    pair.replica().say("RQ.PUSH a mine");
    pair.replica().say(&format!("REPLICAOF 127.0.0.1 {port}"));
    pair.wait_until_linked();
    pair.assert_same("after a full resync");
}

#[test]
fn a_replica_answers_reads_and_decides_nothing() {
    let mut pair = Pair::start(Host::Redis, &ShiftedClock::default());
    pair.primary().say("RQ.PUSH q a b");
    pair.primary().say("RQ.POP LEASE 50 q");
    pair.assert_same("with a lease that runs");
    assert!(pair.replica().error("RQ.PUSH q c").contains("read only replica"));
    let mut taken = BTreeSet::new();
    while taken.len() < 2 {
        let popped = list(pair.primary().say("RQ.POP BLOCK 20000 q")).swap_remove(0);
        taken.insert(shown(&list(popped)[2]));
    }
    assert!(taken.contains("a"), "its lease lapsed");
    pair.assert_same("after the lapse");
    assert!(pair.primary().error("RQ.APPLY q x").contains("clients cannot"));
    let seen = shown(&pair.replica().say("RQ.INFO q"));
    assert!(seen.starts_with("[undelivered 0 delivered 2 "), "a replica can be looked at: {seen}");
}

fn a_replica_forgets_released_tasks(host: Host) {
    let mut pair = Pair::start(host, &ShiftedClock::default());
    let worker = pair.primary().text("RQ.WORKER START w TTL 3600000");
    let lease = format!("WORKER {worker}");
    let take = |client: &mut Client, how: &str, n: usize| {
        client.say(&format!("RQ.PUSH q{n} x"));
        let popped = list(client.say(&format!("RQ.POP {how} q{n}")));
        shown(&list(popped.into_iter().next().expect("a task"))[1])
    };
    take(pair.primary(), &lease, 0);
    for n in 1..300 {
        let id = take(pair.primary(), if n % 2 == 0 { &lease } else { "CONN" }, n);
        let end = match n % 3 {
            0 => format!("RQ.ACK q{n} {id}"),
            1 => format!("RQ.RETURN q{n} {id}"),
            _ => format!("DEL q{n}"),
        };
        pair.primary().say(&end);
    }
    // A copy keeps the holders of its original until it is checked, which happens at once.
    let Value::BulkString(dump) = pair.primary().say("DUMP q0") else { panic!("a dump") };
    for n in 0..50 {
        let key = format!("restored{n}");
        pair.primary().try_words(&[b"RESTORE", key.as_bytes(), b"0", &dump]).expect("it is restored");
        pair.primary().say(&format!("COPY q0 copy{n}"));
    }
    pair.primary().wait_until("sureq", "sureq_overdue", "0");
    for n in 0..50 {
        pair.primary().say(&format!("DEL restored{n} copy{n}"));
    }
    pair.assert_same("after all");
    assert_eq!(pair.replica().told("sureq", "sureq_held"), "1", "{host:?}: the first");
    let planned: u32 = pair.replica().told("sureq", "sureq_planned").parse().expect("a number");
    assert!(planned <= 1, "{host:?}: {planned} schedule entries, and only the worker's is needed");
    pair.fail_over();
    assert_eq!(pair.primary().number("RQ.WORKER FAIL w"), 1, "{host:?}: its tasks are still known");
}

#[test]
fn a_replica_forgets_released_tasks_in_redis() {
    a_replica_forgets_released_tasks(Host::Redis);
}

#[test]
fn a_replica_forgets_released_tasks_in_valkey() {
    a_replica_forgets_released_tasks(Host::Valkey);
}

/// The table of workers is deleted, and the primary is gone before all their tasks are requeued.
#[test]
fn a_promoted_replica_ends_workers_that_it_does_not_know() {
    for host in Host::ALL {
        let mut pair = Pair::start(host, &ShiftedClock::default());
        let worker = pair.primary().text("RQ.WORKER START w TTL 3600000");
        pair.primary().say("RQ.PUSH q x");
        pair.primary().say(&format!("RQ.POP WORKER {worker} q"));
        let replica = pair.replica();
        until("the replica has it", || replica.counts("q") == [0, 0, 1, 0]);
        // No timer acts while writes are paused.
        for line in ["MULTI", "CLIENT PAUSE 60000 WRITE", "DEL sureq:workers", "EXEC"] {
            pair.primary().say(line);
        }
        let replica = pair.replica();
        until("the replica has heard of it", || replica.number("EXISTS sureq:workers") == 0);
        assert_eq!(replica.counts("q"), [0, 0, 1, 0], "{host:?}");
        replica.say("REPLICAOF NO ONE");
        until("its task is requeued", || replica.counts("q") == [1, 0, 0, 0]);
    }
}

/// Continues a random run until `stopped` is set.
fn run_until(stopped: &AtomicBool, client: &mut Client) {
    let (mut random, mut given) = (fastrand::Rng::with_seed(7), Given::default());
    while !stopped.load(Ordering::Relaxed) {
        run(client, &mut random, 20, &mut given);
    }
}

/// Runs an action in the middle of a random run.
fn meanwhile(server: &RedisServer, act: impl FnOnce(&mut Client)) {
    let (stopped, mut worker, mut client) = (AtomicBool::new(false), Client::of(server), Client::of(server));
    std::thread::scope(|scope| {
        scope.spawn(|| run_until(&stopped, &mut worker));
        act(&mut client);
        stopped.store(true, Ordering::Relaxed);
    });
}

/// A server without a follower, in which queues have changed already.
fn alone(host: Host, port: u16) -> RedisServer {
    let server = host.start(&["--appendonly", "no", "--port", &port.to_string()], &[]);
    let mut client = Client::of(&server);
    run(&mut client, &mut fastrand::Rng::with_seed(1), 200, &mut Given::default());
    assert!(client.told("persistence", "rdb_changes_since_last_save") != "0", "changes are counted");
    assert_eq!(client.told("replication", "master_repl_offset"), "0", "but not replicated");
    server
}

/// Adds enough keys that a snapshot takes a second or more.
fn slow_snapshot(client: &mut Client) {
    for n in 0..100 {
        client.say(&format!("SET key-{n} value"));
    }
    client.say("CONFIG SET rdb-key-save-delay 10000");
    client.say("BGSAVE");
    client.wait_until("persistence", "rdb_bgsave_in_progress", "1");
}

fn a_replica_comes_later(host: Host) {
    let port = free_port();
    let primary = alone(host, port);
    let replica = host.start(&["--replicaof", &format!("127.0.0.1 {port}")], &[]);
    meanwhile(&primary, |_| Client::of(&replica).wait_until("replication", "master_link_status", "up"));
    let mut pair = Pair::of([port, 0], [primary, replica]);
    pair.assert_same("a replica that was added during a run");
    run(pair.primary(), &mut fastrand::Rng::with_seed(2), 200, &mut Given::default());
    pair.assert_same("after further changes");
}

#[test]
fn a_replica_that_comes_later_misses_nothing_in_redis() {
    a_replica_comes_later(Host::Redis);
}

#[test]
fn a_replica_that_comes_later_misses_nothing_in_valkey() {
    a_replica_comes_later(Host::Valkey);
}

fn a_log_begins_later(host: Host, is_child_busy: bool) {
    let server = alone(host, 0);
    meanwhile(&server, |client| {
        if is_child_busy {
            slow_snapshot(client);
        }
        client.say("CONFIG SET appendonly yes");
        client.wait_until("persistence", "aof_rewrite_scheduled", "0");
        client.wait_until("persistence", "aof_rewrite_in_progress", "0");
    });
    let mut client = Client::of(&server);
    run(&mut client, &mut fastrand::Rng::with_seed(2), 200, &mut Given::default());
    client.say("CLIENT PAUSE 60000 WRITE");
    let before = shown(&client.say("DEBUG DIGEST"));
    client.say("DEBUG LOADAOF");
    assert_eq!(shown(&client.say("DEBUG DIGEST")), before, "the log");
}

#[test]
fn a_log_that_begins_later_misses_nothing_in_redis() {
    a_log_begins_later(Host::Redis, false);
    a_log_begins_later(Host::Redis, true);
}

#[test]
fn a_log_that_begins_later_misses_nothing_in_valkey() {
    a_log_begins_later(Host::Valkey, false);
    a_log_begins_later(Host::Valkey, true);
}

/// A primary that is restarted from its snapshot continues at the position of its replicas: they need no new
/// snapshot.
fn a_restarted_primary_is_followed(host: Host) {
    let port = free_port();
    let save = ["--appendonly", "no", "--save", "3600 1", "--port", &port.to_string()];
    let primary = host.start(&save, &[]);
    let replica = host.start(&["--replicaof", &format!("127.0.0.1 {port}")], &[]);
    let mut pair = Pair::of([port, 0], [primary, replica]);
    run(pair.primary(), &mut fastrand::Rng::with_seed(1), 100, &mut Given::default());
    pair.assert_same("before");
    pair.servers[0].restart();
    pair.clients[0] = Client::of(&pair.servers[0]);
    pair.wait_until_linked();
    assert_eq!(pair.primary().told("stats", "sync_full"), "0", "it was followed without a snapshot");
    run(pair.primary(), &mut fastrand::Rng::with_seed(2), 100, &mut Given::default());
    pair.assert_same("after the restart");
}

#[test]
fn a_restarted_primary_is_followed_in_redis() {
    a_restarted_primary_is_followed(Host::Redis);
}

#[test]
fn a_restarted_primary_is_followed_in_valkey() {
    a_restarted_primary_is_followed(Host::Valkey);
}
