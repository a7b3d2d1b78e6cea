//! The worker loops of docs/use/clients, as a user copies them, under failures of all parties.
//!
//! `clients/worker_story.py` and its twin in JavaScript give them tasks that report their progress: one that waits at
//! a [`Gate`], one that watches whether it is cancelled, one that fails.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, symlink};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use sureq_testkit::client::{RespClient, Value};
use sureq_testkit::process::{PATIENCE, Process};
use sureq_testkit::server_process::{Launch, Server};
use tempfile::TempDir;

use crate::{SUREQ, root, run, scripts};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Python,
    Node,
}

/// A server that can be restarted at its address, and a directory with the scripts.
struct House {
    language: Language,
    server: Server,
    asks: RefCell<RespClient>,
    dir: TempDir,
}

impl House {
    fn new(language: Language) -> Self {
        Self::with(language, &[])
    }

    /// With more arguments for the first start of the server.
    fn with(language: Language, arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let server = Launch::serve(SUREQ, &dir.path().join("data")).args(arguments).start();
        if language == Language::Node {
            let modules = scripts::installed().join("node_modules");
            symlink(modules, dir.path().join("node_modules")).expect("a link to what npm installed");
            for script in
                ["docs/use/clients/producer.mjs", "docs/use/clients/worker.mjs", "clients/worker_story.mjs"]
            {
                let from = root().join(script);
                let to = dir.path().join(from.file_name().expect("a script has a name"));
                std::fs::copy(from, to).expect("the script can be written");
            }
        }
        let asks = RefCell::new(server.client());
        Self { language, server, asks, dir }
    }

    /// A script, ready to run; its settings are in the environment.
    fn script(&self, name: &str, settings: &[(&str, &str)]) -> Command {
        let mut command = match self.language {
            Language::Python => {
                let mut command = Command::new(scripts::installed().join("venv/bin/python"));
                let dir = if name == "worker_story" { "clients" } else { "docs/use/clients" };
                command.env("PYTHONDONTWRITEBYTECODE", "1").arg(root().join(dir).join(format!("{name}.py")));
                command
            }
            Language::Node => {
                let mut command = Command::new("node");
                command.arg(self.dir.path().join(format!("{name}.mjs")));
                command
            }
        };
        command.env("SUREQ_URL", format!("redis://{}", self.server.resp)).env("QUEUE", "q");
        command.envs(settings.iter().copied());
        command
    }

    fn worker(&self, settings: &[(&str, &str)]) -> Process {
        Process::start(&mut self.script("worker_story", settings))
    }

    /// Restarts the killed server at the same address.
    fn start_again(&mut self) {
        let mut home = OsString::from("file:");
        home.push(self.dir.path().join("data"));
        let address = self.server.resp.to_string();
        let launch =
            Launch::new(SUREQ).args(["serve", "--text", "127.0.0.1:0", "--resp", &address, "--home"]);
        self.server = launch.args([home]).start();
        self.asks = RefCell::new(self.server.client());
    }

    fn say(&self, line: &str) -> Value {
        self.asks.borrow_mut().say(line)
    }

    fn add(&self, payload: &str, options: &[&str]) -> String {
        let reply = self.asks.borrow_mut().command(&[&["RQ.ADD", "q", payload], options].concat());
        reply.list().swap_remove(0).text()
    }

    fn info(&self, field: &str) -> i64 {
        field_of(self.say("RQ.INFO q"), field)
    }

    fn explain(&self, id: &str, field: &str) -> i64 {
        field_of(self.say(&format!("RQ.EXPLAIN q {id}")), field)
    }

    /// Overwrites a byte of the first payload in the log that begins with `head`.
    fn damage(&self, head: &str) {
        let files = std::fs::read_dir(self.dir.path().join("data")).expect("the store is there");
        let paths = files.map(|entry| entry.expect("the entry can be read").path());
        let (path, at) = paths
            .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
            .find_map(|path| {
                let bytes = std::fs::read(&path).expect("the segment can be read");
                let at = bytes.windows(head.len()).position(|part| part == head.as_bytes())?;
                Some((path, at as u64))
            })
            .expect("the payload is in the log");
        let segment = std::fs::File::options().write(true).open(path).expect("the segment can be opened");
        segment.write_all_at(b"?", at).expect("the segment can be written");
    }

