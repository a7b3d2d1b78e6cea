//! Very many tasks are removed or revived at once, and other commands do not wait for it.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use sureq_core::command::{Add, Command, ConnId, IdForm, LeaseAsk, NameArg, TaskRefs, View, When};
use sureq_core::queue::Seek;
use sureq_core::{Bulk, Progress, Replies, Reply, TaskId, WallTime};

use super::backlog::backlog;
use super::support::{Answer, Home, Kept, listing};
use super::{PLAIN, add, x};

/// A queue with `count` tasks of each kind: packed and with records, ready, delayed, leased and dead.
fn mixed(packed: usize, records: usize, leased: usize) -> Home {
    let mut home = backlog(packed);
    for n in 0..records {
        let name = format!("n{n}");
        let named = Add { name: Some(NameArg::Bytes(name.as_bytes())), ttl_ms: Some(1_000), ..x() };
        match n % 3 {
            0 => _ = add(&mut home, named),
            1 => _ = add(&mut home, Add { when: When::After(50), ..named }),
            _ => {
                let id = add(&mut home, named).to_string();
                let tasks = TaskRefs { list: &[id.as_bytes()], form: IdForm::Long };
                home.run(&Command::Bury { queue: b"q", tasks });
            }
        }
        let soon = WallTime(home.now.wall.0 + 60);
        add(&mut home, Add { when: When::At(soon), ..x() });
    }
    home.pop(leased as u32, PLAIN);
    home
}

#[test]
fn a_large_purge_without_records_is_one_event_and_otherwise_one_for_each_slice() {
    for (packed, records, leased) in [(5_000, 0, 0), (3_000, 900, 10), (3_000, 90, 1_500), (0, 3_000, 40)] {
        for state in [None, Some(View::Ready), Some(View::Delayed), Some(View::Dead)] {
            let mut home = mixed(packed, records, leased);
            home.verify();
            let [ready, delayed, held, dead] = home.broker.queue(b"q").unwrap().counts();
            let (expected, left) = match state {
                None => (ready + delayed + dead, [0, 0, held, 0]),
                Some(View::Ready) => (ready, [0, delayed, held, dead]),
                Some(View::Delayed) => (delayed, [ready, 0, held, dead]),
                _ => (dead, [ready, delayed, held, 0]),
            };
            let (live, logged) = (home.log.live.len() as u64, home.log.bytes.len());
            assert_eq!(home.run(&Command::Purge { queue: b"q", state }), Answer::Count(expected));
            let events = listing(&home.log.bytes[logged..]);
            if expected > 1_000 && records == 0 {
                assert_eq!(events.len(), 1, "{events:?}");
                assert!(home.log.bytes.len() - logged < 10, "however many there are");
            }
            assert!(events.len() as u64 <= expected / 1_000 + 2, "{events:?}");
            assert_eq!(home.broker.queue(b"q").unwrap().counts(), left);
            home.verify();
            // The remaining tasks work as before, and purged ones are unknown.
            home.push(&["new"]);
            home.run(&Command::Add(Add { name: Some(NameArg::Bytes(b"n0")), ..x() }));
            home.verify();
            home.restart(if expected % 2 == 0 { 8 } else { 9 });
            home.tick();
            home.verify();
            assert!(!home.broker.is_unfinished());
            assert!(home.log.live.len() as u64 <= live - expected + 2, "its bodies are released");
            home.pass(2_000);
            home.tick();
            home.verify();
        }
    }
}

#[test]
fn each_step_of_a_large_purge_removes_one_slice() {
    let mut home = mixed(5_000, 2_000, 20);
    home.run(&Command::Purge { queue: b"q", state: None });
    let mut before = home.log.live.len();
    assert!(before > 5_000, "only a slice was removed: {before} are left");
    while home.broker.next_deadline().is_due(home.now) {
        home.broker.tick(home.now, &mut home.log);
        assert!(before - home.log.live.len() <= 1_000);
        before = home.log.live.len();
        home.verify();
    }
    assert_eq!(before, 20, "leased tasks are never purged");
}

#[test]
fn bodies_that_own_memory_are_counted_until_their_release() {
    let payload = "x".repeat(1_001);
    for (state, gone) in [(None, 4_500), (Some(View::Ready), 3_000), (Some(View::Delayed), 1_500)] {
        let mut home = Home::of(Kept::Mixed);
        home.push(&vec![payload.as_str(); 3_000]);
        for _ in 0..1_500 {
            add(&mut home, Add { when: When::After(50), ..Add::plain(b"q", payload.as_bytes()) });
        }
        home.verify();
        let full = home.broker.memory();
        assert!((4_500_000..5_000_000).contains(&full), "{full} bytes for 4500 payloads of a kilobyte");
        home.run(&Command::Purge { queue: b"q", state });
        home.verify();
        let begun = home.broker.memory();
        assert!(begun + 1_200_000 > full, "only a slice was removed: {begun} of {full} are left");
        home.tick();
        home.verify();
        let left = home.broker.memory();
        assert!(left + gone * 1_001 <= full, "{left} of {full} purged bytes are left");
    }
}

