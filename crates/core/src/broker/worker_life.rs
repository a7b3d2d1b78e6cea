//! Commands about workers, and the end of workers and connections.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Broker;
use super::execute::{Growth, Stamp};
use crate::bulk::{Bulk, Progress};
use crate::command::{Worker, WorkerRef};
use crate::event::{Event, QueueNo, Recorder};
use crate::id::Receipt;
use crate::limits;
use crate::meter;
use crate::reply::{Explanation, Refusal, Replies, Reply, Span, Why, WorkerRow};
use crate::task::{Body, Cause, Holder};
use crate::time::Now;

/// The number of lost workers that one command or tick ends before other commands are served.
const LOST_PER_STEP: usize = 16;

/// The number of workers, and of queues with tasks of theirs, that one slice of a list of workers looks at.
const LISTED_PER_SLICE: usize = 10_000;

/// The remaining budget of one slice of ending leases.
pub(super) struct Slice {
    /// Tasks that it may move. A queue with more of them announces the end and moves the tasks later.
    tasks: usize,
    /// Queues that it may handle.
    queues: usize,
}

impl Slice {
    pub(super) const fn new() -> Self {
        Self { tasks: limits::SLICE_TASKS, queues: limits::SLICE_QUEUES }
    }
}

impl<B: Body> Broker<B> {
    /// The approximate memory of workers in bytes, a part of [`Self::memory`].
    pub fn workers_memory(&self) -> u64 {
        self.workers.memory() as u64
    }

    /// The records that a command about a worker would add.
    pub(super) fn workers_growth(&self, worker: &Worker<'_>) -> Growth {
        match *worker {
            Worker::Start { name, .. } if self.workers.incarnation_of(name).is_none() => Growth::Worker,
            // A worker that is gone gets an error instead.
            Worker::Work(WorkerRef { incarnation, .. }, queue)
                if self.workers.name_of(incarnation).is_some() =>
            {
                match self.number_of(queue) {
                    None => Growth::Record,
                    Some(no) if !self.workers.works_on(incarnation, no) => Growth::Worker,
                    Some(_) => Growth::None,
                }
            }
            _ => Growth::None,
        }
    }

    pub(super) fn worker<R: Recorder<Body = B>>(
        &mut self,
        worker: &Worker<'_>,
        bulk: &mut Bulk,
        now: Now,
        rec: &mut Stamp<'_, R>,
        out: &mut Replies<B>,
    ) -> Result<Option<Reply>, Refusal> {
        let mut slice = Slice::new();
        let progress = match *worker {
            Worker::Start { name, .. } => match self.workers.incarnation_of(name) {
                Some(before) => {
                    self.ids(1, now)?;
                    self.end_worker(before, Cause::Lost, &mut slice, bulk, now, rec)
                }
                None => Progress::Done,
            },
            Worker::Stop(worker) => {
                self.alive(worker, now)?;
                self.end_worker(worker.incarnation, Cause::Free, &mut slice, bulk, now, rec)
            }
            Worker::Fail { name } => match self.workers.incarnation_of(name) {
                // Not a worker that started under the same name after the first slice.
                Some(incarnation) if bulk.cursor == 0 || bulk.cursor == incarnation => {
                    bulk.cursor = incarnation;
                    self.end_worker(incarnation, Cause::Lost, &mut slice, bulk, now, rec)
                }
                _ => Progress::Done,
            },
            Worker::List => self.list_workers(now, bulk, &mut out.workers),
            Worker::Beat(_) | Worker::Work(..) | Worker::Rest(..) => Progress::Done,
        };
        match progress {
            Progress::More => Ok(None),
            Progress::Done => self.worker_done(worker, bulk, now, rec, out).map(Some),
        }
    }

    /// The last step of a command about workers, once the worker that it ends has ended.
    fn worker_done<R: Recorder<Body = B>>(
        &mut self,
        worker: &Worker<'_>,
        bulk: &Bulk,
        now: Now,
        rec: &mut Stamp<'_, R>,
        out: &mut Replies<B>,
    ) -> Result<Reply, Refusal> {
        match *worker {
            Worker::Start { name, ttl_ms } => {
                let (id, _) = self.ids(1, now)?;
                let incarnation = id.raw();
                self.commit_stamped(&Event::WorkerStarted { name, incarnation, ttl_ms }, rec);
                Ok(Reply::Started(incarnation))
            }
            Worker::Beat(worker) => {
                self.alive(worker, now)?;
                let start = out.receipts.len();
                self.workers.beat(worker.incarnation, now.log);
                let holder = Holder::Worker(worker.incarnation);
                self.report_cancelled(holder, &mut out.receipts);
                self.workers.report_lapses(worker.incarnation, &mut out.receipts);
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
                Ok(Reply::Count(self.end_holder_in(holder, queue, Cause::Free, &mut Slice::new(), now, rec)))
            }
            Worker::Stop(_) | Worker::Fail { .. } => Ok(Reply::Count(bulk.count())),
            Worker::List => {
                let start = out.workers.len() - bulk.count() as usize;
                Ok(Reply::Workers(Span::new(start, out.workers.len())))
            }
        }
    }

    /// Appends the receipts of a worker's cancelled tasks. Only queues in which a task of the worker was cancelled
    /// are visited.
    fn report_cancelled(&mut self, holder: Holder, out: &mut Vec<Receipt>) {
        let mut queues: Vec<QueueNo> = of_holder(&self.cancelled, holder).collect();
        queues.retain(|&no| {
            let before = out.len();
            self.slot(no).into_iter().for_each(|slot| slot.queue.cancelled_of(holder, out));
            out.len() == before
        });
        for no in queues {
            self.cancelled.remove(&(holder, no));
        }
    }

