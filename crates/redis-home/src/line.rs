//! Pops that wait.
//!
//! A script cannot wait. Whoever found nothing stands in this line, in the order of arrival, until a message says that there
//! may be something, or it is the time at which, as a script said, something will be. Nothing is asked meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use redis::Value;
use sureq_core::{Refusal, Replies, Reply};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::answer::{Payload, fields, list, number, read};
use crate::call::{Call, Shape};
use crate::home::Inner;
use crate::ticket::Slot;

/// Kinds of messages upon which there may be something: new tasks, and room for more deliveries.
const WAKING: [&str; 2] = ["work", "wake"];

const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// One who waits.
pub(crate) struct Waiter {
    pub(crate) call: Call,
    pub(crate) queues: Vec<Vec<u8>>,
    /// When it gives up, by the monotonic clock.
    pub(crate) until_ms: Option<u64>,
    pub(crate) slot: Arc<Slot>,
}

impl Waiter {
    fn is_for(&self, queue: &[u8]) -> bool {
        self.queues.iter().any(|name| name == queue)
    }
}

/// A queue whose messages are to be heard, and who wants to know when they are.
pub(crate) type Wanted = (Vec<u8>, oneshot::Sender<()>);

/// The line.
pub(crate) struct Line {
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
    /// Something may have changed.
    changed: Notify,
    /// Queues whose messages are heard.
    heard: RefCell<BTreeSet<Vec<u8>>>,
    wanted: mpsc::UnboundedSender<Wanted>,
    /// Those who want to know when everyone has been tried.
    looks: RefCell<Vec<oneshot::Sender<()>>>,
    /// When to look again, by the monotonic clock.
    next_look_ms: Cell<Option<u64>>,
    count: Arc<AtomicUsize>,
}

impl Line {
    pub(crate) fn new(count: Arc<AtomicUsize>) -> (Self, mpsc::UnboundedReceiver<Wanted>) {
        let (wanted, wants) = mpsc::unbounded_channel();
        let line = Self {
            waiters: RefCell::default(),
            changed: Notify::new(),
            heard: RefCell::default(),
            wanted,
            looks: RefCell::default(),
            next_look_ms: Cell::default(),
            count,
        };
        (line, wants)
    }

    /// Takes a place at the end, and is tried once more when messages about its queues are heard for sure.
    pub(crate) async fn join(&self, waiter: Waiter) {
        let queues = waiter.queues.clone();
        self.stand(waiter);
        for queue in queues {
            if !self.heard.borrow().contains(&queue) {
                let (done, is_done) = oneshot::channel();
                if self.wanted.send((queue, done)).is_ok() {
                    // It is dropped if the connection is lost; all are tried again when there is a new one.
                    let _ = is_done.await;
                }
            }
        }
        self.changed.notify_one();
    }

    /// Takes a place at the end.
    pub(crate) fn stand(&self, waiter: Waiter) {
        self.waiters.borrow_mut().push_back(Rc::new(waiter));
        self.recount();
        self.changed.notify_one();
    }

    /// The first who waits for this queue; it leaves the line.
    pub(crate) fn next(&self, queue: &[u8]) -> Option<Rc<Waiter>> {
        let is_next = |waiter: &Rc<Waiter>| waiter.is_for(queue) && !waiter.slot.is_abandoned();
        let mut waiters = self.waiters.borrow_mut();
        let at = waiters.iter().position(is_next)?;
        let next = waiters.remove(at);
        drop(waiters);
        self.recount();
        next
    }

    /// Gives one who got nothing its place at the front again.
    pub(crate) fn restore(&self, waiter: Rc<Waiter>) {
        self.waiters.borrow_mut().push_front(waiter);
        self.recount();
        self.changed.notify_one();
    }

    /// The queues that are waited for.
    pub(crate) fn queues(&self) -> BTreeSet<Vec<u8>> {
        self.waiters.borrow().iter().flat_map(|waiter| waiter.queues.clone()).collect()
    }

    /// For how long to block for those who wait for this queue, where 0 is for ever; nothing, if nobody does.
    pub(crate) fn block_ms(&self, queue: &[u8], now_ms: u64) -> Option<u64> {
        let waiters = self.waiters.borrow();
        let ends = waiters.iter().filter(|waiter| waiter.is_for(queue)).map(|waiter| waiter.until_ms);
        let last = ends.reduce(|a, b| Some(a?.max(b?)))?;
        Some(last.map_or(0, |at| at.saturating_sub(now_ms).max(1)))
    }

