//! Homes on a server that is killed, stopped, cut off and that refuses commands: no confirmed task is lost, unknown
//! outcomes are reported as unknown, and homes recover by themselves.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use sureq::Refusal;
use sureq::home_api::command::{AckScope, Block, ConnId, IdForm, LeaseAsk, Pop, TaskRefs, View};
use sureq::home_api::notice::Kind;
use sureq::home_api::{Command, Home as _, ListenEvent, NoticeTasks, Replies, Reply, Ticket};
use sureq_remote::{OpenError, Patience, RemoteHome, Target};
use sureq_testkit::client::Value;
use sureq_testkit::patience::{PATIENCE, until};
use sureq_testkit::proxy::{Direction, cutting_proxy};
use sureq_testkit::server_process::{Launch, Server};

use crate::users::TestUsers;
use crate::{SUREQ, await_line, scratch, serve};

type Answers = Replies<sureq::home_api::Payload>;

/// A server at its former address.
fn serve_at(dir: &Path, resp: SocketAddr) -> Launch {
    let home = format!("file:{}", dir.display());
    Launch::new(SUREQ).args(["serve", "--resp", &resp.to_string(), "--text", "127.0.0.1:0", "--home", &home])
}

fn open(address: SocketAddr) -> RemoteHome {
    let target = Target::parse(&format!("sureq://{address}")).expect("a URL");
    RemoteHome::open(target).expect("the server listens")
}

fn open_with_patience(address: SocketAddr, answer: Duration) -> RemoteHome {
    let target = Target::parse(&format!("sureq://{address}")).expect("a URL");
    RemoteHome::open_by(target, Patience { answer, ..Patience::default() }).expect("the server listens")
}

fn ask(home: &RemoteHome, command: Command<'_>) -> Answers {
    home.send(&[command]).wait().replies
}

fn push(home: &RemoteHome, queue: &[u8], payload: &[u8]) -> Reply {
    ask(home, Command::Push { queue, payloads: &[payload] }).list.remove(0)
}

/// The queue of most tests, as pops name it.
const Q: &[&[u8]] = &[b"q"];

fn pop(block: Option<Block>, lease: LeaseAsk<'static>) -> Command<'static> {
    Command::Pop(Pop { block, lease, ..Pop::plain(Q, 10) })
}

fn ack(home: &RemoteHome, queue: &[u8], receipt: &str) -> Reply {
    let tasks = TaskRefs { list: &[receipt.as_bytes()], form: IdForm::Long };
    ask(home, Command::Ack { queue, tasks, scope: AckScope::LeasedOrLapsed }).list.remove(0)
}

/// The numbers of ready and of leased tasks of a queue.
fn counts(home: &RemoteHome, queue: &[u8]) -> (u64, u64) {
    match ask(home, Command::Info { queue }).list.remove(0) {
        Reply::Info(info) => (info.ready, info.leased),
        other => panic!("{other:?}"),
    }
}

fn is_unknown(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(Refusal::Unknown { .. }))
}

fn is_unavailable(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(Refusal::Unavailable { .. }))
}

#[test]
fn a_frozen_server_does_not_block_clients_indefinitely() {
    let dir = scratch();
    // The home must not give up on a server that is only slow: no reply waits for a busy disk.
    let server = serve(dir.path()).args(["--durability", "none"]).start();
    let home = open_with_patience(server.resp, Duration::from_secs(2));
    assert!(matches!(push(&home, b"q", b"before"), Reply::Pushed(_)));
    server.suspend();
    let since = Instant::now();
    let pop = home.send(&[pop(Some(Block::Millis(100)), LeaseAsk::NONE)]);
    let frozen = push(&home, b"q", b"during");
    assert!(is_unknown(&frozen), "{frozen:?}");
    // More than the sockets buffer: it cannot have been sent completely.
    let large = vec![b'x'; 32 << 20];
    let unsent = push(&home, b"q", &large);
    assert!(is_unavailable(&unsent), "{unsent:?}");
    let popped = pop.wait().replies.list.remove(0);
    assert!(is_unknown(&popped) || is_unavailable(&popped), "{popped:?}");
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    server.resume();
    until("the home recovers", || matches!(push(&home, b"q", b"after"), Reply::Pushed(_)));
    home.close();
}

