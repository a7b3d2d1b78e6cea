//! Round trips: a waiter for one queue does not slow down commands about others.

mod support;

use std::net::Ipv4Addr;
use std::time::Duration;

use support::{answer, open, pop, push, until, wait_for};
use sureq_core::command::{Command, Pop};
use sureq_core::{Replies, Reply};
use sureq_home_api::{Home as _, Payload, Ticket};
use sureq_redis::RedisHome;
use sureq_testkit::process::free_port;
use sureq_testkit::proxy::SlowProxy;
use sureq_testkit::redis_server::RedisServer;

/// Long enough that a busy machine sends everything within one delay.
const DELAY: Duration = Duration::from_millis(20);

/// A Redis, a home that reaches it through a slow proxy, and one that reaches it directly.
struct Far {
    server: RedisServer,
    proxy: SlowProxy,
    home: RedisHome,
    near: RedisHome,
}

impl Far {
    fn start() -> Self {
        let port = free_port();
        let server = RedisServer::start_at(port);
        let proxy = SlowProxy::start((Ipv4Addr::LOCALHOST, port).into(), DELAY);
        let (home, near) = (open(&format!("redis://{}", proxy.address())), open(&server.url()));
        Self { server, proxy, home, near }
    }

    /// Starts a waiting pop per queue, and returns when all commands that lead to waiting were sent.
    fn wait_for(&self, queues: &[String]) -> Vec<Ticket> {
        let tickets = queues.iter().map(|queue| wait_for(&self.home, queue.as_bytes())).collect();
        until("all wait", || self.home.waiters() == queues.len());
        self.home.look();
        tickets
    }

    /// Counts the round trips of `act`.
    fn trips<T>(&self, act: impl FnOnce(&Self) -> T) -> (usize, T) {
        let before = self.proxy.trips();
        let outcome = act(self);
        (self.proxy.trips() - before, outcome)
    }

    fn end(self) {
        self.server.check("sureq:");
        self.home.close();
        self.near.close();
    }
}

/// Executes all commands, in as many batches as that takes.
fn run_all(home: &RedisHome, commands: &[Command<'_>]) -> Replies<Payload> {
    let mut replies = Replies::default();
    while replies.list.len() < commands.len() {
        replies.append(home.send(&commands[replies.list.len()..]).wait().replies);
    }
    replies
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("q{n}")).collect()
}

#[test]
fn pushes_share_a_round_trip_despite_a_waiter_for_another_queue() {
    let far = Far::start();
    let _idle = far.wait_for(&["idle".to_owned()]);
    let pushes = vec![Command::Push { queue: b"busy", payloads: &[b"x"] }; 200];
    let (trips, replies) = far.trips(|far| run_all(&far.home, &pushes));
    assert!(replies.list.iter().all(|reply| matches!(reply, Reply::Pushed(_))));
    // One after the other, they would take two each.
    assert!(trips <= 20, "{trips} round trips");
    far.end();
}

#[test]
fn a_pushed_task_goes_to_a_waiter_before_a_pop_of_the_same_batch() {
    let far = Far::start();
    let mut waiting = far.wait_for(&["q".to_owned()]);
    let queues: [&[u8]; 1] = [b"q"];
    let batch = [Command::Push { queue: b"q", payloads: &[b"first"] }, Command::Pop(Pop::plain(&queues, 1))];
    let replies = run_all(&far.home, &batch);
    assert_eq!(replies.tasks.len(), 0, "the waiter got the task");
    assert_eq!(answer(&waiting.remove(0)).tasks[0].body, b"first");
    far.end();
}

#[test]
fn waiters_for_many_queues_are_served_together() {
    let far = Far::start();
    let queues = names(50);
    let waiting = far.wait_for(&queues);
    let pushes: Vec<Command<'_>> =
        queues.iter().map(|queue| Command::Push { queue: queue.as_bytes(), payloads: &[b"x"] }).collect();
    let (trips, ()) = far.trips(|far| {
        run_all(&far.near, &pushes);
        for ticket in &waiting {
            assert_eq!(answer(ticket).tasks[0].body, b"x");
        }
    });
    assert!(trips <= 20, "{trips} round trips");
    far.end();
}

#[test]
fn waiters_for_one_queue_are_served_in_order_and_in_few_round_trips() {
    let far = Far::start();
    let waiting = far.wait_for(&vec!["q".to_owned(); 50]);
    let payloads: Vec<Vec<u8>> = (0..50).map(|n: u32| n.to_string().into_bytes()).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(|payload| &payload[..]).collect();
    let (trips, ()) = far.trips(|far| {
        run_all(&far.near, &[Command::Push { queue: b"q", payloads: &payloads }]);
        for (ticket, payload) in waiting.iter().zip(&payloads) {
            assert_eq!(answer(ticket).tasks[0].body, payload);
        }
    });
    assert!(trips <= 20, "{trips} round trips");
    far.end();
}

#[test]
fn many_waiters_can_join_at_once() {
    let far = Far::start();
    // This opens the connection for messages.
    drop(far.wait_for(&["first".to_owned()]));
    until("it left", || far.home.waiters() == 0);
    let (trips, waiting) = far.trips(|far| far.wait_for(&names(50)));
    assert!(trips <= 25, "{trips} round trips");
    push(&far.near, b"q7", b"x");
    assert_eq!(answer(&waiting[7]).tasks[0].body, b"x");
    assert_eq!(pop(&far.near, b"q8", 1), Ok(vec![]));
    far.end();
}
