//! However large a command is, each script takes a few milliseconds at most, and no batch asks for more replies than
//! fit into memory.

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use redis::cmd;
use support::monitor::Monitor;
use support::{ack, info, open, pop, push, run, until};
use sureq_core::command::{
    AckScope, Add, Cancel, Command, ConnId, IdForm, LeaseAsk, Pop, TaskRefs, View, When, Worker, WorkerRef,
};
use sureq_core::settings::{Change, Changes, Overflow};
use sureq_core::{Replies, Reply, WallTime};
use sureq_home_api::{Home as _, Payload};
use sureq_redis::RedisHome;
use sureq_testkit::redis_server::RedisServer;

/// More than any script handles.
const MANY: usize = 3_000;

/// The most words that the commands of one script may have: some twenty commands for each of two hundred tasks.
const WORDS_MAX: usize = 20_000;

fn push_many(home: &RedisHome, count: usize) {
    let payloads: Vec<Vec<u8>> = (0..count).map(|n| n.to_string().into_bytes()).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(|payload| &payload[..]).collect();
    // A push is one script, so its work per task is not a command of its own.
    run(home, &Command::Push { queue: b"q", payloads: &payloads });
}

/// Runs `act` and checks that each script of it did a bounded amount of work.
fn in_small_scripts<T>(server: &RedisServer, what: &str, act: impl FnOnce() -> T) -> T {
    let monitor = Monitor::new(server);
    let outcome = act();
    let most = monitor.most_words_of_a_script(server);
    assert!(most <= WORDS_MAX, "{what}: a script did {most} words of work");
    outcome
}

fn numbers(replies: &Replies<Payload>) -> Vec<usize> {
    replies.tasks.iter().map(|task| String::from_utf8_lossy(&task.body).parse().expect("a number")).collect()
}

fn all() -> Vec<usize> {
    (0..MANY).collect()
}

fn ids(replies: &Replies<Payload>) -> Vec<String> {
    replies.tasks.iter().map(|task| task.id.to_string()).collect()
}

fn with_refs<T>(ids: &[String], act: impl FnOnce(TaskRefs<'_>) -> T) -> T {
    let list: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
    act(TaskRefs { list: &list, form: IdForm::Long })
}

fn counted(home: &RedisHome, command: &Command<'_>) -> u64 {
    match &run(home, command).list[..] {
        [Reply::Count(n)] => *n,
        other => panic!("{other:?}"),
    }
}

/// How often clients and scripts have called a command so far.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats: String = cmd("INFO").arg("commandstats").query(&mut server.connect()).expect("it answers");
    let name = format!("cmdstat_{command}:calls=");
    let count = stats.lines().find_map(|line| line.strip_prefix(&name)?.split(',').next());
    count.map_or(0, |count| count.parse().expect("a number"))
}

/// A push is one script, so its work per task must not be a command of its own.
#[test]
fn a_large_push_takes_few_commands() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push_many(&home, MANY);
    let all: u64 = ["hset", "zadd", "set"].into_iter().map(|command| calls(&server, command)).sum();
    assert!(all <= 20, "{all} commands that write");
    assert_eq!(info(&home, b"q").ready, MANY as u64);
    server.check("sureq:");
    home.close();
}

#[test]
fn a_large_pop_inspect_and_ack_are_sliced() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push_many(&home, MANY);
    let look = Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: u32::MAX };
    let shown = in_small_scripts(&server, "inspect", || run(&home, &look));
    assert!(numbers(&shown) == all(), "{} were shown", shown.tasks.len());
    let from_end = Command::Inspect { queue: b"q", view: View::Ready, start: -1_000, count: u32::MAX };
    assert!(numbers(&run(&home, &from_end)) == all()[MANY - 1_000..], "the last thousand");
    push(&home, b"empty", b"e");
    let take = Command::Pop(Pop::plain(&[b"empty", b"q"], MANY as u32 + 1));
    let taken = in_small_scripts(&server, "pop", || run(&home, &take));
    assert_eq!((taken.tasks.len(), taken.tasks[0].queue, taken.tasks[1].queue), (MANY + 1, 0, 1));
    let tasks = ids(&taken)[1..].to_vec();
    let acked = with_refs(&tasks, |tasks| {
        let finish = Command::Ack { queue: b"q", tasks, scope: AckScope::Leased };
        in_small_scripts(&server, "ack", || run(&home, &finish))
    });
    assert!(acked.indexes == (0..MANY as u32).collect::<Vec<_>>(), "{} were finished", acked.indexes.len());
    server.check("sureq:");
    home.close();
}

