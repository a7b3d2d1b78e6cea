//! However large a command or a queue is, each script takes a few milliseconds at most, in the layouts of other
//! programs.

#[path = "support/mod.rs"]
mod common;

use std::collections::BTreeSet;

use sureq_core::Reply;
use sureq_core::command::Command;

use common::monitor::Monitor;
use common::shop::Shop;
use common::{FOREIGN, push, run};

/// The most words that the commands of one script may have.
const WORDS_MAX: usize = 20_000;

fn open(layout: &str) -> Shop {
    match layout {
        "work-queue" => Shop::with("layout=work-queue"),
        "worqr" => Shop::with("layout=worqr"),
        _ => Shop::with("layout=redis-queue"),
    }
}

/// Runs `act` and checks that each script of it did a bounded amount of work.
fn in_small_scripts<T>(shop: &Shop, what: &str, act: impl FnOnce(&Shop) -> T) -> T {
    let monitor = shop.monitor();
    let outcome = act(shop);
    let most = Monitor::most_words_of_a_script(monitor, &shop.server);
    assert!(most <= WORDS_MAX, "{what}: a script did {most} words of work");
    outcome
}

/// KEYS has no cursor to go on from: it asks for all queues at once. Redis can only be asked for some keys of the
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
        let listed = in_small_scripts(&shop, layout, |shop| run(&shop.home, &list));
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
