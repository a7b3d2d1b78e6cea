//! Replies, before a dialect encodes them.
//!
//! The replies to a batch of commands share a few growing lists ([`Replies`]), so that a reply needs no allocation of
//! its own: a [`Reply`] is a small value that refers to them.

mod explanation;

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::mem;
use core::ops::Range;

use crate::id::{Receipt, TaskId};
use crate::settings::Settings;
use crate::task::{StateKind, Tries};
use crate::time::LogTime;

pub use explanation::{Explanation, HeldUp, Why};

/// The capacity of each list, in items, that is kept from one batch of commands to the next.
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

    pub const fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The same range after `items` items were inserted before it.
    const fn behind(self, items: usize) -> Self {
        Self { start: self.start + items as u32, end: self.end + items as u32 }
    }

    /// The range as a type to index with.
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

    /// Appends the replies to further commands and maps their payloads. `more` becomes empty and keeps some capacity.
    pub fn append_mapped<C>(&mut self, more: &mut Replies<C>, mut map: impl FnMut(C) -> B) {
        if self.is_empty() {
            return self.take_mapped(more, map);
        }
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

    fn is_empty(&self) -> bool {
        let Self { list, ids, tasks, indexes, queues, receipts, workers, foreign_ids } = self;
        list.is_empty()
            && ids.is_empty()
            && tasks.is_empty()
            && indexes.is_empty()
            && queues.is_empty()
            && receipts.is_empty()
            && workers.is_empty()
            && foreign_ids.is_empty()
    }

    /// Appends to no replies: nothing but the tasks has to be moved one by one.
    fn take_mapped<C>(&mut self, more: &mut Replies<C>, mut map: impl FnMut(C) -> B) {
        mem::swap(&mut self.list, &mut more.list);
        mem::swap(&mut self.ids, &mut more.ids);
        self.tasks.extend(more.tasks.drain(..).map(|task| task.map_body(&mut map)));
        mem::swap(&mut self.indexes, &mut more.indexes);
        mem::swap(&mut self.queues, &mut more.queues);
        mem::swap(&mut self.receipts, &mut more.receipts);
        mem::swap(&mut self.workers, &mut more.workers);
        mem::swap(&mut self.foreign_ids, &mut more.foreign_ids);
    }
}

/// The reply to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// PUSH: the ids, in order.
    Pushed(Span),
    /// ADD: the task with the name, and whether this call added it.
    Added {
        id: TaskId,
        /// False if the name was in use.
        added: bool,
        /// The state of the task.
        state: StateKind,
    },
    /// PUSH in a home with its own form of ids: the ids, in order.
    PushedForeign(Span),
    /// ADD in a home with its own form of ids.
    AddedForeign {
        /// The index of the task's id in [`Replies::foreign_ids`].
        at: u32,
        /// False if the name was in use.
        added: bool,
        /// The state of the task.
        state: StateKind,
    },
    /// POP and RECOVER: the leased tasks.
    Tasks(Span),
    /// POP with BLOCK: the timeout passed without a task.
    TimedOut,
    /// ACK: the tasks that this call finished, by index.
    Acked(Span),
    /// EXTEND, RETURN: the outcome.
    Outcome(Outcome),
    /// INSPECT: the tasks.
    Inspected(Span),
    Info(Box<Info>),
    /// A number of tasks.
    Count(u64),
    /// Success without a result.
    Ok,
    /// CONFIG: the settings as they are now.
    Settings(Box<Settings>),
    /// QUEUES: a page of the list.
    Queues {
        /// The cursor of the next page; 0 if there is none.
        cursor: u64,
        /// The rows of this page.
        rows: Span,
    },
    /// EXPLAIN: the reason why the task is not being worked on, if the task exists.
    Explained(Option<Box<Explanation>>),
    /// WORKER START: the incarnation.
    Started(u64),
    /// WORKER BEAT: receipts of cancelled tasks and lapsed leases.
    Receipts(Span),
    /// WORKER BEAT in a home with its own form of ids: ids of cancelled tasks and lapsed leases.
    ReceiptsForeign(Span),
    Workers(Span),
    /// A refusal. The command changed nothing.
    Refused(Refusal),
}

/// The outcome of a command about one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command was executed.
    Done,
    /// The lease is not current; nothing was changed.
    Stale,
    /// The task has been cancelled, so its holder should stop. If the command was a return, the task is removed.
    Cancelled,
}

/// A task in a reply. The command decides which fields are meaningful.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskView<B> {
    /// The index of its queue in the list of queues of the command.
    pub queue: u32,
    /// The id; [`TaskId::NONE`] if `foreign_id` has it.
    pub id: TaskId,
    pub body: B,
    pub deliveries: u32,
    /// The incarnation of the store at the last delivery.
    pub incarnation: u64,
    /// A time by state: of the push (ready), the due time (delayed; by the clock of its delay), of the last delivery
    /// (leased), or of death (dead).
    pub at: LogTime,
    /// The milliseconds since `at`.
    pub elapsed_ms: u64,
    /// Details, if the command requests them.
    pub more: Option<Box<More>>,
    /// The id in a home with its own form of ids. Such a home has no receipts; the id serves as one. If `id` is none
    /// as well, the task gets its id when it is delivered.
    pub foreign_id: Option<Box<[u8]>>,
}

impl<B> TaskView<B> {
    /// The receipt of its last delivery.
    pub const fn receipt(&self) -> Receipt {
        Receipt { id: self.id, incarnation: self.incarnation, delivery: self.deliveries }
    }

