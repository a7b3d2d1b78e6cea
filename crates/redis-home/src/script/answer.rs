//! Turns the answer of a script into a reply.

use redis::Value;
use sureq_core::broker::glob_matches;
use sureq_core::command::ConnId;
use sureq_core::reply::{Explanation, HeldUp, Info, More, Outcome, QueueRow, Span, TaskView, Why, WorkerRow};
use sureq_core::settings::{Change, Expired, Overflow, Settings};
use sureq_core::task::{Holder, StateKind, Tries};
use sureq_core::{LogTime, Receipt, Refusal, Replies, Reply, TaskId};
use sureq_home_api::Payload;

use crate::script::call::AnswerForm;
use crate::script::slices::only_tasks;

/// An answer that no script of sureq returns: the keys under this prefix belong to another program.
#[derive(Debug)]
pub struct UnexpectedAnswer;

impl From<UnexpectedAnswer> for Refusal {
    fn from(_: UnexpectedAnswer) -> Self {
        let why = "unexpected answer from Redis: are there keys of another program under this prefix?";
        Self::Unknown { why: why.into() }
    }
}

type Read<T> = Result<T, UnexpectedAnswer>;

/// The format of ids in answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// `milliseconds-sequence`.
    Numbers,
    /// Any bytes.
    Foreign,
}

/// Appends the reply to one command.
pub(crate) fn read(ids: Ids, form: &AnswerForm, answer: Value, replies: &mut Replies<Payload>) {
    let reply = match refusal(&answer) {
        Some(no) => Ok(Reply::Refused(no)),
        None => read_reply(ids, form, answer, replies),
    };
    replies.list.push(reply.unwrap_or_else(|unexpected| Reply::Refused(unexpected.into())));
}

/// The refusal in an answer, if it is one.
pub(crate) fn refusal(answer: &Value) -> Option<Refusal> {
    let Value::Array(words) = answer else { return None };
    let (code, key) = match &words[..] {
        [Value::BulkString(mark), Value::BulkString(code)] if mark == b"!" => (code, &[][..]),
        [Value::BulkString(mark), Value::BulkString(code), Value::BulkString(key)] if mark == b"!" => {
            (code, &key[..])
        }
        _ => return None,
    };
    Some(match &code[..] {
        b"QUEUEFULL" => Refusal::QueueFull,
        b"GONE" => Refusal::WorkerGone,
        b"REPLACED" => Refusal::WorkerReplaced,
        // The script gives the reason. It may contain parts of keys, which are any bytes.
        b"UNAVAILABLE" => Refusal::Unavailable { why: key.escape_ascii().to_string().into() },
        b"WRONGTYPE" => wrong_type(&key.escape_ascii().to_string()),
        _ => UnexpectedAnswer.into(),
    })
}

/// The refusal for a key with a value of another type. The wording is that of Redis, and names the key.
fn wrong_type(key: &str) -> Refusal {
    let words = format!("Operation against a key holding the wrong kind of value: {key}");
    Refusal::WrongType { words: words.into() }
}