#[test]
fn commands_about_many_tasks_are_sliced() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push_many(&home, MANY);
    let tasks =
        ids(&run(&home, &Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: u32::MAX }));
    with_refs(&tasks, |tasks| {
        let act = |what: &str, command: Command<'_>| {
            let done = in_small_scripts(&server, what, || counted(&home, &command));
            assert_eq!(done, MANY as u64, "{what}");
        };
        act("bury", Command::Bury { queue: b"q", tasks });
        act("revive", Command::Revive { queue: b"q", tasks: Some(tasks) });
        act("bury", Command::Bury { queue: b"q", tasks });
        act("revive all", Command::Revive { queue: b"q", tasks: None });
        act("cancel", Command::Cancel { queue: b"q", which: Cancel::Ids(tasks) });
        push_many(&home, MANY);
        act("purge", Command::Purge { queue: b"q", state: None });
    });
    push_many(&home, MANY);
    let tasks =
        ids(&run(&home, &Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: u32::MAX }));
    with_refs(&tasks, |tasks| {
        let delete = Command::Delete { queue: b"q", tasks };
        assert_eq!(in_small_scripts(&server, "delete", || counted(&home, &delete)), MANY as u64);
    });
    server.check("sureq:");
    home.close();
}

/// One call asks for four megabytes. A task that has more by itself neither hides nor ends what follows.
#[test]
fn an_inspect_continues_after_payloads_that_fill_an_answer() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let large = vec![b'x'; 5 << 20];
    let payloads: [&[u8]; 6] = [b"a", &large, b"b", b"c", &large, b"d"];
    for payload in payloads {
        push(&home, b"q", payload);
    }
    for count in [6, 1_000] {
        let look = Command::Inspect { queue: b"q", view: View::Ready, start: 0, count };
        let shown: Vec<usize> = run(&home, &look).tasks.iter().map(|task| task.body.len()).collect();
        assert_eq!(shown, payloads.map(<[u8]>::len));
    }
    let last = Command::Inspect { queue: b"q", view: View::Ready, start: -3, count: 1_000 };
    let shown: Vec<usize> = run(&home, &last).tasks.iter().map(|task| task.body.len()).collect();
    assert_eq!(shown, [1, large.len(), 1]);
    home.close();
}

/// Tasks with one payload among as many with another, some of them leased: each of the former is cancelled once, and
/// none of the latter.
#[test]
fn a_search_by_payload_cancels_each_task_once() {
    for count in [199_u64, 200, 201, 1_500] {
        let server = RedisServer::start();
        let home = open(&server.url());
        let payloads: Vec<&[u8]> =
            (0..2 * count).map(|n| if n % 2 == 0 { b"x" } else { &b"y"[..] }).collect();
        run(&home, &Command::Push { queue: b"q", payloads: &payloads });
        run(&home, &Command::Pop(Pop::plain(&[b"q"], 100)));
        let cancel = Command::Cancel { queue: b"q", which: Cancel::Payload(b"x") };
        assert_eq!(in_small_scripts(&server, "cancel", || counted(&home, &cancel)), count);
        assert_eq!(counted(&home, &cancel), 0);
        let left = info(&home, b"q");
        assert_eq!((left.ready, left.leased), (count - 50, 100));
        server.check("sureq:");
        home.close();
    }
}

