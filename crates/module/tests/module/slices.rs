//! Large commands are executed in slices: other clients are served in between, and any change in between is safe.

use std::fs;
use std::path::PathBuf;

use redis::Value;
use sureq_testkit::patience::until;
use sureq_testkit::process::free_port;
use sureq_testkit::redis_module::Host;
use sureq_testkit::redis_server::RedisServer;

use crate::support::{Client, list, shown, text};

/// The number of tasks of the large commands: five slices.
pub(crate) const TASKS: i64 = 5_000;

/// The pause between slices in milliseconds, so that others can be served in between.
const PACE: &str = "40";

/// A client that sends a large command, and another one that acts in the meantime.
pub(crate) struct Scene {
    server: RedisServer,
    asking: Client,
    id: i64,
    pub(crate) acting: Client,
}

/// As long as the directory of the server contains this file, it executes no slice but the first one of a command.
const HOLD: &str = "hold";

impl Scene {
    pub(crate) fn on(host: Host) -> Self {
        Self::with(host, &[])
    }

    fn with(host: Host, options: &[&str]) -> Self {
        Self::start(host, options, PACE)
    }

    /// With another pause between slices.
    pub(crate) fn paced(host: Host, pace: &str) -> Self {
        Self::start(host, &[], pace)
    }

    fn start(host: Host, options: &[&str], pace: &str) -> Self {
        let environment = [("SUREQ_MODULE_PACE", pace), ("SUREQ_MODULE_HOLD", HOLD)];
        let server = host.start(options, &environment.map(|(name, value)| (name, PathBuf::from(value))));
        let (mut asking, acting) = (Client::of(&server), Client::of(&server));
        let id = asking.number("CLIENT ID");
        Self { server, asking, id, acting }
    }

    /// Sends a command, and returns when its first slice is done. The next one is executed after [`Self::go_on`].
    pub(crate) fn begin(&mut self, command: &str) {
        self.hold();
        self.asking.ask(command);
        self.acting.wait_until("sureq", "sureq_under_way", "1");
    }

    /// Holds back all further slices, so that a command is still under way however late the machine runs this test.
    pub(crate) fn hold(&self) {
        fs::write(self.server.dir().join(HOLD), "").expect("the file can be written");
    }

    /// Lets the server continue, slice by slice.
    pub(crate) fn go_on(&self) {
        // The server may not be held back.
        let _ = fs::remove_file(self.server.dir().join(HOLD));
    }

    pub(crate) fn wait_until_over(&mut self) {
        self.go_on();
        self.acting.wait_until("sureq", "sureq_under_way", "0");
    }

    pub(crate) fn answer(&mut self) -> Value {
        self.go_on();
        self.asking.answer().expect("no error")
    }

    pub(crate) fn answered_number(&mut self) -> i64 {
        match self.answer() {
            Value::Int(n) => n,
            other => panic!("no number: {other:?}"),
        }
    }

    pub(crate) fn kill_asking(&mut self) {
        let kill = format!("CLIENT KILL ID {}", self.id);
        self.acting.say(&kill);
    }
}

/// Pushes tasks whose payloads are their numbers. Returns their ids.
pub(crate) fn push(client: &mut Client, queue: &str) -> Vec<String> {
    let mut ids = Vec::new();
    for batch in 0..TASKS / 1_000 {
        let payloads: Vec<String> = (0..1_000).map(|n| (batch * 1_000 + n).to_string()).collect();
        ids.extend(list(client.say(&format!("RQ.PUSH {queue} {}", payloads.join(" ")))).iter().map(text));
    }
    ids
}

fn bury(client: &mut Client, queue: &str) {
    let ids = push(client, queue);
    // Few enough at a time that no call is executed in slices, since some tests fail or observe the first slice.
    for some in ids.chunks(1_000) {
        client.say(&format!("RQ.BURY {queue} {}", some.join(" ")));
    }
}

/// The payloads in a reply of a pop.
pub(crate) fn payloads(popped: Value) -> Vec<i64> {
    let payload = |task: Value| text(&list(task)[2]).parse().expect("a number");
    list(popped).into_iter().map(payload).collect()
}

pub(crate) fn all() -> Vec<i64> {
    (0..TASKS).collect()
}

