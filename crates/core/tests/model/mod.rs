//! The queue as the design describes it, in the most naive way: maps, lists and linear scans.
//!
//! It is written from the table of transitions and the design, not from the core. It does slowly what the core does
//! fast; if the two differ, one of them is wrong.

pub mod command;
mod execute;
pub mod naive;
pub mod plan;

use std::collections::BTreeMap;

use command::{Happening, Name, WorkerName};
use naive::{Cause, Lease, NaiveQueue, NaiveState, NaiveTask};
use sureq_core::id::Claim;
use sureq_core::task::StateKind;
use sureq_core::{Receipt, TaskId};

use crate::support::{Answer, Bytes, START_MS};

const HOUR_MS: u64 = 3_600_000;

#[derive(Clone, Debug)]
pub struct Model {
    pub log: u64,
    pub wall: u64,
    pub incarnation: u64,
    last_id: TaskId,
    pub queues: BTreeMap<Name, NaiveQueue>,
    pub workers: BTreeMap<u64, NaiveWorker>,
    /// Ids, receipts and workers from replies, for use in later commands.
    pub ids: Vec<TaskId>,
    pub receipts: Vec<Receipt>,
    pub incarnations: Vec<WorkerName>,
    /// The last command with its references resolved, and the reply to it.
    pub last: Option<(Happening, Option<Answer>)>,
}

#[derive(Clone, Debug)]
pub struct NaiveWorker {
    name: Name,
    ttl: u64,
    pub expires: u64,
    works: Vec<Name>,
    lapsed: Vec<Receipt>,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            log: START_MS,
            wall: START_MS,
            incarnation: 1,
            last_id: TaskId::NONE,
            queues: BTreeMap::new(),
            workers: BTreeMap::new(),
            ids: Vec::new(),
            receipts: Vec::new(),
            incarnations: Vec::new(),
            last: None,
        }
    }
}

impl Model {
    pub fn happen(&mut self, happening: Happening) {
        let answer = match &happening {
            Happening::Pass(ms) => {
                (self.log, self.wall) = (self.log + ms, self.wall + ms);
                None
            }
            Happening::Wall(ms) => {
                self.wall = *ms;
                None
            }
            Happening::Tick => {
                self.tick();
                None
            }
            Happening::Restart => {
                self.restart();
                None
            }
            Happening::CloseConn(conn) => {
                self.end_lost_workers();
                self.end_holder(|lease| lease.conn == Some(*conn), Cause::Free);
                None
            }
            Happening::RequeueUndelivered(name, receipts) => {
                self.end_lost_workers();
                if self.queues.contains_key(name) {
                    self.settle(name);
                    let mut ids = Vec::new();
                    for receipt in receipts {
                        if self.is_current(name, Claim::Receipt(*receipt)) && !ids.contains(&receipt.id) {
                            ids.push(receipt.id);
                        }
                    }
                    self.end(name, &ids, Cause::Free);
                }
                None
            }
            Happening::Forward(_) => None,
            Happening::Cmd(cmd) => {
                self.end_lost_workers();
                Some(self.execute(cmd).unwrap_or_else(Answer::Refused))
            }
        };
        self.note_idle();
        self.last = Some((happening, answer));
    }

    fn is_current(&self, name: Name, claim: Claim) -> bool {
        self.task(name, claim.id()).is_some_and(|task| {
            let meant = match claim {
                Claim::Id(_) => true,
                Claim::Receipt(receipt) => receipt == task.receipt(),
            };
            meant && task.kind() == StateKind::Leased
        })
    }

    /// Carries out what is due in a queue: leases, then times to live, then delays.
    fn settle(&mut self, name: Name) {
        let (log, wall) = (self.log, self.wall);
        let due = |lease: &Lease| lease.deadline.is_some_and(|(at, _)| at <= log);
        let mut lapsed = self.queues[name].leased(due);
        lapsed.sort_by_key(|id| self.queues[name].tasks[id].deadline());
        self.end(name, &lapsed, Cause::Lapsed);
        let queue = self.queue(name);
        queue.expire(log);
        queue.fall_due(log, wall);
        self.move_dying(name);
    }

    /// Settles a queue if it exists.
    fn settled(&mut self, name: Name) -> bool {
        let there = self.queues.contains_key(name);
        if there {
            self.settle(name);
        }
        there
    }

    /// Ends a worker or connection: its tasks of all queues are requeued.
    fn end_holder(&mut self, which: impl Fn(&Lease) -> bool, cause: Cause) -> u64 {
        let queues = self.by_number();
        queues.into_iter().map(|name| self.end_leases(name, &which, cause)).sum()
    }

    fn end_leases(&mut self, name: Name, which: impl Fn(&Lease) -> bool, cause: Cause) -> u64 {
        if self.queues[name].leased(&which).is_empty() {
            return 0;
        }
        self.settle(name);
        let ids = self.queues[name].leased(&which);
        self.end(name, &ids, cause);
        self.move_dying(name);
        ids.len() as u64
    }

