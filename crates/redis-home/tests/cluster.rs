//! A cluster: the names of queues determine their slots, and servers that die, hang or hand slots over lose nothing.

mod support;

use std::collections::BTreeSet;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use redis::cmd;
use support::monitor::Monitor;
use support::{ack, answer, info, open, open_in, pop, pop_held_by, pop_in, push, run, until, wait_for};
use sureq_core::command::{Block, Command, ConnId, LeaseAsk, Pop, Worker};
use sureq_core::settings::{Change, Changes};
use sureq_core::{Refusal, Reply};
use sureq_home_api::{Cleaned, Cleaning, Home as _, Ticket};
use sureq_redis::{RedisHome, Target};
use sureq_testkit::redis_cluster::RedisCluster;
use sureq_testkit::redis_server::RedisServer;

/// The key with the payloads of the queue `q`.
const KEY: &str = "sureq:q:{q}:body";

const PAUSE: Duration = Duration::from_millis(700);

/// The payloads of a kilobyte in one push: enough that the lag of a replica does not fit into socket buffers.
const PUSHED_AT_ONCE: u64 = 50;

/// Pushes numbered payloads, a few batches at a time, and records which are confirmed.
struct Pusher<'a> {
    home: &'a RedisHome,
    next: u64,
    under_way: Vec<(u64, Ticket)>,
    confirmed: BTreeSet<u64>,
}

impl Pusher<'_> {
    fn push(&mut self) {
        let payloads: Vec<Vec<u8>> =
            (self.next..self.next + PUSHED_AT_ONCE).map(|n| format!("{n:01024}").into_bytes()).collect();
        let payloads: Vec<&[u8]> = payloads.iter().map(|payload| &payload[..]).collect();
        let ticket = self.home.send(&[Command::Push { queue: b"q", payloads: &payloads }]);
        self.under_way.push((self.next, ticket));
        self.next += PUSHED_AT_ONCE;
    }

    /// Collects the replies that have arrived.
    fn note(&mut self) {
        let confirmed = &mut self.confirmed;
        self.under_way.retain(|(first, ticket)| {
            let Poll::Ready(answer) = ticket.poll(&mut Context::from_waker(Waker::noop())) else {
                return true;
            };
            match &answer.replies.list[0] {
                Reply::Pushed(_) => confirmed.extend(*first..first + PUSHED_AT_ONCE),
                Reply::Refused(Refusal::Unknown { .. } | Refusal::Unavailable { .. }) => {}
                other => panic!("{other:?}"),
            }
            false
        });
    }

    fn push_for(&mut self, time: Duration) {
        let since = Instant::now();
        while since.elapsed() < time {
            if self.under_way.len() < 4 {
                self.push();
            }
            self.note();
            std::thread::yield_now();
        }
    }

    fn until_confirmed(&mut self) {
        let before = self.confirmed.len();
        until("pushes are confirmed", || {
            if self.under_way.is_empty() {
                self.push();
            }
            self.note();
            self.confirmed.len() > before
        });
        until("none is under way", || {
            self.note();
            self.under_way.is_empty()
        });
    }
}

/// The tasks after five primaries died while their replicas lagged behind.
struct Outcome {
    confirmed: usize,
    lost: usize,
    /// Deliveries of a primary that died, and of its replacement.
    receipts: Vec<(BTreeSet<String>, BTreeSet<String>)>,
}

fn five_failovers(options: &str) -> Outcome {
    let mut cluster = RedisCluster::start();
    let home = open(&format!("{}{options}", cluster.url()));
    let (under_way, confirmed) = (Vec::new(), BTreeSet::new());
    let mut pusher = Pusher { home: &home, next: 0, under_way, confirmed };
    let mut receipts = Vec::new();
    for _ in 0..5 {
        let (primary, replica) = cluster.owners(KEY);
        let replica = replica.expect("it has a replica");
        pusher.until_confirmed();
        // Some pushes are in progress up to the last moment.
        pusher.push_for(PAUSE / 3);
        cluster.server(replica).suspend();
        pusher.push_for(PAUSE);
        let before = deliver(&home);
        cluster.server_mut(primary).kill();
        cluster.server(replica).resume();
        until("the replica takes over", || cluster.owners(KEY).0 == replica);
        receipts.push((before, deliver(&home)));
        cluster.server_mut(primary).start_again();
        cluster.settle();
        pusher.until_confirmed();
    }
    let confirmed = std::mem::take(&mut pusher.confirmed);
    let there = take_all(&home);
    home.close();
    cluster.check("sureq:");
    let lost = confirmed.iter().filter(|n| !there.contains(n)).count();
    Outcome { confirmed: confirmed.len(), lost, receipts }
}

