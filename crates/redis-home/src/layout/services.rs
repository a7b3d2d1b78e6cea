//! Functions of a home for the session of its layout.

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{PushInfo, RedisError, Value};
use sureq_core::{Refusal, Replies};
use sureq_home_api::Payload;
use tokio::sync::mpsc;

use super::{AnswerForm, Call, HomeThread, Waiter, Waiters};
use crate::connection::target::Target;
use crate::script::answer::read;

impl HomeThread {
    /// The servers, and the names of the keys.
    pub fn target(&self) -> &Target {
        &self.link.target
    }

    /// The monotonic clock, in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.link.clock.monotonic_ms()
    }

    /// The waiting pops.
    pub const fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// The replies to a pop, from the answer to its call.
    pub fn read_tasks(&self, answer: Value) -> Replies<Payload> {
        let mut replies = Replies::default();
        read(self.link.target.layout().ids(), &AnswerForm::Tasks, answer, &mut replies);
        replies
    }

    /// Answers a waiter that was removed from the index. If it no longer accepts the tasks, they are requeued.
    pub async fn answer(&self, waiter: &Waiter, replies: Replies<Payload>) {
        self.give(&waiter.slot, replies).await;
    }

    /// Requeues the tasks of pops that no replica has confirmed. Returns whether this call was one of them.
    pub async fn requeue_if_unconfirmed(&self, call: &Call) -> bool {
        let is_unconfirmed = self.link.is_unconfirmed(call);
        self.requeue_unconfirmed().await;
        is_unconfirmed
    }

    /// A new connection for subscriptions.
    pub async fn subscriber(&self) -> Result<PubSub, RedisError> {
        self.link.listen().await
    }

    /// A new connection for a command that blocks, and its number for [`Self::unblock`].
    pub async fn blocking_connection(&self) -> Result<(MultiplexedConnection, u64), RedisError> {
        self.link.block().await
    }

    /// Ends the blocking command of such a connection, as if its timeout had passed.
    pub async fn unblock(&self, number: u64) -> Result<(), Refusal> {
        self.link.unblock(number).await
    }

    /// A new connection, and the messages that the server pushes over it.
    pub async fn push_connection(
        &self,
    ) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), RedisError> {
        self.link.pushed().await
    }

    /// Pings all servers, so that lost connections are noticed.
    pub async fn probe(&self) {
        self.link.probe().await;
    }
}
