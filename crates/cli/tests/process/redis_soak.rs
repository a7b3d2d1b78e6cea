//! Two servers in front of one Redis, ten workers, delays, retries, leases that end, and servers that are killed: no
//! task is early, late, lost, or run twice within its lease. `SUREQ_TEST_SCALE=150` makes it a soak test of half an
//! hour.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use sureq_testkit::client::{RespClient, Value, encode};
use sureq_testkit::load::{scale, seeded};
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::patience::PATIENCE;
use sureq_testkit::redis_server::RedisServer;
use sureq_testkit::server_process::{Launch, Server};

use crate::SUREQ;

const WORKERS: usize = 10;
const SECONDS: u64 = 12;
const LEASE: Duration = Duration::from_millis(800);
const BACKOFF: Duration = Duration::from_millis(100);
const BETWEEN_ADDS: Duration = Duration::from_millis(8);
const BEFORE_KILLS: Duration = Duration::from_secs(4);
const BETWEEN_KILLS: Duration = Duration::from_secs(15);
/// The limit for the lateness of a task.
const LATE: Duration = Duration::from_millis(100);
/// A delivery passes through four threads in turn (Redis, two of the server, the worker), and a busy machine may
/// delay each of them.
const THREADS: u32 = 4;
/// A kill loses replies, and therefore deliveries whose tasks are requeued when their lease ends: for a task added
/// within this time of a kill, the due time is unknown.
const AFTER_KILL: Duration = Duration::from_secs(4);

/// The expected state of one task.
struct Life {
    /// It must not be delivered before this time.
    not_before: Instant,
    /// When it should be delivered, if that is known.
    due: Option<Instant>,
    /// The total delay of the machine when `due` was computed.
    machine_late: Duration,
    since: Instant,
    failed: u32,
    lapsed: u32,
    is_accepted: bool,
    acked: u32,
    /// An ack was sent, and its reply was lost.
    is_ack_unknown: bool,
}

#[derive(Default)]
struct Book {
    tasks: HashMap<u64, Life>,
    kills: Vec<Instant>,
    findings: Vec<String>,
    deliveries: u64,
    judged: u64,
    latest: Duration,
}

struct Soak {
    book: Mutex<Book>,
    addresses: Mutex<[SocketAddr; 2]>,
    machine: MachineWatch,
    is_produced: AtomicBool,
    is_drained: AtomicBool,
}

