//! One queue that two programs share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sureq_core::command::Block;

use crate::support::{Published, Shop, ack, answer, item, wait};

#[test]
fn the_published_crate_leases_and_completes_tasks_of_sureq() {
    let mut shop = Shop::open();
    let mut published = Published::new(&shop.server);
    let (first, second) = (shop.push("one"), shop.push("two"));
    assert_eq!(shop.raw::<Vec<String>>("LRANGE jobs:queue 0 -1"), [second.clone(), first.clone()]);
    assert_eq!(shop.raw::<String>(&format!("GET jobs:item:{first}")), "one");
    assert_eq!(shop.raw::<i64>(&format!("TTL jobs:item:{first}")), -1);
    assert_eq!(published.lengths(), (2, 0));
    let leased = published.lease().unwrap();
    assert_eq!((&leased.id, &leased.data[..]), (&first, &b"one"[..]));
    assert_eq!(shop.lengths(), (1, 1));
    assert!(published.complete(&first));
    assert!(!shop.ack(&first), "it is completed once");
    assert_eq!(published.lease().unwrap().id, second);
    assert!(shop.ack(&second), "the client that removes the item completes it");
    assert!(!published.complete(&second));
    assert_eq!(shop.raw::<Vec<String>>("KEYS *"), Vec::<String>::new());
}

#[test]
fn sureq_pops_and_completes_tasks_of_the_published_crate() {
    let mut shop = Shop::open();
    let mut published = Published::new(&shop.server);
    assert!(published.add(&item("a", "one")));
    assert!(published.add(&item("b", "two")));
    assert_eq!(shop.pop(1, Some(1_500)), [("a".to_owned(), "one".to_owned())]);
    assert_eq!(shop.pop(5, None), [("b".to_owned(), "two".to_owned())]);
    assert_eq!(shop.raw::<String>("TYPE jobs:lease:a"), "string");
    assert!((1..=1_500).contains(&shop.raw::<i64>("PTTL jobs:lease:a")));
    assert!((50_000..=60_000).contains(&shop.raw::<i64>("PTTL jobs:lease:b")), "a minute by default");
    assert_eq!(published.lengths(), (0, 2));
    assert!(published.complete("a"));
    assert!(shop.ack("b"));
    assert!(!published.complete("b"));
    assert_eq!(shop.raw::<Vec<String>>("KEYS *"), Vec::<String>::new());
}

#[test]
fn an_id_is_added_once_by_either_side() {
    let shop = Shop::open();
    let mut published = Published::new(&shop.server);
    assert!(shop.add("a", "ours"));
    assert!(!published.add(&item("a", "theirs")));
    assert!(published.add(&item("b", "theirs")));
    assert!(!shop.add("b", "ours"));
    assert_eq!(
        shop.pop(5, None),
        [("a", "ours"), ("b", "theirs")].map(|(id, data)| (id.into(), data.into()))
    );
    assert!(!shop.add("b", "ours"), "it is being processed");
    assert!(shop.ack("b"));
    assert!(shop.add("b", "ours"));
}

/// The crate requires `add_unique_item` if an id may be added twice; with `add_item` it is in the queue twice.
#[test]
fn an_id_that_was_queued_twice_is_one_task() {
    let mut shop = Shop::open();
    let mut published = Published::new(&shop.server);
    published.add_unique(&item("twice", "old"));
    published.add_unique(&item("twice", "new"));
    published.add_unique(&item("other", "x"));
    assert_eq!(published.lengths(), (3, 0));
    assert_eq!(shop.lengths(), (2, 0));
    published.add_unique(&item("twice", "newer"));
    let popped = shop.pop(10, None);
    assert_eq!(popped, [("twice", "newer"), ("other", "x")].map(|(id, data)| (id.into(), data.into())));
    assert_eq!(shop.lists(), (vec![], vec!["other".into(), "twice".into()]));
    published.add_unique(&item("twice", "newest"));
    assert_eq!(shop.lengths(), (0, 2), "it is leased");
    assert!(shop.ack("twice") && shop.ack("other"));
    assert_eq!(shop.lists(), (vec![], vec![]));
}

#[test]
fn ids_without_an_item_are_skipped_and_removed() {
    let mut shop = Shop::open();
    let mut published = Published::new(&shop.server);
    published.add_unique(&item("twice", "x"));
    published.add_unique(&item("twice", "x"));
    assert_eq!(published.lease().unwrap().id, "twice");
    assert!(published.complete("twice"));
    assert_eq!(published.lengths(), (1, 0), "the second one is a ghost now");
    shop.add("real", "y");
    assert_eq!(shop.pop_one().as_deref(), Some("real"));
    assert_eq!(shop.lists(), (vec![], vec!["real".into()]));
    // A large number of ghosts is removed in several steps.
    let ghosts: Vec<String> = (0..2_500).map(|n| n.to_string()).collect();
    shop.raw::<()>(&format!("LPUSH jobs:queue {}", ghosts.join(" ")));
    shop.add("behind", "z");
    assert_eq!(shop.pop_one().as_deref(), Some("behind"));
    assert_eq!(shop.pop_one(), None);
}

const TASKS: usize = 1_000;

/// Takes and completes tasks until all are completed; returns the ids that this worker completed.
fn work(
    completed: &AtomicUsize,
    mut take: impl FnMut() -> Option<String>,
    mut complete: impl FnMut(&str) -> bool,
) -> Vec<String> {
    let mut taken = Vec::new();
    while completed.load(Ordering::Acquire) < TASKS {
        if let Some(id) = take() {
            assert!(complete(&id), "{id} was completed by another worker");
            completed.fetch_add(1, Ordering::AcqRel);
            taken.push(id);
        }
    }
    taken
}

#[test]
fn workers_of_both_kinds_empty_a_queue_and_no_task_has_two_holders() {
    let mut shop = Shop::open();
    let completed = Arc::new(AtomicUsize::new(0));
    let mut ours = Vec::new();
    for _ in 0..2 {
        let (completed, home) = (Arc::clone(&completed), shop.another());
        ours.push(std::thread::spawn(move || {
            let take = || answer(wait(&home, Block::Millis(200))).unwrap().pop().map(|(id, _)| id);
            work(&completed, take, |id| ack(&home, id))
        }));
    }
    let mut theirs = Vec::new();
    for _ in 0..2 {
        let (completed, mut published) = (Arc::clone(&completed), Published::new(&shop.server));
        let mut completing = Published::new(&shop.server);
        theirs.push(std::thread::spawn(move || {
            let take = || published.lease_within(Some(Duration::from_secs(1))).map(|item| item.id);
            work(&completed, take, |id| completing.complete(id))
        }));
    }
    let mut published = Published::new(&shop.server);
    for n in 0..TASKS / 2 {
        shop.add(&format!("ours-{n}"), "x");
        assert!(published.add(&item(&format!("theirs-{n}"), "y")));
    }
    let mut by_us: Vec<String> = ours.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    let by_them: Vec<String> = theirs.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    assert!(by_us.len() > TASKS / 20 && by_them.len() > TASKS / 20, "{} and {}", by_us.len(), by_them.len());
    by_us.extend(by_them);
    by_us.sort();
    by_us.dedup();
    assert_eq!(by_us.len(), TASKS);
    assert_eq!(shop.lists(), (vec![], vec![]));
}
