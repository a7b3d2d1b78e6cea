//! Clients that wait: the events that wake them, those that do not, and the fate of a task whose client has gone.

use redis::Value;
use sureq_testkit::redis_module::Host;
use sureq_testkit::redis_server::RedisServer;

use crate::support::{Client, list, shown};

/// A client that waits for `q`, and another one that acts in the meantime.
struct Scene {
    server: RedisServer,
    waiting: Client,
    id: i64,
    acting: Client,
}

impl Scene {
    fn on(host: Host, pop: &str) -> Self {
        Self::after(host, &[], pop)
    }

    fn after(host: Host, before: &[&str], pop: &str) -> Self {
        let server = host.start(&[], &[]);
        let (mut waiting, mut acting) = (Client::of(&server), Client::of(&server));
        for line in before {
            acting.say(line);
        }
        let id = waiting.number("CLIENT ID");
        waiting.ask(pop);
        acting.wait_until("clients", "blocked_clients", "1");
        Self { server, waiting, id, acting }
    }

    fn say(&mut self, lines: &[&str]) {
        for line in lines {
            self.acting.say(line);
        }
    }

    /// The payload that the waiting client gets.
    fn assert_gets(&mut self, payload: &str) {
        let answer = self.waiting.answer().unwrap_or_else(|error| panic!("{payload}: {error}"));
        let task = list(list(answer).swap_remove(0));
        assert_eq!(shown(&task[2]), payload);
        assert!(!self.server.process().has_ended());
    }

    fn assert_waits(&mut self) {
        assert_eq!(self.acting.told("clients", "blocked_clients"), "1", "it goes on waiting");
    }
}

const WAIT: &str = "RQ.POP BLOCK 0 p q";

fn wakes(host: Host) {
    type Case = (&'static [&'static str], &'static [&'static str], &'static str);
    let cases: &[Case] = &[
        (&[], &["RQ.PUSH q a b"], "a"),
        (&[], &["RQ.ADD q a DELAY 20"], "a"),
        (&["RQ.PUSH q a", "RQ.POP LEASE 30 q"], &["PING"], "a"),
        (&["RQ.PUSH q a", "RQ.POP q"], &["RQ.RETURN q ID"], "a"),
        (&["RQ.PUSH q a", "RQ.POP q"], &["RQ.RETURN q ID DELAY 20"], "a"),
        (&["RQ.CONFIG q BACKOFF 20", "RQ.PUSH q a", "RQ.POP q"], &["RQ.RETURN q ID FAILED why"], "a"),
        (&["RQ.PUSH q a", "RQ.POP LEASE 600000 q"], &["RQ.EXTEND q ID 20"], "a"),
        (&["RQ.CONFIG d TTL 20 EXPIRED dead DEAD-LETTER q"], &["RQ.PUSH d a"], "a"),
        (&["RQ.PUSH q a", "RQ.PAUSE q"], &["RQ.RESUME q"], "a"),
        (&["RQ.PUSH q a", "RQ.POP q", "RQ.BURY q ID"], &["RQ.REVIVE q ALL"], "a"),
        (&["RQ.CONFIG q MAX-LEASED 1", "RQ.PUSH q a b", "RQ.POP q"], &["RQ.ACK q ID"], "b"),
        (&["RQ.CONFIG d DEAD-LETTER q", "RQ.PUSH d a"], &["RQ.BURY d ID"], "a"),
        (&["RQ.PUSH other a"], &["RENAME other q"], "a"),
        (&["RQ.PUSH other a"], &["COPY other q"], "a"),
        (&["SELECT 1", "RQ.PUSH q a"], &["MOVE q 0"], "a"),
        (&["SELECT 1", "RQ.PUSH q a", "SELECT 0"], &["SWAPDB 0 1"], "a"),
        (&["RQ.PUSH q x", "RQ.POP q"], &["DEL q", "RQ.PUSH q a"], "a"),
        (&["RQ.PUSH q x", "RQ.POP q"], &["UNLINK q", "RQ.PUSH q a"], "a"),
        (&["RQ.PUSH q x", "RQ.POP q"], &["FLUSHALL", "RQ.PUSH q a"], "a"),
        (&["RQ.PUSH q x", "RQ.POP q"], &["FLUSHDB ASYNC", "RQ.PUSH q a"], "a"),
        (&["RQ.PUSH q x", "RQ.POP q"], &["RENAME q r", "RQ.PUSH q a"], "a"),
        (&["RQ.PUSH q x", "RQ.POP q"], &["PEXPIRE q 1", "RQ.PUSH p a"], "a"),
        (&[], &["SET q string", "DEL q", "RQ.PUSH q a"], "a"),
        (&[], &["MULTI", "RQ.PUSH q a", "EXEC"], "a"),
        (&[], &["EVAL return(redis.call('rq.push','q','a')) 0"], "a"),
    ];
    for (before, then, payload) in cases {
        let server = host.start(&[], &[]);
        let (mut waiting, mut acting) = (Client::of(&server), Client::of(&server));
        let mut id = String::new();
        for line in *before {
            let value = acting.say(&line.replace("ID", &id));
            if line.starts_with("RQ.PUSH") {
                id = shown(&list(value)[0]);
            }
        }
        waiting.ask(WAIT);
        acting.wait_until("clients", "blocked_clients", "1");
        for line in *then {
            acting.say(&line.replace("ID", &id));
        }
        let answer = waiting.answer().unwrap_or_else(|error| panic!("{then:?}: {error}"));
        assert_eq!(shown(&list(list(answer).swap_remove(0))[2]), *payload, "{before:?} {then:?}");
    }
}

