//! A reliable work queue: one URL opens a home, and a home executes commands.
//!
//! ```
//! use sureq::{Command, Home, Replies, command::Pop};
//!
//! let home: Home = sureq::open("mem:")?;
//! let mut replies = Replies::default();
//! let push = Command::Push { queue: b"emails", payloads: &[b"hello"] };
//! let pop = Command::Pop(Pop::plain(&[b"emails"], 1));
//! let executed = home.execute(&[push, pop], &mut replies);
//! assert!(home.wait(executed.position), "only now is it durable");
//! assert_eq!(replies.tasks[0].body.as_ref(), b"hello");
//! # Ok::<(), sureq::OpenError>(())
//! ```
//!
//! | URL | where the queue lives |
//! |---|---|
//! | `file:DIR` | in a directory of this machine, durable |
//! | `mem:` | in this process, kept nowhere |
//! | `redis://HOST:PORT/DB` | in your own Redis or Valkey |
//! | `redis-cluster://HOST:PORT,…` | in your own Redis Cluster |
//! | `redis-sentinel://HOST:PORT,…/SERVICE` | in the Redis that your sentinels name |
//!
//! [`store`] looks into directories, saves what can be saved of damaged ones, and copies those that are running.
#![forbid(unsafe_code)]

mod home;
pub mod store;
mod url;

pub use home::{Answer, Executed, Home, Listener, Ticket};
pub use sureq_core::broker::glob_matches;
pub use sureq_core::{
    Command, LogTime, Now, Receipt, Refusal, Replies, Reply, TaskId, command, limits, notice, reply,
};
pub use sureq_engine::fault::OpenError as StoreError;
pub use sureq_engine::log::{Cut, Durability, LogError, Position, SEGMENT_BYTES};
pub use sureq_engine::{Body, CACHE_BYTES, Heard, Notice, NoticeTasks, Options, Status};
pub use url::{OpenError, open, open_with, without_passwords};