/// Takes some tasks under a short lease; returns their receipts.
fn deliver(home: &RedisHome) -> BTreeSet<String> {
    let lease = LeaseAsk { ms: Some(1), ..LeaseAsk::NONE };
    let replies = run(home, &Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 20) }));
    replies.tasks.iter().map(|task| task.receipt().to_string()).collect()
}

/// Takes and finishes all tasks; returns their numbers.
fn take_all(home: &RedisHome) -> BTreeSet<u64> {
    let mut there = BTreeSet::new();
    until("all are taken", || {
        while let Ok(tasks) = pop(home, b"q", 500)
            && !tasks.is_empty()
        {
            for (payload, id) in tasks {
                let digits = payload.iter().position(|&c| c != b'0').map_or(&b"0"[..], |at| &payload[at..]);
                there.insert(sureq_core::id::decimal(digits).expect("a payload is a number"));
                ack(home, b"q", &id);
            }
        }
        let left = info(home, b"q");
        left.ready + left.leased + left.delayed == 0
    });
    there
}

#[test]
fn five_failovers_lose_no_confirmed_task_with_replication() {
    let Outcome { confirmed, lost, .. } = five_failovers("?durability=replicated");
    assert_eq!(lost, 0, "of {confirmed}");
    assert!(confirmed >= 1_000, "{confirmed}");
}

/// The control: without waiting for replicas, tasks are lost. Even then no receipt is repeated.
#[test]
fn five_failovers_lose_tasks_without_replication_and_repeat_no_receipt() {
    let Outcome { confirmed, lost, receipts } = five_failovers("");
    assert!(lost > 0, "of {confirmed}");
    let id = |receipt: &String| receipt.split('@').next().map(str::to_owned);
    let mut again = 0;
    for (before, after) in &receipts {
        assert!(before.is_disjoint(after), "{before:?} {after:?}");
        let ids: BTreeSet<_> = before.iter().map(id).collect();
        again += after.iter().map(id).filter(|id| ids.contains(id)).count();
    }
    assert!(again > 0, "some tasks must be delivered again, since the test is about those");
}

#[test]
fn a_primary_that_hangs_is_replaced_by_its_replica() {
    let cluster = RedisCluster::start();
    let load = support::load(&format!("{}?durability=replicated", cluster.url()), &[b"q"]);
    let home = open(&cluster.url());
    // In the same slot as the load.
    let pushed = || {
        let ticket = home.send(&[Command::Push { queue: b"q}2", payloads: &[b"x"] }]);
        matches!(answer(&ticket).list[0], Reply::Pushed(_))
    };
    assert!(pushed());
    load.run(2, || {
        load.until_confirmed(100);
        let (primary, replica) = cluster.owners(KEY);
        cluster.server(primary).suspend();
        let replica = replica.expect("it has one");
        until("the replica takes over", || cluster.owners_as_seen_by(replica, KEY).0 == replica);
        until("pushes succeed though the old primary still hangs", pushed);
        cluster.server(primary).resume();
        load.until_confirmed(100);
    });
    home.close();
    cluster.settle();
    load.finish();
    cluster.check("sureq:");
}

/// Names of queues whose slots are among the first, which an operator moves first.
fn names_in_first_slots(cluster: &RedisCluster, slots: i64, count: usize) -> Vec<Vec<u8>> {
    let mut admin = cluster.server(0).connect();
    let mut is_first = move |name: &String| {
        let slot: i64 = cmd("CLUSTER").arg("KEYSLOT").arg(name).query(&mut admin).expect("it answers");
        slot < slots
    };
    let names = (0..).map(|n| format!("jobs{n}")).filter(move |name| is_first(name));
    names.take(count).map(String::into_bytes).collect()
}

