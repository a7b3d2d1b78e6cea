//! Rules 2, 3 and 4: a power cut at any moment of a run leaves a store that opens with the state after some batch,
//! which contains all confirmed changes; no batch is torn, no finished task comes back, and no id is assigned twice.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use std::sync::Arc;

use engine_support::run::{Recorded, Run};
use engine_support::{ack, events_in, is_start, open, push, replayed};
use sureq_engine::Engine;
use sureq_engine::log::{Durability, Position};
use sureq_home_api::Home as _;
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::{Crash, Kept, Op, SimDisk};

const YEAR_MS: i64 = 365 * 86_400_000;

/// Three sessions over several segments.
fn recorded(durability: Durability) -> Recorded {
    let mut run = Run::new(durability);
    run.session(50);
    run.restart();
    run.session(13);
    run.restart();
    run.session(50);
    let recorded = run.end();
    assert!(recorded.events.len() > 200, "{} events", recorded.events.len());
    let segments = recorded.run.disk.files().into_keys().filter(|name| name.starts_with('0')).count();
    assert!(segments >= 3, "{segments} segments");
    recorded
}

/// Opens and checks the store after a cut during `change`, with a clock that may have been set back or forward.
/// Returns the number of surviving events.
fn check(recorded: &Recorded, disk: &SimDisk, change: usize, at_least: Position, context: &str) -> usize {
    let clock = Arc::new(ManualClock::default());
    clock.jump([0, YEAR_MS, -YEAR_MS][change % 3]);
    let durability = recorded.run.durability;
    let engine = open(&disk.shared(), &clock, durability);

    let again = ack(&engine, &recorded.finished(at_least));
    assert_eq!(again, 0, "finished tasks were finished again: {context}");
    let new = push(&engine, &[b"new"])[0];
    let old = recorded.last_id(change);
    assert!(old.is_none_or(|old| new > old), "{new} was assigned after {old:?}: {context}");
    engine.close().unwrap();

    let events = events_in(disk);
    let starts: Vec<usize> = (0..events.len()).filter(|&at| is_start(&events[at])).collect();
    let survived = *starts.last().expect("an open store has started");
    assert!(
        recorded.events.starts_with(&events[..survived]),
        "not a prefix of the executed events: {context}"
    );
    assert!(survived as u64 >= at_least.0, "{survived} events, {at_least} were confirmed: {context}");
    assert!(
        recorded.run.ends.contains(&(survived as u64)),
        "{survived} is in the middle of a batch: {context}"
    );

    let mut model = replayed(&events);
    let (digest, last) = engine.inspect(|broker| (broker.digest(), broker.last_id()));
    assert!(last >= model.last_id());
    model.raise_last_id(last);
    assert_eq!(model.digest(), digest, "not the state of its own log: {context}");
    survived
}

fn crash_everywhere(durability: Durability, at_least: impl Fn(&Recorded, usize, Crash) -> Position) {
    let recorded = recorded(durability);
    let disk = SimDisk::new(2);
    let mut crashes = 0;
    for (change, op) in recorded.trace.iter().enumerate() {
        let all = Crash::during(op, change as u64);
        // If each batch is a write, there are many similar ones: each is torn in some of the possible ways, and each
        // sync in all of them.
        let is_one_of_many = matches!(op, Op::Write { .. }) && durability != Durability::None;
        let every = if is_one_of_many { 4 } else { 1 };
        for (n, crash) in all.into_iter().enumerate().filter(|(n, _)| (n + change).is_multiple_of(every)) {
            let context = format!("{durability:?}, change {change}, cut {n}: {crash:?}");
            let at_least = at_least(&recorded, change, crash);
            check(&recorded, &disk.crash_during(op, crash), change, at_least, &context);
            crashes += 1;
        }
        disk.replay(op);
    }
    let at_least = if durability == Durability::None { 100 } else { 500 };
    assert!(crashes > at_least, "{crashes} cuts");
}

#[test]
fn a_cut_at_any_moment_keeps_confirmed_changes() {
    crash_everywhere(Durability::Always, |recorded, change, _| recorded.promised(change));
}

/// A power cut may lose unsynced changes; the end of the process loses no confirmed ones.
#[test]
fn a_cut_at_any_moment_leaves_whole_batches_at_the_level_interval() {
    crash_everywhere(Durability::Interval, |recorded, change, crash| match crash.content {
        Kept::Everything if crash.names == Kept::Everything => recorded.promised(change),
        _ => recorded.closed(change),
    });
}

#[test]
fn a_cut_at_any_moment_leaves_whole_batches_at_the_level_none() {
    crash_everywhere(Durability::None, |recorded, change, _| recorded.closed(change));
}

/// A start that is cut at any moment has changed nothing.
#[test]
fn a_cut_during_a_start_changes_nothing() {
    let recorded = recorded(Durability::Always);
    let disk = SimDisk::new(2);
    let mut crashes = 0;
    for (change, op) in recorded.trace.iter().enumerate() {
        if change % 23 == 0 {
            let cut = disk.crash(Kept::Everything, Kept::Everything);
            let before = SimDisk::with_files(3, &cut.files());
            let engine = open(&cut.shared(), &Arc::new(ManualClock::default()), Durability::Always);
            let start = cut.trace();
            let_time_act(&engine);
            engine.close().unwrap();
            let (survived, _) = split(&events_in(&cut));
            for (step, op) in start.iter().enumerate() {
                for crash in Crash::during(op, step as u64).into_iter().skip(step % 3).step_by(3) {
                    let again = before.crash_during(op, crash);
                    let engine = open(&again.shared(), &Arc::new(ManualClock::default()), Durability::Always);
                    let_time_act(&engine);
                    engine.close().unwrap();
                    let context = format!("change {change}, step {step} of the start: {crash:?}");
                    assert_eq!(split(&events_in(&again)).0, survived, "{context}");
                    crashes += 1;
                }
                before.replay(op);
            }
        }
        disk.replay(op);
    }
    assert!(crashes > 300, "{crashes} cuts");
}

/// Executes everything that is due, which the ticker may or may not do before the store closes.
fn let_time_act(engine: &Engine) {
    engine.tick();
    while engine.inspect(|broker| broker.next_deadline().is_due(engine.now())) {
        engine.tick();
    }
}

/// The events without the starts of the store, and the number of starts.
fn split(events: &[Vec<u8>]) -> (Vec<Vec<u8>>, usize) {
    let (starts, others): (Vec<_>, Vec<_>) = events.iter().cloned().partition(|event| is_start(event));
    (others, starts.len())
}