#[test]
fn everything_that_makes_a_task_ready_wakes_clients_in_redis() {
    wakes(Host::Redis);
}

#[test]
fn everything_that_makes_a_task_ready_wakes_clients_in_valkey() {
    wakes(Host::Valkey);
}

#[test]
fn a_client_killed_while_it_waits_takes_no_task() {
    for host in Host::ALL {
        let mut scene = Scene::on(host, WAIT);
        let kill = format!("CLIENT KILL ID {}", scene.id);
        scene.say(&[&kill, "RQ.PUSH q a"]);
        assert!(scene.waiting.answer().is_err(), "it is gone");
        assert_eq!(scene.acting.counts("q"), [1, 0, 0, 0], "{host:?}");
        // Killed in the transaction that pushes: the task must not go to the dead client.
        let mut scene = Scene::on(host, WAIT);
        let kill = format!("CLIENT KILL ID {}", scene.id);
        scene.say(&["MULTI", "RQ.PUSH q a", &kill, "EXEC"]);
        assert_eq!(scene.acting.counts("q"), [1, 0, 0, 0], "{host:?}");
    }
}

#[test]
fn waiting_clients_can_be_unblocked() {
    for host in Host::ALL {
        let mut scene = Scene::on(host, WAIT);
        let unblock = format!("CLIENT UNBLOCK {}", scene.id);
        scene.say(&[&unblock]);
        assert_eq!(scene.waiting.answer().expect("no error"), Value::Nil, "{host:?}");
        let mut scene = Scene::on(host, WAIT);
        let unblock = format!("CLIENT UNBLOCK {} ERROR", scene.id);
        scene.say(&[&unblock]);
        let error = scene.waiting.answer().expect_err("it is unblocked with an error");
        assert!(error.to_string().contains("UNBLOCKED"), "{host:?}: {error}");
        let mut scene = Scene::on(host, "RQ.POP BLOCK 30 q");
        assert_eq!(scene.waiting.answer().expect("no error"), Value::Nil, "{host:?}: its wait timed out");
        scene.say(&["RQ.PUSH q a"]);
        assert_eq!(scene.acting.counts("q"), [1, 0, 0, 0], "{host:?}");
    }
}

#[test]
fn commands_that_make_nothing_ready_wake_no_client() {
    for host in Host::ALL {
        let mut scene = Scene::after(host, &["RQ.PUSH q x", "RQ.POP q"], WAIT);
        for line in [
            "RQ.INFO q",
            "DEL q",
            "SET q string",
            "RQ.PUSH other x",
            "FLUSHALL",
            "RQ.ADD q later DELAY 600000",
        ] {
            scene.say(&[line]);
            scene.assert_waits();
        }
        scene.say(&["RQ.PUSH q a"]);
        scene.assert_gets("a");
    }
}

