//! A backlog costs little: waiting tasks are packed, images include only changes, bodies are released in slices.

use sureq_core::TaskId;
use sureq_core::command::{Add, Command, IdForm, TaskRefs, View, When};
use sureq_core::event::QueueNo;
use sureq_core::settings::Change;

use super::support::{Answer, Home, Store};
use super::{PLAIN, add, cancel, x};

/// A queue of `count` tasks.
pub(crate) fn backlog(count: usize) -> Home {
    let mut home = Home::default();
    for _ in 0..count / 100 {
        home.push(&["payload"; 100]);
    }
    home
}

#[test]
fn a_waiting_task_costs_a_few_bytes_delayed_or_not() {
    let mut home = backlog(20_000);
    let ready = home.broker.memory();
    assert!(ready < 20_000 * 2, "{ready} bytes");
    for ms in 0..20_000 {
        add(&mut home, Add { when: When::After(1_000 + ms * 7919 % 20_000), ..x() });
    }
    let delayed = home.broker.memory() - ready;
    assert!(delayed < 20_000 * 45, "{delayed} bytes");
    home.verify();
    home.pass(100_000);
    home.tick();
    assert_eq!(home.info().ready, 40_000);
    home.verify();
}

#[test]
fn an_image_includes_only_changes() {
    let mut home = backlog(20_000);
    home.take_image();
    assert_eq!(home.store.written, 20_000usize.div_ceil(4096), "everything at first");
    home.take_image();
    assert_eq!(home.store.written, 0, "nothing has changed");
    let first = home.push(&["one more"])[0];
    home.take_image();
    assert_eq!(home.store.written, 1, "the last run grew");
    home.pop(700, PLAIN);
    home.take_image();
    assert_eq!(home.store.written, 700usize.div_ceil(64), "runs are unchanged; records are new");
    cancel(&mut home, first);
    home.take_image();
    assert_eq!(home.store.written, 0, "a task that leaves a run does not change it");
    home.verify();
}

#[test]
fn a_task_can_leave_from_any_position_of_a_full_run() {
    for place in [64, 4_095] {
        let mut home = Home::default();
        let ids = home.push(&vec!["x"; 5_000]);
        home.take_image();
        cancel(&mut home, ids[place]);
        home.verify();
        home.restart(2);
        assert_eq!(home.info().ready, 4_999);
        assert_eq!(home.take(place as u32 + 1, PLAIN).last().unwrap().id, ids[place + 1]);
        home.verify();
    }
}

#[test]
fn a_copy_is_packed_like_the_original() {
    let mut home = backlog(5_000);
    for ms in 0..100 {
        add(&mut home, Add { when: When::After(1_000 + ms), ..x() });
    }
    home.take_image();
    let copy = home.copy();
    let memory = |queue: Option<&sureq_core::Queue<_>>| queue.unwrap().memory();
    let (original, copied) = (memory(home.broker.queue(b"q")), memory(copy.queue(b"q")));
    assert!(copied < original + 20_000, "{copied} bytes instead of {original}: no task has got a record");
}

#[test]
fn the_first_image_of_a_restored_store_is_empty() {
    let mut home = backlog(2_000);
    home.pop(100, PLAIN);
    add(&mut home, Add { when: When::After(5), ..x() });
    home.take_image();
    let mut restored = home.store.restore().unwrap();
    restored.refresh_all();
    let image = restored.image();
    assert_eq!((image.queues.len(), image.head), (0, home.store.head.clone()));
    restored.execute(
        home.now,
        &Command::Push { queue: b"q", payloads: &[b"x"] },
        &mut home.log,
        &mut sureq_core::Replies::default(),
    );
    let mut store = Store { written: 0, ..home.store.clone() };
    store.take(&mut restored);
    assert_eq!(store.written, 1, "stored parts are not written again");
}

#[test]
fn a_forgotten_queue_is_in_one_image() {
    let mut home = Home::default();
    home.push(&["a"]);
    home.take_image();
    home.run(&Command::Drop { queues: &[b"q"] });
    home.pass(4_000_000);
    home.tick();
    let image = home.broker.image();
    assert!(matches!(image.queues[..], [(QueueNo(0), None)]), "{:?}", image.queues);
    assert!(home.broker.image().queues.is_empty());
}

#[test]
fn a_moved_task_is_copied_forward_under_its_original_queue() {
    let mut home = Home::default();
    home.config(&[Change::Tries(1), Change::DeadLetter(b"letters")]);
    let ids = home.push(&["moves", "stays"]);
    let pushed_to = home.broker.number_of(b"q").unwrap();
    home.pop(1, PLAIN);
    home.return_task(ids[0], None, Some("why"));
    assert_eq!(home.inspect(b"letters", View::Ready).len(), 1);
    home.restart(2);
    home.awake();
    let (broker, log) = (&mut home.broker, &mut home.log);
    assert!(!broker.copy_forward(pushed_to, ids[0], b"other length", |_| true, log));
    assert!(!broker.copy_forward(pushed_to, ids[0], b"moves", |body| body.1 == 99, log), "another body");
    assert!(broker.copy_forward(pushed_to, ids[0], b"moves", |body| body.1 == 1, log));
    assert!(!broker.copy_forward(pushed_to, ids[0], b"moves", |body| body.1 == 1, log), "it has a new one");
    let elsewhere = broker.number_of(b"letters").unwrap();
    assert!(
        !broker.copy_forward(elsewhere, ids[1], b"stays", |_| true, log),
        "neither pushed nor moved there"
    );
    assert!(broker.copy_forward(pushed_to, ids[1], b"stays", |body| body.1 == 2, log));
    assert!(!broker.has_awake());
    home.verify();
}

