//! Commands of a home as words of RQ.*, for clients: the inverse of [`crate::verbs::parse`].

use std::fmt;

use crate::decimal;
use crate::resp::{Pieces as _, Version, Writer};
use sureq_core::command::{
    AckScope, Add, Block, Cancel, Command, IdForm, LeaseAsk, NameArg, Pop, Return, TaskRef, TaskRefs, View,
    When, Worker, WorkerRef,
};
use sureq_core::id::{Spelling, TaskId};
use sureq_core::settings::{Changes, Place, Shown};

/// A command that RQ.* cannot express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inexpressible {
    /// What cannot be expressed.
    pub what: &'static str,
}

impl fmt::Display for Inexpressible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RQ.* has no words for {}", self.what)
    }
}

impl std::error::Error for Inexpressible {}

/// Appends a command as an array of its words. Appends nothing if RQ.* cannot express it.
///
/// ```
/// use sureq_core::command::Command;
///
/// let mut out = Vec::new();
/// sureq_proto::encode_command(&mut out, &Command::Pause { queue: b"emails" })?;
/// assert_eq!(out, b"*2\r\n$8\r\nRQ.PAUSE\r\n$6\r\nemails\r\n");
/// # Ok::<(), sureq_proto::Inexpressible>(())
/// ```
pub fn encode_command(out: &mut Vec<u8>, command: &Command<'_>) -> Result<(), Inexpressible> {
    if let Some(what) = inexpressible(command) {
        return Err(Inexpressible { what });
    }
    let mut words = Words::default();
    say(&mut words, command);
    words.write(out);
    Ok(())
}

/// The part of a command that RQ.* cannot express, if any.
fn inexpressible(command: &Command<'_>) -> Option<&'static str> {
    match *command {
        Command::Push { payloads: [], .. } => Some("a push of nothing"),
        Command::Pop(Pop { queues: [], .. })
        | Command::Drop { queues: [] }
        | Command::Exists { queues: [] } => Some("a command without a queue"),
        Command::Pop(Pop { lease: LeaseAsk { lapse: Some(_), .. }, .. }) => {
            Some("a pop that says what a lapse does")
        }
        Command::Pop(pop) if pop.queues.iter().any(|queue| crate::verbs::is_pop_option(queue)) => {
            Some("a pop from a queue that is called like one of its options")
        }
        Command::Ack { scope: AckScope::Leased, .. } => Some("an ack of leased tasks alone"),
        Command::Ack { tasks, .. }
        | Command::Bury { tasks, .. }
        | Command::Delete { tasks, .. }
        | Command::Revive { tasks: Some(tasks), .. }
        | Command::Cancel { which: Cancel::Ids(tasks), .. }
            if tasks.list.is_empty() =>
        {
            Some("a command without a task")
        }
        Command::Cancel { which: Cancel::Names([]), .. } => Some("a command without a task"),
        _ => None,
    }
}

/// The words of a command, in order.
#[derive(Default)]
struct Words {
    count: usize,
    body: Vec<u8>,
}

impl Words {
    fn word(&mut self, word: impl AsRef<[u8]>) -> &mut Self {
        Writer::new(&mut self.body, Version::Resp2).bulk(word.as_ref());
        self.count += 1;
        self
    }

    fn number(&mut self, n: u64) -> &mut Self {
        let mut digits = Vec::with_capacity(20);
        decimal::write_u64(&mut digits, n);
        self.word(digits)
    }

    fn signed(&mut self, n: i64) -> &mut Self {
        let mut digits = Vec::with_capacity(20);
        decimal::write_i64(&mut digits, n);
        self.word(digits)
    }

    fn all(&mut self, words: &[&[u8]]) -> &mut Self {
        for word in words {
            self.word(word);
        }
        self
    }

    fn task(&mut self, task: TaskRef<'_>) -> &mut Self {
        match long_id(task) {
            Some(id) => self.word(Spelling::of_id(id).as_bytes()),
            None => self.word(task.bytes),
        }
    }

    fn tasks(&mut self, tasks: TaskRefs<'_>) -> &mut Self {
        for bytes in tasks.list {
            self.task(TaskRef { bytes, form: tasks.form });
        }
        self
    }

    fn worker(&mut self, worker: WorkerRef<'_>) -> &mut Self {
        self.word(crate::reply_encoder::worker_text(worker.name, worker.incarnation))
    }

    /// An option and its value, if there is one.
    fn option(&mut self, name: &str, value: Option<u64>) -> &mut Self {
        if let Some(value) = value {
            self.word(name).number(value);
        }
        self
    }

    fn write(self, out: &mut Vec<u8>) {
        out.reserve(self.body.len() + 16);
        Writer::new(out, Version::Resp2).array(self.count);
        out.extend_from_slice(&self.body);
    }
}

/// The id behind ten letters, which RQ.* do not know; what is none stays as it is, and is refused as such.
pub(crate) fn long_id(task: TaskRef<'_>) -> Option<TaskId> {
    match task.form {
        IdForm::Long => None,
        IdForm::Short => TaskId::parse_short(task.bytes),
    }
}

fn say(words: &mut Words, command: &Command<'_>) {
    match *command {
        Command::Push { queue, payloads } => _ = words.word("RQ.PUSH").word(queue).all(payloads),
        Command::Add(add) => say_add(words, &add),
        Command::Pop(pop) => say_pop(words, &pop),
        Command::Ack { queue, tasks, .. } => _ = words.word("RQ.ACK").word(queue).tasks(tasks),
        Command::Extend { queue, task, ms } => _ = words.word("RQ.EXTEND").word(queue).task(task).number(ms),
        Command::Return(back) => say_return(words, &back),
        Command::Recover { queue, count, elapsed_ms } => {
            words.word("RQ.RECOVER").word(queue).number(count.into()).number(elapsed_ms);
        }
        Command::Inspect { queue, view, start, count } => {
            words.word("RQ.INSPECT").word(queue);
            if view != View::Ready {
                words.word(view_word(view));
            }
            words.signed(start).number(count.into());
        }
        Command::Info { queue } => _ = words.word("RQ.INFO").word(queue),
        Command::Cancel { queue, which } => say_cancel(words, queue, which),
        Command::Bury { queue, tasks } => _ = words.word("RQ.BURY").word(queue).tasks(tasks),
        Command::Revive { queue, tasks } => {
            words.word("RQ.REVIVE").word(queue);
            match tasks {
                Some(tasks) => words.tasks(tasks),
                None => words.word("ALL"),
            };
        }
        Command::Delete { queue, tasks } => _ = words.word("RQ.DELETE").word(queue).tasks(tasks),
        Command::Purge { queue, state } => {
            words.word("RQ.PURGE").word(queue);
            if let Some(view) = state {
                words.word(if view == View::Ready { "READY" } else { view_word(view) });
            }
        }
        Command::Drop { queues } => _ = words.word("DEL").all(queues),
        Command::Exists { queues } => _ = words.word("EXISTS").all(queues),
        Command::Pause { queue } => _ = words.word("RQ.PAUSE").word(queue),
        Command::Resume { queue } => _ = words.word("RQ.RESUME").word(queue),
        Command::Config { queue, changes } => say_config(words, queue, changes),
        Command::Explain { queue, task } => _ = words.word("RQ.EXPLAIN").word(queue).task(task),
        Command::Size => _ = words.word("DBSIZE"),
        Command::Queues { pattern, cursor, count } => {
            words.word("RQ.QUEUES");
            if let Some(pattern) = pattern {
                words.word("MATCH").word(pattern);
            }
            words.word("COUNT").number(count.into()).word("CURSOR").number(cursor);
        }
        Command::Worker(worker) => say_worker(words, worker),
    }
}

const fn view_word(view: View) -> &'static str {
    match view {
        View::Ready => "",
        View::Leased => "PENDING",
        View::Delayed => "DELAYED",
        View::Dead => "DEAD",
    }
}

