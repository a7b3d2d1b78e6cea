//! Redis' commands on keys. A key is a queue.
#![expect(clippy::unnecessary_wraps, reason = "the table needs the same signature for all commands")]

use super::args::{Arg, Opt, Options};
use super::error::UsageError;
use super::request::{Caller, Request, SessionCommand};
use super::{BASE, CHANGE, Group, READ, READ_SLOW, Role, Row};
use crate::ReplyStyle;
use crate::command_encoder::CommandWords;
use crate::decimal::{read_i64, read_u64};
use sureq_core::command::Command;

type Parsed<'a> = Result<Request<'a>, UsageError>;

/// The commands of this file, in the order of the table.
pub(super) const ROWS: &[Row] = &[DEL, UNLINK, EXISTS, TYPE, KEYS, SCAN, DBSIZE];

/// The reply to TYPE, as in RedisRQ.
pub const TYPE_NAME: &str = "RELIABLEQ";

/// The default number of keys that a SCAN looks at.
const SCAN_COUNT_DEFAULT: u32 = 10;

const DEL: Row = Row {
    name: "DEL",
    args: &[Arg::key().many()],
    flags: CHANGE,
    group: Group::Keys,
    summary: "Removes queues with all their tasks, settings and pause.",
    reply: "The number of these queues that had tasks.",
    notes: "Leased tasks are removed too.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> DEL emails\n(integer) 1",
    parse: del,
    encode: Some(encode_del),
    ..BASE
};

fn del<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Drop { queues: &argv[1..] }.into())
}

fn encode_del(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Drop { queues } = *command else { return false };
    words.all(queues);
    true
}

const UNLINK: Row = Row {
    name: "UNLINK",
    args: &[Arg::key().many()],
    flags: CHANGE,
    group: Group::Keys,
    summary: "The same as DEL.",
    reply: "The number of these queues that had tasks.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> UNLINK emails\n(integer) 1",
    parse: del,
    ..BASE
};

const EXISTS: Row = Row {
    name: "EXISTS",
    args: &[Arg::key().many()],
    role: Some(Role::Read),
    flags: READ,
    group: Group::Keys,
    summary: "Counts which of these queues have tasks.",
    reply: "A number; a queue that is named twice counts twice.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> EXISTS emails nothing\n(integer) 1",
    parse: exists,
    encode: Some(encode_exists),
    ..BASE
};

fn exists<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Exists { queues: &argv[1..] }.into())
}

fn encode_exists(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Exists { queues } = *command else { return false };
    words.all(queues);
    true
}

const TYPE: Row = Row {
    name: "TYPE",
    args: &[Arg::key()],
    role: Some(Role::Read),
    flags: READ,
    group: Group::Keys,
    summary: "Answers whether a key is a queue.",
    reply: "`RELIABLEQ`, or `none` if it has no tasks.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> TYPE emails\nRELIABLEQ",
    parse: kind,
    ..BASE
};

fn kind<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Request::Home { command: Command::Exists { queues: &argv[1..] }, style: ReplyStyle::Type })
}

const KEYS: Row = Row {
    name: "KEYS",
    args: &[Arg::pattern("pattern")],
    role: Some(Role::Read),
    flags: READ_SLOW,
    group: Group::Keys,
    summary: "Lists the queues that have tasks.",
    reply: "An array of names.",
    notes: "One reply for all queues; SCAN answers a page at a time.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> KEYS *\n1) \"emails\"",
    parse: keys,
    ..BASE
};

fn keys<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let command = Command::Queues { pattern: pattern(argv[1]), cursor: 0, count: u32::MAX };
    Ok(Request::Home { command, style: ReplyStyle::Keys })
}

const SCAN: Row = Row {
    name: "SCAN",
    args: &[Arg::number("cursor", 0..=u64::MAX), Arg::options(&SCAN_OPTIONS)],
    role: Some(Role::Read),
    flags: READ_SLOW,
    group: Group::Keys,
    summary: "Lists the queues that have tasks, a page at a time.",
    reply: "The cursor of the next page, 0 if there is none, and an array of names.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> SCAN 0 MATCH e* COUNT 100\n1) \"0\"\n\
              2) 1) \"emails\"",
    parse: scan,
    ..BASE
};

const SCAN_OPTIONS: Options = Options::new(
    &[
        Opt::value("MATCH", &[Arg::pattern("pattern")]),
        Opt::value("COUNT", &[Arg::number("count", 1..=i64::MAX as u64)]),
        Opt::value("TYPE", &[Arg::text("type")]),
    ],
    &[],
);

/// Follows Redis: the errors name no option, and if an option is given twice, the last one counts.
fn scan<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let cursor = read_u64(argv[1]).ok_or(UsageError::text("ERR invalid cursor"))?;
    let (mut matching, mut count, mut has_type) = (None, SCAN_COUNT_DEFAULT, true);
    let mut rest = &argv[2..];
    while let [option, tail @ ..] = rest {
        let [value, tail @ ..] = tail else { return Err(UsageError::SYNTAX) };
        let at = SCAN_OPTIONS.find(option).ok_or(UsageError::SYNTAX)?;
        match SCAN_OPTIONS.list[at].name {
            "MATCH" => matching = pattern(value),
            "COUNT" => {
                let wanted = read_i64(value).ok_or(UsageError::NOT_AN_INTEGER)?;
                let wanted = u64::try_from(wanted).ok().filter(|&n| n > 0).ok_or(UsageError::SYNTAX)?;
                count = u32::try_from(wanted).unwrap_or(u32::MAX);
            }
            _ => has_type = value.eq_ignore_ascii_case(TYPE_NAME.as_bytes()),
        }
        rest = tail;
    }
    if !has_type {
        return Ok(Request::Session(SessionCommand::ScanNothing));
    }
    let command = Command::Queues { pattern: matching, cursor, count };
    Ok(Request::Home { command, style: ReplyStyle::Scan })
}

const DBSIZE: Row = Row {
    name: "DBSIZE",
    role: Some(Role::Read),
    flags: READ,
    group: Group::Keys,
    summary: "Counts the queues that have tasks.",
    reply: "A number.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> DBSIZE\n(integer) 1",
    parse: dbsize,
    encode: Some(encode_dbsize),
    ..BASE
};

fn dbsize<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Size.into())
}

fn encode_dbsize(command: &Command<'_>, _: &mut CommandWords) -> bool {
    matches!(command, Command::Size)
}

/// The pattern, or `None` for the one that matches everything.
pub(super) fn pattern(glob: &[u8]) -> Option<&[u8]> {
    (glob != b"*").then_some(glob)
}