impl Soak {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no thread panics with the lock")
    }

    fn connect(&self, rng: &mut Rng) -> RespClient {
        let since = Instant::now();
        loop {
            let address = self.addresses.lock().expect("no thread panics with the lock")[rng.usize(..2)];
            match RespClient::try_connect(address) {
                Ok(client) => return client,
                Err(error) => assert!(since.elapsed() < PATIENCE, "no server can be reached: {error}"),
            }
        }
    }

    fn produce(&self, mut rng: Rng, time: Duration) {
        let (began, mut client) = (Instant::now(), self.connect(&mut rng));
        let mut number = 0;
        while began.elapsed() < time {
            number += 1;
            let delay = if rng.bool() { Duration::ZERO } else { Duration::from_millis(rng.u64(1..2_000)) };
            self.book().begin(number, delay, self.machine.late());
            let (payload, delay_ms) = (number.to_string(), delay.as_millis().to_string());
            match ask(&mut client, &["RQ.ADD", "q", &payload, "DELAY", &delay_ms]) {
                Some(Value::Array(_)) => self.book().accept(number, delay, self.machine.late()),
                Some(_) => {}
                None => client = self.connect(&mut rng),
            }
            thread::sleep(BETWEEN_ADDS);
        }
        self.is_produced.store(true, Ordering::Release);
    }

    fn work(&self, mut rng: Rng) {
        let mut client = self.connect(&mut rng);
        let lease = LEASE.as_millis().to_string();
        while !self.is_drained.load(Ordering::Acquire) {
            let asked = Instant::now();
            let Some(reply) = ask(&mut client, &["RQ.POP", "BLOCK", "500", "LEASE", &lease, "q"]) else {
                client = self.connect(&mut rng);
                continue;
            };
            let Value::Array(mut tasks) = reply else { continue };
            let (received, task) = (Instant::now(), tasks.remove(0));
            let number = task.field(2).parse().expect("a payload is a number");
            self.book().deliver(number, asked, received, self.machine.late());
            if self.conclude(&mut client, &mut rng, number, &task.field(3), received).is_none() {
                client = self.connect(&mut rng);
            }
        }
    }

    /// Acks, returns, fails or drops a delivery at random. `None` if the reply was lost.
    fn conclude(
        &self,
        client: &mut RespClient,
        rng: &mut Rng,
        number: u64,
        receipt: &str,
        received: Instant,
    ) -> Option<()> {
        let (failed, lapsed) = self.book().counts(number);
        match rng.u8(..10) {
            0 if lapsed == 0 => {
                self.book().change(number, |life| {
                    life.lapsed += 1;
                    life.due = Some(received + LEASE);
                });
            }
            1 => {
                let wait = Duration::from_millis(rng.u64(1..700));
                let not_before = Instant::now() + wait;
                self.book().change(number, |life| life.not_before = life.not_before.min(not_before));
                let wait_ms = wait.as_millis().to_string();
                let reply = ask(client, &["RQ.RETURN", "q", receipt, "DELAY", &wait_ms])?;
                self.book().returned(number, &reply, not_before, wait, self.machine.late());
            }
            2 if failed < 3 => {
                let wait = BACKOFF * 2_u32.pow(failed);
                let not_before = Instant::now() + wait / 2;
                self.book().change(number, |life| life.not_before = life.not_before.min(not_before));
                let reply = ask(client, &["RQ.RETURN", "q", receipt, "FAILED", "by chance"])?;
                if reply == Value::Int(1) {
                    self.book().change(number, |life| life.failed += 1);
                }
                self.book().returned(number, &reply, not_before, wait, self.machine.late());
            }
            _ => {
                self.book().change(number, |life| life.is_ack_unknown = true);
                let reply = ask(client, &["RQ.ACK", "q", receipt])?;
                self.book().acked(number, &reply);
            }
        }
        Some(())
    }

    fn kill(&self, servers: &mut [Server; 2], launch: &Launch, rng: &mut Rng) {
        let at = rng.usize(..2);
        self.book().kills.push(Instant::now());
        servers[at].kill9();
        servers[at] = launch.start();
        self.addresses.lock().expect("no thread panics with the lock")[at] = servers[at].resp;
        self.book().kills.push(Instant::now());
    }
}

impl Book {
    fn begin(&mut self, number: u64, delay: Duration, machine_late: Duration) {
        let now = Instant::now();
        let life = Life {
            not_before: now + delay,
            due: None,
            machine_late,
            since: now,
            failed: 0,
            lapsed: 0,
            is_accepted: false,
            acked: 0,
            is_ack_unknown: false,
        };
        self.tasks.insert(number, life);
    }

    fn accept(&mut self, number: u64, delay: Duration, machine_late: Duration) {
        let due = Instant::now() + delay;
        self.change(number, |life| {
            life.is_accepted = true;
            // It may have been delivered before its producer got the reply.
            if life.not_before <= due && life.acked == 0 && !life.is_ack_unknown {
                (life.due, life.machine_late) = (life.due.or(Some(due)), machine_late);
            }
        });
    }

    fn counts(&self, number: u64) -> (u32, u32) {
        self.tasks.get(&number).map_or((0, 0), |life| (life.failed, life.lapsed))
    }

    fn change(&mut self, number: u64, change: impl FnOnce(&mut Life)) {
        change(self.tasks.get_mut(&number).expect("it was added"));
    }

    fn deliver(&mut self, number: u64, asked: Instant, received: Instant, machine_late: Duration) {
        self.deliveries += 1;
        let Some(life) = self.tasks.get_mut(&number) else {
            self.findings.push(format!("{number} was never added"));
            return;
        };
        if received < life.not_before {
            let early = life.not_before - received;
            self.findings.push(format!("{number} came {early:?} early, or twice within its lease"));
        }
        let is_calm = |kill: &Instant| *kill > received || *kill + AFTER_KILL < life.since;
        if let Some(due) = life.due.filter(|_| self.kills.iter().all(is_calm)) {
            let late = received.saturating_duration_since(due);
            let machine = machine_late.saturating_sub(life.machine_late) * THREADS;
            let own = late.saturating_sub(machine);
            (self.judged, self.latest) = (self.judged + 1, self.latest.max(own));
            if own > LATE {
                self.findings.push(format!("{number} came {own:?} late"));
            }
        }
        if life.acked > 0 {
            self.findings.push(format!("{number} came again after its ack was confirmed"));
        }
        // It was delivered after the pop was sent, and not before `not_before`.
        life.not_before = asked.max(life.not_before) + LEASE;
        (life.due, life.machine_late) = (None, machine_late);
    }

