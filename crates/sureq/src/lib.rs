//! A reliable work queue with at-least-once delivery.
//!
//! [`open`] opens the home of your queues by a URL: a directory, memory, Redis or a sureq server. [`Queue::push`]
//! returns when the task is durable. A [`Worker`] runs an async function for each task and acknowledges it when the
//! function succeeds; after an error, a crash or a lost connection, the task is delivered again.
//!
//! ```
//! use sureq::{Json, Worker};
//!
//! async fn send(Json(address): Json<String>) -> Result<(), sureq::Failure> {
//!     println!("sending to {address}");
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let home = sureq::open("mem:")?;
//! home.queue("emails").push(Json("ann@example.org")).await?;
//! let worker = Worker::new(&home).work("emails", send);
//! # let handle = worker.handle();
//! # tokio::spawn(async move {
//! #     while handle.status().is_none_or(|status| status.tally.done == 0) { tokio::task::yield_now().await }
//! #     handle.stop()
//! # });
//! worker.run().await?;
//! # Ok(()) }
//! ```
//!
//! # Homes
//!
//! | URL | home | feature |
//! |---|---|---|
//! | `file:DIR` | a directory of this machine, opened by one process at a time | `embedded` |
//! | `mem:` | the memory of this process; not durable | `embedded` |
//! | `redis://HOST:PORT/DB` | a Redis or Valkey | `redis` |
//! | `redis-cluster://HOST:PORT,…` | a Redis Cluster | `redis` |
//! | `redis-sentinel://HOST:PORT,…/SERVICE` | the Redis that sentinels name | `redis` |
//! | `sureq://USER:PASSWORD@HOST:PORT` | a sureq server; without users, `sureq://HOST:PORT` | `remote` |
//!
//! # Delivery
//!
//! A popped task is leased to its consumer. It is deleted when the consumer acks it, and requeued when the consumer
//! returns it or its lease ends. A task can therefore run twice, for example when a worker loses its connection while
//! it works: handlers should be idempotent. The [`Receipt`] of a delivery is accepted only while that delivery is the
//! current one, and [`Receipt::fence`] is a fencing token for writes to other systems. [`Route::ack_first`] turns a
//! queue into at-most-once delivery.
//!
//! # Overview
//!
//! - [`Home`]: [`Home::queue`], [`Home::queues`], [`Home::workers`]. [`Queue`]: push, add, pop, ack and management.
//!   [`Task`]: a popped task.
//! - [`Worker`] runs handlers. Their arguments implement [`FromDelivery`], their results [`IntoOutcome`].
//! - [`Encode`] and [`Decode`] convert values to payloads and back; [`Json`] does so for serde types.
//! - [`Error`] says whether a command may be retried.
//! - [`store`] checks, repairs and copies directories without opening them as a home.
//! - [`home_api`] is for programs that implement a server or a home.
//! - `examples/`: push and work, a queue within an axum server, a worker on Redis, at-most-once delivery, fencing,
//!   storing results.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod add;
mod ask;
mod error;
mod home;
pub mod home_api;
mod id;
mod overview;
mod payload;
mod pop;
mod queue;
#[cfg(feature = "embedded")]
pub mod store;
mod task;
mod url;
mod worker;

pub use add::{Add, Added};
pub use error::{BadPayload, Error, Result};
pub use home::Home;
pub use id::{Id, Receipt};
pub use payload::{Decode, Encode, Json};
pub use pop::{LEASE, PopMany, PopOne};
pub use queue::{Held, Queue};
pub use sureq_core::command::View;
pub use sureq_core::reply::{Explanation, HeldUp, Info, More, QueueRow, Why, WorkerRow};
pub use sureq_core::settings::{
    BadSetting, Change, Changes, Expired, Overflow, Place, SettingValue, SettingWords, Settings,
};
pub use sureq_core::task::{Holder, StateKind, Tries};
pub use sureq_core::{Refusal, limits};
pub use sureq_home_api::{Broken, CleanReport, Cleaned, CleanedQueue, Cleaning, Payload, Status};
pub use task::{Death, Seen, Task};
pub use url::{OpenError, directory_of, open, open_async, without_passwords};
pub use worker::{
    Again, Delivery, DeliveryNumber, Failure, FromDelivery, Handler, HandlerService, IntoOutcome, IntoRoute,
    Needs, Outcome, Phase, Rejection, Route, State, Stop, Tally, Token, Worker, WorkerError, WorkerHandle,
    WorkerStatus, route,
};
#[cfg(feature = "embedded")]
pub use {
    sureq_engine::fault::OpenError as StoreError,
    sureq_engine::log::{Durability, LogError, SEGMENT_BYTES},
    sureq_engine::{CACHE_BYTES, Options},
    url::open_with,
};

#[cfg(not(any(feature = "embedded", feature = "redis", feature = "remote")))]
compile_error!("sureq has no homes: enable at least one of the features `embedded`, `redis` and `remote`");

/// Compiles the Rust programs in the documents, and runs those that need no server.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/use/library.md")]
struct Documents;