#[test]
fn many_lapses_delays_and_expiries_are_sliced_and_hide_no_task() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push_many(&home, MANY);
    // Long enough for all of them to be taken before the first lapses.
    let lease = LeaseAsk { ms: Some(3_000), ..LeaseAsk::NONE };
    run(&home, &Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], MANY as u32) }));
    in_small_scripts(&server, "lapse", || {
        until("all are requeued", || info(&home, b"q").ready == MANY as u64);
    });
    let taken =
        in_small_scripts(&server, "pop", || run(&home, &Command::Pop(Pop::plain(&[b"q"], MANY as u32))));
    // Each slice was leased a little later, and later returns go to the front.
    let mut back = numbers(&taken);
    back.sort_unstable();
    assert!(back == all(), "each was requeued once");
    // A thousand expired tasks precede one that can be delivered.
    run(&home, &Command::Config { queue: b"e", changes: Changes::List(&[Change::TtlMs(1)]) });
    let payloads = vec![&b"old"[..]; 1_000];
    run(&home, &Command::Push { queue: b"e", payloads: &payloads });
    run(&home, &Command::Config { queue: b"e", changes: Changes::List(&[Change::TtlMs(0)]) });
    push(&home, b"e", b"new");
    let found = in_small_scripts(&server, "expire", || {
        let mut found = Vec::new();
        // They expire a millisecond after their push.
        until("the old ones have expired", || {
            found = pop(&home, b"e", 1).expect("a pop");
            found.first().is_some_and(|(body, _)| body == b"new")
        });
        found
    });
    assert_eq!(found.len(), 1);
    server.check("sureq:");
    home.close();
}

/// One call moves two hundred due tasks: a hundred more expired ones are still between those that can be delivered.
#[test]
fn a_pop_skips_expired_tasks_between_others() {
    const TTL: Duration = Duration::from_millis(500);
    let server = RedisServer::start();
    let home = open(&server.url());
    run(&home, &Command::Add(Add { priority: 1, ..Add::plain(b"q", b"0") }));
    let old = Command::Add(Add { ttl_ms: Some(TTL.as_millis() as u64), ..Add::plain(b"q", b"old") });
    assert_eq!(home.send(&vec![old; 300]).wait().replies.list.len(), 300);
    let fresh: Vec<String> = (1..10).map(|n| n.to_string()).collect();
    let fresh: Vec<&[u8]> = fresh.iter().map(String::as_bytes).collect();
    run(&home, &Command::Push { queue: b"q", payloads: &fresh });
    // No command is sent until all of them have expired: any command would remove some.
    std::thread::sleep(TTL + Duration::from_millis(5));
    let take = Command::Pop(Pop::plain(&[b"q"], 10));
    let taken = in_small_scripts(&server, "pop", || run(&home, &take));
    assert_eq!(numbers(&taken), (0..10).collect::<Vec<_>>());
    server.check("sureq:");
    home.close();
}

#[test]
fn the_tasks_of_a_lost_worker_are_requeued_in_slices() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let Reply::Started(incarnation) =
        run(&home, &Command::Worker(Worker::Start { name: b"w", ttl_ms: 60_000 })).list[0]
    else {
        panic!("a worker starts");
    };
    let lease = LeaseAsk { worker: Some(WorkerRef { name: b"w", incarnation }), ..LeaseAsk::NONE };
    let queues: Vec<String> = (0..10).map(|n| format!("q{n}")).collect();
    let payloads = vec![&b"x"[..]; 500];
    for queue in &queues {
        run(&home, &Command::Push { queue: queue.as_bytes(), payloads: &payloads });
        let own: [&[u8]; 1] = [queue.as_bytes()];
        run(&home, &Command::Pop(Pop { lease, ..Pop::plain(&own, 500) }));
    }
    let back = in_small_scripts(&server, "fail", || {
        let back = counted(&home, &Command::Worker(Worker::Fail { name: b"w" }));
        until("all are requeued", || queues.iter().all(|queue| info(&home, queue.as_bytes()).ready == 500));
        back
    });
    assert_eq!(back, 5_000);
    server.check("sureq:");
    home.close();
}

