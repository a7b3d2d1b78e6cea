//! Tickets: the right to answers that the server has not given yet.

use sureq_core::Receipt;
use sureq_core::id::Spelling;
use sureq_seam::{TakeBack, Untaken};

use super::pipe::Pipe;
use crate::seam::Body;

/// What came of commands.
pub type Answer = sureq_seam::Answer<Body>;

/// The right to the answers of commands that were sent. Dropped without having been used, what it was given goes back to the
/// front.
pub type Ticket = sureq_seam::Ticket<Body, Pipe>;

/// The home's end of a ticket.
pub(super) type Slot = sureq_seam::Slot<Body>;

impl TakeBack for Pipe {
    fn take_back(&self, untaken: Vec<Untaken>) {
        self.give_back(untaken);
    }
}

/// A receipt as the server knows it. No incarnation is zero: such a delivery is known by its id alone.
pub(super) fn spelt(receipt: Receipt) -> Vec<u8> {
    match receipt.incarnation {
        0 => Spelling::of_id(receipt.id).as_bytes().to_vec(),
        _ => Spelling::of_receipt(receipt).as_bytes().to_vec(),
    }
}
