//! Executes commands and waits for the replies; the methods of queues and the worker are built on this.
//!
//! Dropping a future does not undo an executed command, with one exception: popped tasks in a reply that the caller
//! did not receive are requeued.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Instant;

use sureq_core::reply::TaskView;
use sureq_core::{Command, Refusal, Replies, Reply};
use sureq_home_api::{Answer, Flow, Payload, Position, Ticket, by_queue};

use crate::error::{Error, Result};
use crate::home::Home;

/// The reason of `Refusal::Unknown` after a failed log.
const NOT_DURABLE: &str = "the log failed before the change was durable: open the home again and check";

impl Home {
    /// Executes commands in order; returns when all of them are as durable as the home guarantees.
    pub(crate) async fn ask(&self, commands: &[Command<'_>]) -> Replies<Payload> {
        self.ask_when(commands).await.0
    }

    /// The same, with the time at which the last reply arrived, from which leases count. If the caller was not
    /// polled, that may be long ago.
    async fn ask_when(&self, commands: &[Command<'_>]) -> (Replies<Payload>, Instant) {
        let mut replies = UndeliveredReplies { home: self, commands, replies: Replies::default() };
        let (mut position, mut since) = (Position::START, Instant::now());
        while replies.done() < commands.len() {
            since = Instant::now();
            let submitted = self.api().submit(&commands[replies.done()..], &mut replies.replies);
            self.api().commit();
            position = position.max(submitted.position);
            match submitted.flow {
                Flow::Ready | Flow::Backpressure(None) => {}
                Flow::Waiting(ticket) => {
                    let answer = answer_of(ticket).await;
                    position = position.max(answer.position);
                    since = answer.at;
                    replies.replies.append(answer.replies);
                }
                Flow::Backpressure(Some(until)) => _ = self.wait_durable(until).await,
            }
        }
        if self.wait_durable(position).await {
            return (replies.take(), since);
        }
        let mut unsure = Replies::default();
        unsure.list.extend(replies.replies.list.iter().map(|reply| match reply {
            Reply::Refused(no) => Reply::Refused(no.clone()),
            // A failed write may be on the disk all the same.
            _ => Reply::Refused(Refusal::Unknown { why: NOT_DURABLE.into() }),
        }));
        (unsure, since)
    }

    /// Executes one command.
    pub(crate) async fn ask_one(&self, command: Command<'_>) -> Result<(Reply, Replies<Payload>)> {
        self.ask_one_when(command).await.map(|(reply, replies, _)| (reply, replies))
    }

    /// The same, with the time from which leases in the reply count.
    pub(crate) async fn ask_one_when(
        &self,
        command: Command<'_>,
    ) -> Result<(Reply, Replies<Payload>, Instant)> {
        let (mut replies, since) = self.ask_when(&[command]).await;
        match replies.list.pop() {
            Some(Reply::Refused(no)) => Err(no.into()),
            Some(reply) => Ok((reply, replies, since)),
            None => Err(Error::unexpected_reply()),
        }
    }

    /// Waits until the position is durable; false if the home failed first.
    async fn wait_durable(&self, position: Position) -> bool {
        poll_fn(|cx| self.poll_durable(position, cx)).await
    }

    fn poll_durable(&self, position: Position, cx: &mut Context<'_>) -> Poll<bool> {
        let answer = || {
            if self.api().durable() >= position { Some(true) } else { self.failure().map(|_| false) }
        };
        if let Some(answer) = answer() {
            return Poll::Ready(answer);
        }
        self.api().wake_at(position, cx.waker());
        // It may have become durable before the waker was registered.
        answer().map_or(Poll::Pending, Poll::Ready)
    }
}

async fn answer_of(ticket: Ticket) -> Answer {
    poll_fn(|cx| ticket.poll(cx)).await
}

/// Replies that the caller has not received. On drop, popped tasks among them are requeued.
struct UndeliveredReplies<'a> {
    home: &'a Home,
    commands: &'a [Command<'a>],
    replies: Replies<Payload>,
}

impl UndeliveredReplies<'_> {
    fn done(&self) -> usize {
        self.replies.list.len()
    }

    fn take(mut self) -> Replies<Payload> {
        std::mem::take(&mut self.replies)
    }
}

impl Drop for UndeliveredReplies<'_> {
    fn drop(&mut self) {
        for (command, reply) in self.commands.iter().zip(&self.replies.list) {
            let (Command::Pop(pop), Reply::Tasks(tasks)) = (command, reply) else { continue };
            let tasks = &self.replies.tasks[tasks.range()];
            for (queue, receipts) in by_queue(pop.queues, tasks, TaskView::receipt) {
                self.home.api().requeue(queue, &receipts);
            }
        }
    }
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use sureq_engine::{Engine, Options};
    use sureq_testkit::manual_clock::ManualClock;
    use sureq_testkit::valve::Valve;

    use super::*;

    #[tokio::test]
    async fn commands_before_a_disk_failure_are_unknown_and_later_ones_are_not_executed() {
        let valve = Valve::new();
        let engine = Engine::open_on(valve.shared(), Arc::new(ManualClock::default()), &Options::default());
        let home = Home::from_api(engine.expect("the store opens"));
        let queue = home.queue("q");
        queue.push("before").await.expect("it is durable");
        let empty = home.queue("empty");
        let mut waiting = std::pin::pin!(empty.pop().wait_forever().into_future());
        assert!((&mut waiting).now_or_never().is_none(), "it waits");
        valve.close();
        let mut pushing = std::pin::pin!(empty.push("x"));
        assert!(
            (&mut pushing).now_or_never().is_none(),
            "it is executed, and the sync of the log is delayed"
        );
        valve.wait_until_held();
        valve.fail_log();
        valve.open();
        let (pushed, served) = tokio::join!(pushing, waiting);
        for error in [pushed.expect_err("it is not durable"), served.expect_err("nor is the pop")] {
            assert!(error.is_unknown() && !error.can_be_asked_again(), "{error}");
        }
        let error = queue.push("later").await.expect_err("a failed home confirms nothing");
        assert!(matches!(error, Error::Closed(Refusal::Poisoned)) && !error.is_unknown(), "{error}");
    }
}
