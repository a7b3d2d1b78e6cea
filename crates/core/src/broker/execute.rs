//! From commands to decisions.

use alloc::boxed::Box;

use super::Broker;
use crate::bounds::queue_within;
use crate::command::{Command, TaskRef, TaskRefs};
use crate::event::{Event, QueueNo, Recorder};
use crate::id::{Claim, TaskId};
use crate::limits;
use crate::queue::{Queue, claims};
use crate::reply::{Outcome, Refusal, Replies, Reply, Span};
use crate::task::Body;
use crate::time::{LogTime, Now};

/// Says what time it is before the first event of a command that records any.
pub(super) struct Stamp<'r, R> {
    rec: &'r mut R,
    now: LogTime,
    pub(super) clock: LogTime,
}

impl<R: Recorder> Recorder for Stamp<'_, R> {
    type Body = R::Body;

    fn record(&mut self, event: &Event<'_>) {
        if self.now > self.clock {
            self.clock = self.now;
            self.rec.record(&Event::Clock(self.now));
        }
        self.rec.record(event);
    }

    fn counted(&mut self, tasks: usize) {
        self.rec.counted(tasks);
    }

    fn body(&mut self, index: usize, payload: &[u8]) -> R::Body {
        self.rec.body(index, payload)
    }

    fn payload_hash(&self, payload: &[u8]) -> u128 {
        self.rec.payload_hash(payload)
    }

    fn release(&mut self, body: R::Body) {
        self.rec.release(body);
    }
}

impl<B: Body> Broker<B> {
    /// Executes one command and adds its answer. A pop that may wait and finds nothing answers no tasks: who
    /// waits in which line is the home's business.
    pub fn execute<R: Recorder<Body = B>>(
        &mut self,
        now: Now,
        command: &Command<'_>,
        rec: &mut R,
        out: &mut Replies<B>,
    ) {
        self.stamped(now, rec, |broker, now, rec| {
            let reply = broker.decide(now, command, rec, out).unwrap_or_else(Reply::Refused);
            out.list.push(reply);
        });
    }

