//! Replies, before a dialect encodes them.
//!
//! The replies to a batch of commands share a few growing lists ([`Replies`]), so that a reply needs no allocation of
//! its own: a [`Reply`] is a small value that points into them.

mod explanation;

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use crate::id::{Receipt, TaskId};
use crate::settings::Settings;
use crate::task::{StateKind, Tries};
use crate::time::LogTime;

pub use explanation::{Explanation, HeldUp, Why};

/// The capacity, in items of a kind, that is kept from one batch of commands to the next.
const ROOM_KEPT: usize = 4 << 10;

/// A range of one of the lists of [`Replies`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// The range from `start` to before `end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// The number of items.
    pub const fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether it has no items.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The same range after `items` items were inserted before it.
    const fn behind(self, items: usize) -> Self {
        Self { start: self.start + items as u32, end: self.end + items as u32 }
    }

    /// As a range to index with.
    pub const fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// The replies to a batch of commands, in order.
#[derive(Clone, Debug)]
pub struct Replies<B> {
    /// One reply for each executed command.
    pub list: Vec<Reply>,
    /// The target of [`Reply::Pushed`].
    pub ids: Vec<TaskId>,
    /// The target of [`Reply::Tasks`] and [`Reply::Inspected`].
    pub tasks: Vec<TaskView<B>>,
    /// The target of [`Reply::Acked`]: indexes of the command's tasks that were finished.
    pub indexes: Vec<u32>,
    /// The target of [`Reply::Queues`].
    pub queues: Vec<QueueRow>,
    /// The target of [`Reply::Receipts`].
    pub receipts: Vec<Receipt>,
    /// The target of [`Reply::Workers`].
    pub workers: Vec<WorkerRow>,
    /// The target of [`Reply::PushedForeign`], [`Reply::AddedForeign`] and [`Reply::ReceiptsForeign`]: ids in another
    /// home's own form; `None` for a task that has no id before it is delivered.
    pub foreign_ids: Vec<Option<Box<[u8]>>>,
}

impl<B> Default for Replies<B> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            ids: Vec::new(),
            tasks: Vec::new(),
            indexes: Vec::new(),
            queues: Vec::new(),
            receipts: Vec::new(),
            workers: Vec::new(),
            foreign_ids: Vec::new(),
        }
    }
}

impl<B> Replies<B> {
    /// Removes all replies and keeps the capacity, up to a limit.
    pub fn clear(&mut self) {
        fn clear<T>(list: &mut Vec<T>) {
            list.clear();
            list.shrink_to(ROOM_KEPT);
        }
        clear(&mut self.list);
        clear(&mut self.ids);
        clear(&mut self.tasks);
        clear(&mut self.indexes);
        clear(&mut self.queues);
        clear(&mut self.receipts);
        clear(&mut self.workers);
        clear(&mut self.foreign_ids);
    }
}

impl<B> Replies<B> {
    /// Appends the replies to further commands.
    pub fn append(&mut self, mut more: Self) {
        self.append_mapped(&mut more, |body| body);
    }

    /// The same replies with other payloads. Only the tasks are copied.
    pub fn map_bodies<C>(self, mut map: impl FnMut(B) -> C) -> Replies<C> {
        let Self { list, ids, tasks, indexes, queues, receipts, workers, foreign_ids } = self;
        let tasks = tasks.into_iter().map(|task| task.map_body(&mut map)).collect();
        Replies { list, ids, tasks, indexes, queues, receipts, workers, foreign_ids }
    }

