//! Listeners: they receive notices of the queues they subscribed to, in the order of the log, once those are durable.
//!
//! Subscriptions are part of the engine state, under its lock. A notice waits in the listener's queue until its
//! position is durable, as replies do.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sureq_core::notice::{Kind, Kinds};
use sureq_home_api::{ListenEvent, Notice, NoticeQueue, NoticeSource, NoticeTasks};

use crate::engine::Engine;
use crate::log::Position;
use crate::shared::{EngineState, Shared};
use crate::waiting::notice_buffer::NoticedTasks;

pub(crate) struct EngineListener {
    number: u64,
    queue: Arc<NoticeQueue>,
    shared: Arc<Shared>,
}

impl Engine {
    /// A new listener.
    pub(crate) fn join_listeners(&self) -> EngineListener {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock_in_doubt();
        let (number, queue) = state.listeners.join();
        if state.closing || shared.durable.failure().is_some() {
            queue.end();
        }
        drop(state);
        EngineListener { number, queue, shared }
    }
}

impl NoticeSource for EngineListener {
    fn subscribe(&self, kind: Kind, queue: &[u8]) {
        self.change(|subscribed| subscribed.add(kind, queue));
    }

    fn unsubscribe(&self, kind: Kind, queue: &[u8]) {
        self.change(|subscribed| subscribed.remove(kind, queue));
    }

    fn subscribe_all(&self, kinds: Kinds) {
        self.change(|subscribed| kinds.iter().for_each(|kind| subscribed.everywhere.add(kind)));
    }

    fn unsubscribe_all(&self, kinds: Kinds) {
        self.change(|subscribed| kinds.iter().for_each(|kind| subscribed.everywhere.remove(kind)));
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<ListenEvent>> {
        let durable = &self.shared.durable;
        match self.queue.poll(durable.position(), cx) {
            Ok(Poll::Ready(event)) => Poll::Ready(event),
            _ if durable.failure().is_some() => Poll::Ready(None),
            Ok(Poll::Pending) => Poll::Pending,
            Err(position) => {
                durable.wake_at(position, cx.waker());
                Poll::Pending
            }
        }
    }
}

impl EngineListener {
    fn change(&self, change: impl FnOnce(&mut Subscribed)) {
        // After a panic under the lock nothing more is published.
        let Ok(mut state) = self.shared.state.lock() else { return };
        let EngineState { listeners, buffer, .. } = &mut *state;
        if let Some((subscribed, _)) = listeners.all.get_mut(&self.number) {
            change(subscribed);
        }
        buffer.notices.set_subscribed(listeners.kinds());
    }
}

impl Drop for EngineListener {
    fn drop(&mut self) {
        let Ok(mut state) = self.shared.state.lock() else { return };
        let EngineState { listeners, buffer, .. } = &mut *state;
        // It may have very many subscriptions, which are freed after the lock.
        let _subscribed = listeners.all.remove(&self.number);
        buffer.notices.set_subscribed(listeners.kinds());
        drop(state);
    }
}

impl fmt::Debug for EngineListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EngineListener").field(&self.number).finish()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Listeners {
    last: u64,
    all: BTreeMap<u64, (Subscribed, Arc<NoticeQueue>)>,
}

impl Listeners {
    fn join(&mut self) -> (u64, Arc<NoticeQueue>) {
        self.last += 1;
        let queue = Arc::<NoticeQueue>::default();
        self.all.insert(self.last, (Subscribed::default(), Arc::clone(&queue)));
        (self.last, queue)
    }

    /// The kinds of notices that any listener is subscribed to.
    fn kinds(&self) -> Kinds {
        let is_wanted = |kind: &Kind| self.all.values().any(|(subscribed, _)| subscribed.has_any(*kind));
        Kind::ALL.into_iter().filter(is_wanted).collect()
    }

    /// Adds a notice to the queues of its subscribers. Adds their wakers to `woken`, to be woken once the position is
    /// durable.
    pub(crate) fn publish(
        &self,
        queue: &[u8],
        kind: Kind,
        tasks: NoticedTasks<'_>,
        position: Position,
        woken: &mut Vec<(Position, Waker)>,
    ) {
        for (_, notices) in self.all.values().filter(|(subscribed, _)| subscribed.has(kind, queue)) {
            let tasks = match tasks {
                NoticedTasks::Count(count) => NoticeTasks::Count(count),
                NoticedTasks::Ids(ids) => NoticeTasks::Ids(ids.into()),
            };
            let notice = Notice { kind, queue: queue.into(), tasks };
            let waker = notices.put_at(position, ListenEvent::Notice(notice));
            woken.extend(waker.map(|waker| (position, waker)));
        }
    }

    /// Ends all listeners.
    pub(crate) fn end(&self, woken: &mut Vec<(Position, Waker)>) {
        for (_, notices) in self.all.values() {
            woken.extend(notices.end_later().map(|waker| (Position::START, waker)));
        }
    }
}

/// The number of subscriptions to each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts([usize; Kind::ALL.len()]);

impl Counts {
    const fn of(&self, kind: Kind) -> usize {
        self.0[kind as usize]
    }

    const fn add(&mut self, kind: Kind) {
        self.0[kind as usize] += 1;
    }

    /// Ignores the end of a subscription that never began.
    const fn remove(&mut self, kind: Kind) {
        self.0[kind as usize] = self.of(kind).saturating_sub(1);
    }
}

/// The subscriptions of one listener.
#[derive(Debug, Default)]
struct Subscribed {
    everywhere: Counts,
    /// A hash map would move all names at once when it grows.
    by_queue: BTreeMap<Box<[u8]>, Counts>,
    /// The sums of `by_queue`.
    somewhere: Counts,
}

impl Subscribed {
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
