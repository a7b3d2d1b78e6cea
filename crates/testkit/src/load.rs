//! Load from many clients at once, each with a journal, until the server is struck down.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use fastrand::Rng;

use crate::client::{RespClient, Task, encode};
use crate::ledger::{Journal, payload};
use crate::process::{Latch, PATIENCE};

/// What the clients do.
#[derive(Clone, Debug)]
pub struct Load {
    /// Clients that push.
    pub producers: usize,
    /// Clients that pop and acknowledge, and now and then forget a task.
    pub consumers: usize,
    /// The queues they share.
    pub queues: &'static [&'static str],
    /// How many commands a producer sends before it reads an answer.
    pub pipeline: usize,
    /// After how many confirmed pushes the blow falls.
    pub pushes: u64,
}

impl Default for Load {
    fn default() -> Self {
        Self { producers: 8, consumers: 8, queues: &["even", "odd"], pipeline: 32, pushes: 10_000 }
    }
}

/// Numbers for tasks, each given out once.
#[derive(Debug, Default)]
pub struct Numbers(AtomicU64);

impl Numbers {
    fn take(&self, count: u64) -> u64 {
        self.0.fetch_add(count, Ordering::Relaxed)
    }
}

impl Load {
    /// Lets all clients loose, calls `strike` once enough is confirmed, and waits until every client has noticed.
    pub fn run(
        &self,
        server: SocketAddr,
        rng: &mut Rng,
        numbers: &Numbers,
        strike: impl FnOnce(),
    ) -> Vec<Journal> {
        let enough = Enough { confirmed: AtomicU64::new(0), goal: self.pushes, latch: Latch::default() };
        thread::scope(|scope| {
            let mut clients = Vec::new();
            for _ in 0..self.producers {
                let (rng, enough) = (rng.fork(), &enough);
                let client = move || self.produce(RespClient::connect(server), rng, numbers, enough);
                clients.push(scope.spawn(client));
            }
            for _ in 0..self.consumers {
                let rng = rng.fork();
                clients.push(scope.spawn(move || self.consume(RespClient::connect(server), rng)));
            }
            let reached = enough.latch.is_open(3 * PATIENCE);
            strike();
            let confirmed = enough.confirmed.load(Ordering::Relaxed);
            assert!(reached, "only {confirmed} of {} pushes were confirmed in time", self.pushes);
            clients
                .into_iter()
                .map(|client| client.join().expect("a client only ends with its connection"))
                .collect()
        })
    }

    /// Lets all clients loose and waits until the server is gone by itself.
    pub fn run_until_gone(&self, server: SocketAddr, rng: &mut Rng, numbers: &Numbers) -> Vec<Journal> {
        let enough = Enough { confirmed: AtomicU64::new(0), goal: 0, latch: Latch::default() };
        thread::scope(|scope| {
            let mut clients = Vec::new();
            for n in 0..self.producers + self.consumers {
                let (rng, enough) = (rng.fork(), &enough);
                clients.push(scope.spawn(move || match RespClient::try_connect(server) {
                    Err(_) => Journal::default(),
                    Ok(client) if n < self.producers => self.produce(client, rng, numbers, enough),
                    Ok(client) => self.consume(client, rng),
                }));
            }
            clients
                .into_iter()
                .map(|client| client.join().expect("a client only ends with its connection"))
                .collect()
        })
    }

    fn produce(&self, mut client: RespClient, mut rng: Rng, numbers: &Numbers, enough: &Enough) -> Journal {
        let mut journal = Journal::default();
        let mut turn = || -> io::Result<()> {
            let (mut bytes, mut entries) = (Vec::new(), Vec::new());
            for _ in 0..self.pipeline {
                let queue = self.queues[rng.usize(..self.queues.len())];
                let count = if rng.u8(..8) == 0 { rng.u64(2..6) } else { 1 };
                let first = numbers.take(count);
                let mut argv = vec![b"RQ.PUSH".to_vec(), queue.as_bytes().to_vec()];
                argv.extend((first..first + count).map(payload));
                bytes.extend(encode(&argv));
                entries.push(journal.push(first, count));
            }
            client.send_raw(&bytes)?;
            for entry in entries {
                journal.confirm(entry, &client.read()?.ids());
                enough.count_one();
            }
            Ok(())
        };
        while turn().is_ok() {}
        journal
    }

