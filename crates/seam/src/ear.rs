//! Ears: where a home puts what a listener is to hear. There is room for so much; whoever does not listen for too long misses
//! all of it, and is told so.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use sureq_core::limits;
use sureq_sync::{Mutex, MutexGuard};

use crate::notice::Heard;

/// What was told one listener, and not heard yet.
#[derive(Debug, Default)]
pub struct Ear(Mutex<Inbox>);

#[derive(Debug, Default)]
struct Inbox {
    heard: VecDeque<Heard>,
    bytes: usize,
    is_ended: bool,
    waker: Option<Waker>,
}

impl Ear {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells something.
    pub fn put(&self, heard: Heard) {
        let mut inbox = self.lock();
        inbox.bytes += heard.bytes();
        inbox.heard.push_back(heard);
        if inbox.bytes > limits::NOTICES_UNHEARD_BYTES_MAX {
            (inbox.heard, inbox.bytes) = ([Heard::Missed].into(), 0);
        }
        wake(inbox);
    }

    /// Nothing more will be told.
    pub fn end(&self) {
        let mut inbox = self.lock();
        inbox.is_ended = true;
        wake(inbox);
    }

    /// What was told next; `None` when nothing more will be.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Heard>> {
        let mut inbox = self.lock();
        if let Some(heard) = inbox.heard.pop_front() {
            inbox.bytes = inbox.bytes.saturating_sub(heard.bytes());
            return Poll::Ready(Some(heard));
        }
        if inbox.is_ended {
            return Poll::Ready(None);
        }
        inbox.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

fn wake(mut inbox: MutexGuard<'_, Inbox>) {
    let waker = inbox.waker.take();
    drop(inbox);
    waker.into_iter().for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
    use sureq_core::notice::Kind;

    use super::*;
    use crate::notice::{Notice, NoticeTasks};

    fn said(bytes: usize) -> Heard {
        let tasks = NoticeTasks::Said(vec![0; bytes].into());
        Heard::Notice(Notice { kind: Kind::Done, queue: b"q".as_slice().into(), tasks })
    }

    #[test]
    fn what_was_told_is_heard_in_order_and_then_the_end() {
        let (ear, mut cx) = (Ear::default(), Context::from_waker(Waker::noop()));
        assert!(ear.poll(&mut cx).is_pending());
        ear.put(said(1));
        ear.put(Heard::Missed);
        ear.end();
        for expect in [Some(said(1)), Some(Heard::Missed), None, None] {
            assert_eq!(ear.poll(&mut cx), Poll::Ready(expect));
        }
    }

    #[test]
    fn whoever_does_not_listen_misses_all_and_hears_what_comes_then() {
        let (ear, mut cx) = (Ear::default(), Context::from_waker(Waker::noop()));
        ear.put(said(1));
        ear.put(said(limits::NOTICES_UNHEARD_BYTES_MAX));
        ear.put(said(2));
        assert_eq!(ear.poll(&mut cx), Poll::Ready(Some(Heard::Missed)));
        assert_eq!(ear.poll(&mut cx), Poll::Ready(Some(said(2))));
    }
}
