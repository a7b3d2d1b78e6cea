//! Listeners: receive the notices that the server publishes. After a lost connection a listener receives
//! [`ListenEvent::Missed`].

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sureq_core::notice::Kind;
use sureq_home_api::elsewhere::{By, ChannelNames, Subscription, Subscriptions};
use sureq_home_api::{ListenEvent, Notice, NoticeQueue, NoticeTasks};
use sureq_proto::channel;
use sureq_proto::resp::{Piece, PieceReader};
use tokio::sync::mpsc;

use crate::conn::{Conn, words_of};
use crate::waiting::Common;

const RETRY: Duration = Duration::from_millis(200);

/// Sends the subscriptions of a listener to the task that receives for it.
pub(crate) struct ListenerChannels(pub(crate) mpsc::UnboundedSender<Subscription>);

impl ChannelNames for ListenerChannels {
    fn channel(&self, kind: Kind, queue: &[u8]) -> Vec<u8> {
        let mut name = Vec::new();
        channel::write(kind, queue, &mut name);
        name
    }

    fn pattern(&self, kind: Kind) -> Vec<u8> {
        self.channel(kind, b"*")
    }

    fn change(&self, subscription: Subscription) {
        // Sending fails only if the home is closed, which publishes nothing.
        let _ = self.0.send(subscription);
    }
}

/// Encodes the command that begins or ends a subscription.
fn words(by: By, name: &[u8], begins: bool) -> Vec<u8> {
    let verb: &[u8] = match (by, begins) {
        (By::Channel, true) => b"SUBSCRIBE",
        (By::Channel, false) => b"UNSUBSCRIBE",
        (By::Pattern, true) => b"PSUBSCRIBE",
        (By::Pattern, false) => b"PUNSUBSCRIBE",
    };
    words_of(&[verb, name])
}

/// Receives for one listener, until it is dropped or the home is closed.
pub(crate) async fn listen(
    common: Rc<Common>,
    queue: Arc<NoticeQueue>,
    mut changes: mpsc::UnboundedReceiver<Subscription>,
) {
    let (mut subscribed, mut has_missed) = (Subscriptions::default(), false);
    loop {
        while subscribed.is_empty() {
            let Some(change) = changes.recv().await else { return };
            subscribed.change(change);
        }
        if hear(&common, &queue, &mut changes, &mut subscribed, has_missed).await.is_ok() {
            return;
        }
        has_missed = true;
        tokio::time::sleep(RETRY).await;
    }
}

/// Receives over one connection, until that is lost (an error) or the listener is dropped.
async fn hear(
    common: &Common,
    queue: &NoticeQueue,
    changes: &mut mpsc::UnboundedReceiver<Subscription>,
    subscribed: &mut Subscriptions,
    has_missed: bool,
) -> io::Result<()> {
    let mut conn = Conn::open(&common.target, common.patience).await.map_err(io::Error::other)?;
    let stream = Arc::clone(&conn.stream);
    let mut unsent = Vec::new();
    for (by, name) in subscribed.iter() {
        unsent.extend(words(by, name, true));
    }
    let mut unconfirmed = if has_missed { subscribed.len() } else { 0 };
    loop {
        tokio::select! {
            frame = conn.hear() => match read(frame?)? {
                ServerMessage::Notice(notice) => queue.put(ListenEvent::Notice(notice)),
                ServerMessage::Subscribed if unconfirmed > 0 => {
                    unconfirmed -= 1;
                    if unconfirmed == 0 {
                        queue.put(ListenEvent::Missed);
                    }
                }
                ServerMessage::Subscribed | ServerMessage::Other => {}
            },
            ready = stream.writable(), if !unsent.is_empty() => {
                ready?;
                match stream.try_write(&unsent) {
                    Ok(n) => drop(unsent.drain(..n)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            change = changes.recv() => {
                let Some(change) = change else { return Ok(()) };
                if let Some(Subscription { by, name, begins }) = subscribed.change(change) {
                    unsent.extend(words(by, &name, begins));
                }
            }
        }
    }
}

/// A message from the server to a subscriber.
enum ServerMessage {
    Notice(Notice),
    Subscribed,
    Other,
}

/// Parses a message. A refused subscription is an error like a lost connection, so that it is retried.
fn read(frame: &[u8]) -> io::Result<ServerMessage> {
    let mut pieces = PieceReader::new(frame);
    let mut words = Vec::new();
    while pieces.at() < frame.len() {
        match pieces.take().map_err(crate::conn::garbage)? {
            Piece::Bulk(word) => words.push(word),
            Piece::Error(error) => return Err(io::Error::other(String::from_utf8_lossy(error).into_owned())),
            _ => {}
        }
    }
    Ok(match words[..] {
        [b"subscribe" | b"psubscribe", ..] => ServerMessage::Subscribed,
        [b"message", channel, payload] | [b"pmessage", _, channel, payload] => {
            notice(channel, payload).map_or(ServerMessage::Other, ServerMessage::Notice)
        }
        _ => ServerMessage::Other,
    })
}

fn notice(channel: &[u8], payload: &[u8]) -> Option<Notice> {
    let (kind, queue) = channel::read(channel)?;
    let tasks = match NoticeTasks::parse(kind, payload) {
        Some(tasks) => tasks,
        None if kind == Kind::Work => return None,
        // The server may serve queues that it shares with another program.
        None => NoticeTasks::Foreign(payload.into()),
    };
    Some(Notice { kind, queue: queue.into(), tasks })
}
