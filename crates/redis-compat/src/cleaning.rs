//! Cleaning: requeues tasks whose clients are gone.
//!
//! In the layouts of other programs nothing in Redis notices that a client is gone. Every home therefore cleans the
//! queues that it pops from now and then, one home at a time, and a caller can clean all queues. Each layout has its
//! own cleaning.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use redis::Value;
use sureq_core::Refusal;
use sureq_home_api::elsewhere::PopOf;
use sureq_home_api::{CleanReport, CleanedQueue};
pub(crate) use sureq_home_api::{Cleaned, Cleaning};
use sureq_redis::layout::{AnswerForm, Call, HomeThread, bytes, fields, list};
use tokio::sync::Notify;

/// How long a task must look abandoned before it counts as such: foreign clients take several steps.
pub(crate) const GAP_MS: u64 = 1_000;

/// How often a home cleans the queues that it pops from.
const EVERY_MS: u64 = 5_000;

/// How long one home holds the lock on cleaning.
pub(crate) const LOCK_MS: u64 = 4_500;

/// How long after the last pop a home cleans a queue.
const WATCH_MS: u64 = 600_000;

/// The most queues that a home cleans by itself.
const WATCHED_MAX: usize = 1_000;

/// How many ids one step looks at.
pub(crate) const PAGE: usize = 100;

/// The result for each queue.
pub(crate) type Outcomes = BTreeMap<Vec<u8>, Result<Cleaned, Refusal>>;

/// The queues that a home cleans by itself.
#[derive(Default)]
pub(crate) struct Cleaner {
    queues: RefCell<BTreeMap<Vec<u8>, Watched>>,
    /// Notifies that a queue was added.
    changed: Notify,
}

/// A queue that this home pops from.
struct Watched {
    popped_ms: u64,
    due_ms: u64,
}

impl Cleaner {
    /// Cleans a queue from now on.
    pub(crate) fn watch(&self, home: &HomeThread, queue: &[u8]) {
        let now = home.now_ms();
        let mut queues = self.queues.borrow_mut();
        if let Some(watched) = queues.get_mut(queue) {
            watched.popped_ms = now;
        } else if queues.len() < WATCHED_MAX {
            queues.insert(queue.to_vec(), Watched { popped_ms: now, due_ms: now + EVERY_MS });
            self.changed.notify_one();
        }
    }

    /// Cleans the queues of pops from now on.
    pub(crate) fn watch_pops(
        &self,
        home: &HomeThread,
        calls: &[Result<(Call, AnswerForm), Refusal>],
        pops: &[PopOf],
    ) {
        let is_sent = |pop: &&PopOf| matches!(calls.get(pop.command), Some(Ok(_)));
        for queue in pops.iter().filter(is_sent).flat_map(|pop| &*pop.queues) {
            self.watch(home, queue);
        }
    }

    fn due(&self, now_ms: u64) -> Vec<Vec<u8>> {
        let queues = self.queues.borrow();
        queues
            .iter()
            .filter(|(_, watched)| watched.due_ms <= now_ms)
            .map(|(queue, _)| queue.clone())
            .collect()
    }

    fn next_due(&self) -> Option<u64> {
        self.queues.borrow().values().map(|watched| watched.due_ms).min()
    }

    /// Schedules the next cleaning of a queue. Queues without recent pops are dropped.
    fn plan(&self, queue: &[u8], now_ms: u64, left: usize) {
        let mut queues = self.queues.borrow_mut();
        if let Some(watched) = queues.get_mut(queue) {
            watched.due_ms = now_ms + if left > 0 { GAP_MS } else { EVERY_MS };
            if left == 0 && watched.popped_ms + WATCH_MS < now_ms {
                queues.remove(queue);
            }
        }
    }
}

/// A session that cleans the queues that its home pops from.
pub(crate) trait Cleans {
    fn cleaner(&self) -> &Cleaner;

    /// Cleans queues. Returns for each how many ids must be looked at again soon.
    async fn clean_some(&self, home: &HomeThread, queues: &[Vec<u8>]) -> BTreeMap<Vec<u8>, usize>;
}

/// Cleans the queues that this home pops from, while it is open.
pub(crate) async fn keep_clean<S: Cleans>(session: Rc<S>, home: Rc<HomeThread>) {
    let cleaner = session.cleaner();
    loop {
        let due = cleaner.due(home.now_ms());
        if !due.is_empty() {
            let left = session.clean_some(&home, &due).await;
            let now = home.now_ms();
            for queue in due {
                if home.waiters().is_wanted(&queue) {
                    cleaner.watch(&home, &queue);
                }
                cleaner.plan(&queue, now, left.get(&queue).copied().unwrap_or_default());
            }
        }
        let now = home.now_ms();
        match cleaner.next_due() {
            Some(at) => {
                let wait = Duration::from_millis(at.saturating_sub(now));
                // The timeout and the notification both lead to the next round.
                let _ = tokio::time::timeout(wait, cleaner.changed.notified()).await;
            }
            None => cleaner.changed.notified().await,
        }
    }
}

/// The report about queues that were cleaned.
pub(crate) fn report(outcomes: Outcomes, marks: u64) -> CleanReport {
    let queues = outcomes.into_iter().map(|(queue, outcome)| CleanedQueue { queue, outcome }).collect();
    CleanReport { queues, marks }
}

/// Waits for the time between two looks.
pub(crate) async fn gap() {
    tokio::time::sleep(Duration::from_millis(GAP_MS + 1)).await;
}

pub(crate) async fn all_queues(home: &HomeThread) -> Result<BTreeSet<Vec<u8>>, Refusal> {
    let mut queues = BTreeSet::new();
    let call = |cursor| Call::new("queues", None).arg(cursor).arg("1000");
    pages(home, call, |rows| {
        for row in rows {
            let [name, ..] = fields::<5>(row)?;
            queues.insert(bytes(name)?);
        }
        Ok(())
    })
    .await?;
    Ok(queues)
}

/// Sends a call for each page; the answer begins with the cursor of the next one.
pub(crate) async fn pages(
    home: &HomeThread,
    call: impl Fn(Vec<u8>) -> Call,
    mut take: impl FnMut(Vec<Value>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut cursor = b"0".to_vec();
    loop {
        let mut rest = list(home.ask(&call(cursor)).await?)?.into_iter();
        cursor = bytes(rest.next().unwrap_or(Value::Nil))?;
        take(rest.collect())?;
        if cursor == b"0" {
            return Ok(());
        }
    }
}

/// Adds the ids of a list.
pub(crate) fn add_ids(ids: &mut BTreeSet<Vec<u8>>, found: Value) -> Result<(), Refusal> {
    for id in list(found)? {
        ids.insert(bytes(id)?);
    }
    Ok(())
}

/// Sends a call whose answer has this number of parts.
pub(crate) async fn ask<const N: usize>(home: &HomeThread, call: &Call) -> Result<[Value; N], Refusal> {
    Ok(fields(home.ask(call).await?)?)
}
