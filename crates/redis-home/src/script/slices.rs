//! Splits large commands into several calls.
//!
//! Redis executes nothing else while a script runs. So one call asks for a bounded number of tasks, ids or queues,
//! and more calls ask for the rest. Other commands may come in between: each slice is atomic, the command as a whole
//! is not. A push is the exception, since a batch is stored as a whole or not at all: its length is limited.

use std::collections::{BTreeMap, HashSet};

use redis::Value;
use sureq_core::command::{Cancel, Command, Pop, TaskRefs, Worker};
use sureq_core::{Refusal, limits};

use crate::connection::link::Patience;
use crate::script::answer::{UnexpectedAnswer, bytes, fields, list, number, refusal};
use crate::script::call::{Call, ListForm, SliceForm};
use crate::script::operations::argument;
use crate::spread::{numbered, size};
use crate::thread::HomeThread;

/// How many tasks, ids or queues one call asks for: two or three milliseconds of Redis. Scripts move as many due
/// tasks in one call.
pub const SLICE: usize = 200;

/// How many payload bytes one call asks for; a single task may have more.
const SLICE_BYTES: usize = 4 << 20;

/// The number of calls without a result after which a RECOVER leaves the rest to the next command.
const FRUITLESS_MAX: usize = 20;

/// Whether a command asks for more tasks, or names more tasks or queues, than one call handles in any layout.
pub fn is_long(command: &Command<'_>) -> bool {
    let is_long = |tasks: &TaskRefs<'_>| tasks.list.len() > SLICE;
    match command {
        Command::Pop(Pop { count, .. }) | Command::Inspect { count, .. } | Command::Queues { count, .. } => {
            *count as usize > SLICE
        }
        Command::Ack { tasks, .. } | Command::Bury { tasks, .. } | Command::Delete { tasks, .. } => {
            is_long(tasks)
        }
        Command::Revive { tasks, .. } => tasks.as_ref().is_some_and(is_long),
        Command::Cancel { which: Cancel::Ids(tasks), .. } => is_long(tasks),
        Command::Cancel { which: Cancel::Names(names), .. } => names.len() > SLICE,
        Command::Exists { queues } | Command::Drop { queues } => queues.len() > SLICE,
        _ => false,
    }
}

/// Whether a command takes several calls in sureq's own layout, if its replies are expected to have this many bytes.
pub(crate) fn is_sliced(command: &Command<'_>, reply_bytes: usize) -> bool {
    is_long(command)
        || match command {
            Command::Pop(pop) => pop.count > 1 && reply_bytes > SLICE_BYTES || pop.queues.len() > SLICE,
            Command::Inspect { count, .. } => *count > 1 && reply_bytes > SLICE_BYTES,
            Command::Recover { .. } | Command::Worker(Worker::List) => true,
            _ => false,
        }
}

/// The tasks of a pop.
#[derive(Debug, Default)]
pub(crate) struct Popped {
    pub(crate) tasks: Vec<Value>,
    /// The next task has too many bytes for the reply: those behind it must not be delivered before it.
    pub(crate) is_full: bool,
}

/// Why a list of tasks is shorter than requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The next task has too many bytes for this answer.
    Full,
    /// More is due in the queue than one call may move.
    More,
}

/// Removes the word from the end of an answer that says why there are no more tasks.
fn remove_ending(tasks: &mut Vec<Value>) -> Option<Ending> {
    let ending = match tasks.last() {
        Some(Value::BulkString(word)) if word == b"full" => Some(Ending::Full),
        Some(Value::BulkString(word)) if word == b"more" => Some(Ending::More),
        _ => None,
    };
    tasks.truncate(tasks.len() - usize::from(ending.is_some()));
    ending
}

/// An answer with nothing but tasks in it, if it is a list.
pub(crate) fn only_tasks(mut answer: Value) -> Value {
    if let Value::Array(tasks) = &mut answer {
        remove_ending(tasks);
    }
    answer
}

