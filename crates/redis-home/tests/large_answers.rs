//! Pops and heartbeats whose answers are cut short: no task is skipped, and each script does a bounded amount of
//! work.

mod support;

use support::monitor::Monitor;
use support::{by, info, open, push, run, start, until};
use sureq_core::command::{Add, Cancel, Command, LeaseAsk, Pop, View, Worker};
use sureq_core::settings::{Change, Changes};
use sureq_core::{Reply, limits};
use sureq_redis::RedisHome;
use sureq_testkit::redis_server::RedisServer;

const MIB: usize = 1 << 20;

/// Pushes one payload of each size, and pops from the queues; returns the index of the queue and the size of each task.
fn popped_sizes(home: &RedisHome, queues: &[(&[u8], &[usize])], count: u32) -> Vec<(u32, usize)> {
    for (queue, sizes) in queues {
        for size in *sizes {
            push(home, queue, &vec![b'x'; *size]);
        }
    }
    let names: Vec<&[u8]> = queues.iter().map(|(name, _)| *name).collect();
    let popped = run(home, &Command::Pop(Pop::plain(&names, count)));
    popped.tasks.iter().map(|task| (task.queue, task.body.as_ref().len())).collect()
}

#[test]
fn a_pop_delivers_no_task_ahead_of_one_that_does_not_fit_into_a_slice() {
    let server = RedisServer::start();
    let home = open(&server.url());
    // Each answer of a script has 4 MiB at most.
    let sizes = popped_sizes(&home, &[(b"a", &[3 * MIB, 2 * MIB, 1]), (b"b", &[1])], 300);
    assert_eq!(sizes, [(0, 3 * MIB), (0, 2 * MIB), (0, 1), (1, 1)]);
    // The first task fills less than half of an answer.
    let sizes = popped_sizes(&home, &[(b"c", &[MIB, 7 * MIB / 2, 1])], 300);
    assert_eq!(sizes, [(0, MIB), (0, 7 * MIB / 2), (0, 1)]);
    server.check("sureq:");
    home.close();
}

#[test]
fn a_pop_over_queues_ends_where_a_task_is_too_large_for_the_reply() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let large = limits::REPLY_BYTES_MAX - 2 * MIB;
    let sizes = popped_sizes(&home, &[(b"a", &[MIB, large]), (b"b", &[large - MIB]), (b"c", &[1])], 4);
    assert_eq!(sizes, [(0, MIB), (0, large)]);
    // The same in several slices.
    let sizes = popped_sizes(&home, &[(b"a", &[MIB, large]), (b"b", &[]), (b"c", &[])], 300);
    assert_eq!(sizes, [(0, MIB), (0, large)]);
    assert_eq!((info(&home, b"b").ready, info(&home, b"c").ready), (1, 1));
    server.check("sureq:");
    home.close();
}

/// Fills a queue whose tasks move to `grave` when their only lease of a millisecond lapses.
fn die_in(home: &RedisHome, queue: &[u8], grave: &[u8], tasks: usize) {
    let changes = [Change::Tries(1), Change::DeadLetter(grave)];
    run(home, &Command::Config { queue, changes: Changes::List(&changes) });
    run(home, &Command::Push { queue, payloads: &vec![&b"x"[..]; tasks] });
    let names = [queue];
    let lease = LeaseAsk { ms: Some(1), ..LeaseAsk::NONE };
    let popped = run(home, &Command::Pop(Pop { lease, ..Pop::plain(&names, tasks as u32) }));
    assert_eq!(popped.tasks.len(), tasks);
}

#[test]
fn every_command_about_a_dead_letter_queue_sees_tasks_that_died_elsewhere() {
    let server = RedisServer::start();
    let home = open(&server.url());
    for (n, ask) in ["pop", "info", "inspect"].into_iter().enumerate() {
        let (source, grave) = (format!("source{n}"), format!("grave{n}"));
        let grave = grave.as_bytes();
        die_in(&home, source.as_bytes(), grave, 3);
        // No command concerns the source, and no pop waits for the other queue.
        until(&format!("{ask} finds the dead tasks"), || match ask {
            "pop" => !run(&home, &Command::Pop(Pop::plain(&[grave], 1))).tasks.is_empty(),
            "info" => info(&home, grave).ready == 3,
            _ => {
                let look = Command::Inspect { queue: grave, view: View::Ready, start: 0, count: 9 };
                run(&home, &look).tasks.len() == 3
            }
        });
    }
    server.check("sureq:");
    home.close();
}

