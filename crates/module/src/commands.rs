//! Parses the words of a command, executes it on a queue, and writes the reply.

use std::ffi::{CStr, CString};
use std::sync::LazyLock;

use sureq_core::command::{Command, ConnId};
use sureq_core::queue::{Pushes, Queue};
use sureq_core::reply::{QueueRow, Replies, Reply, Span, Why};
use sureq_core::settings::Change;
use sureq_core::task::Holder;
use sureq_core::{Now, Refusal, limits};
use sureq_proto::resp::Pieces as _;
use sureq_proto::verbs::{self, Caller, Request, Row, SessionCommand, TABLE};
use sureq_proto::{ReplyForm, ReplyStyle, write_reply};
use sureq_slots::slot_of;

use crate::followers;
use crate::keyed::{Make, Steps, Untouched};
use crate::object::NUMBER;
use crate::payload::Payload;
use crate::pop::{Answered, PopRest, Popper};
use crate::process::{self, ids_behind};
use crate::redis::{Ctx, Str, Value};
use crate::sliced::{self, Work};
use crate::tick;
use crate::waiting;
use crate::workers;

/// Up to this many words are parsed without an allocation.
const FEW_WORDS: usize = 16;

/// Executes a command of a client.
pub(crate) fn execute(ctx: Ctx<'_>, words: &[Str<'_>], popper: Popper) -> Answered {
    let mut few: [&[u8]; FEW_WORDS] = [&[]; FEW_WORDS];
    if let Some(room) = few.get_mut(..words.len()) {
        for (room, word) in room.iter_mut().zip(words) {
            *room = word.bytes();
        }
        return understand(ctx, words, &few[..words.len()], popper);
    }
    let many: Vec<&[u8]> = words.iter().map(|word| word.bytes()).collect();
    understand(ctx, words, &many, popper)
}

fn understand(mut ctx: Ctx<'_>, words: &[Str<'_>], argv: &[&[u8]], popper: Popper) -> Answered {
    let parsed = verbs::parse(argv, Caller { conn: ConnId(ctx.client()) });
    let command = match parsed {
        Err(no) => {
            ctx.error(no.as_str());
            return Answered::Yes;
        }
        Ok(Request::Session(SessionCommand::Help(name))) => {
            verbs::help(&mut ctx, name);
            return Answered::Yes;
        }
        Ok(Request::Session(_)) => {
            ctx.error("ERR unknown command");
            return Answered::Yes;
        }
        Ok(Request::Home { command, .. }) => command,
    };
    process::with(|process| {
        let (now, event) = (process.clock.now(), event_of(argv[0]));
        let mut steps = Steps { ctx, process, now, is_followed: followers::are_possible(), event };
        let answered = process::with_replies(|out| run(&mut steps, &command, words, popper, out));
        if popper == Popper::Asking {
            waiting::refuse_suspects(&steps);
        }
        tick::arm(ctx, steps.process, now);
        answered
    })
}

/// Reports which words of a command are keys, for commands whose keys have no fixed position.
pub(crate) fn tell_keys(ctx: Ctx<'_>, words: &[Str<'_>]) {
    let argv: Vec<&[u8]> = words.iter().map(|word| word.bytes()).collect();
    if let Ok(Request::Home { command: Command::Pop(pop), .. }) =
        verbs::parse(&argv, Caller { conn: ConnId(0) })
    {
        (words.len() - pop.queues.len()..words.len()).for_each(|at| ctx.is_key(at));
    }
}

