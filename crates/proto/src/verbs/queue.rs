//! RedisRQ's RQ.* commands, with sureq's additions.
#![expect(clippy::unnecessary_wraps, reason = "the table needs the same signature for all commands")]

use super::args::{Arg, Opt, Options};
use super::error::UsageError;
use super::options::{Given, Value, is, number};
use super::request::{Caller, Request};
use super::{BASE, BLOCKING, CHANGE, Group, READ, READ_SLOW, Role, Row, WRITE};
use crate::command_encoder::CommandWords;
use crate::decimal::{read_i64, read_u64};
use sureq_core::command::{AckScope, Block, Command, IdForm, Pop, TaskRefs, View};

type Parsed<'a> = Result<Request<'a>, UsageError>;

/// The commands of this file, in the order of the table.
pub(super) const ROWS: &[Row] = &[PUSH, POP, ACK, RECOVER, INSPECT, INFO];

const RECOVER_USAGE: UsageError = UsageError::text("ERR usage: RQ.RECOVER <key> <count:uint> <elapsed:uint>");
const INSPECT_USAGE: UsageError =
    UsageError::text("ERR usage: RQ.INSPECT <key> [ PENDING | DELAYED | DEAD ] <start:int> <count:uint>");

const PUSH: Row = Row {
    name: "RQ.PUSH",
    args: &[Arg::key(), Arg::text("payload").many()],
    role: Some(Role::Produce),
    flags: WRITE,
    group: Group::Queue,
    summary: "Adds tasks to the end of a queue.",
    reply: "An array of ids, one for each payload, in order.",
    notes: "The first push makes the queue. A payload is any bytes, and may be empty. All payloads are \
            added, or none. More than 10,000 are refused: push in several commands.",
    example: "> RQ.PUSH emails hello world\n1) \"1601155608777-1\"\n2) \"1601155608777-2\"",
    parse: push,
    encode: Some(encode_push),
    ..BASE
};

fn push<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Push { queue: argv[1], payloads: &argv[2..] }.into())
}

fn encode_push(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Push { queue, payloads } = *command else { return false };
    words.word(queue).all(payloads);
    true
}

const POP: Row = Row {
    name: "RQ.POP",
    args: &[Arg::options(&POP_OPTIONS), Arg::key().many()],
    role: Some(Role::Consume),
    flags: BLOCKING,
    group: Group::Queue,
    summary: "Pops tasks under a lease; they stay in the store until they are acknowledged.",
    reply: "An array of `[key, id, payload]`; empty if there is no task; null if BLOCK timed out. With \
            LEASE, WORKER or CONN each entry is `[key, id, payload, receipt, deliveries]`. META adds a \
            map of name, tries, pushed-at and last reason.",
    notes: "Options come in any order before the keys; an option word is never a key. COUNT defaults to \
            1; a bare number before the keys is a count too, if a key follows it. Tasks come from the \
            first queue until it is empty, then from the next. BLOCK is the longest wait in milliseconds; \
            BLOCK 0 waits for ever. The lease ends after LEASE milliseconds, when the heartbeat of WORKER \
            stops, or with CONN when this connection closes.",
    example: "> RQ.PUSH emails hello world\n1) \"1601155608777-1\"\n2) \"1601155608777-2\"\n\
              > RQ.POP COUNT 2 BLOCK 1000 emails\n1) 1) \"emails\"\n   2) \"1601155608777-1\"\n\
              \x20  3) \"hello\"\n2) 1) \"emails\"\n   2) \"1601155608777-2\"\n   3) \"world\"",
    parse: pop,
    encode: Some(encode_pop),
    ..BASE
};

const POP_OPTIONS: Options = Options::new(
    &[
        Opt::value("COUNT", &[Arg::number("n", 0..=i64::MAX as u64)]),
        Opt::value("BLOCK", &[Arg::span("ms")]),
        Opt::value("LEASE", &[Arg::lasting("ms")]),
        Opt::value("WORKER", &[Arg::worker("w#n")]),
        Opt::flag("CONN"),
        Opt::flag("META"),
    ],
    &[("WORKER", "CONN")],
);
const POP_COUNT: usize = POP_OPTIONS.at("COUNT");
const POP_BLOCK: usize = POP_OPTIONS.at("BLOCK");
const POP_LEASE: usize = POP_OPTIONS.at("LEASE");
const POP_WORKER: usize = POP_OPTIONS.at("WORKER");
const POP_CONN: usize = POP_OPTIONS.at("CONN");
const POP_META: usize = POP_OPTIONS.at("META");

