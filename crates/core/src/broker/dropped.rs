//! The contents of dropped and purged queues, until their bodies are released.

use alloc::collections::VecDeque;
use core::mem;

use super::Broker;
use crate::queue::Remains;
use crate::task::Body;

/// The contents of dropped and purged queues, taken out by a driver that releases the bodies itself.
#[derive(Debug)]
pub struct Dropped<B>(VecDeque<Remains<B>>);

impl<B: Body> Dropped<B> {
    /// Whether there is nothing to release.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Visits each body that has not been released yet.
    pub fn bodies(&self, visit: &mut dyn FnMut(&B)) {
        self.0.iter().for_each(|remains| remains.queue().bodies(visit));
    }
}

impl<B: Body> Broker<B> {
    /// Takes out the contents of all dropped and purged queues. The caller releases their bodies without occupying the
    /// broker, so a checkpoint never waits for them, however many queues are dropped.
    pub fn take_dropped(&mut self) -> Dropped<B> {
        self.dropped_memory = 0;
        Dropped(mem::take(&mut self.dropped))
    }

    /// Whether an announced operation on many tasks is under way. No image can be taken meanwhile.
    pub fn is_under_way(&self) -> bool {
        !self.unfinished.is_empty()
    }
}
