//! Answers that a RESP session gives by itself, as far as they depend on nothing but the question.

use crate::resp::{Pieces as _, Version, Writer};
use crate::verbs::{Client, SessionCommand, describe, help};

/// Appends the answer to `command` if it needs to know nothing of the server or the connection; answers whether
/// it did. The rest (HELLO, AUTH, INFO, TIME, QUIT, RESET, subscriptions, and the connection's names and numbers) is
/// the server's to answer.
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

/// What HELLO tells of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting<'a> {
    /// The version that clients compare with Redis' features.
    pub version: &'a str,
    /// The number of this connection.
    pub conn: u64,
}

/// Appends the answer to HELLO, in the version that it led to.
pub fn encode_hello(out: &mut Vec<u8>, version: Version, greeting: Greeting<'_>) {
    let w = &mut Writer::new(out, version);
    w.map(7);
    for (name, value) in [("server", "sureq"), ("version", greeting.version)] {
        w.bulk(name.as_bytes());
        w.bulk(value.as_bytes());
    }
    w.bulk(b"proto");
    w.integer(i64::from(version.number()));
    w.bulk(b"id");
    w.count(greeting.conn);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        w.bulk(name.as_bytes());
        w.bulk(value.as_bytes());
    }
    w.bulk(b"modules");
    w.array(0);
}
