//! The check of a queue finds every violated invariant, in a queue with tasks of every kind.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::super::bulk::EndedHolder;
use super::super::{PopAsk, Pushes, Queue};
use crate::command::{Add, ConnId, NameArg, When};
use crate::event::{Event, LeaseTerms, QueueNo, Recorder};
use crate::id::{Claim, TaskId};
use crate::queue::table::List;
use crate::task::{Body, Cause, Extras, Holder, Name, OrderKey, Rank, StateKind, Task, TaskState};
use crate::time::{LogTime, Now, WallTime};

#[derive(Clone, Copy, Debug)]
struct Two;

impl Body for Two {
    fn len(&self) -> usize {
        2
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
    type Body = Two;

    fn record(&mut self, _: &Event<'_>) {}

    fn new_body(&mut self, _: usize, _: &[u8]) -> Two {
        Two
    }

    fn payload_hash(&self, _: &[u8]) -> u128 {
        0
    }

    fn release_body(&mut self, _: Two) {}
}

const NOW: Now = Now { log: LogTime(1_000), wall: WallTime(1_000) };
const WORKER: Holder = Holder::Worker(1);
const CONN: Holder = Holder::Conn(ConnId(2));

fn id(n: u64) -> TaskId {
    TaskId::new(1_000, n).unwrap()
}

/// A queue with these tasks: 1 and 2 are ready without options, 3 has a priority, 4 a name and a time to live, 5 and
/// 6 are delayed by either clock; 7 and 8 are dead; 9 is leased for a time, 10 and 11 are held by a worker, 11 is
/// cancelled, 12 is held by a connection, 13 is leased without terms.
fn queue() -> Queue<Two> {
    let (mut queue, rec) = (Queue::new(QueueNo(0)), &mut Forgetful);
    queue.start(1, NOW.log, rec);
    let plain = Add::plain(b"q", b"xx");
    queue.push(Pushes { first: id(1), payloads: &[b"xx", b"xx"] }, NOW, rec).unwrap();
    let adds = [
        Add { priority: -1, ..plain },
        Add { name: Some(NameArg::Bytes(b"n")), ttl_ms: Some(50), ..plain },
        Add { when: When::After(50), ..plain },
        Add { when: When::At(WallTime(2_000)), ..plain },
    ];
    for (n, add) in (3..).zip(adds) {
        queue.add(id(n), &add, NOW, rec).unwrap();
    }
    let urgent = Add { priority: 1, ..plain };
    for n in 7..=13 {
        queue.add(id(n), &urgent, NOW, rec).unwrap();
    }
    assert_eq!(queue.bury([7, 8].map(|n| Claim::Id(id(n))).into_iter(), NOW, rec), 2);
    for (count, length_ms, holder) in
        [(1, Some(50), None), (2, None, Some(WORKER)), (1, None, Some(CONN)), (1, None, None)]
    {
        let terms = LeaseTerms { length_ms, holder, lapse: None };
        let ask = PopAsk { count, bytes: 99, first_bytes: 0, terms, queue: 0, meta: false };
        assert_eq!(queue.pop(&ask, NOW, rec, &mut Vec::new()).tasks, count);
    }
    assert_eq!(queue.cancel([Claim::Id(id(11))].into_iter(), NOW, rec), 1);
    queue.check().unwrap();
    assert_eq!(queue.counts(), [4, 2, 5, 2]);
    queue
}

fn change(queue: &mut Queue<Two>, n: u64, change: impl FnOnce(&mut Task<Two>)) {
    let at = queue.table.find(id(n)).unwrap();
    queue.table.change(at, change);
}

fn seq_of(queue: &Queue<Two>, n: u64) -> u64 {
    queue.table.get(id(n)).unwrap().lease().unwrap().seq()
}

/// The text that the check must report, and the change that breaks the queue.
type Break = (&'static str, fn(&mut Queue<Two>));

fn all_are_found(breaks: &[Break]) {
    for &(expected, break_it) in breaks {
        let mut queue = queue();
        break_it(&mut queue);
        let broken = queue.check().expect_err(expected).0;
        assert!(broken.contains(expected), "{broken:?} instead of {expected:?}");
    }
}

#[test]
fn wrong_counts_are_found() {
    all_are_found(&[
        ("5 ready", |q| q.ready.insert_indexed(Rank::of(0, OrderKey { major: 0, minor: 9 }), id(9), None)),
        ("3 delayed", |q| _ = q.delayed.insert((LogTime(9_000), id(1)))),
        ("1 delayed", |q| _ = q.delayed_wall.remove(&(WallTime(2_000), id(6)))),
        ("0 leased", |q| q.leased = List::default()),
        ("0 dead", |q| q.dead = List::default()),
        ("but 13 tasks", |q| q.totals.pushed += 1),
        ("but 13 tasks", |q| q.totals.removed += 1),
        ("delayed bytes", |q| q.delayed_bytes += 1),
        ("waiting bytes", |q| q.waiting_bytes += 1),
        ("bytes owned", |q| q.packed_ready_owned += 1),
        ("bytes owned", |q| q.packed_delayed_owned += 1),
    ]);
}

#[test]
fn a_task_that_contradicts_its_indexes_is_found() {
    all_are_found(&[
        ("is above the last id", |q| q.last_id = id(12)),
        ("name", |q| _ = q.names.remove(&Name::Bytes(b"n"[..].into()))),
        ("name", |q| _ = q.names.insert(Name::Bytes(b"n"[..].into()), id(3))),
        ("is not indexed as Ready", |q| {
            let TaskState::Ready(order) = q.table.get(id(3)).unwrap().state else { unreachable!() };
            q.ready.remove_indexed(Rank::of(-1, order));
            q.ready.insert_indexed(Rank::of(9, order), id(3), None);
        }),
        ("is not indexed as Some(Log", |q| {
            q.delayed.remove(&(LogTime(1_050), id(5)));
            q.delayed.insert((LogTime(1_051), id(5)));
        }),
        ("is not indexed as Some(Wall", |q| {
            q.delayed_wall.remove(&(WallTime(2_000), id(6)));
            q.delayed_wall.insert((WallTime(2_001), id(6)));
        }),
        ("is not indexed as Leased", |q| _ = q.deadlines.pop_first()),
        ("is not indexed as Leased", |q| _ = q.held.remove(&CONN)),
        ("is not indexed as Leased", |q| {
            let seq = seq_of(q, 10);
            q.held.get_mut(&WORKER).unwrap().remove(&(seq, id(10)));
        }),
        ("is not indexed as Leased", |q| q.cancelled_leases.clear()),
        ("is not indexed as Leased", |q| {
            let seq = seq_of(q, 10);
            q.cancelled_leases.insert((WORKER, seq, id(10)));
        }),
        ("is not indexed as Dead", |q| {
            q.deaths.remove(&(LogTime(1_000), id(7)));
            q.deaths.insert((LogTime(1_001), id(7)));
        }),
        ("an empty box of extras", |q| {
            change(q, 3, |task| task.extras = Some(Box::new(Extras::default())));
        }),
        ("never expires", |q| q.expiries.clear()),
        ("with a late ack", |q| change(q, 9, |task| task.late_ack = true)),
        ("is cancelled and", |q| change(q, 3, |task| task.cancelled = true)),
        ("was leased but never delivered", |q| change(q, 9, |task| task.deliveries = 0)),
    ]);
}

#[test]
fn an_index_entry_without_a_task_is_found() {
    all_are_found(&[
        ("2 deadlines", |q| _ = q.deadlines.insert((LogTime(1), 1, id(1)))),
        ("4 held", |q| _ = q.held.get_mut(&CONN).unwrap().insert((99, id(1)))),
        ("a holder without leases", |q| _ = q.held.insert(Holder::Worker(9), BTreeSet::new())),
        ("3 deaths", |q| _ = q.deaths.insert((LogTime(1), id(1)))),
        ("2 cancelled", |q| _ = q.cancelled_leases.insert((CONN, 99, id(1)))),
        ("2 names", |q| _ = q.names.insert(Name::Bytes(b"m"[..].into()), id(1))),
        ("2 expiries", |q| _ = q.expiries.insert((LogTime(1), id(1)))),
        ("deliveries", |q| {
            let at = q.table.find(id(13)).unwrap();
            let lease = q.table.at(at).lease().unwrap().clone();
            q.deliveries.remove(&lease, at, &q.table);
        }),
        ("are over", |q| {
            let (since, cause) = (NOW.log, Cause::Free);
            let ended = EndedHolder { since, cause, group: 1, left: 2, is_purged: false };
            q.bulk.ended.insert((CONN, u64::MAX), ended);
        }),
        ("are over", |q| {
            let (since, cause) = (NOW.log, Cause::Free);
            let ended = |left| EndedHolder { since, cause, group: 1, left, is_purged: false };
            let first = seq_of(q, 10);
            q.bulk.ended.insert((WORKER, first), ended(1));
            q.bulk.ended.insert((WORKER, first + 1), ended(2));
        }),
    ]);
}

#[test]
fn leases_of_ended_holders_are_counted_from_the_end_before_them() {
    let mut queue = queue();
    let ended = |left| EndedHolder { since: NOW.log, cause: Cause::Free, group: 1, left, is_purged: false };
    let (first, conn) = (seq_of(&queue, 10), seq_of(&queue, 12));
    queue.bulk.ended.insert((WORKER, first), ended(1));
    queue.bulk.ended.insert((WORKER, first + 1), ended(1));
    queue.bulk.ended.insert((CONN, conn), ended(1));
    queue.check().unwrap();
    assert_eq!(queue.state_of(id(10)), Some(StateKind::Leased));
}

#[test]
fn lists_in_the_wrong_order_are_found() {
    all_are_found(&[("is out of order of delivery", |q| {
        let at = q.table.find(id(9)).unwrap();
        q.table.unlink(&mut q.leased, at);
        q.table.append(&mut q.leased, at);
    })]);
}
