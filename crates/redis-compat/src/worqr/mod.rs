//! Queues in the keys of Worqr, shared with its clients.
//!
//! Commands become calls of `lua/worqr.lua`, or are refused by name. `hashes` remembers the payloads of recent
//! deliveries, `cancels` receives cancels of other programs, and `cleaning` requeues tasks of dead workers. A task
//! has no id until it is taken; then it has the id of Worqr's process.

mod cancels;
mod cleaning;
mod hashes;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use md5::{Digest as _, Md5};
use redis::Cmd;
use sureq_core::command::{Add, Cancel, Command, NameArg, Pop, View, Worker};
use sureq_core::notice::Kind;
use sureq_core::settings::Place;
use sureq_core::{Refusal, Replies, limits};

use crate::foreign::{self, Foreign, new_id};
use sureq_home_api::elsewhere::PopOf;
use sureq_home_api::{CleanReport, Cleaning, NoticeTasks, Payload};
use sureq_redis::Target;
use sureq_redis::layout::{
    AnswerForm, Call, HeaderContext, HomeThread, Layout, LayoutSession, ListForm, PopForm, SliceForm, WakeUp,
};

use crate::cleaning::{Cleaner, Cleans, all_queues, keep_clean, report};
use cancels::{Cancels, receive_cancels};
use hashes::Hashes;

/// How long homes take a published cancel for one that sureq has executed. Later tasks with the same payload are new
/// tasks.
const TOLD_MS: u64 = 1_000;

/// Where a random UUID is split: the script counts up its last digits, so that it can assign as many ids as it
/// delivers.
const HEAD_LETTERS: usize = 24;

/// The index of the worker of a pop.
const POP_WORKER: usize = 1;
/// The index of the number from which its ids are counted.
const POP_TAIL: usize = 3;
/// The index of its first queue.
pub(crate) const POP_QUEUES: usize = 4;

const HERE: Foreign = Foreign("layout=worqr");

#[derive(Clone, Copy, Debug)]
pub(crate) struct Worqr;

impl Layout for Worqr {
    fn name(&self) -> &'static str {
        "worqr"
    }

    fn prefix(&self) -> &'static str {
        "worqr"
    }

    fn script(&self) -> Cow<'static, str> {
        concat!(include_str!("../lua/foreign.lua"), include_str!("../lua/worqr.lua")).into()
    }

    fn call_of(&self, command: &Command<'_>, _: &str) -> Result<(Call, AnswerForm), Refusal> {
        call_of(command)
    }

    fn pop_form(&self) -> PopForm {
        PopForm { count: 0, room: None, queues: POP_QUEUES }
    }

    fn is_sliced(&self, command: &Command<'_>, _: usize) -> bool {
        foreign::is_sliced(command)
    }

    /// The ids of an ack are followed by the hash of their payload.
    fn slice_form(&self, op: &str) -> Option<SliceForm> {
        match op {
            "ack" => Some(SliceForm::List(ListForm { width: 2, ..ListForm::from(1) })),
            _ => foreign::slice_form(op),
        }
    }

    fn next_slice(&self, pop: &mut Call, given: usize) {
        move_ids_on(pop, given);
    }

    fn queue_key(&self, prefix: &str, queue: &[u8]) -> Vec<u8> {
        [prefix.as_bytes(), b":queues:", queue].concat()
    }

    fn channel(&self, prefix: &str, kind: &str) -> Option<(String, String)> {
        Some((format!("{prefix}_"), format!("_{kind}")))
    }

    /// Worqr's clients know no ids: their messages carry payloads.
    fn notice(&self, kind: Kind, payload: &[u8]) -> Option<NoticeTasks> {
        match kind {
            Kind::Done | Kind::Cancel | Kind::Delete => Some(NoticeTasks::Foreign(payload.into())),
            Kind::Work => NoticeTasks::parse(kind, payload),
        }
    }

    fn wake_up(&self) -> WakeUp {
        WakeUp::Published
    }

    fn session(&self, _: &Target) -> Rc<dyn LayoutSession> {
        Rc::new(Session::default())
    }
}

/// The state of an open home.
#[derive(Default)]
pub(crate) struct Session {
    hashes: Hashes,
    cancels: Cancels,
    cleaner: Cleaner,
}

