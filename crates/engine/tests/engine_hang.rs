//! A disk that hangs delays confirmations and nothing else: no lock is held while a thread waits for it, for however
//! long.

mod engine_support;

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use engine_support::{SEGMENT_BYTES, ack_of, execute, open, options, push};
use sureq_core::command::Pop;
use sureq_core::{Broker, Command, Replies, Reply};
use sureq_engine::Engine;
use sureq_engine::log::Durability;
use sureq_home_api::{Home as _, Payload, Submitted};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::patience::{PATIENCE, until};
use sureq_testkit::sim_disk::Op;
use sureq_testkit::valve::Valve;

/// Calls `act`, which must not wait for the disk.
fn at_once<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || done.send(act()));
    is_done.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} waits for the disk"))
}

fn submit(engine: &Engine, command: &Command<'_>) -> (Replies<Payload>, Submitted) {
    let mut replies = Replies::default();
    let executed = engine.submit(std::slice::from_ref(command), &mut replies);
    engine.commit();
    (replies, executed)
}

/// Whether all four spare segments exist and their directory entries are synced, the preallocator's last step for a
/// spare.
fn has_durable_spares(valve: &Valve) -> bool {
    let ops = valve.disk.trace();
    let is_spare = |op: &Op| matches!(op, Op::Create { name } if name.starts_with("spare-"));
    let spares = valve.disk.files().keys().filter(|name| name.starts_with("spare-")).count();
    let last = ops.iter().rposition(is_spare).unwrap_or(ops.len());
    spares == 4 && ops[last..].iter().any(|op| matches!(op, Op::SyncDir))
}

/// The id mark cannot be raised for an hour: commands are still executed, and new ids are below the mark.
#[test]
fn a_disk_that_hangs_for_an_hour_delays_only_confirmations() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open(&valve.shared(), &clock, Durability::Always);
    let first = push(&engine, &[b"one", b"two", b"three"]);
    // Otherwise the preallocator could hang at a spare segment and never reach the mark.
    until("the preallocator has prepared its spares", || has_durable_spares(&valve));
    valve.hang();
    clock.pass(3_600_000);
    let (durable, mark) = (engine.durable(), engine.inspect(Broker::id_mark));
    let other = engine.clone();
    let pushed = at_once("a push", move || {
        let (replies, executed) = submit(&other, &Command::Push { queue: b"q", payloads: &[b"late"] });
        assert!(matches!(replies.list[..], [Reply::Pushed(_)]), "{:?}", replies.list);
        (replies.ids[0], executed.position)
    });
    assert!(first[2] < pushed.0 && pushed.0 < mark, "an id above the durable mark must not be assigned");
    valve.wait_until_hung("store");
    let other = engine.clone();
    at_once("a command", move || {
        let (popped, _) = submit(&other, &Command::Pop(Pop::plain(&[b"q"], 2)));
        assert_eq!(popped.tasks.len(), 2);
        let text = popped.tasks[0].id.to_string();
        assert_eq!(submit(&other, &ack_of(&[text.as_bytes()])).0.indexes, [0]);
        assert!(matches!(submit(&other, &Command::Info { queue: b"q" }).0.list[..], [Reply::Info(_)]));
        assert!(other.status().position > other.durable());
        assert_eq!(other.waiters(), 0);
        other.tick();
        other.check().unwrap();
    });
    assert_eq!(engine.durable(), durable, "none of these commands is confirmed");
    valve.unhang();
    assert!(engine.wait(pushed.1), "the push is confirmed when the disk is back");
    until("the mark is raised", || engine.inspect(Broker::id_mark) > mark);
    let later = push(&engine, &[b"later"])[0];
    assert!(later > pushed.0 && later.ms() >= pushed.0.ms() + 3_000_000, "ids follow the clock again");
    engine.close().unwrap();
    let engine = open(&valve.shared(), &clock, Durability::Always);
    let (replies, _) = execute(&engine, &[Command::Info { queue: b"q" }]);
    let Reply::Info(info) = &replies.list[0] else { panic!("{:?}", replies.list) };
    assert_eq!((info.ready + info.leased, push(&engine, &[b"next"])[0] > later), (4, true));
}

