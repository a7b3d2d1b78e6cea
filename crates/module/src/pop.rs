//! RQ.POP: delivers tasks, and blocks clients that wait for some.
//!
//! Waiting clients are Redis' own blocked clients, in its order. A woken client executes its pop again, and blocks
//! again if another client was faster.

use sureq_core::command::{Block, Command, Pop};
use sureq_core::event::LeaseTerms;
use sureq_core::queue::{PopAsk, Popped};
use sureq_core::reply::{Replies, Reply, Span, TaskView};
use sureq_core::task::Holder;
use sureq_core::{Receipt, Refusal, limits};
use sureq_proto::resp::Pieces as _;

use crate::callbacks;
use crate::keyed::{Make, Steps};
use crate::payload::Payload;
use crate::redis::{Ctx, Str};
use crate::schedule::Place;
use crate::sliced::{self, SLICE_BYTES, SLICE_TASKS, Slice, serial_of};
use crate::waiting;
use crate::workers;

/// The client that pops.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Popper {
    /// A client that just sent its command.
    Asking,
    /// A waiting client that was woken.
    Woken,
}

/// Whether a client was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    Yes,
    /// The client is blocked.
    NotYet,
}

/// The maximum number of tasks for a woken client. Redis blocks clients on keys only, so a woken client must be
/// answered at once; a larger pop could not continue in slices.
const WOKEN_TASKS_MAX: u32 = 10_000;

/// Popped tasks by queue. The keys of the queues are updated when they are renamed or moved.
#[derive(Default)]
pub(crate) struct PoppedTasks {
    /// Deliveries in order, each with the index of its source.
    receipts: Vec<(usize, Receipt)>,
    sources: Vec<Source>,
}

/// A queue with popped tasks.
struct Source {
    /// Its serial number.
    of: u64,
    place: Place,
}

impl PoppedTasks {
    /// Records tasks that were just popped from a key.
    fn extend(&mut self, ctx: Ctx<'_>, key: Str<'_>, tasks: &[TaskView<Payload>]) {
        let Some(of) = serial_of(ctx, key).filter(|_| !tasks.is_empty()) else { return };
        if self.sources.last().is_none_or(|last| last.of != of) {
            self.sources.push(Source { of, place: (ctx.db(), key.bytes().into()) });
        }
        let source = self.sources.len() - 1;
        self.receipts.extend(tasks.iter().map(|task| (source, task.receipt())));
    }

    /// Notes that a queue was moved to this key.
    pub(crate) fn follow(&mut self, of: u64, db: i32, name: &[u8]) {
        for source in self.sources.iter_mut().filter(|source| source.of == of) {
            source.place = (db, name.into());
        }
    }

    /// The databases of the queues.
    pub(crate) fn dbs_mut(&mut self) -> impl Iterator<Item = &mut i32> {
        self.sources.iter_mut().map(|source| &mut source.place.0)
    }

    /// Removes the last deliveries of one queue, at most a slice.
    fn take_last(&mut self) -> Option<(&Source, Vec<Receipt>)> {
        let &(last, _) = self.receipts.last()?;
        let same = self.receipts.iter().rev().take(SLICE_TASKS).take_while(|(source, _)| *source == last);
        let from = self.receipts.len() - same.count();
        let receipts = self.receipts.drain(from..).map(|(_, receipt)| receipt).collect();
        Some((&self.sources[last], receipts))
    }
}

/// The rest of a pop that is executed in slices.
pub(crate) struct PopRest {
    /// The next queue.
    from: usize,
    tasks: u32,
    bytes: usize,
    /// Whether a task was delivered.
    has_any: bool,
    /// The delivered tasks of a pop that takes several slices, if nothing else would requeue them when the client
    /// disconnects (a CONN lease does).
    popped_tasks: PoppedTasks,
    /// Whether there was a slice before this one.
    is_sliced: bool,
}

impl PopRest {
    pub(crate) fn new(pop: &Pop<'_>, popper: Popper) -> Self {
        let max = if popper == Popper::Woken { WOKEN_TASKS_MAX } else { limits::REPLY_TASKS_MAX };
        let (tasks, bytes) = (pop.count.min(max), limits::REPLY_BYTES_MAX);
        Self { from: 0, tasks, bytes, has_any: false, popped_tasks: PoppedTasks::default(), is_sliced: false }
    }

    pub(crate) fn into_popped_tasks(self) -> PoppedTasks {
        self.popped_tasks
    }

    pub(crate) const fn popped_tasks_mut(&mut self) -> &mut PoppedTasks {
        &mut self.popped_tasks
    }

