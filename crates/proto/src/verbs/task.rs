//! RQ.* commands on single tasks that RedisRQ does not have.
#![expect(clippy::unnecessary_wraps, reason = "the table needs the same signature for all commands")]

use super::args::{Arg, Opt, Options};
use super::error::UsageError;
use super::options::{Given, Value, find, is, not_both, number, unknown};
use super::request::{Caller, Request};
use super::{BASE, CHANGE, Group, READ, Role, Row, WRITE};
use crate::command_encoder::CommandWords;
use sureq_core::command::{Add, Cancel, Command, IdForm, NameArg, Return, TaskRef, TaskRefs, When};
use sureq_core::limits::SPAN_MS_MAX;
use sureq_core::settings::Place;
use sureq_core::time::WallTime;

type Parsed<'a> = Result<Request<'a>, UsageError>;

/// The commands of this file, in the order of the table.
pub(super) const ROWS: &[Row] = &[ADD, EXTEND, RETURN, CANCEL, BURY, REVIVE, DELETE, EXPLAIN];

const ADD: Row = Row {
    name: "RQ.ADD",
    args: &[Arg::key(), Arg::text("payload"), Arg::options(&ADD_OPTIONS)],
    role: Some(Role::Produce),
    flags: WRITE,
    group: Group::Queue,
    summary: "Adds one task with a name, a delay, a priority or limits of its own.",
    reply: "`[id, added, state]`: added is 1, or 0 if a task of the queue has the name already; then id and state are \
            that task's, and nothing is added.",
    notes: "A name is free again when its task is gone; a dead task keeps it. UNIQUE makes the payload \
            the name. DELAY counts from now, AT follows the wall clock. PRIORITY is from -128 to 127, \
            larger first. TRIES and BACKOFF override those of the queue. BACKOFF is the first wait after \
            a failure; each further wait is twice as long, up to an hour, less a jitter of up to a half. \
            TTL limits how long the task may wait, counted from now; the queue's EXPIRED says whether it \
            is then deleted or dead.",
    example: "> RQ.ADD emails hello NAME greeting DELAY 60000\n1) \"1601155608777-1\"\n2) (integer) 1\n3) \"delayed\"\n\
              > RQ.ADD emails hello NAME greeting\n1) \"1601155608777-1\"\n2) (integer) 0\n3) \"delayed\"",
    parse: add,
    encode: Some(encode_add),
    ..BASE
};

const ADD_OPTIONS: Options = Options::new(
    &[
        Opt::value("NAME", &[Arg::text("name")]),
        Opt::value("DELAY", &[Arg::span("ms")]),
        Opt::value("AT", &[Arg::number("unix-ms", 0..=i64::MAX as u64)]),
        Opt::value("PRIORITY", &[Arg::signed("n", i8::MIN as i64..=i8::MAX as i64)]),
        Opt::value("TRIES", &[Arg::number("n", 1..=u32::MAX as u64)]),
        Opt::value("BACKOFF", &[Arg::lasting("ms")]),
        Opt::value("TTL", &[Arg::lasting("ms")]),
        Opt::flag("UNIQUE"),
    ],
    &[("NAME", "UNIQUE"), ("DELAY", "AT")],
);
const ADD_NAME: usize = ADD_OPTIONS.at("NAME");
const ADD_DELAY: usize = ADD_OPTIONS.at("DELAY");
const ADD_AT: usize = ADD_OPTIONS.at("AT");
const ADD_PRIORITY: usize = ADD_OPTIONS.at("PRIORITY");
const ADD_TRIES: usize = ADD_OPTIONS.at("TRIES");
const ADD_BACKOFF: usize = ADD_OPTIONS.at("BACKOFF");
const ADD_TTL: usize = ADD_OPTIONS.at("TTL");
const ADD_UNIQUE: usize = ADD_OPTIONS.at("UNIQUE");

fn add<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let given = Given::read(&ADD_OPTIONS, &argv[3..])?;
    let delay_ms = given.number(ADD_DELAY).filter(|&ms| ms > 0);
    let when = match (delay_ms, given.number(ADD_AT)) {
        (Some(ms), _) => When::After(ms),
        (None, Some(ms)) => When::At(WallTime(ms)),
        (None, None) => When::AtOnce,
    };
    let unique = given.has(ADD_UNIQUE).then_some(NameArg::Payload);
    let add = Add {
        name: given.text(ADD_NAME).map(NameArg::Bytes).or(unique),
        when,
        // Both casts are lossless: the values were read within their ranges.
        priority: given.signed(ADD_PRIORITY).unwrap_or(0) as i8,
        tries: given.number(ADD_TRIES).map(|tries| tries as u32),
        backoff_ms: given.number(ADD_BACKOFF),
        ttl_ms: given.number(ADD_TTL),
        ..Add::plain(argv[1], argv[2])
    };
    Ok(Command::Add(add).into())
}

