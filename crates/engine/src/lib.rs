//! The embedded home: a queue in a directory.
//!
//! The map, from the outside in:
//!
//! * [`engine`]: opening and closing a store. `shared`: the state of an open store, under one lock, and the threads'
//!   ways to it. `meter`: counts the work under that lock, for tests. `status`: numbers for operators.
//! * `commit`: from a submitted command to a durable position. Implements [`sureq_home_api::Home`].
//! * `waiting`: callers that wait for tasks, payloads or notices, and the thread that ends leases and delays.
//! * `payload`: finds payloads, in the log or in memory, and puts them into replies.
//! * `compaction`: takes checkpoints, copies old tasks forward and removes segments.
//! * [`log`]: segments, frames, recovery. [`checkpoint`]: images of the state, from which a start replays the log.
//!   [`store`]: the file with the few numbers that never go back.
//! * `opening`: from a directory to a broker that is ready to serve.
//! * `offline`: [`check`], [`repair`] and [`backup`] of a store's files.
//! * [`disk`], [`clock`]: the only access to the machine. [`fault`]: its errors. `failpoint`: places where a test can
//!   end the process. `observer`: sees all states, for simulations.

pub mod checkpoint;
pub mod clock;
pub mod disk;
pub mod engine;
pub mod fault;
pub mod log;
pub mod store;

mod commit;
mod compaction;
mod failpoint;
mod meter;
mod observer;
mod offline;
mod opening;
mod payload;
mod shared;
mod status;
mod waiting;

pub use engine::{CACHE_BYTES, Engine, Options};
pub use meter::Held;
pub use observer::Observer;
pub use offline::{backup, check, repair};
pub use payload::body::{Body, Stored};
