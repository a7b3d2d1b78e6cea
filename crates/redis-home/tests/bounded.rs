//! One script handles a bounded number of queues, workers and connections, however many there are.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use redis::{Connection, cmd};
use support::monitor::Monitor;
use support::world::World;
use support::{by, info, open, run};
use sureq_core::command::{Add, Block, Cancel, Command, IdForm, Pop, TaskRefs, When, Worker, WorkerRef};
use sureq_core::settings::{Change, Changes};
use sureq_core::{Replies, Reply};
use sureq_home_api::{Home as _, Payload};
use sureq_redis::RedisHome;
use sureq_testkit::redis_server::RedisServer;

/// The most words that the commands of one script may have: some twenty commands for each of two hundred queues.
const WORDS_MAX: usize = 20_000;

const LONG_MS: u64 = 600_000;

/// Runs `act` and checks that each script of it did a bounded amount of work.
fn in_small_scripts<T>(server: &RedisServer, act: impl FnOnce() -> T) -> T {
    let monitor = Monitor::new(server);
    let outcome = act();
    let most = monitor.most_words_of_a_script(server);
    println!("a script did up to {most} words of work");
    assert!(most <= WORDS_MAX, "a script did {most} words of work");
    outcome
}

/// A Redis whose small sets and hashes may be large: a scan of one is a single page.
fn start_packed() -> RedisServer {
    let options = [
        ["--set-max-intset-entries", "100000"],
        ["--hash-max-listpack-entries", "100000"],
        ["--hash-max-listpack-value", "1000"],
    ];
    RedisServer::start_with(Path::new("redis-server"), options.as_flattened())
}

/// Runs commands in as few batches as possible.
fn run_all(home: &RedisHome, commands: &[Command<'_>]) -> Vec<Replies<Payload>> {
    let (mut done, mut all) = (0, Vec::new());
    while done < commands.len() {
        let replies = home.send(&commands[done..]).wait().replies;
        let refused = replies.list.iter().find(|reply| matches!(reply, Reply::Refused(_)));
        assert!(refused.is_none(), "{refused:?}");
        done += replies.list.len();
        all.push(replies);
    }
    all
}

fn start_all<'a>(home: &RedisHome, names: &'a [String], ttl_ms: u64) -> Vec<WorkerRef<'a>> {
    let starts: Vec<Command<'_>> =
        names.iter().map(|name| Command::Worker(Worker::Start { name: name.as_bytes(), ttl_ms })).collect();
    let started = run_all(home, &starts);
    let started = started.iter().flat_map(|replies| &replies.list);
    started
        .zip(names)
        .map(|(reply, name)| match reply {
            Reply::Started(incarnation) => WorkerRef { name: name.as_bytes(), incarnation: *incarnation },
            other => panic!("{other:?}"),
        })
        .collect()
}

fn names(kind: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{kind}{n}")).collect()
}

/// Lets a worker take one task of each of these queues; returns their receipts.
fn take_of_each(home: &RedisHome, worker: WorkerRef<'_>, queues: &[String]) -> Vec<String> {
    let pushes: Vec<Command<'_>> =
        queues.iter().map(|queue| Command::Push { queue: queue.as_bytes(), payloads: &[b"x"] }).collect();
    run_all(home, &pushes);
    let single: Vec<[&[u8]; 1]> = queues.iter().map(|queue| [queue.as_bytes()]).collect();
    let pops: Vec<Command<'_>> =
        single.iter().map(|queue| Command::Pop(Pop { lease: by(worker), ..Pop::plain(queue, 1) })).collect();
    let taken = run_all(home, &pops);
    taken.iter().flat_map(|replies| &replies.tasks).map(|task| task.receipt().to_string()).collect()
}

