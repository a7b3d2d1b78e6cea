//! Workers of sureq, and the commands that Worqr's own clients send for their workers.

use sureq_core::command::{Block, Cancel, Command, LeaseAsk, Pop, Worker, WorkerRef};
use sureq_core::{Refusal, Replies, Reply};
use sureq_home_api::{Payload, Ticket};
use sureq_redis::RedisHome;
use sureq_testkit::redis_server::RedisServer;

pub(crate) use crate::common::shop::{QUEUE, Shop, answer, tasks, text};
use crate::common::{push, run};

/// Longer than any test.
pub(crate) const TTL_MS: u64 = 600_000;

pub(crate) fn worker(name: &str) -> WorkerRef<'_> {
    WorkerRef { name: name.as_bytes(), incarnation: 0 }
}

pub(crate) fn start(home: &RedisHome, name: &str, ttl_ms: u64) {
    let start = Command::Worker(Worker::Start { name: name.as_bytes(), ttl_ms });
    assert_eq!(run(home, &start).list, [Reply::Started(0)]);
}

/// A pop that does not wait.
pub(crate) fn pop_call(name: &str, count: u32) -> Command<'_> {
    Command::Pop(pop_as(name, &[QUEUE], count))
}

fn pop_as<'a>(name: &'a str, queues: &'a [&'a [u8]], count: u32) -> Pop<'a> {
    let lease = LeaseAsk { worker: Some(worker(name)), ..LeaseAsk::NONE };
    Pop { lease, ..Pop::plain(queues, count) }
}

/// Pops tasks for this worker; returns their ids and payloads.
pub(crate) fn pop(home: &RedisHome, name: &str, count: u32) -> Vec<(String, String)> {
    tasks(&run(home, &pop_call(name, count)))
}

pub(crate) fn pop_one(home: &RedisHome, name: &str) -> String {
    let mut popped = pop(home, name, 1);
    assert_eq!(popped.len(), 1, "one task is ready");
    popped.remove(0).0
}

pub(crate) fn wait(home: &RedisHome, name: &str, block: Block) -> Ticket {
    home.send(&[Command::Pop(Pop { block: Some(block), ..pop_as(name, &[QUEUE], 1) })])
}

/// The tasks that a heartbeat reports for the worker to stop working on.
pub(crate) fn beat(home: &RedisHome, name: &str) -> Result<Vec<String>, Refusal> {
    let replies: Replies<Payload> = run(home, &Command::Worker(Worker::Beat(worker(name))));
    match &replies.list[0] {
        Reply::ReceiptsForeign(span) => {
            let ids = replies.foreign_ids[span.range()].iter();
            Ok(ids.map(|id| text(id.as_ref().expect("a delivered task has an id"))).collect())
        }
        Reply::Refused(no) => Err(no.clone()),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn cancel(home: &RedisHome, payload: &str) -> u64 {
    let cancel = Command::Cancel { queue: QUEUE, which: Cancel::Payload(payload.as_bytes()) };
    match run(home, &cancel).list.remove(0) {
        Reply::Count(n) => n,
        other => panic!("{other:?}"),
    }
}

impl Shop {
    pub(crate) fn open() -> Self {
        Self::with("layout=worqr")
    }

    pub(crate) fn open_on(server: RedisServer) -> Self {
        Self::on(server, "layout=worqr")
    }

    pub(crate) fn push(&self, payload: &str) {
        assert!(
            matches!(push(&self.home, QUEUE, payload.as_bytes()), Reply::PushedForeign(span) if span.len() == 1)
        );
    }

    /// The payloads in the queue; the next task is the last one.
    pub(crate) fn queue(&mut self) -> Vec<String> {
        self.all("LRANGE worqr:queues:jobs 0 -1")
    }

    /// The ids of running processes.
    pub(crate) fn working(&mut self) -> Vec<String> {
        self.all("SMEMBERS worqr:workingProcesses:jobs")
    }

    /// Sends commands between MULTI and EXEC.
    pub(crate) fn multi(&mut self, lines: &[&str]) {
        self.raw::<()>("MULTI");
        for line in lines {
            self.raw::<redis::Value>(line);
        }
        self.raw::<redis::Value>("EXEC");
    }

    pub(crate) fn foreign_enqueue(&mut self, payload: &str) {
        self.multi(&[&format!("LPUSH worqr:queues:jobs {payload}"), "PUBLISH worqr_jobs_work 1"]);
    }

    /// Starts a foreign worker that works on the queue.
    pub(crate) fn foreign_start(&mut self, name: &str) {
        self.multi(&[
            &format!("SADD worqr:workers {name}"),
            &format!("SADD worqr:expiringWorkers {name}"),
            &format!("SET worqr:workerTimers:{name} RUN EX 600"),
        ]);
        self.raw::<()>(&format!("SADD worqr:workingQueues:{name} jobs"));
    }

    pub(crate) fn foreign_dequeue(&mut self, id: &str) {
        self.multi(&[
            &format!("RPOPLPUSH worqr:queues:jobs worqr:processes:{id}"),
            &format!("SADD worqr:workingProcesses:jobs {id}"),
        ]);
    }

    /// The `failWorker` of Worqr: first it reads, then it changes everything at once. `between` runs after each read.
    pub(crate) fn foreign_fail(&mut self, name: &str, mut between: impl FnMut(&mut Self)) {
        let queues = self.all(&format!("SMEMBERS worqr:workingQueues:{name}"));
        between(self);
        let mut lines: Vec<String> = ["workers", "expiringWorkers", "permanentWorkers"]
            .map(|set| format!("SREM worqr:{set} {name}"))
            .into();
        lines.extend(["workerTimers", "workingQueues"].map(|key| format!("DEL worqr:{key}:{name}")));
        for queue in &queues {
            let ids = self.all(&format!("SMEMBERS worqr:workingProcesses:{queue}"));
            between(self);
            lines.push(format!("DEL worqr:workingProcesses:{queue}"));
            for id in ids {
                lines.push(format!("RPOPLPUSH worqr:processes:{id} worqr:queues:{queue}"));
                lines.push(format!("DEL worqr:processes:{id}"));
            }
        }
        self.multi(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// The `cleanupWorkers` of Worqr, which every instance runs now and then: fails each worker whose timer is gone.
    pub(crate) fn foreign_cleanup(&mut self, mut between: impl FnMut(&mut Self)) {
        for name in self.all("SMEMBERS worqr:expiringWorkers") {
            between(self);
            if self.raw::<Vec<String>>(&format!("KEYS worqr:workerTimers:{name}")).is_empty() {
                self.foreign_fail(&name, &mut between);
            }
        }
    }

    /// The heartbeat of a foreign worker stops, and its timer expires.
    pub(crate) fn foreign_dies(&mut self, name: &str) {
        self.raw::<()>(&format!("DEL worqr:workerTimers:{name}"));
    }

    /// All keys in Redis, in order.
    pub(crate) fn keys(&mut self) -> Vec<String> {
        let mut keys: Vec<String> = self.raw("KEYS *");
        keys.sort();
        keys
    }
}
