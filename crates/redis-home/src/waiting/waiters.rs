//! The waiting pops of a home.
//!
//! A script cannot wait. A pop that finds nothing joins these waiters, in the order of arrival. A message
//! (`subscription`) or the deadline that the last script reported wakes it; meanwhile no command is sent.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::Value;
use sureq_core::{Refusal, Replies, Reply};
use sureq_home_api::Payload;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::connection::link::Patience;
use crate::script::answer::{fields, list, number, refusal};
use crate::script::call::Call;
use crate::thread::{HomeThread, Store};
use crate::waiting::index::{Agenda, Waiter, WaiterIndex};
use crate::waiting::serving::serve;
use crate::waiting::subscription::SubscriptionRequest;

/// The delay of a retry after Redis did not answer.
const RETRY_MS: u64 = 2_000;

/// The polling interval of a queue whose messages may be lost.
const LOOK_MS: u64 = 15_000;

/// The polling interval of a queue whose messages Redis forbids this user.
const UNSUBSCRIBED_MS: u64 = 1_000;

/// The polling interval of a queue that has tasks with a time of the wall clock (`AT`), because Redis sends no message
/// when that clock is set.
const WALL_CLOCK_LOOK_MS: u64 = 1_000;

/// How many queues one `tick` covers.
const TICKED: usize = 64;

/// Requests to subscribe to queues with waiters.
pub type SubscriptionRequests = mpsc::UnboundedReceiver<SubscriptionRequest>;

/// A queue, or all queues, and where to report that their waiters were tried.
type Look = (Option<Vec<u8>>, oneshot::Sender<()>);

/// The waiting pops of a home, in the order of arrival.
pub struct Waiters {
    index: RefCell<WaiterIndex>,
    /// Wakes the task that serves waiters.
    changed: Notify,
    /// Queues that may have ready tasks.
    to_try: RefCell<BTreeSet<Vec<u8>>>,
    /// The same by store. Each store is served by itself, so that a server that hangs delays no waiters of others.
    pending: RefCell<BTreeMap<Store, BTreeSet<Vec<u8>>>>,
    /// Stores that are being served, and where to report the end of that.
    serving: RefCell<BTreeMap<Store, Vec<oneshot::Sender<()>>>>,
    agenda: RefCell<Agenda>,
    /// Queues whose channels are subscribed to.
    pub(crate) subscribed: RefCell<BTreeSet<Vec<u8>>>,
    /// Queues whose channels Redis forbids this user.
    forbidden: RefCell<BTreeSet<Vec<u8>>>,
    requests: mpsc::UnboundedSender<SubscriptionRequest>,
    looks: RefCell<Vec<Look>>,
    count: Arc<AtomicUsize>,
}

impl Waiters {
    pub(crate) fn new(count: Arc<AtomicUsize>) -> (Self, SubscriptionRequests) {
        let (sender, requests) = mpsc::unbounded_channel();
        let waiters = Self {
            index: RefCell::default(),
            changed: Notify::new(),
            to_try: RefCell::default(),
            pending: RefCell::default(),
            serving: RefCell::default(),
            agenda: RefCell::default(),
            subscribed: RefCell::default(),
            forbidden: RefCell::default(),
            requests: sender,
            looks: RefCell::default(),
            count,
        };
        (waiters, requests)
    }

    /// Whether one more may wait: waiters take memory.
    pub(crate) fn has_room_for(&self, waiter: &Waiter) -> bool {
        self.index.borrow().has_room_for(waiter)
    }

    /// Adds a waiter, and tries it once more when the subscriptions to its queues exist.
    pub(crate) async fn join(&self, waiter: Waiter) {
        let queues = waiter.queues.clone();
        self.stand(waiter);
        let unsubscribed = queues.iter().filter(|queue| !self.subscribed.borrow().contains(*queue));
        let asked: Vec<_> = unsubscribed
            .filter_map(|queue| {
                let (done, is_done) = oneshot::channel();
                self.requests.send((queue.clone(), done)).is_ok().then_some(is_done)
            })
            .collect();
        for is_done in asked {
            // The sender is dropped if the connection is lost; a new connection tries all waiters again.
            let _ = is_done.await;
        }
        for queue in &queues {
            self.try_soon(queue);
        }
    }

