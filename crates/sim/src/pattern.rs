//! Sequences of commands that bring the store into states that random commands rarely reach: many tasks that are due
//! together, segments with few live tasks, segments that are nearly full.

use std::time::Duration;

use sureq_core::command::{Add, Block, Command, LeaseAsk, Pop, When, Worker, WorkerRef};
use sureq_core::reply::Reply;
use sureq_sync::{now, thread};

use crate::client::{Begun, Client, Lease, queue_name};
use crate::history::{Delivery, payload_of};

/// The number of tasks of a flood, the number that is added at once, and the least time from the first add until they
/// are due.
const FLOOD_TASKS: [usize; 4] = [100, 1_100, 2_500, 7_000];
const FLOOD_PIPELINE: usize = 500;
const FLOOD_DELAY_MIN: Duration = Duration::from_secs(5);

/// A churn has fewer batches than this, with this many tasks and at most this many bytes each. Then it leaves
/// compaction some time.
const CHURN_ROUNDS: usize = 8;
const CHURN_TASKS: usize = 16;
const CHURN_BYTES_MAX: u64 = 64 << 10;
const CHURN_REST: Duration = Duration::from_secs(3);

/// The most queues that are used at once, and the workers of a crowd.
const WIDE_QUEUES: usize = 1_000;
const CROWD_WORKERS: [usize; 4] = [10, 300, 1_100, 3_000];

/// The approximate bytes of the smallest frame in a segment.
const FRAME_BYTES: u64 = 128;

impl Client {
    /// Adds many tasks that are due at the same moment, and may wait for that.
    pub(crate) fn flood(&mut self, queue: usize) {
        if !self.history().begin_flood() {
            return;
        }
        let count = FLOOD_TASKS[self.rng.usize(..FLOOD_TASKS.len())];
        let due = now() + FLOOD_DELAY_MIN + self.time(FLOOD_DELAY_MIN);
        let (name, has_priority) = (queue_name(queue), self.rng.bool());
        for n in (0..count).step_by(FLOOD_PIPELINE) {
            let delay_ms = (due - now().min(due)).as_millis() as u64;
            let not_before = now() + self.waits(delay_ms);
            let begun = self.begin_small(queue, FLOOD_PIPELINE.min(count - n), not_before);
            let commands: Vec<Command<'_>> = begun
                .iter()
                .map(|(number, payload)| {
                    let priority = if has_priority { (*number % 3) as i8 } else { 0 };
                    self.history().place(*number, priority, false);
                    Command::Add(Add { when: When::After(delay_ms), priority, ..Add::plain(&name, payload) })
                })
                .collect();
            let Some(replies) = self.ask_all(&commands) else { return };
            for (begun, reply) in begun.iter().zip(&replies.list) {
                self.added(begun, false, reply);
            }
        }
        self.due = Some((due, queue));
        if self.rng.bool() {
            thread::sleep(due - now().min(due));
        }
    }

    /// Pushes batches that fill a segment each, acks most of their tasks, and gives compaction time to run.
    pub(crate) fn churn(&mut self, queue: usize) {
        let bytes = self.plan.segment_bytes.min(CHURN_BYTES_MAX) as usize / CHURN_TASKS;
        for _ in 0..self.rng.usize(1..CHURN_ROUNDS) {
            let begun: Vec<Begun> = (0..CHURN_TASKS).map(|_| self.begin_one(queue, bytes)).collect();
            self.push_begun(queue, &begun);
            let lease = Lease::of_ms(self.plan.lease_max_ms);
            let mut taken = self.take(queue, CHURN_TASKS as u32, lease, None);
            self.held.extend(taken.pop());
            self.finish(&taken);
        }
        thread::sleep(CHURN_REST);
    }

