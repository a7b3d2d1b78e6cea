//! What the events of one command or tick tell those who listen, put together as they are recorded.
//!
//! Where nobody listens this is one test per event. Otherwise what is counted is added up by queue, so that a command
//! tells it once; what is listed is listed.

use std::collections::BTreeMap;
use std::ops::Range;

use sureq_core::Event;
use sureq_core::TaskId;
use sureq_core::event::QueueNo;
use sureq_core::notice::{Concerned, Kind, Kinds};

/// Notes on the events of the command that is being executed.
#[derive(Debug, Default)]
pub(crate) struct NoticeBuffer {
    /// What anyone wants to hear, of whatever queue.
    subscribed: Kinds,
    list: Vec<BufferedNotice>,
    ids: Vec<TaskId>,
    /// Where in the list something is being counted.
    counts: BTreeMap<(QueueNo, Kind), usize>,
    /// What the next count is of.
    uncounted: Option<(QueueNo, Kind)>,
}

/// One thing to tell.
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

/// The tasks that are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoticedTasks<'n> {
    Count(u64),
    Ids(&'n [TaskId]),
}

impl NoticeBuffer {
    /// Takes down only what is of these kinds from now on.
    pub(crate) const fn set_subscribed(&mut self, kinds: Kinds) {
        self.subscribed = kinds;
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes an event down, if anyone may want to hear of it.
    #[inline]
    pub(crate) fn observe(&mut self, event: &Event<'_>) {
        if !self.subscribed.is_empty() {
            self.add_event(event);
        }
    }

    #[cold]
    fn add_event(&mut self, event: &Event<'_>) {
        // A count is of the event recorded last, and of no other.
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

    /// The event seen last was about so many tasks.
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

    /// Tells everything, in order, and forgets it.
    pub(crate) fn drain(&mut self, mut tell: impl FnMut(QueueNo, Kind, NoticedTasks<'_>)) {
        for BufferedNotice { queue, kind, tasks } in self.list.drain(..) {
            tell(
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
        /// Room for more than this is given back once it is empty.
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

    fn told(buffer: &mut NoticeBuffer) -> Vec<(u32, Kind, u64)> {
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
    fn what_is_counted_is_told_once_by_queue_where_it_was_first_met() {
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
        assert_eq!(told(&mut buffer), expect);
        assert!(buffer.is_empty() && told(&mut buffer).is_empty(), "and never again");
    }

    #[test]
    fn nothing_is_taken_down_that_nobody_wants() {
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
    fn a_count_is_of_the_event_recorded_last() {
        let mut buffer = buffer(&[Kind::Work]);
        buffer.observe(&Event::Resumed(QueueNo(1)));
        buffer.observe(&Event::QueueDropped(QueueNo(2)));
        buffer.counted(7);
        assert!(buffer.is_empty(), "nobody wants to hear of what was dropped");
    }

    #[test]
    fn nothing_is_not_told() {
        let mut buffer = buffer(&Kind::ALL);
        buffer.observe(&Event::QueueDropped(QueueNo(1)));
        buffer.counted(0);
        buffer.observe(&Event::Removed { queue: QueueNo(1), ids: Ids::Slice(&[]), why: Removal::Deleted });
        assert!(buffer.is_empty());
    }
}
