//! Notices for listeners: tasks became ready, were finished, cancelled or removed.
//!
//! Notices follow from events alone, so that no cause can be overlooked. The home knows the listeners, and decides
//! when a notice may be sent. A replay records nothing and so sends nothing.

use crate::event::{Event, Ids, Landing, QueueNo, Removal};

/// The kind of change that a notice reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Tasks became ready, or a queue with ready tasks was resumed.
    Work,
    /// Tasks were finished.
    Done,
    /// Tasks were cancelled.
    Cancel,
    /// Tasks were removed in other ways.
    Delete,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Work, Self::Done, Self::Cancel, Self::Delete];

    /// The name of the kind in channel names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Done => "done",
            Self::Cancel => "cancel",
            Self::Delete => "delete",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub const fn has(self, kind: Kind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    /// Iterates in the order of [`Kind::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(move |&kind| self.has(kind))
    }
}

impl FromIterator<Kind> for Kinds {
    fn from_iter<I: IntoIterator<Item = Kind>>(kinds: I) -> Self {
        Self(kinds.into_iter().fold(0, |set, kind| set | 1 << kind as u8))
    }
}

/// The notice that follows from an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Meaning<'a> {
    pub queue: QueueNo,
    pub kind: Kind,
    pub tasks: Concerned<'a>,
}

/// The tasks that a notice is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Concerned<'a> {
    /// A number of tasks, without their ids.
    Count(usize),
    /// The number of tasks that the next call of [`Recorder::note_task_count`](crate::Recorder::note_task_count)
    /// reports.
    Uncounted,
    /// Tasks, by id.
    Ids(Ids<'a>),
}

impl<'a> Event<'a> {
    /// The notice that follows from this event, if any.
    pub fn meaning(&self) -> Option<Meaning<'a>> {
        let count = |ids: Ids<'a>| Concerned::Count(ids.iter().count());
        let (queue, kind, tasks) = match *self {
            Self::Pushed { queue, payloads, fields, .. } if fields.due.is_none() => {
                (queue, Kind::Work, Concerned::Count(payloads.len()))
            }
            Self::Returned { queue, ids, to: Landing::Front { .. } | Landing::Back, .. }
            | Self::Revived { queue, ids } => (queue, Kind::Work, count(ids)),
            Self::Moved { to, .. } => (to, Kind::Work, Concerned::Count(1)),
            Self::DueCame { queue, .. } | Self::Resumed(queue) => (queue, Kind::Work, Concerned::Uncounted),
            Self::Finished { queue, ids } => (queue, Kind::Done, Concerned::Ids(ids)),
            Self::Marked { queue, ids } | Self::Removed { queue, ids, why: Removal::Cancelled } => {
                (queue, Kind::Cancel, Concerned::Ids(ids))
            }
            Self::Removed { queue, ids, .. } => (queue, Kind::Delete, count(ids)),
            Self::QueueDropped(queue) | Self::Purged { queue, .. } => {
                (queue, Kind::Delete, Concerned::Uncounted)
            }
            _ => return None,
        };
        Some(Meaning { queue, kind, tasks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Fields, Payloads, Purge};
    use crate::id::TaskId;
    use crate::task::{Cause, Due};
    use crate::time::LogTime;

    const QUEUE: QueueNo = QueueNo(3);

    fn check(event: &Event<'_>, expect: Option<(Kind, Concerned<'_>)>) {
        let expect = expect.map(|(kind, tasks)| Meaning { queue: QUEUE, kind, tasks });
        assert_eq!(event.meaning(), expect, "{event:?}");
    }

    #[test]
    fn events_that_make_tasks_ready_are_work() {
        let (queue, first, payloads) = (QUEUE, TaskId::new(1, 1).unwrap(), Payloads::Slices(&[b"a", b"b"]));
        let pushed = |fields| Event::Pushed { queue, first, payloads, fields };
        check(&pushed(Fields::default()), Some((Kind::Work, Concerned::Count(2))));
        check(&pushed(Fields { due: Some(Due::Log(LogTime(9))), ..Fields::default() }), None);
        let list = [first];
        let ids = Ids::Slice(&list);
        let returned = |to| Event::Returned { queue, ids, to, cause: Cause::Free, reason: None };
        let one = Some((Kind::Work, Concerned::Count(1)));
        check(&returned(Landing::Front { group: 1 }), one);
        check(&returned(Landing::Back), one);
        check(&returned(Landing::Delayed(LogTime(9))), None);
        check(&Event::Revived { queue, ids }, one);
        check(&Event::Moved { from: QueueNo(1), id: first, to: queue }, one);
        check(&Event::Resumed(queue), Some((Kind::Work, Concerned::Uncounted)));
        check(&Event::Paused(queue), None);
    }

    #[test]
    fn events_that_end_tasks_give_the_kind_of_end() {
        let (queue, list) = (QUEUE, [TaskId::new(1, 1).unwrap(), TaskId::new(1, 2).unwrap()]);
        let ids = Ids::Slice(&list);
        let removed = |why| Event::Removed { queue, ids, why };
        check(&Event::Finished { queue, ids }, Some((Kind::Done, Concerned::Ids(ids))));
        check(&Event::Marked { queue, ids }, Some((Kind::Cancel, Concerned::Ids(ids))));
        check(&removed(Removal::Cancelled), Some((Kind::Cancel, Concerned::Ids(ids))));
        for why in [Removal::Expired, Removal::Deleted, Removal::Dropped, Removal::Lapsed] {
            check(&removed(why), Some((Kind::Delete, Concerned::Count(2))));
        }
        let purged = Event::Purged { queue, what: Purge::All };
        check(&purged, Some((Kind::Delete, Concerned::Uncounted)));
        check(&Event::QueueDropped(queue), Some((Kind::Delete, Concerned::Uncounted)));
        check(&Event::Died { queue, ids, cause: Cause::Lapsed, reason: None }, None);
    }

    #[test]
    fn a_set_of_kinds_contains_exactly_its_kinds() {
        let some: Kinds = [Kind::Done, Kind::Delete].into_iter().collect();
        assert!(some.has(Kind::Done) && some.has(Kind::Delete) && !some.has(Kind::Work));
        assert!(some.iter().eq([Kind::Done, Kind::Delete]));
        assert!(Kinds::default().is_empty() && !some.is_empty());
    }
}
