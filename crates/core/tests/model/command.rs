//! Commands that own their arguments, so that they can be stored, shrunk and printed.

use sureq_core::command::{
    AckScope, Add, Cancel, ConnId, IdForm, LapsePolicy, LeaseAsk, NameArg, Pop, Return, TaskRef, TaskRefs,
    View, When, Worker, WorkerRef,
};
use sureq_core::settings::{Change, Changes, Expired, Overflow, Place};
use sureq_core::{Command, Receipt, TaskId};

pub type Name = &'static str;

/// A task reference, as text.
pub type TaskText = Vec<u8>;

#[derive(Clone, Debug)]
pub enum Cmd {
    Push(Name, Vec<Vec<u8>>),
    Add(AddPlan),
    Pop(PopPlan),
    Ack(Name, Vec<TaskText>, IdForm, AckScope),
    Extend(Name, TaskText, u64),
    Return { queue: Name, task: TaskText, to: Option<Place>, failed: Option<Vec<u8>>, is_last: bool },
    Recover(Name, u32, u64),
    Inspect(Name, View, i64, u32),
    Info(Name),
    CancelIds(Name, Vec<TaskText>),
    CancelNames(Name, Vec<Name>),
    CancelPayload(Name, Vec<u8>),
    Explain(Name, TaskText),
    Bury(Name, Vec<TaskText>),
    Revive(Name, Option<Vec<TaskText>>),
    Delete(Name, Vec<TaskText>),
    Purge(Name, Option<View>),
    Drop(Vec<Name>),
    Exists(Vec<Name>),
    Pause(Name),
    Resume(Name),
    Config(Name, Vec<Setting>),
    Queues(Option<Name>),
    Start(Name, u64),
    Beat(WorkerName),
    Work(WorkerName, Name),
    Rest(WorkerName, Name),
    Stop(WorkerName),
    Fail(Name),
    List,
}

/// A worker's name and incarnation.
pub type WorkerName = (Name, u64);

#[derive(Clone, Debug)]
pub struct AddPlan {
    pub queue: Name,
    pub payload: Vec<u8>,
    pub name: Option<Naming>,
    pub when: When,
    pub priority: i8,
    pub tries: Option<u32>,
    pub backoff_ms: Option<u64>,
    pub ttl_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub enum Naming {
    Name(Name),
    Unique,
}

#[derive(Clone, Debug)]
pub struct PopPlan {
    pub queues: Vec<Name>,
    pub count: u32,
    pub lease_ms: Option<u64>,
    pub worker: Option<WorkerName>,
    pub conn: Option<u64>,
    pub lapse: Option<LapsePolicy>,
    pub meta: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Setting {
    Lease(u64),
    Tries(u32),
    Backoff(u64),
    Ttl(u64),
    Expired(Expired),
    MaxLength(u64),
    MaxBytes(u64),
    Overflow(Overflow),
    MaxLeased(u64),
    DeadLetter(Name),
}

impl Setting {
    pub fn change(&self) -> Change<'static> {
        match *self {
            Self::Lease(ms) => Change::LeaseMs(ms),
            Self::Tries(n) => Change::Tries(n),
            Self::Backoff(ms) => Change::BackoffMs(ms),
            Self::Ttl(ms) => Change::TtlMs(ms),
            Self::Expired(expired) => Change::Expired(expired),
            Self::MaxLength(n) => Change::MaxLength(n),
            Self::MaxBytes(n) => Change::MaxBytes(n),
            Self::Overflow(overflow) => Change::Overflow(overflow),
            Self::MaxLeased(n) => Change::MaxLeased(n),
            Self::DeadLetter(queue) => Change::DeadLetter(queue.as_bytes()),
        }
    }
}

fn slices(list: &[Vec<u8>]) -> Vec<&[u8]> {
    list.iter().map(Vec::as_slice).collect()
}

fn bytes<'a>(names: &[&'a str]) -> Vec<&'a [u8]> {
    names.iter().map(|name| name.as_bytes()).collect()
}

const fn worker_ref(worker: &WorkerName) -> WorkerRef<'_> {
    WorkerRef { name: worker.0.as_bytes(), incarnation: worker.1 }
}

