//! What is recorded: every decision, and nothing that was not decided.
//!
//! Events, not commands, are logged, so that a later release which decides differently does not change the past.
//! They are run-encoded: a pop of a hundred neighbours, or a million tasks that are due at once, is one event.
//! Applying an event never asks what time it is: [`Event::Clock`] says so, once for all that follow.

mod lists;

use crate::command::LapsePolicy;
use crate::id::TaskId;
use crate::settings::Settings;
use crate::task::{Body, Cause, Due, Holder, Name, Past, StateKind, TaskState, Tries};
use crate::time::{LogTime, WallTime};

pub use lists::{Ids, Payloads};

/// The number a queue goes by inside a store, for as long as the store remembers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueNo(pub u32);

/// Takes down what is decided, and makes the handles of new payloads.
pub trait Recorder {
    /// The handle this recorder makes of a payload.
    type Body: Body;

    /// Takes down one event. Events of one command are one unit: all of them last, or none.
    fn record(&mut self, event: &Event<'_>);

    /// The event recorded last was about so many tasks, which it neither lists nor counts: those that fell due, those
    /// that a resumed queue hands out again, those that went with their queue. Not called at replay.
    fn note_task_count(&mut self, _tasks: usize) {}

    /// The handle of payload number `index` of the event recorded last.
    fn new_body(&mut self, index: usize, payload: &[u8]) -> Self::Body;

    /// A hash of the payload that nobody without the store's key can aim at.
    fn payload_hash(&self, payload: &[u8]) -> u128;

    /// A handle that leaves the state for good: its task is finished, removed, or dropped with its queue, or has
    /// got a new handle. Called exactly once for each handle that [`Recorder::new_body`] made, at replay too.
    fn release_body(&mut self, body: Self::Body);
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// The store was opened: a new incarnation, in which leases are good for a while again.
    Started {
        /// The incarnation.
        incarnation: u64,
        /// Log time then.
        time: LogTime,
    },
    /// Log time moved on; all that follows happened now.
    Clock(LogTime),
    /// A queue got a number.
    QueueMade {
        /// The number.
        queue: QueueNo,
        /// The name.
        name: &'a [u8],
    },
    /// A queue without tasks, settings or pause was forgotten, and its number is free.
    QueueGone(QueueNo),
    /// A queue was deleted with all that is in it.
    QueueDropped(QueueNo),
    /// Tasks were added, with ids in sequence from `first`.
    Pushed {
        /// To this queue.
        queue: QueueNo,
        /// The id of the first.
        first: TaskId,
        /// One task each.
        payloads: Payloads<'a>,
        /// What else is known of them all.
        fields: Fields<'a>,
    },
    /// Ready tasks were handed out, in this order.
    Popped {
        /// Of this queue.
        queue: QueueNo,
        /// These.
        ids: Ids<'a>,
        /// On these terms; `length_ms` counts from now.
        terms: LeaseTerms,
    },
    /// Leased tasks were handed out again, to someone else, on the same terms.
    Recovered {
        /// Of this queue.
        queue: QueueNo,
        /// These.
        ids: Ids<'a>,
    },
    /// Tasks were finished.
    Finished {
        /// Of this queue.
        queue: QueueNo,
        /// These.
        ids: Ids<'a>,
    },
    /// A lease was given a new deadline, `length_ms` from now.
    Extended {
        /// Of this queue.
        queue: QueueNo,
        /// This task.
        id: TaskId,
        /// From now.
        length_ms: u64,
    },
    /// Leased tasks wait again.
    Returned {
        /// Of this queue.
        queue: QueueNo,
        /// These, in this order.
        ids: Ids<'a>,
        /// Where.
        to: Landing,
        /// Why.
        cause: Cause,
        /// In its worker's words.
        reason: Option<&'a [u8]>,
    },
    /// Tasks were given up.
    Died {
        /// Of this queue.
        queue: QueueNo,
        /// These, in this order.
        ids: Ids<'a>,
        /// What the last try was spent on.
        cause: Cause,
        /// In words.
        reason: Option<&'a [u8]>,
    },
    /// Tasks are gone without having been finished.
    Removed {
        /// Of this queue.
        queue: QueueNo,
        /// These.
        ids: Ids<'a>,
        /// Why.
        why: Removal,
    },
    /// All tasks of a queue that wait or are dead are gone, or all of one of these states: too many to be listed.
    Purged {
        /// Of this queue.
        queue: QueueNo,
        /// Which of them.
        what: Purge,
    },
    /// Leased tasks were cancelled; their holders will be told.
    Marked {
        /// Of this queue.
        queue: QueueNo,
        /// These.
        ids: Ids<'a>,
    },
    /// Delayed tasks became ready: all of one clock up to and including `last`, in order of (due, id).
    DueCame {
        /// Of this queue.
        queue: QueueNo,
        /// All events with the same `upto` are slices of one flood, and stand together in the line.
        upto: Due,
        /// When the last of them was due.
        last_due: u64,
        /// Its id.
        last_id: TaskId,
    },
    /// All leases of a holder in this queue are over. Its tasks wait again, slice by slice, as [`Self::Returned`] and the like
    /// tell; none of them is its holder's any more.
    HolderEnded {
        /// In this queue.
        queue: QueueNo,
        /// Whose.
        holder: Holder,
        /// What it costs its tasks.
        cause: Cause,
    },
    /// Dead tasks wait again, at the end of the line.
    Revived {
        /// Of this queue.
        queue: QueueNo,
        /// These, in this order.
        ids: Ids<'a>,
    },
    /// All dead tasks of a queue wait again, at the end of the line. They are moved slice by slice, as [`Self::Revived`] tells.
    AllRevived(QueueNo),
    /// A dead task moved to the end of another queue.
    Moved {
        /// From this queue.
        from: QueueNo,
        /// This task.
        id: TaskId,
        /// To this queue.
        to: QueueNo,
    },
    /// A queue was paused.
    Paused(QueueNo),
    /// A queue was resumed.
    Resumed(QueueNo),
    /// A queue has these settings now.
    Configured {
        /// This queue.
        queue: QueueNo,
        /// All of them.
        settings: &'a Settings,
    },
    /// A worker came alive.
    WorkerStarted {
        /// Its name.
        name: &'a [u8],
        /// Its incarnation.
        incarnation: u64,
        /// How long it lives without a beat.
        ttl_ms: u64,
    },
    /// A worker is gone.
    WorkerEnded(u64),
    /// A worker works on a queue.
    Worked {
        /// The worker.
        incarnation: u64,
        /// The queue.
        queue: QueueNo,
    },
    /// A worker no longer works on a queue.
    Rested {
        /// The worker.
        incarnation: u64,
        /// The queue.
        queue: QueueNo,
    },
    /// A task, whole: for copying forward, checkpoints and imports.
    Task(&'a FullTask<'a>),
    /// What a queue has counted: ends its part of a checkpoint.
    Counted {
        /// This queue.
        queue: QueueNo,
        /// As of then.
        counters: &'a Counters,
    },
    /// All ids up to this one were given out.
    IdsUpto(TaskId),
    /// How far something outside has been taken in, so that a move between homes is exact.
    Mark {
        /// What.
        source: &'a [u8],
        /// How far.
        cursor: &'a [u8],
    },
}

impl Event<'_> {
    /// The one queue it is about, if it is about one.
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

/// What a purge takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purge {
    /// All that is not leased. What waits again already, though it has not been moved yet, is not leased.
    All,
    /// What is ready.
    Ready,
    /// What is delayed.
    Delayed,
    /// What is dead.
    Dead,
}