fn encode_add(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Add(add) = *command else { return false };
    let mut given = Given::none(&ADD_OPTIONS);
    match add.name {
        None => {}
        Some(NameArg::Bytes(name)) => given.set(ADD_NAME, Some(Value::Text(name))),
        Some(NameArg::Payload) => given.set(ADD_UNIQUE, Some(Value::Flag)),
    }
    match add.when {
        When::AtOnce => {}
        When::After(ms) => given.set(ADD_DELAY, Some(Value::Number(ms))),
        When::At(at) => given.set(ADD_AT, Some(Value::Number(at.0))),
    }
    let priority = Some(add.priority).filter(|&priority| priority != 0);
    given.set(ADD_PRIORITY, priority.map(|priority| Value::Signed(priority.into())));
    given.set(ADD_TRIES, add.tries.map(|tries| Value::Number(tries.into())));
    given.set(ADD_BACKOFF, add.backoff_ms.map(Value::Number));
    given.set(ADD_TTL, add.ttl_ms.map(Value::Number));
    given.write(words.word(add.queue).word(add.payload));
    true
}

const EXTEND: Row = Row {
    name: "RQ.EXTEND",
    args: &[Arg::key(), Arg::task("id|receipt"), Arg::lasting("ms")],
    role: Some(Role::Consume),
    flags: CHANGE,
    group: Group::Queue,
    summary: "Moves the deadline of a lease to `ms` milliseconds from now.",
    reply: "1; 0 if this delivery is not the current one; `CANCELLED` if the task was cancelled.",
    notes: "A lease that had no deadline gets one.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.POP LEASE 30000 emails\n1) 1) \"emails\"\n   \
              2) \"1601155608777-1\"\n   3) \"hello\"\n   4) \"1601155608777-1@1.1601155600000\"\n   5) (integer) 1\n\
              > RQ.EXTEND emails 1601155608777-1@1.1601155600000 60000\n(integer) 1",
    parse: extend,
    encode: Some(encode_extend),
    ..BASE
};

fn extend<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let ms = number("the new length of the lease", argv[3], 1..=SPAN_MS_MAX)?;
    Ok(Command::Extend { queue: argv[1], task: task(argv[2]), ms }.into())
}

fn encode_extend(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Extend { queue, task, ms } = *command else { return false };
    words.word(queue).task(task).number(ms);
    true
}

const RETURN: Row = Row {
    name: "RQ.RETURN",
    args: &[Arg::key(), Arg::task("id|receipt"), Arg::options(&RETURN_OPTIONS)],
    role: Some(Role::Consume),
    flags: CHANGE,
    group: Group::Queue,
    summary: "Requeues a leased task.",
    reply: "1; 0 if this delivery is not the current one; `CANCELLED` if the task was cancelled, and is \
            therefore gone.",
    notes: "To the front, at no cost of a try, by default. FAILED costs a try and delays the task by the \
            backoff, or by DELAY if given; the task is dead if that was its last try, or if DEAD is \
            given. The first 1024 bytes of the reason are kept.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.POP emails\n1) 1) \"emails\"\n   2) \"1601155608777-1\"\n   \
              3) \"hello\"\n> RQ.RETURN emails 1601155608777-1 FAILED \"no route to host\"\n(integer) 1",
    parse: parse_return,
    encode: Some(encode_return),
    ..BASE
};

const RETURN_OPTIONS: Options = Options::new(
    &[
        Opt::value("DELAY", &[Arg::span("ms")]),
        Opt::flag("FRONT"),
        Opt::flag("BACK"),
        Opt::value("FAILED", &[Arg::text("reason")]),
        Opt::flag("DEAD").nested(),
    ],
    &[("DELAY", "FRONT"), ("DELAY", "BACK"), ("FRONT", "BACK")],
);
const RETURN_DELAY: usize = RETURN_OPTIONS.at("DELAY");
const RETURN_FRONT: usize = RETURN_OPTIONS.at("FRONT");
const RETURN_BACK: usize = RETURN_OPTIONS.at("BACK");
const RETURN_FAILED: usize = RETURN_OPTIONS.at("FAILED");
const RETURN_DEAD: usize = RETURN_OPTIONS.at("DEAD");

