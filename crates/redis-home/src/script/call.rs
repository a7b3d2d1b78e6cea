//! Turns a command into a call of the script: the operations in `lua`, and which of them executes a
//! command.

use crate::script::operations::argument;
use sureq_core::command::{
    AckScope, Add, Cancel, Command, ConnId, IdForm, LapseEnd, LapsePolicy, NameArg, Pop, Return, TaskRef,
    TaskRefs, View, When, Worker, WorkerRef,
};
use sureq_core::id::Claim;
use sureq_core::limits;
use sureq_core::settings::{Change, Changes, Expired, Overflow, Place};
use sureq_core::{Receipt, Refusal, TaskId};

/// The operations in `lua`, each with its arguments in order. A name that ends in dots is that of a list.
pub(crate) const OPERATIONS: &[(&str, &[&str])] = &[
    ("push", &["queue", "payloads..."]),
    ("add", &["queue", "payload", "name", "delay", "at", "priority", "tries", "backoff", "ttl"]),
    ("pop", POP_ARGUMENTS),
    ("ack", &["scope", "queue", "tasks..."]),
    ("extend", &["queue", "task", "ms"]),
    ("return", &["queue", "task", "place", "failed", "reason"]),
    ("recover", &["queue", "count", "elapsed", "from", "upto"]),
    ("inspect", &["queue", "view", "start", "count", "room"]),
    ("info", &["queue"]),
    ("cancel", &["queue", "tasks..."]),
    ("cancel_names", &["queue", "names..."]),
    ("cancel_payload", &["queue", "payload", "cursor"]),
    ("bury", &["queue", "tasks..."]),
    ("revive", &["queue", "ids..."]),
    ("revive_all", &["queue", "upto"]),
    ("delete", &["queue", "tasks..."]),
    ("purge", &["queue", "view", "left"]),
    ("drop", &["queues..."]),
    ("exists", &["queues..."]),
    ("pause", &["queue"]),
    ("resume", &["queue"]),
    ("config", &["queue", "settings..."]),
    ("explain", &["queue", "id"]),
    ("size", &[]),
    ("queues", &["cursor", "count"]),
    ("enlist", &["stores..."]),
    ("stores", &["cursor", "count"]),
    ("delist", &["stores..."]),
    ("start", &["name", "ttl"]),
    ("beat", &["name", "incarnation", "cursor"]),
    ("work", &["name", "incarnation", "queue"]),
    ("rest", &["name", "incarnation", "queue"]),
    ("stop", &["name", "incarnation", "left"]),
    ("fail", &["name", "left"]),
    ("workers", &["cursor"]),
    ("held", &["name", "incarnation", "cursor"]),
    ("close_conns", &["connections..."]),
    ("home", &["name"]),
    ("requeue", &["queue", "receipts..."]),
    ("epoch", &[]),
    ("tick", &["queues..."]),
];

#[rustfmt::skip]
const POP_ARGUMENTS: &[&str] = &[
    "count", "lease", "worker", "incarnation", "connection", "place", "limit", "ending", "meta", "room", "first",
    "queues...",
];

/// One call of the script.
#[derive(Clone, Debug)]
pub struct Call {
    pub op: &'static str,
    /// The queue that decides which server gets it; none if it is about the whole store.
    pub queue: Option<Vec<u8>>,
    pub args: Vec<Vec<u8>>,
}