#[test]
fn slots_that_move_under_load_keep_all_tasks() {
    let cluster = RedisCluster::start();
    let names = names_in_first_slots(&cluster, 60, 12);
    let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    let (from, _) = cluster.owners(std::str::from_utf8(names[0]).expect("a name"));
    let to = cluster.owners("{q2}").0;
    assert_ne!(from, to, "two servers");
    let load = support::load(&cluster.url(), &names);
    load.run(2, || {
        for round in 0..4 {
            load.until_confirmed(50);
            if round % 2 == 0 { cluster.reshard(60, from, to) } else { cluster.reshard(60, to, from) }
        }
        load.until_confirmed(50);
    });
    load.finish();
    cluster.check("sureq:");
}

/// Queues of which each of the three servers has one.
const QUEUES: [&[u8]; 3] = [b"b", b"a", b"c"];

#[test]
fn pops_over_queues_of_several_slots_keep_the_order_of_queues() {
    let cluster = RedisCluster::start();
    let (home, other) = (open(&cluster.url()), open(&cluster.url()));
    let servers: BTreeSet<usize> =
        QUEUES.map(|queue| cluster.owners(std::str::from_utf8(queue).expect("a name")).0).into();
    assert_eq!(servers.len(), 3, "the queues lie on several servers");
    for queue in QUEUES {
        for payload in [b"1", b"2"] {
            assert!(matches!(push(&other, queue, payload), Reply::Pushed(_)));
        }
    }
    let replies = run(&home, &Command::Pop(Pop::plain(&QUEUES, 5)));
    let taken: Vec<(u32, &[u8])> = replies.tasks.iter().map(|task| (task.queue, &task.body[..])).collect();
    assert_eq!(taken, [(0, &b"1"[..]), (0, b"2"), (1, b"1"), (1, b"2"), (2, b"1")]);
    assert_eq!(run(&home, &Command::Exists { queues: &[b"a", b"b", b"none"] }).list, [Reply::Count(2)]);
    assert_eq!(run(&home, &Command::Size).list, [Reply::Count(3)]);
    let listed = run(&home, &Command::Queues { pattern: None, cursor: 0, count: 10 });
    let names: Vec<&[u8]> = listed.queues.iter().map(|row| &row.name[..]).collect();
    assert_eq!(names, QUEUES);
    let ttl = || -> i64 {
        let mut owner = cluster.server(cluster.owners("a").0).connect();
        cmd("TTL").arg("sureq:s:{a}:store").query(&mut owner).expect("it answers")
    };
    assert_eq!(ttl(), -1, "a store with tasks stays");
    assert_eq!(run(&home, &Command::Drop { queues: &QUEUES }).list, [Reply::Count(3)]);
    assert!(ttl() > 0, "a store without tasks expires");
    let tickets = QUEUES.map(|queue| wait_for(&home, queue));
    until("all wait", || home.waiters() == 3);
    for (queue, ticket) in QUEUES.iter().zip(&tickets) {
        push(&other, queue, queue);
        assert_eq!(answer(ticket).tasks[0].body, *queue);
    }
    cluster.check("sureq:");
    home.close();
    other.close();
}

/// KEYS has no cursor to continue from: it asks for all queues at once.
#[test]
fn all_queues_are_listed_however_many_slot_tags_they_have() {
    let cluster = RedisCluster::start();
    let home = open(&cluster.url());
    let mut names: BTreeSet<String> = (0..500).map(|n| format!("q{n}")).collect();
    // More queues of one slot tag than one script lists.
    names.extend((0..300).map(|n| format!("{{q7}}{n}")));
    push_to_each(&home, &names);
    let list = |cursor, count| {
        let replies = run(&home, &Command::Queues { pattern: None, cursor, count });
        let Reply::Queues { cursor, .. } = replies.list[0] else { panic!("{:?}", replies.list) };
        let rows = replies.queues.iter().map(|row| String::from_utf8_lossy(&row.name).into_owned());
        (cursor, rows.collect::<Vec<String>>())
    };
    let (cursor, all) = list(0, u32::MAX);
    assert_eq!((cursor, all.len()), (0, names.len()));
    assert!(all.into_iter().collect::<BTreeSet<_>>() == names, "each queue once");
    // A cursor continues where the last page ended, also after a page of several calls.
    let (cursor, mut paged) = list(0, 450);
    assert!(cursor != 0, "fifty slot tags are left");
    let (end, rest) = list(cursor, 1_000);
    paged.extend(rest);
    assert_eq!((end, paged.len()), (0, names.len()));
    assert!(paged.into_iter().collect::<BTreeSet<_>>() == names, "each queue once");
    assert_eq!(run(&home, &Command::Size).list, [Reply::Count(names.len() as u64)]);
    home.close();
}

