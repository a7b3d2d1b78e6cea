//! Rules 2, 5 and 8: replies wait as each durability level demands, and time and ids do not go back over restarts.

mod engine_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_support::{ack, events_in, execute, fresh, open, pop, push};
use sureq_core::command::{Add, LeaseAsk, Pop, View, When};
use sureq_core::{Command, Refusal, Replies, Reply, TaskId, WallTime};
use sureq_engine::Engine;
use sureq_engine::log::{Durability, Position};
use sureq_home_api::Home as _;
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::{Kept, SimDisk};
use sureq_testkit::valve::Valve;

const YEAR_MS: i64 = 365 * 86_400_000;

/// Rule 2: a reader sees changes that are not durable yet, so its reply waits as long as the writer's.
#[test]
fn a_read_waits_until_its_result_is_durable() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open(&valve.shared(), &clock, Durability::Always);
    push(&engine, &[b"x"]);
    valve.close();
    let written =
        engine.execute(&[Command::Push { queue: b"q", payloads: &[b"y"] }], &mut Replies::default());
    valve.wait_until_held();
    let readers = [
        Command::Info { queue: b"q" },
        Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: 9 },
        Command::Exists { queues: &[b"q"] },
        Command::Queues { pattern: None, cursor: 0, count: 9 },
        Command::Pop(Pop::plain(&[b"none"], 1)),
    ];
    for reader in readers {
        let read = engine.execute(&[reader], &mut Replies::default());
        assert!(read.position >= written.position, "{reader:?} does not wait");
        assert!(engine.durable() < read.position, "{reader:?} is confirmed before the sync");
    }
    valve.open();
    assert!(engine.wait(written.position));
    engine.close().unwrap();
}

