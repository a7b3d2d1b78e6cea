//! RQ.POP: handing out tasks, and waiting for some.
//!
//! Those who wait are Redis' own blocked clients, in its order. Whoever is woken pops as if it had just asked, and goes on
//! waiting if another was faster.

use sureq_core::command::{Block, Command, Pop};
use sureq_core::event::LeaseTerms;
use sureq_core::queue::{PopAsk, Popped};
use sureq_core::reply::{Replies, Reply, Span};
use sureq_core::task::Holder;
use sureq_core::{Refusal, limits};
use sureq_proto::resp::Pieces as _;

use crate::callbacks;
use crate::commands::answer;
use crate::keyed::{Make, Steps, Untouched};
use crate::payload::Payload;
use crate::redis::{Ctx, Str};
use crate::workers;

/// Who pops.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Popper {
    /// A client that has just asked.
    Asking,
    /// A client that waits, and was woken.
    Woken,
}

/// Whether a client has its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    Yes,
    /// It waits.
    NotYet,
}

/// Executes a pop. `keys` are the words of its queues.
pub(crate) fn pop(
    steps: &mut Steps<'_, '_>,
    pop: &Pop<'_>,
    keys: &[Str<'_>],
    popper: Popper,
    out: &mut Replies<Payload>,
) -> Answered {
    let ctx = steps.ctx;
    match take(steps, pop, keys, out) {
        Err(untouched) => refuse(ctx, untouched),
        Ok(Ok(tasks)) if tasks.is_empty() && pop.count > 0 && pop.block.is_some() => {
            wait(ctx, pop, keys, popper)
        }
        Ok(reply) => {
            answer(ctx, &Command::Pop(*pop), &reply.map_or_else(Reply::Refused, Reply::Tasks), out);
            Answered::Yes
        }
    }
}

fn refuse(mut ctx: Ctx<'_>, untouched: Untouched) -> Answered {
    ctx.error(untouched.text());
    Answered::Yes
}

/// All that is wanted from the first queue, then from the next. A key of another type is an error unless something was found
/// before it.
fn take(
    steps: &mut Steps<'_, '_>,
    pop: &Pop<'_>,
    keys: &[Str<'_>],
    out: &mut Replies<Payload>,
) -> Result<Result<Span, Refusal>, Untouched> {
    let terms = match terms(steps, pop) {
        Ok(terms) => terms,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let start = out.tasks.len();
    let (mut left, mut bytes) = (pop.count.min(limits::REPLY_TASKS_MAX), limits::REPLY_BYTES_MAX);
    for (index, &key) in keys.iter().enumerate() {
        if left == 0 || bytes == 0 {
            break;
        }
        let (queue, meta) = (index as u32, pop.meta);
        let ask = PopAsk { count: left, bytes, first_bytes: usize::MAX, terms, queue, meta };
        let popped = steps.on(key, Make::Never, |queue, rec, now| queue.pop(&ask, now, rec, &mut out.tasks));
        let Popped { tasks: count, bytes: taken, .. } = match popped {
            Ok(popped) => popped.unwrap_or_default(),
            Err(untouched) if out.tasks.len() == start => return Err(untouched),
            Err(_) => Popped::default(),
        };
        if let Some(holder) = terms.holder.filter(|_| count > 0) {
            steps.process.agenda.hold(holder, steps.ctx.db(), key.bytes());
            if steps.process.agenda.is_crowded(holder) {
                workers::forget_released(steps.ctx, steps.process, holder);
            }
        }
        left -= count;
        bytes = bytes.saturating_sub(taken);
    }
    Ok(Ok(Span::new(start, out.tasks.len())))
}

fn terms(steps: &Steps<'_, '_>, pop: &Pop<'_>) -> Result<LeaseTerms, Refusal> {
    let lease = &pop.lease;
    Command::Pop(*pop).check()?;
    let holder = match lease.worker {
        Some(worker) => {
            workers::check(steps, worker)?;
            Some(Holder::Worker(worker.incarnation))
        }
        None if lease.conn.is_some() && steps.ctx.flags().is_script() => {
            return Err(Refusal::not_there("connection for CONN", "a script"));
        }
        None => lease.conn.map(Holder::Conn),
    };
    Ok(LeaseTerms { length_ms: lease.ms, holder, lapse: lease.lapse })
}

/// There is nothing: the client waits, or goes on waiting. Where nobody may wait, its time is over at once, as that of
/// Redis' own blocking commands is.
fn wait(mut ctx: Ctx<'_>, pop: &Pop<'_>, keys: &[Str<'_>], popper: Popper) -> Answered {
    if popper == Popper::Woken {
        return Answered::NotYet;
    }
    if ctx.flags().may_not_wait() {
        ctx.null();
        return Answered::Yes;
    }
    let ms = match pop.block {
        Some(Block::Millis(ms)) => ms,
        Some(Block::Forever) | None => 0,
    };
    ctx.wait(keys, ms, Some(callbacks::woken), Some(callbacks::over));
    Answered::NotYet
}
