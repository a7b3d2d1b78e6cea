//! RQ.WORKER: the life of a worker.
#![expect(clippy::unnecessary_wraps, reason = "the table wants one signature of all")]

use super::error::UsageError;
use super::options::{LASTING, Words, is, once, unknown};
use super::request::{Caller, Request, SessionCommand};
use crate::decimal::read_u64;
use sureq_core::command::{Command, Worker, WorkerRef};
use sureq_core::limits::WORKER_TTL_MS_DEFAULT;

pub(super) fn start<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    let mut ttl = None;
    let mut words = Words::new(&argv[3..]);
    while let Some(word) = words.next() {
        match word {
            word if is(word, "TTL") => once(&mut ttl, "TTL", words.number("TTL", LASTING)?)?,
            word => return Err(unknown(word, "TTL")),
        }
    }
    if argv[2].is_empty() {
        return Err(UsageError::text("ERR a worker needs a name"));
    }
    let ttl_ms = ttl.unwrap_or(WORKER_TTL_MS_DEFAULT);
    Ok(Command::Worker(Worker::Start { name: argv[2], ttl_ms }).into())
}

pub(super) fn beat<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Worker(Worker::Beat(read(argv[2])?)).into())
}

pub(super) fn work<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Worker(Worker::Work(read(argv[2])?, argv[3])).into())
}

pub(super) fn rest<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Worker(Worker::Rest(read(argv[2])?, argv[3])).into())
}

pub(super) fn stop<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Worker(Worker::Stop(read(argv[2])?)).into())
}

pub(super) fn fail<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Worker(Worker::Fail { name: argv[2] }).into())
}

pub(super) fn list<'a>(_: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Worker(Worker::List).into())
}

pub(super) fn help<'a>(_: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Request::Session(SessionCommand::Help("RQ.WORKER")))
}

/// `w#n`; the name may have a `#` of its own.
pub(crate) fn read(text: &[u8]) -> Result<WorkerRef<'_>, UsageError> {
    const MALFORMED: UsageError =
        UsageError::text("ERR malformed worker: expected <name>#<n> as RQ.WORKER START answers it");
    let hash = text.iter().rposition(|&c| c == b'#').ok_or(MALFORMED)?;
    let incarnation = read_u64(&text[hash + 1..]).ok_or(MALFORMED)?;
    Ok(WorkerRef { name: &text[..hash], incarnation })
}