/// C7: closing takes bounded time, and returns an error because not everything is on disk.
#[test]
fn a_store_on_a_disk_that_hangs_is_closed_in_bounded_time() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open(&valve.shared(), &clock, Durability::Always);
    push(&engine, &[b"confirmed"]);
    valve.hang();
    let (_, executed) = submit(&engine, &Command::Push { queue: b"q", payloads: &[b"not confirmed"] });
    valve.wait_until_hung("0");
    let closed = {
        let engine = engine.clone();
        at_once("closing", move || engine.close_within(Duration::from_millis(200)))
    };
    let error = closed.expect_err("not everything is on disk").to_string();
    assert!(error.contains("did not answer"), "{error}");
    assert!(engine.durable() < executed.position && engine.failure().is_some());
    valve.unhang();
    let cut =
        valve.disk.crash(sureq_testkit::sim_disk::Kept::Nothing, sureq_testkit::sim_disk::Kept::Nothing);
    let engine = Engine::open_on(cut.shared(), clock, &options(Durability::Always)).unwrap();
    assert_eq!(engine_support::pop(&engine, 10)[0], b"confirmed");
}

/// Space for a command that is larger than a segment is reserved on another thread, since the caller's serves other
/// clients.
#[test]
fn an_oversized_push_to_a_disk_that_hangs_delays_only_its_caller() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open(&valve.shared(), &clock, Durability::Always);
    push(&engine, &[b"first"]);
    until("spares are prepared", || {
        valve.disk.files().keys().filter(|name| name.starts_with("spare-")).count() == 4
    });
    valve.hang_creating();
    let oversized: Vec<u8> = (0..3 * SEGMENT_BYTES).map(|at| at as u8).collect();
    let (other, payload) = (engine.clone(), oversized.clone());
    let ticket = at_once("an oversized push", move || {
        let (replies, executed) = submit(&other, &Command::Push { queue: b"q", payloads: &[&payload] });
        assert!(replies.list.is_empty() && executed.executed == 0, "{:?}", replies.list);
        executed.into_ticket().expect("it waits for its space")
    });
    valve.wait_until_hung("spare-");
    let other = engine.clone();
    at_once("another client", move || {
        let id = push(&other, &[b"small"])[0];
        assert_eq!(engine_support::pop(&other, 1), [b"first"]);
        assert_eq!(engine_support::pop(&other, 1), [b"small"], "the oversized push is not executed yet");
        assert_eq!(engine_support::ack(&other, &[id]), 1);
        assert_eq!(other.status().position, other.end());
    });
    valve.unhang();
    let answer = ticket.wait();
    assert!(matches!(answer.replies.list[..], [Reply::Pushed(_)]), "{:?}", answer.replies.list);
    assert_eq!(engine_support::pop(&engine, 1), [oversized]);
    engine.close().expect("the disk is back");
}

/// The caller of an oversized push gets an error when the store closes before space is reserved.
#[test]
fn an_oversized_push_is_answered_when_the_store_is_closed_on_a_disk_that_hangs() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open(&valve.shared(), &clock, Durability::Always);
    push(&engine, &[b"first"]);
    valve.hang_creating();
    let oversized = vec![b'x'; 3 * SEGMENT_BYTES as usize];
    let push_oversized = Command::Push { queue: b"q", payloads: &[&oversized] };
    let tickets =
        [(); 2].map(|()| submit(&engine, &push_oversized).1.into_ticket().expect("it waits for its space"));
    valve.wait_until_hung("spare-");
    let other = engine.clone();
    let closed = at_once("closing", move || other.close_within(Duration::from_millis(200)));
    assert!(closed.is_err(), "the disk hangs");
    for ticket in tickets {
        let answer = at_once("an answer", move || ticket.wait());
        assert!(matches!(answer.replies.list[..], [Reply::Refused(_)]), "{:?}", answer.replies.list);
    }
    valve.unhang();
}
