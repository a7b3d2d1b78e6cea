//! Queues in the keys of redis-work-queue, shared with its clients.
//!
//! Here a command becomes a call of `lua/work_queue.lua`, or is refused by name. `moving` is how pops wait, `cleaning` how items
//! come back whose lease ran out, `handed` how they go back that reached nobody, and `look_out` how the keys of older clients
//! are noticed.

pub(crate) mod cleaning;
pub(crate) mod handed;
pub(crate) mod look_out;
pub(crate) mod moving;

use redis::Value;
use sureq_core::command::{AckScope, Add, Cancel, Command, NameArg, Pop, Return, View, When};
use sureq_core::settings::Place;
use sureq_core::{Refusal, limits};

use crate::call::{Call, Shape};

/// How long a lease is where neither a pop nor the URL says.
pub(crate) const LEASE_MS: u64 = 60_000;

/// Where in a pop's arguments it says from which of its queues an id was moved, and which id.
const MOVED_FROM: usize = 2;
const MOVED: usize = 3;
/// Where its queues begin.
const POP_QUEUES: usize = 4;

/// The call that a command is, and how its answer is read.
pub(crate) fn call_of(command: &Command<'_>, lease_ms: u64) -> Result<(Call, Shape), Refusal> {
    Ok(match *command {
        Command::Push { queue, payloads } => {
            let mut call = Call::about("push", queue);
            for payload in payloads {
                call = call.arg(new_id()?).arg(*payload);
            }
            (call, Shape::Pushed)
        }
        Command::Add(ref add) => (add_call(add)?, Shape::Added),
        Command::Pop(ref pop) => (pop_call(pop, lease_ms)?, Shape::Tasks),
        Command::Ack { queue, tasks, scope } => {
            let scope = if scope == AckScope::Leased { "leased" } else { "any" };
            (Call::about("ack", queue).arg(scope).args(tasks.list.iter().copied()), Shape::Acked)
        }
        Command::Extend { queue, task, ms } => {
            (Call::about("extend", queue).arg(task.bytes).number(ms), Shape::Outcome)
        }
        Command::Return(ref back) => (return_call(back)?, Shape::Outcome),
        Command::Inspect { queue, view, start, count } => {
            let view = match view {
                View::Ready => "ready",
                View::Leased => "leased",
                View::Delayed => return no("INSPECT DELAYED: nothing is delayed there"),
                View::Dead => return no("INSPECT DEAD: nothing dies there"),
            };
            let count = count.min(limits::REPLY_TASKS_MAX);
            let call = Call::about("inspect", queue).arg(view).arg(start.to_string());
            (call.number(count.into()), Shape::Inspected)
        }
        Command::Info { queue } => (Call::about("info", queue), Shape::Lengths),
        Command::Cancel { queue, which: Cancel::Ids(tasks) } => {
            (Call::about("cancel", queue).args(tasks.list.iter().copied()), Shape::Count)
        }
        Command::Cancel { queue, which: Cancel::Names(names) } => {
            (Call::about("cancel", queue).args(names.iter().copied()), Shape::Count)
        }
        Command::Cancel { which: Cancel::Payload(_), .. } => return no("CANCEL PAYLOAD"),
        Command::Drop { queues } => (Call::over("drop", queues), Shape::Counts(None)),
        Command::Exists { queues } => (Call::over("exists", queues), Shape::Count),
        Command::Size => (Call::new("size", None).arg("0"), Shape::Counts(Some(0))),
        Command::Queues { pattern, cursor, count } => {
            let call = Call::new("queues", None).number(cursor).number(count.max(1).into());
            (call, Shape::Queues { pattern: pattern.map(<[u8]>::to_vec) })
        }
        Command::Recover { .. } => return no("RECOVER: every lease ends there"),
        Command::Bury { .. } => return no("BURY"),
        Command::Revive { .. } => return no("REVIVE"),
        Command::Delete { .. } => return no("DELETE: use CANCEL"),
        Command::Purge { .. } => return no("PURGE: use DEL"),
        Command::Pause { .. } => return no("PAUSE"),
        Command::Resume { .. } => return no("RESUME"),
        Command::Config { .. } => return no("CONFIG"),
        Command::Explain { .. } => return no("EXPLAIN"),
        Command::Worker(_) => return no("WORKER"),
    })
}

/// There is no such thing in this layout.
fn no<T>(what: &'static str) -> Result<T, Refusal> {
    Err(Refusal::NotThere { what, place: "layout=work-queue" })
}

