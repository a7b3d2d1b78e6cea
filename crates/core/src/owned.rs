//! Commands that outlive the buffer they were read from: pops that wait, and the rest of commands that are executed in
//! slices.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::command::{
    AckScope, Cancel, Command, ConnId, IdForm, LapsePolicy, LeaseAsk, Pop, TaskRefs, WorkerRef,
};
use crate::id::{Claim, TaskId};
use crate::reply::Refusal;

/// A pop without its time to wait.
#[derive(Clone, Debug)]
pub struct OwnedPop {
    queues: Vec<Box<[u8]>>,
    count: u32,
    lease_ms: Option<u64>,
    worker: Option<(Box<[u8]>, u64)>,
    conn: Option<ConnId>,
    lapse: Option<LapsePolicy>,
    meta: bool,
}

impl From<&Pop<'_>> for OwnedPop {
    fn from(pop: &Pop<'_>) -> Self {
        Self {
            queues: pop.queues.iter().map(|&name| name.into()).collect(),
            count: pop.count,
            lease_ms: pop.lease.ms,
            worker: pop.lease.worker.map(|worker| (worker.name.into(), worker.incarnation)),
            conn: pop.lease.conn,
            lapse: pop.lease.lapse,
            meta: pop.meta,
        }
    }
}

impl OwnedPop {
    /// The queues that it names, in its order.
    pub fn queues(&self) -> &[Box<[u8]>] {
        &self.queues
    }

    /// The queues that it named, in its order.
    pub fn into_queues(self) -> Vec<Box<[u8]>> {
        self.queues
    }

    /// The incarnation of the worker that it is for.
    pub fn worker(&self) -> Option<u64> {
        self.worker.as_ref().map(|&(_, incarnation)| incarnation)
    }

    /// About how many bytes of memory it takes.
    pub fn memory(&self) -> usize {
        let names: usize = self.queues.iter().map(|name| name.len()).sum();
        let worker = self.worker.as_ref().map_or(0, |(name, _)| name.len());
        size_of::<Self>() + names + self.queues.len() * size_of::<Box<[u8]>>() + worker
    }

    /// Calls `act` with the command.
    pub fn with<T>(&self, act: impl FnOnce(&Pop<'_>) -> T) -> T {
        let queues: Vec<&[u8]> = self.queues.iter().map(AsRef::as_ref).collect();
        let worker =
            self.worker.as_ref().map(|(name, incarnation)| WorkerRef { name, incarnation: *incarnation });
        let lease = LeaseAsk { ms: self.lease_ms, worker, conn: self.conn, lapse: self.lapse };
        act(&Pop { queues: &queues, count: self.count, block: None, lease, meta: self.meta })
    }
}

/// Words in one allocation, so that many short ones take up no more than they did in the input.
#[derive(Clone, Debug, Default)]
pub struct PackedWords {
    bytes: Vec<u8>,
    /// The end offset of each word. A command is smaller than 4 GiB.
    ends: Vec<u32>,
}

impl PackedWords {
    /// A copy of these words.
    pub fn new(words: &[&[u8]]) -> Self {
        let mut packed = Self {
            bytes: Vec::with_capacity(words.iter().map(|word| word.len()).sum()),
            ends: Vec::with_capacity(words.len()),
        };
        for word in words {
            packed.push(word);
        }
        packed
    }

    pub fn push(&mut self, word: &[u8]) {
        self.bytes.extend_from_slice(word);
        self.ends.push(self.bytes.len() as u32);
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn get(&self, n: usize) -> &[u8] {
        let start = n.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[n] as usize]
    }

    /// Up to `count` words from word `from` on.
    pub fn slice(&self, from: usize, count: usize) -> Vec<&[u8]> {
        (from..self.len().min(from + count)).map(|n| self.get(n)).collect()
    }

    /// The bytes that it owns on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}

/// The parts of a command that does the same to each item of a list.
#[derive(Clone, Copy, Debug)]
pub struct ListCommand<'a> {
    /// The action for each item.
    pub act: ListAct,
    /// The queue of the tasks; empty if the items are queues.
    pub queue: &'a [u8],
    /// Tasks, names of tasks, or queues.
    pub items: &'a [&'a [u8]],
}

/// An action for each item of a list.
#[derive(Clone, Copy, Debug)]
pub enum ListAct {
    Ack(IdForm, AckScope),
    CancelIds(IdForm),
    CancelNames,
    Bury(IdForm),
    Delete(IdForm),
    Revive(IdForm),
    Drop,
    Exists,
}

impl<'a> ListCommand<'a> {
    /// The parts of this command, if it has a list.
    pub fn of(command: &Command<'a>) -> Option<Self> {
        let (act, queue, items) = match *command {
            Command::Ack { queue, tasks, scope } => (ListAct::Ack(tasks.form, scope), queue, tasks.list),
            Command::Cancel { queue, which: Cancel::Ids(tasks) } => {
                (ListAct::CancelIds(tasks.form), queue, tasks.list)
            }
            Command::Cancel { queue, which: Cancel::Names(names) } => (ListAct::CancelNames, queue, names),
            Command::Bury { queue, tasks } => (ListAct::Bury(tasks.form), queue, tasks.list),
            Command::Delete { queue, tasks } => (ListAct::Delete(tasks.form), queue, tasks.list),
            Command::Revive { queue, tasks: Some(tasks) } => (ListAct::Revive(tasks.form), queue, tasks.list),
            Command::Drop { queues } => (ListAct::Drop, &[][..], queues),
            Command::Exists { queues } => (ListAct::Exists, &[][..], queues),
            _ => return None,
        };
        Some(Self { act, queue, items })
    }

    /// Checks the form of all items. One malformed item refuses the whole list.
    pub fn check(&self) -> Result<(), Refusal> {
        let is_id = |form, item: &[u8]| match form {
            IdForm::Long => Claim::parse(item).is_some(),
            IdForm::Short => TaskId::parse_short(item).is_some(),
        };
        match self.act {
            ListAct::Ack(form, _)
            | ListAct::CancelIds(form)
            | ListAct::Bury(form)
            | ListAct::Delete(form)
            | ListAct::Revive(form)
                if !self.items.iter().all(|item| is_id(form, item)) =>
            {
                Err(Refusal::MalformedId)
            }
            _ => Ok(()),
        }
    }
}

impl ListAct {
    /// The command for these items.
    pub const fn on<'a>(self, queue: &'a [u8], list: &'a [&'a [u8]]) -> Command<'a> {
        match self {
            Self::Ack(form, scope) => Command::Ack { queue, tasks: TaskRefs { list, form }, scope },
            Self::CancelIds(form) => Command::Cancel { queue, which: Cancel::Ids(TaskRefs { list, form }) },
            Self::CancelNames => Command::Cancel { queue, which: Cancel::Names(list) },
            Self::Bury(form) => Command::Bury { queue, tasks: TaskRefs { list, form } },
            Self::Delete(form) => Command::Delete { queue, tasks: TaskRefs { list, form } },
            Self::Revive(form) => Command::Revive { queue, tasks: Some(TaskRefs { list, form }) },
            Self::Drop => Command::Drop { queues: list },
            Self::Exists => Command::Exists { queues: list },
        }
    }
}
