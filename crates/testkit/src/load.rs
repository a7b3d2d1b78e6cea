//! Load from many clients at once, which record requests and replies until the server is killed.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use fastrand::Rng;

use sureq_history::{Delivery, Outcome, Push, SharedHistory, Time, payload};

use crate::client::{RespClient, Task, Value, encode};
use crate::process::{Latch, PATIENCE};

/// The work of the clients.
#[derive(Clone, Debug)]
pub struct Load {
    /// Clients that push.
    pub producers: usize,
    /// Clients that pop and ack, and now and then leave a task leased.
    pub consumers: usize,
    /// The queues that they share.
    pub queues: &'static [&'static str],
    /// The number of commands that a producer sends before it reads a reply.
    pub pipeline: usize,
    /// The number of confirmed pushes before the server is killed.
    pub pushes: u64,
}

impl Default for Load {
    fn default() -> Self {
        Self { producers: 8, consumers: 8, queues: &["even", "odd"], pipeline: 32, pushes: 10_000 }
    }
}

impl Load {
    /// Starts all clients, calls `strike` when enough pushes are confirmed, and waits until every client has lost its
    /// connection.
    pub fn run(&self, server: SocketAddr, rng: &mut Rng, history: &SharedHistory, strike: impl FnOnce()) {
        let enough = Enough { confirmed: AtomicU64::new(0), goal: self.pushes, latch: Latch::default() };
        thread::scope(|scope| {
            for _ in 0..self.producers {
                let (rng, enough) = (rng.fork(), &enough);
                scope.spawn(move || self.produce(RespClient::connect(server), rng, history, enough));
            }
            for _ in 0..self.consumers {
                let rng = rng.fork();
                scope.spawn(move || self.consume(RespClient::connect(server), rng, history));
            }
            let reached = enough.latch.is_open(3 * PATIENCE);
            strike();
            let confirmed = enough.confirmed.load(Ordering::Relaxed);
            assert!(reached, "only {confirmed} of {} pushes were confirmed in time", self.pushes);
        });
    }

    /// Starts all clients and waits until the server ends by itself.
    pub fn run_until_gone(&self, server: SocketAddr, rng: &mut Rng, history: &SharedHistory) {
        let enough = Enough { confirmed: AtomicU64::new(0), goal: 0, latch: Latch::default() };
        thread::scope(|scope| {
            for n in 0..self.producers + self.consumers {
                let (rng, enough) = (rng.fork(), &enough);
                scope.spawn(move || match RespClient::try_connect(server) {
                    Err(_) => {}
                    Ok(client) if n < self.producers => self.produce(client, rng, history, enough),
                    Ok(client) => self.consume(client, rng, history),
                });
            }
        });
    }

    fn produce(&self, mut client: RespClient, mut rng: Rng, history: &SharedHistory, enough: &Enough) {
        let mut open: VecDeque<Push> = VecDeque::new();
        let mut turn = || -> io::Result<()> {
            let mut bytes = Vec::new();
            for _ in 0..self.pipeline {
                let queue = self.queues[rng.usize(..self.queues.len())];
                let count = if rng.u8(..8) == 0 { rng.u64(2..6) } else { 1 };
                let push = history.lock().invoke_push(count);
                let mut argv = vec![b"RQ.PUSH".to_vec(), queue.as_bytes().to_vec()];
                argv.extend(push.numbers().map(payload::encode));
                bytes.extend(encode(&argv));
                open.push_back(push);
            }
            client.send_raw(&bytes)?;
            while let Some(&push) = open.front() {
                let ids = client.read()?.ids();
                confirm(history, push, &ids);
                open.pop_front();
                enough.count_one();
            }
            Ok(())
        };
        while turn().is_ok() {}
        let mut history = history.lock();
        for push in open {
            history.complete_push(push, Outcome::Unknown);
        }
    }

    fn consume(&self, mut client: RespClient, mut rng: Rng, history: &SharedHistory) {
        let mut held: Vec<Task> = Vec::new();
        let pop = encode(
            &["RQ.POP", "COUNT", "32", "BLOCK", "50"].iter().chain(self.queues).copied().collect::<Vec<_>>(),
        );
        let mut turn = || -> io::Result<()> {
            let mut bytes = Vec::new();
            let mut asked = Vec::new();
            for queue in self.queues {
                let tasks: Vec<Task> = held.extract_if(.., |t| t.queue == queue.as_bytes()).collect();
                if !tasks.is_empty() {
                    bytes.extend(invoke_finish(history, queue, &tasks));
                    asked.push(tasks);
                }
            }
            bytes.extend_from_slice(&pop);
            let sent = Time::now();
            client.send_raw(&bytes)?;
            for tasks in asked {
                complete_finish(history, &tasks, &client.read()?.ids());
            }
            let reply = client.read()?;
            if reply != Value::Null {
                held = reply.tasks();
                deliver(history, &held, sent);
                held.retain(|_| rng.u8(..32) != 0);
            }
            Ok(())
        };
        while turn().is_ok() {}
    }