    /// Refuses a worker that is not alive: its last heartbeat must be younger than its time to live.
    pub(super) fn alive(&self, worker: WorkerRef<'_>, now: Now) -> Result<(), Refusal> {
        self.workers.check(worker, now.log)
    }

    /// Ends workers whose heartbeat is overdue, a few at a time.
    pub(super) fn end_lost_workers<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut Stamp<'_, R>) {
        let (mut slice, mut bulk) = (Slice::new(), Bulk::default());
        for _ in 0..LOST_PER_STEP {
            let Some((at, incarnation)) = self.workers.next_lost() else { return };
            if at > now.log {
                return;
            }
            if self.end_worker(incarnation, Cause::Lost, &mut slice, &mut bulk, now, rec) == Progress::More {
                return;
            }
        }
    }

    /// Ends a worker. Its tasks are requeued at the front of their queues, in order. A worker with very many queues
    /// exists until the last slice.
    fn end_worker<R: Recorder<Body = B>>(
        &mut self,
        incarnation: u64,
        cause: Cause,
        slice: &mut Slice,
        bulk: &mut Bulk,
        now: Now,
        rec: &mut Stamp<'_, R>,
    ) -> Progress {
        let holder = Holder::Worker(incarnation);
        if self.end_holder(holder, cause, slice, bulk, now, rec) == Progress::More {
            return Progress::More;
        }
        for queue in self.workers.worked_queues(incarnation, slice.queues) {
            self.commit_stamped(&Event::Rested { incarnation, queue }, rec);
            self.refresh(queue);
            slice.queues -= 1;
        }
        for no in of_holder(&self.cancelled, holder).take(slice.queues).collect::<Vec<_>>() {
            self.cancelled.remove(&(holder, no));
            slice.queues -= 1;
        }
        if slice.queues == 0 {
            return Progress::More;
        }
        self.commit_stamped(&Event::WorkerEnded(incarnation), rec);
        Progress::Done
    }

    /// Requeues the tasks that a worker or connection holds, queue by queue.
    pub(super) fn end_holder<R: Recorder<Body = B>>(
        &mut self,
        holder: Holder,
        cause: Cause,
        slice: &mut Slice,
        bulk: &mut Bulk,
        now: Now,
        rec: &mut Stamp<'_, R>,
    ) -> Progress {
        let held: Vec<QueueNo> = of_holder(&self.holds, holder).take(slice.queues).collect();
        for no in held {
            if !self.may_enter(no, now, rec) {
                return Progress::More;
            }
            let back = self.end_holder_in(holder, no, cause, slice, now, rec);
            slice.queues -= 1;
            _ = bulk.more(back);
        }
        if of_holder(&self.holds, holder).next().is_some() { Progress::More } else { Progress::Done }
    }

    /// Requeues the tasks of one queue that a worker or connection holds. Returns their number.
    fn end_holder_in<R: Recorder<Body = B>>(
        &mut self,
        holder: Holder,
        no: QueueNo,
        cause: Cause,
        slice: &mut Slice,
        now: Now,
        rec: &mut Stamp<'_, R>,
    ) -> u64 {
        self.holds.remove(&(holder, no));
        if self.slot(no).is_none_or(|slot| slot.queue.held_by(holder) == 0) {
            return 0;
        }
        let tasks = slice.tasks;
        let count =
            self.on_queue(no, now, rec, |queue, rec| queue.end_holder(holder, cause, tasks, now, rec));
        slice.tasks = tasks.saturating_sub(count as usize);
        count
    }

    /// Adds the name of the worker that holds the task.
    pub(super) fn name_holder(&self, explained: &mut Explanation) {
        if let Why::Leased { holder: Some(Holder::Worker(incarnation)), .. } = explained.why {
            explained.worker = self.workers.name_of(incarnation).map(Into::into);
        }
    }

    /// Lists workers, starting where the last slice ended.
    fn list_workers(&self, now: Now, bulk: &mut Bulk, out: &mut Vec<WorkerRow>) -> Progress {
        let mut looked_at = 0;
        for (incarnation, worker) in self.workers.alive_at(now.log, bulk.cursor) {
            let holder = Holder::Worker(incarnation);
            let (mut from, mut leased) = (QueueNo(0), 0);
            if let Some((listed, queue, count)) = bulk.listed.take()
                && listed == incarnation
            {
                (from, leased) = (queue, count);
            }
            let mut queues = of_holder_from(&self.holds, holder, from);
            loop {
                let queue = queues.next();
                if looked_at >= LISTED_PER_SLICE {
                    bulk.cursor = incarnation;
                    bulk.listed = Some((incarnation, queue.unwrap_or(QueueNo(u32::MAX)), leased));
                    return Progress::More;
                }
                looked_at += 1;
                let Some(no) = queue else { break };
                leased += self.slot(no).map_or(0, |slot| slot.queue.held_by(holder));
            }
            out.push(WorkerRow { name: worker.name.clone(), incarnation, ttl_ms: worker.ttl_ms, leased });
            _ = bulk.more(1);
        }
        Progress::Done
    }
}

fn of_holder(entries: &BTreeSet<(Holder, QueueNo)>, holder: Holder) -> impl Iterator<Item = QueueNo> {
    of_holder_from(entries, holder, QueueNo(0))
}

/// The same, from this queue on.
fn of_holder_from(
    entries: &BTreeSet<(Holder, QueueNo)>,
    holder: Holder,
    from: QueueNo,
) -> impl Iterator<Item = QueueNo> {
    let all = entries.range((holder, from)..=(holder, QueueNo(u32::MAX)));
    all.inspect(|_| meter::step()).map(|&(_, no)| no)
}
