//! Requests, independent of the dialect.
//!
//! A [`Command`] borrows the buffer that it was read from: names, payloads and task references are slices, and nothing
//! is copied until an event is recorded. A task reference stays bytes because each home has its own form of ids; so the
//! home, not the dialect, refuses bytes that are not an id.

use crate::settings::{Changes, Place};
use crate::time::WallTime;

/// One request to a home: the whole vocabulary, in which all dialects, the library and the homes meet.
///
/// CONTRIBUTING.md lists what a new variant needs ("Add a command"); its arguments are checked in
/// [`bounds`](crate::bounds).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Adds tasks without options, in order.
    Push {
        /// The queue. It is created if it does not exist.
        queue: &'a [u8],
        /// The payloads, one task each; at most [`PUSH_TASKS_MAX`](crate::limits::PUSH_TASKS_MAX), because a push is
        /// all or nothing and so one step.
        payloads: &'a [&'a [u8]],
    },
    /// Adds one task with options.
    Add(Add<'a>),
    /// Leases tasks to the caller.
    Pop(Pop<'a>),
    /// Finishes tasks.
    Ack {
        queue: &'a [u8],
        /// Ids or receipts.
        tasks: TaskRefs<'a>,
        /// Whether an id also finishes a task that lapsed and waits again.
        scope: AckScope,
    },
    /// Moves the deadline of a lease to `ms` from now.
    Extend {
        queue: &'a [u8],
        /// An id or receipt.
        task: TaskRef<'a>,
        /// Milliseconds from now.
        ms: u64,
    },
    /// Returns a leased task to its queue.
    Return(Return<'a>),
    /// Leases tasks again that were popped without deadline, worker or connection and have not been finished.
    Recover {
        queue: &'a [u8],
        /// The maximum number of tasks to lease.
        count: u32,
        /// Only tasks whose last delivery is at least this long ago.
        elapsed_ms: u64,
    },
    /// Shows tasks without changing them.
    Inspect {
        queue: &'a [u8],
        /// The state of the tasks to show.
        view: View,
        /// The position of the first task; a negative one counts from the end.
        start: i64,
        /// The maximum number of tasks to show.
        count: u32,
    },
    /// Shows counts, ages and settings of a queue.
    Info { queue: &'a [u8] },
    /// Cancels tasks: waiting ones are removed, the holders of leased ones are notified.
    Cancel { queue: &'a [u8], which: Cancel<'a> },
    /// Makes tasks dead.
    Bury {
        queue: &'a [u8],
        /// Ids or receipts.
        tasks: TaskRefs<'a>,
    },
    /// Makes dead tasks ready again, at the back of their queue and with all their tries.
    Revive {
        queue: &'a [u8],
        /// Ids; `None` means all dead tasks.
        tasks: Option<TaskRefs<'a>>,
    },
    /// Removes tasks in any state.
    Delete { queue: &'a [u8], tasks: TaskRefs<'a> },
    /// Removes all tasks of a state, never leased ones.
    Purge {
        queue: &'a [u8],
        /// The state; `None` means ready, delayed and dead tasks.
        state: Option<View>,
    },
    /// Removes queues with all their tasks (leased ones too), their settings and their pause. The reply is the number
    /// of them that had tasks.
    Drop { queues: &'a [&'a [u8]] },
    /// Counts how many of these queues have tasks. A queue named twice counts twice, as in Redis.
    Exists { queues: &'a [&'a [u8]] },
    /// Stops deliveries of a queue.
    Pause { queue: &'a [u8] },
    /// Resumes deliveries of a queue.
    Resume { queue: &'a [u8] },
    /// Changes settings of a queue and shows all of them.
    Config {
        queue: &'a [u8],
        /// The changes, in order; there may be none.
        changes: Changes<'a>,
    },
    /// Explains why a task is not being worked on.
    Explain {
        queue: &'a [u8],
        /// An id or receipt.
        task: TaskRef<'a>,
    },
    /// Counts the queues that have tasks.
    Size,
    /// Lists queues that have tasks, with their counts.
    Queues {
        /// A glob that the names must match.
        pattern: Option<&'a [u8]>,
        /// The cursor of the last reply; 0 begins.
        cursor: u64,
        /// The number of queues to look at; [`u32::MAX`] looks at all of them, and the reply's cursor is 0.
        count: u32,
    },
    /// A command by or about a worker.
    Worker(Worker<'a>),
}

impl<'a> Command<'a> {
    /// The queue that the command is about, if it is about exactly one.
    pub const fn queue(&self) -> Option<&'a [u8]> {
        match self.target() {
            Target::Queue(queue) => Some(queue),
            Target::Queues(_) | Target::NoQueue => None,
        }
    }

    /// The queues of a command that names a list of them; empty for all others.
    pub const fn queues(&self) -> &'a [&'a [u8]] {
        match self.target() {
            Target::Queues(queues) => queues,
            Target::Queue(_) | Target::NoQueue => &[],
        }
    }

    #[inline]
    const fn target(&self) -> Target<'a> {
        match *self {
            Self::Push { queue, .. }
            | Self::Ack { queue, .. }
            | Self::Extend { queue, .. }
            | Self::Recover { queue, .. }
            | Self::Inspect { queue, .. }
            | Self::Info { queue }
            | Self::Cancel { queue, .. }
            | Self::Bury { queue, .. }
            | Self::Revive { queue, .. }
            | Self::Delete { queue, .. }
            | Self::Purge { queue, .. }
            | Self::Pause { queue }
            | Self::Resume { queue }
            | Self::Config { queue, .. }
            | Self::Explain { queue, .. }
            | Self::Add(Add { queue, .. })
            | Self::Return(Return { queue, .. })
            | Self::Worker(Worker::Work(_, queue) | Worker::Rest(_, queue)) => Target::Queue(queue),
            Self::Pop(Pop { queues, .. }) | Self::Drop { queues } | Self::Exists { queues } => {
                Target::Queues(queues)
            }
            Self::Size | Self::Queues { .. } | Self::Worker(_) => Target::NoQueue,
        }
    }

    /// The kind of the reply, if the command is not refused.
    #[inline]
    pub const fn reply_kind(&self) -> ReplyKind<'a> {
        match *self {
            Self::Push { payloads, .. } => ReplyKind::Ids(payloads.len()),
            Self::Add(_) => ReplyKind::Added,
            Self::Pop(pop) => ReplyKind::Popped(pop),
            Self::Recover { queue, count, .. } => ReplyKind::Recovered { queue, count },
            Self::Inspect { queue, view, count, .. } => ReplyKind::Inspected { queue, view, count },
            Self::Ack { tasks, .. } => ReplyKind::Acked(tasks),
            Self::Extend { .. } | Self::Return(_) => ReplyKind::Outcome,
            Self::Info { .. } => ReplyKind::Info,
            Self::Config { .. } => ReplyKind::Settings,
            Self::Explain { .. } => ReplyKind::Explained,
            Self::Queues { count, .. } => ReplyKind::Queues { count },
            Self::Worker(Worker::Start { name, .. }) => ReplyKind::Started(name),
            Self::Worker(Worker::Beat(_)) => ReplyKind::Receipts,
            Self::Worker(Worker::List) => ReplyKind::Workers,
            Self::Cancel { .. }
            | Self::Bury { .. }
            | Self::Revive { .. }
            | Self::Delete { .. }
            | Self::Purge { .. }
            | Self::Drop { .. }
            | Self::Exists { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Size
            | Self::Worker(Worker::Work(..) | Worker::Rest(..) | Worker::Stop(_) | Worker::Fail { .. }) => {
                ReplyKind::CountOrOk
            }
        }
    }
}

/// The queues that a command names.
enum Target<'a> {
    Queue(&'a [u8]),
    Queues(&'a [&'a [u8]]),
    NoQueue,
}

