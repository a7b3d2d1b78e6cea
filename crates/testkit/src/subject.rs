//! The homes in which scenarios run.
//!
//! * [`Subject`]: the operations of every home.
//! * [`core`]: the queue alone, by replay of its events. [`engine`]: the embedded home on a simulated disk.
//!   [`redis`]: a real Redis. [`module`]: the same with the module loaded. [`server`]: both dialects over real
//!   sockets. [`remote`]: a home on such a server.
//! * `local`: sessions without sockets, for homes within the process. `wire`: replies from bytes.
//!
//! Nothing in here sleeps: time is moved manually, and the home reports whether a request waits.

pub mod core;
pub mod engine;
pub mod module;
pub mod redis;
pub mod remote;
pub mod server;

mod local;
mod wire;

use crate::scenario::{Need, Value, Watch};

/// One request, in the dialect of its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The words of a RESP command.
    Words(Vec<Vec<u8>>),
    /// A line of the text dialect, without its end.
    Line(Vec<u8>),
}

/// A home with connections to it, by name. A connection is opened at its first use.
pub trait Subject {
    /// Sends requests at once.
    fn ask(&mut self, conn: &str, requests: &[Request]);

    /// The next reply on a connection, or `None` if the request waits.
    fn reply(&mut self, conn: &str) -> Option<Value>;

    /// The next reply on a connection, if one must come even though a later request waits.
    fn next_reply(&mut self, conn: &str) -> Option<Value> {
        self.reply(conn)
    }

    /// Whether a reply has arrived.
    fn has_reply(&mut self, conn: &str) -> bool;

    /// Lets time pass in one step, and then executes what is due.
    fn pass(&mut self, ms: u64);

    /// Checks that the state of the home is consistent, if it supports that. Called after time has passed.
    fn check(&mut self) {}

    /// Sets the wall clock forward or back.
    fn jump(&mut self, ms: i64);

    /// Closes the home and opens it again. All connections are closed.
    fn restart(&mut self);

    /// Closes a connection, and waits until the home has noticed.
    fn close(&mut self, conn: &str);
}

/// A home, and how it is opened for a scenario.
#[derive(Clone, Copy)]
pub struct Candidate {
    /// Its column in docs/understand/conformance.md.
    pub name: &'static str,
    /// Opens an empty home.
    pub open: fn(Watch) -> Box<dyn Subject>,
    /// Whether it supports a feature.
    pub can: fn(Need) -> bool,
    /// Scenarios with other replies, and the reason.
    pub otherwise: &'static [(&'static str, &'static str)],
}
