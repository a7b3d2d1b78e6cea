//! Deliveries that reached no client because their payload could not be read.

use super::Distinct;
use crate::event::{Event, Ids, Recorder, Removal};
use crate::id::{Claim, Receipt};
use crate::limits;
use crate::queue::Queue;
use crate::settings::Place;
use crate::task::{Body, Cause};
use crate::time::Now;

impl<B: Body> Queue<B> {
    /// Requeues deliveries whose payload could not be read. Their tasks are delayed by `wait_ms`, at no cost of a
    /// try; without a wait they die. Dead ones stay in this queue even if it has a dead-letter queue, whose workers
    /// could not read them either. Deliveries that are no longer current are left alone.
    pub fn requeue_unreadable<R: Recorder<Body = B>>(
        &mut self,
        receipts: &[Receipt],
        wait_ms: Option<u64>,
        reason: &[u8],
        now: Now,
        rec: &mut R,
    ) {
        self.settle_once(now, rec);
        let reason = Some(&reason[..reason.len().min(limits::REASON_BYTES_MAX)]);
        let (mut back, mut cancelled) = (Distinct::default(), Distinct::default());
        for receipt in receipts {
            if self.is_current(Claim::Receipt(*receipt)) {
                let is_cancelled = self.table.get(receipt.id).is_some_and(|task| task.cancelled);
                let _ = if is_cancelled { &mut cancelled } else { &mut back }.add(receipt.id);
            }
        }
        self.remove_all(&cancelled.ids, Removal::Cancelled, now, rec);
        if back.ids.is_empty() {
            return;
        }
        if let Some(ms) = wait_ms {
            self.send_back(&back.ids, self.landing(Place::After(ms), now), Cause::Free, reason, now, rec);
        } else {
            let ids = Ids::Slice(&back.ids);
            self.commit(&Event::Died { queue: self.no, ids, cause: Cause::Free, reason }, now.log, rec);
        }
    }
}