    /// Pushes a task to each of many queues, or pops from many queues.
    pub(crate) fn wide(&mut self, first: usize) {
        let count = self.rng.usize(1..=self.plan.queues.min(WIDE_QUEUES));
        let queues: Vec<usize> = (0..count).map(|n| (first + n) % self.plan.queues).collect();
        if self.rng.bool() {
            let lease = Lease::of_ms(self.rng.u64(1..=self.plan.lease_max_ms));
            let tasks = self.rng.usize(1..=self.plan.batch_max) as u32;
            let block = self.rng.bool().then(|| Block::Millis(self.rng.u64(1..=self.plan.delay_max_ms)));
            let taken = self.take_any(&queues, tasks, lease, block);
            return self.hold(taken);
        }
        let names: Vec<Vec<u8>> = queues.iter().map(|&queue| queue_name(queue)).collect();
        let begun: Vec<Vec<Begun>> = queues.iter().map(|&queue| self.begin_small(queue, 1, now())).collect();
        let payloads: Vec<[&[u8]; 1]> = begun.iter().map(|begun| [begun[0].1.as_slice()]).collect();
        let pushes = names.iter().zip(&payloads);
        let commands: Vec<Command<'_>> =
            pushes.map(|(queue, payloads)| Command::Push { queue, payloads }).collect();
        let Some(replies) = self.ask_all(&commands) else { return };
        for (begun, reply) in begun.iter().zip(&replies.list) {
            self.pushed(begun, reply, &replies);
        }
    }

    /// Starts many workers, each of which pops a task. Then they stop, or are lost together.
    pub(crate) fn crowd(&mut self, queue: usize) {
        if !self.history().begin_flood() {
            return;
        }
        let count = CROWD_WORKERS[self.rng.usize(..CROWD_WORKERS.len())];
        let (asked, ttl_ms) = (now(), self.rng.u64(1..=self.plan.lease_max_ms));
        let until = asked + Duration::from_millis(ttl_ms);
        let crowd = self.rng.u64(..);
        let names: Vec<Vec<u8>> = (0..count).map(|n| format!("c{crowd}-{n}").into_bytes()).collect();
        let starts: Vec<Command<'_>> =
            names.iter().map(|name| Command::Worker(Worker::Start { name, ttl_ms })).collect();
        let Some(replies) = self.ask_all(&starts) else { return };
        let workers: Vec<WorkerRef<'_>> = names
            .iter()
            .zip(&replies.list)
            .filter_map(|(name, reply)| match reply {
                Reply::Started(incarnation) => Some(WorkerRef { name, incarnation: *incarnation }),
                _ => None,
            })
            .collect();
        let name = queue_name(queue);
        let (popped, queues) = (now(), [name.as_slice()]);
        let leases = workers.iter().map(|&worker| LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE });
        let leases: Vec<LeaseAsk<'_>> = leases.collect();
        let pops: Vec<Command<'_>> =
            leases.iter().map(|&lease| Command::Pop(Pop { lease, ..Pop::plain(&queues, 1) })).collect();
        let Some(replies) = self.ask_all(&pops) else { return };
        let mut taken: Vec<Delivery> = Vec::new();
        for (&ask, reply) in leases.iter().zip(&replies.list) {
            let lease = Lease { ask, until: Some(until) };
            taken.extend(self.taken(&[queue], lease, popped, reply, &replies));
        }
        self.due = Some((until, queue));
        if self.rng.bool() {
            return;
        }
        for delivery in &taken {
            self.history().begin_taking(delivery.number, now(), Duration::ZERO);
        }
        let stops: Vec<Command<'_>> =
            workers.iter().map(|&worker| Command::Worker(Worker::Stop(worker))).collect();
        if self.ask_all(&stops).is_some() {
            for delivery in &taken {
                self.history().end_taking(delivery.number, now());
            }
        }
    }

    /// Pushes a task that leaves room for no more than a frame or two in the segment.
    pub(crate) fn fill(&mut self, queue: usize) {
        let left = self.rng.u64(FRAME_BYTES..4 * FRAME_BYTES);
        let room = self.plan.segment_bytes.saturating_sub(self.disk.log_end());
        let Some(bytes) = room.checked_sub(left).filter(|&bytes| bytes >= 8) else { return };
        let begun = self.begin_one(queue, bytes as usize);
        self.push_begun(queue, &[begun]);
    }

    /// Begins a task with a payload of this size.
    pub(crate) fn begin_one(&self, queue: usize, bytes: usize) -> Begun {
        let number = self.history().begin_push(queue, bytes, now());
        (number, payload_of(number, bytes))
    }
}
