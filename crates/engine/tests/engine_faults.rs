//! Rule 10: after a failed sync nothing more is confirmed, and no sync is retried; confirmed tasks are not lost.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_support::facts::tasks_in;
use engine_support::{ack_of, events_in, execute, is_start, open, options, push, replayed};
use sureq_core::command::{Block, Pop};
use sureq_core::{Command, Refusal, Replies, Reply, TaskId};
use sureq_engine::disk::Disk;
use sureq_engine::fault::OpenError;
use sureq_engine::log::Durability;
use sureq_engine::{Engine, Options};
use sureq_home_api::{Flow, Home as _, Payload};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::patience::until;
use sureq_testkit::sim_disk::{FailureKind, Kept, Repeat, SimDisk};
use sureq_testkit::valve::Valve;

/// Pushes this many batches, or fewer if the log fails. Returns the confirmed tasks.
fn push_on(engine: &Engine, clock: &ManualClock, batches: usize) -> Vec<TaskId> {
    let mut confirmed = Vec::new();
    for n in 0..batches {
        // Now and then the clock jumps past the id mark, which is raised then.
        clock.pass(if n % 5 == 4 { 60_000 } else { 1 });
        let mut replies = Replies::default();
        let payload = vec![b'x'; 200];
        let executed = engine.execute(&[Command::Push { queue: b"q", payloads: &[&payload] }], &mut replies);
        if !engine.wait(executed.position) {
            assert!(engine.failure().is_some());
            return confirmed;
        }
        match replies.list[0] {
            Reply::Pushed(_) => confirmed.extend(&replies.ids),
            ref refused => {
                assert_eq!(*refused, Reply::Refused(Refusal::Poisoned));
                assert!(engine.failure().is_some());
            }
        }
    }
    confirmed
}

/// The tasks of the store after a power cut.
fn survivors(disk: &SimDisk, options: &Options) -> Vec<TaskId> {
    let cut = disk.crash(Kept::Nothing, Kept::Nothing);
    let clock = Arc::new(ManualClock::default());
    clock.jump(86_400_000);
    let engine = Engine::open_on(cut.shared(), clock, options).expect("a sound store opens");
    let (replies, _) = execute(&engine, &[Command::Pop(Pop::plain(&[b"q"], u32::MAX))]);
    engine.close().unwrap();
    replies.tasks.iter().map(|task| task.id).collect()
}

/// Lets one sync fail. Returns false if there were not that many syncs.
fn fail_a_sync(number: usize, options: &Options) -> bool {
    let durability = options.durability;
    let context = format!("{durability:?}, sync {number}");
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    valve.fail_at(number);
    let opened = Engine::open_on(valve.shared(), Arc::<ManualClock>::clone(&clock), options);
    let engine = match opened {
        Ok(engine) => engine,
        Err(error) => {
            assert!(matches!(error, OpenError::Disk(_)), "{error}: {context}");
            assert_eq!(valve.disk.syncs_after_failure(), 0, "{context}");
            return true;
        }
    };
    let confirmed = push_on(&engine, &clock, 40);
    let has_failed = engine.failure().is_some();
    if has_failed {
        let mut replies = Replies::default();
        let after = [Command::Push { queue: b"q", payloads: &[b"late"] }, Command::Info { queue: b"q" }];
        let _ = engine.execute(&after, &mut replies);
        assert_eq!(replies.list, vec![Reply::Refused(Refusal::Poisoned); 2], "{context}");
    }
    let closed = engine.close();
    let failed = valve.failed();
    match failed.as_deref() {
        Some(name) => assert!(engine.failure().is_some() || closed.is_err(), "{name} failed: {context}"),
        None => assert!(!has_failed, "{:?}: {context}", engine.failure()),
    }
    assert_eq!(valve.disk.syncs_after_failure(), 0, "{failed:?} was synced again: {context}");
    if durability == Durability::Always {
        let there = survivors(&valve.disk, options);
        assert!(there.starts_with(&confirmed), "{} of {}: {context}", there.len(), confirmed.len());
    }
    failed.is_some()
}

fn fail_every_sync(options: &Options) {
    let mut failures = 0;
    while fail_a_sync(failures + 1, options) {
        failures += 1;
    }
    assert!(failures > 15, "{failures} syncs failed");
}

#[test]
fn each_sync_fails_in_turn() {
    fail_every_sync(&options(Durability::Always));
}

#[test]
fn each_sync_fails_in_turn_at_the_level_interval() {
    fail_every_sync(&options(Durability::Interval));
}

#[test]
fn each_sync_fails_in_turn_at_the_level_none() {
    fail_every_sync(&options(Durability::None));
}

/// Pops and acks the tasks that it pushes, over many small segments, so that some are removed all the time.
struct Coming {
    engine: Engine,
    /// Confirmed tasks for which no ack was sent.
    there: Vec<TaskId>,
    /// Tasks with a confirmed ack.
    gone: Vec<TaskId>,
}