#[test]
fn others_are_served_between_two_slices() {
    type Prepare = fn(&mut Client);
    let cases: &[(&str, Prepare, &str)] = &[
        ("RQ.REVIVE q ALL", |client| bury(client, "q"), "5000"),
        ("RQ.PURGE q DEAD", |client| bury(client, "q"), "5000"),
        ("RQ.PURGE q", |client| bury(client, "q"), "5000"),
        ("RQ.POP COUNT 5000 q", |client| _ = push(client, "q"), "list"),
        ("RQ.POP COUNT 5000 LEASE 600000 none q", |client| _ = push(client, "q"), "list"),
        (
            "RQ.CANCEL q PAYLOAD same",
            |client| {
                let same = " same".repeat(5_000);
                client.say(&format!("RQ.PUSH q{same}"));
            },
            "5000",
        ),
        ("RQ.WORKER STOP @w", hold, "5000"),
        ("RQ.WORKER FAIL w", hold, "5000"),
        ("RQ.WORKER REST @w q", hold, "5000"),
        ("RQ.WORKER START w", hold, "text"),
    ];
    for host in Host::ALL {
        for (command, prepare, reply) in cases {
            let mut scene = Scene::on(host);
            prepare(&mut scene.acting);
            let before = scene.acting.counts("q");
            let worker = current(&mut scene.acting);
            let moved = |counts: [i64; 4]| (0..4).map(|n| (counts[n] - before[n]).abs()).max().unwrap_or(0);
            scene.begin(&command.replace("@w", &worker));
            let part = moved(scene.acting.counts("q"));
            assert!(part > 0 && part < TASKS, "{host:?} {command}: {part} of {TASKS}");
            let answer = scene.answer();
            assert_eq!(moved(scene.acting.counts("q")), TASKS, "{host:?} {command}");
            match *reply {
                "list" => assert_eq!(payloads(answer), all(), "{host:?} {command}"),
                "text" => assert!(text(&answer).starts_with("w#"), "{host:?} {command}"),
                count => assert_eq!(shown(&answer), count, "{host:?} {command}"),
            }
        }
    }
}

/// Lets a worker lease all tasks of a queue.
pub(crate) fn hold(client: &mut Client) {
    hold_for(client, 600_000);
}

fn hold_for(client: &mut Client, ttl_ms: u64) {
    push(client, "q");
    let worker = client.text(&format!("RQ.WORKER START w TTL {ttl_ms}"));
    client.say("MULTI");
    client.say(&format!("RQ.POP COUNT {TASKS} WORKER {worker} q"));
    client.say("EXEC");
    assert_eq!(client.counts("q"), [0, 0, TASKS, 0]);
}

/// The only worker, with its incarnation.
pub(crate) fn current(client: &mut Client) -> String {
    let workers = list(client.say("RQ.WORKER LIST"));
    workers.first().map_or_else(String::new, |worker| shown(&list(worker.clone())[0]))
}

#[test]
fn a_large_inspection_is_complete_and_others_are_served_meanwhile() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        let ids = push(&mut scene.acting, "q");
        for (command, from) in [("RQ.INSPECT q 0 5000", 0), ("RQ.INSPECT q -3000 5000", 2_000)] {
            scene.begin(command);
            scene.acting.say("RQ.PUSH other x");
            let shown: Vec<String> =
                list(scene.answer()).into_iter().map(|task| text(&list(task)[0])).collect();
            assert_eq!(shown, ids[from..], "{host:?} {command}");
        }
        scene.begin("RQ.INSPECT q 0 5000");
        scene.acting.say("DEL q");
        let shown = list(scene.answer()).len();
        assert!(shown > 0 && shown < 5_000, "{host:?}: {shown}");
    }
}

