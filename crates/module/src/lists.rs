//! Slices of commands that name many tasks, and of RQ.RECOVER.

use sureq_core::owned::{ListAct, ListCommand, PackedWords};
use sureq_core::queue::RecoverAsk;
use sureq_core::reply::{Replies, Reply, Span};
use sureq_core::task::Body as _;
use sureq_core::{Refusal, limits};

use crate::keyed::Steps;
use crate::payload::Payload;
use crate::redis::Str;
use crate::sliced::{self, SLICE_BYTES, SLICE_TASKS, Slice};

/// The rest of a command that does the same to each task of a list.
pub(crate) struct ListRest {
    of: u64,
    act: ListAct,
    items: PackedWords,
    /// The next item.
    at: usize,
    count: u64,
}

impl ListRest {
    /// The work of a list that is longer than a slice; none if it is shorter, or the command has no list.
    pub(crate) fn new(of: u64, list: &ListCommand<'_>) -> Result<Option<Self>, Refusal> {
        if list.items.len() <= SLICE_TASKS {
            return Ok(None);
        }
        list.check()?;
        let items = PackedWords::new(list.items);
        Ok(Some(Self { of, act: list.act, items, at: 0, count: 0 }))
    }

    /// Whether the reply lists the tasks that were finished; it counts them otherwise.
    pub(crate) const fn lists(&self) -> bool {
        matches!(self.act, ListAct::Ack(..))
    }

    pub(crate) const fn items(&self) -> &PackedWords {
        &self.items
    }

    pub(crate) fn step(
        &mut self,
        steps: &mut Steps<'_, '_>,
        key: Str<'_>,
        out: &mut Replies<Payload>,
    ) -> Slice {
        let items = self.items.slice(self.at, SLICE_TASKS);
        let command = self.act.on(key.bytes(), &items);
        let first_index = out.indexes.len();
        let done = sliced::on(steps, key, self.of, |queue, rec, now| queue.execute(&command, now, rec, out));
        match done {
            Ok(Some(Ok(Reply::Count(count)))) => self.count += count,
            Ok(Some(Ok(_))) => out.indexes[first_index..].iter_mut().for_each(|at| *at += self.at as u32),
            Ok(Some(Err(refusal))) => return Slice::Done(Err(refusal)),
            // The queue is gone, and its tasks with it.
            Ok(None) => self.at = self.items.len(),
            Err(untouched) => return Slice::Untouched(untouched),
        }
        self.at += SLICE_TASKS;
        if self.at < self.items.len() {
            Slice::More
        } else if self.lists() {
            Slice::Done(Ok(Reply::Acked(Span::new(0, out.indexes.len()))))
        } else {
            Slice::count(self.count)
        }
    }
}

/// The rest of RQ.RECOVER.
pub(crate) struct RecoverRest {
    of: u64,
    elapsed_ms: u64,
    left: u32,
    bytes: usize,
    /// The last delivery when the command began. Later ones are its own, or too recent.
    upto: Option<u64>,
}

impl RecoverRest {
    pub(crate) fn new(of: u64, count: u32, elapsed_ms: u64) -> Self {
        let left = count.min(limits::REPLY_TASKS_MAX);
        Self { of, elapsed_ms, left, bytes: limits::REPLY_BYTES_MAX, upto: None }
    }

    pub(crate) fn step(
        &mut self,
        steps: &mut Steps<'_, '_>,
        key: Str<'_>,
        out: &mut Replies<Payload>,
    ) -> Slice {
        let first = out.tasks.len();
        let recovered = sliced::on(steps, key, self.of, |queue, rec, now| {
            let first_bytes = if self.upto.is_none() { usize::MAX } else { self.bytes };
            let upto = *self.upto.get_or_insert(queue.last_delivery());
            let (count, bytes) = (self.left.min(SLICE_TASKS as u32), SLICE_BYTES.min(self.bytes));
            let ask = RecoverAsk { count, elapsed_ms: self.elapsed_ms, bytes, first_bytes, upto };
            queue.recover(&ask, now, rec, &mut out.tasks);
        });
        if let Err(untouched) = recovered
            && self.upto.is_none()
        {
            return Slice::Untouched(untouched);
        }
        let slice = &out.tasks[first..];
        let bytes: usize = slice.iter().map(|task| task.body.len()).sum();
        self.left -= slice.len() as u32;
        self.bytes = self.bytes.saturating_sub(bytes);
        if slice.is_empty() || self.left == 0 || self.bytes == 0 {
            Slice::Done(Ok(Reply::Tasks(Span::new(0, out.tasks.len()))))
        } else {
            Slice::More
        }
    }
}
