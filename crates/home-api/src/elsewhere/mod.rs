//! Parts for homes that live elsewhere: a thread talks to a server, and callers hold tickets.
//!
//! - [`ReplySlot`] is where that thread puts the replies to a batch; [`SlotTicket`] is the caller's end of it.
//! - [`ChannelListener`] turns subscriptions into channel names and patterns; [`Subscriptions`] counts them for the
//!   thread.
//! - [`ReplySizes`] limits how many commands are sent at once, so that their replies do not fill the memory.

mod channel_listener;
mod reply_sizes;
mod slot;
mod subscriptions;

pub use channel_listener::{ChannelListener, ChannelNames};
pub use reply_sizes::{BATCH_REPLY_BYTES, ReplySizes, SizePlace};
pub use slot::{PopOf, ReplySlot, Requeue, SlotTicket, Undelivered};
pub use subscriptions::{By, Subscription, Subscriptions};
