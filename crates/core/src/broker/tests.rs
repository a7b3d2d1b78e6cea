//! The check of a broker finds every violated invariant: each index, and all data that is kept about a queue.

use alloc::vec::Vec;

use super::*;
use crate::command::{Add, Command, ConnId, LeaseAsk, Pop, When, Worker, WorkerRef};
use crate::reply::{Replies, Reply};

#[derive(Clone, Copy, Debug)]
struct Nothing;

impl Body for Nothing {
    fn len(&self) -> usize {
        1
    }

    fn is(&self, _: &[u8]) -> Option<bool> {
        None
    }

    fn pack(&self, _: Option<&Self>, _: &mut Vec<u8>) -> bool {
        true
    }

    fn unpack<'b>(_: Option<&Self>, bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        Some((Self, bytes))
    }
}

struct Forgetful;

impl Recorder for Forgetful {
    type Body = Nothing;

    fn record(&mut self, _: &Event<'_>) {}

    fn new_body(&mut self, _: usize, _: &[u8]) -> Nothing {
        Nothing
    }

    fn payload_hash(&self, _: &[u8]) -> u128 {
        0
    }

    fn release_body(&mut self, _: Nothing) {}
}

const NOW: Now = Now { log: LogTime(1_000), wall: WallTime(1_000) };
/// The queue that has tasks, and the empty one.
const Q: QueueNo = QueueNo(0);
const EMPTY: QueueNo = QueueNo(1);

/// A queue with tasks that are ready, delayed by either clock, and held by a worker and a connection; the worker
/// works on it. And an empty queue.
fn broker() -> Broker<Nothing> {
    let mut broker = Broker::default();
    broker.start(1, NOW, &mut Forgetful);
    let mut run = |command: &Command<'_>| {
        let mut out = Replies::default();
        broker.execute(NOW, command, &mut Forgetful, &mut out);
        out.list.pop().unwrap()
    };
    run(&Command::Push { queue: b"q", payloads: &[b"x", b"x", b"x"] });
    run(&Command::Add(Add { when: When::After(50), ..Add::plain(b"q", b"x") }));
    run(&Command::Add(Add { when: When::At(WallTime(2_000)), ..Add::plain(b"q", b"x") }));
    run(&Command::Push { queue: b"empty", payloads: &[b"x"] });
    run(&Command::Purge { queue: b"empty", state: None });
    let Reply::Started(incarnation) = run(&Command::Worker(Worker::Start { name: b"w", ttl_ms: 500 })) else {
        panic!("a start returns its incarnation")
    };
    let worker = WorkerRef { name: b"w", incarnation };
    run(&Command::Worker(Worker::Work(worker, b"q")));
    for lease in [
        LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE },
        LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE },
    ] {
        run(&Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 1) }));
    }
    broker.check().unwrap();
    assert_eq!(broker.queue(b"q").unwrap().counts(), [1, 2, 2, 0]);
    assert_eq!((broker.number_of(b"q"), broker.number_of(b"empty")), (Some(Q), Some(EMPTY)));
    broker
}

fn slot(broker: &mut Broker<Nothing>, no: QueueNo) -> &mut QueueSlot<Nothing> {
    broker.slots[no.0 as usize].as_mut().unwrap()
}

/// The text that the check must report, and the change that breaks the broker.
type Break = (&'static str, fn(&mut Broker<Nothing>));

fn all_are_found(breaks: &[Break]) {
    for &(expected, break_it) in breaks {
        let mut broker = broker();
        break_it(&mut broker);
        let found = broker.check().expect_err(expected).0;
        assert!(found.contains(expected), "{found:?} instead of {expected:?}");
    }
}

#[test]
fn an_index_of_the_wrong_size_is_found() {
    all_are_found(&[
        ("3 names instead of 2", |b| _ = b.names.insert(b"other"[..].into(), Q)),
        ("2 deadlines instead of 1", |b| _ = b.deadlines.insert((LogTime(1), EMPTY))),
        ("0 deadlines instead of 1", |b| b.deadlines.clear()),
        ("2 wall deadlines instead of 1", |b| _ = b.wall_deadlines.insert((WallTime(1), EMPTY))),
        ("0 wall deadlines instead of 1", |b| b.wall_deadlines.clear()),
        ("2 idle queues instead of 1", |b| _ = b.idle.insert((LogTime(1), Q))),
        ("2 queues with tasks instead of 1", |b| b.with_tasks += 1),
        ("1 free numbers instead of 0", |b| _ = b.free.insert(QueueNo(9))),
        ("bytes of queues instead of", |b| b.memory += 1),
        ("1 bytes dropped instead of 0", |b| b.dropped_memory += 1),
    ]);
}

#[test]
fn wrong_data_about_a_queue_is_found() {
    all_are_found(&[
        ("the name of", |b| _ = b.names.insert(b"q"[..].into(), EMPTY)),
        ("the next deadline of", |b| slot(b, Q).deadline = Some(LogTime(9))),
        ("the next deadline of", |b| slot(b, Q).wall_deadline = Some(WallTime(9))),
        ("the indexed deadline of", |b| b.deadlines = [(LogTime(9), Q)].into()),
        ("the indexed deadline of", |b| b.deadlines = [(LogTime(1_050), EMPTY)].into()),
        ("the indexed wall deadline of", |b| b.wall_deadlines = [(WallTime(9), Q)].into()),
        ("idleness of", |b| {
            slot(b, Q).idle_since = Some(LogTime(1));
            b.idle.insert((LogTime(1), Q));
        }),
        ("idleness of", |b| {
            slot(b, EMPTY).idle_since = None;
            b.idle.clear();
        }),
        ("the last id of", |b| b.last_id = TaskId::NONE),
        ("a task from another queue of", |b| _ = b.adopters.insert(Q)),
        ("the memory of", |b| {
            slot(b, Q).owned += 1;
            b.memory += 1;
        }),
        ("the motion of", |b| slot(b, Q).motion += MOTION + 9),
        ("the unfinished operation of", |b| _ = b.unfinished.insert(Q)),
        ("a change of", |b| slot(b, Q).touched = None),
        ("a holder of", |b| b.holds.clear()),
        ("a holder of", |b| _ = b.holds.pop_first()),
        ("a worker that is gone of", |b| {
            b.workers = Workers::default();
            slot(b, Q).workers = 0;
        }),
        ("the workers of", |b| slot(b, Q).workers += 1),
        ("idleness of", |b| slot(b, EMPTY).workers += 1),
    ]);
}

#[test]
fn every_index_counts_as_memory() {
    let grows: [fn(&mut Broker<Nothing>); 5] = [
        |b| b.deadlines.extend((0..100).map(|n| (LogTime(n), Q))),
        |b| b.wall_deadlines.extend((0..100).map(|n| (WallTime(n), Q))),
        |b| b.holds.extend((0..100).map(|n| (Holder::Worker(n), Q))),
        |b| b.adopted.extend((1..101).map(|n| (TaskId::new(1, n).unwrap(), Q))),
        |b| b.slots.reserve(1_000),
    ];
    for grow in grows {
        let mut broker = broker();
        let before = broker.memory();
        grow(&mut broker);
        let each = (broker.memory() - before) / 100;
        assert!((20..=90).contains(&each), "{each} bytes for each entry");
    }
}
