//! Replies that a RESP session gives itself and that depend only on the request.

use crate::resp::{Pieces as _, Version, Writer};
use crate::verbs::{Client, SessionCommand, describe, help};

/// Appends the reply to `command` if it depends neither on the server nor on the connection. Returns whether it did.
/// The server answers the other commands itself: HELLO, AUTH, INFO, TIME, QUIT, RESET, subscriptions, and those about
/// the names and ids of connections.
#[must_use]
pub fn encode_answer(out: &mut Vec<u8>, version: Version, command: &SessionCommand<'_>) -> bool {
    let w = &mut Writer::new(out, version);
    match command {
        SessionCommand::Ping(None) => w.simple("PONG"),
        SessionCommand::Ping(Some(text)) | SessionCommand::Echo(text) => w.bulk(text),
        SessionCommand::Select | SessionCommand::Client(Client::Nothing) => w.simple("OK"),
        SessionCommand::Command(what) => describe(w, *what),
        SessionCommand::ConfigGet(_) => w.map(0),
        SessionCommand::Help(name) => help(w, name),
        SessionCommand::ScanNothing => {
            w.array(2);
            w.bulk(b"0");
            w.array(0);
        }
        SessionCommand::Hello(_)
        | SessionCommand::Auth(_)
        | SessionCommand::WhoAmI
        | SessionCommand::Client(_)
        | SessionCommand::Info(_)
        | SessionCommand::Time
        | SessionCommand::Quit
        | SessionCommand::Reset
        | SessionCommand::Subscribe(..)
        | SessionCommand::Unsubscribe(..)
        | SessionCommand::PubSub(_) => return false,
    }
    true
}

/// The fields of a reply to HELLO that depend on the server and the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloFields<'a> {
    /// The Redis version that clients derive the server's features from.
    pub version: &'a str,
    /// The id of this connection.
    pub conn: u64,
}

/// Appends the reply to HELLO, in the version that the client chose.
pub fn encode_hello(out: &mut Vec<u8>, version: Version, fields: HelloFields<'_>) {
    let w = &mut Writer::new(out, version);
    w.map(7);
    for (name, value) in [("server", "sureq"), ("version", fields.version)] {
        w.bulk(name.as_bytes());
        w.bulk(value.as_bytes());
    }
    w.bulk(b"proto");
    w.integer(i64::from(version.number()));
    w.bulk(b"id");
    w.count(fields.conn);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        w.bulk(name.as_bytes());
        w.bulk(value.as_bytes());
    }
    w.bulk(b"modules");
    w.array(0);
}
