//! Recent deliveries in layouts with foreign ids.
//!
//! A caller that cannot pass a task on returns it by its receipt. Foreign layouts have no receipts. Deliveries are
//! therefore numbered, the number takes the place of the incarnation in a receipt, and the last few thousand are
//! remembered.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sureq_core::{Receipt, Replies, Reply, TaskId};
use sureq_home_api::Payload;

/// The number of remembered deliveries. Older ones have reached their callers, or are requeued when their leases end.
const KEPT: usize = 8 << 10;

/// The most recent deliveries.
#[derive(Debug, Default)]
pub(crate) struct Deliveries(Mutex<Last>);

#[derive(Debug, Default)]
struct Last {
    /// Their ids, in order.
    ids: VecDeque<Box<[u8]>>,
    next: u64,
}

impl Deliveries {
    fn lock(&self) -> MutexGuard<'_, Last> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers the tasks in replies.
    pub(crate) fn number(&self, replies: &mut Replies<Payload>) {
        let mut last = self.lock();
        for reply in &replies.list {
            let Reply::Tasks(span) = reply else { continue };
            for task in &mut replies.tasks[span.range()] {
                let Some(foreign) = &task.foreign_id else { break };
                task.incarnation = last.next;
                last.next += 1;
                last.ids.push_back(foreign.clone());
                if last.ids.len() > KEPT {
                    last.ids.pop_front();
                }
            }
        }
    }

    /// The id of the task that was delivered with this receipt, if it is remembered.
    pub(crate) fn id(&self, receipt: Receipt) -> Option<Vec<u8>> {
        if receipt.id != TaskId::NONE {
            return None;
        }
        let last = self.lock();
        let back = last.next.checked_sub(receipt.incarnation)?;
        let at = last.ids.len().checked_sub(usize::try_from(back).ok()?)?;
        last.ids.get(at).map(|id| id.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sureq_core::LogTime;
    use sureq_core::reply::{Span, TaskView};

    fn hand(deliveries: &Deliveries, id: &str) -> Receipt {
        let mut replies = Replies::default();
        replies.list.push(Reply::Tasks(Span::new(0, 1)));
        replies.tasks.push(TaskView {
            queue: 0,
            id: TaskId::NONE,
            body: Payload::from(Vec::new()),
            deliveries: 0,
            incarnation: 0,
            at: LogTime(0),
            elapsed_ms: 0,
            more: None,
            foreign_id: Some(id.as_bytes().into()),
        });
        deliveries.number(&mut replies);
        replies.tasks[0].receipt()
    }

    #[test]
    fn the_last_deliveries_are_remembered() {
        let deliveries = Deliveries::default();
        let first = hand(&deliveries, "a");
        let second = hand(&deliveries, "b");
        assert_eq!(deliveries.id(first), Some(b"a".to_vec()));
        assert_eq!(deliveries.id(second), Some(b"b".to_vec()));
        assert_eq!(deliveries.id(Receipt { incarnation: 2, ..second }), None, "nothing has that number yet");
        for _ in 0..KEPT - 1 {
            hand(&deliveries, "c");
        }
        assert_eq!(deliveries.id(first), None);
        assert_eq!(deliveries.id(second), Some(b"b".to_vec()));
    }
}
