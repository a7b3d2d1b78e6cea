//! Worqr's own cleanup together with that of sureq: it must find the tasks of its dead workers that sureq leaves to
//! it.

use sureq_core::command::{Command, Worker};
use sureq_home_api::{Cleaned, Cleaning};

use crate::common::clean;
use crate::support::{QUEUE, Shop, TTL_MS, beat, pop, pop_one, start, worker};

/// The transactions of the worker `a` with the task `t`, one per line; it may die after any of them.
const LIVES: [(&str, &[&str]); 4] = [
    (
        "finishes",
        &[
            "SADD worqr:workers a;SADD worqr:expiringWorkers a;SET worqr:workerTimers:a RUN EX 600",
            "SADD worqr:workingQueues:a jobs",
            "RPOPLPUSH worqr:queues:jobs worqr:processes:jobs_t;SADD worqr:workingProcesses:jobs jobs_t",
            "DEL worqr:uniqueTasks:e358efa489f58062f10dd7316b65649e;DEL worqr:processes:jobs_t;SREM worqr:workingProcesses:jobs jobs_t",
            "PUBLISH worqr_jobs_done {}",
        ],
    ),
    (
        "stops its process",
        &[
            "SADD worqr:workers a;SADD worqr:expiringWorkers a;SET worqr:workerTimers:a RUN EX 600",
            "SADD worqr:workingQueues:a jobs",
            "RPOPLPUSH worqr:queues:jobs worqr:processes:jobs_t;SADD worqr:workingProcesses:jobs jobs_t",
            "RPOPLPUSH worqr:processes:jobs_t worqr:queues:jobs;SREM worqr:workingProcesses:jobs jobs_t",
        ],
    ),
    (
        "is permanent until it is started anew",
        &[
            "SADD worqr:workers a;SADD worqr:permanentWorkers a",
            "SADD worqr:workingQueues:a jobs",
            "RPOPLPUSH worqr:queues:jobs worqr:processes:jobs_t;SADD worqr:workingProcesses:jobs jobs_t",
            "SREM worqr:permanentWorkers a;SADD worqr:expiringWorkers a",
        ],
    ),
    (
        "takes from an empty queue",
        &[
            "SADD worqr:workers a;SADD worqr:expiringWorkers a;SET worqr:workerTimers:a RUN EX 600",
            "SADD worqr:workingQueues:a jobs",
            "RPOPLPUSH worqr:queues:jobs worqr:processes:jobs_t;SADD worqr:workingProcesses:jobs jobs_t",
            "RPOPLPUSH worqr:queues:jobs worqr:processes:jobs_e;SADD worqr:workingProcesses:jobs jobs_e",
            "DEL worqr:processes:jobs_e;SREM worqr:workingProcesses:jobs jobs_e",
        ],
    ),
];

/// Every payload of the queue, waiting or running.
fn payloads(shop: &mut Shop) -> Vec<String> {
    let mut all = shop.queue();
    for process in shop.raw::<Vec<String>>("KEYS worqr:processes:*") {
        all.extend(shop.all(&format!("LRANGE {process} 0 -1")));
    }
    all.sort();
    all
}

/// Starts another foreign worker, and a worker of sureq, on the same queue; both hold a task.
fn crowd(shop: &mut Shop) {
    shop.raw::<()>("FLUSHALL");
    shop.foreign_start("b");
    start(&shop.home, "ours", TTL_MS);
    for (payload, taker) in [("b", "b"), ("o", "ours")] {
        shop.push(payload);
        match taker {
            "b" => shop.foreign_dequeue("jobs_b"),
            _ => _ = pop_one(&shop.home, taker),
        }
    }
    shop.push("t");
}

fn clean_both_ways(shop: &Shop) {
    clean(&shop.home, &[], Cleaning::Light).expect("cleaning succeeds");
    clean(&shop.home, &[QUEUE], Cleaning::Deep).expect("cleaning succeeds");
}

#[test]
fn worqrs_cleanup_requeues_tasks_of_a_dead_foreign_worker_whenever_it_died() {
    let mut shop = Shop::open();
    for (name, steps) in LIVES {
        for n in 0..=steps.len() {
            let place = format!("{name}, {n} steps");
            crowd(&mut shop);
            for step in &steps[..n] {
                shop.multi(&step.split(';').collect::<Vec<_>>());
            }
            shop.foreign_dies("a");
            let before = payloads(&mut shop);
            // Nothing is lost if sureq cleans before Worqr, or between any two of Worqr's steps.
            clean_both_ways(&shop);
            assert_eq!(payloads(&mut shop), before, "{place}");
            shop.foreign_cleanup(|shop| clean_both_ways(shop));
            assert_eq!(payloads(&mut shop), before, "{place}");
            let is_registered = shop.all("SMEMBERS worqr:expiringWorkers").contains(&"a".to_owned());
            assert!(!is_registered, "{place}");
            if !shop.all("SMEMBERS worqr:workers").contains(&"a".to_owned()) {
                assert_eq!(
                    shop.raw::<i64>("EXISTS worqr:processes:jobs_t"),
                    0,
                    "{place}: the task is not stranded"
                );
            }
        }
    }
}

