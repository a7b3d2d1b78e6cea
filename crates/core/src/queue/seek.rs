//! Looking at all tasks of a queue, a few at a time, while it goes on.

use core::ops::ControlFlow;

use super::Queue;
use crate::id::TaskId;
use crate::task::Body;

/// How far a look at all tasks has come that were there when it began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seek {
    at: SeekAt,
    /// The last id that had been given out then.
    upto: Option<TaskId>,
}

impl Seek {
    /// There was nothing to look at.
    pub const DONE: Self = Self { at: SeekAt::Done, upto: None };

    /// Whether there is nothing more to look at.
    pub const fn is_done(&self) -> bool {
        matches!(self.at, SeekAt::Done)
    }
}

/// Tasks leave the packed runs for records and never come back, so that those are looked at last: none that was there at
/// the start, and still is, is passed over.
#[derive(Clone, Copy, Debug)]
enum SeekAt {
    /// Plain ones, from this id on.
    PackedReady(u64),
    /// Delayed ones without a record, from this id on.
    PackedDelayed(u64),
    /// Records, from this slot on.
    Records(u32),
    /// All were looked at.
    Done,
}

impl Default for SeekAt {
    fn default() -> Self {
        Self::PackedReady(0)
    }
}

impl<B: Body> Queue<B> {
    /// Shows the next tasks, at most `count` of them, until `visit` has seen enough.
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
