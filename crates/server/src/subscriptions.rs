//! Who has subscribed to what, over all connections, and how they are told.
//!
//! One task, beside the one that accepts connections, listens to the home and puts each notice into the mailboxes of those
//! who want it: no network thread is held up, and no command. What it hears is durable already. A mailbox is bounded: a
//! subscriber that does not read what it is sent is disconnected, and so are all if the home could not keep what it had to
//! tell. Both can see when they come back how things stand; nobody is told half of what happened.

use std::collections::{BTreeMap, VecDeque};
use std::future::{pending, poll_fn};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use sureq_core::broker::glob_matches;
use sureq_core::command::ConnId;
use sureq_core::limits;
use sureq_home_api::{Home, ListenEvent, Listener, Notice};
use sureq_proto::channel;
use sureq_proto::verbs::By;

use crate::matches::Matches;

/// So many notices are told before those who want to connect get their turn.
const NOTICES_PER_TURN: usize = 64;

/// A channel or a pattern, shared by all who subscribed to it.
pub(crate) type Name = Arc<[u8]>;

type Audience = BTreeMap<ConnId, Arc<Mailbox>>;

/// All subscriptions of a server.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    listener: Listener,
    index: Mutex<Index>,
    subscribers: AtomicUsize,
    disconnected: AtomicU64,
}

#[derive(Debug, Default)]
struct Index {
    channels: BTreeMap<Name, Audience>,
    patterns: BTreeMap<Name, Audience>,
    matches: Matches,
}

impl Index {
    fn audiences(&mut self, by: By) -> &mut BTreeMap<Name, Audience> {
        match by {
            By::Channel => &mut self.channels,
            By::Pattern => &mut self.patterns,
        }
    }

    fn matching(&mut self, channel: &[u8]) -> Arc<[Name]> {
        if let Some(known) = self.matches.get(channel) {
            return known;
        }
        let matching = self.patterns.keys().filter(|pattern| glob_matches(pattern, channel));
        let found: Arc<[Name]> = matching.cloned().collect();
        self.matches.insert(channel, &found);
        found
    }
}

