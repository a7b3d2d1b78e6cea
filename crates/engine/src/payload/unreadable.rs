//! Handles tasks whose payloads cannot be read, and reports them.
//!
//! A failed read may succeed later, so the task is delayed and the read is retried a few times. After that, or at once
//! if the payload does not match its checksum, the task is dead with a reason that names file and offset, until an
//! operator revives or deletes it. Other tasks are not affected.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sureq_core::{Receipt, Refusal, Reply, TaskId};
use sureq_sync::{Mutex, MutexGuard};

use crate::log::Position;
use crate::payload::body::Body;
use crate::shared::Shared;
use crate::waiting::ticket::{PendingAnswer, TicketCell, only};

/// The delays of a task after each failed read. The read after the last delay is the last attempt.
const WAITS_MS: [u64; 2] = [1_000, 10_000];

/// The number of deliveries that are ended under one lock.
const SLICE_TASKS: usize = 128;

/// The failed reads of at most this many tasks are counted; beyond that all counts are reset.
const TRIED_MAX: usize = 10_000;

/// The failed reads since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct ReadFaults {
    /// The number of failed reads.
    errors: AtomicU64,
    /// The number of tasks that are dead because of them.
    dead: AtomicU64,
    /// The number of failed reads of each task that waits for a retry.
    tried: Mutex<HashMap<TaskId, usize>>,
}

/// Why a payload cannot be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// It does not match its checksum.
    Damaged,
    Failed,
    /// It was not read at all, after too many other failures or for lack of a file descriptor.
    Untried,
}

/// A payload of an answer that could not be read.
#[derive(Debug)]
pub(crate) struct Missing {
    /// The index of its task in the answer.
    pub(crate) index: usize,
    pub(crate) failure: ReadFailure,
    pub(crate) why: String,
}

/// A delivery that ends, since its payload cannot be read.
struct EndedDelivery {
    receipt: Receipt,
    fate: Fate,
    why: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Requeued at the front, at no cost.
    Front,
    /// Retried after this many milliseconds.
    Later(u64),
    Dead,
}

