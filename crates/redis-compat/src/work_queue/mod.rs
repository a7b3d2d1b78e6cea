//! Queues in the keys of redis-work-queue, shared with its clients.
//!
//! Commands become calls of `lua/work_queue.lua`, or are refused by name. `moving` serves waiting pops, `cleaning`
//! requeues items whose lease has ended, and `old_clients` notices the keys of older clients.

mod cleaning;
mod moving;
mod old_clients;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use redis::{Cmd, Value};
use sureq_core::command::{AckScope, Add, Cancel, Command, NameArg, Pop, Return};
use sureq_core::settings::Place;
use sureq_core::{Refusal, limits};

use crate::foreign::{self, Foreign, new_id};
use sureq_home_api::elsewhere::PopOf;
use sureq_home_api::{CleanReport, Cleaning};
use sureq_redis::layout::{
    AnswerForm, Call, Exchange, HeaderContext, HomeThread, Late, Layout, LayoutOptions, LayoutSession,
    ListForm, PopForm, SLICE, SliceForm, SubscriptionRequests, WakeUp,
};
use sureq_redis::{BadTarget, Target};

use crate::cleaning::{Cleaner, Cleans, all_queues, keep_clean, report};
use cleaning::BareIds;
use moving::{Moves, serve_moves};
use old_clients::OldClients;

/// The lease in milliseconds, if neither the pop nor the URL has one.
pub(crate) const LEASE_MS: u64 = 60_000;

/// The index of the number of tasks of a pop.
const COUNT: usize = 0;
/// The positions of two arguments of a pop: the index of the queue from which an id was moved, and the id.
const MOVED_FROM: usize = 2;
const MOVED: usize = 3;
/// The index of the first queue.
pub(crate) const POP_QUEUES: usize = 4;

/// The index of the first id of an ack.
const ACKED: usize = 2;

/// The positions of the arguments of a cancel: how many ids earlier steps have cancelled, and the first id.
const CANCELLED_BEFORE: usize = 1;
const CANCELLED: usize = 2;

const HERE: Foreign = Foreign("layout=work-queue");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkQueue {
    /// The lease of a pop that does not set one.
    pub(crate) lease_ms: u64,
}

impl WorkQueue {
    pub(crate) fn new(options: &mut LayoutOptions<'_>) -> Result<Self, BadTarget> {
        Ok(Self { lease_ms: options.take_lease_ms()?.unwrap_or(LEASE_MS) })
    }
}

impl Layout for WorkQueue {
    fn name(&self) -> &'static str {
        "work-queue"
    }

    fn script(&self) -> Cow<'static, str> {
        concat!(include_str!("../lua/foreign.lua"), include_str!("../lua/work_queue.lua")).into()
    }

    fn call_of(&self, command: &Command<'_>, _: &str) -> Result<(Call, AnswerForm), Refusal> {
        call_of(command, self.lease_ms)
    }

    fn pop_form(&self) -> PopForm {
        PopForm { count: COUNT, room: None, queues: POP_QUEUES }
    }

    /// A cancel searches both lists for each id, and stops when it has searched for long enough.
    fn is_sliced(&self, command: &Command<'_>, _: usize) -> bool {
        match command {
            Command::Cancel { which: Cancel::Ids(tasks), .. } => tasks.list.len() > 1,
            Command::Cancel { which: Cancel::Names(names), .. } => names.len() > 1,
            _ => foreign::is_sliced(command),
        }
    }

    fn slice_form(&self, op: &str) -> Option<SliceForm> {
        match op {
            "ack" => Some(SliceForm::List(ListForm::from(ACKED))),
            "cancel" => {
                let form = ListForm { next: Some(CANCELLED_BEFORE), ..ListForm::from(CANCELLED) };
                Some(SliceForm::List(form))
            }
            _ => foreign::slice_form(op),
        }
    }

    fn queue_key(&self, prefix: &str, queue: &[u8]) -> Vec<u8> {
        [prefix.as_bytes(), queue, b":queue"].concat()
    }

    fn wake_up(&self) -> WakeUp {
        WakeUp::Taken
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn session(&self, _: &Target) -> Rc<dyn LayoutSession> {
        Rc::new(Session::default())
    }
}

/// The list of taken ids.
fn processing_key(prefix: &str, queue: &[u8]) -> Vec<u8> {
    [prefix.as_bytes(), queue, b":processing"].concat()
}

/// The state of an open home.
#[derive(Default)]
pub(crate) struct Session {
    old_clients: OldClients,
    moves: Moves,
    cleaner: Cleaner,
    bare: BareIds,
}

impl LayoutSession for Session {
    fn start(self: Rc<Self>, home: &Rc<HomeThread>) {
        tokio::task::spawn_local(keep_clean(self, Rc::clone(home)));
    }

