//! Decodes the replies of RQ.*, for clients. The inverse of [`crate::encode_reply`], for commands that
//! [`crate::encode_command`] encoded.
//!
//! A reply is read by its [`ReplyForm`]. Fields of a task that RESP does not transmit (the delivery of a plain pop,
//! the age of a waiting task) are zero.

use std::ops::Range;

use crate::decimal::read_u64;
use crate::reply_encoder::state_name;
use crate::reply_form::{PopFields, ReplyForm, Words};
use crate::resp::{BadReply, Piece, PieceReader};
use sureq_core::command::{ConnId, View};
use sureq_core::id::{Receipt, TaskId};
use sureq_core::reply::{
    Explanation, HeldUp, Info, More, Outcome, QueueRow, Refusal, Replies, Reply, Span, TaskView, Why,
    WorkerRow,
};
use sureq_core::settings::{SettingWords, Settings};
use sureq_core::task::{Holder, StateKind, Tries};
use sureq_core::time::LogTime;

/// Decodes one whole reply and appends it to `replies`. `cut` makes a payload from a range of `bytes`.
pub fn decode_reply<B>(
    form: &ReplyForm<'_>,
    bytes: &[u8],
    cut: impl FnMut(Range<usize>) -> B,
    replies: &mut Replies<B>,
) -> Result<(), BadReply> {
    let mut decoder = Decoder { pieces: PieceReader::new(bytes), cut, replies };
    let reply = decoder.reply(form)?;
    replies.list.push(reply);
    Ok(())
}

/// The refusal that an error reply stands for.
pub fn decode_refusal(error: &[u8]) -> Refusal {
    let text = String::from_utf8_lossy(error);
    let (code, words) = text.split_once(' ').unwrap_or((&text, ""));
    let why = |head: &str| words.strip_prefix(head).unwrap_or(words).into();
    match code {
        "QUEUEFULL" => Refusal::QueueFull,
        "GONE" if words.starts_with("replaced") => Refusal::WorkerReplaced,
        "GONE" => Refusal::WorkerGone,
        "NOSPACE" => Refusal::NoSpace,
        "OOM" => Refusal::OutOfMemory,
        "POISONED" if words == Refusal::Poisoned.to_string() => Refusal::Poisoned,
        "POISONED" => Refusal::QueuePoisoned { why: words.into() },
        "CLOSED" => Refusal::Closed,
        "DAMAGED" => damaged(words),
        "NOTTHERE" => not_there(words),
        "UNAVAILABLE" => Refusal::Unavailable { why: why("nothing was done: ") },
        "UNKNOWN" => Refusal::Unknown { why: why("outcome unknown: ") },
        "ERR" if words == Refusal::MalformedId.to_string() => Refusal::MalformedId,
        "ERR" if words == Refusal::NoMoreIds.to_string() => Refusal::NoMoreIds,
        "ERR" => Refusal::Foreign { message: words.into() },
        "WRONGTYPE" => Refusal::WrongType { words: words.into() },
        // Not `Unavailable`: a retry gets the same reply until an administrator changes the user.
        "NOPERM" => Refusal::Foreign { message: text.into() },
        // Not authenticated, or not ready yet: the command was not executed.
        _ => Refusal::Unavailable { why: text.into() },
    }
}

fn not_there(words: &str) -> Refusal {
    match words.split_once(" has no ") {
        Some((place, what)) => {
            Refusal::NotThere { what: what.to_owned().into(), place: place.to_owned().into() }
        }
        None => Refusal::Foreign { message: words.into() },
    }
}

fn damaged(words: &str) -> Refusal {
    let named = words.strip_prefix("the payload of task ").and_then(|rest| {
        let (id, why) = rest.split_once(" cannot be read: ")?;
        Some(Refusal::Damaged { id: TaskId::parse(id.as_bytes())?, why: why.into() })
    });
    named.unwrap_or_else(|| Refusal::Foreign { message: words.into() })
}

/// The input of the decoder, and its output.
struct Decoder<'r, 'b, B, C> {
    pieces: PieceReader<'b>,
    cut: C,
    replies: &'r mut Replies<B>,
}

const ODD: BadReply = BadReply::Shape;