    /// Adds a waiter at the end.
    pub(crate) fn stand(&self, waiter: Waiter) {
        self.index.borrow_mut().join(waiter);
        self.recount();
        self.changed.notify_one();
    }

    /// Removes the first waiter for this queue.
    pub fn next(&self, queue: &[u8]) -> Option<Rc<Waiter>> {
        let those = self.index.borrow().of([&queue.to_vec()]);
        let next = those.into_iter().find(|waiter| !waiter.slot.is_abandoned())?;
        self.remove(&next);
        Some(next)
    }

    /// Puts back a waiter that got nothing, at its place.
    pub fn restore(&self, waiter: Rc<Waiter>) {
        self.index.borrow_mut().restore(waiter);
        self.recount();
        self.changed.notify_one();
    }

    pub fn queues(&self) -> BTreeSet<Vec<u8>> {
        self.index.borrow().queues()
    }

    pub(crate) fn queue_count(&self) -> usize {
        self.index.borrow().queue_count()
    }

    /// How long the waiters for this queue may block, where 0 means without a limit; `None` if there are no waiters.
    pub fn block_ms(&self, queue: &[u8], now_ms: u64) -> Option<u64> {
        let those = self.index.borrow().of([&queue.to_vec()]);
        let last = those.iter().map(|waiter| waiter.until_ms).reduce(|a, b| Some(a?.max(b?)))?;
        Some(last.map_or(0, |at| at.saturating_sub(now_ms).max(1)))
    }

    /// Answers waiters that have timed out and removes dropped ones. A waiter that is being tried is answered after
    /// that.
    pub fn drop_late(&self, now_ms: u64) {
        let late = self.index.borrow().late(now_ms);
        for waiter in late {
            if !waiter.is_tried.get() {
                self.time_out(&waiter);
            }
        }
    }

    /// Removes waiters whose tickets were dropped.
    pub(crate) fn drop_abandoned(&self) {
        let all = self.index.borrow().all();
        all.iter().filter(|waiter| waiter.slot.is_abandoned()).for_each(|waiter| self.remove(waiter));
        self.changed.notify_one();
    }

    fn time_out(&self, waiter: &Waiter) {
        // A dropped ticket needs no answer.
        let _ = waiter.slot.fill(only(Reply::TimedOut));
        self.remove(waiter);
    }

    /// Waits until something changes, a waiter times out, or a queue is due.
    pub async fn sleep(&self, now_ms: u64) {
        let next = [self.index.borrow().next_end(), self.agenda.borrow().next()].into_iter().flatten().min();
        match next {
            Some(at) => {
                let wait = Duration::from_millis(at.saturating_sub(now_ms).max(1));
                // The timeout and the notification both lead to the next round.
                let _ = tokio::time::timeout(wait, self.changed.notified()).await;
            }
            None => self.changed.notified().await,
        }
    }

    /// Takes the requests to report that all waiters were tried, for a session that tries none since it takes tasks
    /// itself.
    pub fn take_looks(&self) -> Vec<oneshot::Sender<()>> {
        self.to_try.take();
        self.looks.take().into_iter().map(|(_, done)| done).collect()
    }

    pub fn try_soon(&self, queue: &[u8]) {
        self.to_try.borrow_mut().insert(queue.to_vec());
        self.changed.notify_one();
    }

    /// Tries the waiters for this queue at a time of the monotonic clock.
    pub(crate) fn announce(&self, queue: &[u8], at_ms: u64) {
        if self.is_wanted(queue) {
            self.agenda.borrow_mut().announce(queue, at_ms);
            self.changed.notify_one();
        }
    }

