//! The whole life of a task: its state after a crash, the delay of its events, and the cost of many of them for other
//! clients.

use std::time::{Duration, Instant};

use sureq_testkit::client::{RespClient, Value};
use sureq_testkit::load::scale;
use sureq_testkit::loop_image::LoopImage;
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::server_process::{Launch, Server};

use crate::{await_line, scratch, serve};

/// The longest acceptable delay.
const SOON: Duration = Duration::from_millis(50);

/// Creates tasks in every state, workers, settings and a pause. Returns the worker and a receipt that it holds.
fn live(client: &mut RespClient) -> (String, String) {
    let worker = client.say("RQ.WORKER START w TTL 600000").text();
    client.say(&format!("RQ.WORKER WORK {worker} q"));
    client.say("RQ.CONFIG q TRIES 2 MAX-LENGTH 100 DEAD-LETTER graves");
    client.say("RQ.PUSH q ready held-by-worker timed cancelled failed buried");
    let mut pop = |terms: &str| client.say(&format!("RQ.POP {terms} q")).list().remove(0);
    pop("");
    let held = pop(&format!("WORKER {worker}")).field(3);
    pop("LEASE 600000");
    let cancelled = pop(&format!("WORKER {worker}")).field(1);
    let failed = pop("LEASE 600000").field(3);
    let buried = pop("LEASE 600000").field(1);
    client.say(&format!("RQ.CANCEL q ID {cancelled}"));
    client.say(&format!("RQ.RETURN q {failed} FAILED once DELAY 600000"));
    client.say(&format!("RQ.BURY q {buried}"));
    client.say("RQ.ADD q named NAME n DELAY 600000 PRIORITY 5 TTL 6000000");
    client.say("RQ.ADD q first PRIORITY 9 UNIQUE");
    client.say("RQ.PUSH dead x");
    let dead = client.pop("dead", 1).remove(0).id;
    client.say(&format!("RQ.BURY dead {dead}"));
    client.say("RQ.PAUSE q");
    (worker, held)
}

/// Everything visible, except values that change with time.
fn look(client: &mut RespClient) -> Vec<Value> {
    let mut seen = Vec::new();
    for queue in ["q", "graves", "dead"] {
        let mut info = client.say(&format!("RQ.INFO {queue}")).list();
        let timely = |name: &Value| {
            let name = name.clone().text();
            name == "oldest_ms" || name.ends_with("_per_second")
        };
        for at in (0..info.len()).step_by(2).rev() {
            if timely(&info[at]) {
                info.drain(at..at + 2);
            }
        }
        seen.push(Value::Array(info));
        for view in ["", "DELAYED", "DEAD"] {
            seen.push(client.say(&format!("RQ.INSPECT {queue} {view} 0 100").replace("  ", " ")));
        }
        for task in client.say(&format!("RQ.INSPECT {queue} PENDING 0 100")).list() {
            // When and how often it was delivered; the elapsed time changes.
            seen.extend([0, 1, 2, 4].map(|at| match &task {
                Value::Array(fields) => fields[at].clone(),
                other => panic!("{other:?}"),
            }));
        }
    }
    seen.push(client.say("RQ.WORKER LIST"));
    seen.push(client.say("RQ.QUEUES"));
    seen
}

fn check_survival(launch: &Launch, mut crash: impl FnMut(Server)) {
    let server = launch.start();
    let (worker, held) = live(&mut server.client());
    let mut before = look(&mut server.client());
    crash(server);
    for _ in 0..2 {
        let server = launch.start();
        let after = look(&mut server.client());
        assert_eq!(after, before, "unchanged");
        before = after;
        crash(server);
    }
    let server = launch.start();
    let mut client = server.client();
    assert_eq!(
        client.say(&format!("RQ.WORKER BEAT {worker}")).list().len(),
        1,
        "the heartbeat reports cancelled tasks"
    );
    assert_eq!(client.say(&format!("RQ.EXTEND q {held} 1000")), Value::Int(1));
    assert_eq!(
        client.say(&format!("RQ.ACK q {held}")).list().len(),
        1,
        "with the receipt from before three restarts"
    );
    assert!(client.say(&format!("RQ.ACK q {held}")).list().is_empty());
    assert_eq!(client.say("RQ.ADD q again NAME n").list()[1], Value::Int(0), "the name is in use");
    assert_eq!(client.say("RQ.ADD q first UNIQUE").list()[1], Value::Int(0), "the payload is in use");
    assert!(client.say("RQ.POP q").list().is_empty(), "the queue is paused");
    client.say("RQ.RESUME q");
    assert_eq!(client.say("RQ.POP q").list()[0].field(2), "first");
}