/// The tasks in the answer to a pop, and why there are no more. `first_queue` is the index of its first queue.
fn popped_of(answer: Value, first_queue: usize) -> Result<(Vec<Value>, Option<Ending>), UnexpectedAnswer> {
    let mut tasks = list(answer)?;
    let ending = remove_ending(&mut tasks);
    Ok((numbered(Value::Array(tasks), |queue| queue + first_queue)?, ending))
}

fn payload_bytes(tasks: &[Value]) -> usize {
    tasks.iter().map(size).sum()
}

impl HomeThread {
    /// Executes a call slice by slice, in each store that it concerns.
    pub(crate) async fn ask_in_slices(&self, call: &Call) -> Result<Value, Refusal> {
        match call.op {
            _ if self.spans(call) => self.execute(call).await,
            "pop" => Ok(Value::Array(self.pop_in_slices(call, Patience::Normal).await?.tasks)),
            "recover" => self.recover_in_slices(call).await,
            "workers" => self.workers_in_slices().await,
            "queues" => self.queues_in_slices(call).await,
            _ => match self.link.target.layout().slice_form(call.op) {
                Some(SliceForm::List(form)) if call.op == "ack" => self.ack_in_slices(call, form).await,
                Some(SliceForm::List(form)) => self.count_in_slices(call, form).await,
                Some(SliceForm::Range { start, count, room }) => {
                    self.inspect_in_slices(call, start, count, room).await
                }
                Some(SliceForm::Steps { room, cursor }) => self.inspect_in_steps(call, room, cursor).await,
                Some(SliceForm::Sums { cursor }) => self.add_in_steps(call, cursor).await,
                None => self.call(call, Patience::Normal).await,
            },
        }
    }

    /// A pop of one store. If a later slice was not executed, the tasks of the earlier ones are delivered.
    pub(crate) async fn pop_in_slices(&self, call: &Call, patience: Patience) -> Result<Popped, Refusal> {
        let mut popped = Popped::default();
        match self.pop_slices_into(&mut popped, call, patience).await {
            Err(no @ Refusal::Unknown { .. }) => {
                self.requeue_popped(call, popped.tasks).await;
                Err(no)
            }
            Err(no) if popped.tasks.is_empty() => Err(no),
            _ => Ok(popped),
        }
    }

    /// Pops slice by slice, until there is enough or a slice fails.
    async fn pop_slices_into(
        &self,
        popped: &mut Popped,
        call: &Call,
        patience: Patience,
    ) -> Result<(), Refusal> {
        let layout = self.link.target.layout();
        let form = layout.pop_form();
        let wanted = sureq_core::id::decimal(&call.args[form.count]).unwrap_or(1) as usize;
        let room = form.room.and_then(|at| sureq_core::id::decimal(&call.args[at.all]));
        let mut room = room.map_or(limits::REPLY_BYTES_MAX, |room| room as usize);
        let mut first_queue = 0;
        let queues = &call.args[form.queues..];
        let queues_max = if form.room.is_some() { SLICE } else { queues.len() };
        let mut slice = call.clone();
        slice.args.truncate(form.queues + queues_max);
        loop {
            let mut asked = SLICE.min(wanted - popped.tasks.len());
            if form.room.is_none() && !popped.tasks.is_empty() {
                // The script takes no limit of bytes: about as many tasks as have room.
                let mean = (limits::REPLY_BYTES_MAX - room) / popped.tasks.len();
                asked = asked.min(room / mean.max(1)).max(1);
            }
            slice.args[form.count] = asked.to_string().into_bytes();
            if let Some(at) = form.room {
                slice.args[at.all] = SLICE_BYTES.min(room).to_string().into_bytes();
                if !popped.tasks.is_empty() {
                    slice.args[at.first] = room.to_string().into_bytes();
                }
            }
            let answer = self.call(&slice, patience).await;
            let answer = self.retry_pop(&slice, answer).await?;
            if let Some(no) = refusal(&answer) {
                return Err(no);
            }
            let (more, ending) = popped_of(answer, first_queue)?;
            let got = more.len();
            popped.is_full = ending == Some(Ending::Full) && (got == 0 || room <= SLICE_BYTES);
            room = room.saturating_sub(payload_bytes(&more));
            popped.tasks.extend(more);
            let is_end = got < asked && ending.is_none();
            let is_last = first_queue + queues_max >= queues.len();
            popped.is_full |= room == 0;
            if popped.is_full || is_end && is_last || popped.tasks.len() >= wanted {
                break;
            }
            // The queues before that of the last task are empty, or all of these are.
            first_queue = match popped.tasks.last() {
                Some(task) if !is_end => queue_of(task)?,
                _ => first_queue + queues_max,
            };
            slice.args.truncate(form.queues);
            slice.args.extend(queues[first_queue..].iter().take(queues_max).cloned());
            slice.queue = slice.args.get(form.queues).cloned();
            layout.next_slice(&mut slice, got);
        }
        Ok(())
    }