    /// Moves the replies to further commands behind these and maps their payloads. `more` keeps its capacity.
    pub fn append_mapped<C>(&mut self, more: &mut Replies<C>, mut map: impl FnMut(C) -> B) {
        for reply in more.list.drain(..) {
            self.list.push(match reply {
                Reply::Pushed(span) => Reply::Pushed(span.behind(self.ids.len())),
                Reply::Tasks(span) => Reply::Tasks(span.behind(self.tasks.len())),
                Reply::Inspected(span) => Reply::Inspected(span.behind(self.tasks.len())),
                Reply::Acked(span) => Reply::Acked(span.behind(self.indexes.len())),
                Reply::Receipts(span) => Reply::Receipts(span.behind(self.receipts.len())),
                Reply::Workers(span) => Reply::Workers(span.behind(self.workers.len())),
                Reply::Queues { cursor, rows } => {
                    Reply::Queues { cursor, rows: rows.behind(self.queues.len()) }
                }
                Reply::PushedForeign(span) => Reply::PushedForeign(span.behind(self.foreign_ids.len())),
                Reply::AddedForeign { at, added, state } => {
                    Reply::AddedForeign { at: at + self.foreign_ids.len() as u32, added, state }
                }
                Reply::ReceiptsForeign(span) => Reply::ReceiptsForeign(span.behind(self.foreign_ids.len())),
                other => other,
            });
        }
        self.ids.append(&mut more.ids);
        self.tasks.extend(more.tasks.drain(..).map(|task| task.map_body(&mut map)));
        self.indexes.append(&mut more.indexes);
        self.queues.append(&mut more.queues);
        self.receipts.append(&mut more.receipts);
        self.workers.append(&mut more.workers);
        self.foreign_ids.append(&mut more.foreign_ids);
    }
}

/// The reply to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// PUSH: the ids, in order.
    Pushed(Span),
    /// ADD: the task that has the name, and whether this call added it.
    Added {
        /// The task's id.
        id: TaskId,
        /// False if the name was taken.
        added: bool,
        /// The state it is in.
        state: StateKind,
    },
    /// PUSH in a home with its own form of ids: the ids, in order.
    PushedForeign(Span),
    /// ADD in a home with its own form of ids.
    AddedForeign {
        /// The index of the task's id in [`Replies::foreign_ids`].
        at: u32,
        /// False if the name was taken.
        added: bool,
        /// The state it is in.
        state: StateKind,
    },
    /// POP and RECOVER: the leased tasks.
    Tasks(Span),
    /// POP with BLOCK: no task came in time.
    TimedOut,
    /// ACK: the tasks that this call finished, by index.
    Acked(Span),
    /// EXTEND, RETURN: the outcome.
    Outcome(Outcome),
    /// INSPECT: the tasks.
    Inspected(Span),
    /// INFO.
    Info(Box<Info>),
    /// A number of tasks.
    Count(u64),
    /// Done.
    Ok,
    /// CONFIG: the settings as they are now.
    Settings(Box<Settings>),
    /// QUEUES: a page of the list.
    Queues {
        /// Where the next page begins; 0 if there is none.
        cursor: u64,
        /// This page.
        rows: Span,
    },
    /// EXPLAIN: why the task is not being worked on, if it exists.
    Explained(Option<Box<Explanation>>),
    /// WORKER START: the incarnation.
    Started(u64),
    /// WORKER BEAT: receipts of cancelled tasks and lapsed leases.
    Receipts(Span),
    /// WORKER BEAT in a home with its own form of ids: ids of cancelled tasks and lapsed leases.
    ReceiptsForeign(Span),
    /// WORKER LIST.
    Workers(Span),
    /// A refusal. The command changed nothing.
    Refused(Refusal),
}

/// The outcome of a command about one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// The lease is not current; nothing was done.
    Stale,
    /// The task has been cancelled: its holder should stop. A return has removed it.
    Cancelled,
}

/// A task in a reply. The command decides which fields have a meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskView<B> {
    /// Its queue, as an index into the queues that the command named.
    pub queue: u32,
    /// Its id; [`TaskId::NONE`] if `foreign_id` has it.
    pub id: TaskId,
    /// Its payload.
    pub body: B,
    /// How many times it was delivered.
    pub deliveries: u32,
    /// The incarnation of the store that delivered it last.
    pub incarnation: u64,
    /// When it was pushed (ready), is due (delayed; log or wall, as it was asked for), was delivered last (leased),
    /// or died (dead).
    pub at: LogTime,
    /// How long ago that is.
    pub elapsed_ms: u64,
    /// Details, if the command asked for them.
    pub more: Option<Box<More>>,
    /// Its id in a home with its own form of ids. Such a home has no receipts; the id serves as one. If `id` is none as
    /// well, the task gets its id when it is delivered.
    pub foreign_id: Option<Box<[u8]>>,
}

