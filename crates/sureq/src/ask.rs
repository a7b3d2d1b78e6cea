//! Asking a home and waiting for the answer, in a future: what the queue's methods and the worker are made of.
//!
//! A future that is dropped before its answer came changes nothing about what was executed. Only tasks that were handed out
//! go back: nobody has seen them.

use std::future::poll_fn;
use std::task::{Context, Poll};

use sureq_core::reply::TaskView;
use sureq_core::{Command, Refusal, Replies, Reply};
use sureq_seam::{Position, by_queue};

use crate::error::{Error, Result};
use crate::home::Home;
use crate::seam::{Body, Ticket};

impl Home {
    /// Executes commands, in order, and answers once all of it is as durable as promised.
    pub(crate) async fn ask(&self, commands: &[Command<'_>]) -> Replies<Body> {
        let mut replies = Untaken { home: self, commands, replies: Replies::default() };
        let mut position = Position::START;
        while replies.done() < commands.len() {
            let executed = self.gather(&commands[replies.done()..], &mut replies.replies);
            self.commit();
            position = position.max(executed.position);
            if let Some(ticket) = executed.ticket {
                let answer = answer_of(&ticket).await;
                position = position.max(answer.position);
                replies.replies.append(answer.replies);
            } else if let Some(hold) = executed.hold {
                self.reached(hold).await;
            }
        }
        if self.reached(position).await {
            return replies.take();
        }
        let mut refused = Replies::default();
        refused.list.extend(commands.iter().map(|_| Reply::Refused(Refusal::Poisoned)));
        refused
    }

    /// Executes one command.
    pub(crate) async fn ask_one(&self, command: Command<'_>) -> Result<(Reply, Replies<Body>)> {
        let mut replies = self.ask(&[command]).await;
        match replies.list.pop() {
            Some(Reply::Refused(no)) => Err(no.into()),
            Some(reply) => Ok((reply, replies)),
            None => Err(Error::out_of_turn()),
        }
    }

    /// Waits until the position is durable; answers false if it never will be.
    async fn reached(&self, position: Position) -> bool {
        poll_fn(|cx| self.poll_reached(position, cx)).await
    }

    fn poll_reached(&self, position: Position, cx: &mut Context<'_>) -> Poll<bool> {
        let answer = || {
            if self.durable() >= position { Some(true) } else { self.failure().map(|_| false) }
        };
        if let Some(answer) = answer() {
            return Poll::Ready(answer);
        }
        self.wake_at(position, cx.waker());
        // It may have come to that between the look and the wish to be woken.
        answer().map_or(Poll::Pending, Poll::Ready)
    }
}

async fn answer_of(ticket: &Ticket) -> crate::seam::Answer {
    poll_fn(|cx| ticket.poll(cx)).await
}

/// Replies that their asker has not got yet. Dropped, the tasks among them go back.
struct Untaken<'a> {
    home: &'a Home,
    commands: &'a [Command<'a>],
    replies: Replies<Body>,
}

impl Untaken<'_> {
    fn done(&self) -> usize {
        self.replies.list.len()
    }

    fn take(mut self) -> Replies<Body> {
        std::mem::take(&mut self.replies)
    }
}

impl Drop for Untaken<'_> {
    fn drop(&mut self) {
        for (command, reply) in self.commands.iter().zip(&self.replies.list) {
            let (Command::Pop(pop), Reply::Tasks(tasks)) = (command, reply) else { continue };
            let tasks = &self.replies.tasks[tasks.range()];
            for (queue, receipts) in by_queue(pop.queues, tasks, TaskView::receipt) {
                self.home.undeliver(queue, &receipts);
            }
        }
    }
}
