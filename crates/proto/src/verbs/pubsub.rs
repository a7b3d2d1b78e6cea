//! Subscribing, and asking who has.
#![expect(clippy::unnecessary_wraps, reason = "the table wants one signature of all")]

use super::error::UsageError;
use super::request::{By, Caller, PubSub, Request, SessionCommand};

type Outcome<'a> = Result<Request<'a>, UsageError>;

pub(super) fn subscribe<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Subscribe(By::Channel, &argv[1..]))
}

pub(super) fn psubscribe<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Subscribe(By::Pattern, &argv[1..]))
}

pub(super) fn unsubscribe<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Unsubscribe(By::Channel, &argv[1..]))
}

pub(super) fn punsubscribe<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Unsubscribe(By::Pattern, &argv[1..]))
}

pub(super) fn channels<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    match argv {
        [_, _] => session(SessionCommand::PubSub(PubSub::Channels(None))),
        [_, _, pattern] => session(SessionCommand::PubSub(PubSub::Channels(Some(pattern)))),
        // Redis' words for too many of them.
        _ => Err(UsageError::text(
            "ERR unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP.",
        )),
    }
}

pub(super) fn numsub<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::PubSub(PubSub::NumSub(&argv[2..])))
}

pub(super) fn numpat<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::PubSub(PubSub::NumPat))
}

pub(super) fn help<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Help("PUBSUB"))
}

fn session(command: SessionCommand<'_>) -> Outcome<'_> {
    Ok(Request::Session(command))
}