impl<B> TaskView<B> {
    /// The receipt of its last delivery.
    pub const fn receipt(&self) -> Receipt {
        Receipt { id: self.id, incarnation: self.incarnation, delivery: self.deliveries }
    }

    /// The same with another payload.
    pub fn map_body<C>(self, map: impl FnOnce(B) -> C) -> TaskView<C> {
        let Self { queue, id, body, deliveries, incarnation, at, elapsed_ms, more, foreign_id } = self;
        TaskView { queue, id, body: map(body), deliveries, incarnation, at, elapsed_ms, more, foreign_id }
    }
}

/// Details of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct More {
    /// Its name, if its producer chose one.
    pub name: Option<Box<[u8]>>,
    /// Its tries, by how they ended.
    pub tries: Tries,
    /// The number of tries after which it is dead.
    pub tries_max: u32,
    /// When it was pushed.
    pub pushed: LogTime,
    /// Why it last failed.
    pub reason: Option<Box<[u8]>>,
}

/// The reply to INFO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Ready tasks.
    pub ready: u64,
    /// Delayed tasks.
    pub delayed: u64,
    /// Leased tasks.
    pub leased: u64,
    /// Dead tasks.
    pub dead: u64,
    /// Payload bytes of ready and delayed tasks.
    pub waiting_bytes: u64,
    /// The time since the push of the task that is delivered next.
    pub oldest_ms: u64,
    /// The time since which the queue is paused.
    pub paused: Option<LogTime>,
    /// Tasks added since the queue was created.
    pub pushed: u64,
    /// Tasks finished since the queue was created.
    pub finished: u64,
    /// Tasks added in about the last ten seconds.
    pub pushed_of_late: u64,
    /// Tasks finished in about the last ten seconds.
    pub finished_of_late: u64,
    /// The number of workers that work on it.
    pub workers: u64,
    /// Its settings.
    pub settings: Settings,
    /// Whether only `ready` and `leased` are known, because the home uses the layout of a program that counts nothing
    /// else. All other fields have their default values.
    pub lengths_only: bool,
}

/// One line of QUEUES.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// The queue's name.
    pub name: Box<[u8]>,
    /// Ready, delayed, leased, dead.
    pub counts: [u64; 4],
}

/// One line of WORKER LIST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRow {
    /// The worker's name.
    pub name: Box<[u8]>,
    /// Its incarnation.
    pub incarnation: u64,
    /// How long it lives without a heartbeat.
    pub ttl_ms: u64,
    /// The number of tasks that it holds.
    pub leased: u64,
}

