//! A log that was tampered with: no event causes a panic or breaks an invariant, even if its checksum is right.
#![expect(unreachable_pub, reason = "the modules of a test share items")]
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "test helpers may panic")]

#[path = "model/mod.rs"]
mod model;
mod support;

use model::Model;
use model::command::Happening;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use support::{Bytes, Home, Log, Store};
use sureq_core::codec::{decode, encode};
use sureq_core::command::{ConnId, LeaseAsk, Pop};
use sureq_core::event::{Counters, Fields, Flood, FullTask, Ids, Landing, QueueNo, Totals};
use sureq_core::task::{Cause, Due, Lease, OrderKey, TaskState, Terms, Tries};
use sureq_core::{Broker, Command, Event, LogTime, Now, Replies, TaskId, WallTime};

/// The log of `steps` random steps.
fn history(steps: usize) -> Vec<u8> {
    let (mut model, mut home) = (Model::default(), Home::default());
    let mut runner = TestRunner::deterministic();
    for _ in 0..steps {
        let plan = model::plan::plan().new_tree(&mut runner).unwrap().current();
        let happening = model.resolve(plan);
        match &happening {
            Happening::Cmd(cmd) => _ = cmd.with(|command| home.run(command)),
            Happening::Pass(ms) => home.pass(*ms),
            Happening::Wall(ms) => home.now.wall.0 = *ms,
            Happening::Tick => home.tick(),
            Happening::Restart => home.restart(model.incarnation + 1),
            Happening::CloseConn(conn) => home.close_conn(ConnId(*conn)),
            Happening::RequeueUndelivered(queue, receipts) => {
                home.requeue_undelivered(queue.as_bytes(), receipts);
            }
            Happening::Forward(id) => _ = home.forward(*id),
        }
        model.happen(happening);
    }
    home.log.bytes
}

/// Replays until an event is refused. Returns whether none was.
fn replays(mut bytes: &[u8], broker: &mut Broker<Bytes>) -> bool {
    while !bytes.is_empty() {
        match decode(bytes, |event| broker.replay(event, &mut Log::default())) {
            Ok((Ok(()), rest)) => bytes = rest,
            _ => return false,
        }
    }
    true
}

/// Checks that a broker with any accepted history continues without a panic.
fn live_on(broker: &mut Broker<Bytes>) {
    let (mut log, mut out) = (Log::default(), Replies::default());
    let mut now = Now { log: broker.clock(), wall: WallTime(0) };
    broker.start(broker.incarnation().saturating_add(1), now, &mut log);
    for _ in 0..3 {
        let names: Vec<Vec<u8>> = broker.queues().map(|(name, _)| name.to_vec()).collect();
        let queues: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let lease = LeaseAsk { ms: Some(10), ..LeaseAsk::NONE };
        broker.execute(now, &Command::Pop(Pop { lease, ..Pop::plain(&queues, 5) }), &mut log, &mut out);
        for queue in queues {
            broker.execute(now, &Command::Push { queue, payloads: &[b"x"] }, &mut log, &mut out);
            broker.execute(now, &Command::Recover { queue, count: 1, elapsed_ms: 0 }, &mut log, &mut out);
            broker.execute(now, &Command::Revive { queue, tasks: None }, &mut log, &mut out);
        }
        now.log = LogTime(now.log.0.saturating_add(100_000));
        now.wall = WallTime(u64::MAX);
        for _ in 0..50 {
            broker.tick(now, &mut log);
        }
    }
}

/// Some mutations of single bytes of a log; all of them if `SUREQ_TEST_SCALE` is large enough.
fn mutations(bytes: &[u8], mut check: impl FnMut(&[u8])) {
    let scale: usize = std::env::var("SUREQ_TEST_SCALE").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut mutant = bytes.to_vec();
    for at in 0..bytes.len() {
        for (n, change) in [1u8, 0x80, 0xff, 2, 0x40, 4, 0x10, 8, 0x20, 0x7f].into_iter().enumerate() {
            if (at + n) % 10 < 2 * scale {
                mutant[at] = bytes[at] ^ change;
                check(&mutant);
            }
        }
        mutant[at] = bytes[at];
    }
}

#[test]
fn a_log_with_a_wrong_byte_is_refused_or_keeps_every_invariant() {
    let mut accepted = 0;
    mutations(&history(120), |mutant| {
        let mut broker = Broker::default();
        if replays(mutant, &mut broker) {
            broker.refresh_all();
            broker.check().unwrap_or_else(|broken| panic!("{}", broken.0));
            live_on(&mut broker);
            accepted += 1;
        }
    });
    assert!(accepted > 0, "some mutations give another valid log");
}

#[test]
fn a_checkpoint_with_a_wrong_byte_is_refused_or_keeps_its_queues_whole() {
    let mut home = Home::default();
    support::replay(&history(300), &mut home.broker, &mut Log::default());
    let mut checkpoint = Log::default();
    let record = &mut |event: &Event<'_>| sureq_core::Recorder::record(&mut checkpoint, event);
    home.broker.export(&mut |body| body.0.as_ref().into(), record);
    mutations(&checkpoint.bytes, |mutant| {
        let mut broker = Broker::default();
        if replays(mutant, &mut broker) {
            broker.refresh_all();
            for (_, queue) in broker.queues() {
                queue.check().unwrap_or_else(|broken| panic!("{}", broken.0));
            }
            live_on(&mut broker);
        }
    });
}

