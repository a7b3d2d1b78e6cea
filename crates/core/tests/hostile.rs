//! A log that was tampered with: whatever its checksums say, no event panics, and none breaks an invariant.
#![expect(unreachable_pub, reason = "what the modules of a test share is its own")]
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers panic and read as tests do")]

#[path = "model/mod.rs"]
mod model;
mod support;

use model::Model;
use model::command::Happening;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use support::{Bytes, Home, Log};
use sureq_core::codec::decode;
use sureq_core::command::{ConnId, LeaseAsk, Pop};
use sureq_core::{Broker, Command, LogTime, Now, Replies, WallTime};

/// The log of a random life of so many steps.
fn history(steps: usize) -> Vec<u8> {
    let (mut model, mut home) = (Model::default(), Home::default());
    let mut runner = TestRunner::deterministic();
    for _ in 0..steps {
        let plan = model::plan::plan().new_tree(&mut runner).unwrap().current();
        let happening = model.resolve(plan);
        match &happening {
            Happening::Cmd(cmd) => _ = cmd.with(|command| home.run(command)),
            Happening::Pass(ms) => home.pass(*ms),
            Happening::Wall(ms) => home.now.wall.0 = *ms,
            Happening::Tick => home.tick(),
            Happening::Restart => home.restart(model.incarnation + 1),
            Happening::CloseConn(conn) => home.close_conn(ConnId(*conn)),
            Happening::Undeliver(queue, receipts) => home.undeliver(queue.as_bytes(), receipts),
        }
        model.happen(happening);
    }
    home.log.bytes
}

/// Replays until the first refusal; answers whether there was none.
fn replays(mut bytes: &[u8], broker: &mut Broker<Bytes>) -> bool {
    while !bytes.is_empty() {
        match decode(bytes, |event| broker.replay(event, &mut Log::default())) {
            Ok((Ok(()), rest)) => bytes = rest,
            _ => return false,
        }
    }
    true
}

/// A broker of whatever past goes on without a panic.
fn live_on(broker: &mut Broker<Bytes>) {
    let (mut log, mut out) = (Log::default(), Replies::default());
    let mut now = Now { log: broker.clock(), wall: WallTime(0) };
    broker.start(broker.incarnation().saturating_add(1), now, &mut log);
    for _ in 0..3 {
        let names: Vec<Vec<u8>> = broker.queues().map(|(name, _)| name.to_vec()).collect();
        let queues: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let lease = LeaseAsk { ms: Some(10), ..LeaseAsk::NONE };
        broker.execute(now, &Command::Pop(Pop { lease, ..Pop::plain(&queues, 5) }), &mut log, &mut out);
        for queue in queues {
            broker.execute(now, &Command::Push { queue, payloads: &[b"x"] }, &mut log, &mut out);
            broker.execute(now, &Command::Recover { queue, count: 1, elapsed_ms: 0 }, &mut log, &mut out);
            broker.execute(now, &Command::Revive { queue, tasks: None }, &mut log, &mut out);
        }
        now.log = LogTime(now.log.0.saturating_add(100_000));
        now.wall = WallTime(u64::MAX);
        for _ in 0..50 {
            broker.tick(now, &mut log);
        }
    }
}

/// Some single byte mutations of a log; every one if there is time for it.
fn mutations(bytes: &[u8], mut check: impl FnMut(&[u8])) {
    let scale: usize = std::env::var("SUREQ_TEST_SCALE").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut mutant = bytes.to_vec();
    for at in 0..bytes.len() {
        for (n, change) in [1u8, 0x80, 0xff, 2, 0x40, 4, 0x10, 8, 0x20, 0x7f].into_iter().enumerate() {
            if (at + n) % 10 < 2 * scale {
                mutant[at] = bytes[at] ^ change;
                check(&mutant);
            }
        }
        mutant[at] = bytes[at];
    }
}

#[test]
fn a_log_with_a_wrong_byte_is_refused_or_keeps_every_invariant() {
    let mut accepted = 0;
    mutations(&history(120), |mutant| {
        let mut broker = Broker::default();
        if replays(mutant, &mut broker) {
            broker.refresh_all();
            broker.check().unwrap_or_else(|broken| panic!("{}", broken.0));
            live_on(&mut broker);
            accepted += 1;
        }
    });
    assert!(accepted > 0, "some changes make another log that is possible");
}

#[test]
fn a_checkpoint_with_a_wrong_byte_is_refused_or_keeps_its_queues_whole() {
    let mut home = Home::default();
    support::replay(&history(300), &mut home.broker);
    let mut checkpoint = Log::default();
    let record = &mut |event: &sureq_core::Event<'_>| sureq_core::Recorder::record(&mut checkpoint, event);
    home.broker.export(&mut |body| body.0.as_ref().into(), record);
    mutations(&checkpoint.bytes, |mutant| {
        let mut broker = Broker::default();
        if replays(mutant, &mut broker) {
            broker.refresh_all();
            for (_, queue) in broker.queues() {
                queue.check().unwrap_or_else(|broken| panic!("{}", broken.0));
            }
            live_on(&mut broker);
        }
    });
}
