//! The subscriptions of all connections, and the delivery of notices to them.
//!
//! One tokio task, on the thread that accepts connections, listens to the home and puts each notice into the
//! mailboxes of its subscribers, so that it delays no network thread and no command. Notices are durable when they
//! arrive. A mailbox is bounded: a subscriber that does not read is disconnected, and so are all subscribers if the
//! home lost notices. They look at the queues again when they reconnect, so no subscriber misses a notice without
//! noticing.

mod matching;

use std::collections::{BTreeMap, VecDeque};
use std::future::{pending, poll_fn};
use std::mem;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use sureq_core::broker::glob_matches_within;
use sureq_core::command::ConnId;
use sureq_core::limits;
use sureq_home_api::{Home, ListenEvent, Listener, Notice};
use sureq_proto::channel;
use sureq_proto::verbs::By;

use crate::matches::Matches;

/// The number of matching steps after which new connections are accepted before matching continues.
const STEPS_PER_YIELD: usize = 1 << 16;

/// The number of steps that a notice counts as, besides those of matching.
const NOTICE_STEPS: usize = STEPS_PER_YIELD / 64;

/// The number of steps that visiting a subscriber's mailbox counts as.
const MAILBOX_STEPS: usize = 32;

/// The maximum number of channels or patterns that are visited under the lock, which network threads take too.
const NAMES_PER_LOCK: usize = 1_000;

/// A channel or a pattern, shared by all its subscribers.
pub(crate) type Name = Arc<[u8]>;

type Audience = BTreeMap<ConnId, Arc<Mailbox>>;

#[derive(Debug)]
pub(crate) struct Subscriptions {
    listener: Listener,
    index: Mutex<Index>,
    subscribers: AtomicUsize,
    too_slow: AtomicU64,
    too_costly: AtomicU64,
}

#[derive(Debug, Default)]
struct Index {
    channels: BTreeMap<Name, Audience>,
    patterns: BTreeMap<Name, Audience>,
    matches: Matches,
    /// The number of times that a pattern was added or removed.
    pattern_changes: u64,
}

impl Index {
    fn audiences(&mut self, by: By) -> &mut BTreeMap<Name, Audience> {
        match by {
            By::Channel => &mut self.channels,
            By::Pattern => &mut self.patterns,
        }
    }

    /// Notes that a pattern was added or removed. Returns the matches that are no longer valid, so that the caller
    /// can drop them without the lock.
    fn change_patterns(&mut self) -> Matches {
        self.pattern_changes += 1;
        mem::take(&mut self.matches)
    }
}

/// The next few channels or patterns after `last`, in order.
fn names_after<'a>(
    audiences: &'a BTreeMap<Name, Audience>,
    last: Option<&Name>,
) -> impl Iterator<Item = (&'a Name, &'a Audience)> {
    let from = last.map_or(Bound::Unbounded, Bound::Excluded);
    audiences.range::<Name, _>((from, Bound::Unbounded)).take(NAMES_PER_LOCK)
}

/// Lets new connections be accepted between steps of work.
#[derive(Default)]
struct YieldBudget {
    steps: usize,
}

impl YieldBudget {
    async fn spend(&mut self, steps: usize) {
        self.steps += steps;
        if self.steps >= STEPS_PER_YIELD {
            self.steps = 0;
            tokio::task::yield_now().await;
        }
    }
}

