//! Listeners receive events of queues as they become durable.

use std::fmt;
use std::task::{Context, Poll};

use sureq_core::notice::{Kind, Kinds};

use crate::notice::ListenEvent;
use crate::waiting::wait;

/// A home's side of a [`Listener`]. Dropping it ends all its subscriptions.
pub trait NoticeSource: Send + Sync {
    /// Subscribes to notices of one kind about a queue, which need not exist.
    fn subscribe(&self, kind: Kind, queue: &[u8]);

    /// Ends one such subscription.
    fn unsubscribe(&self, kind: Kind, queue: &[u8]);

    /// Subscribes to notices of these kinds about all queues.
    fn subscribe_all(&self, kinds: Kinds);

    /// Ends one such subscription for each of these kinds.
    fn unsubscribe_all(&self, kinds: Kinds);

    /// The next event, once it is durable; `None` when there will be no more.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<ListenEvent>>;
}

/// Receives notices about queues, in order, once they are durable. Subscriptions are counted: each is ended by an
/// unsubscribe of its own.
pub struct Listener(Box<dyn NoticeSource>);

impl Listener {
    /// A listener that receives from this source.
    pub fn new(source: impl NoticeSource + 'static) -> Self {
        Self(Box::new(source))
    }

    /// Subscribes to notices of one kind about a queue, which need not exist.
    pub fn subscribe(&self, kind: Kind, queue: &[u8]) {
        self.0.subscribe(kind, queue);
    }

    /// Ends one such subscription.
    pub fn unsubscribe(&self, kind: Kind, queue: &[u8]) {
        self.0.unsubscribe(kind, queue);
    }

    /// Subscribes to notices of these kinds about all queues.
    pub fn subscribe_all(&self, kinds: Kinds) {
        self.0.subscribe_all(kinds);
    }

    /// Ends one such subscription for each of these kinds.
    pub fn unsubscribe_all(&self, kinds: Kinds) {
        self.0.unsubscribe_all(kinds);
    }

    /// The next event, once it is durable; `None` when there will be no more.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<ListenEvent>> {
        self.0.poll(cx)
    }

    /// Blocks until the next event; `None` when there will be no more.
    pub fn wait(&self) -> Option<ListenEvent> {
        wait(|cx| self.poll(cx))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}
