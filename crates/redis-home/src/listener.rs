//! Those who listen: scripts publish what they did, and this hears it. Nothing that was said before one listened is heard, and
//! what is said while the connection is lost is missed, and told as such.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use sureq_core::notice::{Heard, Kind, Kinds, Notice, NoticeTasks};
use sureq_core::{TaskId, limits};
use tokio::sync::mpsc;

use crate::channels::Channels;
use crate::layout::Layout;
use crate::thread::Inner;

const RETRY: Duration = Duration::from_millis(200);

/// What is to be heard: a channel, or a pattern of them; and whether it is so many more or fewer who want it.
#[derive(Debug)]
pub(crate) enum Want {
    Channel(Vec<u8>, bool),
    Pattern(Vec<u8>, bool),
}

#[derive(Debug, Default)]
struct Inbox {
    heard: VecDeque<Heard>,
    bytes: usize,
    is_ended: bool,
    waker: Option<Waker>,
}

/// Where what is heard is put.
#[derive(Debug, Default)]
pub(crate) struct Ear(Mutex<Inbox>);

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
        let waker = inbox.waker.take();
        drop(inbox);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Nothing more will be heard.
    pub(crate) fn end(&self) {
        let mut inbox = self.lock();
        inbox.is_ended = true;
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
#[derive(Debug)]
pub struct Listener {
    pub(crate) ear: Arc<Ear>,
    pub(crate) wants: mpsc::UnboundedSender<Want>,
    pub(crate) channels: Channels,
}

impl Listener {
    /// Hears this of a queue, which need not be there.
    pub fn want(&self, kind: Kind, queue: &[u8]) {
        self.say(Want::Channel(self.channel(kind, queue), true));
    }

    /// Takes back what [`Self::want`] said.
    pub fn unwant(&self, kind: Kind, queue: &[u8]) {
        self.say(Want::Channel(self.channel(kind, queue), false));
    }

    /// Hears these of all queues.
    pub fn want_everywhere(&self, kinds: Kinds) {
        kinds.iter().for_each(|kind| self.say(Want::Pattern(self.pattern(kind), true)));
    }

    /// Takes back what [`Self::want_everywhere`] said.
    pub fn unwant_everywhere(&self, kinds: Kinds) {
        kinds.iter().for_each(|kind| self.say(Want::Pattern(self.pattern(kind), false)));
    }

    fn say(&self, want: Want) {
        // A home that is closed tells nothing.
        let _ = self.wants.send(want);
    }

    fn channel(&self, kind: Kind, queue: &[u8]) -> Vec<u8> {
        self.channels.name(kind.name(), queue)
    }

    fn pattern(&self, kind: Kind) -> Vec<u8> {
        self.channels.pattern(kind.name())
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

/// How many want each channel and each pattern.
#[derive(Default)]
struct Wanted {
    channels: BTreeMap<Vec<u8>, usize>,
    patterns: BTreeMap<Vec<u8>, usize>,
}

impl Wanted {
    /// Takes a want in; answers whether the connection has to be told.
    fn take(&mut self, want: &Want) -> bool {
        let (map, name, more) = match want {
            Want::Channel(name, more) => (&mut self.channels, name, *more),
            Want::Pattern(name, more) => (&mut self.patterns, name, *more),
        };
        if more {
            let count = map.entry(name.clone()).or_default();
            *count += 1;
            return *count == 1;
        }
        match map.get_mut(name) {
            Some(1) => map.remove(name).is_some(),
            Some(count) => {
                *count -= 1;
                false
            }
            None => false,
        }
    }

    fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty()
    }
}

/// Hears for one listener, until it is dropped or the home is closed.
pub(crate) async fn listen(inner: Rc<Inner>, ear: Arc<Ear>, mut wants: mpsc::UnboundedReceiver<Want>) {
    let mut wanted = Wanted::default();
    loop {
        while wanted.is_empty() {
            let Some(want) = wants.recv().await else { return };
            wanted.take(&want);
        }
        match hear(&inner, &ear, &mut wants, &mut wanted).await {
            Ok(()) => return,
            Err(_) => ear.put(Heard::Missed),
        }
        tokio::time::sleep(RETRY).await;
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
    for channel in wanted.channels.keys() {
        sink.subscribe(channel).await?;
    }
    for pattern in wanted.patterns.keys() {
        sink.psubscribe(pattern).await?;
    }
    loop {
        tokio::select! {
            message = messages.next() => {
                let Some(message) = message else {
                    return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
                };
                let channel: Vec<u8> = message.get_channel()?;
                if let Some(heard) = notice(inner, &channel, message.get_payload_bytes()) {
                    ear.put(heard);
                }
            }
            want = wants.recv() => {
                let Some(want) = want else { return Ok(()) };
                if wanted.take(&want) {
                    match want {
                        Want::Channel(name, true) => sink.subscribe(name).await?,
                        Want::Channel(name, false) => sink.unsubscribe(name).await?,
                        Want::Pattern(name, true) => sink.psubscribe(name).await?,
                        Want::Pattern(name, false) => sink.punsubscribe(name).await?,
                    }
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
        Kind::Work | Kind::Delete => NoticeTasks::Count(sureq_core::id::decimal(payload)?),
        Kind::Done | Kind::Cancel => {
            let ids = payload.split(|&c| c == b' ').map(TaskId::parse).collect::<Option<_>>();
            NoticeTasks::Ids(ids?)
        }
    };
    Some(Heard::Notice(Notice { kind, queue: queue.into(), tasks }))
}
