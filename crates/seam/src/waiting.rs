//! Waiting on a thread for what others wait for in a future.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Waits on this thread until polling answers.
pub fn wait<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let waker = unparker();
    loop {
        match poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// A waker that unparks this thread, for those who do not wait for ever.
pub fn unparker() -> Waker {
    Waker::from(Arc::new(Parked(std::thread::current())))
}

struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