impl Subscriptions {
    pub(crate) fn new(home: &dyn Home) -> Self {
        Self {
            listener: home.listen(),
            index: Mutex::default(),
            subscribers: AtomicUsize::new(0),
            disconnected: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        // Lists that are whole between any two calls.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a subscription. All that is executed from now on is told.
    pub(crate) fn add(&self, by: By, name: &[u8], conn: ConnId, mailbox: &Arc<Mailbox>) -> Name {
        self.want(by, name);
        let mut index = self.lock();
        let audiences = index.audiences(by);
        let known = audiences.get_key_value(name).map(|(known, _)| Arc::clone(known));
        let name = known.unwrap_or_else(|| name.into());
        let audience = audiences.entry(Arc::clone(&name)).or_default();
        let is_first = audience.is_empty();
        audience.insert(conn, Arc::clone(mailbox));
        if by == By::Pattern && is_first {
            index.matches = Matches::default();
        }
        name
    }

    /// Takes back what was added.
    pub(crate) fn remove(&self, by: By, name: &Name, conn: ConnId) {
        let mut index = self.lock();
        if let Some(audience) = index.audiences(by).get_mut(name) {
            audience.remove(&conn);
            if audience.is_empty() {
                index.audiences(by).remove(name);
                if by == By::Pattern {
                    index.matches = Matches::default();
                }
            }
        }
        drop(index);
        self.unwant(by, name);
    }

    fn want(&self, by: By, name: &[u8]) {
        match (by, channel::read(name)) {
            (By::Channel, Some((kind, queue))) => self.listener.subscribe(kind, queue),
            (By::Channel, None) => {}
            (By::Pattern, _) => self.listener.subscribe_all(channel::kinds_of_pattern(name)),
        }
    }

    fn unwant(&self, by: By, name: &[u8]) {
        match (by, channel::read(name)) {
            (By::Channel, Some((kind, queue))) => self.listener.unsubscribe(kind, queue),
            (By::Channel, None) => {}
            (By::Pattern, _) => self.listener.unsubscribe_all(channel::kinds_of_pattern(name)),
        }
    }

    /// Tells subscribers what the home has to tell, for as long as it is polled.
    pub(crate) async fn tell_all(&self) {
        let mut told = 0;
        loop {
            match poll_fn(|cx| self.listener.poll(cx)).await {
                Some(ListenEvent::Notice(notice)) => self.tell(notice),
                Some(ListenEvent::Missed) => self.disconnect_all(),
                None => pending().await,
            }
            told += 1;
            if told % NOTICES_PER_TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    fn tell(&self, notice: Notice) {
        let mut channel = Vec::new();
        channel::spell(notice.kind, &notice.queue, &mut channel);
        let notice = Arc::new(notice);
        let mut index = self.lock();
        if let Some((name, audience)) = index.channels.get_key_value(&channel[..]) {
            Self::put_all(audience, By::Channel, name, &notice);
        }
        if index.patterns.is_empty() {
            return;
        }
        for name in index.matching(&channel).iter() {
            if let Some(audience) = index.patterns.get(name) {
                Self::put_all(audience, By::Pattern, name, &notice);
            }
        }
    }

    fn put_all(audience: &Audience, by: By, name: &Name, notice: &Arc<Notice>) {
        for mailbox in audience.values() {
            mailbox.put(Letter { by, name: Arc::clone(name), notice: Arc::clone(notice) });
        }
    }

    fn disconnect_all(&self) {
        let index = self.lock();
        let audiences = index.channels.values().chain(index.patterns.values());
        audiences.flat_map(BTreeMap::values).for_each(|mailbox| mailbox.spoil());
    }

    /// The channels that have subscribers, and match if there is a pattern.
    pub(crate) fn channels(&self, pattern: Option<&[u8]>) -> Vec<Name> {
        let index = self.lock();
        let channels = index.channels.keys();
        channels.filter(|name| pattern.is_none_or(|pattern| glob_matches(pattern, name))).cloned().collect()
    }

    /// How many subscribers a channel has, patterns aside.
    pub(crate) fn len_of(&self, channel: &[u8]) -> usize {
        self.lock().channels.get(channel).map_or(0, BTreeMap::len)
    }

    /// How many channels and how many patterns have subscribers.
    pub(crate) fn len(&self) -> (usize, usize) {
        let index = self.lock();
        (index.channels.len(), index.patterns.len())
    }

    /// How many connections have subscribed to something.
    pub(crate) fn subscribers(&self) -> usize {
        self.subscribers.load(Ordering::Relaxed)
    }

    /// A connection is about to subscribe to something.
    pub(crate) fn join(&self) {
        self.subscribers.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection has subscribed to nothing any more.
    pub(crate) fn leave(&self) {
        self.subscribers.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many subscribers were disconnected because they did not read.
    pub(crate) fn disconnected(&self) -> u64 {
        self.disconnected.load(Ordering::Relaxed)
    }

    /// A subscriber is being disconnected because it did not read.
    pub(crate) fn count_disconnected(&self) {
        self.disconnected.fetch_add(1, Ordering::Relaxed);
    }
}

/// A notice, and the subscription that it is sent for.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) by: By,
    pub(crate) name: Name,
    pub(crate) notice: Arc<Notice>,
}

/// Notices for one connection. They are small until they are spelt, which they are as the connection takes them.
#[derive(Debug)]
pub(crate) struct Mailbox {
    inner: Mutex<Mail>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Mail {
    letters: VecDeque<Letter>,
    bytes: usize,
    /// It was full: something is missing, and so nothing more is to be read.
    is_spoilt: bool,
}

/// The subscriber did not read what it was sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooSlow;

impl Mailbox {
    /// An empty one, for the connection that this waker wakes.
    pub(crate) fn new(waker: Waker) -> Self {
        Self { inner: Mutex::default(), waker }
    }

    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, letter: Letter) {
        let mut mail = self.lock();
        if mail.bytes > limits::NOTICES_UNREAD_BYTES_MAX {
            drop(mail);
            return self.spoil();
        }
        if mail.is_spoilt {
            return;
        }
        let was_empty = mail.letters.is_empty();
        mail.bytes += letter.bytes();
        mail.letters.push_back(letter);
        drop(mail);
        if was_empty {
            self.waker.wake_by_ref();
        }
    }

    fn spoil(&self) {
        *self.lock() = Mail { is_spoilt: true, ..Mail::default() };
        self.waker.wake_by_ref();
    }

    /// Whether all is there that was put in and not taken.
    pub(crate) fn check(&self) -> Result<(), TooSlow> {
        if self.lock().is_spoilt { Err(TooSlow) } else { Ok(()) }
    }

    /// The oldest letter.
    pub(crate) fn take(&self) -> Result<Option<Letter>, TooSlow> {
        let mut mail = self.lock();
        if mail.is_spoilt {
            return Err(TooSlow);
        }
        let letter = mail.letters.pop_front();
        mail.bytes -= letter.as_ref().map_or(0, Letter::bytes);
        if mail.letters.is_empty() {
            mail.letters = VecDeque::new();
        }
        Ok(letter)
    }

    /// How much memory its letters take up.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }
}

impl Letter {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.notice.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use sureq_core::notice::Kind;
    use sureq_engine::{Engine, Options};
    use sureq_home_api::NoticeTasks;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn subscriptions() -> Subscriptions {
        Subscriptions::new(&Engine::in_memory(&Options::default()))
    }

    fn mailbox() -> (Arc<Mailbox>, Arc<Woken>) {
        let woken = Arc::<Woken>::default();
        (Arc::new(Mailbox::new(Waker::from(Arc::clone(&woken)))), woken)
    }

    fn notice(queue: &[u8]) -> Notice {
        Notice { kind: Kind::Work, queue: queue.into(), tasks: NoticeTasks::Count(1) }
    }

    /// The subscriptions that what is in the mailbox was sent for.
    fn names(mailbox: &Mailbox) -> Vec<String> {
        let letters = std::iter::from_fn(|| mailbox.take().expect("nothing is missing"));
        letters.map(|letter| String::from_utf8_lossy(&letter.name).into_owned()).collect()
    }

    #[test]
    fn a_message_comes_once_for_each_subscription_that_matches() {
        let (all, (mailbox, woken)) = (subscriptions(), mailbox());
        let add = |by, name: &str| all.add(by, name.as_bytes(), ConnId(1), &mailbox);
        let tell = |queue: &str| {
            all.tell(notice(queue.as_bytes()));
            names(&mailbox)
        };
        let exact = add(By::Channel, "sureq:work:a");
        assert_eq!(tell("a"), ["sureq:work:a"]);
        assert_eq!(tell("b"), [""; 0]);
        let pattern = add(By::Pattern, "sureq:*:[ab]");
        assert_eq!(tell("a"), ["sureq:work:a", "sureq:*:[ab]"]);
        assert_eq!(tell("b"), ["sureq:*:[ab]"], "what was known of b is no longer true");
        add(By::Pattern, "*");
        assert_eq!(tell("b"), ["*", "sureq:*:[ab]"]);
        all.remove(By::Pattern, &pattern, ConnId(1));
        all.remove(By::Channel, &exact, ConnId(1));
        assert_eq!((tell("a"), tell("b")), (vec!["*".to_owned()], vec!["*".to_owned()]));
        assert_eq!(woken.0.load(Ordering::Relaxed), 6, "once for all that is there");
    }

    /// Each remembered match holds a reference to its pattern.
    #[test]
    fn remembered_matches_take_up_bounded_memory() {
        let (all, (mailbox, _)) = (subscriptions(), mailbox());
        let patterns: Vec<Name> = (0..1_000)
            .map(|n| all.add(By::Pattern, format!("*{}", "*".repeat(n)).as_bytes(), ConnId(1), &mailbox))
            .collect();
        let unremembered: usize = patterns.iter().map(Arc::strong_count).sum();
        let mut most = 0;
        for n in 0..300 {
            all.tell(notice(format!("q{n}").as_bytes()));
            assert_eq!(names(&mailbox).len(), patterns.len());
            let references = patterns.iter().map(Arc::strong_count).sum::<usize>() - unremembered;
            most = most.max(references * size_of::<Name>());
        }
        assert!(most <= limits::PATTERN_CACHE_BYTES_MAX, "{most} bytes are remembered");
        assert!(most > limits::PATTERN_CACHE_BYTES_MAX / 2, "only {most} bytes are remembered");
    }

    #[test]
    fn a_mailbox_that_nobody_empties_is_given_up() {
        let (all, (slow, woken), (fast, _)) = (subscriptions(), mailbox(), mailbox());
        all.add(By::Pattern, b"*", ConnId(1), &slow);
        all.add(By::Pattern, b"*", ConnId(2), &fast);
        let queue = vec![b'q'; 4_000];
        let many = 2 * limits::NOTICES_UNREAD_BYTES_MAX / queue.len();
        for _ in 0..many {
            all.tell(notice(&queue));
            assert_eq!(names(&fast).len(), 1);
            assert!(slow.bytes() <= limits::NOTICES_UNREAD_BYTES_MAX + 2 * queue.len());
        }
        assert_eq!(slow.take().err(), Some(TooSlow));
        assert_eq!((slow.bytes(), woken.0.load(Ordering::Relaxed)), (0, 2), "told at first, and at the end");
    }

    #[test]
    fn if_the_home_could_not_keep_it_all_everyone_is_given_up() {
        let (all, (a, _), (b, _), (other, _)) = (subscriptions(), mailbox(), mailbox(), mailbox());
        all.add(By::Pattern, b"*", ConnId(1), &a);
        all.add(By::Channel, b"sureq:work:q", ConnId(2), &b);
        all.disconnect_all();
        assert!(a.take().is_err() && b.take().is_err() && other.take().is_ok());
    }
}
