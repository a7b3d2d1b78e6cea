//! Commands about tasks. The broker finds the queue and assigns ids; the queue does the rest.

use super::Broker;
use super::execute::Stamp;
use super::worker_life::Slice;
use crate::bulk::{Bulk, Progress};
use crate::command::{AckScope, Add, Command, ConnId, LeaseAsk, Pop, TaskRefs};
use crate::event::{LeaseTerms, Recorder};
use crate::id::{Receipt, TaskId};
use crate::limits;
use crate::queue::{PopAsk, Popped, Pushes, RecoverAsk, claims};
use crate::reply::{Refusal, Replies, Reply, Span};
use crate::task::{Body, Cause, Holder};
use crate::time::Now;

/// The time in ids stops advancing this long before the mark. Each millisecond has room for 131,071 ids.
const ID_RESERVE_MS: u64 = 5_000;

/// The result of a slice of a pop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlicePopped {
    /// The number of popped tasks, and their size.
    pub popped: Popped,
    /// The index of the queue to continue with, if the slice ended because it had moved enough tasks. It ends before
    /// that queue moves its due tasks, whether it popped any task or not.
    pub next_queue: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub struct PopSlice {
    /// The index of the first queue to look at.
    pub from: usize,
    /// The maximum number of tasks to lease.
    pub count: u32,
    /// The maximum number of payload bytes.
    pub bytes: usize,
    /// The maximum number of payload bytes of the first task, if that is larger than `bytes`.
    pub first_bytes: usize,
}

impl<B: Body> Broker<B> {
    /// The first and the last of `n` new ids. They count as assigned once a push is recorded.
    ///
    /// Near the mark the time in ids stops advancing, so that hundreds of millions of ids are left before the mark is
    /// reached. They are as unique and ordered as others.
    pub(super) fn ids(&self, n: usize, now: Now) -> Result<(TaskId, TaskId), Refusal> {
        let has_mark = self.id_mark != TaskId::LAST;
        let upto = if has_mark { self.id_mark.ms().saturating_sub(ID_RESERVE_MS) } else { u64::MAX };
        let ms = now.log.0.min(upto);
        let first = self.last_id.next(ms).ok_or(Refusal::NoMoreIds)?;
        let last = first.nth(n.saturating_sub(1) as u64).ok_or(Refusal::NoMoreIds)?;
        if has_mark && last >= self.id_mark {
            let why =
                "the store cannot make more ids durable, since its disk does not answer: try again later";
            return Err(Refusal::Unavailable { why: why.into() });
        }
        Ok((first, last))
    }

    pub(super) fn push<R: Recorder<Body = B>>(
        &mut self,
        queue: &[u8],
        payloads: &[&[u8]],
        now: Now,
        rec: &mut Stamp<'_, R>,
        out: &mut Replies<B>,
    ) -> Result<Reply, Refusal> {
        let start = out.ids.len();
        if !payloads.is_empty() {
            let (first, last) = self.ids(payloads.len(), now)?;
            let no = self.made(queue, rec)?;
            self.on_queue(no, now, rec, |queue, rec| queue.push(Pushes { first, payloads }, now, rec))?;
            self.last_id = last;
            let ids = core::iter::successors(Some(first), |id| id.successor());
            out.ids.extend(ids.take(payloads.len()));
        }
        Ok(Reply::Pushed(Span::new(start, out.ids.len())))
    }

    pub(super) fn add<R: Recorder<Body = B>>(
        &mut self,
        add: &Add<'_>,
        now: Now,
        rec: &mut Stamp<'_, R>,
    ) -> Result<Reply, Refusal> {
        let (id, _) = self.ids(1, now)?;
        let no = self.made(add.queue, rec)?;
        let added = self.on_queue(no, now, rec, |queue, rec| {
            if let Some((id, state)) = queue.named(add, now, rec) {
                return Ok(Reply::Added { id, added: false, state });
            }
            queue.add(id, add, now, rec).map(|state| Reply::Added { id, added: true, state })
        })?;
        if let Reply::Added { id, added: true, .. } = added {
            self.last_id = id;
        }
        Ok(added)
    }

    pub(super) fn pop<R: Recorder<Body = B>>(
        &mut self,
        pop: &Pop<'_>,
        bulk: &mut Bulk,
        now: Now,
        rec: &mut Stamp<'_, R>,
        out: &mut Replies<B>,
    ) -> Result<Option<Reply>, Refusal> {
        let before = bulk.count();
        let start = out.tasks.len() - before as usize;
        let taken: usize = out.tasks[start..].iter().map(|task| task.body.len()).sum();
        let bytes = limits::REPLY_BYTES_MAX.saturating_sub(taken);
        let count = pop.count.min(limits::REPLY_TASKS_MAX) - before as u32;
        let first_bytes = if before == 0 { usize::MAX } else { bytes };
        let slice = PopSlice { from: bulk.cursor as usize, count, bytes, first_bytes };
        match self.pop_from(pop, &slice, now, rec, out) {
            Ok(SlicePopped { popped, next_queue: Some(at) }) => {
                bulk.cursor = at as u64;
                _ = bulk.more(popped.tasks.into());
                Ok(None)
            }
            // If its worker has ended since the first slice, the pop ends with the tasks it has.
            Err(refusal) if before == 0 => Err(refusal),
            Ok(_) | Err(_) => Ok(Some(Reply::Tasks(Span::new(start, out.tasks.len())))),
        }
    }

