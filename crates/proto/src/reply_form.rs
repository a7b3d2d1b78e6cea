//! The form of a reply: the part of a command that is needed to write its reply, or to read it.
//!
//! The reply of a home does not identify the command that it answers, and a list of tasks is encoded differently
//! after RQ.POP and after RQ.INSPECT. A session takes the form from the command, and keeps [its own
//! copy](ReplyForm::into_owned) if the reply comes later. A client keeps one for each command that it sent.

use std::borrow::Cow;

use sureq_core::command::{Command, IdForm, LeaseAsk, Pop, ReplyKind, TaskRef, TaskRefs, View};
use sureq_core::id::IdText;
use sureq_core::owned::PackedWords;

use crate::command_encoder::long_id;

/// The form of a reply in RESP.
#[derive(Clone, Debug)]
pub enum ReplyForm<'a> {
    /// RQ.PUSH: ids.
    Ids,
    /// RQ.ADD: id, whether it was added, state.
    Added,
    /// RQ.POP: tasks.
    Popped {
        /// The queues of the pop, to which the tasks refer by index.
        queues: Words<'a>,
        /// The fields that are shown of each task.
        fields: PopFields,
    },
    /// RQ.RECOVER: tasks, in the format of ready ones in RQ.INSPECT.
    Recovered,
    /// RQ.INSPECT: tasks of this state.
    Inspected(View),
    /// RQ.ACK: the finished ones of these arguments.
    Acked(Words<'a>),
    /// RQ.EXTEND and RQ.RETURN: 1, 0 or CANCELLED.
    Outcome,
    /// A number, or `OK`.
    Done,
    Info,
    Settings,
    /// RQ.QUEUES: a cursor, and queues with their counts.
    Queues,
    /// KEYS: names of queues.
    QueueNames,
    /// SCAN: a cursor, and names of queues.
    ScanPage,
    /// TYPE: the name of the type, or `none`.
    TypeName,
    Explained,
    /// RQ.WORKER START: the incarnation of the worker with this name.
    Started(Cow<'a, [u8]>),
    /// RQ.WORKER BEAT: receipts.
    Receipts,
    Workers,
}

/// The command that a reply is for, if several RESP commands map to the same command of a home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyStyle {
    /// The RQ.* command, or the only one.
    #[default]
    Native,
    Type,
    Keys,
    Scan,
}

impl<'a> ReplyForm<'a> {
    pub const fn of(command: &Command<'a>, style: ReplyStyle) -> Self {
        match style {
            ReplyStyle::Native => Self::native(command),
            ReplyStyle::Type => Self::TypeName,
            ReplyStyle::Keys => Self::QueueNames,
            ReplyStyle::Scan => Self::ScanPage,
        }
    }

    const fn native(command: &Command<'a>) -> Self {
        match command.reply_kind() {
            ReplyKind::Ids(_) => Self::Ids,
            ReplyKind::Added => Self::Added,
            ReplyKind::Popped(pop) => {
                Self::Popped { queues: Words::Borrowed(pop.queues), fields: PopFields::of(&pop) }
            }
            ReplyKind::Recovered { .. } => Self::Recovered,
            ReplyKind::Inspected { view, .. } => Self::Inspected(view),
            ReplyKind::Acked(tasks) => Self::Acked(Words::Borrowed(tasks.list)),
            ReplyKind::Outcome => Self::Outcome,
            ReplyKind::CountOrOk => Self::Done,
            ReplyKind::Info => Self::Info,
            ReplyKind::Settings => Self::Settings,
            ReplyKind::Explained => Self::Explained,
            ReplyKind::Queues { .. } => Self::Queues,
            ReplyKind::Started(name) => Self::Started(Cow::Borrowed(name)),
            ReplyKind::Receipts => Self::Receipts,
            ReplyKind::Workers => Self::Workers,
        }
    }

