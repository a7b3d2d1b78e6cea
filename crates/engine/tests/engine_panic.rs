//! A thread of the engine that panics: all waiting callers get an error, the store can be closed, and the directory
//! is released.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use std::sync::{Arc, mpsc};
use std::thread;

use engine_support::{options, push};
use sureq_core::command::{Block, Pop, View};
use sureq_core::{Command, Refusal, Replies, Reply};
use sureq_engine::log::Durability;
use sureq_engine::{Engine, Options};
use sureq_home_api::{Home as _, Ticket};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::patience::{PATIENCE, until};
use sureq_testkit::valve::Valve;

/// Waits for an answer on another thread, with a time limit.
fn answered(ticket: Ticket) -> Vec<Reply> {
    let (answers, is_answered) = mpsc::channel();
    thread::spawn(move || answers.send(ticket.wait().replies.list));
    is_answered.recv_timeout(PATIENCE).expect("a waiting caller gets an answer")
}

fn closed(engine: &Engine) -> bool {
    let (done, is_done) = mpsc::channel();
    let engine = engine.clone();
    thread::spawn(move || done.send(engine.close().is_ok()));
    is_done.recv_timeout(PATIENCE).expect("closing ends")
}

fn wait_for_a_task(engine: &Engine) -> Ticket {
    let pop = Pop { block: Some(Block::Forever), ..Pop::plain(&[b"never"], 1) };
    engine.submit(&[Command::Pop(pop)], &mut Replies::default()).into_ticket().unwrap()
}

/// A panic of each of these threads in a call to the disk.
#[test]
fn a_thread_that_panics_leaves_no_caller_waiting() {
    for name in ["sureq-log", "sureq-prealloc", "sureq-compactor", "sureq-loader"] {
        let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
        let options = Options { keeps_log: false, cache_bytes: 0, ..options(Durability::Always) };
        let open = || Engine::open_on(valve.shared(), Arc::clone(&clock) as _, &options).unwrap();
        let engine = open();
        for n in 0..20 {
            push(&engine, &[&vec![n; 500]]);
        }
        engine.close().unwrap();
        let engine = open();
        let waiting = wait_for_a_task(&engine);
        valve.panic_in(name);
        // Each of the threads has a reason to access the disk now.
        clock.pass(3_600_000);
        let look = Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: 20 };
        let reading = engine.submit(&[look], &mut Replies::default()).into_ticket();
        let mut n = 0_u8;
        until("it panics", || {
            let payload = vec![n; 500];
            n = n.wrapping_add(1);
            let push = Command::Push { queue: b"q", payloads: &[&payload] };
            let _ = engine.submit(&[push], &mut Replies::default());
            engine.commit();
            engine.failure().is_some()
        });
        assert_eq!(answered(waiting), [Reply::Refused(Refusal::Poisoned)], "{name}");
        if let Some(reading) = reading {
            assert_eq!(answered(reading).len(), 1, "{name}");
        }
        let mut replies = Replies::default();
        let _ = engine.submit(&[Command::Size], &mut replies);
        assert_eq!(replies.list, [Reply::Refused(Refusal::Poisoned)], "{name}");
        assert!(!closed(&engine), "{name}: not all changes are confirmed");
    }
}

/// A panic of any thread under the lock leaves the state in doubt.
#[test]
fn a_panic_under_the_lock_leaves_no_caller_waiting() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = Engine::open_on(valve.shared(), clock, &options(Durability::Always)).unwrap();
    push(&engine, &[b"one"]);
    let waiting = wait_for_a_task(&engine);
    let other = engine.clone();
    let panicked = thread::spawn(move || other.inspect(|_| panic!("under the lock"))).join();
    assert!(panicked.is_err());
    assert_eq!(answered(waiting), [Reply::Refused(Refusal::Poisoned)]);
    assert!(!closed(&engine));
    assert!(engine.failure().is_some());
}

/// A remaining handle does not keep the directory locked, whether the store was closed or failed.
#[test]
fn a_closed_store_can_be_opened_again_while_a_handle_lives() {
    let dir = tempfile::tempdir().unwrap();
    let first = Engine::open(dir.path(), &Options::default()).unwrap();
    push(&first, &[b"one"]);
    first.close().unwrap();
    let second = Engine::open(dir.path(), &Options::default()).unwrap();
    assert_eq!(engine_support::pop(&second, 10), [b"one"]);
    let other = second.clone();
    assert!(thread::spawn(move || other.inspect(|_| panic!("under the lock"))).join().is_err());
    assert!(!closed(&second));
    let third = Engine::open(dir.path(), &Options::default()).unwrap();
    third.close().unwrap();
    assert!(first.close().is_ok(), "closing again changes nothing");
}
