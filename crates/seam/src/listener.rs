//! Those who listen to a home elsewhere, which tells things over channels.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use sureq_core::notice::{Kind, Kinds};

use crate::ear::Ear;
use crate::notice::Heard;
use crate::wanted::{By, Want};

/// A home that tells things over channels.
pub trait Teller {
    /// The channel on which this is told of a queue.
    fn channel(&self, kind: Kind, queue: &[u8]) -> Vec<u8>;

    /// What matches the channels on which this is told of any queue.
    fn pattern(&self, kind: Kind) -> Vec<u8>;

    /// Says what is to be heard from now on.
    fn say(&self, want: Want);
}

/// Someone who listens. At first nothing is wanted; each want is taken back by the unwant that says the same.
pub struct Listener<T> {
    ear: Arc<Ear>,
    teller: T,
}

impl<T: Teller> Listener<T> {
    /// One who hears what is put into this ear.
    pub const fn new(ear: Arc<Ear>, teller: T) -> Self {
        Self { ear, teller }
    }

    /// Hears this of a queue, which need not be there.
    pub fn want(&self, kind: Kind, queue: &[u8]) {
        self.teller.say(Want::more(By::Channel, self.teller.channel(kind, queue)));
    }

    /// Takes back what [`Self::want`] said.
    pub fn unwant(&self, kind: Kind, queue: &[u8]) {
        self.teller.say(Want::fewer(By::Channel, self.teller.channel(kind, queue)));
    }

    /// Hears these of all queues.
    pub fn want_everywhere(&self, kinds: Kinds) {
        kinds.iter().for_each(|kind| self.teller.say(Want::more(By::Pattern, self.teller.pattern(kind))));
    }

    /// Takes back what [`Self::want_everywhere`] said.
    pub fn unwant_everywhere(&self, kinds: Kinds) {
        kinds.iter().for_each(|kind| self.teller.say(Want::fewer(By::Pattern, self.teller.pattern(kind))));
    }

    /// What happened next; `None` when nothing more will be told.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Heard>> {
        self.ear.poll(cx)
    }
}

impl<T> fmt::Debug for Listener<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}
