//! Redis' commands on keys, where a key is a queue.
#![expect(clippy::unnecessary_wraps, reason = "the table wants one signature of all")]

use super::error::UsageError;
use super::request::{Caller, Request, SessionCommand};
use crate::ReplyStyle;
use crate::decimal::{read_i64, read_u64};
use sureq_core::command::Command;

/// What TYPE answers, as RedisRQ does.
pub const TYPE_NAME: &str = "RELIABLEQ";

/// How many keys a SCAN looks at that does not say.
const SCAN_COUNT_DEFAULT: u32 = 10;

pub(super) fn del<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Drop { queues: &argv[1..] }.into())
}

pub(super) fn exists<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Exists { queues: &argv[1..] }.into())
}

pub(super) fn kind<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Request::Home { command: Command::Exists { queues: &argv[1..] }, style: ReplyStyle::Type })
}

pub(super) fn keys<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    let command = Command::Queues { pattern: pattern(argv[1]), cursor: 0, count: u32::MAX };
    Ok(Request::Home { command, style: ReplyStyle::Keys })
}

pub(super) fn dbsize<'a>(_: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Size.into())
}

pub(super) fn scan<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    let cursor = read_u64(argv[1]).ok_or(UsageError::text("ERR invalid cursor"))?;
    let (mut matching, mut count, mut has_type) = (None, SCAN_COUNT_DEFAULT, true);
    let mut rest = &argv[2..];
    while let [option, tail @ ..] = rest {
        let [value, tail @ ..] = tail else { return Err(UsageError::SYNTAX) };
        if option.eq_ignore_ascii_case(b"MATCH") {
            matching = pattern(value);
        } else if option.eq_ignore_ascii_case(b"COUNT") {
            let wanted = read_i64(value).ok_or(UsageError::NOT_AN_INTEGER)?;
            let wanted = u64::try_from(wanted).ok().filter(|&n| n > 0).ok_or(UsageError::SYNTAX)?;
            count = u32::try_from(wanted).unwrap_or(u32::MAX);
        } else if option.eq_ignore_ascii_case(b"TYPE") {
            has_type = value.eq_ignore_ascii_case(TYPE_NAME.as_bytes());
        } else {
            return Err(UsageError::SYNTAX);
        }
        rest = tail;
    }
    if !has_type {
        return Ok(Request::Session(SessionCommand::ScanNothing));
    }
    Ok(Request::Home {
        command: Command::Queues { pattern: matching, cursor, count },
        style: ReplyStyle::Scan,
    })
}

/// The pattern that matches everything is none.
pub(super) fn pattern(glob: &[u8]) -> Option<&[u8]> {
    (glob != b"*").then_some(glob)
}
