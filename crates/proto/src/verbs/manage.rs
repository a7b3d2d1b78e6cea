//! RQ.* commands on whole queues.
#![expect(clippy::unnecessary_wraps, reason = "the table needs the same signature for all commands")]

use super::args::{Arg, Opt, Options};
use super::error::UsageError;
use super::keys::pattern;
use super::options::{Given, Value, is, unknown_word};
use super::request::{Caller, Request};
use super::{BASE, CHANGE, Group, READ_SLOW, Role, Row};
use crate::command_encoder::CommandWords;
use sureq_core::command::{Command, View};
use sureq_core::settings::{BadSetting, Changes, SettingValue, SettingWords};

type Parsed<'a> = Result<Request<'a>, UsageError>;

/// The commands of this file, in the order of the table.
pub(super) const ROWS: &[Row] = &[PAUSE, RESUME, PURGE, CONFIG, QUEUES];

/// The default number of queues that RQ.QUEUES looks at.
const QUEUES_COUNT_DEFAULT: u64 = 100;

const PAUSE: Row = Row {
    name: "RQ.PAUSE",
    args: &[Arg::key()],
    flags: CHANGE,
    group: Group::Queue,
    summary: "Stops delivering tasks of a queue.",
    reply: "OK.",
    notes: "All other commands still work. A pause lasts until RQ.RESUME, over restarts, and also while the queue is empty.",
    example: "> RQ.PAUSE emails\nOK",
    parse: pause,
    encode: Some(encode_pause),
    ..BASE
};

fn pause<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Pause { queue: argv[1] }.into())
}

fn encode_pause(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Pause { queue } = *command else { return false };
    words.word(queue);
    true
}

const RESUME: Row = Row {
    name: "RQ.RESUME",
    args: &[Arg::key()],
    flags: CHANGE,
    group: Group::Queue,
    summary: "Resumes delivering tasks of a queue.",
    reply: "OK.",
    example: "> RQ.PAUSE emails\nOK\n> RQ.RESUME emails\nOK",
    parse: resume,
    encode: Some(encode_resume),
    ..BASE
};

fn resume<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Resume { queue: argv[1] }.into())
}

fn encode_resume(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Resume { queue } = *command else { return false };
    words.word(queue);
    true
}

const PURGE: Row = Row {
    name: "RQ.PURGE",
    args: &[Arg::key(), Arg::word(PURGED).optional()],
    flags: &["write"],
    group: Group::Queue,
    summary: "Removes all tasks of a state, or of all states but leased.",
    reply: "The number of tasks.",
    notes: "Leased tasks are never purged.",
    example: "> RQ.PUSH emails hello world\n1) \"1601155608777-1\"\n2) \"1601155608777-2\"\n> RQ.PURGE emails\n(integer) 2",
    parse: purge,
    encode: Some(encode_purge),
    ..BASE
};

const PURGED: &[&str] = &["READY", "DELAYED", "DEAD"];
/// The states that these words select.
const PURGED_VIEWS: [View; 3] = [View::Ready, View::Delayed, View::Dead];

fn purge<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    const LEASED: UsageError = UsageError::text(
        "ERR leased tasks are not purged: RQ.CANCEL asks their holders to stop, RQ.DELETE removes them",
    );
    let state = match argv[2..] {
        [] => None,
        [state] if is(state, "LEASED") || is(state, "PENDING") => return Err(LEASED),
        [state] => {
            let at = PURGED.iter().position(|name| is(state, name));
            Some(PURGED_VIEWS[at.ok_or_else(|| unknown_word(state, PURGED))?])
        }
        _ => return Err(UsageError::arity("rq.purge")),
    };
    Ok(Command::Purge { queue: argv[1], state }.into())
}

fn encode_purge(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Purge { queue, state } = *command else { return false };
    words.word(queue);
    if let Some(view) = state {
        let at = PURGED_VIEWS.iter().position(|purged| *purged == view);
        // The server refuses the word for leased tasks; with no word it would purge the others.
        words.word(at.map_or("PENDING", |at| PURGED[at]));
    }
    true
}

