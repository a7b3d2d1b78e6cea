//! The worker and the connection of a client, and the leases that end with them.

use std::time::{Duration, Instant};

use sureq_core::command::{Command, ConnId, LeaseAsk, Worker, WorkerRef};
use sureq_core::id::IdText;
use sureq_core::reply::{Refusal, Reply};
use sureq_home_api::Home as _;
use sureq_sync::now;

use crate::client::{Client, Lease, queue_name};
use crate::history::Delivery;

/// Longer than any run.
pub(crate) const ENDLESS: Duration = Duration::from_secs(1 << 32);

/// A worker or a connection.
pub(crate) struct Holder {
    /// Its incarnation or its number.
    number: u64,
    name: Vec<u8>,
    ttl: Duration,
    /// Until when it certainly lives.
    until: Instant,
    held: Vec<Delivery>,
}

impl Holder {
    fn worker(&self) -> WorkerRef<'_> {
        WorkerRef { name: &self.name, incarnation: self.number }
    }
}

impl Client {
    /// A random command about the client's worker.
    pub(crate) fn work(&mut self, queue: usize) {
        let Some(mut worker) = self.worker.take() else {
            self.worker = self.start_worker();
            return;
        };
        let name = queue_name(queue);
        match self.rng.u32(..8) {
            0..3 => {
                if !self.beat(&mut worker) {
                    self.gone(&worker);
                    return;
                }
            }
            3 => drop(self.ask(Command::Worker(Worker::Work(worker.worker(), &name)))),
            4 => {
                let of_queue = |delivery: &Delivery| delivery.queue == queue;
                let (back, kept) = worker.held.drain(..).partition(of_queue);
                worker.held = kept;
                self.end_deliveries_by(&back, Command::Worker(Worker::Rest(worker.worker(), &name)));
            }
            5 => {
                self.end_deliveries_by(&worker.held, Command::Worker(Worker::Stop(worker.worker())));
                return;
            }
            _ => self.settle_one(&mut worker),
        }
        self.worker = Some(worker);
    }

    fn start_worker(&mut self) -> Option<Holder> {
        let (asked, ttl_ms) = (now(), self.rng.u64(1..=self.plan.lease_max_ms));
        let name = format!("w{}", self.rng.u64(..)).into_bytes();
        let replies = self.ask(Command::Worker(Worker::Start { name: &name, ttl_ms }))?;
        let [Reply::Started(number)] = replies.list[..] else { return None };
        let ttl = Duration::from_millis(ttl_ms);
        Some(Holder { number, name, ttl, until: asked + ttl, held: Vec::new() })
    }

    /// Sends a heartbeat. Returns whether the worker still exists.
    fn beat(&self, worker: &mut Holder) -> bool {
        let asked = now();
        let Some(replies) = self.ask(Command::Worker(Worker::Beat(worker.worker()))) else { return true };
        let [Reply::Receipts(lost)] = &replies.list[..] else { return false };
        let lost: Vec<Vec<u8>> = replies.receipts[lost.range()]
            .iter()
            .map(|receipt| IdText::of_receipt(*receipt).as_bytes().to_vec())
            .collect();
        worker.held.retain(|delivery| !lost.contains(&delivery.receipt));
        worker.until = asked + worker.ttl;
        for delivery in &worker.held {
            self.history().is_held_until(delivery, worker.until);
        }
        true
    }

    /// Pops for the client's worker.
    pub(crate) fn worker_pop(&mut self, queue: usize) {
        let Some(mut worker) = self.worker.take() else {
            self.worker = self.start_worker();
            return;
        };
        let count = self.rng.usize(1..=self.plan.batch_max) as u32;
        let ask = LeaseAsk { worker: Some(worker.worker()), ..LeaseAsk::NONE };
        let taken = self.take(queue, count, Lease { ask, until: Some(worker.until) }, None);
        worker.held.extend(taken);
        self.worker = Some(worker);
    }

    /// Pops for the client's connection, settles one of its deliveries, or closes it.
    pub(crate) fn connect(&mut self, queue: usize) {
        let Some(mut conn) = self.conn.take() else {
            let (number, until) = (self.rng.u64(1..1 << 40), now() + ENDLESS);
            self.conn = Some(Holder { number, name: Vec::new(), ttl: ENDLESS, until, held: Vec::new() });
            return;
        };
        match self.rng.u32(..4) {
            0 => return self.disconnect(&conn),
            1 => self.settle_one(&mut conn),
            _ => {
                let count = self.rng.usize(1..=self.plan.batch_max) as u32;
                let ask = LeaseAsk { conn: Some(ConnId(conn.number)), ..LeaseAsk::NONE };
                let taken = self.take(queue, count, Lease { ask, until: Some(conn.until) }, None);
                conn.held.extend(taken);
            }
        }
        self.conn = Some(conn);
    }

    /// The client disconnects. Its worker is lost later, when its time to live ends.
    pub(crate) fn leave(&mut self) {
        if let Some(conn) = self.conn.take() {
            self.disconnect(&conn);
        }
    }

    fn disconnect(&self, conn: &Holder) {
        self.gone(conn);
        self.engine.close_conn(ConnId(conn.number));
        for delivery in &conn.held {
            self.history().end_taking(delivery.number, now());
        }
    }

    /// The tasks of a worker or connection may be delivered to other clients from now on.
    fn gone(&self, holder: &Holder) {
        let mut history = self.history();
        for delivery in &holder.held {
            history.begin_taking(delivery.number, now(), Duration::ZERO);
        }
    }

    /// Acks or returns one of its deliveries.
    fn settle_one(&mut self, holder: &mut Holder) {
        if holder.held.is_empty() {
            return;
        }
        let delivery = holder.held.swap_remove(self.rng.usize(..holder.held.len()));
        if self.rng.bool() {
            self.finish(std::slice::from_ref(&delivery));
        } else {
            let failed = self.rng.bool().then_some(&b"by chance"[..]);
            self.return_delivery(&delivery, failed);
        }
        if self.engine.failure().is_some() {
            // The outcome is unknown: the holder may still have the task.
            holder.held.push(delivery);
        }
    }

    /// Sends a command that ends deliveries.
    fn end_deliveries_by(&self, deliveries: &[Delivery], command: Command<'_>) {
        for delivery in deliveries {
            self.history().begin_taking(delivery.number, now(), Duration::ZERO);
        }
        let replies = self.ask(command);
        let is_done =
            replies.is_some_and(|replies| !matches!(replies.list[..], [Reply::Refused(Refusal::Poisoned)]));
        if is_done {
            for delivery in deliveries {
                self.history().end_taking(delivery.number, now());
            }
        }
    }
}
