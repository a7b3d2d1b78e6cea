//! The cases of `memory`, one row each.

use crate::queues::Length;

/// The state of the tasks when memory is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskState {
    Waiting,
    /// Added in the text dialect with random delays, from an hour to 24 days.
    Delayed,
    /// Popped and not acked.
    Leased,
}

/// A number of tasks of one kind, and the limit for their memory.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) tasks: u64,
    pub(crate) payload: Length,
    pub(crate) queues: u64,
    /// Payloads in one push, if the command line does not decide that.
    pub(crate) batch: Option<u64>,
    pub(crate) state: TaskState,
    /// The size of the cache of payloads. With a cache, the aim is for the memory added by the tasks, and the cache
    /// is allowed in addition.
    pub(crate) cache: Option<&'static str>,
    /// The limit for resident bytes per task.
    pub(crate) aim: f64,
}

const WAITING_BYTES: f64 = 40.0;
const DELAYED_BYTES: f64 = 64.0;
const LEASED_BYTES: f64 = 160.0;

/// 5 million tasks of 64 bytes in one queue; the other cases differ from it in one or two properties.
const ONE_QUEUE: Case = Case {
    name: "one-queue",
    title: "64 bytes, one queue",
    tasks: 5_000_000,
    payload: Length::Fixed(64),
    queues: 1,
    batch: None,
    state: TaskState::Waiting,
    cache: None,
    aim: WAITING_BYTES,
};

/// All cases, in the order in which they are measured.
pub(crate) const CASES: [Case; 7] = [
    ONE_QUEUE,
    Case {
        name: "one-kilobyte",
        title: "1 KB, one queue, --cache 64MB",
        tasks: 1_000_000,
        payload: Length::Fixed(1024),
        cache: Some("64MB"),
        ..ONE_QUEUE
    },
    Case {
        name: "thousand-queues",
        title: "1 to 200 bytes, 1000 queues in turn",
        payload: Length::UpTo(200),
        queues: 1_000,
        batch: Some(1),
        ..ONE_QUEUE
    },
    Case {
        name: "cache-100k",
        title: "64 bytes, one queue, --cache 8MB",
        tasks: 100_000,
        cache: Some("8MB"),
        ..ONE_QUEUE
    },
    Case {
        name: "cache-1m",
        title: "64 bytes, one queue, --cache 8MB",
        tasks: 1_000_000,
        cache: Some("8MB"),
        ..ONE_QUEUE
    },
    Case {
        name: "delayed",
        title: "64 bytes, delayed at random",
        state: TaskState::Delayed,
        aim: DELAYED_BYTES,
        ..ONE_QUEUE
    },
    Case {
        name: "leased",
        title: "64 bytes, leased",
        tasks: 1_000_000,
        state: TaskState::Leased,
        aim: LEASED_BYTES,
        ..ONE_QUEUE
    },
];