impl Cmd {
    /// Passes the borrowed command to `run`.
    pub fn with<T>(&self, run: impl FnOnce(&Command<'_>) -> T) -> T {
        let long = |list| TaskRefs { list, form: IdForm::Long };
        match self {
            Self::Push(queue, payloads) => {
                run(&Command::Push { queue: queue.as_bytes(), payloads: &slices(payloads) })
            }
            Self::Add(plan) => run(&Command::Add(Add {
                queue: plan.queue.as_bytes(),
                payload: &plan.payload,
                name: plan.name.map(|name| match name {
                    Naming::Name(name) => NameArg::Bytes(name.as_bytes()),
                    Naming::Unique => NameArg::Payload,
                }),
                when: plan.when,
                priority: plan.priority,
                tries: plan.tries,
                backoff_ms: plan.backoff_ms,
                ttl_ms: plan.ttl_ms,
            })),
            Self::Pop(plan) => {
                let lease = LeaseAsk {
                    ms: plan.lease_ms,
                    worker: plan.worker.as_ref().map(worker_ref),
                    conn: plan.conn.map(ConnId),
                    lapse: plan.lapse,
                };
                let queues = bytes(&plan.queues);
                run(&Command::Pop(Pop { lease, meta: plan.meta, ..Pop::plain(&queues, plan.count) }))
            }
            Self::Ack(queue, tasks, form, scope) => {
                let tasks = TaskRefs { list: &slices(tasks), form: *form };
                run(&Command::Ack { queue: queue.as_bytes(), tasks, scope: *scope })
            }
            Self::Extend(queue, task, ms) => {
                let task = TaskRef { bytes: task, form: IdForm::Long };
                run(&Command::Extend { queue: queue.as_bytes(), task, ms: *ms })
            }
            Self::Return { queue, task, to, failed, is_last } => {
                let task = TaskRef { bytes: task, form: IdForm::Long };
                let (failed, is_last) = (failed.as_deref(), *is_last);
                run(&Command::Return(Return { queue: queue.as_bytes(), task, to: *to, failed, is_last }))
            }
            Self::Recover(queue, count, elapsed_ms) => {
                run(&Command::Recover { queue: queue.as_bytes(), count: *count, elapsed_ms: *elapsed_ms })
            }
            Self::Inspect(queue, view, start, count) => {
                run(&Command::Inspect { queue: queue.as_bytes(), view: *view, start: *start, count: *count })
            }
            Self::Info(queue) => run(&Command::Info { queue: queue.as_bytes() }),
            Self::CancelIds(queue, tasks) => {
                let tasks = slices(tasks);
                let which = Cancel::Ids(long(&tasks));
                run(&Command::Cancel { queue: queue.as_bytes(), which })
            }
            Self::CancelNames(queue, names) => {
                run(&Command::Cancel { queue: queue.as_bytes(), which: Cancel::Names(&bytes(names)) })
            }
            Self::CancelPayload(queue, payload) => {
                run(&Command::Cancel { queue: queue.as_bytes(), which: Cancel::Payload(payload) })
            }
            Self::Explain(queue, task) => {
                let task = TaskRef { bytes: task, form: IdForm::Long };
                run(&Command::Explain { queue: queue.as_bytes(), task })
            }
            Self::Bury(queue, tasks) => {
                run(&Command::Bury { queue: queue.as_bytes(), tasks: long(&slices(tasks)) })
            }
            Self::Revive(queue, None) => run(&Command::Revive { queue: queue.as_bytes(), tasks: None }),
            Self::Revive(queue, Some(tasks)) => {
                run(&Command::Revive { queue: queue.as_bytes(), tasks: Some(long(&slices(tasks))) })
            }
            Self::Delete(queue, tasks) => {
                run(&Command::Delete { queue: queue.as_bytes(), tasks: long(&slices(tasks)) })
            }
            Self::Purge(queue, state) => run(&Command::Purge { queue: queue.as_bytes(), state: *state }),
            Self::Drop(queues) => run(&Command::Drop { queues: &bytes(queues) }),
            Self::Exists(queues) => run(&Command::Exists { queues: &bytes(queues) }),
            Self::Pause(queue) => run(&Command::Pause { queue: queue.as_bytes() }),
            Self::Resume(queue) => run(&Command::Resume { queue: queue.as_bytes() }),
            Self::Config(queue, settings) => {
                let changes: Vec<Change<'_>> = settings.iter().map(Setting::change).collect();
                run(&Command::Config { queue: queue.as_bytes(), changes: Changes::List(&changes) })
            }
            Self::Queues(pattern) => {
                run(&Command::Queues { pattern: pattern.map(str::as_bytes), cursor: 0, count: 100 })
            }
            Self::Start(name, ttl_ms) => {
                run(&Command::Worker(Worker::Start { name: name.as_bytes(), ttl_ms: *ttl_ms }))
            }
            Self::Beat(worker) => run(&Command::Worker(Worker::Beat(worker_ref(worker)))),
            Self::Work(worker, queue) => {
                run(&Command::Worker(Worker::Work(worker_ref(worker), queue.as_bytes())))
            }
            Self::Rest(worker, queue) => {
                run(&Command::Worker(Worker::Rest(worker_ref(worker), queue.as_bytes())))
            }
            Self::Stop(worker) => run(&Command::Worker(Worker::Stop(worker_ref(worker)))),
            Self::Fail(name) => run(&Command::Worker(Worker::Fail { name: name.as_bytes() })),
            Self::List => run(&Command::Worker(Worker::List)),
        }
    }
}

/// All events that can affect a store.
#[derive(Clone, Debug)]
pub enum Happening {
    Cmd(Cmd),
    /// Both clocks advance by this many milliseconds.
    Pass(u64),
    /// The wall clock is set to this time.
    Wall(u64),
    Tick,
    Restart,
    CloseConn(u64),
    RequeueUndelivered(Name, Vec<Receipt>),
    /// The body of the task is copied to another place, which changes nothing else.
    Forward(TaskId),
}
