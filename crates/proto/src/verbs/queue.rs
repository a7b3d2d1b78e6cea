//! RQ.*: RedisRQ's commands, with what sureq adds to them.
#![expect(clippy::unnecessary_wraps, reason = "the table wants one signature of all")]

use super::error::UsageError;
use super::request::{Caller, Request};
use crate::decimal::{read_i64, read_u64};
use sureq_core::command::{AckScope, Block, Command, IdForm, Pop, TaskRefs, View, WorkerRef};
use sureq_core::limits::SPAN_MS_MAX;

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
    let mut rest = &argv[1..];
    loop {
        let [word, behind @ ..] = rest else { return Err(UsageError::arity("rq.pop")) };
        rest = if let Some(option) = PopOption::read(word) {
            options.take(option, behind, caller)?
        } else if options.count.is_none() && !behind.is_empty() && read_i64(word).is_some() {
            options.count = Some(read_count(word)?);
            behind
        } else {
            break;
        };
    }
    if let Some(late) = rest.iter().find_map(|word| PopOption::read(word)) {
        return Err(UsageError::new(format!("ERR {} must stand before the keys", late.name())));
    }
    Ok(Command::Pop(options.into_pop(rest)).into())
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

/// What was typed before the keys.
#[derive(Default)]
struct Options<'a> {
    count: Option<u32>,
    block: Option<Block>,
    lease_ms: Option<u64>,
    worker: Option<WorkerRef<'a>>,
    conn: Option<sureq_core::command::ConnId>,
    meta: Option<()>,
}

impl<'a> Options<'a> {
    /// Takes an option with its value; answers what is behind it.
    fn take(
        &mut self,
        option: PopOption,
        behind: &'a [&'a [u8]],
        caller: Caller,
    ) -> Result<&'a [&'a [u8]], UsageError> {
        match option {
            PopOption::Conn => set(&mut self.conn, caller.conn, option)?,
            PopOption::Meta => set(&mut self.meta, (), option)?,
            PopOption::Count | PopOption::Block | PopOption::Lease | PopOption::Worker => {
                let [value, behind @ ..] = behind else { return Err(UsageError::arity("rq.pop")) };
                match option {
                    PopOption::Count => set(&mut self.count, read_count(value)?, option)?,
                    PopOption::Block => set(&mut self.block, read_block(value)?, option)?,
                    PopOption::Lease => set(&mut self.lease_ms, read_lease(value)?, option)?,
                    _ => set(&mut self.worker, read_worker(value)?, option)?,
                }
                return Ok(behind);
            }
        }
        Ok(behind)
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

fn set<T>(place: &mut Option<T>, value: T, option: PopOption) -> Result<(), UsageError> {
    if place.replace(value).is_some() {
        return Err(UsageError::new(format!("ERR {} is given twice", option.name())));
    }
    Ok(())
}

fn read_count(text: &[u8]) -> Result<u32, UsageError> {
    let count = read_i64(text).ok_or(UsageError::NOT_AN_INTEGER)?;
    u64::try_from(count).map(clamped).map_err(|_| UsageError::NEGATIVE)
}

fn read_block(text: &[u8]) -> Result<Block, UsageError> {
    const NOT_AN_INTEGER: UsageError = UsageError::text("ERR timeout is not an integer or out of range");
    let ms = read_i64(text).ok_or(NOT_AN_INTEGER)?;
    match u64::try_from(ms) {
        Err(_) => Err(UsageError::text("ERR timeout is negative")),
        Ok(0) => Ok(Block::Forever),
        Ok(ms) if ms > SPAN_MS_MAX => Err(UsageError::text("ERR timeout is out of range")),
        Ok(ms) => Ok(Block::Millis(ms)),
    }
}

fn read_lease(text: &[u8]) -> Result<u64, UsageError> {
    const OUT_OF_RANGE: UsageError = UsageError::text("ERR lease is not a positive integer or out of range");
    read_u64(text).filter(|ms| (1..=SPAN_MS_MAX).contains(ms)).ok_or(OUT_OF_RANGE)
}

/// `w#n`; the name may have a `#` of its own.
fn read_worker(text: &[u8]) -> Result<WorkerRef<'_>, UsageError> {
    const MALFORMED: UsageError =
        UsageError::text("ERR malformed worker: expected <name>#<n> as RQ.WORKER START answers it");
    let hash = text.iter().rposition(|&c| c == b'#').ok_or(MALFORMED)?;
    let incarnation = read_u64(&text[hash + 1..]).ok_or(MALFORMED)?;
    Ok(WorkerRef { name: &text[..hash], incarnation })
}

/// More than four billion tasks are as good as all.
fn clamped(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
