//! Cleaning: abandoned tasks are requeued, and no others.

use std::time::{Duration, Instant};

use sureq_core::Refusal;
use sureq_core::command::Block;
use sureq_home_api::{Cleaned, Cleaning, Home as _};

use crate::common::{clean, until};
use crate::support::{PATIENCE, QUEUE, Shop, answer};

const GAP: Duration = Duration::from_secs(1);

#[test]
fn a_task_whose_lease_lapses_is_requeued_at_the_end() {
    let mut shop = Shop::open();
    shop.add("a", "x");
    shop.add("b", "y");
    shop.add("c", "z");
    assert_eq!(shop.pop(1, Some(1)).len(), 1);
    assert_eq!(shop.pop(1, Some(60_000)).len(), 1);
    shop.reopen();
    until("the first lease has run out", || shop.raw::<i64>("EXISTS jobs:lease:a") == 0);
    let started = Instant::now();
    let cleaned = clean(&shop.home, &[QUEUE], Cleaning::Light).unwrap();
    assert_eq!(cleaned, Cleaned { returned: 1, removed: 0 });
    assert!(started.elapsed() >= GAP, "cleaning needs two looks");
    assert_eq!(shop.lists(), (vec!["a".into(), "c".into()], vec!["b".into()]), "b is leased");
    assert!(shop.ack("a"), "a late ack still completes it");
    assert_eq!(shop.lists(), (vec!["c".into()], vec!["b".into()]));
}

#[test]
fn ids_that_foreign_clients_are_about_to_lease_stay() {
    let mut shop = Shop::open();
    shop.add("a", "x");
    shop.raw::<()>("RPOPLPUSH jobs:queue jobs:processing");
    let mut monitor = shop.monitor();
    let home = shop.home.clone();
    let cleaning = std::thread::spawn(move || clean(&home, &[QUEUE], Cleaning::Deep));
    monitor.wait_for("look");
    shop.raw::<()>("SETEX jobs:lease:a 60 theirs");
    assert_eq!(cleaning.join().unwrap(), Ok(Cleaned::default()));
    assert_eq!(shop.lists(), (vec![], vec!["a".into()]));
    // After the lease has ended, the id must again be seen twice without one.
    shop.raw::<()>("DEL jobs:lease:a");
    let started = Instant::now();
    assert_eq!(clean(&shop.home, &[], Cleaning::Light), Ok(Cleaned { returned: 1, removed: 0 }));
    assert!(started.elapsed() >= GAP);
}

/// The commands of foreign clients, in their order. A client may die after any of them.
const FOREIGN: [(&str, &[&str], &[&str]); 6] = [
    ("add_item", &[], &["SETNX jobs:item:i x", "LPUSH jobs:queue i"]),
    ("add_unique_item", &[], &["SET jobs:item:i x", "LPUSH jobs:queue i"]),
    (
        "lease",
        &["SET jobs:item:i x", "LPUSH jobs:queue i"],
        &["RPOPLPUSH jobs:queue jobs:processing", "GET jobs:item:i"],
    ),
    (
        "complete",
        &["SET jobs:item:i x", "LPUSH jobs:processing i", "SETEX jobs:lease:i 60 theirs"],
        &["DEL jobs:item:i", "LREM jobs:processing 0 i", "DEL jobs:lease:i"],
    ),
    (
        "light_clean",
        &["SET jobs:item:i x", "LPUSH jobs:processing i"],
        &["LREM jobs:processing 0 i", "LPUSH jobs:queue i"],
    ),
    (
        "light_clean of one that is completed meanwhile",
        &["SET jobs:item:i x", "LPUSH jobs:processing i"],
        &["LREM jobs:processing 0 i", "DEL jobs:item:i", "LPUSH jobs:queue i"],
    ),
];

#[test]
fn a_foreign_client_may_die_after_any_of_its_steps() {
    let mut shop = Shop::open();
    for (name, before, steps) in FOREIGN {
        for n in 0..=steps.len() {
            shop.raw::<()>("FLUSHALL");
            for line in before.iter().chain(&steps[..n]) {
                shop.raw::<redis::Value>(line);
            }
            let is_leased = shop.raw::<i64>("EXISTS jobs:lease:i") == 1;
            clean(&shop.home, &[QUEUE], Cleaning::Light).unwrap();
            clean(&shop.home, &[QUEUE], Cleaning::Deep).unwrap();
            let one = vec!["i".to_owned()];
            let expected = match (shop.raw::<i64>("EXISTS jobs:item:i") == 1, is_leased) {
                (false, true) if n == 1 => (vec![], one),
                (false, _) => (vec![], vec![]),
                (true, true) => (vec![], one),
                (true, false) => (one, vec![]),
            };
            assert_eq!(shop.lists(), expected, "{name}, {n} steps");
            // The lease of a completed item ends by itself, and then nothing is left of it.
            if expected.1.len() == 1 {
                shop.raw::<()>("DEL jobs:lease:i");
                clean(&shop.home, &[QUEUE], Cleaning::Light).unwrap();
                assert_eq!(shop.lists().1, Vec::<String>::new(), "{name}, {n} steps");
            }
        }
    }
}

