//! What a queue answers, before any dialect puts it into bytes.
//!
//! Replies to a batch of commands share a few growing lists ([`Replies`]), so that answering a command allocates
//! nothing: a [`Reply`] is a small value that points into them.

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

/// Room for this many items of a kind is kept from one batch of commands to the next.
const ROOM_KEPT: usize = 4 << 10;

/// A stretch of one of the lists of [`Replies`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// From `start` to before `end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// How many items it spans.
    pub const fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether it spans none.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The same stretch of a list that so many items were put before.
    const fn behind(self, items: usize) -> Self {
        Self { start: self.start + items as u32, end: self.end + items as u32 }
    }

    /// As a range to index with.
    pub const fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// The answers to a batch of commands, in order.
#[derive(Clone, Debug)]
pub struct Replies<B> {
    /// One for each command that was executed.
    pub list: Vec<Reply>,
    /// What [`Reply::Pushed`] points into.
    pub ids: Vec<TaskId>,
    /// What [`Reply::Tasks`] and [`Reply::Inspected`] point into.
    pub tasks: Vec<TaskView<B>>,
    /// What [`Reply::Acked`] points into: which of the command's tasks were finished.
    pub indexes: Vec<u32>,
    /// What [`Reply::Queues`] points into.
    pub queues: Vec<QueueRow>,
    /// What [`Reply::Receipts`] points into.
    pub receipts: Vec<Receipt>,
    /// What [`Reply::Workers`] points into.
    pub workers: Vec<WorkerRow>,
    /// What [`Reply::PushedForeign`], [`Reply::AddedForeign`] and [`Reply::ReceiptsForeign`] point into: ids of a home that spells
    /// them its own way; none where a task has no id until it is handed out.
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
    /// Forgets all answers and keeps the room, but not that of a giant.
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

    /// Moves the replies to further commands behind these, and maps their payloads. `more` keeps its capacity.
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

/// The answer to one command.
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
    /// PUSH where the home spells ids its own way: the ids, in order.
    PushedForeign(Span),
    /// ADD where the home spells ids its own way.
    AddedForeign {
        /// Where in [`Replies::spelt`] the task's id stands.
        at: u32,
        /// False if the name was taken.
        added: bool,
        /// The state it is in.
        state: StateKind,
    },
    /// POP and RECOVER: the tasks handed out.
    Tasks(Span),
    /// POP with BLOCK: the time ran out.
    TimedOut,
    /// ACK: which of the tasks this call finished.
    Acked(Span),
    /// EXTEND, RETURN: what came of it.
    Outcome(Outcome),
    /// INSPECT: the tasks looked at.
    Inspected(Span),
    /// INFO.
    Info(Box<Info>),
    /// A number of tasks.
    Count(u64),
    /// Done.
    Ok,
    /// CONFIG: the settings as they are now.
    Settings(Box<Settings>),
    /// QUEUES: a page of them, and where the next begins (0: there is none).
    Queues {
        /// The next page.
        cursor: u64,
        /// This page.
        rows: Span,
    },
    /// EXPLAIN: why the task is not running, if there is such a task.
    Explained(Option<Box<Explanation>>),
    /// WORKER START: the incarnation.
    Started(u64),
    /// WORKER BEAT: receipts that are cancelled or lost.
    Receipts(Span),
    /// WORKER BEAT where the home spells ids its own way: those that are cancelled or lost.
    ReceiptsForeign(Span),
    /// WORKER LIST.
    Workers(Span),
    /// No, and why. Nothing was changed.
    Refused(Refusal),
}

/// What came of a call that concerns one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// The delivery is not current: nothing was done.
    Stale,
    /// The task has been cancelled: it is not to be run, and gone if it was given back.
    Cancelled,
}

/// A task as it is shown. Which fields mean something depends on the question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskView<B> {
    /// Which of the queues that the command named it is from.
    pub queue: u32,
    /// Its id; none where `spelt` has it.
    pub id: TaskId,
    /// Its payload.
    pub body: B,
    /// How often it was delivered.
    pub deliveries: u32,
    /// The incarnation of the store that delivered it last.
    pub incarnation: u64,
    /// When it was pushed (ready), is due (delayed; log or wall, as it was asked for), was delivered last (leased),
    /// or died (dead).
    pub at: LogTime,
    /// How long ago that is.
    pub elapsed_ms: u64,
    /// More, where it was asked for.
    pub more: Option<Box<More>>,
    /// Its id in a home that spells ids its own way. Such a home knows no receipts: the id stands for them too. Where `id` is
    /// none as well, the task gets its id when it is handed out.
    pub foreign_id: Option<Box<[u8]>>,
}

impl<B> TaskView<B> {
    /// The receipt of the current delivery.
    pub const fn receipt(&self) -> Receipt {
        Receipt { id: self.id, incarnation: self.incarnation, delivery: self.deliveries }
    }

