//! Collects the notices of one command or tick while its events are recorded.
//!
//! Without listeners this costs one test per event. Otherwise counts are added up by queue, so that a command publishes
//! each once; notices with ids are listed one by one.

use std::collections::BTreeMap;
use std::ops::Range;

use sureq_core::Event;
use sureq_core::TaskId;
use sureq_core::event::QueueNo;
use sureq_core::notice::{Concerned, Kind, Kinds};

/// The notices of the unit that is being recorded.
#[derive(Debug, Default)]
pub(crate) struct NoticeBuffer {
    /// The kinds that any listener is subscribed to, for any queue.
    subscribed: Kinds,
    list: Vec<BufferedNotice>,
    ids: Vec<TaskId>,
    /// The index of the notice that counts this kind of a queue.
    counts: BTreeMap<(QueueNo, Kind), usize>,
    /// The queue and kind that the next count is for.
    uncounted: Option<(QueueNo, Kind)>,
}

/// A notice before it is published.
#[derive(Debug)]
struct BufferedNotice {
    queue: QueueNo,
    kind: Kind,
    tasks: Tasks,
}

#[derive(Debug)]
enum Tasks {
    Count(u64),
    Ids(Range<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoticedTasks<'n> {
    Count(u64),
    Ids(&'n [TaskId]),
}

impl NoticeBuffer {
    /// Collects only these kinds from now on.
    pub(crate) const fn set_subscribed(&mut self, kinds: Kinds) {
        self.subscribed = kinds;
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds an event, if any listener may be subscribed to it.
    #[inline]
    pub(crate) fn observe(&mut self, event: &Event<'_>) {
        if !self.subscribed.is_empty() {
            self.add_event(event);
        }
    }

    #[cold]
    fn add_event(&mut self, event: &Event<'_>) {
        // A count belongs to the last event only.
        self.uncounted = None;
        let Some(meaning) = event.meaning().filter(|meaning| self.subscribed.has(meaning.kind)) else {
            return;
        };
        let (queue, kind) = (meaning.queue, meaning.kind);
        match meaning.tasks {
            Concerned::Count(tasks) => self.add(queue, kind, tasks),
            Concerned::Uncounted => self.uncounted = Some((queue, kind)),
            Concerned::Ids(ids) => {
                let start = self.ids.len();
                self.ids.extend(ids.iter());
                let tasks = Tasks::Ids(start..self.ids.len());
                self.list.push(BufferedNotice { queue, kind, tasks });
            }
        }
    }

    /// Adds the number of tasks of the last event.
    #[inline]
    pub(crate) fn counted(&mut self, tasks: usize) {
        if let Some((queue, kind)) = self.uncounted.take() {
            self.add(queue, kind, tasks);
        }
    }

    fn add(&mut self, queue: QueueNo, kind: Kind, tasks: usize) {
        if tasks == 0 {
            return;
        }
        let at = *self.counts.entry((queue, kind)).or_insert(self.list.len());
        if at == self.list.len() {
            self.list.push(BufferedNotice { queue, kind, tasks: Tasks::Count(0) });
        }
        if let Tasks::Count(count) = &mut self.list[at].tasks {
            *count += tasks as u64;
        }
    }

    /// Publishes all notices, in order, and empties the buffer.
    pub(crate) fn drain(&mut self, mut publish: impl FnMut(QueueNo, Kind, NoticedTasks<'_>)) {
        for BufferedNotice { queue, kind, tasks } in self.list.drain(..) {
            publish(
                queue,
                kind,
                match tasks {
                    Tasks::Count(count) => NoticedTasks::Count(count),
                    Tasks::Ids(range) => NoticedTasks::Ids(&self.ids[range]),
                },
            );
        }
        self.clear();
    }

    fn clear(&mut self) {
        /// Capacity above this is freed once the buffer is empty.
        const KEPT: usize = 4 << 10;
        self.ids.clear();
        self.ids.shrink_to(KEPT);
        self.list.shrink_to(KEPT);
        self.counts.clear();
        self.uncounted = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sureq_core::event::{Ids, Removal};

    fn published(buffer: &mut NoticeBuffer) -> Vec<(u32, Kind, u64)> {
        let mut all = Vec::new();
        buffer.drain(|queue, kind, tasks| {
            let count = match tasks {
                NoticedTasks::Count(count) => count,
                NoticedTasks::Ids(ids) => ids.len() as u64,
            };
            all.push((queue.0, kind, count));
        });
        all
    }

    fn buffer(kinds: &[Kind]) -> NoticeBuffer {
        let mut buffer = NoticeBuffer::default();
        buffer.set_subscribed(kinds.iter().copied().collect());
        buffer
    }

    #[test]
    fn counts_are_published_once_per_queue_in_the_order_of_their_first_event() {
        let mut buffer = buffer(&Kind::ALL);
        let list = [TaskId::new(1, 1).unwrap(), TaskId::new(1, 2).unwrap()];
        let ids = Ids::Slice(&list);
        for queue in [1, 2, 1].map(QueueNo) {
            buffer.observe(&Event::Revived { queue, ids });
            buffer.observe(&Event::Finished { queue, ids: Ids::Slice(&list[..1]) });
        }
        buffer.observe(&Event::Resumed(QueueNo(2)));
        buffer.counted(5);
        let expect = [
            (1, Kind::Work, 4),
            (1, Kind::Done, 1),
            (2, Kind::Work, 7),
            (2, Kind::Done, 1),
            (1, Kind::Done, 1),
        ];
        assert_eq!(published(&mut buffer), expect);
        assert!(buffer.is_empty() && published(&mut buffer).is_empty(), "and only once");
    }

    #[test]
    fn kinds_without_subscribers_are_not_collected() {
        let list = [TaskId::new(1, 1).unwrap()];
        let (queue, ids) = (QueueNo(1), Ids::Slice(&list));
        for subscribed in [&[][..], &[Kind::Delete]] {
            let mut buffer = buffer(subscribed);
            buffer.observe(&Event::Finished { queue, ids });
            buffer.observe(&Event::Resumed(queue));
            buffer.counted(3);
            assert!(buffer.is_empty(), "{subscribed:?}");
        }
    }

    #[test]
    fn a_count_belongs_to_the_last_event() {
        let mut buffer = buffer(&[Kind::Work]);
        buffer.observe(&Event::Resumed(QueueNo(1)));
        buffer.observe(&Event::QueueDropped(QueueNo(2)));
        buffer.counted(7);
        assert!(buffer.is_empty(), "a dropped queue is not subscribed to");
    }

    #[test]
    fn a_notice_without_tasks_is_not_published() {
        let mut buffer = buffer(&Kind::ALL);
        buffer.observe(&Event::QueueDropped(QueueNo(1)));
        buffer.counted(0);
        buffer.observe(&Event::Removed { queue: QueueNo(1), ids: Ids::Slice(&[]), why: Removal::Deleted });
        assert!(buffer.is_empty());
    }
}
