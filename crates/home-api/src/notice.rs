//! Notices, which listeners receive. The core decides which events publish them.

use sureq_core::notice::Kind;
use sureq_core::{TaskId, id};

/// A durable event that concerns tasks of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The kind of event.
    pub kind: Kind,
    /// The name of the queue.
    pub queue: Box<[u8]>,
    /// The tasks concerned.
    pub tasks: NoticeTasks,
}

/// The tasks that a notice is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeTasks {
    /// The number of tasks.
    Count(u64),
    /// The ids of the tasks, in order.
    Ids(Box<[TaskId]>),
    /// The message as published by another program that shares the queue.
    Foreign(Box<[u8]>),
}

impl NoticeTasks {
    /// Parses a message on a channel of this kind.
    pub fn parse(kind: Kind, text: &[u8]) -> Option<Self> {
        Some(match kind {
            Kind::Work | Kind::Delete => Self::Count(id::decimal(text)?),
            Kind::Done | Kind::Cancel => {
                let ids = text.split(|&c| c == b' ').map(TaskId::parse);
                Self::Ids(ids.collect::<Option<_>>()?)
            }
        })
    }
}

impl Notice {
    /// The approximate memory of the notice.
    pub fn bytes(&self) -> usize {
        let ids = match &self.tasks {
            NoticeTasks::Count(_) => 0,
            NoticeTasks::Ids(ids) => size_of_val(&**ids),
            NoticeTasks::Foreign(text) => text.len(),
        };
        size_of::<Self>() + self.queue.len() + ids
    }
}

/// An event that a listener receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenEvent {
    /// A notice about a subscribed queue.
    Notice(Notice),
    /// The listener fell behind or the connection was lost: some notices are missing.
    Missed,
}

impl ListenEvent {
    /// The approximate memory of the event.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Notice(notice) => notice.bytes(),
            Self::Missed => size_of::<Self>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_a_count_or_ids_depending_on_the_kind() {
        let two = [TaskId::new(5, 1).unwrap(), TaskId::new(5, 2).unwrap()];
        let ids = NoticeTasks::Ids(two.into());
        for (kind, text, expect) in [
            (Kind::Work, &b"7"[..], Some(NoticeTasks::Count(7))),
            (Kind::Delete, b"0", Some(NoticeTasks::Count(0))),
            (Kind::Done, b"5-1 5-2", Some(ids.clone())),
            (Kind::Cancel, b"5-1 5-2", Some(ids)),
            (Kind::Work, b"5-1", None),
            (Kind::Done, b"5-1 ", None),
            (Kind::Cancel, b"", None),
        ] {
            assert_eq!(NoticeTasks::parse(kind, text), expect, "{kind:?} {text:?}");
        }
    }
}
