//! The cases of `memory`, one row each.

use crate::queues::Length;

/// The state of the tasks when memory is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskState {
    Waiting,
    /// Added by the text dialect with random delays, from an hour to 24 days.
    Delayed,
    /// Popped and not acked.
    Leased,
}

/// So many tasks of such a kind, and what each may cost.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) tasks: u64,
    pub(crate) payload: Length,
    pub(crate) queues: u64,
    /// Payloads in one push, where that is not for the command line to say.
    pub(crate) batch: Option<u64>,
    pub(crate) state: TaskState,
    /// The size of the cache of payloads. With one, the aim is for what comes with the tasks, and the cache is allowed beside it.
    pub(crate) cache: Option<&'static str>,
    /// Resident bytes per task, at most.
    pub(crate) aim: f64,
}

const WAITING_BYTES: f64 = 40.0;
const DELAYED_BYTES: f64 = 64.0;
const LEASED_BYTES: f64 = 160.0;

/// 5 million tasks of 64 bytes in one queue, of which the others differ in a thing or two.
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

/// All of them, in the order in which they are measured.
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