/// Lets a worker or a connection take a few tasks of each of many queues.
fn hold_of_many_queues(home: &RedisHome, names: &[String], lease: LeaseAsk<'_>) {
    let payloads = [&b"x"[..]; TASKS_OF_EACH];
    let pushes: Vec<Command<'_>> =
        names.iter().map(|queue| Command::Push { queue: queue.as_bytes(), payloads: &payloads }).collect();
    let mut done = 0;
    while done < pushes.len() {
        done += home.send(&pushes[done..]).wait().replies.list.len();
    }
    for some in names.chunks(50) {
        let queues: Vec<&[u8]> = some.iter().map(String::as_bytes).collect();
        let all = (some.len() * TASKS_OF_EACH) as u32;
        let taken = run(home, &Command::Pop(Pop { lease, ..Pop::plain(&queues, all) }));
        assert_eq!(taken.tasks.len(), all as usize);
    }
}

const TASKS_OF_EACH: usize = 5;

/// Each way for a worker to end that holds a few tasks of each of many queues.
#[test]
fn a_worker_is_ended_queue_by_queue() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let names: Vec<String> = (0..500).map(|n| format!("q{n}")).collect();
    let are_ready = |queues: &[String]| {
        queues.iter().all(|queue| info(&home, queue.as_bytes()).ready == TASKS_OF_EACH as u64)
    };
    for ends in ["stop", "fail", "start", "time"] {
        // Long enough to take all tasks.
        let ttl_ms = if ends == "time" { 10_000 } else { 600_000 };
        let Reply::Started(incarnation) =
            run(&home, &Command::Worker(Worker::Start { name: b"w", ttl_ms })).list[0]
        else {
            panic!("a worker starts");
        };
        let worker = WorkerRef { name: b"w", incarnation };
        let works: Vec<Command<'_>> =
            names.iter().map(|queue| Command::Worker(Worker::Work(worker, queue.as_bytes()))).collect();
        assert_eq!(home.send(&works).wait().replies.list.len(), works.len());
        hold_of_many_queues(&home, &names, LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE });
        let all = (names.len() * TASKS_OF_EACH) as u64;
        in_small_scripts(&server, ends, || match ends {
            "stop" => assert_eq!(counted(&home, &Command::Worker(Worker::Stop(worker))), all),
            "fail" => assert_eq!(counted(&home, &Command::Worker(Worker::Fail { name: b"w" })), all),
            "start" => {
                run(&home, &Command::Worker(Worker::Start { name: b"w", ttl_ms: 600_000 }));
            }
            _ => until("it is lost", || are_ready(&names[..1])),
        });
        until(&format!("{ends}: all are requeued"), || are_ready(&names));
        let left: Vec<String> = cmd("KEYS")
            .arg(format!("sureq:worker:w#{incarnation}:*"))
            .query(&mut server.connect())
            .expect("it answers");
        assert_eq!(left, [""; 0], "{ends}");
        assert_eq!(info(&home, b"q7").workers, 0, "{ends}");
        server.check("sureq:");
        for queue in &names {
            run(&home, &Command::Purge { queue: queue.as_bytes(), state: None });
        }
    }
    home.close();
}

