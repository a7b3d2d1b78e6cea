//! However large a command or a queue is, each script takes a few milliseconds at most, in the layouts of other
//! programs.

#[path = "support/mod.rs"]
mod common;

use std::collections::BTreeSet;

use sureq_core::command::{
    AckScope, Block, Cancel, Command, IdForm, LeaseAsk, Pop, TaskRefs, View, Worker, WorkerRef,
};
use sureq_core::{Replies, Reply, limits};
use sureq_home_api::Payload;
use sureq_redis::RedisHome;

use common::shop::{QUEUE, Shop, text};
use common::{FOREIGN, answer, info, push, run};

/// More than any script handles.
const MANY: usize = 6_000;

/// The most words that the commands of one script may have.
const WORDS_MAX: usize = 10_000;

const WORKER: WorkerRef<'_> = WorkerRef { name: b"w", incarnation: 0 };

fn open(layout: &str) -> Shop {
    match layout {
        "work-queue" => Shop::with("layout=work-queue"),
        "worqr" => {
            let shop = Shop::with("layout=worqr");
            shop.execute(Command::Worker(Worker::Start { name: WORKER.name, ttl_ms: 600_000 }));
            shop
        }
        _ => Shop::with("layout=redis-queue&tasktimeout=600"),
    }
}

/// Runs `act` and checks that each script of it did a bounded amount of work.
fn in_small_scripts<T>(shop: &Shop, what: &str, act: impl FnOnce() -> T) -> T {
    let monitor = shop.monitor();
    let outcome = act();
    let most = monitor.most_words_of_a_script(&shop.server);
    assert!(most <= WORDS_MAX, "{what}: a script did {most} words of work");
    outcome
}

fn push_many(home: &RedisHome, count: usize) {
    let payloads: Vec<Vec<u8>> = (0..count).map(|n| n.to_string().into_bytes()).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(|payload| &payload[..]).collect();
    run(home, &Command::Push { queue: QUEUE, payloads: &payloads });
}

fn pop_many(home: &RedisHome, layout: &str, count: usize) -> Vec<String> {
    let worker = (layout == "worqr").then_some(WORKER);
    let lease = LeaseAsk { worker, ..LeaseAsk::NONE };
    let taken = run(home, &Command::Pop(Pop { lease, ..Pop::plain(&[QUEUE], count as u32) }));
    assert_eq!(taken.tasks.len(), count, "{layout}");
    ids(&taken)
}

fn ids(replies: &Replies<Payload>) -> Vec<String> {
    replies.tasks.iter().map(|task| text(task.foreign_id.as_deref().expect("it has an id"))).collect()
}

fn inspect(home: &RedisHome, view: View, start: i64, count: u32) -> Replies<Payload> {
    run(home, &Command::Inspect { queue: QUEUE, view, start, count })
}

fn numbers(replies: &Replies<Payload>) -> Vec<usize> {
    replies.tasks.iter().map(|task| text(&task.body).parse().expect("a number")).collect()
}

