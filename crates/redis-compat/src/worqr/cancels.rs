//! Cancels of other programs.
//!
//! Worqr's clients publish cancelled payloads, and each worker has to subscribe to that. A home subscribes for the
//! workers that pop through it, and marks the tasks that they hold; their next heartbeat reports them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use redis::RedisError;
use sureq_core::notice::Kind;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::{POP_WORKER, Session, hash};
use sureq_redis::layout::{Call, HomeThread, Patience, SILENCE, bytes, list, still_there};

const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The most queues for which a home subscribes.
const QUEUES_MAX: usize = 1_000;

/// The workers of each queue that pop through this home.
#[derive(Default)]
pub(crate) struct Cancels {
    workers: RefCell<BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>>,
    /// Notifies that a queue was added.
    changed: Notify,
}

impl Cancels {
    /// Records the worker of a pop.
    pub(crate) fn note(&self, pop: &Call, queues: &[Box<[u8]>]) {
        let Some(worker) = pop.args.get(POP_WORKER) else { return };
        let mut workers = self.workers.borrow_mut();
        for queue in queues {
            if let Some(known) = workers.get_mut(&**queue) {
                known.insert(worker.clone());
            } else if workers.len() < QUEUES_MAX {
                workers.insert(queue.to_vec(), [worker.clone()].into());
                self.changed.notify_one();
            }
        }
    }

    fn queues(&self) -> BTreeSet<Vec<u8>> {
        self.workers.borrow().keys().cloned().collect()
    }

    fn workers_of(&self, queue: &[u8]) -> BTreeSet<Vec<u8>> {
        self.workers.borrow().get(queue).cloned().unwrap_or_default()
    }

    fn forget(&self, queue: &[u8], worker: &[u8]) {
        if let Some(workers) = self.workers.borrow_mut().get_mut(queue) {
            workers.remove(worker);
        }
    }
}

/// Receives cancels while the home is open.
pub(crate) async fn receive_cancels(session: Rc<Session>, home: Rc<HomeThread>) {
    session.cancels.changed.notified().await;
    let mut pause = RETRY_MIN;
    loop {
        let began = Instant::now();
        // Cancels during a lost connection are missed, as any message is.
        let _ = receive_on(&session, &home).await;
        // Backoff for subscriptions that fail at once, for instance since Redis forbids them.
        pause = if began.elapsed() < RETRY_MAX { (pause * 2).min(RETRY_MAX) } else { RETRY_MIN };
        sleep(pause).await;
    }
}

async fn receive_on(session: &Session, home: &HomeThread) -> Result<(), RedisError> {
    let channels = home.target().channels();
    let (mut sink, mut messages) = home.subscriber().await?.split();
    let mut subscribed = BTreeSet::new();
    loop {
        for queue in session.cancels.queues() {
            if !subscribed.contains(&queue) {
                sink.subscribe(channels.name(Kind::Cancel.name(), &queue)).await?;
                subscribed.insert(queue);
            }
        }
        tokio::select! {
            message = messages.next() => {
                let Some(message) = message else { return Ok(()) };
                let channel: Vec<u8> = message.get_channel()?;
                if let Some(queue) = channels.queue(Kind::Cancel.name(), &channel) {
                    mark(session, home, queue, message.get_payload_bytes()).await;
                }
            }
            () = session.cancels.changed.notified() => {}
            () = sleep(SILENCE) => still_there(&mut sink).await?,
        }
    }
}

/// Marks tasks with this payload that workers of this home hold.
async fn mark(session: &Session, home: &HomeThread, queue: &[u8], payload: &[u8]) {
    let workers = session.cancels.workers_of(queue);
    let call = Call::about("hear_cancel", queue).arg(payload).arg(hash(payload)).args(workers);
    let gone = home
        .call(&call, Patience::Normal)
        .await
        .ok()
        .and_then(|answer| list(answer).ok())
        .unwrap_or_default();
    for worker in gone.into_iter().filter_map(|worker| bytes(worker).ok()) {
        session.cancels.forget(queue, &worker);
    }
}