/// The leases of a stopped worker end at once, also in queues that its end has not reached.
#[test]
fn no_task_of_an_ended_worker_can_be_finished() {
    let server = RedisServer::start();
    let (home, other) = (open(&server.url()), open(&server.url()));
    let names: Vec<String> = (0..500).map(|n| format!("q{n}")).collect();
    let Reply::Started(incarnation) =
        run(&home, &Command::Worker(Worker::Start { name: b"w", ttl_ms: 600_000 })).list[0]
    else {
        panic!("a worker starts");
    };
    let worker = WorkerRef { name: b"w", incarnation };
    hold_of_many_queues(&home, &names, LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE });
    let held: Vec<String> = names
        .iter()
        .map(|queue| {
            let look = Command::Inspect { queue: queue.as_bytes(), view: View::Leased, start: 0, count: 1 };
            let shown = run(&home, &look);
            format!("{}@{}.{}", shown.tasks[0].id, shown.tasks[0].deliveries, shown.tasks[0].incarnation)
        })
        .collect();
    // Only the first step is done: the caller is gone before the second.
    let ended = home.send(&[Command::Worker(Worker::Fail { name: b"w" })]);
    until("the worker has ended", || {
        let refused = run(&other, &Command::Worker(Worker::Beat(worker))).list.remove(0);
        matches!(refused, Reply::Refused(_))
    });
    for (queue, receipt) in names.iter().zip(&held).rev() {
        let tasks = TaskRefs { list: &[receipt.as_bytes()], form: IdForm::Long };
        let finish = Command::Ack { queue: queue.as_bytes(), tasks, scope: AckScope::Leased };
        assert_eq!(run(&other, &finish).indexes, [0; 0], "{queue}");
    }
    ended.wait();
    server.check("sureq:");
    home.close();
    other.close();
}

/// A connection that holds a few tasks of each of many queues.
#[test]
fn a_connection_is_ended_queue_by_queue() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let names: Vec<String> = (0..500).map(|n| format!("q{n}")).collect();
    hold_of_many_queues(&home, &names, LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE });
    in_small_scripts(&server, "close", || {
        home.close_conn(ConnId(1));
        // Earlier jobs are done when this returns.
        home.look();
    });
    for queue in &names {
        assert_eq!(info(&home, queue.as_bytes()).ready, TASKS_OF_EACH as u64);
    }
    server.check("sureq:");
    home.close();
}

#[test]
fn many_queues_and_workers_are_listed_in_slices() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let names: BTreeSet<String> = (0..1_500).map(|n| format!("q{n}")).collect();
    let pushes: Vec<Command<'_>> =
        names.iter().map(|queue| Command::Push { queue: queue.as_bytes(), payloads: &[b"x"] }).collect();
    let mut done = 0;
    while done < pushes.len() {
        done += home.send(&pushes[done..]).wait().replies.list.len();
    }
    let list = Command::Queues { pattern: None, cursor: 0, count: u32::MAX };
    let listed = in_small_scripts(&server, "queues", || run(&home, &list));
    let found: Vec<String> =
        listed.queues.iter().map(|row| String::from_utf8_lossy(&row.name).into()).collect();
    assert_eq!(found.len(), 1_500);
    assert!(found.into_iter().collect::<BTreeSet<_>>() == names, "each queue once");
    // A cursor continues where the last page ended.
    let page = run(&home, &Command::Queues { pattern: None, cursor: 0, count: 700 });
    let Reply::Queues { cursor, .. } = page.list[0] else { panic!("{:?}", page.list) };
    let rest = run(&home, &Command::Queues { pattern: None, cursor, count: u32::MAX });
    assert_eq!((page.queues.len(), rest.queues.len()), (700, 800));
    let queues: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let exist = Command::Exists { queues: &queues };
    assert_eq!(in_small_scripts(&server, "exists", || counted(&home, &exist)), 1_500);
    let forget = Command::Drop { queues: &queues };
    assert_eq!(in_small_scripts(&server, "drop", || counted(&home, &forget)), 1_500);
    let starts: Vec<String> = (0..1_000).map(|n| format!("w{n}")).collect();
    for name in &starts {
        run(&home, &Command::Worker(Worker::Start { name: name.as_bytes(), ttl_ms: 600_000 }));
    }
    let workers = in_small_scripts(&server, "workers", || run(&home, &Command::Worker(Worker::List)));
    let names: Vec<String> =
        workers.workers.iter().map(|row| String::from_utf8_lossy(&row.name).into()).collect();
    assert!(names == starts, "all {} in the order of their start", names.len());
    server.check("sureq:");
    home.close();
}

