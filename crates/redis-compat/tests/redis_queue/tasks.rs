//! Tasks that are pushed, taken, late and done, each by sureq or by a foreign client.

use std::time::{Duration, Instant};

use sureq_core::command::{Cancel, Command, IdForm, Return, TaskRefs, View};
use sureq_core::reply::Outcome;
use sureq_core::settings::Place;
use sureq_core::{Refusal, Reply};
use sureq_redis_compat::{SafeTask, mark_done, safe_pop};

use crate::common::shop::{open_home, task_ref};
use crate::common::{ack, push};
use crate::support::{QUEUE, Shop, tasks};

#[test]
fn a_foreign_client_takes_and_marks_a_task_of_sureq_as_done() {
    let mut shop = Shop::open();
    let id = shop.push("hello");
    assert_eq!(shop.list(), [&id[..]]);
    assert_eq!(shop.raw::<String>(&format!("GET jobs:data:{id}")), "hello");
    assert_eq!(shop.raw::<i64>(&format!("TTL jobs:data:{id}")), -1, "a light cleaning deletes nothing else");
    shop.foreign_take(&id, 0);
    assert_eq!(shop.lengths(), (0, 1));
    assert_eq!(shop.pop_one(), None, "it is neither done nor late");
    shop.foreign_mark_done(&id);
    assert_eq!(shop.lengths(), (0, 0));
    assert_eq!(shop.pop_one(), None);
    assert_eq!((shop.list(), shop.raw::<i64>("EXISTS jobs:done")), (vec![], 0), "the pop removed its entry");
}

#[test]
fn sureq_takes_and_marks_a_foreign_task_as_done() {
    let mut shop = Shop::open();
    // One with and one without a body.
    shop.raw::<()>("SET jobs:data:a hello");
    shop.raw::<()>("LPUSH jobs a");
    shop.raw::<()>("LPUSH jobs 123");
    let before = shop.now();
    assert_eq!(shop.pop(5), [("a".into(), "hello".into()), ("123".into(), String::new())]);
    let taken = shop.list();
    let at: u64 = taken[1].strip_prefix("a|").unwrap().parse().unwrap();
    assert!((before..=shop.now()).contains(&at), "{taken:?}");
    assert_eq!(shop.lengths(), (0, 2));
    assert!(shop.ack("a") && !shop.ack("a"), "true at most once");
    assert!(shop.ack("123") && !shop.ack("123"));
    assert_eq!((shop.list(), shop.raw::<i64>("EXISTS jobs:data:a")), (vec![], 0));
}

#[test]
fn late_tasks_are_delivered_again_and_others_are_skipped() {
    let mut shop = Shop::open();
    for id in ["late", "taken", "done", "fresh"] {
        shop.push_id(id);
    }
    shop.foreign_take("late", 31);
    shop.foreign_take("taken", 5);
    shop.foreign_take("done", 5);
    shop.foreign_mark_done("done");
    // An unreadable entry makes no difference.
    shop.raw::<()>("RPUSH jobs odd|x");
    assert_eq!(shop.lengths(), (3, 1));
    let popped: Vec<String> = shop.pop(9).into_iter().map(|(id, _)| id).collect();
    assert_eq!(popped, ["odd", "fresh", "late"]);
    let mut ids = shop.ids();
    ids.sort();
    assert_eq!(ids, ["fresh", "late", "odd", "taken"]);
    assert_eq!(shop.lengths(), (0, 4));
    assert_eq!(shop.pop(9), []);
}

#[test]
fn a_pop_that_finds_nothing_changes_nothing() {
    let mut shop = Shop::open();
    for id in ["a", "b", "c"] {
        shop.push_id(id);
    }
    shop.pop(3);
    let before = shop.list();
    let dirty = |shop: &mut Shop| {
        let info: String = shop.raw("INFO persistence");
        info.lines().find(|line| line.starts_with("rdb_changes_since_last_save:")).unwrap().to_owned()
    };
    let written = dirty(&mut shop);
    assert_eq!(shop.pop(1), []);
    assert_eq!((shop.list(), dirty(&mut shop)), (before, written));
}

#[test]
fn an_ack_counts_while_a_foreign_client_moves_the_entry() {
    let mut shop = Shop::open();
    let id = shop.push("hello");
    assert_eq!(shop.pop_one(), Some(id.clone()));
    let entry: Vec<String> = shop.raw("BRPOP jobs 1");
    assert!(shop.ack(&id), "it had a body, so that it was not done before");
    shop.raw::<()>(&format!("LPUSH jobs {}", entry[1]));
    assert_eq!(shop.pop_one(), None);
    assert_eq!((shop.list(), shop.raw::<i64>("EXISTS jobs:done")), (vec![], 0), "the task stays done");
}

