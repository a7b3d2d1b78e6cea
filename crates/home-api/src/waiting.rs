//! Blocking a thread until a poll is ready.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use sureq_sync::thread::Parker;

/// Blocks this thread until `poll` is ready.
pub fn wait<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let parker = Parker::new();
    let waker = unparks(&parker);
    loop {
        match poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => parker.park(),
        }
    }
}

/// A waker that unparks a thread.
pub fn unparks(parker: &Parker) -> Waker {
    Waker::from(Arc::new(Parked(parker.clone())))
}

struct Parked(Parker);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
