//! Cleaning in the keys of Worqr.
//!
//! A worker whose timer has run out is dead, and its tasks are requeued at the front. Worqr does not record which
//! worker holds a task of its own clients: such tasks are requeued when no live worker works on the queue. A deep
//! cleaning also finds processes in no set, left by races of foreign clients, and marks of unique tasks that are
//! gone, left by foreign cancels.

use std::collections::BTreeSet;

use redis::Value;
use sureq_core::Refusal;

use super::hash;
use crate::cleaning::{Cleaned, LOCK_MS, Outcomes, PAGE, add_ids, gap, pages};
use sureq_redis::layout::{Call, HomeThread, bytes, fields, list, number};

/// Cleans the queues that this home pops from.
pub(crate) async fn keep_clean(home: &HomeThread, queues: &[Vec<u8>]) {
    let lock = LOCK_MS.to_string();
    // Errors are ignored: the next round retries.
    let waiting = match ask_to_clean(home, &lock, queues).await {
        // One bad queue must not keep the others from being cleaned.
        Err(Refusal::WrongType { .. }) => {
            let mut sum = 0;
            for queue in queues.chunks(1) {
                sum += ask_to_clean(home, &lock, queue).await.map_or(0, |(_, waiting)| waiting);
            }
            sum
        }
        Ok((_, waiting)) => waiting,
        Err(_) => return,
    };
    // Foreign clients publish nothing when they requeue a task.
    if waiting > 0 && !home.waiters().is_empty() {
        home.waiters().wake();
    }
}

/// One step of cleaning: a row for each queue with requeued or removed tasks, and how many tasks wait. `None` if
/// another home is cleaning.
async fn ask_to_clean(
    home: &HomeThread,
    lock: &str,
    queues: &[Vec<u8>],
) -> Result<(Vec<Value>, u64), Refusal> {
    let call = Call::new("clean", None).arg(lock).args(queues.iter().cloned());
    let answer = home.ask(&call).await?;
    if matches!(&answer, Value::BulkString(word) if word == b"busy") {
        return Ok((Vec::new(), 0));
    }
    let [rows, waiting] = fields(answer)?;
    Ok((list(rows)?, number(waiting)?))
}

/// Cleans these queues. Tasks of dead workers are requeued, whichever queue they belong to.
pub(crate) async fn clean(home: &HomeThread, queues: &BTreeSet<Vec<u8>>) -> Result<Outcomes, Refusal> {
    let mut outcomes = Outcomes::new();
    let names: Vec<Vec<u8>> = queues.iter().cloned().collect();
    // Dead workers are removed even if there is no queue.
    let pages = if names.is_empty() { vec![&names[..]] } else { names.chunks(PAGE).collect() };
    for page in pages {
        match ask_to_clean(home, "", page).await {
            Ok((rows, _)) => add_rows(&mut outcomes, rows)?,
            // Cleaning one queue at a time shows which of them has the bad key.
            Err(Refusal::WrongType { .. }) if !page.is_empty() => {
                for queue in page.chunks(1) {
                    match ask_to_clean(home, "", queue).await {
                        Ok((rows, _)) => add_rows(&mut outcomes, rows)?,
                        Err(no) => _ = outcomes.insert(queue[0].clone(), Err(no)),
                    }
                }
            }
            Err(no) => return Err(no),
        }
    }
    Ok(outcomes)
}

fn add_rows(outcomes: &mut Outcomes, rows: Vec<Value>) -> Result<(), Refusal> {
    for row in rows {
        let [queue, returned, removed] = fields(row)?;
        let entry = outcomes.entry(bytes(queue)?).or_insert_with(|| Ok(Cleaned::default()));
        if let Ok(cleaned) = entry {
            cleaned.returned += number(returned)?;
            cleaned.removed += number(removed)?;
        }
    }
    Ok(())
}

/// The findings of a walk through all processes.
#[derive(Default)]
pub(crate) struct Met {
    /// Queues with processes that were in no set.
    pub(crate) queues: BTreeSet<Vec<u8>>,
    /// The hashes of all payloads.
    hashes: BTreeSet<Vec<u8>>,
}

/// Adds processes that are in no set to the set of their queue, so that cleaning finds them.
pub(crate) async fn adopt(home: &HomeThread) -> Result<Met, Refusal> {
    let mut met = Met::default();
    pages(
        home,
        |cursor| Call::new("adopt", None).arg(cursor),
        |page| {
            let [queues, payloads] = fields(Value::Array(page))?;
            add_ids(&mut met.queues, queues)?;
            add_hashes(&mut met.hashes, payloads)
        },
    )
    .await?;
    Ok(met)
}

/// Removes marks of unique tasks without a task, after two looks a second apart.
pub(crate) async fn remove_marks(home: &HomeThread, queues: &BTreeSet<Vec<u8>>) -> Result<u64, Refusal> {
    let before = stale_marks(home, queues).await?;
    if before.is_empty() {
        return Ok(0);
    }
    gap().await;
    let now = stale_marks(home, queues).await?;
    let stale: Vec<&Vec<u8>> = before.intersection(&now).collect();
    let mut removed = 0;
    for page in stale.chunks(PAGE) {
        let call = Call::new("unmark", None).args(page.iter().map(|hash| (*hash).clone()));
        removed += number(home.ask(&call).await?)?;
    }
    Ok(removed)
}

/// The marks are read first: the walk that follows meets every task that has one.
async fn stale_marks(home: &HomeThread, queues: &BTreeSet<Vec<u8>>) -> Result<BTreeSet<Vec<u8>>, Refusal> {
    let mut marks = BTreeSet::new();
    let call = |cursor| Call::new("marks", None).arg(cursor);
    pages(home, call, |mut page| add_ids(&mut marks, page.pop().unwrap_or(Value::Nil))).await?;
    if marks.is_empty() {
        return Ok(marks);
    }
    let mut hashes = BTreeSet::new();
    for queue in queues {
        let mut offset = 0;
        loop {
            // From the end where tasks arrive, so that none is skipped when others are taken.
            let page = home.ask(&Call::about("waiting", queue).number(offset)).await?;
            let count = list(page.clone())?.len();
            add_hashes(&mut hashes, page)?;
            if count < PAGE {
                break;
            }
            offset += count as u64;
        }
    }
    hashes.append(&mut adopt(home).await?.hashes);
    marks.retain(|mark| !hashes.contains(mark));
    Ok(marks)
}

fn add_hashes(hashes: &mut BTreeSet<Vec<u8>>, payloads: Value) -> Result<(), Refusal> {
    for payload in list(payloads)? {
        hashes.insert(hash(&bytes(payload)?).into_bytes());
    }
    Ok(())
}