#[test]
fn long_lists_of_tasks_are_executed_in_slices() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        let ids = push(&mut scene.acting, "q");
        let list_of = |command: &str| format!("{command} {}", ids.join(" "));
        // No sliced command is in the way when the counts are read: they may show a part of it.
        let counts = |scene: &mut Scene, expected: [i64; 4]| assert_eq!(scene.acting.counts("q"), expected);
        let wrong = format!("{} wrong", list_of("RQ.BURY q"));
        assert!(scene.acting.error(&wrong).contains("malformed"), "{host:?}");
        counts(&mut scene, [TASKS, 0, 0, 0]);
        let cases = [
            ("RQ.BURY q", [0, 0, 0, TASKS]),
            ("RQ.REVIVE q", [TASKS, 0, 0, 0]),
            ("RQ.CANCEL q ID", [0, 0, 0, 0]),
        ];
        for (command, after) in cases {
            scene.begin(&list_of(command));
            scene.acting.say("RQ.PUSH other x");
            assert_eq!(scene.answered_number(), TASKS, "{host:?} {command}");
            counts(&mut scene, after);
        }
        let ids = push(&mut scene.acting, "q");
        scene.begin(&format!("RQ.DELETE q {} {}", ids[1_000..].join(" "), ids[1_000]));
        assert_eq!(scene.answered_number(), TASKS - 1_000, "{host:?}");
        counts(&mut scene, [1_000, 0, 0, 0]);
    }
}

#[test]
fn a_long_ack_lists_the_tasks_that_it_finished_in_order() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        let ids = push(&mut scene.acting, "q");
        scene.acting.say("MULTI");
        scene.acting.say("RQ.POP COUNT 5000 q");
        scene.acting.say("EXEC");
        // Some are finished already, so that the answer has gaps.
        let gone = [&ids[0], &ids[1_500], &ids[4_999]];
        for id in gone {
            scene.acting.say(&format!("RQ.ACK q {id}"));
        }
        scene.begin(&format!("RQ.ACK q {}", ids.join(" ")));
        let acked: Vec<String> = list(scene.answer()).iter().map(text).collect();
        let expected: Vec<String> = ids.iter().filter(|id| !gone.contains(id)).cloned().collect();
        assert_eq!(acked, expected, "{host:?}");
        assert_eq!(scene.acting.counts("q"), [0, 0, 0, 0], "{host:?}");
    }
}

#[test]
fn a_large_recovery_is_whole() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        let ids = push(&mut scene.acting, "q");
        scene.acting.say("MULTI");
        scene.acting.say("RQ.POP COUNT 5000 q");
        scene.acting.say("EXEC");
        scene.begin("RQ.RECOVER q 5000 0");
        let recovered: Vec<String> =
            list(scene.answer()).into_iter().map(|task| text(&list(task)[0])).collect();
        assert_eq!(recovered, ids, "{host:?}");
        assert_eq!(scene.acting.counts("q"), [0, 0, TASKS, 0], "{host:?}");
    }
}

#[test]
fn heartbeats_and_lists_of_workers_with_very_many_queues_are_executed_in_slices() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        let (worker, expected) = hold_in_many_queues(&mut scene.acting);
        scene.begin(&format!("RQ.WORKER BEAT {worker}"));
        assert!(receipts(scene.answer()) == expected, "{host:?}");
        scene.begin("RQ.WORKER LIST");
        assert_eq!(leased_by_worker(scene.answer()), QUEUES.to_string(), "{host:?}");
    }
}

/// The number of queues in which a worker holds a task each: three slices.
const QUEUES: usize = 2_500;

/// Lets a worker hold a task in each of many queues. Returns the worker, and the receipts of those that are then
/// cancelled.
fn hold_in_many_queues(client: &mut Client) -> (String, Vec<String>) {
    let worker = client.text("RQ.WORKER START w TTL 600000");
    let mut cancelled = Vec::new();
    for n in 0..QUEUES {
        let id = text(&list(client.say(&format!("RQ.PUSH q{n} x")))[0]);
        let popped = list(client.say(&format!("RQ.POP WORKER {worker} q{n}"))).swap_remove(0);
        if n % 2 == 0 {
            client.say(&format!("RQ.CANCEL q{n} ID {id}"));
            cancelled.push(text(&list(popped)[3]));
        }
    }
    cancelled.sort();
    (worker, cancelled)
}

/// The receipts in a reply to a heartbeat, sorted.
fn receipts(beat: Value) -> Vec<String> {
    let mut receipts: Vec<String> = list(beat).iter().map(text).collect();
    receipts.sort();
    receipts
}

/// The number of tasks that the only worker in a list holds.
fn leased_by_worker(workers: Value) -> String {
    let row = list(list(workers).swap_remove(0));
    shown(row.last().expect("a row has fields"))
}

