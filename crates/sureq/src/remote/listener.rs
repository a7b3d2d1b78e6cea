//! Those who listen: the server publishes what happens, and this hears it. Nothing that was said before one listened is heard;
//! after a lost connection it is told that something may have been missed.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sureq_core::notice::Kind;
use sureq_proto::channel;
use sureq_proto::resp::{Piece, PieceReader};
use sureq_seam::{By, Ear, Heard, Notice, NoticeTasks, Teller, Want, Wanted};
use tokio::sync::mpsc;

use super::conn::{Conn, words_of};
use super::waiting::Common;

const RETRY: Duration = Duration::from_millis(200);

/// Someone who listens. At first nothing is wanted; each want is taken back by the unwant that says the same.
pub type Listener = sureq_seam::Listener<Wants>;

/// Where a listener says what it wants to hear.
pub struct Wants(pub(super) mpsc::UnboundedSender<Want>);

impl Teller for Wants {
    fn channel(&self, kind: Kind, queue: &[u8]) -> Vec<u8> {
        let mut name = Vec::new();
        channel::spell(kind, queue, &mut name);
        name
    }

    fn pattern(&self, kind: Kind) -> Vec<u8> {
        self.channel(kind, b"*")
    }

    fn say(&self, want: Want) {
        // A home that is closed tells nothing.
        let _ = self.0.send(want);
    }
}

/// What the server is told of a channel or a pattern.
fn words(by: By, name: &[u8], is_more: bool) -> Vec<u8> {
    let verb: &[u8] = match (by, is_more) {
        (By::Channel, true) => b"SUBSCRIBE",
        (By::Channel, false) => b"UNSUBSCRIBE",
        (By::Pattern, true) => b"PSUBSCRIBE",
        (By::Pattern, false) => b"PUNSUBSCRIBE",
    };
    words_of(&[verb, name])
}

/// Hears for one listener, until it is dropped or the home is closed.
pub(super) async fn listen(common: Rc<Common>, ear: Arc<Ear>, mut wants: mpsc::UnboundedReceiver<Want>) {
    let (mut wanted, mut has_missed) = (Wanted::default(), false);
    loop {
        while wanted.is_empty() {
            let Some(want) = wants.recv().await else { return };
            wanted.take(want);
        }
        if hear(&common, &ear, &mut wants, &mut wanted, has_missed).await.is_ok() {
            return;
        }
        has_missed = true;
        tokio::time::sleep(RETRY).await;
    }
}

/// Hears over one connection. An error is its end; that nobody listens any more is none.
async fn hear(
    common: &Common,
    ear: &Ear,
    wants: &mut mpsc::UnboundedReceiver<Want>,
    wanted: &mut Wanted,
    has_missed: bool,
) -> io::Result<()> {
    let mut conn = Conn::open(&common.target, common.patience).await.map_err(io::Error::other)?;
    let stream = Arc::clone(&conn.stream);
    let mut unsent = Vec::new();
    for (by, name) in wanted.iter() {
        unsent.extend(words(by, name, true));
    }
    let mut unconfirmed = if has_missed { wanted.len() } else { 0 };
    loop {
        tokio::select! {
            frame = conn.hear() => match read(frame?)? {
                Said::Notice(notice) => ear.put(Heard::Notice(notice)),
                Said::Subscribed if unconfirmed > 0 => {
                    unconfirmed -= 1;
                    if unconfirmed == 0 {
                        ear.put(Heard::Missed);
                    }
                }
                Said::Subscribed | Said::Other => {}
            },
            ready = stream.writable(), if !unsent.is_empty() => {
                ready?;
                match stream.try_write(&unsent) {
                    Ok(n) => drop(unsent.drain(..n)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            want = wants.recv() => {
                let Some(want) = want else { return Ok(()) };
                if let Some(Want { by, name, is_more }) = wanted.take(want) {
                    unsent.extend(words(by, &name, is_more));
                }
            }
        }
    }
}

/// What a server says to a subscriber.
enum Said {
    Notice(Notice),
    Subscribed,
    Other,
}

/// A refusal to subscribe is an error, as if the connection had been lost: it is tried again.
fn read(frame: &[u8]) -> io::Result<Said> {
    let mut pieces = PieceReader::new(frame);
    let mut words = Vec::new();
    while pieces.at() < frame.len() {
        match pieces.take().map_err(super::conn::garbage)? {
            Piece::Bulk(word) => words.push(word),
            Piece::Error(error) => return Err(io::Error::other(String::from_utf8_lossy(error).into_owned())),
            _ => {}
        }
    }
    Ok(match words[..] {
        [b"subscribe" | b"psubscribe", ..] => Said::Subscribed,
        [b"message", channel, payload] | [b"pmessage", _, channel, payload] => {
            notice(channel, payload).map_or(Said::Other, Said::Notice)
        }
        _ => Said::Other,
    })
}

fn notice(channel: &[u8], payload: &[u8]) -> Option<Notice> {
    let (kind, queue) = channel::read(channel)?;
    let tasks = match NoticeTasks::parse(kind, payload) {
        Some(tasks) => tasks,
        None if kind == Kind::Work => return None,
        // The server may speak for another program's queues.
        None => NoticeTasks::Said(payload.into()),
    };
    Some(Notice { kind, queue: queue.into(), tasks })
}