    fn consume(&self, mut client: RespClient, mut rng: Rng) -> Journal {
        let mut journal = Journal::default();
        let mut held: Vec<Task> = Vec::new();
        let pop = encode(
            &["RQ.POP", "COUNT", "32", "BLOCK", "50"].iter().chain(self.queues).copied().collect::<Vec<_>>(),
        );
        let mut turn = || -> io::Result<()> {
            let mut bytes = Vec::new();
            let mut asked = Vec::new();
            for queue in self.queues {
                let ids: Vec<String> =
                    held.extract_if(.., |t| t.queue == queue.as_bytes()).map(|t| t.id).collect();
                if !ids.is_empty() {
                    for id in &ids {
                        journal.ask(id);
                    }
                    bytes.extend(encode_ack(queue, &ids));
                    asked.push(ids);
                }
            }
            bytes.extend_from_slice(&pop);
            client.send_raw(&bytes)?;
            for asked in asked {
                journal.finish(&asked, &client.read()?.ids());
            }
            let reply = client.read()?;
            if reply != crate::client::Value::Null {
                held = reply.tasks();
                for task in &held {
                    journal.deliver(&task.id, &task.payload);
                }
                held.retain(|_| rng.u8(..32) != 0);
            }
            Ok(())
        };
        while turn().is_ok() {}
        journal
    }

    /// Takes and acknowledges everything that is left, whoever held it before.
    pub fn drain(&self, server: SocketAddr) -> Journal {
        let mut journal = Journal::default();
        let mut client = RespClient::connect(server);
        for queue in self.queues {
            loop {
                let tasks = client.pop(queue, 1000);
                let tasks: Vec<_> = tasks.into_iter().map(|task| (task.id, task.payload)).collect();
                if finish_all(&mut client, &mut journal, queue, &tasks) == 0 {
                    break;
                }
            }
            loop {
                let tasks =
                    client.say(&format!("RQ.RECOVER {queue} 1000 0")).list().into_iter().map(|task| {
                        let mut fields = task.list().into_iter();
                        let mut next = || fields.next().expect("a recovered task has two fields");
                        (next().text(), next().bytes())
                    });
                if finish_all(&mut client, &mut journal, queue, &tasks.collect::<Vec<_>>()) == 0 {
                    break;
                }
            }
            assert_eq!(client.counts(queue), (0, 0), "{queue} is drained");
        }
        journal
    }
}

fn finish_all(
    client: &mut RespClient,
    journal: &mut Journal,
    queue: &str,
    tasks: &[(String, Vec<u8>)],
) -> usize {
    let ids: Vec<String> = tasks.iter().map(|(id, _)| id.clone()).collect();
    if !ids.is_empty() {
        for (id, payload) in tasks {
            journal.deliver(id, payload);
        }
        for id in &ids {
            journal.ask(id);
        }
        client.send_raw(&encode_ack(queue, &ids)).expect("the server reads");
        journal.finish(&ids, &client.reply().ids());
    }
    ids.len()
}

fn encode_ack(queue: &str, ids: &[String]) -> Vec<u8> {
    encode(&["RQ.ACK", queue].into_iter().chain(ids.iter().map(String::as_str)).collect::<Vec<_>>())
}

/// Counts confirmations, and says when there are enough.
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

/// Randomness that a failure can be repeated with: from `SUREQ_TEST_SEED`, or new, and printed.
pub fn seeded() -> Rng {
    let given = std::env::var("SUREQ_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("SUREQ_TEST_SEED={seed}");
    Rng::with_seed(seed)
}

/// By how much `SUREQ_TEST_SCALE` makes the long tests longer.
pub fn scale() -> u64 {
    std::env::var("SUREQ_TEST_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1).max(1)
}