/// Adds queues to the set of a worker that holds nothing in them, as is the case for queues that were dropped while
/// they had very many holders.
fn note_queues(raw: &mut Connection, worker: WorkerRef<'_>, queues: &[String]) {
    let name = String::from_utf8_lossy(worker.name);
    let key = format!("sureq:worker:{name}#{}:queues", worker.incarnation);
    cmd("SADD").arg(key).arg(queues).exec(raw).expect("it answers");
}

#[test]
fn the_end_of_a_worker_skips_queues_without_its_tasks_in_small_scripts() {
    let server = start_packed();
    let home = open(&server.url());
    let names_of_workers = names("w", 1);
    let worker = start_all(&home, &names_of_workers, LONG_MS)[0];
    // Numbers are packed into one page.
    note_queues(&mut server.connect(), worker, &names("", 5_000));
    take_of_each(&home, worker, &names("", 10));
    let failed =
        in_small_scripts(&server, || run(&home, &Command::Worker(Worker::Fail { name: worker.name })));
    assert_eq!(failed.list, [Reply::Count(10)]);
    server.check("sureq:");
    home.close();
}

#[test]
fn blocked_endings_are_retried_a_few_at_a_time() {
    const AGAIN_US: u64 = 2_100_000;
    let (server, world) = (start_packed(), Arc::new(World::default()));
    let home = world.home(&server, 1_000_000);
    let workers = names("w", 2_000);
    let payloads = vec![&b"x"[..]; workers.len()];
    run(&home, &Command::Push { queue: b"odd", payloads: &payloads });
    let queues: [&[u8]; 1] = [b"odd"];
    let pops: Vec<Command<'_>> = start_all(&home, &workers, 1_000)
        .into_iter()
        .map(|worker| Command::Pop(Pop { lease: by(worker), ..Pop::plain(&queues, 1) }))
        .collect();
    run_all(&home, &pops);
    let mut raw = server.connect();
    let mut leased =
        || cmd("ZCARD").arg("sureq:q:{odd}:leased").query::<usize>(&mut raw).expect("it answers");
    assert_eq!(leased(), workers.len());
    cmd("SET").arg("sureq:q:{odd}:dead").arg("odd").exec(&mut server.connect()).expect("it answers");
    world.pass(1_100_000);
    let ask_often = |times| (0..times).for_each(|_| _ = info(&home, b"other"));
    // All workers are lost, and then retried.
    in_small_scripts(&server, || ask_often(300));
    world.pass(AGAIN_US);
    in_small_scripts(&server, || ask_often(300));
    cmd("DEL").arg("sureq:q:{odd}:dead").exec(&mut server.connect()).expect("it answers");
    world.pass(AGAIN_US);
    in_small_scripts(&server, || ask_often(300));
    assert_eq!(leased(), 0);
    server.check("sureq:");
    home.close();
}

#[test]
fn workers_of_many_queues_are_listed_in_small_scripts() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let names_of_workers = names("w", 10);
    let workers = start_all(&home, &names_of_workers, LONG_MS);
    for (n, worker) in workers.iter().enumerate() {
        note_queues(&mut server.connect(), *worker, &names("none", 2_000));
        take_of_each(&home, *worker, &names("q", 50 * n));
    }
    let listed = in_small_scripts(&server, || run(&home, &Command::Worker(Worker::List)));
    let found: Vec<(String, u64)> =
        listed.workers.iter().map(|row| (String::from_utf8_lossy(&row.name).into(), row.leased)).collect();
    let wanted: Vec<(String, u64)> =
        names_of_workers.iter().enumerate().map(|(n, name)| (name.clone(), 50 * n as u64)).collect();
    assert_eq!(found, wanted);
    home.close();
}

