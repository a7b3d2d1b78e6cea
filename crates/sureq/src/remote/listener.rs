//! Those who listen: the server publishes what happens, and this hears it. Nothing that was said before one listened is heard;
//! after a lost connection it is told that something may have been missed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sureq_core::notice::{Heard, Kind, Kinds, Notice, NoticeTasks};
use sureq_core::{TaskId, limits};
use sureq_proto::channel;
use sureq_proto::resp::{Piece, PieceReader};
use tokio::sync::mpsc;

use super::conn::{Conn, words_of};
use super::waiting::Common;

const RETRY: Duration = Duration::from_millis(200);

/// What is to be heard: a channel, or a pattern of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum By {
    Channel,
    Pattern,
}

/// One more, or one fewer, who wants to hear something.
pub(super) struct Want {
    by: By,
    name: Vec<u8>,
    is_more: bool,
}

#[derive(Default)]
struct Inbox {
    heard: VecDeque<Heard>,
    bytes: usize,
    is_ended: bool,
    waker: Option<Waker>,
}

/// Where what is heard is put.
#[derive(Default)]
pub(super) struct Ear(Mutex<Inbox>);

impl Ear {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, heard: Heard) {
        let mut inbox = self.lock();
        inbox.bytes += bytes_of(&heard);
        inbox.heard.push_back(heard);
        if inbox.bytes > limits::NOTICES_UNHEARD_BYTES_MAX {
            (inbox.heard, inbox.bytes) = ([Heard::Missed].into(), 0);
        }
        Self::wake(inbox);
    }

    /// Nothing more will be heard.
    pub(super) fn end(&self) {
        let mut inbox = self.lock();
        inbox.is_ended = true;
        Self::wake(inbox);
    }

    fn wake(mut inbox: MutexGuard<'_, Inbox>) {
        let waker = inbox.waker.take();
        drop(inbox);
        waker.into_iter().for_each(Waker::wake);
    }
}

fn bytes_of(heard: &Heard) -> usize {
    match heard {
        Heard::Notice(notice) => notice.bytes(),
        Heard::Missed => size_of::<Heard>(),
    }
}

/// Someone who listens. At first nothing is wanted; each want is taken back by the unwant that says the same.
pub struct Listener {
    pub(super) ear: Arc<Ear>,
    pub(super) wants: mpsc::UnboundedSender<Want>,
}

impl Listener {
    /// Hears this of a queue, which need not be there.
    pub fn want(&self, kind: Kind, queue: &[u8]) {
        self.say(By::Channel, kind, queue, true);
    }

    /// Takes back what [`Self::want`] said.
    pub fn unwant(&self, kind: Kind, queue: &[u8]) {
        self.say(By::Channel, kind, queue, false);
    }

    /// Hears these of all queues.
    pub fn want_everywhere(&self, kinds: Kinds) {
        kinds.iter().for_each(|kind| self.say(By::Pattern, kind, b"*", true));
    }

    /// Takes back what [`Self::want_everywhere`] said.
    pub fn unwant_everywhere(&self, kinds: Kinds) {
        kinds.iter().for_each(|kind| self.say(By::Pattern, kind, b"*", false));
    }

    fn say(&self, by: By, kind: Kind, queue: &[u8], is_more: bool) {
        let mut name = Vec::new();
        channel::spell(kind, queue, &mut name);
        // A home that is closed tells nothing.
        let _ = self.wants.send(Want { by, name, is_more });
    }

    /// What happened next; `None` when nothing more will be told.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Heard>> {
        let mut inbox = self.ear.lock();
        if let Some(heard) = inbox.heard.pop_front() {
            inbox.bytes = inbox.bytes.saturating_sub(bytes_of(&heard));
            return Poll::Ready(Some(heard));
        }
        if inbox.is_ended {
            return Poll::Ready(None);
        }
        inbox.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// How many want each channel and each pattern.
#[derive(Default)]
struct Wanted(BTreeMap<(By, Vec<u8>), usize>);

impl Wanted {
    /// Takes a want in; answers what the server has to be told.
    fn take(&mut self, want: Want) -> Option<Vec<u8>> {
        let Want { by, name, is_more } = want;
        let key = (by, name);
        let count = self.0.get(&key).copied().unwrap_or(0);
        match (is_more, count) {
            (true, _) => _ = self.0.insert(key.clone(), count + 1),
            (false, 0) => return None,
            (false, 1) => _ = self.0.remove(&key),
            (false, _) => _ = self.0.insert(key.clone(), count - 1),
        }
        let is_told = if is_more { count == 0 } else { count == 1 };
        is_told.then(|| words_of(&[verb(by, is_more), &key.1]))
    }
}

const fn verb(by: By, is_more: bool) -> &'static [u8] {
    match (by, is_more) {
        (By::Channel, true) => b"SUBSCRIBE",
        (By::Channel, false) => b"UNSUBSCRIBE",
        (By::Pattern, true) => b"PSUBSCRIBE",
        (By::Pattern, false) => b"PUNSUBSCRIBE",
    }
}

/// Hears for one listener, until it is dropped or the home is closed.
pub(super) async fn listen(common: Rc<Common>, ear: Arc<Ear>, mut wants: mpsc::UnboundedReceiver<Want>) {
    let (mut wanted, mut has_missed) = (Wanted::default(), false);
    loop {
        while wanted.0.is_empty() {
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
    for (by, name) in wanted.0.keys() {
        unsent.extend(words_of(&[verb(*by, true), name]));
    }
    let mut unconfirmed = if has_missed { wanted.0.len() } else { 0 };
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
                unsent.extend(wanted.take(want).unwrap_or_default());
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
    // The server may speak for another program's queues.
    let said = || NoticeTasks::Said(payload.into());
    let tasks = match kind {
        Kind::Work => NoticeTasks::Count(sureq_core::id::decimal(payload)?),
        Kind::Delete => sureq_core::id::decimal(payload).map_or_else(said, NoticeTasks::Count),
        Kind::Done | Kind::Cancel => {
            let ids = payload.split(|&c| c == b' ').map(TaskId::parse).collect::<Option<_>>();
            ids.map_or_else(said, NoticeTasks::Ids)
        }
    };
    Some(Notice { kind, queue: queue.into(), tasks })
}
