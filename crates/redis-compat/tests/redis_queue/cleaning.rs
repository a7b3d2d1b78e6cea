//! Cleaning entries that foreign clients lost or left behind.

use crate::common::clean;
use crate::support::{QUEUE, Shop};
use sureq_home_api::{Cleaned, Cleaning};

const fn did(returned: u64, removed: u64) -> Cleaned {
    Cleaned { returned, removed }
}

#[test]
fn finished_tasks_are_removed_even_if_no_pop_finds_them() {
    let mut shop = Shop::open();
    for id in ["a", "b"] {
        shop.push_id(id);
    }
    for id in ["a", "b"] {
        shop.foreign_take(id, 0);
    }
    shop.foreign_mark_done("a");
    assert_eq!(clean(&shop.home, &[], Cleaning::Light), Ok(did(0, 1)));
    assert_eq!((shop.ids(), shop.raw::<i64>("EXISTS jobs:done")), (vec!["b".into()], 0));
    assert_eq!(
        clean(&shop.home, &[QUEUE], Cleaning::Deep),
        Ok(did(0, 0)),
        "an id without a body is a task too"
    );
}

/// The commands of foreign clients, in their order. A client may die after any of them. A `*` stands for the time.
const FOREIGN: [(&str, &[&str], &[&str]); 4] = [
    ("push_msg", &[], &["SET jobs:data:i x EX 600", "LPUSH jobs i"]),
    ("safe_pop", &["SET jobs:data:i x EX 600", "LPUSH jobs i"], &["BRPOP jobs 1", "LPUSH jobs i|*"]),
    (
        "safe_pop of a task that another client has",
        &["SET jobs:data:i x EX 600", "LPUSH jobs i|*"],
        &["BRPOP jobs 1", "SISMEMBER jobs:done i", "LPUSH jobs i|*"],
    ),
    ("mark_done", &["SET jobs:data:i x EX 600", "LPUSH jobs i|*"], &["SADD jobs:done i", "DEL jobs:data:i"]),
];

#[test]
fn a_foreign_client_may_die_after_any_of_its_steps() {
    let mut shop = Shop::open();
    for (name, before, steps) in FOREIGN {
        for n in 0..=steps.len() {
            shop.raw::<()>("FLUSHALL");
            let now = shop.now().to_string();
            for line in before.iter().chain(&steps[..n]) {
                shop.raw::<redis::Value>(&line.replace('*', &now));
            }
            clean(&shop.home, &[QUEUE], Cleaning::Light).unwrap();
            clean(&shop.home, &[QUEUE], Cleaning::Deep).unwrap();
            let is_there = if name == "mark_done" { n == 0 } else { !before.is_empty() || n > 0 };
            let expected: &[&str] = if is_there { &["i"] } else { &[] };
            assert_eq!(shop.ids(), expected, "{name}, {n} steps");
            let body = shop.raw::<i64>("EXISTS jobs:data:i") == 1;
            assert_eq!((body, shop.raw::<i64>("EXISTS jobs:done")), (is_there, 0), "{name}, {n} steps");
        }
    }
}

#[test]
fn an_entry_that_a_foreign_client_moves_stays() {
    let mut shop = Shop::open();
    let id = shop.push("x");
    shop.raw::<Vec<String>>("BRPOP jobs 1");
    let mut monitor = shop.monitor();
    let home = shop.home.clone();
    let cleaning = std::thread::spawn(move || clean(&home, &[QUEUE], Cleaning::Deep));
    monitor.wait_for("look");
    let now = shop.now();
    shop.raw::<()>(&format!("LPUSH jobs {id}|{now}"));
    assert_eq!(cleaning.join().unwrap(), Ok(did(0, 0)));
    assert_eq!(shop.ids(), [id]);
}

#[test]
fn lists_of_other_programs_are_not_touched() {
    let mut shop = Shop::open();
    shop.raw::<()>("LPUSH theirs a|b c");
    shop.raw::<()>("SADD some:done x");
    assert_eq!(clean(&shop.home, &[], Cleaning::Light), Ok(did(0, 0)));
    assert_eq!(shop.all("LRANGE theirs 0 -1"), ["c", "a|b"]);
    assert_eq!(shop.raw::<i64>("SCARD some:done"), 1);
}