#[test]
fn the_heartbeat_of_a_worker_of_many_queues_takes_small_scripts() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let names_of_workers = names("w", 1);
    let worker = start_all(&home, &names_of_workers, LONG_MS)[0];
    note_queues(&mut server.connect(), worker, &names("none", 5_000));
    let queues = names("q", 300);
    let receipts = take_of_each(&home, worker, &queues);
    for (queue, receipt) in queues.iter().zip(&receipts) {
        let tasks = TaskRefs { list: &[receipt.as_bytes()], form: IdForm::Long };
        run(&home, &Command::Cancel { queue: queue.as_bytes(), which: Cancel::Ids(tasks) });
    }
    for _ in 0..2 {
        let beat = in_small_scripts(&server, || run(&home, &Command::Worker(Worker::Beat(worker))));
        assert!(matches!(beat.list[0], Reply::Receipts(_)), "{:?}", beat.list);
        assert_eq!(beat.receipts.len(), queues.len(), "each is reported once");
        let reported: BTreeSet<String> = beat.receipts.iter().map(ToString::to_string).collect();
        assert!(reported == receipts.iter().cloned().collect(), "each cancelled task is reported");
    }
    home.close();
}

#[test]
fn after_a_restart_many_workers_keep_their_time_to_live_in_small_scripts() {
    const TTL_MS: u64 = 10_000;
    let (mut server, world) = (RedisServer::start(), Arc::new(World::default()));
    let home = world.home(&server, 1_000_000);
    let names_of_workers = names("w", 4_000);
    let workers = start_all(&home, &names_of_workers, TTL_MS);
    server.restart();
    // Without the restart, all of them would be lost.
    world.pass((TTL_MS + 1_000) * 1_000);
    let listed = |world: &World, pass_us| {
        world.pass(pass_us);
        in_small_scripts(&server, || {
            (0..300).for_each(|_| _ = info(&home, b"other"));
            run(&home, &Command::Worker(Worker::List)).workers.len()
        })
    };
    assert_eq!(listed(&world, 0), workers.len());
    let beat = run(&home, &Command::Worker(Worker::Beat(workers[7])));
    assert!(matches!(beat.list[0], Reply::Receipts(_)), "{:?}", beat.list);
    // Their whole time to live counts from when the start was noticed.
    assert_eq!(listed(&world, (TTL_MS - 100) * 1_000), workers.len());
    let beat = run(&home, &Command::Worker(Worker::Beat(workers[7])));
    assert!(matches!(beat.list[0], Reply::Receipts(_)), "{:?}", beat.list);
    assert_eq!(listed(&world, 200_000), 1);
    home.close();
}

#[test]
fn a_search_for_leases_of_a_worker_counts_those_of_others() {
    let server = RedisServer::start();
    let home = open(&server.url());
    let names_of_workers = names("w", 1);
    let worker = start_all(&home, &names_of_workers, LONG_MS)[0];
    let queues = names("q", 80);
    let payloads = [&b"x"[..]; 250];
    let mut raw = server.connect();
    for queue in &queues {
        run(&home, &Command::Push { queue: queue.as_bytes(), payloads: &payloads });
        run(&home, &Command::Pop(Pop::plain(&[queue.as_bytes()], 250)));
    }
    take_of_each(&home, worker, &queues);
    for queue in &queues {
        let key = format!("sureq:q:{{{queue}}}:held:w:w0#{}", worker.incarnation);
        cmd("SET").arg(key).arg("odd").exec(&mut raw).expect("it answers");
    }
    in_small_scripts(&server, || run(&home, &Command::Worker(Worker::Fail { name: worker.name })));
    in_small_scripts(&server, || {
        support::until("all are requeued", || {
            queues.iter().all(|queue| info(&home, queue.as_bytes()).ready == 1)
        });
    });
    home.close();
}

/// Adds tasks to each of these queues that are due, or whose time to live is over, in a second.
fn add_for_later(home: &RedisHome, queues: &[String]) {
    const MS: u64 = 1_000;
    let adds: Vec<Command<'_>> = queues
        .iter()
        .flat_map(|queue| {
            let delayed = Add { when: When::After(MS), ..Add::plain(queue.as_bytes(), b"x") };
            let short = Add { ttl_ms: Some(MS), ..Add::plain(queue.as_bytes(), b"x") };
            [delayed, short].map(Command::Add).into_iter().cycle().take(80)
        })
        .collect();
    run_all(home, &adds);
}

