//! Events: the decisions of the broker and its queues, as they are recorded, applied and replayed.
//!
//! The log holds events and not commands, so that a later release which decides differently does not change the past.
//! One event covers many tasks: a pop of a hundred neighbours, or a million tasks that become due at once. No event but
//! [`Event::Clock`] carries the current time; it applies to all events that follow.

mod lists;

use crate::command::LapsePolicy;
use crate::id::TaskId;
use crate::settings::Settings;
use crate::task::{Body, Cause, Due, Holder, Name, Past, StateKind, TaskState, Tries};
use crate::time::{LogTime, WallTime};

pub use lists::{Ids, Payloads};

/// The number of a queue in events. It is unique as long as the store remembers the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueNo(pub u32);

/// The driver's side of a decision: records events, and creates and releases the handles of payloads.
pub trait Recorder {
    /// The handle of a payload.
    type Body: Body;

    /// Records an event. The events of one call to the broker are one unit of the log: after a crash, all of them are
    /// there or none.
    fn record(&mut self, event: &Event<'_>);

    /// The number of tasks that the last event is about, if the event neither lists nor counts them: tasks that
    /// became due, the ready tasks of a resumed queue, the tasks of a dropped or purged queue. Not called at replay.
    fn note_task_count(&mut self, _tasks: usize) {}

    /// Creates the handle of payload number `index` of the last event.
    fn new_body(&mut self, index: usize, payload: &[u8]) -> Self::Body;

    /// A hash of the payload, keyed so that clients cannot construct collisions.
    fn payload_hash(&self, payload: &[u8]) -> u128;

    /// Releases a handle that left the state: its task is finished or removed, its queue was dropped, or the task has a
    /// new handle. Called exactly once for each handle that [`Recorder::new_body`] created, at replay too.
    fn release_body(&mut self, body: Self::Body);
}

/// A decision: a change of state that has happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// The store was opened. Timed leases are extended to a minimum, and earlier connections are gone.
    Started {
        /// The new incarnation of the store.
        incarnation: u64,
        time: LogTime,
    },
    /// Log time advanced; the events that follow happened at this time.
    Clock(LogTime),
    /// A queue was created.
    QueueMade {
        queue: QueueNo,
        name: &'a [u8],
    },
    /// A queue without tasks, settings or pause was forgotten. Its number is free again.
    QueueGone(QueueNo),
    /// All tasks of a queue, its settings and its pause were removed.
    QueueDropped(QueueNo),
    /// Tasks were added, with consecutive ids.
    Pushed {
        queue: QueueNo,
        /// The id of the first task; the others have the ids that follow.
        first: TaskId,
        /// The payloads of the tasks, in order.
        payloads: Payloads<'a>,
        /// The options, the same for all tasks.
        fields: Fields<'a>,
    },
    /// Ready tasks were leased.
    Popped {
        queue: QueueNo,
        /// The tasks, in order of delivery.
        ids: Ids<'a>,
        /// The terms of the leases; `length_ms` counts from now.
        terms: LeaseTerms,
    },
    /// Leased tasks were leased again, by another client on the same terms.
    Recovered {
        queue: QueueNo,
        /// The tasks, in order of delivery.
        ids: Ids<'a>,
    },
    /// Tasks were finished.
    Finished {
        queue: QueueNo,
        ids: Ids<'a>,
    },
    /// A lease has a new deadline.
    Extended {
        queue: QueueNo,
        id: TaskId,
        /// The new length of the lease from now, in milliseconds.
        length_ms: u64,
    },
    /// Leased tasks were requeued.
    Returned {
        queue: QueueNo,
        /// The tasks, in their new order.
        ids: Ids<'a>,
        /// The destination of the tasks.
        to: Landing,
        /// The reason why their deliveries ended.
        cause: Cause,
        /// The reason that the worker gave.
        reason: Option<&'a [u8]>,
    },
    Died {
        queue: QueueNo,
        /// The tasks, in order of death.
        ids: Ids<'a>,
        /// The end of the last try.
        cause: Cause,
        reason: Option<&'a [u8]>,
    },
    /// Tasks were removed without being finished.
    Removed {
        queue: QueueNo,
        ids: Ids<'a>,
        why: Removal,
    },
    /// All tasks of some states were removed, without a list of them.
    Purged {
        queue: QueueNo,
        /// The states of the removed tasks.
        what: Purge,
    },
    /// Leased tasks were cancelled. Their holders learn it at their next extension or heartbeat.
    Marked {
        queue: QueueNo,
        ids: Ids<'a>,
    },
    /// Delayed tasks became ready: all that were due by one clock up to (`last_due`, `last_id`), in that order.
    DueCame {
        queue: QueueNo,
        /// The clock, and the time by which all tasks of the flood are due. Consecutive events with the same value are
        /// slices of one flood, whose tasks stay together in the order of delivery.
        upto: Due,
        /// The due time of the last of these tasks.
        last_due: u64,
        /// The id of the last of these tasks.
        last_id: TaskId,
    },
    /// All leases of a holder in this queue are over, as of now. The tasks follow in slices, by [`Self::Returned`],
    /// [`Self::Died`] and [`Self::Removed`].
    HolderEnded {
        queue: QueueNo,
        holder: Holder,
        /// The reason why the deliveries ended, which decides whether they cost a try.
        cause: Cause,
    },
    /// Dead tasks are ready again, at the back.
    Revived {
        queue: QueueNo,
        /// The tasks, in their new order.
        ids: Ids<'a>,
    },
    /// All dead tasks of a queue are ready again, at the back, as of now. [`Self::Revived`] moves them, in slices.
    AllRevived(QueueNo),
    /// A dead task moved to the back of another queue.
    Moved {
        /// The queue that the task left.
        from: QueueNo,
        id: TaskId,
        /// The queue that has the task now.
        to: QueueNo,
    },
    Paused(QueueNo),
    Resumed(QueueNo),
    /// The settings of a queue changed.
    Configured {
        queue: QueueNo,
        /// All settings after the change.
        settings: &'a Settings,
    },
    WorkerStarted {
        name: &'a [u8],
        incarnation: u64,
        /// The time to live without a heartbeat in milliseconds.
        ttl_ms: u64,
    },
    /// A worker stopped or was lost.
    WorkerEnded(u64),
    /// A worker began to work on a queue.
    Worked {
        /// The incarnation of the worker.
        incarnation: u64,
        queue: QueueNo,
    },
    /// A worker stopped working on a queue.
    Rested {
        /// The incarnation of the worker.
        incarnation: u64,
        queue: QueueNo,
    },
    /// A whole task: for compaction, checkpoints and imports.
    Task(&'a FullTask<'a>),
    /// The counters of a queue. This is the last event of the queue's part of a checkpoint.
    Counted {
        queue: QueueNo,
        counters: &'a Counters,
    },
    /// Ids up to this one have been assigned.
    IdsUpto(TaskId),
    /// The position up to which an external source has been imported, so that a move between homes neither loses nor
    /// repeats tasks.
    Mark {
        source: &'a [u8],
        /// The position in the source.
        cursor: &'a [u8],
    },
}