    /// Ends leases without an action of their holders.
    fn end(&mut self, name: Name, ids: &[TaskId], cause: Cause) {
        let log = self.log;
        for &id in ids {
            let task = &self.queues[name].tasks[&id];
            let NaiveState::Leased(lease) = &task.state else { unreachable!() };
            if let (Cause::Lapsed, Some(worker)) = (cause, lease.worker) {
                let receipt = task.receipt();
                if let Some(worker) = self.workers.get_mut(&worker) {
                    worker.lapsed.push(receipt);
                }
            }
        }
        self.queue(name).end(ids, cause, log);
    }

    /// Dead tasks move to the back of their dead-letter queue.
    fn move_dying(&mut self, name: Name) {
        let queue = self.queue(name);
        let dying = std::mem::take(&mut queue.dying);
        let Some(dead_letter) = queue.settings.dead_letter.clone() else { return };
        if dying.is_empty() {
            return;
        }
        let dead_letter = plan::QUEUES.into_iter().find(|name| name.as_bytes() == &*dead_letter).unwrap();
        self.make(dead_letter);
        for id in dying {
            let queue = self.queue(name);
            let mut task = queue.tasks[&id].clone();
            queue.lose(id);
            let to = self.queue(dead_letter);
            (task.state, task.expires) = (NaiveState::Ready, None);
            if task.name.as_ref().is_some_and(|name| to.named(name).is_some()) {
                task.name = None;
            }
            to.pushed += 1;
            to.line.push(id);
            to.tasks.insert(id, task);
        }
    }

    fn tick(&mut self) {
        loop {
            self.end_lost_workers();
            let by_number = self.by_number();
            let due = by_number.iter().filter_map(|name| Some((self.queues[name].next_log()?, *name)));
            let due = due.filter(|&(at, _)| at <= self.log).min_by_key(|&(at, _)| at);
            let met = by_number.iter().filter_map(|name| Some((self.queues[name].next_wall()?, *name)));
            let met = met.filter(|&(at, _)| at <= self.wall).min_by_key(|&(at, _)| at);
            if let Some((_, name)) = due.or(met) {
                self.settle(name);
                self.note_idle();
                continue;
            }
            let old = |queue: &NaiveQueue| queue.idle_since.is_some_and(|since| since + HOUR_MS <= self.log);
            let Some(name) = by_number.iter().find(|name| old(&self.queues[*name])) else { return };
            self.queues.remove(name);
        }
    }

    fn restart(&mut self) {
        self.incarnation += 1;
        let log = self.log;
        for queue in self.queues.values_mut() {
            for task in queue.tasks.values_mut() {
                if let NaiveState::Leased(Lease { deadline: Some((at, length)), .. }) = &mut task.state {
                    *at = (*at).max(log + (*length).min(10_000));
                }
            }
            let conns = queue.leased(|lease| lease.conn.is_some());
            queue.end(&conns, Cause::Free, log);
            queue.idle_since = None;
        }
        for worker in self.workers.values_mut() {
            worker.expires = log + worker.ttl;
            worker.lapsed.clear();
        }
    }

    fn end_lost_workers(&mut self) {
        loop {
            let lost = self.workers.iter().filter(|(_, worker)| worker.expires <= self.log);
            let Some((_, incarnation)) = lost.map(|(&n, worker)| (worker.expires, n)).min() else { return };
            self.end_worker(incarnation, Cause::Lost);
        }
    }

    fn end_worker(&mut self, incarnation: u64, cause: Cause) -> u64 {
        self.workers.remove(&incarnation);
        self.end_holder(|lease| lease.worker == Some(incarnation), cause)
    }

    fn fail_worker(&mut self, name: Name) -> u64 {
        let found = self.workers.iter().find(|(_, worker)| worker.name == name).map(|(&n, _)| n);
        found.map_or(0, |incarnation| self.end_worker(incarnation, Cause::Lost))
    }

    fn make(&mut self, name: Name) {
        let taken = |no: &u32| self.queues.values().any(|queue| queue.no == *no);
        let no = (0..99).find(|no| !taken(no)).unwrap();
        self.queues.entry(name).or_insert_with(|| NaiveQueue::new(no));
    }

    fn note_idle(&mut self) {
        for (name, queue) in &mut self.queues {
            let worked_on = self.workers.values().any(|worker| worker.works.contains(name));
            if worked_on || !queue.is_bare() {
                queue.idle_since = None;
            } else {
                queue.idle_since.get_or_insert(self.log);
            }
        }
    }

    fn queue(&mut self, name: Name) -> &mut NaiveQueue {
        self.queues.get_mut(name).expect("the queue is there")
    }

    fn task(&self, name: Name, id: TaskId) -> Option<&NaiveTask> {
        self.queues.get(name)?.tasks.get(&id)
    }

    fn by_number(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self.queues.keys().copied().collect();
        names.sort_by_key(|name| self.queues[name].no);
        names
    }

    fn next_id(&self) -> TaskId {
        self.last_id.next(self.log).unwrap()
    }

    /// The next log time at which something happens without a command.
    pub fn next_log(&self) -> Option<u64> {
        let queues = self.queues.values().filter_map(NaiveQueue::next_log);
        queues.chain(self.workers.values().map(|worker| worker.expires)).min()
    }
}

/// A payload as replies show it.
pub fn body(payload: &[u8]) -> Bytes {
    payload.into()
}
