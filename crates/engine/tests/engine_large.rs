//! Large payloads are encoded before the lock is taken, written from a separate buffer, and delivered without a copy
//! under the lock. For all sizes, neighbours and ends of segments, the popped payload is the pushed one: at once,
//! after a restart, after a power cut, and after it was copied to a later segment.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use sureq_core::command::{Add, NameArg, Pop, View};
use sureq_core::settings::{Change, Changes, Expired};
use sureq_core::{Command, Replies, Reply};
use sureq_engine::check::check;
use sureq_engine::log::Durability;
use sureq_engine::{Engine, Options};
use sureq_home_api::{Home as _, Payload};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::patience::until;
use sureq_testkit::sim_disk::{Crash, Kept, Op, SimDisk};

/// The size from which payloads of a command are large.
const LARGE: usize = 256 << 10;

/// The most bytes that are copied under one hold of the lock, for any push or pop: a frame of small commands.
const HELD_BYTES_MAX: usize = 5 << 20;

/// Sizes of segments: smaller than all large payloads, about as large, and larger than a few of them.
const SEGMENTS: [u64; 4] = [64 << 10, 256 << 10, 300 << 10, 2 << 20];

/// Payloads around the size that counts as large, and small ones beside them.
const SIZES: [usize; 11] =
    [LARGE, 10, LARGE - 1, 0, LARGE + 1, 2 * LARGE + 17, 100, 40 << 10, LARGE - 40, 3 * LARGE, 1];

fn options(segment_bytes: u64, cache_bytes: usize) -> Options {
    let durability = Durability::Always;
    Options { durability, segment_bytes: Some(segment_bytes), cache_bytes, ..Options::default() }
}

fn open(disk: &SimDisk, options: &Options) -> Engine {
    Engine::open_on(disk.shared(), Arc::new(ManualClock::default()), options).unwrap()
}

fn payload(n: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 / 7 + n * 13) as u8).collect()
}

