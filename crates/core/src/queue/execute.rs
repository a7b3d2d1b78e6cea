//! Commands about one existing queue that need no new id.
//!
//! The driver finds the queue by name, assigns ids and moves tasks to other queues: see [`Queue::push`],
//! [`Queue::add`], [`Queue::pop`] and [`Queue::take_dying`].

use alloc::boxed::Box;

use super::{Queue, RecoverAsk, claims};
use crate::bulk::{Bulk, Progress};
use crate::command::{AckScope, Cancel, Command, Return, TaskRef, TaskRefs};
use crate::event::Recorder;
use crate::id::{Claim, TaskId};
use crate::limits;
use crate::reply::{Refusal, Replies, Reply, Span};
use crate::task::Body;
use crate::time::Now;

const NOT_OF_A_QUEUE: Refusal = Refusal::not_there("such command", "a queue");

impl<B: Body> Queue<B> {
    /// Executes a command about this queue. For a queue that does not exist, an empty one gives the right reply.
    /// Commands that need an id, span queues or concern workers are refused.
    pub fn execute<R: Recorder<Body = B>>(
        &mut self,
        command: &Command<'_>,
        now: Now,
        rec: &mut R,
        out: &mut Replies<B>,
    ) -> Result<Reply, Refusal> {
        match *command {
            Command::Ack { tasks, scope, .. } => {
                let (claims, start) = (claims(tasks)?, out.indexes.len());
                self.ack(claims, scope == AckScope::Leased, now, rec, &mut out.indexes);
                Ok(Reply::Acked(Span::new(start, out.indexes.len())))
            }
            Command::Extend { task, ms, .. } => Ok(Reply::Outcome(self.extend(claim(task)?, ms, now, rec))),
            Command::Return(ref back) => {
                Ok(Reply::Outcome(self.return_task(claim(back.task)?, back, now, rec)))
            }
            Command::Recover { count, elapsed_ms, .. } => {
                let start = out.tasks.len();
                let (count, bytes) = (count.min(limits::REPLY_TASKS_MAX), limits::REPLY_BYTES_MAX);
                let ask = RecoverAsk { count, elapsed_ms, bytes, first_bytes: usize::MAX, upto: u64::MAX };
                self.recover(&ask, now, rec, &mut out.tasks);
                Ok(Reply::Tasks(Span::new(start, out.tasks.len())))
            }
            Command::Inspect { .. } | Command::Info { .. } => self.execute_read(command, now, out),
            Command::Cancel { which, .. } => self.cancel_tasks(which, now, rec).map(Reply::Count),
            Command::Bury { tasks, .. } => Ok(Reply::Count(self.bury(claims(tasks)?, now, rec))),
            Command::Revive { tasks: Some(tasks), .. } => {
                Ok(Reply::Count(self.revive(&mut ids_alone(claims(tasks)?), now, rec)))
            }
            Command::Revive { tasks: None, .. } | Command::Purge { .. } => {
                let mut bulk = Bulk::default();
                while self.execute_slice(command, &mut bulk, now, rec) == Progress::More {}
                Ok(Reply::Count(bulk.count()))
            }
            Command::Delete { tasks, .. } => Ok(Reply::Count(self.delete(claims(tasks)?, now, rec))),
            Command::Pause { .. } => {
                self.pause(now, rec);
                Ok(Reply::Ok)
            }
            Command::Resume { .. } => {
                self.resume(now, rec);
                Ok(Reply::Ok)
            }
            Command::Config { changes, .. } if changes.is_empty() => self.execute_read(command, now, out),
            Command::Config { changes, .. } => {
                Ok(Reply::Settings(Box::new(self.configure(changes, now, rec))))
            }
            Command::Explain { task, .. } => {
                let explained = self.explain(claim(task)?.id(), now, rec);
                Ok(Reply::Explained(explained.map(Box::new)))
            }
            Command::Push { .. }
            | Command::Add(_)
            | Command::Pop(_)
            | Command::Drop { .. }
            | Command::Exists { .. }
            | Command::Size
            | Command::Queues { .. }
            | Command::Worker(_) => Err(NOT_OF_A_QUEUE),
        }
    }

    /// One slice of a command about all tasks of a state. Does nothing for any other command.
    pub(crate) fn execute_slice<R: Recorder<Body = B>>(
        &mut self,
        command: &Command<'_>,
        bulk: &mut Bulk,
        now: Now,
        rec: &mut R,
    ) -> Progress {
        match *command {
            Command::Revive { tasks: None, .. } => self.revive_slice(bulk, now, rec),
            Command::Purge { state, .. } => self.purge_slice(state, bulk, now, rec),
            _ => Progress::Done,
        }
    }

    /// Executes a command that only reads. Tasks that are due but not moved yet are shown unchanged, since moving
    /// them would be a change.
    pub fn execute_read(
        &self,
        command: &Command<'_>,
        now: Now,
        out: &mut Replies<B>,
    ) -> Result<Reply, Refusal> {
        match *command {
            Command::Inspect { view, start, count, .. } => {
                let first = out.tasks.len();
                self.inspect(view, start, count, now, &mut out.tasks);
                Ok(Reply::Inspected(Span::new(first, out.tasks.len())))
            }
            Command::Info { .. } => Ok(Reply::Info(Box::new(self.info(now)))),
            Command::Config { changes, .. } if changes.is_empty() => {
                Ok(Reply::Settings(Box::new(self.settings.clone())))
            }
            Command::Explain { task, .. } => {
                Ok(Reply::Explained(self.explanation(claim(task)?.id(), now).map(Box::new)))
            }
            _ => Err(NOT_OF_A_QUEUE),
        }
    }

    fn cancel_tasks<R: Recorder<Body = B>>(
        &mut self,
        which: Cancel<'_>,
        now: Now,
        rec: &mut R,
    ) -> Result<u64, Refusal> {
        Ok(match which {
            Cancel::Ids(tasks) => self.cancel(claims(tasks)?, now, rec),
            Cancel::Names(names) => {
                let ids = self.ids_of_names(names);
                self.cancel(ids.map(Claim::Id), now, rec)
            }
            Cancel::Payload(payload) => {
                let ids = self.ids_of_payload(payload);
                self.cancel(ids.into_iter().map(Claim::Id), now, rec)
            }
        })
    }
}

/// Refuses a command with a malformed task reference before it changes anything.
pub(crate) fn check_claims(command: &Command<'_>) -> Result<(), Refusal> {
    match *command {
        Command::Extend { task, .. }
        | Command::Explain { task, .. }
        | Command::Return(Return { task, .. }) => claim(task).map(drop),
        Command::Bury { tasks, .. }
        | Command::Delete { tasks, .. }
        | Command::Revive { tasks: Some(tasks), .. }
        | Command::Cancel { which: Cancel::Ids(tasks), .. } => claims(tasks).map(drop),
        _ => Ok(()),
    }
}

/// The ids among claims. A receipt refers to a lease, which a dead task does not have.
fn ids_alone(claims: impl Iterator<Item = Claim>) -> impl Iterator<Item = TaskId> {
    claims.filter_map(|claim| match claim {
        Claim::Id(id) => Some(id),
        Claim::Receipt(_) => None,
    })
}

fn claim(task: TaskRef<'_>) -> Result<Claim, Refusal> {
    let list = [task.bytes];
    let mut read = claims(TaskRefs { list: &list, form: task.form })?;
    read.next().ok_or(Refusal::MalformedId)
}
