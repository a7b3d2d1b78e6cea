//! What can be asked of a queue, whatever the dialect.
//!
//! A [`Command`] borrows the buffer it was read from: names, payloads and task references are slices, and
//! nothing is copied until an event is recorded. Task references stay bytes here, since each home has ids of its
//! own; what is not an id is therefore the home's answer, not the dialect's.

use crate::settings::{Changes, Place};
use crate::time::WallTime;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Adds plain tasks, in order.
    Push {
        /// The queue, made if need be.
        queue: &'a [u8],
        /// One task each.
        payloads: &'a [&'a [u8]],
    },
    /// Adds one task with options.
    Add(Add<'a>),
    /// Hands out tasks.
    Pop(Pop<'a>),
    /// Finishes tasks.
    Ack {
        /// Their queue.
        queue: &'a [u8],
        /// Ids or receipts.
        tasks: TaskRefs<'a>,
        /// Whether a task that lapsed and waits again counts.
        scope: AckScope,
    },
    /// Moves a lease's deadline to `ms` from now.
    Extend {
        /// The task's queue.
        queue: &'a [u8],
        /// Its id or receipt.
        task: TaskRef<'a>,
        /// The new length of the lease, from now.
        ms: u64,
    },
    /// Gives a task back.
    Return(Return<'a>),
    /// Hands out again what was popped without a deadline, worker or connection, and not finished since.
    Recover {
        /// The queue.
        queue: &'a [u8],
        /// How many at most.
        count: u32,
        /// How long ago the last delivery must be.
        elapsed_ms: u64,
    },
    /// Shows tasks without changing them.
    Inspect {
        /// The queue.
        queue: &'a [u8],
        /// Which of its tasks.
        view: View,
        /// The first to show; a negative one counts from the end.
        start: i64,
        /// How many at most.
        count: u32,
    },
    /// Counts, ages and settings of a queue.
    Info {
        /// The queue.
        queue: &'a [u8],
    },
    /// Cancels tasks.
    Cancel {
        /// Their queue.
        queue: &'a [u8],
        /// Which ones.
        which: Cancel<'a>,
    },
    /// Puts tasks among the dead.
    Bury {
        /// Their queue.
        queue: &'a [u8],
        /// Ids or receipts.
        tasks: TaskRefs<'a>,
    },
    /// Brings dead tasks back to the end of the line, their tries counted from zero.
    Revive {
        /// Their queue.
        queue: &'a [u8],
        /// Which ones; none given means all.
        tasks: Option<TaskRefs<'a>>,
    },
    /// Removes tasks in whatever state.
    Delete {
        /// Their queue.
        queue: &'a [u8],
        /// Ids.
        tasks: TaskRefs<'a>,
    },
    /// Removes all tasks of a state; of ready, delayed and dead if none is given. Never a leased one.
    Purge {
        /// The queue.
        queue: &'a [u8],
        /// Only tasks of this state.
        state: Option<View>,
    },
    /// Removes queues with all their tasks, leased ones too, their settings and their pause; answers how many
    /// of them had tasks.
    Drop {
        /// The queues.
        queues: &'a [&'a [u8]],
    },
    /// Answers how many of these queues have tasks; one named twice counts twice, as Redis does it.
    Exists {
        /// The queues.
        queues: &'a [&'a [u8]],
    },
    /// Stops handing out tasks of a queue.
    Pause {
        /// The queue.
        queue: &'a [u8],
    },
    /// Hands them out again.
    Resume {
        /// The queue.
        queue: &'a [u8],
    },
    /// Changes and shows the settings of a queue.
    Config {
        /// The queue.
        queue: &'a [u8],
        /// What to change, in order.
        changes: Changes<'a>,
    },
    /// Says why a task is not running now.
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
        /// Only names that this glob matches.
        pattern: Option<&'a [u8]>,
        /// Where the last answer left off; 0 begins.
        cursor: u64,
        /// How many to look at.
        count: u32,
    },
    /// The life of a worker.
    Worker(Worker<'a>),
}

impl<'a> Command<'a> {
    /// The one queue that it is about, if it is about one.
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

/// How a task reference is spelt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdForm {
    /// As the home shows it: `<ms>-<seq>` or a receipt.
    #[default]
    Long,
    /// The ten letters of the text dialect.
    Short,
}

/// One task, by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRef<'a> {
    /// What was said.
    pub bytes: &'a [u8],
    /// How to read it.
    pub form: IdForm,
}

/// Several tasks, by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRefs<'a> {
    /// What was said.
    pub list: &'a [&'a [u8]],
    /// How to read each.
    pub form: IdForm,
}

/// Which states an ack by bare id finishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckScope {
    /// A leased task, and one that lapsed and waits again.
    LeasedOrLapsed,
    /// Only a leased one, as the text dialect has it.
    Leased,
}