#[test]
fn tasks_of_an_ended_holder_are_purged_with_the_rest() {
    let mut home = backlog(3_500);
    home.pop(3_000, LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE });
    home.close_conn(ConnId(1));
    assert_eq!(home.run(&Command::Purge { queue: b"q", state: None }), Answer::Count(3_500));
    home.verify();
    home.restart(9);
    home.tick();
    home.verify();
    assert_eq!(home.info().ready, 0);
    assert!(home.log.live.is_empty() && home.broker.queue(b"q").unwrap().is_empty());
}

#[test]
fn a_search_misses_no_task_if_its_queue_is_purged_meanwhile() {
    let mut home = mixed(0, 3_000, 900);
    let (mut seek, mut found) = (Seek::default(), BTreeSet::new());
    let mut look = |home: &Home, seek: &mut Seek, count| {
        home.broker.seek(b"q", seek, count, &mut |id, _| {
            found.insert(id);
            ControlFlow::Continue(())
        });
    };
    look(&home, &mut seek, 3_000);
    home.run(&Command::Purge { queue: b"q", state: None });
    while !seek.is_done() {
        look(&home, &mut seek, 500);
    }
    let mut leased = Vec::new();
    home.broker.queue(b"q").unwrap().inspect(View::Leased, 0, u32::MAX, home.now, &mut leased);
    assert_eq!(leased.len(), 900);
    assert!(leased.iter().all(|task| found.contains(&task.id)));
}