    /// Pops and acknowledges all remaining tasks, also those held by earlier clients.
    pub fn drain(&self, server: SocketAddr, history: &SharedHistory) {
        let mut client = RespClient::connect(server);
        for queue in self.queues {
            loop {
                let sent = Time::now();
                let tasks = client.pop(queue, 1000);
                deliver(history, &tasks, sent);
                if finish_all(&mut client, history, queue, &tasks) == 0 {
                    break;
                }
            }
            loop {
                let sent = Time::now();
                let recovered = client.say(&format!("RQ.RECOVER {queue} 1000 0")).list();
                let tasks: Vec<Task> =
                    recovered.into_iter().map(|task| recovered_from(queue, task)).collect();
                for number in tasks.iter().filter_map(number_of) {
                    history.lock().release(number, sent);
                }
                deliver(history, &tasks, sent);
                if finish_all(&mut client, history, queue, &tasks) == 0 {
                    break;
                }
            }
            assert_eq!(client.counts(queue), (0, 0), "{queue} is drained");
        }
    }
}

/// A task in a reply to RQ.RECOVER.
fn recovered_from(queue: &str, task: Value) -> Task {
    let mut fields = task.list().into_iter();
    let mut next = || fields.next().expect("a recovered task has two fields");
    Task { queue: queue.as_bytes().to_vec(), id: next().text(), payload: next().bytes() }
}

fn finish_all(client: &mut RespClient, history: &SharedHistory, queue: &str, tasks: &[Task]) -> usize {
    if !tasks.is_empty() {
        client.send_raw(&invoke_finish(history, queue, tasks)).expect("the server reads");
        complete_finish(history, tasks, &client.reply().ids());
    }
    tasks.len()
}

/// Records that a push was confirmed with these ids.
pub fn confirm(history: &SharedHistory, push: Push, ids: &[String]) {
    let ids: Vec<u64> = ids.iter().map(|id| id_number(id)).collect();
    let mut history = history.lock();
    history.complete_push(push, Outcome::Ok);
    history.note_ids(push, &ids);
}

/// Records that these tasks were delivered without a lease of their own, to a request that was sent at `asked`.
pub fn deliver(history: &SharedHistory, tasks: &[Task], asked: Time) {
    let received = Time::now();
    let mut history = history.lock();
    for task in tasks {
        let (number, id) = (number_of(task), Some(id_number(&task.id)));
        history.deliver(&Delivery { number, id, asked, received, lease: None });
    }
}

/// Records that these tasks are about to be acknowledged; returns the command.
pub fn invoke_finish(history: &SharedHistory, queue: &str, tasks: &[Task]) -> Vec<u8> {
    let mut history = history.lock();
    tasks.iter().filter_map(number_of).for_each(|number| history.invoke_finish(number));
    let ids = tasks.iter().map(|task| &*task.id);
    encode(&["RQ.ACK", queue].into_iter().chain(ids).collect::<Vec<_>>())
}

/// Records that of these tasks those with the ids `done` were acknowledged.
pub fn complete_finish(history: &SharedHistory, tasks: &[Task], done: &[String]) {
    let (at, done) = (Time::now(), done.iter().collect::<HashSet<_>>());
    let mut history = history.lock();
    for task in tasks {
        match number_of(task) {
            Some(number) if done.contains(&task.id) => history.complete_finish(number, Outcome::Ok, at),
            Some(number) => history.deny_finish(number, at),
            None => {}
        }
    }
}

fn number_of(task: &Task) -> Option<u64> {
    payload::decode(&task.payload)
}

/// An id as a number with the same order.
pub fn id_number(id: &str) -> u64 {
    let parsed =
        id.split_once('-').and_then(|(ms, seq)| Some((ms.parse::<u64>().ok()?, seq.parse::<u64>().ok()?)));
    let (ms, seq) = parsed.unwrap_or_else(|| panic!("not an id: {id}"));
    assert!(seq < 1 << 17 && ms < 1 << 43, "not an id of this store: {id}");
    ms << 17 | seq
}

/// Counts confirmations, and signals when there are enough.
struct Enough {
    confirmed: AtomicU64,
    goal: u64,
    latch: Latch,
}

impl Enough {
    fn count_one(&self) {
        if self.confirmed.fetch_add(1, Ordering::Relaxed) + 1 == self.goal {
            self.latch.open();
        }
    }
}

/// A random generator with a reproducible seed: that of `SUREQ_TEST_SEED`, or a new one, which is printed.
pub fn seeded() -> Rng {
    let given = std::env::var("SUREQ_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("SUREQ_TEST_SEED={seed}");
    Rng::with_seed(seed)
}

/// The factor of `SUREQ_TEST_SCALE` for the duration of long tests.
pub fn scale() -> u64 {
    std::env::var("SUREQ_TEST_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1).max(1)
}