    /// Tries all waiters soon.
    pub fn wake(&self) {
        let all = self.queues();
        self.to_try.borrow_mut().extend(all);
        self.changed.notify_one();
    }

    /// Tries the waiters for a queue, or all, and reports when that is done.
    pub(crate) fn look(&self, queue: Option<&[u8]>, done: oneshot::Sender<()>) {
        self.looks.borrow_mut().push((queue.map(<[u8]>::to_vec), done));
        match queue {
            Some(queue) => self.try_soon(queue),
            None => self.wake(),
        }
    }

    /// Answers all waiters as if they had timed out.
    pub(crate) fn dismiss(&self) {
        let all = self.index.borrow().all();
        for waiter in all {
            if waiter.is_tried.get() {
                // Redis may be answering it.
                waiter.is_dismissed.set(true);
            } else {
                self.time_out(&waiter);
            }
        }
    }

    /// Whether there are no waiters.
    pub fn is_empty(&self) -> bool {
        self.index.borrow().len() == 0
    }

    fn recount(&self) {
        self.count.store(self.index.borrow().len(), Ordering::Release);
    }

    pub(crate) fn remove(&self, waiter: &Waiter) {
        self.index.borrow_mut().leave(waiter);
        self.recount();
        waiter.queues.iter().filter(|queue| !self.is_wanted(queue)).for_each(|queue| self.forget(queue));
    }

    /// Forgets the deadline of a queue without waiters. The next waiter for it asks again.
    fn forget(&self, queue: &[u8]) {
        self.agenda.borrow_mut().forget(queue);
        self.allow(queue);
    }

    /// Records that Redis forbids the channels of a queue. The next waiter for it requests them again.
    pub(crate) fn forbid(&self, queue: &[u8]) {
        self.subscribed.borrow_mut().remove(queue);
        if self.is_wanted(queue) {
            self.forbidden.borrow_mut().insert(queue.to_vec());
        }
    }

    /// Records that the channels of a queue are allowed.
    pub(crate) fn allow(&self, queue: &[u8]) {
        self.forbidden.borrow_mut().remove(queue);
    }

    /// The interval at which to look at a queue, if messages about it may be missed.
    fn looked_at_after(&self, queue: &[u8], may_miss: bool) -> Option<u64> {
        if self.forbidden.borrow().contains(queue) {
            Some(UNSUBSCRIBED_MS)
        } else {
            may_miss.then_some(LOOK_MS)
        }
    }

    /// Records that a queue is subscribed to from now on; false if it was already.
    pub fn begin_subscription(&self, queue: &[u8]) -> bool {
        self.subscribed.borrow_mut().insert(queue.to_vec())
    }

    /// Records that the subscription to a queue has ended. If the queue has a waiter again, it is requested again.
    pub fn end_subscription(&self, queue: &[u8]) {
        self.subscribed.borrow_mut().remove(queue);
        if self.is_wanted(queue) {
            // No caller waits for the answer: the new subscription tries all waiters.
            let (done, _) = oneshot::channel();
            let _ = self.requests.send((queue.to_vec(), done));
        }
    }

    pub fn is_wanted(&self, queue: &[u8]) -> bool {
        self.index.borrow().is_wanted(queue)
    }
}

pub(crate) fn only(reply: Reply) -> Replies<Payload> {
    let mut replies = Replies::default();
    replies.list.push(reply);
    replies
}

/// Serves waiters for as long as the home is open.
pub(crate) async fn serve_waiters(home: Rc<HomeThread>) {
    let waiters = &home.waiters;
    loop {
        let (looks, now) = (waiters.looks.take(), home.link.clock.monotonic_ms());
        let due = waiters.agenda.borrow_mut().take_due(now);
        let to_try = waiters.to_try.take();
        for queue in due.into_iter().chain(to_try) {
            let store = home.link.target.store_of(&queue);
            waiters.pending.borrow_mut().entry(store).or_default().insert(queue);
        }
        let stores: Vec<Store> = waiters.pending.borrow().keys().cloned().collect();
        for store in stores {
            waiters.serving.borrow_mut().entry(store).or_insert_with_key(|store| {
                tokio::task::spawn_local(serve_store(Rc::clone(&home), store.clone()));
                Vec::new()
            });
        }
        if looks.is_empty() {
            waiters.drop_late(now);
        }
        for (queue, done) in looks {
            report_when_served(&home, queue.as_deref(), done);
        }
        waiters.sleep(now).await;
    }
}