#[test]
fn an_image_with_a_wrong_byte_is_refused_or_sound() {
    let (mut home, mut store) = (Home::default(), Store::default());
    support::replay(&history(300), &mut home.broker, &mut Log::default());
    home.broker.refresh_all();
    store.take(&mut home.broker);
    let (mut refused, mut accepted) = (0, 0);
    let mut check = |store: &Store| match store.restore() {
        Err(_) => refused += 1,
        Ok(mut broker) => {
            broker.refresh_all();
            live_on(&mut broker);
            accepted += 1;
        }
    };
    mutations(&store.head, |mutant| check(&Store { head: mutant.to_vec(), ..store.clone() }));
    for (no, (head, stamps)) in &store.queues {
        mutations(head, |mutant| {
            let mut store = store.clone();
            store.queues.insert(*no, (mutant.to_vec(), stamps.clone()));
            check(&store);
        });
        let mut fewer = store.clone();
        fewer.queues.insert(*no, (head.clone(), stamps[..stamps.len().saturating_sub(1)].to_vec()));
        check(&fewer);
    }
    for (stamp, part) in &store.parts {
        mutations(part, |mutant| {
            let mut store = store.clone();
            store.parts.insert(*stamp, mutant.to_vec());
            check(&store);
        });
    }
    assert!(refused > 0 && accepted > 0, "{refused} refused, {accepted} accepted");
}

/// A forged task.
fn task(state: TaskState, deliveries: u32) -> FullTask<'static> {
    FullTask {
        queue: QueueNo(0),
        id: TaskId::new(5, 5).unwrap(),
        payload: b"x",
        pushed: LogTime(0),
        state,
        stray_neg_priority: None,
        incarnation: 1,
        deliveries,
        tries: Tries { failed: u32::MAX, lapsed: u32::MAX, lost: u32::MAX },
        cancelled: false,
        late_ack: false,
        fields: Fields::default(),
        reason: None,
        past: &[],
    }
}

#[test]
fn counters_near_overflow_and_contradictory_tasks_are_refused() {
    let ready = |major, minor| task(TaskState::Ready(OrderKey { major, minor }), 1);
    let leased = |seq| TaskState::Leased(Lease::new(LogTime(0), seq, Terms::default()));
    let refused = [
        ready(0, u64::MAX),
        ready(i64::MIN, 1),
        FullTask { stray_neg_priority: Some(1), ..ready(0, 1) },
        FullTask { cancelled: true, ..ready(0, 1) },
        task(leased(u64::MAX), 1),
        task(leased(0), 1),
        task(leased(1), 0),
        FullTask { late_ack: true, ..task(leased(1), 1) },
        FullTask { late_ack: true, ..task(TaskState::Dead(LogTime(0)), 1) },
    ];
    let made = || {
        let mut broker = Broker::default();
        let event = Event::QueueMade { queue: QueueNo(0), name: b"q" };
        broker.replay(&event, &mut Log::default()).unwrap();
        broker
    };
    for task in refused {
        assert!(made().replay(&Event::Task(&task), &mut Log::default()).is_err(), "{task:?}");
        let mut bytes = Vec::new();
        encode(&Event::Task(&task), &mut bytes);
        let read = decode(&bytes, |event| made().replay(event, &mut Log::default()).is_err());
        assert_eq!(read, Ok((true, &[][..])), "{task:?} as bytes");
    }
    let mut broker = made();
    broker.replay(&Event::Task(&task(leased(1), u32::MAX)), &mut Log::default()).unwrap();
    let ids = Ids::Slice(&[TaskId::new(5, 5).unwrap()]);
    let to = Landing::Front { group: u64::MAX };
    let returned = Event::Returned { queue: QueueNo(0), ids, to, cause: Cause::Lapsed, reason: None };
    assert!(broker.clone().replay(&returned, &mut Log::default()).is_err());
    let totals = Totals { pushed: 1, finished: 0, removed: 0 };
    let last_id = TaskId::new(5, 5).unwrap();
    let counters = Counters { last_id, totals, seq: 1, front_group: 0, minor: 9, flood: None, paused: None };
    let flood = Flood { upto: Due::Log(LogTime(0)), major: 0, minor: 0, end: 10 };
    for counters in [
        Counters { minor: u64::MAX, ..counters },
        Counters { front_group: u64::MAX, ..counters },
        Counters { seq: 0, ..counters },
        Counters { last_id: TaskId::NONE, ..counters },
        Counters { totals: Totals { finished: 1, ..totals }, ..counters },
        Counters { totals: Totals { removed: 2, ..totals }, ..counters },
        Counters { flood: Some(flood), ..counters },
    ] {
        let counted = Event::Counted { queue: QueueNo(0), counters: &counters };
        assert!(broker.clone().replay(&counted, &mut Log::default()).is_err(), "{counters:?}");
    }
    let counted = Event::Counted { queue: QueueNo(0), counters: &counters };
    broker.replay(&counted, &mut Log::default()).unwrap();
    live_on(&mut broker);
}
