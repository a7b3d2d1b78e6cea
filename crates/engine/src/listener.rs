//! Those who listen: they hear what happens to the queues they name, in the order of the log, and nothing that a crash
//! could take back.
//!
//! What is wanted stands beside the state and is asked under its lock. What was noted is put into the listener's inbox
//! with its position, and waits there until that is durable, as replies do. The inbox is bounded: whoever does not
//! listen for too long misses all that is in it, and is told so.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use sureq_core::limits;
use sureq_core::notice::{Kind, Kinds};
use sureq_seam::{Heard, Notice, NoticeTasks};
use sureq_sync::{Mutex, MutexGuard};

use crate::engine::Engine;
use crate::log::Position;
use crate::notes::Told;
use crate::shared::{Shared, State};

/// Someone who listens. At first nothing is wanted; each want is taken back by the unwant that says the same.
pub struct Listener {
    number: u64,
    ear: Arc<Ear>,
    shared: Arc<Shared>,
}

impl Engine {
    /// Someone who listens from now on.
    pub fn listen(&self) -> Listener {
        let shared = Arc::clone(&self.shared);
        let (number, ear) = shared.lock().listeners.join();
        Listener { number, ear, shared }
    }
}

impl Listener {
    /// Hears this of a queue, which need not be there.
    pub fn want(&self, kind: Kind, queue: &[u8]) {
        self.change(|wanted| wanted.add(kind, queue));
    }

    /// Takes back what [`Self::want`] said.
    pub fn unwant(&self, kind: Kind, queue: &[u8]) {
        self.change(|wanted| wanted.remove(kind, queue));
    }

    /// Hears these of all queues.
    pub fn want_everywhere(&self, kinds: Kinds) {
        self.change(|wanted| kinds.iter().for_each(|kind| wanted.everywhere.add(kind)));
    }

    /// Takes back what [`Self::want_everywhere`] said.
    pub fn unwant_everywhere(&self, kinds: Kinds) {
        self.change(|wanted| kinds.iter().for_each(|kind| wanted.everywhere.remove(kind)));
    }

    fn change(&self, change: impl FnOnce(&mut Wanted)) {
        // A panic under the lock has left the state in doubt: nothing will be told of it any more.
        let Ok(mut state) = self.shared.state.lock() else { return };
        let State { listeners, tape, .. } = &mut *state;
        if let Some((wanted, _)) = listeners.all.get_mut(&self.number) {
            change(wanted);
        }
        tape.notes.want(listeners.kinds());
    }

    /// What happened next, once it may be told; `None` when nothing more will.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Heard>> {
        let durable = &self.shared.durable;
        let mut inbox = self.ear.lock();
        if std::mem::take(&mut inbox.has_missed) {
            return Poll::Ready(Some(Heard::Missed));
        }
        let next = inbox.notices.front().map(|&(position, _)| position);
        if next.is_some_and(|position| position <= durable.position()) {
            return Poll::Ready(inbox.take().map(Heard::Notice));
        }
        if inbox.is_ended || durable.failure().is_some() {
            return Poll::Ready(None);
        }
        inbox.waker = Some(cx.waker().clone());
        drop(inbox);
        if let Some(position) = next {
            durable.wake_at(position, cx.waker());
        }
        Poll::Pending
    }

    /// Waits on this thread for what happens next; `None` when nothing more will.
    pub fn wait(&self) -> Option<Heard> {
        sureq_seam::wait(|cx| self.poll(cx))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.change(|wanted| *wanted = Wanted::default());
        if let Ok(mut state) = self.shared.state.lock() {
            state.listeners.all.remove(&self.number);
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.number).finish()
    }
}

/// All who listen.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    last: u64,
    all: BTreeMap<u64, (Wanted, Arc<Ear>)>,
}

impl Listeners {
    fn join(&mut self) -> (u64, Arc<Ear>) {
        self.last += 1;
        let ear = Arc::<Ear>::default();
        self.all.insert(self.last, (Wanted::default(), Arc::clone(&ear)));
        (self.last, ear)
    }

    /// What anyone wants to hear of any queue.
    fn kinds(&self) -> Kinds {
        let wanted = |kind: &Kind| self.all.values().any(|(wanted, _)| wanted.has_any(*kind));
        Kind::ALL.into_iter().filter(wanted).collect()
    }