#[test]
fn credentials_decide_which_commands_are_allowed() {
    let dir = scratch();
    let users = TestUsers::write(dir.path());
    let server = users.launch(dir.path(), "root").start();
    let target = |login: &str| Target::parse(&format!("sureq://{login}{}", server.resp)).expect("a URL");
    let error_of = |login: &str| match RemoteHome::open(target(login)) {
        Err(error @ OpenError::Server { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(error_of("").contains("NOAUTH"), "{}", error_of(""));
    let wrong = error_of("root:wrong@");
    assert!(wrong.contains("WRONGPASS") && !wrong.contains("wrong@"), "{wrong}");
    let mailer =
        RemoteHome::open(target(&format!("mailer:{}@", users.mailer_token))).expect("the user may log in");
    assert!(matches!(push(&mailer, b"emails", b"x"), Reply::Pushed(_)));
    match push(&mailer, b"other", b"x") {
        Reply::Refused(Refusal::Foreign { message }) => assert!(message.starts_with("NOPERM"), "{message}"),
        other => panic!("{other:?}"),
    }
    match ask(&mailer, pop(Some(Block::Forever), LeaseAsk::NONE)).list.remove(0) {
        Reply::Refused(Refusal::Foreign { message }) => assert!(message.starts_with("NOPERM"), "{message}"),
        other => panic!("{other:?}"),
    }
    let root = RemoteHome::open(target("root:open%20sesame@")).expect("the password is right");
    assert_eq!(counts(&root, b"emails"), (1, 0));
    mailer.close();
    root.close();
}

#[test]
fn a_waiting_pop_fails_at_a_crash_and_the_next_one_is_served() {
    let dir = scratch();
    let mut server = serve(dir.path()).start();
    let home = open(server.resp);
    let ticket = home.send(&[pop(Some(Block::Forever), LeaseAsk::NONE)]);
    await_line(&mut server.client(), 1);
    server.kill9();
    let reply = ticket.wait().replies.list.remove(0);
    assert!(is_unknown(&reply), "{reply:?}");
    // There is no server: nothing is sent, and no caller has to wait.
    let nobody = ask(&home, pop(Some(Block::Forever), LeaseAsk::NONE)).list.remove(0);
    assert!(is_unavailable(&nobody), "{nobody:?}");
    let server = serve_at(dir.path(), server.resp).start();
    let ticket = home.send(&[pop(Some(Block::Forever), LeaseAsk::NONE)]);
    await_line(&mut server.client(), 1);
    server.client().push("q", "hello");
    assert_eq!(ticket.wait().replies.tasks[0].body.as_ref(), b"hello");
    until("the shared connection is restored", || matches!(push(&home, b"q", b"x"), Reply::Pushed(_)));
    home.close();
}

#[test]
fn tickets_that_are_dropped_lose_nothing() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let (home, producer) = (open(server.resp), open(server.resp));
    for round in 0..200u64 {
        let block = (round % 3 > 0).then_some(Block::Forever);
        let ticket = home.send(&[pop(block, LeaseAsk::NONE)]);
        let pushed = producer.send(&[Command::Push { queue: b"q", payloads: &[b"x"] }]);
        // The ticket is dropped before the task arrives, while it arrives, or after that.
        if round % 2 == 0 {
            assert!(matches!(pushed.wait().replies.list[0], Reply::Pushed(_)));
        } else {
            drop(pushed);
        }
        drop(ticket);
    }
    until("all are requeued", || counts(&producer, b"q") == (200, 0));
    until("no pop waits", || home.waiters() == 0);
    // The tasks of one ticket keep their order. They are popped before the first count, and requeued before the
    // second.
    let waiting = || {
        let all = Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: 200 };
        ask(&home, all).tasks.iter().map(|task| task.id).collect::<Vec<_>>()
    };
    let before = waiting();
    drop(home.send(&[Command::Pop(Pop::plain(Q, 50))]));
    assert_eq!(counts(&home, b"q"), (150, 50));
    assert_eq!(counts(&home, b"q"), (200, 0));
    assert_eq!(waiting(), before);
    home.close();
    producer.close();
}

#[test]
fn ten_thousand_tickets_at_once() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let home = open(server.resp);
    let tickets: Vec<Ticket> = (0..10_000u64)
        .map(|n| home.send(&[Command::Push { queue: b"q", payloads: &[n.to_string().as_bytes()] }]))
        .collect();
    for ticket in tickets {
        let replies = ticket.wait().replies;
        assert!(matches!(replies.list[..], [Reply::Pushed(_)]), "{:?}", replies.list);
    }
    let all = ask(&home, Command::Pop(Pop::plain(Q, 10_000)));
    let numbers: Vec<Vec<u8>> = all.tasks.iter().map(|task| task.body.as_ref().to_vec()).collect();
    assert!(numbers.iter().eq((0..10_000).map(|n| n.to_string().into_bytes()).collect::<Vec<_>>().iter()));
    home.close();
}

#[test]
fn leases_of_a_connection_end_with_it_and_with_the_home() {
    let dir = scratch();
    let server = serve(dir.path()).start();
    let (home, other) = (open(server.resp), open(server.resp));
    push(&other, b"q", b"x");
    let lease = LeaseAsk { conn: Some(ConnId(7)), ..LeaseAsk::NONE };
    assert_eq!(ask(&home, pop(None, lease)).tasks.len(), 1);
    assert_eq!(counts(&other, b"q"), (0, 1));
    home.close_conn(ConnId(7));
    until("the task is requeued", || counts(&other, b"q") == (1, 0));
    assert_eq!(ask(&home, pop(Some(Block::Forever), lease)).tasks.len(), 1);
    drop(home);
    until("the task is requeued again", || counts(&other, b"q") == (1, 0));
    other.close();
    assert_eq!(push(&other, b"q", b"y"), Reply::Refused(Refusal::Closed));
}

