//! The bounds of commands that do not depend on state. Every home refuses the same commands.

use crate::command::{Add, Block, Cancel, Command, LeaseAsk, NameArg, Pop, Return, When, Worker};
use crate::limits;
use crate::reply::Refusal;
use crate::settings::{Change, Changes, Place};

impl Command<'_> {
    /// Refuses a command beyond the limits: each name, list and number is checked, and the sum of the payloads, which
    /// is recorded as one event.
    pub fn check(&self) -> Result<(), Refusal> {
        if let Some(queue) = self.queue() {
            queue_within(queue)?;
        }
        match *self {
            Self::Push { payloads, .. } => check_push(payloads),
            Self::Add(ref add) => check_add(add),
            Self::Pop(ref pop) => check_pop(pop),
            Self::Ack { tasks, .. }
            | Self::Bury { tasks, .. }
            | Self::Delete { tasks, .. }
            | Self::Revive { tasks: Some(tasks), .. }
            | Self::Cancel { which: Cancel::Ids(tasks), .. } => few_within("tasks", tasks.list),
            Self::Cancel { which: Cancel::Names(names), .. } => {
                few_within("names", names)?;
                names.iter().try_for_each(|name| task_name_within(name))
            }
            Self::Cancel { which: Cancel::Payload(payload), .. } => payload_within(payload),
            Self::Extend { ms, .. } => span_ms("the lease", ms),
            Self::Return(Return { to: Some(Place::After(ms)), .. }) => at_most("the delay", ms),
            Self::Config { queue, changes } => check_changes(queue, changes),
            Self::Drop { queues } | Self::Exists { queues } => {
                few_within("queues", queues)?;
                queues.iter().try_for_each(|name| queue_within(name))
            }
            Self::Queues { pattern: Some(pattern), .. } => {
                within("the pattern", pattern.len(), limits::PATTERN_BYTES_MAX)
            }
            Self::Worker(Worker::Start { name, ttl_ms }) => {
                worker_within(name)?;
                span_ms("the worker's time to live", ttl_ms)
            }
            _ => Ok(()),
        }
    }
}

fn check_push(payloads: &[&[u8]]) -> Result<(), Refusal> {
    at_most_many("payloads", payloads.len(), limits::PUSH_TASKS_MAX)?;
    payloads.iter().try_for_each(|payload| payload_within(payload))?;
    let bytes = payloads.iter().map(|payload| payload.len()).sum();
    within("the sum of the payloads", bytes, limits::COMMAND_BYTES_MAX)
}

fn check_pop(pop: &Pop<'_>) -> Result<(), Refusal> {
    at_most_many("queues", pop.queues.len(), limits::POP_QUEUES_MAX)?;
    pop.queues.iter().try_for_each(|name| queue_within(name))?;
    if let Some(Block::Millis(ms)) = pop.block {
        at_most("the time to wait", ms)?;
    }
    check_lease(&pop.lease)
}

fn check_add(add: &Add<'_>) -> Result<(), Refusal> {
    payload_within(add.payload)?;
    if let Some(NameArg::Bytes(name)) = add.name {
        task_name_within(name)?;
    }
    if let When::After(ms) = add.when {
        at_most("the delay", ms)?;
    }
    add.tries.map_or(Ok(()), |tries| positive("the number of tries", u64::from(tries)))?;
    add.ttl_ms.map_or(Ok(()), |ms| span_ms("the time to live", ms))?;
    add.backoff_ms.map_or(Ok(()), |ms| span_ms("the backoff", ms))
}

fn check_lease(lease: &LeaseAsk<'_>) -> Result<(), Refusal> {
    lease.ms.map_or(Ok(()), |ms| span_ms("the lease", ms))?;
    if lease.worker.is_some() && lease.conn.is_some() {
        return Err(Refusal::OutOfRange { what: "WORKER together with CONN" });
    }
    Ok(())
}

fn check_changes(name: &[u8], changes: Changes<'_>) -> Result<(), Refusal> {
    for change in changes.iter() {
        match change {
            Change::LeaseMs(ms) => at_most("LEASE", ms)?,
            Change::TtlMs(ms) => at_most("TTL", ms)?,
            Change::BackoffMs(ms) => at_most("BACKOFF", ms)?,
            Change::DeadLetter(queue) => {
                queue_within(queue)?;
                if queue == name {
                    return Err(Refusal::OutOfRange { what: "DEAD-LETTER to the queue itself" });
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn payload_within(payload: &[u8]) -> Result<(), Refusal> {
    within("the payload", payload.len(), limits::PAYLOAD_BYTES_MAX)
}

const fn task_name_within(name: &[u8]) -> Result<(), Refusal> {
    within("the name of the task", name.len(), limits::TASK_NAME_BYTES_MAX)
}

const fn worker_within(name: &[u8]) -> Result<(), Refusal> {
    within("the name of the worker", name.len(), limits::WORKER_NAME_BYTES_MAX)
}

/// Checks that a list fits a command of the wire protocol.
const fn few_within(what: &'static str, list: &[&[u8]]) -> Result<(), Refusal> {
    at_most_many(what, list.len(), limits::COMMAND_ARGS_MAX)
}

const fn at_most_many(what: &'static str, count: usize, max: usize) -> Result<(), Refusal> {
    if count > max { Err(Refusal::TooMany { what, max }) } else { Ok(()) }
}

pub(crate) const fn queue_within(name: &[u8]) -> Result<(), Refusal> {
    within("the name of the queue", name.len(), limits::QUEUE_NAME_BYTES_MAX)
}

const fn within(what: &'static str, len: usize, max: usize) -> Result<(), Refusal> {
    if len > max { Err(Refusal::TooLarge { what, max }) } else { Ok(()) }
}

const fn at_most(what: &'static str, ms: u64) -> Result<(), Refusal> {
    if ms > limits::SPAN_MS_MAX { Err(Refusal::OutOfRange { what }) } else { Ok(()) }
}

const fn positive(what: &'static str, n: u64) -> Result<(), Refusal> {
    if n == 0 { Err(Refusal::OutOfRange { what }) } else { Ok(()) }
}

/// A duration above zero and below the limit.
fn span_ms(what: &'static str, ms: u64) -> Result<(), Refusal> {
    positive(what, ms)?;
    at_most(what, ms)
}
