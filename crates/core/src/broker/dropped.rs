//! What was in queues that were dropped or purged, until its bodies are released.

use alloc::collections::VecDeque;
use core::mem;

use super::Broker;
use crate::queue::Remains;
use crate::task::Body;

/// What was in queues that were dropped, taken out of the store by a driver that releases it by itself.
#[derive(Debug)]
pub struct Dropped<B>(VecDeque<Remains<B>>);

impl<B: Body> Dropped<B> {
    /// Whether there is nothing to release.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Hands each body to `visit` that has not been released yet.
    pub fn bodies(&self, visit: &mut dyn FnMut(&B)) {
        self.0.iter().for_each(|remains| remains.queue().bodies(visit));
    }
}

impl<B: Body> Broker<B> {
    /// Takes out all that was in dropped queues: it is the caller's to release, and takes no time of the store's. However
    /// many queues are dropped one after the other, none of them is then waited for.
    pub fn take_dropped(&mut self) -> Dropped<B> {
        self.dropped_memory = 0;
        Dropped(mem::take(&mut self.dropped))
    }

    /// Whether something was decided about tasks that are there, and is still being done: no image is taken meanwhile.
    pub fn is_under_way(&self) -> bool {
        !self.unfinished.is_empty()
    }
}