/// More queues than one script looks at: all of them are looked at, in order.
#[test]
fn a_pop_over_many_queues_is_sliced() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let names: Vec<String> = (0..1_000).map(|n| format!("q{n}")).collect();
    let queues: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    for n in [3, 199, 200, 650, 999] {
        push(&home, queues[n], n.to_string().as_bytes());
        push(&home, queues[n], n.to_string().as_bytes());
    }
    let take = |count| {
        let pop = Command::Pop(Pop::plain(&queues, count));
        let taken = in_small_scripts(&server, "pop", || run(&home, &pop));
        let places: Vec<usize> = taken.tasks.iter().map(|task| task.queue as usize).collect();
        assert_eq!(numbers(&taken), places);
        places
    };
    assert_eq!(take(1), [3]);
    assert_eq!(take(4), [3, 199, 199, 200]);
    assert_eq!(take(1_000), [200, 650, 650, 999, 999]);
    assert_eq!(take(1), [0; 0]);
    let before = calls(&server, "fcall");
    run(&home, &Command::Pop(Pop::plain(&queues, 1)));
    assert_eq!(calls(&server, "fcall") - before, 5);
    server.check("sureq:");
    home.close();
}

#[test]
fn a_queue_of_many_holders_is_dropped_with_few_commands() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push_many(&home, 2_000);
    let by = |n| LeaseAsk { conn: Some(ConnId(n)), ..LeaseAsk::NONE };
    let pops: Vec<Command<'_>> =
        (0..2_000).map(|n| Command::Pop(Pop { lease: by(n), ..Pop::plain(&[b"q"], 1) })).collect();
    let mut done = 0;
    while done < pops.len() {
        done += home.send(&pops[done..]).wait().replies.list.len();
    }
    let forget = Command::Drop { queues: &[b"q"] };
    assert_eq!(in_small_scripts(&server, "drop", || counted(&home, &forget)), 1);
    push(&home, b"q", b"new");
    run(&home, &Command::Pop(Pop { lease: by(7), ..Pop::plain(&[b"q"], 1) }));
    for n in [7, 8] {
        home.close_conn(ConnId(n));
    }
    home.look();
    assert_eq!(info(&home, b"q").ready, 1);
    server.check("sureq:");
    home.close();
}

#[test]
fn a_recover_is_sliced_and_recovers_each_task_once() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push_many(&home, MANY);
    run(&home, &Command::Pop(Pop::plain(&[b"q"], MANY as u32)));
    let recover = Command::Recover { queue: b"q", count: u32::MAX, elapsed_ms: 0 };
    let recovered = in_small_scripts(&server, "recover", || run(&home, &recover));
    assert!(numbers(&recovered) == all(), "{} were recovered", recovered.tasks.len());
    assert!(recovered.tasks.iter().all(|task| task.deliveries == 2));
    server.check("sureq:");
    home.close();
}

#[test]
fn tasks_delayed_by_either_clock_are_shown_in_order_at_any_depth() {
    let server = RedisServer::start();
    let home = open(&server.url());
    // One millisecond of log time is one of the wall clock here, and the order is that of both.
    let now = home.now().wall.0 + 3_600_000;
    for n in 0..60_u64 {
        let payload = n.to_string().into_bytes();
        let minute = n * 60_000;
        let when =
            if n % 3 == 0 { When::At(WallTime(now + minute)) } else { When::After(3_600_000 + minute) };
        run(&home, &Command::Add(Add { when, ..Add::plain(b"q", &payload) }));
    }
    for start in 0..60_u32 {
        let look = Command::Inspect { queue: b"q", view: View::Delayed, start: start.into(), count: 7 };
        let shown = in_small_scripts(&server, "inspect", || run(&home, &look));
        let start = start as usize;
        assert_eq!(numbers(&shown), (start..60.min(start + 7)).collect::<Vec<_>>());
    }
    home.close();
}