fn run(
    steps: &mut Steps<'_, '_>,
    command: &Command<'_>,
    words: &[Str<'_>],
    popper: Popper,
    out: &mut Replies<Payload>,
) -> Answered {
    let mut ctx = steps.ctx;
    let key = words.get(1).copied();
    let work = match command {
        Command::Pop(pop) => Some(Work::Pop(PopRest::new(pop, popper))),
        _ => match Work::of(steps, command, key) {
            Ok(work) => work,
            Err(refusal) => {
                answer(ctx, command, &Reply::Refused(refusal), out);
                return Answered::Yes;
            }
        },
    };
    if let Some(work) = work {
        return sliced::drive(steps, command, words, popper, work, out);
    }
    match decide(steps, command, key, out) {
        Ok(reply) => answer(ctx, command, &reply.unwrap_or_else(Reply::Refused), out),
        Err(untouched) => ctx.error(untouched.text()),
    }
    Answered::Yes
}

/// Writes a reply.
pub(crate) fn answer(mut ctx: Ctx<'_>, command: &Command<'_>, reply: &Reply, out: &Replies<Payload>) {
    write_reply(&mut ctx, &ReplyForm::of(command, ReplyStyle::Native), reply, out);
}

/// The most keys that one page of RQ.QUEUES looks at.
const PAGE_KEYS_MAX: u32 = limits::SLICE_QUEUES as u32;

type Decided = Result<Result<Reply, Refusal>, Untouched>;

fn decide(
    steps: &mut Steps<'_, '_>,
    command: &Command<'_>,
    key: Option<Str<'_>>,
    out: &mut Replies<Payload>,
) -> Decided {
    if let Err(refusal) = command.check() {
        return Ok(Err(refusal));
    }
    match (command, key) {
        (Command::Worker(worker), _) => workers::execute(steps, worker),
        (Command::Queues { pattern, cursor, count }, _) => {
            Ok(list(steps.ctx, *pattern, *cursor, *count, out))
        }
        (_, None) => Ok(Err(Refusal::OutOfRange { what: "a command without a key" })),
        (Command::Push { payloads, .. }, Some(key)) => push(steps, key, payloads, out),
        (Command::Add(add), Some(key)) => {
            let last = steps.process.marks.last_id;
            made(steps.on(key, Make::IfNeeded, |queue, rec, now| {
                let id = ids_behind(last.max(queue.last_id()), 1, now)?;
                if let Some((id, state)) = queue.named(add, now, rec) {
                    return Ok(Reply::Added { id, added: false, state });
                }
                queue.add(id, add, now, rec).map(|state| Reply::Added { id, added: true, state })
            }))
        }
        (Command::Inspect { .. } | Command::Info { .. } | Command::Explain { .. }, Some(key)) => {
            look(steps, command, key, out)
        }
        (Command::Config { changes, .. }, Some(key)) => {
            if changes.is_empty() {
                return look(steps, command, key, out);
            }
            if let Err(refusal) = check_letter(steps.ctx, key, changes.iter()) {
                return Ok(Err(refusal));
            }
            made(steps.on(key, Make::IfNeeded, |queue, rec, now| queue.execute(command, now, rec, out)))
        }
        (Command::Pause { .. }, Some(key)) => {
            made(steps.on(key, Make::IfNeeded, |queue, rec, now| queue.execute(command, now, rec, out)))
        }
        (_, Some(key)) => {
            let done = steps.on(key, Make::Never, |queue, rec, now| queue.execute(command, now, rec, out))?;
            Ok(done.unwrap_or_else(|| of_nothing(command, steps.now, out)))
        }
    }
}

/// The reply of a step on a queue that the step created if it was missing.
fn made(done: Result<Option<Result<Reply, Refusal>>, Untouched>) -> Decided {
    Ok(done?.unwrap_or(Err(Refusal::OutOfRange { what: "a queue that was not created" })))
}

/// A missing queue gives the same reply as an empty one.
fn of_nothing(command: &Command<'_>, now: Now, out: &mut Replies<Payload>) -> Result<Reply, Refusal> {
    let (mut nothing, mut usage) = (Queue::new(NUMBER), crate::object::Usage::default());
    nothing.execute(command, now, &mut crate::effects::Silent(&mut usage), out)
}

fn push(steps: &mut Steps<'_, '_>, key: Str<'_>, payloads: &[&[u8]], out: &mut Replies<Payload>) -> Decided {
    let last = steps.process.marks.last_id;
    made(steps.on(key, Make::IfNeeded, |queue, rec, now| {
        let first = ids_behind(last.max(queue.last_id()), payloads.len(), now)?;
        queue.push(Pushes { first, payloads }, now, rec)?;
        let start = out.ids.len();
        let ids = std::iter::successors(Some(first), |id| id.successor());
        out.ids.extend(ids.take(payloads.len()));
        Ok(Reply::Pushed(Span::new(start, out.ids.len())))
    }))
}

/// Read-only commands change nothing, not even due tasks, so that a replica can execute them too.
fn look(
    steps: &mut Steps<'_, '_>,
    command: &Command<'_>,
    key: Str<'_>,
    out: &mut Replies<Payload>,
) -> Decided {
    let ctx = steps.ctx;
    let mut open = ctx.open_to_read(key);
    let seen = match open.value() {
        Value::Queue(object) => object.queue.execute_read(command, steps.now, out),
        Value::Nothing => Queue::<Payload>::new(NUMBER).execute_read(command, steps.now, out),
        Value::Workers(_) | Value::Other => return Err(Untouched::WrongType),
    };
    drop(open);
    Ok(seen.map(|mut reply| {
        match &mut reply {
            Reply::Info(info) => info.workers = workers::count_on(ctx, key.bytes()),
            Reply::Explained(Some(explained)) => {
                if let Why::Leased { holder: Some(Holder::Worker(incarnation)), .. } = explained.why {
                    explained.worker = workers::name_of(ctx, incarnation);
                }
            }
            _ => {}
        }
        reply
    }))
}

/// In a cluster, dying tasks can only move to a key in the same slot.
fn check_letter<'a>(
    ctx: Ctx<'_>,
    key: Str<'_>,
    mut changes: impl Iterator<Item = Change<'a>>,
) -> Result<(), Refusal> {
    let is_far = |change| match change {
        Change::DeadLetter(queue) => !queue.is_empty() && slot_of(queue) != slot_of(key.bytes()),
        _ => false,
    };
    if ctx.flags().is_cluster() && changes.any(is_far) {
        return Err(Refusal::OutOfRange { what: "DEAD-LETTER to a queue of another slot" });
    }
    Ok(())
}

