//! The seam between homes and those who ask them: what every home says to its callers, whatever it is made of.
//!
//! A home executes a batch of commands and says what came of it ([`Executed`]): replies, which may leave once their
//! [`Position`] is durable, or a ticket for answers that are not there yet. What happens otherwise it tells those who listen,
//! as a [`Notice`]. The core uses none of it, and nothing here decides anything about tasks.
//!
//! The map:
//! - [`Executed`], [`Position`] and [`Payload`] are what batches, logs and replies have in common.
//! - [`Ticket`] and [`Slot`] are the two ends of an answer that a home elsewhere has yet to give; [`Untaken`] is what has to go
//!   back if nobody takes it. The engine has tickets of its own, which wait for a disk as well; how deliveries are told
//!   apart by queue ([`by_queue`]) is the same for all.
//! - [`Listener`] and [`Ear`] are the two ends of what is told over channels, [`Wanted`] is which of them are to be heard.
//!   The engine has its own of these too: its notices wait for a position.
//! - [`ReplySizes`] says how many commands to send at once, so that their replies are not too much for memory.
//! - [`wait`] waits on a thread for what comes by polling.
//!
//! An answer is put into its slot by whoever talks to the home, and taken by whoever has the ticket:
//!
//! ```
//! use std::sync::Arc;
//! use sureq_core::id::Spelling;
//! use sureq_core::{Refusal, Reply};
//! use sureq_seam::{Slot, TakeBack, Ticket, Untaken};
//!
//! struct Nothing;
//!
//! impl TakeBack for Nothing {
//!     fn take_back(&self, untaken: Vec<Untaken>) {
//!         assert!(untaken.is_empty());
//!     }
//! }
//!
//! let spell = |receipt| Spelling::of_receipt(receipt).as_bytes().to_vec();
//! let slot = Arc::new(Slot::<Vec<u8>>::new(Vec::new(), spell));
//! let ticket = Ticket::new(Arc::clone(&slot), Arc::new(Nothing), 1);
//! slot.refuse(1, &Refusal::Closed);
//! assert_eq!(ticket.wait().replies.list, [Reply::Refused(Refusal::Closed)]);
//! ```
#![forbid(unsafe_code)]

mod clock;
mod ear;
mod executed;
mod listener;
mod notice;
mod reply_sizes;
mod slot;
mod ticket;
mod waiting;
mod wanted;

pub use ear::Ear;
pub use executed::{Executed, Payload, Position};
pub use listener::{Listener, Teller};
pub use notice::{Heard, Notice, NoticeTasks};
pub use reply_sizes::{BATCH_REPLY_BYTES, ReplySizes, SizePlace};
pub use slot::{PopOf, Slot, Untaken, by_queue};
pub use ticket::{Answer, TakeBack, Ticket};
pub use waiting::{unparks, wait};
pub use wanted::{By, Want, Wanted};