#[test]
fn heartbeats_and_lists_of_workers_follow_their_database_when_it_is_swapped() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        let (worker, expected) = hold_in_many_queues(&mut scene.acting);
        for db in [0, 1] {
            scene.asking.say(&format!("SELECT {db}"));
            scene.begin(&format!("RQ.WORKER BEAT {worker}"));
            scene.acting.say("SWAPDB 0 1");
            assert!(receipts(scene.answer()) == expected, "{host:?}, from database {db}");
            scene.acting.say("SWAPDB 0 1");
            scene.begin("RQ.WORKER LIST");
            scene.acting.say("SWAPDB 0 1");
            assert_eq!(leased_by_worker(scene.answer()), QUEUES.to_string(), "{host:?}, from database {db}");
        }
    }
}

/// The table of workers is not copied when a list begins: it may have any number of them.
#[test]
fn a_list_of_very_many_workers_is_made_in_slices() {
    const WORKERS: usize = 2_500;
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        let start = format!("for n=1,{WORKERS} do redis.call('rq.worker','start','w'..n,'ttl',600000) end");
        scene.acting.try_words(&[b"EVAL", start.as_bytes(), b"0"]).expect("a script");
        scene.begin("RQ.WORKER LIST");
        scene.acting.say("RQ.WORKER FAIL w1");
        scene.acting.say(&format!("RQ.WORKER FAIL w{WORKERS}"));
        scene.acting.say("RQ.WORKER START late TTL 600000");
        let names: Vec<String> = list(scene.answer()).into_iter().map(|row| shown(&list(row)[0])).collect();
        let names: Vec<&str> = names.iter().filter_map(|worker| worker.split('#').next()).collect();
        let expected = (1..WORKERS).map(|n| format!("w{n}")).chain(["late".to_owned()]);
        assert!(
            expected.eq(names.iter().map(|name| (*name).to_owned())),
            "{host:?}: {} workers",
            names.len()
        );
    }
}

#[test]
fn without_blocking_all_slices_run_at_once() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        let client = &mut scene.acting;
        bury(client, "q");
        client.say("MULTI");
        client.say("RQ.REVIVE q ALL");
        client.say("RQ.POP COUNT 5000 q");
        let answers = list(client.say("EXEC"));
        assert_eq!(shown(&answers[0]), "5000", "{host:?}");
        assert_eq!(payloads(answers[1].clone()), all(), "{host:?}");
        bury(client, "r");
        assert_eq!(client.number("EVAL return(redis.call('rq.purge','r')) 0"), TASKS, "{host:?}");
        assert_eq!(client.number("EXISTS r"), 0, "{host:?}");
        assert_eq!(client.told("sureq", "sureq_slices"), "0", "{host:?}");
    }
}

#[test]
fn tasks_popped_for_a_lost_client_are_requeued_in_order() {
    for host in Host::ALL {
        for lease in ["", "LEASE 600000 ", "CONN "] {
            let mut scene = Scene::on(host);
            push(&mut scene.acting, "q");
            scene.begin(&format!("RQ.POP COUNT 5000 {lease}q"));
            assert!(scene.acting.counts("q")[2] > 0, "{host:?}: some are popped");
            scene.kill_asking();
            scene.wait_until_over();
            until("all are requeued", || scene.acting.counts("q") == [TASKS, 0, 0, 0]);
            scene.acting.say("MULTI");
            scene.acting.say("RQ.POP COUNT 5000 q");
            let popped = list(scene.acting.say("EXEC")).swap_remove(0);
            assert_eq!(payloads(popped), all(), "{host:?} {lease}");
        }
    }
}

#[test]
fn large_tasks_popped_for_a_lost_client_are_requeued_in_order() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        // Few tasks, but of more than one slice in bytes.
        for n in 10..40 {
            let payload = format!("{n}{}", "x".repeat(1 << 20));
            scene.acting.try_words(&[b"RQ.PUSH", b"q", payload.as_bytes()]).expect("it is pushed");
        }
        scene.begin("RQ.POP COUNT 30 q");
        assert!(scene.acting.counts("q")[2] > 0, "{host:?}: some are popped");
        scene.kill_asking();
        scene.wait_until_over();
        until("all are requeued", || scene.acting.counts("q") == [30, 0, 0, 0]);
        for n in 10..13 {
            let first = list(scene.acting.say("RQ.POP q")).remove(0);
            assert!(text(&list(first)[2]).starts_with(&format!("{n}x")), "{host:?}: {n} is next");
        }
    }
}