/// A page of the queues that have tasks, in the order of Redis' SCAN. It looks at few keys, whatever count the client
/// asks for, because no other client is served meanwhile; the cursor leads to the rest.
fn list(
    ctx: Ctx<'_>,
    pattern: Option<&[u8]>,
    cursor: u64,
    count: u32,
    out: &mut Replies<Payload>,
) -> Result<Reply, Refusal> {
    let start = out.queues.len();
    let Some((cursor, names)) = ctx.scan(cursor, pattern, count.clamp(1, PAGE_KEYS_MAX)) else {
        return Err(Refusal::Unavailable { why: "the server does not list its keys here".into() });
    };
    for name in names {
        let key = ctx.string(&name);
        if let Value::Queue(object) = ctx.open_to_read(key.as_str()).value()
            && !object.queue.is_empty()
        {
            out.queues.push(QueueRow { name: name.into(), counts: object.queue.counts() });
        }
    }
    Ok(Reply::Queues { cursor, rows: Span::new(start, out.queues.len()) })
}

/// The keyspace events of the commands, in the order of the table. Each has the name of its command.
static EVENTS: LazyLock<Vec<CString>> = LazyLock::new(|| {
    let event = |row: &Row| CString::new(row.name.to_ascii_lowercase()).expect("a name has no NUL");
    TABLE.iter().map(event).collect()
});

/// The keyspace event of the command with this name, which must be in the table.
pub(crate) fn event_of(name: &[u8]) -> &'static CStr {
    verbs::position(name).map_or(c"", |at| &EVENTS[at])
}
