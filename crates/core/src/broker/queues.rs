//! Commands about whole queues, and moves between queues.

use core::ops::ControlFlow;

use super::Broker;
use super::execute::Stamp;
use super::glob::Matching;
use crate::event::{Event, QueueNo, Recorder};
use crate::id::TaskId;
use crate::limits;
use crate::meter;
use crate::queue::Seek;
use crate::reply::{QueueRow, Replies, Reply, Span};
use crate::task::{Body, StateKind};

impl<B: Body> Broker<B> {
    pub(super) fn drop_queues<R: Recorder<Body = B>>(
        &mut self,
        queues: &[&[u8]],
        rec: &mut Stamp<'_, R>,
    ) -> u64 {
        let mut dropped = 0;
        for name in queues {
            let Some(no) = self.number_of(name) else { continue };
            let queue = self.queue_at(no).expect("a number in the names has a queue");
            if queue.is_forgettable() {
                continue;
            }
            dropped += u64::from(!queue.is_empty());
            let tasks = queue.len() as usize;
            self.commit_stamped(&Event::QueueDropped(no), rec);
            rec.note_task_count(tasks);
            self.refresh(no);
        }
        self.release_within_budget(rec);
        dropped
    }

    /// Visits at most `count` tasks of a queue, until `visit` breaks off. Returns whether the queue exists.
    pub fn seek(
        &self,
        queue: &[u8],
        seek: &mut Seek,
        count: usize,
        visit: &mut dyn FnMut(TaskId, &B) -> ControlFlow<()>,
    ) -> bool {
        let queue = self.queue(queue);
        queue.map(|queue| queue.seek(seek, count, visit)).is_some()
    }

    /// Moves tasks that just died to the dead-letter queue, in the same unit of the log.
    pub(super) fn move_dying<R: Recorder<Body = B>>(
        &mut self,
        from: QueueNo,
        dying: &[TaskId],
        rec: &mut Stamp<'_, R>,
    ) {
        let dead_letter = self.slot(from).and_then(|slot| slot.queue.settings().dead_letter.clone());
        let Some(name) = dead_letter else { return };
        // The name was checked when it was set. A queue that was imported with an invalid one keeps its dead tasks.
        let Ok(to) = self.made(&name, rec) else { return };
        if to == from {
            return;
        }
        for &id in dying {
            let is_there = |no| self.slot(no).and_then(|slot| slot.queue.state_of(id));
            if is_there(from) == Some(StateKind::Dead) && is_there(to).is_none() {
                self.commit_stamped(&Event::Moved { from, id, to }, rec);
            }
        }
        self.refresh(to);
    }

    pub(super) fn list(
        &self,
        pattern: Option<&[u8]>,
        cursor: u64,
        count: u32,
        out: &mut Replies<B>,
    ) -> Reply {
        let start = out.queues.len();
        let from = usize::try_from(cursor).unwrap_or(usize::MAX).min(self.slots.len());
        let mut upto = from.saturating_add(count.max(1) as usize).min(self.slots.len());
        let mut pattern = pattern.map(Matching::new);
        for (at, slot) in self.slots[from..upto].iter().enumerate() {
            meter::step();
            let Some(slot) = slot.as_ref().filter(|slot| !slot.queue.is_empty()) else { continue };
            if pattern.as_mut().is_none_or(|pattern| pattern.matches(&slot.name)) {
                out.queues.push(QueueRow { name: slot.name.clone(), counts: slot.queue.counts() });
            }
            // KEYS lists all queues at once and has no cursor to continue from.
            let is_paged = count < u32::MAX;
            if is_paged && pattern.as_ref().is_some_and(|pattern| pattern.steps() > limits::PATTERN_STEPS_MAX)
            {
                upto = from + at + 1;
                break;
            }
        }
        let cursor = if upto == self.slots.len() { 0 } else { upto as u64 };
        Reply::Queues { cursor, rows: Span::new(start, out.queues.len()) }
    }
}
