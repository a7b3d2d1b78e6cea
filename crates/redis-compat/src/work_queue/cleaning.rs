//! Cleaning in the keys of redis-work-queue.
//!
//! An item whose lease has ended stays in the list of processed items, and nothing in Redis notices. A light cleaning
//! walks through that list, and puts items without a lease at the end of the queue. A foreign client sets its lease a
//! moment after it took an id, so an item is returned only if it had no lease twice, at least a second apart. A deep
//! cleaning also finds items in no list, left by a client that died while it added one, and ids in the queue without
//! an item. Each step looks at a hundred ids.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use redis::Value;
use sureq_core::Refusal;
use tokio::sync::Mutex;

use super::Session;

use crate::cleaning::{Cleaned, Cleaning, GAP_MS, LOCK_MS, Outcomes, PAGE, add_ids, ask, gap, pages};
use sureq_redis::layout::{Call, HomeThread, bytes, fields, list, number};

/// Ids, and when each was first seen on the monotonic clock.
type Sightings = BTreeMap<Vec<u8>, u64>;

/// Ids that were seen without a lease; they are requeued if that is still so at the next look.
#[derive(Default)]
pub(crate) struct BareIds {
    sightings: RefCell<BTreeMap<Vec<u8>, Sightings>>,
    /// Held during a pass, since each pass needs the sightings of the last one.
    passes: Mutex<()>,
}

/// Cleans the queues that this home pops from; returns for each how many ids must be looked at again soon.
pub(crate) async fn keep_clean(
    session: &Session,
    home: &HomeThread,
    queues: &[Vec<u8>],
) -> BTreeMap<Vec<u8>, usize> {
    let mut left = BTreeMap::new();
    for queue in queues {
        // Errors are ignored: the next round retries.
        if let Ok(Some(pass)) = light(session, home, queue, Some(LOCK_MS)).await {
            left.insert(queue.clone(), pass.left);
        }
    }
    left
}

/// Queues that have only items that are in no list.
pub(crate) async fn unlisted_queues(home: &HomeThread) -> Result<BTreeSet<Vec<u8>>, Refusal> {
    let mut queues = BTreeSet::new();
    let call = |cursor| Call::new("unlisted", None).arg(cursor);
    pages(home, call, |mut page| add_ids(&mut queues, page.pop().unwrap_or(Value::Nil))).await?;
    Ok(queues)
}

/// Cleans these queues.
pub(crate) async fn clean(
    session: &Session,
    home: &HomeThread,
    queues: &BTreeSet<Vec<u8>>,
    how: Cleaning,
) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut left: BTreeMap<&[u8], (Cleaned, Vec<Vec<u8>>)> = BTreeMap::new();
    for queue in queues {
        let mut cleaned = Cleaned::default();
        match first_pass(session, home, queue, how, &mut cleaned).await {
            Ok(None) => _ = outcomes.insert(queue.clone(), Ok(cleaned)),
            Ok(Some(orphans)) => _ = left.insert(queue, (cleaned, orphans)),
            Err(no) => _ = outcomes.insert(queue.clone(), Err(no)),
        }
    }
    if !left.is_empty() {
        gap().await;
    }
    for (queue, (cleaned, orphans)) in left {
        outcomes.insert(queue.to_vec(), second_pass(session, home, queue, cleaned, &orphans).await);
    }
    outcomes
}

/// The second look at a queue, which acts on the findings of the first one.
async fn second_pass(
    session: &Session,
    home: &HomeThread,
    queue: &[u8],
    mut cleaned: Cleaned,
    orphans: &[Vec<u8>],
) -> Result<Cleaned, Refusal> {
    if let Some(pass) = light(session, home, queue, None).await? {
        pass.add_to(&mut cleaned);
    }
    for page in orphans.chunks(PAGE) {
        let call = Call::about("adopt", queue).arg("1").args(page.iter().cloned());
        let [adopted] = ask(home, &call).await?;
        cleaned.returned += list(adopted)?.len() as u64;
    }
    Ok(cleaned)
}