    /// A return without a reply may have been executed or not, so that the task may be delivered when its lease ends.
    fn returned(
        &mut self,
        number: u64,
        reply: &Value,
        not_before: Instant,
        wait: Duration,
        machine_late: Duration,
    ) {
        if *reply == Value::Int(1) {
            let due = Instant::now() + wait;
            self.change(number, |life| {
                // The reply may arrive after the next delivery.
                if life.not_before <= due {
                    (life.not_before, life.due) = (not_before, Some(due));
                    life.machine_late = machine_late;
                }
            });
        }
    }

    fn acked(&mut self, number: u64, reply: &Value) {
        if let Value::Array(done) = reply {
            let is_done = !done.is_empty();
            self.change(number, |life| {
                life.acked += u32::from(is_done);
                life.is_ack_unknown = false;
            });
        }
    }

    /// All violations at the end.
    fn settle(mut self) -> Vec<String> {
        for (number, life) in &self.tasks {
            if life.acked > 1 {
                self.findings.push(format!("{number} was acked {} times", life.acked));
            }
            if life.is_accepted && life.acked == 0 && !life.is_ack_unknown {
                self.findings.push(format!("{number} was lost"));
            }
        }
        self.findings
    }
}

/// Sends a command and returns the reply; `None` if the connection is lost. A refusal is a reply.
fn ask(client: &mut RespClient, words: &[&str]) -> Option<Value> {
    client.send_raw(&encode(words)).ok()?;
    client.read().ok()
}

/// Whether the queue is empty.
fn is_empty(client: &mut RespClient) -> bool {
    let info = client.say("RQ.INFO q").list();
    let field = |name: &str| {
        let at = info.iter().position(|value| *value == Value::Bulk(name.into())).expect("INFO has it");
        info[at + 1] == Value::Int(0)
    };
    ["ready", "delayed", "leased", "dead"].into_iter().all(field)
}

#[test]
fn no_task_is_early_late_or_doubled_on_redis_under_kills() {
    let (mut rng, redis) = (seeded(), RedisServer::start());
    let url = redis.url();
    let launch =
        Launch::new(SUREQ).args(["serve", "--home", &url, "--resp", "127.0.0.1:0", "--text", "127.0.0.1:0"]);
    let mut servers = [launch.start(), launch.start()];
    let backoff = BACKOFF.as_millis();
    servers[0].client().say(&format!("RQ.CONFIG q BACKOFF {backoff} TRIES 1000"));
    let soak = Soak {
        book: Mutex::default(),
        addresses: Mutex::new([servers[0].resp, servers[1].resp]),
        machine: MachineWatch::start(),
        is_produced: AtomicBool::new(false),
        is_drained: AtomicBool::new(false),
    };
    let time = Duration::from_secs(SECONDS * scale());
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            let own = rng.fork();
            scope.spawn(|| soak.work(own));
        }
        let own = rng.fork();
        scope.spawn(|| soak.produce(own, time));
        let mut next_kill = Instant::now() + BEFORE_KILLS;
        while !soak.is_produced.load(Ordering::Acquire) {
            if Instant::now() > next_kill {
                soak.kill(&mut servers, &launch, &mut rng);
                next_kill = Instant::now() + BETWEEN_KILLS;
            }
            thread::sleep(BETWEEN_ADDS);
        }
        let (mut client, since) = (servers[0].client(), Instant::now());
        while !is_empty(&mut client) && since.elapsed() < PATIENCE {
            thread::sleep(BETWEEN_ADDS);
        }
        soak.is_drained.store(true, Ordering::Release);
    });
    let book = soak.book.into_inner().expect("no thread panics with the lock");
    let (tasks, deliveries, judged, latest) = (book.tasks.len(), book.deliveries, book.judged, book.latest);
    let kills = book.kills.len() / 2;
    println!(
        "{tasks} tasks, {deliveries} deliveries, {kills} kills; {judged} judged, the latest {latest:?} late"
    );
    let findings = book.settle();
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
    assert!(judged > deliveries / 10, "too few deliveries were far enough from a kill to be judged");
    redis.check("sureq:");
}