    /// Executes a slice of a pop and appends the leased tasks. The driver ensures that all slices together lease no
    /// more than fits a reply.
    pub fn pop_slice<R: Recorder<Body = B>>(
        &mut self,
        pop: &Pop<'_>,
        slice: &PopSlice,
        now: Now,
        rec: &mut R,
        out: &mut Replies<B>,
    ) -> Result<SlicePopped, Refusal> {
        self.stamped(now, rec, |broker, now, rec| {
            Command::Pop(*pop).check()?;
            broker.pop_from(pop, slice, now, rec, out)
        })
    }

    #[inline]
    fn pop_from<R: Recorder<Body = B>>(
        &mut self,
        pop: &Pop<'_>,
        slice: &PopSlice,
        now: Now,
        rec: &mut Stamp<'_, R>,
        out: &mut Replies<B>,
    ) -> Result<SlicePopped, Refusal> {
        let terms = self.terms(&pop.lease, now)?;
        let mut all = Popped::default();
        for (index, name) in pop.queues.iter().enumerate().skip(slice.from) {
            let left = slice.count - all.tasks;
            if left == 0 || all.is_cut {
                break;
            }
            let Some(&no) = self.names.get(*name) else { continue };
            if !self.may_enter(no, now, rec) {
                return Ok(SlicePopped { popped: all, next_queue: Some(index) });
            }
            let bytes = slice.bytes.saturating_sub(all.bytes);
            let first_bytes = if all.tasks == 0 { slice.first_bytes } else { bytes };
            let (queue, meta) = (index as u32, pop.meta);
            let ask = PopAsk { count: left, bytes, first_bytes, terms, queue, meta };
            let popped = self.on_queue(no, now, rec, |queue, rec| queue.pop(&ask, now, rec, &mut out.tasks));
            if let Some(holder) = terms.holder.filter(|_| popped.tasks > 0) {
                self.holds.insert((holder, no));
            }
            all.tasks += popped.tasks;
            all.bytes += popped.bytes;
            all.is_cut = popped.is_cut;
        }
        Ok(SlicePopped { popped: all, next_queue: None })
    }

    /// Executes a slice of a recovery and appends the tasks that it leases again. `ask.upto` bounds the deliveries,
    /// so that no slice leases a task again that an earlier one leased.
    pub fn recover_slice<R: Recorder<Body = B>>(
        &mut self,
        queue: &[u8],
        ask: &RecoverAsk,
        now: Now,
        rec: &mut R,
        out: &mut Replies<B>,
    ) {
        self.stamped(now, rec, |broker, now, rec| {
            if let Some(no) = broker.number_of(queue) {
                broker.on_queue(no, now, rec, |queue, rec| queue.recover(ask, now, rec, &mut out.tasks));
            }
        });
    }

    fn terms(&self, lease: &LeaseAsk<'_>, now: Now) -> Result<LeaseTerms, Refusal> {
        let holder = match lease.worker {
            None => lease.conn.map(Holder::Conn),
            Some(worker) => {
                self.alive(worker, now)?;
                Some(Holder::Worker(worker.incarnation))
            }
        };
        Ok(LeaseTerms { length_ms: lease.ms, holder, lapse: lease.lapse })
    }

    pub(super) fn ack<R: Recorder<Body = B>>(
        &mut self,
        queue: &[u8],
        tasks: TaskRefs<'_>,
        scope: AckScope,
        now: Now,
        rec: &mut Stamp<'_, R>,
        out: &mut Replies<B>,
    ) -> Result<Reply, Refusal> {
        let claims = claims(tasks)?;
        let start = out.indexes.len();
        let leased_only = scope == AckScope::Leased;
        if let Some(no) = self.number_of(queue) {
            self.on_queue(no, now, rec, |queue, rec| {
                queue.ack(claims, leased_only, now, rec, &mut out.indexes);
            });
        }
        Ok(Reply::Acked(Span::new(start, out.indexes.len())))
    }

    /// Requeues all tasks that a closed connection held, at no cost of a try. Call again while it returns
    /// [`Progress::More`].
    pub fn close_conn<R: Recorder<Body = B>>(&mut self, conn: ConnId, now: Now, rec: &mut R) -> Progress {
        let holder = Holder::Conn(conn);
        let (mut slice, mut bulk) = (Slice::new(), Bulk::default());
        self.stamped(now, rec, |broker, now, rec| {
            broker.end_holder(holder, Cause::Free, &mut slice, &mut bulk, now, rec)
        })
    }

    /// Requeues deliveries that never reached their client, at the front and at no cost of a try. Deliveries that are
    /// no longer current are left alone.
    pub fn requeue_undelivered<R: Recorder<Body = B>>(
        &mut self,
        queue: &[u8],
        receipts: &[Receipt],
        now: Now,
        rec: &mut R,
    ) {
        self.stamped(now, rec, |broker, now, rec| {
            if let Some(no) = broker.number_of(queue) {
                broker.on_queue(no, now, rec, |queue, rec| queue.requeue_undelivered(receipts, now, rec));
            }
        });
    }

    /// Requeues deliveries whose payload could not be read: see `Queue::requeue_unreadable`.
    pub fn requeue_unreadable<R: Recorder<Body = B>>(
        &mut self,
        queue: &[u8],
        receipts: &[Receipt],
        wait_ms: Option<u64>,
        reason: &[u8],
        now: Now,
        rec: &mut R,
    ) {
        self.stamped(now, rec, |broker, now, rec| {
            if let Some(no) = broker.number_of(queue) {
                broker.on_queue(no, now, rec, |queue, rec| {
                    queue.requeue_unreadable(receipts, wait_ms, reason, now, rec);
                });
            }
        });
    }
}
