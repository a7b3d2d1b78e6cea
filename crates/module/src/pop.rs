//! RQ.POP: handing out tasks, and waiting for some.
//!
//! Those who wait are Redis' own blocked clients, in its order. Whoever is woken pops as if it had just asked, and goes on
//! waiting if another was faster.

use sureq_core::command::{Block, Command, Pop};
use sureq_core::event::LeaseTerms;
use sureq_core::queue::{PopAsk, Popped};
use sureq_core::reply::{Replies, Reply, Span, TaskView};
use sureq_core::task::Holder;
use sureq_core::{Receipt, Refusal, limits};
use sureq_proto::resp::Pieces as _;

use crate::agenda::Place;
use crate::callbacks;
use crate::keyed::{Make, Steps};
use crate::payload::Payload;
use crate::redis::{Ctx, Str};
use crate::sliced::{self, SLICE_BYTES, SLICE_TASKS, Slice, serial_of};
use crate::waiting;
use crate::workers;

/// Who pops.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Popper {
    /// A client that has just asked.
    Asking,
    /// A client that waits, and was woken.
    Woken,
}

/// Whether a client has its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    Yes,
    /// It waits.
    NotYet,
}

/// The most tasks that a waiting client gets when it is woken. It is answered in one go, as Redis lets clients wait for
/// keys only, so that the rest of a larger pop could not be handed out in slices.
const WOKEN_TASKS_MAX: u32 = 10_000;

/// What was popped, by the queues it is of, wherever those are by now.
#[derive(Default)]
pub(crate) struct Handed {
    /// Deliveries in their order, each with the number of its source.
    receipts: Vec<(usize, Receipt)>,
    sources: Vec<Source>,
}

/// A queue that tasks were popped from.
struct Source {
    /// Its serial number.
    of: u64,
    place: Place,
}

impl Handed {
    /// Takes note of tasks that were just popped from a key.
    fn extend(&mut self, ctx: Ctx<'_>, key: Str<'_>, tasks: &[TaskView<Payload>]) {
        let Some(of) = serial_of(ctx, key).filter(|_| !tasks.is_empty()) else { return };
        if self.sources.last().is_none_or(|last| last.of != of) {
            self.sources.push(Source { of, place: (ctx.db(), key.bytes().into()) });
        }
        let source = self.sources.len() - 1;
        self.receipts.extend(tasks.iter().map(|task| (source, task.receipt())));
    }

    /// A queue has come to this place, perhaps from another.
    pub(crate) fn follow(&mut self, of: u64, db: i32, name: &[u8]) {
        for source in self.sources.iter_mut().filter(|source| source.of == of) {
            source.place = (db, name.into());
        }
    }

    /// The databases of the queues.
    pub(crate) fn dbs_mut(&mut self) -> impl Iterator<Item = &mut i32> {
        self.sources.iter_mut().map(|source| &mut source.place.0)
    }

    /// Takes the last deliveries of one queue, a slice at most.
    fn take_last(&mut self) -> Option<(&Source, Vec<Receipt>)> {
        let &(last, _) = self.receipts.last()?;
        let same = self.receipts.iter().rev().take(SLICE_TASKS).take_while(|(source, _)| *source == last);
        let from = self.receipts.len() - same.count();
        let receipts = self.receipts.drain(from..).map(|(_, receipt)| receipt).collect();
        Some((&self.sources[last], receipts))
    }
}

/// What a pop may still hand out.
pub(crate) struct PopRest {
    /// The queue to go on with.
    from: usize,
    tasks: u32,
    bytes: usize,
    /// Whether something was handed out.
    has_any: bool,
    /// What was handed out, if that may come in several slices and nothing else brings it back if the client is gone: what
    /// a connection holds comes back with its end.
    handed: Handed,
}

impl PopRest {
    pub(crate) fn new(pop: &Pop<'_>, popper: Popper) -> Self {
        let max = if popper == Popper::Woken { WOKEN_TASKS_MAX } else { limits::REPLY_TASKS_MAX };
        let (tasks, bytes) = (pop.count.min(max), limits::REPLY_BYTES_MAX);
        Self { from: 0, tasks, bytes, has_any: false, handed: Handed::default() }
    }

    pub(crate) fn into_handed(self) -> Handed {
        self.handed
    }

    pub(crate) const fn handed_mut(&mut self) -> &mut Handed {
        &mut self.handed
    }

    /// Hands out a slice: all that is wanted from the first queue, then from the next. A key of another type is an error
    /// unless something was found before it.
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
            // If its worker is gone by now, it gets what it was given before.
            Err(_) => return done(out),
        };
        let start = out.tasks.len();
        let is_noted = pop.count > SLICE_TASKS as u32 && pop.lease.conn.is_none();
        let (mut tasks, mut bytes) = (self.tasks.min(SLICE_TASKS as u32), self.bytes.min(SLICE_BYTES));
        let mut is_over = true;
        while let Some(&key) = keys.get(self.from).filter(|_| tasks > 0 && bytes > 0) {
            let first_bytes = if is_first { usize::MAX } else { self.bytes };
            let (queue, meta) = (self.from as u32, pop.meta);
            let from = out.tasks.len();
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
            if is_noted {
                self.handed.extend(steps.ctx, key, &out.tasks[from..]);
            }
            if let Some(holder) = terms.holder.filter(|_| count > 0) {
                steps.process.agenda.hold(holder, steps.ctx.db(), key.bytes());
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
        if is_over || self.tasks == 0 || self.bytes == 0 { done(out) } else { Slice::More }
    }
}

fn done(out: &Replies<Payload>) -> Slice {
    Slice::Done(Ok(Reply::Tasks(Span::new(0, out.tasks.len()))))
}

/// Gives back a slice of what was popped for a client that is gone: the last first, so that all are in order at the front.
pub(crate) fn requeue(steps: &mut Steps<'_, '_>, handed: &mut Handed) -> Slice {
    let Some((source, last)) = handed.take_last() else { return Slice::Done(Ok(Reply::Ok)) };
    let (db, name) = &source.place;
    if steps.ctx.select(*db) {
        let name = steps.ctx.string(name);
        // A queue that is gone has no deliveries.
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

/// Whether a command waits if there is nothing.
pub(crate) const fn may_wait(command: &Command<'_>) -> bool {
    matches!(command, Command::Pop(pop) if pop.count > 0 && pop.block.is_some())
}

/// There is nothing: the client waits, or goes on waiting. Where nobody may wait, its time is over at once, as that of
/// Redis' own blocking commands is.
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
