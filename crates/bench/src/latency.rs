//! Measures the time from a push to the delivery to a waiting consumer.
//!
//! One producer pushes at a fixed rate, whether earlier pushes are answered or not. One consumer is blocked in a pop;
//! a delivery is acked together with the next blocking pop. Both run in one thread, so that one clock measures both
//! ends.

use std::collections::VecDeque;
use std::error::Error;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

use crate::account::Account;
use crate::connection::Connection;
use crate::dialect::{self, Dialect};
use crate::histogram::Histogram;
use crate::load::{Measured, STALL};
use crate::procstat::Meter;
use crate::resp::Token;
use crate::servers::Server;

const PRODUCER: usize = 0;
const CONSUMER: usize = 1;

/// Pushes `rate` tasks a second for about `aim`.
pub(crate) fn run(server: &Server, rate: u32, aim: Duration, salt: u64) -> Result<Measured, Box<dyn Error>> {
    let mut pair = Pair::connect(server, salt)?;
    let meter = Meter::start(server.pid())?;
    pair.drive(Duration::from_secs(1) / rate, aim)?;
    Ok(Measured {
        tasks: pair.account.acked,
        cost: meter.stop()?,
        p50: pair.latencies.percentile(50),
        p99: pair.latencies.percentile(99),
        // The consumer waited until the end, so that nothing can be left.
        wrong: pair.account.close(0),
    })
}

/// The reply that the consumer waits for.
enum Awaited {
    /// The ack of the task with this number, if it belongs to the account.
    Ack(Option<u64>),
    Task,
}

struct Pair {
    dialect: &'static dyn Dialect,
    poll: Poll,
    producer: Connection,
    consumer: Connection,
    awaited: VecDeque<Awaited>,
    /// The time of each push, by the number of the task.
    sent: Vec<Instant>,
    account: Account,
    latencies: Histogram,
    tokens: Vec<Token>,
}

impl Pair {
    fn connect(server: &Server, salt: u64) -> Result<Self, Box<dyn Error>> {
        let poll = Poll::new()?;
        let producer = Connection::open(server.address, server.dialect, poll.registry(), PRODUCER)?;
        let mut consumer = Connection::open(server.address, server.dialect, poll.registry(), CONSUMER)?;
        server.dialect.wait(&mut consumer.output, CONSUMER);
        consumer.flush()?;
        Ok(Pair {
            dialect: server.dialect,
            poll,
            producer,
            consumer,
            awaited: VecDeque::from([Awaited::Task]),
            sent: Vec::new(),
            account: Account::new(salt),
            latencies: Histogram::new(),
            tokens: Vec::new(),
        })
    }

    fn drive(&mut self, period: Duration, aim: Duration) -> Result<(), Box<dyn Error>> {
        let mut events = Events::with_capacity(2);
        let start = Instant::now();
        let (mut due, end) = (start + period, start + aim);
        let mut heard = start;
        loop {
            let now = Instant::now();
            if due <= now && due < end {
                self.push()?;
                due += period;
            }
            let producing = due < end;
            if !producing
                && self.account.confirmed() == self.account.made()
                && self.account.acked == self.account.made()
            {
                return Ok(());
            }
            if now - heard > STALL {
                return Err(format!("the server has not answered for {} s", STALL.as_secs()).into());
            }
            let patience = if producing { due.saturating_duration_since(now) } else { STALL };
            match self.poll.poll(&mut events, Some(patience)) {
                Err(e) if e.kind() != std::io::ErrorKind::Interrupted => return Err(e.into()),
                _ => {}
            }
            for event in &events {
                heard = Instant::now();
                if event.token().0 == CONSUMER { self.consume(heard)? } else { self.confirm()? }
            }
        }
    }

    fn push(&mut self) -> Result<(), Box<dyn Error>> {
        self.dialect.push(&mut self.producer.output, PRODUCER, 1, &mut self.account);
        self.sent.push(Instant::now());
        Ok(self.producer.flush()?)
    }

    fn confirm(&mut self) -> Result<(), Box<dyn Error>> {
        self.producer.flush()?;
        self.producer.fill()?;
        while let Some(bytes) = self.producer.next_reply(&mut self.tokens)? {
            if !self.dialect.pushed(bytes, &self.tokens, 1) {
                return Err(dialect::misfit(bytes, &self.tokens, "push").into());
            }
            // Pushes of one connection are answered in order.
            self.account.confirm(self.account.confirmed(), 1);
        }
        Ok(())
    }

    fn consume(&mut self, woken: Instant) -> Result<(), Box<dyn Error>> {
        self.consumer.flush()?;
        self.consumer.fill()?;
        let mut requests = Vec::new();
        while let Some(bytes) = self.consumer.next_reply(&mut self.tokens)? {
            let awaited = self.awaited.pop_front().ok_or("the server sent a reply without a request")?;
            let fits = match awaited {
                Awaited::Ack(number) => {
                    let count = self.dialect.acked(&self.tokens, true);
                    count.map(|count| self.account.ack(number.as_slice(), 1, count as u64))
                }
                Awaited::Task => {
                    let mut number = None;
                    let mut deliver = |payload: &[u8]| number = self.account.deliver(payload);
                    let popped =
                        self.dialect.popped(CONSUMER, bytes, &self.tokens, &mut requests, &mut deliver);
                    if let Some(number) = number {
                        self.latencies.record(woken - self.sent[number as usize], 1);
                    }
                    self.dialect.wait(&mut requests, CONSUMER);
                    self.awaited.extend([Awaited::Ack(number), Awaited::Task]);
                    popped.filter(|&count| count == 1).map(|_| ())
                }
            };
            fits.ok_or_else(|| dialect::misfit(bytes, &self.tokens, "blocked pop or ack"))?;
        }
        self.consumer.output.append(&mut requests);
        Ok(self.consumer.flush()?)
    }
}
