//! Listeners and sessions: the RESP and text dialects in front of any home.
//!
//! The map, along the way of a request:
//!
//! * [`server`]: binds the listeners, starts the network threads, stops them in good order.
//! * `net_thread`: one current-thread runtime per thread, and the connections that live on it.
//! * `connection`: reads, hands what arrived to a dialect, writes what may leave. Knows no dialect.
//! * `resp` and `text`: the dialects' sessions. `info` answers INFO, `clients` CLIENT.
//! * `subscriptions`: who listens to what, and how they are told. `subscriber`: one connection that does.
//!   `subscriptions::matching` matches patterns within budgets, `matches` remembers which ones match a channel.
//! * [`users`]: who may use the server, and what for. `checker` finds out whether a password is right, `bounds` says how
//!   much a connection may ask for, before and after.
//! * `input`: what has arrived and is not done with. `batch` says how much of it is parsed at once.
//! * `output`: replies that may not leave yet, by the position they wait for, and deliveries that never left.
//! * `group_commit`: commits what the connections of a thread executed in one go.
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