fn parse_return<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let given = Given::read(&RETURN_OPTIONS, &argv[3..])?;
    let front = given.has(RETURN_FRONT).then_some(Place::Front);
    let back = given.has(RETURN_BACK).then_some(Place::Back);
    let to = given.number(RETURN_DELAY).map(Place::After).or(front).or(back);
    let (failed, is_last) = (given.text(RETURN_FAILED), given.has(RETURN_DEAD));
    if is_last && failed.is_none() {
        return Err(UsageError::text("ERR DEAD needs FAILED and the reason"));
    }
    not_both(("DEAD", is_last), ("DELAY, FRONT or BACK", to.is_some()))?;
    Ok(Command::Return(Return { queue: argv[1], task: task(argv[2]), to, failed, is_last }).into())
}

fn encode_return(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Return(back) = *command else { return false };
    let mut given = Given::none(&RETURN_OPTIONS);
    let is_last = back.is_last && back.failed.is_some();
    match back.to {
        // A dead task has no position in the queue.
        _ if is_last => {}
        None => {}
        Some(Place::Front) => given.set(RETURN_FRONT, Some(Value::Flag)),
        Some(Place::Back) => given.set(RETURN_BACK, Some(Value::Flag)),
        Some(Place::After(ms)) => given.set(RETURN_DELAY, Some(Value::Number(ms))),
    }
    given.set(RETURN_FAILED, back.failed.map(Value::Text));
    given.set(RETURN_DEAD, is_last.then_some(Value::Flag));
    given.write(words.word(back.queue).task(back.task));
    true
}

const CANCEL: Row = Row {
    name: "RQ.CANCEL",
    args: &[Arg::key(), Arg::one_of(CANCEL_BY)],
    role: Some(Role::Produce),
    flags: CHANGE,
    group: Group::Queue,
    summary: "Cancels tasks: waiting ones are removed, leased ones are marked for their holders.",
    reply: "The number of tasks cancelled by this call.",
    notes: "The holder of a leased task learns it from its next RQ.EXTEND or RQ.WORKER BEAT. It may still \
            finish the task; if it returns the task, or its lease ends, the task is gone. Dead tasks are \
            not touched. PAYLOAD searches all tasks of the queue, in steps, and other clients are served \
            in between. If the store closes meanwhile, or a payload cannot be read, the reply is an \
            error, and part of the work may have been done.",
    example: "> RQ.ADD emails hello NAME greeting\n1) \"1601155608777-1\"\n2) (integer) 1\n3) \"ready\"\n\
              > RQ.CANCEL emails NAME greeting\n(integer) 1",
    parse: cancel,
    encode: Some(encode_cancel),
    ..BASE
};

const CANCEL_BY: &[Opt] = &[
    Opt::args("ID", &[Arg::task("id").many()]),
    Opt::args("NAME", &[Arg::text("name").many()]),
    Opt::value("PAYLOAD", &[Arg::text("payload")]),
];

fn cancel<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let (by, values) = (argv[2], &argv[3..]);
    let by = find(CANCEL_BY, by).map(|at| CANCEL_BY[at].name).ok_or_else(|| unknown(by, CANCEL_BY))?;
    let which = match (by, values) {
        ("ID", ids) => Cancel::Ids(tasks(ids)),
        ("NAME", names) => Cancel::Names(names),
        (_, [payload]) => Cancel::Payload(payload),
        _ => return Err(UsageError::text("ERR PAYLOAD takes one payload")),
    };
    Ok(Command::Cancel { queue: argv[1], which }.into())
}

fn encode_cancel(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Cancel { queue, which } = *command else { return false };
    words.word(queue);
    match which {
        Cancel::Ids(ids) => words.word("ID").tasks(ids),
        Cancel::Names(names) => words.word("NAME").all(names),
        Cancel::Payload(payload) => words.word("PAYLOAD").word(payload),
    };
    true
}

