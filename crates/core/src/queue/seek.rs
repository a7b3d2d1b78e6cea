//! Looking at all tasks of a queue, a few at a time, while it goes on.

use super::Queue;
use crate::id::TaskId;
use crate::task::Body;

/// How far a look at all tasks has come. Tasks leave the packed runs for records and never come back, so that those are
/// looked at last: none that was there at the start, and still is, is passed over.
#[derive(Clone, Copy, Debug)]
pub enum Seek {
    /// Plain ones, from this id on.
    Plain(u64),
    /// Delayed ones without a record, from this id on.
    Later(u64),
    /// Records, from this page on.
    Records(usize),
    /// All were looked at.
    Done,
}

impl Default for Seek {
    fn default() -> Self {
        Self::Plain(0)
    }
}

impl<B: Body> Queue<B> {
    /// Shows the next tasks, about `count` of them.
    pub(crate) fn seek(&self, seek: &mut Seek, count: usize, visit: &mut dyn FnMut(TaskId, &B)) {
        let mut left = count;
        while left > 0 {
            let (packed, from) = match *seek {
                Seek::Plain(from) => (&self.ready.plain, from),
                Seek::Later(from) => (&self.later, from),
                Seek::Records(page) => {
                    let Some(tasks) = self.table.page(page) else {
                        *seek = Seek::Done;
                        return;
                    };
                    tasks.for_each(|task| {
                        visit(task.id, &task.body);
                        left = left.saturating_sub(1);
                    });
                    *seek = Seek::Records(page + 1);
                    continue;
                }
                Seek::Done => return,
            };
            let mut next = None;
            for entry in packed.iter_from(packed.count_below(from)).take(left) {
                visit(entry.id, &entry.body);
                left -= 1;
                next = Some(entry.id.raw() + 1);
            }
            *seek = match (*seek, next) {
                (Seek::Plain(_), Some(next)) => Seek::Plain(next),
                (Seek::Plain(_), None) => Seek::Later(0),
                (Seek::Later(_), Some(next)) => Seek::Later(next),
                _ => Seek::Records(0),
            };
        }
    }
}