impl Purge {
    /// Whether it takes away what is in this state.
    pub fn takes(self, kind: StateKind) -> bool {
        match self {
            Self::All => kind != StateKind::Leased,
            Self::Ready => kind == StateKind::Ready,
            Self::Delayed => kind == StateKind::Delayed,
            Self::Dead => kind == StateKind::Dead,
        }
    }
}

/// Why a task is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It was cancelled.
    Cancelled,
    /// Its time to live was over.
    Expired,
    /// Someone deleted it.
    Deleted,
    /// It made room in a full queue.
    Dropped,
    /// It lapsed too often, and its lease said so.
    Lapsed,
}

/// Where a task lands that waits again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// At the front. What has the same group stands together, in order; a later group stands before it.
    Front {
        /// The group.
        group: u64,
    },
    /// At the back.
    Back,
    /// Nowhere yet: it is due then.
    Delayed(LogTime),
}

/// On what terms tasks are handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTerms {
    /// How long, from now.
    pub length_ms: Option<u64>,
    /// By whom.
    pub holder: Option<Holder>,
    /// What a lapse does.
    pub lapse: Option<LapsePolicy>,
}

/// What a push may say besides the payload. More can be added without a new format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields<'a> {
    /// Not to be handed out before.
    pub due: Option<Due>,
    /// Larger first.
    pub priority: i8,
    /// Its name.
    pub name: Option<NameRef<'a>>,
    /// Tries before it is dead.
    pub tries_max: Option<u32>,
    /// The first wait of its backoff.
    pub backoff_ms: Option<u64>,
    /// When its time to live is over.
    pub expires: Option<LogTime>,
    /// The trace context of its producer.
    pub trace: Option<&'a [u8]>,
}