#[test]
fn a_pop_over_queues_with_many_due_tasks_moves_them_in_small_scripts() {
    const QUEUES: usize = 60;
    const TASKS: usize = 100;
    let server = RedisServer::start();
    let home = open(&server.url());
    let names: Vec<String> = (0..QUEUES).map(|n| format!("q{n}")).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    for name in &names {
        die_in(&home, name, b"grave", TASKS);
    }
    let monitor = Monitor::new(&server);
    run(&home, &Command::Pop(Pop::plain(&names, 1)));
    let words = monitor.most_words_of_a_script(&server);
    // A task that moves takes some twenty commands of a few words; a script moves some 200 tasks.
    assert!(words <= 20_000, "a script did {words} words of work");
    let all = (QUEUES * TASKS) as u64 - 1;
    until("all have moved", || info(&home, b"grave").ready == all || info(&home, b"grave").ready == all + 1);
    server.check("sureq:");
    home.close();
}

#[test]
fn a_heartbeat_reports_very_many_cancelled_tasks_in_small_scripts() {
    const TASKS: usize = 3_000;
    let server = RedisServer::start();
    let home = open(&server.url());
    let worker = start(&home, b"w", 600_000);
    for queue in [&b"a"[..], b"b"] {
        run(&home, &Command::Push { queue, payloads: &vec![&b"x"[..]; TASKS] });
        let names = [queue];
        run(&home, &Command::Pop(Pop { lease: by(worker), ..Pop::plain(&names, TASKS as u32) }));
        run(&home, &Command::Cancel { queue, which: Cancel::Payload(b"x") });
    }
    let monitor = Monitor::new(&server);
    let beat = run(&home, &Command::Worker(Worker::Beat(worker)));
    let words = monitor.most_words_of_a_script(&server);
    assert_eq!(beat.receipts.len(), 2 * TASKS);
    assert!(words <= 5_000, "a script did {words} words of work");
    server.check("sureq:");
    home.close();
}

#[test]
fn tasks_that_a_worker_returned_before_it_was_lost_cost_no_try() {
    const TASKS: usize = 1_000;
    let server = RedisServer::start();
    let home = open(&server.url());
    let worker = start(&home, b"w", 600_000);
    let names = [&b"q"[..]];
    run(&home, &Command::Config { queue: b"q", changes: Changes::List(&[Change::Tries(1)]) });
    run(&home, &Command::Push { queue: b"q", payloads: &vec![&b"returned"[..]; TASKS] });
    run(&home, &Command::Push { queue: b"q", payloads: &[b"kept"] });
    run(&home, &Command::Pop(Pop { lease: by(worker), ..Pop::plain(&names, TASKS as u32) }));
    // The tasks are requeued in slices, and most of them are still leased when the worker, which by then holds
    // another task, is lost.
    let rest = Command::Worker(Worker::Rest(worker, b"q"));
    let add = Add { priority: 9, ..Add::plain(b"q", b"urgent") };
    let pop = Command::Pop(Pop { lease: by(worker), ..Pop::plain(&names, 1) });
    let fail = Command::Worker(Worker::Fail { name: b"w" });
    let mut replies = home.send(&[rest, Command::Add(add), pop, fail]).wait().replies;
    assert_eq!(replies.tasks.len(), 1);
    assert_eq!(replies.tasks.remove(0).body.as_ref(), b"urgent");
    assert!(matches!(replies.list[..], [Reply::Count(1_000), _, _, Reply::Count(1)]), "{:?}", replies.list);
    until("all are requeued", || info(&home, b"q").leased == 0);
    assert_eq!((info(&home, b"q").ready, info(&home, b"q").dead), (TASKS as u64 + 1, 1));
    server.check("sureq:");
    home.close();
}