    /// Answers those whose time is up, and forgets those who have left.
    pub(crate) fn drop_late(&self, now_ms: u64) {
        let gone = |waiter: &Waiter| {
            waiter.slot.is_abandoned() || waiter.until_ms.is_some_and(|until| until <= now_ms)
        };
        let late: Vec<Rc<Waiter>> =
            self.waiters.borrow().iter().filter(|waiter| gone(waiter)).cloned().collect();
        for waiter in late {
            // Whoever has left needs no answer.
            let _ = waiter.slot.fill(only(Reply::TimedOut));
            self.remove(&waiter);
        }
    }

    /// Waits until something has changed, or somebody's time is up.
    pub(crate) async fn sleep(&self, now_ms: u64, look_ms: Option<u64>) {
        let ends = self.waiters.borrow().iter().filter_map(|waiter| waiter.until_ms).min();
        match [ends, look_ms].into_iter().flatten().min() {
            Some(at) => {
                let wait = Duration::from_millis(at.saturating_sub(now_ms).max(1));
                // Whichever comes first, all are tried.
                let _ = tokio::time::timeout(wait, self.changed.notified()).await;
            }
            None => self.changed.notified().await,
        }
    }

    /// Those who want to know when everyone has been tried.
    pub(crate) fn take_looks(&self) -> Vec<oneshot::Sender<()>> {
        self.looks.take()
    }

    /// Tries everyone anew.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Tries everyone anew, and says when that is done.
    pub(crate) fn look(&self, done: oneshot::Sender<()>) {
        self.looks.borrow_mut().push(done);
        self.changed.notify_one();
    }

    /// Answers all as if their time were up.
    pub(crate) fn dismiss(&self) {
        for waiter in self.waiters.take() {
            // Whoever has left needs no answer.
            let _ = waiter.slot.fill(only(Reply::TimedOut));
        }
        self.recount();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.borrow().is_empty()
    }

    fn recount(&self) {
        self.count.store(self.waiters.borrow().len(), Ordering::Release);
    }

    fn remove(&self, waiter: &Rc<Waiter>) {
        self.waiters.borrow_mut().retain(|other| !Rc::ptr_eq(other, waiter));
        self.recount();
    }

    /// Notes that somebody hears of a queue from now on; false if somebody does already.
    pub(crate) fn begin_hearing(&self, queue: &[u8]) -> bool {
        self.heard.borrow_mut().insert(queue.to_vec())
    }

    /// Notes that nobody hears of a queue any more. Whoever came to wait for it just now wants it heard again.
    pub(crate) fn end_hearing(&self, queue: &[u8]) {
        self.heard.borrow_mut().remove(queue);
        if self.is_wanted(queue) {
            // Nobody waits for the answer: all are tried when it is heard.
            let (done, _) = oneshot::channel();
            let _ = self.wanted.send((queue.to_vec(), done));
        }
    }

    pub(crate) fn is_wanted(&self, queue: &[u8]) -> bool {
        self.waiters.borrow().iter().any(|waiter| waiter.is_for(queue))
    }
}

pub(crate) fn only(reply: Reply) -> Replies<Payload> {
    let mut replies = Replies::default();
    replies.list.push(reply);
    replies
}

/// Serves the line for as long as the home is open.
pub(crate) async fn serve_line(inner: Rc<Inner>) {
    loop {
        let looks = inner.line.looks.take();
        serve(&inner).await;
        // Whoever asked may have stopped listening.
        for done in looks {
            let _ = done.send(());
        }
        let now = inner.link.clock.monotonic_ms();
        inner.line.sleep(now, inner.line.next_look_ms.get()).await;
    }
}

/// Tries all who wait, the one who came first, first.
async fn serve(inner: &Rc<Inner>) {
    let line = &inner.line;
    let everyone: Vec<Rc<Waiter>> = line.waiters.borrow().iter().cloned().collect();
    let mut empty: BTreeSet<Vec<Vec<u8>>> = BTreeSet::new();
    for waiter in &everyone {
        if waiter.slot.is_abandoned() {
            line.remove(waiter);
        } else if !empty.contains(&waiter.queues) && !try_one(inner, waiter).await {
            empty.insert(waiter.queues.clone());
        }
    }
    let now = inner.link.clock.monotonic_ms();
    line.drop_late(now);
    line.next_look_ms.set(when_to_look(inner).await);
}

