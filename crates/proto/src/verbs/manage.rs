//! RQ.*: what can be done with queues as wholes.
#![expect(clippy::unnecessary_wraps, reason = "the table wants one signature of all")]

use super::error::UsageError;
use super::keys::pattern;
use super::options::{Words, is, once, unknown};
use super::request::{Caller, Request};
use sureq_core::command::{Command, View};
use sureq_core::settings::{BadSetting, Changes, SettingWords};

/// How many queues RQ.QUEUES looks at that does not say.
const QUEUES_COUNT_DEFAULT: u64 = 100;

pub(super) fn purge<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    const LEASED: UsageError = UsageError::text(
        "ERR leased tasks are not purged: RQ.CANCEL tells their holders, RQ.DELETE removes them",
    );
    let state = match argv[2..] {
        [] => None,
        [state] if is(state, "READY") => Some(View::Ready),
        [state] if is(state, "DELAYED") => Some(View::Delayed),
        [state] if is(state, "DEAD") => Some(View::Dead),
        [state] if is(state, "LEASED") || is(state, "PENDING") => return Err(LEASED),
        [state] => return Err(unknown(state, "READY, DELAYED or DEAD")),
        _ => return Err(UsageError::arity("rq.purge")),
    };
    Ok(Command::Purge { queue: argv[1], state }.into())
}

pub(super) fn pause<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Pause { queue: argv[1] }.into())
}

pub(super) fn resume<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Resume { queue: argv[1] }.into())
}

pub(super) fn config<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    let words = SettingWords::read(&argv[2..]).map_err(bad_setting)?;
    Ok(Command::Config { queue: argv[1], changes: Changes::Words(words) }.into())
}

fn bad_setting(bad: BadSetting<'_>) -> UsageError {
    UsageError::new(format!("ERR {bad}"))
}

pub(super) fn queues<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    let (mut glob, mut count, mut cursor) = (None, None, None);
    let mut words = Words::new(&argv[1..]);
    while let Some(word) = words.next() {
        match word {
            word if is(word, "MATCH") => once(&mut glob, "MATCH", words.value("MATCH")?)?,
            word if is(word, "COUNT") => {
                once(&mut count, "COUNT", words.number("COUNT", 1..=u32::MAX.into())?)?;
            }
            word if is(word, "CURSOR") => once(&mut cursor, "CURSOR", words.number("CURSOR", 0..=u64::MAX)?)?,
            word => return Err(unknown(word, "MATCH, COUNT or CURSOR")),
        }
    }
    let count = count.unwrap_or(QUEUES_COUNT_DEFAULT) as u32;
    let command = Command::Queues { pattern: glob.and_then(pattern), cursor: cursor.unwrap_or(0), count };
    Ok(command.into())
}
