//! The core as a home: a broker, two numbers for a clock, and a list of its encoded events.
//!
//! It is the reference for all other homes. Its waiting pops are as simple as possible: after every change each of
//! them is retried, the oldest first.

use sureq_core::command::{Block, Command, ConnId, Pop};
use sureq_core::owned::OwnedPop;
use sureq_core::{Broker, Event, LogTime, Now, Progress, Recorder, Replies, Reply, WallTime, codec};
use sureq_engine::Body;
use sureq_home_api::Payload;

use super::Candidate;
use super::local::{Home, Local};
use crate::manual_clock::ManualClock;

pub const CORE: Candidate = Candidate {
    name: "core",
    open: |watch| Box::new(Local::new(CoreHome::new(), watch)),
    can: |_| true,
    otherwise: &[],
};

struct CoreHome {
    broker: Broker<Body>,
    log: Log,
    now: Now,
    last_waiting: u64,
    line: Vec<WaitingPop>,
}

struct WaitingPop {
    number: u64,
    pop: OwnedPop,
    until: Option<LogTime>,
    replies: Option<Replies<Body>>,
}

/// All events so far, encoded as in a log.
#[derive(Default)]
struct Log {
    events: Vec<Vec<u8>>,
}

impl Recorder for Log {
    type Body = Body;

    fn record(&mut self, event: &Event<'_>) {
        let mut bytes = Vec::new();
        codec::encode(event, &mut bytes);
        self.events.push(bytes);
    }

    fn new_body(&mut self, _index: usize, payload: &[u8]) -> Body {
        Body::from(payload)
    }

    fn release_body(&mut self, _body: Body) {}

    fn payload_hash(&self, payload: &[u8]) -> u128 {
        payload.iter().fold(7, |hash: u128, &c| hash.wrapping_mul(257).wrapping_add(c.into()))
    }
}

impl CoreHome {
    fn new() -> Self {
        let start = ManualClock::START_MS;
        let now = Now { log: LogTime(start), wall: WallTime(start) };
        let (mut broker, mut log) = (Broker::default(), Log::default());
        broker.start(1, now, &mut log);
        Self { broker, log, now, last_waiting: 0, line: Vec::new() }
    }

    fn tick(&mut self) {
        while self.broker.next_deadline().is_due(self.now) {
            self.broker.tick(self.now, &mut self.log);
        }
        self.serve();
        let now = self.now.log;
        for waiting in self.line.iter_mut().filter(|waiting| waiting.replies.is_none()) {
            if waiting.until.is_some_and(|until| until <= now) {
                let mut replies = Replies::default();
                replies.list.push(Reply::TimedOut);
                waiting.replies = Some(replies);
            }
        }
        self.broker.check().expect("rule 1");
    }

    fn serve(&mut self) {
        for waiting in self.line.iter_mut().filter(|waiting| waiting.replies.is_none()) {
            let mut replies = Replies::default();
            waiting
                .pop
                .with(|pop| self.broker.execute(self.now, &Command::Pop(*pop), &mut self.log, &mut replies));
            if !found_nothing(&replies) {
                waiting.replies = Some(replies);
            }
        }
    }
}

fn found_nothing(replies: &Replies<Body>) -> bool {
    matches!(replies.list.last(), Some(Reply::Tasks(span)) if span.is_empty())
}

/// A pop that must wait, since it found nothing.
fn must_wait<'c, 'a>(command: &'c Command<'a>, replies: &Replies<Body>) -> Option<&'c Pop<'a>> {
    match command {
        Command::Pop(pop) if pop.block.is_some() && pop.count > 0 && found_nothing(replies) => Some(pop),
        _ => None,
    }
}

/// The payload of a reply, in memory.
fn payload_of(body: &Body) -> Payload {
    Payload::from(body.as_ref())
}

impl CoreHome {
    fn execute_all(&mut self, commands: &[Command<'_>], replies: &mut Replies<Body>) -> Option<u64> {
        for command in commands {
            self.broker.execute(self.now, command, &mut self.log, replies);
            if let Some(pop) = must_wait(command, replies) {
                replies.list.pop();
                self.last_waiting += 1;
                let until = match pop.block {
                    Some(Block::Millis(ms)) => Some(self.now.log.after(ms)),
                    _ => None,
                };
                let number = self.last_waiting;
                self.line.push(WaitingPop { number, pop: OwnedPop::from(pop), until, replies: None });
                return Some(number);
            }
            self.serve();
        }
        None
    }
}

impl Home for CoreHome {
    fn execute(&mut self, commands: &[Command<'_>], replies: &mut Replies<Payload>) -> Option<u64> {
        let mut own = Replies::default();
        let waiting = self.execute_all(commands, &mut own);
        replies.append_mapped(&mut own, |body| payload_of(&body));
        waiting
    }

    fn answer(&mut self, waiting: u64) -> Option<Replies<Payload>> {
        let at = self.line.iter().position(|other| other.number == waiting && other.replies.is_some())?;
        let (mut own, mut replies) = (self.line.remove(at).replies?, Replies::default());
        replies.append_mapped(&mut own, |body| payload_of(&body));
        Some(replies)
    }

    fn leave(&mut self, waiting: u64) {
        self.line.retain(|other| other.number != waiting);
    }

    fn close_conn(&mut self, conn: ConnId) {
        while self.broker.close_conn(conn, self.now, &mut self.log) == Progress::More {}
        self.serve();
    }

    fn pass(&mut self, ms: u64) {
        self.now = Now { log: self.now.log.after(ms), wall: WallTime(self.now.wall.0 + ms) };
        self.tick();
    }

    fn jump(&mut self, ms: i64) {
        self.now.wall = WallTime(self.now.wall.0.saturating_add_signed(ms));
        self.tick();
    }

    /// The state after a restart is the replay of the encoded events.
    fn restart(&mut self) {
        let mut broker = Broker::default();
        for event in &self.log.events {
            let (replayed, rest) = codec::decode(event, |event| broker.replay(event, &mut Log::default()))
                .expect("an event is decodable");
            replayed.expect("a replayed event fits");
            assert!(rest.is_empty(), "an event is decoded to its end");
        }
        broker.refresh_all();
        assert_eq!(broker.digest(), self.broker.digest(), "the replay gives the same state");
        self.now.log = self.now.log.max(LogTime(self.now.wall.0));
        broker.start(self.broker.incarnation() + 1, self.now, &mut self.log);
        self.broker = broker;
        self.line.clear();
        self.tick();
    }
}