#[test]
fn a_listener_gets_notices_and_learns_of_gaps() {
    let dir = scratch();
    let mut server = serve(dir.path()).start();
    let home = open(server.resp);
    let listener = home.listen();
    listener.subscribe(Kind::Work, b"q");
    listener.subscribe_all([Kind::Done].into_iter().collect());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let hear = || {
        let next = poll_fn(|cx| listener.poll(cx));
        let heard = runtime.block_on(async { tokio::time::timeout(PATIENCE, next).await });
        heard.expect("an event arrives in time")
    };
    await_subscribers(&server, 1);
    push(&home, b"q", b"x");
    let Some(ListenEvent::Notice(work)) = hear() else { panic!("a notice") };
    assert_eq!((work.kind, &*work.queue, work.tasks), (Kind::Work, &b"q"[..], NoticeTasks::Count(1)));
    let id = ask(&home, Command::Pop(Pop::plain(Q, 1))).tasks[0].id;
    ack(&home, b"q", &id.to_string());
    let Some(ListenEvent::Notice(done)) = hear() else { panic!("a notice") };
    assert_eq!((done.kind, done.tasks), (Kind::Done, NoticeTasks::Ids([id].into())));
    server.kill9();
    let _server = serve_at(dir.path(), server.resp).start();
    assert_eq!(hear(), Some(ListenEvent::Missed));
    until("the home answers again", || matches!(push(&home, b"q", b"y"), Reply::Pushed(_)));
    assert!(matches!(hear(), Some(ListenEvent::Notice(_))));
    home.close();
    assert_eq!(hear(), None);
}

/// Waits until this many clients subscribe to the queue and to everything; polls the server, since nothing signals
/// it.
fn await_subscribers(server: &Server, count: i64) {
    let mut client = server.client();
    until("a client subscribes", || {
        let by_name = Value::Array(vec![Value::Bulk(b"sureq:work:q".to_vec()), Value::Int(count)]);
        client.say("PUBSUB NUMSUB sureq:work:q") == by_name
            && client.say("PUBSUB NUMPAT") == Value::Int(count)
    });
}

#[test]
fn a_server_in_front_of_a_server_is_refused() {
    let mut process = Launch::new(SUREQ).args(["serve", "--home", "sureq://127.0.0.1:1"]).spawn();
    assert_eq!(process.exit_code(PATIENCE), 1);
    assert!(process.stderr().contains("connect clients to it directly"), "{process}");
}

#[test]
fn a_connection_that_is_cut_anywhere_leaves_every_task_in_one_place() {
    let dir = scratch();
    let server = serve(dir.path()).args(["--durability", "none"]).start();
    let direct = open(server.resp);
    for way in [Direction::ToServer, Direction::FromServer] {
        let mut is_past_the_end = false;
        let mut cut = 0;
        while !is_past_the_end {
            let queue = format!("{way:?} {cut}").into_bytes();
            let target = Target::parse(&format!("sureq://{}", cutting_proxy(server.resp, cut, way)));
            cut += 1;
            // If the home cannot be opened, nothing was done.
            let Ok(home) = RemoteHome::open(target.expect("a URL")) else { continue };
            let first = push(&home, &queue, b"one");
            let second = push(&home, &queue, b"two");
            let queues: &[&[u8]] = &[&queue];
            let lease = LeaseAsk { ms: Some(60_000), ..LeaseAsk::NONE };
            let taken = ask(&home, Command::Pop(Pop { lease, ..Pop::plain(queues, 1) }));
            let acked = taken.tasks.first().map(|task| ack(&home, &queue, &task.receipt().to_string()));
            let pushes = [&first, &second];
            let sure = pushes.iter().filter(|reply| matches!(reply, Reply::Pushed(_))).count() as u64;
            let unsure = pushes.iter().filter(|reply| is_unknown(reply)).count() as u64;
            let done = u64::from(matches!(&acked, Some(Reply::Acked(span)) if span.len() == 1));
            let maybe_done = u64::from(acked.as_ref().is_some_and(is_unknown));
            home.close();
            let (ready, leased) = counts(&direct, &queue);
            let bounds = sure.saturating_sub(done + maybe_done)..=sure + unsure - done;
            assert!(
                bounds.contains(&(ready + leased)),
                "{way:?} cut behind {cut}: {ready} + {leased}, {first:?} {second:?} {acked:?}"
            );
            is_past_the_end = sure == 2 && done == 1;
        }
        assert!(cut > 250, "{way:?} ended after {cut} bytes");
    }
    direct.close();
}

#[test]
fn a_batch_asks_for_no_more_than_fits() {
    let dir = scratch();
    let server = serve(&dir.path().join("data")).args(["--durability", "none"]).start();
    let home = open(server.resp);
    server.client().push("q", vec![b'x'; 8 << 20]);
    let look = Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: 1 };
    let first = home.send(&[look; 30]).wait().replies.list.len();
    assert!(first <= 4, "{first} at once from an unknown queue");
    for _ in 0..3 {
        assert_eq!(home.send(&[look; 30]).wait().replies.list.len(), 1, "one reply fills a batch");
    }
    home.close();
}