/// A home of sureq blocks with one command and leases with the next. It may die between the two.
#[test]
fn a_home_may_die_between_moving_and_leasing() {
    let mut shop = Shop::open();
    let mut monitor = shop.monitor();
    let ticket = shop.wait(Block::Forever);
    monitor.wait_for("BLMOVE");
    shop.raw::<()>("ACL SETUSER default -evalsha -fcall");
    shop.raw::<()>("SET jobs:item:a x");
    shop.raw::<()>("LPUSH jobs:queue a");
    // The home was not allowed to lease the id, and continues to wait.
    monitor.wait_for("BLMOVE");
    drop(ticket);
    shop.home.close();
    assert_eq!(shop.lists(), (vec![], vec!["a".into()]));
    shop.raw::<()>("ACL SETUSER default +evalsha +fcall");
    shop.reopen();
    assert_eq!(clean(&shop.home, &[QUEUE], Cleaning::Light), Ok(Cleaned { returned: 1, removed: 0 }));
    assert_eq!(shop.pop_one().as_deref(), Some("a"));
}

#[test]
fn a_home_that_pops_cleans_by_itself() {
    let shop = Shop::open();
    shop.add("a", "x");
    let started = Instant::now();
    assert_eq!(shop.pop(1, Some(1)).len(), 1);
    let ticket = shop.wait(Block::Millis(PATIENCE.as_millis() as u64));
    assert_eq!(answer(ticket).unwrap().len(), 1);
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}

#[test]
fn one_home_at_a_time_cleans_by_itself() {
    let mut shop = Shop::open();
    let mut monitor = shop.monitor();
    shop.add("a", "x");
    shop.raw::<()>("SET jobs:sureq:cleaning another");
    assert_eq!(shop.pop(1, Some(1)).len(), 1);
    monitor.wait_for("look");
    let first = Instant::now();
    monitor.wait_for("look");
    assert!(
        first.elapsed() > GAP * 3,
        "an id without a lease would have been looked at again after a second"
    );
    assert_eq!(shop.lists(), (vec![], vec!["a".into()]), "another home cleans");
    assert_eq!(clean(&shop.home, &[QUEUE], Cleaning::Light).map(|cleaned| cleaned.returned), Ok(1));
}

#[test]
fn many_ids_are_cleaned_in_steps() {
    let mut shop = Shop::open();
    let ids: Vec<String> = (0..350).map(|n| n.to_string()).collect();
    for id in &ids {
        shop.raw::<()>(&format!("SET jobs:item:{id} x"));
        shop.raw::<()>(&format!("LPUSH jobs:processing {id}"));
    }
    // Every tenth id is leased, every seventh is a ghost.
    for id in ids.iter().step_by(10) {
        shop.raw::<()>(&format!("SET jobs:lease:{id} theirs"));
    }
    for id in ids.iter().step_by(7) {
        shop.raw::<()>(&format!("DEL jobs:item:{id}"));
    }
    let is_kept = |n: &usize| n.is_multiple_of(10);
    let expected = (0..350).filter(|n| !is_kept(n) && !n.is_multiple_of(7)).count() as u64;
    let ghosts = (0..350).filter(|n| !is_kept(n) && n.is_multiple_of(7)).count() as u64;
    let mut cleaned = Cleaned::default();
    for _ in 0..3 {
        let Cleaned { returned, removed } = clean(&shop.home, &[QUEUE], Cleaning::Light).unwrap();
        cleaned.returned += returned;
        cleaned.removed += removed;
    }
    assert_eq!(cleaned, Cleaned { returned: expected, removed: ghosts });
    assert_eq!(shop.lists().1.len(), 35);
}

