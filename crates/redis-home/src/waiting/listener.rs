//! Listeners receive the messages of scripts. Messages that are published while the connection is lost are missed,
//! and reported as missed.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use sureq_core::notice::Kind;
use sureq_home_api::elsewhere::{By, ChannelNames, Subscription, Subscriptions};
use sureq_home_api::{ListenEvent, Notice, NoticeQueue};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::connection::target::Target;
use crate::thread::HomeThread;
use crate::waiting::subscription::{SILENCE, still_there};

const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The channels of this home, and where its listeners send their subscriptions.
pub(crate) struct ListenerChannels {
    changes: mpsc::UnboundedSender<Subscription>,
    target: Target,
}

impl ListenerChannels {
    pub(crate) const fn new(changes: mpsc::UnboundedSender<Subscription>, target: Target) -> Self {
        Self { changes, target }
    }
}

impl ChannelNames for ListenerChannels {
    fn channel(&self, kind: Kind, queue: &[u8]) -> Vec<u8> {
        self.target.channels().name(kind.name(), queue)
    }

    fn pattern(&self, kind: Kind) -> Vec<u8> {
        self.target.channels().pattern(kind.name())
    }

    fn change(&self, subscription: Subscription) {
        // A closed home publishes nothing.
        let _ = self.changes.send(subscription);
    }
}

/// Receives for one listener, until it is dropped or the home is closed.
pub(crate) async fn listen(
    home: Rc<HomeThread>,
    queue: Arc<NoticeQueue>,
    mut changes: mpsc::UnboundedReceiver<Subscription>,
) {
    let (mut subscribed, mut pause) = (Subscriptions::default(), RETRY_MIN);
    loop {
        while subscribed.is_empty() {
            let Some(change) = changes.recv().await else { return };
            subscribed.change(change);
        }
        let began = Instant::now();
        match receive(&home, &queue, &mut changes, &mut subscribed).await {
            Ok(()) => return,
            Err(_) => queue.put(ListenEvent::Missed),
        }
        // Backoff for subscriptions that fail at once, for instance since Redis forbids them.
        pause = if began.elapsed() < RETRY_MAX { (pause * 2).min(RETRY_MAX) } else { RETRY_MIN };
        tokio::time::sleep(pause).await;
    }
}

/// Receives over one connection, until that is lost (an error) or the listener is gone.
async fn receive(
    home: &HomeThread,
    queue: &NoticeQueue,
    changes: &mut mpsc::UnboundedReceiver<Subscription>,
    subscribed: &mut Subscriptions,
) -> Result<(), redis::RedisError> {
    let (mut sink, mut messages) = home.link.listen().await?.split();
    for (by, name) in subscribed.iter() {
        match by {
            By::Channel => sink.subscribe(name).await?,
            By::Pattern => sink.psubscribe(name).await?,
        }
    }
    let mut last_message = Instant::now();
    loop {
        tokio::select! {
            message = messages.next() => {
                last_message = Instant::now();
                let Some(message) = message else {
                    return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
                };
                let channel: Vec<u8> = message.get_channel()?;
                if let Some(event) = notice(home, &channel, message.get_payload_bytes()) {
                    queue.put(event);
                }
            }
            () = sleep_until(last_message + SILENCE) => {
                still_there(&mut sink).await?;
                last_message = Instant::now();
            }
            change = changes.recv() => {
                let Some(change) = change else { return Ok(()) };
                let Some(Subscription { by, name, begins }) = subscribed.change(change) else { continue };
                match (by, begins) {
                    (By::Channel, true) => sink.subscribe(name).await?,
                    (By::Channel, false) => sink.unsubscribe(name).await?,
                    (By::Pattern, true) => sink.psubscribe(name).await?,
                    (By::Pattern, false) => sink.punsubscribe(name).await?,
                }
            }
        }
    }
}

fn notice(home: &HomeThread, channel: &[u8], payload: &[u8]) -> Option<ListenEvent> {
    let channels = home.link.target.channels();
    let (kind, queue) =
        Kind::ALL.into_iter().find_map(|kind| Some((kind, channels.queue(kind.name(), channel)?)))?;
    let tasks = home.link.target.layout().notice(kind, payload)?;
    Some(ListenEvent::Notice(Notice { kind, queue: queue.into(), tasks }))
}