/// How the answer to a call becomes a reply, and which further calls that takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerForm {
    /// Ids; nil if a task gets its id at delivery.
    Pushed,
    /// An id, whether the task is new (1), and the letter of its state.
    Added,
    /// Delivered tasks: each has its queue's index, id, payload, deliveries, incarnation, time of delivery, elapsed
    /// time, and more about it or nil. The word `again` instead of a list means that the pop must be sent again.
    Tasks,
    /// The indexes of the tasks that were finished.
    Acked,
    /// `done`, `cancelled` or `stale`.
    Outcome,
    /// Tasks as in [`Self::Tasks`], without a delivery.
    Inspected,
    Info,
    /// The numbers of ready and leased tasks, in layouts that know no more.
    Lengths,
    Count,
    /// A cursor and a number. The call is repeated with the cursor as the argument at this index, or as it is, until
    /// the cursor is 0; the numbers are added.
    Counts(Option<usize>),
    Done,
    Settings,
    /// A cursor, then for each queue its name and the numbers of ready, delayed, leased and dead tasks.
    Queues {
        /// The glob that names must match.
        pattern: Option<Vec<u8>>,
    },
    Explained,
    /// The incarnation of a worker.
    Started,
    /// The incarnation of a worker, and the remaining work to end its predecessor.
    StartedInSteps,
    /// Deliveries that a worker should stop working on: receipts, or foreign ids.
    Receipts,
    /// A cursor, then receipts; the call is repeated until the cursor is 0.
    ReceiptsInSteps,
    /// For each worker its name, incarnation, time to live, and number of tasks.
    Workers,
}

/// The positions of the arguments of a pop.
#[derive(Clone, Copy, Debug)]
pub struct PopForm {
    /// The index of the number of tasks.
    pub count: usize,
    /// The limits of payload bytes, if the script takes them. A shortened answer then ends with the reason.
    pub room: Option<PopRoom>,
    /// The index of the first queue; queues are the last arguments.
    pub queues: usize,
}

/// The positions of the limits of payload bytes in a pop.
#[derive(Clone, Copy, Debug)]
pub struct PopRoom {
    /// The index of the limit for all payloads together; the first one may have more.
    pub all: usize,
    /// The index of the limit for the first payload.
    pub first: usize,
}

/// How a call is divided into several, each of which is a bounded amount of work.
#[derive(Clone, Copy, Debug)]
pub enum SliceForm {
    /// Each call gets a part of a list of arguments. Their answers are numbers, which are added, or the indexes of the
    /// tasks that an `ack` finished.
    List(ListForm),
    /// Each call gets a part of a range of tasks.
    Range {
        /// The index of the first position.
        start: usize,
        /// The index of the number of tasks.
        count: usize,
        /// The index of the limit of payload bytes, which the first task may exceed. An answer that it shortened ends
        /// with the word `full`.
        room: usize,
    },
    /// Each call answers a cursor, then tasks; it is repeated with that cursor until that is 0.
    Steps {
        /// The index of the limit of payload bytes, which the first task may exceed.
        room: usize,
        cursor: usize,
    },
    /// Each call answers a cursor, then numbers, which are added to those of the calls before.
    Sums { cursor: usize },
}

/// The list among the arguments of a call. It is their end.
#[derive(Clone, Copy, Debug)]
pub struct ListForm {
    /// The index of its first argument.
    pub from: usize,
    /// The number of arguments of each item.
    pub width: usize,
    /// The index of the cursor, if the call takes several steps and continues with it: [`AnswerForm::Counts`].
    pub next: Option<usize>,
}

impl ListForm {
    /// A list of single arguments, which takes one step.
    pub const fn from(from: usize) -> Self {
        Self { from, width: 1, next: None }
    }
}

impl AnswerForm {
    /// Whether the answer is a list of tasks.
    pub(crate) const fn is_tasks(&self) -> bool {
        matches!(self, Self::Tasks | Self::Inspected)
    }
}

impl Call {
    /// A call without arguments.
    pub fn new(op: &'static str, queue: Option<&[u8]>) -> Self {
        Self { op, queue: queue.map(<[u8]>::to_vec), args: Vec::new() }
    }

    /// A call about a queue, which is also its first argument.
    pub fn about(op: &'static str, queue: &[u8]) -> Self {
        Self::new(op, Some(queue)).arg(queue)
    }