impl Event<'_> {
    /// How many tasks the event lists: each of them is moved, added or removed. Events that take the whole of a list at
    /// once count as none, and so do due tasks, which the event does not list.
    pub fn moved(&self) -> usize {
        match self {
            Self::Pushed { payloads, .. } => payloads.len(),
            Self::Popped { ids, .. }
            | Self::Recovered { ids, .. }
            | Self::Finished { ids, .. }
            | Self::Returned { ids, .. }
            | Self::Died { ids, .. }
            | Self::Removed { ids, .. }
            | Self::Marked { ids, .. }
            | Self::Revived { ids, .. } => ids.count(),
            Self::Extended { .. } | Self::Moved { .. } | Self::Task(_) => 1,
            _ => 0,
        }
    }

    /// The queue that the event is about, if it is about exactly one.
    pub const fn queue(&self) -> Option<QueueNo> {
        match *self {
            Self::QueueDropped(queue)
            | Self::AllRevived(queue)
            | Self::Paused(queue)
            | Self::Resumed(queue)
            | Self::Pushed { queue, .. }
            | Self::Popped { queue, .. }
            | Self::Recovered { queue, .. }
            | Self::Finished { queue, .. }
            | Self::Extended { queue, .. }
            | Self::Returned { queue, .. }
            | Self::Died { queue, .. }
            | Self::Removed { queue, .. }
            | Self::Purged { queue, .. }
            | Self::Marked { queue, .. }
            | Self::DueCame { queue, .. }
            | Self::HolderEnded { queue, .. }
            | Self::Revived { queue, .. }
            | Self::Counted { queue, .. }
            | Self::Configured { queue, .. } => Some(queue),
            Self::Task(task) => Some(task.queue),
            _ => None,
        }
    }
}

/// The states that a purge removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purge {
    /// Ready, delayed and dead. A task whose holder has ended counts as ready, even if it has not been moved yet.
    All,
    Ready,
    Delayed,
    Dead,
}

impl Purge {
    /// Whether it removes tasks in this state.
    pub fn takes(self, kind: StateKind) -> bool {
        match self {
            Self::All => kind != StateKind::Leased,
            Self::Ready => kind == StateKind::Ready,
            Self::Delayed => kind == StateKind::Delayed,
            Self::Dead => kind == StateKind::Dead,
        }
    }
}

/// The reason why a task was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It was cancelled.
    Cancelled,
    /// Its time to live ended.
    Expired,
    /// It was deleted or purged.
    Deleted,
    /// A full queue dropped it to make room.
    Dropped,
    /// It lapsed too often, and the terms of its lease require removal.
    Lapsed,
}

/// The destination of a returned task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// The front. Tasks of one group stay together, in order; a later group goes before an earlier one.
    Front {
        /// The number of the group. Each queue counts its groups.
        group: u64,
    },
    Back,
    /// The delayed tasks, until this time.
    Delayed(LogTime),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTerms {
    /// The length from now in milliseconds.
    pub length_ms: Option<u64>,
    /// The worker or connection with which the leases end.
    pub holder: Option<Holder>,
    pub lapse: Option<LapsePolicy>,
}