#[test]
fn a_dead_foreign_worker_stays_registered_for_queues_with_another_one() {
    let mut shop = Shop::open();
    crowd(&mut shop);
    shop.foreign_start("a");
    shop.raw::<()>("SADD worqr:workingQueues:a mails");
    shop.foreign_dequeue("jobs_t");
    shop.raw::<()>("LPUSH worqr:queues:mails m");
    shop.multi(&[
        "RPOPLPUSH worqr:queues:mails worqr:processes:mails_m",
        "SADD worqr:workingProcesses:mails mails_m",
    ]);
    shop.foreign_dies("a");
    assert_eq!(clean(&shop.home, &[], Cleaning::Light), Ok(Cleaned { returned: 1, removed: 0 }));
    assert_eq!(shop.all("LRANGE worqr:queues:mails 0 -1"), ["m"], "no other foreign worker works there");
    assert_eq!(shop.all("SMEMBERS worqr:workers"), ["a", "b", "ours"]);
    assert_eq!(shop.all("SMEMBERS worqr:expiringWorkers"), ["a", "b", "ours"]);
    assert_eq!(
        shop.all("SMEMBERS worqr:workingQueues:a"),
        ["jobs"],
        "Worqr's cleanup requeues only the tasks of the dead worker"
    );
    shop.foreign_cleanup(|_| ());
    assert!(shop.queue().contains(&"t".to_owned()));
    assert_eq!(shop.all("SMEMBERS worqr:workers"), ["b", "ours"]);
}

/// The last foreign worker is dead too, and only homes of sureq clean.
#[test]
fn tasks_left_to_worqrs_cleanup_are_requeued_when_the_last_foreign_worker_is_dead() {
    let mut shop = Shop::open();
    crowd(&mut shop);
    shop.foreign_start("a");
    shop.foreign_dequeue("jobs_t");
    shop.foreign_dies("a");
    assert_eq!(clean(&shop.home, &[], Cleaning::Light), Ok(Cleaned::default()));
    shop.foreign_dies("b");
    assert_eq!(clean(&shop.home, &[], Cleaning::Light), Ok(Cleaned { returned: 2, removed: 0 }));
    assert_eq!(shop.all("SMEMBERS worqr:workers"), ["ours"]);
    assert_eq!(beat(&shop.home, "ours"), Ok(vec![]), "the worker of sureq keeps its task");
}

#[test]
fn failing_a_foreign_worker_leaves_its_tasks_to_worqrs_cleanup_if_another_is_alive() {
    let mut shop = Shop::open();
    let fail = Command::Worker(Worker::Fail { name: b"a" });
    for is_permanent in [false, true] {
        crowd(&mut shop);
        shop.foreign_start("a");
        if is_permanent {
            shop.multi(&[
                "SREM worqr:expiringWorkers a",
                "SADD worqr:permanentWorkers a",
                "DEL worqr:workerTimers:a",
            ]);
        }
        shop.foreign_dequeue("jobs_t");
        assert_eq!(shop.count(fail), 0, "the task may belong to the other worker");
        shop.foreign_cleanup(|_| ());
        assert!(shop.queue().contains(&"t".to_owned()), "permanent: {is_permanent}");
        assert_eq!(shop.all("SMEMBERS worqr:workers"), ["b", "ours"]);
    }
    shop.raw::<()>("FLUSHALL");
    shop.push("t");
    shop.foreign_start("a");
    shop.foreign_dequeue("jobs_t");
    assert_eq!(shop.count(fail), 1, "no other foreign worker is alive");
    assert_eq!(shop.raw::<i64>("EXISTS worqr:workers worqr:expiringWorkers worqr:workingQueues:a"), 0);
    assert_eq!(shop.count(Command::Worker(Worker::Fail { name: b"nobody" })), 0);
}

#[test]
fn a_worker_under_the_name_of_a_dead_foreign_one_strands_no_task() {
    let mut shop = Shop::open();
    for lives_another in [true, false] {
        shop.raw::<()>("FLUSHALL");
        if lives_another {
            shop.foreign_start("b");
        }
        shop.foreign_start("same");
        shop.push("t");
        shop.foreign_dequeue("jobs_t");
        shop.foreign_dies("same");
        start(&shop.home, "same", TTL_MS);
        if lives_another {
            assert_eq!(shop.working(), ["jobs_t"], "the task may belong to the other worker");
            shop.foreign_cleanup(|_| ());
        }
        assert_eq!(pop(&shop.home, "same", 1)[0].1, "t");
        assert_eq!(beat(&shop.home, "same"), Ok(vec![]), "the worker of sureq stays registered");
        let workers = if lives_another { &["b", "same"][..] } else { &["same"] };
        assert_eq!(shop.all("SMEMBERS worqr:workers"), workers);
    }
}

/// Worqr's cleanup reads the processes; then a worker of sureq takes a task and dies; then the cleanup unregisters
/// it.
#[test]
fn tasks_of_a_worker_are_requeued_after_worqrs_cleanup_unregistered_it() {
    let mut shop = Shop::open();
    start(&shop.home, "ours", TTL_MS);
    assert_eq!(shop.execute(Command::Worker(Worker::Work(worker("ours"), QUEUE))).list.len(), 1);
    shop.push("t");
    let mut is_taken = false;
    shop.foreign_fail("ours", |shop| {
        // After the second read.
        if std::mem::replace(&mut is_taken, true) {
            pop_one(&shop.home, "ours");
        }
    });
    assert_eq!(shop.raw::<i64>("EXISTS worqr:workers worqr:workingProcesses:jobs"), 0);
    assert_eq!(clean(&shop.home, &[], Cleaning::Light), Ok(Cleaned { returned: 1, removed: 0 }));
    assert_eq!(shop.queue(), ["t"]);
    assert_eq!(shop.raw::<Vec<String>>("KEYS worqr:sureq:*"), Vec::<String>::new());
}