    /// A call about several queues, which are its arguments.
    pub fn over(op: &'static str, queues: &[&[u8]]) -> Self {
        Self::new(op, queues.first().copied()).args(queues.iter().copied())
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<Vec<u8>>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<Vec<u8>>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    #[must_use]
    pub fn number(self, n: u64) -> Self {
        self.arg(n.to_string())
    }

    fn refs(mut self, tasks: TaskRefs<'_>) -> Result<Self, Refusal> {
        for bytes in tasks.list {
            self.args.push(reference(TaskRef { bytes, form: tasks.form })?);
        }
        Ok(self)
    }
}

/// An id as it is stored in Redis: the order of bytes is the order of ids.
pub(crate) fn id_text(id: TaskId) -> String {
    format!("{}-{:06}", id.ms(), id.seq())
}

/// The receipt of a delivery as scripts write it.
pub(crate) fn receipt_text(receipt: Receipt) -> Vec<u8> {
    format!("{}@{}.{}", id_text(receipt.id), receipt.delivery, receipt.incarnation).into_bytes()
}

/// The name of a connection in Redis.
pub(crate) fn conn_name(home: &str, conn: ConnId) -> String {
    format!("{home}:{}", conn.0)
}

fn claim(task: TaskRef<'_>) -> Result<Claim, Refusal> {
    let claim = match task.form {
        IdForm::Long => Claim::parse(task.bytes),
        IdForm::Short => TaskId::parse_short(task.bytes).map(Claim::Id),
    };
    claim.ok_or(Refusal::MalformedId)
}

fn reference(task: TaskRef<'_>) -> Result<Vec<u8>, Refusal> {
    Ok(match claim(task)? {
        Claim::Id(id) => id_text(id).into_bytes(),
        Claim::Receipt(receipt) => receipt_text(receipt),
    })
}

/// The call for a command, and how its answer is read. `home` distinguishes connections of this home from those of
/// others.
pub(crate) fn call_of(command: &Command<'_>, home: &str) -> Result<(Call, AnswerForm), Refusal> {
    Ok(match *command {
        Command::Push { queue, payloads } => {
            (Call::about("push", queue).args(payloads.iter().copied()), AnswerForm::Pushed)
        }
        Command::Add(ref add) => (add_call(add), AnswerForm::Added),
        Command::Pop(ref pop) => (pop_call(pop, home), AnswerForm::Tasks),
        Command::Ack { queue, tasks, scope } => {
            let scope = if scope == AckScope::Leased { "leased" } else { "lapsed" };
            (
                Call::new("ack", Some(queue)).field("scope", scope).field("queue", queue).refs(tasks)?,
                AnswerForm::Acked,
            )
        }
        Command::Extend { queue, task, ms } => (
            Call::about("extend", queue).field("task", reference(task)?).field("ms", text(ms)),
            AnswerForm::Outcome,
        ),
        Command::Return(ref back) => (return_call(back)?, AnswerForm::Outcome),
        Command::Recover { queue, count, elapsed_ms } => {
            let count = count.min(limits::REPLY_TASKS_MAX);
            (
                Call::about("recover", queue)
                    .field("count", text(count.into()))
                    .field("elapsed", text(elapsed_ms)),
                AnswerForm::Tasks,
            )
        }
        Command::Inspect { queue, view, start, count } => {
            let count = count.min(limits::REPLY_TASKS_MAX);
            let call = Call::about("inspect", queue)
                .field("view", name_of(view))
                .field("start", start.to_string())
                .field("count", text(count.into()))
                .field("room", text(limits::REPLY_BYTES_MAX as u64));
            (call, AnswerForm::Inspected)
        }
        Command::Info { queue } => (Call::about("info", queue), AnswerForm::Info),
        Command::Cancel { queue, which: Cancel::Ids(tasks) } => {
            (Call::about("cancel", queue).refs(tasks)?, AnswerForm::Count)
        }
        Command::Cancel { queue, which: Cancel::Names(names) } => {
            (Call::about("cancel_names", queue).args(names.iter().copied()), AnswerForm::Count)
        }
        Command::Cancel { queue, which: Cancel::Payload(payload) } => {
            let call = Call::about("cancel_payload", queue).field("payload", payload).field("cursor", "0");
            (call, AnswerForm::Counts(Some(argument("cancel_payload", "cursor"))))
        }
        Command::Bury { queue, tasks } => (Call::about("bury", queue).refs(tasks)?, AnswerForm::Count),
        Command::Revive { queue, tasks: None } => {
            let call = Call::about("revive_all", queue).field("upto", "");
            (call, AnswerForm::Counts(Some(argument("revive_all", "upto"))))
        }
        Command::Revive { queue, tasks: Some(tasks) } => (revive_call(queue, tasks)?, AnswerForm::Count),
        Command::Delete { queue, tasks } => (Call::about("delete", queue).refs(tasks)?, AnswerForm::Count),
        Command::Purge { queue, state } => {
            let call = Call::about("purge", queue).field("view", state.map_or("", name_of)).field("left", "");
            (call, AnswerForm::Counts(Some(argument("purge", "left"))))
        }
        Command::Drop { queues } => (Call::over("drop", queues), AnswerForm::Count),
        Command::Exists { queues } => (Call::over("exists", queues), AnswerForm::Count),
        Command::Pause { queue } => (Call::about("pause", queue), AnswerForm::Done),
        Command::Resume { queue } => (Call::about("resume", queue), AnswerForm::Done),
        Command::Config { queue, changes } => (config_call(queue, changes), AnswerForm::Settings),
        Command::Explain { queue, task } => {
            let id = id_text(claim(task)?.id());
            (Call::about("explain", queue).field("id", id), AnswerForm::Explained)
        }
        Command::Size => (Call::new("size", None), AnswerForm::Count),
        Command::Queues { pattern, cursor, count } => {
            let pattern = pattern.map(<[u8]>::to_vec);
            let call = Call::new("queues", None)
                .field("cursor", text(cursor))
                .field("count", text(count.max(1).into()));
            (call, AnswerForm::Queues { pattern })
        }
        Command::Worker(ref worker) => worker_call(worker),
    })
}

/// Receipts are left out: a dead task is not delivered.
fn revive_call(queue: &[u8], tasks: TaskRefs<'_>) -> Result<Call, Refusal> {
    let mut call = Call::about("revive", queue);
    for bytes in tasks.list {
        if let Claim::Id(id) = claim(TaskRef { bytes, form: tasks.form })? {
            call = call.arg(id_text(id));
        }
    }
    Ok(call)
}

fn add_call(add: &Add<'_>) -> Call {
    let name = match add.name {
        None => Vec::new(),
        Some(NameArg::Bytes(name)) => [b"n", name].concat(),
        Some(NameArg::Payload) => b"h".to_vec(),
    };
    let (delay, at) = match add.when {
        When::AtOnce => (None, None),
        When::After(ms) => (Some(ms), None),
        When::At(at) => (None, Some(at.0)),
    };
    Call::about("add", add.queue)
        .field("payload", add.payload)
        .field("name", name)
        .field("delay", maybe(delay))
        .field("at", maybe(at))
        .field("priority", add.priority.to_string())
        .field("tries", maybe(add.tries.map(u64::from)))
        .field("backoff", maybe(add.backoff_ms))
        .field("ttl", maybe(add.ttl_ms))
}

fn pop_call(pop: &Pop<'_>, home: &str) -> Call {
    let lease = &pop.lease;
    let (worker, incarnation) =
        lease.worker.map_or((&[][..], None), |WorkerRef { name, incarnation }| (name, Some(incarnation)));
    let conn = lease.conn.map(|conn| conn_name(home, conn)).unwrap_or_default();
    let (place, limit, end) = match lease.lapse {
        None => (Vec::new(), None, ""),
        Some(LapsePolicy { to, limit, then }) => {
            let end = match then {
                LapseEnd::Dead => "dead",
                LapseEnd::Delete => "delete",
            };
            (place(to), limit.map(u64::from), end)
        }
    };
    Call::new("pop", pop.queues.first().copied())
        .field("count", text(pop.count.min(limits::REPLY_TASKS_MAX).into()))
        .field("lease", maybe(lease.ms))
        .field("worker", worker)
        .field("incarnation", maybe(incarnation))
        .field("connection", conn)
        .field("place", place)
        .field("limit", maybe(limit))
        .field("ending", end)
        .field("meta", if pop.meta { "1" } else { "" })
        .field("room", "")
        .field("first", "")
        .args(pop.queues.iter().copied())
}

fn return_call(back: &Return<'_>) -> Result<Call, Refusal> {
    let reason = back.failed.map(|reason| &reason[..reason.len().min(limits::REASON_BYTES_MAX)]);
    Ok(Call::about("return", back.queue)
        .field("task", reference(back.task)?)
        .field("place", back.to.map(place).unwrap_or_default())
        .field(
            "failed",
            match back.failed {
                None => "",
                Some(_) if back.is_last => "last",
                Some(_) => "1",
            },
        )
        .field("reason", reason.unwrap_or_default()))
}

fn place(to: Place) -> Vec<u8> {
    match to {
        Place::Front => b"F".to_vec(),
        Place::Back => b"B".to_vec(),
        Place::After(ms) => ms.to_string().into_bytes(),
    }
}

const fn name_of(view: View) -> &'static str {
    match view {
        View::Ready => "ready",
        View::Leased => "leased",
        View::Delayed => "delayed",
        View::Dead => "dead",
    }
}

