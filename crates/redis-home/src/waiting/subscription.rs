//! Subscriptions to queues with waiters. A message means that a task may be ready. A missed message is made up for by
//! looking at the queue.

use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::RedisError;
use redis::aio::{PubSub, PubSubSink};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::thread::HomeThread;

/// Kinds of messages that wake waiters: new tasks; and room for more deliveries, or a deadline.
const WORK: &str = "work";
const WAKE: &str = "wake";

const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// How often unused subscriptions are dropped, and how many of them trigger that earlier.
const SWEEP: Duration = Duration::from_secs(15);
const UNWANTED_MAX: usize = 100;

/// The time without a message after which the server is pinged.
pub const SILENCE: Duration = Duration::from_secs(5);
/// The time limit for the answer to a ping.
pub const HANGS: Duration = Duration::from_secs(5);

/// How many queues are subscribed to, or unsubscribed from, in one round trip. Messages wait meanwhile.
const QUEUES_AT_ONCE: usize = 500;

/// A queue to subscribe to, and where to report that it is done. If the sender is dropped, the subscription exists
/// already, or its connection was lost.
pub type SubscriptionRequest = (Vec<u8>, oneshot::Sender<()>);

/// Receives messages about queues with waiters, while the home is open.
pub(crate) async fn receive(
    home: Rc<HomeThread>,
    mut requests: mpsc::UnboundedReceiver<SubscriptionRequest>,
) {
    let mut first = None;
    let mut pause = RETRY_MIN;
    loop {
        if home.waiters.subscribed.borrow().is_empty() && first.is_none() {
            first = requests.recv().await;
            if first.is_none() {
                return;
            }
        }
        if let Ok(pubsub) = home.link.listen().await {
            pause = RETRY_MIN;
            // The connection was lost, or refused a subscription. Looking makes up for missed messages.
            let _ = receive_on(&home, pubsub, &mut requests, first.take()).await;
            // If the server is gone as well, pops must not be sent over its old connection.
            let _ = timeout(HANGS, home.link.probe()).await;
            home.waiters.wake();
        }
        sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

async fn receive_on(
    home: &Rc<HomeThread>,
    pubsub: PubSub,
    requests: &mut mpsc::UnboundedReceiver<SubscriptionRequest>,
    first: Option<SubscriptionRequest>,
) -> Result<(), RedisError> {
    let (mut sink, mut messages) = pubsub.split();
    let again: Vec<Vec<u8>> = home.waiters.subscribed.borrow().iter().cloned().collect();
    for some in again.chunks(QUEUES_AT_ONCE) {
        subscribe(home, &mut sink, some).await?;
    }
    home.waiters.wake();
    let (mut next, mut sweep, mut last_message) = (first, Instant::now() + SWEEP, Instant::now());
    loop {
        if let Some(first) = next.take() {
            // Requests that came meanwhile share the round trip.
            let mut some = vec![first];
            while some.len() < QUEUES_AT_ONCE
                && let Ok(more) = requests.try_recv()
            {
                some.push(more);
            }
            // Recorded beforehand: if this fails, the next connection subscribes to them.
            let (queues, wanting): (Vec<_>, Vec<_>) = some.into_iter().unzip();
            home.waiters.subscribed.borrow_mut().extend(queues.iter().cloned());
            subscribe(home, &mut sink, &queues).await?;
            for done in wanting {
                // The waiter may be gone.
                let _ = done.send(());
            }
            if home.waiters.subscribed.borrow().len() > home.waiters.queue_count() + UNWANTED_MAX {
                sweep = Instant::now();
            }
        }
        tokio::select! {
            message = messages.next() => {
                let Some(message) = message else { return Ok(()) };
                let channel: Vec<u8> = message.get_channel()?;
                last_message = Instant::now();
                take_message(home, &channel, message.get_payload_bytes());
            }
            want = requests.recv() => match want {
                Some(want) => next = Some(want),
                None => return Ok(()),
            },
            () = sleep_until(sweep), if !home.waiters.subscribed.borrow().is_empty() => {
                let has_more = drop_unwanted(home, &mut sink).await?;
                sweep = Instant::now() + if has_more { Duration::ZERO } else { SWEEP };
            }
            () = sleep_until(last_message + SILENCE), if !home.waiters.is_empty() => {
                still_there(&mut sink).await?;
                last_message = Instant::now();
            }
        }
    }
}

/// Pings over a subscription: the server may hang while another has taken over, or a middlebox may have dropped the
/// connection silently.
pub async fn still_there(sink: &mut PubSubSink) -> Result<(), RedisError> {
    let alive = timeout(HANGS, sink.ping::<redis::Value>()).await;
    alive.map_or_else(
        |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        |pong| pong.map(drop),
    )
}

/// Subscribes to queues. Queues whose channels Redis forbids this user are polled instead.
async fn subscribe(home: &HomeThread, sink: &mut PubSubSink, queues: &[Vec<u8>]) -> Result<(), RedisError> {
    let all: Vec<_> = queues.iter().flat_map(|queue| channels(home, queue)).collect();
    match sink.subscribe(all).await {
        Err(error) if is_forbidden(&error) => {}
        subscribed => {
            for queue in queues {
                home.waiters.allow(queue);
            }
            return subscribed;
        }
    }
    // One forbidden channel makes Redis refuse all, so they are tried one by one.
    for queue in queues {
        match sink.subscribe(channels(home, queue)).await {
            Err(error) if is_forbidden(&error) => home.waiters.forbid(queue),
            Err(error) => return Err(error),
            Ok(()) => home.waiters.allow(queue),
        }
    }
    Ok(())
}

/// Whether Redis forbids this user something.
pub(crate) fn is_forbidden(error: &RedisError) -> bool {
    error.code() == Some("NOPERM")
}

/// Unsubscribes from queues without waiters, in one round trip; returns whether there may be more of them.
async fn drop_unwanted(home: &HomeThread, sink: &mut PubSubSink) -> Result<bool, RedisError> {
    let is_unwanted = |queue: &&Vec<u8>| !home.waiters.is_wanted(queue);
    let unwanted: Vec<Vec<u8>> =
        home.waiters.subscribed.borrow().iter().filter(is_unwanted).take(QUEUES_AT_ONCE).cloned().collect();
    // Without a channel it would unsubscribe from all of them.
    if unwanted.is_empty() {
        return Ok(false);
    }
    // A waiter that joins from now on requests the subscription again, after this.
    for queue in &unwanted {
        home.waiters.subscribed.borrow_mut().remove(queue);
    }
    let all: Vec<_> = unwanted.iter().flat_map(|queue| channels(home, queue)).collect();
    sink.unsubscribe(all).await?;
    Ok(unwanted.len() == QUEUES_AT_ONCE)
}

fn channels(home: &HomeThread, queue: &[u8]) -> Vec<Vec<u8>> {
    let channels = home.link.target.channels();
    [WORK, WAKE].map(|kind| channels.name(kind, queue)).into()
}

/// Handles a message: a queue may have a ready task, now or in the given number of milliseconds.
fn take_message(home: &HomeThread, channel: &[u8], payload: &[u8]) {
    let channels = home.link.target.channels();
    let about = |kind| channels.queue(kind, channel);
    match (about(WAKE), sureq_core::id::decimal(payload)) {
        (Some(queue), Some(ms)) => {
            home.waiters.announce(queue, home.link.clock.monotonic_ms().saturating_add(ms).saturating_add(1));
        }
        (Some(queue), None) => home.waiters.try_soon(queue),
        (None, _) => about(WORK).into_iter().for_each(|queue| home.waiters.try_soon(queue)),
    }
}
