//! A real Redis, or a cluster, with a manual clock.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use sureq_core::Replies;
use sureq_core::command::{Command, ConnId};
use sureq_home_api::{Answer, Home as _, Payload, Ticket};
use sureq_redis::{Clock, RedisHome, Target};

use super::Candidate;
use super::local::{Home, Local};
use crate::manual_clock::ManualClock;
use crate::redis_cluster::RedisCluster;
use crate::redis_server::RedisServer;
use crate::scenario::Need;

/// Sureq's own layout on one Redis.
pub const REDIS: Candidate = Candidate {
    name: "redis",
    open: |watch| Box::new(Local::new(RedisSubject::on(Servers::One(RedisServer::start()), 1), watch)),
    can: |_| true,
    otherwise: &[],
};

/// The same with two processes, which execute batches in turn.
pub const REDIS_PAIR: Candidate = Candidate {
    name: "two on one redis",
    open: |watch| Box::new(Local::new(RedisSubject::on(Servers::One(RedisServer::start()), 2), watch)),
    can: |_| true,
    otherwise: &[],
};

/// Queues in a cluster, all of them in one slot.
pub const CLUSTER: Candidate = Candidate {
    name: "cluster, one slot",
    open: |watch| Box::new(Local::new(RedisSubject::on(Servers::cluster("{p}"), 1), watch)),
    can: |_| true,
    otherwise: &[],
};

/// Queues in a cluster, each in its own slot.
pub const SPREAD: Candidate = Candidate {
    name: "cluster",
    open: |watch| Box::new(Local::new(RedisSubject::on(Servers::cluster("p"), 1), watch)),
    can: |need| need != Need::Together,
    otherwise: &[],
};

/// The same on Valkey.
pub const VALKEY: Candidate = Candidate {
    name: "valkey",
    open: |watch| Box::new(Local::new(RedisSubject::on(Servers::One(RedisServer::start_valkey()), 1), watch)),
    can: |_| true,
    otherwise: &[],
};

/// A manual clock: time passes for all homes; only the wall clock can be set.
#[derive(Default)]
struct MovedClock {
    passed: AtomicU64,
    set_by: AtomicI64,
}

impl Clock for MovedClock {
    fn monotonic_ms(&self) -> u64 {
        self.passed.load(Ordering::Acquire)
    }

    fn wall_ms(&self) -> Option<u64> {
        let passed = ManualClock::START_MS + self.monotonic_ms();
        passed.checked_add_signed(self.set_by.load(Ordering::Acquire))
    }
}

/// The servers that a scenario uses.
enum Servers {
    One(RedisServer),
    /// A cluster that all scenarios of a test share, each with a prefix of its own.
    Cluster(Rc<RedisCluster>, String),
}

thread_local! {
    static SHARED: OnceCell<Rc<RedisCluster>> = const { OnceCell::new() };
    static SCENARIOS: Cell<u32> = const { Cell::new(0) };
}

impl Servers {
    fn cluster(prefix: &str) -> Self {
        let cluster = SHARED.with(|shared| Rc::clone(shared.get_or_init(|| Rc::new(RedisCluster::start()))));
        SCENARIOS.set(SCENARIOS.get() + 1);
        Self::Cluster(cluster, format!("{prefix}{}:", SCENARIOS.get()))
    }

    fn url(&self) -> String {
        match self {
            Self::One(server) => server.url(),
            Self::Cluster(cluster, prefix) => format!("{}?prefix={prefix}", cluster.url()),
        }
    }

    fn check(&self) {
        match self {
            Self::One(server) => server.check("sureq:"),
            Self::Cluster(cluster, prefix) => cluster.check(prefix),
        }
    }

    /// The closest equivalent of a restart of a cluster: the other half of its servers takes over.
    fn restart(&mut self) {
        match self {
            Self::One(server) => server.restart(),
            Self::Cluster(cluster, _) => cluster.fail_over(),
        }
    }
}

struct RedisSubject {
    server: Servers,
    clock: Arc<MovedClock>,
    homes: Vec<RedisHome>,
    last_waiting: u64,
    tickets: BTreeMap<u64, Ticket>,
    /// Which of the homes has executed the last batch.
    turn: usize,
}

impl RedisSubject {
    fn on(server: Servers, homes: usize) -> Self {
        let clock = Arc::new(MovedClock::default());
        let homes = (0..homes).map(|_| open(&server, &clock)).collect();
        Self { server, clock, homes, last_waiting: 0, tickets: BTreeMap::new(), turn: 0 }
    }
}

fn open(server: &Servers, clock: &Arc<MovedClock>) -> RedisHome {
    let target = Target::parse(&server.url()).expect("a URL");
    RedisHome::open_by(target, Arc::clone(clock) as _).expect("Redis listens")
}

fn poll(ticket: &Ticket) -> Option<Replies<Payload>> {
    match ticket.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Answer { replies, .. }) => Some(replies),
        Poll::Pending => None,
    }
}

impl RedisSubject {
    /// Makes all homes try their waiting pops, as messages would.
    fn look(&self) {
        self.homes.iter().for_each(RedisHome::look);
    }
}

impl Home for RedisSubject {
    fn execute(&mut self, commands: &[Command<'_>], replies: &mut Replies<Payload>) -> Option<u64> {
        let mut done = 0;
        self.turn = (self.turn + 1) % self.homes.len();
        while done < commands.len() {
            let submitted = self.homes[self.turn].submit(&commands[done..], replies);
            let ticket = submitted.into_ticket().expect("a Redis answers later");
            // The client that just sent a request is served before others are woken.
            self.homes[self.turn].look();
            self.homes.iter().enumerate().filter(|(n, _)| *n != self.turn).for_each(|(_, home)| home.look());
            let Some(answer) = poll(&ticket) else {
                self.last_waiting += 1;
                self.tickets.insert(self.last_waiting, ticket);
                return Some(self.last_waiting);
            };
            done += answer.list.len();
            replies.append(answer);
        }
        self.server.check();
        None
    }

    fn answer(&mut self, waiting: u64) -> Option<Replies<Payload>> {
        self.look();
        let replies = poll(self.tickets.get(&waiting)?)?;
        self.tickets.remove(&waiting);
        Some(replies)
    }

    fn leave(&mut self, waiting: u64) {
        self.tickets.remove(&waiting);
        self.look();
    }

    fn close_conn(&mut self, conn: ConnId) {
        self.homes.iter().for_each(|home| home.close_conn(conn));
        self.look();
    }

    fn pass(&mut self, ms: u64) {
        self.clock.passed.fetch_add(ms, Ordering::AcqRel);
        self.look();
    }

    fn check(&mut self) {
        self.server.check();
    }

    fn jump(&mut self, ms: i64) {
        self.clock.set_by.fetch_add(ms, Ordering::AcqRel);
        self.look();
    }

    fn restart(&mut self) {
        self.tickets.clear();
        self.homes.iter().for_each(RedisHome::close);
        self.server.restart();
        self.homes.iter_mut().for_each(|home| *home = open(&self.server, &self.clock));
        // Commands that a home sends after the restart of its server are sent now.
        self.look();
    }
}

impl Drop for RedisSubject {
    fn drop(&mut self) {
        self.tickets.clear();
        self.homes.iter().for_each(RedisHome::close);
    }
}