impl Coming {
    /// Executes a command. Returns `None` if it was not confirmed.
    fn execute(&self, command: Command<'_>) -> Option<Replies<Payload>> {
        let mut replies = Replies::default();
        let executed = self.engine.execute(&[command], &mut replies);
        let is_confirmed = self.engine.wait(executed.position) && self.engine.failure().is_none();
        is_confirmed.then_some(replies).filter(|replies| !matches!(replies.list[..], [Reply::Refused(_)]))
    }

    /// Pushes, pops and acks some tasks. Returns `None` if the log has failed.
    fn turn(&mut self, n: usize) -> Option<()> {
        let payloads: [&[u8]; 3] = [&[b'x'; 300], &[b'y'; 300], b"stays"];
        self.there.extend(self.execute(Command::Push { queue: b"q", payloads: &payloads })?.ids);
        let held: Vec<TaskId> =
            self.execute(Command::Pop(Pop::plain(&[b"q"], 3)))?.tasks.iter().map(|task| task.id).collect();
        // Some tasks stay, and have to be copied forward.
        let finished: Vec<TaskId> = if n % 8 == 7 { held[..2].to_vec() } else { held };
        self.there.retain(|id| !finished.contains(id));
        let texts: Vec<String> = finished.iter().map(ToString::to_string).collect();
        let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let acked = self.execute(ack_of(&list))?;
        assert_eq!(acked.indexes.len(), finished.len());
        self.gone.extend(finished);
        Some(())
    }
}

/// During compaction, in any of the threads that sync.
#[test]
fn each_sync_fails_in_turn_during_compaction() {
    let options = Options { keeps_log: false, ..options(Durability::Always) };
    let (mut failed, mut unreached, mut failed_files) = (0, 0, BTreeSet::new());
    // The number of syncs differs a little from run to run, since one sync may serve several threads.
    for number in 1..1000 {
        if unreached == 3 {
            break;
        }
        let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
        valve.fail_at(number);
        let Ok(engine) = Engine::open_on(valve.shared(), Arc::<ManualClock>::clone(&clock), &options) else {
            // Other tests are about starts that fail.
            continue;
        };
        let mut coming = Coming { engine, there: Vec::new(), gone: Vec::new() };
        for n in 0..40 {
            clock.pass(1);
            if coming.turn(n).is_none() {
                break;
            }
        }
        if let Some(name) = valve.failed() {
            until(&format!("the failure of {name} is reported"), || coming.engine.failure().is_some());
        }
        let context = format!("sync {number}, {:?}", valve.failed());
        let closed = coming.engine.close();
        let Some(name) = valve.failed() else {
            unreached += 1;
            continue;
        };
        (failed, unreached) = (failed + 1, 0);
        let is_reported = coming.engine.failure().is_some() || closed.is_err();
        // A checkpoint in progress is abandoned when the store closes, and its failure is not reported.
        let may_be_abandoned = name.starts_with("checkpoint");
        assert!(is_reported || may_be_abandoned, "{context}");
        assert_eq!(valve.disk.syncs_after_failure(), 0, "it was synced again: {context}");
        let cut = valve.disk.crash(Kept::Nothing, Kept::Nothing);
        let engine = Engine::open_on(cut.shared(), clock, &options).expect("a sound store opens");
        engine.check().unwrap();
        let found = tasks_in(&engine, &context);
        let lost = coming.there.iter().find(|id| !found.contains_key(id));
        let back = coming.gone.iter().find(|id| found.contains_key(id));
        assert_eq!((lost, back), (None, None), "lost, and back again: {context}");
        engine.close().unwrap();
        failed_files.insert(name.trim_end_matches(|last: char| last.is_ascii_digit()).to_owned());
    }
    assert_eq!(unreached, 3, "{failed} of {failed_files:?} failed, without an end");
    assert!(failed > 50 && failed_files.contains("checkpoint.new"), "{failed} of {failed_files:?} failed");
}

/// A failed sync of the directory is not retried either, not even if the reason was a lack of space.
#[test]
fn a_failed_sync_of_the_directory_is_not_retried() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open(&valve.shared(), &clock, Durability::Always);
    valve.fail_directory();
    // Sooner or later another segment is begun, and another spare file prepared.
    until("the failure is reported", || {
        push_on(&engine, &clock, 1);
        engine.failure().is_some()
    });
    assert!(engine.close().is_err());
    assert_eq!(valve.directory_syncs_after_failure(), 0);
}