const BURY: Row = Row {
    name: "RQ.BURY",
    args: &[Arg::key(), Arg::task("id|receipt").many()],
    role: Some(Role::Consume),
    flags: CHANGE,
    group: Group::Queue,
    summary: "Makes tasks dead at once, or moves them to the dead-letter queue if there is one.",
    reply: "The number of tasks.",
    notes: "They are kept until RQ.REVIVE brings them back or RQ.DELETE removes them.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.BURY emails 1601155608777-1\n(integer) 1",
    parse: bury,
    encode: Some(encode_bury),
    ..BASE
};

fn bury<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Bury { queue: argv[1], tasks: tasks(&argv[2..]) }.into())
}

fn encode_bury(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Bury { queue, tasks } = *command else { return false };
    words.word(queue).tasks(tasks);
    true
}

const REVIVE: Row = Row {
    name: "RQ.REVIVE",
    args: &[Arg::key(), Arg::one_of(&[Opt::flag("ALL"), Opt::args("", &[Arg::task("id").many()])])],
    flags: CHANGE,
    group: Group::Queue,
    summary: "Moves dead tasks to the end of the queue, ready again.",
    reply: "The number of tasks.",
    notes: "Their tries start from zero; their delivery numbers continue.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.BURY emails 1601155608777-1\n(integer) 1\n\
              > RQ.REVIVE emails ALL\n(integer) 1",
    parse: revive,
    encode: Some(encode_revive),
    ..BASE
};

fn revive<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let ids = match &argv[2..] {
        [all] if means_all(all) => None,
        ids => Some(tasks(ids)),
    };
    Ok(Command::Revive { queue: argv[1], tasks: ids }.into())
}

/// Whether RQ.REVIVE takes this word, if it stands alone, for all dead tasks.
pub(crate) const fn means_all(word: &[u8]) -> bool {
    is(word, "ALL")
}

fn encode_revive(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Revive { queue, tasks } = *command else { return false };
    words.word(queue);
    match tasks {
        Some(tasks) => words.tasks(tasks),
        None => words.word("ALL"),
    };
    true
}

const DELETE: Row = Row {
    name: "RQ.DELETE",
    args: &[Arg::key(), Arg::task("id").many()],
    flags: CHANGE,
    group: Group::Queue,
    summary: "Removes tasks in any state.",
    reply: "The number of tasks.",
    notes: "The holder of a leased task gets no message, and its ack finishes nothing. RQ.CANCEL lets the \
            holder know.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.DELETE emails 1601155608777-1\n(integer) 1",
    parse: delete,
    encode: Some(encode_delete),
    ..BASE
};

fn delete<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Delete { queue: argv[1], tasks: tasks(&argv[2..]) }.into())
}

fn encode_delete(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Delete { queue, tasks } = *command else { return false };
    words.word(queue).tasks(tasks);
    true
}

const EXPLAIN: Row = Row {
    name: "RQ.EXPLAIN",
    args: &[Arg::key(), Arg::task("id")],
    role: Some(Role::Read),
    flags: READ,
    group: Group::Queue,
    summary: "Says why a task is not running now.",
    reply: "A map: `id`, `state`, `why` (a sentence), `deliveries`, `failed`, `lapsed`, `lost`, \
            `tries_max`, `reason` (of the last failure, or null), then fields of the state. Ready: \
            `ahead`. Delayed: `until`, `in_ms`. Both, if the queue blocks its tasks: `paused_since`, \
            `leased`, `leased_max` (otherwise 0). Leased: `since`, `until` (0: no deadline), `cancelled`, \
            `holder`. Dead: `died`. Null if there is no such task.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.PAUSE emails\nOK\n\
              > RQ.EXPLAIN emails 1601155608777-1\n 1) \"id\"\n 2) \"1601155608777-1\"\n 3) \"state\"\n\
              \x204) \"ready\"\n 5) \"why\"\n 6) \"queue paused since 1601155608999; ready, 0 ahead\"\n...",
    parse: explain,
    encode: Some(encode_explain),
    ..BASE
};

fn explain<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Explain { queue: argv[1], task: task(argv[2]) }.into())
}

fn encode_explain(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Explain { queue, task } = *command else { return false };
    words.word(queue).task(task);
    true
}

const fn task(bytes: &[u8]) -> TaskRef<'_> {
    TaskRef { bytes, form: IdForm::Long }
}

const fn tasks<'a>(list: &'a [&'a [u8]]) -> TaskRefs<'a> {
    TaskRefs { list, form: IdForm::Long }
}