impl Subscriptions {
    pub(crate) fn new(home: &dyn Home) -> Self {
        Self {
            listener: home.listen(),
            index: Mutex::default(),
            subscribers: AtomicUsize::new(0),
            too_slow: AtomicU64::new(0),
            too_costly: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        // A poisoned lock is fine: the maps are consistent between any two calls.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a subscription. Notices of everything that is executed from now on are delivered to it.
    pub(crate) fn add(&self, by: By, name: &[u8], conn: ConnId, mailbox: &Arc<Mailbox>) -> Name {
        self.subscribe_home(by, name);
        let mut index = self.lock();
        let audiences = index.audiences(by);
        let known = audiences.get_key_value(name).map(|(known, _)| Arc::clone(known));
        let name = known.unwrap_or_else(|| name.into());
        let audience = audiences.entry(Arc::clone(&name)).or_default();
        // It is not matched for those that are given up.
        let is_new = by == By::Pattern && audience.values().all(|mailbox| mailbox.check().is_err());
        audience.insert(conn, Arc::clone(mailbox));
        let invalid = is_new.then(|| index.change_patterns());
        drop(index);
        drop(invalid);
        name
    }

    pub(crate) fn remove(&self, by: By, name: &Name, conn: ConnId) {
        let mut index = self.lock();
        let mut invalid = None;
        if let Some(audience) = index.audiences(by).get_mut(name) {
            audience.remove(&conn);
            if audience.is_empty() {
                index.audiences(by).remove(name);
                invalid = (by == By::Pattern).then(|| index.change_patterns());
            }
        }
        drop(index);
        drop(invalid);
        self.unsubscribe_home(by, name);
    }

    fn subscribe_home(&self, by: By, name: &[u8]) {
        match (by, channel::read(name)) {
            (By::Channel, Some((kind, queue))) => self.listener.subscribe(kind, queue),
            (By::Channel, None) => {}
            (By::Pattern, _) => self.listener.subscribe_all(channel::kinds_of_pattern(name)),
        }
    }

    fn unsubscribe_home(&self, by: By, name: &[u8]) {
        match (by, channel::read(name)) {
            (By::Channel, Some((kind, queue))) => self.listener.unsubscribe(kind, queue),
            (By::Channel, None) => {}
            (By::Pattern, _) => self.listener.unsubscribe_all(channel::kinds_of_pattern(name)),
        }
    }

    /// Delivers the home's notices to the subscribers, for as long as it is polled.
    pub(crate) async fn deliver_all(&self) {
        let mut yields = YieldBudget::default();
        loop {
            match poll_fn(|cx| self.listener.poll(cx)).await {
                Some(ListenEvent::Notice(notice)) => self.deliver(notice, &mut yields).await,
                Some(ListenEvent::Missed) => self.disconnect_all(),
                None => pending().await,
            }
            yields.spend(NOTICE_STEPS).await;
        }
    }

    async fn deliver(&self, notice: Notice, yields: &mut YieldBudget) {
        let mut channel = Vec::new();
        channel::write(notice.kind, &notice.queue, &mut channel);
        let notice = Arc::new(notice);
        yields.spend(self.put_all(By::Channel, &channel, &notice)).await;
        let known = {
            let index = self.lock();
            if index.patterns.is_empty() {
                return;
            }
            index.matches.get(&channel)
        };
        let matching = match known {
            Some(known) => known,
            None => self.matching(&channel, yields).await,
        };
        for name in matching.iter() {
            yields.spend(self.put_all(By::Pattern, name, &notice)).await;
        }
    }

    /// Puts a notice into the mailboxes of a channel or pattern. Returns the number of steps that this counts as.
    fn put_all(&self, by: By, name: &[u8], notice: &Arc<Notice>) -> usize {
        let mut index = self.lock();
        let Some((name, audience)) = index.audiences(by).get_key_value(name) else { return 0 };
        for mailbox in audience.values() {
            mailbox.put(Letter { by, name: Arc::clone(name), notice: Arc::clone(notice) });
        }
        MAILBOX_STEPS * audience.len()
    }

    /// Gives up all subscribers.
    pub(crate) fn disconnect_all(&self) {
        let index = self.lock();
        let audiences = index.channels.values().chain(index.patterns.values());
        audiences.flat_map(BTreeMap::values).for_each(|mailbox| mailbox.give_up(GivenUp::TooSlow));
    }

    /// The channels that have subscribers and match the pattern, if there is one. `None` if matching takes too many
    /// steps.
    pub(crate) fn channels(&self, pattern: Option<&[u8]>) -> Option<Vec<Name>> {
        let (mut found, mut last, mut steps_left) = (Vec::new(), None, limits::PATTERN_STEPS_MAX);
        loop {
            let channels: Vec<Name> =
                names_after(&self.lock().channels, last.as_ref()).map(|(name, _)| Arc::clone(name)).collect();
            let Some(name) = channels.last() else { return Some(found) };
            last = Some(Arc::clone(name));
            for name in channels {
                let matches = pattern.map(|pattern| glob_matches_within(pattern, &name, &mut steps_left));
                if matches.unwrap_or(Some(true))? {
                    found.push(name);
                }
            }
        }
    }

    /// The number of subscribers of a channel, not counting patterns.
    pub(crate) fn len_of(&self, channel: &[u8]) -> usize {
        self.lock().channels.get(channel).map_or(0, BTreeMap::len)
    }

    /// The numbers of channels and of patterns with subscribers.
    pub(crate) fn len(&self) -> (usize, usize) {
        let index = self.lock();
        (index.channels.len(), index.patterns.len())
    }

    /// The number of connections with subscriptions.
    pub(crate) fn subscribers(&self) -> usize {
        self.subscribers.load(Ordering::Relaxed)
    }

    /// Counts a connection that is about to subscribe for the first time.
    pub(crate) fn join(&self) {
        self.subscribers.fetch_add(1, Ordering::Relaxed);
    }

    /// Uncounts a connection that has no subscriptions any more.
    pub(crate) fn leave(&self) {
        self.subscribers.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of subscribers that were disconnected because they did not read.
    pub(crate) fn too_slow(&self) -> u64 {
        self.too_slow.load(Ordering::Relaxed)
    }

    /// The number of subscribers that were disconnected because of the cost of their patterns.
    pub(crate) fn too_costly(&self) -> u64 {
        self.too_costly.load(Ordering::Relaxed)
    }

    /// Counts a subscriber that is being disconnected.
    pub(crate) fn count_disconnected(&self, why: GivenUp) {
        let count = match why {
            GivenUp::TooSlow => &self.too_slow,
            GivenUp::TooCostly => &self.too_costly,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A notice, and the subscription that it is sent for.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) by: By,
    pub(crate) name: Name,
    pub(crate) notice: Arc<Notice>,
}

/// The notices for one connection. They are encoded only as the client reads them, and need little memory before
/// that.
#[derive(Debug)]
pub(crate) struct Mailbox {
    inner: Mutex<Mail>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Mail {
    letters: VecDeque<Letter>,
    bytes: usize,
    /// Set if a message could not be kept. Nothing more is read from the mailbox then.
    given_up: Option<GivenUp>,
}

/// The reason why a subscriber is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// It did not read its messages.
    TooSlow,
    /// Its patterns take too many steps to match.
    TooCostly,
}

impl Mailbox {
    /// An empty mailbox. The waker wakes the connection that reads it.
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
            return self.give_up(GivenUp::TooSlow);
        }
        if mail.given_up.is_some() {
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

    fn give_up(&self, why: GivenUp) {
        *self.lock() = Mail { given_up: Some(why), ..Mail::default() };
        self.waker.wake_by_ref();
    }

    /// Fails if a message could not be kept.
    pub(crate) fn check(&self) -> Result<(), GivenUp> {
        self.lock().given_up.map_or(Ok(()), Err)
    }

    /// Removes and returns the oldest letter.
    pub(crate) fn take(&self) -> Result<Option<Letter>, GivenUp> {
        let mut mail = self.lock();
        if let Some(why) = mail.given_up {
            return Err(why);
        }
        let letter = mail.letters.pop_front();
        mail.bytes -= letter.as_ref().map_or(0, Letter::bytes);
        if mail.letters.is_empty() {
            mail.letters = VecDeque::new();
        }
        Ok(letter)
    }

    /// The memory of its letters in bytes.
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
pub(crate) mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Wake};
    use sureq_core::notice::Kind;
    use sureq_engine::{Engine, Options};
    use sureq_home_api::NoticeTasks;

    #[derive(Default)]
    pub(super) struct Woken(pub(super) AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn subscriptions() -> Subscriptions {
        Subscriptions::new(&Engine::in_memory(&Options::default()))
    }

    pub(super) fn mailbox() -> (Arc<Mailbox>, Arc<Woken>) {
        let woken = Arc::<Woken>::default();
        (Arc::new(Mailbox::new(Waker::from(Arc::clone(&woken)))), woken)
    }

    pub(super) fn notice(queue: &[u8]) -> Notice {
        Notice { kind: Kind::Work, queue: queue.into(), tasks: NoticeTasks::Count(1) }
    }

    /// Delivers a notice. Returns how often it let other tasks run meanwhile.
    pub(super) fn deliver(all: &Subscriptions, notice: Notice) -> usize {
        let mut yields = YieldBudget::default();
        let mut delivery = pin!(all.deliver(notice, &mut yields));
        let mut cx = Context::from_waker(Waker::noop());
        let mut turns = 0;
        while delivery.as_mut().poll(&mut cx).is_pending() {
            turns += 1;
        }
        turns
    }

    /// The subscriptions that the letters in the mailbox were sent for.
    pub(super) fn names(mailbox: &Mailbox) -> Vec<String> {
        let letters = std::iter::from_fn(|| mailbox.take().expect("nothing is missing"));
        letters.map(|letter| String::from_utf8_lossy(&letter.name).into_owned()).collect()
    }

    #[test]
    fn a_message_comes_once_for_each_subscription_that_matches() {
        let (all, (mailbox, woken)) = (subscriptions(), mailbox());
        let add = |by, name: &str| all.add(by, name.as_bytes(), ConnId(1), &mailbox);
        let deliver_to = |queue: &str| {
            deliver(&all, notice(queue.as_bytes()));
            names(&mailbox)
        };
        let exact = add(By::Channel, "sureq:work:a");
        assert_eq!(deliver_to("a"), ["sureq:work:a"]);
        assert_eq!(deliver_to("b"), [""; 0]);
        let pattern = add(By::Pattern, "sureq:*:[ab]");
        assert_eq!(deliver_to("a"), ["sureq:work:a", "sureq:*:[ab]"]);
        assert_eq!(deliver_to("b"), ["sureq:*:[ab]"], "the cached matches of b are no longer valid");
        add(By::Pattern, "*");
        assert_eq!(deliver_to("b"), ["*", "sureq:*:[ab]"]);
        all.remove(By::Pattern, &pattern, ConnId(1));
        all.remove(By::Channel, &exact, ConnId(1));
        assert_eq!((deliver_to("a"), deliver_to("b")), (vec!["*".to_owned()], vec!["*".to_owned()]));
        assert_eq!(woken.0.load(Ordering::Relaxed), 6, "once for all pending messages");
    }

    /// Each remembered match holds a reference to its pattern.
    #[test]
    fn remembered_matches_take_up_bounded_memory() {
        let (all, (mailbox, _)) = (subscriptions(), mailbox());
        let patterns: Vec<Name> = (0..1_000)
            .map(|n| all.add(By::Pattern, format!("[s{n}]ureq:work:*").as_bytes(), ConnId(1), &mailbox))
            .collect();
        let unremembered: usize = patterns.iter().map(Arc::strong_count).sum();
        let mut most = 0;
        for n in 0..300 {
            deliver(&all, notice(format!("q{n}").as_bytes()));
            assert_eq!(names(&mailbox).len(), patterns.len());
            let references = patterns.iter().map(Arc::strong_count).sum::<usize>() - unremembered;
            most = most.max(references * size_of::<Name>());
        }
        assert!(most <= limits::PATTERN_CACHE_BYTES_MAX, "{most} bytes are remembered");
        assert!(most > limits::PATTERN_CACHE_BYTES_MAX / 2, "only {most} bytes are remembered");
    }

    #[test]
    fn channels_are_listed_by_patterns_of_bounded_cost() {
        let (all, (mailbox, _)) = (subscriptions(), mailbox());
        let pattern = format!("*{}b", "a".repeat(400)).into_bytes();
        let names: Vec<Name> = (0..=2 * NAMES_PER_LOCK)
            .map(|n| all.add(By::Channel, format!("{n:04}").as_bytes(), ConnId(1), &mailbox))
            .collect();
        assert_eq!(all.channels(None).as_ref(), Some(&names));
        assert_eq!(all.channels(Some(b"*7")).map(|some| some.len()), Some(200));
        all.add(By::Channel, &[b'a'; 500], ConnId(1), &mailbox);
        assert!(all.channels(Some(&pattern)).is_some_and(|some| some.is_empty()));
        all.add(By::Channel, &[b'a'; 4_000], ConnId(1), &mailbox);
        assert_eq!(all.channels(Some(&pattern)), None);
    }

    #[test]
    fn a_mailbox_that_is_never_emptied_is_given_up() {
        let (all, (slow, woken), (fast, _)) = (subscriptions(), mailbox(), mailbox());
        all.add(By::Pattern, b"*", ConnId(1), &slow);
        all.add(By::Pattern, b"*", ConnId(2), &fast);
        let queue = vec![b'q'; 4_000];
        let many = 2 * limits::NOTICES_UNREAD_BYTES_MAX / queue.len();
        for _ in 0..many {
            deliver(&all, notice(&queue));
            assert_eq!(names(&fast).len(), 1);
            assert!(slow.bytes() <= limits::NOTICES_UNREAD_BYTES_MAX + 2 * queue.len());
        }
        assert_eq!(slow.take().err(), Some(GivenUp::TooSlow));
        assert_eq!(
            (slow.bytes(), woken.0.load(Ordering::Relaxed)),
            (0, 2),
            "woken for the first message and for the disconnect"
        );
    }

    #[test]
    fn gives_up_all_subscribers_if_the_home_lost_notices() {
        let (all, (a, _), (b, _), (other, _)) = (subscriptions(), mailbox(), mailbox(), mailbox());
        all.add(By::Pattern, b"*", ConnId(1), &a);
        all.add(By::Channel, b"sureq:work:q", ConnId(2), &b);
        all.disconnect_all();
        assert!(a.take().is_err() && b.take().is_err() && other.take().is_ok());
    }
}
