//! RQ.*: RedisRQ's commands, with what sureq adds to them.
#![expect(clippy::unnecessary_wraps, reason = "the table wants one signature of all")]

use super::error::UsageError;
use super::options::{LASTING, SPAN, Words, not_both, number, once};
use super::request::{Caller, Request};
use super::worker;
use crate::decimal::{read_i64, read_u64};
use sureq_core::command::{AckScope, Block, Command, ConnId, IdForm, Pop, TaskRefs, View, WorkerRef};

const RECOVER_USAGE: UsageError = UsageError::text("ERR usage: RQ.RECOVER <key> <count:uint> <elapsed:uint>");
const INSPECT_USAGE: UsageError =
    UsageError::text("ERR usage: RQ.INSPECT <key> [ PENDING | DELAYED | DEAD ] <start:int> <count:uint>");

pub(super) fn push<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Push { queue: argv[1], payloads: &argv[2..] }.into())
}

pub(super) fn ack<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    let tasks = TaskRefs { list: &argv[2..], form: IdForm::Long };
    Ok(Command::Ack { queue: argv[1], tasks, scope: AckScope::LeasedOrLapsed }.into())
}

pub(super) fn info<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Ok(Command::Info { queue: argv[1] }.into())
}

pub(super) fn recover<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    let count = read_u64(argv[2]).ok_or(RECOVER_USAGE)?;
    let elapsed_ms = read_u64(argv[3]).ok_or(RECOVER_USAGE)?;
    Ok(Command::Recover { queue: argv[1], count: clamped(count), elapsed_ms }.into())
}

pub(super) fn inspect<'a>(argv: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    let (view, start, count) = match *argv {
        [_, _, start, count] => (View::Ready, start, count),
        [_, _, view, start, count] => (read_view(view).ok_or(INSPECT_USAGE)?, start, count),
        _ => return Err(INSPECT_USAGE),
    };
    let start = read_i64(start).ok_or(INSPECT_USAGE)?;
    let count = read_u64(count).filter(|&count| count > 0).ok_or(INSPECT_USAGE)?;
    Ok(Command::Inspect { queue: argv[1], view, start, count: clamped(count) }.into())
}

fn read_view(word: &[u8]) -> Option<View> {
    match word {
        word if word.eq_ignore_ascii_case(b"PENDING") => Some(View::Leased),
        word if word.eq_ignore_ascii_case(b"DELAYED") => Some(View::Delayed),
        word if word.eq_ignore_ascii_case(b"DEAD") => Some(View::Dead),
        _ => None,
    }
}

pub(super) fn pop<'a>(argv: &'a [&'a [u8]], caller: Caller) -> Result<Request<'a>, UsageError> {
    let mut options = Options::default();
    let mut words = Words::new(&argv[1..]);
    let queues = loop {
        let rest = words.rest();
        let [word, behind @ ..] = rest else { return Err(UsageError::arity("rq.pop")) };
        if let Some(option) = PopOption::read(word) {
            words = Words::new(behind);
            options.take(option, &mut words, caller)?;
        } else if options.count.is_none() && !behind.is_empty() && read_i64(word).is_some() {
            words = Words::new(behind);
            options.count = Some(read_count(word)?);
        } else {
            break rest;
        }
    };
    not_both(("WORKER", options.worker.is_some()), ("CONN", options.conn.is_some()))?;
    if let Some(late) = queues.iter().find_map(|word| PopOption::read(word)) {
        return Err(UsageError::new(format!("ERR {} must stand before the keys", late.name())));
    }
    Ok(Command::Pop(options.into_pop(queues)).into())
}

/// The words that are options of RQ.POP wherever they stand, and never keys.
#[derive(Clone, Copy)]
enum PopOption {
    Count,
    Block,
    Lease,
    Worker,
    Conn,
    Meta,
}

impl PopOption {
    fn read(word: &[u8]) -> Option<Self> {
        // Few keys are as short as an option, and a pop has a key at least: lengths go first.
        match word.len() {
            4 if word.eq_ignore_ascii_case(b"CONN") => Some(Self::Conn),
            4 if word.eq_ignore_ascii_case(b"META") => Some(Self::Meta),
            5 if word.eq_ignore_ascii_case(b"COUNT") => Some(Self::Count),
            5 if word.eq_ignore_ascii_case(b"BLOCK") => Some(Self::Block),
            5 if word.eq_ignore_ascii_case(b"LEASE") => Some(Self::Lease),
            6 if word.eq_ignore_ascii_case(b"WORKER") => Some(Self::Worker),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Count => "COUNT",
            Self::Block => "BLOCK",
            Self::Lease => "LEASE",
            Self::Worker => "WORKER",
            Self::Conn => "CONN",
            Self::Meta => "META",
        }
    }
}

/// Whether RQ.POP takes this word for an option wherever it stands.
pub(crate) fn is_pop_option(word: &[u8]) -> bool {
    PopOption::read(word).is_some()
}

/// What was typed before the keys.
#[derive(Default)]
struct Options<'a> {
    count: Option<u32>,
    block: Option<Block>,
    lease_ms: Option<u64>,
    worker: Option<WorkerRef<'a>>,
    conn: Option<ConnId>,
    meta: Option<()>,
}

impl<'a> Options<'a> {
    /// Takes an option with its value.
    fn take(&mut self, option: PopOption, words: &mut Words<'a>, caller: Caller) -> Result<(), UsageError> {
        let name = option.name();
        match option {
            PopOption::Conn => once(&mut self.conn, name, caller.conn),
            PopOption::Meta => once(&mut self.meta, name, ()),
            PopOption::Count => once(&mut self.count, name, read_count(words.value(name)?)?),
            PopOption::Lease => once(&mut self.lease_ms, name, words.number(name, LASTING)?),
            PopOption::Worker => once(&mut self.worker, name, worker::read(words.value(name)?)?),
            PopOption::Block => {
                let ms = words.number(name, SPAN)?;
                once(&mut self.block, name, if ms == 0 { Block::Forever } else { Block::Millis(ms) })
            }
        }
    }

    fn into_pop(self, queues: &'a [&'a [u8]]) -> Pop<'a> {
        let count = self.count.unwrap_or(1);
        let mut pop = Pop::plain(queues, count);
        // There is nothing to wait for where nothing is wanted.
        pop.block = self.block.filter(|_| count > 0);
        pop.lease.ms = self.lease_ms;
        pop.lease.worker = self.worker;
        pop.lease.conn = self.conn;
        pop.meta = self.meta.is_some();
        pop
    }
}

fn read_count(text: &[u8]) -> Result<u32, UsageError> {
    number("COUNT", text, 0..=i64::MAX as u64).map(clamped)
}

/// More than four billion tasks are as good as all.
fn clamped(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
