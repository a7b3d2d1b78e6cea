//! How many commands are executed under one lock, and how large their replies may get.

use sureq_core::task::Body as _;
use sureq_core::{Command, Replies, limits};

use crate::commit::prepared::{self, LARGE_BYTES, Prepared};
use crate::payload::body::Body;
use crate::shared::Shared;
use crate::waiting::sliced;

/// Commands of a batch push, name and deliver this many tasks under one lock before other threads get it.
pub(crate) const WORK_TASKS_MAX: usize = 2 * limits::SLICE_TASKS;

/// Commands of a batch copy this many bytes of small payloads under one lock.
const COPIED_BYTES_MAX: usize = 1 << 20;

/// The bytes of large payloads that are encoded together before the lock is taken.
const PREPARED_BYTES_MAX: usize = 32 << 20;

/// A command with at most this many payload bytes and ids is neither large nor oversized, if segments have at least
/// `PLAIN_SEGMENT_BYTES`.
const PLAIN_BYTES_MAX: usize = 16 << 10;
const PLAIN_IDS_MAX: usize = 64;
const PLAIN_SEGMENT_BYTES: u64 = 64 << 10;

/// The commands that are executed next under one lock.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) commands: usize,
    /// The batch is a single command that does not fit a segment.
    pub(crate) is_oversized: bool,
    /// Encoded large payloads, by the index of their command.
    large: Vec<(usize, Option<Prepared>)>,
}

impl Batch {
    /// The encoded payloads of a command, if they are large.
    #[inline]
    pub(crate) fn take(&mut self, index: usize) -> Option<Prepared> {
        if self.large.is_empty() {
            return None;
        }
        self.large.iter_mut().find(|(at, _)| *at == index).and_then(|(_, payloads)| payloads.take())
    }

    /// Keeps encoded payloads that were not used, so that they are freed after the lock is released.
    #[inline]
    pub(crate) fn keep(&mut self, index: usize, unused: Option<Prepared>) {
        if unused.is_some() {
            self.large.push((index, unused));
        }
    }

    /// Removes the first commands, which were executed. Encoded payloads of the others are kept for the next batch.
    pub(crate) fn advance(&mut self, executed: usize) {
        self.large.retain_mut(|(at, _)| {
            let is_left = *at >= executed;
            *at = at.saturating_sub(executed);
            is_left
        });
    }
}

impl Shared {
    /// The payload bytes of a plain command, one that is obviously neither large, nor oversized, nor executed in
    /// slices. Nearly all commands are plain.
    #[inline]
    pub(crate) fn plain_bytes(&self, command: &Command<'_>) -> Option<usize> {
        let bytes = match command {
            Command::Push { payloads: [payload], .. } => payload.len(),
            Command::Add(add) => add.payload.len(),
            Command::Pop(_) => 0,
            Command::Ack { tasks, .. } if tasks.list.len() <= PLAIN_IDS_MAX => 0,
            _ => return None,
        };
        // In memory the segment size is 0.
        let is_plain = bytes <= PLAIN_BYTES_MAX
            && (self.preallocator.segment_bytes == 0
                || self.preallocator.segment_bytes >= PLAIN_SEGMENT_BYTES);
        is_plain.then_some(bytes)
    }

    pub(crate) fn is_large(&self, command: &Command<'_>) -> bool {
        prepared::payload_bytes(command) >= LARGE_BYTES || self.is_oversized(command)
    }

    /// Decides which commands are executed next under one lock, and encodes their large payloads, unless the batch has
    /// them from the time before.
    pub(crate) fn next_batch(&self, commands: &[Command<'_>], batch: &mut Batch) {
        (batch.commands, batch.is_oversized) = (0, false);
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
                && !batch.large.iter().any(|&(at, _)| at == index)
                && let Some(payloads) = self.prepare(command)
            {
                batch.large.push((index, Some(payloads)));
            }
        }
    }
}

/// Roughly the number of bytes by which replies have grown, as they will be sent.
pub(crate) struct Weight {
    tasks: usize,
    queues: usize,
    workers: usize,
    receipts: usize,
    pub(crate) bytes: usize,
}

impl Weight {
    /// The bytes of a task, a queue, a worker or a receipt besides its payload or its name.
    const EACH: usize = 64;

    pub(crate) fn of(replies: &Replies<Body>) -> Self {
        let Replies { tasks, queues, workers, receipts, .. } = replies;
        let (tasks, queues) = (tasks.len(), queues.len());
        Self { tasks, queues, workers: workers.len(), receipts: receipts.len(), bytes: 0 }
    }

    #[inline]
    pub(crate) fn add(&mut self, replies: &Replies<Body>) -> usize {
        let Replies { tasks, queues, workers, receipts, .. } = replies;
        let has_grown = tasks.len() > self.tasks
            || queues.len() > self.queues
            || workers.len() > self.workers
            || receipts.len() > self.receipts;
        if has_grown { self.add_rows(replies) } else { self.bytes }
    }

    fn add_rows(&mut self, replies: &Replies<Body>) -> usize {
        let tasks = replies.tasks[self.tasks..].iter().map(|task| task.body.len() + Self::EACH);
        let queues = replies.queues[self.queues..].iter().map(|row| row.name.len() + Self::EACH);
        let workers = replies.workers[self.workers..].iter().map(|row| row.name.len() + Self::EACH);
        let receipts = (replies.receipts.len() - self.receipts) * Self::EACH;
        let bytes = self.bytes + tasks.chain(queues).chain(workers).sum::<usize>() + receipts;
        *self = Self { bytes, ..Self::of(replies) };
        bytes
    }
}
