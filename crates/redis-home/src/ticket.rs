//! Tickets: the right to answers that Redis has not given yet.

use sureq_seam::{PopOf, TakeBack, Untaken};

use crate::answer::Payload;
use crate::call::spelt_receipt;
use crate::home::Shared;
use crate::thread::Job;

/// What came of commands.
pub type Answer = sureq_seam::Answer<Vec<u8>>;

/// The right to the answers of commands that were sent. Dropped without having been used, what it was given goes back to the
/// front.
pub type Ticket = sureq_seam::Ticket<Vec<u8>, Shared>;

/// The home's end of a ticket.
pub(crate) type Slot = sureq_seam::Slot<Payload>;

/// Where the answer to a batch with these pops is put.
pub(crate) fn slot_for(pops: Vec<PopOf>) -> Slot {
    Slot::new(pops, spelt_receipt)
}

impl TakeBack for Shared {
    fn take_back(&self, untaken: Vec<Untaken>) {
        // A home that is closed has nothing to take back.
        let _ = self.jobs.send(Job::Abandoned(untaken));
    }
}