fn add_call(add: &Add<'_>) -> Result<Call, Refusal> {
    let id = match add.name {
        Some(NameArg::Bytes(name)) => name.to_vec(),
        Some(NameArg::Payload) => return no("ADD UNIQUE: a NAME is unique there"),
        None => new_id()?.into_bytes(),
    };
    match add.when {
        When::AtOnce | When::After(0) => {}
        When::After(_) => return no("ADD DELAY"),
        When::At(_) => return no("ADD AT"),
    }
    if add.priority != 0 {
        return no("ADD PRIORITY");
    }
    if add.tries.is_some() {
        return no("ADD TRIES");
    }
    if add.backoff_ms.is_some() {
        return no("ADD BACKOFF");
    }
    if add.ttl_ms.is_some() {
        return no("ADD TTL");
    }
    Ok(Call::about("add", add.queue).arg(id).arg(add.payload))
}

fn pop_call(pop: &Pop<'_>, lease_ms: u64) -> Result<Call, Refusal> {
    if pop.lease.worker.is_some() {
        return no("POP WORKER");
    }
    if pop.lease.conn.is_some() {
        return no("POP CONN");
    }
    if pop.lease.lapse.is_some() {
        return no("limit of lapses, which this kind of pop asks for");
    }
    if pop.meta {
        return no("POP META");
    }
    Ok(Call::new("pop", pop.queues.first().copied())
        .number(pop.count.min(limits::REPLY_TASKS_MAX).into())
        .number(pop.lease.ms.unwrap_or(lease_ms))
        .arg("")
        .arg("")
        .args(pop.queues.iter().copied()))
}

/// The same pop, which gets an id that has been moved from one of its queues already.
fn with_moved(pop: &Call, from: usize, id: Vec<u8>) -> Call {
    let mut call = pop.clone();
    call.args[MOVED_FROM] = from.to_string().into_bytes();
    call.args[MOVED] = id;
    call
}

/// Whether a pop had so much to remove before it found anything that it wants to be asked again.
pub(crate) fn is_again(answer: &Value) -> bool {
    matches!(answer, Value::BulkString(word) if word == b"again")
}

fn return_call(back: &Return<'_>) -> Result<Call, Refusal> {
    if back.failed.is_some() {
        return no("RETURN FAILED: failures are not counted there");
    }
    let place = match back.to {
        Some(Place::Front) => "F",
        None | Some(Place::Back | Place::After(0)) => "B",
        Some(Place::After(_)) => return no("RETURN DELAY"),
    };
    Ok(Call::about("return", back.queue).arg(back.task.bytes).arg(place))
}

/// A random UUID, as clients of redis-work-queue draw them.
fn new_id() -> Result<String, Refusal> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Refusal::Unavailable { why: format!("there is no randomness: {error}").into() })?;
    let random = u128::from_be_bytes(bytes);
    let number = random & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{number:032x}");
    Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sureq_core::command::{ConnId, IdForm, LeaseAsk, TaskRef};

    #[test]
    fn ids_are_random_uuids() {
        let ids = [new_id().unwrap(), new_id().unwrap()];
        assert_ne!(ids[0], ids[1]);
        for id in ids {
            let bytes = id.as_bytes();
            let is_right = |at: usize, c: u8| match at {
                8 | 13 | 18 | 23 => c == b'-',
                14 => c == b'4',
                19 => b"89ab".contains(&c),
                _ => c.is_ascii_digit() || (b'a'..=b'f').contains(&c),
            };
            assert!(bytes.len() == 36 && bytes.iter().enumerate().all(|(at, &c)| is_right(at, c)), "{id}");
        }
    }

    fn check_refused(command: &Command<'_>, what: &str) {
        let no = call_of(command, LEASE_MS).unwrap_err();
        assert_eq!(format!("{} {no}", no.code()), format!("ERR layout=work-queue has no {what}"));
    }

    #[test]
    fn what_the_layout_has_not_is_refused_by_name() {
        let queue = &b"q"[..];
        check_refused(&Command::Pause { queue }, "PAUSE");
        check_refused(&Command::Cancel { queue, which: Cancel::Payload(b"x") }, "CANCEL PAYLOAD");
        let add = Add::plain(queue, b"x");
        check_refused(&Command::Add(Add { when: When::After(1), ..add }), "ADD DELAY");
        check_refused(&Command::Add(Add { priority: 1, ..add }), "ADD PRIORITY");
        check_refused(&Command::Add(Add { ttl_ms: Some(1), ..add }), "ADD TTL");
        let pop = Pop::plain(&[b"q"], 1);
        let lease = LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE };
        check_refused(&Command::Pop(Pop { lease, ..pop }), "POP CONN");
        check_refused(&Command::Pop(Pop { meta: true, ..pop }), "POP META");
        let task = TaskRef { bytes: b"x", form: IdForm::Long };
        let back = Return { queue, task, to: Some(Place::After(5)), failed: None, is_last: false };
        check_refused(&Command::Return(back), "RETURN DELAY");
    }
}
