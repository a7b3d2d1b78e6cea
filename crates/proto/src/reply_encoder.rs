//! Encodes the replies of a home as RESP.
//!
//! Every reply to any command is written here, in the [`ReplyForm`] of its command.

use crate::reply_form::{PopFields, ReplyForm, Words};
use crate::resp::{Pieces, Version, Writer};
use crate::verbs::TYPE_NAME;
use sureq_core::command::View;
use sureq_core::id::{IdText, TaskId};
use sureq_core::reply::{
    Explanation, HeldUp, Info, More, Outcome, QueueRow, Replies, Reply, TaskView, Why, WorkerRow,
};
use sureq_core::settings::{SettingValue, SettingWords, Settings};
use sureq_core::task::{Holder, StateKind};

/// Appends the reply to a command.
pub fn encode_reply<B: AsRef<[u8]>>(
    out: &mut Vec<u8>,
    version: Version,
    form: &ReplyForm<'_>,
    reply: &Reply,
    replies: &Replies<B>,
) {
    write_reply(&mut Writer::new(out, version), form, reply, replies);
}

/// Limits a part of a long reply: it begins with item `from`, and ends once it has at least `bytes` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The index of the first item.
    pub from: usize,
    /// The target length in bytes, which the last item may exceed.
    pub bytes: usize,
}

/// Appends a part of the reply to a command. Returns the first item of the next part, if there is one. All parts
/// together equal the output of [`encode_reply`].
///
/// Only lists of tasks and of queue names are divided. Any other reply is a single part.
pub fn encode_part<B: AsRef<[u8]>>(
    out: &mut Vec<u8>,
    version: Version,
    form: &ReplyForm<'_>,
    reply: &Reply,
    replies: &Replies<B>,
    part: Part,
) -> Option<usize> {
    match (reply, form) {
        (Reply::Tasks(tasks), ReplyForm::Popped { queues, fields }) => {
            let tasks = &replies.tasks[tasks.range()];
            encode_items(out, version, tasks, part, |w, task| write_popped(w, *fields, queues, task))
        }
        (Reply::Inspected(tasks), ReplyForm::Inspected(view)) => {
            let tasks = &replies.tasks[tasks.range()];
            encode_items(out, version, tasks, part, |w, task| write_inspected(w, *view, task))
        }
        (Reply::Tasks(tasks) | Reply::Inspected(tasks), _) => {
            let tasks = &replies.tasks[tasks.range()];
            encode_items(out, version, tasks, part, |w, task| write_inspected(w, View::Ready, task))
        }
        (Reply::Queues { rows, .. }, ReplyForm::QueueNames) => {
            encode_items(out, version, &replies.queues[rows.range()], part, |w, row| w.bulk(&row.name))
        }
        _ => {
            encode_reply(out, version, form, reply, replies);
            None
        }
    }
}

