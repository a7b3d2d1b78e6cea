//! Waiting pops: order of arrival, timeouts, and dropped tickets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use engine_support::{ack, execute, fresh, open, pop, push};
use sureq_core::command::{Block, ConnId, LeaseAsk, Pop};
use sureq_core::{Command, Refusal, Replies, Reply};
use sureq_engine::log::Durability;
use sureq_engine::{Engine, Options};
use sureq_home_api::{Answer, Flow, Home as _, Ticket};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::valve::Valve;

fn wait_for(engine: &Engine, queues: &[&[u8]], block: Block) -> Ticket {
    let waiting = engine.waiters();
    let pop = Pop { block: Some(block), ..Pop::plain(queues, 1) };
    let executed = engine.execute(&[Command::Pop(pop)], &mut Replies::default());
    assert_eq!((executed.executed, engine.waiters()), (0, waiting + 1));
    executed.into_ticket().unwrap()
}

fn poll(ticket: &Ticket) -> Option<Answer> {
    match ticket.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// Waits for the answer of a ticket. Panics if there is none in time, so that the test does not hang.
fn answer_of(ticket: &Ticket) -> Answer {
    let since = Instant::now();
    loop {
        if let Some(answer) = poll(ticket) {
            return answer;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "there is no answer for {ticket:?}");
        std::thread::yield_now();
    }
}

/// The payload of the one task in an answer.
fn body(answer: &Answer) -> Vec<u8> {
    assert_eq!(answer.replies.tasks.len(), 1, "{:?}", answer.replies.list);
    answer.replies.tasks[0].body.as_ref().to_vec()
}

#[test]
fn waiting_pops_are_served_in_order_of_arrival() {
    let (engine, ..) = fresh();
    let [a, b, c] = [(); 3].map(|()| wait_for(&engine, &[b"p", b"q"], Block::Forever));
    push(&engine, &[b"1", b"2"]);
    assert_eq!(body(&answer_of(&a)), b"1");
    assert_eq!(body(&answer_of(&b)), b"2");
    assert!(poll(&c).is_none());
    push(&engine, &[b"3"]);
    assert_eq!(body(&answer_of(&c)), b"3");
    assert_eq!(engine.waiters(), 0);
    engine.close().unwrap();
}

#[test]
fn a_ticket_can_be_waited_for_on_another_thread() {
    let (engine, ..) = fresh();
    let ticket = wait_for(&engine, &[b"q"], Block::Forever);
    let waiter = std::thread::spawn(move || body(&ticket.wait()));
    push(&engine, &[b"x"]);
    assert_eq!(waiter.join().unwrap(), b"x");
    engine.close().unwrap();
}

#[test]
fn a_waiting_pop_times_out_in_time_and_not_before() {
    let (engine, _, clock) = fresh();
    let ticket = wait_for(&engine, &[b"q"], Block::Millis(1_000));
    clock.pass(999);
    engine.tick();
    assert!(poll(&ticket).is_none());
    clock.pass(1);
    engine.tick();
    assert_eq!(answer_of(&ticket).replies.list, [Reply::TimedOut]);
    assert_eq!(engine.waiters(), 0);
    push(&engine, &[b"late"]);
    assert_eq!(pop(&engine, 9), [b"late"]);
    engine.close().unwrap();
}

#[test]
fn a_dropped_ticket_is_no_waiter() {
    let (engine, ..) = fresh();
    let first = wait_for(&engine, &[b"q"], Block::Millis(1_000));
    let second = wait_for(&engine, &[b"q"], Block::Forever);
    drop(first);
    assert_eq!(engine.waiters(), 1);
    push(&engine, &[b"x"]);
    assert_eq!(body(&answer_of(&second)), b"x");
    engine.close().unwrap();
}

/// A task in the answer of a dropped ticket is requeued at the front, at no cost, and delivered to the next waiter at
/// once.
#[test]
fn an_answer_that_is_not_taken_is_requeued() {
    let (engine, ..) = fresh();
    let gone = wait_for(&engine, &[b"p", b"q"], Block::Forever);
    let ids = push(&engine, &[b"a", b"b", b"c"]);
    drop(gone);
    let (replies, _) = execute(
        &engine,
        &[Command::Inspect { queue: b"q", view: sureq_core::command::View::Ready, start: 0, count: 9 }],
    );
    let order: Vec<_> = replies.tasks.iter().map(|task| task.id).collect();
    assert_eq!(order, ids, "back at the front");
    assert_eq!(ack(&engine, &ids[..1]), 0, "the delivery does not count as one that lapsed");

    let (gone, next) =
        (wait_for(&engine, &[b"w"], Block::Forever), wait_for(&engine, &[b"w"], Block::Forever));
    let _ = execute(&engine, &[Command::Push { queue: b"w", payloads: &[b"x"] }]);
    assert!(poll(&next).is_none());
    drop(gone);
    assert_eq!(body(&answer_of(&next)), b"x");
    engine.close().unwrap();
}

#[test]
fn dropping_a_ticket_after_its_answer_was_taken_requeues_nothing() {
    let (engine, ..) = fresh();
    let ticket = wait_for(&engine, &[b"q"], Block::Forever);
    let ids = push(&engine, &[b"x"]);
    let taken = answer_of(&ticket);
    drop(ticket);
    assert_eq!(body(&taken), b"x");
    assert_eq!((pop(&engine, 1).len(), ack(&engine, &ids)), (0, 1));
    engine.close().unwrap();
}

/// A waiting pop in the middle of a batch: the commands before it are executed, those after it are not.
#[test]
fn a_batch_stops_at_a_pop_that_waits() {
    let (engine, ..) = fresh();
    let waits = Command::Pop(Pop { block: Some(Block::Forever), ..Pop::plain(&[b"q"], 1) });
    let push_p = Command::Push { queue: b"p", payloads: &[b"x"] };
    let pop_p = Command::Pop(Pop::plain(&[b"p"], 1));
    let mut replies = Replies::default();
    let executed = engine.execute(&[push_p, pop_p, waits, push_p], &mut replies);
    assert_eq!((executed.executed, replies.list.len(), replies.tasks.len()), (2, 2, 1));
    assert_eq!(
        engine.inspect(|broker| broker.queue(b"p").unwrap().len()),
        1,
        "the last push was not executed"
    );
    assert!(engine.wait(executed.position));
    let ticket = executed.into_ticket().unwrap();

    // A pop that finds a task does not wait, even if the task was pushed in the same batch.
    let mut replies = Replies::default();
    let executed = engine.execute(
        &[push_p, Command::Pop(Pop { block: Some(Block::Forever), ..Pop::plain(&[b"p"], 1) })],
        &mut replies,
    );
    assert_eq!((executed.executed, matches!(executed.flow, Flow::Ready)), (2, true));
    push(&engine, &[b"y"]);
    assert_eq!(body(&answer_of(&ticket)), b"y");
    engine.close().unwrap();
}

/// Rule 2 for waiting pops: the answer must not be returned before its delivery is durable.
#[test]
fn an_answer_waits_for_its_sync() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open(&valve.shared(), &clock, Durability::Always);
    let ticket = wait_for(&engine, &[b"q"], Block::Forever);
    valve.close();
    let executed =
        engine.execute(&[Command::Push { queue: b"q", payloads: &[b"x"] }], &mut Replies::default());
    valve.wait_until_held();
    assert_eq!(engine.waiters(), 0, "it has been served");
    assert!(poll(&ticket).is_none(), "but its delivery is not durable");
    assert!(engine.durable() < executed.position);
    valve.open();
    assert_eq!(body(&answer_of(&ticket)), b"x");
    engine.close().unwrap();
}