#[test]
fn clients_that_may_not_block_are_answered_at_once() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut client = Client::of(&server);
        client.say("MULTI");
        client.say("RQ.POP BLOCK 0 q");
        client.say("RQ.PUSH q a");
        client.say("RQ.POP BLOCK 0 q");
        let answers = list(client.say("EXEC"));
        assert_eq!(answers[0], Value::Nil, "{host:?}");
        assert_eq!(list(answers[2].clone()).len(), 1, "{host:?}");
        assert_eq!(client.say("EVAL return(redis.call('rq.pop','block','0','q')) 0"), Value::Nil, "{host:?}");
        let error = client.error("EVAL return(redis.call('rq.pop','conn','q')) 0");
        assert!(error.contains("a script has no connection"), "{host:?}: {error}");
    }
}

#[test]
fn waiting_clients_are_served_in_order_with_one_task_each() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut acting = Client::of(&server);
        let mut waiting: Vec<Client> = (0..20).map(|_| Client::of(&server)).collect();
        for (n, client) in waiting.iter_mut().enumerate() {
            client.ask("RQ.POP BLOCK 0 q");
            acting.wait_until("clients", "blocked_clients", &(n + 1).to_string());
        }
        acting.say("RQ.PUSH q 0 1 2 3 4 5 6 7 8 9");
        acting.say("RQ.PUSH q 10 11 12 13 14 15 16 17 18 19");
        for (n, client) in waiting.iter_mut().enumerate() {
            let task = list(list(client.answer().expect("a task")).swap_remove(0));
            assert_eq!(shown(&task[2]), n.to_string(), "{host:?}");
        }
        assert_eq!(acting.counts("q"), [0, 0, 20, 0]);
    }
}

#[test]
fn a_server_that_becomes_a_replica_unblocks_waiting_clients() {
    for host in Host::ALL {
        let mut scene = Scene::on(host, WAIT);
        scene.say(&["REPLICAOF 127.0.0.1 1"]);
        let error = scene.waiting.answer().expect_err("it is unblocked with an error");
        assert!(error.to_string().contains("UNBLOCKED"), "{host:?}: {error}");
        scene.say(&["REPLICAOF NO ONE", "RQ.PUSH q a"]);
        assert_eq!(scene.acting.counts("q"), [1, 0, 0, 0], "{host:?}");
    }
}

#[test]
fn tasks_of_a_connection_are_requeued_when_it_ends() {
    for host in Host::ALL {
        let mut scene = Scene::after(host, &["RQ.PUSH q a b"], "RQ.POP BLOCK 0 empty");
        let mut holder = Client::of(&scene.server);
        holder.say("RQ.POP COUNT 2 CONN q");
        scene.say(&["RENAME q r"]);
        assert_eq!(scene.acting.counts("r"), [0, 0, 2, 0]);
        assert!(holder.is_open());
        drop(holder);
        let back = scene.acting.say("RQ.POP BLOCK 20000 COUNT 2 r");
        assert_eq!(list(back).len(), 2, "{host:?}: both, from the renamed queue");
    }
}

const GONE: &str = "this worker is no longer alive";
const REPLACED: &str = "another worker of this name was started";

/// A client that waits in the name of a worker.
struct InName {
    client: Client,
    id: i64,
}

impl InName {
    fn begin(server: &RedisServer, worker: &str, block: &str) -> Self {
        let mut client = Client::of(server);
        let id = client.number("CLIENT ID");
        client.ask(&format!("RQ.POP BLOCK {block} WORKER {worker} q"));
        Self { client, id }
    }

    fn assert_refused(&mut self, why: &str, case: &str) {
        let error = self.client.answer().expect_err(case);
        assert_eq!(error.code(), Some("GONE"), "{case}: {error}");
        assert!(error.to_string().contains(why), "{case}: {error}");
        self.assert_has_one_answer(case);
    }

    /// Checks that no second reply follows.
    fn assert_has_one_answer(&mut self, case: &str) {
        assert_eq!(shown(&self.client.say("ECHO once")), "once", "{case}");
    }
}