fn say_add(words: &mut Words, add: &Add<'_>) {
    words.word("RQ.ADD").word(add.queue).word(add.payload);
    match add.name {
        None => {}
        Some(NameArg::Bytes(name)) => _ = words.word("NAME").word(name),
        Some(NameArg::Payload) => _ = words.word("UNIQUE"),
    }
    match add.when {
        When::AtOnce => {}
        When::After(ms) => _ = words.word("DELAY").number(ms),
        When::At(at) => _ = words.word("AT").number(at.0),
    }
    if add.priority != 0 {
        words.word("PRIORITY").signed(add.priority.into());
    }
    words.option("TRIES", add.tries.map(u64::from));
    words.option("BACKOFF", add.backoff_ms).option("TTL", add.ttl_ms);
}

fn say_pop(words: &mut Words, pop: &Pop<'_>) {
    // With a count given, no key is mistaken for one.
    words.word("RQ.POP").word("COUNT").number(pop.count.into());
    match pop.block {
        None => {}
        Some(Block::Forever) => _ = words.word("BLOCK").number(0),
        // No time at all is not to be said: that would be for ever.
        Some(Block::Millis(ms)) => _ = words.word("BLOCK").number(ms.max(1)),
    }
    words.option("LEASE", pop.lease.ms);
    if let Some(worker) = pop.lease.worker {
        words.word("WORKER").worker(worker);
    }
    if pop.lease.conn.is_some() {
        words.word("CONN");
    }
    if pop.meta {
        words.word("META");
    }
    words.all(pop.queues);
}

fn say_return(words: &mut Words, back: &Return<'_>) {
    words.word("RQ.RETURN").word(back.queue).task(back.task);
    let is_last = back.is_last && back.failed.is_some();
    match back.to {
        // What is dead goes nowhere.
        _ if is_last => {}
        None => {}
        Some(Place::Front) => _ = words.word("FRONT"),
        Some(Place::Back) => _ = words.word("BACK"),
        Some(Place::After(ms)) => _ = words.word("DELAY").number(ms),
    }
    if let Some(reason) = back.failed {
        words.word("FAILED").word(reason);
    }
    if is_last {
        words.word("DEAD");
    }
}

fn say_cancel(words: &mut Words, queue: &[u8], which: Cancel<'_>) {
    words.word("RQ.CANCEL").word(queue);
    match which {
        Cancel::Ids(tasks) => words.word("ID").tasks(tasks),
        Cancel::Names(names) => words.word("NAME").all(names),
        Cancel::Payload(payload) => words.word("PAYLOAD").word(payload),
    };
}

fn say_config(words: &mut Words, queue: &[u8], changes: Changes<'_>) {
    words.word("RQ.CONFIG").word(queue);
    for change in changes.iter() {
        let (name, value) = change.shown();
        match value {
            Shown::Number(n) => words.word(name).number(n),
            Shown::Word(word) => words.word(name).word(word),
        };
    }
}

fn say_worker(words: &mut Words, worker: Worker<'_>) {
    words.word("RQ.WORKER");
    match worker {
        Worker::Start { name, ttl_ms } => words.word("START").word(name).word("TTL").number(ttl_ms),
        Worker::Beat(worker) => words.word("BEAT").worker(worker),
        Worker::Work(worker, queue) => words.word("WORK").worker(worker).word(queue),
        Worker::Rest(worker, queue) => words.word("REST").worker(worker).word(queue),
        Worker::Stop(worker) => words.word("STOP").worker(worker),
        Worker::Fail { name } => words.word("FAIL").word(name),
        Worker::List => words.word("LIST"),
    };
}
