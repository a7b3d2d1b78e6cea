//! Shared by the tests of the engine: a store on a simulated disk with a clock that is moved by hand, and its events.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this")]

pub mod facts;
pub mod run;

use std::sync::Arc;

use sureq_core::command::{AckScope, IdForm, Pop, TaskRefs};
use sureq_core::event::{Event, Recorder};
use sureq_core::{Broker, Command, Replies, Reply, TaskId, codec};
use sureq_engine::Body;
use sureq_engine::disk::Disk;
use sureq_engine::log::{Durability, LogOptions, scan};
use sureq_engine::store::Store;
use sureq_engine::{Engine, Options};
use sureq_home_api::{Home as _, Payload, Submitted};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::SimDisk;

/// Segments so small that a short run fills several.
pub const SEGMENT_BYTES: u64 = 4096;

pub fn options(durability: Durability) -> Options {
    // These tests compare the whole log.
    Options { durability, segment_bytes: Some(SEGMENT_BYTES), keeps_log: true, ..Options::default() }
}

/// A store on an empty disk, at the default durability.
pub fn fresh() -> (Engine, SimDisk, Arc<ManualClock>) {
    let (disk, clock) = (SimDisk::new(7), Arc::new(ManualClock::default()));
    let engine = open(&disk.shared(), &clock, Durability::Always);
    (engine, disk, clock)
}

pub fn open(disk: &Arc<dyn Disk>, clock: &Arc<ManualClock>, durability: Durability) -> Engine {
    let clock = Arc::clone(clock);
    Engine::open_on(Arc::clone(disk), clock, &options(durability)).expect("a sound store opens")
}

/// Executes commands, and waits until the replies may be sent.
pub fn execute(engine: &Engine, commands: &[Command<'_>]) -> (Replies<Payload>, Submitted) {
    let mut replies = Replies::default();
    let executed = engine.execute(commands, &mut replies);
    assert!(engine.wait(executed.position), "the log failed: {:?}", engine.failure());
    (replies, executed)
}

/// Pushes payloads to `q` and returns their ids.
pub fn push(engine: &Engine, payloads: &[&[u8]]) -> Vec<TaskId> {
    let (replies, _) = execute(engine, &[Command::Push { queue: b"q", payloads }]);
    assert!(matches!(replies.list[0], Reply::Pushed(_)), "{:?}", replies.list);
    replies.ids
}

/// Pops from `q` and returns the payloads.
pub fn pop(engine: &Engine, count: u32) -> Vec<Vec<u8>> {
    let (replies, _) = execute(engine, &[Command::Pop(Pop::plain(&[b"q"], count))]);
    replies.tasks.iter().map(|task| task.body.as_ref().to_vec()).collect()
}

/// Acks tasks of `q` by their ids, and returns the number of tasks that this call finished.
pub fn ack(engine: &Engine, ids: &[TaskId]) -> usize {
    let texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    let (replies, _) = execute(engine, &[ack_of(&list)]);
    replies.indexes.len()
}

pub fn ack_of<'a>(list: &'a [&'a [u8]]) -> Command<'a> {
    let tasks = TaskRefs { list, form: IdForm::Long };
    Command::Ack { queue: b"q", tasks, scope: AckScope::LeasedOrLapsed }
}

/// All events in a log, encoded. Changes nothing on disk.
pub fn events_in(disk: &SimDisk) -> Vec<Vec<u8>> {
    let disk = SimDisk::with_files(5, &disk.files());
    let uuid = Store::open(&disk.shared()).expect("a sound store").values().uuid;
    let options = LogOptions { segment_bytes: SEGMENT_BYTES, may_be_new: true, ..LogOptions::new(uuid) };
    let mut events = Vec::new();
    let scanned = scan(&disk, &options, &mut |frame| {
        let mut rest = frame.body;
        while !rest.is_empty() {
            let ((), behind) = codec::decode(rest, |_| ()).expect("an event");
            events.push(rest[..rest.len() - behind.len()].to_vec());
            rest = behind;
        }
        Ok(())
    });
    scanned.map(|_| ()).expect("a sound log");
    events
}

/// Whether this is the event with which a store begins an incarnation.
pub fn is_start(event: &[u8]) -> bool {
    codec::decode(event, |event| matches!(event, Event::Started { .. })).is_ok_and(|(is_start, _)| is_start)
}

/// The state after a replay of these events.
pub fn replayed<'e>(events: impl IntoIterator<Item = &'e Vec<u8>>) -> Broker<Body> {
    let mut broker = Broker::default();
    for event in events {
        let (applied, _) = codec::decode(event, |event| broker.replay(event, &mut Mute)).expect("an event");
        applied.expect("an event that fits");
    }
    broker.refresh_all();
    broker.check().expect("rule 1");
    broker
}

/// Makes bodies and records nothing.
struct Mute;

impl Recorder for Mute {
    type Body = Body;

    fn record(&mut self, _event: &Event<'_>) {}

    fn new_body(&mut self, _index: usize, payload: &[u8]) -> Body {
        Body::from(payload)
    }

    fn payload_hash(&self, _payload: &[u8]) -> u128 {
        0
    }

    fn release_body(&mut self, _body: Body) {}
}