/// Checks the number of clients that wait for a worker according to the module, which must not contain any that Redis
/// has freed.
fn assert_waiting(acting: &mut Client, count: usize, case: &str) {
    assert_eq!(acting.told("sureq", "sureq_worker_pops"), count.to_string(), "{case}");
}

/// Starts a worker in whose name this many clients wait.
fn start_waiting(server: &RedisServer, acting: &mut Client, count: usize) -> (String, Vec<InName>) {
    let worker = acting.text("RQ.WORKER START w TTL 3600000");
    let waiting = (0..count).map(|_| InName::begin(server, &worker, "0")).collect();
    acting.wait_until("clients", "blocked_clients", &count.to_string());
    (worker, waiting)
}

#[test]
fn clients_waiting_for_a_worker_fail_whenever_it_ends() {
    let cases: &[(&[&str], &str)] = &[
        (&["RQ.WORKER STOP $w"], GONE),
        (&["RQ.WORKER FAIL w"], GONE),
        (&["RQ.WORKER START w TTL 60000"], REPLACED),
        (&["RQ.PUSH other a", "RQ.POP WORKER $w other", "RQ.WORKER START w TTL 60000"], REPLACED),
        (&["MULTI", "RQ.WORKER STOP $w", "EXEC"], GONE),
        (&["MULTI", "RQ.WORKER START w TTL 60000", "RQ.PUSH q a", "EXEC"], REPLACED),
        (&["EVAL return(redis.call('rq.worker','fail','w')) 0"], GONE),
        (&["DEL sureq:workers"], GONE),
        (&["UNLINK sureq:workers"], GONE),
        (&["PEXPIREAT sureq:workers 1"], GONE),
        (&["SET sureq:workers x"], GONE),
        (&["RENAME sureq:workers x"], GONE),
        (&["MOVE sureq:workers 1"], GONE),
        (&["MULTI", "DEL sureq:workers", "RQ.WORKER START w TTL 60000", "EXEC"], REPLACED),
        (&["SWAPDB 0 1"], GONE),
        (&["SELECT 1", "SWAPDB 1 0"], GONE),
        (&["FLUSHDB"], GONE),
        (&["FLUSHALL"], GONE),
        (&["FLUSHALL ASYNC"], GONE),
    ];
    for host in Host::ALL {
        for (ending, why) in cases {
            let case = format!("{host:?} {ending:?}");
            let server = host.start(&[], &[]);
            let mut acting = Client::of(&server);
            let (worker, mut waiting) = start_waiting(&server, &mut acting, 3);
            for line in *ending {
                acting.say(&line.replace("$w", &worker));
            }
            for one in &mut waiting {
                one.assert_refused(why, &case);
            }
            assert_eq!(acting.told("clients", "blocked_clients"), "0", "{case}");
            assert_waiting(&mut acting, 0, &case);
        }
        let server = host.start(&[], &[]);
        let mut acting = Client::of(&server);
        // The worker may also end before they wait, on a slow server: they are refused all the same.
        let worker = acting.text("RQ.WORKER START w TTL 500");
        let mut waiting: Vec<InName> = (0..3).map(|_| InName::begin(&server, &worker, "0")).collect();
        for one in &mut waiting {
            one.assert_refused(GONE, &format!("{host:?}: its worker is lost"));
        }
    }
}

#[test]
fn clients_of_a_live_worker_keep_waiting_during_unrelated_changes() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut acting = Client::of(&server);
        let (_, mut waiting) = start_waiting(&server, &mut acting, 1);
        for line in [
            "RQ.WORKER START v TTL 60000",
            "RQ.WORKER FAIL v",
            "MULTI",
            "RENAME sureq:workers x",
            "RENAME x sureq:workers",
            "EXEC",
            "SWAPDB 1 2",
            "DEBUG RELOAD",
        ] {
            acting.say(line);
            // The module has handled the change by then.
            if line != "MULTI" && !line.starts_with("RENAME") {
                acting.wait_until("sureq", "sureq_overdue", "0");
                assert_eq!(acting.told("clients", "blocked_clients"), "1", "{host:?} {line}");
            }
        }
        acting.say("RQ.PUSH q a");
        let task = list(list(waiting[0].client.answer().expect("a task")).swap_remove(0));
        assert_eq!(shown(&task[2]), "a", "{host:?}");
    }
}