    /// Inspects tasks. A task that moves between two slices is reported once or not at all.
    async fn inspect_in_slices(
        &self,
        call: &Call,
        start_at: usize,
        count_at: usize,
        room_at: usize,
    ) -> Result<Value, Refusal> {
        let (start, count) = (&call.args[start_at], &call.args[count_at]);
        let count = sureq_core::id::decimal(count).unwrap_or(0) as usize;
        let start: i64 =
            std::str::from_utf8(start).ok().and_then(|n| n.parse().ok()).ok_or(UnexpectedAnswer)?;
        let (mut shown, mut ids) = (Vec::new(), HashSet::new());
        let (mut looked_at, mut all_bytes, mut slice) = (0, 0, call.clone());
        while looked_at < count && all_bytes < limits::REPLY_BYTES_MAX {
            let asked = SLICE.min(count - looked_at);
            let from = start.saturating_add_unsigned(looked_at as u64);
            if start < 0 && from >= 0 {
                break;
            }
            slice.args[start_at] = from.to_string().into_bytes();
            slice.args[count_at] = asked.to_string().into_bytes();
            slice.args[room_at] = room_left(all_bytes);
            let mut some = list(self.ask(&slice).await?)?;
            let ending = remove_ending(&mut some);
            let got = some.len();
            (looked_at, all_bytes) = (looked_at + got, all_bytes + payload_bytes(&some));
            for task in some {
                if ids.insert(id_of(&task)?) {
                    shown.push(task);
                }
            }
            if got == 0 || got < asked && ending.is_none() {
                break;
            }
        }
        Ok(Value::Array(shown))
    }

    /// Inspects tasks where only the script knows how far a step got. A task that moves between two steps may be
    /// reported twice or not at all.
    async fn inspect_in_steps(
        &self,
        call: &Call,
        room_at: usize,
        cursor_at: usize,
    ) -> Result<Value, Refusal> {
        let (mut shown, mut all_bytes, mut step) = (Vec::new(), 0, call.clone());
        loop {
            step.args[room_at] = room_left(all_bytes);
            let mut some = list(self.ask(&step).await?)?.into_iter();
            let cursor = bytes(some.next().ok_or(UnexpectedAnswer)?)?;
            for task in some {
                all_bytes += size(&task);
                if all_bytes > limits::REPLY_BYTES_MAX && !shown.is_empty() {
                    return Ok(Value::Array(shown));
                }
                shown.push(task);
            }
            if cursor == b"0" || all_bytes >= limits::REPLY_BYTES_MAX {
                return Ok(Value::Array(shown));
            }
            step.args[cursor_at] = cursor;
        }
    }