/// Settings as they are stored in Redis, where a default is not stored.
fn config_call(queue: &[u8], changes: Changes<'_>) -> Call {
    let mut call = Call::about("config", queue);
    for change in changes.iter() {
        let number = |n: u64| if n == 0 { Vec::new() } else { n.to_string().into_bytes() };
        let (name, value) = match change {
            Change::LeaseMs(ms) => ("lease", number(ms)),
            Change::Tries(n) => ("tries", number(n.into())),
            Change::BackoffMs(ms) => ("backoff", number(ms)),
            Change::TtlMs(ms) => ("ttl", number(ms)),
            Change::MaxLength(n) => ("max-length", number(n)),
            Change::MaxBytes(n) => ("max-bytes", number(n)),
            Change::MaxLeased(n) => ("max-leased", number(n)),
            Change::Expired(Expired::Delete) => ("expired", Vec::new()),
            Change::Expired(Expired::Dead) => ("expired", b"dead".to_vec()),
            Change::Overflow(Overflow::Refuse) => ("overflow", Vec::new()),
            Change::Overflow(Overflow::DropOldest) => ("overflow", b"drop-oldest".to_vec()),
            Change::DeadLetter(queue) => ("dead-letter", queue.to_vec()),
        };
        call = call.arg(name).arg(value);
    }
    call
}

