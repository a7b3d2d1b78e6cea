//! Workers belong to a database: the effects of moving, replacing and deleting tables of workers, or queues with
//! their tasks.

use redis::Value;
use sureq_testkit::patience::until;
use sureq_testkit::redis_module::Host;

use crate::support::{Client, cpu, list, shown};

/// Starts a worker that holds a task of a queue. Returns the worker.
fn start_with_task(client: &mut Client, worker: &str, queue: &str) -> String {
    let worker = client.text(&format!("RQ.WORKER START {worker} TTL 3600000"));
    client.say(&format!("RQ.PUSH {queue} x"));
    client.say(&format!("RQ.POP WORKER {worker} {queue}"));
    assert_eq!(client.counts(queue), [0, 0, 1, 0]);
    worker
}

#[test]
fn workers_of_one_database_keep_their_tasks_when_the_table_of_another_is_gone() {
    for host in Host::ALL {
        for gone_by in [
            "DEL sureq:workers",
            "UNLINK sureq:workers",
            "RENAME sureq:workers x",
            "PEXPIREAT sureq:workers 1",
        ] {
            let server = host.start(&[], &[]);
            let (mut here, mut there) = (Client::of(&server), Client::of(&server));
            there.say("SELECT 1");
            let worker = start_with_task(&mut here, "w", "q");
            here.say("COPY q q DB 1");
            start_with_task(&mut there, "v", "other");
            there.say(gone_by);
            // This worker is younger, so the end of the other one would have been handled before.
            until("the worker of that table is lost", || there.counts("other") == [1, 0, 0, 0]);
            assert_eq!(here.counts("q"), [0, 0, 1, 0], "{host:?} {gone_by}");
            assert_eq!(here.number(&format!("RQ.WORKER STOP {worker}")), 1, "{host:?} {gone_by}");
        }
    }
}

#[test]
fn workers_whose_table_is_replaced_are_lost() {
    for host in Host::ALL {
        for replaced_by in ["SET sureq:workers x", "RENAME x sureq:workers", "COPY x sureq:workers REPLACE"] {
            let server = host.start(&[], &[]);
            let mut client = Client::of(&server);
            start_with_task(&mut client, "w", "q");
            client.say("SET x x");
            client.say(replaced_by);
            until("its task is requeued", || client.counts("q") == [1, 0, 0, 0]);
        }
    }
}

#[test]
fn a_worker_stays_alive_if_it_is_in_the_replacing_table_too() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut client = Client::of(&server);
        let worker = start_with_task(&mut client, "w", "q");
        for line in ["MULTI", "RENAME sureq:workers x", "RENAME x sureq:workers", "EXEC"] {
            client.say(line);
        }
        // The module has handled the change by then.
        client.wait_until("sureq", "sureq_overdue", "0");
        assert_eq!(client.counts("q"), [0, 0, 1, 0], "{host:?}");
        assert_eq!(client.number(&format!("RQ.WORKER STOP {worker}")), 1, "{host:?}");
    }
}

#[test]
fn a_worker_of_two_databases_that_ends_in_one_stays_alive_in_the_other() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let (mut here, mut there) = (Client::of(&server), Client::of(&server));
        there.say("SELECT 1");
        let worker = start_with_task(&mut here, "w", "q");
        let Value::BulkString(dump) = here.say("DUMP sureq:workers") else { panic!("a dump") };
        there.try_words(&[b"RESTORE", b"sureq:workers", b"0", &dump]).expect("it is restored");
        there.say("RQ.PUSH other x");
        there.say(&format!("RQ.POP WORKER {worker} other"));
        assert_eq!(there.number("RQ.WORKER FAIL w"), 1, "{host:?}: its tasks there");
        assert_eq!(here.counts("q"), [0, 0, 1, 0], "{host:?}");
        assert_eq!(list(here.say("RQ.WORKER LIST")).len(), 1, "{host:?}");
        assert_eq!(here.number("RQ.WORKER FAIL w"), 1, "{host:?}: its tasks here");
    }
}

#[test]
fn tasks_moved_to_another_database_are_requeued_when_that_of_their_worker_is_flushed() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let (mut here, mut there) = (Client::of(&server), Client::of(&server));
        there.say("SELECT 1");
        start_with_task(&mut here, "w", "q");
        let kept = start_with_task(&mut there, "v", "other");
        here.say("MOVE q 1");
        here.say("FLUSHDB");
        until("its task is requeued", || there.counts("q") == [1, 0, 0, 0]);
        assert_eq!(there.number(&format!("RQ.WORKER STOP {kept}")), 1, "{host:?}");
    }
}

