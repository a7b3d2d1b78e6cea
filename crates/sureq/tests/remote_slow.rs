//! A server behind a slow connection: a transfer does not time out while bytes move, and urgent commands do not wait
//! behind large payloads.
#![cfg(feature = "remote")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sureq::home_api::command::{Block, Pop};
use sureq::home_api::{Command, Replies, Reply};
use sureq::{Home, Phase, Refusal, State, Worker};
use sureq_remote::{Patience, RemoteHome, Target};
use sureq_testkit::local_server::LocalServer;
use sureq_testkit::proxy::{Direction, FaultyProxy, slow_proxy};
use tokio::sync::Notify;

/// The timeout of the homes here for a server that makes no progress.
const PATIENCE: Duration = Duration::from_secs(2);

/// The bytes that the connection passes at once, ten times per second.
const STEP_BYTES: usize = 16 << 10;
const STEP: Duration = Duration::from_millis(100);

/// A payload whose transfer takes more than twice the timeout.
fn large() -> Vec<u8> {
    vec![b'x'; 44 * STEP_BYTES]
}

/// A timeout that only a hang reaches.
const DEADLINE: Duration = Duration::from_secs(60);

fn open(address: SocketAddr) -> RemoteHome {
    let target = Target::parse(&format!("sureq://{address}")).expect("a URL");
    let patience = Patience { answer: PATIENCE, ..Patience::default() };
    RemoteHome::open_by(target, patience).expect("the server listens")
}

fn server() -> (LocalServer, Home) {
    let home = sureq::open("mem:").expect("a home in memory opens");
    (LocalServer::start(&home), home)
}

#[test]
fn a_push_that_outlasts_the_timeout_succeeds_while_bytes_move() {
    let (server, _) = server();
    let home = open(slow_proxy(server.resp, Direction::ToServer, STEP_BYTES, STEP));
    let since = Instant::now();
    let payload = large();
    let pushed = home.send(&[Command::Push { queue: b"q", payloads: &[&payload] }]).wait();
    assert!(matches!(pushed.replies.list[..], [Reply::Pushed(_)]), "{:?}", pushed.replies.list);
    assert!(since.elapsed() > 2 * PATIENCE, "it was not slow: {:?}", since.elapsed());
    home.close();
    server.stop();
}

#[test]
fn a_reply_that_outlasts_the_timeout_succeeds_while_bytes_move() {
    let (server, direct) = server();
    let home = open(slow_proxy(server.resp, Direction::FromServer, STEP_BYTES, STEP));
    let queues: &[&[u8]] = &[b"q"];
    let plain = Pop::plain(queues, 1);
    // The second pop has a connection of its own, and the third waits without a limit.
    for block in [None, Some(Block::Millis(1)), Some(Block::Forever)] {
        let payload = large();
        let pushed = direct
            .api()
            .execute(&[Command::Push { queue: b"q", payloads: &[&payload] }], &mut Replies::default());
        assert!(direct.api().wait(pushed.position), "memory is durable enough");
        let since = Instant::now();
        let popped = home.send(&[Command::Pop(Pop { block, ..plain })]).wait().replies;
        assert!(matches!(popped.list[..], [Reply::Tasks(_)]), "{block:?}: {:?}", popped.list);
        assert_eq!(popped.tasks[0].body.as_ref().len(), payload.len());
        assert!(since.elapsed() > 2 * PATIENCE, "it was not slow: {:?}", since.elapsed());
    }
    home.close();
    server.stop();
}

/// A lease begins when the task is popped, not when the last byte of its payload arrives.
#[tokio::test]
async fn a_lease_counts_from_the_first_byte_of_a_slow_reply() {
    let (server, direct) = server();
    let address = slow_proxy(server.resp, Direction::FromServer, STEP_BYTES, STEP);
    let home = sureq::open(&format!("sureq://{address}")).expect("the server listens");
    let lease = Duration::from_secs(60);
    for wait in [Duration::ZERO, DEADLINE] {
        direct.queue("q").push(large()).await.expect("the push succeeds");
        let task = home.queue("q").pop().lease(lease).wait(wait).await.expect("the transfer is only slow");
        let end = task.expect("a task is ready").lease_end().expect("the task has a lease");
        let left = end.saturating_duration_since(Instant::now());
        assert!(left + PATIENCE < lease, "{left:?} of {lease:?} are left after it took {:?}", 2 * PATIENCE);
    }
}

/// Signals from the handler, and to it.
#[derive(Clone, Default)]
struct Gate {
    begun: Arc<Notify>,
    opened: Arc<Notify>,
}

async fn hold(gate: State<Gate>) {
    gate.begun.notify_one();
    gate.opened.notified().await;
}