fn pop<'a>(argv: &'a [&'a [u8]], caller: Caller) -> Parsed<'a> {
    let mut given = Given::none(&POP_OPTIONS);
    let mut rest = &argv[1..];
    loop {
        if given.take(&mut rest)? {
            continue;
        }
        match rest {
            [] => return Err(UsageError::arity("rq.pop")),
            // A number before a key is a count.
            [word, behind @ ..]
                if !given.has(POP_COUNT) && !behind.is_empty() && read_i64(word).is_some() =>
            {
                given.put(POP_COUNT, Value::Number(number("COUNT", word, 0..=i64::MAX as u64)?))?;
                rest = behind;
            }
            _ => break,
        }
    }
    given.check()?;
    if let Some(late) = rest[1..].iter().find_map(|word| POP_OPTIONS.find(word)) {
        let name = POP_OPTIONS.list[late].name;
        return Err(UsageError::new(format!("ERR {name} must come before the keys")));
    }
    let mut pop = Pop::plain(rest, given.number(POP_COUNT).map_or(1, clamped));
    let block = given.number(POP_BLOCK).map(|ms| if ms == 0 { Block::Forever } else { Block::Millis(ms) });
    // Nothing to wait for if no tasks are requested.
    pop.block = block.filter(|_| pop.count > 0);
    pop.lease.ms = given.number(POP_LEASE);
    pop.lease.worker = given.worker(POP_WORKER);
    pop.lease.conn = given.has(POP_CONN).then_some(caller.conn);
    pop.meta = given.has(POP_META);
    Ok(Command::Pop(pop).into())
}

fn encode_pop(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Pop(pop) = *command else { return false };
    let mut given = Given::none(&POP_OPTIONS);
    // With an explicit count, a key that is a number is not mistaken for one.
    given.set(POP_COUNT, Some(Value::Number(pop.count.into())));
    let block_ms = pop.block.map(|block| match block {
        Block::Forever => 0,
        // A wait of 0 ms cannot be expressed: 0 means for ever.
        Block::Millis(ms) => ms.max(1),
    });
    given.set(POP_BLOCK, block_ms.map(Value::Number));
    given.set(POP_LEASE, pop.lease.ms.map(Value::Number));
    given.set(POP_WORKER, pop.lease.worker.map(Value::Worker));
    given.set(POP_CONN, pop.lease.conn.map(|_| Value::Flag));
    given.set(POP_META, pop.meta.then_some(Value::Flag));
    given.write(words);
    words.all(pop.queues);
    true
}

/// Whether RQ.POP reads this word as an option in any position.
pub(crate) fn is_pop_option(word: &[u8]) -> bool {
    POP_OPTIONS.find(word).is_some()
}

const ACK: Row = Row {
    name: "RQ.ACK",
    args: &[Arg::key(), Arg::task("id|receipt").many()],
    role: Some(Role::Consume),
    flags: CHANGE,
    group: Group::Queue,
    summary: "Finishes leased tasks.",
    reply: "An array of the arguments that this call finished, as they were given.",
    notes: "A receipt counts only while its delivery is the current one. A bare id also finishes a task \
            whose lease lapsed and that waits again. A malformed id is an error, and nothing is finished; \
            an unknown id is left out.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.POP emails\n1) 1) \"emails\"\n\
              \x20  2) \"1601155608777-1\"\n   3) \"hello\"\n> RQ.ACK emails 1601155608777-1\n\
              1) \"1601155608777-1\"",
    parse: ack,
    encode: Some(encode_ack),
    ..BASE
};

fn ack<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let tasks = TaskRefs { list: &argv[2..], form: IdForm::Long };
    Ok(Command::Ack { queue: argv[1], tasks, scope: AckScope::LeasedOrLapsed }.into())
}

fn encode_ack(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Ack { queue, tasks, .. } = *command else { return false };
    words.word(queue).tasks(tasks);
    true
}

const RECOVER: Row = Row {
    name: "RQ.RECOVER",
    args: &[Arg::key(), Arg::number("count", 0..=u64::MAX), Arg::number("elapsed", 0..=u64::MAX)],
    role: Some(Role::Consume),
    flags: CHANGE,
    group: Group::Queue,
    summary: "Takes over tasks that were popped without a lease and never finished.",
    reply: "An array of `[id, payload]`.",
    notes: "Takes at most `count` tasks whose last delivery is at least `elapsed` milliseconds ago, the oldest first, \
            each at most once per call. Tasks with a lease, a worker or a connection come back by themselves and are \
            not touched.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.POP emails\n1) 1) \"emails\"\n\
              \x20  2) \"1601155608777-1\"\n   3) \"hello\"\n> RQ.RECOVER emails 10 0\n\
              1) 1) \"1601155608777-1\"\n   2) \"hello\"",
    parse: recover,
    encode: Some(encode_recover),
    ..BASE
};

