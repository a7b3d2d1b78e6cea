//! The queue itself: its state, its transitions, and their encoding. Start here, then read [`command`] and [`event`].
//!
//! This crate is pure. It reads no clock, disk, network or randomness and needs only `alloc`: time is an argument
//! ([`Now`]), durability is up to the driver, and the payload of a task is a handle ([`task::Body`]) that the core
//! never looks into. Every decision is an [`Event`], and one private `apply` is the only code that changes state. So
//! a replay of the events yields exactly the state that the commands produced.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`id`], [`time`], [`limits`] | ids and receipts, points in time by the clock they belong to, all limits |
//! | [`command`], [`reply`] | requests and replies; dialects translate bytes to and from these |
//! | [`owned`] | requests that outlive their buffer |
//! | [`event`], [`codec`] | decisions, and their bytes in a log |
//! | [`notice`] | the notices that follow from events |
//! | [`settings`], [`task`] | the settings of a queue, the record of a task |
//! | [`queue`] | one queue as a value: tasks, indexes, transitions; it knows no other queue |
//! | [`broker`] | all queues of a store, and names, workers, ids, deadlines |
//! | [`bulk`] | commands that are executed in slices |
//! | [`fnv`] | a hash that stays the same in every release |
//!
//! # The driver's contract
//!
//! A driver owns a [`Broker`] and a log. For every command and whenever [`Broker::next_deadline`] has passed:
//!
//! 1. Call [`Broker::execute`] or [`Broker::tick`] with the current time. It decides, records events with the
//!    [`Recorder`] and applies them.
//! 2. Append the recorded events to the log as one unit: after a crash, either all of them are there or none.
//! 3. Make the log as durable as promised.
//! 4. Only then send a reply that was made in step 1 or later, since it may show the effect of those events.
//!
//! After a restart, pass the events to [`Broker::replay`] in the same order, then call [`Broker::release_all_dropped`]
//! and, with a new incarnation, [`Broker::start`].
//!
//! ```
//! use sureq_core::command::Pop;
//! use sureq_core::{Broker, Command, Event, Now, Recorder, Replies, codec, task};
//!
//! #[derive(Clone)]
//! struct Payload(Vec<u8>);
//!
//! impl task::Body for Payload {
//!     fn len(&self) -> usize {
//!         self.0.len()
//!     }
//!
//!     fn is(&self, payload: &[u8]) -> Option<bool> {
//!         Some(self.0 == payload)
//!     }
//!
//!     // A handle that owns memory cannot be packed into a few bytes.
//!     fn pack(&self, _: Option<&Self>, _: &mut Vec<u8>) -> bool {
//!         false
//!     }
//!
//!     fn unpack<'b>(_: Option<&Self>, _: &'b [u8]) -> Option<(Self, &'b [u8])> {
//!         None
//!     }
//! }
//!
//! #[derive(Default)]
//! struct Log(Vec<u8>);
//!
//! impl Recorder for Log {
//!     type Body = Payload;
//!
//!     fn record(&mut self, event: &Event<'_>) {
//!         codec::encode(event, &mut self.0);
//!     }
//!
//!     fn new_body(&mut self, _: usize, payload: &[u8]) -> Payload {
//!         Payload(payload.to_vec())
//!     }
//!
//!     fn payload_hash(&self, _: &[u8]) -> u128 {
//!         unreachable!("nothing here is UNIQUE")
//!     }
//!
//!     fn release_body(&mut self, _: Payload) {}
//! }
//!
//! let (mut broker, mut log, mut replies) = (Broker::default(), Log::default(), Replies::default());
//! let now = Now::default();
//! broker.start(1, now, &mut log);
//! broker.execute(now, &Command::Push { queue: b"mail", payloads: &[b"hello"] }, &mut log, &mut replies);
//! broker.execute(now, &Command::Pop(Pop::plain(&[b"mail"], 1)), &mut log, &mut replies);
//! assert_eq!(replies.tasks[0].body.0, b"hello");
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bounds;
pub mod broker;
pub mod bulk;
pub mod codec;
pub mod command;
#[cfg(test)]
mod costs;
pub mod event;
pub mod fnv;
pub mod id;
mod index;
pub mod limits;
pub mod meter;
pub mod notice;
pub mod owned;
pub mod queue;
pub mod reply;
pub mod settings;
pub mod task;
pub mod time;

pub use broker::Broker;
pub use bulk::{Bulk, Progress};
pub use command::Command;
pub use event::{Event, Recorder};
pub use id::{Receipt, TaskId};
pub use queue::Queue;
pub use reply::{Refusal, Replies, Reply};
pub use time::{LogTime, Now, WallTime};
