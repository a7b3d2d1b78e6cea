//! Cleaning: what somebody took and will not finish comes back.
//!
//! An item whose lease ran out still stands among those that are processed, and nothing in Redis notices. A light cleaning goes
//! through those, and puts what has no lease at the end of the queue. A foreign client sets its lease a moment after it took an
//! id; so an item is brought back only when it was seen without a lease twice, at least a second apart. A deep cleaning also
//! finds items that are in no list, which a client leaves behind that dies while it adds one, and ids in the queue that have no
//! item. All of it goes in steps of a hundred ids.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use redis::Value;
use sureq_core::Refusal;
use tokio::sync::Notify;

use crate::answer::{bytes, fields, list, number, refusal};
use crate::call::Call;
use crate::thread::Inner;

/// How long an item has to be without a lease.
const GAP_MS: u64 = 1_000;

/// How often a home cleans the queues that it pops from.
const EVERY_MS: u64 = 5_000;

/// For how long other homes leave the cleaning to the one that does it.
const LOCK_MS: u64 = 4_500;

/// For how long after the last pop a home cleans a queue.
const WATCH_MS: u64 = 600_000;

/// How many queues a home cleans by itself.
const WATCHED_MAX: usize = 1_000;

/// How many ids a step looks at.
const PAGE: usize = 100;

/// How thoroughly to clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaning {
    /// What was taken and is not leased comes back.
    Light,
    /// Items in no list come back too, and ids without an item go. Looks at every key of the database.
    Deep,
}

/// What a cleaning did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Tasks that can be popped again.
    pub returned: u64,
    /// Ids that stood for nothing.
    pub removed: u64,
}

/// When ids were first seen, by the monotonic clock.
type Sightings = BTreeMap<Vec<u8>, u64>;

