//! The life of workers: commands about them, and their ends.

use alloc::vec::Vec;

use super::Broker;
use super::execute::Stamp;
use crate::command::{Worker, WorkerRef};
use crate::event::{Event, QueueNo, Recorder};
use crate::limits;
use crate::reply::{Explanation, Refusal, Replies, Reply, Span, Why, WorkerRow};
use crate::task::{Body, Cause, Holder};
use crate::time::Now;

/// How many lost workers one command or tick ends before others get their turn.
const LOST_PER_STEP: usize = 16;

impl<B: Body> Broker<B> {
    pub(super) fn worker<R: Recorder<Body = B>>(
        &mut self,
        worker: &Worker<'_>,
        now: Now,
        rec: &mut Stamp<'_, R>,
        out: &mut Replies<B>,
    ) -> Result<Reply, Refusal> {
        let mut slice = limits::SLICE_TASKS;
        match *worker {
            Worker::Start { name, ttl_ms } => {
                let (id, _) = self.ids(1, now)?;
                if let Some(before) = self.workers.incarnation_of(name) {
                    self.end_worker(before, Cause::Lost, &mut slice, now, rec);
                }
                let incarnation = id.raw();
                self.commit_stamped(&Event::WorkerStarted { name, incarnation, ttl_ms }, rec);
                Ok(Reply::Started(incarnation))
            }
            Worker::Beat(worker) => {
                self.alive(worker, now)?;
                let start = out.receipts.len();
                self.workers.beat(worker.incarnation, now.log);
                let holder = Holder::Worker(worker.incarnation);
                for no in self.queues_held_by(holder) {
                    if let Some(slot) = self.slot(no) {
                        slot.queue.cancelled_of(holder, &mut out.receipts);
                    }
                }
                self.workers.told(worker.incarnation, &mut out.receipts);
                Ok(Reply::Receipts(Span::new(start, out.receipts.len())))
            }
            Worker::Work(worker, queue) => {
                self.alive(worker, now)?;
                let (queue, incarnation) = (self.made(queue, rec)?, worker.incarnation);
                if !self.workers.works_on(incarnation, queue) {
                    self.commit_stamped(&Event::Worked { incarnation, queue }, rec);
                    self.refresh(queue);
                }
                Ok(Reply::Ok)
            }
            Worker::Rest(worker, queue) => {
                self.alive(worker, now)?;
                let Some(queue) = self.number_of(queue) else { return Ok(Reply::Count(0)) };
                let incarnation = worker.incarnation;
                if self.workers.works_on(incarnation, queue) {
                    self.commit_stamped(&Event::Rested { incarnation, queue }, rec);
                    self.refresh(queue);
                }
                let holder = Holder::Worker(incarnation);
                Ok(Reply::Count(self.end_holder(holder, &[queue], Cause::Free, &mut slice, now, rec)))
            }
            Worker::Stop(worker) => {
                self.alive(worker, now)?;
                Ok(Reply::Count(self.end_worker(worker.incarnation, Cause::Free, &mut slice, now, rec)))
            }
            Worker::Fail { name } => match self.workers.incarnation_of(name) {
                Some(incarnation) => {
                    Ok(Reply::Count(self.end_worker(incarnation, Cause::Lost, &mut slice, now, rec)))
                }
                None => Ok(Reply::Count(0)),
            },
            Worker::List => {
                let start = out.workers.len();
                self.list_workers(now, &mut out.workers);
                Ok(Reply::Workers(Span::new(start, out.workers.len())))
            }
        }
    }

    /// Whether this incarnation lives: its last beat was less than its time to live ago.
    pub(super) fn alive(&self, worker: WorkerRef<'_>, now: Now) -> Result<(), Refusal> {
        self.workers.check(worker, now.log)
    }

    /// Ends workers whose time is over, a few at a time.
    pub(super) fn end_lost_workers<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut Stamp<'_, R>) {
        let mut slice = limits::SLICE_TASKS;
        for _ in 0..LOST_PER_STEP {
            let Some((at, incarnation)) = self.workers.next_lost() else { return };
            if at > now.log {
                return;
            }
            self.end_worker(incarnation, Cause::Lost, &mut slice, now, rec);
        }
    }

    /// Ends a worker: its tasks go back to the front of their queues, in their order. Answers how many.
    fn end_worker<R: Recorder<Body = B>>(
        &mut self,
        incarnation: u64,
        cause: Cause,
        slice: &mut usize,
        now: Now,
        rec: &mut Stamp<'_, R>,
    ) -> u64 {
        let holder = Holder::Worker(incarnation);
        let held = self.queues_held_by(holder);
        let worked = self.workers.worked_queues(incarnation);
        self.commit_stamped(&Event::WorkerEnded(incarnation), rec);
        for no in worked {
            self.refresh(no);
        }
        self.end_holder(holder, &held, cause, slice, now, rec)
    }

    /// Takes back what a worker or a connection holds of these queues, so many at once. Answers how many in all.
    pub(super) fn end_holder<R: Recorder<Body = B>>(
        &mut self,
        holder: Holder,
        queues: &[QueueNo],
        cause: Cause,
        slice: &mut usize,
        now: Now,
        rec: &mut Stamp<'_, R>,
    ) -> u64 {
        let mut back = 0;
        for &no in queues {
            self.holds.remove(&(holder, no));
            if self.slot(no).is_some_and(|slot| slot.queue.held_by(holder) > 0) {
                let count = self.with_number(no, now, rec, |queue, rec| {
                    queue.end_holder(holder, cause, *slice, now, rec)
                });
                *slice = slice.saturating_sub(count as usize);
                back += count;
            }
        }
        back
    }

    /// Queues of which a worker or a connection may hold tasks.
    pub(super) fn queues_held_by(&self, holder: Holder) -> Vec<QueueNo> {
        let from_first = self.holds.range((holder, QueueNo(0))..);
        from_first.take_while(|held| held.0 == holder).map(|&(_, no)| no).collect()
    }

    /// Names the worker that has the task.
    pub(super) fn name_holder(&self, explained: &mut Explanation) {
        if let Why::Leased { holder: Some(Holder::Worker(incarnation)), .. } = explained.why {
            explained.worker = self.workers.name_of(incarnation).map(Into::into);
        }
    }

    fn list_workers(&self, now: Now, out: &mut Vec<WorkerRow>) {
        for (incarnation, worker) in self.workers.alive_at(now.log) {
            let holder = Holder::Worker(incarnation);
            let queues = self.queues_held_by(holder).into_iter().filter_map(|no| self.slot(no));
            out.push(WorkerRow {
                name: worker.name.clone(),
                incarnation,
                ttl_ms: worker.ttl_ms,
                leased: queues.map(|slot| slot.queue.held_by(holder)).sum(),
            });
        }
    }
}
