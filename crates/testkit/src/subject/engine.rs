//! The embedded home on a simulated disk, with a manual clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use sureq_core::Replies;
use sureq_core::command::{Command, ConnId};
use sureq_engine::log::Position;
use sureq_engine::{Engine, Options};
use sureq_home_api::{Home as _, Payload, Ticket, wait};

use super::Candidate;
use super::local::{Home, Local};
use crate::manual_clock::ManualClock;
use crate::sim_disk::SimDisk;

/// The engine, without a server.
pub const ENGINE: Candidate = Candidate {
    name: "engine",
    open: |watch| Box::new(Local::new(EngineHome::new(), watch)),
    can: |_| true,
    otherwise: &[],
};

/// Small segments, so that scenarios span several.
const SEGMENT_BYTES: u64 = 16 << 10;

/// A store that can be closed and opened again.
pub(super) struct SimStore {
    disk: SimDisk,
    clock: Arc<ManualClock>,
    pub(super) engine: Engine,
}

impl SimStore {
    pub(super) fn new() -> Self {
        let (disk, clock) = (SimDisk::new(1), Arc::new(ManualClock::default()));
        let engine = open(&disk, &clock);
        Self { disk, clock, engine }
    }

    /// Opens the closed store again.
    pub(super) fn reopen(&mut self) {
        self.engine = open(&self.disk, &self.clock);
    }

    pub(super) fn pass(&self, ms: u64) {
        self.clock.pass(ms);
        self.let_it_happen();
    }

    pub(super) fn jump(&self, ms: i64) {
        self.clock.jump(ms);
        self.let_it_happen();
    }

    /// Executes everything that is due, and makes it durable.
    pub(super) fn let_it_happen(&self) {
        self.engine.tick();
        while self.engine.inspect(|broker| broker.next_deadline().is_due(self.engine.now())) {
            self.engine.tick();
        }
        let submitted = self.engine.execute(&[], &mut Replies::default());
        wait_until_durable(&self.engine, submitted.position);
    }
}

fn open(disk: &SimDisk, clock: &Arc<ManualClock>) -> Engine {
    let options = Options { segment_bytes: Some(SEGMENT_BYTES), ..Options::default() };
    let clock = Arc::clone(clock);
    Engine::open_on(disk.shared(), clock, &options).expect("a closed store opens")
}

/// Waits until everything before the position is durable.
///
/// # Panics
///
/// If the log fails: the disk has no faults.
pub fn wait_until_durable(engine: &Engine, position: Position) {
    assert!(engine.wait(position), "the log failed: {:?}", engine.failure());
}

struct EngineHome {
    store: SimStore,
    last_waiting: u64,
    tickets: BTreeMap<u64, Ticket>,
    answers: BTreeMap<u64, Replies<Payload>>,
}

impl EngineHome {
    fn new() -> Self {
        Self { store: SimStore::new(), last_waiting: 0, tickets: BTreeMap::new(), answers: BTreeMap::new() }
    }

    /// Collects all replies. Pops with tasks wait for payloads from the disk; the others are waiters.
    fn take_answers(&mut self) {
        let Self { store, tickets, answers, .. } = self;
        wait(|cx| {
            let mut poll = |number: &u64, ticket: &Ticket, cx: &mut Context<'_>| match ticket.poll(cx) {
                Poll::Ready(answer) => answers.insert(*number, answer.replies).is_none(),
                Poll::Pending => false,
            };
            tickets.retain(|number, ticket| !poll(number, ticket, cx));
            if tickets.len() == store.engine.waiters() { Poll::Ready(()) } else { Poll::Pending }
        });
    }
}

impl Home for EngineHome {
    fn execute(&mut self, commands: &[Command<'_>], replies: &mut Replies<Payload>) -> Option<u64> {
        let submitted = self.store.engine.execute(commands, replies);
        wait_until_durable(&self.store.engine, submitted.position);
        assert_eq!(submitted.executed, replies.list.len(), "a reply for each command that was executed");
        let ticket = submitted.into_ticket()?;
        self.last_waiting += 1;
        self.tickets.insert(self.last_waiting, ticket);
        Some(self.last_waiting)
    }

    fn answer(&mut self, waiting: u64) -> Option<Replies<Payload>> {
        self.take_answers();
        self.answers.remove(&waiting)
    }

    fn leave(&mut self, waiting: u64) {
        self.tickets.remove(&waiting);
        self.answers.remove(&waiting);
        self.store.let_it_happen();
    }

    fn close_conn(&mut self, conn: ConnId) {
        self.store.engine.close_conn(conn);
        self.store.let_it_happen();
    }

    fn pass(&mut self, ms: u64) {
        self.store.pass(ms);
    }

    fn jump(&mut self, ms: i64) {
        self.store.jump(ms);
    }

    fn restart(&mut self) {
        self.tickets.clear();
        self.store.engine.close().expect("a sound disk");
        self.store.reopen();
        self.store.let_it_happen();
    }
}

impl Drop for EngineHome {
    fn drop(&mut self) {
        self.tickets.clear();
        // The store is not needed any more.
        let _ = self.store.engine.close();
    }
}