const CONFIG: Row = Row {
    name: "RQ.CONFIG",
    args: &[Arg::key(), Arg::block(&[Arg::text("option"), Arg::text("value")]).any()],
    flags: CHANGE,
    group: Group::Queue,
    summary: "Shows the settings of a queue, and changes them.",
    reply: "A map of all settings as they are now.",
    notes: "LEASE: the deadline of a pop that names none, in milliseconds. TRIES: tries before a task is \
            dead. BACKOFF: the first wait after a failure. TTL: the longest time that a task may wait; \
            EXPIRED: `delete` or `dead` after that. MAX-LENGTH, MAX-BYTES: limits of waiting tasks; \
            OVERFLOW: a push beyond is refused (`refuse`), or the oldest tasks of the lowest priority are \
            dropped (`drop-oldest`). MAX-LEASED: tasks that may be leased at once. DEAD-LETTER: the queue \
            that dying tasks move to. 0, or an empty name, clears a setting. A change does not affect \
            past events.",
    example: "> RQ.CONFIG emails TRIES 5 MAX-LEASED 10\n 1) \"lease\"\n 2) (integer) 0\n 3) \"tries\"\n\
              \x204) (integer) 5\n...",
    parse: config,
    encode: Some(encode_config),
    ..BASE
};

fn config<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let words = SettingWords::read(&argv[2..]).map_err(bad_setting)?;
    Ok(Command::Config { queue: argv[1], changes: Changes::Words(words) }.into())
}

fn bad_setting(bad: BadSetting<'_>) -> UsageError {
    UsageError::new(format!("ERR {bad}"))
}

fn encode_config(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Config { queue, changes } = *command else { return false };
    words.word(queue);
    for change in changes.iter() {
        let (name, value) = change.name_and_value();
        match value {
            SettingValue::Number(n) => words.word(name).number(n),
            SettingValue::Word(word) => words.word(name).word(word),
        };
    }
    true
}

const QUEUES: Row = Row {
    name: "RQ.QUEUES",
    args: &[Arg::options(&QUEUES_OPTIONS)],
    role: Some(Role::Read),
    flags: READ_SLOW,
    group: Group::Queue,
    summary: "Lists the queues that have tasks, with their counts.",
    reply: "The cursor of the next page, 0 if there is none, and an array of `[name, ready, delayed, leased, dead]`.",
    notes: "COUNT is the number of queues to look at, 100 by default.",
    example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.QUEUES\n1) \"0\"\n2) 1) 1) \"emails\"\n      \
              2) (integer) 1\n      3) (integer) 0\n      4) (integer) 0\n      5) (integer) 0",
    parse: queues,
    encode: Some(encode_queues),
    ..BASE
};

const QUEUES_OPTIONS: Options = Options::new(
    &[
        Opt::value("MATCH", &[Arg::pattern("glob")]),
        Opt::value("COUNT", &[Arg::number("n", 1..=u32::MAX as u64)]),
        Opt::value("CURSOR", &[Arg::number("c", 0..=u64::MAX)]),
    ],
    &[],
);
const QUEUES_MATCH: usize = QUEUES_OPTIONS.at("MATCH");
const QUEUES_COUNT: usize = QUEUES_OPTIONS.at("COUNT");
const QUEUES_CURSOR: usize = QUEUES_OPTIONS.at("CURSOR");

fn queues<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let given = Given::read(&QUEUES_OPTIONS, &argv[1..])?;
    let command = Command::Queues {
        pattern: given.text(QUEUES_MATCH).and_then(pattern),
        cursor: given.number(QUEUES_CURSOR).unwrap_or(0),
        count: given.number(QUEUES_COUNT).unwrap_or(QUEUES_COUNT_DEFAULT) as u32,
    };
    Ok(command.into())
}

fn encode_queues(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Queues { pattern, cursor, count } = *command else { return false };
    let mut given = Given::none(&QUEUES_OPTIONS);
    given.set(QUEUES_MATCH, pattern.map(Value::Text));
    given.set(QUEUES_COUNT, Some(Value::Number(count.into())));
    given.set(QUEUES_CURSOR, Some(Value::Number(cursor)));
    given.write(words);
    true
}