/// Clients stop waiting in every possible way, and then the worker ends.
#[test]
fn clients_that_stopped_waiting_are_not_affected_by_the_end_of_a_worker() {
    const ROUNDS: usize = 20;
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut acting = Client::of(&server);
        for round in 0..ROUNDS {
            let case = format!("{host:?} round {round}");
            let (worker, mut waiting) = start_waiting(&server, &mut acting, 6);
            let [has_task, sent_away, sent_by_error, killed, timed_out, stays] = &mut waiting[..] else {
                panic!("six clients wait")
            };
            acting.say("RQ.PUSH q a");
            assert_eq!(list(has_task.client.answer().expect("a task")).len(), 1, "{case}");
            assert_waiting(&mut acting, 5, &case);
            acting.say(&format!("CLIENT UNBLOCK {} TIMEOUT", sent_away.id));
            assert_eq!(sent_away.client.answer().expect("no error"), Value::Nil, "{case}");
            assert_waiting(&mut acting, 4, &case);
            acting.say(&format!("CLIENT UNBLOCK {} ERROR", sent_by_error.id));
            let error = sent_by_error.client.answer().expect_err("it is unblocked with an error");
            assert!(error.to_string().contains("UNBLOCKED"), "{case}: {error}");
            assert_waiting(&mut acting, 3, &case);
            acting.say(&format!("CLIENT KILL ID {}", killed.id));
            assert!(killed.client.answer().is_err(), "{case}: it is gone");
            assert_waiting(&mut acting, 2, &case);
            // The assignment closes the previous connection.
            *timed_out = InName::begin(&server, &worker, "1");
            assert_eq!(
                timed_out.client.answer().expect("no error"),
                Value::Nil,
                "{case}: its wait timed out"
            );
            acting.wait_until("clients", "blocked_clients", "1");
            assert_waiting(&mut acting, 1, &case);
            // New clients may get the memory of those that stopped waiting, so that stale handles would be noticed.
            let mut others: Vec<InName> = (0..6).map(|_| InName::begin(&server, &worker, "0")).collect();
            acting.wait_until("clients", "blocked_clients", "7");
            // Some are killed or unblocked in the transaction that ends their worker, before and after the end.
            for line in [
                "MULTI",
                &format!("CLIENT KILL ID {}", others[0].id),
                &format!("CLIENT UNBLOCK {} ERROR", others[1].id),
                &format!("CLIENT UNBLOCK {}", others[2].id),
                &format!("RQ.WORKER STOP {worker}"),
                &format!("CLIENT KILL ID {}", others[3].id),
                &format!("CLIENT UNBLOCK {}", others[4].id),
                "EXEC",
            ] {
                acting.say(line);
            }
            stays.assert_refused(GONE, &case);
            for one in [has_task, sent_away, sent_by_error, timed_out] {
                one.assert_has_one_answer(&case);
            }
            let error = others[1].client.answer().expect_err("it is unblocked with an error");
            assert!(error.to_string().contains("UNBLOCKED"), "{case}: {error}");
            assert_eq!(others[2].client.answer().expect("no error"), Value::Nil, "{case}");
            others[4].assert_refused(GONE, &case);
            others[5].assert_refused(GONE, &case);
            others[1].assert_has_one_answer(&case);
            others[2].assert_has_one_answer(&case);
            acting.wait_until("clients", "blocked_clients", "0");
            assert_waiting(&mut acting, 0, &case);
            acting.say("FLUSHALL");
        }
        // Clients that a role change has unblocked get no second reply when their worker ends.
        let (worker, mut waiting) = start_waiting(&server, &mut acting, 3);
        acting.say("REPLICAOF 127.0.0.1 1");
        for one in &mut waiting {
            let error = one.client.answer().expect_err("it is unblocked with an error");
            assert!(error.to_string().contains("UNBLOCKED"), "{host:?}: {error}");
        }
        assert_waiting(&mut acting, 0, &format!("{host:?}"));
        acting.say("REPLICAOF NO ONE");
        acting.say(&format!("RQ.WORKER STOP {worker}"));
        assert!(!server.process().has_ended(), "{host:?}");
    }
}