/// Reports when the waiters for a queue, or all, were tried, and those that have timed out are answered.
fn report_when_served(home: &Rc<HomeThread>, queue: Option<&[u8]>, done: oneshot::Sender<()>) {
    let of = queue.map(|queue| home.link.target.store_of(queue));
    let mut served = Vec::new();
    for (store, listeners) in &mut *home.waiters.serving.borrow_mut() {
        if of.as_ref().is_none_or(|of| of == store) {
            let (end, has_ended) = oneshot::channel();
            listeners.push(end);
            served.push(has_ended);
        }
    }
    let home = Rc::clone(home);
    tokio::task::spawn_local(async move {
        for store in served {
            // Dropped or sent, the store is done.
            let _ = store.await;
        }
        home.waiters.drop_late(home.link.clock.monotonic_ms());
        // The receiver may be gone.
        let _ = done.send(());
    });
}

/// Tries the waiters for queues of a store, as long as these may have ready tasks.
async fn serve_store(home: Rc<HomeThread>, store: Store) {
    let waiters = &home.waiters;
    loop {
        let Some(queues) = waiters.pending.borrow_mut().remove(&store) else { break };
        let everyone = waiters.index.borrow().of(&queues);
        serve(&home, &store, everyone).await;
        plan(&home, &store, &queues).await;
    }
    let listeners = waiters.serving.borrow_mut().remove(&store).unwrap_or_default();
    for end in listeners {
        // The receiver may be gone.
        let _ = end.send(());
    }
    // A deadline may be sooner now, or a waiter may have timed out while it was tried.
    waiters.changed.notify_one();
}

/// Tries a waiter; returns whether the next one may get something too.
pub(crate) async fn try_one(home: &Rc<HomeThread>, store: &Store, waiter: &Rc<Waiter>) -> bool {
    let waiters = &home.waiters;
    // A waiter must not get tasks from two stores at once, and later waiters must not overtake it.
    while waiter.is_tried.get() {
        waiter.was_tried.notified().await;
    }
    // It may have been served by the other store.
    if !waiters.index.borrow().contains(waiter) {
        return true;
    }
    waiter.is_tried.set(true);
    let answer = home.try_pop(&waiter.call, store).await;
    waiter.is_tried.set(false);
    waiter.was_tried.notify_waiters();
    let mut replies = Replies::default();
    let is_served = match answer {
        // It is tried again when the server is back.
        Err(Refusal::Unavailable { .. }) => false,
        Err(no) => {
            replies.list.push(Reply::Refused(no));
            true
        }
        Ok(answer) => {
            replies = home.read_tasks(answer);
            !matches!(replies.list.last(), Some(Reply::Tasks(span)) if span.is_empty())
        }
    };
    if is_served {
        waiters.remove(waiter);
        home.give(&waiter.slot, replies).await;
        home.requeue_unconfirmed().await;
    } else if waiter.is_dismissed.get() {
        waiters.time_out(waiter);
    }
    is_served
}

