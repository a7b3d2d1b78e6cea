//! Commands about several stores. In a cluster whose prefix has no slot tag, each slot tag is a store of its own
//! (`keys`): a command about several stores becomes one call for each, and queues are listed store by store. Commands
//! for which that is impossible are refused by name.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use redis::Value;
use sureq_core::command::{Command, Pop};
use sureq_core::settings::Change;
use sureq_core::{Refusal, limits};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::connection::link::Patience;
use crate::connection::target::Target;
use crate::layout::own::{POP, POP_ROOM};
use crate::script::answer::{UnexpectedAnswer, bytes, list, number, refusal};
use crate::script::call::Call;
use crate::script::slices::{SLICE, partly_done};
use crate::thread::{HomeThread, Store};

/// How long this home relies on a store being listed. The script removes a store after an hour without use.
const LISTED_MS: u64 = 600_000;

/// How long a push waits for its store to be listed, and when the next push tries again if that failed.
const ENLISTING: Duration = Duration::from_millis(500);
const UNLISTED_MS: u64 = 5_000;

/// How many stores are asked at once.
const AT_ONCE: u64 = SLICE as u64;

/// How often the list is searched for unused stores.
const UNUSED: Duration = Duration::from_secs(3_600);

/// The state of this home about the list of stores.
#[derive(Default)]
pub(crate) struct Listed {
    /// Stores that this home has listed, and when it must list them again.
    until_ms: RefCell<BTreeMap<Vec<u8>, u64>>,
    /// Listed stores without recent pushes, which may be empty.
    unused: RefCell<BTreeSet<Vec<u8>>>,
    has_unused: Notify,
}