    /// Delivers a slice of tasks, from the first queue as long as it has tasks, then from the next. A key of another
    /// type is an error unless a task was delivered before it.
    pub(crate) fn step(
        &mut self,
        steps: &mut Steps<'_, '_>,
        pop: &Pop<'_>,
        keys: &[Str<'_>],
        out: &mut Replies<Payload>,
    ) -> Slice {
        let is_first = self.bytes == limits::REPLY_BYTES_MAX;
        let terms = match terms(steps, pop) {
            Ok(terms) => terms,
            Err(refusal) if !self.has_any => return Slice::Done(Err(refusal)),
            // If its worker has ended in the meantime, the reply contains the tasks delivered before.
            Err(_) => return done(out),
        };
        let start = out.tasks.len();
        let (mut tasks, mut bytes) = (self.tasks.min(SLICE_TASKS as u32), self.bytes.min(SLICE_BYTES));
        let mut is_over = true;
        while let Some(&key) = keys.get(self.from).filter(|_| tasks > 0 && bytes > 0) {
            let first_bytes = if is_first { usize::MAX } else { self.bytes };
            let (queue, meta) = (self.from as u32, pop.meta);
            let ask = PopAsk { count: tasks, bytes, first_bytes, terms, queue, meta };
            let popped =
                steps.on(key, Make::Never, |queue, rec, now| queue.pop(&ask, now, rec, &mut out.tasks));
            let Popped { tasks: count, bytes: taken, is_cut } = match popped {
                Ok(popped) => popped.unwrap_or_default(),
                Err(untouched) if out.tasks.is_empty() && !self.has_any => {
                    return Slice::Untouched(untouched);
                }
                Err(_) => Popped::default(),
            };
            if let Some(holder) = terms.holder.filter(|_| count > 0) {
                steps.process.schedule.hold(holder, steps.ctx.db(), key.bytes());
            }
            tasks -= count;
            self.tasks -= count;
            bytes = bytes.saturating_sub(taken);
            self.bytes = self.bytes.saturating_sub(taken);
            if is_cut {
                // The next task has too many bytes for this slice, or for the whole reply.
                is_over = out.tasks.len() == start;
                break;
            }
            if tasks == 0 || bytes == 0 {
                is_over = false;
                break;
            }
            self.from += 1;
        }
        self.has_any |= out.tasks.len() > start;
        let is_done = is_over || self.tasks == 0 || self.bytes == 0;
        if pop.lease.conn.is_none() && (self.is_sliced || !is_done) {
            for tasks in out.tasks[start..].chunk_by(|a, b| a.queue == b.queue) {
                self.popped_tasks.extend(steps.ctx, keys[tasks[0].queue as usize], tasks);
            }
        }
        self.is_sliced |= !is_done;
        if is_done { done(out) } else { Slice::More }
    }
}

fn done(out: &Replies<Payload>) -> Slice {
    Slice::Done(Ok(Reply::Tasks(Span::new(0, out.tasks.len()))))
}

/// Requeues a slice of the tasks that were popped for a client that disconnected. The last tasks come first, so that
/// all are in order at the front in the end.
pub(crate) fn requeue(steps: &mut Steps<'_, '_>, popped_tasks: &mut PoppedTasks) -> Slice {
    let Some((source, last)) = popped_tasks.take_last() else { return Slice::Done(Ok(Reply::Ok)) };
    let (db, name) = &source.place;
    if steps.ctx.select(*db) {
        let name = steps.ctx.string(name);
        // If the queue is gone, so are its deliveries.
        let _ = sliced::on(steps, name.as_str(), source.of, |queue, rec, now| {
            queue.requeue_undelivered(&last, now, rec);
        });
    }
    Slice::More
}

fn terms(steps: &Steps<'_, '_>, pop: &Pop<'_>) -> Result<LeaseTerms, Refusal> {
    let lease = &pop.lease;
    Command::Pop(*pop).check()?;
    let holder = match lease.worker {
        Some(worker) => {
            workers::check(steps, worker)?;
            Some(Holder::Worker(worker.incarnation))
        }
        None if lease.conn.is_some() && steps.ctx.flags().is_script() => {
            return Err(Refusal::not_there("connection for CONN", "a script"));
        }
        None => lease.conn.map(Holder::Conn),
    };
    Ok(LeaseTerms { length_ms: lease.ms, holder, lapse: lease.lapse })
}

/// Whether a pop waits if there is no task.
pub(crate) const fn may_wait(command: &Command<'_>) -> bool {
    matches!(command, Command::Pop(pop) if pop.count > 0 && pop.block.is_some())
}

/// Blocks the client, again if it was woken. If blocking is not allowed, the pop times out at once, like Redis' own
/// blocking commands.
pub(crate) fn wait(mut ctx: Ctx<'_>, command: &Command<'_>, keys: &[Str<'_>], popper: Popper) -> Answered {
    if popper == Popper::Woken {
        return Answered::NotYet;
    }
    if ctx.flags().may_not_wait() {
        ctx.null();
        return Answered::Yes;
    }
    let (ms, worker) = match command {
        Command::Pop(Pop { block: Some(Block::Millis(ms)), lease, .. }) => (*ms, lease.worker),
        Command::Pop(Pop { lease, .. }) => (0, lease.worker),
        _ => (0, None),
    };
    let waiter = ctx.wait(keys, ms, Some(callbacks::woken), Some(callbacks::over));
    if let Some(worker) = worker {
        waiter.on_leave(Some(callbacks::left));
        waiting::begin(waiter, ctx.db(), worker);
    }
    Answered::NotYet
}