impl<'b, B, C: FnMut(Range<usize>) -> B> Decoder<'_, 'b, B, C> {
    fn reply(&mut self, form: &ReplyForm<'_>) -> Result<Reply, BadReply> {
        let first = self.pieces.take()?;
        Ok(match (first, form) {
            (Piece::Error(error), _) => Reply::Refused(decode_refusal(error)),
            (Piece::Null, ReplyForm::Popped { .. }) => Reply::TimedOut,
            (Piece::Null, ReplyForm::Explained) => Reply::Explained(None),
            (Piece::Integer(1), ReplyForm::Outcome) => Reply::Outcome(Outcome::Done),
            (Piece::Integer(0), ReplyForm::Outcome) => Reply::Outcome(Outcome::Stale),
            (Piece::Simple(b"CANCELLED"), ReplyForm::Outcome) => Reply::Outcome(Outcome::Cancelled),
            (Piece::Integer(n), ReplyForm::Done) => Reply::Count(u64::try_from(n).map_err(|_| ODD)?),
            (Piece::Simple(b"OK"), ReplyForm::Done) => Reply::Ok,
            (Piece::Bulk(worker), ReplyForm::Started(_)) => Reply::Started(split_worker(worker)?.1),
            (Piece::Array(n), ReplyForm::Ids) => self.ids(n)?,
            (Piece::Array(3), ReplyForm::Added) => self.added()?,
            (Piece::Array(n), ReplyForm::Popped { queues, fields }) => {
                let mut last = None;
                Reply::Tasks(self.tasks(n, |decoder| decoder.popped(queues, *fields, &mut last))?)
            }
            (Piece::Array(n), ReplyForm::Recovered) => {
                Reply::Tasks(self.tasks(n, |decoder| decoder.inspected(View::Ready))?)
            }
            (Piece::Array(n), ReplyForm::Inspected(view)) => {
                Reply::Inspected(self.tasks(n, |decoder| decoder.inspected(*view))?)
            }
            (Piece::Array(n), ReplyForm::Acked(tasks)) => Reply::Acked(self.acked(n, tasks)?),
            (Piece::Array(n), ReplyForm::Receipts) => self.receipts(n)?,
            (Piece::Array(n), ReplyForm::Workers) => Reply::Workers(self.workers(n)?),
            (Piece::Array(2), ReplyForm::Queues) => self.queues()?,
            (
                Piece::Array(_) | Piece::Map(_),
                ReplyForm::Info | ReplyForm::Settings | ReplyForm::Explained,
            ) => {
                let fields = self.fields(first)?;
                match form {
                    ReplyForm::Info => Reply::Info(Box::new(info(&fields)?)),
                    ReplyForm::Settings => Reply::Settings(Box::new(settings(&fields)?)),
                    _ => Reply::Explained(Some(Box::new(explanation(&fields)?))),
                }
            }
            _ => return Err(ODD),
        })
    }

    fn bulk(&mut self) -> Result<&'b [u8], BadReply> {
        match self.pieces.take()? {
            Piece::Bulk(bytes) => Ok(bytes),
            _ => Err(ODD),
        }
    }

    fn number(&mut self) -> Result<u64, BadReply> {
        match self.pieces.take()? {
            Piece::Integer(n) => u64::try_from(n).map_err(|_| ODD),
            _ => Err(ODD),
        }
    }

    fn small(&mut self) -> Result<u32, BadReply> {
        u32::try_from(self.number()?).map_err(|_| ODD)
    }

    fn optional(&mut self) -> Result<Option<Box<[u8]>>, BadReply> {
        match self.pieces.take()? {
            Piece::Bulk(bytes) => Ok(Some(bytes.into())),
            Piece::Null => Ok(None),
            _ => Err(ODD),
        }
    }

    fn array(&mut self, len: usize) -> Result<(), BadReply> {
        if self.pieces.take()? == Piece::Array(len) { Ok(()) } else { Err(ODD) }
    }

    fn body(&mut self) -> Result<B, BadReply> {
        let len = self.bulk()?.len();
        let end = self.pieces.at() - b"\r\n".len();
        Ok((self.cut)(end - len..end))
    }

    fn ids(&mut self, n: usize) -> Result<Reply, BadReply> {
        let (start, from) = (self.replies.ids.len(), self.pieces.clone());
        for _ in 0..n {
            let Some(id) = self.optional()?.and_then(|id| TaskId::parse(&id)) else {
                self.replies.ids.truncate(start);
                self.pieces = from;
                return Ok(Reply::PushedForeign(self.foreign_ids(n)?));
            };
            self.replies.ids.push(id);
        }
        Ok(Reply::Pushed(Span::new(start, self.replies.ids.len())))
    }

    /// Task ids in the home's own format.
    fn foreign_ids(&mut self, n: usize) -> Result<Span, BadReply> {
        let start = self.replies.foreign_ids.len();
        for _ in 0..n {
            let id = self.optional()?;
            self.replies.foreign_ids.push(id);
        }
        Ok(Span::new(start, self.replies.foreign_ids.len()))
    }

    fn added(&mut self) -> Result<Reply, BadReply> {
        let id_text = self.optional()?;
        let added = match self.number()? {
            n @ (0 | 1) => n == 1,
            _ => return Err(ODD),
        };
        let state = state(self.bulk()?)?;
        if let Some(id) = id_text.as_deref().and_then(TaskId::parse) {
            return Ok(Reply::Added { id, added, state });
        }
        let at = self.replies.foreign_ids.len() as u32;
        self.replies.foreign_ids.push(id_text);
        Ok(Reply::AddedForeign { at, added, state })
    }

    fn tasks(
        &mut self,
        n: usize,
        mut task: impl FnMut(&mut Self) -> Result<TaskView<B>, BadReply>,
    ) -> Result<Span, BadReply> {
        let start = self.replies.tasks.len();
        for _ in 0..n {
            let task = task(self)?;
            self.replies.tasks.push(task);
        }
        Ok(Span::new(start, self.replies.tasks.len()))
    }

    /// The id and the payload with which every task begins.
    fn task(&mut self) -> Result<TaskView<B>, BadReply> {
        let id_text = self.optional()?;
        let id = id_text.as_deref().and_then(TaskId::parse);
        Ok(TaskView {
            queue: 0,
            id: id.unwrap_or_default(),
            body: self.body()?,
            deliveries: 0,
            incarnation: 0,
            at: LogTime(0),
            elapsed_ms: 0,
            more: None,
            foreign_id: id_text.filter(|_| id.is_none()),
        })
    }

    /// `last` is the queue of the task before, which is mostly that of this task too.
    fn popped(
        &mut self,
        queues: &Words<'_>,
        fields: PopFields,
        last: &mut Option<usize>,
    ) -> Result<TaskView<B>, BadReply> {
        self.array(fields.count())?;
        let queue = self.bulk()?;
        let same = last.filter(|&last| queues.get(last) == queue);
        let queue = same.or_else(|| queues.iter().position(|name| name == queue)).ok_or(ODD)?;
        *last = Some(queue);
        let mut task = TaskView { queue: queue as u32, ..self.task()? };
        if fields.receipt {
            let receipt = self.bulk()?;
            task.deliveries = self.small()?;
            if task.foreign_id.is_none() {
                task.incarnation = Receipt::parse(receipt).ok_or(ODD)?.incarnation;
            }
        }
        if fields.meta {
            task.more = Some(Box::new(self.meta()?));
        }
        Ok(task)
    }

    fn meta(&mut self) -> Result<More, BadReply> {
        let map = self.pieces.take()?;
        let fields = self.fields(map)?;
        Ok(More {
            name: fields.optional("name")?,
            tries: fields.tries()?,
            tries_max: fields.small("tries_max")?,
            pushed: LogTime(fields.number("pushed_at")?),
            reason: fields.optional("reason")?,
        })
    }

    fn inspected(&mut self, view: View) -> Result<TaskView<B>, BadReply> {
        self.array(crate::reply_encoder::inspected_fields(view))?;
        let mut task = self.task()?;
        match view {
            View::Ready => {}
            View::Delayed => task.at = LogTime(self.number()?),
            View::Leased => {
                (task.at, task.elapsed_ms) = (LogTime(self.number()?), self.number()?);
                task.deliveries = self.small()?;
            }
            View::Dead => {
                task.at = LogTime(self.number()?);
                let reason = self.optional()?;
                let tries = Tries { failed: self.small()?, lapsed: self.small()?, lost: self.small()? };
                task.more = Some(Box::new(More { tries, reason, ..More::default() }));
            }
        }
        Ok(task)
    }

    /// The indexes of the tasks that the reply echoes. They come in the order of the command.
    fn acked(&mut self, n: usize, tasks: &Words<'_>) -> Result<Span, BadReply> {
        let start = self.replies.indexes.len();
        // One pass for the whole reply: `skip` would walk from the first task for each that is echoed.
        let mut rest = tasks.iter().enumerate();
        for _ in 0..n {
            let echoed = self.bulk()?;
            let (at, _) = rest.find(|(_, task)| *task == echoed).ok_or(ODD)?;
            self.replies.indexes.push(at as u32);
        }
        Ok(Span::new(start, self.replies.indexes.len()))
    }

    fn receipts(&mut self, n: usize) -> Result<Reply, BadReply> {
        let (start, from) = (self.replies.receipts.len(), self.pieces.clone());
        for _ in 0..n {
            let Some(receipt) = Receipt::parse(self.bulk()?) else {
                self.replies.receipts.truncate(start);
                self.pieces = from;
                return Ok(Reply::ReceiptsForeign(self.foreign_ids(n)?));
            };
            self.replies.receipts.push(receipt);
        }
        Ok(Reply::Receipts(Span::new(start, self.replies.receipts.len())))
    }

    fn workers(&mut self, n: usize) -> Result<Span, BadReply> {
        let start = self.replies.workers.len();
        for _ in 0..n {
            self.array(3)?;
            let (name, incarnation) = split_worker(self.bulk()?)?;
            let row =
                WorkerRow { name: name.into(), incarnation, ttl_ms: self.number()?, leased: self.number()? };
            self.replies.workers.push(row);
        }
        Ok(Span::new(start, self.replies.workers.len()))
    }

    fn queues(&mut self) -> Result<Reply, BadReply> {
        let cursor = read_u64(self.bulk()?).ok_or(ODD)?;
        let Piece::Array(n) = self.pieces.take()? else { return Err(ODD) };
        let start = self.replies.queues.len();
        for _ in 0..n {
            self.array(5)?;
            let name = self.bulk()?.into();
            let counts = [self.number()?, self.number()?, self.number()?, self.number()?];
            self.replies.queues.push(QueueRow { name, counts });
        }
        Ok(Reply::Queues { cursor, rows: Span::new(start, self.replies.queues.len()) })
    }

    /// The fields of a map, which is a flat array in RESP2. Fields that a later release adds may have any type.
    fn fields(&mut self, map: Piece<'_>) -> Result<Fields<'b>, BadReply> {
        let n = match map {
            Piece::Map(n) => n,
            Piece::Array(n) if n.is_multiple_of(2) => n / 2,
            _ => return Err(ODD),
        };
        let mut fields = Vec::new();
        for _ in 0..n {
            let name = self.bulk()?;
            let value = self.pieces.take()?;
            self.pieces.skip(value)?;
            fields.push((name, value));
        }
        Ok(Fields(fields))
    }
}

