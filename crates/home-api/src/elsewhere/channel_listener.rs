//! Listeners of homes that publish notices over channels.

use std::sync::Arc;
use std::task::{Context, Poll};

use sureq_core::notice::{Kind, Kinds};

use super::subscriptions::{By, Subscription};
use crate::listener::NoticeSource;
use crate::notice::ListenEvent;
use crate::notice_queue::NoticeQueue;
use crate::position::Position;

/// How a home names its channels, and where it takes subscriptions.
pub trait ChannelNames {
    /// The channel for notices of one kind about a queue.
    fn channel(&self, kind: Kind, queue: &[u8]) -> Vec<u8>;

    /// The pattern that matches the channels of one kind for all queues.
    fn pattern(&self, kind: Kind) -> Vec<u8>;

    /// Changes the subscriptions of the home.
    fn change(&self, subscription: Subscription);
}

/// A listener with a queue that the home's thread fills.
pub struct ChannelListener<N> {
    queue: Arc<NoticeQueue>,
    names: N,
}

impl<N: ChannelNames> ChannelListener<N> {
    /// A listener to this queue.
    pub const fn new(queue: Arc<NoticeQueue>, names: N) -> Self {
        Self { queue, names }
    }
}

impl<N: ChannelNames + Send + Sync> NoticeSource for ChannelListener<N> {
    fn subscribe(&self, kind: Kind, queue: &[u8]) {
        self.names.change(Subscription::begin(By::Channel, self.names.channel(kind, queue)));
    }

    fn unsubscribe(&self, kind: Kind, queue: &[u8]) {
        self.names.change(Subscription::end(By::Channel, self.names.channel(kind, queue)));
    }

    fn subscribe_all(&self, kinds: Kinds) {
        let pattern = |kind| Subscription::begin(By::Pattern, self.names.pattern(kind));
        kinds.iter().for_each(|kind| self.names.change(pattern(kind)));
    }

    fn unsubscribe_all(&self, kinds: Kinds) {
        let pattern = |kind| Subscription::end(By::Pattern, self.names.pattern(kind));
        kinds.iter().for_each(|kind| self.names.change(pattern(kind)));
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<ListenEvent>> {
        // A server publishes only durable events.
        self.queue.poll(Position::MAX, cx).unwrap_or(Poll::Pending)
    }
}
