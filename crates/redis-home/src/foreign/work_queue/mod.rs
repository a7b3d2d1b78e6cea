//! Queues in the keys of redis-work-queue, shared with its clients.
//!
//! Here a command becomes a call of `lua/work_queue.lua`, or is refused by name. `moving` is how pops wait, `cleaning` how items
//! come back whose lease ran out, and `old_clients` how the keys of older clients are noticed.

pub(crate) mod cleaning;
pub(crate) mod moving;
pub(crate) mod old_clients;

use redis::Value;
use sureq_core::command::{AckScope, Add, Cancel, Command, NameArg, Pop, Return};
use sureq_core::settings::Place;
use sureq_core::{Refusal, limits};

use crate::foreign::{Foreign, new_id};
use crate::script::call::{Call, ReplyForm};

/// How long a lease is where neither a pop nor the URL says.
pub(crate) const LEASE_MS: u64 = 60_000;

/// Where in a pop's arguments it says from which of its queues an id was moved, and which id.
const MOVED_FROM: usize = 2;
const MOVED: usize = 3;
/// Where its queues begin.
pub(crate) const POP_QUEUES: usize = 4;

const HERE: Foreign = Foreign("layout=work-queue");

/// The call that a command is, and how its answer is read.
pub(crate) fn call_of(command: &Command<'_>, lease_ms: u64) -> Result<(Call, ReplyForm), Refusal> {
    Ok(match *command {
        Command::Push { queue, payloads } => {
            let mut call = Call::about("push", queue);
            for payload in payloads {
                call = call.arg(new_id()?).arg(*payload);
            }
            (call, ReplyForm::Pushed)
        }
        Command::Add(ref add) => (add_call(add)?, ReplyForm::Added),
        Command::Pop(ref pop) => (pop_call(pop, lease_ms)?, ReplyForm::Tasks),
        Command::Ack { queue, tasks, scope } => {
            let scope = if scope == AckScope::Leased { "leased" } else { "any" };
            (Call::about("ack", queue).arg(scope).args(tasks.list.iter().copied()), ReplyForm::Acked)
        }
        Command::Extend { queue, task, ms } => {
            (Call::about("extend", queue).arg(task.bytes).number(ms), ReplyForm::Outcome)
        }
        Command::Return(ref back) => (return_call(back)?, ReplyForm::Outcome),
        Command::Cancel { queue, which: Cancel::Ids(tasks) } => {
            (Call::about("cancel", queue).args(tasks.list.iter().copied()), ReplyForm::Count)
        }
        Command::Cancel { queue, which: Cancel::Names(names) } => {
            (Call::about("cancel", queue).args(names.iter().copied()), ReplyForm::Count)
        }
        Command::Cancel { which: Cancel::Payload(_), .. } => return HERE.no("CANCEL PAYLOAD"),
        _ => return HERE.call_of(command),
    })
}

fn add_call(add: &Add<'_>) -> Result<Call, Refusal> {
    HERE.check_add(add)?;
    let id = match add.name {
        Some(NameArg::Bytes(name)) => name.to_vec(),
        Some(NameArg::Payload) => return HERE.no("ADD UNIQUE: a NAME is unique there"),
        None => new_id()?.into_bytes(),
    };
    Ok(Call::about("add", add.queue).arg(id).arg(add.payload))
}

fn pop_call(pop: &Pop<'_>, lease_ms: u64) -> Result<Call, Refusal> {
    HERE.check_pop(pop)?;
    if pop.lease.worker.is_some() {
        return HERE.no("POP WORKER");
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

/// Whether a pop had so much to remove before it found anything that it requests to be asked again.
pub(crate) fn is_again(answer: &Value) -> bool {
    matches!(answer, Value::BulkString(word) if word == b"again")
}

fn return_call(back: &Return<'_>) -> Result<Call, Refusal> {
    let place = HERE.return_place(back, Place::Back)?;
    Ok(Call::about("return", back.queue).arg(back.task.bytes).arg(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::refused;
    use sureq_core::command::{IdForm, LeaseAsk, TaskRef, WorkerRef};

    fn check_refused(command: &Command<'_>, what: &str) {
        assert_eq!(refused(call_of(command, LEASE_MS)), format!("NOTTHERE layout=work-queue has no {what}"));
    }

    #[test]
    fn what_the_layout_has_not_is_refused_by_name() {
        let queue = &b"q"[..];
        check_refused(&Command::Pause { queue }, "PAUSE");
        check_refused(&Command::Cancel { queue, which: Cancel::Payload(b"x") }, "CANCEL PAYLOAD");
        let worker = Some(WorkerRef { name: b"w", incarnation: 1 });
        let lease = LeaseAsk { worker, ..LeaseAsk::NONE };
        check_refused(&Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 1) }), "POP WORKER");
        let task = TaskRef { bytes: b"x", form: IdForm::Long };
        let back = Return { queue, task, to: Some(Place::After(5)), failed: None, is_last: false };
        check_refused(&Command::Return(back), "RETURN DELAY");
    }
}
