//! The commands that are executed next under one lock, and how much their replies are.

use sureq_core::task::Body as _;
use sureq_core::{Command, Replies, limits};

use crate::commit::prepared::{self, LARGE_BYTES, Prepared};
use crate::payload::body::Body;
use crate::shared::Shared;
use crate::waiting::sliced;

/// How many tasks are pushed, named or handed out under one lock by the commands of a batch, before others get it.
pub(crate) const WORK_TASKS_MAX: usize = 2 * limits::SLICE_TASKS;

/// How many bytes of small payloads are copied under one lock by the commands of a batch.
const COPIED_BYTES_MAX: usize = 1 << 20;

/// How many bytes of large payloads are prepared at once.
const PREPARED_BYTES_MAX: usize = 32 << 20;

/// A command with no more payload bytes and ids than this is neither large nor oversized, provided that segments have
/// `PLAIN_SEGMENT_BYTES` at least.
const PLAIN_BYTES_MAX: usize = 16 << 10;
const PLAIN_IDS_MAX: usize = 64;
const PLAIN_SEGMENT_BYTES: u64 = 64 << 10;

/// Commands that are executed next.
#[derive(Default)]
pub(crate) struct Batch {
    /// How many commands those are.
    pub(crate) commands: usize,
    /// It is one command alone, which needs more room than a segment has.
    pub(crate) is_oversized: bool,
    /// Their large payloads, by the index of the command.
    large: Vec<(usize, Option<Prepared>)>,
}

impl Batch {
    /// The payloads of a command, if they are large.
    #[inline]
    pub(crate) fn take(&mut self, index: usize) -> Option<Prepared> {
        if self.large.is_empty() {
            return None;
        }
        self.large.iter_mut().find(|(at, _)| *at == index).and_then(|(_, payloads)| payloads.take())
    }

    /// Keeps what was not used of a command's payloads, so that it is dropped without the lock.
    #[inline]
    pub(crate) fn keep(&mut self, index: usize, unused: Option<Prepared>) {
        if unused.is_some() {
            self.large.push((index, unused));
        }
    }
}

impl Shared {
    /// How many bytes of payloads a command brings, if it is seen at once to be neither large, nor oversized, nor executed in
    /// slices. Nearly all are.
    #[inline]
    pub(crate) fn plain_bytes(&self, command: &Command<'_>) -> Option<usize> {
        let bytes = match command {
            Command::Push { payloads: [payload], .. } => payload.len(),
            Command::Add(add) => add.payload.len(),
            Command::Pop(_) => 0,
            Command::Ack { tasks, .. } if tasks.list.len() <= PLAIN_IDS_MAX => 0,
            _ => return None,
        };
        // A store that keeps nothing has segments of no size.
        let is_plain = bytes <= PLAIN_BYTES_MAX
            && (self.preallocator.segment_bytes == 0
                || self.preallocator.segment_bytes >= PLAIN_SEGMENT_BYTES);
        is_plain.then_some(bytes)
    }

    pub(crate) fn is_large(&self, command: &Command<'_>) -> bool {
        prepared::payload_bytes(command) >= LARGE_BYTES || self.is_oversized(command)
    }

    /// Prepares the large payloads of the commands that are executed next under one lock.
    pub(crate) fn next_batch(&self, commands: &[Command<'_>]) -> Batch {
        let mut batch = Batch::default();
        let (mut small_bytes, mut large_bytes) = (0, 0);
        for (index, command) in commands.iter().enumerate().take(WORK_TASKS_MAX) {
            let plain = self.plain_bytes(command);
            let bytes = plain.unwrap_or_else(|| prepared::payload_bytes(command));
            let sum = if bytes < LARGE_BYTES { &mut small_bytes } else { &mut large_bytes };
            *sum += bytes;
            let is_enough = small_bytes > COPIED_BYTES_MAX || large_bytes > PREPARED_BYTES_MAX;
            let is_oversized = plain.is_none() && self.is_oversized(command);
            let is_apart = is_oversized || plain.is_none() && sliced::is_sliced(command);
            if index > 0 && (is_enough || is_apart) {
                break;
            }
            batch.commands += 1;
            if is_oversized {
                batch.is_oversized = true;
                break;
            }
            if bytes >= LARGE_BYTES
                && let Some(payloads) = self.prepare(command)
            {
                batch.large.push((index, Some(payloads)));
            }
        }
        batch
    }
}

/// How much replies have grown by, roughly, in bytes that they will take up when they are sent.
pub(crate) struct Weight {
    tasks: usize,
    queues: usize,
    workers: usize,
    receipts: usize,
    pub(crate) bytes: usize,
}

impl Weight {
    /// What a task, a queue, a worker or a receipt costs besides its payload or its name.
    const EACH: usize = 64;

    pub(crate) fn of(replies: &Replies<Body>) -> Self {
        let Replies { tasks, queues, workers, receipts, .. } = replies;
        let (tasks, queues) = (tasks.len(), queues.len());
        Self { tasks, queues, workers: workers.len(), receipts: receipts.len(), bytes: 0 }
    }

    pub(crate) fn add(&mut self, replies: &Replies<Body>) -> usize {
        let tasks = replies.tasks[self.tasks..].iter().map(|task| task.body.len() + Self::EACH);
        let queues = replies.queues[self.queues..].iter().map(|row| row.name.len() + Self::EACH);
        let workers = replies.workers[self.workers..].iter().map(|row| row.name.len() + Self::EACH);
        let receipts = (replies.receipts.len() - self.receipts) * Self::EACH;
        let bytes = self.bytes + tasks.chain(queues).chain(workers).sum::<usize>() + receipts;
        *self = Self { bytes, ..Self::of(replies) };
        bytes
    }
}