    fn workers(&self) -> Vec<Value> {
        self.say("RQ.WORKER LIST").list()
    }

    /// The number of clients that wait for a task.
    fn waiting(&self) -> usize {
        let clients = self.say("INFO clients").text();
        let line = clients.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
        line.expect("INFO has the field").trim().parse().expect("it is a number")
    }
}

fn field_of(map: Value, field: &str) -> i64 {
    let map = map.list();
    let mut pairs = map.chunks(2).filter(|pair| pair[0] == Value::Bulk(field.into()));
    match pairs.next() {
        Some([_, Value::Int(number)]) => *number,
        other => panic!("{field} is {other:?} in {map:?}"),
    }
}

/// Receives notices about tasks.
struct Subscriber(RespClient);

impl Subscriber {
    fn new(house: &House, kind: &str) -> Self {
        let mut client = house.server.client();
        client.say(&format!("SUBSCRIBE sureq:{kind}:q"));
        Self(client)
    }

    /// The id in the next notice.
    fn next(&mut self) -> String {
        self.0.reply().list().pop().expect("a message has a payload").text()
    }
}

/// Blocks a task until the test lets it continue.
struct Gate(TcpListener);

impl Gate {
    fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").expect("loopback has free ports"))
    }

    fn payload(&self) -> String {
        format!("wait {}", self.0.local_addr().expect("it is bound"))
    }

    /// Waits until a delivery begins; its task continues when the returned stream is dropped.
    fn began(&self, worker: &Process, delivery: usize) -> TcpStream {
        says(worker, &format!("began {delivery}"));
        self.0.accept().expect("the task connects before it reports").0
    }
}

fn says(worker: &Process, line: &str) {
    worker.find_in_stdout(|seen| (seen.trim_end() == line).then_some(()));
}

fn logs(worker: &Process, part: &str) {
    worker.find_in_stderr(|line| line.contains(part).then_some(()));
}

fn ends_well(worker: &mut Process) {
    assert_eq!(worker.exit_code(PATIENCE), 0, "{worker}");
}

/// The scripts exactly as in the documents.
fn produced_tasks_are_finished(language: Language) {
    let house = House::new(language);
    let mut done = Subscriber::new(&house, "done");
    let output = run(house.script("producer", &[]).args(["one", "two", "three"]), b"");
    let output = String::from_utf8(output).expect("it prints text");
    let ids: Vec<_> = output.lines().filter_map(|line| line.strip_suffix(" added")).collect();
    assert_eq!((ids.len(), house.info("ready")), (3, 3), "{output}");

    let mut worker = Process::start(&mut house.script("worker", &[("TTL_MS", "600000")]));
    assert_eq!([done.next(), done.next(), done.next()], *ids);
    worker.signal(Signal::TERM);
    ends_well(&mut worker);
    let expected: Vec<_> =
        ids.iter().zip(["one", "two", "three"]).map(|(id, of)| format!("{id} {of}")).collect();
    assert_eq!(worker.stdout().lines().collect::<Vec<_>>(), expected);
    assert_eq!(house.workers(), [], "the worker is deregistered, and did not have to time out");
    assert_eq!((house.info("finished"), house.info("leased")), (3, 0));
}

fn a_failing_task_is_retried_and_dies_with_its_reason(language: Language) {
    let house = House::new(language);
    let mut done = Subscriber::new(&house, "done");
    house.say("RQ.CONFIG q DEAD-LETTER graves");
    let once = house.add("fail 1", &["BACKOFF", "10"]);
    let worker = house.worker(&[]);
    assert_eq!(done.next(), once);
    says(&worker, "failed 1");
    says(&worker, "did 2");

    let always = house.add("fail 9", &["BACKOFF", "10", "TRIES", "2"]);
    let dead = house.say("RQ.POP BLOCK 20000 META graves").list().remove(0).list();
    assert_eq!(dead[1], Value::Bulk(always.into()), "{worker}");
    let Some(Value::Array(meta)) = dead.last() else { panic!("{dead:?}") };
    let reason =
        format!("{}: no route to host", if language == Language::Python { "RuntimeError" } else { "Error" });
    assert!(meta.contains(&Value::Bulk(reason.into())), "{meta:?}");
}