impl LayoutSession for Session {
    fn start(self: Rc<Self>, home: &Rc<HomeThread>) {
        tokio::task::spawn_local(keep_clean(Rc::clone(&self), Rc::clone(home)));
        tokio::task::spawn_local(receive_cancels(self, Rc::clone(home)));
    }

    fn header(&self, _: &Call, context: &HeaderContext<'_>, command: &mut Cmd) {
        command.arg("").arg(context.home);
    }

    fn prepare<'a>(
        &'a self,
        home: &'a HomeThread,
        calls: &'a mut [Result<(Call, AnswerForm), Refusal>],
        pops: &'a [PopOf],
    ) -> LocalBoxFuture<'a, ()> {
        self.cleaner.watch_pops(home, calls, pops);
        for pop in pops {
            if let Some(Ok((call, _))) = calls.get(pop.command) {
                self.cancels.note(call, &pop.queues);
            }
        }
        Box::pin(self.hashes.write(home, calls))
    }

    fn delivered(&self, replies: &Replies<Payload>) {
        self.hashes.remember(replies);
    }

    fn clean<'a>(
        &'a self,
        home: &'a HomeThread,
        queues: Vec<Vec<u8>>,
        how: Cleaning,
    ) -> LocalBoxFuture<'a, Result<CleanReport, Refusal>> {
        Box::pin(async move {
            let mut marks = 0;
            let mut named: BTreeSet<Vec<u8>> = queues.into_iter().collect();
            let is_all = named.is_empty();
            if is_all {
                named = all_queues(home).await?;
            }
            if how == Cleaning::Deep {
                // Queues that are in no set are found by the processes of their tasks.
                let mut met = cleaning::adopt(home).await?;
                if is_all {
                    named.append(&mut met.queues);
                    marks = cleaning::remove_marks(home, &named).await?;
                }
            }
            Ok(report(cleaning::clean(home, &named).await?, marks))
        })
    }
}

impl Cleans for Session {
    fn cleaner(&self) -> &Cleaner {
        &self.cleaner
    }

    async fn clean_some(&self, home: &HomeThread, queues: &[Vec<u8>]) -> BTreeMap<Vec<u8>, usize> {
        cleaning::keep_clean(home, queues).await;
        BTreeMap::new()
    }
}

/// The call for a command, and how its answer is read.
pub(crate) fn call_of(command: &Command<'_>) -> Result<(Call, AnswerForm), Refusal> {
    Ok(match *command {
        Command::Push { queue, payloads } => {
            (Call::about("push", queue).args(payloads.iter().copied()), AnswerForm::Pushed)
        }
        Command::Add(ref add) => (add_call(add)?, AnswerForm::Added),
        Command::Pop(ref pop) => (pop_call(pop)?, AnswerForm::Tasks),
        Command::Ack { queue, tasks, .. } => {
            let pairs = tasks.list.iter().flat_map(|&id| [id, b""]);
            (Call::about("ack", queue).args(pairs), AnswerForm::Acked)
        }
        Command::Extend { queue, task, .. } => {
            (Call::about("extend", queue).arg(task.bytes), AnswerForm::Outcome)
        }
        Command::Return(ref back) => {
            let place = HERE.return_place(back, Place::Front)?;
            (Call::about("return", back.queue).arg(back.task.bytes).arg(place), AnswerForm::Outcome)
        }
        Command::Cancel { queue, which: Cancel::Payload(payload) } => {
            let call = Call::about("cancel_payload", queue).arg(payload).arg(hash(payload));
            (call.number(TOLD_MS).arg("0"), AnswerForm::Counts(Some(4)))
        }
        Command::Cancel { .. } => return HERE.no("CANCEL of ids or names: use CANCEL PAYLOAD"),
        Command::Purge { queue, state: None | Some(View::Ready) } => {
            (Call::about("purge", queue), AnswerForm::Count)
        }
        Command::Purge { .. } => return HERE.no("PURGE of any but waiting tasks"),
        Command::Delete { .. } => return HERE.no("DELETE: use CANCEL PAYLOAD"),
        Command::Worker(ref worker) => worker_call(worker),
        _ => return HERE.call_of(command),
    })
}

/// The hash of a payload, which names the mark of a unique task.
pub(crate) fn hash(payload: &[u8]) -> String {
    format!("{:032x}", u128::from_be_bytes(Md5::digest(payload).into()))
}