/// After a failure in any thread, no further position is published.
#[test]
fn nothing_is_confirmed_after_the_store_file_failed() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open(&valve.shared(), &clock, Durability::Always);
    push(&engine, &[b"before"]);
    let durable = engine.durable();
    // The id mark is too low from here on, and the preallocator fails to raise it.
    valve.disk.fail(valve.disk.calls() + 1, FailureKind::Broken, Repeat::Sticky);
    clock.pass(3_600_000);
    let mark = engine.inspect(sureq_core::Broker::id_mark);
    let mut replies = Replies::default();
    let push = Command::Push { queue: b"q", payloads: &[b"after"] };
    let executed = engine.execute(&[push], &mut replies);
    assert!(replies.ids.iter().all(|id| *id < mark), "an id above the mark must not be assigned");
    assert_eq!((executed.executed, matches!(executed.flow, Flow::Ready)), (1, true));
    until("the failure is reported", || engine.failure().is_some());
    valve.disk.heal();
    assert!(!engine.wait(executed.position) || replies.ids.is_empty(), "it is not confirmed");
    replies.clear();
    let _ = engine.execute(&[push], &mut replies);
    assert_eq!(replies.list, [Reply::Refused(Refusal::Poisoned)]);
    assert!(engine.close().is_err());
    assert_eq!(engine.durable(), durable);
}

/// When the log fails, callers that wait for a task and callers that wait for the log get an error.
#[test]
fn a_failure_ends_all_waiting() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open(&valve.shared(), &clock, Durability::Always);
    let wait = |queue: &'static [u8]| {
        let queues = [queue];
        let pop = Pop { block: Some(Block::Forever), ..Pop::plain(&queues, 1) };
        engine.execute(&[Command::Pop(pop)], &mut Replies::default()).into_ticket().unwrap()
    };
    let (served, unserved) = (wait(b"q"), wait(b"never"));
    valve.close();
    let push = Command::Push { queue: b"q", payloads: &[b"lost"] };
    let executed = engine.execute(&[push], &mut Replies::default());
    valve.wait_until_held();
    valve.fail_log();
    valve.open();
    assert!(!engine.wait(executed.position));
    let (served, unserved) = (served.wait().replies, unserved.wait().replies);
    assert!(matches!(served.list[..], [Reply::Refused(Refusal::Unknown { .. })]), "{:?}", served.list);
    assert_eq!(unserved.list, [Reply::Refused(Refusal::Poisoned)]);
    assert!(served.tasks.is_empty() && unserved.tasks.is_empty());
    assert!(engine.close().is_err());
    assert_eq!(engine.waiters(), 0);
}

/// On a full disk pushes are refused, and accepted again when there is space. Refused pushes have changed nothing.
#[test]
fn a_full_disk_refuses_pushes_until_there_is_room() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open(&valve.shared(), &clock, Durability::Always);
    let first = push(&engine, &[b"first"])[0];
    valve.fill();
    let payload = vec![b'x'; 1000];
    let push_one = Command::Push { queue: b"q", payloads: &[&payload] };
    let mut replies = Replies::default();
    let since = Instant::now();
    // The last accepted push waits for space; every later one is refused.
    while replies.list.last() != Some(&Reply::Refused(Refusal::NoSpace)) {
        assert!(since.elapsed() < Duration::from_secs(20), "the disk is full, but pushes are accepted");
        replies.clear();
        let pushed = engine.execute(&[push_one], &mut replies);
        assert!(engine.failure().is_none(), "{:?}", engine.failure());
        // A push that waits for space is not confirmed; send the next one anyway.
        let asked = Instant::now();
        while engine.durable() < pushed.position && asked.elapsed() < Duration::from_millis(5) {
            std::thread::yield_now();
        }
    }
    valve.make_room();
    let (mut replies, mut end) = (Replies::default(), engine.end());
    assert!(engine.wait(end), "accepted pushes are written once there is space");
    while !matches!(replies.list.last(), Some(Reply::Pushed(_))) {
        assert!(since.elapsed() < Duration::from_secs(20), "there is space, but pushes are refused");
        replies.clear();
        end = engine.execute(&[push_one], &mut replies).position;
        std::thread::yield_now();
    }
    assert!(engine.wait(end));
    let text = first.to_string();
    let (replies, _) = execute(&engine, &[Command::Pop(Pop::plain(&[b"q"], 1)), ack_of(&[text.as_bytes()])]);
    assert_eq!(replies.indexes.len(), 1);
    engine.close().unwrap();
    let events = events_in(&valve.disk);
    assert_eq!(events.iter().filter(|event| is_start(event)).count(), 1);
    let mut model = replayed(&events);
    model.raise_last_id(engine.inspect(sureq_core::Broker::last_id));
    assert_eq!(model.digest(), engine.inspect(sureq_core::Broker::digest));
}

#[test]
fn a_disk_that_fails_at_opening_is_reported() {
    let disk = SimDisk::new(7);
    disk.fail(1, FailureKind::Broken, Repeat::Sticky);
    let shared: Arc<dyn Disk> = disk.shared();
    let error =
        Engine::open_on(shared, Arc::new(ManualClock::default()), &options(Durability::Always)).unwrap_err();
    assert!(error.to_string().starts_with("cannot list "), "{error}");
}