const LATER_US: u64 = 1_100_000;

/// How many tasks of these queues are delayed, as their keys say: no script is called.
fn delayed(raw: &mut Connection, queues: &[String]) -> usize {
    let count = |queue: &String| -> usize {
        cmd("ZCARD").arg(format!("sureq:q:{{{queue}}}:delayed")).query(raw).expect("it answers")
    };
    queues.iter().map(count).sum()
}

#[test]
fn a_heartbeat_with_many_due_tasks_takes_small_scripts() {
    let (server, world) = (RedisServer::start(), Arc::new(World::default()));
    let home = world.home(&server, 1_000_000);
    let names_of_workers = names("w", 1);
    let worker = start_all(&home, &names_of_workers, LONG_MS)[0];
    let queues = names("q", 60);
    take_of_each(&home, worker, &queues);
    add_for_later(&home, &queues);
    world.pass(LATER_US);
    let beat = in_small_scripts(&server, || run(&home, &Command::Worker(Worker::Beat(worker))));
    assert!(matches!(beat.list[0], Reply::Receipts(_)), "{:?}", beat.list);
    for queue in &queues {
        let left = info(&home, queue.as_bytes());
        assert_eq!((left.ready, left.delayed, left.leased), (40, 0, 1), "{queue}");
    }
    server.check("sureq:");
    home.close();
}

/// Dead-letter queues with one source each.
fn configure_sources(home: &RedisHome, graves: &[String], sources: &[String]) {
    for (grave, source) in graves.iter().zip(sources) {
        let changes = [Change::DeadLetter(grave.as_bytes())];
        run(home, &Command::Config { queue: source.as_bytes(), changes: Changes::List(&changes) });
    }
}

#[test]
fn a_pop_over_dead_letter_queues_with_many_due_sources_takes_small_scripts() {
    let (server, world) = (RedisServer::start(), Arc::new(World::default()));
    let home = world.home(&server, 1_000_000);
    let (graves, sources) = (names("grave", 60), names("source", 60));
    configure_sources(&home, &graves, &sources);
    add_for_later(&home, &sources);
    world.pass(LATER_US);
    let queues: Vec<&[u8]> = graves.iter().map(String::as_bytes).collect();
    let taken = in_small_scripts(&server, || run(&home, &Command::Pop(Pop::plain(&queues, 1))));
    assert!(taken.tasks.is_empty(), "{:?}", taken.list);
    assert_eq!(delayed(&mut server.connect(), &sources), 0, "a pop that finds nothing has looked at all");
    server.check("sureq:");
    home.close();
}

#[test]
fn waiting_for_dead_letter_queues_with_many_due_sources_takes_small_scripts() {
    let (server, world) = (RedisServer::start(), Arc::new(World::default()));
    let home = world.home(&server, 1_000_000);
    let (graves, sources) = (names("grave", 60), names("source", 60));
    configure_sources(&home, &graves, &sources);
    // A pop does not look at the sources of a paused queue, and so leaves them to the look at its deadlines.
    for grave in &graves {
        run(&home, &Command::Pause { queue: grave.as_bytes() });
    }
    let queues: Vec<&[u8]> = graves.iter().map(String::as_bytes).collect();
    let _waiting = home.send(&[Command::Pop(Pop { block: Some(Block::Forever), ..Pop::plain(&queues, 1) })]);
    support::until("it waits", || home.waiters() == 1);
    home.look();
    add_for_later(&home, &sources);
    let mut raw = server.connect();
    world.pass(LATER_US);
    in_small_scripts(&server, || {
        support::until("all sources were looked at", || {
            // Time passes for a queue that is to be looked at again.
            world.pass(2_000);
            home.look();
            delayed(&mut raw, &sources) == 0
        });
    });
    server.check("sureq:");
    home.close();
}
