//! Waiting on a thread for what others wait for in a future.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use sureq_sync::thread::Parker;

/// Waits on this thread until polling answers.
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

/// A waker that unparks a thread, for those who do not wait for ever.
pub fn unparks(parker: &Parker) -> Waker {
    Waker::from(Arc::new(Parked(parker.clone())))
}

struct Parked(Parker);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