/// What a home remembers from one cleaning to the next.
#[derive(Default)]
pub(crate) struct Cleaner {
    queues: RefCell<BTreeMap<Vec<u8>, Watched>>,
    /// What was seen without a lease, by queue.
    bare: RefCell<BTreeMap<Vec<u8>, Sightings>>,
    /// One pass after the other, since each needs what the last one has seen.
    passes: tokio::sync::Mutex<()>,
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
    pub(crate) fn watch(&self, inner: &Inner, queue: &[u8]) {
        let now = inner.link.clock.monotonic_ms();
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
pub(crate) async fn keep_clean(inner: Rc<Inner>) {
    loop {
        let now = inner.link.clock.monotonic_ms();
        for queue in inner.cleaner.due(now) {
            // A Redis that is away, or a queue of old clients, is tried again.
            let left = match light(&inner, &queue, Some(LOCK_MS)).await {
                Ok(Some(pass)) => pass.left,
                Ok(None) | Err(_) => 0,
            };
            if inner.line.is_wanted(&queue) {
                inner.cleaner.watch(&inner, &queue);
            }
            inner.cleaner.plan(&queue, inner.link.clock.monotonic_ms(), left);
        }
        let now = inner.link.clock.monotonic_ms();
        match inner.cleaner.next_due() {
            Some(at) => {
                let wait = Duration::from_millis(at.saturating_sub(now));
                // Whichever comes first.
                let _ = tokio::time::timeout(wait, inner.cleaner.changed.notified()).await;
            }
            None => inner.cleaner.changed.notified().await,
        }
    }
}

/// Cleans these queues, or all there are.
pub(crate) async fn clean(inner: &Inner, queues: Vec<Vec<u8>>, how: Cleaning) -> Result<Cleaned, Refusal> {
    if !inner.link.target.layout.moves() {
        return Ok(Cleaned::default());
    }
    let queues = if queues.is_empty() { all_queues(inner).await? } else { queues.into_iter().collect() };
    let (mut cleaned, mut first_no) = (Cleaned::default(), None);
    let mut left: BTreeMap<&[u8], Vec<Vec<u8>>> = BTreeMap::new();
    for queue in &queues {
        match first_pass(inner, queue, how, &mut cleaned).await {
            Ok(None) => {}
            Ok(Some(orphans)) => {
                left.insert(queue, orphans);
            }
            Err(no) => first_no = first_no.or(Some(no)),
        }
    }
    if !left.is_empty() {
        tokio::time::sleep(Duration::from_millis(GAP_MS + 1)).await;
    }
    for (queue, orphans) in left {
        if let Some(pass) = light(inner, queue, None).await? {
            cleaned.add(&pass);
        }
        for page in orphans.chunks(PAGE) {
            let call = Call::about("adopt", queue).arg("1").args(page.iter().cloned());
            let [adopted] = ask(inner, &call).await?;
            cleaned.returned += list(adopted)?.len() as u64;
        }
    }
    first_no.map_or(Ok(cleaned), Err)
}

/// Looks at a queue for the first time. Answers, if something has to be looked at again, which items are in no list.
async fn first_pass(
    inner: &Inner,
    queue: &[u8],
    how: Cleaning,
    cleaned: &mut Cleaned,
) -> Result<Option<Vec<Vec<u8>>>, Refusal> {
    let mut left = 0;
    if let Some(pass) = light(inner, queue, None).await? {
        cleaned.add(&pass);
        left = pass.left;
    }
    let mut orphans = Vec::new();
    if how == Cleaning::Deep {
        let mut waiting = BTreeSet::new();
        cleaned.removed += prune(inner, queue, &mut waiting).await?;
        orphans = find_orphans(inner, queue, &waiting).await?;
    }
    Ok((left > 0 || !orphans.is_empty()).then_some(orphans))
}

impl Cleaned {
    fn add(&mut self, pass: &Pass) {
        self.returned += pass.returned;
        self.removed += pass.removed;
    }
}

/// What one pass through what is processed came to.
#[derive(Default)]
struct Pass {
    returned: u64,
    removed: u64,
    /// How many were seen without a lease and have to be seen again.
    left: usize,
}

/// Goes through what is processed; nothing, if another home does it.
async fn light(inner: &Inner, queue: &[u8], lock_ms: Option<u64>) -> Result<Option<Pass>, Refusal> {
    let _turn = inner.cleaner.passes.lock().await;
    let mut seen_before = inner.cleaner.bare.borrow_mut().remove(queue).unwrap_or_default();
    let (mut pass, mut seen_now, mut offset) = (Pass::default(), Sightings::new(), 0);
    loop {
        let lock = lock_ms.filter(|_| offset == 0).map(|ms| ms.to_string()).unwrap_or_default();
        let asked_ms = inner.link.clock.monotonic_ms();
        let answer = ask_any(inner, &Call::about("look", queue).number(offset).arg(lock)).await?;
        if matches!(&answer, Value::BulkString(word) if word == b"busy") {
            return Ok(None);
        }
        let [seen, ghosts, bare] = fields(answer)?;
        let (seen, ghosts) = (number(seen)?, number(ghosts)?);
        let answered_ms = inner.link.clock.monotonic_ms();
        let mut ripe = Vec::new();
        for id in list(bare)? {
            let id = bytes(id)?;
            match seen_before.remove(&id) {
                Some(first_ms) if asked_ms >= first_ms + GAP_MS => ripe.push(id),
                Some(first_ms) => {
                    seen_now.insert(id, first_ms);
                }
                None => {
                    seen_now.insert(id, answered_ms);
                }
            }
        }
        let mut returned = 0;
        if !ripe.is_empty() {
            returned = number(ask_any(inner, &Call::about("take_back", queue).args(ripe)).await?)?;
        }
        pass.returned += returned;
        pass.removed += ghosts;
        // What is gone is not passed over; what comes, comes at the other end.
        offset += seen.saturating_sub(ghosts + returned);
        if seen < PAGE as u64 {
            break;
        }
    }
    pass.left = seen_now.len();
    if pass.left > 0 {
        inner.cleaner.bare.borrow_mut().insert(queue.to_vec(), seen_now);
    }
    Ok(Some(pass))
}

/// Goes through the queue, and notes which ids are there. Answers how many stood for nothing.
async fn prune(inner: &Inner, queue: &[u8], waiting: &mut BTreeSet<Vec<u8>>) -> Result<u64, Refusal> {
    let (mut removed, mut offset) = (0, 0);
    loop {
        let [ghosts, ids] = ask(inner, &Call::about("prune", queue).number(offset)).await?;
        let (ghosts, ids) = (number(ghosts)?, list(ids)?);
        let seen = ids.len();
        for id in ids {
            waiting.insert(bytes(id)?);
        }
        removed += ghosts;
        offset += (seen as u64).saturating_sub(ghosts);
        if seen < PAGE {
            return Ok(removed);
        }
    }
}

/// Items that are in no list.
async fn find_orphans(
    inner: &Inner,
    queue: &[u8],
    waiting: &BTreeSet<Vec<u8>>,
) -> Result<Vec<Vec<u8>>, Refusal> {
    let (mut orphans, mut cursor) = (BTreeSet::new(), b"0".to_vec());
    loop {
        let [next, ids] = ask(inner, &Call::about("items", queue).arg(cursor)).await?;
        let mut doubtful = Vec::new();
        for id in list(ids)? {
            let id = bytes(id)?;
            if !waiting.contains(&id) {
                doubtful.push(id);
            }
        }
        for page in doubtful.chunks(PAGE) {
            let call = Call::about("adopt", queue).arg("").args(page.iter().cloned());
            let [found] = ask(inner, &call).await?;
            for id in list(found)? {
                orphans.insert(bytes(id)?);
            }
        }
        cursor = bytes(next)?;
        if cursor == b"0" {
            return Ok(orphans.into_iter().collect());
        }
    }
}

async fn all_queues(inner: &Inner) -> Result<BTreeSet<Vec<u8>>, Refusal> {
    let (mut queues, mut cursor) = (BTreeSet::new(), b"0".to_vec());
    loop {
        let answer = ask_any(inner, &Call::new("queues", None).arg(cursor).arg("1000")).await?;
        let mut rows = list(answer)?.into_iter();
        cursor = bytes(rows.next().unwrap_or(Value::Nil))?;
        for row in rows {
            let [name, ..] = fields::<5>(row)?;
            queues.insert(bytes(name)?);
        }
        if cursor == b"0" {
            return Ok(queues);
        }
    }
}

async fn ask<const N: usize>(inner: &Inner, call: &Call) -> Result<[Value; N], Refusal> {
    Ok(fields(ask_any(inner, call).await?)?)
}

async fn ask_any(inner: &Inner, call: &Call) -> Result<Value, Refusal> {
    let answer = inner.link.ask(call).await?;
    refusal(&answer).map_or(Ok(answer), Err)
}