/// The options of a task, as they are recorded: a push resolves those of an [`Add`](crate::command::Add) to these, a
/// record keeps them in its [`Extras`](crate::task::Extras), and [`FullTask::fields`] are these again, of a whole task.
/// The [`codec`](crate::codec) says how to add one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields<'a> {
    /// The due time, if the task is delayed.
    pub due: Option<Due>,
    /// Larger priorities are delivered first.
    pub priority: i8,
    /// The name, unique in its queue.
    pub name: Option<NameRef<'a>>,
    /// The number of tries before the task is dead; `None` means the queue's default.
    pub tries_max: Option<u32>,
    /// The first wait of its backoff in milliseconds; `None` means the queue's default.
    pub backoff_ms: Option<u64>,
    /// The end of its time to live.
    pub expires: Option<LogTime>,
    /// The trace context of its producer.
    pub trace: Option<&'a [u8]>,
}

impl Fields<'_> {
    /// Whether there are no options, so that the task can be packed.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Whether there are no options other than the due time, so that the task can be packed.
    pub fn is_plain_but_due(&self) -> bool {
        *self == Self { due: self.due, ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRef<'a> {
    /// The name is given by the producer.
    Bytes(&'a [u8]),
    /// The name is a keyed hash of the payload.
    PayloadHash(u128),
}

impl NameRef<'_> {
    pub fn to_owned(self) -> Name {
        match self {
            Self::Bytes(bytes) => Name::Bytes(bytes.into()),
            Self::PayloadHash(hash) => Name::PayloadHash(hash.to_le_bytes()),
        }
    }
}

impl Name {
    pub fn as_ref(&self) -> NameRef<'_> {
        match self {
            Self::Bytes(bytes) => NameRef::Bytes(bytes),
            Self::PayloadHash(hash) => NameRef::PayloadHash(u128::from_le_bytes(*hash)),
        }
    }
}

/// All data of one task.
#[derive(Clone, Debug, PartialEq)]
pub struct FullTask<'a> {
    pub queue: QueueNo,
    pub id: TaskId,
    pub payload: &'a [u8],
    pub pushed: LogTime,
    pub state: TaskState,
    /// The negated priority that was decoded for a ready task, if it disagrees with the priority. No queue accepts
    /// such a task; the field keeps decoding and encoding exact.
    pub stray_neg_priority: Option<i16>,
    /// The incarnation of the store at the last delivery.
    pub incarnation: u64,
    pub deliveries: u32,
    /// The tries, by how they ended.
    pub tries: Tries,
    /// Whether it was cancelled while leased.
    pub cancelled: bool,
    /// Whether it was requeued after a lapse or a lost worker, so that an ack of its id still finishes it.
    pub late_ack: bool,
    /// The options. `due` is unused, because the state contains it.
    pub fields: Fields<'a>,
    /// The reason of its last failure or death.
    pub reason: Option<&'a [u8]>,
    /// The last deliveries that are over.
    pub past: &'a [Past],
}

/// The counters of a queue. They complete its name, settings and tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// The highest id so far, or [`TaskId::NONE`].
    pub last_id: TaskId,
    pub totals: Totals,
    /// The number of the last delivery.
    pub seq: u64,
    /// The newest group at the front.
    pub front_group: u64,
    /// The last `OrderKey::minor` that was used or reserved.
    pub minor: u64,
    /// The flood of due tasks that is under way, if any.
    pub flood: Option<Flood>,
    /// The time since which the queue is paused.
    pub paused: Option<LogTime>,
}

/// Totals of a queue since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Totals {
    /// Tasks added, including those moved from other queues.
    pub pushed: u64,
    pub finished: u64,
    /// Tasks removed in other ways, including those moved to other queues.
    pub removed: u64,
}

impl Totals {
    /// The number of tasks that follows from the totals; `None` if they contradict each other.
    pub fn left(self) -> Option<u64> {
        self.pushed.checked_sub(self.finished)?.checked_sub(self.removed)
    }
}

/// Delayed tasks that are due, but too many for one step. Order keys are reserved for all of them, so that they stay
/// together across slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flood {
    /// The clock, and the time by which its tasks are due.
    pub upto: Due,
    /// The `OrderKey::major` of its tasks.
    pub major: i64,
    /// The last reserved `OrderKey::minor` that was used.
    pub minor: u64,
    /// The last reserved `OrderKey::minor`.
    pub end: u64,
}

impl Due {
    /// The time in milliseconds, as events encode it.
    pub const fn raw(self) -> u64 {
        match self {
            Self::Log(LogTime(ms)) | Self::Wall(WallTime(ms)) => ms,
        }
    }

    /// The same clock at another time.
    #[must_use]
    pub const fn at(self, ms: u64) -> Self {
        match self {
            Self::Log(_) => Self::Log(LogTime(ms)),
            Self::Wall(_) => Self::Wall(WallTime(ms)),
        }
    }
}