    /// Adds the numbers that the steps of a call answer.
    async fn add_in_steps(&self, call: &Call, cursor_at: usize) -> Result<Value, Refusal> {
        let (mut sums, mut step) = (Vec::new(), call.clone());
        loop {
            let mut some = list(self.ask(&step).await?)?.into_iter();
            let cursor = bytes(some.next().ok_or(UnexpectedAnswer)?)?;
            for (at, n) in some.enumerate() {
                let n = number(n)?.cast_signed();
                match sums.get_mut(at) {
                    Some(sum) => *sum += n,
                    None => sums.push(n),
                }
            }
            if cursor == b"0" {
                return Ok(Value::Array(sums.into_iter().map(Value::Int).collect()));
            }
            step.args[cursor_at] = cursor;
        }
    }

    /// Returns tasks whose leases have no end of their own, the oldest first. A task is not returned twice by the
    /// same command.
    async fn recover_in_slices(&self, call: &Call) -> Result<Value, Refusal> {
        const COUNT: usize = argument("recover", "count");
        const FROM: usize = argument("recover", "from");
        const UPTO: usize = argument("recover", "upto");
        let wanted = sureq_core::id::decimal(&call.args[COUNT]).unwrap_or(0) as usize;
        let (mut tasks, mut all_bytes, mut fruitless) = (Vec::new(), 0, 0);
        let mut slice = call.clone().field("from", "").field("upto", "");
        while tasks.len() < wanted && all_bytes < limits::REPLY_BYTES_MAX && fruitless < FRUITLESS_MAX {
            slice.args[COUNT] = SLICE.min(wanted - tasks.len()).to_string().into_bytes();
            let answer = match self.ask(&slice).await {
                Ok(answer) => answer,
                Err(no) if tasks.is_empty() => return Err(no),
                Err(_) => break,
            };
            let [from, upto, some] = fields(answer)?;
            let (from, some) = (bytes(from)?, list(some)?);
            fruitless = if some.is_empty() { fruitless + 1 } else { 0 };
            all_bytes += payload_bytes(&some);
            tasks.extend(some);
            if from.is_empty() {
                break;
            }
            (slice.args[FROM], slice.args[UPTO]) = (from, bytes(upto)?);
        }
        Ok(Value::Array(tasks))
    }

    async fn workers_in_slices(&self) -> Result<Value, Refusal> {
        let (mut workers, mut cursor) = (BTreeMap::new(), b"0".to_vec());
        loop {
            let mut some =
                list(self.ask(&Call::new("workers", None).field("cursor", cursor)).await?)?.into_iter();
            cursor = bytes(some.next().ok_or(UnexpectedAnswer)?)?;
            for worker in some {
                let [name, incarnation, ttl, mut leased] = fields::<4>(worker)?;
                if leased == Value::Nil {
                    leased = self.held_in_slices(&name, &incarnation).await?;
                }
                workers
                    .insert(number(incarnation.clone())?, Value::Array(vec![name, incarnation, ttl, leased]));
            }
            if cursor == b"0" {
                return Ok(Value::Array(workers.into_values().collect()));
            }
        }
    }

    /// The number of tasks that a worker of many queues holds.
    async fn held_in_slices(&self, name: &Value, incarnation: &Value) -> Result<Value, Refusal> {
        let (name, incarnation) = (bytes(name.clone())?, number(incarnation.clone())?);
        let (mut queues, mut cursor) = (BTreeMap::new(), b"0".to_vec());
        loop {
            let step = Call::new("held", None)
                .field("name", name.clone())
                .field("incarnation", incarnation.to_string())
                .field("cursor", cursor);
            let mut some = list(self.ask(&step).await?)?.into_iter();
            cursor = bytes(some.next().ok_or(UnexpectedAnswer)?)?;
            while let (Some(queue), Some(held)) = (some.next(), some.next()) {
                queues.insert(bytes(queue)?, number(held)?);
            }
            if cursor == b"0" {
                return Ok(Value::Int(queues.into_values().sum::<u64>().cast_signed()));
            }
        }
    }