/// The first look at a queue. If a second one is needed, returns items that are in no list.
async fn first_pass(
    session: &Session,
    home: &HomeThread,
    queue: &[u8],
    how: Cleaning,
    cleaned: &mut Cleaned,
) -> Result<Option<Vec<Vec<u8>>>, Refusal> {
    let mut left = 0;
    if let Some(pass) = light(session, home, queue, None).await? {
        pass.add_to(cleaned);
        left = pass.left;
    }
    let mut orphans = Vec::new();
    if how == Cleaning::Deep {
        let mut waiting = BTreeSet::new();
        cleaned.removed += prune(home, queue, &mut waiting).await?;
        orphans = find_orphans(home, queue, &waiting).await?;
    }
    Ok((left > 0 || !orphans.is_empty()).then_some(orphans))
}

/// The result of one pass through the processed items.
#[derive(Default)]
struct Pass {
    returned: u64,
    removed: u64,
    /// Ids without a lease that must be looked at again.
    left: usize,
}

impl Pass {
    fn add_to(&self, cleaned: &mut Cleaned) {
        cleaned.returned += self.returned;
        cleaned.removed += self.removed;
    }
}

/// Walks through the processed items; `None` if another home is doing so.
async fn light(
    session: &Session,
    home: &HomeThread,
    queue: &[u8],
    lock_ms: Option<u64>,
) -> Result<Option<Pass>, Refusal> {
    let _turn = session.bare.passes.lock().await;
    let mut seen_before = session.bare.sightings.borrow_mut().remove(queue).unwrap_or_default();
    let (mut pass, mut seen_now, mut offset) = (Pass::default(), Sightings::new(), 0);
    loop {
        let lock = lock_ms.filter(|_| offset == 0).map(|ms| ms.to_string()).unwrap_or_default();
        let asked_ms = home.now_ms();
        let answer = home.ask(&Call::about("look", queue).number(offset).arg(lock)).await?;
        if matches!(&answer, Value::BulkString(word) if word == b"busy") {
            return Ok(None);
        }
        let [seen, ghosts, bare] = fields(answer)?;
        let (seen, ghosts) = (number(seen)?, number(ghosts)?);
        let answered_ms = home.now_ms();
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
            returned = number(home.ask(&Call::about("requeue_unleased", queue).args(ripe)).await?)?;
        }
        pass.returned += returned;
        pass.removed += ghosts;
        // Removed ids do not count; new ids come at the other end.
        offset += seen.saturating_sub(ghosts + returned);
        if seen < PAGE as u64 {
            break;
        }
    }
    pass.left = seen_now.len();
    if pass.left > 0 {
        session.bare.sightings.borrow_mut().insert(queue.to_vec(), seen_now);
    }
    Ok(Some(pass))
}

/// Walks through the queue and collects its ids. Returns how many ids without an item were removed.
async fn prune(home: &HomeThread, queue: &[u8], waiting: &mut BTreeSet<Vec<u8>>) -> Result<u64, Refusal> {
    let (mut removed, mut offset) = (0, 0);
    loop {
        let [ghosts, ids] = ask(home, &Call::about("prune", queue).number(offset)).await?;
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
    home: &HomeThread,
    queue: &[u8],
    waiting: &BTreeSet<Vec<u8>>,
) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut ids = BTreeSet::new();
    let call = |cursor| Call::about("items", queue).arg(cursor);
    pages(home, call, |mut page| add_ids(&mut ids, page.pop().unwrap_or(Value::Nil))).await?;
    let doubtful: Vec<Vec<u8>> = ids.into_iter().filter(|id| !waiting.contains(id)).collect();
    let mut orphans = BTreeSet::new();
    for page in doubtful.chunks(PAGE) {
        let [found] = ask(home, &Call::about("adopt", queue).arg("").args(page.iter().cloned())).await?;
        add_ids(&mut orphans, found)?;
    }
    Ok(orphans.into_iter().collect())
}