    /// Tells those who want to hear it; adds whom to wake once the position is durable.
    pub(crate) fn tell(
        &self,
        queue: &[u8],
        kind: Kind,
        tasks: Told<'_>,
        position: Position,
        woken: &mut Vec<(Position, Waker)>,
    ) {
        for (_, ear) in self.all.values().filter(|(wanted, _)| wanted.has(kind, queue)) {
            let tasks = match tasks {
                Told::Count(count) => NoticeTasks::Count(count),
                Told::Ids(ids) => NoticeTasks::Ids(ids.into()),
            };
            let waker = ear.put(position, Notice { kind, queue: queue.into(), tasks });
            woken.extend(waker.map(|waker| (position, waker)));
        }
    }

    /// Nothing more will happen.
    pub(crate) fn end(&self, woken: &mut Vec<(Position, Waker)>) {
        for (_, ear) in self.all.values() {
            let mut inbox = ear.lock();
            inbox.is_ended = true;
            woken.extend(inbox.waker.take().map(|waker| (Position::START, waker)));
        }
    }
}

/// How many want each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts([usize; Kind::ALL.len()]);

impl Counts {
    const fn of(&self, kind: Kind) -> usize {
        self.0[kind as usize]
    }

    const fn add(&mut self, kind: Kind) {
        self.0[kind as usize] += 1;
    }

    /// What was never wanted is not wanted now either.
    const fn remove(&mut self, kind: Kind) {
        self.0[kind as usize] = self.of(kind).saturating_sub(1);
    }
}

/// What one listener wants to hear.
#[derive(Debug, Default)]
struct Wanted {
    everywhere: Counts,
    by_queue: HashMap<Box<[u8]>, Counts>,
    /// The sums of `by_queue`.
    somewhere: Counts,
}

impl Wanted {
    fn add(&mut self, kind: Kind, queue: &[u8]) {
        self.somewhere.add(kind);
        match self.by_queue.get_mut(queue) {
            Some(counts) => counts.add(kind),
            None => self.by_queue.entry(queue.into()).or_default().add(kind),
        }
    }

    fn remove(&mut self, kind: Kind, queue: &[u8]) {
        let Some(counts) = self.by_queue.get_mut(queue).filter(|counts| counts.of(kind) > 0) else { return };
        counts.remove(kind);
        if *counts == Counts::default() {
            self.by_queue.remove(queue);
        }
        self.somewhere.remove(kind);
    }

    const fn has_any(&self, kind: Kind) -> bool {
        self.everywhere.of(kind) > 0 || self.somewhere.of(kind) > 0
    }

    fn has(&self, kind: Kind, queue: &[u8]) -> bool {
        let here = || self.by_queue.get(queue).is_some_and(|counts| counts.of(kind) > 0);
        self.everywhere.of(kind) > 0 || self.somewhere.of(kind) > 0 && here()
    }
}

/// What was noted for one listener, and not heard yet.
#[derive(Debug, Default)]
struct Ear {
    inbox: Mutex<Inbox>,
}

#[derive(Debug, Default)]
struct Inbox {
    notices: VecDeque<(Position, Notice)>,
    bytes: usize,
    has_missed: bool,
    is_ended: bool,
    waker: Option<Waker>,
}

impl Ear {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // Nothing that can panic happens under this lock.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers who is to be woken once the position is durable.
    fn put(&self, position: Position, notice: Notice) -> Option<Waker> {
        let mut inbox = self.lock();
        if inbox.bytes > limits::NOTICES_UNHEARD_BYTES_MAX {
            (inbox.notices, inbox.bytes, inbox.has_missed) = (VecDeque::new(), 0, true);
        }
        inbox.bytes += notice.bytes();
        inbox.notices.push_back((position, notice));
        inbox.waker.take()
    }
}

impl Inbox {
    fn take(&mut self) -> Option<Notice> {
        /// Room for more than this is given back once it is empty.
        const KEPT: usize = 1 << 10;
        let (_, notice) = self.notices.pop_front()?;
        self.bytes -= notice.bytes();
        if self.notices.is_empty() {
            self.notices.shrink_to(KEPT);
        }
        Some(notice)
    }
}