/// The kind of reply to a command, with the arguments on which its encoding and its size depend.
#[derive(Clone, Copy, Debug)]
pub enum ReplyKind<'a> {
    /// The ids of this many new tasks.
    Ids(usize),
    /// The id of one new task, or of the task that has its name.
    Added,
    /// Tasks leased by this pop.
    Popped(Pop<'a>),
    /// Up to `count` tasks of the queue, leased again.
    Recovered {
        queue: &'a [u8],
        count: u32,
    },
    /// Up to `count` tasks of the queue in one state.
    Inspected {
        queue: &'a [u8],
        view: View,
        count: u32,
    },
    /// Those of these tasks that were finished.
    Acked(TaskRefs<'a>),
    /// Whether the lease was still held, and the task not cancelled.
    Outcome,
    CountOrOk,
    Info,
    Settings,
    Explained,
    /// Up to `count` queues, and the cursor of the next ones.
    Queues {
        count: u32,
    },
    /// The incarnation of the worker with this name.
    Started(&'a [u8]),
    /// The receipts of leases that a worker lost.
    Receipts,
    Workers,
}

/// The text form of a task reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdForm {
    /// The home's own form: for example `<ms>-<seq>` or a receipt.
    #[default]
    Long,
    /// The ten letters of the text dialect.
    Short,
}

/// One task, by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRef<'a> {
    /// The reference as the client sent it.
    pub bytes: &'a [u8],
    pub form: IdForm,
}

/// Several tasks, by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRefs<'a> {
    /// The references as the client sent them.
    pub list: &'a [&'a [u8]],
    pub form: IdForm,
}

/// The states in which an ack by bare id finishes a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckScope {
    /// A leased task, or one that lapsed and waits again.
    LeasedOrLapsed,
    /// Only a leased task, as in the text dialect.
    Leased,
}

