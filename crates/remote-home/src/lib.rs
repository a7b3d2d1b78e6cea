//! The remote home: queues on a sureq server, over RESP3.
//!
//! One thread talks to the server, so callers need no runtime. Commands that do not wait share one pipelined
//! connection, and callers write to it directly. A waiting pop blocks its connection, so it gets a dedicated one.
//! Heartbeats and extensions use a separate connection, so that they do not wait behind large payloads.
//!
//! No command is sent twice. A command that was not sent is refused as `Unavailable`; one that was sent and not
//! answered, as `Unknown`.
//!
//! The map: `target` parses URLs, `conn` is one connection, `inbox` its incoming replies, `pipe` the shared
//! connection, `waiting` the pops with dedicated connections, `listener` receives notices, `home` is the thread and
//! its handle, `clock` the time.
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

/// Timeouts after which a server counts as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For the TCP connection, and again for the reply to HELLO.
    pub connect: Duration,
    /// For a reply, in addition to the time that a pop may wait. It restarts whenever bytes are sent or received, so
    /// a large payload may take as long as a slow network needs.
    pub answer: Duration,
    /// For the server to load its data while the home is being opened.
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