fn push_to_each(home: &RedisHome, names: &BTreeSet<String>) {
    let pushes: Vec<Command<'_>> =
        names.iter().map(|queue| Command::Push { queue: queue.as_bytes(), payloads: &[b"x"] }).collect();
    let mut done = 0;
    while done < pushes.len() {
        done += home.send(&pushes[done..]).wait().replies.list.len();
    }
}

#[test]
fn commands_that_span_slots_are_refused_by_name_unless_the_prefix_has_a_tag() {
    let cluster = RedisCluster::start();
    let home = open(&cluster.url());
    let (far, near) = ([Change::DeadLetter(b"b")], [Change::DeadLetter(b"{x}b")]);
    let to_far = Command::Config { queue: b"a", changes: Changes::List(&far) };
    let to_near = Command::Config { queue: b"{x}a", changes: Changes::List(&near) };
    let start = Command::Worker(Worker::Start { name: b"w", ttl_ms: 1_000 });
    let refused = |home: &RedisHome, command: &Command<'_>| match run(home, command).list.remove(0) {
        Reply::Refused(no) => Some(no.to_string()),
        _ => None,
    };
    assert!(
        refused(&home, &start).is_some_and(|why| why.contains("WORKER") && why.contains("prefix={sureq}:"))
    );
    let why = refused(&home, &to_far);
    assert!(why.is_some_and(|why| why.contains("DEAD-LETTER")));
    assert_eq!(refused(&home, &to_near), None);
    home.close();
    let home = open(&format!("{}?prefix={{sureq}}:", cluster.url()));
    assert_eq!(refused(&home, &start), None);
    assert_eq!(refused(&home, &to_far), None);
    home.close();
}

#[test]
fn a_library_that_a_server_lost_is_loaded_there_again() {
    let cluster = RedisCluster::start();
    let home = open(&cluster.url());
    for queue in QUEUES {
        push(&home, queue, b"x");
    }
    for at in 0..6 {
        // Replicas refuse; they get the commands from their primaries.
        let _ = cmd("FUNCTION").arg("FLUSH").exec(&mut cluster.server(at).connect());
    }
    assert_eq!(QUEUES.map(|queue| pop(&home, queue, 9).map_or(0, |tasks| tasks.len())), [1, 1, 1]);
    home.close();
}

#[test]
fn keys_of_other_programs_need_a_slot_tag() {
    let cluster = RedisCluster::start();
    for layout in ["work-queue", "worqr"] {
        let url = format!("{}?layout={layout}", cluster.url());
        assert!(
            Target::parse_with(&url, &sureq_redis_compat::LAYOUTS)
                .is_err_and(|bad| bad.to_string().contains("prefix={jobs}:"))
        );
        let url = format!("{url}&prefix={{{layout}}}");
        let (home, other) = (open_in(layout, &url), open(&url));
        let pop = Pop { block: Some(Block::Forever), ..pop_in(layout, &[b"q"]) };
        let ticket = home.send(&[Command::Pop(pop)]);
        until("it waits", || home.waiters() == 1);
        assert!(matches!(push(&other, b"q", b"x"), Reply::Pushed(_) | Reply::PushedForeign(_)));
        let replies = answer(&ticket);
        let id = replies.tasks[0].foreign_id.clone().expect("foreign layouts have ids as text");
        let cleaned = other.clean(&[], Cleaning::Deep).expect("it is cleaned");
        assert!(cleaned.queues.iter().all(|queue| queue.outcome == Ok(Cleaned::default())), "{cleaned:?}");
        let acked = ack(&other, b"q", &String::from_utf8_lossy(&id));
        assert!(matches!(acked, Reply::Acked(span) if span.len() == 1));
        home.close();
        other.close();
    }
}

/// How many messages of other servers one server has received so far.
fn messages_received(server: &RedisServer) -> u64 {
    let info: String = cmd("CLUSTER").arg("INFO").query(&mut server.connect()).expect("it answers");
    let mut lines =
        info.lines().filter_map(|line| line.strip_prefix("cluster_stats_messages_publish_received:"));
    lines.next().map_or(0, |count| count.trim().parse().expect("a number"))
}

