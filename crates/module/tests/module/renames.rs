//! Queues that are renamed or moved while a command on them is executed in slices.

use redis::Value;
use sureq_testkit::patience::until;
use sureq_testkit::redis_module::Host;

use crate::slices::{Scene, TASKS, all, current, hold, payloads, push};
use crate::support::{Client, list};

/// Pops all tasks of a queue at once.
fn pop_all(client: &mut Client, queue: &str) -> Vec<i64> {
    client.say("MULTI");
    client.say(&format!("RQ.POP COUNT {TASKS} {queue}"));
    payloads(list(client.say("EXEC")).swap_remove(0))
}

#[test]
fn tasks_popped_for_a_lost_client_return_to_the_renamed_queue() {
    for host in Host::ALL {
        for (then, db, queue) in [
            (&["RENAME q moved"][..], 0, "moved"),
            (&["RENAME q moved", "RQ.PUSH q x"], 0, "moved"),
            (&["RENAME q other", "RENAME other moved"], 0, "moved"),
            (&["MOVE q 1"], 1, "q"),
            (&["SWAPDB 0 1"], 1, "q"),
            (&["RENAME q moved", "SWAPDB 0 1"], 1, "moved"),
        ] {
            let mut scene = Scene::on(host);
            push(&mut scene.acting, "q");
            scene.begin("RQ.POP COUNT 5000 q");
            scene.acting.say("MULTI");
            for line in then {
                scene.acting.say(line);
            }
            scene.kill_asking();
            scene.acting.say("EXEC");
            scene.wait_until_over();
            scene.acting.say(&format!("SELECT {db}"));
            assert_eq!(scene.acting.counts(queue), [TASKS, 0, 0, 0], "{host:?} {then:?}");
            assert!(pop_all(&mut scene.acting, queue) == all(), "{host:?} {then:?}");
        }
    }
}

#[test]
fn tasks_are_requeued_in_order_though_the_queue_is_renamed_between_slices() {
    for host in Host::ALL {
        let mut scene = Scene::paced(host, "200");
        push(&mut scene.acting, "q");
        scene.begin("RQ.POP COUNT 5000 q");
        scene.go_on();
        until("two slices are popped", || scene.acting.counts("q")[2] >= 2_000);
        scene.hold();
        let popped = scene.acting.counts("q")[2];
        scene.kill_asking();
        scene.go_on();
        until("some are requeued", || scene.acting.counts("q")[2] < popped);
        scene.hold();
        scene.acting.say("RENAME q moved");
        scene.wait_until_over();
        assert_eq!(scene.acting.counts("moved"), [TASKS, 0, 0, 0], "{host:?}");
        assert!(pop_all(&mut scene.acting, "moved") == all(), "{host:?}");
    }
}

#[test]
fn tasks_of_a_worker_are_requeued_in_order_though_the_queue_is_renamed() {
    for host in Host::ALL {
        for (then, db, queue) in
            [("RENAME q moved", 0, "moved"), ("MOVE q 1", 1, "q"), ("SWAPDB 0 1", 1, "q")]
        {
            let mut scene = Scene::on(host);
            hold(&mut scene.acting);
            let worker = current(&mut scene.acting);
            scene.begin(&format!("RQ.WORKER STOP {worker}"));
            scene.acting.say(then);
            assert_eq!(scene.answered_number(), TASKS, "{host:?} {then}");
            scene.acting.say(&format!("SELECT {db}"));
            assert_eq!(scene.acting.counts(queue), [TASKS, 0, 0, 0], "{host:?} {then}");
            assert!(pop_all(&mut scene.acting, queue) == all(), "{host:?} {then}");
        }
    }
}

#[test]
fn a_worker_with_tasks_in_two_databases_ends_though_they_are_swapped() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        hold(&mut scene.acting);
        let worker = current(&mut scene.acting);
        push(&mut scene.acting, "a");
        scene.acting.say("MULTI");
        scene.acting.say(&format!("RQ.POP COUNT {TASKS} WORKER {worker} a"));
        scene.acting.say("EXEC");
        scene.acting.say("MOVE a 1");
        scene.begin(&format!("RQ.WORKER STOP {worker}"));
        until("some of q are requeued", || scene.acting.counts("q")[0] > 0);
        scene.acting.say("SWAPDB 0 1");
        assert_eq!(scene.answered_number(), 2 * TASKS, "{host:?}");
        for (db, queue) in [(0, "a"), (1, "q")] {
            scene.acting.say(&format!("SELECT {db}"));
            assert_eq!(scene.acting.counts(queue), [TASKS, 0, 0, 0], "{host:?} {queue}");
            assert!(pop_all(&mut scene.acting, queue) == all(), "{host:?} {queue}");
        }
        assert_eq!(current(&mut scene.acting), "", "{host:?}");
    }
}

#[test]
fn a_stopping_worker_keeps_its_tasks_of_a_queue_that_replaces_the_first() {
    for host in Host::ALL {
        let mut scene = Scene::on(host);
        hold(&mut scene.acting);
        let worker = current(&mut scene.acting);
        scene.acting.say("RQ.PUSH other a b c");
        scene.acting.say(&format!("RQ.POP COUNT 3 WORKER {worker} other"));
        scene.begin(&format!("RQ.WORKER REST {worker} q"));
        for line in ["MULTI", "RENAME q moved", "RENAME other q", "EXEC"] {
            scene.acting.say(line);
        }
        let Value::Int(back) = scene.answer() else { panic!("a number") };
        assert!(back > 0, "{host:?}");
        assert_eq!(scene.acting.counts("q"), [0, 0, 3, 0], "{host:?}");
        assert_eq!(scene.acting.counts("moved"), [back, 0, TASKS - back, 0], "{host:?}");
    }
}