fn a_stop_in_the_middle_of_a_task_finishes_it_and_pops_no_other(language: Language) {
    let (house, gate) = (House::new(language), Gate::new());
    let first = house.add(&gate.payload(), &[]);
    let second = house.add("say", &[]);
    let mut done = Subscriber::new(&house, "done");
    let mut worker = house.worker(&[("TTL_MS", "4000")]);
    let waiting = gate.began(&worker, 1);
    worker.signal(Signal::TERM);
    logs(&worker, "stopping");
    drop(waiting);
    assert_eq!(done.next(), first);
    ends_well(&mut worker);
    assert_eq!(worker.stdout(), "began 1\ndid 1\n");
    assert_eq!(house.workers(), []);
    assert_eq!((house.info("ready"), house.info("leased"), house.explain(&second, "lost")), (1, 0, 0));
}

fn a_stop_that_takes_too_long_returns_the_task_at_no_cost(language: Language) {
    let (house, gate) = (House::new(language), Gate::new());
    let id = house.add(&gate.payload(), &[]);
    let mut worker = house.worker(&[("TTL_MS", "4000"), ("GRACE_MS", "1")]);
    let _waiting = gate.began(&worker, 1);
    worker.signal(Signal::TERM);
    assert_eq!(worker.exit_code(PATIENCE), 1, "{worker}");
    assert_eq!((house.info("ready"), house.info("leased")), (1, 0), "{worker}");
    assert_eq!((house.explain(&id, "deliveries"), house.explain(&id, "lost")), (1, 0));
    assert_eq!(house.workers(), []);
}

fn the_task_of_a_killed_worker_is_delivered_to_another(language: Language) {
    let (house, gate) = (House::new(language), Gate::new());
    let mut done = Subscriber::new(&house, "done");
    let id = house.add(&gate.payload(), &[]);
    // The lease is far too long to be the reason for the redelivery.
    let mut first = house.worker(&[("TTL_MS", "1000"), ("LEASE_MS", "3600000")]);
    let _waiting = gate.began(&first, 1);
    first.kill9();
    let second = house.worker(&[]);
    let waiting = gate.began(&second, 2);
    assert_eq!(house.explain(&id, "lost"), 1);
    drop(waiting);
    assert_eq!(done.next(), id);
    assert_eq!(first.stdout(), "began 1\n");
}

fn a_worker_survives_a_restart_of_its_server(language: Language) {
    let (mut house, gate) = (House::new(language), Gate::new());
    let held = house.add(&gate.payload(), &[]);
    let mut worker = house.worker(&[]);
    let waiting = gate.began(&worker, 1);
    house.server.kill9();
    // The task is done while the server is down.
    drop(waiting);
    says(&worker, "did 1");
    match language {
        Language::Python => logs(&worker, "RQ.ACK: "),
        Language::Node => logs(&worker, "ECONNREFUSED"),
    }
    house.start_again();
    // The ack may arrive before there is a subscriber; the count stays.
    while house.info("finished") == 0 {
        assert!(!worker.has_ended(), "{worker}");
    }
    assert_eq!(house.say(&format!("RQ.EXPLAIN q {held}")), Value::Null);

    // The same while it waits for work.
    while house.waiting() == 0 {
        assert!(!worker.has_ended(), "{worker}");
    }
    house.server.kill9();
    house.start_again();
    let mut done = Subscriber::new(&house, "done");
    let next = house.add("say", &[]);
    assert_eq!(done.next(), next);
    worker.signal(Signal::TERM);
    ends_well(&mut worker);
    assert_eq!(worker.stdout(), "began 1\ndid 1\ndid 1\n");
}

fn a_task_that_takes_longer_than_its_lease_keeps_it(language: Language) {
    let (house, gate) = (House::new(language), Gate::new());
    let mut done = Subscriber::new(&house, "done");
    let id = house.add(&gate.payload(), &[]);
    let worker = house.worker(&[("TTL_MS", "4000"), ("LEASE_MS", "5000")]);
    let waiting = gate.began(&worker, 1);
    assert_eq!(house.say("RQ.POP BLOCK 6000 q"), Value::Null, "no other client gets it: {worker}");
    drop(waiting);
    assert_eq!(done.next(), id);
    says(&worker, "did 1");
}