/// Asks the script for the next deadlines of those queues of a store that still have waiters.
async fn plan(home: &Rc<HomeThread>, store: &Store, queues: &BTreeSet<Vec<u8>>) {
    let waiters = &home.waiters;
    let (waited, others): (Vec<_>, Vec<_>) = queues.iter().partition(|queue| waiters.is_wanted(queue));
    for queue in others {
        waiters.forget(queue);
    }
    for some in waited.chunks(TICKED) {
        let now = home.link.clock.monotonic_ms();
        for queue in some {
            waiters.agenda.borrow_mut().ask(queue);
        }
        let rows = tick(home, store, some).await;
        let answered = home.link.clock.monotonic_ms();
        for (at, queue) in some.iter().enumerate() {
            let next = match &rows {
                Ok(rows) => rows.get(at).and_then(|row| when(row, answered)),
                Err(_) => Some(now + RETRY_MS),
            };
            let look = waiters.looked_at_after(queue, home.link.may_miss()).map(|ms| now + ms);
            let next = [next, look].into_iter().flatten().min();
            // Its waiters may have left meanwhile.
            if waiters.is_wanted(queue) {
                waiters.agenda.borrow_mut().set(queue, next);
            }
        }
    }
}

/// The next deadlines of queues, from the script; nothing in layouts without deadlines.
async fn tick(home: &HomeThread, store: &Store, queues: &[&Vec<u8>]) -> Result<Vec<Value>, Refusal> {
    if !home.link.target.layout().has_deadlines() {
        return Ok(Vec::new());
    }
    let call = Call::new("tick", store.as_deref().or(Some(queues[0]))).args(queues.iter().copied().cloned());
    let answer = home.call(&call, Patience::Short).await?;
    match refusal(&answer) {
        Some(no) => Err(no),
        None => Ok(list(answer).unwrap_or_default()),
    }
}

/// When to look at a queue again, on the monotonic clock, from the answer of `tick`.
fn when(row: &Value, now_ms: u64) -> Option<u64> {
    let [at, appointed, log, wall] = fields::<4>(row.clone()).ok()?.map(|n: Value| number(n).unwrap_or(0));
    let waits = [(at, log, u64::MAX), (appointed, wall, WALL_CLOCK_LOOK_MS)];
    let waits = waits.into_iter().filter(|(at, ..)| *at > 0);
    // Both clocks are cut off to milliseconds.
    waits.map(|(at, clock, most)| now_ms + 1 + at.saturating_sub(clock).min(most)).min()
}

#[cfg(test)]
mod tests {
    use sureq_home_api::elsewhere::ReplySlot;

    use super::*;
    use crate::script::call::receipt_text;

    #[test]
    fn a_queue_is_forgotten_with_its_last_waiter() {
        let (waiters, _requests) = Waiters::new(Arc::default());
        let join = |queues: &[&[u8]]| {
            let queues = queues.iter().map(|queue| queue.to_vec()).collect();
            let slot = Arc::new(ReplySlot::new(Vec::new(), receipt_text));
            waiters.stand(Waiter::new(Call::new("pop", None), queues, None, slot));
            waiters.index.borrow().all().pop().expect("it has joined")
        };
        let (first, second) = (join(&[b"a", b"b"]), join(&[b"a"]));
        // A year ahead.
        waiters.announce(b"a", 31_536_000_000);
        waiters.announce(b"b", 31_536_000_001);
        waiters.forbid(b"b");
        waiters.remove(&first);
        assert_eq!(waiters.agenda.borrow_mut().take_due(u64::MAX), [b"a"]);
        assert!(waiters.forbidden.borrow().is_empty());
        waiters.announce(b"a", 31_536_000_000);
        waiters.remove(&second);
        assert_eq!(waiters.agenda.borrow().next(), None);
    }

    #[test]
    fn a_session_that_takes_tasks_itself_remembers_no_queues_to_try() {
        let (waiters, _requests) = Waiters::new(Arc::default());
        let slot = Arc::new(ReplySlot::new(Vec::new(), receipt_text));
        waiters.stand(Waiter::new(Call::new("pop", None), vec![b"a".to_vec()], None, slot));
        waiters.wake();
        let (done, _) = oneshot::channel();
        waiters.look(Some(b"b"), done);
        assert_eq!(waiters.take_looks().len(), 1);
        assert!(waiters.to_try.borrow().is_empty());
    }
}