fn add_call(add: &Add<'_>) -> Result<Call, Refusal> {
    HERE.check_add(add)?;
    let unique = match add.name {
        None => String::new(),
        Some(NameArg::Payload) => hash(add.payload),
        Some(NameArg::Bytes(_)) => return HERE.no("ADD NAME: use UNIQUE"),
    };
    Ok(Call::about("add", add.queue).arg(add.payload).arg(unique))
}

fn pop_call(pop: &Pop<'_>) -> Result<Call, Refusal> {
    HERE.check_pop(pop)?;
    if pop.lease.ms.is_some() {
        return HERE.no("POP LEASE: a task is held until its worker ends");
    }
    let Some(worker) = pop.lease.worker else {
        return HERE.no("POP without a WORKER: start one with RQ.WORKER START");
    };
    let id = new_id()?;
    let tail = u64::from_str_radix(&id[HEAD_LETTERS..], 16).expect("the end of a UUID is hexadecimal");
    Ok(Call::new("pop", pop.queues.first().copied())
        .number(pop.count.min(limits::REPLY_TASKS_MAX).into())
        .arg(worker.name)
        .arg(&id[..HEAD_LETTERS])
        .number(tail)
        .args(pop.queues.iter().copied()))
}

/// Makes a pop count its next ids from after those that it has assigned.
pub(crate) fn move_ids_on(pop: &mut Call, given: usize) {
    let tail = sureq_core::id::decimal(&pop.args[POP_TAIL]).unwrap_or(0);
    pop.args[POP_TAIL] = tail.saturating_add(given as u64).to_string().into_bytes();
}

/// A worker is identified by its name alone: starting it again continues the same worker.
fn worker_call(worker: &Worker<'_>) -> (Call, AnswerForm) {
    let of = |op, name: &[u8]| Call::new(op, None).arg(name);
    match *worker {
        Worker::Start { name, ttl_ms } => (of("start", name).number(ttl_ms), AnswerForm::Started),
        Worker::Beat(worker) => (of("beat", worker.name), AnswerForm::Receipts),
        Worker::Work(worker, queue) => (of("work", worker.name).arg(queue), AnswerForm::Done),
        Worker::Rest(worker, queue) => (of("rest", worker.name).arg(queue), AnswerForm::Count),
        Worker::Stop(worker) => (of("stop", worker.name), AnswerForm::Count),
        Worker::Fail { name } => (of("fail", name), AnswerForm::Count),
        Worker::List => (Call::new("workers", None), AnswerForm::Workers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::refused;
    use sureq_core::command::{IdForm, LeaseAsk, TaskRefs, WorkerRef};

    #[test]
    fn payloads_are_hashed_as_worqr_does() {
        assert_eq!(hash(b""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(hash(b"hello"), "5d41402abc4b2a76b9719d911017c592");
    }

    fn check_refused(command: &Command<'_>, what: &str) {
        assert_eq!(refused(call_of(command)), format!("NOTTHERE layout=worqr has no {what}"));
    }

    #[test]
    fn commands_that_the_layout_lacks_are_refused_by_name() {
        let queue = &b"q"[..];
        let pop = Pop::plain(&[b"q"], 1);
        check_refused(&Command::Pop(pop), "POP without a WORKER: start one with RQ.WORKER START");
        let worker = Some(WorkerRef { name: b"w", incarnation: 0 });
        let lease = LeaseAsk { worker, ms: Some(5), ..LeaseAsk::NONE };
        let what = "POP LEASE: a task is held until its worker ends";
        check_refused(&Command::Pop(Pop { lease, ..pop }), what);
        let named = Add { name: Some(NameArg::Bytes(b"n")), ..Add::plain(queue, b"x") };
        check_refused(&Command::Add(named), "ADD NAME: use UNIQUE");
        let tasks = TaskRefs { list: &[b"q_1"], form: IdForm::Long };
        let what = "CANCEL of ids or names: use CANCEL PAYLOAD";
        check_refused(&Command::Cancel { queue, which: Cancel::Ids(tasks) }, what);
        check_refused(&Command::Explain { queue, task: tasks_first(tasks) }, "EXPLAIN");
    }

    fn tasks_first(tasks: TaskRefs<'_>) -> sureq_core::command::TaskRef<'_> {
        sureq_core::command::TaskRef { bytes: tasks.list[0], form: tasks.form }
    }
}
