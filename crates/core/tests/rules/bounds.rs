//! The bounds of a queue: the size of its content, the age of its tasks, and the time for which it is remembered.

use crate::support::{Answer, Home, leased};
use crate::{PLAIN, add, dead, refs, start, x};
use sureq_core::command::{
    AckScope, Add, Block, Cancel, Command, IdForm, Pop, TaskRef, TaskRefs, View, When, Worker,
};
use sureq_core::limits::{
    COMMAND_ARGS_MAX, COMMAND_BYTES_MAX, PATTERN_BYTES_MAX, PAYLOAD_BYTES_MAX, POP_QUEUES_MAX,
    PUSH_TASKS_MAX, QUEUE_NAME_BYTES_MAX, TASK_NAME_BYTES_MAX,
};
use sureq_core::reply::{Outcome, TaskView};
use sureq_core::settings::{Change, Expired, Overflow};
use sureq_core::task::Tries;
use sureq_core::{LogTime, Receipt, TaskId};

#[test]
fn a_batch_beyond_the_maximum_is_refused_as_a_whole() {
    let mut home = Home::default();
    home.config(&[Change::MaxLength(3), Change::MaxBytes(10)]);
    home.push(&["aa", "b"]);
    let push = |home: &mut Home, payloads: &[&[u8]]| home.run(&Command::Push { queue: b"q", payloads });
    assert_eq!(push(&mut home, &[b"c", b"d"]), Answer::Refused("queue full"));
    assert_eq!(push(&mut home, &[b"12345678"]), Answer::Refused("queue full"));
    assert!(matches!(push(&mut home, &[b"1234567"]), Answer::Ids(_)));
    home.pop(1, PLAIN);
    home.push(&["y"]);
    assert_eq!(home.see(View::Ready), "b 1234567 y", "leased tasks do not count");
}

#[test]
fn the_oldest_tasks_are_dropped_if_the_settings_say_so() {
    let mut home = Home::default();
    home.config(&[Change::MaxLength(3), Change::MaxBytes(6), Change::Overflow(Overflow::DropOldest)]);
    home.push(&["a", "b", "c"]);
    home.push(&["d"]);
    assert_eq!(home.see(View::Ready), "b c d");
    home.push(&["12345"]);
    assert_eq!(home.see(View::Ready), "d 12345");
    let too_large = home.run(&Command::Push { queue: b"q", payloads: &[b"1234567"] });
    assert_eq!(too_large, Answer::Refused("queue full"), "a task that never fits drops none");
    assert_eq!(home.see(View::Ready), "d 12345");
    home.verify();
}

#[test]
fn a_batch_that_fills_the_queue_drops_all_other_tasks() {
    for change in [Change::MaxLength(3), Change::MaxBytes(3)] {
        let mut home = Home::default();
        home.config(&[change, Change::Overflow(Overflow::DropOldest)]);
        home.push(&["a", "b", "c"]);
        home.push(&["d", "e", "f"]);
        assert_eq!(home.see(View::Ready), "d e f", "{change:?}");
        let four = home.run(&Command::Push { queue: b"q", payloads: &[b"g", b"h", b"i", b"j"] });
        assert_eq!(four, Answer::Refused("queue full"));
        assert_eq!(home.see(View::Ready), "d e f", "{change:?}");
        home.verify();
    }
}

#[test]
fn no_more_tasks_are_leased_than_the_settings_allow() {
    let mut home = Home::default();
    home.config(&[Change::MaxLeased(2)]);
    let ids = home.push(&["a", "b", "c", "d"]);
    assert_eq!(home.pop(9, PLAIN), "a b");
    assert_eq!(home.pop(9, PLAIN), "");
    home.awake();
    home.ack(ids[0]);
    assert_eq!(home.awake().len(), 1, "a waiting pop is woken");
    assert_eq!(home.pop(9, PLAIN), "c");
}

#[test]
fn a_paused_queue_accepts_tasks_and_delivers_none() {
    let mut home = Home::default();
    home.run(&Command::Pause { queue: b"q" });
    home.push(&["a"]);
    assert_eq!(home.pop(1, PLAIN), "");
    home.restart(2);
    assert_eq!(home.pop(1, PLAIN), "");
    home.awake();
    home.run(&Command::Resume { queue: b"q" });
    assert_eq!(home.awake().len(), 1);
    assert_eq!(home.pop(1, PLAIN), "a");
}

