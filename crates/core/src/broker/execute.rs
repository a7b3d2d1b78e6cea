//! Decides commands.

use alloc::boxed::Box;
use core::mem;

use super::Broker;
use crate::bounds::queue_within;
use crate::bulk::{Bulk, Progress};
use crate::command::{Command, Return};
use crate::event::{Event, QueueNo, Recorder};
use crate::limits;
use crate::queue::{Queue, check_claims};
use crate::reply::{Refusal, Replies, Reply};
use crate::task::Body;
use crate::time::{LogTime, Now};

/// The lasting effect of a command on the memory of the store: records that stay until something else removes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    None,
    /// The command adds a task or a queue.
    Record,
    /// The command adds a worker, or a queue that it works on.
    Worker,
}

/// A recorder that records the time before the first event of a call. A call without events leaves no trace.
pub(super) struct Stamp<'r, R> {
    rec: &'r mut R,
    now: LogTime,
    pub(super) clock: LogTime,
    /// Tasks moved by this call, bodies of dropped and purged tasks that it released, and workers that it ended with
    /// the queues that they worked on.
    pub(super) moved: usize,
    /// The last event moves tasks that it does not list.
    is_uncounted: bool,
}

impl<R> Stamp<'_, R> {
    /// How many more tasks this call may move before it settles no other queue. A call that has gone beyond it ends
    /// before the next queue in which something is due, and continues in the next slice.
    pub(super) const fn budget(&self) -> usize {
        limits::SLICE_TASKS.saturating_sub(self.moved)
    }
}

impl<R: Recorder> Recorder for Stamp<'_, R> {
    type Body = R::Body;

    fn record(&mut self, event: &Event<'_>) {
        if self.now > self.clock {
            self.clock = self.now;
            self.rec.record(&Event::Clock(self.now));
        }
        let is_end_of_worker = matches!(event, Event::Rested { .. } | Event::WorkerEnded(_));
        self.moved += event.moved() + usize::from(is_end_of_worker);
        self.is_uncounted = matches!(event, Event::DueCame { .. });
        self.rec.record(event);
    }

    fn note_task_count(&mut self, tasks: usize) {
        if mem::take(&mut self.is_uncounted) {
            self.moved += tasks;
        }
        self.rec.note_task_count(tasks);
    }

    fn new_body(&mut self, index: usize, payload: &[u8]) -> R::Body {
        self.rec.new_body(index, payload)
    }

    fn payload_hash(&self, payload: &[u8]) -> u128 {
        self.rec.payload_hash(payload)
    }

    fn release_body(&mut self, body: R::Body) {
        self.rec.release_body(body);
    }
}

impl<B: Body> Broker<B> {
    /// The records that a command would add if it were executed now. A driver may refuse the command when memory is
    /// short. Leases, and data that a task collects during its life, do not count, since a backlog cannot be worked
    /// off without them.
    pub fn growth(&self, command: &Command<'_>) -> Growth {
        let is_new_queue = |name| self.number_of(name).is_none();
        match *command {
            Command::Push { .. } | Command::Add(_) => Growth::Record,
            Command::Pause { queue } if is_new_queue(queue) => Growth::Record,
            Command::Config { queue, changes } if !changes.is_empty() && is_new_queue(queue) => {
                Growth::Record
            }
            Command::Worker(ref worker) => self.workers_growth(worker),
            _ => Growth::None,
        }
    }

    /// Executes one command and appends its reply. A blocking pop that finds no task replies at once with none:
    /// waiting is up to the home.
    pub fn execute<R: Recorder<Body = B>>(
        &mut self,
        now: Now,
        command: &Command<'_>,
        rec: &mut R,
        out: &mut Replies<B>,
    ) {
        let mut bulk = Bulk::default();
        while self.execute_slice(now, command, &mut bulk, rec, out) == Progress::More {}
    }

    /// Executes one slice of a command. Most commands have only one. Commands about very many tasks, queues or
    /// workers have no reply before the last slice; call again with the same `bulk` until then.
    pub fn execute_slice<R: Recorder<Body = B>>(
        &mut self,
        now: Now,
        command: &Command<'_>,
        bulk: &mut Bulk,
        rec: &mut R,
        out: &mut Replies<B>,
    ) -> Progress {
        self.stamped(now, rec, |broker, now, rec| {
            let reply = broker.decide(now, command, bulk, rec, out).transpose();
            let Some(reply) = reply else { return Progress::More };
            out.list.push(reply.unwrap_or_else(Reply::Refused));
            Progress::Done
        })
    }

