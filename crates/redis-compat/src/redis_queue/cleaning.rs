//! Cleaning in the keys of redis-queue.
//!
//! A task that was taken and not finished is delivered again when it is late, and needs no cleaning. A light cleaning
//! only removes entries of finished tasks. A foreign client that dies while it moves an entry loses the entry; if the
//! task has a body, a deep cleaning finds that, and adds the id again. It also removes marks of finished tasks that
//! are in no list. Both require two looks, at least a second apart, since foreign clients move entries all the time.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;
use sureq_core::Refusal;

use crate::cleaning::{Cleaned, Cleaning, Outcomes, PAGE, add_ids, ask, gap, pages};
use sureq_redis::layout::{Call, HomeThread, number};

type Ids = BTreeSet<Vec<u8>>;

/// Queues with bodies or marks. Other lists may belong to other programs.
pub(crate) async fn used_queues(home: &HomeThread) -> Result<Ids, Refusal> {
    let mut queues = Ids::new();
    let call = |cursor| Call::new("used", None).arg(cursor);
    pages(home, call, |mut page| add_ids(&mut queues, page.pop().unwrap_or(Value::Nil))).await?;
    Ok(queues)
}

pub(crate) async fn clean(home: &HomeThread, queues: &Ids, how: Cleaning) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut left: BTreeMap<&[u8], (Cleaned, Ids)> = BTreeMap::new();
    for queue in queues {
        let mut cleaned = Cleaned::default();
        match pass(home, queue, how, &mut cleaned).await {
            Ok(stray) if stray.is_empty() => _ = outcomes.insert(queue.clone(), Ok(cleaned)),
            Ok(stray) => _ = left.insert(queue, (cleaned, stray)),
            Err(no) => _ = outcomes.insert(queue.clone(), Err(no)),
        }
    }
    if !left.is_empty() {
        gap().await;
    }
    for (queue, (cleaned, stray)) in left {
        outcomes.insert(queue.to_vec(), second_pass(home, queue, cleaned, &stray).await);
    }
    outcomes
}

/// Looks again at ids that were in no list, and restores or removes those that still are in none.
async fn second_pass(
    home: &HomeThread,
    queue: &[u8],
    mut cleaned: Cleaned,
    before: &Ids,
) -> Result<Cleaned, Refusal> {
    let now = pass(home, queue, Cleaning::Deep, &mut cleaned).await?;
    let stray: Vec<&Vec<u8>> = before.intersection(&now).collect();
    for page in stray.chunks(PAGE) {
        let ids = page.iter().map(|id| (*id).clone());
        let [returned, removed] = ask(home, &Call::about("adopt", queue).args(ids)).await?;
        cleaned.returned += number(returned)?;
        cleaned.removed += number(removed)?;
    }
    Ok(cleaned)
}

/// Removes finished tasks from the list. A deep cleaning returns ids with a body or a mark that are in no list.
async fn pass(home: &HomeThread, queue: &[u8], how: Cleaning, cleaned: &mut Cleaned) -> Result<Ids, Refusal> {
    let (mut listed, mut stray) = (Ids::new(), Ids::new());
    // Bodies and marks first: the list, which is read afterwards, then has every id that belongs there.
    if how == Cleaning::Deep {
        let mut collect = |mut page: Vec<Value>| add_ids(&mut stray, page.pop().unwrap_or(Value::Nil));
        pages(home, |cursor| Call::about("marks", queue).arg(cursor), &mut collect).await?;
        pages(home, |cursor| Call::about("bodies", queue).arg(cursor), &mut collect).await?;
    }
    let mut offset = 0;
    loop {
        let [seen, removed, ids] = ask(home, &Call::about("look", queue).number(offset)).await?;
        let (seen, removed) = (number(seen)?, number(removed)?);
        add_ids(&mut listed, ids)?;
        cleaned.removed += removed;
        offset += seen.saturating_sub(removed);
        if seen < PAGE as u64 {
            break;
        }
    }
    Ok(stray.difference(&listed).cloned().collect())
}
