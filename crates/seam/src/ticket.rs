//! Tickets: the right to answers that a home elsewhere has not given yet.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use sureq_core::Replies;

use crate::slot::{Slot, Untaken};
use crate::waiting::wait;

/// What came of commands.
#[derive(Debug)]
pub struct Answer<B> {
    /// One reply for each.
    pub replies: Replies<B>,
    /// When they came.
    pub at: Instant,
}

/// A home to which deliveries go back that reached nobody.
pub trait TakeBack {
    /// A ticket was dropped without having been used. These were in its answer if that was there; if not, there are none, and
    /// whoever answers later finds the slot abandoned.
    fn take_back(&self, untaken: Vec<Untaken>);
}

/// The right to the answers of commands that were sent. Dropped without having been used, what it was given goes back to the
/// front.
pub struct Ticket<B, H: TakeBack> {
    slot: Arc<Slot<B>>,
    home: Arc<H>,
    commands: usize,
    is_waiting: bool,
}

impl<B, H: TakeBack> Ticket<B, H> {
    /// For so many commands whose answers will be put into this slot.
    pub const fn new(slot: Arc<Slot<B>>, home: Arc<H>, commands: usize) -> Self {
        Self { slot, home, commands, is_waiting: false }
    }

    /// The same for a pop that may wait.
    pub const fn waiting(slot: Arc<Slot<B>>, home: Arc<H>) -> Self {
        Self { slot, home, commands: 1, is_waiting: true }
    }

    /// How many commands it is for.
    pub const fn commands(&self) -> usize {
        self.commands
    }

    /// Whether it waits for tasks, which go back if nobody takes them.
    pub const fn is_for_tasks(&self) -> bool {
        self.is_waiting
    }

    /// The answer, once it is there.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Answer<B>> {
        self.slot.poll(cx).map(|(replies, at)| Answer { replies, at })
    }

    /// Waits for the answer on this thread.
    pub fn wait(self) -> Answer<B> {
        wait(|cx| self.poll(cx))
    }
}

impl<B, H: TakeBack> Drop for Ticket<B, H> {
    fn drop(&mut self) {
        if let Some(untaken) = self.slot.abandon() {
            self.home.take_back(untaken);
        }
    }
}

impl<B, H: TakeBack> fmt::Debug for Ticket<B, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("commands", &self.commands).finish_non_exhaustive()
    }
}