#[test]
fn a_mark_of_an_earlier_task_does_not_remove_a_later_one_of_the_same_id() {
    let mut shop = Shop::with("layout=redis-queue&tasktimeout=1");
    shop.foreign_mark_done("123");
    shop.push_id("123");
    assert_eq!(shop.pop_one().as_deref(), Some("123"));
    crate::common::until("it is late", || shop.pop_one().is_some());
    assert!(shop.ack("123"));
    assert_eq!(shop.list(), Vec::<String>::new());
}

#[test]
fn a_returned_task_looks_as_if_it_had_not_been_taken() {
    let mut shop = Shop::open();
    for id in ["a", "b", "c"] {
        shop.push_id(id);
    }
    assert_eq!(shop.pop(2).len(), 2);
    let return_task = |shop: &Shop, id: &str, to| {
        shop.reply(Command::Return(Return {
            queue: QUEUE,
            task: task_ref(id),
            to,
            failed: None,
            is_last: false,
        }))
    };
    assert_eq!(return_task(&shop, "a", None), Reply::Outcome(Outcome::Done));
    assert_eq!(return_task(&shop, "a", None), Reply::Outcome(Outcome::Stale));
    assert_eq!(return_task(&shop, "b", Some(Place::Back)), Reply::Outcome(Outcome::Done));
    assert_eq!(shop.list(), ["b", "c", "a"]);
}

#[test]
fn queues_are_counted_inspected_listed_and_deleted() {
    let mut shop = Shop::open();
    let ids: Vec<String> = ["a", "b", "c", "d"].iter().map(|payload| shop.push(payload)).collect();
    shop.pop(2);
    let inspect = |shop: &Shop, view, start, count| -> Vec<String> {
        let shown = tasks(&shop.execute(Command::Inspect { queue: QUEUE, view, start, count }));
        shown.into_iter().map(|(_, payload)| payload).collect()
    };
    assert_eq!(inspect(&shop, View::Ready, 0, 1), ["c"]);
    assert_eq!(inspect(&shop, View::Ready, -1, 9), ["d"]);
    assert_eq!(inspect(&shop, View::Leased, 0, 9), ["a", "b"]);
    let tasks = TaskRefs { list: &[ids[0].as_bytes(), ids[3].as_bytes(), b"none"], form: IdForm::Long };
    assert_eq!(shop.count(Command::Cancel { queue: QUEUE, which: Cancel::Ids(tasks) }), 2);
    assert_eq!(shop.lengths(), (1, 1));
    push(&shop.home, b"other", b"x");
    let replies = shop.execute(Command::Queues { pattern: Some(b"j*"), cursor: 0, count: 1000 });
    assert_eq!(replies.queues.iter().map(|row| row.counts).collect::<Vec<_>>(), [[1, 0, 1, 0]]);
    assert_eq!(shop.count(Command::Size), 2);
    assert_eq!(shop.count(Command::Exists { queues: &[QUEUE, b"none"] }), 1);
    assert_eq!(shop.count(Command::Drop { queues: &[QUEUE, b"other"] }), 2);
    assert_eq!(shop.raw::<Vec<String>>("KEYS *"), Vec::<String>::new());
}

#[test]
fn many_done_entries_are_skipped_in_steps() {
    let mut shop = Shop::open();
    for n in 0..2_500 {
        shop.raw::<()>(&format!("LPUSH jobs {n}|5"));
        shop.raw::<()>(&format!("SADD jobs:done {n}"));
    }
    shop.push_id("last");
    assert_eq!(shop.pop_one().as_deref(), Some("last"));
    assert_eq!(shop.ids(), ["last"]);
    assert_eq!(shop.raw::<i64>("EXISTS jobs:done"), 0);
}

#[test]
fn times_are_options_of_the_url() {
    let mut shop = Shop::with("layout=redis-queue&poptimeout=1&tasktimeout=7200&exptime=100&prefix=app:");
    let id = shop.push("hello");
    let left: i64 = shop.raw(&format!("TTL app:jobs:data:{id}"));
    assert!((50..=100).contains(&left), "{left}");
    let task = safe_pop(&shop.home, QUEUE).unwrap();
    assert_eq!(task, Some(SafeTask { id: id.clone().into(), body: b"hello".to_vec() }));
    let since = Instant::now();
    assert_eq!(safe_pop(&shop.home, QUEUE), Ok(None));
    assert!(since.elapsed() >= Duration::from_secs(1), "it waited");
    // An hour later, by the time in the entry.
    let at = shop.now() - 3_600;
    shop.raw::<()>("DEL app:jobs");
    shop.raw::<()>(&format!("LPUSH app:jobs {id}|{at}"));
    assert_eq!(shop.pop_one(), None, "it is not late yet");
    assert_eq!(mark_done(&shop.home, QUEUE, id.as_bytes()), Ok(true));
    assert_eq!(mark_done(&shop.home, QUEUE, id.as_bytes()), Ok(false));
    let other = open_home(&shop.server, "layout=sureq");
    assert!(matches!(safe_pop(&other, QUEUE), Err(Refusal::NotThere { .. })));
    other.close();
    assert!(matches!(ack(&shop.home, QUEUE, "x"), Reply::Acked(_)));
}
