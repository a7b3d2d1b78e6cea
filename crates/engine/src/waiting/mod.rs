//! Callers that wait, and what wakes them.
//!
//! - `waiters` holds pops that wait for tasks, in order of arrival. `ticket` is the right to a reply that does not
//!   exist yet. `sliced` executes commands about many tasks slice by slice, behind a ticket.
//! - `ticker` is the thread that acts on the passing of time: leases, delays, timeouts.
//! - `listener` delivers notices to subscribers; `notice_buffer` collects what the events of a command publish.

pub(crate) mod listener;
pub(crate) mod notice_buffer;
pub(crate) mod sliced;
pub(crate) mod ticker;
pub(crate) mod ticket;
pub(crate) mod waiters;