/// The fields of a map, in order.
struct Fields<'b>(Vec<(&'b [u8], Piece<'b>)>);

impl<'b> Fields<'b> {
    fn get(&self, name: &str) -> Option<Piece<'b>> {
        self.0.iter().find_map(|(field, value)| (*field == name.as_bytes()).then_some(*value))
    }

    fn bulk(&self, name: &str) -> Result<&'b [u8], BadReply> {
        match self.get(name) {
            Some(Piece::Bulk(bytes)) => Ok(bytes),
            _ => Err(ODD),
        }
    }

    fn optional(&self, name: &str) -> Result<Option<Box<[u8]>>, BadReply> {
        match self.get(name) {
            Some(Piece::Bulk(bytes)) => Ok(Some(bytes.into())),
            Some(Piece::Null) => Ok(None),
            _ => Err(ODD),
        }
    }

    fn number(&self, name: &str) -> Result<u64, BadReply> {
        match self.get(name) {
            Some(Piece::Integer(n)) => u64::try_from(n).map_err(|_| ODD),
            _ => Err(ODD),
        }
    }

    fn small(&self, name: &str) -> Result<u32, BadReply> {
        u32::try_from(self.number(name)?).map_err(|_| ODD)
    }

    /// A time; `None` if it is zero.
    fn time(&self, name: &str) -> Result<Option<LogTime>, BadReply> {
        Ok(Some(self.number(name)?).filter(|&at| at > 0).map(LogTime))
    }

    fn tries(&self) -> Result<Tries, BadReply> {
        Ok(Tries { failed: self.small("failed")?, lapsed: self.small("lapsed")?, lost: self.small("lost")? })
    }

    /// A rate in tenths, from a decimal number with one decimal place.
    fn rate(&self, name: &str) -> Result<u64, BadReply> {
        let [whole @ .., b'.', tenth @ b'0'..=b'9'] = self.bulk(name)? else { return Err(ODD) };
        let tenths =
            read_u64(whole).and_then(|whole| whole.checked_mul(10)?.checked_add(u64::from(tenth - b'0')));
        tenths.ok_or(ODD)
    }
}