    fn header(&self, call: &Call, context: &HeaderContext<'_>, command: &mut Cmd) {
        let looks = self.old_clients.is_due(call, context.clock.monotonic_ms());
        command.arg(if looks { "1" } else { "" }).arg(context.home);
    }

    /// The number is 1 if the script has looked for keys of old clients.
    fn answered(&self, call: &Call, word: u64, answer: &Value, exchange: Exchange) -> Result<(), Late> {
        if word == 1 {
            self.old_clients.learn(call, answer, exchange.answered_us / 1_000);
        }
        Ok(())
    }

    fn prepare<'a>(
        &'a self,
        home: &'a HomeThread,
        calls: &'a mut [Result<(Call, AnswerForm), Refusal>],
        pops: &'a [PopOf],
    ) -> LocalBoxFuture<'a, ()> {
        self.cleaner.watch_pops(home, calls, pops);
        Box::pin(std::future::ready(()))
    }

    fn wake_waiters(
        self: Rc<Self>,
        home: Rc<HomeThread>,
        _: SubscriptionRequests,
    ) -> LocalBoxFuture<'static, ()> {
        Box::pin(serve_moves(self, home))
    }

    fn clean<'a>(
        &'a self,
        home: &'a HomeThread,
        queues: Vec<Vec<u8>>,
        how: Cleaning,
    ) -> LocalBoxFuture<'a, Result<CleanReport, Refusal>> {
        Box::pin(async move {
            let mut named: BTreeSet<Vec<u8>> = queues.into_iter().collect();
            if named.is_empty() {
                named = all_queues(home).await?;
                if how == Cleaning::Deep {
                    named.append(&mut cleaning::unlisted_queues(home).await?);
                }
            }
            Ok(report(cleaning::clean(self, home, &named, how).await, 0))
        })
    }

    fn close(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(self.moves.end())
    }
}

impl Cleans for Session {
    fn cleaner(&self) -> &Cleaner {
        &self.cleaner
    }

    async fn clean_some(&self, home: &HomeThread, queues: &[Vec<u8>]) -> BTreeMap<Vec<u8>, usize> {
        cleaning::keep_clean(self, home, queues).await
    }
}

/// The call for a command, and how its answer is read.
pub(crate) fn call_of(command: &Command<'_>, lease_ms: u64) -> Result<(Call, AnswerForm), Refusal> {
    Ok(match *command {
        Command::Push { queue, payloads } => {
            let mut call = Call::about("push", queue);
            for payload in payloads {
                call = call.arg(new_id()?).arg(*payload);
            }
            (call, AnswerForm::Pushed)
        }
        Command::Add(ref add) => (add_call(add)?, AnswerForm::Added),
        Command::Pop(ref pop) => (pop_call(pop, lease_ms)?, AnswerForm::Tasks),
        Command::Ack { queue, tasks, scope } => {
            let scope = if scope == AckScope::Leased { "leased" } else { "any" };
            (Call::about("ack", queue).arg(scope).args(tasks.list.iter().copied()), AnswerForm::Acked)
        }
        Command::Extend { queue, task, ms } => {
            (Call::about("extend", queue).arg(task.bytes).number(ms), AnswerForm::Outcome)
        }
        Command::Return(ref back) => (return_call(back)?, AnswerForm::Outcome),
        Command::Cancel { queue, which: Cancel::Ids(tasks) } => cancel_call(queue, tasks.list),
        Command::Cancel { queue, which: Cancel::Names(names) } => cancel_call(queue, names),
        Command::Cancel { which: Cancel::Payload(_), .. } => return HERE.no("CANCEL PAYLOAD"),
        _ => return HERE.call_of(command),
    })
}

fn cancel_call(queue: &[u8], ids: &[&[u8]]) -> (Call, AnswerForm) {
    let call = Call::about("cancel", queue).arg("0").args(ids.iter().copied());
    (call, AnswerForm::Counts(Some(CANCELLED_BEFORE)))
}

fn add_call(add: &Add<'_>) -> Result<Call, Refusal> {
    HERE.check_add(add)?;
    let id = match add.name {
        Some(NameArg::Bytes(name)) => name.to_vec(),
        Some(NameArg::Payload) => return HERE.no("ADD UNIQUE: a NAME is unique already"),
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

/// The same pop, for an id that was already moved from one of its queues. One script does it, so it takes no more tasks
/// than one script handles.
fn with_moved(pop: &Call, from: usize, id: Vec<u8>) -> Call {
    let mut call = pop.clone();
    let count = sureq_core::id::decimal(&call.args[COUNT]).unwrap_or(1);
    call.args[COUNT] = count.min(SLICE as u64).to_string().into_bytes();
    call.args[MOVED_FROM] = from.to_string().into_bytes();
    call.args[MOVED] = id;
    call
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
    fn commands_that_the_layout_lacks_are_refused_by_name() {
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