/// Executes a command in slices; `between` is called after each but the last.
fn in_slices(home: &mut Home, command: &Command<'_>, mut between: impl FnMut(&mut Home)) -> u64 {
    let (mut bulk, mut out) = (Bulk::default(), Replies::default());
    while home.broker.execute_slice(home.now, command, &mut bulk, &mut home.log, &mut out) == Progress::More {
        assert!(out.list.is_empty(), "no reply before the last slice");
        between(home);
    }
    match out.list[..] {
        [Reply::Count(count)] => count,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn commands_between_two_slices_of_a_purge_take_effect() {
    for state in [None, Some(View::Ready), Some(View::Delayed), Some(View::Dead)] {
        let mut home = mixed(100, 9_000, 20);
        let before = home.broker.queue(b"q").unwrap().len();
        let mut slices = 0;
        let purged = in_slices(&mut home, &Command::Purge { queue: b"q", state }, |home| {
            slices += 1;
            add(home, Add { priority: 9, ..x() });
            home.pop(1, PLAIN);
            add(home, Add { when: When::After(70), ..x() });
            home.verify();
        });
        assert!(slices >= 2, "{state:?}: {slices} slices");
        home.verify();
        let [ready, delayed, leased, dead] = home.broker.queue(b"q").unwrap().counts();
        let is_purged = |view, count| state.is_none_or(|state| state == view) == (count == 0);
        assert!(
            is_purged(View::Dead, dead) && is_purged(View::Delayed, delayed),
            "{state:?}: {dead} {delayed}"
        );
        assert_eq!(
            ready + delayed + leased + dead + purged,
            before + 2 * slices,
            "each task is counted once"
        );
    }
}

#[test]
fn a_purge_ends_even_if_tasks_are_added_in_between() {
    let mut home = mixed(0, 6_000, 0);
    let mut slices = 0;
    in_slices(&mut home, &Command::Purge { queue: b"q", state: Some(View::Ready) }, |home| {
        slices += 1;
        for _ in 0..2_000 {
            add(home, Add { priority: 1, ..x() });
        }
    });
    assert!((1..=4).contains(&slices), "{slices} slices for 2,000 tasks");
    assert_eq!(home.info().ready, 0);
    home.verify();
}

#[test]
fn a_second_revival_during_the_first_is_sliced() {
    let (mut home, ids) = graveyard(9_000);
    revive(&mut home, None);
    bury(&mut home, &ids[..4_000]);
    assert!(home.broker.is_unfinished(), "the first is under way");
    let mut slices = 0;
    let revived = in_slices(&mut home, &Command::Revive { queue: b"q", tasks: None }, |home| {
        slices += 1;
        home.verify();
    });
    assert_eq!((revived, home.info().dead), (4_000, 0));
    assert!(slices >= 3, "{slices} slices");
    home.tick();
    home.verify();
    assert_eq!(home.broker.queue(b"q").unwrap().counts(), [9_001, 0, 0, 0]);
}

/// A queue of `count` dead tasks, the last with priority 1, and one ready task. Returns their ids.
fn graveyard(count: usize) -> (Home, Vec<TaskId>) {
    let mut home = Home::default();
    let names: Vec<String> = (0..count).map(|n| format!("d{n}")).collect();
    let mut ids = home.push(&names[1..].iter().map(String::as_str).collect::<Vec<_>>());
    ids.push(add(&mut home, Add { priority: 1, ..Add::plain(b"q", b"urgent") }));
    home.push(&["ready"]);
    bury(&mut home, &ids);
    (home, ids)
}

fn bury(home: &mut Home, ids: &[TaskId]) -> Answer {
    let ids: Vec<String> = ids.iter().map(TaskId::to_string).collect();
    let list: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
    home.run(&Command::Bury { queue: b"q", tasks: TaskRefs { list: &list, form: IdForm::Long } })
}

fn revive(home: &mut Home, ids: Option<&[TaskId]>) -> Answer {
    let ids: Option<Vec<String>> = ids.map(|ids| ids.iter().map(TaskId::to_string).collect());
    let list: Option<Vec<&[u8]>> = ids.as_ref().map(|ids| ids.iter().map(String::as_bytes).collect());
    let tasks = list.as_ref().map(|list| TaskRefs { list, form: IdForm::Long });
    home.run(&Command::Revive { queue: b"q", tasks })
}

#[test]
fn a_large_revival_moves_tasks_in_slices_and_counts_at_once() {
    let (mut home, ids) = graveyard(5_000);
    let logged = home.log.bytes.len();
    assert_eq!(revive(&mut home, None), Answer::Count(5_000));
    let moved = listing(&home.log.bytes[logged..]).len();
    assert!(moved <= 3, "one event, and a slice or two: {moved}");
    assert_eq!(home.broker.queue(b"q").unwrap().counts(), [5_001, 0, 0, 0], "no task is dead any more");
    home.verify();
    assert_eq!(revive(&mut home, Some(&ids[4_990..])), Answer::Count(0), "they are ready");
    assert_eq!(home.see(View::Dead), "");
    // Tasks that a command names are settled first. A task that dies now is dead, even in the millisecond of the
    // revival.
    assert_eq!(bury(&mut home, &ids[4_980..4_985]), Answer::Count(5));
    assert_eq!(home.see(View::Dead).split(' ').count(), 5);
    home.verify();
    assert_eq!(revive(&mut home, Some(&ids[4_980..4_981])), Answer::Count(1));
    home.push(&["behind"]);
    home.verify();
    home.tick();
    home.verify();
    assert!(!home.broker.is_unfinished());
    assert_eq!(home.broker.queue(b"q").unwrap().counts(), [4_998, 0, 0, 4]);
    let line = home.see(View::Ready);
    let line: Vec<&str> = line.split(' ').collect();
    assert_eq!((line[0], line[1], line[2], line[3]), ("urgent", "ready", "d1", "d2"));
    assert_eq!(line.last(), Some(&"behind"));
    assert_eq!(revive(&mut home, None), Answer::Count(4), "in the same millisecond again");
    home.verify();
}

#[test]
fn each_step_of_a_revival_moves_one_slice_also_after_a_restart() {
    for incarnation in [8, 9] {
        let (mut home, _) = graveyard(6_000);
        home.take_image();
        revive(&mut home, None);
        let places = |home: &Home| {
            let mut tasks = Vec::new();
            home.broker.queue(b"q").unwrap().inspect(View::Ready, 0, u32::MAX, home.now, &mut tasks);
            tasks.len()
        };
        assert!(places(&home) <= 3_001, "{}", places(&home));
        home.restart(incarnation);
        home.verify();
        let mut before = places(&home);
        while home.broker.next_deadline().is_due(home.now) {
            home.broker.tick(home.now, &mut home.log);
            assert!(places(&home) - before <= 1_000);
            before = places(&home);
            home.verify();
        }
        assert_eq!(before, 6_001);
        assert!(home.pop(3, PLAIN).starts_with("urgent ready d1"));
    }
}

#[test]
fn a_purge_during_a_revival_removes_revived_tasks_as_ready() {
    for state in [None, Some(View::Ready), Some(View::Dead), Some(View::Delayed)] {
        for leased in [0, 1_500] {
            let (mut home, ids) = graveyard(5_000);
            home.pop(1, PLAIN);
            revive(&mut home, None);
            home.pop(leased, PLAIN);
            home.pass(1);
            bury(&mut home, &ids[..2]);
            let [ready, _, held, dead] = home.broker.queue(b"q").unwrap().counts();
            let (gone, left) = match state {
                None => (ready + dead, [0, 0, held, 0]),
                Some(View::Ready) => (ready, [0, 0, held, dead]),
                Some(View::Dead) => (dead, [ready, 0, held, 0]),
                _ => (0, [ready, 0, held, dead]),
            };
            assert_eq!(home.run(&Command::Purge { queue: b"q", state }), Answer::Count(gone));
            assert_eq!(home.broker.queue(b"q").unwrap().counts(), left);
            home.verify();
            home.tick();
            home.verify();
            assert_eq!(home.broker.queue(b"q").unwrap().counts(), left);
            assert_eq!(home.log.live.len() as u64, left.iter().sum::<u64>());
        }
    }
}
