//! The memory of tasks, in each state and with each option. It is computed without visiting any task, so every index
//! and every list must be included.

use crate::support::{Bytes, Home, Kept, leased};
use crate::{PLAIN, add, by, cancel, start};
use sureq_core::command::{Add, Command, IdForm, NameArg, TaskRefs, When, Worker, WorkerRef};
use sureq_core::{TaskId, WallTime};

const COUNT: u32 = 8_192;

/// Adds a task for each number.
fn add_all(home: &mut Home, task: impl Fn(u32) -> Add<'static>) -> Vec<TaskId> {
    (0..COUNT).map(|n| add(home, task(n))).collect()
}

fn plain() -> Add<'static> {
    Add::plain(b"q", b"x")
}

fn pushed(home: &mut Home) -> Vec<TaskId> {
    home.push(&vec!["x"; COUNT as usize])
}

#[test]
fn the_memory_of_a_task_depends_on_its_state_and_options() {
    type Make = fn(&mut Home);
    let cases: [(&str, u64, Make); 11] = [
        ("packed", 0, |home| _ = pushed(home)),
        ("delayed", 30, |home| {
            _ = add_all(home, |n| Add { when: When::After(1_000 + u64::from(n)), ..plain() });
        }),
        ("delayed_wall", 34, |home| {
            _ = add_all(home, |n| Add { when: When::At(WallTime(u64::from(n) << 30)), ..plain() });
        }),
        ("of a priority", 159, |home| _ = add_all(home, |_| Add { priority: 1, ..plain() })),
        ("with a time to live", 311, |home| _ = add_all(home, |_| Add { ttl_ms: Some(9), ..plain() })),
        ("unique", 335, |home| {
            let numbers: &'static [[u8; 4]] = (0..COUNT).map(u32::to_le_bytes).collect::<Vec<_>>().leak();
            _ = add_all(home, |n| Add {
                name: Some(NameArg::Payload),
                ..Add::plain(b"q", &numbers[n as usize])
            });
        }),
        ("leased", 111, |home| {
            pushed(home);
            home.take(COUNT, PLAIN);
        }),
        ("leased for a time", 227, |home| {
            pushed(home);
            home.take(COUNT, leased(1_000));
        }),
        ("held", 215, |home| {
            pushed(home);
            let worker = start(home, b"w", 1_000);
            home.take(COUNT, by(worker));
        }),
        ("dead", 135, |home| {
            let ids: Vec<String> = pushed(home).iter().map(ToString::to_string).collect();
            let list: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
            home.run(&Command::Bury { queue: b"q", tasks: TaskRefs { list: &list, form: IdForm::Long } });
        }),
        ("returned", 319, |home| {
            pushed(home);
            home.take(COUNT, leased(10));
            home.pass(10);
            home.tick();
        }),
    ];
    for (what, bytes, make) in cases {
        let mut home = Home::default();
        make(&mut home);
        let queue = home.broker.queue(b"q").unwrap();
        assert_eq!(queue.len(), u64::from(COUNT), "{what}");
        let each = queue.memory() as u64 / u64::from(COUNT);
        assert!(each.abs_diff(bytes) <= bytes / 10, "{what}: {each} bytes instead of about {bytes}");
    }
}

#[test]
fn a_body_that_cannot_be_packed_costs_its_handle_and_its_memory() {
    let memory = |kept| {
        let mut home = Home::of(kept);
        pushed(&mut home);
        home.verify();
        home.broker.queue(b"q").unwrap().memory()
    };
    let each = (memory(Kept::Mixed) - memory(Kept::Packed)) / COUNT as usize;
    let handle = size_of::<(u16, Bytes)>();
    assert!((handle..=2 * handle).contains(&each), "{each} bytes, a handle has {handle}");
}

#[test]
fn a_removed_entry_costs_one_bit_per_entry_before_it() {
    let mut home = Home::default();
    let ids = pushed(&mut home);
    home.take_image();
    let before = home.broker.queue(b"q").unwrap().memory();
    cancel(&mut home, ids[4_095]);
    let after = home.broker.queue(b"q").unwrap().memory();
    assert_eq!(after - before, 4_096 / 8);
}

#[test]
fn the_memory_of_a_worker_is_its_name_and_its_queues() {
    const WORKERS: u64 = 100;
    /// Bytes for each worker with a name of this length, after `then`.
    fn each(name_len: usize, then: fn(&mut Home, WorkerRef<'_>)) -> u64 {
        let mut home = Home::default();
        home.push(&["x"; WORKERS as usize]);
        let before = home.broker.memory();
        for n in 0..WORKERS {
            let name = format!("{n:0name_len$}");
            let worker = start(&mut home, name.as_bytes(), 1_000);
            then(&mut home, worker);
        }
        (home.broker.memory() - before) / WORKERS
    }
    let work = |home: &mut Home, worker: WorkerRef<'_>| {
        home.run(&Command::Worker(Worker::Work(worker, b"q")));
    };
    let short = each(10, |_, _| {});
    assert!((205..=245).contains(&short), "{short} bytes");
    assert_eq!(each(60, |_, _| {}) - short, 2 * 50, "a name is stored twice");
    assert_eq!(each(10, work) - short, 12, "a queue that it works on");
}