fn read_reply(ids: Ids, form: &AnswerForm, answer: Value, replies: &mut Replies<Payload>) -> Read<Reply> {
    Ok(match form {
        AnswerForm::Pushed if ids == Ids::Foreign => {
            let start = replies.foreign_ids.len();
            push_foreign_ids(answer, replies)?;
            Reply::PushedForeign(Span::new(start, replies.foreign_ids.len()))
        }
        AnswerForm::Pushed => {
            let start = replies.ids.len();
            for id in list(answer)? {
                replies.ids.push(task_id(&bytes(id)?)?);
            }
            Reply::Pushed(Span::new(start, replies.ids.len()))
        }
        AnswerForm::Added => {
            let [id, added, state] = fields(answer)?;
            let (added, state) = (number(added)? == 1, state_of(&bytes(state)?)?);
            match ids {
                Ids::Numbers => Reply::Added { id: task_id(&bytes(id)?)?, added, state },
                Ids::Foreign => {
                    replies.foreign_ids.push(maybe(id)?.map(Into::into));
                    Reply::AddedForeign { at: replies.foreign_ids.len() as u32 - 1, added, state }
                }
            }
        }
        AnswerForm::Tasks => Reply::Tasks(tasks(ids, answer, replies)?),
        AnswerForm::Inspected => Reply::Inspected(tasks(ids, only_tasks(answer), replies)?),
        AnswerForm::Acked => {
            let start = replies.indexes.len();
            for index in list(answer)? {
                replies.indexes.push(number(index)? as u32);
            }
            Reply::Acked(Span::new(start, replies.indexes.len()))
        }
        AnswerForm::Outcome => Reply::Outcome(match &bytes(answer)?[..] {
            b"done" => Outcome::Done,
            b"cancelled" => Outcome::Cancelled,
            b"stale" => Outcome::Stale,
            _ => return Err(UnexpectedAnswer),
        }),
        AnswerForm::Info => Reply::Info(Box::new(info(answer)?)),
        AnswerForm::Lengths => {
            let [ready, leased] = fields(answer)?;
            let info = Info {
                ready: number(ready)?,
                leased: number(leased)?,
                lengths_only: true,
                ..Info::default()
            };
            Reply::Info(Box::new(info))
        }
        AnswerForm::Count | AnswerForm::Counts(_) => Reply::Count(number(answer)?),
        AnswerForm::Done => Reply::Ok,
        AnswerForm::Settings => Reply::Settings(Box::new(settings(answer)?)),
        AnswerForm::Queues { pattern } => queues(answer, pattern.as_deref(), replies)?,
        AnswerForm::Explained => Reply::Explained(explanation(answer)?.map(Box::new)),
        AnswerForm::Started | AnswerForm::StartedInSteps => Reply::Started(number(answer)?),
        AnswerForm::Receipts if ids == Ids::Foreign => {
            let start = replies.foreign_ids.len();
            push_foreign_ids(answer, replies)?;
            Reply::ReceiptsForeign(Span::new(start, replies.foreign_ids.len()))
        }
        AnswerForm::Receipts | AnswerForm::ReceiptsInSteps => {
            let start = replies.receipts.len();
            for receipt in list(answer)? {
                replies.receipts.push(Receipt::parse(&bytes(receipt)?).ok_or(UnexpectedAnswer)?);
            }
            Reply::Receipts(Span::new(start, replies.receipts.len()))
        }
        AnswerForm::Workers => {
            let start = replies.workers.len();
            for worker in list(answer)? {
                let [name, incarnation, ttl, leased] = fields(worker)?;
                replies.workers.push(WorkerRow {
                    name: bytes(name)?.into(),
                    incarnation: number(incarnation)?,
                    ttl_ms: number(ttl)?,
                    leased: number(leased)?,
                });
            }
            Reply::Workers(Span::new(start, replies.workers.len()))
        }
    })
}

/// Adds foreign ids. There is none in layouts where a task gets its id at delivery.
fn push_foreign_ids(answer: Value, replies: &mut Replies<Payload>) -> Read<()> {
    for id in list(answer)? {
        replies.foreign_ids.push(maybe(id)?.map(Into::into));
    }
    Ok(())
}

fn tasks(ids: Ids, answer: Value, replies: &mut Replies<Payload>) -> Read<Span> {
    let start = replies.tasks.len();
    for task in list(answer)? {
        let [queue, id, body, deliveries, incarnation, at, elapsed, more] = fields(task)?;
        let (id, foreign_id) = match ids {
            Ids::Numbers => (task_id(&bytes(id)?)?, None),
            Ids::Foreign => (TaskId::NONE, maybe(id)?.map(Into::into)),
        };
        replies.tasks.push(TaskView {
            queue: number(queue)? as u32,
            id,
            body: bytes(body)?.into(),
            deliveries: number(deliveries)? as u32,
            incarnation: number(incarnation)?,
            at: LogTime(number(at)?),
            elapsed_ms: number(elapsed)?,
            more: if more == Value::Nil { None } else { Some(Box::new(more_of(more)?)) },
            foreign_id,
        });
    }
    Ok(Span::new(start, replies.tasks.len()))
}