    /// All steps of a heartbeat. If a later step fails, the next heartbeat reports its share.
    pub(crate) async fn finish_beat(
        &self,
        call: &Call,
        first: Result<Value, Refusal>,
    ) -> Result<Value, Refusal> {
        let first = first?;
        if refusal(&first).is_some() {
            return Ok(first);
        }
        let (mut receipts, mut is_known, mut step) = (Vec::new(), HashSet::new(), call.clone());
        let mut answer = Ok(first);
        while let Ok(some) = answer {
            let mut some = list(some)?.into_iter();
            let cursor = bytes(some.next().ok_or(UnexpectedAnswer)?)?;
            for receipt in some {
                let receipt = bytes(receipt)?;
                if is_known.insert(receipt.clone()) {
                    receipts.push(Value::BulkString(receipt));
                }
            }
            if cursor == b"0" {
                break;
            }
            step.args[const { argument("beat", "cursor") }] = cursor;
            answer = self.ask(&step).await;
        }
        Ok(Value::Array(receipts))
    }

    /// Lists queues page by page. A queue that exists all the time is listed once.
    async fn queues_in_slices(&self, call: &Call) -> Result<Value, Refusal> {
        let [cursor, count] = &call.args[..] else { return Err(UnexpectedAnswer.into()) };
        let (mut cursor, mut left) = (cursor.clone(), sureq_core::id::decimal(count).unwrap_or(1) as usize);
        // Layouts that search the keys of Redis may find a queue in several pages.
        let (mut rows, mut names) = (Vec::new(), HashSet::new());
        while left > 0 {
            let asked = SLICE.min(left);
            let slice = Call::new(call.op, None).arg(cursor).number(asked as u64);
            let mut some = list(self.ask(&slice).await?)?.into_iter();
            cursor = bytes(some.next().ok_or(UnexpectedAnswer)?)?;
            for row in some {
                let name = name_of(&row)?;
                if !names.contains(&name) {
                    rows.push(self.counted(row, &name).await?);
                    names.insert(name);
                }
            }
            if cursor == b"0" {
                break;
            }
            left -= asked;
        }
        rows.insert(0, Value::BulkString(cursor));
        Ok(Value::Array(rows))
    }

    /// A row of the list of queues, whose tasks are counted in steps if the script has not done it.
    async fn counted(&self, row: Value, name: &[u8]) -> Result<Value, Refusal> {
        let layout = self.link.target.layout();
        let Some(SliceForm::Sums { cursor }) = layout.slice_form("info") else { return Ok(row) };
        if !matches!(&row, Value::Array(row) if row.get(1) == Some(&Value::Nil)) {
            return Ok(row);
        }
        let (info, _) = layout.call_of(&Command::Info { queue: name }, &self.name)?;
        let [ready, leased] = fields(self.add_in_steps(&info, cursor).await?)?;
        let none = Value::Int(0);
        Ok(Value::Array(vec![Value::BulkString(name.to_vec()), ready, none.clone(), leased, none]))
    }

    async fn ack_in_slices(&self, call: &Call, form: ListForm) -> Result<Value, Refusal> {
        let (mut finished, mut before) = (Vec::new(), 0);
        for slice in slices_of(call, form) {
            for index in list(self.ask_slice(&slice, before).await?)? {
                finished.push(Value::Int((number(index)? + before as u64).cast_signed()));
            }
            before += SLICE;
        }
        Ok(Value::Array(finished))
    }

    /// Adds the numbers that the slices of a list answer, each once or in steps.
    async fn count_in_slices(&self, call: &Call, form: ListForm) -> Result<Value, Refusal> {
        let (mut sum, mut before) = (0, 0);
        for slice in slices_of(call, form) {
            let first = self.ask_slice(&slice, before).await?;
            sum += match first {
                Value::Array(_) => number(self.continue_steps(&slice, form.next, Ok(first)).await?)?,
                first => number(first)?,
            };
            before += SLICE;
        }
        Ok(Value::Int(sum.cast_signed()))
    }

