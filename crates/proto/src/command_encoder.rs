//! Encodes the commands of a home as RQ.* commands, for clients. The inverse of [`crate::verbs::parse`].

use std::fmt;

use crate::decimal;
use crate::resp::{Pieces as _, Version, Writer};
use crate::verbs::TABLE;
use sureq_core::command::{AckScope, Cancel, Command, IdForm, LeaseAsk, Pop, TaskRef, TaskRefs, WorkerRef};
use sureq_core::id::{IdText, TaskId};

/// The error for a command that RQ.* cannot express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inexpressible {
    /// The part of the command that RQ.* cannot express.
    pub what: &'static str,
}

impl fmt::Display for Inexpressible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RQ.* cannot express {}", self.what)
    }
}

impl std::error::Error for Inexpressible {}

/// Appends a command as a RESP array of its words. Appends nothing if RQ.* cannot express it.
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
    let mut words = CommandWords::default();
    let row = TABLE.iter().find(|row| row.encode(command, &mut words));
    words.write(row.expect("a row of the table writes each command").name, out);
    Ok(())
}

/// The part of a command that RQ.* cannot express, if any.
fn inexpressible(command: &Command<'_>) -> Option<&'static str> {
    match *command {
        Command::Push { payloads: [], .. } => Some("a push without payloads"),
        Command::Pop(Pop { queues: [], .. })
        | Command::Drop { queues: [] }
        | Command::Exists { queues: [] } => Some("a command without a queue"),
        Command::Pop(Pop { lease: LeaseAsk { lapse: Some(_), .. }, .. }) => {
            Some("a pop with a lapse policy of its own")
        }
        Command::Pop(pop) if pop.queues.iter().any(|queue| crate::verbs::is_pop_option(queue)) => {
            Some("a pop from a queue whose name is an option of RQ.POP")
        }
        Command::Revive { tasks: Some(TaskRefs { list: [id], .. }), .. } if crate::verbs::means_all(id) => {
            Some("a revival of one task whose id is `all`")
        }
        Command::Ack { scope: AckScope::Leased, .. } => Some("an ack of only leased tasks"),
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

/// The words of a command after its name, in order.
#[derive(Default)]
pub(crate) struct CommandWords {
    count: usize,
    body: Vec<u8>,
}

impl CommandWords {
    pub(crate) fn word(&mut self, word: impl AsRef<[u8]>) -> &mut Self {
        Writer::new(&mut self.body, Version::Resp2).bulk(word.as_ref());
        self.count += 1;
        self
    }

    pub(crate) fn number(&mut self, n: u64) -> &mut Self {
        let mut digits = Vec::with_capacity(20);
        decimal::write_u64(&mut digits, n);
        self.word(digits)
    }

    pub(crate) fn signed(&mut self, n: i64) -> &mut Self {
        let mut digits = Vec::with_capacity(20);
        decimal::write_i64(&mut digits, n);
        self.word(digits)
    }

    pub(crate) fn all(&mut self, words: &[&[u8]]) -> &mut Self {
        for word in words {
            self.word(word);
        }
        self
    }

    pub(crate) fn task(&mut self, task: TaskRef<'_>) -> &mut Self {
        match long_id(task) {
            Some(id) => self.word(IdText::of_id(id).as_bytes()),
            None => self.word(task.bytes),
        }
    }

    pub(crate) fn tasks(&mut self, tasks: TaskRefs<'_>) -> &mut Self {
        for bytes in tasks.list {
            self.task(TaskRef { bytes, form: tasks.form });
        }
        self
    }

    pub(crate) fn worker(&mut self, worker: WorkerRef<'_>) -> &mut Self {
        self.word(crate::reply_encoder::worker_text(worker.name, worker.incarnation))
    }

    fn write(self, name: &str, out: &mut Vec<u8>) {
        out.reserve(self.body.len() + name.len() + 24);
        let mut w = Writer::new(out, Version::Resp2);
        w.array(1 + self.count);
        w.bulk(name.as_bytes());
        out.extend_from_slice(&self.body);
    }
}

/// The numeric id behind an id of ten letters, which RQ.* does not accept. `None` for any other id, including
/// malformed letters, which the server refuses.
pub(crate) fn long_id(task: TaskRef<'_>) -> Option<TaskId> {
    match task.form {
        IdForm::Long => None,
        IdForm::Short => TaskId::parse_short(task.bytes),
    }
}
