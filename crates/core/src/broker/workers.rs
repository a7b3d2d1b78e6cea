//! The workers of a store. Their names, their incarnations and the queues they work on are part of the state;
//! heartbeats are not.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use crate::command::WorkerRef;
use crate::event::QueueNo;
use crate::id::{Receipt, TaskId};
use crate::limits;
use crate::meter;
use crate::queue::Inconsistent;
use crate::reply::Refusal;
use crate::task::Holder;
use crate::time::LogTime;

#[derive(Clone, Debug, Default)]
pub(super) struct Workers {
    by_name: BTreeMap<Box<[u8]>, u64>,
    alive: BTreeMap<u64, Worker>,
    /// The times at which workers are lost unless a heartbeat arrives. Volatile.
    expiries: BTreeSet<(LogTime, u64)>,
    /// The length of all names in bytes.
    name_bytes: usize,
    /// The total number of queues that workers work on, counted per worker.
    works: usize,
    /// The number of lapses that have not been reported yet.
    unreported: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) name: Box<[u8]>,
    pub(super) ttl_ms: u64,
    pub(super) works: BTreeSet<QueueNo>,
    expires: LogTime,
    /// Lapsed leases, to be reported at its next heartbeat. Volatile.
    lapsed: VecDeque<Receipt>,
}

const UNKNOWN: Inconsistent = Inconsistent::new("a worker that is not alive", TaskId::NONE);

impl Workers {
    pub(super) fn start(
        &mut self,
        name: &[u8],
        incarnation: u64,
        ttl_ms: u64,
        clock: LogTime,
    ) -> Result<(), Inconsistent> {
        if self.by_name.contains_key(name) || self.alive.contains_key(&incarnation) {
            return Err(Inconsistent::new("a worker that is started twice", TaskId::NONE));
        }
        let expires = clock.after(ttl_ms);
        self.name_bytes += name.len();
        let (works, lapsed) = (BTreeSet::new(), VecDeque::new());
        self.alive.insert(incarnation, Worker { name: name.into(), ttl_ms, works, expires, lapsed });
        self.by_name.insert(name.into(), incarnation);
        self.expiries.insert((expires, incarnation));
        Ok(())
    }

    /// Ends a worker. Returns the queues that it worked on.
    pub(super) fn end(&mut self, incarnation: u64) -> Result<BTreeSet<QueueNo>, Inconsistent> {
        let worker = self.alive.remove(&incarnation).ok_or(UNKNOWN)?;
        self.by_name.remove(&worker.name);
        self.name_bytes -= worker.name.len();
        self.works -= worker.works.len();
        self.unreported -= worker.lapsed.len();
        self.expiries.remove(&(worker.expires, incarnation));
        Ok(worker.works)
    }

    /// Records that a worker works on a queue. Returns whether this is new.
    pub(super) fn work(&mut self, incarnation: u64, queue: QueueNo) -> Result<bool, Inconsistent> {
        let is_new = self.alive.get_mut(&incarnation).ok_or(UNKNOWN)?.works.insert(queue);
        self.works += usize::from(is_new);
        Ok(is_new)
    }

    /// Records that a worker no longer works on a queue. Returns whether it did before.
    pub(super) fn rest(&mut self, incarnation: u64, queue: QueueNo) -> Result<bool, Inconsistent> {
        let was_there = self.alive.get_mut(&incarnation).ok_or(UNKNOWN)?.works.remove(&queue);
        self.works -= usize::from(was_there);
        Ok(was_there)
    }

    pub(super) fn works_on(&self, incarnation: u64, queue: QueueNo) -> bool {
        self.alive.get(&incarnation).is_some_and(|worker| worker.works.contains(&queue))
    }

    /// The first `count` queues that it works on.
    pub(super) fn worked_queues(&self, incarnation: u64, count: usize) -> Vec<QueueNo> {
        let works = self.alive.get(&incarnation).into_iter().flat_map(|worker| worker.works.iter().copied());
        works.take(count).collect()
    }

    /// Records a lapse, which the worker's next heartbeat will report.
    pub(super) fn note_lapse(&mut self, incarnation: u64, receipt: Receipt) {
        if let Some(worker) = self.alive.get_mut(&incarnation) {
            if worker.lapsed.len() >= limits::LAPSES_REPORTED_MAX {
                worker.lapsed.pop_front();
                self.unreported -= 1;
            }
            self.unreported += 1;
            worker.lapsed.push_back(receipt);
        }
    }