#[test]
fn closing_answers_all_waiting_pops() {
    let (engine, ..) = fresh();
    let tickets = [(); 3].map(|()| wait_for(&engine, &[b"q"], Block::Forever));
    engine.close().unwrap();
    for ticket in tickets {
        assert_eq!(answer_of(&ticket).replies.list, [Reply::TimedOut]);
    }
}

/// A lease that ends with its connection serves a waiting pop.
#[test]
fn tasks_of_a_closed_connection_are_delivered_to_a_waiting_pop() {
    let (engine, ..) = fresh();
    push(&engine, &[b"x"]);
    let lease = LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE };
    let _ = execute(&engine, &[Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 1) })]);
    let ticket = wait_for(&engine, &[b"q"], Block::Forever);
    engine.close_conn(ConnId(2));
    assert!(poll(&ticket).is_none());
    engine.close_conn(ConnId(1));
    assert_eq!(body(&answer_of(&ticket)), b"x");
    engine.close().unwrap();
}

#[test]
fn waiting_pops_count_as_memory_and_are_refused_at_the_limit() {
    let max = 4 << 20;
    let engine = Engine::in_memory(&Options { memory_bytes_max: Some(max), ..Options::default() });
    let names: Vec<Vec<u8>> = (0..100).map(|n| format!("{n:01000}").into_bytes()).collect();
    let queues: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let before = engine.status().memory_bytes;
    let mut tickets = vec![wait_for(&engine, &queues, Block::Forever)];
    let counted = engine.status().memory_bytes - before;
    assert!((100_000..400_000).contains(&counted), "{counted} bytes for a hundred names of a kilobyte");
    while engine.status().memory_bytes <= max {
        tickets.push(wait_for(&engine, &queues, Block::Forever));
    }
    let pop = Pop { block: Some(Block::Forever), ..Pop::plain(&queues, 1) };
    let mut replies = Replies::default();
    let executed = engine.execute(&[Command::Pop(pop)], &mut replies);
    assert!(matches!(executed.flow, Flow::Ready) && executed.executed == 1, "nothing more waits");
    assert!(matches!(replies.list[..], [Reply::Refused(Refusal::OutOfMemory)]), "{:?}", replies.list);
    tickets.clear();
    assert_eq!((engine.waiters(), engine.status().memory_bytes), (0, before));
    engine.close().unwrap();
}
