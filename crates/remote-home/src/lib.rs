//! The remote home: queues on a sureq server, over RESP3.
//!
//! A thread of its own talks to the server, so callers need no runtime. Commands that need not wait share one pipelined
//! connection, and callers write to it directly. A pop that waits blocks its connection, so it gets its own. Heartbeats and
//! extensions get another one, so that they do not wait behind large payloads.
//! Nothing is sent twice: a command that was not sent is `Unavailable`; one that was sent and not answered is `Unknown`.
//!
//! The map: `target` parses URLs, `conn` is one connection, `inbox` its incoming replies, `pipe` the shared connection,
//! `waiting` the pops with connections of their own, `listener` receives notices, `home` is the thread and its handle, `clock`
//! the time.
#![forbid(unsafe_code)]

mod clock;
mod conn;
mod home;
mod inbox;
mod listener;
mod pipe;
mod target;
mod waiting;

use std::time::Duration;

pub use conn::ConnectError;
pub use home::{OpenError, RemoteHome};
pub use target::{BadTarget, Target};

/// Timeouts after which a server counts as gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// To connect and to be greeted, each.
    pub connect: Duration,
    /// To answer, once it is asked; behind the time that a pop may wait. It is counted from the last moment in which something
    /// was sent or received, so that a large payload may take as long as the line needs.
    pub answer: Duration,
    /// To load its data, when a home is opened.
    pub load: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(30),
            load: Duration::from_secs(60),
        }
    }
}
