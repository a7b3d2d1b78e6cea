//! Rule 7: looking at a queue and popping a task cost about the same with a million tasks as with a few. The bounds
//! are wide: an operation that visits every task exceeds them by a factor of hundreds.

use std::time::{Duration, Instant};

use sureq::home_api::command::{Add, Pop, When};
use sureq::home_api::{Command, Payload, Replies, Reply};
use sureq::{Home, limits};

const MANY: usize = 1_000_000;
const LOOKS: u32 = 2_000;
/// An allowance for other load on the machine.
const NOISE: Duration = Duration::from_millis(200);

fn home() -> Home {
    sureq::open("mem:").expect("a home in memory opens")
}

fn execute(home: &Home, command: Command<'_>) -> Replies<Payload> {
    let mut replies = Replies::default();
    let _ = home.api().execute(&[command], &mut replies);
    assert!(!matches!(replies.list[0], Reply::Refused(_)), "{:?}", replies.list[0]);
    replies
}

fn push(home: &Home, queue: &[u8], count: usize) {
    let payloads = vec![&b"x"[..]; limits::PUSH_TASKS_MAX];
    for at in (0..count).step_by(payloads.len()) {
        let some = &payloads[..payloads.len().min(count - at)];
        execute(home, Command::Push { queue, payloads: some });
    }
}

/// Compares the cost of the same operation with few tasks and with many.
fn check(what: &str, mut few: impl FnMut(), mut many: impl FnMut()) {
    let time = |look: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..LOOKS).for_each(|_| look());
        start.elapsed()
    };
    let (few, many) = (time(&mut few), time(&mut many));
    assert!(many <= few * 20 + NOISE, "{what}: {few:?} with few tasks, {many:?} with a million");
}

#[test]
fn counting_a_million_tasks_costs_the_same_as_one() {
    let home = home();
    push(&home, b"few", 2);
    push(&home, b"many", MANY);
    for queue in [&b"few"[..], b"many"] {
        execute(&home, Command::Pop(Pop::plain(&[queue], u32::MAX / 2)));
        push(&home, queue, 1);
    }
    push(&home, b"many", MANY - 1);
    let info = |queue: &[u8]| match &execute(&home, Command::Info { queue }).list[0] {
        Reply::Info(info) => (info.ready, info.leased),
        other => panic!("{other:?}"),
    };
    assert_eq!((info(b"few"), info(b"many")), ((1, 2), (MANY as u64, MANY as u64)));
    check("INFO", || _ = info(b"few"), || _ = info(b"many"));
    let exists = |queue: &[u8]| _ = execute(&home, Command::Exists { queues: &[queue] });
    check("EXISTS", || exists(b"few"), || exists(b"many"));
}

#[test]
fn popping_one_of_a_million_delayed_tasks_costs_the_same_as_of_a_few() {
    let home = home();
    for (queue, count) in [(&b"few"[..], 1), (b"many", MANY)] {
        for n in 0..count {
            let when = When::After(3_600_000 + n as u64 % 1_000);
            execute(&home, Command::Add(Add { when, ..Add::plain(queue, b"later") }));
        }
    }
    let take = |queue: &[u8]| {
        push(&home, queue, 1);
        let popped = execute(&home, Command::Pop(Pop::plain(&[queue], 1)));
        assert_eq!(popped.tasks.len(), 1);
        assert_eq!(popped.tasks[0].body.as_ref(), b"x");
    };
    check("POP", || take(b"few"), || take(b"many"));
}