/// At the level `always` a confirmed push survives a cut of the power at once; at `none` it need not.
#[test]
fn a_confirmed_push_survives_as_its_durability_level_promises() {
    for (durability, survives) in [(Durability::Always, true), (Durability::None, false)] {
        let (disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
        let engine = open(&disk.shared(), &clock, durability);
        push(&engine, &[b"x"]);
        let cut = disk.crash(Kept::Nothing, Kept::Nothing);
        engine.close().unwrap();
        let again = open(&cut.shared(), &clock, durability);
        assert_eq!(pop(&again, 9).len(), usize::from(survives), "{durability:?}");
        again.close().unwrap();
    }
}

/// At `interval` a reply waits until the bytes are written to the system. A sync follows without further commands.
#[test]
fn at_the_level_interval_a_killed_process_loses_nothing() {
    let (disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
    let engine = open(&disk.shared(), &clock, Durability::Interval);
    push(&engine, &[b"x"]);
    let killed = disk.crash(Kept::Everything, Kept::Everything);
    let again = open(&killed.shared(), &clock, Durability::Interval);
    assert_eq!(pop(&again, 9), [b"x"]);
    again.close().unwrap();

    let written = events_in(&disk).len();
    let since = Instant::now();
    let cut = loop {
        assert!(since.elapsed() < Duration::from_secs(20), "there is no sync");
        let cut = disk.crash(Kept::Nothing, Kept::Nothing);
        if events_in(&cut).len() == written {
            break cut;
        }
        std::thread::yield_now();
    };
    engine.close().unwrap();
    let again = open(&cut.shared(), &clock, Durability::Interval);
    assert_eq!(pop(&again, 9), [b"x"]);
    again.close().unwrap();
}

#[test]
fn closing_makes_everything_durable_at_every_level() {
    for durability in [Durability::Always, Durability::Interval, Durability::None] {
        let (disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
        let engine = open(&disk.shared(), &clock, durability);
        let ids = push(&engine, &[b"x", b"y"]);
        assert_eq!(pop(&engine, 1), [b"x"]);
        engine.close().unwrap();
        let cut = disk.crash(Kept::Nothing, Kept::Nothing);
        let again = open(&cut.shared(), &clock, durability);
        assert_eq!((ack(&again, &ids), pop(&again, 9)), (1, vec![b"y".to_vec()]), "{durability:?}");
        again.close().unwrap();
    }
}

/// Ids and incarnations only grow, even if the wall clock is set while a store is open or closed, or after a power
/// cut.
#[test]
fn ids_and_incarnations_never_go_back() {
    let (mut disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
    let (mut last_id, mut last_e) = (TaskId::NONE, 0);
    for (round, jump) in [0, -YEAR_MS, YEAR_MS, YEAR_MS, -3 * YEAR_MS, 0, i64::MIN, 0].into_iter().enumerate()
    {
        clock.jump(jump);
        let engine = open(&disk.shared(), &clock, Durability::None);
        let e = engine.inspect(sureq_core::Broker::incarnation);
        assert!(e > last_e, "round {round}: incarnation {e} after {last_e}");
        last_e = e;
        // The first push of a round is in the same millisecond as the last one of the round before.
        for (jump, pass_ms) in [(0, 0), (YEAR_MS, 40_000), (-2 * YEAR_MS, 40_000)] {
            clock.jump(jump);
            clock.pass(pass_ms);
            let id = push(&engine, &[b"x"])[0];
            assert!(id > last_id, "round {round}: {id} after {last_id}");
            last_id = id;
        }
        // In every other round the power is cut, and no pushed task is on disk.
        let cut = disk.crash(Kept::Nothing, Kept::Nothing);
        engine.close().unwrap();
        if round % 2 == 1 {
            disk = cut;
        }
    }
}

/// After a regular close, new ids are near the clock.
#[test]
fn ids_do_not_jump_ahead_after_a_restart() {
    let (engine, disk, clock) = fresh();
    push(&engine, &[b"x"]);
    engine.close().unwrap();
    let again = open(&disk.shared(), &clock, Durability::Always);
    let id = push(&again, &[b"y"])[0];
    assert_eq!(id.ms(), ManualClock::START_MS);
    again.close().unwrap();
}

fn delayed(engine: &Engine, payload: &[u8], when: When) {
    let _ = execute(engine, &[Command::Add(Add { when, ..Add::plain(b"q", payload) })]);
}

/// Rule 8: delays and leases follow log time, which setting the clock does not change; tasks with a time of day
/// follow the wall clock.
#[test]
fn setting_the_clock_affects_only_tasks_with_a_time_of_day() {
    for jump in [YEAR_MS, -YEAR_MS] {
        let (engine, disk, clock) = fresh();
        push(&engine, &[b"leased"]);
        let lease = LeaseAsk { ms: Some(5_000), ..LeaseAsk::NONE };
        let _ = execute(&engine, &[Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 1) })]);
        delayed(&engine, b"delayed", When::After(5_000));
        delayed(&engine, b"appointment", When::At(WallTime(ManualClock::START_MS + 1_000_000)));
        clock.jump(jump);
        clock.pass(4_999);
        engine.tick();
        let early: &[&[u8]] = if jump > 0 { &[b"appointment"] } else { &[] };
        assert_eq!(pop(&engine, 9), early, "{jump}");
        clock.pass(1);
        engine.tick();
        let mut now = pop(&engine, 9);
        now.sort();
        assert_eq!(now, [b"delayed".to_vec(), b"leased".to_vec()], "{jump}");

        // Log time advances over a restart with a wrong clock. A clock that was set forward looks like downtime.
        delayed(&engine, b"next", When::After(5_000));
        engine.close().unwrap();
        let engine = open(&disk.shared(), &clock, Durability::Always);
        if jump < 0 {
            assert_eq!(pop(&engine, 9).len(), 0);
            clock.pass(5_000);
        }
        assert_eq!(pop(&engine, 9), [b"next"], "{jump}");
        engine.close().unwrap();
    }
}

/// Time without any event counts too, also for a store that opens with its clock set back.
#[test]
fn idle_time_counts_over_a_restart() {
    let (engine, disk, clock) = fresh();
    delayed(&engine, b"delayed", When::After(5_000));
    clock.pass(4_000);
    engine.close().unwrap();
    clock.jump(-YEAR_MS);
    let engine = open(&disk.shared(), &clock, Durability::Always);
    clock.pass(999);
    assert_eq!(pop(&engine, 9).len(), 0);
    clock.pass(1);
    assert_eq!(pop(&engine, 9), [b"delayed"]);
    engine.close().unwrap();
}

/// A clock that is set forward a year while the store is closed looks like a year of downtime: delayed tasks become
/// due, and leases last for some time after the start.
#[test]
fn downtime_counts_for_delays_and_not_for_leases() {
    let (engine, disk, clock) = fresh();
    push(&engine, &[b"leased"]);
    let lease = LeaseAsk { ms: Some(60_000), ..LeaseAsk::NONE };
    let _ = execute(&engine, &[Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 1) })]);
    delayed(&engine, b"delayed", When::After(3_600_000));
    engine.close().unwrap();
    clock.jump(YEAR_MS);
    let engine = open(&disk.shared(), &clock, Durability::Always);
    assert_eq!(pop(&engine, 9), [b"delayed"]);
    clock.pass(9_999);
    assert_eq!(pop(&engine, 9).len(), 0);
    clock.pass(1);
    assert_eq!(pop(&engine, 9), [b"leased"], "ten seconds after the start");
    engine.close().unwrap();
}

#[test]
fn a_store_in_memory_waits_for_nothing() {
    let engine = Engine::in_memory_by(Arc::new(ManualClock::default()), &sureq_engine::Options::default());
    let executed =
        engine.execute(&[Command::Push { queue: b"q", payloads: &[b"x"] }], &mut Replies::default());
    assert_eq!(executed.position, Position::START);
    assert_eq!(pop(&engine, 9), [b"x"]);
    engine.close().unwrap();
}

/// Commands after the close are refused, since they could not be stored.
#[test]
fn commands_after_the_close_are_refused() {
    let (engine, disk, clock) = fresh();
    push(&engine, &[b"x"]);
    engine.close().unwrap();
    let mut replies = Replies::default();
    let late = engine.execute(&[Command::Push { queue: b"q", payloads: &[b"late"] }], &mut replies);
    assert_eq!((late.executed, replies.list), (1, vec![Reply::Refused(Refusal::Closed)]));
    let again = open(&disk.shared(), &clock, Durability::Always);
    assert_eq!(pop(&again, 9), [b"x"]);
    again.close().unwrap();
}