fn with_refs<T>(ids: &[String], act: impl FnOnce(TaskRefs<'_>) -> T) -> T {
    let list: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
    act(TaskRefs { list: &list, form: IdForm::Long })
}

/// KEYS has no cursor to continue from: it asks for all queues at once. Redis can only be asked for some keys of the
/// database at a time, most of which are not those of queues.
#[test]
fn all_queues_are_listed_among_thousands_of_other_keys() {
    for layout in FOREIGN {
        let mut shop = open(layout);
        let mut others = redis::pipe();
        for n in 0..5_000 {
            others.set(format!("worqr:other:{n}"), "x").ignore();
        }
        others.exec(&mut shop.raw).expect("Redis answers");
        let names: BTreeSet<Vec<u8>> = [b"one".to_vec(), b"two".to_vec()].into();
        for name in &names {
            push(&shop.home, name, b"x");
        }
        let list = Command::Queues { pattern: None, cursor: 0, count: u32::MAX };
        let listed = in_small_scripts(&shop, layout, || run(&shop.home, &list));
        assert!(matches!(listed.list[..], [Reply::Queues { cursor: 0, .. }]), "{layout}: {:?}", listed.list);
        let found: Vec<Vec<u8>> = listed.queues.iter().map(|row| row.name.to_vec()).collect();
        assert_eq!(found.len(), 2, "{layout}: each queue once");
        assert!(found.into_iter().collect::<BTreeSet<_>>() == names, "{layout}");
        assert_eq!(shop.count(Command::Size), 2, "{layout}");
        // A page is as long as it is asked to be.
        let page = Command::Queues { pattern: None, cursor: 0, count: 2_000 };
        assert!(matches!(run(&shop.home, &page).list[..], [Reply::Queues { cursor: 1.., .. }]), "{layout}");
    }
}

#[test]
fn a_large_inspect_pop_and_ack_are_sliced() {
    for layout in FOREIGN {
        let shop = open(layout);
        push_many(&shop.home, MANY);
        let all: Vec<usize> = (0..MANY).collect();
        let shown = in_small_scripts(&shop, layout, || inspect(&shop.home, View::Ready, 0, u32::MAX));
        assert!(numbers(&shown) == all, "{layout}: {} were shown", shown.tasks.len());
        let part = inspect(&shop.home, View::Ready, 1_500, 3_000);
        assert!(numbers(&part) == all[1_500..4_500], "{layout}: a part");
        let last = in_small_scripts(&shop, layout, || inspect(&shop.home, View::Ready, -2_500, 2_000));
        assert!(numbers(&last) == all[MANY - 2_500..MANY - 500], "{layout}: a part from the end");
        let taken = in_small_scripts(&shop, layout, || pop_many(&shop.home, layout, MANY));
        let counts = in_small_scripts(&shop, layout, || info(&shop.home, QUEUE));
        assert_eq!((counts.ready, counts.leased), (0, MANY as u64), "{layout}");
        let shown = in_small_scripts(&shop, layout, || inspect(&shop.home, View::Leased, 0, u32::MAX));
        assert!(
            ids(&shown).into_iter().collect::<BTreeSet<_>>() == taken.iter().cloned().collect(),
            "{layout}"
        );
        assert_eq!(shown.tasks.len(), MANY, "{layout}");
        // Another home has not delivered them, and must read in worqr what it finishes.
        let other = shop.another();
        let acked = with_refs(&taken, |tasks| {
            let finish = Command::Ack { queue: QUEUE, tasks, scope: AckScope::Leased };
            in_small_scripts(&shop, layout, || run(&other, &finish))
        });
        assert!(acked.indexes == (0..MANY as u32).collect::<Vec<_>>(), "{layout}: {}", acked.indexes.len());
        assert_eq!(shop.count(Command::Size), 0, "{layout}");
        other.close();
    }
}

#[test]
fn a_large_cancel_is_sliced() {
    for layout in ["work-queue", "redis-queue"] {
        let shop = open(layout);
        push_many(&shop.home, MANY);
        let waiting = ids(&inspect(&shop.home, View::Ready, 0, u32::MAX));
        let cancelled = with_refs(&waiting[..3_000], |tasks| {
            let cancel = Command::Cancel { queue: QUEUE, which: Cancel::Ids(tasks) };
            in_small_scripts(&shop, layout, || shop.count(cancel))
        });
        assert_eq!(cancelled, 3_000, "{layout}");
        let left: Vec<&[u8]> = waiting[3_000..3_500].iter().map(String::as_bytes).collect();
        let names = Command::Cancel { queue: QUEUE, which: Cancel::Names(&left) };
        assert_eq!((shop.count(names), shop.count(names)), (500, 0), "{layout}");
        assert!(ids(&inspect(&shop.home, View::Ready, 0, u32::MAX)) == waiting[3_500..], "{layout}");
    }
}

/// Redis searches a list from its end for each id: a hundred ids of a long list are more than one script.
#[test]
fn a_cancel_of_few_ids_in_a_long_list_is_sliced() {
    const LENGTH: usize = 9 * MANY;
    let shop = open("work-queue");
    for _ in 0..LENGTH / MANY {
        push_many(&shop.home, MANY);
    }
    let waiting = ids(&inspect(&shop.home, View::Ready, 0, 100));
    let monitor = shop.monitor();
    let cancelled =
        with_refs(&waiting, |tasks| shop.count(Command::Cancel { queue: QUEUE, which: Cancel::Ids(tasks) }));
    let most = monitor.most_calls_of_a_script(&shop.server, "LREM");
    assert_eq!(cancelled, 100);
    assert!((2..=10).contains(&most), "a script searched both lists for {} ids", most / 2);
    assert_eq!(info(&shop.home, QUEUE).ready, LENGTH as u64 - 100);
}

#[test]
fn commands_about_many_queues_are_sliced() {
    for layout in FOREIGN {
        let shop = open(layout);
        let names: Vec<String> = (0..5_000).map(|n| format!("q{n}")).collect();
        let pushes: Vec<Command<'_>> =
            names.iter().map(|queue| Command::Push { queue: queue.as_bytes(), payloads: &[b"x"] }).collect();
        let mut done = 0;
        while done < pushes.len() {
            done += shop.home.send(&pushes[done..]).wait().replies.list.len();
        }
        let queues: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        let list = Command::Queues { pattern: None, cursor: 0, count: u32::MAX };
        let listed = in_small_scripts(&shop, layout, || run(&shop.home, &list));
        assert_eq!(listed.queues.len(), 5_000, "{layout}");
        let exist = Command::Exists { queues: &queues };
        assert_eq!(in_small_scripts(&shop, layout, || shop.count(exist)), 5_000, "{layout}");
        let forget = Command::Drop { queues: &queues };
        assert_eq!(in_small_scripts(&shop, layout, || shop.count(forget)), 5_000, "{layout}");
        assert_eq!(shop.count(Command::Size), 0, "{layout}");
    }
}

/// In redis-queue a list must be read to count what is in it.
#[test]
fn long_lists_are_counted_in_steps_when_queues_are_listed() {
    let mut shop = open("redis-queue");
    let mut pushes = redis::pipe();
    for n in 0..MANY {
        // Most are taken, and late in the year 2286.
        let entry = if n < 500 { n.to_string() } else { format!("{n}|9999999999") };
        pushes.lpush(QUEUE, entry).ignore();
    }
    pushes.lpush("short", "x").exec(&mut shop.raw).expect("Redis answers");
    let list = Command::Queues { pattern: None, cursor: 0, count: 10 };
    let listed = in_small_scripts(&shop, "queues", || run(&shop.home, &list));
    let rows: BTreeSet<(Vec<u8>, [u64; 4])> =
        listed.queues.iter().map(|row| (row.name.to_vec(), row.counts)).collect();
    let counts = [500, 0, MANY as u64 - 500, 0];
    assert_eq!(rows, [(QUEUE.to_vec(), counts), (b"short".to_vec(), [1, 0, 0, 0])].into());
}

/// A script answers four megabytes of payloads, or one larger payload.
#[test]
fn an_inspect_of_large_payloads_is_sliced() {
    for layout in FOREIGN {
        let shop = open(layout);
        let (large, largest) = (vec![b'x'; 1 << 20], vec![b'y'; 5 << 20]);
        let mut payloads = vec![&large[..]; 9];
        payloads.insert(4, &largest);
        for payload in &payloads {
            push(&shop.home, QUEUE, payload);
        }
        let monitor = shop.monitor();
        let shown = inspect(&shop.home, View::Ready, 0, 100);
        let most = monitor.most_calls_of_a_script(&shop.server, "GET");
        let sizes: Vec<usize> = shown.tasks.iter().map(|task| task.body.len()).collect();
        assert_eq!(sizes, payloads.iter().map(|payload| payload.len()).collect::<Vec<_>>(), "{layout}");
        // In worqr payloads are in the list itself.
        let expected = if layout == "worqr" { 0..=0 } else { 1..=5 };
        assert!(expected.contains(&most), "{layout}: a script read {most} payloads");
    }
}

/// Another client adds many items at once, and a waiting pop gets them in one script.
#[test]
fn a_waiting_pop_takes_no_more_tasks_than_one_script_handles() {
    let mut shop = open("work-queue");
    let mut monitor = shop.monitor();
    let queues = [QUEUE];
    let pop = Pop { block: Some(Block::Forever), ..Pop::plain(&queues, MANY as u32) };
    let ticket = shop.home.send(&[Command::Pop(pop)]);
    monitor.wait_for("BLMOVE");
    let mut items = redis::pipe();
    items.atomic();
    for n in 0..MANY {
        items.set(format!("jobs:item:{n}"), n).ignore().lpush("jobs:queue", n).ignore();
    }
    let monitor = shop.monitor();
    items.exec(&mut shop.raw).expect("Redis answers");
    let taken = numbers(&answer(&ticket));
    let most = monitor.most_words_of_a_script(&shop.server);
    assert!(most <= WORDS_MAX, "a script did {most} words of work");
    assert!(!taken.is_empty() && taken.iter().copied().eq(0..taken.len()), "{} tasks", taken.len());
    assert_eq!(info(&shop.home, QUEUE).ready, (MANY - taken.len()) as u64);
}

#[test]
fn a_pop_of_large_payloads_ends_where_the_reply_is_full() {
    // Two hundred of them fit into a reply, which is as many as one script delivers.
    let payload = vec![b'x'; 330_000];
    for layout in FOREIGN {
        let shop = open(layout);
        for _ in 0..400 {
            push(&shop.home, QUEUE, &payload);
        }
        let worker = (layout == "worqr").then_some(WORKER);
        let lease = LeaseAsk { worker, ..LeaseAsk::NONE };
        let taken = run(&shop.home, &Command::Pop(Pop { lease, ..Pop::plain(&[QUEUE], 1_000) })).tasks.len();
        let bytes = taken * payload.len();
        let full = limits::REPLY_BYTES_MAX - payload.len()..limits::REPLY_BYTES_MAX + payload.len();
        assert!(full.contains(&bytes), "{layout}: {bytes} bytes");
        assert_eq!(info(&shop.home, QUEUE).ready, 400 - taken as u64, "{layout}");
    }
}
