//! RQ.WORKER: the life cycle of workers.
#![expect(clippy::unnecessary_wraps, reason = "the table needs the same signature for all commands")]

use super::args::{Arg, Opt, Options};
use super::error::UsageError;
use super::options::{Given, Value};
use super::request::{Caller, Request, SessionCommand};
use super::{CHANGE, CONTAINER, Group, Role, Row, Sub};
use crate::command_encoder::CommandWords;
use crate::decimal::read_u64;
use sureq_core::command::{Command, Worker, WorkerRef};
use sureq_core::limits::WORKER_TTL_MS_DEFAULT;

type Parsed<'a> = Result<Request<'a>, UsageError>;

/// The commands of this file, in the order of the table.
pub(super) const ROWS: &[Row] = &[WORKER];

const WORKER: Row = Row {
    name: "RQ.WORKER",
    args: CONTAINER,
    role: Some(Role::Consume),
    flags: CHANGE,
    group: Group::Queue,
    summary: "Registers workers, whose tasks are requeued when their heartbeat stops.",
    reply: "START: `name#n`, the worker's incarnation, to be used in all further commands. BEAT: the \
            receipts of its cancelled tasks, repeated until their lease ends, and of its lapsed leases, \
            once. WORK: OK. REST, STOP, FAIL: the number of requeued tasks. LIST: `[name#n, time to live, \
            tasks]` of each live worker. An incarnation that is no longer alive gets a GONE error, or \
            GONE replaced if another worker of its name is alive.",
    notes: "A worker without a heartbeat for its time to live (3000 ms by default) is lost: all its \
            tasks, and only its own, go back to the front of their queues, in order. Only START and BEAT \
            renew the time. START under the name of a live worker makes that one lost. WORK and REST \
            record which queues it works on, for information; RQ.POP does not need them. STOP and REST \
            cost the tasks no try.",
    example: "> RQ.WORKER START mailer TTL 10000\n\"mailer#210157654325690369\"\n> RQ.PUSH emails hello\n\
              1) \"1601155608777-1\"\n> RQ.POP WORKER mailer#210157654325690369 emails\n1) 1) \"emails\"\n   \
              2) \"1601155608777-1\"\n   3) \"hello\"\n   4) \"1601155608777-1@1.1601155600000\"\n   5) (integer) 1\n\
              > RQ.WORKER FAIL mailer\n(integer) 1",
    subs: SUBCOMMANDS,
    parse: help,
    encode: Some(encode),
};

const SUBCOMMANDS: &[Sub] = &[
    Sub {
        name: "START",
        args: &[Arg::text("name"), Arg::options(&START_OPTIONS)],
        summary: "Registers a worker.",
        parse: start,
    },
    Sub { name: "BEAT", args: &[Arg::worker("name#n")], summary: "Sends a heartbeat.", parse: beat },
    Sub {
        name: "WORK",
        args: &[Arg::worker("name#n"), Arg::key()],
        summary: "Records that it works on a queue.",
        parse: work,
    },
    Sub {
        name: "REST",
        args: &[Arg::worker("name#n"), Arg::key()],
        summary: "Records that it stopped working on a queue, and requeues its tasks of that queue.",
        parse: rest,
    },
    Sub {
        name: "STOP",
        args: &[Arg::worker("name#n")],
        summary: "Ends the worker, and requeues its tasks.",
        parse: stop,
    },
    Sub { name: "FAIL", args: &[Arg::text("name")], summary: "Declares a worker lost.", parse: fail },
    Sub { name: "LIST", args: &[], summary: "Lists live workers.", parse: list },
    Sub { name: "HELP", args: &[], summary: "This text.", parse: help },
];

const START_OPTIONS: Options = Options::new(&[Opt::value("TTL", &[Arg::lasting("ms")])], &[]);
const START_TTL: usize = START_OPTIONS.at("TTL");

fn start<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let given = Given::read(&START_OPTIONS, &argv[3..])?;
    if argv[2].is_empty() {
        return Err(UsageError::text("ERR a worker needs a name"));
    }
    let ttl_ms = given.number(START_TTL).unwrap_or(WORKER_TTL_MS_DEFAULT);
    Ok(Command::Worker(Worker::Start { name: argv[2], ttl_ms }).into())
}

fn beat<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Worker(Worker::Beat(read(argv[2])?)).into())
}

fn work<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Worker(Worker::Work(read(argv[2])?, argv[3])).into())
}

fn rest<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Worker(Worker::Rest(read(argv[2])?, argv[3])).into())
}

fn stop<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Worker(Worker::Stop(read(argv[2])?)).into())
}

fn fail<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Worker(Worker::Fail { name: argv[2] }).into())
}

fn list<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Command::Worker(Worker::List).into())
}

fn help<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    Ok(Request::Session(SessionCommand::Help("RQ.WORKER")))
}

fn encode(command: &Command<'_>, words: &mut CommandWords) -> bool {
    let Command::Worker(worker) = *command else { return false };
    match worker {
        Worker::Start { name, ttl_ms } => {
            let mut given = Given::none(&START_OPTIONS);
            given.set(START_TTL, Some(Value::Number(ttl_ms)));
            given.write(words.word("START").word(name));
        }
        Worker::Beat(worker) => _ = words.word("BEAT").worker(worker),
        Worker::Work(worker, queue) => _ = words.word("WORK").worker(worker).word(queue),
        Worker::Rest(worker, queue) => _ = words.word("REST").worker(worker).word(queue),
        Worker::Stop(worker) => _ = words.word("STOP").worker(worker),
        Worker::Fail { name } => _ = words.word("FAIL").word(name),
        Worker::List => _ = words.word("LIST"),
    }
    true
}

/// Reads `w#n`. The name may contain a `#` itself.
pub(crate) fn read(text: &[u8]) -> Result<WorkerRef<'_>, UsageError> {
    const MALFORMED: UsageError =
        UsageError::text("ERR malformed worker: expected <name>#<n> as RQ.WORKER START returns it");
    let hash = text.iter().rposition(|&c| c == b'#').ok_or(MALFORMED)?;
    let incarnation = read_u64(&text[hash + 1..]).ok_or(MALFORMED)?;
    Ok(WorkerRef { name: &text[..hash], incarnation })
}