/// One task with options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Add<'a> {
    /// The queue, made if need be.
    pub queue: &'a [u8],
    /// The task's bytes.
    pub payload: &'a [u8],
    /// What at most one task of the queue may be called.
    pub name: Option<NameArg<'a>>,
    /// When it may be handed out.
    pub when: When,
    /// Larger first.
    pub priority: i8,
    /// Tries before it is dead.
    pub tries: Option<u32>,
    /// The first wait of its backoff.
    pub backoff_ms: Option<u64>,
    /// How long it may wait, from now.
    pub ttl_ms: Option<u64>,
}

impl<'a> Add<'a> {
    /// A task like a pushed one.
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

/// A name as the producer gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameArg<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// The payload is the name (`UNIQUE`).
    Payload,
}

/// When an added task may be handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Now.
    AtOnce,
    /// After so many milliseconds of log time.
    After(u64),
    /// At this time of the wall clock.
    At(WallTime),
}

/// A request for tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pop<'a> {
    /// Where from: all that is wanted from the first, then the next.
    pub queues: &'a [&'a [u8]],
    /// How many at most.
    pub count: u32,
    /// Whether to wait, and how long, when there is none.
    pub block: Option<Block>,
    /// What kind of delivery it is to be.
    pub lease: LeaseAsk<'a>,
    /// Whether to tell more of each task.
    pub meta: bool,
}

impl<'a> Pop<'a> {
    /// As RedisRQ pops: no waiting, no deadline.
    pub const fn plain(queues: &'a [&'a [u8]], count: u32) -> Self {
        Self { queues, count, block: None, lease: LeaseAsk::NONE, meta: false }
    }
}

/// How long to wait for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// Until one comes.
    Forever,
    /// So many milliseconds.
    Millis(u64),
}

/// What ends a delivery besides its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseAsk<'a> {
    /// After so many milliseconds.
    pub ms: Option<u64>,
    /// When this worker is gone.
    pub worker: Option<WorkerRef<'a>>,
    /// When this connection is gone.
    pub conn: Option<ConnId>,
    /// What a lapse does, instead of what the queue's defaults say.
    pub lapse: Option<LapsePolicy>,
}

impl LeaseAsk<'_> {
    /// Nothing but its holder ends it.
    pub const NONE: Self = Self { ms: None, worker: None, conn: None, lapse: None };
}

/// A connection, for as long as it is open. Meaningless after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// What happens to a task when its lease runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LapsePolicy {
    /// Where it goes while it may still be tried.
    pub to: Place,
    /// How many lapses it may have; the next one ends it. The task's tries count if there is none.
    pub limit: Option<u32>,
    /// How it ends.
    pub then: LapseEnd,
}

/// The end of a task that lapsed too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LapseEnd {
    /// It is kept among the dead.
    Dead,
    /// It is deleted, as DefferedQ's flags ask for.
    Delete,
}

/// A worker and its incarnation, `w#n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerRef<'a> {
    /// The name it started under.
    pub name: &'a [u8],
    /// Which start of that name.
    pub incarnation: u64,
}

/// Giving a task back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return<'a> {
    /// The task's queue.
    pub queue: &'a [u8],
    /// Its id or receipt.
    pub task: TaskRef<'a>,
    /// Where to; if none is given, to the front, or after its backoff if it failed.
    pub to: Option<Place>,
    /// Why, if it is a failure. Costs a try.
    pub failed: Option<&'a [u8]>,
    /// Whether that failure was its last, however many tries it has left.
    pub is_last: bool,
}

/// Which tasks to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel<'a> {
    /// These ids.
    Ids(TaskRefs<'a>),
    /// The tasks of these names.
    Names(&'a [&'a [u8]]),
    /// All tasks with this payload.
    Payload(&'a [u8]),
}

/// Which tasks of a queue to show or to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Waiting and due, in the order they will be handed out.
    Ready,
    /// Handed out, the longest ago first.
    Leased,
    /// Not due yet, the soonest first.
    Delayed,
    /// Given up, the longest ago first.
    Dead,
}

/// The life of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker<'a> {
    /// Begins a new incarnation; a living predecessor of the same name is lost.
    Start {
        /// Its name.
        name: &'a [u8],
        /// How long it lives without a beat.
        ttl_ms: u64,
    },
    /// Says that it lives.
    Beat(WorkerRef<'a>),
    /// Says that it works on a queue.
    Work(WorkerRef<'a>, &'a [u8]),
    /// Says that it no longer does, and gives back what it has of it.
    Rest(WorkerRef<'a>, &'a [u8]),
    /// Ends in good order; its tasks go back at no cost.
    Stop(WorkerRef<'a>),
    /// Declares whatever incarnation is alive lost.
    Fail {
        /// Its name.
        name: &'a [u8],
    },
    /// Who is alive.
    List,
}
