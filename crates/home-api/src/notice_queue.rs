//! The queue between a home and one of its listeners.
//!
//! It is bounded: a listener that falls behind loses the events in it, and learns that it missed some. Each event has
//! a position, and is delivered once that position is durable.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use sureq_core::limits;
use sureq_sync::{Mutex, MutexGuard};

use crate::notice::ListenEvent;
use crate::position::Position;

/// Capacity beyond this many events is released when the queue is empty.
const CAPACITY_KEPT: usize = 1 << 10;

/// Events for one listener that it has not received yet.
#[derive(Debug, Default)]
pub struct NoticeQueue(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    events: VecDeque<(Position, ListenEvent)>,
    bytes: usize,
    has_missed: bool,
    is_ended: bool,
    waker: Option<Waker>,
}

impl NoticeQueue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing under this lock can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event that is durable, and wakes the listener.
    pub fn put(&self, event: ListenEvent) {
        self.put_at(Position::START, event).into_iter().for_each(Waker::wake);
    }

    /// Adds an event. Returns the listener's waker, which the caller wakes once the position is durable.
    pub fn put_at(&self, position: Position, event: ListenEvent) -> Option<Waker> {
        let mut inner = self.lock();
        if inner.bytes > limits::NOTICES_PENDING_BYTES_MAX {
            (inner.events, inner.bytes, inner.has_missed) = (VecDeque::new(), 0, true);
        }
        inner.bytes += event.bytes();
        inner.events.push_back((position, event));
        inner.waker.take()
    }

    /// Ends the queue: no more events will be added. Wakes the listener.
    pub fn end(&self) {
        self.end_later().into_iter().for_each(Waker::wake);
    }

    /// Ends the queue: no more events will be added. Returns the listener's waker for the caller to wake.
    pub fn end_later(&self) -> Option<Waker> {
        let mut inner = self.lock();
        inner.is_ended = true;
        inner.waker.take()
    }

    /// The next event whose position is at most `durable`; `None` after the end. If there is no such event yet, the
    /// next one to be added wakes the waker, and `Err` is the position of the first event that is not durable yet.
    pub fn poll(
        &self,
        durable: Position,
        cx: &mut Context<'_>,
    ) -> Result<Poll<Option<ListenEvent>>, Position> {
        let mut inner = self.lock();
        if std::mem::take(&mut inner.has_missed) {
            return Ok(Poll::Ready(Some(ListenEvent::Missed)));
        }
        let next = inner.events.front().map(|&(position, _)| position);
        if next.is_some_and(|position| position <= durable) {
            return Ok(Poll::Ready(inner.take()));
        }
        if inner.is_ended && next.is_none() {
            return Ok(Poll::Ready(None));
        }
        inner.waker = Some(cx.waker().clone());
        next.map_or(Ok(Poll::Pending), Err)
    }
}

impl Inner {
    fn take(&mut self) -> Option<ListenEvent> {
        let (_, event) = self.events.pop_front()?;
        self.bytes -= event.bytes();
        if self.events.is_empty() {
            self.events.shrink_to(CAPACITY_KEPT);
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use sureq_core::notice::Kind;

    use super::*;
    use crate::notice::{Notice, NoticeTasks};

    fn event(bytes: usize) -> ListenEvent {
        let tasks = NoticeTasks::Foreign(vec![0; bytes].into());
        ListenEvent::Notice(Notice { kind: Kind::Done, queue: b"q".as_slice().into(), tasks })
    }

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[test]
    fn events_arrive_in_order_and_then_the_end() {
        let queue = NoticeQueue::default();
        assert_eq!(queue.poll(Position::START, &mut cx()), Ok(Poll::Pending));
        queue.put(event(1));
        queue.put(ListenEvent::Missed);
        queue.end();
        for expect in [Some(event(1)), Some(ListenEvent::Missed), None, None] {
            assert_eq!(queue.poll(Position::START, &mut cx()), Ok(Poll::Ready(expect)));
        }
    }

    #[test]
    fn an_event_waits_until_it_is_durable() {
        let queue = NoticeQueue::default();
        queue.put_at(Position(7), event(1));
        assert_eq!(queue.poll(Position(6), &mut cx()), Err(Position(7)));
        assert_eq!(queue.poll(Position(7), &mut cx()), Ok(Poll::Ready(Some(event(1)))));
    }

    #[test]
    fn a_listener_that_falls_behind_loses_its_notices_and_receives_later_ones() {
        let queue = NoticeQueue::default();
        queue.put(event(1));
        queue.put(event(limits::NOTICES_PENDING_BYTES_MAX));
        queue.put(event(2));
        for expect in [ListenEvent::Missed, event(2)] {
            assert_eq!(queue.poll(Position::START, &mut cx()), Ok(Poll::Ready(Some(expect))));
        }
    }
}
