//! Subscription commands, and PUBSUB.
#![expect(clippy::unnecessary_wraps, reason = "the table needs the same signature for all commands")]

use super::args::Arg;
use super::error::UsageError;
use super::request::{By, Caller, PubSub, Request, SessionCommand};
use super::{BASE, CONTAINER, Group, LISTENING, Role, Row, Sub};

type Parsed<'a> = Result<Request<'a>, UsageError>;

/// The commands of this file, in the order of the table.
pub(super) const ROWS: &[Row] = &[SUBSCRIBE, UNSUBSCRIBE, PSUBSCRIBE, PUNSUBSCRIBE, PUBSUB];

const SUBSCRIBE: Row = Row {
    name: "SUBSCRIBE",
    args: &[Arg::text("channel").many()],
    flags: LISTENING,
    role: Some(Role::Read),
    group: Group::PubSub,
    summary: "Subscribes to channels of queues.",
    reply: "For each channel a message `subscribe`, the channel, and the number of subscriptions. \
            Notifications then arrive as `message`, the channel, and the payload.",
    notes: "`sureq:work:<queue>` carries the number of tasks that became ready, `sureq:done:<queue>` the \
            id of a finished task, `sureq:cancel:<queue>` the id of a cancelled one, \
            `sureq:delete:<queue>` the number of tasks that were removed otherwise. Nothing is ever \
            published on other channels. In RESP2 a subscribed connection can only subscribe, \
            unsubscribe, PING, QUIT and RESET. See [notifications](notifications.md).",
    example: "> SUBSCRIBE sureq:work:emails\n1) \"subscribe\"\n2) \"sureq:work:emails\"\n3) (integer) 1\n\
              1) \"message\"\n2) \"sureq:work:emails\"\n3) \"2\"",
    parse: subscribe,
    ..BASE
};

const UNSUBSCRIBE: Row = Row {
    name: "UNSUBSCRIBE",
    args: &[Arg::text("channel").any()],
    flags: LISTENING,
    role: None,
    group: Group::PubSub,
    summary: "Unsubscribes from channels.",
    reply: "For each channel a message `unsubscribe`, the channel, and the number of subscriptions left.",
    notes: "Without a channel, from all of them.",
    example: "> UNSUBSCRIBE sureq:work:emails\n1) \"unsubscribe\"\n2) \"sureq:work:emails\"\n3) (integer) 0",
    parse: unsubscribe,
    ..BASE
};

const PSUBSCRIBE: Row = Row {
    name: "PSUBSCRIBE",
    args: &[Arg::pattern("pattern").many()],
    flags: LISTENING,
    role: Some(Role::Read),
    group: Group::PubSub,
    summary: "Subscribes to all channels that match a pattern.",
    reply: "For each pattern a message `psubscribe`, the pattern, and the number of subscriptions. \
            Notifications then arrive as `pmessage`, the pattern, the channel, and the payload.",
    notes: "Patterns are those of KEYS: `*`, `?`, `[a-z]`, and `\\` to escape a character.",
    example: "> PSUBSCRIBE sureq:done:*\n1) \"psubscribe\"\n2) \"sureq:done:*\"\n3) (integer) 1\n\
              1) \"pmessage\"\n2) \"sureq:done:*\"\n3) \"sureq:done:emails\"\n4) \"1601155608777-1\"",
    parse: psubscribe,
    ..BASE
};

const PUNSUBSCRIBE: Row = Row {
    name: "PUNSUBSCRIBE",
    args: &[Arg::pattern("pattern").any()],
    flags: LISTENING,
    role: None,
    group: Group::PubSub,
    summary: "Unsubscribes from patterns.",
    reply: "For each pattern a message `punsubscribe`, the pattern, and the number of subscriptions left.",
    notes: "Without a pattern, from all of them.",
    example: "> PUNSUBSCRIBE sureq:done:*\n1) \"punsubscribe\"\n2) \"sureq:done:*\"\n3) (integer) 0",
    parse: punsubscribe,
    ..BASE
};

const PUBSUB: Row = Row {
    name: "PUBSUB",
    args: CONTAINER,
    flags: &["pubsub", "loading", "stale"],
    group: Group::PubSub,
    summary: "Lists subscribed channels and patterns.",
    reply: "Depends on the subcommand.",
    example: "> PUBSUB NUMSUB sureq:work:emails\n1) \"sureq:work:emails\"\n2) (integer) 0",
    subs: SUBCOMMANDS,
    ..BASE
};

const SUBCOMMANDS: &[Sub] = &[
    Sub {
        name: "CHANNELS",
        args: &[Arg::pattern("pattern").optional()],
        summary: "The channels that have subscribers.",
        parse: channels,
    },
    Sub {
        name: "NUMSUB",
        args: &[Arg::text("channel").any()],
        summary: "The number of subscribers of channels, without patterns.",
        parse: numsub,
    },
    Sub { name: "NUMPAT", args: &[], summary: "The number of patterns with subscribers.", parse: numpat },
    Sub { name: "HELP", args: &[], summary: "This text.", parse: help },
];

fn subscribe<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Subscribe(By::Channel, &argv[1..]))
}

fn psubscribe<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Subscribe(By::Pattern, &argv[1..]))
}

fn unsubscribe<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Unsubscribe(By::Channel, &argv[1..]))
}

fn punsubscribe<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Unsubscribe(By::Pattern, &argv[1..]))
}

fn channels<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    match argv {
        [_, _] => session(SessionCommand::PubSub(PubSub::Channels(None))),
        [_, _, pattern] => session(SessionCommand::PubSub(PubSub::Channels(Some(pattern)))),
        // The text of Redis for too many arguments.
        _ => Err(UsageError::text(
            "ERR unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP.",
        )),
    }
}

fn numsub<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::PubSub(PubSub::NumSub(&argv[2..])))
}

fn numpat<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::PubSub(PubSub::NumPat))
}

fn help<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Help("PUBSUB"))
}

fn session(command: SessionCommand<'_>) -> Parsed<'_> {
    Ok(Request::Session(command))
}