#[test]
fn tasks_of_a_worker_are_found_after_a_move_in_a_transaction() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut client = Client::of(&server);
        let worker = start_with_task(&mut client, "w", "q");
        client.say("RQ.ADD q later DELAY 500");
        for line in ["MULTI", "MOVE q 1", "EXEC"] {
            client.say(line);
        }
        assert_eq!(client.number(&format!("RQ.WORKER STOP {worker}")), 1, "{host:?}");
        client.say("SELECT 1");
        until("the delayed task is ready there", || client.counts("q") == [2, 0, 0, 0]);
    }
}

/// The CPU time that the server spends on many workers that start, work on a queue and are lost, all at once.
fn cost_of_losing(workers: usize) -> f64 {
    let server = Host::Redis.start(&["--appendonly", "no"], &[]);
    let mut client = Client::of(&server);
    // Only the last of them has a task, which is requeued once all others are ended. A slow server loses some of them
    // earlier.
    let script = format!(
        "redis.call('rq.push','q','x') local worker \
         for n=1,{workers} do \
         worker=redis.call('rq.worker','start','w'..n,'ttl',1000) \
         redis.pcall('rq.worker','work',worker,'q') end \
         redis.call('rq.pop','worker',worker,'q')"
    );
    let before = cpu(&mut client);
    client.try_words(&[b"EVAL", script.as_bytes(), b"0"]).expect("a script");
    assert_ne!(client.say("RQ.POP BLOCK 25000 q"), Value::Nil, "its task is requeued");
    cpu(&mut client) - before
}

#[test]
fn a_lost_worker_costs_the_same_among_many() {
    let (few, many) = (cost_of_losing(2_000), cost_of_losing(20_000));
    // Linear cost is a factor of 10. It would be 100 if the loss of each worker took a scan of all of them.
    assert!(many < few * 30.0, "{few} s for 2,000 and {many} s for 20,000");
}

#[test]
fn unreported_lapses_do_not_keep_an_ended_worker() {
    const TASKS: usize = 10_000;
    let server = Host::Redis.start(&["--appendonly", "no"], &[]);
    let mut client = Client::of(&server);
    let used =
        |client: &mut Client| -> usize { client.told("memory", "used_memory").parse().expect("a number") };
    let ways = ["DEL sureq:workers", "FLUSHDB", "SET sureq:workers x"];
    let mut before = 0;
    for (round, gone_by) in ways.iter().cycle().take(5 * ways.len()).enumerate() {
        client.say("FLUSHALL");
        client.say(&format!("RQ.PUSH q{}", " x".repeat(TASKS)));
        let worker = client.text("RQ.WORKER START w TTL 3600000");
        for line in ["MULTI", &format!("RQ.POP COUNT {TASKS} LEASE 1 WORKER {worker} q"), "EXEC"] {
            client.say(line);
        }
        until("all lapse", || client.counts("q")[2] == 0);
        client.say(gone_by);
        client.say("FLUSHALL");
        client.wait_until("sureq", "sureq_overdue", "0");
        // One-time allocations are complete after the first rounds.
        if round + 1 == ways.len() {
            before = used(&mut client);
        }
    }
    let grown = used(&mut client).saturating_sub(before);
    // A leak would be 400,000 bytes per round.
    assert!(grown < 1_000_000, "{grown} bytes are not freed");
}

#[test]
fn heartbeats_report_lapsed_leases() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut client = Client::of(&server);
        let worker = client.text("RQ.WORKER START w TTL 3600000");
        client.say("RQ.PUSH q x");
        let task = list(list(client.say(&format!("RQ.POP LEASE 1 WORKER {worker} q"))).swap_remove(0));
        until("it lapses", || client.counts("q")[2] == 0);
        let told = shown(&client.say(&format!("RQ.WORKER BEAT {worker}")));
        assert_eq!(told, format!("[{}]", shown(&task[3])), "{host:?}");
        assert_eq!(shown(&client.say(&format!("RQ.WORKER BEAT {worker}"))), "[]", "{host:?}: once");
    }
}