fn a_task_whose_delivery_is_lost_in_transit_is_redelivered(language: Language) {
    let house = House::new(language);
    let mut done = Subscriber::new(&house, "done");
    let relay = relay_that_loses(house.server.resp, "say something");
    // Its heartbeats continue: only the end of the lease can requeue the task.
    let worker = house.worker(&[("SUREQ_URL", &format!("redis://{relay}")), ("LEASE_MS", "1000")]);
    while house.waiting() == 0 {
        assert!(!worker.has_ended(), "{worker}");
    }
    let id = house.add("say something", &[]);
    assert_eq!(done.next(), id);
    says(&worker, "did 2");
    assert_eq!(worker.stdout_so_far(), "did 2\n", "{worker}");
}

/// Forwards everything, except the first bytes from the server that contain `text`: there it cuts the connection.
fn relay_that_loses(server: SocketAddr, text: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    let lost = Arc::new(AtomicBool::new(false));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("it listens as long as the test runs");
            let server = TcpStream::connect(server).expect("the server listens");
            let twin = |stream: &TcpStream| stream.try_clone().expect("there are descriptors");
            let (to, from, lost) = ((twin(&client), twin(&server)), (server, client), Arc::clone(&lost));
            std::thread::spawn(move || pass(&to.0, &to.1, |_| true));
            std::thread::spawn(move || {
                let has_text = |bytes: &[u8]| bytes.windows(text.len()).any(|part| part == text.as_bytes());
                pass(&from.0, &from.1, |bytes| !has_text(bytes) || lost.swap(true, Ordering::Relaxed));
            });
        }
    });
    address
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, may_pass: impl Fn(&[u8]) -> bool) {
    let mut room = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut room) {
        if !may_pass(&room[..read]) || to.write_all(&room[..read]).is_err() {
            break;
        }
    }
    // It does not matter which end is already closed.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// The server counts workers of a queue by what they say; the copied programs must say it.
fn a_worker_is_counted_at_its_queue(language: Language) {
    let house = House::new(language);
    let mut worker = house.worker(&[]);
    while house.waiting() == 0 {
        assert!(!worker.has_ended(), "{worker}");
    }
    assert_eq!(house.info("workers"), 1, "{worker}");
    worker.signal(Signal::TERM);
    ends_well(&mut worker);
    assert_eq!(house.info("workers"), 0);
}

/// At the memory limit the pops of idle workers are refused, when workers are needed most.
fn a_worker_outlives_a_server_at_its_memory_limit(language: Language) {
    let limits = ["--cache", "1MB", "--memory", "17MB", "--durability", "interval"];
    let house = House::with(language, &limits);
    // A queue without tasks that is there when the worker comes.
    house.say("RQ.CONFIG q TRIES 5");
    let thousand: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    let push: Vec<&str> =
        ["RQ.PUSH", "other"].into_iter().chain(thousand.iter().map(String::as_str)).collect();
    let refused = loop {
        let pushed = house.asks.borrow_mut().command(&push);
        match pushed {
            Value::Error(error) => break error,
            // A leased task takes much more memory than a ready one.
            _ => assert_eq!(house.say("RQ.POP COUNT 1000 other").list().len(), 1000),
        }
    };
    assert!(refused.starts_with("OOM "), "{refused}");
    let mut worker = house.worker(&[]);
    logs(&worker, "RQ.POP: ");
    logs(&worker, "memory limit reached");
    assert!(!worker.has_ended(), "{worker}");
    assert_eq!(house.say("DEL other"), Value::Int(1));
    let mut done = Subscriber::new(&house, "done");
    // The server frees the memory of a deleted queue in the background, in slices.
    let id = loop {
        match house.asks.borrow_mut().command(&["RQ.ADD", "q", "say"]) {
            Value::Error(error) => assert!(error.starts_with("OOM "), "{error}"),
            added => break added.list().swap_remove(0).text(),
        }
    };
    assert_eq!(done.next(), id);
    worker.signal(Signal::TERM);
    ends_well(&mut worker);
}

fn a_worker_outlives_a_damaged_payload(language: Language) {
    let mut house = House::new(language);
    let bad = house.add("say this cannot be read", &[]);
    let good = house.add("say this can", &[]);
    // The damage comes after the start, which reads the log, and before the first read of the payload.
    house.server.kill9();
    house.start_again();
    house.damage("say this cannot be read");
    let mut done = Subscriber::new(&house, "done");
    let mut worker = house.worker(&[]);
    assert_eq!(done.next(), good);
    logs(&worker, "DAMAGED ");
    assert_eq!((house.info("dead"), house.info("finished")), (1, 1));
    assert_ne!(house.say(&format!("RQ.EXPLAIN q {bad}")), Value::Null);
    worker.signal(Signal::TERM);
    ends_well(&mut worker);
}

