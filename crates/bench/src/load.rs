//! The load: producers and consumers on many connections, driven by one thread.
//!
//! A connection works in rounds. It sends up to `depth` requests with one write, and continues when all of them are
//! answered, like pipelining clients. A producer's round pushes; a consumer pops, and its next round acks the tasks.
//! Consumers request only tasks whose push was confirmed, so that a task costs every server one push, one pop and one
//! ack, and no pop is empty.

use std::collections::VecDeque;
use std::error::Error;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

use crate::account::{Account, Wrong};
use crate::connection::Connection;
use crate::dialect::{self, Dialect, Step, batches};
use crate::histogram::Histogram;
use crate::procstat::{Cost, Meter};
use crate::resp::Token;
use crate::servers::Server;

/// The limit for tasks in the server at any time. It is more than all rounds together can hold.
const WINDOW_TASKS: usize = 10_000;
/// Without a reply for this time, the server is considered stuck.
pub(crate) const STALL: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadShape {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    connections: usize,
    /// Batches per round.
    depth: usize,
    /// Tasks per batch.
    batch: usize,
}

/// The loads, from the most to the least expensive per task.
pub(crate) const SHAPES: [LoadShape; 3] = [
    LoadShape {
        name: "single",
        title: "50 connections, one command at a time",
        connections: 50,
        depth: 1,
        batch: 1,
    },
    LoadShape {
        name: "pipeline",
        title: "50 connections, pipelining 32",
        connections: 50,
        depth: 32,
        batch: 1,
    },
    LoadShape { name: "batch", title: "8 connections, batches of 100", connections: 8, depth: 1, batch: 100 },
];

impl LoadShape {
    /// The load with this name.
    pub(crate) fn named(name: &str) -> Option<LoadShape> {
        SHAPES.into_iter().find(|shape| shape.name == name)
    }

    fn round(self) -> usize {
        self.depth * self.batch
    }

    /// The number of producers: a task is one push and two other requests, so a third of the connections push.
    fn producers(self) -> usize {
        self.connections / 3
    }
}

const _: () = {
    let mut at = 0;
    while at < SHAPES.len() {
        assert!(SHAPES[at].connections * SHAPES[at].depth * SHAPES[at].batch < WINDOW_TASKS);
        at += 1;
    }
};

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) tasks: u64,
    pub(crate) cost: Cost,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) wrong: Wrong,
}

/// The next step of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadStep {
    /// Push more.
    Produce,
    /// Push no more, and end when all pushed tasks are popped and acked.
    Finish,
    /// End at once, with requests in flight.
    Abandon,
}

/// Runs a load for about `aim`, after a warm-up of a fifth of that. As many tasks are popped as are pushed, the
/// oldest first, so that a backlog in the server, which is in `account`, keeps its length.
pub(crate) fn run(
    server: &Server,
    shape: LoadShape,
    aim: Duration,
    account: &mut Account,
) -> Result<Measured, Box<dyn Error>> {
    let mut load = Load::connect(server, shape, account)?;
    load.phase(&mut lasting(aim / 5))?;
    load.latencies = Histogram::new();
    let acked = load.account.acked;
    let meter = Meter::start(server.pid())?;
    load.phase(&mut lasting(aim))?;
    let cost = meter.stop()?;
    let left = load.count()?;
    Ok(Measured {
        tasks: load.account.acked - acked,
        cost,
        p50: load.latencies.percentile(50),
        p99: load.latencies.percentile(99),
        wrong: load.account.close(left),
    })
}

/// Runs a load until `next` ends it, which is called after each batch of events.
pub(crate) fn run_until(
    server: &Server,
    shape: LoadShape,
    account: &mut Account,
    next: &mut dyn FnMut() -> Result<LoadStep, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    Load::connect(server, shape, account)?.phase(next)
}

fn lasting(aim: Duration) -> impl FnMut() -> Result<LoadStep, Box<dyn Error>> {
    let end = Instant::now() + aim;
    move || Ok(if Instant::now() < end { LoadStep::Produce } else { LoadStep::Finish })
}

