//! Leases that end without an action of their holder: the deadline passed, or the worker or connection is gone.
//!
//! [`Queue::judge`] decides the fate of a task, by the policy of its lease or by the defaults of the queue.

use alloc::vec::Vec;

use super::Queue;
use crate::command::{LapseEnd, LapsePolicy};
use crate::event::{Landing, Recorder, Removal};
use crate::id::TaskId;
use crate::limits;
use crate::settings::Place;
use crate::task::{Body, Cause, Holder, Lease, Task};
use crate::time::Now;

/// The fate of a task whose lease ended without an action of its holder.
enum Verdict {
    Front,
    Elsewhere(Landing),
    Dead,
    Gone(Removal),
}

impl<B: Body> Queue<B> {
    /// Ends the leases of these tasks. The tasks that return to the front go there as one group, in the given order.
    pub(super) fn end_leases<R: Recorder<Body = B>>(
        &mut self,
        ids: &[TaskId],
        cause: Cause,
        group: u64,
        now: Now,
        rec: &mut R,
    ) {
        let mut front = Vec::with_capacity(ids.len());
        for &id in ids {
            let task = self.table.get(id).expect("an index points at records");
            let holder = task.lease().and_then(Lease::holder);
            if let (Cause::Lapsed, Some(Holder::Worker(worker))) = (cause, holder) {
                self.lapsed.push((worker, task.receipt()));
            }
            match self.judge(task, cause, now) {
                Verdict::Front => front.push(id),
                Verdict::Elsewhere(to) => self.send_back(&[id], to, cause, None, now, rec),
                Verdict::Dead => self.bury_all(&[id], cause, Some(reason_of(cause)), now, rec),
                Verdict::Gone(why) => self.remove_all(&[id], why, now, rec),
            }
        }
        if !front.is_empty() {
            self.send_back(&front, Landing::Front { group }, cause, None, now, rec);
        }
    }

    fn judge(&self, task: &Task<B>, cause: Cause, now: Now) -> Verdict {
        if task.cancelled {
            return Verdict::Gone(Removal::Cancelled);
        }
        if cause == Cause::Free {
            return Verdict::Front;
        }
        let policy = task.lease().and_then(|lease| lease.terms()?.lapse);
        if let Some(policy) = policy {
            return self.judge_by(&policy, task, now);
        }
        if self.is_last_try(task) {
            return Verdict::Dead;
        }
        let times = task.tries().unfinished().saturating_add(1);
        if times < limits::LAPSES_BEFORE_BACKOFF {
            return Verdict::Front;
        }
        let wait = self.backoff_ms(task, times + 1 - limits::LAPSES_BEFORE_BACKOFF);
        Verdict::Elsewhere(self.landing(Place::After(wait), now))
    }

    /// Applies the policy of the lease, which takes precedence over the defaults of the queue.
    fn judge_by(&self, policy: &LapsePolicy, task: &Task<B>, now: Now) -> Verdict {
        let over = match policy.limit {
            Some(limit) => task.tries().unfinished() >= limit,
            None => self.is_last_try(task),
        };
        match (over, policy.then) {
            (true, LapseEnd::Delete) => Verdict::Gone(Removal::Lapsed),
            (true, LapseEnd::Dead) => Verdict::Dead,
            (false, _) if policy.to == Place::Front => Verdict::Front,
            (false, _) => Verdict::Elsewhere(self.landing(policy.to, now)),
        }
    }

    /// Whether one more try would be the last.
    pub(super) fn is_last_try(&self, task: &Task<B>) -> bool {
        task.tries().total().saturating_add(1) >= self.tries_max(task)
    }

    pub(super) fn tries_max(&self, task: &Task<B>) -> u32 {
        task.extras.as_ref().and_then(|extras| extras.tries_max).unwrap_or_else(|| self.settings.tries())
    }

    /// The wait after `times` tries that ended the same way. It doubles each time up to a maximum. A jitter of up to
    /// half of it is subtracted. It is computed from the task alone, so that a replay gives the same result.
    pub(super) fn backoff_ms(&self, task: &Task<B>, times: u32) -> u64 {
        let first = task.extras.as_ref().and_then(|extras| extras.backoff_ms);
        let first = first.unwrap_or_else(|| self.settings.backoff_ms());
        let whole = first.saturating_mul(1u64.checked_shl(times.saturating_sub(1)).unwrap_or(u64::MAX));
        let whole = whole.min(limits::BACKOFF_MS_MAX);
        let mixed = (task.id.raw() ^ u64::from(task.deliveries) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let half = whole / 2;
        whole - (mixed >> 32) % (half + 1)
    }
}

const fn reason_of(cause: Cause) -> &'static [u8] {
    match cause {
        Cause::Lapsed => b"lease lapsed",
        Cause::Lost => b"worker lost",
        Cause::Failed | Cause::Free => b"failed",
    }
}