#[test]
fn all_tasks_are_unchanged_after_kills() {
    let dir = scratch();
    check_survival(&serve(dir.path()), |mut server| {
        server.kill9();
    });
}

#[test]
fn all_tasks_are_unchanged_after_power_cuts() {
    let mut image = LoopImage::new(256 << 20);
    let launch = serve(&image.path().join("data")).args(["--segment-bytes", "1MB"]);
    check_survival(&launch, |mut server| {
        server.suspend();
        image.cut_power();
        server.kill9();
        image.restore_power();
    });
}

/// With `none`, a crash may undo a delivery whose receipt a client has. The next delivery has the same number, and
/// another receipt.
#[test]
fn a_receipt_of_a_delivery_that_a_crash_undid_is_stale() {
    let dir = scratch();
    let launch = serve(dir.path()).args(["--durability", "none"]);
    let mut taken_back = 0;
    for round in 0..40 {
        let queue = format!("q{round}");
        let mut server = launch.start();
        server.client().push(&queue, "a");
        server.terminate();
        assert_eq!(server.exit_code(Duration::from_secs(10)), 0);
        let mut server = launch.start();
        let first = server.client().say(&format!("RQ.POP LEASE 600000 {queue}")).list().remove(0);
        server.kill9();
        let server = launch.start();
        let mut client = server.client();
        let second = client.say(&format!("RQ.POP LEASE 600000 {queue}")).list();
        if let Some(second) = second.first() {
            taken_back += 1;
            assert_eq!(second.field(1), first.field(1), "the same task");
            assert_ne!(second.field(3), first.field(3), "under another receipt");
            assert!(client.say(&format!("RQ.ACK {queue} {}", first.field(3))).list().is_empty());
            assert_eq!(client.say(&format!("RQ.ACK {queue} {}", second.field(3))).list().len(), 1);
        }
    }
    assert!(taken_back > 0, "no crash undid a delivery, so that the test proves nothing");
}

/// The delay of the reply after `since`.
fn delay(client: &mut RespClient, since: Instant) -> Duration {
    let reply = client.reply();
    assert!(matches!(reply, Value::Array(_)), "{reply:?}");
    since.elapsed()
}

/// A single event may be late because the whole machine is; half of them may not.
fn check_soon(mut delays: Vec<Duration>, what: &str) {
    delays.sort_unstable();
    let median = delays[delays.len() / 2];
    assert!(median <= SOON, "{what}: {median:?}");
}

#[test]
fn leases_end_at_their_deadline_and_with_their_connection_and_their_worker() {
    let dir = scratch();
    // The time until a reply is on disk is that of the disk.
    let server = serve(dir.path()).args(["--durability", "none"]).start();
    let (mut client, mut next) = (server.client(), server.client());
    let (machine, mut delays) = (MachineWatch::start(), [Vec::new(), Vec::new(), Vec::new()]);
    for _ in 0..5 {
        for (kind, delays) in delays.iter_mut().enumerate() {
            let late = machine.late();
            client.push("q", "x");
            let mut holder = server.client();
            let begun = Instant::now();
            let worker = holder.say("RQ.WORKER START w TTL 1000").text();
            let by_worker = format!("WORKER {worker}");
            let terms = ["LEASE 1000", "CONN", &by_worker][kind];
            let id = holder.say(&format!("RQ.POP {terms} q")).list()[0].field(1);
            next.begin("RQ.POP BLOCK 0 q");
            await_line(&mut client, 1);
            let due = if kind == 1 {
                drop(holder);
                Instant::now()
            } else {
                begun + Duration::from_secs(1)
            };
            delays.push(delay(&mut next, due).saturating_sub(machine.late().saturating_sub(late)));
            assert!(client.ack("q", &id));
        }
    }
    let [lapsed, closed, lost] = delays;
    check_soon(lapsed, "a lease that lapsed");
    check_soon(closed, "a connection that was closed");
    check_soon(lost, "a worker that was lost");
}

