//! Wakers are called without the lock, so that they may call the store.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;

use sureq_core::command::{Block, Pop};
use sureq_core::notice::Kind;
use sureq_core::{Command, Replies};
use sureq_engine::{Engine, Options};
use sureq_home_api::{Home as _, Ticket};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::patience::{PATIENCE, until};

/// A waker that calls the store as soon as it is woken.
struct Curious {
    engine: Engine,
    woken: AtomicUsize,
}

impl Wake for Curious {
    fn wake(self: Arc<Self>) {
        let _ = self.engine.status();
        self.woken.fetch_add(1, Ordering::SeqCst);
    }
}

fn waiting(engine: &Engine, block: Block, waker: &Waker) -> Ticket {
    let pop = Pop { block: Some(block), ..Pop::plain(&[b"q"], 1) };
    let ticket = engine.submit(&[Command::Pop(pop)], &mut Replies::default()).into_ticket().unwrap();
    assert!(ticket.poll(&mut Context::from_waker(waker)).is_pending());
    ticket
}

fn at_once(what: &str, act: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        act();
        done.send(())
    });
    is_done.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} waits for itself"));
}

/// In a store in memory replies wait for nothing, so wakers are called at once.
#[test]
fn a_waker_may_call_the_store_for_any_reason_of_the_wake_up() {
    let clock = Arc::new(ManualClock::default());
    let engine = Engine::in_memory_by(Arc::clone(&clock) as _, &Options::default());
    let curious = Arc::new(Curious { engine: engine.clone(), woken: AtomicUsize::new(0) });
    let waker = Waker::from(Arc::clone(&curious));
    let listener = engine.listen();
    listener.subscribe(Kind::Work, b"q");
    assert!(listener.poll(&mut Context::from_waker(&waker)).is_pending());
    let served = waiting(&engine, Block::Forever, &waker);
    let other = engine.clone();
    at_once("a push", move || {
        let push = Command::Push { queue: b"q", payloads: &[b"x"] };
        let _ = other.submit(&[push], &mut Replies::default());
    });
    assert_eq!(curious.woken.load(Ordering::SeqCst), 2, "the pop, and the listener");
    assert!(served.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    let late = waiting(&engine, Block::Millis(100), &waker);
    clock.pass(100);
    let other = engine.clone();
    at_once("the passing of time", move || other.tick());
    until("it is woken", || curious.woken.load(Ordering::SeqCst) == 3);
    drop(late);
    let last = waiting(&engine, Block::Forever, &waker);
    at_once("closing", move || {
        let _ = engine.close();
    });
    until("it is woken", || curious.woken.load(Ordering::SeqCst) >= 4);
    drop((last, listener));
}