#[test]
fn a_time_to_live_ends_waiting_tasks_and_never_leased_ones() {
    let mut home = Home::default();
    let ttl_ms = Some(10);
    add(&mut home, Add { ttl_ms, ..Add::plain(b"q", b"held") });
    add(&mut home, Add { ttl_ms, ..Add::plain(b"q", b"timed") });
    add(&mut home, Add { ttl_ms, ..Add::plain(b"q", b"ready") });
    add(&mut home, Add { ttl_ms, when: When::After(99), ..Add::plain(b"q", b"delayed") });
    let held = home.take(1, PLAIN)[0].id;
    home.pop(1, leased(15));
    home.pass(10);
    assert_eq!((home.info().ready, home.info().delayed, home.info().leased), (0, 0, 2));
    assert_eq!(home.return_task(held, None, None), Outcome::Done);
    assert_eq!(home.pop(1, PLAIN), "", "a task that returns after its time to live is not delivered");
    home.pass(5);
    assert_eq!((home.info().ready, home.info().leased), (0, 0), "nor is a task that lapses after it");
    assert!(home.broker.queue(b"q").unwrap().is_empty());
    home.verify();
}

#[test]
fn expired_tasks_die_if_the_settings_say_so() {
    let mut home = Home::default();
    home.config(&[Change::TtlMs(10), Change::Expired(Expired::Dead)]);
    home.push(&["a"]);
    home.pass(10);
    assert_eq!(dead(&mut home), [("expired".into(), Tries::default())]);
    home.run(&Command::Revive { queue: b"q", tasks: None });
    home.pass(1_000);
    assert_eq!(home.pop(1, PLAIN), "a", "a revived task does not expire");
}

#[test]
fn a_revived_task_has_no_time_to_live() {
    let mut home = Home::default();
    let id = add(&mut home, Add { ttl_ms: Some(10), ..x() });
    refs(id, |tasks| home.run(&Command::Bury { queue: b"q", tasks }));
    home.run(&Command::Revive { queue: b"q", tasks: None });
    home.verify();
}

#[test]
fn an_empty_queue_without_settings_is_forgotten_after_an_hour() {
    let remembered = |prepare: &dyn Fn(&mut Home)| {
        let mut home = Home::default();
        let id = home.push(&["a"])[0];
        prepare(&mut home);
        home.pop(1, PLAIN);
        home.ack(id);
        home.pass(3_600_000);
        home.tick();
        home.verify();
        home.broker.queue(b"q").is_some()
    };
    assert!(!remembered(&|_| ()));
    assert!(remembered(&|home| home.config(&[Change::Tries(3)])));
    assert!(remembered(&|home| _ = home.run(&Command::Pause { queue: b"q" })));
    assert!(remembered(&|home| {
        let worker = start(home, b"w", 9_000_000);
        home.run(&Command::Worker(Worker::Work(worker, b"q")));
    }));
}

#[test]
fn a_dropped_queue_leaves_nothing_behind() {
    let mut home = Home::default();
    home.config(&[Change::MaxLeased(1)]);
    home.push(&["a", "b"]);
    home.pop(1, leased(10));
    assert_eq!(home.run(&Command::Drop { queues: &[b"q", b"q", b"none"] }), Answer::Count(1));
    home.verify();
    assert_eq!(home.run(&Command::Exists { queues: &[b"q"] }), Answer::Count(0));
    home.push(&["c", "d"]);
    assert_eq!(home.pop(2, PLAIN), "c d");
    home.verify();
}

#[test]
fn ids_increase_even_if_the_clock_goes_back() {
    let mut home = Home::default();
    let first = home.push(&["a"])[0];
    home.now.log = LogTime(5);
    let second = home.push(&["b"])[0];
    assert!(second > first);
    home.broker.raise_last_id(TaskId::new(9_000_000_000, 1).unwrap());
    assert!(home.push(&["c"])[0].ms() >= 9_000_000_000);
}