fn count(tasks: usize) -> i64 {
    i64::try_from(tasks).expect("the number is small")
}

/// The longest command of another client until `is_over` returns true, apart from the delay of the machine.
fn longest_wait(client: &mut RespClient, mut is_over: impl FnMut(&mut RespClient) -> bool) -> Duration {
    let (machine, mut longest) = (MachineWatch::start(), Duration::ZERO);
    loop {
        for _ in 0..100 {
            let (since, late) = (Instant::now(), machine.late());
            let id = client.push("other", "x");
            assert!(client.pop("other", 1)[0].id == id && client.ack("other", &id));
            longest = longest.max(since.elapsed().saturating_sub(machine.late().saturating_sub(late)));
        }
        if is_over(client) {
            return longest;
        }
    }
}

/// The limit for the delay of other clients in an unoptimized build, on a machine that is busy with other tests.
/// Without slices, these floods would take many times as long. `sureq-bench flood` holds a release build to [`SOON`].
const HELD_UP_MAX: Duration = Duration::from_secs(1);

#[test]
fn workers_that_fail_together_do_not_delay_others() {
    let workers = 20_000 * scale() as usize;
    let dir = scratch();
    let launch = serve(dir.path()).args(["--durability", "none"]);
    let mut server = launch.start();
    let mut client = server.client();
    let payloads = vec!["x"; 1000].join(" ");
    (0..workers / 1000).for_each(|_| drop(client.say(&format!("RQ.PUSH q {payloads}"))));
    let ttl = 20_000 * scale();
    let start =
        (0..workers).map(|n| format!("RQ.WORKER START w{n} TTL {ttl}\r\n")).collect::<Vec<_>>().concat();
    let started: Vec<String> = pipelined(&server, &start).map(Value::text).collect();
    let pops =
        started.iter().map(|worker| format!("RQ.POP WORKER {worker} q\r\n")).collect::<Vec<_>>().concat();
    assert!(pipelined(&server, &pops).all(|tasks| tasks.list().len() == 1), "one for each");
    // A restart gives all of them their full time to live again, so that they are lost at the same instant.
    server.terminate();
    assert_eq!(server.exit_code(Duration::from_secs(10)), 0);
    let server = launch.start();
    let longest = longest_wait(&mut server.client(), |client| client.counts("q") == (count(workers), 0));
    assert!(longest <= HELD_UP_MAX, "others were delayed by {longest:?}");
}

#[test]
fn tasks_that_are_due_together_do_not_delay_others() {
    let tasks = 100_000 * scale() as usize;
    let dir = scratch();
    let server = serve(dir.path()).args(["--durability", "none"]).start();
    let mut client = server.client();
    let seconds: u64 = client.say("TIME").list()[0].clone().text().parse().expect("a number");
    let at = (seconds + 5 + 10 * scale()) * 1000;
    let adds = (0..tasks).map(|_| format!("RQ.ADD q x AT {at}\r\n")).collect::<Vec<_>>().concat();
    assert_eq!(pipelined(&server, &adds).count(), tasks);
    let longest = longest_wait(&mut client, |client| client.counts("q") == (count(tasks), 0));
    assert!(longest <= HELD_UP_MAX, "others were delayed by {longest:?}");
}

/// The replies to many inline commands that are sent without waiting for any.
fn pipelined<'a>(server: &Server, commands: &'a str) -> impl Iterator<Item = Value> + 'a {
    let mut client = server.client();
    let mut sender = client.stream().try_clone().expect("a second handle");
    let bytes = commands.as_bytes().to_vec();
    let sending = std::thread::spawn(move || std::io::Write::write_all(&mut sender, &bytes));
    let mut left = commands.lines().count();
    let mut sending = Some(sending);
    std::iter::from_fn(move || {
        if left == 0 {
            if let Some(sending) = sending.take() {
                sending.join().expect("it ends").expect("the server reads");
            }
            return None;
        }
        left -= 1;
        Some(client.reply())
    })
}