fn info(fields: &Fields<'_>) -> Result<Info, BadReply> {
    let (ready, leased) = (fields.number("ready")?, fields.number("leased")?);
    if fields.get("pushed").is_none() {
        return Ok(Info { ready, leased, lengths_only: true, ..Info::default() });
    }
    Ok(Info {
        ready,
        delayed: fields.number("delayed")?,
        leased,
        dead: fields.number("dead")?,
        waiting_bytes: fields.number("waiting_bytes")?,
        oldest_ms: fields.number("oldest_ms")?,
        paused: fields.time("paused")?,
        pushed: fields.number("pushed")?,
        finished: fields.number("finished")?,
        pushed_of_late: fields.rate("pushed_per_second")?,
        finished_of_late: fields.rate("finished_per_second")?,
        workers: fields.number("workers")?,
        settings: settings(fields)?,
        lengths_only: false,
    })
}

/// The settings. The reply names them by the option words that set them.
fn settings(fields: &Fields<'_>) -> Result<Settings, BadReply> {
    let mut settings = Settings::default();
    for name in SettingWords::NAMES {
        let number;
        let value = match fields.get(&name.to_ascii_lowercase()) {
            Some(Piece::Bulk(word)) => word,
            Some(Piece::Integer(n)) => {
                number = n.to_string();
                number.as_bytes()
            }
            _ => return Err(ODD),
        };
        let words = [name.as_bytes(), value];
        let words = SettingWords::read(&words).map_err(|_| ODD)?;
        sureq_core::settings::Changes::Words(words).iter().for_each(|change| settings.change(&change));
    }
    Ok(settings)
}

