//! A home that scenarios are played in.
//!
//! * [`Subject`]: what every home must be able to do.
//! * [`core`]: the queue alone, by replay of its events. [`engine`]: the embedded home on a simulated disk.
//!   [`redis`]: a real Redis. [`module`]: the same with the module loaded. [`server`]: both dialects over real sockets.
//!   [`remote`]: a home that asks such a server.
//! * `local`: sessions without sockets, for homes within the process. `wire`: replies from bytes.
//!
//! Nothing in here sleeps: time is moved by hand, and whether a request waits is asked of the home.

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

/// A home with connections to it, by name. A connection is opened when it is first spoken on.
pub trait Subject {
    /// Sends requests at once.
    fn ask(&mut self, conn: &str, requests: &[Request]);

    /// The next reply on a connection, or none if what was asked waits.
    fn reply(&mut self, conn: &str) -> Option<Value>;

    /// The next reply on a connection, where one is to come whatever waits behind it.
    fn next_reply(&mut self, conn: &str) -> Option<Value> {
        self.reply(conn)
    }

    /// Whether a reply is there already.
    fn has_reply(&mut self, conn: &str) -> bool;

    /// Lets time pass, all of it at once, and then what is due happen.
    fn pass(&mut self, ms: u64);

    /// Checks that its state is consistent, if it supports that. Called after time has passed.
    fn check(&mut self) {}

    /// Sets the wall clock forth or back.
    fn jump(&mut self, ms: i64);

    /// Stops and opens again. All connections are closed.
    fn restart(&mut self);

    /// Closes a connection, and waits until the home knows.
    fn close(&mut self, conn: &str);
}

/// How a home is opened for a scenario.
#[derive(Clone, Copy)]
pub struct Candidate {
    /// Its column in docs/understand/conformance.md.
    pub name: &'static str,
    /// Opens it, empty.
    pub open: fn(Watch) -> Box<dyn Subject>,
    /// Whether it can do what a scenario needs.
    pub can: fn(Need) -> bool,
    /// Scenarios with other replies, and the reason.
    pub otherwise: &'static [(&'static str, &'static str)],
}
