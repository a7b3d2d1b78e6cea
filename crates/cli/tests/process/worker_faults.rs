//! The worker under faults: sixteen handlers that succeed, fail, panic, hang and block, while the worker and its home
//! are killed. Every task has its expected outcome, none is lost, and none is finished twice.
//!
//! The worker is this test program, started again with one test only. Its output is the ledger: `begin` when a
//! handler begins, `ok` when it has done its work, `done` when the home has confirmed that the task is finished.

use std::cell::Cell;
use std::collections::HashSet;
use std::env;
use std::fmt::Debug;
use std::future::pending;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sureq::{DeliveryNumber, Failure, Home, Id, Queue, View, Worker, WorkerHandle};
use sureq_testkit::load::seeded;
use sureq_testkit::process::{Process, free_port};
use sureq_testkit::redis_module::Host;
use sureq_testkit::redis_server::RedisServer;
use sureq_testkit::server_process::Launch;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Record};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::{SUREQ, scratch, serve};

/// The URL of the home; only set in the worker process.
const HOME: &str = "SUREQ_WORKER_FAULTS_HOME";
const WORKER: &str = "worker_faults::the_worker_itself";
const QUEUE: &str = "q";
const LEASE: Duration = Duration::from_millis(500);
const FAULTS: usize = 10;
/// A time limit that only a hang exceeds, after the last fault.
const PATIENCE: Duration = Duration::from_secs(120);

/// Each kind of task with its number of tasks, its tries, and its outcome.
const KINDS: [(&str, usize, u32, End); 8] = [
    ("done", 900, 25, End::Done),
    ("fails", 60, 25, End::Done),
    ("panics", 40, 25, End::Done),
    ("hangs", 8, 25, End::Done),
    ("blocks", 6, 25, End::Done),
    ("never", 40, 3, End::Dead),
    ("broken", 20, 2, End::Dead),
    ("refused", 40, 25, End::Dead),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    Dead,
}

#[test]
fn faults_on_an_embedded_home() {
    let dir = scratch();
    play(&format!("file:{}", dir.path().display()), None);
}

#[test]
fn faults_on_a_server() {
    let dir = scratch();
    let mut server = serve(dir.path()).start();
    let address = server.resp.to_string();
    let mut restart = || {
        server.kill9();
        server = serve_at(dir.path(), &address).start();
    };
    play(&format!("sureq://{address}"), Some(&mut restart));
}

#[test]
fn faults_on_a_redis() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    play(&url, Some(&mut || redis.crash()));
    redis.check("sureq:");
}

#[test]
fn faults_on_the_module_in_a_redis() {
    let port = free_port();
    let mut redis = Host::Redis.start(&["--port", &port.to_string()], &[]);
    play(&format!("sureq://127.0.0.1:{port}"), Some(&mut || redis.crash()));
}

fn serve_at(dir: &Path, address: &str) -> Launch {
    let home = format!("file:{}", dir.display());
    Launch::new(SUREQ).args(["serve", "--home", &home, "--resp", address, "--text", "127.0.0.1:0"])
}

/// Fills the queue, starts a worker, kills the worker or its home ten times, and checks the outcome.
fn play(url: &str, mut restart_home: Option<&mut dyn FnMut()>) {
    let mut rng = seeded();
    with_queue(url, fill);
    let mut ledger = Vec::new();
    let mut worker = start(url);
    let mut begun_before = 0;
    for fault in 0..FAULTS {
        begun_before += rng.usize(10..50);
        await_begun(&worker, begun_before);
        match &mut restart_home {
            Some(restart) if fault % 2 == 0 => restart(),
            _ => {
                worker.kill9();
                ledger.push(worker.stdout());
                (worker, begun_before) = (start(url), 0);
            }
        }
    }
    assert_eq!(worker.exit_code(PATIENCE), 0, "{worker}");
    ledger.push(worker.stdout());
    let finished = check_ledger(&ledger.concat());
    println!("{finished} tasks were confirmed as finished, and the worker could print it");
    with_queue(url, check_dead);
}

fn with_queue(url: &str, act: impl AsyncFnOnce(Queue)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let home = sureq::open(url).expect("the home opens");
    runtime.block_on(act(home.queue(QUEUE)));
    home.close().expect("the home closes");
}

fn payloads(end: End) -> impl Iterator<Item = String> {
    let kinds = KINDS.into_iter().filter(move |kind| kind.3 == end);
    kinds.flat_map(|(kind, count, ..)| (0..count).map(move |n| format!("{kind} {n}")))
}

/// The kinds alternate, so that each occurs at every time.
async fn fill(queue: Queue) {
    let most = KINDS.iter().map(|kind| kind.1).max().unwrap_or(0);
    for n in 0..most {
        for (kind, _, tries, _) in KINDS.into_iter().filter(|kind| n < kind.1) {
            let task = queue.add(format!("{kind} {n}")).tries(tries).backoff(Duration::from_millis(20));
            task.await.expect("the push succeeds");
        }
    }
}