fn recover<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let count = read_u64(argv[2]).ok_or(RECOVER_USAGE)?;
    let elapsed_ms = read_u64(argv[3]).ok_or(RECOVER_USAGE)?;
    Ok(Command::Recover { queue: argv[1], count: clamped(count), elapsed_ms }.into())
}

fn encode_recover(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Recover { queue, count, elapsed_ms } = *command else { return false };
    words.word(queue).number(count.into()).number(elapsed_ms);
    true
}

const INSPECT: Row = Row {
    name: "RQ.INSPECT",
    args: &[
        Arg::key(),
        Arg::word(&["PENDING", "DELAYED", "DEAD"]).optional(),
        Arg::signed("start", i64::MIN..=i64::MAX),
        Arg::number("count", 1..=u64::MAX),
    ],
    role: Some(Role::Read),
    flags: READ_SLOW,
    group: Group::Queue,
    summary: "Shows tasks without changing them.",
    reply: "An array. Ready tasks (the default): `[id, payload]`. PENDING (leased): `[id, payload, last \
            delivery, elapsed, deliveries]`. DELAYED: `[id, payload, due]`. DEAD: `[id, payload, died at, \
            reason, failed, lapsed, lost]`. Times are in milliseconds.",
    notes: "A negative start counts from the end.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.POP emails\n1) 1) \"emails\"\n\
              \x20  2) \"1601155608777-1\"\n   3) \"hello\"\n> RQ.INSPECT emails PENDING 0 1\n\
              1) 1) \"1601155608777-1\"\n   2) \"hello\"\n   3) (integer) 1601155609999\n\
              \x20  4) (integer) 1222\n   5) (integer) 1",
    parse: inspect,
    encode: Some(encode_inspect),
    ..BASE
};

fn inspect<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let (view, start, count) = match *argv {
        [_, _, start, count] => (View::Ready, start, count),
        [_, _, view, start, count] => (read_view(view).ok_or(INSPECT_USAGE)?, start, count),
        _ => return Err(INSPECT_USAGE),
    };
    let start = read_i64(start).ok_or(INSPECT_USAGE)?;
    let count = read_u64(count).filter(|&count| count > 0).ok_or(INSPECT_USAGE)?;
    Ok(Command::Inspect { queue: argv[1], view, start, count: clamped(count) }.into())
}

fn encode_inspect(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Inspect { queue, view, start, count } = *command else { return false };
    words.word(queue);
    if let Some((word, _)) = VIEWS.iter().find(|(_, named)| *named == view) {
        words.word(word);
    }
    words.signed(start).number(count.into());
    true
}

/// The words for the states other than the default.
const VIEWS: [(&str, View); 3] =
    [("PENDING", View::Leased), ("DELAYED", View::Delayed), ("DEAD", View::Dead)];

fn read_view(word: &[u8]) -> Option<View> {
    VIEWS.iter().find(|(name, _)| is(word, name)).map(|(_, view)| *view)
}

const INFO: Row = Row {
    name: "RQ.INFO",
    args: &[Arg::key()],
    role: Some(Role::Read),
    flags: READ,
    group: Group::Queue,
    summary: "Shows the counts, ages and settings of a queue.",
    reply: "A map (in RESP2 a flat array): `undelivered`, `delivered`, `ready`, `delayed`, `leased`, `dead`, \
            `waiting_bytes`, `oldest_ms`, `paused` (since when, or 0), `pushed`, `finished`, `workers`, `pushed_per_second`, \
            `finished_per_second` (of the last ten seconds), then the settings.",
    notes: "Costs the same however many tasks there are. In the keys of other programs (`layout=`) only `undelivered`, \
            `delivered`, `ready` and `leased` are known, and the other fields are left out.",
    example: "> RQ.PUSH emails hello world\n1) \"1601155608777-1\"\n2) \"1601155608777-2\"\n\
              > RQ.INFO emails\n 1) \"undelivered\"\n 2) (integer) 2\n 3) \"delivered\"\n 4) (integer) 0\n\
              ...",
    parse: info,
    encode: Some(encode_info),
    ..BASE
};

fn info<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Info { queue: argv[1] }.into())
}

fn encode_info(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Info { queue } = *command else { return false };
    words.word(queue);
    true
}

/// More than four billion tasks are as good as all.
fn clamped(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