    /// Runs decisions under one point in time. Workers that are lost by then are lost before anything is decided.
    pub(super) fn stamped<R: Recorder<Body = B>, T>(
        &mut self,
        now: Now,
        rec: &mut R,
        decide: impl FnOnce(&mut Self, Now, &mut Stamp<'_, R>) -> T,
    ) -> T {
        let now = Now { log: now.log.max(self.clock), ..now };
        let mut stamp = Stamp { rec, now: now.log, clock: self.clock };
        self.end_lost_workers(now, &mut stamp);
        let done = decide(self, now, &mut stamp);
        self.clock = stamp.clock;
        done
    }

    /// Records and applies an event of the broker's own.
    pub(super) fn commit_stamped<R: Recorder<Body = B>>(
        &mut self,
        event: &Event<'_>,
        rec: &mut Stamp<'_, R>,
    ) {
        rec.record(event);
        self.clock = rec.clock;
        self.apply(event, rec).expect("a decision fits the state it was made on");
    }

    fn decide<R: Recorder<Body = B>>(
        &mut self,
        now: Now,
        command: &Command<'_>,
        rec: &mut Stamp<'_, R>,
        out: &mut Replies<B>,
    ) -> Result<Reply, Refusal> {
        command.check()?;
        match *command {
            Command::Push { queue, payloads } => self.push(queue, payloads, now, rec, out),
            Command::Add(ref add) => self.add(add, now, rec),
            Command::Pop(ref pop) => self.pop(pop, now, rec, out),
            Command::Ack { queue, tasks, scope } => self.ack(queue, tasks, scope, now, rec, out),
            Command::Extend { queue, task, ms } => {
                let claim = claim(task)?;
                let outcome = self.with(queue, now, rec, |queue, rec| queue.extend(claim, ms, now, rec));
                Ok(Reply::Outcome(outcome.unwrap_or(Outcome::Stale)))
            }
            Command::Return(ref back) => self.give_back(back, now, rec),
            Command::Recover { queue, count, elapsed_ms } => {
                let (start, count) = (out.tasks.len(), count.min(limits::REPLY_TASKS_MAX));
                self.with(queue, now, rec, |queue, rec| {
                    queue.recover(count, elapsed_ms, now, rec, &mut out.tasks);
                });
                Ok(Reply::Tasks(Span::new(start, out.tasks.len())))
            }
            Command::Inspect { queue, view, start, count } => {
                let first = out.tasks.len();
                self.with(queue, now, rec, |queue, _| {
                    queue.inspect(view, start, count, now, &mut out.tasks);
                });
                Ok(Reply::Inspected(Span::new(first, out.tasks.len())))
            }
            Command::Info { queue } => {
                let mut info = self.with(queue, now, rec, |queue, _| queue.info(now)).unwrap_or_default();
                let slot = self.number_of(queue).and_then(|no| self.slot(no));
                info.workers = slot.map_or(0, |slot| slot.workers as u64);
                Ok(Reply::Info(Box::new(info)))
            }
            Command::Cancel { queue, which } => self.cancel(queue, which, now, rec),
            Command::Bury { queue, tasks } => {
                let claims = claims(tasks)?;
                Ok(self.count(queue, now, rec, |queue, rec| queue.bury(claims, now, rec)))
            }
            Command::Revive { queue, tasks } => {
                let claims = tasks.map(claims).transpose()?;
                Ok(self.count(queue, now, rec, |queue, rec| match claims {
                    None => queue.revive(None, now, rec),
                    Some(claims) => queue.revive(Some(&mut ids_alone(claims)), now, rec),
                }))
            }
            Command::Delete { queue, tasks } => {
                let claims = claims(tasks)?;
                Ok(self.count(queue, now, rec, |queue, rec| queue.delete(claims, now, rec)))
            }
            Command::Purge { queue, state } => {
                Ok(self.count(queue, now, rec, |queue, rec| queue.purge(state, now, rec)))
            }
            Command::Drop { queues } => Ok(Reply::Count(self.drop_queues(queues, rec))),
            Command::Size => Ok(Reply::Count(self.with_tasks as u64)),
            Command::Exists { queues } => {
                let there =
                    queues.iter().filter(|name| self.queue(name).is_some_and(|queue| !queue.is_empty()));
                Ok(Reply::Count(there.count() as u64))
            }
            Command::Pause { queue } => {
                self.with_made(queue, now, rec, |queue, rec| queue.pause(now, rec))?;
                Ok(Reply::Ok)
            }
            Command::Resume { queue } => {
                self.with(queue, now, rec, |queue, rec| queue.resume(now, rec));
                Ok(Reply::Ok)
            }
            Command::Config { queue, changes } => self.configure(queue, changes, now, rec),
            Command::Explain { queue, task } => {
                let id = claim(task)?.id();
                let explained = self.with(queue, now, rec, |queue, rec| queue.explain(id, now, rec));
                Ok(Reply::Explained(explained.flatten().map(|explained| Box::new(self.named(explained)))))
            }
            Command::Queues { pattern, cursor, count } => Ok(self.list(pattern, cursor, count, out)),
            Command::Worker(ref worker) => self.worker(worker, now, rec, out),
        }
    }

    /// Does something with a queue that is there, and brings the broker in step.
    pub(super) fn with<R: Recorder<Body = B>, T>(
        &mut self,
        name: &[u8],
        now: Now,
        rec: &mut Stamp<'_, R>,
        act: impl FnOnce(&mut Queue<B>, &mut Stamp<'_, R>) -> T,
    ) -> Option<T> {
        let no = *self.names.get(name)?;
        Some(self.with_number(no, now, rec, act))
    }

    pub(super) fn with_number<R: Recorder<Body = B>, T>(
        &mut self,
        no: QueueNo,
        now: Now,
        rec: &mut Stamp<'_, R>,
        act: impl FnOnce(&mut Queue<B>, &mut Stamp<'_, R>) -> T,
    ) -> T {
        // What time did to the queue is complete before anything is asked of it, moves to other queues included.
        if self.slot(no).is_some_and(|slot| slot.is_due(now)) {
            self.on_queue(no, rec, |queue, rec| queue.settle(now, 0, rec));
        }
        let done = self.on_queue(no, rec, act);
        self.refresh(no);
        done
    }

    /// One step of a queue, and what follows from it elsewhere.
    pub(super) fn on_queue<R: Recorder<Body = B>, T>(
        &mut self,
        no: QueueNo,
        rec: &mut Stamp<'_, R>,
        act: impl FnOnce(&mut Queue<B>, &mut Stamp<'_, R>) -> T,
    ) -> T {
        let slot = self.slot_mut(no).expect("a queue that has a number has a place");
        let done = act(&mut slot.queue, rec);
        let (dying, lapsed) = (slot.queue.take_dying(), slot.queue.take_lapsed());
        let purged = slot.queue.take_purged();
        self.clock = rec.clock;
        if !purged.is_empty() {
            self.dropped.extend(purged);
            self.release_dropped(rec);
        }
        for (worker, receipt) in lapsed {
            self.workers.tell(worker, receipt);
        }
        if !dying.is_empty() {
            self.move_dying(no, &dying, rec);
        }
        done
    }

    /// Does something with a queue, which is made if need be.
    pub(super) fn with_made<R: Recorder<Body = B>, T>(
        &mut self,
        name: &[u8],
        now: Now,
        rec: &mut Stamp<'_, R>,
        act: impl FnOnce(&mut Queue<B>, &mut Stamp<'_, R>) -> T,
    ) -> Result<T, Refusal> {
        let no = self.made(name, rec)?;
        Ok(self.with_number(no, now, rec, act))
    }

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

    pub(super) fn count<R: Recorder<Body = B>>(
        &mut self,
        queue: &[u8],
        now: Now,
        rec: &mut Stamp<'_, R>,
        act: impl FnOnce(&mut Queue<B>, &mut Stamp<'_, R>) -> u64,
    ) -> Reply {
        Reply::Count(self.with(queue, now, rec, act).unwrap_or(0))
    }
}

/// A receipt is of a delivery, and what is dead is not delivered.
fn ids_alone(claims: impl Iterator<Item = Claim>) -> impl Iterator<Item = TaskId> {
    claims.filter_map(|claim| match claim {
        Claim::Id(id) => Some(id),
        Claim::Receipt(_) => None,
    })
}

pub(super) fn claim(task: TaskRef<'_>) -> Result<Claim, Refusal> {
    let list = [task.bytes];
    let mut read = claims(TaskRefs { list: &list, form: task.form })?;
    read.next().ok_or(Refusal::MalformedId)
}
