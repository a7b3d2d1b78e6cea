//! Requests, the same in every dialect.
//!
//! A [`Command`] borrows the buffer that it was read from: names, payloads and task references are slices, and nothing
//! is copied until an event is recorded. A task reference stays bytes because each home has its own form of ids; so the
//! home, not the dialect, refuses bytes that are not an id.

use crate::settings::{Changes, Place};
use crate::time::WallTime;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Adds tasks without options, in order.
    Push {
        /// The queue; it is created if it does not exist.
        queue: &'a [u8],
        /// The payloads, one task each.
        payloads: &'a [&'a [u8]],
    },
    /// Adds one task with options.
    Add(Add<'a>),
    /// Leases tasks to the caller.
    Pop(Pop<'a>),
    /// Finishes tasks.
    Ack {
        /// Their queue.
        queue: &'a [u8],
        /// Ids or receipts.
        tasks: TaskRefs<'a>,
        /// Whether an id also finishes a task that lapsed and waits again.
        scope: AckScope,
    },
    /// Moves the deadline of a lease to `ms` from now.
    Extend {
        /// The task's queue.
        queue: &'a [u8],
        /// Its id or receipt.
        task: TaskRef<'a>,
        /// Milliseconds from now.
        ms: u64,
    },
    /// Returns a leased task to its queue.
    Return(Return<'a>),
    /// Leases tasks again that were popped without deadline, worker or connection and have not been finished.
    Recover {
        /// The queue.
        queue: &'a [u8],
        /// The most tasks to lease.
        count: u32,
        /// Only tasks whose last delivery is at least this long ago.
        elapsed_ms: u64,
    },
    /// Shows tasks without changing them.
    Inspect {
        /// The queue.
        queue: &'a [u8],
        /// The state of the tasks to show.
        view: View,
        /// The position of the first; a negative one counts from the end.
        start: i64,
        /// The most tasks to show.
        count: u32,
    },
    /// Shows counts, ages and settings of a queue.
    Info {
        /// The queue.
        queue: &'a [u8],
    },
    /// Cancels tasks: waiting ones are removed, the holders of leased ones are notified.
    Cancel {
        /// Their queue.
        queue: &'a [u8],
        /// Which tasks.
        which: Cancel<'a>,
    },
    /// Makes tasks dead.
    Bury {
        /// Their queue.
        queue: &'a [u8],
        /// Ids or receipts.
        tasks: TaskRefs<'a>,
    },
    /// Makes dead tasks ready again, at the back of their queue and with all their tries.
    Revive {
        /// Their queue.
        queue: &'a [u8],
        /// Ids; `None` means all dead tasks.
        tasks: Option<TaskRefs<'a>>,
    },
    /// Removes tasks in any state.
    Delete {
        /// Their queue.
        queue: &'a [u8],
        /// Ids.
        tasks: TaskRefs<'a>,
    },
    /// Removes all tasks of a state, never leased ones.
    Purge {
        /// The queue.
        queue: &'a [u8],
        /// The state; `None` means ready, delayed and dead tasks.
        state: Option<View>,
    },
    /// Removes queues with all their tasks (leased ones too), their settings and their pause. Answers how many of them
    /// had tasks.
    Drop {
        /// The queues.
        queues: &'a [&'a [u8]],
    },
    /// Answers how many of these queues have tasks. A queue named twice counts twice, as in Redis.
    Exists {
        /// The queues.
        queues: &'a [&'a [u8]],
    },
    /// Stops deliveries of a queue.
    Pause {
        /// The queue.
        queue: &'a [u8],
    },
    /// Resumes deliveries of a queue.
    Resume {
        /// The queue.
        queue: &'a [u8],
    },
    /// Changes settings of a queue and shows all of them.
    Config {
        /// The queue.
        queue: &'a [u8],
        /// The changes, in order; there may be none.
        changes: Changes<'a>,
    },
    /// Explains why a task is not being worked on.
    Explain {
        /// The task's queue.
        queue: &'a [u8],
        /// Its id or receipt.
        task: TaskRef<'a>,
    },
    /// Answers how many queues have tasks.
    Size,
    /// Lists queues that have tasks, with their counts.
    Queues {
        /// A glob that the names must match.
        pattern: Option<&'a [u8]>,
        /// The cursor of the last reply; 0 begins.
        cursor: u64,
        /// How many queues to look at.
        count: u32,
    },
    /// A command of or about a worker.
    Worker(Worker<'a>),
}

impl<'a> Command<'a> {
    /// The queue that the command is about, if it is about exactly one.
    pub const fn queue(&self) -> Option<&'a [u8]> {
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
            | Self::Worker(Worker::Work(_, queue) | Worker::Rest(_, queue)) => Some(queue),
            Self::Pop(_)
            | Self::Drop { .. }
            | Self::Exists { .. }
            | Self::Size
            | Self::Queues { .. }
            | Self::Worker(_) => None,
        }
    }
}