/// `JOBS` threads of one process, which all stop and leave together.
#[test]
fn a_python_worker_handles_several_tasks_at_once() {
    let (house, gates) = (House::new(Language::Python), [Gate::new(), Gate::new()]);
    let mut done = Subscriber::new(&house, "done");
    let ids = gates.each_ref().map(|gate| house.add(&gate.payload(), &[]));
    let mut worker = house.worker(&[("JOBS", "2"), ("TTL_MS", "4000")]);
    let open = gates.each_ref().map(|gate| gate.0.accept().expect("its task is handled").0);
    assert_eq!((house.info("leased"), house.info("workers")), (2, 2));
    worker.signal(Signal::TERM);
    logs(&worker, "stopping");
    drop(open);
    let mut finished = [done.next(), done.next()];
    finished.sort();
    assert_eq!(finished, ids);
    ends_well(&mut worker);
    assert_eq!(house.workers(), []);
}

/// An error that no retry can fix ends the process, not only the thread that had it.
#[test]
fn a_python_worker_with_threads_ends_when_one_of_them_is_replaced() {
    let house = House::new(Language::Python);
    let mut worker = house.worker(&[("JOBS", "2"), ("WORKER", "w")]);
    while house.waiting() < 2 {
        assert!(!worker.has_ended(), "{worker}");
    }
    assert!(house.say("RQ.WORKER START w-1").text().starts_with("w-1#"));
    house.add("say", &[]);
    assert_eq!(worker.exit_code(PATIENCE), 1, "{worker}");
    assert!(worker.stderr().contains("GONE replaced"), "{worker}");
    assert_eq!(house.workers().len(), 1, "only the new one is registered");
}

fn a_cancelled_task_is_reported_and_not_retried(language: Language) {
    let house = House::new(language);
    let id = house.add("watch enough", &[]);
    let worker = house.worker(&[("TTL_MS", "4000")]);
    says(&worker, "began 1");
    let mut off = Subscriber::new(&house, "cancel");
    assert_eq!(house.say(&format!("RQ.CANCEL q ID {id}")), Value::Int(1));
    says(&worker, "over 1");
    assert_eq!([off.next(), off.next()], [id.clone(), id.clone()], "once cancelled, once gone");
    assert_eq!(house.say(&format!("RQ.EXPLAIN q {id}")), Value::Null);
}

fn a_worker_that_was_declared_lost_restarts_and_finishes_nothing_twice(language: Language) {
    let house = House::new(language);
    let mut done = Subscriber::new(&house, "done");
    let id = house.add("watch", &[]);
    let worker = house.worker(&[("TTL_MS", "4000"), ("WORKER", "w")]);
    says(&worker, "began 1");
    assert_eq!(house.say("RQ.WORKER FAIL w"), Value::Int(1));
    says(&worker, "over 1");
    says(&worker, "did 1");
    logs(&worker, "this delivery is no longer the current one");
    says(&worker, "did 2");
    assert_eq!(done.next(), id);
    assert_eq!((house.info("finished"), house.workers().len()), (1, 1));
}

macro_rules! in_both_languages {
    ($($story:ident)*) => {
        mod python {
            $(#[test] fn $story() { super::$story(super::Language::Python); })*
        }
        mod node {
            $(#[test] fn $story() { super::$story(super::Language::Node); })*
        }
    };
}

in_both_languages! {
    produced_tasks_are_finished
    a_failing_task_is_retried_and_dies_with_its_reason
    a_stop_in_the_middle_of_a_task_finishes_it_and_pops_no_other
    a_stop_that_takes_too_long_returns_the_task_at_no_cost
    the_task_of_a_killed_worker_is_delivered_to_another
    a_worker_survives_a_restart_of_its_server
    a_task_that_takes_longer_than_its_lease_keeps_it
    a_task_whose_delivery_is_lost_in_transit_is_redelivered
    a_worker_is_counted_at_its_queue
    a_worker_outlives_a_server_at_its_memory_limit
    a_worker_outlives_a_damaged_payload
    a_cancelled_task_is_reported_and_not_retried
    a_worker_that_was_declared_lost_restarts_and_finishes_nothing_twice
}
