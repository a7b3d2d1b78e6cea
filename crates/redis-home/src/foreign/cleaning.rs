//! Cleaning: what somebody took and will not finish comes back.
//!
//! Redis notices nothing of the kind in the keys of other programs. Here is what their layouts have in common: every home that
//! pops from a queue cleans it now and then, one home at a time, and whoever asks for it can have all queues cleaned. What there
//! is to clean, and how, is the layout's business.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use redis::Value;
use sureq_core::Refusal;
use sureq_home_api::{CleanReport, CleanedQueue};
pub(crate) use sureq_home_api::{Cleaned, Cleaning};
use tokio::sync::Notify;

use crate::foreign::redis_queue;
use crate::foreign::work_queue;
use crate::foreign::worqr;
use crate::layout::Layout;
use crate::script::answer::{bytes, fields, list, refusal};
use crate::script::call::Call;
use crate::thread::HomeThread;

/// How long something has to be as if nobody had it, before it is believed: foreign clients take several steps.
pub(crate) const GAP_MS: u64 = 1_000;

/// How often a home cleans the queues that it pops from.
const EVERY_MS: u64 = 5_000;

/// For how long other homes leave the cleaning to the one that does it.
pub(crate) const LOCK_MS: u64 = 4_500;

/// For how long after the last pop a home cleans a queue.
const WATCH_MS: u64 = 600_000;

/// How many queues a home cleans by itself.
const WATCHED_MAX: usize = 1_000;

/// How many ids a step looks at.
pub(crate) const PAGE: usize = 100;

/// What came of each queue.
pub(crate) type Outcomes = BTreeMap<Vec<u8>, Result<Cleaned, Refusal>>;

/// Ids and when they were first seen, by the monotonic clock.
pub(crate) type Sightings = BTreeMap<Vec<u8>, u64>;

/// What a home remembers from one cleaning to the next.
#[derive(Default)]
pub(crate) struct Cleaner {
    queues: RefCell<BTreeMap<Vec<u8>, Watched>>,
    /// What was seen without a lease, by queue.
    pub(crate) bare: RefCell<BTreeMap<Vec<u8>, Sightings>>,
    /// One pass after the other, since each needs what the last one has seen.
    pub(crate) passes: tokio::sync::Mutex<()>,
    /// There is another queue.
    changed: Notify,
}

/// A queue that this home pops from.
struct Watched {
    popped_ms: u64,
    due_ms: u64,
}