#[test]
fn requeuing_a_delivery_twice_in_one_call_returns_it_once() {
    let mut home = Home::default();
    home.push(&["a", "b"]);
    let receipts: Vec<Receipt> = home.take(2, PLAIN).iter().map(TaskView::receipt).collect();
    home.requeue_undelivered(b"q", &[receipts[0], receipts[1], receipts[0]]);
    assert_eq!(home.see(View::Ready), "a b");
    home.verify();
}

#[test]
fn memory_follows_the_state_of_tasks() {
    let mut home = Home::default();
    let ids: Vec<String> = home.push(&vec!["x"; 4_000]).iter().map(ToString::to_string).collect();
    let waiting = home.broker.memory();
    let list: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
    let tasks = TaskRefs { list: &list, form: IdForm::Long };
    home.run(&Command::Bury { queue: b"q", tasks });
    let buried = home.broker.memory();
    assert!(buried > waiting + 4_000 * 90, "{waiting} bytes for waiting tasks, {buried} for dead ones");
    home.run(&Command::Revive { queue: b"q", tasks: None });
    home.tick();
    let revived = home.broker.memory();
    assert!(revived > buried + 4_000 * 20, "{buried} bytes for dead tasks, {revived} for revived ones");
    home.run(&Command::Delete { queue: b"q", tasks });
    assert!(home.broker.memory() < waiting, "removed tasks use no memory");
}

#[test]
fn expired_tasks_at_the_head_hide_no_task_and_wake_no_pop() {
    let mut home = Home::default();
    home.config(&[Change::TtlMs(10), Change::MaxLeased(1)]);
    let ids = home.push(&vec!["over"; 10_000]);
    assert_eq!(home.pop(1, PLAIN), "over");
    home.awake();
    home.pass(10);
    home.ack(ids[0]);
    assert_eq!(home.awake(), [], "none of the remaining tasks could be popped");
    assert_eq!(home.log.live.len(), 8_999, "one slice of them was removed");
    assert_eq!(home.pop(9, PLAIN), "");
    home.config(&[Change::TtlMs(0)]);
    home.push(&["good"]);
    assert_eq!(home.awake().len(), 1);
    assert_eq!(home.pop(1, PLAIN), "good", "it is found behind the expired ones");
    assert!(home.log.live.len() > 1, "the others are not removed yet");
    home.verify();
    home.tick();
    assert_eq!((home.log.live.len(), home.info().ready), (1, 0));
    home.verify();
}

#[test]
fn a_pop_of_very_many_expires_no_more_than_two_slices() {
    let mut home = Home::default();
    home.config(&[Change::TtlMs(10)]);
    home.push(&vec!["over"; 5_000]);
    home.pass(10);
    assert_eq!(home.pop(1_000_000, PLAIN), "");
    assert_eq!(home.log.live.len(), 3_000);
}

/// Each command that names a queue, with this name.
fn naming(queue: &[u8]) -> Vec<Command<'_>> {
    let tasks = TaskRefs { list: &[], form: IdForm::Long };
    let task = TaskRef { bytes: b"1-1", form: IdForm::Long };
    vec![
        Command::Push { queue, payloads: &[] },
        Command::Push { queue, payloads: &[b"x"] },
        Command::Add(Add::plain(queue, b"x")),
        Command::Ack { queue, tasks, scope: AckScope::Leased },
        Command::Extend { queue, task, ms: 1 },
        Command::Recover { queue, count: 1, elapsed_ms: 0 },
        Command::Inspect { queue, view: View::Ready, start: 0, count: 1 },
        Command::Info { queue },
        Command::Cancel { queue, which: Cancel::Names(&[]) },
        Command::Bury { queue, tasks },
        Command::Revive { queue, tasks: None },
        Command::Delete { queue, tasks },
        Command::Purge { queue, state: None },
        Command::Pause { queue },
        Command::Resume { queue },
        Command::Explain { queue, task },
    ]
}

