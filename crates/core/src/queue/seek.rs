//! Visits all tasks of a queue, a few at a time, while commands are executed in between.

use core::ops::ControlFlow;

use super::Queue;
use crate::id::TaskId;
use crate::task::Body;

/// The progress of a visit to all tasks that existed when it began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seek {
    at: SeekAt,
    /// The last id when the visit began.
    upto: Option<TaskId>,
}

impl Seek {
    /// A visit that is already complete.
    pub const DONE: Self = Self { at: SeekAt::Done, upto: None };

    /// Whether all tasks have been visited.
    pub const fn is_done(&self) -> bool {
        matches!(self.at, SeekAt::Done)
    }
}

/// The position of a visit. Tasks move from the packed runs to records and never back, so records are visited last:
/// no task that existed at the start and still does is missed.
#[derive(Clone, Copy, Debug)]
enum SeekAt {
    /// Packed ready tasks, from this id on.
    PackedReady(u64),
    /// Packed delayed tasks, from this id on.
    PackedDelayed(u64),
    /// Records, from this slot on.
    Records(u32),
    Done,
}

impl Default for SeekAt {
    fn default() -> Self {
        Self::PackedReady(0)
    }
}

impl<B: Body> Queue<B> {
    /// Visits the next tasks, at most `count` of them, until `visit` breaks off.
    pub fn seek(&self, seek: &mut Seek, count: usize, visit: &mut dyn FnMut(TaskId, &B) -> ControlFlow<()>) {
        let (mut left, at) = (count, &mut seek.at);
        let upto = *seek.upto.get_or_insert(self.last_id);
        while left > 0 {
            let (packed, from, behind) = match *at {
                SeekAt::PackedReady(from) => (&self.ready.packed, from, SeekAt::PackedDelayed(0)),
                SeekAt::PackedDelayed(from) => (&self.packed_delayed, from, SeekAt::Records(0)),
                SeekAt::Records(slot) if slot >= self.table.slots() => {
                    *at = SeekAt::Done;
                    return;
                }
                SeekAt::Records(slot) => {
                    left -= 1;
                    *at = SeekAt::Records(slot + 1);
                    let task = self.table.task_in(slot).filter(|task| task.id <= upto);
                    if task.is_some_and(|task| visit(task.id, &task.body).is_break()) {
                        return;
                    }
                    continue;
                }
                SeekAt::Done => return,
            };
            let is_ready = matches!(*at, SeekAt::PackedReady(_));
            let mut entries = packed.iter_from(packed.count_below(from)).take_while(|entry| entry.id <= upto);
            loop {
                let Some(entry) = entries.next() else {
                    *at = behind;
                    break;
                };
                let next = entry.id.raw() + 1;
                *at = if is_ready { SeekAt::PackedReady(next) } else { SeekAt::PackedDelayed(next) };
                left -= 1;
                if visit(entry.id, &entry.body).is_break() {
                    return;
                }
                if left == 0 {
                    break;
                }
            }
        }
    }
}
