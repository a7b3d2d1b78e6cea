//! The queue itself, and nothing else.
//!
//! This crate is pure: it reads no clock, disk, network or randomness, and needs only `alloc`. Time is an
//! argument ([`Now`]), durability is the caller's business, and a task's body is a handle whose bytes are
//! never looked at. What it decides it says as [`Event`]s, and one private `apply` is all that changes
//! state, so that replaying the events is the same as having lived through them.
//!
//! The map:
//!
//! * [`id`], [`time`], [`limits`]: the small words everything else is made of.
//! * [`command`] and [`reply`]: what can be asked, and what is answered. Dialects translate to and from these.
//! * [`event`] and [`codec`]: what is recorded, and its bytes. [`notice`]: what it tells those who listen.
//! * [`settings`], [`task`]: what a queue may be told, and what it knows of one task.
//! * [`queue`]: one queue as a value: tasks, indexes, transitions. It knows of no other queue.
//! * [`broker`]: what spans queues: names, workers, the id source, deadlines.
//! * [`bulk`]: commands that are executed in slices.
//!
//! The driver's contract, in order:
//!
//! 1. `execute(now, command, …)` or `tick(now, …)`: decides, records events with the [`Recorder`], applies them.
//! 2. Append what was recorded to the log, as one unit.
//! 3. Make the log as durable as promised.
//! 4. Only then let any reply out that was made after step 1.
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
//!     // It owns its bytes, and so is kept as it is.
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
pub mod id;
mod index;
pub mod limits;
mod meter;
pub mod notice;
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
