//! Queues in the keys of redis-queue, shared with its clients.
//!
//! Commands become calls of `lua/redis_queue.lua`, or are refused by name; [`safe_pop`] and [`mark_done`] are the two
//! calls of redis-queue itself. A taken task stays in the list with its time, so `tracking` wakes pops when Redis
//! reports that the list has changed. `cleaning` handles entries that foreign clients lost or left behind.

mod cleaning;
mod tracking;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use redis::Cmd;
use sureq_core::command::{AckScope, Add, Block, Cancel, Command, IdForm, NameArg, Pop, TaskRefs};
use sureq_core::settings::Place;
use sureq_core::{Refusal, Reply, limits};

use crate::foreign::{self, Foreign, new_id};
use sureq_home_api::{CleanReport, Cleaning};
use sureq_redis::layout::{
    AnswerForm, Call, HeaderContext, HomeThread, Layout, LayoutOptions, LayoutSession, ListForm, PopForm,
    SliceForm, SubscriptionRequests, WakeUp,
};
use sureq_redis::{BadTarget, RedisHome, Target};

use crate::cleaning::report;
use tracking::track;

/// How long redis-queue waits for a task, in seconds.
pub(crate) const POP_S: u64 = 30;

/// The number of seconds after which a taken task is late.
pub(crate) const TASK_S: u64 = 30;

/// The index of the first queue of a pop.
pub(crate) const POP_QUEUES: usize = 1;

/// The index of the cursor of INFO.
const INFO_CURSOR: usize = 1;

/// Separates an id from the time at which it was taken.
const MARK: u8 = b'|';

const HERE: Foreign = Foreign("layout=redis-queue");

/// The layout `redis-queue`, with the settings of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "the unit is in each name")]
pub(crate) struct RedisQueue {
    /// How long [`safe_pop`] waits; 0 means without a limit.
    pub(crate) pop_s: u64,
    /// The number of seconds after which a taken task is late.
    pub(crate) task_s: u64,
    /// How long a body is kept; if `None`, until its task is done.
    pub(crate) expire_s: Option<u64>,
}

impl RedisQueue {
    pub(crate) fn new(options: &mut LayoutOptions<'_>) -> Result<Self, BadTarget> {
        Ok(Self {
            pop_s: options.take_seconds("poptimeout", 0)?.unwrap_or(POP_S),
            task_s: options.take_seconds("tasktimeout", 1)?.unwrap_or(TASK_S),
            expire_s: options.take_seconds("exptime", 1)?,
        })
    }

    fn expiry(self) -> String {
        self.expire_s.map(|seconds| seconds.to_string()).unwrap_or_default()
    }
}

impl Layout for RedisQueue {
    fn name(&self) -> &'static str {
        "redis-queue"
    }

    fn script(&self) -> Cow<'static, str> {
        concat!(include_str!("../lua/foreign.lua"), include_str!("../lua/redis_queue.lua")).into()
    }

    fn call_of(&self, command: &Command<'_>, _: &str) -> Result<(Call, AnswerForm), Refusal> {
        call_of(command, *self)
    }

    fn pop_form(&self) -> PopForm {
        PopForm { count: 0, room: None, queues: POP_QUEUES }
    }

    /// Its lists must be read to count what is in them.
    fn is_sliced(&self, command: &Command<'_>, _: usize) -> bool {
        matches!(command, Command::Info { .. } | Command::Queues { .. }) || foreign::is_sliced(command)
    }

    fn slice_form(&self, op: &str) -> Option<SliceForm> {
        match op {
            "ack" | "cancel" => Some(SliceForm::List(ListForm::from(1))),
            "info" => Some(SliceForm::Sums { cursor: INFO_CURSOR }),
            _ => foreign::slice_form(op),
        }
    }

    fn queue_key(&self, prefix: &str, queue: &[u8]) -> Vec<u8> {
        [prefix.as_bytes(), queue].concat()
    }

    fn wake_up(&self) -> WakeUp {
        WakeUp::Watched
    }

    fn has_deadlines(&self) -> bool {
        true
    }

    fn session(&self, _: &Target) -> Rc<dyn LayoutSession> {
        Rc::new(Session { task_s: self.task_s })
    }
}