#[test]
fn a_disconnect_ends_the_command_but_not_the_end_of_a_worker() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        bury(&mut scene.acting, "q");
        scene.begin("RQ.PURGE q");
        scene.kill_asking();
        scene.wait_until_over();
        let left = scene.acting.counts("q")[3];
        assert!(left > 0 && left < TASKS, "{host:?}: {left}");
        assert_eq!(scene.acting.number("RQ.PURGE q"), left, "{host:?}");
        // The tasks of a stopping worker are requeued even if the client that stopped it disconnects.
        hold(&mut scene.acting);
        let mut scene = Scene { asking: Client::of(&scene.server), ..scene };
        scene.id = scene.asking.number("CLIENT ID");
        let worker = current(&mut scene.acting);
        scene.begin(&format!("RQ.WORKER STOP {worker}"));
        scene.kill_asking();
        scene.go_on();
        until("all are requeued", || scene.acting.counts("q") == [TASKS, 0, 0, 0]);
        until("it is removed", || current(&mut scene.acting).is_empty());
    }
}

#[test]
fn a_queue_that_replaces_another_between_slices_is_not_touched() {
    let changes: &[&[&str]] = &[
        &["DEL q", "RENAME other q"],
        &["UNLINK q", "RENAME other q"],
        &["RENAME other q"],
        &["RENAME q moved", "COPY other q"],
        &["FLUSHALL", "RQ.PUSH q a b c"],
        &["DEL q", "SET q string"],
    ];
    for host in Host::ALL {
        for command in ["RQ.PURGE q", "RQ.REVIVE q ALL", "RQ.CANCEL q PAYLOAD a", "RQ.INSPECT q DEAD 0 5000"]
        {
            for then in changes {
                let mut scene = Scene::on(host);
                bury(&mut scene.acting, "q");
                if command.starts_with("RQ.CANCEL") {
                    scene.acting.say(&format!("RQ.PUSH q{}", " a".repeat(5_000)));
                }
                scene.acting.say("RQ.PUSH other a b c");
                scene.begin(command);
                for line in *then {
                    scene.acting.say(line);
                }
                match scene.answer() {
                    Value::Int(done) => {
                        assert!(done > 0 && done < TASKS, "{host:?} {command} {then:?}: {done}");
                    }
                    shown => assert!(list(shown).len() < 5_000, "{host:?} {command} {then:?}"),
                }
                if then.last() != Some(&"SET q string") {
                    assert_eq!(scene.acting.counts("q"), [3, 0, 0, 0], "{host:?} {command} {then:?}");
                }
                scene.wait_until_over();
            }
        }
    }
}

#[test]
fn a_command_follows_its_database_when_that_is_swapped() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        bury(&mut scene.acting, "q");
        scene.begin("RQ.PURGE q");
        scene.acting.say("SWAPDB 0 1");
        assert_eq!(scene.answered_number(), TASKS, "{host:?}");
        scene.acting.say("SELECT 1");
        assert_eq!(scene.acting.number("EXISTS q"), 0, "{host:?}");
    }
}

#[test]
fn a_stopping_worker_is_removed_from_its_swapped_database() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        hold(&mut scene.acting);
        let worker = current(&mut scene.acting);
        scene.begin(&format!("RQ.WORKER STOP {worker}"));
        scene.acting.say("SWAPDB 0 1");
        assert_eq!(scene.answered_number(), TASKS, "{host:?}");
        scene.acting.say("SELECT 1");
        assert_eq!(current(&mut scene.acting), "", "{host:?}");
    }
}

#[test]
fn a_copy_in_another_database_takes_no_tasks_from_a_live_worker() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        hold(&mut scene.acting);
        let (held, workers) = (scene.acting.counts("q"), scene.acting.say("RQ.WORKER LIST"));
        // In one transaction, because the copy holds its tasks only for a short time.
        for command in ["MULTI", "COPY q q DB 1", "RQ.WORKER LIST"] {
            scene.acting.say(command);
        }
        let answers = list(scene.acting.say("EXEC"));
        assert_eq!(answers, [Value::Int(1), workers], "{host:?}: no task of the copy is counted");
        scene.acting.say("SELECT 1");
        until("the tasks of the copy are requeued", || scene.acting.counts("q")[0] == TASKS);
        scene.acting.say("SELECT 0");
        assert_eq!(scene.acting.counts("q"), held, "{host:?}");
    }
}