/// A number as scripts read it.
fn text(n: u64) -> String {
    n.to_string()
}

/// A number, or nothing.
fn maybe(n: Option<u64>) -> String {
    n.map(text).unwrap_or_default()
}

/// Ends a worker, or continues to end one of which this is `left`.
pub(crate) fn fail_call(name: &[u8], left: &[u8]) -> Call {
    Call::new("fail", None).field("name", name).field("left", left)
}

fn worker_call(worker: &Worker<'_>) -> (Call, AnswerForm) {
    let of = |op, worker: WorkerRef<'_>| {
        Call::new(op, None).field("name", worker.name).field("incarnation", text(worker.incarnation))
    };
    match *worker {
        Worker::Start { name, ttl_ms } => {
            let call = Call::new("start", None).field("name", name).field("ttl", text(ttl_ms));
            (call, AnswerForm::StartedInSteps)
        }
        Worker::Beat(worker) => (of("beat", worker).field("cursor", ""), AnswerForm::ReceiptsInSteps),
        Worker::Work(worker, queue) => (of("work", worker).field("queue", queue), AnswerForm::Done),
        Worker::Rest(worker, queue) => (of("rest", worker).field("queue", queue), AnswerForm::Count),
        Worker::Stop(worker) => {
            let form = AnswerForm::Counts(Some(argument("stop", "left")));
            (of("stop", worker).field("left", ""), form)
        }
        Worker::Fail { name } => (fail_call(name, b""), AnswerForm::Counts(Some(argument("fail", "left")))),
        Worker::List => (Call::new("workers", None), AnswerForm::Workers),
    }
}
