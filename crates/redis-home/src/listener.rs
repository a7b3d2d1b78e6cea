//! Those who listen: scripts publish what they did, and this hears it. Nothing that was said before one listened is heard, and
//! what is said while the connection is lost is missed, and told as such.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use sureq_core::notice::Kind;
use sureq_seam::{By, Ear, Heard, Notice, NoticeTasks, Teller, Want, Wanted};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::channels::Channels;
use crate::hearing::{SILENCE, still_there};
use crate::layout::Layout;
use crate::thread::Inner;

const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Someone who listens. At first nothing is wanted; each want is taken back by the unwant that says the same.
pub type Listener = sureq_seam::Listener<Wants>;

/// Where a listener says what it wants to hear.
pub struct Wants {
    said: mpsc::UnboundedSender<Want>,
    channels: Channels,
}

impl Wants {
    pub(crate) const fn new(said: mpsc::UnboundedSender<Want>, channels: Channels) -> Self {
        Self { said, channels }
    }
}

impl Teller for Wants {
    fn channel(&self, kind: Kind, queue: &[u8]) -> Vec<u8> {
        self.channels.name(kind.name(), queue)
    }

    fn pattern(&self, kind: Kind) -> Vec<u8> {
        self.channels.pattern(kind.name())
    }

    fn say(&self, want: Want) {
        // A home that is closed tells nothing.
        let _ = self.said.send(want);
    }
}

/// Hears for one listener, until it is dropped or the home is closed.
pub(crate) async fn listen(inner: Rc<Inner>, ear: Arc<Ear>, mut wants: mpsc::UnboundedReceiver<Want>) {
    let (mut wanted, mut pause) = (Wanted::default(), RETRY_MIN);
    loop {
        while wanted.is_empty() {
            let Some(want) = wants.recv().await else { return };
            wanted.take(want);
        }
        let began = Instant::now();
        match hear(&inner, &ear, &mut wants, &mut wanted).await {
            Ok(()) => return,
            Err(_) => ear.put(Heard::Missed),
        }
        // What fails at once, as where Redis forbids it, is tried less and less often.
        pause = if began.elapsed() < RETRY_MAX { (pause * 2).min(RETRY_MAX) } else { RETRY_MIN };
        tokio::time::sleep(pause).await;
    }
}

/// Hears over one connection. An error is its end; that nobody listens any more is none.
async fn hear(
    inner: &Inner,
    ear: &Ear,
    wants: &mut mpsc::UnboundedReceiver<Want>,
    wanted: &mut Wanted,
) -> Result<(), redis::RedisError> {
    let (mut sink, mut messages) = inner.link.listen().await?.split();
    for (by, name) in wanted.iter() {
        match by {
            By::Channel => sink.subscribe(name).await?,
            By::Pattern => sink.psubscribe(name).await?,
        }
    }
    let mut heard = Instant::now();
    loop {
        tokio::select! {
            message = messages.next() => {
                heard = Instant::now();
                let Some(message) = message else {
                    return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
                };
                let channel: Vec<u8> = message.get_channel()?;
                if let Some(heard) = notice(inner, &channel, message.get_payload_bytes()) {
                    ear.put(heard);
                }
            }
            () = sleep_until(heard + SILENCE) => {
                still_there(&mut sink).await?;
                heard = Instant::now();
            }
            want = wants.recv() => {
                let Some(want) = want else { return Ok(()) };
                let Some(Want { by, name, is_more }) = wanted.take(want) else { continue };
                match (by, is_more) {
                    (By::Channel, true) => sink.subscribe(name).await?,
                    (By::Channel, false) => sink.unsubscribe(name).await?,
                    (By::Pattern, true) => sink.psubscribe(name).await?,
                    (By::Pattern, false) => sink.punsubscribe(name).await?,
                }
            }
        }
    }
}

fn notice(inner: &Inner, channel: &[u8], payload: &[u8]) -> Option<Heard> {
    let channels = inner.link.target.channels();
    let (kind, queue) =
        Kind::ALL.into_iter().find_map(|kind| Some((kind, channels.queue(kind.name(), channel)?)))?;
    let tasks = match kind {
        // Other programs know no ids, and say what they have to say in their own words.
        Kind::Done | Kind::Cancel | Kind::Delete if inner.link.target.layout == Layout::Worqr => {
            NoticeTasks::Said(payload.into())
        }
        kind => NoticeTasks::parse(kind, payload)?,
    };
    Some(Heard::Notice(Notice { kind, queue: queue.into(), tasks }))
}
