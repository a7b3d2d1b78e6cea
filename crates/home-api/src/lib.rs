//! The contract between homes and the dialects in front of them.
//!
//! A [`Home`] executes [`Command`](sureq_core::Command)s and keeps the waiters: an embedded store, a Redis, a server.
//! The server, the library and the command line talk to this trait alone, so a home of your own works with all of
//! them. This crate decides nothing about tasks; the core does not depend on it.
//!
//! The map:
//! - [`Home`] documents the obligations of both sides. [`Submitted`] and [`Flow`] are the outcome of a batch.
//! - [`Ticket`] is the right to replies that have not arrived yet; a home implements [`Pending`]. [`Position`] is
//!   what replies wait for. [`Payload`] is what they carry.
//! - [`Listener`] receives [`Notice`]s; a home implements [`NoticeSource`], usually around a [`NoticeQueue`].
//! - [`elsewhere`] has parts for homes that talk to a server.
//! - [`Status`] is for operators, [`CleanReport`] for layouts of other programs on Redis.
//! - [`wait`] blocks a thread until a poll is ready; [`unparks`] makes a waker for such a thread. [`by_queue`] groups
//!   the deliveries of a pop.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cleaning;
pub mod elsewhere;
mod home;
mod listener;
mod notice;
mod notice_queue;
mod payload;
mod position;
mod status;
mod ticket;
mod waiting;

pub use cleaning::{CleanReport, Cleaned, CleanedQueue, Cleaning};
pub use home::{Broken, Flow, Home, Submitted};
pub use listener::{Listener, NoticeSource};
pub use notice::{ListenEvent, Notice, NoticeTasks};
pub use notice_queue::NoticeQueue;
pub use payload::{Payload, by_queue};
pub use position::Position;
pub use status::Status;
pub use ticket::{Answer, Pending, Ticket};
pub use waiting::{unparks, wait};
