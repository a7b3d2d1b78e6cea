//! A crash under load, with the log on disk before each answer: nothing that was confirmed is lost, nothing finished is back.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sureq_testkit::redis_module::Host;
use sureq_testkit::redis_server::RedisServer;

use crate::support::{Client, list, text};

#[derive(Default)]
struct Ledger {
    pushed: BTreeSet<String>,
    /// Whether they were finished is known, or not since the answer was lost.
    finished: BTreeSet<String>,
    doubtful: BTreeSet<String>,
}

fn produce(mut client: Client, stop: &AtomicBool, ledger: &Mutex<Ledger>) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(ids) = client.try_say("RQ.PUSH q some payload here") else { return };
        ledger.lock().expect("no panic").pushed.extend(list(ids).iter().map(text));
    }
}

fn consume(mut client: Client, stop: &AtomicBool, ledger: &Mutex<Ledger>) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(tasks) = client.try_say("RQ.POP COUNT 2 BLOCK 50 LEASE 600000 q") else { return };
        let Some(tasks) = tasks.as_sequence() else { continue };
        for task in tasks {
            let task = list(task.clone());
            let (id, receipt) = (text(&task[1]), text(&task[3]));
            assert!(
                !ledger.lock().expect("no panic").finished.contains(&id),
                "{id} was finished, and is back"
            );
            ledger.lock().expect("no panic").doubtful.insert(id.clone());
            let Ok(done) = client.try_say(&format!("RQ.ACK q {receipt}")) else { return };
            assert_eq!(list(done).len(), 1, "{id} is held by nobody else");
            let mut ledger = ledger.lock().expect("no panic");
            ledger.doubtful.remove(&id);
            ledger.finished.insert(id);
        }
    }
}

/// Runs load for a while, and crashes the server under it.
fn crash_under_load(server: &mut RedisServer, ms: u64, ledger: &Mutex<Ledger>) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (producer, consumer) = (Client::of(server), Client::of(server));
            scope.spawn(|| produce(producer, &stop, ledger));
            scope.spawn(|| consume(consumer, &stop, ledger));
        }
        // The time of the crash is what the test is about.
        std::thread::sleep(Duration::from_millis(ms));
        server.process().signal(rustix::process::Signal::KILL);
        stop.store(true, Ordering::Relaxed);
    });
    server.crash();
}

#[test]
fn ten_kills_under_load_lose_nothing_and_bring_nothing_back() {
    let mut server = Host::Redis.start(&[], &[]);
    let ledger = Mutex::new(Ledger::default());
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..10 {
        crash_under_load(&mut server, random.u64(50..400), &ledger);
    }
    let ledger = ledger.into_inner().expect("no panic");
    let mut client = Client::of(&server);
    let mut left = BTreeSet::new();
    for state in ["", "PENDING "] {
        for task in list(client.say(&format!("RQ.INSPECT q {state}0 1000000"))) {
            left.insert(text(&list(task)[0]));
        }
    }
    let lost: Vec<_> =
        ledger.pushed.iter().filter(|id| !left.contains(*id) && !ledger.finished.contains(*id)).collect();
    let lost: Vec<_> = lost.into_iter().filter(|id| !ledger.doubtful.contains(*id)).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), ledger.pushed.len());
    let back: Vec<_> = ledger.finished.intersection(&left).collect();
    assert!(back.is_empty(), "{} of {} are back: {back:?}", back.len(), ledger.finished.len());
    assert!(ledger.pushed.len() > 1_000 && ledger.finished.len() > 100, "there was load");
}