fn explanation(fields: &Fields<'_>) -> Result<Explanation, BadReply> {
    let (mut worker, held_up) = (None, || held_up(fields));
    let why = match state(fields.bulk("state")?)? {
        StateKind::Ready => Why::Ready { ahead: fields.number("ahead")?, held_up: held_up()? },
        StateKind::Delayed => Why::Delayed {
            until: fields.number("until")?,
            in_ms: fields.number("in_ms")?,
            held_up: held_up()?,
        },
        StateKind::Dead => Why::Dead { at: LogTime(fields.number("died")?) },
        StateKind::Leased => {
            let holder = fields.optional("holder")?.map(|text| holder(&text, &mut worker)).transpose()?;
            Why::Leased {
                since: LogTime(fields.number("since")?),
                until: fields.time("until")?,
                holder,
                cancelled: fields.number("cancelled")? == 1,
            }
        }
    };
    Ok(Explanation {
        id: TaskId::parse(fields.bulk("id")?).ok_or(ODD)?,
        deliveries: fields.small("deliveries")?,
        tries: fields.tries()?,
        tries_max: fields.small("tries_max")?,
        reason: fields.optional("reason")?,
        worker,
        why,
    })
}

fn held_up(fields: &Fields<'_>) -> Result<Option<HeldUp>, BadReply> {
    if let Some(since) = fields.time("paused_since")? {
        return Ok(Some(HeldUp::Paused { since }));
    }
    let (leased, max) = (fields.number("leased")?, fields.number("leased_max")?);
    Ok((max > 0).then_some(HeldUp::AllLeased { leased, max }))
}