    /// The same with another payload.
    pub fn map_body<C>(self, map: impl FnOnce(B) -> C) -> TaskView<C> {
        let Self { queue, id, body, deliveries, incarnation, at, elapsed_ms, more, foreign_id } = self;
        TaskView { queue, id, body: map(body), deliveries, incarnation, at, elapsed_ms, more, foreign_id }
    }
}

/// The rest of what is known of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct More {
    /// Its name, if it was given bytes.
    pub name: Option<Box<[u8]>>,
    /// What its tries were spent on.
    pub tries: Tries,
    /// How many it has.
    pub tries_max: u32,
    /// When it was pushed.
    pub pushed: LogTime,
    /// Why it failed last.
    pub reason: Option<Box<[u8]>>,
}

/// What INFO tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Tasks waiting and due.
    pub ready: u64,
    /// Tasks not due yet.
    pub delayed: u64,
    /// Tasks handed out.
    pub leased: u64,
    /// Tasks given up.
    pub dead: u64,
    /// Payload bytes of the ready and the delayed.
    pub waiting_bytes: u64,
    /// How long the task at the head of the line has waited since it was pushed.
    pub oldest_ms: u64,
    /// Since when the queue is paused.
    pub paused: Option<LogTime>,
    /// Tasks accepted since the queue was made.
    pub pushed: u64,
    /// Tasks finished since the queue was made.
    pub finished: u64,
    /// Tasks accepted in the last ten seconds, about.
    pub pushed_of_late: u64,
    /// Tasks finished in the last ten seconds, about.
    pub finished_of_late: u64,
    /// How many workers say that they work on it.
    pub workers: u64,
    /// Its settings.
    pub settings: Settings,
    /// Nothing but `ready` and `leased` is known: the home keeps the queue as another program does, which counts nothing
    /// else. All other fields are their defaults.
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
    /// How long it lives without a beat.
    pub ttl_ms: u64,
    /// How many tasks it holds.
    pub leased: u64,
}

/// A stable reason for a no. A refusal changes nothing, but for one of `RQ.CANCEL PAYLOAD`, which may come when part of it was
/// done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This is not an id of this home.
    MalformedId,
    /// Larger than a limit allows.
    TooLarge {
        /// What is.
        what: &'static str,
        /// The limit, in bytes.
        max: usize,
    },
    /// More than a limit allows.
    TooMany {
        /// Of what, in the plural.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// An argument is outside of what it may be.
    OutOfRange {
        /// Which.
        what: &'static str,
    },
    /// Where the queue lives, there is no such thing.
    NotThere {
        /// What was asked for.
        what: Cow<'static, str>,
        /// Where it is asked of, as the URL says it.
        place: Cow<'static, str>,
    },
    /// A key that belongs to the queue holds a value of another type.
    WrongType {
        /// Which key, as an error reply says it.
        words: Box<str>,
    },
    /// The queue has as many tasks or bytes as its settings allow.
    QueueFull,
    /// This incarnation of the worker is no longer alive, and there is no other of its name.
    WorkerGone,
    /// Another worker of the same name was started since, and is alive.
    WorkerReplaced,
    /// The disk has no room for more tasks.
    NoSpace,
    /// The memory that the home may use is used up.
    OutOfMemory,
    /// There are no more ids: it is the year 2109.
    NoMoreIds,
    /// The log failed; nothing is confirmed any more.
    Poisoned,
    /// The home was closed.
    Closed,
    /// The payload of a task cannot be read.
    Damaged {
        /// The task.
        id: TaskId,
        /// What is wrong with it, and where.
        why: Box<str>,
    },
    /// The server that keeps the queue said no in words of its own.
    Said {
        /// Its words, without the code before them.
        words: Box<str>,
    },
    /// The server that keeps the queue cannot be asked.
    Unavailable {
        /// Why not, and what to do.
        why: Box<str>,
    },
    /// The server that keeps the queue was asked, and its answer is lost: it may have been done or not.
    Unknown {
        /// What happened.
        why: Box<str>,
    },
}

impl Refusal {
    /// There is no such thing at that place.
    pub const fn not_there(what: &'static str, place: &'static str) -> Self {
        Self::NotThere { what: Cow::Borrowed(what), place: Cow::Borrowed(place) }
    }

    /// The word an error reply begins with.
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
                f.write_str("the store uses all the memory it may (--memory, or maxmemory of a Redis): pushes, new queues and workers, and pops that wait are refused until workers catch up or it may use more")
            }
            Self::NoMoreIds => f.write_str("the store has given out its last id"),
            Self::Closed => f.write_str("the store is closed: connect to it again once it is open"),
            Self::Damaged { id, why } => write!(f, "the payload of task {id} cannot be read: {why}"),
            Self::Said { words } | Self::WrongType { words } => f.write_str(words),
            Self::Unavailable { why } => write!(f, "nothing was done: {why}"),
            Self::Unknown { why } => write!(f, "it may have been done or not: {why}"),
            Self::Poisoned => f.write_str("the log failed: restart the server once its disk is sound"),
        }
    }
}
