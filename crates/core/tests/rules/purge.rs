//! Very many tasks gone at once, and nobody who waits for it.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use sureq_core::WallTime;
use sureq_core::command::{Add, Command, ConnId, IdForm, LeaseAsk, NameArg, TaskRefs, View, When};
use sureq_core::queue::Seek;

use super::backlog::backlog;
use super::support::{Answer, Home, listing};
use super::{PLAIN, add, x};

/// A queue with so many of each: packed and with records, ready, delayed, leased and dead.
fn mixed(packed: usize, records: usize, leased: usize) -> Home {
    let mut home = backlog(packed);
    for n in 0..records {
        let name = format!("n{n}");
        let named = Add { name: Some(NameArg::Bytes(name.as_bytes())), ttl_ms: Some(1_000), ..x() };
        match n % 3 {
            0 => _ = add(&mut home, named),
            1 => _ = add(&mut home, Add { when: When::After(50), ..named }),
            _ => {
                let id = add(&mut home, named).to_string();
                let tasks = TaskRefs { list: &[id.as_bytes()], form: IdForm::Long };
                home.run(&Command::Bury { queue: b"q", tasks });
            }
        }
        let soon = WallTime(home.now.wall.0 + 60);
        add(&mut home, Add { when: When::At(soon), ..x() });
    }
    home.pop(leased as u32, PLAIN);
    home
}

#[test]
fn a_large_purge_is_one_event_and_lets_go_of_bodies_in_slices() {
    for (packed, records, leased) in [(5_000, 0, 0), (3_000, 900, 10), (3_000, 90, 1_500), (0, 3_000, 40)] {
        for state in [None, Some(View::Ready), Some(View::Delayed), Some(View::Dead)] {
            let mut home = mixed(packed, records, leased);
            home.verify();
            let [ready, delayed, held, dead] = home.broker.queue(b"q").unwrap().counts();
            let (expected, left) = match state {
                None => (ready + delayed + dead, [0, 0, held, 0]),
                Some(View::Ready) => (ready, [0, delayed, held, dead]),
                Some(View::Delayed) => (delayed, [ready, 0, held, dead]),
                _ => (dead, [ready, delayed, held, 0]),
            };
            let (live, logged) = (home.log.live.len() as u64, home.log.bytes.len());
            assert_eq!(home.run(&Command::Purge { queue: b"q", state }), Answer::Count(expected));
            let events = listing(&home.log.bytes[logged..]);
            if expected > 1_000 {
                assert_eq!(events.len(), 1, "{events:?}");
                assert!(home.log.bytes.len() - logged < 10, "however many there are");
            }
            assert_eq!(home.broker.queue(b"q").unwrap().counts(), left);
            home.verify();
            // What is there goes on as before, and what is gone is no longer known.
            home.push(&["new"]);
            home.run(&Command::Add(Add { name: Some(NameArg::Bytes(b"n0")), ..x() }));
            home.verify();
            home.restart(if expected % 2 == 0 { 8 } else { 9 });
            home.tick();
            home.verify();
            assert!(!home.broker.is_unfinished());
            assert!(home.log.live.len() as u64 <= live - expected + 2, "its bodies are gone");
            home.pass(2_000);
            home.tick();
            home.verify();
        }
    }
}

#[test]
fn a_purge_of_very_much_moves_a_slice_per_step() {
    let mut home = mixed(5_000, 2_000, 20);
    home.run(&Command::Purge { queue: b"q", state: None });
    let mut before = home.log.live.len();
    assert!(before > 5_000, "only a slice has gone: {before} are left");
    while home.broker.next_deadline().is_due(home.now) {
        home.broker.tick(home.now, &mut home.log);
        assert!(before - home.log.live.len() <= 1_000);
        before = home.log.live.len();
        home.verify();
    }
    assert_eq!(before, 20, "what is leased is never purged");
}

#[test]
fn what_comes_back_from_a_holder_is_purged_with_the_rest() {
    let mut home = backlog(3_500);
    home.pop(3_000, LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE });
    home.close_conn(ConnId(1));
    assert_eq!(home.run(&Command::Purge { queue: b"q", state: None }), Answer::Count(3_500));
    home.verify();
    home.restart(9);
    home.tick();
    home.verify();
    assert_eq!(home.info().ready, 0);
    assert!(home.log.live.is_empty() && home.broker.queue(b"q").unwrap().is_empty());
}

#[test]
fn a_search_that_is_under_way_misses_nothing_when_a_purge_makes_the_table_anew() {
    let mut home = mixed(0, 3_000, 900);
    let mut seek = Seek::default();
    home.broker.seek(b"q", &mut seek, 3_000, &mut |_, _| ControlFlow::Continue(()));
    home.run(&Command::Purge { queue: b"q", state: None });
    let mut seen = BTreeSet::new();
    while !seek.is_done() {
        home.broker.seek(b"q", &mut seek, 500, &mut |id, _| {
            seen.insert(id);
            ControlFlow::Continue(())
        });
    }
    assert_eq!(seen.len(), 900);
}