/// Reports to each call the number of seconds after which a taken task is late.
struct Session {
    task_s: u64,
}

impl LayoutSession for Session {
    fn header(&self, _: &Call, context: &HeaderContext<'_>, command: &mut Cmd) {
        command.arg(self.task_s).arg(context.home);
    }

    fn wake_waiters(
        self: Rc<Self>,
        home: Rc<HomeThread>,
        requests: SubscriptionRequests,
    ) -> LocalBoxFuture<'static, ()> {
        Box::pin(track(home, requests))
    }

    fn clean<'a>(
        &'a self,
        home: &'a HomeThread,
        queues: Vec<Vec<u8>>,
        how: Cleaning,
    ) -> LocalBoxFuture<'a, Result<CleanReport, Refusal>> {
        Box::pin(async move {
            let named: BTreeSet<Vec<u8>> = if queues.is_empty() {
                cleaning::used_queues(home).await?
            } else {
                queues.into_iter().collect()
            };
            Ok(report(cleaning::clean(home, &named, how).await, 0))
        })
    }
}

/// The call for a command, and how its answer is read.
pub(crate) fn call_of(command: &Command<'_>, settings: RedisQueue) -> Result<(Call, AnswerForm), Refusal> {
    Ok(match *command {
        Command::Push { queue, payloads } => {
            let mut call = Call::about("push", queue).arg(settings.expiry());
            for payload in payloads {
                call = call.arg(new_id()?).arg(*payload);
            }
            (call, AnswerForm::Pushed)
        }
        Command::Add(ref add) => (add_call(add, settings)?, AnswerForm::Added),
        Command::Pop(ref pop) => (pop_call(pop)?, AnswerForm::Tasks),
        Command::Ack { queue, tasks, .. } => {
            (Call::about("ack", queue).args(tasks.list.iter().copied()), AnswerForm::Acked)
        }
        Command::Return(ref back) => {
            let place = HERE.return_place(back, Place::Front)?;
            (Call::about("return", back.queue).arg(back.task.bytes).arg(place), AnswerForm::Outcome)
        }
        Command::Cancel { queue, which: Cancel::Ids(tasks) } => {
            (Call::about("cancel", queue).args(tasks.list.iter().copied()), AnswerForm::Count)
        }
        Command::Cancel { queue, which: Cancel::Names(names) } => {
            (Call::about("cancel", queue).args(names.iter().copied()), AnswerForm::Count)
        }
        Command::Info { queue } => (Call::about("info", queue).arg("0"), AnswerForm::Lengths),
        Command::Cancel { which: Cancel::Payload(_), .. } => return HERE.no("CANCEL PAYLOAD"),
        Command::Extend { .. } => return HERE.no("EXTEND: tasktimeout= in the URL applies to all tasks"),
        _ => return HERE.call_of(command),
    })
}

fn add_call(add: &Add<'_>, settings: RedisQueue) -> Result<Call, Refusal> {
    HERE.check_add(add)?;
    let call = Call::about("add", add.queue);
    match add.name {
        None => Ok(call.arg(settings.expiry()).arg(new_id()?).arg(add.payload)),
        Some(NameArg::Payload) => HERE.no("ADD UNIQUE"),
        Some(NameArg::Bytes(id)) if id.contains(&MARK) => HERE.no("NAME with a | in it"),
        Some(NameArg::Bytes(_)) if !add.payload.is_empty() => {
            HERE.no("payload beside a NAME: a NAME is pushed as a bare id")
        }
        Some(NameArg::Bytes(id)) => Ok(call.arg(id)),
    }
}