    /// Makes decisions at one point in time. Workers whose time to live is over by then are ended first.
    #[inline]
    pub(super) fn stamped<R: Recorder<Body = B>, T>(
        &mut self,
        now: Now,
        rec: &mut R,
        decide: impl FnOnce(&mut Self, Now, &mut Stamp<'_, R>) -> T,
    ) -> T {
        let now = Now { log: now.log.max(self.clock), ..now };
        let mut stamp = Stamp { rec, now: now.log, clock: self.clock, moved: 0, is_uncounted: false };
        self.end_lost_workers(now, &mut stamp);
        let done = decide(self, now, &mut stamp);
        self.clock = stamp.clock;
        self.moved += stamp.moved as u64;
        done
    }

    /// Records and applies an event that is not about the content of a queue.
    pub(super) fn commit_stamped<R: Recorder<Body = B>>(
        &mut self,
        event: &Event<'_>,
        rec: &mut Stamp<'_, R>,
    ) {
        rec.record(event);
        self.clock = rec.clock;
        self.apply(event, rec).expect("a decision fits the state it was made on");
    }

    /// The reply, or `None` if the command needs another slice.
    #[inline]
    fn decide<R: Recorder<Body = B>>(
        &mut self,
        now: Now,
        command: &Command<'_>,
        bulk: &mut Bulk,
        rec: &mut Stamp<'_, R>,
        out: &mut Replies<B>,
    ) -> Result<Option<Reply>, Refusal> {
        command.check()?;
        match *command {
            Command::Revive { queue, tasks: None } | Command::Purge { queue, .. } => {
                let progress = match self.number_of(queue) {
                    Some(no) => {
                        self.on_queue(no, now, rec, |queue, rec| queue.execute_slice(command, bulk, now, rec))
                    }
                    None => Progress::Done,
                };
                Ok((progress == Progress::Done).then(|| Reply::Count(bulk.count())))
            }
            Command::Worker(ref worker) => self.worker(worker, bulk, now, rec, out),
            Command::Pop(ref pop) => self.pop(pop, bulk, now, rec, out),
            _ => self.decide_at_once(now, command, rec, out).map(Some),
        }
    }

    /// Decides commands that have only one slice.
    fn decide_at_once<R: Recorder<Body = B>>(
        &mut self,
        now: Now,
        command: &Command<'_>,
        rec: &mut Stamp<'_, R>,
        out: &mut Replies<B>,
    ) -> Result<Reply, Refusal> {
        match *command {
            Command::Push { queue, payloads } => self.push(queue, payloads, now, rec, out),
            Command::Add(ref add) => self.add(add, now, rec),
            Command::Ack { queue, tasks, scope } => self.ack(queue, tasks, scope, now, rec, out),
            Command::Return(Return { queue, .. })
            | Command::Extend { queue, .. }
            | Command::Recover { queue, .. }
            | Command::Inspect { queue, .. }
            | Command::Cancel { queue, .. }
            | Command::Bury { queue, .. }
            | Command::Revive { queue, .. }
            | Command::Delete { queue, .. }
            | Command::Purge { queue, .. }
            | Command::Resume { queue } => self.ask(queue, command, now, rec, out),
            Command::Info { queue } => {
                let mut reply = self.ask(queue, command, now, rec, out)?;
                if let Reply::Info(info) = &mut reply {
                    let slot = self.number_of(queue).and_then(|no| self.slot(no));
                    info.workers = slot.map_or(0, |slot| slot.workers as u64);
                }
                Ok(reply)
            }
            Command::Drop { queues } => Ok(Reply::Count(self.drop_queues(queues, rec))),
            Command::Size => Ok(Reply::Count(self.with_tasks as u64)),
            Command::Exists { queues } => {
                let there =
                    queues.iter().filter(|name| self.queue(name).is_some_and(|queue| !queue.is_empty()));
                Ok(Reply::Count(there.count() as u64))
            }
            // No need to settle first: the passing of time never changes settings.
            Command::Config { queue, changes } if changes.is_empty() => {
                let settings = self.queue(queue).map(|queue| queue.settings().clone());
                Ok(Reply::Settings(Box::new(settings.unwrap_or_default())))
            }
            Command::Pause { queue } | Command::Config { queue, .. } => {
                let no = self.made(queue, rec)?;
                self.on_queue(no, now, rec, |queue, rec| queue.execute(command, now, rec, out))
            }
            Command::Explain { queue, .. } => {
                let mut reply = self.ask(queue, command, now, rec, out)?;
                if let Reply::Explained(Some(explained)) = &mut reply {
                    self.name_holder(explained);
                }
                Ok(reply)
            }
            Command::Queues { pattern, cursor, count } => Ok(self.list(pattern, cursor, count, out)),
            Command::Pop(_) | Command::Worker(_) => unreachable!("it is decided in slices"),
        }
    }

    /// Executes a command on a queue. A missing queue gives the same reply as an empty one.
    fn ask<R: Recorder<Body = B>>(
        &mut self,
        name: &[u8],
        command: &Command<'_>,
        now: Now,
        rec: &mut Stamp<'_, R>,
        out: &mut Replies<B>,
    ) -> Result<Reply, Refusal> {
        check_claims(command)?;
        match self.names.get(name) {
            Some(&no) => self.on_queue(no, now, rec, |queue, rec| queue.execute(command, now, rec, out)),
            None => Queue::new(QueueNo(0)).execute(command, now, rec, out),
        }
    }

    /// The one way to work on a queue. Before `act`, everything that is due in the queue is carried out, moves to
    /// other queues included. After each step, the follow-ups that affect the rest of the store are done here: its
    /// dead tasks move to its dead-letter queue, lapsed leases are noted for their workers, and purged payloads are
    /// set aside to be released. At the end the indexes of the broker agree with the queue again.
    ///
    /// This may move some slices of tasks. Work on many queues calls [`Self::may_enter`] before each.
    pub(super) fn on_queue<R: Recorder<Body = B>, T>(
        &mut self,
        no: QueueNo,
        now: Now,
        rec: &mut Stamp<'_, R>,
        act: impl FnOnce(&mut Queue<B>, &mut Stamp<'_, R>) -> T,
    ) -> T {
        if self.slot(no).is_some_and(|slot| slot.is_due(now)) {
            self.step(no, rec, |queue, rec| queue.settle_ahead(now, rec));
        }
        let done = self.step(no, rec, act);
        self.refresh(no);
        done
    }

    /// Whether work on many queues may enter this one too: nothing is due in it, or tasks may still be moved.
    pub(super) fn may_enter<R>(&self, no: QueueNo, now: Now, rec: &Stamp<'_, R>) -> bool {
        rec.budget() > 0 || !self.slot(no).is_some_and(|slot| slot.is_due(now))
    }

    /// One step of a queue, and its follow-ups.
    pub(super) fn step<R: Recorder<Body = B>, T>(
        &mut self,
        no: QueueNo,
        rec: &mut Stamp<'_, R>,
        act: impl FnOnce(&mut Queue<B>, &mut Stamp<'_, R>) -> T,
    ) -> T {
        self.image_before_change(no);
        let slot = self.slots.get_mut(no.0 as usize).and_then(Option::as_mut);
        let slot = slot.expect("a queue with a number has a slot");
        let done = act(&mut slot.queue, rec);
        let (dying, lapsed) = (slot.queue.take_dying(), slot.queue.take_lapsed());
        let purged = slot.queue.take_purged();
        self.take_holder_news(no);
        self.clock = rec.clock;
        if !purged.is_empty() {
            for remains in purged {
                self.set_aside(remains);
            }
            self.release_within_budget(rec);
        }
        for (worker, receipt) in lapsed {
            self.workers.note_lapse(worker, receipt);
        }
        if !dying.is_empty() {
            self.move_dying(no, &dying, rec);
        }
        done
    }

    /// The number of a queue, which is created if it does not exist.
    pub(super) fn made<R: Recorder<Body = B>>(
        &mut self,
        name: &[u8],
        rec: &mut Stamp<'_, R>,
    ) -> Result<QueueNo, Refusal> {
        if let Some(&no) = self.names.get(name) {
            return Ok(no);
        }
        queue_within(name)?;
        let no = self.free.first().copied().unwrap_or(QueueNo(self.slots.len() as u32));
        self.commit_stamped(&Event::QueueMade { queue: no, name }, rec);
        Ok(no)
    }
}