    /// The same task with another payload.
    pub fn map_body<C>(self, map: impl FnOnce(B) -> C) -> TaskView<C> {
        let Self { queue, id, body, deliveries, incarnation, at, elapsed_ms, more, foreign_id } = self;
        TaskView { queue, id, body: map(body), deliveries, incarnation, at, elapsed_ms, more, foreign_id }
    }
}

/// Details of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct More {
    /// The name, if its producer chose one.
    pub name: Option<Box<[u8]>>,
    /// The tries, by how they ended.
    pub tries: Tries,
    /// The number of tries after which the task is dead.
    pub tries_max: u32,
    pub pushed: LogTime,
    /// The reason of the last failure.
    pub reason: Option<Box<[u8]>>,
}

/// The reply to INFO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// The number of ready tasks.
    pub ready: u64,
    /// The number of delayed tasks.
    pub delayed: u64,
    /// The number of leased tasks.
    pub leased: u64,
    /// The number of dead tasks.
    pub dead: u64,
    /// Payload bytes of ready and delayed tasks.
    pub waiting_bytes: u64,
    /// The milliseconds since the push of the task that is delivered next.
    pub oldest_ms: u64,
    /// The time since which the queue is paused.
    pub paused: Option<LogTime>,
    /// The number of tasks added since the queue was created.
    pub pushed: u64,
    /// The number of tasks finished since the queue was created.
    pub finished: u64,
    /// The approximate number of tasks added in the last ten seconds.
    pub pushed_of_late: u64,
    /// The approximate number of tasks finished in the last ten seconds.
    pub finished_of_late: u64,
    /// The number of workers that work on it.
    pub workers: u64,
    pub settings: Settings,
    /// Whether only `ready` and `leased` are known, because the home uses the layout of a program that has no other
    /// counts. All other fields have their default values.
    pub lengths_only: bool,
}

/// A row of QUEUES.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    pub name: Box<[u8]>,
    /// The numbers of ready, delayed, leased and dead tasks.
    pub counts: [u64; 4],
}

/// A row of WORKER LIST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRow {
    pub name: Box<[u8]>,
    pub incarnation: u64,
    /// The time to live without a heartbeat in milliseconds.
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
    /// An argument is larger than a limit allows.
    TooLarge {
        what: &'static str,
        /// The limit, in bytes.
        max: usize,
    },
    /// A list is longer than a limit allows.
    TooMany {
        /// The items of the list, in the plural.
        what: &'static str,
        max: usize,
    },
    /// An argument is outside of its range.
    OutOfRange { what: &'static str },
    /// The home of the queue does not support this.
    NotThere {
        what: Cow<'static, str>,
        /// The home, as in its URL.
        place: Cow<'static, str>,
    },
    /// A key that belongs to the queue holds a value of another type.
    WrongType {
        /// The key, in the form of Redis' error replies.
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
    /// All ids are used up: it is the year 2109.
    NoMoreIds,
    /// The log failed. The home confirms no further commands.
    Poisoned,
    /// The server that stores the queue found its state inconsistent and does not execute commands on it.
    QueuePoisoned {
        /// The cause, and what to do.
        why: Box<str>,
    },
    /// The home was closed.
    Closed,
    /// The payload of a task cannot be read.
    Damaged {
        id: TaskId,
        /// The error, with file and offset.
        why: Box<str>,
    },
    /// The server that stores the queue refused with an error of its own.
    Foreign {
        /// Its error message, without the code.
        message: Box<str>,
    },
    /// The server that stores the queue cannot be reached.
    Unavailable {
        /// The reason, and what to do.
        why: Box<str>,
    },
    /// The reply of the server that stores the queue is lost. The command may or may not have been executed.
    Unknown { why: Box<str> },
}

impl Refusal {
    /// The refusal for a feature that a home does not have.
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
            Self::Poisoned | Self::QueuePoisoned { .. } => "POISONED",
            Self::Closed => "CLOSED",
            Self::Damaged { .. } => "DAMAGED",
            Self::Unavailable { .. } => "UNAVAILABLE",
            Self::Unknown { .. } => "UNKNOWN",
            Self::MalformedId
            | Self::TooLarge { .. }
            | Self::TooMany { .. }
            | Self::OutOfRange { .. }
            | Self::Foreign { .. }
            | Self::NoMoreIds => "ERR",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MalformedId => {
                f.write_str("malformed task id: expected <ms>-<seq> as a push returns it, or a receipt")
            }
            Self::TooLarge { what, max } => write!(f, "{what} is too large: at most {max} bytes"),
            Self::TooMany { what, max } => {
                write!(f, "too many {what}: at most {max} in one command; send several commands")
            }
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
            Self::NoMoreIds => f.write_str("the store has used up all task ids"),
            Self::Closed => f.write_str("the store is closed: connect to it again once it is open"),
            Self::Damaged { id, why } => write!(f, "the payload of task {id} cannot be read: {why}"),
            Self::Foreign { message: words } | Self::WrongType { words } => f.write_str(words),
            Self::Unavailable { why } => write!(f, "nothing was done: {why}"),
            Self::Unknown { why } => write!(f, "outcome unknown: {why}"),
            Self::QueuePoisoned { why } => f.write_str(why),
            Self::Poisoned => f.write_str("the log failed: restart the server once its disk is sound"),
        }
    }
}