impl Cleaner {
    /// Has a queue cleaned from now on.
    pub(crate) fn watch(&self, home: &HomeThread, queue: &[u8]) {
        let now = home.link.clock.monotonic_ms();
        let mut queues = self.queues.borrow_mut();
        if let Some(watched) = queues.get_mut(queue) {
            watched.popped_ms = now;
        } else if queues.len() < WATCHED_MAX {
            queues.insert(queue.to_vec(), Watched { popped_ms: now, due_ms: now + EVERY_MS });
            self.changed.notify_one();
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

    /// Says when to clean a queue again, or never if nobody has popped from it for long.
    fn plan(&self, queue: &[u8], now_ms: u64, left: usize) {
        let mut queues = self.queues.borrow_mut();
        if let Some(watched) = queues.get_mut(queue) {
            watched.due_ms = now_ms + if left > 0 { GAP_MS } else { EVERY_MS };
            if left == 0 && watched.popped_ms + WATCH_MS < now_ms {
                queues.remove(queue);
                self.bare.borrow_mut().remove(queue);
            }
        }
    }
}

/// Cleans what this home pops from, for as long as it is open.
pub(crate) async fn keep_clean(home: Rc<HomeThread>) {
    loop {
        let due = home.cleaner.due(home.link.clock.monotonic_ms());
        if !due.is_empty() {
            let left = match home.link.target.layout {
                Layout::WorkQueue { .. } => work_queue::cleaning::keep_clean(&home, &due).await,
                Layout::Worqr => {
                    worqr::cleaning::keep_clean(&home, &due).await;
                    BTreeMap::new()
                }
                Layout::Sureq | Layout::RedisQueue(_) => BTreeMap::new(),
            };
            let now = home.link.clock.monotonic_ms();
            for queue in due {
                if home.waiters.is_wanted(&queue) {
                    home.cleaner.watch(&home, &queue);
                }
                home.cleaner.plan(&queue, now, left.get(&queue).copied().unwrap_or_default());
            }
        }
        let now = home.link.clock.monotonic_ms();
        match home.cleaner.next_due() {
            Some(at) => {
                let wait = Duration::from_millis(at.saturating_sub(now));
                // Whichever comes first.
                let _ = tokio::time::timeout(wait, home.cleaner.changed.notified()).await;
            }
            None => home.cleaner.changed.notified().await,
        }
    }
}

/// Cleans these queues, or all there are.
pub(crate) async fn clean(
    home: &HomeThread,
    queues: Vec<Vec<u8>>,
    how: Cleaning,
) -> Result<CleanReport, Refusal> {
    let is_all = queues.is_empty();
    let queues: BTreeSet<Vec<u8>> = match home.link.target.layout {
        Layout::Sureq => {
            let what = "cleaning: nothing is left lying in its keys";
            return Err(Refusal::not_there(what, "layout=sureq"));
        }
        _ if !is_all => queues.into_iter().collect(),
        Layout::WorkQueue { .. } => {
            let mut queues = all_queues(home).await?;
            if how == Cleaning::Deep {
                queues.append(&mut work_queue::cleaning::unlisted_queues(home).await?);
            }
            queues
        }
        Layout::Worqr => {
            // Queues that nobody has noted are found by what is worked on.
            let mut queues = all_queues(home).await?;
            if how == Cleaning::Deep {
                queues.append(&mut worqr::cleaning::adopt(home).await?.queues);
            }
            queues
        }
        Layout::RedisQueue(_) => redis_queue::cleaning::used_queues(home).await?,
    };
    let mut marks = 0;
    let outcomes = match home.link.target.layout {
        Layout::RedisQueue(_) => redis_queue::cleaning::clean(home, &queues, how).await,
        Layout::Worqr => {
            if how == Cleaning::Deep {
                if is_all {
                    marks = worqr::cleaning::remove_marks(home, &queues).await?;
                } else {
                    worqr::cleaning::adopt(home).await?;
                }
            }
            worqr::cleaning::clean(home, &queues).await?
        }
        Layout::Sureq | Layout::WorkQueue { .. } => work_queue::cleaning::clean(home, &queues, how).await,
    };
    let queues = outcomes.into_iter().map(|(queue, outcome)| CleanedQueue { queue, outcome }).collect();
    Ok(CleanReport { queues, marks })
}

/// Waits until what was seen may be believed if it is seen again.
pub(crate) async fn gap() {
    tokio::time::sleep(Duration::from_millis(GAP_MS + 1)).await;
}

async fn all_queues(home: &HomeThread) -> Result<BTreeSet<Vec<u8>>, Refusal> {
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

/// Asks page after page; each begins with where the next one does.
pub(crate) async fn pages(
    home: &HomeThread,
    call: impl Fn(Vec<u8>) -> Call,
    mut take: impl FnMut(Vec<Value>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut cursor = b"0".to_vec();
    loop {
        let mut rest = list(ask_any(home, &call(cursor)).await?)?.into_iter();
        cursor = bytes(rest.next().unwrap_or(Value::Nil))?;
        take(rest.collect())?;
        if cursor == b"0" {
            return Ok(());
        }
    }
}

/// Adds the ids of a list to those that are known.
pub(crate) fn add_ids(ids: &mut BTreeSet<Vec<u8>>, found: Value) -> Result<(), Refusal> {
    for id in list(found)? {
        ids.insert(bytes(id)?);
    }
    Ok(())
}

pub(crate) async fn ask<const N: usize>(home: &HomeThread, call: &Call) -> Result<[Value; N], Refusal> {
    Ok(fields(ask_any(home, call).await?)?)
}

pub(crate) async fn ask_any(home: &HomeThread, call: &Call) -> Result<Value, Refusal> {
    let answer = home.link.ask(call).await?;
    refusal(&answer).map_or(Ok(answer), Err)
}