#[test]
fn a_lowered_maximum_is_reached_step_by_step() {
    let server = RedisServer::start();
    let home = open(&server.url());
    push_many(&home, MANY);
    let settings = [Change::MaxLength(10), Change::Overflow(Overflow::DropOldest)];
    run(&home, &Command::Config { queue: b"q", changes: Changes::List(&settings) });
    in_small_scripts(&server, "push", || {
        until("the oldest are gone", || {
            push(&home, b"q", b"new");
            info(&home, b"q").ready == 10
        });
    });
    server.check("sureq:");
    home.close();
}

#[test]
fn a_batch_asks_for_no_more_than_fits() {
    let server = RedisServer::start();
    let (home, other) = (open(&server.url()), open(&server.url()));
    let large = vec![0_u8; 8 << 20];
    push(&other, b"q", &large);
    let look = Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: 1 };
    let first = home.send(&[look; 30]).wait().replies;
    assert!(first.list.len() <= 4, "{} at once from an unknown queue", first.list.len());
    for _ in 0..3 {
        assert_eq!(home.send(&[look; 30]).wait().replies.list.len(), 1, "one reply fills a batch");
    }
    // Small tasks are requested together as soon as one was seen.
    push(&other, b"small", b"x");
    let look = Command::Inspect { queue: b"small", view: View::Ready, start: 0, count: 1 };
    run(&home, &look);
    assert_eq!(home.send(&[look; 30]).wait().replies.list.len(), 30);
    home.close();
    other.close();
}

/// A large reply must be expected again after any number of small ones.
#[test]
fn a_batch_stays_bounded_when_sizes_alternate() {
    const BATCH_BYTES_MAX: usize = 32 << 20;
    let server = RedisServer::start();
    let (home, other) = (open(&server.url()), open(&server.url()));
    push(&other, b"q", &vec![0_u8; 8 << 20]);
    push(&other, b"q", b"tiny");
    let look = |start| Command::Inspect { queue: b"q", view: View::Ready, start, count: 1 };
    let (huge, tiny) = (look(0), look(1));
    let most_bytes_of_a_batch = |commands: &[Command<'_>]| {
        let (mut done, mut most) = (0, 0);
        while done < commands.len() {
            let replies = home.send(&commands[done..]).wait().replies;
            done += replies.list.len();
            most = most.max(replies.tasks.iter().map(|task| task.body.len()).sum());
        }
        most
    };
    for commands in [
        [huge, tiny].repeat(15),
        [vec![tiny; 100], vec![huge; 15]].concat(),
        [vec![tiny; 10], vec![huge; 1]].concat().repeat(10),
    ] {
        let most = most_bytes_of_a_batch(&commands);
        assert!(most <= BATCH_BYTES_MAX, "{most} bytes at once");
    }
    // Few of the tasks that were pushed since then, and that this home has not seen, are requested at once.
    push(&other, b"new", b"tiny");
    run(&home, &Command::Inspect { queue: b"new", view: View::Ready, start: 0, count: 1 });
    let unseen = Command::Inspect { queue: b"new", view: View::Ready, start: 0, count: 1 };
    assert!(home.send(&vec![unseen; 200]).wait().replies.list.len() <= 32);
    home.close();
    other.close();
}

#[test]
fn large_payloads_are_popped_a_few_at_a_time() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let large = vec![7_u8; 1 << 20];
    for _ in 0..20 {
        push(&home, b"q", &large);
    }
    run(&home, &Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: 1 });
    let before = calls(&server, "fcall");
    let taken = pop(&home, b"q", 20).expect("a pop");
    assert_eq!(taken.len(), 20);
    let scripts = calls(&server, "fcall") - before;
    assert!(scripts >= 5, "{scripts} scripts for 20 MB");
    ack(&home, b"q", &taken[0].1);
    server.check("sureq:");
    home.close();
}