#[test]
fn a_large_dropped_queue_releases_its_bodies_in_slices() {
    let mut home = backlog(5_000);
    home.pop(500, PLAIN);
    add(&mut home, Add { when: When::After(5), ..x() });
    home.run(&Command::Drop { queues: &[b"q"] });
    assert_eq!(home.log.live.len(), 4_001, "the first slice went at once");
    assert!(home.broker.queue(b"q").unwrap().is_empty());
    home.push(&["new"]);
    home.verify();
    assert!(home.broker.next_deadline().is_due(home.now), "more slices are due");
    home.broker.tick(home.now, &mut home.log);
    assert_eq!(home.log.live.len(), 3_002);
    home.tick();
    assert_eq!(home.log.live.len(), 1);
    home.verify();
}

#[test]
fn inspecting_from_the_middle_equals_a_walk_from_the_start() {
    let mut home = backlog(300);
    let ids: Vec<String> = home.take(300, PLAIN).iter().map(|task| task.id.to_string()).collect();
    let dead: Vec<&[u8]> = ids.iter().step_by(2).map(String::as_bytes).collect();
    home.run(&Command::Bury { queue: b"q", tasks: TaskRefs { list: &dead, form: IdForm::Long } });
    home.take_image();
    for incarnation in [7, 8] {
        for view in [View::Leased, View::Dead] {
            let all: Vec<TaskId> = home.inspect(b"q", view).iter().map(|task| task.id).collect();
            assert_eq!(all.len(), 150);
            for start in -151..=151i64 {
                let looked = home.run(&Command::Inspect { queue: b"q", view, start, count: 3 });
                let Answer::Tasks(tasks) = looked else { panic!("{looked:?}") };
                let at = usize::try_from(if start < 0 { start + 150 } else { start }).unwrap_or(usize::MAX);
                let expected: Vec<TaskId> = all.iter().copied().skip(at).take(3).collect();
                assert_eq!(tasks.iter().map(|task| task.id).collect::<Vec<_>>(), expected, "from {start}");
            }
        }
        home.restart(incarnation);
    }
}

/// A moved task is found by its id, however many queues have adopted tasks, and its entry is removed when the task is
/// gone.
#[test]
fn the_list_of_moved_tasks_stays_in_proportion_to_existing_tasks() {
    const QUEUES: usize = 300;
    let mut home = Home::default();
    let mut ids = Vec::new();
    for n in 0..QUEUES {
        let letters = format!("letters {n}");
        home.config(&[Change::Tries(1), Change::DeadLetter(letters.as_bytes())]);
        ids.extend(home.push(&["moves"]));
        home.pop(1, PLAIN);
        home.return_task(ids[n], None, Some("why"));
    }
    assert_eq!(home.broker.adopted(), QUEUES);
    home.restart(2);
    assert_eq!(home.broker.adopted(), QUEUES, "after a restart too");
    let pushed_to = home.broker.number_of(b"q").unwrap();
    for (n, id) in ids.iter().enumerate().skip(QUEUES / 2) {
        let (broker, log) = (&mut home.broker, &mut home.log);
        assert!(broker.copy_forward(pushed_to, *id, b"moves", |body| body.1 == n as u64 + 1, log), "{n}");
    }
    for n in 0..QUEUES {
        let letters = format!("letters {n}");
        home.run(&Command::Drop { queues: &[letters.as_bytes()] });
    }
    assert!(!home.broker.copy_forward(pushed_to, ids[QUEUES - 1], b"moves", |_| true, &mut home.log), "gone");
    home.broker.forget_adopted(QUEUES);
    home.broker.forget_adopted(1);
    assert_eq!(home.broker.adopted(), 0);
    home.verify();
}

/// An image can be taken at any time: it does not contain dropped queues and does not wait for them.
#[test]
fn an_image_does_not_wait_for_dropped_queues() {
    let mut home = backlog(5_000);
    home.push(&["stays"]);
    home.run(&Command::Purge { queue: b"q", state: None });
    home.push(&["new"]);
    assert!(home.broker.is_unfinished() && !home.broker.is_under_way());
    let before = home.log.live.len();
    let dropped = home.broker.take_dropped();
    assert!(!home.broker.is_unfinished() && !dropped.is_empty());
    let mut left = 0;
    dropped.bodies(&mut |_| left += 1);
    assert_eq!(before - left, 1, "all except the existing one are to be released");
    home.store.take(&mut home.broker);
    let restored = home.store.restore().unwrap();
    assert_eq!(restored.digest(), home.broker.digest());
}
