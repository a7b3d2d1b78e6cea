//! RQ.*: what can be done with single tasks, beyond RedisRQ's commands.
#![expect(clippy::unnecessary_wraps, reason = "the table wants one signature of all")]

use super::error::UsageError;
use super::options::{LASTING, SPAN, Words, is, not_both, number, once, unknown};
use super::request::{Caller, Request};
use sureq_core::command::{Add, Cancel, Command, IdForm, NameArg, Return, TaskRef, TaskRefs, When};
use sureq_core::settings::Place;
use sureq_core::time::WallTime;

pub(super) fn add<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    const OPTIONS: &str = "NAME, DELAY, AT, PRIORITY, TRIES, BACKOFF, TTL or UNIQUE";
    let (mut name, mut unique, mut delay, mut at) = (None, None, None, None);
    let (mut priority, mut tries, mut backoff, mut ttl) = (None, None, None, None);
    let mut words = Words::new(&argv[3..]);
    while let Some(word) = words.next() {
        match word {
            word if is(word, "NAME") => once(&mut name, "NAME", words.value("NAME")?)?,
            word if is(word, "UNIQUE") => once(&mut unique, "UNIQUE", ())?,
            word if is(word, "DELAY") => once(&mut delay, "DELAY", words.number("DELAY", SPAN)?)?,
            word if is(word, "AT") => once(&mut at, "AT", words.number("AT", 0..=i64::MAX as u64)?)?,
            word if is(word, "PRIORITY") => {
                once(&mut priority, "PRIORITY", words.signed("PRIORITY", i8::MIN.into()..=i8::MAX.into())?)?;
            }
            word if is(word, "TRIES") => {
                once(&mut tries, "TRIES", words.number("TRIES", 1..=u32::MAX.into())?)?;
            }
            word if is(word, "BACKOFF") => once(&mut backoff, "BACKOFF", words.number("BACKOFF", LASTING)?)?,
            word if is(word, "TTL") => once(&mut ttl, "TTL", words.number("TTL", LASTING)?)?,
            word => return Err(unknown(word, OPTIONS)),
        }
    }
    not_both(("NAME", name.is_some()), ("UNIQUE", unique.is_some()))?;
    not_both(("DELAY", delay.is_some()), ("AT", at.is_some()))?;
    let when = match (delay.filter(|&ms| ms > 0), at) {
        (Some(ms), _) => When::After(ms),
        (None, Some(ms)) => When::At(WallTime(ms)),
        (None, None) => When::AtOnce,
    };
    let add = Add {
        name: name.map(NameArg::Bytes).or(unique.map(|()| NameArg::Payload)),
        when,
        // Both were read within their ranges.
        priority: priority.unwrap_or(0) as i8,
        tries: tries.map(|tries| tries as u32),
        backoff_ms: backoff,
        ttl_ms: ttl,
        ..Add::plain(argv[1], argv[2])
    };
    Ok(Command::Add(add).into())
}

pub(super) fn extend<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    let ms = number("the new length of the lease", argv[3], LASTING)?;
    Ok(Command::Extend { queue: argv[1], task: task(argv[2]), ms }.into())
}

pub(super) fn give_back<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    let (mut delay, mut front, mut back, mut failed, mut last) = (None, None, None, None, None);
    let mut words = Words::new(&argv[3..]);
    while let Some(word) = words.next() {
        match word {
            word if is(word, "DELAY") => once(&mut delay, "DELAY", words.number("DELAY", SPAN)?)?,
            word if is(word, "FRONT") => once(&mut front, "FRONT", Place::Front)?,
            word if is(word, "BACK") => once(&mut back, "BACK", Place::Back)?,
            word if is(word, "FAILED") => once(&mut failed, "FAILED", words.value("FAILED")?)?,
            word if is(word, "DEAD") => once(&mut last, "DEAD", ())?,
            word => return Err(unknown(word, "DELAY, FRONT, BACK, FAILED or DEAD")),
        }
    }
    not_both(("DELAY", delay.is_some()), ("FRONT", front.is_some()))?;
    not_both(("DELAY", delay.is_some()), ("BACK", back.is_some()))?;
    not_both(("FRONT", front.is_some()), ("BACK", back.is_some()))?;
    let to = delay.map(Place::After).or(front).or(back);
    let is_last = last.is_some();
    if is_last && failed.is_none() {
        return Err(UsageError::text("ERR DEAD needs FAILED and the reason"));
    }
    not_both(("DEAD", is_last), ("DELAY, FRONT or BACK", to.is_some()))?;
    Ok(Command::Return(Return { queue: argv[1], task: task(argv[2]), to, failed, is_last }).into())
}

pub(super) fn cancel<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    let which = match (argv[2], &argv[3..]) {
        (by, ids) if is(by, "ID") => Cancel::Ids(tasks(ids)),
        (by, names) if is(by, "NAME") => Cancel::Names(names),
        (by, [payload]) if is(by, "PAYLOAD") => Cancel::Payload(payload),
        (by, _) if is(by, "PAYLOAD") => return Err(UsageError::text("ERR PAYLOAD takes one payload")),
        (by, _) => return Err(unknown(by, "ID, NAME or PAYLOAD")),
    };
    Ok(Command::Cancel { queue: argv[1], which }.into())
}

pub(super) fn bury<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Bury { queue: argv[1], tasks: tasks(&argv[2..]) }.into())
}

pub(super) fn revive<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    let ids = match &argv[2..] {
        [all] if is(all, "ALL") => None,
        ids => Some(tasks(ids)),
    };
    Ok(Command::Revive { queue: argv[1], tasks: ids }.into())
}

pub(super) fn delete<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Delete { queue: argv[1], tasks: tasks(&argv[2..]) }.into())
}

pub(super) fn explain<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Explain { queue: argv[1], task: task(argv[2]) }.into())
}

const fn task(bytes: &[u8]) -> TaskRef<'_> {
    TaskRef { bytes, form: IdForm::Long }
}

const fn tasks<'a>(list: &'a [&'a [u8]]) -> TaskRefs<'a> {
    TaskRefs { list, form: IdForm::Long }
}