impl ReadFaults {
    pub(crate) fn note_error(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    pub(crate) fn dead(&self) -> u64 {
        self.dead.load(Relaxed)
    }

    fn fate(&self, id: TaskId, failure: ReadFailure) -> Fate {
        let mut tried = self.tried();
        match failure {
            ReadFailure::Untried => return Fate::Front,
            ReadFailure::Damaged => {}
            ReadFailure::Failed => {
                if tried.len() >= TRIED_MAX {
                    tried.clear();
                }
                let failures = tried.entry(id).or_default();
                *failures += 1;
                if let Some(&wait_ms) = WAITS_MS.get(*failures - 1) {
                    return Fate::Later(wait_ms);
                }
            }
        }
        tried.remove(&id);
        Fate::Dead
    }

    fn tried(&self) -> MutexGuard<'_, HashMap<TaskId, usize>> {
        // A panic elsewhere cannot leave the map half changed.
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends deliveries without payload. Returns the position that the rest of the answer must wait for.
pub(crate) fn requeue_unreadable(shared: &Shared, cell: &TicketCell, missing: &[Missing]) -> Position {
    let deliveries = {
        let ticket = cell.lock();
        ticket.answer.as_ref().map_or_else(Vec::new, |answer| deliveries(shared, answer, missing))
    };
    for (queue, ended) in &deliveries {
        // Each task goes to the front of its queue, so the last one goes first.
        for (n, slice) in ended.rchunks(SLICE_TASKS).enumerate() {
            if n > 0 {
                shared.yield_lock();
            }
            requeue_slice(shared, queue, slice);
        }
        report(shared, queue, ended);
    }
    shared.position(&shared.lock())
}

/// The deliveries that cannot be made, by queue. An inspected task is not a delivery.
fn deliveries(
    shared: &Shared,
    answer: &PendingAnswer,
    missing: &[Missing],
) -> Vec<(Box<[u8]>, Vec<EndedDelivery>)> {
    let queues: Vec<&[u8]> = match &answer.recovered_from {
        Some(queue) => vec![queue],
        None => answer.queues.iter().map(AsRef::as_ref).collect(),
    };
    let mut all: Vec<(Box<[u8]>, Vec<EndedDelivery>)> =
        queues.iter().map(|&queue| (queue.into(), Vec::new())).collect();
    for Missing { index, failure, why } in missing {
        let Some(task) = answer.replies.tasks.get(*index) else { continue };
        let Some((_, ended)) = all.get_mut(task.queue as usize) else { continue };
        let fate = shared.read_faults.fate(task.id, *failure);
        ended.push(EndedDelivery { receipt: task.receipt(), fate, why: why.clone() });
    }
    all
}

fn requeue_slice(shared: &Shared, queue: &[u8], slice: &[EndedDelivery]) {
    shared.change(|broker, now, buffer| {
        let untried = slice.iter().filter(|ended| ended.fate == Fate::Front);
        let untried: Vec<Receipt> = untried.map(|ended| ended.receipt).collect();
        broker.requeue_undelivered(queue, &untried, now, buffer);
        for EndedDelivery { receipt, fate, why } in slice {
            let wait_ms = match fate {
                Fate::Front => continue,
                Fate::Later(ms) => Some(*ms),
                Fate::Dead => None,
            };
            let reason = format!("the payload cannot be read: {why}");
            broker.requeue_unreadable(queue, &[*receipt], wait_ms, reason.as_bytes(), now, buffer);
        }
    });
}

/// Counts dead tasks, and reports the first task of each kind to the operator.
fn report(shared: &Shared, queue: &[u8], ended: &[EndedDelivery]) {
    let dead = ended.iter().filter(|one| one.fate == Fate::Dead).count();
    shared.read_faults.dead.fetch_add(dead as u64, Relaxed);
    let queue = queue.escape_ascii();
    if let Some(EndedDelivery { receipt, why, .. }) = ended.iter().find(|one| one.fate == Fate::Dead) {
        let id = receipt.id;
        shared.notice(&format!(
            "{dead} of the tasks of queue {queue} are dead, since their payloads cannot be read; the first is {id}: {why}"
        ));
    }
    let later = ended.iter().filter(|one| matches!(one.fate, Fate::Later(_)));
    if let Some(EndedDelivery { receipt, why, .. }) = later.clone().next() {
        let (id, count) = (receipt.id, later.count());
        shared.notice(&format!(
            "{count} of the payloads of queue {queue} cannot be read, and are tried again soon; the first is that of {id}: \
             {why}"
        ));
    }
}

impl PendingAnswer {
    /// Leaves out tasks without payload. If no other task is left, the reply says why. Dead tasks are shown without
    /// payload, with the error as their reason, so that an operator sees what they are.
    pub(crate) fn leave_out(&mut self, missing: &[Missing]) {
        let Some(first) = missing.first() else { return };
        let tasks = &mut self.replies.tasks;
        let is_inspection = matches!(self.replies.list[..], [Reply::Inspected(_)]);
        let are_all_dead = missing.iter().all(|one| tasks[one.index].more.is_some());
        if is_inspection && are_all_dead {
            for Missing { index, why, .. } in missing {
                tasks[*index].body = Body::from(&b""[..]);
                if let Some(more) = &mut tasks[*index].more {
                    more.reason = Some(format!("the payload cannot be read: {why}").into_bytes().into());
                }
            }
            return;
        }
        if is_inspection || missing.len() == tasks.len() {
            let refusal = Refusal::Damaged { id: tasks[first.index].id, why: first.why.as_str().into() };
            self.replies = only(Reply::Refused(refusal));
            return;
        }
        let mut is_missing = vec![false; tasks.len()];
        for one in missing {
            is_missing[one.index] = true;
        }
        let mut is_missing = is_missing.into_iter();
        tasks.retain(|_| !is_missing.next().unwrap_or_default());
        self.replies.list = vec![Reply::Tasks(sureq_core::reply::Span::new(0, tasks.len()))];
    }
}