fn start(url: &str) -> Process {
    let mut command = Command::new(env::current_exe().expect("this runs"));
    Process::start(command.args([WORKER, "--exact", "--nocapture"]).env(HOME, url))
}

/// Waits until the worker has begun this many tasks.
fn await_begun(worker: &Process, count: usize) {
    let begun = Cell::new(0);
    worker.find_in_stdout(|line| {
        begun.set(begun.get() + usize::from(line.starts_with("begin ")));
        (begun.get() >= count).then_some(())
    });
}

/// Checks the output of all workers in order; returns how many tasks were confirmed as finished.
fn check_ledger(ledger: &str) -> usize {
    let (mut finished, mut worked) = (HashSet::new(), HashSet::new());
    for line in ledger.lines() {
        match line.split_once(' ') {
            Some(("begin", task)) => {
                let id = task.split_once(' ').map_or(task, |(id, _)| id);
                assert!(!finished.contains(id), "delivered after it was finished: {task}");
            }
            Some(("ok", payload)) => _ = worked.insert(payload),
            Some(("done", id)) => assert!(finished.insert(id), "finished twice: {id}"),
            _ => {}
        }
    }
    let lost: Vec<String> = payloads(End::Done).filter(|payload| !worked.contains(&**payload)).collect();
    assert!(lost.is_empty(), "never done: {lost:?}");
    assert!(payloads(End::Dead).all(|payload| !worked.contains(&*payload)));
    let expected = payloads(End::Done).count();
    assert!(finished.len() > expected / 2, "{} of {expected}: the ledger is not kept", finished.len());
    finished.len()
}

/// Checks that exactly the expected tasks are dead, and that no others are left.
async fn check_dead(queue: Queue) {
    let info = queue.info().await.expect("the home answers");
    assert_eq!((info.ready, info.delayed, info.leased), (0, 0, 0));
    let dead = queue.inspect(View::Dead, 0, 10_000).await.expect("the queue can be inspected");
    let mut dead: Vec<_> = dead.iter().map(|task| String::from_utf8_lossy(task.payload.as_ref())).collect();
    let mut expected: Vec<_> = payloads(End::Dead).collect();
    dead.sort();
    expected.sort();
    assert_eq!(dead, expected);
}

/// The worker process. Does nothing in a normal test run.
#[test]
fn the_worker_itself() {
    let Ok(url) = env::var(HOME) else { return };
    // The test harness has started a line.
    write("");
    tracing::subscriber::set_global_default(Confirmed).expect("no other subscriber is set");
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(4).enable_all().build().expect("a runtime");
    let home = sureq::open(&url).expect("the home opens");
    // The name is that of the killed worker: its tasks are requeued at once.
    let worker = Worker::new(&home)
        .name("w")
        .concurrency(16)
        .lease(LEASE)
        .ttl(4 * LEASE)
        .run_max(6 * LEASE)
        .grace(LEASE);
    let worker = worker.work(QUEUE, handle);
    runtime.block_on(async {
        tokio::spawn(stop_when_empty(home.clone(), worker.handle()));
        worker.run_until(pending()).await.expect("the worker ends without an error");
    });
}

async fn handle(payload: String, id: Id, DeliveryNumber(delivery): DeliveryNumber) -> Result<(), Failure> {
    write(&format!("begin {id} {payload}"));
    let kind = payload.split(' ').next().unwrap_or_default();
    match (kind, delivery) {
        ("fails", 1 | 2) | ("never", _) => return Err(Failure::new("as expected")),
        ("refused", _) => return Err(Failure::dead("as expected")),
        ("panics", 1 | 2) | ("broken", _) => panic!("as expected"),
        ("hangs", 1) => pending().await,
        ("blocks", _) => std::thread::sleep(3 * LEASE),
        // Long enough to be killed in the middle of it.
        _ => tokio::time::sleep(Duration::from_millis(5)).await,
    }
    write(&format!("ok {payload}"));
    Ok(())
}

/// Polls until the queue is empty, also while the home is away.
async fn stop_when_empty(home: Home, worker: WorkerHandle) {
    let is_over = async || {
        let info = home.queue(QUEUE).info().await;
        info.is_ok_and(|info| info.ready + info.delayed + info.leased == 0)
    };
    while !is_over().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    worker.stop();
}

/// Writes a line with one write, so that a kill leaves no torn lines.
fn write(line: &str) {
    std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).expect("the test reads it");
}

/// Receives the worker's log events about confirmed tasks.
struct Confirmed;

impl Subscriber for Confirmed {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("sureq::worker") && *metadata.level() == Level::DEBUG
    }

    fn event(&self, event: &Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        if words.message == "a task is done" {
            write(&format!("done {}", words.id));
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Words {
    message: String,
    id: String,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "id" => self.id = format!("{value:?}"),
            _ => {}
        }
    }
}