    /// Reports the recorded lapses and removes them.
    pub(super) fn report_lapses(&mut self, incarnation: u64, out: &mut Vec<Receipt>) {
        if let Some(worker) = self.alive.get_mut(&incarnation) {
            self.unreported -= worker.lapsed.len();
            out.extend(worker.lapsed.drain(..));
        }
    }

    pub(super) fn beat(&mut self, incarnation: u64, now: LogTime) {
        if let Some(worker) = self.alive.get_mut(&incarnation) {
            self.expiries.remove(&(worker.expires, incarnation));
            worker.expires = now.after(worker.ttl_ms);
            self.expiries.insert((worker.expires, incarnation));
        }
    }

    /// Gives every worker a full time to live, after a start.
    pub(super) fn beat_all(&mut self, now: LogTime) {
        let all: Vec<u64> = self.alive.keys().copied().collect();
        for incarnation in all {
            self.beat(incarnation, now);
        }
    }

    /// Refuses an incarnation that is not alive: its time to live is over, or a later worker of the same name
    /// replaced it.
    pub(super) fn check(&self, worker: WorkerRef<'_>, now: LogTime) -> Result<(), Refusal> {
        let is_alive = |incarnation: u64| {
            let found = self.alive.get(&incarnation);
            found.is_some_and(|alive| *alive.name == *worker.name && alive.expires > now)
        };
        if is_alive(worker.incarnation) {
            return Ok(());
        }
        let current = self.incarnation_of(worker.name).filter(|&current| current > worker.incarnation);
        Err(if current.is_some_and(is_alive) { Refusal::WorkerReplaced } else { Refusal::WorkerGone })
    }

    /// The workers that are alive at this time, from this incarnation on.
    pub(super) fn alive_at(&self, now: LogTime, from: u64) -> impl Iterator<Item = (u64, &Worker)> {
        let all = self.alive.range(from..).inspect(|_| meter::step());
        let alive = all.filter(move |(_, worker)| worker.expires > now);
        alive.map(|(&incarnation, worker)| (incarnation, worker))
    }

    /// Whether leases of this holder may exist: always for a connection, since connections are not tracked here.
    pub(super) fn may_hold(&self, holder: Holder) -> bool {
        match holder {
            Holder::Worker(incarnation) => self.alive.contains_key(&incarnation),
            Holder::Conn(_) => true,
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u64, &Worker)> {
        self.alive.iter().map(|(&incarnation, worker)| (incarnation, worker))
    }

    pub(super) fn incarnation_of(&self, name: &[u8]) -> Option<u64> {
        self.by_name.get(name).copied()
    }

    pub(super) fn name_of(&self, incarnation: u64) -> Option<&[u8]> {
        self.alive.get(&incarnation).map(|worker| &*worker.name)
    }

    /// The approximate memory in bytes, computed without visiting any worker.
    pub(super) fn memory(&self) -> usize {
        // Each worker has an entry in three trees, whose nodes are half empty.
        let each = size_of::<(u64, Worker)>() + size_of::<(Box<[u8]>, u64)>() + size_of::<(LogTime, u64)>();
        self.alive.len() * each * 3 / 2
            + 2 * self.name_bytes
            + self.works * size_of::<QueueNo>() * 3
            + self.unreported * size_of::<Receipt>()
    }

    /// The maintained counts, each with its name and the value that it should have.
    pub(super) fn sizes(&self) -> [(&'static str, usize, usize); 3] {
        let sum = |of: fn(&Worker) -> usize| self.alive.values().map(of).sum();
        [
            ("bytes of workers' names", self.name_bytes, sum(|worker| worker.name.len())),
            ("queues worked on", self.works, sum(|worker| worker.works.len())),
            ("unreported lapses", self.unreported, sum(|worker| worker.lapsed.len())),
        ]
    }

    /// The worker that is lost next, and the time at which it is.
    pub(super) fn next_lost(&self) -> Option<(LogTime, u64)> {
        self.expiries.first().copied()
    }

    pub(super) fn digest(&self, into: &mut impl Hasher) {
        for (incarnation, worker) in &self.alive {
            (incarnation, &worker.name, worker.ttl_ms, &worker.works).hash(into);
        }
    }
}