/// A connection and its round.
struct Worker {
    connection: Connection,
    round: Round,
    /// The requests that ack the tasks popped in this round.
    acks: Vec<u8>,
    /// The numbers of the tasks to be acked.
    numbers: Vec<u64>,
}

/// Requests that were sent together.
struct Round {
    step: Step,
    tasks: usize,
    /// Of a push: the number of its first task.
    first: u64,
    /// Tasks in the replies so far.
    done: usize,
    /// The number of missing replies.
    replies: usize,
    /// The number of replies to the requests in `acks`.
    acks: usize,
    sent: Instant,
}

struct Load<'a> {
    shape: LoadShape,
    dialect: &'static dyn Dialect,
    poll: Poll,
    workers: Vec<Worker>,
    idle_producers: VecDeque<usize>,
    idle_consumers: VecDeque<usize>,
    producing: bool,
    /// Confirmed tasks that are not requested yet.
    available: usize,
    /// Tasks that were sent to the server, and are not acked yet.
    in_server: usize,
    account: &'a mut Account,
    latencies: Histogram,
    tokens: Vec<Token>,
}

impl<'a> Load<'a> {
    fn connect(server: &Server, shape: LoadShape, account: &'a mut Account) -> Result<Self, Box<dyn Error>> {
        let poll = Poll::new()?;
        let mut workers = Vec::new();
        for index in 0..shape.connections {
            let connection = Connection::open(server.address, server.dialect, poll.registry(), index)?;
            let step = if index < shape.producers() { Step::Push } else { Step::Ack };
            let round =
                Round { step, tasks: 0, first: 0, done: 0, replies: 0, acks: 0, sent: Instant::now() };
            workers.push(Worker { connection, round, acks: Vec::new(), numbers: Vec::new() });
        }
        Ok(Load {
            shape,
            dialect: server.dialect,
            poll,
            workers,
            idle_producers: (0..shape.producers()).collect(),
            idle_consumers: (shape.producers()..shape.connections).collect(),
            producing: false,
            available: 0,
            in_server: 0,
            account,
            latencies: Histogram::new(),
            tokens: Vec::new(),
        })
    }

    /// Pushes as long as `next` says so, and ends when all pushed tasks are acked.
    fn phase(
        &mut self,
        next: &mut dyn FnMut() -> Result<LoadStep, Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        let mut events = Events::with_capacity(self.shape.connections);
        self.producing = true;
        self.dispatch()?;
        while self.producing || self.idle_producers.len() + self.idle_consumers.len() < self.workers.len() {
            wait(&mut self.poll, &mut events)?;
            if self.producing {
                match next()? {
                    LoadStep::Produce => {}
                    LoadStep::Finish => self.producing = false,
                    LoadStep::Abandon => return Ok(()),
                }
            }
            for event in &events {
                self.advance(event.token().0)?;
                self.dispatch()?;
            }
            self.dispatch()?;
        }
        Ok(())
    }

    /// Starts the next rounds of idle connections. Rounds are full, except for the last ones of a phase.
    fn dispatch(&mut self) -> Result<(), Box<dyn Error>> {
        let full = self.shape.round();
        let least = if self.producing { full } else { 1 };
        while self.available >= least {
            let Some(index) = self.idle_consumers.pop_front() else { break };
            let tasks = full.min(self.available);
            self.available -= tasks;
            let output = &mut self.workers[index].connection.output;
            for count in batches(tasks, self.shape.batch) {
                self.dialect.pop(output, index, count);
            }
            self.send(index, Step::Pop, tasks, None)?;
        }
        while self.producing && self.in_server + full <= WINDOW_TASKS {
            let Some(index) = self.idle_producers.pop_front() else { break };
            self.in_server += full;
            let output = &mut self.workers[index].connection.output;
            let first = self.account.made();
            for count in batches(full, self.shape.batch) {
                self.dialect.push(output, index, count, self.account);
            }
            self.send(index, Step::Push, full, None)?;
            self.workers[index].round.first = first;
        }
        Ok(())
    }

