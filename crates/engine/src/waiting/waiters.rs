//! The waiting pops, in order of arrival. They are served in this order, across all dialects.
//!
//! They are not part of the durable state: after a restart no pop waits. A waiting pop owns a copy of its command,
//! since the buffer that it was read from is reused before it is served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sureq_core::LogTime;
use sureq_core::command::{Block, Pop};
use sureq_core::owned::OwnedPop;

use crate::waiting::ticket::TicketCell;

#[derive(Debug)]
pub(crate) struct WaitingPop {
    pub(crate) pop: OwnedPop,
    pub(crate) cell: Arc<TicketCell>,
    until: Option<LogTime>,
}

/// All waiting pops.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    last: u64,
    waiting: BTreeMap<u64, WaitingPop>,
    /// Numbers by the queues they wait for. By name, since a queue may not exist yet. A hash map would move all names
    /// at once when it grows.
    by_queue: BTreeMap<Box<[u8]>, BTreeSet<u64>>,
    /// Numbers by the incarnation of the worker that waits.
    by_worker: BTreeSet<(u64, u64)>,
    timeouts: BTreeSet<(LogTime, u64)>,
    /// The approximate memory of all of it, in bytes.
    memory: usize,
}

impl Waiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The approximate memory of the waiters, in bytes.
    pub(crate) const fn memory(&self) -> usize {
        self.memory
    }

    /// Adds a pop as the last waiter.
    pub(crate) fn add(&mut self, pop: &Pop<'_>, now: LogTime) -> (u64, Arc<TicketCell>) {
        self.last += 1;
        let number = self.last;
        let until = match pop.block {
            Some(Block::Millis(ms)) => Some(now.after(ms)),
            _ => None,
        };
        let cell = Arc::<TicketCell>::default();
        let pop = OwnedPop::from(pop);
        self.memory += cost_of(&pop);
        for name in pop.queues() {
            self.by_queue.entry(name.clone()).or_default().insert(number);
        }
        pop.worker().map(|incarnation| self.by_worker.insert((incarnation, number)));
        until.map(|at| self.timeouts.insert((at, number)));
        self.waiting.insert(number, WaitingPop { pop, cell: Arc::clone(&cell), until });
        (number, cell)
    }

    /// Removes a waiter, served or not.
    pub(crate) fn remove(&mut self, number: u64) -> Option<WaitingPop> {
        let waiting = self.waiting.remove(&number)?;
        self.memory -= cost_of(&waiting.pop);
        for name in waiting.pop.queues() {
            if let Some(tickets) = self.by_queue.get_mut(name) {
                tickets.remove(&number);
                if tickets.is_empty() {
                    self.by_queue.remove(name);
                }
            }
        }
        waiting.pop.worker().map(|incarnation| self.by_worker.remove(&(incarnation, number)));
        waiting.until.map(|at| self.timeouts.remove(&(at, number)));
        Some(waiting)
    }

    /// The waiter that has waited longest for a queue.
    pub(crate) fn first_for(&self, queue: &[u8]) -> Option<(u64, &WaitingPop)> {
        let number = *self.by_queue.get(queue)?.first()?;
        self.waiting.get(&number).map(|waiting| (number, waiting))
    }

    pub(crate) fn get(&self, number: u64) -> Option<&WaitingPop> {
        self.waiting.get(&number)
    }

    /// The waiter that has waited longest on behalf of a worker.
    pub(crate) fn first_of_worker(&self, incarnation: u64) -> Option<(u64, &WaitingPop)> {
        let &(_, number) = self.by_worker.range((incarnation, 0)..=(incarnation, u64::MAX)).next()?;
        self.waiting.get(&number).map(|waiting| (number, waiting))
    }

    /// When the next waiter times out.
    pub(crate) fn next_timeout(&self) -> Option<LogTime> {
        self.timeouts.first().map(|&(at, _)| at)
    }

    /// A pop that has timed out.
    pub(crate) fn timed_out(&self, now: LogTime) -> Option<u64> {
        self.timeouts.first().filter(|&&(at, _)| at <= now).map(|&(_, number)| number)
    }

    /// The pop that has waited longest.
    pub(crate) fn first(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|(&number, _)| number)
    }

    /// The number of the last pop that began to wait. Later ones get larger numbers.
    pub(crate) const fn last(&self) -> u64 {
        self.last
    }
}

/// The memory of a waiter: its copy of the command, its entries in the indexes, and a copy of each name there.
fn cost_of(pop: &OwnedPop) -> usize {
    const EACH: usize = size_of::<WaitingPop>() + size_of::<TicketCell>() + 8 * size_of::<(LogTime, u64)>();
    const EACH_QUEUE: usize = 2 * size_of::<(Box<[u8]>, BTreeSet<u64>)>() + 12 * size_of::<u64>();
    let pop_bytes = pop.memory();
    EACH + 2 * pop_bytes + pop.queues().len() * EACH_QUEUE
}