/// The text form of a task reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdForm {
    /// The home's own: `<ms>-<seq>` or a receipt.
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
    /// Its form.
    pub form: IdForm,
}

/// Several tasks, by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRefs<'a> {
    /// The references as the client sent them.
    pub list: &'a [&'a [u8]],
    /// Their form.
    pub form: IdForm,
}

/// Which states an ack by bare id finishes.
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
    /// The queue; it is created if it does not exist.
    pub queue: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
    /// A name. The queue has at most one task of each name.
    pub name: Option<NameArg<'a>>,
    /// When it may be delivered.
    pub when: When,
    /// Larger first.
    pub priority: i8,
    /// Tries before the task is dead; `None` means the queue's default.
    pub tries: Option<u32>,
    /// The first wait of its backoff; `None` means the queue's default.
    pub backoff_ms: Option<u64>,
    /// Time to live from now; `None` means the queue's default.
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
    /// Bytes that the producer chose.
    Bytes(&'a [u8]),
    /// The payload is the name (`UNIQUE`).
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
    /// The queues, in order of preference: a queue is only asked for tasks that those before it did not have.
    pub queues: &'a [&'a [u8]],
    /// The most tasks to lease.
    pub count: u32,
    /// Whether and how long to wait if there is no task.
    pub block: Option<Block>,
    /// The terms of the leases.
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

/// How long to wait for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// Until a task comes.
    Forever,
    /// At most this many milliseconds.
    Millis(u64),
}

/// The terms of a lease: what ends it, besides an ack, return or cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseAsk<'a> {
    /// Its length in milliseconds.
    pub ms: Option<u64>,
    /// The worker that it ends with.
    pub worker: Option<WorkerRef<'a>>,
    /// The connection that it ends with.
    pub conn: Option<ConnId>,
    /// What happens at a lapse, instead of the queue's defaults.
    pub lapse: Option<LapsePolicy>,
}

impl LeaseAsk<'_> {
    /// No terms: only its holder ends it.
    pub const NONE: Self = Self { ms: None, worker: None, conn: None, lapse: None };
}

/// A connection, as long as it is open. Meaningless after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// What happens to a task whose lease lapses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LapsePolicy {
    /// Where it goes while it has tries left.
    pub to: Place,
    /// How many lapses it survives. `None` means that its tries decide.
    pub limit: Option<u32>,
    /// What becomes of it after that.
    pub then: LapseEnd,
}

/// The end of a task that lapsed too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LapseEnd {
    /// It is dead.
    Dead,
    /// It is deleted, for the flags of DefferedQ.
    Delete,
}

/// A worker and its incarnation, `w#n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerRef<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// The number of the start, unique in the store.
    pub incarnation: u64,
}

/// The return of a leased task to its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return<'a> {
    /// The task's queue.
    pub queue: &'a [u8],
    /// Its id or receipt.
    pub task: TaskRef<'a>,
    /// Where it goes. `None` means to the front, or to the delay of its backoff if it failed.
    pub to: Option<Place>,
    /// The reason, if the try failed. A failure costs a try.
    pub failed: Option<&'a [u8]>,
    /// Whether the failure is final: the task is dead, even with tries left.
    pub is_last: bool,
}

/// Which tasks to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel<'a> {
    /// These ids.
    Ids(TaskRefs<'a>),
    /// Tasks with these names.
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

/// Commands of and about workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker<'a> {
    /// Starts a new incarnation. A living worker of the same name is lost.
    Start {
        /// Its name.
        name: &'a [u8],
        /// How long it lives without a heartbeat.
        ttl_ms: u64,
    },
    /// A heartbeat. Answers receipts of leases that lapsed or whose tasks were cancelled.
    Beat(WorkerRef<'a>),
    /// The worker works on this queue.
    Work(WorkerRef<'a>, &'a [u8]),
    /// The worker no longer works on this queue; its tasks of the queue are returned.
    Rest(WorkerRef<'a>, &'a [u8]),
    /// The worker ends. Its tasks are returned, at no cost of a try.
    Stop(WorkerRef<'a>),
    /// Declares the living worker of this name lost. Its tasks are returned, at the cost of a try each.
    Fail {
        /// Its name.
        name: &'a [u8],
    },
    /// Lists living workers.
    List,
}