/// A refusal, with a stable code. A refused command changed nothing; only `RQ.CANCEL PAYLOAD` may be refused after part
/// of its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A task reference is not an id of this home.
    MalformedId,
    /// Larger than a limit allows.
    TooLarge {
        /// The thing that is too large.
        what: &'static str,
        /// The limit, in bytes.
        max: usize,
    },
    /// More than a limit allows.
    TooMany {
        /// The things that are too many, in the plural.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// An argument is outside of its range.
    OutOfRange {
        /// The argument.
        what: &'static str,
    },
    /// The home of the queue does not support this.
    NotThere {
        /// The feature.
        what: Cow<'static, str>,
        /// The home, as in its URL.
        place: Cow<'static, str>,
    },
    /// A key that belongs to the queue holds a value of another type.
    WrongType {
        /// The key, as error replies show it.
        words: Box<str>,
    },
    /// The queue has as many tasks or bytes as its settings allow.
    QueueFull,
    /// The incarnation of the worker is no longer alive, and no other worker of its name is.
    WorkerGone,
    /// Another worker of the same name was started later and is alive.
    WorkerReplaced,
    /// The disk has no room for more tasks.
    NoSpace,
    /// The home has used up its memory limit.
    OutOfMemory,
    /// There are no more ids: it is the year 2109.
    NoMoreIds,
    /// The log failed. The home confirms nothing any more.
    Poisoned,
    /// The home was closed.
    Closed,
    /// The payload of a task cannot be read.
    Damaged {
        /// The task.
        id: TaskId,
        /// The error, and its place.
        why: Box<str>,
    },
    /// The server that stores the queue refused in its own words.
    Said {
        /// Its error message, without the code.
        words: Box<str>,
    },
    /// The server that stores the queue cannot be reached.
    Unavailable {
        /// The reason, and what to do.
        why: Box<str>,
    },
    /// The reply of the server that stores the queue is lost. The command may have been executed or not.
    Unknown {
        /// What happened.
        why: Box<str>,
    },
}

impl Refusal {
    /// The feature does not exist at that place.
    pub const fn not_there(what: &'static str, place: &'static str) -> Self {
        Self::NotThere { what: Cow::Borrowed(what), place: Cow::Borrowed(place) }
    }

    /// The code that an error reply begins with.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::WrongType { .. } => "WRONGTYPE",
            Self::QueueFull => "QUEUEFULL",
            Self::WorkerGone | Self::WorkerReplaced => "GONE",
            Self::NotThere { .. } => "NOTTHERE",
            Self::NoSpace => "NOSPACE",
            Self::OutOfMemory => "OOM",
            Self::Poisoned => "POISONED",
            Self::Closed => "CLOSED",
            Self::Damaged { .. } => "DAMAGED",
            Self::Unavailable { .. } => "UNAVAILABLE",
            Self::Unknown { .. } => "UNKNOWN",
            Self::MalformedId
            | Self::TooLarge { .. }
            | Self::TooMany { .. }
            | Self::OutOfRange { .. }
            | Self::Said { .. }
            | Self::NoMoreIds => "ERR",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MalformedId => {
                f.write_str("malformed task id: expected <ms>-<seq> as a push answers it, or a receipt")
            }
            Self::TooLarge { what, max } => write!(f, "{what} is too large: at most {max} bytes"),
            Self::TooMany { what, max } => write!(f, "too many {what}: at most {max}"),
            Self::OutOfRange { what } => write!(f, "{what} is out of range"),
            Self::NotThere { what, place } => write!(f, "{place} has no {what}"),
            Self::QueueFull => {
                f.write_str("the queue is full: raise MAX-LENGTH or MAX-BYTES, or let workers catch up")
            }
            Self::WorkerGone => f.write_str("this worker is no longer alive: start it anew"),
            Self::WorkerReplaced => {
                f.write_str("replaced: another worker of this name was started; give each worker a name of its own")
            }
            Self::NoSpace => {
                f.write_str("no space left on the disk of the store: pushes are refused until there is")
            }
            Self::OutOfMemory => {
                f.write_str(
                    "memory limit reached (--memory, or maxmemory of a Redis): pushes, new queues and workers, and pops \
                     that would wait are refused; let workers catch up, or raise the limit",
                )
            }
            Self::NoMoreIds => f.write_str("the store has given out its last id"),
            Self::Closed => f.write_str("the store is closed: connect to it again once it is open"),
            Self::Damaged { id, why } => write!(f, "the payload of task {id} cannot be read: {why}"),
            Self::Said { words } | Self::WrongType { words } => f.write_str(words),
            Self::Unavailable { why } => write!(f, "nothing was done: {why}"),
            Self::Unknown { why } => write!(f, "outcome unknown: {why}"),
            Self::Poisoned => f.write_str("the log failed: restart the server once its disk is sound"),
        }
    }
}