/// One task with options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Add<'a> {
    /// The queue. It is created if it does not exist.
    pub queue: &'a [u8],
    pub payload: &'a [u8],
    /// A name. The queue has at most one task of each name.
    pub name: Option<NameArg<'a>>,
    /// When it may be delivered.
    pub when: When,
    /// Larger priorities are delivered first.
    pub priority: i8,
    /// The number of tries before the task is dead; `None` means the queue's default.
    pub tries: Option<u32>,
    /// The first wait of its backoff in milliseconds; `None` means the queue's default.
    pub backoff_ms: Option<u64>,
    /// The time to live from now in milliseconds; `None` means the queue's default.
    pub ttl_ms: Option<u64>,
}

impl<'a> Add<'a> {
    /// A task without options.
    pub const fn plain(queue: &'a [u8], payload: &'a [u8]) -> Self {
        Self {
            queue,
            payload,
            name: None,
            when: When::AtOnce,
            priority: 0,
            tries: None,
            backoff_ms: None,
            ttl_ms: None,
        }
    }
}

/// The name of a new task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameArg<'a> {
    /// The name is given by the producer.
    Bytes(&'a [u8]),
    /// The payload serves as the name (`UNIQUE`).
    Payload,
}

/// When a new task may be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Now.
    AtOnce,
    /// After this many milliseconds of log time.
    After(u64),
    /// At this time of the wall clock.
    At(WallTime),
}

/// A request for tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pop<'a> {
    /// The queues, in order of preference: later queues supply only the tasks that earlier ones lack.
    pub queues: &'a [&'a [u8]],
    /// The maximum number of tasks to lease.
    pub count: u32,
    /// How long to wait if there is no task; `None` means not at all.
    pub block: Option<Block>,
    pub lease: LeaseAsk<'a>,
    /// Whether the reply includes the details of each task (`META`).
    pub meta: bool,
}

impl<'a> Pop<'a> {
    /// A pop that neither waits nor sets a deadline.
    pub const fn plain(queues: &'a [&'a [u8]], count: u32) -> Self {
        Self { queues, count, block: None, lease: LeaseAsk::NONE, meta: false }
    }
}

/// The maximum time to wait for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// No maximum.
    Forever,
    /// This many milliseconds.
    Millis(u64),
}

/// The terms of a lease: the events that end it, besides an ack, return or cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseAsk<'a> {
    /// The length in milliseconds.
    pub ms: Option<u64>,
    /// The worker with which the lease ends.
    pub worker: Option<WorkerRef<'a>>,
    /// The connection with which the lease ends.
    pub conn: Option<ConnId>,
    /// The consequences of a lapse, if they differ from the queue's defaults.
    pub lapse: Option<LapsePolicy>,
}

impl LeaseAsk<'_> {
    /// No terms: only its holder ends the lease.
    pub const NONE: Self = Self { ms: None, worker: None, conn: None, lapse: None };
}

/// An open connection. The number is meaningless after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// The consequences of a lapse for the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LapsePolicy {
    /// The destination of the task while it has tries left.
    pub to: Place,
    /// The number of lapses that the task survives. `None` means that its tries decide.
    pub limit: Option<u32>,
    /// The fate of the task after that.
    pub then: LapseEnd,
}

/// The fate of a task that lapsed too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LapseEnd {
    /// The task is dead.
    Dead,
    /// The task is deleted, as the flags of DefferedQ require.
    Delete,
}

/// A worker and its incarnation, `w#n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerRef<'a> {
    pub name: &'a [u8],
    /// The number of the start, unique in the store.
    pub incarnation: u64,
}

/// The return of a leased task to its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return<'a> {
    pub queue: &'a [u8],
    /// An id or receipt.
    pub task: TaskRef<'a>,
    /// The destination. `None` means the front, or the delay of its backoff if it failed.
    pub to: Option<Place>,
    /// The reason, if the try failed. A failure costs a try.
    pub failed: Option<&'a [u8]>,
    /// Whether the failure is final: the task is dead even if it has tries left.
    pub is_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel<'a> {
    Ids(TaskRefs<'a>),
    Names(&'a [&'a [u8]]),
    /// All tasks with this payload.
    Payload(&'a [u8]),
}

/// A state, for commands that show or remove the tasks in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Ready, in the order of delivery.
    Ready,
    /// Leased, in the order of delivery.
    Leased,
    /// Delayed, the next one due first.
    Delayed,
    /// Dead, in the order of death.
    Dead,
}

/// Commands by and about workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker<'a> {
    /// Starts a new incarnation. A live worker of the same name is lost.
    Start {
        name: &'a [u8],
        /// The time to live without a heartbeat in milliseconds.
        ttl_ms: u64,
    },
    /// A heartbeat. The reply has the receipts of leases that lapsed or whose tasks were cancelled.
    Beat(WorkerRef<'a>),
    /// The worker works on this queue.
    Work(WorkerRef<'a>, &'a [u8]),
    /// The worker no longer works on this queue; its tasks of the queue are requeued.
    Rest(WorkerRef<'a>, &'a [u8]),
    /// The worker ends. Its tasks are requeued, at no cost of a try.
    Stop(WorkerRef<'a>),
    /// Declares the live worker of this name lost. Its tasks are requeued, at the cost of a try each.
    Fail { name: &'a [u8] },
    /// Lists live workers.
    List,
}
