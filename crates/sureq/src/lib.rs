//! A reliable work queue: one URL opens a home, a home has queues, and a worker runs a handler for each task.
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
//! # tokio::spawn(async move { while handle.status().is_none_or(|status| status.tally.done == 0) { tokio::task::yield_now().await } handle.stop() });
//! worker.run().await?;
//! # Ok(()) }
//! ```
//!
//! | URL | where the queue lives | feature |
//! |---|---|---|
//! | `file:DIR` | in a directory of this machine, durable | `embedded` |
//! | `mem:` | in this process, kept nowhere | `embedded` |
//! | `redis://HOST:PORT/DB` | in your own Redis or Valkey | `redis` |
//! | `redis-cluster://HOST:PORT,…` | in your own Redis Cluster | `redis` |
//! | `redis-sentinel://HOST:PORT,…/SERVICE` | in the Redis that your sentinels name | `redis` |
//! | `sureq://USER:PASSWORD@HOST:PORT` | on a sureq server; without users, `sureq://HOST:PORT` | `remote` |
//!
//! The map:
//! - [`open`] gives a [`Home`], [`Home::queue`] a [`Queue`]: push, add, pop, ack, and all that can be asked of it. [`Task`] is one
//!   that was taken.
//! - [`Worker`] runs handlers; [`FromDelivery`] is what they take, [`Outcome`] what they return.
//! - [`Encode`] and [`Decode`] are payloads as values, [`Json`] among them. [`Error`] says what to do.
//! - [`store`] looks into directories, saves what can be saved of damaged ones, and copies those that are running.
//! - `examples/` of this crate shows an idea each: pushing and working, a queue within a web server, a worker on Redis, running at most
//!   once, the receipt as a fencing token, storing results.
//! - [`home_api`] is for programs that build a server or a home of their own.
#![forbid(unsafe_code)]

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
    BadSetting, Change, Changes, Expired, Overflow, Place, SettingWords, Settings, Shown,
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
compile_error!("a home has to live somewhere: enable one of the features `embedded`, `redis` and `remote`");

/// The programs in the documents compile, and those that can run do.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/use/library.md")]
struct Documents;