#[tokio::test]
async fn a_worker_keeps_its_tasks_while_the_same_home_pushes_something_large() {
    let (server, _) = server();
    let address = slow_proxy(server.resp, Direction::ToServer, STEP_BYTES, STEP);
    let home = sureq::open(&format!("sureq://{address}")).expect("the server listens");
    home.queue("q").push("x").await.expect("the push succeeds");
    let gate = Gate::default();
    let worker = Worker::new(&home).lease(PATIENCE).ttl(PATIENCE).state(gate.clone()).work("q", hold);
    let handle = worker.handle();
    let stop = Arc::<Notify>::default();
    let stopped = Arc::clone(&stop);
    let run = tokio::spawn(worker.run_until(async move { stopped.notified().await }));
    gate.begun.notified().await;

    let since = Instant::now();
    home.queue("large").push(large()).await.expect("the transfer is only slow");
    assert!(since.elapsed() > 2 * PATIENCE, "it was not slow: {:?}", since.elapsed());
    gate.opened.notify_one();
    until(|| handle.status().is_some_and(|status| status.tally.done > 0)).await;
    stop.notify_one();
    let tally = run.await.expect("it does not panic").expect("the worker ends without an error");
    assert_eq!((tally.taken, tally.done, tally.lost), (1, 1, 0));
}

#[tokio::test]
async fn tasks_whose_leases_a_slow_connection_cannot_extend_in_time_are_returned() {
    const LEASE: Duration = Duration::from_secs(1);
    let (server, direct) = server();
    let line = FaultyProxy::before(server.resp);
    let home = sureq::open(&format!("sureq://{}", line.address)).expect("the server listens");
    let worker = Worker::new(&home).lease(LEASE).work("q", async || ());
    let handle = worker.handle();
    let stop = Arc::<Notify>::default();
    let stopped = Arc::clone(&stop);
    let run = tokio::spawn(worker.run_until(async move { stopped.notified().await }));
    until(|| handle.status().is_some_and(|status| status.phase == Phase::Taking)).await;
    // Replies take longer than a third of the lease: an extension cannot be relied on when its reply is there.
    line.delay(LEASE / 5);
    let since = Instant::now();
    while handle.status().is_none_or(|status| status.tally.requeued == 0) {
        assert!(since.elapsed() < DEADLINE, "{:?}", handle.status());
        direct.queue("q").push("x").await.expect("the push succeeds");
        // The only thread of the runtime is blocked while the task arrives, so its lease must be extended before it
        // is run.
        std::thread::sleep(LEASE * 3 / 5);
        tokio::time::sleep(2 * LEASE).await;
    }
    line.delay(Duration::ZERO);
    counts_nothing(&direct).await;
    stop.notify_one();
    assert!(run.await.expect("it does not panic").expect("the worker ends without an error").done > 0);
}

/// Waits until the queue is empty.
async fn counts_nothing(home: &Home) {
    let since = Instant::now();
    loop {
        let info = home.queue("q").info().await.expect("the home answers");
        if info.ready + info.delayed + info.leased == 0 {
            return;
        }
        assert!(since.elapsed() < DEADLINE, "{info:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Polls for a state that nothing signals.
async fn until(is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < DEADLINE, "the condition was never met");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A server that greets, reads everything and answers nothing more.
fn silent() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            std::thread::spawn(move || {
                let mut room = [0; 4096];
                let mut greeting = &b"%1\r\n$6\r\nserver\r\n$5\r\nsureq\r\n"[..];
                while let Ok(1..) = client.read(&mut room) {
                    if client.write_all(std::mem::take(&mut greeting)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn is_unknown(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(Refusal::Unknown { .. }))
}

#[test]
fn requests_to_a_hanging_server_time_out_though_more_are_sent() {
    let home = open(silent());
    let first = home.send(&[Command::Pause { queue: b"q" }]);
    let (since, mut later) = (Instant::now(), Vec::new());
    let first = std::thread::spawn(move || first.wait().replies.list.remove(0));
    while !first.is_finished() {
        assert!(since.elapsed() < DEADLINE, "the request does not time out");
        later.push(home.send(&[Command::Pause { queue: b"q" }]));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(is_unknown(&first.join().expect("it does not panic")));
    home.close();
}

#[test]
fn closing_the_home_fails_pending_requests() {
    for block in [None, Some(Block::Forever)] {
        // A waiting pop got nothing; the outcome of any other command is unknown.
        let is_expected =
            |reply: &Reply| if block.is_some() { *reply == Reply::TimedOut } else { is_unknown(reply) };
        let home = open(silent());
        let queues: &[&[u8]] = &[b"q"];
        let popped = home.send(&[Command::Pop(Pop { block, ..Pop::plain(queues, 1) })]);
        let asked = home.send(&[Command::Pause { queue: b"q" }]);
        home.close();
        let wait = |ticket: sureq::home_api::Ticket| {
            let (answered, is_answered) = std::sync::mpsc::channel();
            std::thread::spawn(move || answered.send(ticket.wait().replies.list.remove(0)));
            is_answered.recv_timeout(DEADLINE).expect("it is answered once the home is closed")
        };
        assert!(is_unknown(&wait(asked)));
        let popped = wait(popped);
        assert!(is_expected(&popped), "{popped:?}");
    }
}