    /// The form of the reply to a command that [`crate::encode_command`] encoded, which sends ids of ten letters as
    /// numeric ones.
    pub fn of_sent(command: &Command<'_>) -> ReplyForm<'static> {
        match *command {
            Command::Ack { tasks: TaskRefs { list, form: IdForm::Short }, .. } => {
                let mut sent = PackedWords::default();
                for bytes in list {
                    match long_id(TaskRef { bytes, form: IdForm::Short }) {
                        Some(id) => sent.push(IdText::of_id(id).as_bytes()),
                        None => sent.push(bytes),
                    }
                }
                ReplyForm::Acked(Words::Packed(Cow::Owned(sent)))
            }
            _ => ReplyForm::of(command, ReplyStyle::Native).into_owned(),
        }
    }

    /// Converts it to a form that does not borrow from the command.
    pub fn into_owned(self) -> ReplyForm<'static> {
        match self {
            Self::Ids => ReplyForm::Ids,
            Self::Added => ReplyForm::Added,
            Self::Popped { queues, fields } => ReplyForm::Popped { queues: queues.into_owned(), fields },
            Self::Recovered => ReplyForm::Recovered,
            Self::Inspected(view) => ReplyForm::Inspected(view),
            Self::Acked(tasks) => ReplyForm::Acked(tasks.into_owned()),
            Self::Outcome => ReplyForm::Outcome,
            Self::Done => ReplyForm::Done,
            Self::Info => ReplyForm::Info,
            Self::Settings => ReplyForm::Settings,
            Self::Queues => ReplyForm::Queues,
            Self::QueueNames => ReplyForm::QueueNames,
            Self::ScanPage => ReplyForm::ScanPage,
            Self::TypeName => ReplyForm::TypeName,
            Self::Explained => ReplyForm::Explained,
            Self::Started(name) => ReplyForm::Started(Cow::Owned(name.into_owned())),
            Self::Receipts => ReplyForm::Receipts,
            Self::Workers => ReplyForm::Workers,
        }
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Popped { queues: words, .. } | Self::Acked(words) => words.heap_bytes(),
            Self::Started(Cow::Owned(name)) => name.len(),
            _ => 0,
        }
    }
}

/// Words of a command: borrowed from it, or copied.
#[derive(Clone, Debug)]
pub enum Words<'a> {
    /// Slices of the input.
    Borrowed(&'a [&'a [u8]]),
    Packed(Cow<'a, PackedWords>),
}

impl Words<'_> {
    /// The word at index `n`.
    pub fn get(&self, n: usize) -> &[u8] {
        #[cfg(test)]
        tests::spend_a_read();
        match self {
            Self::Borrowed(words) => words[n],
            Self::Packed(words) => words.get(n),
        }
    }

    /// All words, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let len = match self {
            Self::Borrowed(words) => words.len(),
            Self::Packed(words) => words.len(),
        };
        (0..len).map(|n| self.get(n))
    }

    fn into_owned(self) -> Words<'static> {
        Words::Packed(Cow::Owned(match self {
            Self::Packed(words) => words.into_owned(),
            Self::Borrowed(words) => PackedWords::new(words),
        }))
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Borrowed(_) => 0,
            Self::Packed(words) => words.heap_bytes(),
        }
    }
}

/// The optional fields of each task in a reply to RQ.POP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PopFields {
    pub(crate) receipt: bool,
    pub(crate) meta: bool,
}

impl PopFields {
    /// The fields that this pop requests. A lease that comes from the queue's settings adds no fields.
    const fn of(pop: &Pop<'_>) -> Self {
        let LeaseAsk { ms, worker, conn, .. } = pop.lease;
        Self { receipt: ms.is_some() || worker.is_some() || conn.is_some(), meta: pop.meta }
    }

    /// The number of fields of a task.
    pub(crate) const fn count(self) -> usize {
        3 + if self.receipt { 2 } else { 0 } + self.meta as usize
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How many words this thread may still read. A test that needs more fails at once.
        static READS_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    pub(crate) fn set_reads_max(max: usize) {
        READS_LEFT.set(max);
    }

    pub(super) fn spend_a_read() {
        READS_LEFT.set(READS_LEFT.get().checked_sub(1).expect("few enough words are read"));
    }

    #[test]
    fn a_copy_has_the_same_words_and_reports_its_memory() {
        let words: [&[u8]; 4] = [b"a", b"", b"long", b"a"];
        let borrowed = Words::Borrowed(&words);
        assert_eq!(borrowed.heap_bytes(), 0);
        let owned = borrowed.into_owned();
        assert_eq!(owned.iter().collect::<Vec<_>>(), words);
        assert_eq!((owned.get(2), owned.heap_bytes()), (&b"long"[..], 6 + 4 * 4));
    }
}
