//! Listeners and sessions: the RESP and text dialects in front of any home.
//!
//! The modules, along the path of a request:
//!
//! * [`server`]: binds the listeners, starts the network threads and shuts them down gracefully.
//! * `net_thread`: one single-threaded runtime per thread, and the connections that it serves.
//! * `connection`: reads input, hands it to a dialect and writes the replies that may be sent. Independent of the
//!   dialect.
//! * `resp` and `text`: the dialects' sessions. `info` answers INFO, `clients` CLIENT.
//! * `execute`: executes the requests of any dialect, and keeps records of the commands that are answered later.
//! * `subscriptions`: all subscriptions, and the delivery of notices. `subscriber`: one connection with
//!   subscriptions. `subscriptions::matching` matches patterns within budgets, `matches` caches which ones match a
//!   channel.
//! * [`users`]: the users and their rights. `checker` checks passwords, `bounds` has the limits of a connection
//!   before and after authentication.
//! * `input`: bytes that are not executed yet. `batch`: the number of commands that are parsed at once.
//! * `output`: replies that may not be sent yet, by the position they wait for, and deliveries that were never sent.
//! * `group_commit`: commits the commands that the connections of a thread executed together.
//! * `durability_waiters`: wakes the connections of a thread together when their position is durable.
#![forbid(unsafe_code)]

pub mod server;
pub mod users;

mod batch;
mod bounds;
mod checker;
mod clients;
mod connection;
mod durability_waiters;
mod execute;
mod group_commit;
mod info;
mod input;
mod matches;
mod memory;
mod net_thread;
mod output;
mod resp;
mod subscriber;
mod subscriptions;
mod text;

pub use bounds::Bounds;
pub use server::{Config, Server, ServerError, Stopper};
pub use sureq_proto::text::ReservationPolicy;
pub use sureq_proto::verbs::{Rights, Role};