/// `w#n` for a worker, or a connection with its number. The name of the worker is stored in `worker`.
fn holder(text: &[u8], worker: &mut Option<Box<[u8]>>) -> Result<Holder, BadReply> {
    if let Ok((name, incarnation)) = split_worker(text) {
        *worker = (!name.is_empty()).then(|| name.into());
        return Ok(Holder::Worker(incarnation));
    }
    let conn = text.strip_prefix(b"connection ").and_then(read_u64).ok_or(ODD)?;
    Ok(Holder::Conn(ConnId(conn)))
}

fn split_worker(text: &[u8]) -> Result<(&[u8], u64), BadReply> {
    let worker = crate::verbs::read_worker(text).map_err(|_| ODD)?;
    Ok((worker.name, worker.incarnation))
}

fn state(word: &[u8]) -> Result<StateKind, BadReply> {
    let kinds = [StateKind::Ready, StateKind::Delayed, StateKind::Leased, StateKind::Dead];
    kinds.into_iter().find(|kind| state_name(*kind).as_bytes() == word).ok_or(ODD)
}

#[cfg(test)]
mod tests {
    use sureq_core::command::{AckScope, Command, IdForm, Pop, TaskRefs};

    use super::*;
    use crate::reply_form::tests::set_reads_max;
    use crate::resp::Version;
    use crate::{ReplyStyle, encode_reply};

    /// Reads the reply to a command as its client does, looking at no more than `reads_max` words of the command.
    fn decode(command: &Command<'_>, replies: &Replies<Vec<u8>>, reads_max: usize) -> Replies<Vec<u8>> {
        let mut bytes = Vec::new();
        let form = ReplyForm::of(command, ReplyStyle::Native);
        encode_reply(&mut bytes, Version::Resp2, &form, &replies.list[0], replies);
        let (form, mut read) = (ReplyForm::of_sent(command), Replies::default());
        set_reads_max(reads_max);
        let decoded = decode_reply(&form, &bytes, |range| bytes[range].to_vec(), &mut read);
        set_reads_max(usize::MAX);
        assert_eq!(decoded, Ok(()));
        read
    }

    #[test]
    fn each_task_of_an_ack_is_looked_at_once() {
        const TASKS: usize = 100_000;
        let ids: Vec<String> = (0..TASKS).map(|n| format!("1700000000000-{}", n + 1)).collect();
        let list: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
        let tasks = TaskRefs { list: &list, form: IdForm::Long };
        let ack = Command::Ack { queue: b"q", tasks, scope: AckScope::LeasedOrLapsed };
        let mut replies = Replies { indexes: (0..TASKS as u32).collect(), ..Replies::default() };
        replies.list.push(Reply::Acked(Span::new(0, TASKS)));
        assert_eq!(decode(&ack, &replies, TASKS).indexes, replies.indexes);
        replies.indexes.retain(|at| at % 3 == 2);
        replies.list[0] = Reply::Acked(Span::new(0, replies.indexes.len()));
        assert_eq!(decode(&ack, &replies, TASKS).indexes, replies.indexes);
    }

    #[test]
    fn the_queues_of_a_pop_are_not_searched_for_each_task() {
        const QUEUES: usize = 1_000;
        const TASKS: usize = 100_000;
        let names: Vec<String> = (0..QUEUES).map(|n| format!("queue-{n}")).collect();
        let list: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        let task = |n: usize| TaskView {
            queue: (n * QUEUES / TASKS) as u32,
            id: TaskId::new(1_700_000_000_000, n as u64 + 1).expect("in range"),
            body: Vec::new(),
            deliveries: 0,
            incarnation: 0,
            at: LogTime(0),
            elapsed_ms: 0,
            more: None,
            foreign_id: None,
        };
        let mut replies = Replies { tasks: (0..TASKS).map(task).collect(), ..Replies::default() };
        replies.list.push(Reply::Tasks(Span::new(0, TASKS)));
        let pop = Command::Pop(Pop::plain(&list, TASKS as u32));
        let read = decode(&pop, &replies, TASKS + QUEUES * QUEUES);
        assert!(read.tasks.iter().map(|task| task.queue).eq(replies.tasks.iter().map(|task| task.queue)));
    }
}