#[test]
fn a_name_that_is_too_long_is_refused_by_every_command() {
    let mut home = Home::default();
    let long = vec![b'q'; QUEUE_NAME_BYTES_MAX + 1];
    for command in naming(&long) {
        assert_eq!(home.run(&command), Answer::Refused("too large"), "{command:?}");
    }
    for command in naming(&long[1..]) {
        assert!(!matches!(home.run(&command), Answer::Refused(_)), "{command:?}");
    }
    let queues: &[&[u8]] = &[b"q", &long];
    for command in [
        Command::Pop(Pop::plain(queues, 1)),
        Command::Pop(Pop { block: Some(Block::Forever), ..Pop::plain(queues, 1) }),
        Command::Drop { queues },
        Command::Exists { queues },
        Command::Queues { pattern: Some(&vec![b'*'; PATTERN_BYTES_MAX + 1]), cursor: 0, count: 1 },
        Command::Cancel { queue: b"q", which: Cancel::Names(&[&vec![b'n'; TASK_NAME_BYTES_MAX + 1]]) },
    ] {
        assert_eq!(home.run(&command), Answer::Refused("too large"), "{command:?}");
    }
}

#[test]
fn a_pop_names_a_bounded_number_of_queues() {
    let mut home = Home::default();
    home.push(&["a"]);
    let names: Vec<String> = (0..=POP_QUEUES_MAX).map(|n| format!("queue {n}")).collect();
    let mut queues: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    for block in [None, Some(Block::Millis(5))] {
        let pop = Command::Pop(Pop { block, ..Pop::plain(&queues, 1) });
        assert_eq!(home.run(&pop), Answer::Refused("too many"));
        assert_eq!(
            pop.check().unwrap_err().to_string(),
            "too many queues: at most 1024 in one command; send several commands"
        );
    }
    queues.truncate(POP_QUEUES_MAX - 1);
    queues.push(b"q");
    let popped = home.run(&Command::Pop(Pop::plain(&queues, 1)));
    assert!(matches!(&popped, Answer::Tasks(tasks) if tasks.len() == 1), "{popped:?}");
}

#[test]
fn the_parts_of_a_command_are_bounded_and_so_is_their_sum() {
    let payload = vec![0; PAYLOAD_BYTES_MAX];
    let check = |payloads: &[&[u8]]| Command::Push { queue: b"q", payloads }.check();
    assert_eq!(check(&[&payload, &payload]), Ok(()), "{COMMAND_BYTES_MAX} bytes in all");
    let refused = check(&[&payload, &payload, b"x"]).unwrap_err().to_string();
    assert_eq!(refused, format!("the sum of the payloads is too large: at most {COMMAND_BYTES_MAX} bytes"));
    let many = vec![&b"1-1"[..]; COMMAND_ARGS_MAX + 1];
    let tasks = TaskRefs { list: &many, form: IdForm::Long };
    for command in [
        Command::Ack { queue: b"q", tasks, scope: AckScope::Leased },
        Command::Bury { queue: b"q", tasks },
        Command::Delete { queue: b"q", tasks },
        Command::Revive { queue: b"q", tasks: Some(tasks) },
        Command::Cancel { queue: b"q", which: Cancel::Ids(tasks) },
        Command::Cancel { queue: b"q", which: Cancel::Names(&many) },
        Command::Drop { queues: &many },
        Command::Exists { queues: &many },
    ] {
        let refused = command.check().unwrap_err().to_string();
        assert!(
            refused.starts_with("too many ") && refused.contains(": at most 1048576 in one"),
            "{refused}"
        );
    }
}

/// A push is one step, so that it is all or nothing, and others wait for it.
#[test]
fn a_push_adds_a_bounded_number_of_tasks() {
    let mut home = Home::default();
    let many = vec![&b"x"[..]; PUSH_TASKS_MAX + 1];
    let push = Command::Push { queue: b"q", payloads: &many };
    let refused = push.check().unwrap_err().to_string();
    assert_eq!(refused, "too many payloads: at most 10000 in one command; send several commands");
    assert_eq!(home.run(&push), Answer::Refused("too many"));
    assert_eq!(home.run(&Command::Size), Answer::Count(0), "it made no queue");
    let pushed = home.run(&Command::Push { queue: b"q", payloads: &many[1..] });
    assert!(matches!(&pushed, Answer::Ids(ids) if ids.len() == PUSH_TASKS_MAX), "{pushed:?}");
}
