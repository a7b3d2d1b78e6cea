//! A home in a Redis of its own, and helpers for commands.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this")]

pub mod monitor;
pub mod waking;
pub mod world;

use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sureq_core::command::{
    AckScope, Block, Command, ConnId, IdForm, LeaseAsk, Pop, TaskRefs, Worker, WorkerRef,
};
use sureq_core::reply::Info;
use sureq_core::{Refusal, Replies, Reply};
use sureq_home_api::{Cleaned, Cleaning, Home as _, Payload, Ticket};
use sureq_redis::{RedisHome, Target};
use sureq_testkit::home_load::{Asking, HomeLoad};
use sureq_testkit::machine_watch::MachineWatch;
pub use sureq_testkit::proxy::{Direction, SwallowingProxy};

pub use sureq_testkit::patience::{PATIENCE, until};

pub fn open(url: &str) -> RedisHome {
    let target = Target::parse_with(url, &sureq_redis_compat::LAYOUTS).expect("a URL");
    RedisHome::open(target).expect("Redis listens")
}

pub fn run(home: &RedisHome, command: &Command<'_>) -> Replies<Payload> {
    home.send(std::slice::from_ref(command)).wait().replies
}

pub fn push(home: &RedisHome, queue: &[u8], payload: &[u8]) -> Reply {
    run(home, &Command::Push { queue, payloads: &[payload] }).list.remove(0)
}

pub fn start<'a>(home: &RedisHome, name: &'a [u8], ttl_ms: u64) -> WorkerRef<'a> {
    let started = run(home, &Command::Worker(Worker::Start { name, ttl_ms }));
    let Reply::Started(incarnation) = started.list[0] else { panic!("{:?}", started.list) };
    WorkerRef { name, incarnation }
}

/// A lease bound to a worker.
pub fn by(worker: WorkerRef<'_>) -> LeaseAsk<'_> {
    LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE }
}

/// The payloads and ids of a pop.
pub type Popped = Result<Vec<(Vec<u8>, String)>, Reply>;

pub fn popped(mut replies: Replies<Payload>) -> Popped {
    match replies.list.remove(0) {
        Reply::Tasks(_) => {
            Ok(replies.tasks.into_iter().map(|task| (task.body.to_vec(), task.id.to_string())).collect())
        }
        other => Err(other),
    }
}

pub fn pop(home: &RedisHome, queue: &[u8], count: u32) -> Popped {
    popped(run(home, &Command::Pop(Pop::plain(&[queue], count))))
}

pub fn pop_leased(home: &RedisHome, queue: &[u8], ms: u64) -> Popped {
    let lease = LeaseAsk { ms: Some(ms), ..LeaseAsk::NONE };
    popped(run(home, &Command::Pop(Pop { lease, ..Pop::plain(&[queue], 1) })))
}

pub fn pop_held_by(home: &RedisHome, queue: &[u8], conn: u64) -> Popped {
    let lease = LeaseAsk { conn: Some(ConnId(conn)), ..LeaseAsk::NONE };
    popped(run(home, &Command::Pop(Pop { lease, ..Pop::plain(&[queue], 1) })))
}

/// The layouts of other programs.
pub const FOREIGN: [&str; 3] = ["work-queue", "worqr", "redis-queue"];

/// A pop for any layout. Worqr's queues are popped from by a worker, which must have been started.
pub fn pop_in<'a>(layout: &str, queues: &'a [&'a [u8]]) -> Pop<'a> {
    let worker = (layout == "worqr").then_some(WORKER);
    Pop { lease: LeaseAsk { worker, ..LeaseAsk::NONE }, ..Pop::plain(queues, 1) }
}

/// A home in the layout of another program, from which tasks can be popped.
pub fn open_in(layout: &str, url: &str) -> RedisHome {
    let home = open(url);
    if layout == "worqr" {
        let start = Worker::Start { name: WORKER.name, ttl_ms: 600_000 };
        assert_eq!(run(&home, &Command::Worker(start)).list, [Reply::Started(0)]);
    }
    home
}

const WORKER: WorkerRef<'_> = WorkerRef { name: b"w", incarnation: 0 };

/// Starts a pop that waits without a limit.
pub fn wait_for(home: &RedisHome, queue: &[u8]) -> Ticket {
    let queues = [queue];
    let pop = Pop { block: Some(Block::Forever), ..Pop::plain(&queues, 1) };
    home.send(&[Command::Pop(pop)])
}

/// The reply of a ticket; fails if it takes too long.
pub fn answer(ticket: &Ticket) -> Replies<Payload> {
    let mut replies = None;
    until("the reply arrives", || {
        if let Poll::Ready(answer) = ticket.poll(&mut Context::from_waker(Waker::noop())) {
            replies = Some(answer.replies);
        }
        replies.is_some()
    });
    replies.expect("the reply arrived")
}

pub fn ack(home: &RedisHome, queue: &[u8], id: &str) -> Reply {
    let tasks = TaskRefs { list: &[id.as_bytes()], form: IdForm::Long };
    run(home, &Command::Ack { queue, tasks, scope: AckScope::LeasedOrLapsed }).list.remove(0)
}

pub fn info(home: &RedisHome, queue: &[u8]) -> Info {
    match run(home, &Command::Info { queue }).list.remove(0) {
        Reply::Info(info) => *info,
        other => panic!("{other:?}"),
    }
}

/// Cleans; returns the totals of all queues, or the first refusal.
pub fn clean(home: &RedisHome, queues: &[&[u8]], how: Cleaning) -> Result<Cleaned, Refusal> {
    let mut sum = Cleaned::default();
    for queue in home.clean(queues, how)?.queues {
        let Cleaned { returned, removed } = queue.outcome?;
        (sum.returned, sum.removed) = (sum.returned + returned, sum.removed + removed);
    }
    Ok(sum)
}

/// Producers and workers on these queues. Workers pop one task after the other; tasks lost by a worker are requeued
/// soon.
pub fn load(url: &str, queues: &[&[u8]]) -> HomeLoad {
    HomeLoad::new(url, queues, Asking { count: 1, block: None, lease_ms: 300, believed_ms: 300 })
}

/// Checks that the median time is very short, apart from the delay of the machine.
pub fn is_short(mut once: impl FnMut(usize) -> Duration) {
    let machine = MachineWatch::start();
    let apart = |n| {
        let late = machine.late();
        once(n).saturating_sub(machine.late().saturating_sub(late))
    };
    let mut times: Vec<Duration> = (0..21).map(apart).collect();
    times.sort_unstable();
    println!("median {:?}, worst {:?}", times[10], times[20]);
    assert!(times[10] < Duration::from_millis(50), "{times:?}");
}

/// The address of a proxy before the Redis at this port, which cuts the connection after `cut` bytes.
pub fn cutting_proxy(redis_port: u16, cut: usize, way: Direction) -> SocketAddr {
    sureq_testkit::proxy::cutting_proxy((Ipv4Addr::LOCALHOST, redis_port).into(), cut, way)
}

/// A proxy before the Redis at this port, which can make subscriptions hang.
pub fn swallowing_proxy(redis_port: u16) -> SwallowingProxy {
    SwallowingProxy::before((Ipv4Addr::LOCALHOST, redis_port).into())
}