    /// Sends the requests of a round that are in the output of a connection.
    fn send(
        &mut self,
        index: usize,
        step: Step,
        tasks: usize,
        replies: Option<usize>,
    ) -> Result<(), Box<dyn Error>> {
        let replies =
            replies.unwrap_or_else(|| tasks.div_ceil(self.dialect.tasks_per_reply(step, self.shape.batch)));
        let worker = &mut self.workers[index];
        worker.round = Round { step, tasks, first: 0, done: 0, replies, acks: 0, sent: Instant::now() };
        Ok(worker.connection.flush()?)
    }

    /// Reads the replies of a connection, and ends its round with the last one.
    fn advance(&mut self, index: usize) -> Result<(), Box<dyn Error>> {
        let Worker { connection, round, acks, numbers } = &mut self.workers[index];
        if round.replies == 0 {
            return Ok(());
        }
        connection.flush()?;
        connection.fill()?;
        let now = Instant::now();
        while round.replies > 0
            && let Some(bytes) = connection.next_reply(&mut self.tokens)?
        {
            let (dialect, tokens) = (self.dialect, &self.tokens);
            let asked = dialect.tasks_per_reply(round.step, self.shape.batch).min(round.tasks - round.done);
            let done = match round.step {
                Step::Push => dialect.pushed(bytes, tokens, asked).then_some(asked),
                Step::Ack => {
                    dialect.acked(tokens, (round.replies - 1).is_multiple_of(dialect.replies_per_ack()))
                }
                Step::Pop => dialect.popped(index, bytes, tokens, acks, &mut |payload| {
                    numbers.extend(self.account.deliver(payload));
                }),
            };
            let done = done.ok_or_else(|| dialect::misfit(bytes, tokens, round.step.name()))?;
            round.acks += if round.step == Step::Pop && done > 0 { dialect.replies_per_ack() } else { 0 };
            round.done += done;
            round.replies -= 1;
            self.latencies.record(now - round.sent, 1);
        }
        if round.replies == 0 { self.finish(index) } else { Ok(()) }
    }

    fn finish(&mut self, index: usize) -> Result<(), Box<dyn Error>> {
        let Worker { connection, round, acks, numbers } = &mut self.workers[index];
        let (tasks, done, requests) = (round.tasks, round.done, round.acks);
        match round.step {
            Step::Push => {
                self.account.confirm(round.first, tasks as u64);
                self.available += tasks;
                self.idle_producers.push_back(index);
            }
            Step::Pop => {
                // A confirmed task that was not delivered is lost, unless another pop gets it.
                self.in_server = self.in_server.saturating_sub(tasks.saturating_sub(done));
                if requests > 0 {
                    // The output is empty, since all requests were answered.
                    std::mem::swap(&mut connection.output, acks);
                    return self.send(index, Step::Ack, done, Some(requests));
                }
                self.idle_consumers.push_back(index);
            }
            Step::Ack => {
                self.account.ack(numbers, tasks as u64, done as u64);
                numbers.clear();
                self.in_server = self.in_server.saturating_sub(tasks);
                self.idle_consumers.push_back(index);
            }
        }
        Ok(())
    }

    /// The number of tasks in the server, according to the server.
    fn count(&mut self) -> Result<u64, Box<dyn Error>> {
        let mut events = Events::with_capacity(self.shape.connections);
        let connection = &mut self.workers[0].connection;
        self.dialect.count(&mut connection.output, 0);
        connection.flush()?;
        loop {
            wait(&mut self.poll, &mut events)?;
            connection.fill()?;
            if let Some(bytes) = connection.next_reply(&mut self.tokens)? {
                let count = self.dialect.counted(bytes, &self.tokens);
                return Ok(count.ok_or_else(|| dialect::misfit(bytes, &self.tokens, "count"))?);
            }
        }
    }
}

/// Waits for the next events.
fn wait(poll: &mut Poll, events: &mut Events) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    loop {
        match poll.poll(events, Some(STALL)) {
            Ok(()) if events.is_empty() && start.elapsed() >= STALL => {
                return Err(format!("the server has not answered for {} s", STALL.as_secs()).into());
            }
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
}