fn pop_call(pop: &Pop<'_>) -> Result<Call, Refusal> {
    HERE.check_pop(pop)?;
    if pop.lease.worker.is_some() {
        return HERE.no("POP WORKER");
    }
    if pop.lease.ms.is_some() {
        return HERE.no("POP LEASE: tasktimeout= in the URL applies to all tasks");
    }
    Ok(Call::new("pop", pop.queues.first().copied())
        .number(pop.count.min(limits::REPLY_TASKS_MAX).into())
        .args(pop.queues.iter().copied()))
}

/// A task as redis-queue delivers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SafeTask {
    pub id: Vec<u8>,
    /// The payload; empty if the id was pushed alone.
    pub body: Vec<u8>,
}

/// Takes a task like redis-queue: waits as long as `poptimeout=` says, and delivers late tasks again.
pub fn safe_pop(home: &RedisHome, queue: &[u8]) -> Result<Option<SafeTask>, Refusal> {
    let settings = home.layout().downcast::<RedisQueue>().ok_or_else(|| not_this_layout("safe_pop"))?;
    let block = match settings.pop_s {
        0 => Block::Forever,
        seconds => Block::Millis(seconds * 1_000),
    };
    let queues = [queue];
    let pop = Pop { block: Some(block), ..Pop::plain(&queues, 1) };
    let replies = home.send(&[Command::Pop(pop)]).wait().replies;
    if let Some(Reply::Refused(no)) = replies.list.first() {
        return Err(no.clone());
    }
    let task = replies.tasks.into_iter().next();
    Ok(task.map(|task| SafeTask {
        id: task.foreign_id.unwrap_or_default().into(),
        body: task.body.as_ref().to_vec(),
    }))
}

/// Marks a task as done, like redis-queue; returns whether it was not done before.
pub fn mark_done(home: &RedisHome, queue: &[u8], id: &[u8]) -> Result<bool, Refusal> {
    home.layout().downcast::<RedisQueue>().ok_or_else(|| not_this_layout("mark_done"))?;
    let tasks = TaskRefs { list: &[id], form: IdForm::Long };
    let ack = Command::Ack { queue, tasks, scope: AckScope::LeasedOrLapsed };
    match home.send(&[ack]).wait().replies.list.pop() {
        Some(Reply::Acked(finished)) => Ok(!finished.is_empty()),
        Some(Reply::Refused(no)) => Err(no),
        _ => Err(Refusal::Closed),
    }
}

fn not_this_layout(what: &'static str) -> Refusal {
    Refusal::not_there(what, "any other layout than redis-queue")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::refused;
    use sureq_core::command::{LeaseAsk, TaskRef};

    const SETTINGS: RedisQueue = RedisQueue { pop_s: 1, task_s: 1, expire_s: None };

    fn check_refused(command: &Command<'_>, what: &str) {
        assert_eq!(refused(call_of(command, SETTINGS)), format!("NOTTHERE layout=redis-queue has no {what}"));
    }

    #[test]
    fn commands_that_the_layout_lacks_are_refused_by_name() {
        let queue = &b"q"[..];
        let named = |name, payload| Add { name: Some(NameArg::Bytes(name)), ..Add::plain(queue, payload) };
        check_refused(&Command::Add(named(b"a|b", b"")), "NAME with a | in it");
        let what = "payload beside a NAME: a NAME is pushed as a bare id";
        check_refused(&Command::Add(named(b"a", b"x")), what);
        let lease = LeaseAsk { ms: Some(5), ..LeaseAsk::NONE };
        let what = "POP LEASE: tasktimeout= in the URL applies to all tasks";
        check_refused(&Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 1) }), what);
        let task = TaskRef { bytes: b"x", form: IdForm::Long };
        let what = "EXTEND: tasktimeout= in the URL applies to all tasks";
        check_refused(&Command::Extend { queue, task, ms: 1 }, what);
    }
}