    /// Sends one slice of a list. If earlier slices were executed, a refusal cannot mean that nothing was done.
    async fn ask_slice(&self, slice: &Call, done_before: usize) -> Result<Value, Refusal> {
        self.ask(slice).await.map_err(|no| if done_before > 0 { partly_done(no) } else { no })
    }

    /// Sends one call about one store; returns its answer, which may be a refusal of its script.
    pub async fn call(&self, call: &Call, patience: Patience) -> Result<Value, Refusal> {
        self.link.send(&[call], patience).await.pop().unwrap_or(Err(Refusal::Closed))
    }

    /// Sends one call about one store; returns its answer, or as an error the refusal of its script.
    pub async fn ask(&self, call: &Call) -> Result<Value, Refusal> {
        let answer = self.call(call, Patience::Normal).await?;
        refusal(&answer).map_or(Ok(answer), Err)
    }

    /// Requeues deliveries at the front of a queue, so that their order is kept.
    pub(crate) async fn requeue(&self, queue: &[u8], tasks: &[Vec<u8>]) {
        for some in tasks.chunks(SLICE).rev() {
            let call = Call::about("requeue", queue).args(some.iter().cloned());
            // If this fails, the tasks are requeued when their leases or their holder end.
            let _ = self.call(&call, Patience::Normal).await;
        }
    }
}

/// The refusal of a command whose first steps were executed: it must not mean that nothing was done.
pub(crate) fn partly_done(no: Refusal) -> Refusal {
    match no {
        Refusal::Unavailable { why } => Refusal::Unknown { why },
        Refusal::WrongType { words } => {
            let why = format!("some of it was done before Redis said: WRONGTYPE {words}");
            Refusal::Unknown { why: why.into() }
        }
        Refusal::OutOfMemory => {
            let why = "some of it was done before the memory of Redis was full";
            Refusal::Unknown { why: why.into() }
        }
        other => other,
    }
}

/// The calls for the parts of a list.
fn slices_of(call: &Call, form: ListForm) -> impl Iterator<Item = Call> {
    let (head, items) = call.args.split_at(form.from);
    items.chunks(SLICE * form.width).map(move |some| {
        let mut slice = Call::new(call.op, call.queue.as_deref());
        slice.args = [head, some].concat();
        slice
    })
}

/// The limit of payload bytes of the next call, after this many bytes.
fn room_left(all_bytes: usize) -> Vec<u8> {
    SLICE_BYTES.min(limits::REPLY_BYTES_MAX.saturating_sub(all_bytes)).to_string().into_bytes()
}

/// The index of a task's queue in its call.
fn queue_of(task: &Value) -> Result<usize, UnexpectedAnswer> {
    let Value::Array(fields) = task else { return Err(UnexpectedAnswer) };
    fields.first().cloned().map_or(Err(UnexpectedAnswer), number).map(|queue| queue as usize)
}

/// The name of a listed queue.
fn name_of(row: &Value) -> Result<Vec<u8>, UnexpectedAnswer> {
    let Value::Array(fields) = row else { return Err(UnexpectedAnswer) };
    fields.first().cloned().map_or(Err(UnexpectedAnswer), bytes)
}

fn id_of(task: &Value) -> Result<Vec<u8>, UnexpectedAnswer> {
    let Value::Array(fields) = task else { return Err(UnexpectedAnswer) };
    fields.get(1).cloned().map_or(Err(UnexpectedAnswer), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_refusal_after_the_first_step_means_that_nothing_was_done() {
        let why = || "why".into();
        for no in
            [Refusal::Unavailable { why: why() }, Refusal::WrongType { words: why() }, Refusal::OutOfMemory]
        {
            let after = partly_done(no.clone());
            assert!(matches!(after, Refusal::Unknown { .. }), "{no:?}: {after:?}");
        }
    }
}