/// Refuses commands that cannot span stores.
pub(crate) fn check(target: &Target, command: &Command<'_>) -> Result<(), Refusal> {
    if !target.is_spread() {
        return Ok(());
    }
    let no = |what| Err(Refusal::not_there(what, "a cluster whose prefix has no slot tag"));
    match command {
        Command::Worker(_) => no("WORKER, which spans queues: write prefix={sureq}: to keep them together"),
        Command::Pop(Pop { lease, .. }) if lease.worker.is_some() => {
            no("POP WORKER, which spans queues: write prefix={sureq}: to keep them together")
        }
        Command::Config { queue, changes } => {
            let is_far = |change: Change<'_>| matches!(change, Change::DeadLetter(to) if !to.is_empty() && target.store_of(to) != target.store_of(queue));
            if changes.iter().any(is_far) {
                return no(
                    "DEAD-LETTER queue in another slot: call them {a}one and {a}two to keep them together",
                );
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Removes unused stores from the list, for as long as the home is open.
pub(crate) async fn keep_listed(home: Rc<HomeThread>) {
    loop {
        // The timeout and the notification both lead to the next round.
        let _ = timeout(UNUSED, home.listed.has_unused.notified()).await;
        // The next round removes what this one does not.
        let _ = home.sort_out_unused().await;
    }
}

impl HomeThread {
    /// Executes a call, in each store that it concerns.
    pub(crate) async fn execute(&self, call: &Call) -> Result<Value, Refusal> {
        match call.op {
            _ if !self.spans(call) => self.call(call, Patience::Normal).await,
            "pop" => self.pop_in_turn(call).await,
            "queues" => self.list_queues(call).await,
            "size" => self.count_queues().await,
            _ => self.sum(call).await,
        }
    }

    /// Executes a pop in one store, without waiting for servers that cannot be reached.
    pub(crate) async fn try_pop(&self, call: &Call, store: &Store) -> Result<Value, Refusal> {
        if store.is_none() {
            return Ok(Value::Array(self.pop_in_slices(call, Patience::Short).await?.tasks));
        }
        let queues = call.args[POP.queues..].iter().enumerate();
        let there: Vec<(usize, &Vec<u8>)> =
            queues.filter(|(_, queue)| self.link.target.store_of(queue) == *store).collect();
        let mut part = Call::new("pop", store.as_deref()).args(call.args[..POP.queues].iter().cloned());
        part = part.args(there.iter().map(|(_, queue)| (*queue).clone()));
        let tasks = self.pop_in_slices(&part, Patience::Short).await?.tasks;
        Ok(Value::Array(numbered(Value::Array(tasks), |at| there.get(at).map_or(0, |(place, _)| *place))?))
    }

    /// Whether a call is about more than one store.
    pub(crate) fn spans(&self, call: &Call) -> bool {
        let target = &self.link.target;
        target.is_spread()
            && match call.op {
                "pop" => self.runs(call).len() > 1,
                "exists" | "drop" => call.args.len() > 1,
                "queues" | "size" => true,
                _ => false,
            }
    }

    /// The runs of queues in a pop that are in the same store: first index and length.
    fn runs(&self, call: &Call) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        let mut last = None;
        for (at, queue) in call.args[POP.queues..].iter().enumerate() {
            let store = self.link.target.store_of(queue);
            match runs.last_mut() {
                Some((_, len)) if last == store => *len += 1,
                _ => runs.push((at, 1)),
            }
            last = store;
        }
        runs
    }

    /// Executes a pop over several stores, one after the other until it has enough. It is not atomic across stores.
    async fn pop_in_turn(&self, call: &Call) -> Result<Value, Refusal> {
        let (mut tasks, mut room, mut failed) = (Vec::new(), limits::REPLY_BYTES_MAX, None);
        let count = sureq_core::id::decimal(&call.args[POP.count]).unwrap_or(1) as usize;
        for (from, len) in self.runs(call) {
            if tasks.len() >= count || room == 0 {
                break;
            }
            let queues = &call.args[POP.queues + from..POP.queues + from + len];
            let mut some = Call::new("pop", queues.first().map(|queue| &queue[..]));
            some.args = [&call.args[..POP.queues], queues].concat();
            some.args[POP.count] = (count - tasks.len()).to_string().into_bytes();
            some.args[POP_ROOM.all] = room.to_string().into_bytes();
            if !tasks.is_empty() {
                some.args[POP_ROOM.first] = room.to_string().into_bytes();
            }
            match self.pop_in_slices(&some, Patience::Normal).await {
                Ok(popped) => {
                    room = room.saturating_sub(popped.tasks.iter().map(size).sum());
                    tasks.extend(numbered(Value::Array(popped.tasks), |at| at + from)?);
                    if popped.is_full {
                        break;
                    }
                }
                // It is unknown which tasks it took there.
                Err(no @ Refusal::Unknown { .. }) => {
                    self.requeue_popped(call, tasks).await;
                    return Err(no);
                }
                Err(no) => failed = Some(no),
            }
        }
        match failed {
            // Tasks of other stores are delivered anyway.
            Some(no) if tasks.is_empty() => Err(no),
            _ => Ok(Value::Array(tasks)),
        }
    }

    /// Executes a call for each queue, and adds the numbers. If some queues may be dropped, a refusal cannot mean that
    /// nothing was done.
    async fn sum(&self, call: &Call) -> Result<Value, Refusal> {
        let each: Vec<Call> = call.args.iter().map(|queue| Call::about(call.op, queue)).collect();
        let answers = self.link.send(&each.iter().collect::<Vec<_>>(), Patience::Normal).await;
        let may_be_done = |answer: &Result<Value, Refusal>| {
            matches!(answer, Ok(Value::Int(_)) | Err(Refusal::Unknown { .. }))
        };
        let is_partly_done = call.op == "drop" && answers.iter().any(may_be_done);
        let mut sum = 0;
        for answer in answers {
            let answer = answer.and_then(|answer| refusal(&answer).map_or(Ok(answer), Err));
            sum += number(answer.map_err(|no| if is_partly_done { partly_done(no) } else { no })?)?;
        }
        Ok(Value::Int(sum.cast_signed()))
    }

    /// Lists the stores of queues that are about to be pushed to. A push waits only briefly for this; if it fails, a
    /// later push repeats it.
    pub(crate) async fn enlist(&self, calls: &[&Call]) {
        if !self.link.target.is_spread() {
            return;
        }
        let now = self.link.clock.monotonic_ms();
        let until_ms = &self.listed.until_ms;
        let is_listed = |store: &Vec<u8>| until_ms.borrow().get(store).is_some_and(|until| now < *until);
        let pushes = calls.iter().filter(|call| matches!(call.op, "push" | "add"));
        let stores = pushes.filter_map(|call| self.link.target.store_of(call.queue.as_deref()?));
        let new: BTreeSet<Vec<u8>> = stores.filter(|store| !is_listed(store)).collect();
        if new.is_empty() {
            return;
        }
        let call = Call::new("enlist", None).args(new.iter().cloned());
        let enlisted = timeout(ENLISTING, self.call(&call, Patience::Short)).await;
        let until = now + if matches!(enlisted, Ok(Ok(_))) { LISTED_MS } else { UNLISTED_MS };
        if let Ok(Ok(unused)) = enlisted {
            self.note_unused(unused);
        }
        let mut listed = self.listed.until_ms.borrow_mut();
        listed.retain(|_, until| now < *until);
        listed.extend(new.into_iter().map(|store| (store, until)));
    }

    fn note_unused(&self, answer: Value) {
        if refusal(&answer).is_some() {
            return;
        }
        let unused = list(answer).unwrap_or_default().into_iter().filter_map(|store| bytes(store).ok());
        self.listed.unused.borrow_mut().extend(unused);
        if !self.listed.unused.borrow().is_empty() {
            self.listed.has_unused.notify_one();
        }
    }

    /// Removes empty stores from the list, and lists the others again.
    async fn sort_out_unused(&self) -> Result<(), Refusal> {
        let unused: Vec<Vec<u8>> = self.listed.unused.take().into_iter().collect();
        let asked: Vec<Call> = unused.iter().map(|store| Call::new("size", Some(store))).collect();
        let sizes = self.link.send(&asked.iter().collect::<Vec<_>>(), Patience::Normal).await;
        let (mut empty, mut used) = (Call::new("delist", None), Call::new("enlist", None));
        for (store, size) in unused.into_iter().zip(sizes) {
            if number(size?)? == 0 {
                empty = empty.arg(store);
            } else {
                used = used.arg(store);
            }
        }
        self.call(&empty, Patience::Normal).await?;
        // The answer may name more unused stores.
        self.note_unused(self.call(&used, Patience::Normal).await?);
        Ok(())
    }

    /// Listed stores from a cursor on, and the next cursor.
    async fn stores(&self, cursor: Vec<u8>, count: u64) -> Result<(Vec<u8>, Vec<Vec<u8>>), Refusal> {
        let call = Call::new("stores", None).field("cursor", cursor).field("count", count.to_string());
        let mut answer = list(self.ask(&call).await?)?.into_iter();
        let cursor = bytes(answer.next().ok_or(UnexpectedAnswer)?)?;
        Ok((cursor, answer.map(bytes).collect::<Result<_, _>>()?))
    }

    /// Lists queues store by store; the count is a number of stores.
    async fn list_queues(&self, call: &Call) -> Result<Value, Refusal> {
        let [cursor, count] = &call.args[..] else { return Err(UnexpectedAnswer.into()) };
        let (mut cursor, mut left) = (cursor.clone(), sureq_core::id::decimal(count).unwrap_or(1).max(1));
        let mut rows = Vec::new();
        while left > 0 {
            let asked = left.min(AT_ONCE);
            cursor = self.list_some_stores(cursor, asked, &mut rows).await?;
            if cursor == b"0" {
                break;
            }
            left -= asked;
        }
        rows.insert(0, Value::BulkString(cursor));
        Ok(Value::Array(rows))
    }

    /// Adds the queues of some stores from a cursor on; returns the next cursor.
    async fn list_some_stores(
        &self,
        cursor: Vec<u8>,
        count: u64,
        rows: &mut Vec<Value>,
    ) -> Result<Vec<u8>, Refusal> {
        let (next, stores) = self.stores(cursor, count).await?;
        let mut empty = Vec::new();
        let asked: Vec<Call> = stores.iter().map(|store| queues_call(store, b"0".to_vec())).collect();
        let answers = self.link.send(&asked.iter().collect::<Vec<_>>(), Patience::Normal).await;
        for (store, answer) in stores.into_iter().zip(answers) {
            let before = rows.len();
            rows.extend(self.rest_of(&store, answer?).await?);
            if rows.len() == before {
                empty.push(store);
            }
        }
        if !empty.is_empty() {
            // The next round removes what this one does not.
            let _ = self.call(&Call::new("delist", None).args(empty), Patience::Normal).await;
        }
        Ok(next)
    }

    /// All queues of a store, of which this is the first answer.
    async fn rest_of(&self, store: &[u8], first: Value) -> Result<Vec<Value>, Refusal> {
        let (mut rows, mut answer) = (Vec::new(), first);
        loop {
            if let Some(no) = refusal(&answer) {
                return Err(no);
            }
            let mut some = list(answer)?.into_iter();
            let cursor = bytes(some.next().ok_or(UnexpectedAnswer)?)?;
            rows.extend(some);
            if cursor == b"0" {
                return Ok(rows);
            }
            answer = self.call(&queues_call(store, cursor), Patience::Normal).await?;
        }
    }

    async fn count_queues(&self) -> Result<Value, Refusal> {
        let (mut sum, mut cursor) = (0, b"0".to_vec());
        loop {
            let (next, stores) = self.stores(cursor, AT_ONCE).await?;
            let asked: Vec<Call> = stores.iter().map(|store| Call::new("size", Some(store))).collect();
            for answer in self.link.send(&asked.iter().collect::<Vec<_>>(), Patience::Normal).await {
                sum += number(answer?)?;
            }
            if next == b"0" {
                return Ok(Value::Int(sum.cast_signed()));
            }
            cursor = next;
        }
    }
}

/// Lists the queues of a store from a cursor on.
fn queues_call(store: &[u8], cursor: Vec<u8>) -> Call {
    Call::new("queues", Some(store)).field("cursor", cursor).field("count", AT_ONCE.to_string())
}

/// Calls every listed store once, so that it notices a start of its server now and not with the next command. A store
/// that misses the call notices it with its next call.
pub(crate) async fn notice_restarts(home: &HomeThread) {
    let mut cursor = b"0".to_vec();
    while let Ok((next, stores)) = home.stores(cursor, AT_ONCE).await {
        let calls: Vec<Call> = stores.iter().map(|store| Call::new("epoch", Some(store))).collect();
        home.link.send(&calls.iter().collect::<Vec<_>>(), Patience::Normal).await;
        if next == b"0" {
            return;
        }
        cursor = next;
    }
}

/// Replaces the queue index in each task.
pub(crate) fn numbered(
    answer: Value,
    place: impl Fn(usize) -> usize,
) -> Result<Vec<Value>, UnexpectedAnswer> {
    let number_one = |task: Value| {
        let mut task = list(task)?;
        let queue = task.first_mut().ok_or(UnexpectedAnswer)?;
        *queue = Value::Int((place(number(queue.clone())? as usize) as u64).cast_signed());
        Ok(Value::Array(task))
    };
    list(answer)?.into_iter().map(number_one).collect()
}

/// The payload bytes of a task.
pub(crate) fn size(task: &Value) -> usize {
    let Value::Array(fields) = task else { return 0 };
    if let Some(Value::BulkString(body)) = fields.get(2) { body.len() } else { 0 }
}
