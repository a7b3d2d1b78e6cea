//! Each command that the layout supports.

use sureq_core::Reply;
use sureq_core::command::{Cancel, Command, IdForm, Return, TaskRefs, View};
use sureq_core::reply::Outcome;
use sureq_core::settings::Place;

use crate::support::{QUEUE, Shop, task_ref, tasks};

fn return_task(shop: &Shop, id: &str, to: Option<Place>) -> Reply {
    shop.reply(Command::Return(Return { queue: QUEUE, task: task_ref(id), to, failed: None, is_last: false }))
}

#[test]
fn a_lease_can_be_extended_while_it_is_held() {
    let mut shop = Shop::open();
    let extend =
        |shop: &Shop, id| shop.reply(Command::Extend { queue: QUEUE, task: task_ref(id), ms: 90_000 });
    assert_eq!(extend(&shop, "a"), Reply::Outcome(Outcome::Stale));
    shop.add("a", "x");
    assert_eq!(extend(&shop, "a"), Reply::Outcome(Outcome::Stale), "it is not leased");
    shop.pop(1, None);
    let session: String = shop.raw("GET jobs:lease:a");
    assert_eq!(extend(&shop, "a"), Reply::Outcome(Outcome::Done));
    assert!(shop.raw::<i64>("PTTL jobs:lease:a") > 60_000);
    assert_eq!(shop.raw::<String>("GET jobs:lease:a"), session);
    // The lease has ended, and no cleaning has noticed it yet.
    shop.raw::<()>("DEL jobs:lease:a");
    assert_eq!(extend(&shop, "a"), Reply::Outcome(Outcome::Done));
    assert_eq!(shop.raw::<String>("GET jobs:lease:a"), session);
}

#[test]
fn a_returned_task_goes_to_the_end_or_to_the_named_place() {
    let mut shop = Shop::open();
    for id in ["a", "b", "c"] {
        shop.add(id, "x");
    }
    assert_eq!(return_task(&shop, "a", None), Reply::Outcome(Outcome::Stale), "it is not leased");
    shop.pop(2, None);
    assert_eq!(return_task(&shop, "a", None), Reply::Outcome(Outcome::Done));
    assert_eq!(return_task(&shop, "b", Some(Place::Front)), Reply::Outcome(Outcome::Done));
    assert_eq!(shop.lists(), (vec!["a".into(), "c".into(), "b".into()], vec![]));
    assert_eq!(shop.raw::<i64>("EXISTS jobs:lease:a jobs:lease:b"), 0);
    let back = Return { queue: QUEUE, task: task_ref("b"), to: None, failed: Some(b"why"), is_last: false };
    let no = shop.refusal(Command::Return(back));
    assert_eq!(no, "NOTTHERE layout=work-queue has no RETURN FAILED: it does not count failures");
}

#[test]
fn tasks_are_cancelled_in_any_state() {
    let mut shop = Shop::open();
    for id in ["a", "b", "c"] {
        shop.add(id, "x");
    }
    shop.pop(1, None);
    let list: [&[u8]; 3] = [b"a", b"b", b"unknown"];
    let which = Cancel::Ids(TaskRefs { list: &list, form: IdForm::Long });
    assert_eq!(shop.reply(Command::Cancel { queue: QUEUE, which }), Reply::Count(2));
    assert_eq!(shop.lists(), (vec!["c".into()], vec![]));
    let which = Cancel::Names(&[b"c"]);
    assert_eq!(shop.reply(Command::Cancel { queue: QUEUE, which }), Reply::Count(1));
    assert_eq!(shop.raw::<Vec<String>>("KEYS *"), Vec::<String>::new());
}

#[test]
fn inspect_lists_tasks_in_the_order_of_delivery() {
    let mut shop = Shop::open();
    for n in 0..250 {
        shop.add(&n.to_string(), "x");
    }
    shop.pop(3, None);
    shop.raw::<()>("DEL jobs:item:9");
    let look_at = |view, start, count| {
        let shown = shop.execute(Command::Inspect { queue: QUEUE, view, start, count });
        tasks(&shown).into_iter().map(|(id, _)| id.parse().unwrap()).collect::<Vec<u32>>()
    };
    assert_eq!(look_at(View::Ready, 0, 3), [3, 4, 5]);
    assert_eq!(look_at(View::Ready, 5, 3), [8, 10], "ids without an item are not reported");
    assert_eq!(look_at(View::Ready, -2, 10), [248, 249]);
    assert_eq!(look_at(View::Ready, 7, 1_000), (10..250).collect::<Vec<u32>>());
    assert_eq!(look_at(View::Ready, 1_000, 5), [0; 0]);
    assert_eq!(look_at(View::Leased, 0, 10), [0, 1, 2]);
}

#[test]
fn queues_are_found_and_dropped() {
    let mut shop = Shop::open();
    assert_eq!(shop.reply(Command::Size), Reply::Count(0));
    for n in 0..1_200 {
        shop.raw::<()>(&format!("SET jobs:item:{n} x"));
        shop.raw::<()>(&format!("LPUSH jobs:queue {n}"));
    }
    shop.pop(2, None);
    shop.raw::<()>("LPUSH taken:processing x");
    shop.raw::<()>("SET other:queue text");
    let exists = Command::Exists { queues: &[QUEUE, b"taken", b"other", b"none"] };
    assert_eq!(shop.reply(Command::Size), Reply::Count(2));
    let (mut found, mut cursor) = (Vec::new(), 0);
    loop {
        let replies = shop.execute(Command::Queues { pattern: None, cursor, count: 100 });
        let Reply::Queues { cursor: next, rows } = replies.list[0] else { panic!("{:?}", replies.list) };
        found.extend(replies.queues[rows.range()].iter().map(|row| (row.name.to_vec(), row.counts)));
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    found.sort();
    assert_eq!(found, [(b"jobs".to_vec(), [1_198, 0, 2, 0]), (b"taken".to_vec(), [0, 0, 1, 0])]);
    shop.raw::<()>("DEL other:queue");
    assert_eq!(shop.reply(exists), Reply::Count(2));
    assert_eq!(shop.reply(Command::Drop { queues: &[QUEUE, b"none"] }), Reply::Count(1));
    assert_eq!(shop.raw::<Vec<String>>("KEYS *"), ["taken:processing"]);
}

#[test]
fn the_url_sets_the_lease_and_the_prefix() {
    let mut shop = Shop::open();
    shop.home.close();
    shop.home = crate::common::shop::open_home(&shop.server, "layout=work-queue&lease=5000&prefix=app:");
    shop.add("a", "x");
    assert_eq!(shop.raw::<String>("GET app:jobs:item:a"), "x");
    shop.pop(1, None);
    assert!((1..=5_000).contains(&shop.raw::<i64>("PTTL app:jobs:lease:a")));
}