fn more_of(more: Value) -> Read<More> {
    let [name, failed, lapsed, lost, tries_max, pushed, reason] = fields(more)?;
    Ok(More {
        name: maybe(name)?.map(Into::into),
        tries: tries(failed, lapsed, lost)?,
        tries_max: number(tries_max)? as u32,
        pushed: LogTime(number(pushed)?),
        reason: maybe(reason)?.map(Into::into),
    })
}

fn tries(failed: Value, lapsed: Value, lost: Value) -> Read<Tries> {
    Ok(Tries { failed: number(failed)? as u32, lapsed: number(lapsed)? as u32, lost: number(lost)? as u32 })
}

fn info(answer: Value) -> Read<Info> {
    let [
        ready,
        delayed,
        leased,
        dead,
        bytes_waiting,
        oldest,
        paused,
        pushed,
        finished,
        pushed_late,
        finished_late,
        workers,
        all,
    ] = fields(answer)?;
    let paused = bytes(paused)?;
    Ok(Info {
        ready: number(ready)?,
        delayed: number(delayed)?,
        leased: number(leased)?,
        dead: number(dead)?,
        waiting_bytes: number(bytes_waiting)?,
        oldest_ms: number(oldest)?,
        paused: if paused.is_empty() { None } else { Some(LogTime(decimal(&paused)?)) },
        pushed: number(pushed)?,
        finished: number(finished)?,
        pushed_of_late: number(pushed_late)?,
        finished_of_late: number(finished_late)?,
        workers: number(workers)?,
        settings: settings(all)?,
        lengths_only: false,
    })
}

fn settings(answer: Value) -> Read<Settings> {
    let values: [Value; 10] = fields(answer)?;
    let mut settings = Settings::default();
    for (at, value) in values.into_iter().enumerate() {
        let word = bytes(value)?;
        if word.is_empty() {
            continue;
        }
        settings.change(&match at {
            0 => Change::LeaseMs(decimal(&word)?),
            1 => Change::Tries(decimal(&word)? as u32),
            2 => Change::BackoffMs(decimal(&word)?),
            3 => Change::TtlMs(decimal(&word)?),
            4 => Change::MaxLength(decimal(&word)?),
            5 => Change::MaxBytes(decimal(&word)?),
            6 => Change::MaxLeased(decimal(&word)?),
            7 => Change::Expired(Expired::Dead),
            8 => Change::Overflow(Overflow::DropOldest),
            _ => Change::DeadLetter(&word),
        });
    }
    Ok(settings)
}

fn queues(answer: Value, pattern: Option<&[u8]>, replies: &mut Replies<Payload>) -> Read<Reply> {
    let start = replies.queues.len();
    let mut rows = list(answer)?.into_iter();
    let cursor = decimal(&bytes(rows.next().ok_or(UnexpectedAnswer)?)?)?;
    for row in rows {
        let [name, ready, delayed, leased, dead] = fields(row)?;
        let name = bytes(name)?;
        if pattern.is_none_or(|pattern| glob_matches(pattern, &name)) {
            let counts = [number(ready)?, number(delayed)?, number(leased)?, number(dead)?];
            replies.queues.push(QueueRow { name: name.into(), counts });
        }
    }
    Ok(Reply::Queues { cursor, rows: Span::new(start, replies.queues.len()) })
}