/// Appends a part of a list. Returns the first item of the next part, if there is one.
fn encode_items<T>(
    out: &mut Vec<u8>,
    version: Version,
    items: &[T],
    Part { from, bytes }: Part,
    write: impl Fn(&mut Writer<'_>, &T),
) -> Option<usize> {
    let upto = out.len().saturating_add(bytes);
    if from == 0 {
        Writer::new(out, version).array(items.len());
    }
    for (n, item) in items.iter().enumerate().skip(from) {
        if n > from && out.len() >= upto {
            return Some(n);
        }
        write(&mut Writer::new(out, version), item);
    }
    None
}

/// Writes the reply to a command, piece by piece.
pub fn write_reply<B: AsRef<[u8]>>(
    w: &mut impl Pieces,
    form: &ReplyForm<'_>,
    reply: &Reply,
    replies: &Replies<B>,
) {
    match (reply, form) {
        (Reply::Pushed(ids), _) => {
            w.array(ids.len());
            replies.ids[ids.range()].iter().for_each(|id| w.id(*id));
        }
        (Reply::PushedForeign(ids) | Reply::ReceiptsForeign(ids), _) => {
            w.array(ids.len());
            replies.foreign_ids[ids.range()].iter().for_each(|id| write_optional(w, id.as_deref()));
        }
        (Reply::Tasks(tasks), ReplyForm::Popped { queues, fields }) => {
            w.array(tasks.len());
            replies.tasks[tasks.range()].iter().for_each(|task| write_popped(w, *fields, queues, task));
        }
        (Reply::Inspected(tasks), ReplyForm::Inspected(view)) => {
            w.array(tasks.len());
            replies.tasks[tasks.range()].iter().for_each(|task| write_inspected(w, *view, task));
        }
        (Reply::Tasks(tasks) | Reply::Inspected(tasks), _) => {
            w.array(tasks.len());
            replies.tasks[tasks.range()].iter().for_each(|task| write_inspected(w, View::Ready, task));
        }
        (Reply::Acked(finished), ReplyForm::Acked(tasks)) => {
            w.array(finished.len());
            replies.indexes[finished.range()].iter().for_each(|&at| w.bulk(tasks.get(at as usize)));
        }
        (Reply::Acked(finished), _) => w.count(finished.len() as u64),
        (Reply::Count(n), ReplyForm::TypeName) => w.simple(if *n > 0 { TYPE_NAME } else { "none" }),
        (Reply::Count(n), _) => w.count(*n),
        (Reply::Queues { cursor, rows }, _) => write_queues(w, form, *cursor, &replies.queues[rows.range()]),
        (Reply::Started(incarnation), ReplyForm::Started(name)) => {
            w.bulk(&worker_text(name, *incarnation));
        }
        (Reply::Started(incarnation), _) => w.count(*incarnation),
        (Reply::Receipts(receipts), _) => {
            w.array(receipts.len());
            replies.receipts[receipts.range()]
                .iter()
                .for_each(|receipt| w.bulk(IdText::of_receipt(*receipt).as_bytes()));
        }
        (Reply::Workers(workers), _) => write_workers(w, &replies.workers[workers.range()]),
        (Reply::Info(info), _) => write_info(w, info),
        (Reply::Settings(settings), _) => {
            w.map(SETTINGS_FIELDS);
            write_settings(w, settings);
        }
        (Reply::Added { id, added, state }, _) => {
            w.array(3);
            w.id(*id);
            write_added(w, *added, *state);
        }
        (Reply::AddedForeign { at, added, state }, _) => {
            w.array(3);
            write_optional(w, replies.foreign_ids[*at as usize].as_deref());
            write_added(w, *added, *state);
        }
        (Reply::Explained(Some(explained)), _) => write_explanation(w, explained),
        (Reply::TimedOut | Reply::Explained(None), _) => w.null(),
        (Reply::Outcome(Outcome::Done), _) => w.integer(1),
        (Reply::Outcome(Outcome::Stale), _) => w.integer(0),
        (Reply::Outcome(Outcome::Cancelled), _) => w.simple("CANCELLED"),
        (Reply::Ok, _) => w.simple("OK"),
        (Reply::Refused(refusal), _) => w.error(format_args!("{} {refusal}", refusal.code())),
    }
}

fn write_popped<B: AsRef<[u8]>>(
    w: &mut impl Pieces,
    fields: PopFields,
    queues: &Words<'_>,
    task: &TaskView<B>,
) {
    w.array(fields.count());
    w.bulk(queues.get(task.queue as usize));
    write_task_id(w, task);
    w.bulk(task.body.as_ref());
    if fields.receipt {
        write_receipt(w, task);
        w.count(u64::from(task.deliveries));
    }
    if fields.meta {
        write_meta(w, task.more.as_deref().unwrap_or(&More::default()));
    }
}

fn write_task_id<B>(w: &mut impl Pieces, task: &TaskView<B>) {
    match &task.foreign_id {
        None if task.id == TaskId::NONE => w.null(),
        None => w.id(task.id),
        Some(foreign) => w.bulk(foreign),
    }
}

/// A home with foreign ids has no receipts; its ids serve as receipts.
fn write_receipt<B>(w: &mut impl Pieces, task: &TaskView<B>) {
    match &task.foreign_id {
        None => w.bulk(IdText::of_receipt(task.receipt()).as_bytes()),
        Some(foreign) => w.bulk(foreign),
    }
}

fn write_added(w: &mut impl Pieces, added: bool, state: StateKind) {
    w.integer(i64::from(added));
    w.bulk(state_name(state).as_bytes());
}

fn write_meta(w: &mut impl Pieces, more: &More) {
    w.map(7);
    w.bulk(b"name");
    write_optional(w, more.name.as_deref());
    let numbers = [
        ("failed", u64::from(more.tries.failed)),
        ("lapsed", u64::from(more.tries.lapsed)),
        ("lost", u64::from(more.tries.lost)),
        ("tries_max", u64::from(more.tries_max)),
        ("pushed_at", more.pushed.0),
    ];
    write_numbers(w, &numbers);
    w.bulk(b"reason");
    write_optional(w, more.reason.as_deref());
}

/// The number of fields of each task in a reply to RQ.INSPECT.
pub(crate) const fn inspected_fields(view: View) -> usize {
    match view {
        View::Ready => 2,
        View::Leased => 5,
        View::Delayed => 3,
        View::Dead => 7,
    }
}

fn write_inspected<B: AsRef<[u8]>>(w: &mut impl Pieces, view: View, task: &TaskView<B>) {
    w.array(inspected_fields(view));
    write_task_id(w, task);
    w.bulk(task.body.as_ref());
    match view {
        View::Ready => {}
        View::Leased => write_counts(w, &[task.at.0, task.elapsed_ms, task.deliveries.into()]),
        View::Delayed => w.count(task.at.0),
        View::Dead => write_death(w, task),
    }
}

fn write_death<B>(w: &mut impl Pieces, task: &TaskView<B>) {
    let more = task.more.as_deref();
    let tries = more.map(|more| more.tries).unwrap_or_default();
    w.count(task.at.0);
    write_optional(w, more.and_then(|more| more.reason.as_deref()));
    write_counts(w, &[tries.failed.into(), tries.lapsed.into(), tries.lost.into()]);
}

fn write_queues(w: &mut impl Pieces, form: &ReplyForm<'_>, cursor: u64, rows: &[QueueRow]) {
    match form {
        ReplyForm::QueueNames => write_names(w, rows),
        ReplyForm::ScanPage => {
            write_cursor(w, cursor);
            write_names(w, rows);
        }
        _ => {
            write_cursor(w, cursor);
            w.array(rows.len());
            for row in rows {
                w.array(1 + row.counts.len());
                w.bulk(&row.name);
                write_counts(w, &row.counts);
            }
        }
    }
}

fn write_names(w: &mut impl Pieces, rows: &[QueueRow]) {
    w.array(rows.len());
    for row in rows {
        w.bulk(&row.name);
    }
}

/// Redis transmits a cursor as text.
fn write_cursor(w: &mut impl Pieces, cursor: u64) {
    w.array(2);
    w.bulk(cursor.to_string().as_bytes());
}

fn write_workers(w: &mut impl Pieces, workers: &[WorkerRow]) {
    w.array(workers.len());
    for worker in workers {
        w.array(3);
        w.bulk(&worker_text(&worker.name, worker.incarnation));
        w.count(worker.ttl_ms);
        w.count(worker.leased);
    }
}

pub(crate) fn worker_text(name: &[u8], incarnation: u64) -> Vec<u8> {
    [name, b"#", incarnation.to_string().as_bytes()].concat()
}

/// The two fields of RedisRQ come first, because its clients read them by position. Counts that a home does not keep
/// are left out.
fn write_info(w: &mut impl Pieces, info: &Info) {
    if info.lengths_only {
        let lengths = [
            ("undelivered", info.ready),
            ("delivered", info.leased),
            ("ready", info.ready),
            ("leased", info.leased),
        ];
        w.map(lengths.len());
        return write_numbers(w, &lengths);
    }
    let numbers = [
        ("undelivered", info.ready),
        ("delivered", info.leased),
        ("ready", info.ready),
        ("delayed", info.delayed),
        ("leased", info.leased),
        ("dead", info.dead),
        ("waiting_bytes", info.waiting_bytes),
        ("oldest_ms", info.oldest_ms),
        ("paused", info.paused.map_or(0, |since| since.0)),
        ("pushed", info.pushed),
        ("finished", info.finished),
        ("workers", info.workers),
    ];
    w.map(numbers.len() + 2 + SETTINGS_FIELDS);
    write_numbers(w, &numbers);
    write_rate(w, "pushed_per_second", info.pushed_of_late);
    write_rate(w, "finished_per_second", info.finished_of_late);
    write_settings(w, &info.settings);
}

const SETTINGS_FIELDS: usize = SettingWords::NAMES.len();

/// The names are those of the options of RQ.CONFIG. 0 and the empty name stand for the defaults.
fn write_settings(w: &mut impl Pieces, settings: &Settings) {
    for (name, value) in SettingWords::NAMES.iter().zip(settings.values()) {
        w.bulk(name.to_ascii_lowercase().as_bytes());
        match value {
            SettingValue::Number(n) => w.count(n),
            SettingValue::Word(word) => w.bulk(word),
        }
    }
}

fn write_explanation(w: &mut impl Pieces, explained: &Explanation) {
    let own = match explained.why {
        Why::Dead { .. } => 1,
        Why::Ready { .. } | Why::Leased { .. } => 4,
        Why::Delayed { .. } => 5,
    };
    w.map(9 + own);
    w.bulk(b"id");
    w.id(explained.id);
    w.bulk(b"state");
    w.bulk(state_name(explained.state()).as_bytes());
    w.bulk(b"why");
    w.bulk(explained.to_string().as_bytes());
    let Explanation { deliveries, tries, tries_max, .. } = *explained;
    let numbers = [
        ("deliveries", u64::from(deliveries)),
        ("failed", u64::from(tries.failed)),
        ("lapsed", u64::from(tries.lapsed)),
        ("lost", u64::from(tries.lost)),
        ("tries_max", u64::from(tries_max)),
    ];
    write_numbers(w, &numbers);
    w.bulk(b"reason");
    write_optional(w, explained.reason.as_deref());
    match explained.why {
        Why::Ready { ahead, held_up } => {
            write_numbers(w, &[("ahead", ahead)]);
            write_held_up(w, held_up);
        }
        Why::Delayed { until, in_ms, held_up } => {
            write_numbers(w, &[("until", until), ("in_ms", in_ms)]);
            write_held_up(w, held_up);
        }
        Why::Dead { at } => write_numbers(w, &[("died", at.0)]),
        Why::Leased { since, until, holder, cancelled } => {
            let until = until.map_or(0, |until| until.0);
            write_numbers(w, &[("since", since.0), ("until", until), ("cancelled", cancelled.into())]);
            w.bulk(b"holder");
            write_optional(w, holder.map(|holder| holder_text(holder, explained)).as_deref());
        }
    }
}

/// The reasons why the whole queue is blocked, as numbers; 0 if a reason does not apply.
fn write_held_up(w: &mut impl Pieces, held_up: Option<HeldUp>) {
    let (paused_since, leased, leased_max) = match held_up {
        None => (0, 0, 0),
        Some(HeldUp::Paused { since }) => (since.0, 0, 0),
        Some(HeldUp::AllLeased { leased, max }) => (0, leased, max),
    };
    write_numbers(w, &[("paused_since", paused_since), ("leased", leased), ("leased_max", leased_max)]);
}

fn holder_text(holder: Holder, explained: &Explanation) -> Vec<u8> {
    match holder {
        Holder::Worker(n) => worker_text(explained.worker.as_deref().unwrap_or_default(), n),
        Holder::Conn(conn) => format!("connection {}", conn.0).into_bytes(),
    }
}

/// A rate in tenths per second, written with one decimal place.
fn write_rate(w: &mut impl Pieces, name: &str, tenths: u64) {
    w.bulk(name.as_bytes());
    w.bulk(format!("{}.{}", tenths / 10, tenths % 10).as_bytes());
}

fn write_counts(w: &mut impl Pieces, counts: &[u64]) {
    for n in counts {
        w.count(*n);
    }
}

fn write_numbers(w: &mut impl Pieces, numbers: &[(&str, u64)]) {
    for (name, n) in numbers {
        w.bulk(name.as_bytes());
        w.count(*n);
    }
}

fn write_optional(w: &mut impl Pieces, bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => w.bulk(bytes),
        None => w.null(),
    }
}

pub(crate) const fn state_name(state: StateKind) -> &'static str {
    match state {
        StateKind::Ready => "ready",
        StateKind::Delayed => "delayed",
        StateKind::Leased => "leased",
        StateKind::Dead => "dead",
    }
}