impl Fields<'_> {
    /// Whether there is nothing to say, so that the task needs no record of its own.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Whether there is nothing to say but when it is due, which needs no record either.
    pub fn is_plain_but_due(&self) -> bool {
        *self == Self { due: self.due, ..Self::default() }
    }
}

/// A name, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRef<'a> {
    /// What the producer chose.
    Bytes(&'a [u8]),
    /// A keyed hash of the payload.
    PayloadHash(u128),
}

impl NameRef<'_> {
    /// A name of its own.
    pub fn to_owned(self) -> Name {
        match self {
            Self::Bytes(bytes) => Name::Bytes(bytes.into()),
            Self::PayloadHash(hash) => Name::PayloadHash(hash.to_le_bytes()),
        }
    }
}

impl Name {
    /// Borrowed.
    pub fn as_ref(&self) -> NameRef<'_> {
        match self {
            Self::Bytes(bytes) => NameRef::Bytes(bytes),
            Self::PayloadHash(hash) => NameRef::PayloadHash(u128::from_le_bytes(*hash)),
        }
    }
}

/// All that is known of one task.
#[derive(Clone, Debug, PartialEq)]
pub struct FullTask<'a> {
    /// Its queue.
    pub queue: QueueNo,
    /// Its id.
    pub id: TaskId,
    /// Its payload.
    pub payload: &'a [u8],
    /// When it was pushed.
    pub pushed: LogTime,
    /// Where it is in its life.
    pub state: TaskState,
    /// The negated priority that a ready task was read with, if it disagrees with the priority. No queue accepts such a task;
    /// the field keeps decoding and encoding exact.
    pub stray_neg_priority: Option<i16>,
    /// The incarnation of the store that delivered it last.
    pub incarnation: u64,
    /// How often it was delivered.
    pub deliveries: u32,
    /// What its tries were spent on.
    pub tries: Tries,
    /// Cancelled while leased.
    pub cancelled: bool,
    /// Waits again after a lapse.
    pub late_ack: bool,
    /// Name, priority, limits; `due` is part of the state instead.
    pub fields: Fields<'a>,
    /// Why it failed or died last.
    pub reason: Option<&'a [u8]>,
    /// Its last deliveries.
    pub past: &'a [Past],
}

/// What a queue has counted: with its name, settings and tasks, all there is to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// The highest id it has seen, [`TaskId::NONE`] if it has seen none.
    pub last_id: TaskId,
    /// What has happened to it.
    pub totals: Totals,
    /// The number of its last delivery.
    pub seq: u64,
    /// The newest group at the front of its line.
    pub front_group: u64,
    /// The last minor rank that it gave out or set aside.
    pub minor: u64,
    /// The flood it is in the middle of.
    pub flood: Option<Flood>,
    /// Since when it is paused.
    pub paused: Option<LogTime>,
}

/// What has happened to a queue since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Totals {
    /// Tasks accepted, also from other queues.
    pub pushed: u64,
    /// Tasks finished.
    pub finished: u64,
    /// Tasks gone otherwise, also to other queues.
    pub removed: u64,
}

impl Totals {
    /// How many tasks there must be now, if these can be true.
    pub fn left(self) -> Option<u64> {
        self.pushed.checked_sub(self.finished)?.checked_sub(self.removed)
    }
}

/// Delayed tasks that are due but more than one step can move. They stand in the line together, wherever the
/// slice ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flood {
    /// It takes all that were due by then.
    pub upto: Due,
    /// Where it stands in the line.
    pub major: i64,
    /// The last of its places that was given out.
    pub minor: u64,
    /// The last that was set aside for it.
    pub end: u64,
}

impl Due {
    /// The number that stands in the log.
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