/// A cluster passes every message on to all its servers, so a push sends only one, and none while its queue is
/// paused.
#[test]
fn a_push_is_one_message_to_every_other_server_and_none_while_its_queue_is_paused() {
    let cluster = RedisCluster::start();
    let home = open(&cluster.url());
    let (owner, replica) = cluster.owners("sureq:q:{q}");
    let third = (0..6).find(|at| *at != owner && Some(*at) != replica).expect("there are six");
    let before = messages_received(cluster.server(third));
    let heard = |count: u64| {
        // With a superfluous message the numbers would differ endlessly.
        until("all messages are received", || messages_received(cluster.server(third)) == before + count);
    };
    for _ in 0..50 {
        push(&home, b"q", b"x");
    }
    heard(50);
    run(&home, &Command::Pause { queue: b"q" });
    for _ in 0..50 {
        push(&home, b"q", b"x");
    }
    run(&home, &Command::Resume { queue: b"q" });
    push(&home, b"q", b"last");
    heard(52);
    home.close();
}

/// `UNAVAILABLE` would mean that nothing was done.
#[test]
fn a_drop_of_which_one_server_did_its_part_is_unknown() {
    let mut cluster = RedisCluster::start_with(&["--cluster-require-full-coverage", "no"]);
    let home = open(&cluster.url());
    let (lost, replica) = cluster.owners("sureq:q:{a}:body");
    let names: Vec<String> = (0..100).map(|n| format!("q{n}")).collect();
    let living = names.iter().find(|name| cluster.owners(&format!("sureq:q:{{{name}}}:body")).0 != lost);
    let living = living.expect("another server has some").as_bytes();
    push(&home, living, b"x");
    push(&home, b"a", b"x");
    // No replica takes over.
    cluster.server_mut(replica.expect("it has one")).kill();
    cluster.server_mut(lost).kill();
    let drop_both = Command::Drop { queues: &[living, b"a"] };
    let first = run(&home, &drop_both).list;
    assert!(matches!(first[..], [Reply::Refused(Refusal::Unknown { .. })]), "{first:?}");
    assert_eq!(run(&home, &Command::Exists { queues: &[living] }).list, [Reply::Count(0)]);
    home.close();
}

/// Connections that were closed while a server is away are ended later. Meanwhile the heartbeat reaches the others.
#[test]
fn closed_connections_of_a_server_that_is_away_delay_no_heartbeat() {
    /// Each attempt to end one of them takes three seconds.
    const CLOSED: u64 = 10;
    let mut cluster = RedisCluster::start_with(&["--cluster-require-full-coverage", "no"]);
    let home = open(&cluster.url());
    let names: Vec<String> = (0..100).map(|n| format!("q{n}")).collect();
    let owners = |name: &String| cluster.owners(&format!("sureq:q:{{{name}}}:body"));
    let (lost, replica) = owners(&names[0]);
    let living = names.iter().find(|name| owners(name).0 != lost).expect("another server has some");
    let mut monitor = Monitor::new(cluster.server(owners(living).0));
    for conn in 0..CLOSED {
        push(&home, names[0].as_bytes(), b"x");
        assert_eq!(pop_held_by(&home, names[0].as_bytes(), conn).expect("a pop").len(), 1);
    }
    push(&home, living.as_bytes(), b"x");
    assert_eq!(pop_held_by(&home, living.as_bytes(), CLOSED).expect("a pop").len(), 1);
    // No replica takes over.
    cluster.server_mut(replica.expect("it has one")).kill();
    cluster.server_mut(lost).kill();
    (0..CLOSED).for_each(|conn| home.close_conn(ConnId(conn)));
    let mut beaten = Instant::now();
    for n in 0..3 {
        monitor.wait_for("home");
        println!("a heartbeat after {:?}", beaten.elapsed());
        // It counts as silent after fifteen seconds. A heartbeat waits three seconds for the server that is away.
        assert!(n == 0 || beaten.elapsed() < Duration::from_secs(15), "after {:?}", beaten.elapsed());
        beaten = Instant::now();
    }
    home.close();
}