#[test]
fn keys_of_old_clients_are_reported_and_their_queue_stays_unchanged() {
    let mut shop = Shop::open();
    for (make, unmake, key) in [
        ("SET jobs:leased_by_session:i them", "DEL jobs:leased_by_session:i", "jobs:leased_by_session:i"),
        ("LPUSH jobs:cleaning i", "DEL jobs:cleaning", "jobs:cleaning"),
    ] {
        shop.raw::<()>("FLUSHALL");
        for line in ["SET jobs:item:i x", "LPUSH jobs:processing i", make] {
            shop.raw::<redis::Value>(line);
        }
        shop.reopen();
        check_old(&mut shop, key);
        shop.raw::<()>(unmake);
        assert_eq!(shop.lengths(), (0, 1), "the queue can be used when they are gone");
    }
}

/// A waiting pop moves an id before the script can look for old clients.
#[test]
fn a_moved_id_is_moved_back_if_there_are_old_clients() {
    let mut shop = Shop::open();
    for line in ["SET jobs:item:i x", "LPUSH jobs:processing i", "LPUSH jobs:cleaning j"] {
        shop.raw::<redis::Value>(line);
    }
    let script = concat!(
        include_str!("../../src/lua/foreign.lua"),
        include_str!("../../src/lua/work_queue.lua"),
        "return run(KEYS, ARGV)"
    );
    let mut claim = redis::cmd("EVAL");
    claim
        .arg(script)
        .arg(1)
        .arg("jobs:queue")
        .arg(&["pop", "", "1", "session", "1", "1000", "0", "i", "jobs"]);
    let (_, answer): (u64, Vec<String>) = claim.query(&mut shop.raw).unwrap();
    assert_eq!(&answer[..2], ["!", "UNAVAILABLE"]);
    let why = "clients of redis-work-queue 0.1 use this queue (jobs:cleaning is theirs), ";
    assert!(answer.len() == 3 && answer[2].starts_with(why), "{answer:?}");
    assert_eq!(shop.lists(), (vec!["i".into()], vec![]));
}

fn check_old(shop: &mut Shop, key: &str) {
    use sureq_core::command::{Command, Pop};
    let push = Command::Push { queue: QUEUE, payloads: &[b"x"] };
    let pop = Command::Pop(Pop::plain(&[QUEUE], 1));
    let commands = [push, push, pop, Command::Info { queue: QUEUE }, Command::Drop { queues: &[QUEUE] }];
    let replies = shop.home.send(&commands).wait().replies;
    for reply in &replies.list {
        let sureq_core::Reply::Refused(no @ Refusal::Unavailable { .. }) = reply else { panic!("{reply:?}") };
        let words = no.to_string();
        assert!(words.contains("redis-work-queue 0.1") && words.contains(key), "{words}");
    }
    assert_eq!(replies.list.len(), commands.len());
    assert!(matches!(clean(&shop.home, &[QUEUE], Cleaning::Light), Err(Refusal::Unavailable { .. })));
    assert_eq!(shop.lists(), (vec![], vec!["i".into()]));
}

/// A client that died while it added the first item of a queue leaves only that item.
#[test]
fn a_deep_cleaning_finds_queues_that_consist_of_items_alone() {
    let mut shop = Shop::open();
    for line in
        ["SETNX jobs:item:i x", "SETNX a:item:b:item:c y", "SETNX other:item:j z", "LPUSH other:queue j"]
    {
        shop.raw::<redis::Value>(line);
    }
    assert_eq!(clean(&shop.home, &[], Cleaning::Light), Ok(Cleaned::default()));
    let mut report = shop.home.clean(&[], Cleaning::Deep).unwrap().queues;
    report.sort_by(|one, other| one.queue.cmp(&other.queue));
    let outcomes: Vec<_> =
        report.into_iter().map(|queue| (queue.queue, queue.outcome.unwrap().returned)).collect();
    assert_eq!(outcomes, [(b"a:item:b".to_vec(), 1), (b"jobs".to_vec(), 1), (b"other".to_vec(), 0)]);
    assert_eq!(shop.lists(), (vec!["i".into()], vec![]));
    assert_eq!(shop.raw::<Vec<String>>("LRANGE a:item:b:queue 0 -1"), ["c"]);
    assert_eq!(clean(&shop.home, &[], Cleaning::Deep), Ok(Cleaned::default()), "each once");
}

/// A name or an id may contain `:item:` too: a list shows where they are separated.
#[test]
fn an_item_belongs_to_the_queue_that_has_a_list() {
    let mut shop = Shop::open();
    for line in ["SET a:item:b:item:c y", "SET a:item:d x", "LPUSH a:queue d"] {
        shop.raw::<redis::Value>(line);
    }
    let report = shop.home.clean(&[], Cleaning::Deep).unwrap().queues;
    assert_eq!(report.len(), 1);
    assert_eq!(shop.raw::<Vec<String>>("LRANGE a:queue 0 -1"), ["b:item:c", "d"]);
}