#[test]
fn an_ending_worker_pops_nothing_and_its_successor_waits() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        hold(&mut scene.acting);
        let worker = current(&mut scene.acting);
        scene.begin(&format!("RQ.WORKER STOP {worker}"));
        let error = scene.acting.error(&format!("RQ.POP WORKER {worker} q"));
        assert!(error.contains("GONE"), "{host:?}: {error}");
        scene.go_on();
        let successor = scene.acting.text("RQ.WORKER START w");
        assert_ne!(successor, worker);
        assert_eq!(scene.answered_number(), TASKS, "{host:?}");
        scene.acting.say("MULTI");
        scene.acting.say(&format!("RQ.POP COUNT 5000 WORKER {successor} q"));
        let popped = list(scene.acting.say("EXEC")).swap_remove(0);
        assert_eq!(payloads(popped), all(), "{host:?}: in order");
    }
}

#[test]
fn a_server_that_becomes_a_replica_meanwhile_ends_the_command_and_loses_nothing() {
    for host in Host::ALL {
        for command in ["RQ.POP COUNT 5000 LEASE 1000 q", "RQ.WORKER STOP @w"] {
            let mut scene = Scene::on(host);
            if command.contains("STOP") {
                hold(&mut scene.acting);
            } else {
                push(&mut scene.acting, "q");
            }
            let worker = current(&mut scene.acting);
            scene.begin(&command.replace("@w", &worker));
            scene.acting.say("REPLICAOF 127.0.0.1 1");
            let error = scene.asking.answer().expect_err("it is unblocked with an error");
            assert!(error.to_string().contains("UNBLOCKED"), "{host:?}: {error}");
            scene.wait_until_over();
            scene.acting.say("REPLICAOF NO ONE");
            assert_eq!(scene.acting.counts("q").iter().sum::<i64>(), TASKS, "{host:?}");
            if command.contains("STOP") {
                // The stop was abandoned, so the worker is alive and can be ended again.
                scene.acting.say("RQ.WORKER FAIL w");
            }
            until("all are requeued", || scene.acting.counts("q")[0] == TASKS);
        }
    }
}

#[test]
fn a_lost_worker_is_ended_once_a_demoted_server_is_promoted_again() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        hold_for(&mut scene.acting, 3_000);
        until("it is lost, and some are requeued", || scene.acting.counts("q")[0] > 0);
        scene.acting.say("REPLICAOF 127.0.0.1 1");
        scene.acting.say("REPLICAOF NO ONE");
        until("all are requeued", || scene.acting.counts("q")[0] == TASKS);
        until("it is removed", || current(&mut scene.acting).is_empty());
    }
}

#[test]
fn a_worker_in_a_moved_table_expires_in_its_new_database() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        hold_for(&mut scene.acting, 3_000);
        // Its tasks here are requeued slice by slice, while it stays alive in the other database.
        scene.acting.say("MOVE sureq:workers 1");
        let mut there = Client::of(&scene.server);
        there.say("SELECT 1");
        let worker = current(&mut there);
        there.say("RQ.PUSH other x");
        there.say(&format!("RQ.POP WORKER {worker} other"));
        assert_eq!(there.counts("other"), [0, 0, 1, 0], "{host:?}");
        until("its time to live is over there", || there.counts("other")[0] == 1);
        until("it is removed there", || current(&mut there).is_empty());
        until("all are requeued here", || scene.acting.counts("q")[0] == TASKS);
    }
}