fn execute(engine: &Engine, commands: &[Command<'_>]) -> Replies<Payload> {
    let mut replies = Replies::default();
    let executed = engine.execute(commands, &mut replies);
    assert!(engine.wait(executed.position), "{:?}", engine.failure());
    replies
}

fn pop_all(engine: &Engine, queue: &[u8]) -> Vec<Vec<u8>> {
    let replies = execute(engine, &[Command::Pop(Pop::plain(&[queue], 1_000))]);
    assert!(matches!(replies.list[..], [Reply::Tasks(_)]), "{:?}", replies.list);
    replies.tasks.iter().map(|task| task.body.as_ref().to_vec()).collect()
}

fn is_sound(disk: &SimDisk) {
    let report = check(&SimDisk::with_files(3, &disk.files()).shared(), &mut |_, _, _| ()).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// Pushes all payloads one by one, in one batch, in one push, with options, and together, so that large and small
/// ones are pushed under one lock.
fn push_in_all_ways(engine: &Engine, payloads: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let list: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    let each: Vec<[&[u8]; 1]> = list.iter().map(|&payload| [payload]).collect();
    for payload in &each {
        let _ = execute(engine, &[Command::Push { queue: b"q", payloads: payload }]);
    }
    let mut commands: Vec<Command<'_>> =
        each.iter().map(|payload| Command::Push { queue: b"q", payloads: payload }).collect();
    commands.push(Command::Push { queue: b"q", payloads: &list });
    commands.extend(list.iter().map(|payload| Command::Add(Add::plain(b"q", payload))));
    let replies = execute(engine, &commands);
    assert!(!replies.list.iter().any(|reply| matches!(reply, Reply::Refused(_))), "{:?}", replies.list);
    [payloads, payloads, payloads, payloads].concat()
}

#[test]
fn payloads_of_all_sizes_are_popped_unchanged() {
    let payloads: Vec<Vec<u8>> = SIZES.iter().enumerate().map(|(n, &bytes)| payload(n, bytes)).collect();
    for segment_bytes in SEGMENTS {
        for cache_bytes in [0, 1 << 20, 64 << 20] {
            let (disk, options) = (SimDisk::new(7), options(segment_bytes, cache_bytes));
            let engine = open(&disk, &options);
            let expected = push_in_all_ways(&engine, &payloads);
            let popped = pop_all(&engine, b"q");
            assert!(popped == expected, "segments of {segment_bytes}, {cache_bytes} kept");
            assert!(engine.held().bytes <= HELD_BYTES_MAX, "{:?}", engine.held());
            engine.close().unwrap();
            is_sound(&disk);
            let engine = open(&disk, &options);
            let recover = Command::Recover { queue: b"q", count: 1_000, elapsed_ms: 0 };
            let again = execute(&engine, &[recover]);
            assert!(again.tasks.iter().map(|task| task.body.as_ref()).eq(&expected), "{segment_bytes}");
            assert!(engine.held().bytes <= HELD_BYTES_MAX, "{:?}", engine.held());
            engine.close().unwrap();
        }
    }
    let engine = Engine::in_memory(&Options::default());
    let expected = push_in_all_ways(&engine, &payloads);
    assert!(pop_all(&engine, b"q") == expected);
    assert!(engine.held().bytes <= HELD_BYTES_MAX, "{:?}", engine.held());
    engine.close().unwrap();
}

/// Pushing, popping and inspecting very large payloads does not copy them under the lock.
#[test]
fn many_megabytes_are_not_copied_under_the_lock() {
    let (disk, options) = (SimDisk::new(7), options(32 << 20, 64 << 20));
    let engine = open(&disk, &options);
    let (large, small) = (payload(1, 30 << 20), payload(2, 100));
    let smalls = vec![&small[..]; 10_000];
    let medium = payload(3, 100 << 10);
    let one = [&medium[..]];
    let mediums = vec![Command::Push { queue: b"medium", payloads: &one }; 100];
    let _ = execute(&engine, &[Command::Push { queue: b"q", payloads: &[&large, &small] }]);
    let _ = execute(&engine, &[Command::Push { queue: b"small", payloads: &smalls }; 2]);
    let _ = execute(&engine, &mediums);
    let named = Add { name: Some(NameArg::Payload), ..Add::plain(b"named", &large) };
    let added = execute(&engine, &[Command::Add(named), Command::Add(named)]);
    assert!(matches!(added.list[..], [Reply::Added { added: true, .. }, Reply::Added { added: false, .. }]));
    for queue in [&b"q"[..], b"small", b"medium", b"named"] {
        let _ = execute(&engine, &[Command::Inspect { queue, view: View::Ready, start: 0, count: 30_000 }]);
    }
    assert!(pop_all(&engine, b"q") == [large.clone(), small.clone()]);
    let popped = execute(&engine, &[Command::Pop(Pop::plain(&[b"small"], 20_000))]);
    assert!(popped.tasks.len() == 20_000 && popped.tasks.iter().all(|task| task.body.as_ref() == small));
    assert!(pop_all(&engine, b"medium") == vec![medium.clone(); 100]);
    assert!(pop_all(&engine, b"named") == [large.clone()]);
    assert!(engine.held().bytes <= HELD_BYTES_MAX, "{:?}", engine.held());
    engine.close().unwrap();
}

/// Tasks die and move to another queue in the unit of a large push, before and after it.
#[test]
fn payloads_of_tasks_that_die_in_the_unit_of_a_large_push_are_kept() {
    for segment_bytes in SEGMENTS {
        let (disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
        let options = options(segment_bytes, 1024);
        let engine = Engine::open_on(disk.shared(), Arc::clone(&clock) as _, &options).unwrap();
        let changes = [Change::TtlMs(1_000), Change::Expired(Expired::Dead), Change::DeadLetter(b"grave")];
        let _ = execute(&engine, &[Command::Config { queue: b"q", changes: Changes::List(&changes) }]);
        let few: Vec<Vec<u8>> = (0..5_000).map(|n| payload(n, n % 50)).collect();
        let list: Vec<&[u8]> = few.iter().map(Vec::as_slice).collect();
        let _ = execute(&engine, &[Command::Push { queue: b"q", payloads: &list }]);
        clock.pass(2_000);
        let large: Vec<Vec<u8>> = (0..6).map(|n| payload(n, LARGE + n)).collect();
        for payload in &large {
            let _ = execute(&engine, &[Command::Push { queue: b"q", payloads: &[payload, b"beside"] }]);
        }
        while engine.inspect(|broker| broker.next_deadline().is_due(engine.now())) {
            engine.tick();
        }
        for _ in 0..2 {
            let shown = |queue, view| {
                let show = Command::Inspect { queue, view, start: 0, count: 9_000 };
                let replies = execute(&engine, &[show]);
                replies.tasks.iter().map(|task| task.body.as_ref().to_vec()).collect::<Vec<_>>()
            };
            assert!(shown(b"grave", View::Ready) == few, "segments of {segment_bytes}");
            let beside = b"beside".to_vec();
            let expected: Vec<Vec<u8>> =
                large.iter().flat_map(|payload| [payload.clone(), beside.clone()]).collect();
            assert!(shown(b"q", View::Ready) == expected, "segments of {segment_bytes}");
        }
        engine.close().unwrap();
        is_sound(&disk);
    }
}

/// A power cut at every step of pushes of large payloads leaves a prefix of them, with all that were confirmed.
#[test]
fn a_cut_at_every_step_of_large_pushes() {
    for segment_bytes in [64 << 10, 600 << 10] {
        let (disk, options) = (SimDisk::new(7), options(segment_bytes, 1024));
        let engine = open(&disk, &options);
        let payloads: Vec<Vec<u8>> = [LARGE, 10, LARGE + 5, 2 * LARGE, 7]
            .iter()
            .enumerate()
            .map(|(n, &bytes)| payload(n, bytes))
            .collect();
        let mut confirmed = Vec::new();
        for payload in &payloads {
            let _ = execute(&engine, &[Command::Push { queue: b"q", payloads: &[payload] }]);
            confirmed.push(disk.trace_len());
        }
        let upto = disk.trace_len();
        engine.close().unwrap();
        let (cut, mut cuts) = (SimDisk::new(2), 0);
        for (change, op) in disk.trace()[..upto].iter().enumerate() {
            // There are many similar writes: each is torn in some of the possible ways, and each sync in all of them.
            let every = if matches!(op, Op::Write { .. }) { 3 } else { 1 };
            for crash in Crash::during(op, change as u64).into_iter().skip(change % every).step_by(every) {
                let left = cut.crash_during(op, crash);
                let engine = open(&left, &options);
                let popped = pop_all(&engine, b"q");
                engine.close().unwrap();
                let at_least = confirmed.iter().filter(|&&at| at <= change).count();
                let context = format!("segments of {segment_bytes}, change {change}, {crash:?}");
                assert!(payloads.starts_with(&popped), "{context}");
                assert!(popped.len() >= at_least, "{} of {at_least}: {context}", popped.len());
                cuts += 1;
            }
            cut.replay(op);
        }
        assert!(cuts > 50, "{cuts} cuts");
    }
}

/// Large tasks that are not popped are copied to later segments, and the old segments are removed.
#[test]
fn large_payloads_are_copied_forward() {
    let (disk, options) = (SimDisk::new(7), options(2 << 20, 1024));
    let engine = open(&disk, &options);
    let old: Vec<Vec<u8>> = (0..12).map(|n| payload(n, LARGE + 100 * n)).collect();
    let mut n = 0;
    while engine.status().copied_bytes < 3 * LARGE as u64 {
        if let Some(old) = old.get(n / 6).filter(|_| n % 6 == 0) {
            let _ = execute(&engine, &[Command::Push { queue: b"old", payloads: &[old] }]);
        }
        let churn = payload(n, LARGE + 3);
        let _ = execute(&engine, &[Command::Push { queue: b"churn", payloads: &[&churn, b"small"] }]);
        let replies = execute(&engine, &[Command::Pop(Pop::plain(&[b"churn"], 2))]);
        assert!(replies.tasks[0].body.as_ref() == churn && replies.tasks[1].body.as_ref() == b"small");
        let _ = execute(&engine, &[Command::Drop { queues: &[b"churn"] }]);
        n += 1;
        assert!(n < 1_000, "{:?}", engine.status());
    }
    assert!(engine.held().bytes <= HELD_BYTES_MAX, "{:?}", engine.held());
    engine.close().unwrap();
    is_sound(&disk);
    let engine = open(&disk.crash(Kept::Nothing, Kept::Nothing), &options);
    assert!(pop_all(&engine, b"old") == old[..n.div_ceil(6).min(old.len())]);
    engine.close().unwrap();
}

/// Large pushes that come together are synced together, as small ones are.
#[test]
fn large_pushes_that_wait_are_synced_together() {
    let (disk, options) = (SimDisk::new(7), options(20 << 20, 64 << 20));
    let engine = open(&disk, &options);
    until("the store is ready", || {
        disk.files().keys().filter(|name| name.starts_with("spare-")).count() == 4
    });
    let large = payload(1, LARGE);
    let one = [&large[..]];
    let pushes = vec![Command::Push { queue: b"q", payloads: &one }; 16];
    let before = disk.syncs();
    let _ = execute(&engine, &pushes);
    // Each batch of 2 MB may be written as soon as it is complete.
    assert!(disk.syncs() - before <= 9, "{} syncs", disk.syncs() - before);
    assert_eq!(pop_all(&engine, b"q").len(), 16);
    engine.close().unwrap();
}