fn explanation(answer: Value) -> Read<Option<Explanation>> {
    if answer == Value::Nil {
        return Ok(None);
    }
    let [id, state, deliveries, failed, lapsed, lost, tries_max, reason, held, held_by, most, a, b, c, d] =
        fields(answer)?;
    let (held_by, most) = (number(held_by)?, number(most)?);
    let held_up = match &bytes(held)?[..] {
        b"paused" => Some(HeldUp::Paused { since: LogTime(held_by) }),
        b"leased" => Some(HeldUp::AllLeased { leased: held_by, max: most }),
        _ => None,
    };
    let mut worker = None;
    let why = match state_of(&bytes(state)?)? {
        StateKind::Ready => Why::Ready { ahead: number(a)?, held_up },
        StateKind::Delayed => Why::Delayed { until: number(a)?, in_ms: number(b)?, held_up },
        StateKind::Leased => {
            let until = if b == Value::Nil { None } else { Some(LogTime(number(b)?)) };
            let holder = match maybe(c)? {
                None => None,
                Some(text) => {
                    let (holder, name) = holder(&text)?;
                    worker = name;
                    Some(holder)
                }
            };
            Why::Leased { since: LogTime(number(a)?), until, holder, cancelled: number(d)? == 1 }
        }
        StateKind::Dead => Why::Dead { at: LogTime(number(a)?) },
    };
    Ok(Some(Explanation {
        id: task_id(&bytes(id)?)?,
        deliveries: number(deliveries)? as u32,
        tries: tries(failed, lapsed, lost)?,
        tries_max: number(tries_max)? as u32,
        reason: maybe(reason)?.map(Into::into),
        worker,
        why,
    }))
}

/// The holder of a task, and its name if it is a worker: `w:name#incarnation` or `c:home:number`.
fn holder(text: &[u8]) -> Read<(Holder, Option<Box<[u8]>>)> {
    let last = |mark: u8| text.iter().rposition(|&c| c == mark).ok_or(UnexpectedAnswer);
    match text {
        [b'w', b':', ..] => {
            let at = last(b'#')?;
            Ok((Holder::Worker(decimal(&text[at + 1..])?), Some(text[2..at].into())))
        }
        [b'c', b':', ..] => Ok((Holder::Conn(ConnId(decimal(&text[last(b':')? + 1..])?)), None)),
        _ => Err(UnexpectedAnswer),
    }
}

fn state_of(letter: &[u8]) -> Read<StateKind> {
    Ok(match letter {
        b"R" => StateKind::Ready,
        b"D" | b"A" => StateKind::Delayed,
        b"L" => StateKind::Leased,
        b"X" => StateKind::Dead,
        _ => return Err(UnexpectedAnswer),
    })
}

/// Parses an id as it is stored in Redis.
pub(crate) fn task_id(text: &[u8]) -> Read<TaskId> {
    let dash = text.iter().position(|&c| c == b'-').ok_or(UnexpectedAnswer)?;
    let seq = text[dash + 1..].iter().position(|&c| c != b'0').map_or(&[][..], |at| &text[dash + 1 + at..]);
    TaskId::new(decimal(&text[..dash])?, decimal(seq)?).ok_or(UnexpectedAnswer)
}

fn decimal(text: &[u8]) -> Read<u64> {
    sureq_core::id::decimal(text).ok_or(UnexpectedAnswer)
}

/// The elements of a list.
pub fn list(value: Value) -> Read<Vec<Value>> {
    match value {
        Value::Array(list) => Ok(list),
        _ => Err(UnexpectedAnswer),
    }
}

/// The elements of a list of exactly this length.
pub fn fields<const N: usize>(value: Value) -> Read<[Value; N]> {
    list(value)?.try_into().map_err(|_| UnexpectedAnswer)
}

pub fn bytes(value: Value) -> Read<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        _ => Err(UnexpectedAnswer),
    }
}

fn maybe(value: Value) -> Read<Option<Vec<u8>>> {
    if value == Value::Nil { Ok(None) } else { bytes(value).map(Some) }
}

/// A number, also if it is written as a string.
pub fn number(value: Value) -> Read<u64> {
    match value {
        Value::Int(n) => u64::try_from(n).map_err(|_| UnexpectedAnswer),
        Value::BulkString(text) => decimal(&text),
        _ => Err(UnexpectedAnswer),
    }
}

/// Whether a pop must be sent again, since it removed as many tasks as one call may before it found one.
pub fn is_again(answer: &Value) -> bool {
    matches!(answer, Value::BulkString(word) if word == b"again")
}