#[test]
fn a_replica_follows_slice_by_slice_and_can_be_promoted_after_any() {
    for host in Host::ALL {
        let ports = [free_port().to_string(), free_port().to_string()];
        let mut scene = Scene::with(host, &["--port", &ports[0]]);
        let follow = format!("127.0.0.1 {}", ports[0]);
        let second = host.start(&["--port", &ports[1], "--replicaof", &follow], &[]);
        let mut replica = Client::of(&second);
        replica.wait_until("replication", "master_link_status", "up");
        let same = |scene: &mut Scene, replica: &mut Client| {
            until("the replica has the same", || scene.acting.digest("q") == replica.digest("q"));
        };
        bury(&mut scene.acting, "q");
        scene.begin("RQ.REVIVE q ALL");
        assert_eq!(scene.answered_number(), TASKS);
        same(&mut scene, &mut replica);
        scene.begin("RQ.POP COUNT 5000 LEASE 600000 q");
        assert_eq!(payloads(scene.answer()), all());
        same(&mut scene, &mut replica);
        // A replica executes large reads too.
        assert_eq!(list(replica.say("RQ.INSPECT q PENDING 0 5000")).len(), 5_000);
        bury(&mut scene.acting, "d");
        scene.begin("RQ.PURGE d");
        until("some are gone there", || replica.counts("d")[3] < TASKS);
        replica.say("REPLICAOF NO ONE");
        let left = replica.counts("d")[3];
        assert!(left > 0, "{host:?}: a part was done when it took over");
        assert_eq!(replica.number("RQ.PURGE d"), left, "{host:?}");
    }
}

#[test]
fn a_crash_between_slices_leaves_the_rest_unchanged() {
    let mut scene = Scene::on(Host::Redis);
    bury(&mut scene.acting, "d");
    hold(&mut scene.acting);
    let worker = current(&mut scene.acting);
    let mut stopping = Client::of(&scene.server);
    scene.hold();
    stopping.ask(&format!("RQ.WORKER STOP {worker}"));
    scene.asking.ask("RQ.PURGE d");
    scene.acting.wait_until("sureq", "sureq_under_way", "2");
    scene.server.crash();
    scene.go_on();
    let mut client = Client::of(&scene.server);
    let left = client.counts("d")[3];
    assert!(left > 0 && left < TASKS, "{left}");
    assert_eq!(client.counts("q").iter().sum::<i64>(), TASKS);
    // Whether or not all of its tasks were requeued before the crash, it can be ended.
    client.say("RQ.WORKER FAIL w");
    until("all are requeued", || client.counts("q")[0] == TASKS);
}

#[test]
fn a_server_is_shut_down_while_a_command_is_under_way() {
    let mut scene = Scene::on(Host::Redis);
    bury(&mut scene.acting, "q");
    scene.begin("RQ.PURGE q");
    scene.acting.ask("SHUTDOWN");
    assert!(scene.asking.answer().is_err(), "it is gone");
    until("it has ended", || scene.server.process().has_ended());
}

#[test]
fn purged_tasks_are_released_slice_by_slice() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        let client = &mut scene.acting;
        let large = "x".repeat(1_100);
        for _ in 0..TASKS / 1_000 {
            client.say(&format!("RQ.PUSH q{}", format!(" {large}").repeat(1_000)));
        }
        client.say("RQ.ADD q later DELAY 600000");
        let usage = |client: &mut Client| client.number("MEMORY USAGE q");
        let full = usage(client);
        assert_eq!(client.number("RQ.PURGE q READY"), TASKS, "{host:?}");
        let purged = usage(client);
        assert!(purged > full / 10, "{host:?}: it is not released at once: {purged} of {full}");
        client.say("COPY q copy");
        client.say("RENAME q r");
        until("all is released", || client.number("MEMORY USAGE r") < 20_000);
        assert!(client.number("MEMORY USAGE copy") < 20_000, "{host:?}");
        assert_eq!(client.counts("r"), [0, 1, 0, 0], "{host:?}");
        // A queue that is removed with its tasks does not exist from then on, even if its memory is released later.
        client.say(&format!("RQ.PUSH s{}", " x".repeat(5_000)));
        assert_eq!(client.number("RQ.PURGE s"), TASKS, "{host:?}");
        assert_eq!(client.number("EXISTS s"), 0, "{host:?}");
    }
}

#[test]
fn a_panic_in_a_slice_ends_only_that_command() {
    let environment =
        [("SUREQ_MODULE_PACE", PathBuf::from(PACE)), ("SUREQ_MODULE_PANIC", PathBuf::from("slice"))];
    let server = Host::Redis.start(&[], &environment);
    let (mut asking, mut acting) = (Client::of(&server), Client::of(&server));
    bury(&mut acting, "q");
    let error = asking.error("RQ.PURGE q");
    assert!(error.contains("an internal error"), "{error}");
    assert_eq!(acting.told("sureq", "sureq_under_way"), "0");
    assert!(acting.counts("q")[3] > 0);
}
