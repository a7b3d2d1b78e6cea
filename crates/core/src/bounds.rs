//! What a command may ask for, whatever the state: every home refuses the same.

use crate::command::{Add, Command, LeaseAsk, NameArg, Pop, Return, When, Worker};
use crate::limits;
use crate::reply::Refusal;
use crate::settings::{Change, Changes, Place};

impl Command<'_> {
    /// Whether all that it asks for is within the limits. Names of queues count where the command would make one.
    pub fn check(&self) -> Result<(), Refusal> {
        match *self {
            Self::Push { queue, payloads } => {
                payloads.iter().try_for_each(|payload| payload_within(payload))?;
                if payloads.is_empty() { Ok(()) } else { queue_within(queue) }
            }
            Self::Add(ref add) => check_add(add),
            Self::Pop(Pop { ref lease, .. }) => check_lease(lease),
            Self::Extend { ms, .. } => span_ms("the lease", ms),
            Self::Return(Return { to: Some(Place::After(ms)), .. }) => at_most("the delay", ms),
            Self::Pause { queue } | Self::Worker(Worker::Work(_, queue)) => queue_within(queue),
            Self::Config { queue, changes } => check_changes(queue, changes),
            Self::Worker(Worker::Start { name, ttl_ms }) => {
                within("the name of the worker", name.len(), limits::WORKER_NAME_BYTES_MAX)?;
                span_ms("the worker's time to live", ttl_ms)
            }
            _ => Ok(()),
        }
    }
}

fn check_add(add: &Add<'_>) -> Result<(), Refusal> {
    payload_within(add.payload)?;
    if let Some(NameArg::Bytes(name)) = add.name {
        within("the name of the task", name.len(), limits::TASK_NAME_BYTES_MAX)?;
    }
    if let When::After(ms) = add.when {
        at_most("the delay", ms)?;
    }
    add.tries.map_or(Ok(()), |tries| positive("the number of tries", u64::from(tries)))?;
    add.ttl_ms.map_or(Ok(()), |ms| span_ms("the time to live", ms))?;
    add.backoff_ms.map_or(Ok(()), |ms| span_ms("the backoff", ms))?;
    queue_within(add.queue)
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
    if changes.is_empty() { Ok(()) } else { queue_within(name) }
}

fn payload_within(payload: &[u8]) -> Result<(), Refusal> {
    within("the payload", payload.len(), limits::PAYLOAD_BYTES_MAX)
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

/// A length of time that is not nothing and not for ever.
fn span_ms(what: &'static str, ms: u64) -> Result<(), Refusal> {
    positive(what, ms)?;
    at_most(what, ms)
}