/// Answers whether it got something, so that the next in line may too.
async fn try_one(inner: &Rc<Inner>, waiter: &Rc<Waiter>) -> bool {
    let mut replies = Replies::default();
    let answer = inner.link.ask(&waiter.call).await;
    match inner.again(&waiter.call, answer).await {
        // There will be a connection again, and then everyone is tried.
        Err(Refusal::Unavailable { .. }) => return false,
        Err(no) => replies.list.push(Reply::Refused(no)),
        Ok(answer) => read(inner.link.target.layout.ids(), &Shape::Tasks, answer, &mut replies),
    }
    if matches!(replies.list.last(), Some(Reply::Tasks(span)) if span.is_empty()) {
        return false;
    }
    inner.line.remove(waiter);
    inner.give(&waiter.slot, replies).await;
    true
}

/// When something will happen by itself to the queues that are waited for.
async fn when_to_look(inner: &Rc<Inner>) -> Option<u64> {
    if !inner.link.target.layout.ticks() {
        return None;
    }
    let queues = inner.line.queues();
    let first = queues.first()?;
    let call = Call::new("tick", Some(first)).args(queues.iter().cloned());
    let now = inner.link.clock.monotonic_ms();
    let Ok(answer) = inner.link.ask(&call).await else {
        return Some(now + RETRY_MAX.as_millis() as u64);
    };
    let mut soonest: Option<u64> = None;
    for row in list(answer).unwrap_or_default() {
        let Ok([at, appointed, log, wall]) = fields::<4>(row) else { continue };
        let [at, appointed, log, wall] = [at, appointed, log, wall].map(|n: Value| number(n).unwrap_or(0));
        let waits = [(at, log), (appointed, wall)].into_iter().filter(|(at, _)| *at > 0);
        soonest = waits.map(|(at, clock)| now + at.saturating_sub(clock)).chain(soonest).min();
    }
    soonest
}

/// Hears the messages about queues that are waited for, for as long as the home is open.
pub(crate) async fn hear(inner: Rc<Inner>, mut wants: mpsc::UnboundedReceiver<Wanted>) {
    let mut first = None;
    let mut pause = RETRY_MIN;
    loop {
        if inner.line.heard.borrow().is_empty() && first.is_none() {
            first = wants.recv().await;
            if first.is_none() {
                return;
            }
        }
        if let Ok(pubsub) = inner.link.listen().await {
            pause = RETRY_MIN;
            // The connection was lost, or refused a subscription: what was missed meanwhile is found by looking.
            let _ = hear_on(&inner, pubsub, &mut wants, first.take()).await;
            // If all of Redis went, nobody's pop is to be sent to where it was.
            inner.link.probe().await;
            inner.line.wake();
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

async fn hear_on(
    inner: &Rc<Inner>,
    pubsub: redis::aio::PubSub,
    wants: &mut mpsc::UnboundedReceiver<Wanted>,
    first: Option<Wanted>,
) -> Result<(), redis::RedisError> {
    let (mut sink, mut messages) = pubsub.split();
    let again: Vec<Vec<u8>> = inner.line.heard.borrow().iter().cloned().collect();
    for queue in again {
        sink.subscribe(channels(inner, &queue)).await?;
    }
    inner.line.wake();
    let mut next = first;
    loop {
        if let Some((queue, done)) = next.take() {
            // Before it is so: if this fails, it is among those that are subscribed to next time.
            inner.line.heard.borrow_mut().insert(queue.clone());
            sink.subscribe(channels(inner, &queue)).await?;
            // Whoever wanted it may have left.
            let _ = done.send(());
        }
        tokio::select! {
            message = messages.next() => {
                let Some(message) = message else { return Ok(()) };
                let queue = queue_of(inner, message.get_channel_name().as_bytes());
                if queue.as_ref().is_some_and(|queue| !inner.line.is_wanted(queue)) {
                    let queue = queue.unwrap_or_default();
                    inner.line.heard.borrow_mut().remove(&queue);
                    sink.unsubscribe(channels(inner, &queue)).await?;
                    // Someone may have come to wait for it just now.
                    if inner.line.is_wanted(&queue) {
                        sink.subscribe(channels(inner, &queue)).await?;
                        inner.line.heard.borrow_mut().insert(queue);
                    }
                }
                inner.line.wake();
            }
            want = wants.recv() => match want {
                Some(want) => next = Some(want),
                None => return Ok(()),
            },
        }
    }
}

fn channels(inner: &Inner, queue: &[u8]) -> Vec<Vec<u8>> {
    let channels = inner.link.target.channels();
    WAKING.iter().map(|kind| channels.name(kind, queue)).collect()
}

fn queue_of(inner: &Inner, channel: &[u8]) -> Option<Vec<u8>> {
    let channels = inner.link.target.channels();
    WAKING.iter().find_map(|kind| channels.queue(kind, channel)).map(<[u8]>::to_vec)
}
