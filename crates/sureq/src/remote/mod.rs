//! The remote home: queues on a sureq server, over RESP3.
//!
//! A thread of its own talks to the server; those who use the home need no runtime. What need not wait goes over one connection,
//! pipelined, and is written by whoever asks. A pop that waits holds its connection up, and so gets one of its own. What keeps
//! workers and leases alive has one too, once there is any, since it must not wait behind large payloads.
//! Nothing is sent twice by itself: what was not sent is `Unavailable`, what was sent and not answered is `Unknown`.
//!
//! The map: `target` reads URLs, `conn` is one connection, `inbox` the replies that come in on one, `pipe` the connection that
//! all share, `waiting` the pops with connections of their own, `ticket` the right to an answer, `listener` those who
//! listen, `home` the thread and its handle, `clock` what time it is.

mod clock;
mod conn;
mod home;
mod inbox;
mod listener;
mod pipe;
mod target;
mod ticket;
mod waiting;

use std::time::Duration;

pub use conn::ConnectError;
pub use home::{OpenError, RemoteHome};
pub use listener::Listener;
pub use target::{BadTarget, Target};
pub use ticket::{Answer, Ticket};

/// How long a server may take before it counts as gone.
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
